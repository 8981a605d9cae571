//! ClusterTopologyBinding, and the topology constraints of a PodCliqueSet.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use kube::core::{Reason, Rule};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Where the pods of one set replica, scaling-group replica or clique have to be, relative to each other.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [says_where_to_pack(), says_it_once()]))]
pub struct TopologyConstraint {
    /// Name of the ClusterTopologyBinding. Children inherit it from their parents.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topology_name: Option<String>,
    /// The domains to pack into.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pack: Option<PackConstraint>,
    /// Deprecated: use pack.required, which means the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::crd::domain_schema")]
    pub pack_domain: Option<String>,
}

impl TopologyConstraint {
    /// The domain that the pods must share, by either field's name.
    pub fn required_domain(&self) -> Option<&str> {
        let required = self.pack.as_ref().and_then(|pack| pack.required.as_deref());
        required.or(self.pack_domain.as_deref())
    }

    /// The domain that the pods should share where possible.
    pub fn preferred_domain(&self) -> Option<&str> {
        self.pack
            .as_ref()
            .and_then(|pack| pack.preferred.as_deref())
    }
}

fn says_where_to_pack() -> Rule {
    Rule::new("has(self.pack) || has(self.packDomain)")
        .message("say where to pack: set pack.required, pack.preferred or both")
        .field_path(".pack")
        .reason(Reason::FieldValueRequired)
}

fn says_it_once() -> Rule {
    Rule::new("!(has(self.packDomain) && has(self.pack) && has(self.pack.required))")
        .message("packDomain means the same as pack.required: remove packDomain")
        .field_path(".pack.required")
}

/// Domains that pods are packed into, by the names a ClusterTopologyBinding gives them.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [names_a_domain()]))]
pub struct PackConstraint {
    /// All pods in one domain of this kind, or none is started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::crd::domain_schema")]
    pub required: Option<String>,
    /// All pods in one domain of this kind where that is possible.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::crd::domain_schema")]
    pub preferred: Option<String>,
}

fn names_a_domain() -> Rule {
    Rule::new("has(self.required) || has(self.preferred)")
        .message("set required, preferred or both")
        .reason(Reason::FieldValueRequired)
}

/// The levels of a cluster's topology, broadest first, and the node labels that tell them.
#[derive(
    CustomResource, JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq,
)]
#[serde(rename_all = "camelCase")]
#[kube(
    group = "grove.io",
    version = "v1alpha1",
    kind = "ClusterTopologyBinding",
    plural = "clustertopologybindings",
    singular = "clustertopologybinding",
    shortname = "ct",
    status = "ClusterTopologyBindingStatus",
    derive = "Default",
    derive = "PartialEq",
    doc = "Names the levels of the cluster's topology, and binds them to the topology objects of schedulers.",
    printcolumn(
        name = "Domains",
        type_ = "string",
        json_path = ".spec.levels[*].domain"
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
pub struct ClusterTopologyBindingSpec {
    /// Levels from the broadest to the narrowest.
    #[schemars(length(min = 1))]
    pub levels: Vec<TopologyLevel>,
    /// Topology objects of schedulers that somebody else keeps; the operator only compares them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheduler_topology_bindings: Option<Vec<SchedulerTopologyBinding>>,
}

/// One level of a topology.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct TopologyLevel {
    /// Name by which constraints refer to the level, such as zone, rack or host.
    #[schemars(schema_with = "crate::crd::required_domain_schema")]
    pub domain: String,
    /// Node label whose value says to which domain of this level a node belongs.
    #[schemars(schema_with = "crate::crd::label_key_schema")]
    pub key: String,
}

/// A scheduler's topology object that stands for this binding.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct SchedulerTopologyBinding {
    /// Name of the scheduler profile.
    pub scheduler_name: String,
    /// Name of the scheduler's topology object.
    pub topology_reference: String,
}

/// How the topology objects of schedulers compare with the binding.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ClusterTopologyBindingStatus {
    /// Generation of the spec for which every scheduler's object was last brought into line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Conditions, one for each type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conditions: Option<Vec<Condition>>,
    /// One entry for each scheduler that knows topology.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheduler_topology_statuses: Option<Vec<SchedulerTopologyStatus>>,
}

/// How one scheduler's topology object compares with the binding.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct SchedulerTopologyStatus {
    /// Name of the scheduler profile.
    pub scheduler_name: String,
    /// Name of the scheduler's topology object.
    pub topology_reference: String,
    /// Whether its levels are those of the binding.
    pub in_sync: bool,
    /// Generation of the scheduler's object that was compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheduler_backend_topology_observed_generation: Option<i64>,
    /// Why it is not in sync.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}
