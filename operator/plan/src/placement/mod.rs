//! Places gangs on nodes: the whole floor of a gang, or nothing.
//!
//! Input is a [`Snapshot`] of nodes and a [`Gang`] of pods that are not placed yet; output is a [`Placement`], or an
//! [`Unplaceable`] that says for every topology domain what stands in the way. [`schedule`] does this for all gangs
//! that wait, in a fair order.
//!
//! What is weighed: resources and pod slots, cordons, taints and tolerations, node selectors and required node
//! affinity, and topology domains: one that the gang shares, and inside it those that parts of it share. What is not: affinity between pods, spread constraints,
//! host ports, volumes and device claims. kube-scheduler still binds every pod and weighs these too; a gang that it
//! does not bind in time is planned anew without the nodes that refused it.
//!
//! Rooms: [`resources`], [`quantity`], [`node`] and [`needs`] are the vocabulary; `table` turns one gang and the nodes into numbers;
//! `pack` fills nodes greedily and `search` proves what greed misses; [`place`](place()) chooses a domain, and
//! `nested` several inside each other, which `scopes` describes; [`reason`] says no; [`queue`] is the fair order.

pub mod needs;
mod nested;
pub mod node;
mod pack;
mod place;
pub mod quantity;
pub mod queue;
pub mod reason;
pub mod resources;
mod scopes;
mod search;
mod table;

pub use needs::{NodeTerm, Operator, PodNeeds, Requirement, Toleration};
pub use node::{Effect, Node, NodeShape, Snapshot, Taint};
pub use place::{Binding, Gang, Group, Part, Placement, Topology, place};
pub use queue::{Claim, Schedule, Settings, Waiting, schedule};
pub use reason::{DomainReason, Obstacle, Reason, Unplaceable};
pub use resources::Resources;
