//! The scaling law: from what was observed and a policy to a decision, for all roles of a serving system together.
//!
//! The flow is signals → estimates ([`History`]) → demand per role → joint sizing under budget, limits and ratio band → moving rules → levels (set
//! replicas, groups, pods) → the [`Decision`], which is also its own report. [`decide`] is a function of its arguments: the caller passes the time,
//! nothing is read from outside, and the same arguments give the same decision.
//!
//! This crate knows nothing of Kubernetes, of metric names or of clocks. A *unit* is what a role is scaled by: a pod of a standalone clique, a replica
//! of a scaling group, or a replica of a plain target. A *set* is one replica of the whole serving system.

mod capacity;
mod decide;
mod decision;
mod demand;
mod efficiency;
mod fit;
mod fleet;
mod forecast;
mod history;
mod joint;
mod levels;
mod observation;
mod policy;
pub mod pool;
mod reading;
mod settle;
mod snapshot;
mod units;
mod violations;

pub use capacity::{Profile, ProfileError};
pub use decide::decide;
pub use decision::{
    Because, Decision, GpuUse, Limit, Problem, RoleDecision, SetsDecision, Share, Step, StepObject,
};
pub use fleet::{Fleet, Holdings, RoleFleet, RoleInSet, SetFleet};
pub use history::History;
pub use observation::{Observation, Offered, RoleObservation};
pub use policy::{
    Bounds, Budget, ChangeLimit, ChangeRule, Limits, Objective, Pick, Policy, PolicyError,
    Positive, RatioBand, RolePolicy, Rules, Sizing, SloSizing, Source, Stage, WhenLost,
};
pub use reading::{Age, Quantity};
pub use snapshot::{Snapshot, SnapshotError};
pub use units::ceil_units;
pub use violations::{Violation, violations};
