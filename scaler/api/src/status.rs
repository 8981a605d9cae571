//! The decision record: what was decided, from what, and what kept it from being more or less.

#![expect(
    unreachable_pub,
    reason = "the derive of kube writes a public copy of each struct inside a function"
)]

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::policy::ScaledKind;
use crate::quantity::Decimal;

/// Status of a ScalingPolicy. Written only when it changes in substance: measured values are kept as they were when they last mattered.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ScalingPolicyStatus {
    /// Generation of the spec that the record answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// What is well and what is not.
    #[serde(default)]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".to_owned()]))]
    pub conditions: Vec<Condition>,
    /// The decision as a whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision: Option<DecisionStatus>,
    /// The decision for each role, in the order of the spec.
    #[serde(default)]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".to_owned()]))]
    pub roles: Vec<RoleStatus>,
    /// The decision for the set replicas. Absent when the target has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sets: Option<SetsStatus>,
    /// What a new leader needs to go on where this one stopped; its form is the scaler's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub history: Option<String>,
}

/// The decision as a whole.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DecisionStatus {
    /// When it last changed.
    #[schemars(with = "Time")]
    pub at: Timestamp,
    /// Current and wanted units of each role in a few words.
    pub summary: String,
    /// The decision as one English sentence.
    pub sentence: String,
    /// Share of the demand that the wanted units serve, 0 to 1; below 1 when a limit or the budget bites.
    pub served_fraction: Decimal,
    /// GPUs. Absent when the policy has no budget.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus: Option<GpuStatus>,
}

/// GPUs under a budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GpuStatus {
    /// GPUs of the wanted units.
    pub wanted: u32,
    /// GPUs that may be held.
    pub limit: u32,
}

/// The decision for one role. Units are pods of a clique, replicas of a scaling group, or replicas of a plain target.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct RoleStatus {
    /// Name of the role.
    pub name: String,
    /// What a unit is. Absent for a plain target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<ScaledKind>,
    /// Units that the objects ask for now, over all set replicas.
    pub current: u32,
    /// Units that are ready.
    pub ready: u32,
    /// Units that are wanted, over all set replicas.
    pub wanted: u32,
    /// What determined `wanted`.
    pub because: Because,
    /// What kept it from more, or from less.
    #[serde(default)]
    pub limited_by: Vec<LimitedBy>,
    /// The wanted units of each set replica. Empty for a plain target.
    #[serde(default)]
    pub per_set: Vec<SetShare>,
    /// The signals that were used. One that is missing was not measured; it is never zero instead.
    #[serde(default)]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".to_owned()]))]
    pub signals: Vec<SignalValue>,
}

/// One set replica's share of a role.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SetShare {
    /// Index of the set replica.
    pub set: u32,
    /// Units that the object asks for now.
    pub current: u32,
    /// Units that are wanted.
    pub wanted: u32,
}

/// A measured or derived value that went into the decision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SignalValue {
    /// Name of the value, such as `offeredOutputTokens`.
    pub name: String,
    /// The value, to three significant digits.
    pub value: Decimal,
    /// Its unit, such as `tokens/s`.
    pub unit: String,
}

/// The decision for the set replicas.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SetsStatus {
    /// Replicas that the set asks for now.
    pub current: u32,
    /// Replicas that are wanted.
    pub wanted: u32,
    /// What kept them from more, or from less.
    #[serde(default)]
    pub limited_by: Vec<LimitedBy>,
}

/// What determined the wanted units of a role.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
pub enum Because {
    /// The load needs this many.
    Load,
    /// The load needs less than the minimum.
    Minimum,
    /// The ratio band needs this many beside the other role.
    Ratio,
    /// The load asks for a change that is within tolerance.
    Tolerance,
    /// The load needed more within the stabilization window.
    Stabilization,
    /// The GPU budget has room for no more.
    Budget,
    /// A maximum has room for no more.
    Maximum,
    /// A rate limit allows this much for now.
    Rate,
    /// Something forbids removing units for now.
    Held,
    /// Nothing has been measured yet.
    Starting,
    /// Signals are stale: what is there is held.
    MetricsStale,
    /// Signals are lost: what is there is held.
    MetricsLost,
    /// Signals are lost: the policy's fixed number applies.
    Fallback,
    /// Nothing has been asked for so long that the role goes idle.
    Idle,
    /// A request waits for an idle role.
    Wake,
    /// The policy is paused.
    Paused,
    /// Someone else writes the same replicas.
    Conflict,
}

/// What kept a role or the sets from more, or from less.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
pub enum LimitedBy {
    /// `roles[].min`.
    Min,
    /// `roles[].max`.
    Max,
    /// `sets.min`.
    SetsMin,
    /// `sets.max`, or no `sets` at all.
    SetsMax,
    /// The GPU budget.
    Budget,
    /// The number of GPUs a unit holds is unknown, so nothing grows under a budget.
    UnknownGpus,
    /// The ratio band.
    Ratio,
    /// `behavior.scaleUp.policies`.
    ScaleUpRate,
    /// `behavior.scaleDown.policies`.
    ScaleDownRate,
    /// `behavior.scaleDown.stabilizationWindowSeconds` or the one of scaleUp.
    StabilizationWindow,
    /// `behavior.*.tolerance`.
    Tolerance,
    /// Signals are not fresh: nothing is removed.
    StaleMetrics,
    /// The scaler has not yet watched for one window since it started: nothing is removed.
    Restart,
    /// Pods that cannot be scheduled: nothing is added.
    Unschedulable,
    /// A rollout is under way: nothing is removed and sets stay.
    Rollout,
    /// Removing would leave too little room for the load that is expected.
    Forecast,
    /// The minimum of ready units that a gang needs (`minAvailable`).
    Quorum,
}
