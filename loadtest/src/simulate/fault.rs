//! Faults as a scenario file writes them.

use coppice_simulation::{Fault, FaultKind};
use serde::Deserialize;

use crate::schedule::span::Span;

/// A `[[fault]]` table: when, which kind, and how much of it.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", tag = "kind")]
pub(super) enum WrittenFault {
    /// A share of the serving units of each role dies.
    UnitsDie {
        /// From the run's start.
        at: Span,
        share: f64,
    },
    /// A node dies, and its GPUs are missing for a while.
    NodeDies {
        at: Span,
        gpus: u32,
        #[serde(rename = "for")]
        lasting: Span,
    },
    /// Every scrape fails.
    MetricsLost {
        at: Span,
        #[serde(rename = "for")]
        lasting: Span,
    },
    /// Every scrape repeats the last one.
    MetricsFrozen {
        at: Span,
        #[serde(rename = "for")]
        lasting: Span,
    },
    /// Engines take so many times as long to load.
    SlowStarts {
        at: Span,
        factor: f64,
        #[serde(rename = "for")]
        lasting: Span,
    },
    /// No new unit gets GPUs.
    NoGpus {
        at: Span,
        #[serde(rename = "for")]
        lasting: Span,
    },
}

impl WrittenFault {
    /// What it says.
    pub(super) const fn fault(self) -> Fault {
        let (at, kind) = match self {
            Self::UnitsDie { at, share } => (at, FaultKind::UnitsDie { share }),
            Self::NodeDies { at, gpus, lasting } => {
                let lasting = lasting.0;
                (at, FaultKind::NodeDies { gpus, lasting })
            }
            Self::MetricsLost { at, lasting } => {
                (at, FaultKind::MetricsLost { lasting: lasting.0 })
            }
            Self::MetricsFrozen { at, lasting } => {
                (at, FaultKind::MetricsFrozen { lasting: lasting.0 })
            }
            Self::SlowStarts {
                at,
                factor,
                lasting,
            } => {
                let lasting = lasting.0;
                (at, FaultKind::SlowStarts { factor, lasting })
            }
            Self::NoGpus { at, lasting } => (at, FaultKind::NoGpus { lasting: lasting.0 }),
        };
        Fault { at: at.0, kind }
    }
}
