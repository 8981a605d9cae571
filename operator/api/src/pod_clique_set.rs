//! PodCliqueSet: a whole inference service, and how many copies of it run.

use crate::gang::PodGangPhase;
use crate::sharing::{
    PcsResourceSharingSpec, PcsgResourceSharingSpec, ResourceClaimTemplateConfig,
    ResourceSharingSpec,
};
use crate::topology::TopologyConstraint;
use crate::{AutoScalingConfig, GoDuration, LastError, PodCliqueSpec, defaults};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use kube::core::Rule;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What runs, and how many copies of it.
#[derive(CustomResource, JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[kube(
    group = "grove.io",
    version = "v1alpha1",
    kind = "PodCliqueSet",
    plural = "podcliquesets",
    singular = "podcliqueset",
    shortname = "pcs",
    namespaced,
    status = "PodCliqueSetStatus",
    derive = "Default",
    derive = "PartialEq",
    doc = "An inference service made of cliques of pods that are placed, started, updated and scaled as gangs.",
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.hpaPodSelector"
    ),
    printcolumn(name = "Replicas", type_ = "integer", json_path = ".spec.replicas"),
    printcolumn(name = "Available", type_ = "integer", json_path = ".status.availableReplicas"),
    printcolumn(name = "Updated", type_ = "integer", json_path = ".status.updatedReplicas"),
    printcolumn(name = "PCLQs-Updated", type_ = "integer", json_path = ".status.updateProgress.updatedPodCliquesCount"),
    printcolumn(name = "PCLQs-Total", type_ = "integer", json_path = ".status.updateProgress.totalPodCliquesCount"),
    printcolumn(
        name = "PCSGs-Updated",
        type_ = "integer",
        json_path = ".status.updateProgress.updatedPodCliqueScalingGroupsCount"
    ),
    printcolumn(
        name = "PCSGs-Total",
        type_ = "integer",
        json_path = ".status.updateProgress.totalPodCliqueScalingGroupsCount"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    validation = Rule::new(
        "oldSelf.hasValue() || !has(self.spec.template.topologyConstraint) || !has(self.spec.template.topologyConstraint.packDomain)"
    )
        .message(PACK_DOMAIN_IS_DEPRECATED)
        .field_path(".spec.template.topologyConstraint.packDomain")
        .reason(Reason::FieldValueForbidden)
        .optional_old_self(true),
    validation = Rule::new(
        "oldSelf.hasValue() || !has(self.spec.template.cliques) || self.spec.template.cliques.all(c, !has(c.topologyConstraint) || !has(c.topologyConstraint.packDomain))"
    )
        .message(PACK_DOMAIN_IS_DEPRECATED)
        .field_path(".spec.template.cliques")
        .reason(Reason::FieldValueForbidden)
        .optional_old_self(true),
    validation = Rule::new(
        "oldSelf.hasValue() || !has(self.spec.template.podCliqueScalingGroups) || self.spec.template.podCliqueScalingGroups.all(g, !has(g.topologyConstraint) || !has(g.topologyConstraint.packDomain))"
    )
        .message(PACK_DOMAIN_IS_DEPRECATED)
        .field_path(".spec.template.podCliqueScalingGroups")
        .reason(Reason::FieldValueForbidden)
        .optional_old_self(true)
)]
pub struct PodCliqueSetSpec {
    /// Independent copies of the template. Left out it is 0 and nothing is created.
    // Go clients leave a zero out, so a kinder default would start what they meant to stop.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub replicas: i32,
    /// How a changed template reaches the pods. Absent means RollingRecreate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub update_strategy: Option<UpdateStrategy>,
    /// One copy.
    pub template: PodCliqueSetTemplateSpec,
}

const PACK_DOMAIN_IS_DEPRECATED: &str =
    "packDomain is deprecated and refused in new objects: write pack.required";

/// How a changed template reaches the pods.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct UpdateStrategy {
    /// RollingRecreate or OnDelete.
    #[serde(rename = "type", default)]
    pub kind: UpdateStrategyType,
}

/// The ways in which a changed template reaches the pods.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UpdateStrategyType {
    /// Replace one set replica after the other, deleting before creating.
    #[default]
    RollingRecreate,
    /// Use the new template when somebody deletes a pod.
    OnDelete,
}

/// One copy of the service: its cliques, and what they share.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PodCliqueSetTemplateSpec {
    /// The cliques, one for each role.
    #[schemars(length(min = 1))]
    pub cliques: Vec<PodCliqueTemplateSpec>,
    /// In which order the cliques start.
    #[serde(rename = "cliqueStartupType", default)]
    pub startup_type: CliqueStartupType,
    /// Priority class of the gangs. Pods take theirs from the podSpec of their clique.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority_class_name: Option<String>,
    /// The headless service of each set replica.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub headless_service_config: Option<HeadlessServiceConfig>,
    /// Where the pods of one set replica have to be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topology_constraint: Option<TopologyConstraint>,
    /// How long a gang may be below its minimum before it is started anew, such as 4h0m0s.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-validations" = [is_positive()]))]
    pub termination_delay: Option<GoDuration>,
    /// Claim templates for `resourceSharing`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource_claim_templates: Option<Vec<ResourceClaimTemplateConfig>>,
    /// Claims that pods of the set share.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource_sharing: Option<Vec<PcsResourceSharingSpec>>,
    /// Cliques that scale together.
    #[serde(
        rename = "podCliqueScalingGroups",
        skip_serializing_if = "Option::is_none"
    )]
    pub scaling_groups: Option<Vec<PodCliqueScalingGroupConfig>>,
}

fn is_positive() -> Rule {
    Rule::new("duration(self) > duration('0s')").message("must be longer than 0s")
}

impl PodCliqueSetTemplateSpec {
    /// The scaling groups; none is the same as an empty list.
    pub fn scaling_groups(&self) -> &[PodCliqueScalingGroupConfig] {
        self.scaling_groups.as_deref().unwrap_or_default()
    }

    /// The termination delay that applies.
    pub fn effective_termination_delay(&self) -> GoDuration {
        self.termination_delay
            .unwrap_or(defaults::TERMINATION_DELAY)
    }

    /// Whether the headless services also list pods that are not ready.
    pub fn publishes_not_ready_addresses(&self) -> bool {
        let config = self.headless_service_config.as_ref();
        config.map_or(defaults::PUBLISH_NOT_READY_ADDRESSES, |config| {
            config.publish_not_ready_addresses
        })
    }
}

/// In which order the cliques of a set replica start. Order never delays scheduling, only containers.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CliqueStartupType {
    /// All at once.
    #[default]
    #[serde(rename = "CliqueStartupTypeAnyOrder")]
    AnyOrder,
    /// Each after the one before it in the list.
    #[serde(rename = "CliqueStartupTypeInOrder")]
    InOrder,
    /// Each after those that its `startsAfter` names.
    #[serde(rename = "CliqueStartupTypeExplicit")]
    Explicit,
}

/// The headless service of each set replica.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct HeadlessServiceConfig {
    /// Whether addresses of pods that are not ready are published too.
    #[serde(default = "publish_not_ready_addresses")]
    pub publish_not_ready_addresses: bool,
}

impl Default for HeadlessServiceConfig {
    fn default() -> Self {
        Self {
            publish_not_ready_addresses: publish_not_ready_addresses(),
        }
    }
}

fn publish_not_ready_addresses() -> bool {
    defaults::PUBLISH_NOT_READY_ADDRESSES
}

/// One clique of the template.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PodCliqueTemplateSpec {
    /// Name of the clique, unique in the set. It cannot be changed.
    pub name: String,
    /// Labels of the PodClique and its pods; the operator's own keys win.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub labels: Option<BTreeMap<String, String>>,
    /// Annotations of the PodClique and its pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub annotations: Option<BTreeMap<String, String>>,
    /// Where the pods of the clique have to be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topology_constraint: Option<TopologyConstraint>,
    /// Claims that pods of the clique share.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource_sharing: Option<Vec<ResourceSharingSpec>>,
    /// The pods. `startsAfter` holds clique names of this template.
    pub spec: PodCliqueSpec,
}

/// Cliques that scale together.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PodCliqueScalingGroupConfig {
    /// Name of the group, unique in the set.
    pub name: String,
    /// Member cliques; a clique is in at most one group.
    #[schemars(length(min = 1))]
    pub clique_names: Vec<String>,
    /// Annotations of the PodCliqueScalingGroup object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub annotations: Option<BTreeMap<String, String>>,
    /// Replicas that the group starts with; later they belong to whoever scales the group.
    #[serde(default = "some_one", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub replicas: Option<i32>,
    /// Replicas that belong to the gang of the set replica; each one above is a gang of its own.
    #[serde(default = "some_one", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub min_available: Option<i32>,
    /// Limits and metrics of the autoscaler of this group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scale_config: Option<AutoScalingConfig>,
    /// Claims that pods of the group share.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource_sharing: Option<Vec<PcsgResourceSharingSpec>>,
    /// Where the pods of one replica of the group have to be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topology_constraint: Option<TopologyConstraint>,
}

impl PodCliqueScalingGroupConfig {
    /// Replicas that the group starts with, `1..`.
    pub fn template_replicas(&self) -> i32 {
        self.replicas.unwrap_or(1).max(1)
    }

    /// The group's minimum, `1..`.
    pub fn effective_min_available(&self) -> i32 {
        self.min_available.unwrap_or(1).max(1)
    }
}

#[expect(
    clippy::unnecessary_wraps,
    reason = "serde's default needs the field's type"
)]
fn some_one() -> Option<i32> {
    Some(1)
}

/// What is known about the copies.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PodCliqueSetStatus {
    /// Generation of the spec that this status describes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Conditions, one for each type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conditions: Option<Vec<Condition>>,
    /// Errors of the last pass that did not finish; empty after one that did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_errors: Option<Vec<LastError>>,
    /// Copies that exist.
    #[serde(default)]
    pub replicas: i32,
    /// Available copies of the newest template.
    #[serde(default)]
    pub updated_replicas: i32,
    /// Copies whose cliques and groups all have their minimum ready.
    #[serde(default)]
    pub available_replicas: i32,
    /// Label selector of all pods of the set, as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hpa_pod_selector: Option<String>,
    /// The gangs of the set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_gang_statuses: Option<Vec<PodGangStatusSummary>>,
    /// Hash of the templates that the set goes to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current_generation_hash: Option<String>,
    /// The rolling update in progress, or the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub update_progress: Option<PodCliqueSetUpdateProgress>,
}

/// One gang in the status of its set.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PodGangStatusSummary {
    /// Name of the PodGang.
    pub name: String,
    /// How far the gang has come.
    #[schemars(schema_with = "crate::crd::phase_schema")]
    pub phase: PodGangPhase,
    /// Conditions of the PodGang.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conditions: Option<Vec<Condition>>,
}

/// How far the update of a set has come.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PodCliqueSetUpdateProgress {
    /// When the update began; always set by the operator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub update_started_at: Option<Time>,
    /// When the update was complete; absent while it runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub update_ended_at: Option<Time>,
    /// Standalone cliques that have reached the new template.
    #[serde(default)]
    pub updated_pod_cliques_count: i32,
    /// Standalone cliques that the update covers.
    #[serde(default)]
    pub total_pod_cliques_count: i32,
    /// Scaling groups that have reached the new template.
    #[serde(default)]
    pub updated_pod_clique_scaling_groups_count: i32,
    /// Scaling groups that the update covers.
    #[serde(default)]
    pub total_pod_clique_scaling_groups_count: i32,
    /// Set replicas that are being updated; at most one under RollingRecreate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub currently_updating: Option<Vec<ReplicaUpdateProgress>>,
}

/// How far the update of one set replica has come.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ReplicaUpdateProgress {
    /// Index of the set replica.
    pub replica_index: i32,
    /// When its update began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub update_started_at: Option<Time>,
    /// When its update was complete.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub update_ended_at: Option<Time>,
}
