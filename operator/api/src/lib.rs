//! Grove's API as Rust types, wire-compatible with upstream's `v1alpha1`.
//!
//! What is here: the five custom resources and their schemas, and every name, label, annotation, environment
//! variable, condition, reason and code that other programs can see. What is deliberately not here: a client, a
//! clock, and any rule about *when* an object is written. Rules that follow from one object alone (the effective
//! minimum of a clique, which gang a scaling-group replica belongs to) live beside the field or name they explain.

pub mod autoscaling;
pub mod condition;
pub mod crd;
pub mod defaults;
pub mod duration;
pub mod env;
pub mod error_code;
pub mod event;
pub mod gang;
pub mod init_container;
pub mod labels;
pub mod last_error;
pub mod names;
pub mod pod_clique;
pub mod pod_clique_set;
pub mod scaling_group;
pub mod sharing;
pub mod topology;

pub use autoscaling::AutoScalingConfig;
pub use duration::GoDuration;
pub use gang::{PodGang, PodGangPhase, PodGangSpec, PodGangStatus};
pub use last_error::LastError;
pub use pod_clique::{PodClique, PodCliqueSpec, PodCliqueStatus};
pub use pod_clique_set::{PodCliqueSet, PodCliqueSetSpec, PodCliqueSetStatus};
pub use scaling_group::{
    PodCliqueScalingGroup, PodCliqueScalingGroupSpec, PodCliqueScalingGroupStatus,
};
pub use topology::{
    ClusterTopologyBinding, ClusterTopologyBindingSpec, ClusterTopologyBindingStatus,
};

/// API group of PodCliqueSet, PodClique, PodCliqueScalingGroup and ClusterTopologyBinding.
pub const GROUP: &str = "grove.io";
/// API group of PodGang.
pub const SCHEDULER_GROUP: &str = "scheduler.grove.io";
/// The only version of all five kinds, served and stored.
pub const VERSION: &str = "v1alpha1";
