//! PodClique: pods of one role that are created from one template.

use crate::{AutoScalingConfig, LastError};
use k8s_openapi::api::core::v1::PodSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What one clique consists of.
///
/// The same type serves as an entry of a PodCliqueSet's template and as the spec of a PodClique object.
#[derive(CustomResource, JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[kube(
    group = "grove.io",
    version = "v1alpha1",
    kind = "PodClique",
    plural = "podcliques",
    singular = "podclique",
    shortname = "pclq",
    namespaced,
    status = "PodCliqueStatus",
    derive = "Default",
    derive = "PartialEq",
    doc = "Pods of one role, created and replaced as part of a gang. Written by the operator; scale it through /scale.",
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.hpaPodSelector"
    ),
    printcolumn(name = "MinAvail", type_ = "integer", json_path = ".spec.minAvailable"),
    printcolumn(name = "Replicas", type_ = "integer", json_path = ".spec.replicas"),
    printcolumn(name = "Ready", type_ = "integer", json_path = ".status.readyReplicas"),
    printcolumn(name = "Scheduled", type_ = "integer", json_path = ".status.scheduledReplicas"),
    printcolumn(name = "Updated", type_ = "integer", json_path = ".status.updatedReplicas"),
    printcolumn(name = "Gated", type_ = "integer", json_path = ".status.scheduleGatedReplicas", priority = 1),
    printcolumn(
        name = "MinBreached",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"MinAvailableBreached\")].status",
        priority = 1
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    // A floor that holds on every path, `/scale` included: a gang is whole or absent. Waking from zero may pass through
    // a smaller number because an autoscaler goes from 0 to 1; an object that is already below may still be edited.
    validation = Rule::new(
        "!has(self.spec.minAvailable) || self.spec.replicas == 0 || self.spec.replicas >= self.spec.minAvailable || (oldSelf.hasValue() && (oldSelf.value().spec.replicas == 0 || oldSelf.value().spec.replicas == self.spec.replicas))"
    )
        .message("replicas must be 0 or at least minAvailable: a gang is whole or absent")
        .field_path(".spec.replicas")
        .optional_old_self(true)
)]
pub struct PodCliqueSpec {
    /// Role of the pods, unique in the set. At most one clique may leave it out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role_name: Option<String>,
    /// The pods of the clique, as in a Pod.
    pub pod_spec: PodSpec,
    /// Number of pods. In a template 0 counts as 1.
    #[serde(default = "one")]
    #[schemars(range(min = 0))]
    pub replicas: i32,
    /// Pods below which the gang cannot work and is not started. Defaults to `replicas`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub min_available: Option<i32>,
    /// Cliques that must have their minimum ready before containers of this one start. Clique names in a template,
    /// names of PodClique objects in a PodClique.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub starts_after: Option<Vec<String>>,
    /// Limits and metrics of the autoscaler of this clique.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto_scaling_config: Option<AutoScalingConfig>,
}

impl PodCliqueSpec {
    /// Pods that a template asks for: `replicas`, where 0 or less counts as 1.
    pub fn template_replicas(&self) -> i32 {
        self.replicas.max(1)
    }

    /// The clique's minimum, `1..`: `minAvailable`, else the template's replicas.
    ///
    /// Upstream copies `replicas` before it turns 0 into 1 and then refuses its own default; this takes the number
    /// that was meant.
    pub fn effective_min_available(&self) -> i32 {
        self.min_available
            .unwrap_or_else(|| self.template_replicas())
            .max(1)
    }
}

fn one() -> i32 {
    1
}

/// What is known about a clique's pods. Pods that are being deleted count nowhere.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PodCliqueStatus {
    /// Generation of the spec that this status describes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Errors of the last pass that did not finish; empty after one that did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_errors: Option<Vec<LastError>>,
    /// Pods that exist.
    #[serde(default)]
    pub replicas: i32,
    /// Pods that are Ready.
    #[serde(default)]
    pub ready_replicas: i32,
    /// Pods of the newest template.
    #[serde(default)]
    pub updated_replicas: i32,
    /// Pods that a scheduling gate holds back.
    #[serde(default)]
    pub schedule_gated_replicas: i32,
    /// Pods that are bound to a node.
    #[serde(default)]
    pub scheduled_replicas: i32,
    /// Pods the operator works towards: `spec.replicas`, raised to `minAvailable` when it lies between 0 and that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effective_replicas: Option<i32>,
    /// Label selector of the pods, as text. Absent for members of a scaling group, which scales as a whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hpa_pod_selector: Option<String>,
    /// Conditions, one for each type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conditions: Option<Vec<Condition>>,
    /// Hash of the set's templates that this clique has reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current_pod_clique_set_generation_hash: Option<String>,
    /// Hash of this clique's template that its pods have reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current_pod_template_hash: Option<String>,
    /// The rolling update in progress, or the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub update_progress: Option<PodCliqueUpdateProgress>,
}

/// How far the update of a clique has come.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PodCliqueUpdateProgress {
    /// When the update began; always set by the operator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub update_started_at: Option<Time>,
    /// When the update was complete; absent while it runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub update_ended_at: Option<Time>,
    /// Hash of the set's templates that the update goes to.
    pub pod_clique_set_generation_hash: String,
    /// Hash of the clique's template that the update goes to.
    pub pod_template_hash: String,
    /// Ready pods that the update has taken down.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready_pods_selected_to_update: Option<PodsSelectedToUpdate>,
}

/// Ready pods chosen by a rolling update, by name.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct PodsSelectedToUpdate {
    /// The pod that is being replaced.
    pub current: String,
    /// Pods that were replaced before it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completed: Option<Vec<String>>,
}
