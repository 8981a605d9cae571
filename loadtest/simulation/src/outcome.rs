//! What a run leaves behind.

use std::time::Duration;

/// Everything that happened, for measures and tests.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// How each request ended, in the order of the requests.
    pub requests: Vec<Ended>,
    /// Every unit that was, in order of creation.
    pub units: Vec<Life>,
    /// Units asked for by role: at the start, and whenever they were changed.
    pub targets: Vec<Target>,
    /// What the policy wanted, whenever it differed from the time before.
    pub decisions: Vec<Target>,
    /// Requests that waited, at the gateway or at engines, at each scrape.
    pub waiting: Vec<(Duration, u32)>,
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    /// When its first token appeared.
    pub first: Option<Duration>,
    /// When it ended, whichever way.
    pub at: Option<Duration>,
    /// Which way.
    pub fate: Fate,
}

/// Which way a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It made all its tokens.
    Finished,
    /// No engine can ever run it.
    Refused,
    /// Its unit left or died before it was done.
    Aborted,
    /// The run was over before it was.
    Unfinished,
}

/// The life of a unit; times from the run's start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Life {
    /// Index of its role.
    pub role: usize,
    /// It was asked for.
    pub created: Duration,
    /// It got GPUs, and is paid for from now on.
    pub bound: Option<Duration>,
    /// Its engine answered.
    pub ready: Option<Duration>,
    /// It took no more requests.
    pub leaving: Option<Duration>,
    /// Its GPUs were free again.
    pub gone: Option<Duration>,
    /// It died; nobody asked it to leave.
    pub died: bool,
    /// Requests that it was given.
    pub given: u64,
}

/// Units by role from an instant on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// From when.
    pub at: Duration,
    /// Units by role.
    pub units: Vec<u32>,
}

impl Ended {
    /// Mean time between its tokens; `None` for one token, or when it did not get that far.
    #[must_use]
    pub fn mean_gap(&self, output_tokens: u32) -> Option<Duration> {
        let gaps = output_tokens.checked_sub(1).filter(|gaps| *gaps > 0)?;
        let time = self.at?.checked_sub(self.first?)?;
        (self.fate == Fate::Finished).then(|| time / gaps)
    }
}
