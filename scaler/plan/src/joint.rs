//! Sizing all roles together: one served share x of the load, the largest that fits limits and budget; then the ratio band.

use std::collections::BTreeSet;

use crate::decision::{Because, Limit};
use crate::demand::{Demand, Sized};
use crate::fleet::Fleet;
use crate::policy::{Bounds, Budget, Policy, RatioBand};
use crate::units::{ceil_units, floor_units};

/// Halvings of the served share: finer than a millionth.
const HALVINGS: u32 = 20;
/// The ratio band is left alone until it is missed by this share.
const DEAD_BAND: f64 = 0.1;

/// Room of one role, and whether it may move at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Room {
    /// Units in each set.
    pub(crate) per_set: Bounds,
    /// Units that are asked for now.
    pub(crate) current: u32,
    /// Why the role may not move.
    pub(crate) frozen: Option<Because>,
    /// Growth is refused: units that cannot be scheduled.
    pub(crate) stuck: bool,
}

/// Whether a role may not move: then no set comes or goes, because a new one would need units of it.
pub(crate) fn any_frozen(rooms: &[Room]) -> bool {
    rooms.iter().any(|room| room.frozen.is_some())
}

/// What bounds the joint size.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Frame<'a> {
    pub(crate) policy: &'a Policy,
    pub(crate) fleet: &'a Fleet,
    pub(crate) rooms: Vec<Room>,
    pub(crate) sets: Bounds,
}

/// The joint size: what the load asks for within limits, budget and ratio band.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Joint {
    pub(crate) served_fraction: f64,
    pub(crate) targets: Vec<Target>,
}

/// Units of one role that the load asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) units: u32,
    pub(crate) because: Because,
    pub(crate) limited_by: BTreeSet<Limit>,
}

impl Frame<'_> {
    /// GPUs that may be held, if there is a limit that is known.
    pub(crate) const fn gpu_limit(&self) -> Option<u64> {
        match self.policy.limits().budget {
            Budget::Gpus(limit) => Some(limit as u64),
            Budget::Unlimited | Budget::Unknown => None,
        }
    }

    /// Units of all sets together that a role may have.
    pub(crate) fn total(&self, role: usize) -> Bounds {
        let room = self.rooms[role];
        if room.frozen.is_some() {
            return Bounds::new(room.current, room.current).unwrap_or(room.per_set);
        }
        let least = room.per_set.min().saturating_mul(self.sets.min());
        let most = room.per_set.max().saturating_mul(self.sets.max());
        let most = if room.stuck {
            most.min(room.current).max(least)
        } else {
            most
        };
        Bounds::new(least, most).unwrap_or(room.per_set)
    }

    /// Sets that these units need, within the bounds of sets.
    pub(crate) fn sets_for(&self, units: &[u32]) -> u32 {
        let needed = self
            .rooms
            .iter()
            .zip(units)
            .map(|(room, units)| units.div_ceil(room.per_set.max().max(1)))
            .max();
        self.sets.clamp(needed.unwrap_or(0))
    }

    /// GPUs of these units and of the sets that they need; unknown ones count as none here, growth of what is unknown is refused elsewhere.
    pub(crate) fn gpus(&self, units: &[u32]) -> u64 {
        self.gpus_in(units, self.sets_for(units))
    }

    /// GPUs of these units in `sets` sets.
    pub(crate) fn gpus_in(&self, units: &[u32], sets: u32) -> u64 {
        let beside = u64::from(self.fleet.gpus_beside_roles.unwrap_or(0)) * u64::from(sets);
        let roles =
            self.rooms
                .iter()
                .zip(units)
                .zip(&self.fleet.roles)
                .map(|((room, units), role)| {
                    let least = if room.frozen.is_some() {
                        0
                    } else {
                        room.per_set.min().saturating_mul(sets)
                    };
                    u64::from(role.gpus_per_unit.unwrap_or(0)) * u64::from((*units).max(least))
                });
        beside + roles.sum::<u64>()
    }

    fn fits(&self, units: &[u32]) -> bool {
        self.gpu_limit()
            .is_none_or(|limit| self.gpus(units) <= limit)
    }

    /// Units of every role at share `flow` of the flows and share `all` of everything.
    fn units_at(&self, sized: &[Sized], flow: f64, all: f64) -> Vec<u32> {
        self.units_by(sized, |demand| {
            demand.units(if demand.is_flow() { flow.min(all) } else { all })
        })
    }

    /// Units of every role that `of` gives for its demand, within its bounds; a role without a demand keeps what it has.
    fn units_by(&self, sized: &[Sized], of: impl Fn(&Demand) -> u32) -> Vec<u32> {
        let units = sized.iter().enumerate().map(|(role, sized)| {
            let wanted = sized.demand.as_ref().map(&of);
            self.total(role)
                .clamp(wanted.unwrap_or(self.rooms[role].current))
        });
        units.collect()
    }

    /// The joint size for these demands.
    pub(crate) fn solve(&self, sized: &[Sized]) -> Joint {
        let flow = self.flow_share(sized);
        let all = self.budget_share(sized, flow);
        let mut units = if all < flow {
            self.overloaded(sized, flow)
        } else {
            self.units_at(sized, flow, all)
        };
        let before = units.clone();
        let mut lowered = BTreeSet::new();
        if let Some(band) = self.policy.limits().ratio {
            lowered = self.hold_ratio(band, &mut units);
        }
        let targets = sized.iter().enumerate().map(|(role, sized)| {
            let demand = sized.demand.as_ref().map(|demand| demand.units(1.0));
            let by_ratio = units[role] != before[role];
            let mut held_by = BTreeSet::new();
            held_by.extend(by_ratio.then_some(Hold::Ratio));
            held_by.extend((all < flow).then_some(Hold::Budget));
            held_by.extend(lowered.contains(&role).then_some(Hold::Partner));
            held_by.extend(self.lacks_set(&units, role).then_some(Hold::NewSet));
            self.explain(role, demand, units[role], &held_by)
        });
        Joint {
            served_fraction: flow.min(all),
            targets: targets.collect(),
        }
    }

    /// The largest share of the load at which no flow exceeds its role's maximum.
    fn flow_share(&self, sized: &[Sized]) -> f64 {
        let within = |share: f64| {
            sized.iter().enumerate().all(|(role, sized)| {
                let movable = self.rooms[role].frozen.is_none();
                let flow = sized
                    .demand
                    .as_ref()
                    .filter(|demand| movable && demand.is_flow());
                flow.is_none_or(|demand| demand.flow_units(share) <= self.total(role).max())
            })
        };
        largest(within)
    }

    /// The largest share of everything that fits the budget.
    fn budget_share(&self, sized: &[Sized], flow: f64) -> f64 {
        if self.gpu_limit().is_none() {
            return 1.0;
        }
        largest(|share| self.fits(&self.units_at(sized, flow, share)))
    }

    /// Units when the budget does not hold what the objectives need. Objectives alone would starve a role: one needs most of its units for the first
    /// request already, another for each further one. So first no role falls behind the others, then the objectives are met for as much of the load
    /// as the rest of the budget holds.
    fn overloaded(&self, sized: &[Sized], flow: f64) -> Vec<u32> {
        let busy = |share| self.units_by(sized, |demand| demand.busy_units(share));
        let level = largest(|share| self.fits(&busy(share)));
        let base = busy(level);
        let beside = |share: f64| -> Vec<u32> {
            let wanted = self.units_at(sized, flow, share);
            wanted
                .iter()
                .zip(&base)
                .map(|(wanted, base)| *wanted.max(base))
                .collect()
        };
        beside(largest(|share| self.fits(&beside(share))))
    }

    /// Moves two roles into their band: the smaller side up while budget and maximum allow it, then the larger side down. Gives the roles that were
    /// lowered.
    fn hold_ratio(&self, band: RatioBand, units: &mut [u32]) -> BTreeSet<usize> {
        let RatioBand {
            numerator,
            denominator,
            min,
            max,
        } = band;
        let (above, below) = (f64::from(units[numerator]), f64::from(units[denominator]));
        let (small, large, per_large) = if above < min * (1.0 - DEAD_BAND) * below {
            (numerator, denominator, min)
        } else if above > max * (1.0 + DEAD_BAND) * below {
            (denominator, numerator, 1.0 / max)
        } else {
            return BTreeSet::new();
        };
        if units[large] == 0 || units[small] == 0 && self.total(small).max() == 0 {
            return BTreeSet::new();
        }
        let wanted = self
            .total(small)
            .clamp(ceil_units(per_large * f64::from(units[large])));
        let present = units[small];
        let raised = (present..=wanted).rev().find(|candidate| {
            units[small] = *candidate;
            self.fits(units)
        });
        units[small] = raised.unwrap_or(present);
        let matching = floor_units(f64::from(units[small]) / per_large.max(f64::MIN_POSITIVE));
        if f64::from(units[small]) < per_large * (1.0 - DEAD_BAND) * f64::from(units[large])
            && matching < units[large]
        {
            units[large] = self.total(large).clamp(matching);
            return BTreeSet::from([large]);
        }
        BTreeSet::new()
    }

    /// Whether the budget has room for one more unit of a role and not for the set that this would take, with the minimum of every role.
    fn lacks_set(&self, units: &[u32], role: usize) -> bool {
        let Some(limit) = self.gpu_limit() else {
            return false;
        };
        let mut more = units.to_vec();
        more[role] = more[role].saturating_add(1);
        self.gpus_in(&more, self.sets_for(units)) <= limit && self.gpus(&more) > limit
    }

    fn explain(
        &self,
        role: usize,
        demand: Option<u32>,
        units: u32,
        held_by: &BTreeSet<Hold>,
    ) -> Target {
        let mut limited_by = BTreeSet::new();
        let bounds = self.total(role);
        let Some(demand) = demand else {
            return Target {
                units,
                because: Because::Load,
                limited_by,
            };
        };
        let mut because = Because::Load;
        if demand < bounds.min() && units == bounds.min() {
            because = Because::Minimum;
            limited_by.insert(Limit::Min);
        }
        if units < demand {
            if demand > bounds.max() {
                because = Because::Maximum;
                limited_by.insert(if self.rooms[role].stuck {
                    Limit::Unschedulable
                } else {
                    Limit::Max
                });
                if self.policy.limits().sets.is_some() {
                    limited_by.insert(Limit::SetsMax);
                }
            } else if held_by.contains(&Hold::Budget) {
                because = Because::Budget;
                limited_by.insert(Limit::Budget);
                if held_by.contains(&Hold::NewSet) {
                    limited_by.insert(Limit::Max);
                }
            } else if held_by.contains(&Hold::Partner) {
                because = Because::Ratio;
            } else {
                because = Because::Maximum;
                limited_by.insert(Limit::Max);
            }
        }
        if held_by.contains(&Hold::Ratio) {
            because = Because::Ratio;
            limited_by.insert(Limit::Ratio);
        }
        Target {
            units,
            because,
            limited_by,
        }
    }
}

/// What stood in the way of a role's demand while the joint size was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Hold {
    /// The band changed its units.
    Ratio,
    /// All roles together would exceed the budget.
    Budget,
    /// The band lowered it.
    Partner,
    /// One more unit fits the budget, the set that it takes does not.
    NewSet,
}

/// The largest share of 0 to 1 at which `within` holds, to a millionth; it must hold up to some share and not beyond. 0 when it never does.
fn largest(within: impl Fn(f64) -> bool) -> f64 {
    if within(1.0) {
        return 1.0;
    }
    let (mut good, mut bad) = (0.0, 1.0);
    for _ in 0..HALVINGS {
        let middle = f64::midpoint(good, bad);
        if within(middle) {
            good = middle;
        } else {
            bad = middle;
        }
    }
    good
}
