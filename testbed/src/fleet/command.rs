//! What a running fleet can be told, and what it answers. The control endpoint speaks the same words as JSON.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A command to a running fleet.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(
    tag = "command",
    rename_all = "camelCase",
    rename_all_fields = "camelCase",
    deny_unknown_fields
)]
pub enum Command {
    /// Register more nodes; they continue the numbering.
    AddNodes {
        /// How many.
        count: usize,
    },
    /// Stop a node as a power failure would: no heartbeat, its pods' engines are gone, nothing is written any more.
    ///
    /// Kubernetes notices after the node's grace period, taints the node and evicts its pods. No kubelet confirms their
    /// end, so in a real cluster somebody must: the `node.kubernetes.io/out-of-service` taint, or the deletion of the
    /// Node. With `fenced` (the default) the fleet stands in for that and removes evicted pods at once; without, they
    /// stay `Terminating` until the node comes back, is tainted so, or is removed.
    KillNode {
        /// The node.
        node: String,
        /// Whether the site removes the pods that were evicted from it.
        #[serde(default = "yes")]
        fenced: bool,
    },
    /// Start a killed node again: it reports ready, and pods still bound to it start anew.
    ReviveNode {
        /// The node.
        node: String,
    },
    /// Take a node away for good: its object is deleted, its pods are removed.
    RemoveNode {
        /// The node.
        node: String,
    },
    /// End all containers of a pod.
    CrashPod {
        /// `NAMESPACE/POD`.
        pod: String,
        /// Their exit code; with 0 and a restart policy that is not Always, the pod has succeeded.
        #[serde(default = "one")]
        exit_code: i32,
        /// Do not restart them until `RecoverPod` (`CrashLoopBackOff`).
        #[serde(default)]
        stay_down: bool,
    },
    /// Restart what was kept down.
    RecoverPod {
        /// `NAMESPACE/POD`.
        pod: String,
    },
    /// Multiply all start-up delays from now on; 1 is normal.
    SlowStarts {
        /// At least 0.
        factor: f64,
    },
    /// Let the metrics of engines stand still, or move again.
    FreezeMetrics {
        /// `NAMESPACE/POD`; absent: all engines, future ones included.
        #[serde(default)]
        pod: Option<String>,
        /// Stand still?
        frozen: bool,
    },
    /// Only tell the state.
    Status,
}

fn yes() -> bool {
    true
}

fn one() -> i32 {
    1
}

/// A command that cannot be carried out.
#[derive(Debug, Clone, thiserror::Error, PartialEq)]
pub enum CommandError {
    /// The fleet has no such node.
    #[error(
        "the fleet has no node {0:?}; `kubectl get nodes -l testbed.coppice.dev/fleet` lists its nodes"
    )]
    NoSuchNode(String),
    /// The fleet plays no such pod.
    #[error(
        "the fleet plays no pod {0:?}; it must be bound to one of its nodes, and written NAMESPACE/POD"
    )]
    NoSuchPod(String),
    /// The pod or node is in no state for it.
    #[error("{subject} is {state}; {what} needs {needs}")]
    NotNow {
        /// Pod or node.
        subject: String,
        /// Its state.
        state: String,
        /// The command.
        what: &'static str,
        /// What it needs.
        needs: &'static str,
    },
    /// A number out of range.
    #[error("{field} is {value}; it must be {rule}")]
    BadValue {
        /// Which argument.
        field: &'static str,
        /// Its value.
        value: String,
        /// What is accepted.
        rule: &'static str,
    },
    /// The API server refused.
    #[error("{0}")]
    Refused(String),
    /// The fleet ended.
    #[error("the fleet has ended")]
    Ended,
}

/// What a fleet is doing. Also the answer to every command.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FleetState {
    /// Nodes, dead ones included.
    pub nodes: usize,
    /// Names of the dead ones.
    pub dead_nodes: Vec<String>,
    /// Pods in play by stage: `held`, `starting`, `opening`, `ready`, `down`, `draining`, `ended`, `lost`, `removed`.
    pub pods: BTreeMap<String, usize>,
    /// Pods that are simulated engines.
    pub engines: usize,
    /// Status writes and deletions sent so far.
    pub writes: u64,
    /// Those that had to be sent again.
    pub retries: u64,
    /// How long the oldest change has waited to be written, in seconds: how far the fleet is behind.
    pub behind_seconds: f64,
    /// The longest that any change has waited so far, in seconds.
    pub behind_seconds_max: f64,
    /// The factor on start-up delays.
    pub slow_starts: f64,
}

impl std::fmt::Display for FleetState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let pods: Vec<_> = self
            .pods
            .iter()
            .map(|(stage, count)| format!("{count} {stage}"))
            .collect();
        write!(f, "{} nodes", self.nodes)?;
        if !self.dead_nodes.is_empty() {
            write!(
                f,
                " ({} dead: {})",
                self.dead_nodes.len(),
                self.dead_nodes.join(", ")
            )?;
        }
        write!(
            f,
            "; pods: {}; {} engines; {} writes, {:.2} s behind",
            if pods.is_empty() {
                "none".to_owned()
            } else {
                pods.join(", ")
            },
            self.engines,
            self.writes,
            self.behind_seconds,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_read_as_json_with_defaults_and_refuse_unknown_fields() {
        let read = |text| serde_json::from_str::<Command>(text);
        assert_eq!(
            read(r#"{"command":"killNode","node":"n"}"#).unwrap(),
            Command::KillNode {
                node: "n".to_owned(),
                fenced: true
            }
        );
        assert_eq!(
            read(r#"{"command":"crashPod","pod":"a/b"}"#).unwrap(),
            Command::CrashPod {
                pod: "a/b".to_owned(),
                exit_code: 1,
                stay_down: false
            }
        );
        assert!(read(r#"{"command":"killNode","name":"n"}"#).is_err());
    }
}
