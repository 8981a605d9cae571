//! What a fleet looks like.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Everything that can be chosen about a fleet. Start from [`FleetSettings::new`] and change fields.
#[derive(Debug, Clone)]
pub struct FleetSettings {
    /// Nodes to begin with.
    pub nodes: usize,
    /// What one node offers.
    pub shape: NodeShape,
    /// Where nodes stand, and how that is written on them.
    pub topology: Topology,
    /// Node names are this and a number of at least four digits.
    pub name_prefix: String,
    /// Further labels of every node.
    pub labels: BTreeMap<String, String>,
    /// How long pods take to start.
    pub startup: Startup,
    /// How often a node renews its Lease; `None`: see [`lease_period`].
    pub lease_period: Option<Duration>,
    /// The program `coppice-loadtest` that serves simulated engines; `None`: `$COPPICE_LOADTEST`, else the file of that
    /// name beside this executable.
    pub engine_program: Option<PathBuf>,
    /// Serve the control endpoint here; `None`: only this value's methods command the fleet.
    pub control: Option<SocketAddr>,
    /// Status writes and deletions on their way at the same time.
    pub concurrency: usize,
    /// What becomes of nodes and pods when the fleet's value is dropped.
    pub farewell: Farewell,
}

/// How a fleet ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Farewell {
    /// Nodes and pods stay as they are, as if the power had failed, and are lost to the cluster when their leases run out.
    Leave,
    /// Nodes are deleted and their pods removed.
    CleanUp,
}

impl FleetSettings {
    /// `nodes` nodes of 8 GPUs, four to a rack, four racks to a block, four blocks to a zone; pods start at once.
    #[must_use]
    pub fn new(nodes: usize) -> Self {
        Self {
            nodes,
            shape: NodeShape::default(),
            topology: Topology::default(),
            name_prefix: "node-".to_owned(),
            labels: BTreeMap::new(),
            startup: Startup::default(),
            lease_period: None,
            engine_program: None,
            control: None,
            concurrency: 32,
            farewell: Farewell::Leave,
        }
    }
}

/// What one node can give to pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeShape {
    /// A Kubernetes quantity.
    pub cpu: String,
    /// A Kubernetes quantity.
    pub memory: String,
    /// How many pods fit.
    pub pods: u32,
    /// How many devices of `gpu_resource`; 0 for a node without.
    pub gpus: u32,
    /// The extended resource's name.
    pub gpu_resource: String,
}

impl Default for NodeShape {
    fn default() -> Self {
        Self {
            cpu: "192".to_owned(),
            memory: "2Ti".to_owned(),
            pods: 250,
            gpus: 8,
            gpu_resource: "nvidia.com/gpu".to_owned(),
        }
    }
}

/// How nodes are grouped. Node `n` is in rack `n / nodes_per_rack`, and so on upwards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    /// At least 1.
    pub nodes_per_rack: usize,
    /// At least 1.
    pub racks_per_block: usize,
    /// At least 1.
    pub blocks_per_zone: usize,
    /// Label keys that carry the rack; each gets the same value.
    pub rack_keys: Vec<String>,
    /// Label keys that carry the block.
    pub block_keys: Vec<String>,
    /// Label keys that carry the zone.
    pub zone_keys: Vec<String>,
}

impl Default for Topology {
    fn default() -> Self {
        Self {
            nodes_per_rack: 4,
            racks_per_block: 4,
            blocks_per_zone: 4,
            rack_keys: vec!["topology.kubernetes.io/rack".to_owned()],
            block_keys: vec!["topology.kubernetes.io/block".to_owned()],
            zone_keys: vec!["topology.kubernetes.io/zone".to_owned()],
        }
    }
}

/// How long it takes from a pod's start (scheduled, init containers done) until it is ready.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Startup {
    /// Half of the pods take less. The annotation `testbed.coppice.dev/startup` on a pod overrides it for that pod.
    pub median: Duration,
    /// Standard deviation of the delay's logarithm: at 0 all pods take the median, at 0.25 two thirds are within a
    /// quarter of it.
    pub spread: f64,
    /// Same seed, same pod, same delay.
    pub seed: u64,
}

impl Default for Startup {
    fn default() -> Self {
        Self {
            median: Duration::ZERO,
            spread: 0.0,
            seed: 0,
        }
    }
}

/// How often each of `nodes` nodes renews its Lease unless it is told otherwise: every 2 s for up to 100 nodes, then so
/// that all together send 50 renewals a second, at most every 10 s (as kubelets do).
///
/// A control plane that should not lose living nodes has a grace period of at least four times that.
#[must_use]
pub fn lease_period(nodes: usize) -> Duration {
    let milliseconds = u64::try_from(nodes)
        .unwrap_or(u64::MAX)
        .saturating_mul(1000)
        / 50;
    Duration::from_millis(milliseconds.clamp(2_000, 10_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_are_renewed_often_in_small_fleets_and_as_kubelets_do_in_large_ones() {
        assert_eq!(lease_period(0), Duration::from_secs(2));
        assert_eq!(lease_period(100), Duration::from_secs(2));
        assert_eq!(lease_period(250), Duration::from_secs(5));
        assert_eq!(lease_period(100_000), Duration::from_secs(10));
    }
}
