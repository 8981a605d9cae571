//! Defaults that are not part of the schema but of admission and of every reader of the objects.

use crate::GoDuration;

/// How long a gang may be below its minimum before it is taken down and started anew: 4 hours.
pub const TERMINATION_DELAY: GoDuration = GoDuration::from_seconds(4 * 3600);
/// Seconds between a pod's termination signal and its end, where the template says nothing.
pub const TERMINATION_GRACE_PERIOD_SECONDS: i64 = 30;
/// Restart policy of pods, where the template says nothing.
pub const RESTART_POLICY: &str = "Always";
/// Whether the headless service also lists pods that are not ready, so that ranks find each other while starting.
pub const PUBLISH_NOT_READY_ADDRESSES: bool = true;
/// Most characters that the names of a set, a group and a clique may have together.
pub const MAX_COMBINED_NAME_LENGTH: usize = 45;
/// Scheduler of pods that name none.
pub const SCHEDULER_NAME: &str = "default-scheduler";
/// Domain of the cluster's own DNS names, where the operator is not told otherwise.
pub const CLUSTER_DOMAIN: &str = "cluster.local";
