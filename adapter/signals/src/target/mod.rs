//! One endpoint's memory: takes in bodies, keeps a bounded window of the signals in them.
//!
//! [`Target::ingest`] is all or nothing: a body that is refused, cut short or over a limit leaves the window as it was.
//! A series that is sent once more in a body replaces itself. Counters are compared with their own last value, series by
//! series, before anything is summed; all of them count from zero when the process has restarted.

mod commit;
mod ingest;
mod pass;
mod process;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use jiff::Timestamp;

use crate::channel::{Counter, Gauge, Histogram, Place};
use crate::collection::{Collection, Key};
use crate::engines::{Recognition, Tier};
use crate::reading::{Models, Routes};

use process::Processes;

pub(crate) use commit::ROUNDING;
pub(crate) use ingest::{Ingested, NotIngested};

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
    /// Processes whose gauges stand side by side.
    processes: Processes,
    /// Terms of which the greatest value counts: the term, that value, and what stands in its label.
    newest: Vec<(u16, f64, f64)>,
    /// Needed samples in the last body taken in.
    samples: u64,
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
    /// The process that it names; see [`Processes`].
    process: u8,
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
            processes: Processes::default(),
            newest: Vec::new(),
            samples: 0,
        }
    }
}

impl Target {
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
