//! PodGang: the pods that are placed together or not at all, as other schedulers read it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::fmt;

/// Which pods belong to a gang, and what each group needs at least.
#[derive(CustomResource, JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[kube(
    group = "scheduler.grove.io",
    version = "v1alpha1",
    kind = "PodGang",
    plural = "podgangs",
    singular = "podgang",
    shortname = "pg",
    namespaced,
    status = "PodGangStatus",
    derive = "Default",
    derive = "PartialEq",
    doc = "Pods that are placed together or not at all. Written by the operator, for schedulers and people to read.",
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
pub struct PodGangSpec {
    /// One group for each PodClique of the gang. The name is all lower case on the wire.
    #[serde(rename = "podgroups")]
    pub pod_groups: Vec<PodGroup>,
    /// Where all pods of the gang have to be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topology_constraint: Option<SchedTopologyConstraint>,
    /// Constraints over several groups: one for each scaling-group replica of a base gang that has a constraint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topology_constraint_group_configs: Option<Vec<TopologyConstraintGroupConfig>>,
    /// Priority class of the gang.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority_class_name: Option<String>,
    /// A gang whose reserved room this one may take. Not written by the operator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reuse_reservation_ref: Option<NamespacedName>,
}

/// The pods of one PodClique in a gang.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct PodGroup {
    /// Name of the PodClique.
    pub name: String,
    /// The pods, sorted by name; emitted even when empty.
    #[serde(default)]
    pub pod_references: Vec<NamespacedName>,
    /// Pods of this group without which the gang is not started.
    pub min_replicas: i32,
    /// Where the pods of this group have to be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topology_constraint: Option<SchedTopologyConstraint>,
}

/// Name of an object in a namespace.
#[derive(
    JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord,
)]
#[serde(rename_all = "camelCase")]
pub struct NamespacedName {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
}

/// A topology constraint over some groups of a gang.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct TopologyConstraintGroupConfig {
    /// Name of the scaling-group replica.
    pub name: String,
    /// Names of the groups that it covers.
    pub pod_group_names: Vec<String>,
    /// Where the pods of these groups have to be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topology_constraint: Option<SchedTopologyConstraint>,
}

/// A topology constraint in node label keys, where a PodCliqueSet speaks of domains.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct SchedTopologyConstraint {
    /// The node labels to pack by.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pack_constraint: Option<SchedPackConstraint>,
}

/// Node label keys whose value the nodes of all pods share.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct SchedPackConstraint {
    /// Must be shared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub required: Option<String>,
    /// Should be shared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preferred: Option<String>,
}

/// How far a gang has come.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PodGangStatus {
    /// Pending, Starting or Running.
    pub phase: PodGangPhase,
    /// Conditions, one for each type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conditions: Option<Vec<Condition>>,
    /// How well the scheduler could satisfy preferred constraints, 0 to 1; for schedulers to write.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub placement_score: Option<f64>,
}

/// Phase of a gang. Other writers may use words of their own, which are kept.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
pub enum PodGangPhase {
    /// Not all pods of the gang's floor are bound.
    #[default]
    Pending,
    /// The floor is bound, but not yet ready.
    Starting,
    /// The floor is ready.
    Running,
    /// Not used by the operator.
    Failed,
    /// Not used by the operator.
    Succeeded,
    /// A word that this version does not know.
    #[serde(untagged)]
    Other(String),
}

impl PodGangPhase {
    /// The word on the wire.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Pending => "Pending",
            Self::Starting => "Starting",
            Self::Running => "Running",
            Self::Failed => "Failed",
            Self::Succeeded => "Succeeded",
            Self::Other(word) => word,
        }
    }
}

impl fmt::Display for PodGangPhase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl JsonSchema for PodGangPhase {
    fn schema_name() -> Cow<'static, str> {
        "PodGangPhase".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string"})
    }
}
