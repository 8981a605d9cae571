//! Nodes, pods and gangs as a watch shows them, with only what placement reads.

use std::collections::BTreeMap;

use coppice_operator_api::gang::SchedTopologyConstraint;
use coppice_operator_api::{PodGang, PodGangPhase};
use k8s_openapi::api::core::v1::{Node, NodeSelector, Pod, Taint, Toleration};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde::Deserialize;

use crate::index::view::view;

pub(super) type Quantities = BTreeMap<String, Quantity>;

view! {
    /// A node.
    NodeView of Node { spec: NodeSpecView, status: NodeStatusView }
}
view! {
    /// A pod, of a gang or not: all of them take room.
    PodView of Pod { spec: PodSpecView, status: PodStatusView }
}
view! {
    /// A PodGang.
    GangView of PodGang { spec: GangSpecView, status: GangStatusView }
}

/// What is read of a node's spec.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct NodeSpecView {
    pub(super) unschedulable: bool,
    pub(super) taints: Vec<Taint>,
}

/// What is read of a node's status.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct NodeStatusView {
    pub(super) allocatable: Quantities,
}

/// What is read of a pod's spec.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PodSpecView {
    pub(super) node_name: Option<Box<str>>,
    pub(super) scheduling_gates: Vec<GateView>,
    pub(super) node_selector: BTreeMap<String, String>,
    pub(super) affinity: AffinityView,
    pub(super) tolerations: Vec<Toleration>,
    pub(super) containers: Vec<ContainerView>,
    pub(super) init_containers: Vec<ContainerView>,
    pub(super) resources: ResourcesView,
    pub(super) overhead: Quantities,
    pub(super) priority: i32,
}

/// A scheduling gate.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct GateView {
    pub(super) name: Box<str>,
}

/// What is read of a pod's affinity.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct AffinityView {
    pub(super) node_affinity: NodeAffinityView,
}

/// What is read of a pod's node affinity.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct NodeAffinityView {
    #[serde(rename = "requiredDuringSchedulingIgnoredDuringExecution")]
    pub(super) required: Option<NodeSelector>,
}

/// What is read of a container.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ContainerView {
    pub(super) restart_policy: Option<Box<str>>,
    pub(super) resources: ResourcesView,
}

/// What is read of resources.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ResourcesView {
    pub(super) requests: Quantities,
}

/// What is read of a pod's status.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct PodStatusView {
    pub(super) phase: Box<str>,
    pub(super) conditions: Vec<ConditionView>,
}

/// A condition of a pod.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct ConditionView {
    #[serde(rename = "type")]
    pub(super) kind: Box<str>,
    pub(super) status: Box<str>,
}

/// What is read of a PodGang's spec.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct GangSpecView {
    #[serde(rename = "podgroups")]
    pub(super) groups: Vec<PodGroupView>,
    pub(super) topology_constraint: Option<SchedTopologyConstraint>,
    pub(super) topology_constraint_group_configs: Vec<GroupConfigView>,
}

/// What is read of a group of a gang.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PodGroupView {
    pub(super) name: Box<str>,
    /// The schema sets no bound; less than 0 is 0.
    min_replicas: i64,
    pub(super) topology_constraint: Option<SchedTopologyConstraint>,
}

impl PodGroupView {
    /// Pods that have to be placed together.
    pub(super) fn floor(&self) -> u32 {
        u32::try_from(self.min_replicas.max(0)).unwrap_or(u32::MAX)
    }
}

/// What is read of a constraint over several groups.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct GroupConfigView {
    pub(super) pod_group_names: Vec<Box<str>>,
    pub(super) topology_constraint: Option<SchedTopologyConstraint>,
}

/// What is read of a PodGang's status.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct GangStatusView {
    pub(super) phase: PodGangPhase,
}
