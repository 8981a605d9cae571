//! The decision: signals → demand per role → joint size → moving rules → levels → budget at every instant → record.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;

use crate::decision::{
    Because, Decision, GpuUse, Limit, Problem, RoleDecision, SetsDecision, Share,
};
use crate::demand::{Sized, demands};
use crate::fit;
use crate::fleet::Fleet;
use crate::history::History;
use crate::joint::{Frame, Joint, Room, any_frozen};
use crate::levels;
use crate::policy::{Bounds, Policy, RolePolicy};
use crate::reading::{Age, elapsed};
use crate::settle::{Settled, settle};
use crate::units::ceil_units;

/// Growth of a role stops when units could not be scheduled for this long.
const UNSCHEDULABLE_AFTER: Duration = Duration::from_secs(60);
/// A role that may go idle does so when nothing was asked for this long, or for three starts when that is longer.
const IDLE_AFTER: Duration = Duration::from_secs(600);
/// No two decisions closer than this because of a timer.
const SOONEST: Duration = Duration::from_secs(1);

/// What is wanted of every role and of the sets at `now`.
///
/// Flow: signals → demand of each role → one served share for all of them under limits and budget → ratio band → moving rules → sets and the spread
/// over them → the budget at this instant → the record.
///
/// Guarantees: the same arguments give the same decision; deciding on the state that a decision leads to changes nothing more; each share is zero or
/// at least the gang minimum, and within the role's bounds unless a budget forbids growing into them; what is held, asked for or going away never
/// exceeds the budget through a decision; a signal that is missing never counts as zero.
///
/// `fleet.roles` and every `SetFleet::roles` must be in the order of the policy's roles.
#[must_use]
pub fn decide(policy: &Policy, history: &History, fleet: &Fleet, now: Timestamp) -> Decision {
    let sized = demands(policy, history, fleet, now);
    let mut problems = infeasible(&sized);
    let frame = frame(policy, history, fleet, now, &mut problems);
    let joint = frame.solve(&sized);
    if let Some(problem) = minimum_problem(&frame) {
        problems.push(problem);
    }
    let mut settled: Vec<Settled> = joint
        .targets
        .iter()
        .zip(&sized)
        .enumerate()
        .map(|(index, (target, sized))| settle(&frame, history, index, sized, target, now))
        .collect();
    fill_sets(&frame, &mut settled);
    hold_moving_ratio(&frame, &mut settled);
    make_room(&frame, &joint, &sized, &mut settled);
    assemble(&frame, history, &sized, &joint, settled, problems, now)
}

fn infeasible(sized: &[Sized]) -> Vec<Problem> {
    let roles = sized.iter().enumerate();
    let bad =
        roles.filter(|(_, sized)| sized.demand.as_ref().is_some_and(|demand| !demand.feasible));
    bad.map(|(role, _)| Problem::Infeasible { role }).collect()
}

fn frame<'a>(
    policy: &'a Policy,
    history: &History,
    fleet: &'a Fleet,
    now: Timestamp,
    problems: &mut Vec<Problem>,
) -> Frame<'a> {
    let rooms = policy.roles().iter().enumerate().map(|(index, role)| {
        let quorum = fleet.roles[index].quorum.max(1);
        let per_set = per_set(policy, history, role, quorum, now);
        if per_set.is_none() {
            problems.push(Problem::QuorumAboveMaximum {
                role: index,
                quorum,
            });
        }
        let frozen = if policy.limits().paused {
            Some(Because::Paused)
        } else if fleet.roles[index].conflict {
            Some(Because::Conflict)
        } else if per_set.is_none() {
            Some(Because::Held)
        } else {
            None
        };
        let (unschedulable, since) = fleet.unschedulable(index);
        let stuck = unschedulable > 0 && since >= UNSCHEDULABLE_AFTER;
        Room {
            per_set: per_set.unwrap_or(role.units),
            current: fleet.current(index),
            frozen,
            stuck,
        }
    });
    let rooms: Vec<Room> = rooms.collect();
    let present = fleet.desired_sets;
    let bounds = policy.limits().sets.filter(|_| !any_frozen(&rooms));
    let sets = bounds
        .or_else(|| Bounds::new(present, present))
        .expect("a number is not above itself");
    Frame {
        policy,
        fleet,
        rooms,
        sets,
    }
}

/// Units of a role in each set: within its bounds, none or at least the gang minimum. `None` when that is impossible.
fn per_set(
    policy: &Policy,
    history: &History,
    role: &RolePolicy,
    quorum: u32,
    now: Timestamp,
) -> Option<Bounds> {
    let least = if role.units.min() > 0 {
        role.units.min().max(quorum)
    } else {
        let idle_after = IDLE_AFTER.max(history.startup(policy, &role.name) * 3);
        if elapsed(history.busy_at, now) >= idle_after {
            0
        } else {
            quorum
        }
    };
    Bounds::new(least, role.units.max())
}

/// Whether the budget cannot hold even the minimum of every role.
fn minimum_problem(frame: &Frame<'_>) -> Option<Problem> {
    let limit = frame.gpu_limit()?;
    let minimum = least(frame);
    (minimum > limit).then_some(Problem::BudgetBelowMinimum { minimum, limit })
}

/// GPUs of the minimum of every role.
fn least(frame: &Frame<'_>) -> u64 {
    let least: Vec<u32> = (0..frame.rooms.len())
        .map(|role| frame.total(role).min())
        .collect();
    frame.gpus(&least)
}

/// GPUs of the minimum of every role at `now`; unknown ones count as none.
pub(crate) fn least_gpus(policy: &Policy, history: &History, fleet: &Fleet, now: Timestamp) -> u64 {
    least(&frame(policy, history, fleet, now, &mut Vec::new()))
}

/// Gives every role its minimum in each of the sets that there will be.
fn fill_sets(frame: &Frame<'_>, settled: &mut [Settled]) {
    let units: Vec<u32> = settled.iter().map(|settled| settled.units).collect();
    let sets = frame
        .sets_for(&units)
        .max(frame.sets.clamp(frame.fleet.desired_sets));
    for (settled, room) in settled.iter_mut().zip(&frame.rooms) {
        let least = room.per_set.min().saturating_mul(sets);
        if room.frozen.is_none() && settled.units < least {
            settled.units = least;
            settled.because = Because::Minimum;
            settled.limited_by.insert(Limit::Min);
        }
    }
}

/// Keeps the ratio band while two roles move at different rates: the one that ran ahead waits. Nothing moves further than it would have.
fn hold_moving_ratio(frame: &Frame<'_>, settled: &mut [Settled]) {
    let Some(band) = frame.policy.limits().ratio else {
        return;
    };
    let current = |role: usize| frame.rooms[role].current;
    let (above, below) = (band.numerator, band.denominator);
    let most_above = ceil_units(band.max * f64::from(settled[below].units));
    let most_below = if band.min > 0.0 {
        ceil_units(f64::from(settled[above].units) / band.min)
    } else {
        u32::MAX
    };
    for (role, most) in [(above, most_above), (below, most_below)] {
        if settled[role].units > current(role) && settled[role].units > most {
            settled[role].units = most.max(current(role));
            settled[role].limited_by.insert(Limit::Ratio);
        }
    }
    let least_above = ceil_units(band.min * f64::from(settled[below].units));
    let least_below = ceil_units(f64::from(settled[above].units) / band.max);
    for (role, least) in [(above, least_above), (below, least_below)] {
        if settled[role].units < current(role) && settled[role].units < least {
            settled[role].units = least.min(current(role));
            settled[role].limited_by.insert(Limit::Ratio);
        }
    }
}

/// When roles that wait to shrink hold more than the budget has for all, they shrink at once as far as others need the room: present need goes before
/// a need that may come back. Roles whose signals are not fresh are left alone.
fn make_room(frame: &Frame<'_>, joint: &Joint, sized: &[Sized], settled: &mut [Settled]) {
    let Some(limit) = frame.gpu_limit() else {
        return;
    };
    let units_at = |settled: &[Settled], kept: f64| -> Vec<u32> {
        let each = settled.iter().zip(&joint.targets).zip(sized).enumerate();
        each.map(|(role, ((settled, target), sized))| {
            let movable = sized.age == Age::Fresh && frame.rooms[role].frozen.is_none();
            if movable && settled.units > target.units {
                target.units + ceil_units(f64::from(settled.units - target.units) * kept)
            } else {
                settled.units
            }
        })
        .collect()
    };
    if frame.gpus(&units_at(settled, 1.0)) <= limit {
        return;
    }
    let (mut good, mut bad) = (0.0, 1.0);
    for _ in 0..16 {
        let middle = f64::midpoint(good, bad);
        if frame.gpus(&units_at(settled, middle)) <= limit {
            good = middle;
        } else {
            bad = middle;
        }
    }
    for (role, units) in units_at(settled, good).into_iter().enumerate() {
        if units < settled[role].units {
            settled[role].units = units;
            settled[role].because = Because::Budget;
            settled[role].limited_by.insert(Limit::Budget);
        }
    }
}

fn assemble(
    frame: &Frame<'_>,
    history: &History,
    sized: &[Sized],
    joint: &Joint,
    settled: Vec<Settled>,
    problems: Vec<Problem>,
    now: Timestamp,
) -> Decision {
    let wanted: Vec<u32> = settled.iter().map(|settled| settled.units).collect();
    let needed: Vec<u32> = joint.targets.iter().map(|target| target.units).collect();
    let mut plan = levels::plan(frame, history, sized, &wanted, &needed, now);
    let cuts = fit::fit(frame, &mut plan);
    let fleet = frame.fleet;
    let recheck = settled
        .iter()
        .filter_map(|settled| settled.recheck_after)
        .min()
        .unwrap_or(Duration::MAX);
    let roles: Vec<RoleDecision> = settled
        .into_iter()
        .zip(sized)
        .enumerate()
        .map(|(index, (settled, sized))| {
            let cut = &cuts[index];
            let because = if !cut.is_empty() && plan.total(index) < wanted[index] {
                Because::Budget
            } else {
                idle_or(frame, index, &settled)
            };
            RoleDecision {
                current: fleet.current(index),
                ready: fleet.ready(index),
                wanted: plan.total(index),
                shares: shares(fleet, index, &plan.shares[index]),
                recommended: needed[index],
                because,
                limited_by: settled.limited_by.union(cut).copied().collect(),
                age: sized.age,
                measured_at: sized.measured_at,
                values: sized.values.clone(),
            }
        })
        .collect();
    let set_cuts: BTreeSet<Limit> = cuts.last().cloned().unwrap_or_default();
    let sets = SetsDecision {
        current: fleet.desired_sets,
        wanted: plan.sets,
        recommended: plan.recommended_sets,
        limited_by: plan.limited_by.union(&set_cuts).copied().collect(),
    };
    let gpus = frame.gpu_limit().and_then(|limit| {
        let totals: Vec<u32> = roles.iter().map(|role| role.wanted).collect();
        let share = |role: usize, set: u32| plan.shares[role].get(set as usize).copied();
        Some(GpuUse {
            wanted: frame.gpus_in(&totals, plan.sets),
            committed: fit::holdings(fleet, plan.sets, share)?,
            limit,
        })
    });
    let recheck_after = recheck.clamp(SOONEST, frame.policy.limits().interval.max(SOONEST));
    Decision {
        roles,
        sets,
        served_fraction: joint.served_fraction,
        gpus,
        problems,
        recheck_after,
    }
}

/// The reason of a role that goes to sleep or wakes up, else the one it has.
fn idle_or(frame: &Frame<'_>, index: usize, settled: &Settled) -> Because {
    let may_idle = frame.policy.roles()[index].units.min() == 0;
    let natural = matches!(settled.because, Because::Load | Because::Minimum);
    match (settled.units, frame.rooms[index].current) {
        (0, _) if may_idle && natural => Because::Idle,
        (_, 0) if may_idle && natural => Because::Wake,
        _ => settled.because,
    }
}

fn shares(fleet: &Fleet, role: usize, wanted: &[u32]) -> Vec<Share> {
    let current = |index: u32| {
        fleet
            .set(index)
            .filter(|_| index < fleet.desired_sets)
            .and_then(|set| set.roles[role].desired)
    };
    (0..)
        .zip(wanted)
        .map(|(set, wanted)| Share {
            set,
            current: current(set),
            wanted: *wanted,
        })
        .collect()
}
