//! Three levels: how many sets, and how a role's units spread over them. Children first; sets when children are at their maximum.

use std::collections::BTreeSet;

use jiff::Timestamp;

use crate::decision::Limit;
use crate::demand::Sized;
use crate::history::History;
use crate::joint::{Frame, Room, any_frozen};
use crate::policy::Pick;
use crate::reading::{Age, elapsed};
use crate::units::ceil_units;

/// Sets are removed only when the rest would hold this much more than is needed.
const MARGIN: f64 = 1.1;
/// The window for removing a set, in stabilization windows.
const SET_WINDOWS: u32 = 3;

/// Wanted sets, and wanted units by role and set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) sets: u32,
    /// Sets that the load asks for, with margin.
    pub(crate) recommended_sets: u32,
    pub(crate) limited_by: BTreeSet<Limit>,
    /// `[role][set]`, for the wanted sets.
    pub(crate) shares: Vec<Vec<u32>>,
}

impl Plan {
    pub(crate) fn total(&self, role: usize) -> u32 {
        self.shares[role].iter().sum()
    }
}

/// The number of sets, and the spread of `wanted` over them. `needed` is what the load asks for, whatever the rate at which that may be reached.
pub(crate) fn plan(
    frame: &Frame<'_>,
    history: &History,
    sized: &[Sized],
    wanted: &[u32],
    needed: &[u32],
    now: Timestamp,
) -> Plan {
    let current = frame.fleet.desired_sets;
    let needed_sets = frame.sets_for(wanted);
    let with_margin: Vec<u32> = needed
        .iter()
        .map(|units| ceil_units(f64::from(*units) * MARGIN))
        .collect();
    let recommended_sets = frame
        .sets_for(needed)
        .max(frame.sets_for(&with_margin).min(current));
    let mut limited_by = set_limits(frame, wanted, needed_sets);
    let stays = Plan {
        sets: current,
        recommended_sets,
        limited_by: BTreeSet::new(),
        shares: Vec::new(),
    };
    let chosen = if needed_sets > current || current > frame.sets.max() {
        Plan {
            sets: needed_sets
                .min(frame.sets.max())
                .max(current.min(frame.sets.max())),
            ..stays
        }
    } else if recommended_sets < current && current > frame.sets.min() {
        match blocked(frame, history, sized, recommended_sets, now) {
            Some(limit) => {
                limited_by.insert(limit);
                stays
            }
            None if survivors_ready(frame, current - 1, needed) => Plan {
                sets: current - 1,
                ..stays
            },
            None => {
                return consolidate(
                    frame,
                    Plan {
                        limited_by,
                        ..stays
                    },
                    wanted,
                    needed,
                );
            }
        }
    } else {
        Plan {
            sets: current.max(frame.sets.min()),
            ..stays
        }
    };
    let shares = frame
        .rooms
        .iter()
        .enumerate()
        .map(|(role, room)| spread(frame, role, *room, chosen.sets, wanted[role]))
        .collect();
    Plan {
        shares,
        limited_by,
        ..chosen
    }
}

fn set_limits(frame: &Frame<'_>, wanted: &[u32], needed: u32) -> BTreeSet<Limit> {
    let unbounded = frame
        .rooms
        .iter()
        .zip(wanted)
        .map(|(room, units)| units.div_ceil(room.per_set.max().max(1)))
        .max()
        .unwrap_or(0);
    let mut limits = BTreeSet::new();
    if any_frozen(&frame.rooms) {
        return limits;
    }
    if unbounded > needed {
        limits.insert(Limit::SetsMax);
    }
    if unbounded < needed && frame.policy.limits().sets.is_some() {
        limits.insert(Limit::SetsMin);
    }
    limits
}

/// Why no set may be removed now.
fn blocked(
    frame: &Frame<'_>,
    history: &History,
    sized: &[Sized],
    recommended: u32,
    now: Timestamp,
) -> Option<Limit> {
    let window = frame.policy.limits().down.window * SET_WINDOWS;
    let going = frame
        .fleet
        .sets
        .iter()
        .any(|set| set.index >= frame.fleet.desired_sets);
    if sized
        .iter()
        .any(|sized| sized.age != Age::Fresh || !sized.complete)
    {
        Some(Limit::StaleMetrics)
    } else if frame.fleet.rollout {
        Some(Limit::Rollout)
    } else if frame.policy.limits().down.pick == Pick::Disabled {
        Some(Limit::ScaleDownRate)
    } else if elapsed(history.watched_since, now) < window {
        Some(Limit::Restart)
    } else if going
        || history.sets.most(now, window).unwrap_or(0).max(recommended) >= frame.fleet.desired_sets
    {
        Some(Limit::StabilizationWindow)
    } else {
        None
    }
}

/// Whether the first `sets` sets have every unit ready that the load asks for.
fn survivors_ready(frame: &Frame<'_>, sets: u32, needed: &[u32]) -> bool {
    needed.iter().enumerate().all(|(role, needed)| {
        let ready: u32 = frame
            .fleet
            .sets
            .iter()
            .filter(|set| set.index < sets)
            .map(|set| set.roles[role].ready)
            .sum();
        ready >= *needed
    })
}

/// Gets ready to remove the last set: it keeps what it has, the others take all that the load asks for.
fn consolidate(frame: &Frame<'_>, plan: Plan, wanted: &[u32], needed: &[u32]) -> Plan {
    let last = plan.sets - 1;
    let shares = frame.rooms.iter().enumerate().map(|(role, room)| {
        let leaving = room.per_set.clamp(frame.fleet.desired_in(last, role));
        let staying = wanted[role].saturating_sub(leaving).max(needed[role]);
        let mut shares = spread(frame, role, *room, last, staying);
        shares.push(leaving);
        shares
    });
    Plan {
        shares: shares.collect(),
        ..plan
    }
}

/// Units of a role in each of `sets` sets: what they have, moved as little as possible to make `total`.
fn spread(frame: &Frame<'_>, role: usize, room: Room, sets: u32, total: u32) -> Vec<u32> {
    let present = |index: u32| {
        if index < frame.fleet.desired_sets {
            frame.fleet.desired_in(index, role)
        } else {
            0
        }
    };
    let present: Vec<u32> = (0..sets).map(present).collect();
    if room.frozen.is_some() {
        return present;
    }
    split(&present, room.per_set.min(), room.per_set.max(), total)
}

/// `present` moved as little as possible so that every number is within `least..=most` and the sum is `total`, or as near to it as these allow. What
/// is added goes to the smallest first (ties: the lowest index), what is taken comes from the largest first (ties: the highest index).
fn split(present: &[u32], least: u32, most: u32, total: u32) -> Vec<u32> {
    let mut shares: Vec<u32> = present
        .iter()
        .map(|units| (*units).clamp(least, most))
        .collect();
    let sum: u64 = shares.iter().copied().map(u64::from).sum();
    let total = u64::from(total);
    if total > sum {
        // The highest level to which all lower shares can be filled, then one more for the first of them.
        let filled = |level: u32| {
            shares
                .iter()
                .map(|share| u64::from((*share).max(level.min(most))))
                .sum::<u64>()
        };
        let level = last_within(least, most, |level| filled(level) <= total);
        let mut left = total - filled(level);
        for share in &mut shares {
            *share = (*share).max(level);
            if *share == level && level < most && left > 0 {
                *share += 1;
                left -= 1;
            }
        }
    } else if total < sum {
        // The lowest level to which all higher shares can be cut, then one less for the last of them.
        let cut = |level: u32| {
            shares
                .iter()
                .map(|share| u64::from((*share).min(level.max(least))))
                .sum::<u64>()
        };
        let depth = last_within(0, most - least, |depth| cut(most - depth) >= total);
        let level = most - depth;
        let mut left = cut(level) - total;
        for share in shares.iter_mut().rev() {
            *share = (*share).min(level);
            if *share == level && level > least && left > 0 {
                *share -= 1;
                left -= 1;
            }
        }
    }
    shares
}

/// The last number of `from..=to` for which `holds`, which must hold up to some number and not beyond; `from` when it never does.
fn last_within(from: u32, to: u32, holds: impl Fn(u32) -> bool) -> u32 {
    let (mut good, mut end) = (from, to);
    while good < end {
        let middle = good + (end - good).div_ceil(2);
        if holds(middle) {
            good = middle;
        } else {
            end = middle - 1;
        }
    }
    good
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn units_are_added_to_the_smallest_and_taken_from_the_largest() {
        for (present, least, most, total, expected) in [
            (vec![2, 2], 1, 8, 4, vec![2, 2]),
            (vec![2, 2], 1, 8, 5, vec![3, 2]),
            (vec![2, 2], 1, 8, 3, vec![2, 1]),
            (vec![8, 0], 1, 8, 9, vec![8, 1]),
            (vec![8, 0], 1, 8, 12, vec![8, 4]),
            (vec![5, 1, 3], 1, 8, 9, vec![5, 1, 3]),
            (vec![5, 1, 3], 1, 8, 12, vec![5, 4, 3]),
            (vec![5, 1, 3], 1, 8, 5, vec![2, 1, 2]),
            (vec![5, 1, 3], 1, 8, 1, vec![1, 1, 1]),
            (vec![5, 1, 3], 1, 8, 99, vec![8, 8, 8]),
            (vec![9], 1, 8, 9, vec![8]),
        ] {
            assert_eq!(
                split(&present, least, most, total),
                expected,
                "{present:?} to {total}"
            );
        }
    }

    proptest! {
        #[test]
        fn a_split_is_exact_bounded_settled_and_moves_only_one_way(
            present in prop::collection::vec(0_u32..40, 1..8), least in 0_u32..5, span in 0_u32..30, total in 0_u32..300,
        ) {
            let most = least + span;
            let shares = split(&present, least, most, total);
            let count = u32::try_from(shares.len()).unwrap();
            prop_assert_eq!(shares.iter().sum::<u32>(), total.clamp(least * count, most * count));
            prop_assert!(shares.iter().all(|share| (least..=most).contains(share)));
            prop_assert_eq!(split(&shares, least, most, total), shares.clone());
            let clamped: Vec<u32> = present.iter().map(|units| (*units).clamp(least, most)).collect();
            let up = shares.iter().zip(&clamped).any(|(share, before)| share > before);
            let down = shares.iter().zip(&clamped).any(|(share, before)| share < before);
            prop_assert!(!(up && down), "{:?} became {:?}", clamped, shares);
        }
    }
}
