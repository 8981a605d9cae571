//! Reports of recorded runs: a page with charts, or text.
//!
//! A report joins what the driver measured ([`crate::drive::summary`]) with what happened in the fleet meanwhile
//! ([`timeline`]) and with a verdict made elsewhere ([`Check`]). The page is one file: no scripts, no network, readable on
//! paper, in the dark and on a phone.

pub(crate) mod chart;
pub mod command;
pub mod html;
mod layout;
pub(crate) mod scale;
pub mod text;
pub mod timeline;

#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

use crate::drive::summary::RunSummary;
use timeline::Timeline;

/// Something that a run had to show, and whether it did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Check {
    /// What had to be shown, as a short sentence.
    pub name: String,
    /// It was shown.
    pub passed: bool,
    /// The figures behind it.
    #[serde(default)]
    pub detail: String,
}

/// Everything that a report is made of.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// Headline.
    pub title: String,
    /// Runs, in the order in which they are shown.
    pub runs: Vec<RunSummary>,
    /// What the fleet did meanwhile.
    pub timeline: Option<Timeline>,
    /// Verdict.
    pub checks: Vec<Check>,
}

impl Report {
    /// A report of one run without a time line of the fleet.
    #[must_use]
    pub fn of_run(run: RunSummary) -> Self {
        Self {
            title: "Load test".to_owned(),
            runs: vec![run],
            timeline: None,
            checks: Vec::new(),
        }
    }

    /// All checks passed and all runs are valid.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.checks.iter().all(|check| check.passed)
            && self.runs.iter().all(|run| run.validity.valid)
    }
}
