//! What no decision may do. Serves property tests, simulations and debug builds.

use crate::decision::{Because, Decision, Limit};
use crate::fleet::Fleet;
use crate::policy::{Budget, Policy};

/// Something that no decision may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Violation {
    /// More or fewer roles than the policy has.
    Roles,
    /// The shares of a role are not those of the wanted sets, or do not add up to what is wanted.
    Shares {
        /// Index of the role.
        role: usize,
    },
    /// A share is below the minimum or above the maximum without a reason.
    OutOfBounds {
        /// Index of the role.
        role: usize,
        /// Index of the set.
        set: u32,
        /// The share.
        wanted: u32,
    },
    /// A share is neither zero nor at least the gang minimum.
    BelowQuorum {
        /// Index of the role.
        role: usize,
        /// Index of the set.
        set: u32,
        /// The share.
        wanted: u32,
    },
    /// The sets are outside their bounds, or changed though the policy does not let them.
    Sets {
        /// Wanted sets.
        wanted: u32,
    },
    /// The decision takes more GPUs than the budget has.
    Budget {
        /// GPUs while it is carried out.
        committed: u64,
        /// GPUs of the budget.
        limit: u64,
    },
    /// Something grows though its GPUs are not known.
    UnknownGpus,
    /// What grows is written before what shrinks.
    Order,
}

/// Everything that `decision` does against the rules. Empty for each decision of [`crate::decide`] on the same arguments.
#[must_use]
pub fn violations(policy: &Policy, fleet: &Fleet, decision: &Decision) -> Vec<Violation> {
    let mut found = Vec::new();
    if decision.roles.len() != policy.roles().len() {
        return vec![Violation::Roles];
    }
    for role in 0..decision.roles.len() {
        check_role(policy, fleet, decision, role, &mut found);
    }
    let held = decision.roles.iter().any(|role| is_frozen(role.because));
    let sets = decision.sets.wanted;
    let limits = &decision.sets.limited_by;
    let unaffordable = limits.contains(&Limit::Budget) || limits.contains(&Limit::UnknownGpus);
    let stays = sets == fleet.desired_sets;
    let allowed = policy.limits().sets.map_or(stays, |bounds| {
        let too_few = sets < bounds.min() && unaffordable && sets >= fleet.desired_sets;
        bounds.clamp(sets) == sets || too_few || (stays && held)
    });
    if !allowed {
        found.push(Violation::Sets { wanted: sets });
    }
    check_budget(policy, fleet, decision, &mut found);
    let steps = decision.steps();
    let first_up = steps
        .iter()
        .position(|step| step.to > step.from)
        .unwrap_or(steps.len());
    if steps[first_up..].iter().any(|step| step.to < step.from) {
        found.push(Violation::Order);
    }
    found
}

const fn is_frozen(because: Because) -> bool {
    matches!(because, Because::Paused | Because::Conflict | Because::Held)
}

fn check_role(
    policy: &Policy,
    fleet: &Fleet,
    decision: &Decision,
    role: usize,
    found: &mut Vec<Violation>,
) {
    let bounds = policy.roles()[role].units;
    let quorum = fleet.roles[role].quorum.max(1);
    let decided = &decision.roles[role];
    let indices = decided.shares.iter().map(|share| share.set);
    if !indices.eq(0..decision.sets.wanted)
        || decided.shares.iter().map(|share| share.wanted).sum::<u32>() != decided.wanted
    {
        found.push(Violation::Shares { role });
    }
    let unaffordable = decided.limited_by.contains(&Limit::Budget)
        || decided.limited_by.contains(&Limit::UnknownGpus);
    for share in &decided.shares {
        let present = fleet.desired_in(share.set, role);
        if is_frozen(decided.because) && share.wanted == present {
            continue;
        }
        let too_few = share.wanted < bounds.min()
            && !(unaffordable && share.wanted >= present.min(bounds.min()));
        if too_few || share.wanted > bounds.max() {
            found.push(Violation::OutOfBounds {
                role,
                set: share.set,
                wanted: share.wanted,
            });
        }
        if 0 < share.wanted && share.wanted < quorum && !(unaffordable && share.wanted == present) {
            found.push(Violation::BelowQuorum {
                role,
                set: share.set,
                wanted: share.wanted,
            });
        }
    }
}

fn check_budget(policy: &Policy, fleet: &Fleet, decision: &Decision, found: &mut Vec<Violation>) {
    let grows = decision.steps().iter().any(|step| step.to > step.from);
    let limit = match policy.limits().budget {
        Budget::Unlimited => return,
        Budget::Unknown => {
            if grows {
                found.push(Violation::UnknownGpus);
            }
            return;
        }
        Budget::Gpus(limit) => u64::from(limit),
    };
    let share = |role: usize, set: u32| {
        let shares = decision.roles[role].shares.iter();
        shares
            .filter(|share| share.set == set)
            .map(|share| share.wanted)
            .next()
    };
    match (
        crate::fit::holdings(fleet, decision.sets.wanted, share).map(|held| held.total()),
        fleet.committed_gpus(),
    ) {
        (Some(committed), Some(before)) if committed > limit.max(before) => {
            found.push(Violation::Budget { committed, limit })
        }
        (None, None) if grows => found.push(Violation::UnknownGpus),
        _ => {}
    }
}
