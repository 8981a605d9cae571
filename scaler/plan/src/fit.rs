//! The budget at every instant: what grows now must fit beside what is held, asked for, or still going away.

use std::collections::BTreeSet;

use crate::decision::Limit;
use crate::fleet::{Fleet, Holdings};
use crate::joint::Frame;
use crate::levels::Plan;
use crate::policy::Budget;
use crate::units::floor_units;

/// Cuts the growth of `plan` to what the budget has room for now. Gives, for each role and for the sets (last), what cut it.
pub(crate) fn fit(frame: &Frame<'_>, plan: &mut Plan) -> Vec<BTreeSet<Limit>> {
    let mut cuts = vec![BTreeSet::new(); frame.rooms.len() + 1];
    let limit = match frame.policy.limits().budget {
        Budget::Unlimited => return cuts,
        Budget::Gpus(limit) => u64::from(limit),
        Budget::Unknown => {
            refuse_growth(frame, plan, Limit::Budget, &mut cuts);
            return cuts;
        }
    };
    let Some(committed) = frame.fleet.committed_gpus() else {
        refuse_growth(frame, plan, Limit::UnknownGpus, &mut cuts);
        return cuts;
    };
    let mut free = limit.saturating_sub(committed);
    grow_children(frame, plan, &mut free, &mut cuts);
    grow_sets(frame, plan, &mut free, &mut cuts);
    cuts
}

/// GPUs that are held or asked for while a plan is carried out, at the worst instant: terminating pods, and the larger of what lives, what is asked
/// for and what will be. `None`: unknown.
pub(crate) fn holdings(
    fleet: &Fleet,
    sets: u32,
    share: impl Fn(usize, u32) -> Option<u32>,
) -> Option<Holdings> {
    let mut total = fleet.holdings()?;
    for set in fleet
        .sets
        .iter()
        .filter(|set| set.index < sets.min(fleet.desired_sets))
    {
        for (index, (units, role)) in set.roles.iter().zip(&fleet.roles).enumerate() {
            let now = held(fleet, set.index, index)?;
            let wanted =
                u64::from(role.gpus_per_unit?) * u64::from(share(index, set.index).unwrap_or(0));
            total.roles[index] += wanted.saturating_sub(now.max(u64::from(units.gpus)));
        }
    }
    for index in 0..sets {
        let present = index < fleet.desired_sets;
        if fleet.set(index).is_some() && present {
            continue;
        }
        if !present {
            total.beside += u64::from(fleet.gpus_beside_roles?);
        }
        for (role, unit) in fleet.roles.iter().enumerate() {
            let counted = if present { unit.initial } else { 0 };
            let wanted = share(role, index).unwrap_or(0).max(unit.initial);
            total.roles[role] += u64::from(unit.gpus_per_unit?) * u64::from(wanted - counted);
        }
    }
    Some(total)
}

/// GPUs of a role in a set that count already: the larger of what lives and what is asked for.
fn held(fleet: &Fleet, set: u32, role: usize) -> Option<u64> {
    let desired = fleet.desired_in(set, role);
    let asked = if desired == 0 {
        0
    } else {
        u64::from(fleet.roles[role].gpus_per_unit?) * u64::from(desired)
    };
    Some(
        asked.max(
            fleet
                .set(set)
                .map_or(0, |set| u64::from(set.roles[role].gpus)),
        ),
    )
}

fn refuse_growth(frame: &Frame<'_>, plan: &mut Plan, limit: Limit, cuts: &mut [BTreeSet<Limit>]) {
    for (role, shares) in plan.shares.iter_mut().enumerate() {
        for (index, share) in (0..).zip(shares.iter_mut()) {
            let present = if index < frame.fleet.desired_sets {
                frame.fleet.desired_in(index, role)
            } else {
                *share
            };
            if *share > present {
                *share = present;
                cuts[role].insert(limit);
            }
        }
    }
    if plan.sets > frame.fleet.desired_sets {
        keep_sets(plan, frame.fleet.desired_sets);
        for cut in cuts {
            cut.insert(limit);
        }
    }
}

fn keep_sets(plan: &mut Plan, sets: u32) {
    plan.sets = sets;
    for shares in &mut plan.shares {
        shares.truncate(sets as usize);
    }
}

/// Growth of one role in one set.
#[derive(Debug, Clone, Copy)]
struct Growth {
    role: usize,
    set: usize,
    /// Units that are asked for now, or with which a new set starts.
    present: u32,
    /// Units whose GPUs count already.
    from: u32,
    /// Units wanted on top.
    more: u32,
    gpus_per_unit: u64,
    granted: u32,
}

/// Shares `free` between growths in proportion to what they want, whole units, what is left over to the one that got least.
fn grant(growths: &mut [Growth], free: &mut u64) {
    let wanted: u64 = growths
        .iter()
        .map(|growth| u64::from(growth.more) * growth.gpus_per_unit)
        .sum();
    let share = if wanted <= *free {
        1.0
    } else {
        *free as f64 / wanted as f64
    };
    for growth in growths.iter_mut() {
        growth.granted = if share < 1.0 {
            floor_units(f64::from(growth.more) * share).min(growth.more)
        } else {
            growth.more
        };
        let cost = u64::from(growth.granted) * growth.gpus_per_unit;
        if cost > *free {
            growth.granted = 0;
        } else {
            *free -= cost;
        }
    }
    loop {
        let next = growths
            .iter_mut()
            .filter(|growth| growth.granted < growth.more && growth.gpus_per_unit <= *free);
        let behind = |growth: &&mut Growth| {
            (u64::from(growth.granted) << 20) / u64::from(growth.more.max(1))
        };
        let Some(growth) = next.min_by_key(behind) else {
            return;
        };
        growth.granted += 1;
        *free -= growth.gpus_per_unit;
    }
}

fn grow_children(frame: &Frame<'_>, plan: &mut Plan, free: &mut u64, cuts: &mut [BTreeSet<Limit>]) {
    let mut growths = Vec::new();
    for (role, shares) in plan.shares.iter_mut().enumerate() {
        for (index, share) in (0..frame.fleet.desired_sets).zip(shares.iter_mut()) {
            let desired = frame.fleet.desired_in(index, role);
            if *share <= desired {
                continue;
            }
            let (Some(gpus_per_unit), Some(held)) = (
                frame.fleet.roles[role].gpus_per_unit,
                held(frame.fleet, index, role),
            ) else {
                *share = desired;
                cuts[role].insert(Limit::UnknownGpus);
                continue;
            };
            let gpus_per_unit = u64::from(gpus_per_unit);
            let counted = held
                .checked_div(gpus_per_unit)
                .map_or(*share, |units| u32::try_from(units).unwrap_or(u32::MAX));
            let from = counted.clamp(desired, *share);
            growths.push(Growth {
                role,
                set: index as usize,
                present: desired,
                from,
                more: *share - from,
                gpus_per_unit,
                granted: 0,
            });
        }
    }
    settle(frame, plan, growths, free, cuts);
}

fn grow_sets(frame: &Frame<'_>, plan: &mut Plan, free: &mut u64, cuts: &mut [BTreeSet<Limit>]) {
    let present = frame.fleet.desired_sets;
    let mut growths = Vec::new();
    for index in present..plan.sets {
        let first = |role: usize| {
            frame.fleet.roles[role]
                .initial
                .max(frame.rooms[role].per_set.min())
        };
        let gpus = |role: usize| frame.fleet.roles[role].gpus_per_unit.map(u64::from);
        let roles: Option<u64> = (0..frame.rooms.len())
            .map(|role| Some(gpus(role)? * u64::from(first(role))))
            .sum();
        let whole = roles
            .zip(frame.fleet.gpus_beside_roles)
            .map(|(roles, beside)| roles + u64::from(beside));
        let refused = match whole {
            None => Some(Limit::UnknownGpus),
            Some(cost) if cost > *free => Some(Limit::Budget),
            Some(_) => None,
        };
        if let Some(limit) = refused {
            keep_sets(plan, index);
            for cut in cuts.iter_mut() {
                cut.insert(limit);
            }
            break;
        }
        *free -= whole.unwrap_or(0);
        for (role, shares) in plan.shares.iter().enumerate() {
            let wanted = shares[index as usize];
            if wanted > first(role) {
                let gpus_per_unit = gpus(role).unwrap_or(0);
                let (present, more) = (first(role), wanted - first(role));
                growths.push(Growth {
                    role,
                    set: index as usize,
                    present,
                    from: present,
                    more,
                    gpus_per_unit,
                    granted: 0,
                });
            }
        }
    }
    settle(frame, plan, growths, free, cuts);
}

/// Grants growths and writes them into the plan; a growth that would leave a gang below its minimum is not made.
fn settle(
    frame: &Frame<'_>,
    plan: &mut Plan,
    mut growths: Vec<Growth>,
    free: &mut u64,
    cuts: &mut [BTreeSet<Limit>],
) {
    grant(&mut growths, free);
    for growth in growths {
        let units = growth.from + growth.granted;
        let quorum = frame.fleet.roles[growth.role].quorum;
        let short = units < quorum && growth.granted < growth.more;
        if short {
            *free += u64::from(growth.granted) * growth.gpus_per_unit;
        }
        plan.shares[growth.role][growth.set] = if short { growth.present } else { units };
        if growth.granted < growth.more {
            cuts[growth.role].insert(Limit::Budget);
        }
    }
}
