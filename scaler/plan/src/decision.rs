//! The decision, which is its own report.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;

use crate::fleet::Holdings;
use crate::reading::{Age, Quantity};

/// What is wanted, and why. Applying it twice does nothing more.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// Each role, in the policy's order.
    pub roles: Vec<RoleDecision>,
    /// The set replicas.
    pub sets: SetsDecision,
    /// Share of the demand that is served, 0 to 1; below 1 when a limit or the budget bites.
    pub served_fraction: f64,
    /// GPUs, when there is a budget.
    pub gpus: Option<GpuUse>,
    /// What a person should know.
    pub problems: Vec<Problem>,
    /// When to decide again at the latest, though nothing changes.
    pub recheck_after: Duration,
}

/// What is wanted of one role.
#[derive(Debug, Clone, PartialEq)]
pub struct RoleDecision {
    /// Units asked for now.
    pub current: u32,
    /// Units ready now.
    pub ready: u32,
    /// Units wanted: the sum of the shares.
    pub wanted: u32,
    /// Units of each wanted set.
    pub shares: Vec<Share>,
    /// What the load asks for within all limits, before the moving rules; the stabilization windows go over this.
    pub recommended: u32,
    /// What determined `wanted`.
    pub because: Because,
    /// What kept it from more, or from less.
    pub limited_by: BTreeSet<Limit>,
    /// How old the role's signals are.
    pub age: Age,
    /// When the oldest signal that the size follows from was measured. `None`: never.
    pub measured_at: Option<Timestamp>,
    /// The values that were used.
    pub values: Vec<(Quantity, f64)>,
}

/// What is wanted of one role in one set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// Index of the set.
    pub set: u32,
    /// Units asked for now. `None`: the object is yet to come.
    pub current: Option<u32>,
    /// Units wanted.
    pub wanted: u32,
}

/// What is wanted of the set replicas.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetsDecision {
    /// Replicas asked for now.
    pub current: u32,
    /// Replicas wanted.
    pub wanted: u32,
    /// Sets that the load asks for; the window for removing sets goes over this.
    pub recommended: u32,
    /// What kept them from more, or from less.
    pub limited_by: BTreeSet<Limit>,
}

/// GPUs under a budget.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuUse {
    /// GPUs of the wanted units and sets.
    pub wanted: u64,
    /// GPUs held or asked for while this decision is carried out, terminating ones included.
    pub committed: Holdings,
    /// GPUs that may be held.
    pub limit: u64,
}

/// What determined the wanted units.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Because {
    /// The load needs this many.
    Load,
    /// The load needs less than the minimum.
    Minimum,
    /// The ratio band needs this many beside the other role.
    Ratio,
    /// The change is within tolerance.
    Tolerance,
    /// The load needed more (or less, going up) within the window.
    Stabilization,
    /// The budget has room for no more.
    Budget,
    /// A maximum has room for no more.
    Maximum,
    /// A rate limit allows this much for now.
    Rate,
    /// Something forbids the change for now.
    Held,
    /// Nothing has been measured yet.
    Starting,
    /// Signals are stale: held.
    MetricsStale,
    /// Signals are lost: held.
    MetricsLost,
    /// Signals are lost: the policy's number.
    Fallback,
    /// Nothing was asked for long enough.
    Idle,
    /// A request waits for an idle role.
    Wake,
    /// The policy is paused.
    Paused,
    /// Someone else writes the same replicas.
    Conflict,
}

/// What kept a role or the sets from more, or from less.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Limit {
    /// The role's minimum.
    Min,
    /// The role's maximum.
    Max,
    /// The least number of sets.
    SetsMin,
    /// The largest number of sets, or sets that are never changed.
    SetsMax,
    /// The budget.
    Budget,
    /// The number of GPUs of a unit is unknown.
    UnknownGpus,
    /// The ratio band.
    Ratio,
    /// The rate of adding.
    ScaleUpRate,
    /// The rate of removing.
    ScaleDownRate,
    /// The window.
    StabilizationWindow,
    /// The tolerance.
    Tolerance,
    /// Signals that are not fresh, or not from every endpoint.
    StaleMetrics,
    /// The time since the start is shorter than the window.
    Restart,
    /// Units that cannot be scheduled.
    Unschedulable,
    /// A rollout.
    Rollout,
    /// The load that is expected.
    Forecast,
    /// The minimum of units of a gang.
    Quorum,
}

/// What a person should know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Problem {
    /// No number of units meets the objective of this role (index).
    Infeasible {
        /// Index of the role.
        role: usize,
    },
    /// The gang minimum of this role is above its maximum, so no number is allowed: it is held.
    QuorumAboveMaximum {
        /// Index of the role.
        role: usize,
        /// The gang minimum.
        quorum: u32,
    },
    /// The minimum of all roles holds more GPUs than the budget has.
    BudgetBelowMinimum {
        /// GPUs of the minimum.
        minimum: u64,
        /// GPUs of the budget.
        limit: u64,
    },
}

/// One write. Steps are in order: what shrinks comes before what grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// What is written.
    pub object: StepObject,
    /// The value that was read; the write must fail when it is another by now.
    pub from: u32,
    /// The value to write.
    pub to: u32,
}

/// What a [`Step`] writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepObject {
    /// Replicas of the set.
    Sets,
    /// Replicas of a role in a set.
    Role {
        /// Index of the role in the policy.
        role: usize,
        /// Index of the set.
        set: u32,
    },
}

impl Decision {
    /// The writes that carry the decision out, what shrinks first. Objects that are yet to come get no step.
    #[must_use]
    pub fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        for (role, decision) in self.roles.iter().enumerate() {
            for share in &decision.shares {
                if let Some(from) = share.current.filter(|current| *current != share.wanted) {
                    steps.push(Step {
                        object: StepObject::Role {
                            role,
                            set: share.set,
                        },
                        from,
                        to: share.wanted,
                    });
                }
            }
        }
        if self.sets.wanted != self.sets.current {
            steps.push(Step {
                object: StepObject::Sets,
                from: self.sets.current,
                to: self.sets.wanted,
            });
        }
        steps.sort_by_key(|step| step.to > step.from);
        steps
    }
}
