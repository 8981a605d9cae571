//! One endpoint's memory: takes in bodies, keeps a bounded window of the signals in them.
//!
//! [`Target::ingest`] is all or nothing: a body that is refused, cut short or over a limit leaves the window as it was.
//! A series that is sent once more in a body replaces itself. Counters are compared with their own last value, series by
//! series, before anything is summed; all of them count from zero when the process has restarted.

use std::borrow::Cow;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use coppice_exposition::{Consumer, Ending, Refused, Report, Sample, Text, read};
use jiff::Timestamp;

use crate::channel::{Committed, Counter, Gauge, Histogram, Place};
use crate::collection::{Collection, Key, NameUse, Part};
use crate::engines::{Reading, Recognition, Tier, recognise};
use crate::reading::{Models, Routes};
use crate::settings::Limits;

/// Commits after which a series that is not sent any more is forgotten, at least.
const FORGET_AFTER: u64 = 64;
/// Malformed lines with needed names that a body may have.
const MALFORMED_ALLOWED: u64 = 3;
/// A number of things above this is not one.
const ABSURD: f64 = 1e15;
/// How far outside 0–1 a share may be by rounding.
const ROUNDING: f64 = 1e-6;

/// What selecting an endpoint needs to know of it, side by side in memory.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Glance {
    /// When the last body was taken in.
    pub(crate) last: Option<Timestamp>,
    /// What the server stands for; `None` before it was recognised.
    pub(crate) tier: Option<Tier>,
    /// It has series, and they are of no server that we know.
    pub(crate) foreign: bool,
    /// The role that the server says it has.
    pub(crate) role: Option<&'static str>,
    /// A hash of its model's name, if it serves one.
    pub(crate) only_model: Option<u64>,
}

/// What is remembered of one endpoint.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) glance: Glance,
    capacity: usize,
    collection: Option<Arc<Collection>>,
    role: Option<&'static str>,
    models: Vec<Box<str>>,
    /// A hash of each model's name.
    model_hashes: Vec<u64>,
    slots: Vec<Slot>,
    by_id: HashMap<u64, u32, BuildHasherDefault<IdHasher>>,
    uses: Vec<SlotUse>,
    /// Values that stand in labels.
    constants: Vec<f64>,
    pub(crate) channels: Vec<Channel>,
    /// When the body of each row came.
    times: Box<[Timestamp]>,
    /// Bodies taken in under the present recognition; the row of the next one is this modulo the capacity.
    commits: u64,
    /// Bodies looked at, taken in or not; wraps around.
    attempts: u32,
    /// Commit at which each raw name was first looked for.
    raw_since: Vec<(u32, u64)>,
    /// Last values of series whose uses have to be found out anew.
    carried: HashMap<u64, f64, BuildHasherDefault<IdHasher>>,
    start_time: Option<f64>,
    /// The channels of each signal.
    pub(crate) routes: Routes,
    /// Number of channels when these were found.
    routed: usize,
    /// Whether each term's name was in the last body taken in, and in the one that is being read.
    present: Vec<bool>,
    present_next: Vec<bool>,
    /// Whether there are samples where no server was recognised.
    unknown_has_samples: bool,
    /// Bodies in a row that lacked a required series.
    incomplete: u32,
}

/// A series of the body that is kept.
#[derive(Debug, Clone, Copy)]
struct Slot {
    id: u64,
    /// The value when it was last committed; NaN before.
    previous: f64,
    value: f64,
    /// Attempt at which it was last seen.
    attempt: u32,
    /// Commit at which it was last seen.
    commit: u32,
    first_use: u32,
    uses: u16,
    /// Whether it can fall by a restart only.
    counts: bool,
}

#[derive(Debug, Clone, Copy)]
struct SlotUse {
    channel: u16,
    place: Place,
}

/// One term of one model.
#[derive(Debug)]
pub(crate) struct Channel {
    pub(crate) key: Key,
    /// Index into the models; `None` where the series names no model.
    pub(crate) model: Option<u16>,
    pub(crate) window: Window,
    /// Commit at which it last had a series.
    pub(crate) seen: u64,
    /// Commit at which it last had an impossible value.
    pub(crate) impossible: u64,
}

/// The memory of a channel, by what it reads.
#[derive(Debug)]
pub(crate) enum Window {
    Gauge(Gauge),
    Counter(Counter),
    Histogram(Box<Histogram>),
    /// A series by its own name: nobody says which of the two it is.
    Raw(Gauge, Counter),
}

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

/// Ids are hashes already.
#[derive(Debug, Default)]
struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 << 8) | u64::from(*byte);
        }
    }

    fn write_u64(&mut self, id: u64) {
        self.0 = id;
    }
}

impl Target {
    /// A target that keeps `capacity` rows, at least two.
    pub(crate) fn new(capacity: usize) -> Self {
        let capacity = capacity.max(2);
        Self {
            glance: Glance::default(),
            capacity,
            collection: None,
            role: None,
            models: Vec::new(),
            model_hashes: Vec::new(),
            slots: Vec::new(),
            by_id: HashMap::default(),
            uses: Vec::new(),
            constants: Vec::new(),
            channels: Vec::new(),
            times: vec![Timestamp::UNIX_EPOCH; capacity].into(),
            commits: 0,
            attempts: 0,
            raw_since: Vec::new(),
            carried: HashMap::default(),
            start_time: None,
            routes: Routes::default(),
            routed: usize::MAX,
            present: Vec::new(),
            present_next: Vec::new(),
            unknown_has_samples: false,
            incomplete: 0,
        }
    }

    /// Takes in a body that arrived at `at`.
    ///
    /// `whole` says that the transport vouches for the length; otherwise a body that ends within a line is cut short.
    /// `collection_of` gives what to keep for a recognition.
    ///
    /// # Errors
    /// Why it was not taken in; the window is as before.
    pub(crate) fn ingest(
        &mut self,
        body: &[u8],
        whole: bool,
        at: Timestamp,
        limits: &Limits,
        mut collection_of: impl FnMut(Recognition) -> Arc<Collection>,
    ) -> Result<Ingested, NotIngested> {
        let reader = limits.reader();
        let known = self.recognition().filter(|known| !known.is_unknown());
        let known = match known {
            Some(known) => known,
            None => {
                let recognition = recognise(body, &reader)?;
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
            Ok(_) => restarted || self.has_fallen(),
            Err(error) => matches!(error, NotIngested::Incomplete { .. }),
        };
        if is_suspect {
            // Another server may have taken the place of the old one.
            let recognition = recognise(body, &reader)?;
            if recognition.is_other_than(known) {
                self.follow(collection_of(recognition));
                outcome = self.parse(body, whole, limits);
            }
        }
        let parsed = outcome?;
        self.start_time = parsed.start_time;
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

    fn commit(&mut self, at: Timestamp, restarted: bool, found: &mut Ingested) {
        let commit = self.commits;
        let row = self.row(commit);
        for index in 0..self.slots.len() {
            let slot = self.slots[index];
            if slot.attempt == self.attempts {
                self.take_in(index, slot, restarted, found);
            }
        }
        for channel in 0..self.channels.len() {
            let previous = self.since(self.channels[channel].key) < commit;
            let previous = previous.then(|| self.row(commit.wrapping_sub(1)));
            let mut moves: Option<Vec<Option<u16>>> = None;
            match &mut self.channels[channel].window {
                Window::Gauge(gauge) => gauge.commit(row),
                Window::Counter(counter) => counter.commit(row, previous),
                Window::Raw(gauge, counter) => {
                    gauge.commit(row);
                    counter.commit(row, previous);
                }
                Window::Histogram(histogram) => {
                    match histogram
                        .commit(row, previous, commit, |moved| moves = Some(moved.to_vec()))
                    {
                        Committed::Same | Committed::BoundsChanged => {}
                        Committed::Inconsistent => found.inconsistent += 1,
                    }
                }
            }
            if let Some(moves) = moves {
                self.move_buckets(channel, &moves);
            }
        }
        self.times[row] = at;
        self.commits += 1;
        self.carried.clear();
        self.forget();
        let is_new = self.routed != self.channels.len() || self.present != self.present_next;
        std::mem::swap(&mut self.present, &mut self.present_next);
        if is_new {
            self.routes = self.find_routes();
            self.routed = self.channels.len();
            self.shrink();
        }
        self.glance = self.look(at);
    }

    fn look(&self, last: Timestamp) -> Glance {
        let recognition = self.recognition();
        let known = recognition.filter(|known| !known.is_unknown());
        let is_frontend = known.is_some_and(Recognition::is_frontend);
        let tier = if is_frontend {
            Tier::Frontend
        } else {
            Tier::Engine
        };
        Glance {
            last: Some(last),
            tier: known.map(|_| tier),
            foreign: self.unknown_has_samples && recognition.is_some_and(Recognition::is_unknown),
            role: if is_frontend {
                Some("frontend")
            } else {
                self.role
            },
            only_model: self.only_model(Models::ALL),
        }
    }

    /// Gives back memory that was reserved for more series than there are.
    fn shrink(&mut self) {
        self.slots.shrink_to_fit();
        self.uses.shrink_to_fit();
        self.channels.shrink_to_fit();
        self.by_id.shrink_to_fit();
    }

    /// Takes one series of the body into its channels.
    fn take_in(&mut self, index: usize, slot: Slot, restarted: bool, found: &mut Ingested) {
        let commit = self.commits;
        let uses = slot.first_use as usize..slot.first_use as usize + usize::from(slot.uses);
        let mut plausible = true;
        for SlotUse { channel, place } in self.uses[uses].iter().copied() {
            let since = self.since(self.channels[usize::from(channel)].key);
            let channel = &mut self.channels[usize::from(channel)];
            channel.seen = commit;
            let value = match place {
                Place::Constant(index) => self.constants[usize::from(index)],
                Place::Value | Place::Bucket(_) | Place::LastBucket | Place::Sum | Place::Count => {
                    slot.value
                }
            };
            let increase = if slot.previous.is_nan() {
                // A series that is new in a body of a known process was not there, or zero, before.
                if since < commit { value } else { 0.0 }
            } else if restarted || value < slot.previous {
                value
            } else {
                value - slot.previous
            };
            let reading = self
                .collection
                .as_ref()
                .and_then(|collection| collection.term(channel.key))
                .map(|(_, term)| term.reading);
            let possible = match (&channel.window, reading) {
                (Window::Gauge(_), Some(Reading::Ratio)) => {
                    (-ROUNDING..=1.0 + ROUNDING).contains(&value)
                }
                (Window::Gauge(_), _) => (0.0..=ABSURD).contains(&value),
                (Window::Counter(_) | Window::Histogram(_), _) => {
                    value.is_finite() && (value >= 0.0 || place == Place::Sum)
                }
                (Window::Raw(..), _) => value.is_finite(),
            };
            if !possible {
                channel.impossible = commit;
                plausible = false;
                continue;
            }
            match &mut channel.window {
                Window::Gauge(gauge) => {
                    let is_ratio = matches!(reading, Some(Reading::Ratio));
                    gauge.observe(if is_ratio {
                        value.clamp(0.0, 1.0)
                    } else {
                        value
                    });
                }
                Window::Counter(counter) => counter.grow(increase),
                Window::Raw(gauge, counter) => {
                    gauge.observe(value);
                    counter.grow(increase);
                }
                Window::Histogram(histogram) => histogram.observe(place, value, increase),
            }
        }
        self.slots[index].commit = short(commit);
        if plausible {
            self.slots[index].previous = slot.value;
        } else {
            found.implausible += 1;
        }
    }

    /// Gives the buckets of a channel their new places; those without one are found out anew when they come back.
    fn move_buckets(&mut self, channel: usize, moves: &[Option<u16>]) {
        let mut homeless = Vec::new();
        for slot in &self.slots {
            let uses = slot.first_use as usize..slot.first_use as usize + usize::from(slot.uses);
            for slot_use in &mut self.uses[uses] {
                if usize::from(slot_use.channel) != channel {
                    continue;
                }
                if let Place::Bucket(bucket) = &mut slot_use.place {
                    match moves.get(usize::from(*bucket)).copied().flatten() {
                        Some(moved) => *bucket = moved,
                        None => homeless.push(slot.id),
                    }
                }
            }
        }
        self.drop_slots(|slot| homeless.contains(&slot.id));
    }

    /// Forgets series that were not sent for long, once they are the greater part.
    fn forget(&mut self) {
        let last = short(self.commits);
        let age = short(FORGET_AFTER.max(self.capacity as u64));
        let old = |slot: &Slot| last.wrapping_sub(slot.commit) > age;
        let count = self.slots.iter().filter(|slot| old(slot)).count();
        if count > 32 && count * 2 > self.slots.len() {
            let forgotten: Vec<u64> = self
                .slots
                .iter()
                .filter(|slot| old(slot))
                .map(|slot| slot.id)
                .collect();
            self.drop_slots(|slot| forgotten.contains(&slot.id));
        }
    }

    fn drop_slots(&mut self, dropped: impl Fn(&Slot) -> bool) {
        let before = self.slots.len();
        self.slots.retain(|slot| !dropped(slot));
        if self.slots.len() == before {
            return;
        }
        let mut uses = Vec::with_capacity(self.uses.len());
        self.by_id.clear();
        for (index, slot) in self.slots.iter_mut().enumerate() {
            let old = slot.first_use as usize..slot.first_use as usize + usize::from(slot.uses);
            slot.first_use = u32::try_from(uses.len()).unwrap_or(u32::MAX);
            uses.extend_from_slice(&self.uses[old]);
            self.by_id
                .insert(slot.id, u32::try_from(index).unwrap_or(u32::MAX));
        }
        self.uses = uses;
    }

    /// The row of a commit.
    pub(crate) fn row(&self, commit: u64) -> usize {
        usize::try_from(commit % self.capacity as u64).unwrap_or(0)
    }

    /// The first commit at which a key was looked for.
    pub(crate) fn since(&self, key: Key) -> u64 {
        match key {
            Key::Term(_) => 0,
            Key::Raw(id) => self
                .raw_since
                .iter()
                .find(|(known, _)| *known == id)
                .map_or(0, |(_, since)| *since),
        }
    }

    /// What the server was recognised as; `None` before the first body.
    pub(crate) fn recognition(&self) -> Option<Recognition> {
        self.collection
            .as_ref()
            .map(|collection| collection.recognition)
    }

    /// The collection followed; `None` before the first body.
    pub(crate) fn collection(&self) -> Option<&Collection> {
        self.collection.as_deref()
    }

    /// Whether the name of a term was in the last body.
    pub(crate) fn is_present(&self, term: u16) -> bool {
        self.present
            .get(usize::from(term))
            .copied()
            .unwrap_or(false)
    }

    /// Models named by the series.
    pub(crate) fn models(&self) -> &[Box<str>] {
        &self.models
    }

    /// The names of the models among these.
    pub(crate) fn models_among(&self, models: Models) -> impl Iterator<Item = &str> {
        let included = self
            .models
            .iter()
            .zip(0_u16..)
            .filter(move |(_, index)| models.includes(Some(*index)));
        included.map(|(model, _)| &**model)
    }

    /// A hash of the one model among these; `None` for none or several.
    pub(crate) fn only_model(&self, models: Models) -> Option<u64> {
        let mut included = self
            .model_hashes
            .iter()
            .zip(0_u16..)
            .filter(|(_, index)| models.includes(Some(*index)));
        match (included.next(), included.next()) {
            (Some((hash, _)), None) => Some(*hash),
            _ => None,
        }
    }

    /// Series remembered.
    pub(crate) fn series(&self) -> usize {
        self.slots.len()
    }

    /// Commits so far, and the number of them that the ring holds.
    pub(crate) fn commits(&self) -> (u64, u64) {
        (self.commits, self.commits.min(self.capacity as u64))
    }

    /// When a commit within the ring was made.
    pub(crate) fn time(&self, commit: u64) -> Timestamp {
        self.times[self.row(commit)]
    }
}

/// The low half of a number of commits: slots compare them over short times only.
#[expect(clippy::cast_possible_truncation, reason = "meant")]
const fn short(commit: u64) -> u32 {
    commit as u32
}

/// A number for a text.
fn fingerprint(text: &str) -> u64 {
    let name = Text::plain(text);
    Sample {
        name,
        labels: &[],
        value: 0.0,
        timestamp: None,
        exemplar: None,
    }
    .fingerprint()
}

/// A model's name, cut to `limit` bytes with a hash of the whole where it is longer.
fn shortened(name: &str, limit: usize) -> Cow<'_, str> {
    if name.len() <= limit {
        return Cow::Borrowed(name);
    }
    let hash = fingerprint(name);
    Cow::Owned(format!(
        "{}~{hash:016x}",
        &name[..name.floor_char_boundary(limit)]
    ))
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

#[derive(Debug, Default)]
struct Parsed {
    found: Ingested,
    start_time: Option<f64>,
}

/// The reading of one body into a target.
struct Pass<'a> {
    target: &'a mut Target,
    collection: &'a Collection,
    limits: &'a Limits,
    /// The slot expected next: bodies keep their order.
    next: usize,
    parsed: Parsed,
    over_limit: Option<(&'static str, usize)>,
}

impl<'t> Consumer<'t> for Pass<'_> {
    type Key = u32;

    fn select(&mut self, name: &[u8]) -> Option<u32> {
        self.collection.find(name)
    }

    fn sample(&mut self, name: u32, sample: &Sample<'t, '_>) {
        let id = sample.fingerprint();
        let slot = match self.target.slots.get(self.next) {
            Some(slot) if slot.id == id => Some(self.next),
            _ => self.target.by_id.get(&id).map(|index| *index as usize),
        };
        let uses = self.collection.uses(name);
        for NameUse { key, part } in uses {
            match (key, part) {
                (_, Part::Start) => self.parsed.start_time = Some(sample.value),
                (Key::Term(term), _) => self.target.present_next[usize::from(*term)] = true,
                (Key::Raw(_), _) => {}
            }
        }
        let Some(index) = slot.or_else(|| self.add(id, uses, sample)) else {
            return;
        };
        self.next = index + 1;
        let slot = &mut self.target.slots[index];
        if slot.attempt == self.target.attempts {
            self.parsed.found.duplicates += 1;
        }
        slot.attempt = self.target.attempts;
        slot.value = sample.value;
    }
}

impl Pass<'_> {
    /// Finds out what a series is used for, once.
    fn add(&mut self, id: u64, uses: &[NameUse], sample: &Sample<'_, '_>) -> Option<usize> {
        if self.target.slots.len() >= self.limits.series_per_target {
            self.over_limit = Some(("limits.series_per_target", self.limits.series_per_target));
            return None;
        }
        self.find_role(uses, sample);
        let first_use = self.target.uses.len();
        let mut counts = false;
        for name_use in uses {
            let Some((place, window)) = self.place(*name_use, sample) else {
                continue;
            };
            let model = self.model(sample).ok()?;
            let channel = self.channel(name_use.key, model, window)?;
            let place = match (
                &mut self.target.channels[usize::from(channel)].window,
                place,
            ) {
                (Window::Histogram(histogram), Place::Bucket(_)) => {
                    let bound = sample
                        .label("le")
                        .and_then(|le| le.unescaped().trim().parse().ok());
                    bound.and_then(|bound| histogram.place(bound))
                }
                (_, place) => Some(place),
            };
            let Some(place) = place else { continue };
            counts |= matches!(window, Kind::Counter | Kind::Histogram);
            self.target.uses.push(SlotUse { channel, place });
        }
        let index = self.target.slots.len();
        self.target.slots.push(Slot {
            id,
            previous: self.target.carried.remove(&id).unwrap_or(f64::NAN),
            value: sample.value,
            attempt: 0,
            commit: short(self.target.commits),
            first_use: u32::try_from(first_use).ok()?,
            uses: u16::try_from(self.target.uses.len() - first_use).ok()?,
            counts,
        });
        self.target.by_id.insert(id, u32::try_from(index).ok()?);
        Some(index)
    }

    /// Where a series goes, and what kind of memory it needs; `None` if its labels rule it out.
    fn place(&mut self, name_use: NameUse, sample: &Sample<'_, '_>) -> Option<(Place, Kind)> {
        if name_use.part == Part::Start {
            return None;
        }
        let Some((_, term)) = self.collection.term(name_use.key) else {
            return Some((Place::Value, Kind::Raw));
        };
        let holds = term.labels.iter().all(|(label, test)| {
            sample
                .label(label)
                .map_or_else(|| test.holds(""), |value| test.holds(&value.unescaped()))
        });
        if !holds {
            return None;
        }
        match (term.reading, name_use.part) {
            (Reading::Labels(lists), _) => {
                let number = |label: &&str| {
                    sample
                        .label(label)?
                        .unescaped()
                        .parse::<f64>()
                        .ok()
                        .filter(|number| number.is_finite())
                };
                let product = lists
                    .iter()
                    .find_map(|labels| labels.iter().map(number).product::<Option<f64>>())?;
                let index = u16::try_from(self.target.constants.len()).ok()?;
                self.target.constants.push(product);
                Some((Place::Constant(index), Kind::Gauge))
            }
            (Reading::Gauge | Reading::Ratio, _) => Some((Place::Value, Kind::Gauge)),
            (Reading::Counter, _) => Some((Place::Value, Kind::Counter)),
            (Reading::Histogram { .. }, Part::Bucket) => Some((Place::Bucket(0), Kind::Histogram)),
            (Reading::Histogram { .. }, Part::Sum) => Some((Place::Sum, Kind::Histogram)),
            (Reading::Histogram { .. }, Part::Count) => Some((Place::Count, Kind::Histogram)),
            (Reading::Histogram { .. }, Part::Value | Part::Start) => None,
        }
    }

    fn find_role(&mut self, uses: &[NameUse], sample: &Sample<'_, '_>) {
        if self.target.role.is_some() {
            return;
        }
        for name_use in uses {
            let Some((engine, _)) = self.collection.term(name_use.key) else {
                continue;
            };
            let Some(role_label) = &engine.role_label else {
                continue;
            };
            let Some(value) = sample.label(role_label.label) else {
                continue;
            };
            self.target.role = role_label
                .roles
                .iter()
                .find(|(name, _)| value.is(name))
                .map(|(_, role)| *role);
        }
    }

    /// The index of the sample's model, remembered if it is new.
    fn model(&mut self, sample: &Sample<'_, '_>) -> Result<Option<u16>, ()> {
        let Some(value) = self
            .collection
            .model_labels
            .iter()
            .find_map(|label| sample.label(label))
        else {
            return Ok(None);
        };
        let value = value.unescaped();
        let name = shortened(&value, self.limits.label_bytes);
        let known = self.target.models.iter().position(|model| **model == *name);
        let index = match known {
            Some(index) => index,
            None if self.target.models.len() >= self.limits.models_per_target => {
                self.over_limit = Some(("limits.models_per_target", self.limits.models_per_target));
                return Err(());
            }
            None => {
                self.target.model_hashes.push(fingerprint(&name));
                self.target.models.push(name.into());
                self.target.models.len() - 1
            }
        };
        Ok(u16::try_from(index).ok())
    }

    /// The channel of a key and a model, made if it is new.
    fn channel(&mut self, key: Key, model: Option<u16>, kind: Kind) -> Option<u16> {
        let rows = self.target.capacity;
        let channels = &mut self.target.channels;
        let known = channels
            .iter()
            .position(|channel| channel.key == key && channel.model == model);
        let index = known.unwrap_or_else(|| {
            let window = match kind {
                Kind::Gauge => Window::Gauge(Gauge::new(rows)),
                Kind::Counter => Window::Counter(Counter::new(rows)),
                Kind::Histogram => Window::Histogram(Box::new(Histogram::new(rows))),
                Kind::Raw => Window::Raw(Gauge::new(rows), Counter::new(rows)),
            };
            channels.push(Channel {
                key,
                model,
                window,
                seen: u64::MAX,
                impossible: u64::MAX,
            });
            channels.len() - 1
        });
        u16::try_from(index).ok()
    }
}

/// The kinds of [`Window`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Gauge,
    Counter,
    Histogram,
    Raw,
}

#[cfg(test)]
#[path = "target_tests.rs"]
mod tests;
