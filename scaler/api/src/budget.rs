//! GpuBudget: a pool of GPUs that several policies share.

#![expect(
    unreachable_pub,
    reason = "the derive of kube writes a public copy of each struct inside a function"
)]
#![allow(
    clippy::duplicated_attributes,
    reason = "columns that are printed have types, and several have the same"
)]

use jiff::Timestamp;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A pool of GPUs. Policies take a grant here before they grow and return it when the pods are gone.
///
/// At every instant: Σ GPUs of max(existing including terminating, granted) ≤ limit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, CustomResource, KubeSchema)]
#[kube(
    group = "autoscaling.coppice.dev",
    version = "v1alpha1",
    kind = "GpuBudget",
    plural = "gpubudgets",
    shortname = "gb",
    category = "coppice",
    status = "GpuBudgetStatus",
    derive = "PartialEq",
    doc = "GpuBudget is a pool of GPUs that several ScalingPolicies share.",
    printcolumn(name = "Resource", type_ = "string", json_path = ".spec.resource"),
    printcolumn(name = "Limit", type_ = "integer", json_path = ".spec.limit"),
    printcolumn(name = "Granted", type_ = "integer", json_path = ".status.granted"),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[serde(rename_all = "camelCase")]
pub struct GpuBudgetSpec {
    /// Extended resource that is counted.
    #[serde(default = "default_resource")]
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = "^([a-z0-9.-]+/)?[A-Za-z0-9._-]+$")
    )]
    pub resource: String,
    /// GPUs that all policies together may hold.
    #[schemars(range(max = 10_000_000))]
    pub limit: u32,
    /// Classes of policies; a higher priority is served first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".to_owned()]))]
    pub classes: Vec<BudgetClass>,
}

fn default_resource() -> String {
    "nvidia.com/gpu".to_owned()
}

/// One class of policies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BudgetClass {
    /// Name, unique in the budget.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// Higher is served first.
    pub priority: i32,
}

/// What has been granted.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct GpuBudgetStatus {
    /// Sum of the grants, in GPUs.
    #[serde(default)]
    pub granted: u32,
    /// The grants.
    #[serde(default)]
    #[schemars(length(max = 10_000))]
    pub grants: Vec<BudgetGrant>,
}

/// What one role of one policy holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BudgetGrant {
    /// `namespace/name` of the policy.
    #[schemars(length(max = 317))]
    pub policy: String,
    /// Role of the policy. Absent: pods of its target that belong to no role.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub role: Option<String>,
    /// Units of the role.
    pub units: u32,
    /// GPUs of these units, those of pods that are leaving included.
    pub gpus: u32,
    /// When the grant was last raised.
    #[schemars(with = "k8s_openapi::apimachinery::pkg::apis::meta::v1::Time")]
    pub at: Timestamp,
}
