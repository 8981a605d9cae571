//! PodCliqueScalingGroup: cliques that scale together, such as a leader and its workers.

use crate::LastError;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Which cliques scale together, and how many replicas of all of them there are.
#[derive(CustomResource, JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[kube(
    group = "grove.io",
    version = "v1alpha1",
    kind = "PodCliqueScalingGroup",
    plural = "podcliquescalinggroups",
    singular = "podcliquescalinggroup",
    shortname = "pcsg",
    namespaced,
    status = "PodCliqueScalingGroupStatus",
    derive = "Default",
    derive = "PartialEq",
    doc = "Cliques that scale as one unit. Written by the operator; scale it through /scale.",
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
    printcolumn(name = "MinAvail", type_ = "integer", json_path = ".spec.minAvailable"),
    printcolumn(name = "Replicas", type_ = "integer", json_path = ".spec.replicas"),
    printcolumn(name = "Available", type_ = "integer", json_path = ".status.availableReplicas"),
    printcolumn(name = "Scheduled", type_ = "integer", json_path = ".status.scheduledReplicas"),
    printcolumn(name = "Updated", type_ = "integer", json_path = ".status.updatedReplicas"),
    printcolumn(name = "PCLQs-Updated", type_ = "integer", json_path = ".status.updateProgress.updatedPodCliquesCount"),
    printcolumn(name = "PCLQs-Total", type_ = "integer", json_path = ".status.updateProgress.totalPodCliquesCount"),
    printcolumn(
        name = "MinBreached",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"MinAvailableBreached\")].status",
        priority = 1
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    // The same floor as on a PodClique, for the same reasons.
    validation = Rule::new(
        "!has(self.spec.minAvailable) || self.spec.replicas == 0 || self.spec.replicas >= self.spec.minAvailable || (oldSelf.hasValue() && (oldSelf.value().spec.replicas == 0 || oldSelf.value().spec.replicas == self.spec.replicas))"
    )
        .message("replicas must be 0 or at least minAvailable: a gang is whole or absent")
        .field_path(".spec.replicas")
        .optional_old_self(true)
)]
pub struct PodCliqueScalingGroupSpec {
    /// Number of replicas of the group; after creation it belongs to whoever scales the group.
    #[serde(default = "one")]
    #[schemars(range(min = 0))]
    pub replicas: i32,
    /// Replicas that belong to the gang of the set replica; each one above is a gang of its own.
    #[serde(default = "some_one", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub min_available: Option<i32>,
    /// Names of the member cliques in the set's template.
    #[schemars(length(min = 1))]
    pub clique_names: Vec<String>,
}

impl PodCliqueScalingGroupSpec {
    /// The group's minimum, `1..`: `minAvailable`, else 1.
    pub fn effective_min_available(&self) -> i32 {
        self.min_available.unwrap_or(1).max(1)
    }
}

fn one() -> i32 {
    1
}

#[expect(
    clippy::unnecessary_wraps,
    reason = "serde's default needs the field's type"
)]
fn some_one() -> Option<i32> {
    Some(1)
}

/// What is known about the replicas of a scaling group.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PodCliqueScalingGroupStatus {
    /// Replicas that exist.
    #[serde(default)]
    pub replicas: i32,
    /// Replicas whose member cliques all have their minimum scheduled.
    #[serde(default)]
    pub scheduled_replicas: i32,
    /// Scheduled replicas whose member cliques all have their minimum ready.
    #[serde(default)]
    pub available_replicas: i32,
    /// Available replicas of the newest template.
    #[serde(default)]
    pub updated_replicas: i32,
    /// Replicas the operator works towards: `spec.replicas`, raised to `minAvailable` when it lies between 0 and that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effective_replicas: Option<i32>,
    /// Label selector of the group's pods, as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// Generation of the spec that this status describes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Errors of the last pass that did not finish; empty after one that did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_errors: Option<Vec<LastError>>,
    /// Conditions, one for each type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conditions: Option<Vec<Condition>>,
    /// Hash of the set's templates that this group has reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current_pod_clique_set_generation_hash: Option<String>,
    /// The rolling update in progress, or the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub update_progress: Option<PodCliqueScalingGroupUpdateProgress>,
}

/// How far the update of a scaling group has come.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PodCliqueScalingGroupUpdateProgress {
    /// When the update began.
    pub update_started_at: Time,
    /// When the update was complete; absent while it runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub update_ended_at: Option<Time>,
    /// Hash of the set's templates that the update goes to.
    pub pod_clique_set_generation_hash: String,
    /// Member cliques that have reached the new template.
    #[serde(default)]
    pub updated_pod_cliques_count: i32,
    /// Member cliques that the update covers.
    #[serde(default)]
    pub total_pod_cliques_count: i32,
    /// Ready replicas that the update has taken down.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready_replica_indices_selected_to_update: Option<ReplicaIndicesSelectedToUpdate>,
}

/// Ready replicas chosen by a rolling update, by index.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ReplicaIndicesSelectedToUpdate {
    /// The replica that is being replaced.
    pub current: i32,
    /// Replicas that were replaced before it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completed: Option<Vec<i32>>,
}
