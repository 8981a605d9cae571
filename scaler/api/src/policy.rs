//! ScalingPolicy: one serving system, its roles, what it promises, and its limits.

#![expect(
    unreachable_pub,
    reason = "the derive of kube writes a public copy of each struct inside a function"
)]
#![allow(
    clippy::duplicated_attributes,
    reason = "columns that are printed have types, and several have the same"
)]

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::quantity::{Decimal, Duration, positive, share};
use crate::rules::{constant, rule};
use crate::signal::Signal;
use crate::status::ScalingPolicyStatus;

/// One serving system: its roles, what it promises, and its limits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, CustomResource, KubeSchema)]
#[kube(
    group = "autoscaling.coppice.dev",
    version = "v1alpha1",
    kind = "ScalingPolicy",
    plural = "scalingpolicies",
    shortname = "scp",
    category = "coppice",
    namespaced,
    status = "ScalingPolicyStatus",
    derive = "PartialEq",
    doc = "ScalingPolicy sizes the roles of one LLM serving system together.",
    printcolumn(
        name = "Target",
        type_ = "string",
        json_path = ".spec.target.name",
        description = "The object that is scaled"
    ),
    printcolumn(name = "Mode", type_ = "string", json_path = ".spec.mode"),
    printcolumn(
        name = "Decision",
        type_ = "string",
        json_path = ".status.decision.summary",
        description = "Current and wanted units of each role"
    ),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status"
    ),
    printcolumn(
        name = "Metrics",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"MetricsAvailable\")].status"
    ),
    printcolumn(
        name = "Limited",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"ScalingLimited\")].status",
        priority = 1
    ),
    printcolumn(
        name = "Because",
        type_ = "string",
        json_path = ".status.decision.sentence",
        priority = 1
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = rule(
        "self.target.kind != 'PodCliqueSet' || self.roles.all(r, has(r.scales))",
        "'roles: role \"' + self.roles.map(r, !has(r.scales), r.name)[0] + '\" has no scales, but target.kind is PodCliqueSet: name the PodClique or PodCliqueScalingGroup that it sizes'",
    ),
    validation = rule(
        "self.target.kind != 'PodCliqueSet' || self.roles.all(r, !has(r.scales) || self.roles.exists_one(other, has(other.scales) && other.scales.kind == r.scales.kind && other.scales.name == r.scales.name))",
        "'roles: more than one role scales ' + self.roles.map(r, has(r.scales) && !self.roles.exists_one(other, has(other.scales) && other.scales.kind == r.scales.kind && other.scales.name == r.scales.name), r.scales.name)[0] \
         + ': keep one role for each PodClique or PodCliqueScalingGroup'",
    ),
    validation = rule(
        "self.target.kind == 'PodCliqueSet' || (self.roles.size() == 1 && self.roles.all(r, !has(r.scales)) && !has(self.sets))",
        "'target: kind ' + self.target.kind + ' is one object with /scale and takes exactly one role without scales, and no sets: remove the others, or target a PodCliqueSet'",
    ),
    validation = rule(
        "!has(self.ratio) || (self.roles.exists(r, r.name == self.ratio.numerator) && self.roles.exists(r, r.name == self.ratio.denominator))",
        "'ratio: role \"' + (self.roles.exists(r, r.name == self.ratio.numerator) ? self.ratio.denominator : self.ratio.numerator) + '\" is not one of roles: use the name of a role'",
    ),
    validation = constant(
        "!has(self.onMetricsLost) || !has(self.onMetricsLost.replicas) || self.onMetricsLost.replicas.all(name, self.roles.exists(r, r.name == name))",
        "onMetricsLost.replicas: a key is not one of roles: use the names of roles",
        ".onMetricsLost.replicas",
    ),
    validation = rule(
        "self.roles.all(r, !has(r.signal.slo) || (r.stage == 'Other' ? false : \
           r.stage == 'Decode' ? has(self.objectives) && has(self.objectives.itl) : \
           r.stage == 'Aggregated' ? has(self.objectives) && has(self.objectives.ttft) && has(self.objectives.itl) : \
           has(self.objectives) && has(self.objectives.ttft)))",
        "'roles: a role with signal slo lacks its objective: stages Prefill, Encode and Aggregated need objectives.ttft, Decode and Aggregated need objectives.itl, Other takes another signal'",
    ),
    validation = rule(
        "self.roles.all(r, r.min > 0 || has(self.traffic))",
        "'roles: role \"' + self.roles.map(r, r.min == 0, r.name)[0] + '\" has min 0, but without traffic nobody sees the request that should wake it: set min to 1 or add traffic'",
    ),
    validation = rule(
        "self.roles.all(r, !has(r.signal.metric) || r.signal.metric.from != 'Traffic' || has(self.traffic))",
        "'roles: role \"' + self.roles.map(r, has(r.signal.metric) && r.signal.metric.from == 'Traffic', r.name)[0] + '\" reads a metric from Traffic, but traffic is not set: add traffic or read from Role'",
    )
)]
pub struct ScalingPolicySpec {
    /// The object whose parts are scaled: a PodCliqueSet, or any object with a `/scale` subresource (then one role and no sets).
    pub target: Target,
    /// Whether decisions are carried out.
    #[serde(default)]
    pub mode: Mode,
    /// How decisions reach the objects.
    #[serde(default)]
    pub actuation: Actuation,
    /// Latency that the system promises. Needed by the signal `slo`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub objectives: Option<Objectives>,
    /// Where load is offered. Without it the load is inferred from the engines' counters and the growth of their queues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traffic: Option<Traffic>,
    /// The parts that are sized, together.
    #[schemars(length(min = 1, max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".to_owned()]))]
    pub roles: Vec<Role>,
    /// Limits of the PodCliqueSet's own replicas. Absent: they are never changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sets: Option<SetLimits>,
    /// Band in which the ratio of two roles' units is held.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ratio: Option<RatioBand>,
    /// GPUs that all units together may hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<Budget>,
    /// What is assumed about start-up until it has been measured.
    #[serde(default)]
    pub startup: Startup,
    /// How fast units are added and removed; fields and meanings of `autoscaling/v2`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub behavior: Option<Behavior>,
    /// What happens when a role's signals are lost for good.
    #[serde(default)]
    pub on_metrics_lost: OnMetricsLost,
}

/// The object whose parts are scaled, in the policy's namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Target {
    /// Group and version, such as `grove.io/v1alpha1` or `apps/v1`.
    #[schemars(length(min = 1, max = 253))]
    pub api_version: String,
    /// Kind, such as `PodCliqueSet` or `Deployment`.
    #[schemars(length(min = 1, max = 63))]
    pub kind: String,
    /// Name.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// Whether decisions are carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum Mode {
    /// Decide, publish and carry out.
    #[default]
    Auto,
    /// Decide and publish; change nothing.
    Advise,
    /// Hold what is there.
    Paused,
}

/// How decisions reach the objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum Actuation {
    /// The scaler patches the `/scale` subresources.
    #[default]
    Scale,
    /// The scaler publishes the decision only; an HPA or KEDA reads it from the metrics API and acts.
    Metric,
}

/// Latency that the system promises.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Objectives {
    /// Time to first token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttft: Option<TtftObjective>,
    /// Inter-token latency.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub itl: Option<ItlObjective>,
}

/// Time to first token that a share of the requests must meet: `target + perInputToken × input tokens`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct TtftObjective {
    /// Share of the requests, in percent.
    #[serde(default = "default_percentile")]
    #[schemars(range(min = 50, max = 99))]
    pub percentile: u32,
    /// Time allowed whatever the prompt's length. Above 0.
    #[x_kube(validation = not_zero("target"))]
    pub target: Duration,
    /// Time allowed on top for each input token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_input_token: Option<Duration>,
}

/// Time between two tokens that a share of the requests must meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ItlObjective {
    /// Share of the requests, in percent.
    #[serde(default = "default_percentile")]
    #[schemars(range(min = 50, max = 99))]
    pub percentile: u32,
    /// Time allowed. Above 0.
    #[x_kube(validation = not_zero("target"))]
    pub target: Duration,
}

fn default_percentile() -> u32 {
    95
}

/// Where load is offered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Traffic {
    /// The gateway's metrics endpoints.
    pub endpoints: TrafficEndpoints,
    /// What the endpoints expose.
    #[serde(default)]
    pub engine: Exposition,
}

/// The gateway's metrics endpoints: pods by label, or one fixed address for a gateway outside the cluster.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = rule(
    "has(self.selector) != has(self.address)",
    "'traffic.endpoints: ' + (has(self.selector) ? 'both selector and address are set: remove one' : 'neither selector nor address is set: add the labels of the gateway pods, or its host:port')",
))]
pub struct TrafficEndpoints {
    /// Labels of the gateway's pods, in the policy's namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
    /// `host:port` of a gateway that is no pod of this cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = rule(
        "self.matches('^[^/ :]+:[0-9]{1,5}$') || self.matches('^\\\\[[0-9a-fA-F:.]+\\\\]:[0-9]{1,5}$')",
        "'traffic.endpoints.address \"' + self + '\" is not host:port: write for example 127.0.0.1:8080'",
    ))]
    pub address: Option<String>,
    /// Port of the pods, by name or number. Absent: the annotation `prometheus.io/port`, else a port named `metrics` or `http`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<IntOrString>,
    /// Path of the metrics. Absent: the annotation `prometheus.io/path`, else `/metrics`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253), regex(pattern = "^/"))]
    pub path: Option<String>,
}

/// What an endpoint exposes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum Exposition {
    /// Recognised by its content.
    #[default]
    Auto,
    /// The Dynamo front end.
    DynamoFrontend,
    /// vLLM.
    #[serde(rename = "VLLM")]
    Vllm,
    /// SGLang.
    SGLang,
    /// llama.cpp.
    LlamaCpp,
}

/// One part that is sized.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = rule(
        "self.min <= self.max",
        "'roles: role \"' + self.name + '\" has a min above its max: lower min or raise max'",
    ).field_path(".min"),
    validation = rule(
        "!has(self.endpoints) || !has(self.endpoints.podClique) || (has(self.scales) && self.scales.kind == 'PodCliqueScalingGroup')",
        "'roles: role \"' + self.name + '\" has endpoints.podClique but does not scale a PodCliqueScalingGroup: remove podClique'",
    )
)]
pub struct Role {
    /// Name of the role, unique in the policy.
    #[schemars(
        length(min = 1, max = 63),
        regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
    )]
    pub name: String,
    /// What the role does to a request.
    pub stage: Stage,
    /// What is scaled, by the template's name inside the PodCliqueSet. Absent with any other target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scales: Option<Scales>,
    /// Which of the role's pods expose metrics, and where. Absent: all of them, found by annotations and port names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoints: Option<RoleEndpoints>,
    /// Fewest units in each set replica. 0 lets the role go idle.
    #[serde(default = "default_min")]
    #[schemars(range(max = 10_000))]
    pub min: u32,
    /// Most units in each set replica.
    #[schemars(range(min = 1, max = 10_000))]
    pub max: u32,
    /// What the role is sized by.
    pub signal: Signal,
    /// What one unit can do, as measured before; prior knowledge for the signal `slo`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<Profile>,
    /// GPUs that one unit holds. Absent: counted from the pod templates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 100_000))]
    pub gpus_per_unit: Option<u32>,
}

fn default_min() -> u32 {
    1
}

/// What a role does to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Stage {
    /// Works off prompts and hands the KV cache over.
    Prefill,
    /// Makes tokens from a KV cache that it was handed.
    Decode,
    /// Both.
    Aggregated,
    /// Encodes images, audio or video before the prompt is worked off.
    Encode,
    /// Anything else.
    Other,
}

/// What a role scales inside the PodCliqueSet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Scales {
    /// Kind of the template.
    pub kind: ScaledKind,
    /// Name of the template.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
}

/// Kinds of templates that a role can scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ScaledKind {
    /// A clique outside any scaling group: the unit is a pod.
    PodClique,
    /// A scaling group: the unit is a replica of the group, several pods.
    PodCliqueScalingGroup,
}

/// Which of a role's pods expose metrics, and where.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RoleEndpoints {
    /// Only the pods of this clique of the scaling group, such as the leader of a multi-node engine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub pod_clique: Option<String>,
    /// Port, by name or number. Absent: the annotation `prometheus.io/port`, else a port named `metrics` or `http`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<IntOrString>,
    /// Path of the metrics. Absent: the annotation `prometheus.io/path`, else `/metrics`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253), regex(pattern = "^/"))]
    pub path: Option<String>,
}

/// Where a role's capacity profile is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Profile {
    /// A key of a ConfigMap in the policy's namespace.
    pub config_map: ConfigMapKey,
}

/// A key of a ConfigMap.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ConfigMapKey {
    /// Name of the ConfigMap.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Key in its data.
    #[schemars(length(min = 1, max = 253))]
    pub key: String,
}

/// Limits of the PodCliqueSet's own replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[x_kube(validation = constant(
    "self.min <= self.max",
    "sets: min is above max: lower min or raise max",
    ".min",
))]
pub struct SetLimits {
    /// Fewest set replicas.
    #[serde(default = "default_min")]
    #[schemars(range(min = 1, max = 1_000))]
    pub min: u32,
    /// Most set replicas.
    #[schemars(range(min = 1, max = 1_000))]
    pub max: u32,
}

/// Band in which the ratio of two roles' units is held.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[x_kube(
    validation = rule(
        "double(string(self.min)) <= double(string(self.max))",
        "'ratio: min ' + string(self.min) + ' is above max ' + string(self.max) + ': lower min or raise max'",
    ).field_path(".min"),
    validation = rule(
        "self.numerator != self.denominator",
        "'ratio: numerator and denominator are both \"' + self.numerator + '\": name two roles'",
    )
)]
pub struct RatioBand {
    /// Role above the line.
    #[schemars(length(min = 1, max = 63))]
    pub numerator: String,
    /// Role below the line.
    #[schemars(length(min = 1, max = 63))]
    pub denominator: String,
    /// Smallest ratio.
    pub min: Decimal,
    /// Largest ratio. Above 0.
    #[schemars(schema_with = "positive")]
    pub max: Decimal,
}

/// GPUs that all units together may hold: a number of the policy's own, or a grant from a shared pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[x_kube(
    validation = rule(
        "has(self.name) != has(self.gpus)",
        "'budget: ' + (has(self.name) ? 'both name and gpus are set: remove one' : 'neither name nor gpus is set: add the name of a GpuBudget, or a number of GPUs')",
    ),
    validation = rule(
        "!has(self.class) || has(self.name)",
        "'budget: class \"' + self.class + '\" is set without name: name the GpuBudget that has this class, or remove class'",
    )
)]
pub struct Budget {
    /// Name of a GpuBudget.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub name: Option<String>,
    /// Class inside the GpuBudget. Absent: the one of least priority.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub class: Option<String>,
    /// GPUs of this policy alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub gpus: Option<u32>,
}

/// What is assumed about start-up until it has been measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
pub struct Startup {
    /// Time from the creation of a unit to its readiness. Above 0.
    #[serde(default = "default_startup")]
    #[x_kube(validation = not_zero("assume"))]
    pub assume: Duration,
}

impl Default for Startup {
    fn default() -> Self {
        Self {
            assume: default_startup(),
        }
    }
}

fn default_startup() -> Duration {
    Duration::from_secs(120)
}

/// How fast units are added and removed.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Behavior {
    /// Adding. Absent: window 0 s, the larger of 100 % and 4 units per 15 s, tolerance 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale_up: Option<ScalingRules>,
    /// Removing. Absent: window 300 s, the larger of 10 % and 1 unit per 60 s, tolerance 0.1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale_down: Option<ScalingRules>,
}

/// Rules for one direction.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ScalingRules {
    /// Seconds over which earlier demands count: the smallest of them going up, the largest going down. Absent: 0 up, 300 down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 3_600))]
    pub stabilization_window_seconds: Option<u32>,
    /// Which of the policies counts when they permit different changes.
    #[serde(default)]
    pub select_policy: SelectPolicy,
    /// Limits of the change. Absent: the defaults of the direction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 8))]
    pub policies: Option<Vec<ScalingRule>>,
    /// Share of the current units by which the demand must differ before anything moves; 0 to 1. Absent: 0 up, 0.1 down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "share")]
    pub tolerance: Option<Decimal>,
}

/// One limit of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ScalingRule {
    /// What `value` counts.
    #[serde(rename = "type")]
    pub type_: PolicyType,
    /// Units, or percent of the units at the start of the period.
    #[schemars(range(min = 1, max = 100_000))]
    pub value: u32,
    /// Length of the period.
    #[schemars(range(min = 1, max = 1_800))]
    pub period_seconds: u32,
}

/// What [`ScalingRule::value`] counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PolicyType {
    /// Units of the role.
    Pods,
    /// Percent of the units at the start of the period.
    Percent,
}

/// Which policy counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum SelectPolicy {
    /// The one that permits the largest change.
    #[default]
    Max,
    /// The one that permits the smallest change.
    Min,
    /// None: no change in this direction.
    Disabled,
}

/// What happens when a role's signals are lost for good.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[x_kube(validation = rule(
    "(self.then == 'Fallback') == has(self.replicas)",
    "'onMetricsLost: then is ' + self.then + (has(self.replicas) ? ' but replicas are given: set then to Fallback or remove replicas' : ' but replicas are missing: give the units of each role, or set then to Hold')",
))]
pub struct OnMetricsLost {
    /// Time for which the last decision is held.
    #[serde(default = "default_hold")]
    pub hold: Duration,
    /// What follows.
    #[serde(default)]
    pub then: AfterHold,
    /// Units (of all set replicas together) by role, for `Fallback`. A role that is not named holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("maxProperties" = 16))]
    pub replicas: Option<BTreeMap<String, u32>>,
}

impl Default for OnMetricsLost {
    fn default() -> Self {
        Self {
            hold: default_hold(),
            then: AfterHold::Hold,
            replicas: None,
        }
    }
}

fn default_hold() -> Duration {
    Duration::from_secs(300)
}

/// What follows when signals stay lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum AfterHold {
    /// Hold on.
    #[default]
    Hold,
    /// Move to fixed numbers.
    Fallback,
}

fn not_zero(field: &str) -> kube::core::Rule {
    rule(
        "!self.matches('^(0+([.]0*)?[a-z\u{b5}\u{3bc}]*)+$')",
        &format!("'{field} ' + self + ' is not above 0: write a time, such as 120s'"),
    )
}
