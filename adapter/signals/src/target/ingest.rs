//! Taking in a body: recognise, read, check, commit.

use std::sync::Arc;

use coppice_exposition::{Ending, Refused, Report, read};
use jiff::Timestamp;

use super::Target;
use super::pass::{Parsed, Pass};
use crate::collection::{Collection, Key};
use crate::engines::{Recognition, Servers};
use crate::settings::Limits;

/// Malformed lines with needed names that a body may have.
const MALFORMED_ALLOWED: u64 = 3;

/// What was found in a body that was taken in.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Ingested {
    /// Samples kept.
    pub(crate) samples: u64,
    /// Lines with needed names that break the format.
    pub(crate) malformed: u64,
    /// Series sent more than once.
    pub(crate) duplicates: u64,
    /// Values that cannot be: NaN, negative counts, shares outside 0–1.
    pub(crate) implausible: u64,
    /// Histograms whose buckets contradict each other.
    pub(crate) inconsistent: u64,
    /// Whether the process had restarted.
    pub(crate) restarted: bool,
}

/// Why a body was not taken in.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotIngested {
    /// It is no exposition, or over a limit on the body.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// It was cut short.
    #[error("the body ends within a line")]
    Truncated,
    /// Too many lines with needed names break the format.
    #[error("{count} malformed lines, the first at {first}")]
    Malformed {
        /// How many.
        count: u64,
        /// Description of the first.
        first: String,
    },
    /// A series that the server always has, and had before, is not there.
    #[error("series {name} is missing, the body seems incomplete")]
    Incomplete {
        /// Its name.
        name: &'static str,
    },
    /// More series or models than allowed.
    #[error("limit {name} of {limit} reached")]
    Limit {
        /// The limit's name.
        name: &'static str,
        /// Its value.
        limit: usize,
    },
}

impl NotIngested {
    /// A short name, for metrics.
    pub(crate) const fn category(&self) -> &'static str {
        match self {
            Self::Refused(_) => "refused",
            Self::Truncated => "truncated",
            Self::Malformed { .. } => "malformed",
            Self::Incomplete { .. } => "incomplete",
            Self::Limit { .. } => "limit",
        }
    }
}

impl Target {
    /// Takes in a body that arrived at `at`.
    ///
    /// `whole` says that the transport vouches for the length; otherwise a body that ends within a line is cut short.
    /// `servers` are those that are looked for; `collection_of` gives what to keep for a recognition.
    ///
    /// # Errors
    /// Why it was not taken in; the window is as before.
    pub(crate) fn ingest(
        &mut self,
        body: &[u8],
        whole: bool,
        at: Timestamp,
        limits: &Limits,
        servers: &'static Servers,
        mut collection_of: impl FnMut(Recognition) -> Arc<Collection>,
    ) -> Result<Ingested, NotIngested> {
        let reader = limits.reader();
        let known = self
            .recognition()
            .filter(|known| !known.is_unknown() && known.is_among(servers));
        let known = match known {
            Some(known) => known,
            None => {
                let recognition = servers.recognise(body, &reader)?;
                self.unknown_has_samples = recognition.has_samples();
                recognition
            }
        };
        self.follow(collection_of(known));
        let mut outcome = self.parse(body, whole, limits);
        let restarted = outcome
            .as_ref()
            .is_ok_and(|parsed| self.has_restarted(parsed.start_time));
        let is_suspect = match &outcome {
            // Where nothing is there any more that was needed, another server may be there.
            Ok(parsed) => {
                restarted || self.has_fallen() || (parsed.found.samples == 0 && self.samples > 0)
            }
            Err(error) => matches!(error, NotIngested::Incomplete { .. }),
        };
        if is_suspect {
            // Another server may have taken the place of the old one.
            let recognition = servers.recognise(body, &reader)?;
            if recognition.is_other_than(known) {
                self.follow(collection_of(recognition));
                outcome = self.parse(body, whole, limits);
            }
        }
        let parsed = outcome?;
        self.start_time = parsed.start_time;
        self.samples = parsed.found.samples;
        let mut found = parsed.found;
        found.restarted = restarted;
        self.commit(at, restarted, &mut found);
        Ok(found)
    }

    /// Keeps what this collection says: begins anew where the server is another one, else only finds out anew what each
    /// series is used for.
    fn follow(&mut self, collection: Arc<Collection>) {
        let Some(old) = &self.collection else {
            return self.begin(collection);
        };
        if Arc::ptr_eq(old, &collection) {
            return;
        }
        if !old.recognition.is_same_server(collection.recognition) {
            return self.begin(collection);
        }
        for slot in self.slots.drain(..) {
            self.carried.insert(slot.id, slot.previous);
        }
        self.constants.clear();
        self.by_id.clear();
        self.uses.clear();
        self.channels.retain(|channel| match channel.key {
            Key::Term(_) => true,
            Key::Raw(id) => collection.has_raw_id(id),
        });
        self.routed = usize::MAX;
        self.raw_since.retain(|(id, _)| collection.has_raw_id(*id));
        for id in collection.raw_ids() {
            if !self.raw_since.iter().any(|(known, _)| *known == id) {
                self.raw_since.push((id, self.commits));
            }
        }
        self.collection = Some(collection);
    }

    fn begin(&mut self, collection: Arc<Collection>) {
        *self = Self {
            attempts: self.attempts,
            unknown_has_samples: self.unknown_has_samples,
            present: vec![false; collection.terms.len()],
            present_next: vec![false; collection.terms.len()],
            raw_since: collection.raw_ids().map(|id| (id, 0)).collect(),
            ..Self::new(self.capacity)
        };
        self.collection = Some(collection);
    }

    fn parse(&mut self, body: &[u8], whole: bool, limits: &Limits) -> Result<Parsed, NotIngested> {
        // Never the 0 of a slot that was not seen yet.
        self.attempts = self.attempts.checked_add(1).unwrap_or(1);
        self.present_next.fill(false);
        self.newest.clear();
        let Some(collection) = self.collection.clone() else {
            return Ok(Parsed::default());
        };
        let mut pass = Pass {
            target: self,
            collection: &collection,
            limits,
            next: 0,
            parsed: Parsed::default(),
            over_limit: None,
        };
        let report = read(body, &limits.reader(), &mut pass)?;
        let Pass {
            mut parsed,
            over_limit,
            ..
        } = pass;
        if let Some((name, limit)) = over_limit {
            return Err(NotIngested::Limit { name, limit });
        }
        check_shape(&report, whole)?;
        parsed.found.samples = report.samples;
        parsed.found.malformed = report.malformed;
        let missing = collection.required().find(|(term, _)| {
            let term = usize::from(*term);
            self.present[term] && !self.present_next[term]
        });
        if let Some((_, name)) = missing {
            self.incomplete += 1;
            // The third time it is no accident: this is what the server sends now.
            if self.incomplete < 3 {
                return Err(NotIngested::Incomplete { name });
            }
        }
        self.incomplete = 0;
        Ok(parsed)
    }

    fn has_restarted(&self, start_time: Option<f64>) -> bool {
        matches!((self.start_time, start_time), (Some(before), Some(now)) if (before - now).abs() > 0.5)
    }

    /// Whether a series fell that never does while its process lives.
    fn has_fallen(&self) -> bool {
        self.slots
            .iter()
            .any(|slot| slot.attempt == self.attempts && slot.counts && slot.value < slot.previous)
    }
}

/// Checks what the reader says about the body as a whole.
fn check_shape(report: &Report, whole: bool) -> Result<(), NotIngested> {
    if report.is_truncated() || (!whole && matches!(report.ending, Ending::WithinLine { .. })) {
        return Err(NotIngested::Truncated);
    }
    if report.malformed > MALFORMED_ALLOWED {
        let first = report
            .problems
            .first()
            .map_or_else(String::new, ToString::to_string);
        return Err(NotIngested::Malformed {
            count: report.malformed,
            first,
        });
    }
    Ok(())
}
