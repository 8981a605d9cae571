//! Everything a run needs, decided.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::objective::Objectives;
use super::route::Route;
use super::summary::Mode;
use crate::schedule::Schedule;
use crate::schedule::spec::Scenario;

/// A run, decided in every detail.
#[derive(Debug)]
pub struct Settings {
    /// What was asked for; kept with the results.
    pub scenario: Scenario,
    /// What is sent.
    pub schedule: Arc<Schedule>,
    /// Where to, per stream.
    pub routes: Vec<Route>,
    /// What is good, per stream.
    pub objectives: Vec<Objectives>,
    /// How requests are sent.
    pub mode: Mode,
    /// Requests due before this are sent, shown in the time line and not measured.
    pub warmup: Duration,
    /// A request without a complete answer this long after it was due has failed.
    pub timeout: Duration,
    /// How long after the schedule's end answers are waited for.
    pub drain: Duration,
    /// Threads that send and read, at least 1.
    pub workers: usize,
    /// Requests in flight at most.
    pub max_in_flight: Option<usize>,
    /// Lower-case name of the header that names the replica.
    pub replica_header: String,
    /// Let the system delay acknowledgements of what servers send.
    pub delayed_acks: bool,
    /// Length of an interval of the time line.
    pub interval: Duration,
    /// File with one line per request.
    pub requests_file: Option<PathBuf>,
}
