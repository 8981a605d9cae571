//! The moving rules: from what the load asks for to what is wanted now. Tolerance, stabilization window, rate, and what blocks a move.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use jiff::Timestamp;

use crate::decision::{Because, Limit};
use crate::demand::Sized;
use crate::history::{History, RoleHistory};
use crate::joint::{Frame, Target};
use crate::policy::{ChangeLimit, Pick, Rules};
use crate::reading::{Age, elapsed};

/// What is wanted of a role now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Settled {
    pub(crate) units: u32,
    pub(crate) because: Because,
    pub(crate) limited_by: BTreeSet<Limit>,
    /// When a limit that depends on time may change.
    pub(crate) recheck_after: Option<Duration>,
}

/// Applies the moving rules to role `index`.
pub(crate) fn settle(
    frame: &Frame<'_>,
    history: &History,
    index: usize,
    sized: &Sized,
    target: &Target,
    now: Timestamp,
) -> Settled {
    let nothing = RoleHistory::default();
    let name = &frame.policy.roles()[index].name;
    let role = history.role(name).unwrap_or(&nothing);
    let current = frame.rooms[index].current;
    if let Some(because) = frame.rooms[index].frozen {
        return Settled {
            units: current,
            because,
            limited_by: BTreeSet::new(),
            recheck_after: None,
        };
    }
    let mover = Mover {
        frame,
        history,
        role,
        sized,
        index,
        current,
        now,
    };
    let mut settled = match sized.age {
        Age::Fresh | Age::Stale => mover.follow(target),
        Age::Held => mover.hold(Because::MetricsStale),
        Age::Starting => mover.hold(Because::Starting),
        Age::Lost => mover.lost(),
    };
    let bounds = frame.total(index);
    let clamped = bounds.clamp(settled.units);
    if clamped != settled.units {
        settled.because = if clamped > settled.units {
            Because::Minimum
        } else {
            Because::Maximum
        };
        settled.limited_by.insert(if clamped > settled.units {
            Limit::Min
        } else {
            Limit::Max
        });
        settled.units = clamped;
    }
    settled
}

struct Mover<'a> {
    frame: &'a Frame<'a>,
    history: &'a History,
    role: &'a RoleHistory,
    sized: &'a Sized,
    index: usize,
    current: u32,
    now: Timestamp,
}

impl Mover<'_> {
    fn follow(&self, target: &Target) -> Settled {
        let mut settled = Settled {
            units: target.units,
            because: target.because,
            limited_by: target.limited_by.clone(),
            recheck_after: None,
        };
        if target.units > self.current {
            self.go_up(&mut settled);
        } else if target.units < self.current {
            self.go_down(&mut settled);
        }
        settled
    }

    fn go_up(&self, settled: &mut Settled) {
        let rules = &self.frame.policy.limits().up;
        let difference = f64::from(settled.units - self.current);
        if self.current > 0 && difference <= rules.tolerance * f64::from(self.current) {
            return self.stay(settled, Because::Tolerance, Limit::Tolerance);
        }
        if self.frame.rooms[self.index].stuck {
            return self.stay(settled, Because::Held, Limit::Unschedulable);
        }
        let least = self
            .role
            .recommended
            .least(self.now, rules.window)
            .unwrap_or(settled.units)
            .max(self.current);
        if least < settled.units {
            *settled = Settled {
                units: least,
                because: Because::Stabilization,
                ..settled.clone()
            };
            settled.limited_by.insert(Limit::StabilizationWindow);
        }
        let rate = Rate::up(rules, &self.role.changes, self.current, self.now);
        if rate.units < settled.units {
            *settled = Settled {
                units: rate.units,
                because: Because::Rate,
                recheck_after: rate.recheck_after,
                ..settled.clone()
            };
            settled.limited_by.insert(Limit::ScaleUpRate);
        }
    }

    fn go_down(&self, settled: &mut Settled) {
        let rules = &self.frame.policy.limits().down;
        if self.sized.age != Age::Fresh || !self.sized.complete {
            return self.stay(settled, Because::Held, Limit::StaleMetrics);
        }
        if self.frame.fleet.rollout {
            return self.stay(settled, Because::Held, Limit::Rollout);
        }
        let watched = elapsed(self.history.watched_since, self.now);
        if watched < rules.window {
            settled.recheck_after = Some(rules.window.saturating_sub(watched));
            return self.stay(settled, Because::Held, Limit::Restart);
        }
        let difference = f64::from(self.current - settled.units);
        if difference < rules.tolerance * f64::from(self.current) {
            return self.stay(settled, Because::Tolerance, Limit::Tolerance);
        }
        let most = self
            .role
            .recommended
            .most(self.now, rules.window)
            .unwrap_or(0)
            .min(self.current);
        if most > settled.units {
            *settled = Settled {
                units: most,
                because: Because::Stabilization,
                ..settled.clone()
            };
            settled.limited_by.insert(Limit::StabilizationWindow);
        }
        let rate = Rate::down(rules, &self.role.changes, self.current, self.now);
        if rate.units > settled.units {
            *settled = Settled {
                units: rate.units,
                because: Because::Rate,
                recheck_after: rate.recheck_after,
                ..settled.clone()
            };
            settled.limited_by.insert(Limit::ScaleDownRate);
        }
    }

    fn stay(&self, settled: &mut Settled, because: Because, limit: Limit) {
        settled.units = self.current;
        settled.because = because;
        settled.limited_by.insert(limit);
    }

    /// What is there, or what was wanted last when that was more.
    fn hold(&self, because: Because) -> Settled {
        let units = self.current.max(self.role.wanted.unwrap_or(0));
        Settled {
            units,
            because,
            limited_by: BTreeSet::from([Limit::StaleMetrics]),
            recheck_after: None,
        }
    }

    fn lost(&self) -> Settled {
        let fallback = self
            .frame
            .policy
            .limits()
            .lost
            .replicas
            .get(self.index)
            .copied()
            .flatten();
        match fallback {
            Some(units) => Settled {
                units,
                because: Because::Fallback,
                limited_by: BTreeSet::from([Limit::StaleMetrics]),
                recheck_after: None,
            },
            None => self.hold(Because::MetricsLost),
        }
    }
}

/// How far a rate limit lets a role go now.
struct Rate {
    units: u32,
    recheck_after: Option<Duration>,
}

impl Rate {
    fn up(
        rules: &Rules,
        changes: &VecDeque<(Timestamp, i64)>,
        current: u32,
        now: Timestamp,
    ) -> Self {
        let permitted = |limit: ChangeLimit, period: Duration| {
            let start =
                i64::from(current) - in_period(changes, now, period, |change| change.max(0));
            let permitted = match limit {
                ChangeLimit::Units(units) => start + i64::from(units),
                ChangeLimit::Percent(percent) => {
                    let base = start.max(1);
                    base + (base * i64::from(percent) + 99) / 100
                }
            };
            permitted.max(i64::from(current))
        };
        Self::picked(rules, changes, current, now, permitted, |a, b| a > b)
    }

    fn down(
        rules: &Rules,
        changes: &VecDeque<(Timestamp, i64)>,
        current: u32,
        now: Timestamp,
    ) -> Self {
        let permitted = |limit: ChangeLimit, period: Duration| {
            let start =
                i64::from(current) + in_period(changes, now, period, |change| (-change).max(0));
            let permitted = match limit {
                ChangeLimit::Units(units) => start - i64::from(units),
                ChangeLimit::Percent(percent) => start * (100 - i64::from(percent.min(100))) / 100,
            };
            permitted.clamp(0, i64::from(current))
        };
        Self::picked(rules, changes, current, now, permitted, |a, b| a < b)
    }

    /// The permitted number of the rule that counts; `further` says which of two numbers is the larger change.
    fn picked(
        rules: &Rules,
        changes: &VecDeque<(Timestamp, i64)>,
        current: u32,
        now: Timestamp,
        permitted: impl Fn(ChangeLimit, Duration) -> i64,
        further: impl Fn(i64, i64) -> bool,
    ) -> Self {
        let each = rules
            .limits
            .iter()
            .map(|rule| permitted(rule.limit, rule.period));
        let units = match rules.pick {
            Pick::Largest => each.reduce(|a, b| if further(b, a) { b } else { a }),
            Pick::Smallest => each.reduce(|a, b| if further(b, a) { a } else { b }),
            Pick::Disabled => Some(i64::from(current)),
        };
        let units = units.map_or(current, |units| u32::try_from(units).unwrap_or(u32::MAX));
        let leaving = rules.limits.iter().filter_map(|rule| {
            let oldest = changes
                .iter()
                .find(|(at, _)| elapsed(*at, now) < rule.period)?;
            Some(rule.period.saturating_sub(elapsed(oldest.0, now)))
        });
        Self {
            units,
            recheck_after: leaving.min(),
        }
    }
}

/// The sum of the changes within the period before `now`.
fn in_period(
    changes: &VecDeque<(Timestamp, i64)>,
    now: Timestamp,
    period: Duration,
    part: impl Fn(i64) -> i64,
) -> i64 {
    changes
        .iter()
        .filter(|(at, _)| elapsed(*at, now) < period)
        .map(|(_, change)| part(*change))
        .sum()
}
