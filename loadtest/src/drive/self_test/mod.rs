//! Does the driver report the truth? A run against a server whose times are known.

pub mod server;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::summary::{Distribution, RunSummary};

/// How far the reported median may be from the truth.
const MEDIAN_TOLERANCE: Duration = Duration::from_millis(1);
/// How far the reported 99th percentile may be from the truth.
const TAIL_TOLERANCE: Duration = Duration::from_millis(5);

/// What the known server does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Truth {
    /// From the arrival of a request to its first token.
    pub ttft: Duration,
    /// Between tokens.
    pub itl: Duration,
}

/// One reported figure against the truth.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// Which figure.
    pub name: String,
    /// What the server did, seconds.
    pub truth: f64,
    /// What the driver reports, seconds.
    pub reported: f64,
    /// How far they may be apart, seconds.
    pub tolerance: f64,
    /// They are close enough.
    pub passed: bool,
}

/// Compares a run's medians and 99th percentiles with the truth.
#[must_use]
pub fn compare(summary: &RunSummary, truth: Truth) -> Vec<Comparison> {
    let figures: [(&str, Option<Distribution>, Duration); 2] = [
        ("TTFT", summary.total.ttft, truth.ttft),
        ("ITL", summary.total.itl, truth.itl),
    ];
    let mut comparisons = Vec::new();
    for (name, reported, truth) in figures {
        let at = |percentile: &str, of: fn(&Distribution) -> f64, tolerance: Duration| {
            let (truth, tolerance) = (truth.as_secs_f64(), tolerance.as_secs_f64());
            let reported = reported.as_ref().map_or(f64::NAN, of);
            Comparison {
                name: format!("{name} {percentile}"),
                truth,
                reported,
                tolerance,
                // Not a number is never close.
                passed: (reported - truth).abs() <= tolerance,
            }
        };
        comparisons.push(at("p50", |distribution| distribution.p50, MEDIAN_TOLERANCE));
        comparisons.push(at("p99", |distribution| distribution.p99, TAIL_TOLERANCE));
    }
    comparisons
}

/// Whether a run against the known server was valid, complete and truthful.
#[must_use]
pub fn passed(summary: &RunSummary, comparisons: &[Comparison]) -> bool {
    summary.validity.valid
        && summary.total.requests.failed == 0
        && comparisons.iter().all(|comparison| comparison.passed)
}
