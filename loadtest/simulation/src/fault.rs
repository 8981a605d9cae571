//! What goes wrong during a run: units and nodes that die, scrapes that fail or repeat themselves, slow starts, no free GPUs.
//!
//! Faults stand beside the [`crate::World`] and not in it, because policies know the world: what goes wrong they see as anybody would, by its effects.

use std::time::Duration;

use crate::world::WorldError;

/// More faults than any run needs.
const MOST: usize = 1_000;
/// Starts that take longer than this many times what they should are better described as [`FaultKind::NoGpus`].
const SLOWEST: f64 = 1_000.0;

/// One thing that goes wrong.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fault {
    /// From when on.
    pub at: Duration,
    /// What.
    pub kind: FaultKind,
}

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum FaultKind {
    /// Units that serve die at once with all their requests; new ones are created in their place, as the fleet is still asked for.
    UnitsDie {
        /// Share of the serving units of each role, rounded up, `0..=1` without 0.
        share: f64,
    },
    /// A node dies with the units on it, loading ones too, and its GPUs are missing for a while. New units are created in place of those that died, and
    /// wait where the cluster has no GPUs left. The node is as full as the fleet allows; which units stood on it is drawn.
    NodeDies {
        /// GPUs of the node.
        gpus: u32,
        /// How long they are missing. Nobody notices where the cluster has as many GPUs as are asked for.
        lasting: Duration,
    },
    /// Every scrape fails.
    MetricsLost {
        /// For how long.
        lasting: Duration,
    },
    /// Every scrape succeeds and brings the values of the last one before; units that began to serve later bring none.
    MetricsFrozen {
        /// For how long.
        lasting: Duration,
    },
    /// Units created meanwhile take longer to load.
    SlowStarts {
        /// So many times as long, `1..`.
        factor: f64,
        /// For how long.
        lasting: Duration,
    },
    /// No unit is bound to GPUs; those that are bound keep them.
    NoGpus {
        /// For how long.
        lasting: Duration,
    },
}

impl FaultKind {
    /// How long it goes on; nothing for what happens at an instant.
    const fn lasting(&self) -> Duration {
        match self {
            Self::UnitsDie { .. } => Duration::ZERO,
            Self::NodeDies { lasting, .. }
            | Self::MetricsLost { lasting }
            | Self::MetricsFrozen { lasting }
            | Self::SlowStarts { lasting, .. }
            | Self::NoGpus { lasting } => *lasting,
        }
    }

    /// What is impossible about it: field, value, next step.
    fn refusal(&self) -> Option<(&'static str, String, &'static str)> {
        match self {
            Self::UnitsDie { share } => (!(*share > 0.0 && *share <= 1.0)).then(|| {
                (
                    "share",
                    share.to_string(),
                    "give a share above 0 and up to 1",
                )
            }),
            Self::NodeDies { gpus: 0, .. } => {
                Some(("gpus", "0".to_owned(), "give the node at least 1"))
            }
            Self::SlowStarts { factor, .. } if !(1.0..=SLOWEST).contains(factor) => {
                Some(("factor", factor.to_string(), "give a number from 1 to 1000"))
            }
            Self::NodeDies { lasting, .. }
            | Self::MetricsLost { lasting }
            | Self::MetricsFrozen { lasting }
            | Self::SlowStarts { lasting, .. }
            | Self::NoGpus { lasting } => lasting
                .is_zero()
                .then(|| ("lasting", "0".to_owned(), "give a time above 0")),
        }
    }
}

/// All that goes wrong in a run; nothing by default.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Faults(Vec<Fault>);

impl Faults {
    /// These faults, in any order; they may overlap.
    ///
    /// # Errors
    /// [`WorldError::Fault`] names the one that cannot be.
    pub fn new(faults: Vec<Fault>) -> Result<Self, WorldError> {
        if faults.len() > MOST {
            return Err(WorldError::Faults {
                count: faults.len(),
                most: MOST,
            });
        }
        for (index, fault) in faults.iter().enumerate() {
            if let Some((field, value, hint)) = fault.kind.refusal() {
                return Err(WorldError::Fault {
                    number: index + 1,
                    field,
                    value,
                    hint,
                });
            }
        }
        Ok(Self(faults))
    }

    /// Each of them, in the order given.
    pub fn iter(&self) -> impl Iterator<Item = &Fault> {
        self.0.iter()
    }

    pub(crate) fn get(&self, index: usize) -> Option<&Fault> {
        self.0.get(index)
    }

    /// Instants at which units may be bound again.
    pub(crate) fn reliefs(&self) -> impl Iterator<Item = Duration> {
        let holding = self.0.iter().filter(|fault| {
            matches!(
                fault.kind,
                FaultKind::NodeDies { .. } | FaultKind::NoGpus { .. }
            )
        });
        holding.map(|fault| fault.at.saturating_add(fault.kind.lasting()))
    }

    /// What is wrong at an instant; the last one of a fault is not part of it.
    fn current(&self, now: Duration) -> impl Iterator<Item = &FaultKind> {
        let current = self.0.iter().filter(move |fault| {
            fault.at <= now && now < fault.at.saturating_add(fault.kind.lasting())
        });
        current.map(|fault| &fault.kind)
    }

    pub(crate) fn metrics_lost(&self, now: Duration) -> bool {
        self.current(now)
            .any(|kind| matches!(kind, FaultKind::MetricsLost { .. }))
    }

    pub(crate) fn metrics_frozen(&self, now: Duration) -> bool {
        self.current(now)
            .any(|kind| matches!(kind, FaultKind::MetricsFrozen { .. }))
    }

    pub(crate) fn no_gpus(&self, now: Duration) -> bool {
        self.current(now)
            .any(|kind| matches!(kind, FaultKind::NoGpus { .. }))
    }

    /// GPUs of nodes that are dead.
    pub(crate) fn missing_gpus(&self, now: Duration) -> u32 {
        let gpus = self.current(now).map(|kind| match kind {
            FaultKind::NodeDies { gpus, .. } => *gpus,
            _ => 0,
        });
        gpus.fold(0, u32::saturating_add)
    }

    /// How many times as long as it should a unit that is created now takes to load.
    pub(crate) fn slowness(&self, now: Duration) -> f64 {
        let factors = self.current(now).map(|kind| match kind {
            FaultKind::SlowStarts { factor, .. } => *factor,
            _ => 1.0,
        });
        factors.fold(1.0, f64::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn second(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_fault_begins_at_its_instant_and_is_over_at_its_end() {
        let faults = Faults::new(vec![
            Fault {
                at: second(10),
                kind: FaultKind::NodeDies {
                    gpus: 8,
                    lasting: second(20),
                },
            },
            Fault {
                at: second(20),
                kind: FaultKind::NodeDies {
                    gpus: 4,
                    lasting: second(20),
                },
            },
            Fault {
                at: second(10),
                kind: FaultKind::SlowStarts {
                    factor: 3.0,
                    lasting: second(5),
                },
            },
        ])
        .unwrap();
        let missing: Vec<u32> = [9, 10, 20, 30, 40]
            .map(|at| faults.missing_gpus(second(at)))
            .into();
        assert_eq!(missing, [0, 8, 12, 4, 0]);
        let slow: Vec<f64> = [9, 10, 15].map(|at| faults.slowness(second(at))).into();
        assert!((slow[0] - 1.0).abs() < 1e-12 && (slow[1] - 3.0).abs() < 1e-12);
        assert!((slow[2] - 1.0).abs() < 1e-12);
        let reliefs: Vec<Duration> = faults.reliefs().collect();
        assert_eq!(reliefs, [second(30), second(40)]);
    }

    #[test]
    fn an_impossible_fault_is_refused_by_number_field_and_value() {
        let refusal = |kind: FaultKind| {
            let fault = Fault {
                at: second(0),
                kind,
            };
            Faults::new(vec![fault]).unwrap_err().to_string()
        };
        for share in [0.0, 1.5, f64::NAN] {
            let text = refusal(FaultKind::UnitsDie { share });
            assert!(text.contains("fault 1: share is"), "{text}");
        }
        let none = FaultKind::NodeDies {
            gpus: 0,
            lasting: second(1),
        };
        assert!(refusal(none).contains("gpus is 0"));
        let fast = FaultKind::SlowStarts {
            factor: 0.5,
            lasting: second(1),
        };
        assert!(refusal(fast).contains("factor is 0.5"));
        let endless = FaultKind::MetricsLost {
            lasting: Duration::ZERO,
        };
        assert!(refusal(endless).contains("lasting is 0"));
        let fault = Fault {
            at: second(0),
            kind: FaultKind::UnitsDie { share: 0.5 },
        };
        assert!(Faults::new(vec![fault; MOST]).is_ok());
        assert!(
            Faults::new(vec![fault; MOST + 1])
                .unwrap_err()
                .to_string()
                .contains("at most 1000")
        );
    }
}
