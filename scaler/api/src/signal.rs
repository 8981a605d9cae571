//! What a role is sized by.

#![expect(
    unreachable_pub,
    reason = "the derive of kube writes a public copy of each struct inside a function"
)]

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::quantity::{Decimal, positive, positive_share};
use crate::rules::rule;

/// What a role is sized by: exactly one of its fields is set.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = rule(
    "[has(self.slo), has(self.tokenThroughput), has(self.queueDepth), has(self.kvCacheUsage), has(self.metric)].filter(set, set).size() == 1",
    "'signal: ' + ([has(self.slo), has(self.tokenThroughput), has(self.queueDepth), has(self.kvCacheUsage), has(self.metric)].exists(set, set) \
     ? 'more than one of slo, tokenThroughput, queueDepth, kvCacheUsage and metric is set: keep exactly one' \
     : 'none of slo, tokenThroughput, queueDepth, kvCacheUsage and metric is set: add exactly one')",
))]
pub struct Signal {
    /// Latency objectives, an engine profile and a forecast of the load at the time a pod started now becomes ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slo: Option<Slo>,
    /// Tokens a second that one unit sustains.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_throughput: Option<TokenThroughput>,
    /// Waiting requests that one unit may hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_depth: Option<QueueDepth>,
    /// Share of the KV cache that may be in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_cache_usage: Option<KvCacheUsage>,
    /// Any other series, with the value that one unit may carry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metric: Option<MetricSignal>,
}

/// The one signal that is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SignalKind<'a> {
    /// [`Signal::slo`].
    Slo(&'a Slo),
    /// [`Signal::token_throughput`].
    TokenThroughput(&'a TokenThroughput),
    /// [`Signal::queue_depth`].
    QueueDepth(&'a QueueDepth),
    /// [`Signal::kv_cache_usage`].
    KvCacheUsage(&'a KvCacheUsage),
    /// [`Signal::metric`].
    Metric(&'a MetricSignal),
}

impl Signal {
    /// The one signal that is set, or how many are when that is not one (an object written before its rules were installed).
    pub fn kind(&self) -> Result<SignalKind<'_>, usize> {
        let Self {
            slo,
            token_throughput,
            queue_depth,
            kv_cache_usage,
            metric,
        } = self;
        let set: Vec<SignalKind<'_>> = [
            slo.as_ref().map(SignalKind::Slo),
            token_throughput.as_ref().map(SignalKind::TokenThroughput),
            queue_depth.as_ref().map(SignalKind::QueueDepth),
            kv_cache_usage.as_ref().map(SignalKind::KvCacheUsage),
            metric.as_ref().map(SignalKind::Metric),
        ]
        .into_iter()
        .flatten()
        .collect();
        match set[..] {
            [one] => Ok(one),
            _ => Err(set.len()),
        }
    }
}

/// Size by the policy's latency objectives. Needs a stage other than `Other` and the objective of that stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Slo {}

/// Size by tokens a second: units = offered ÷ what one unit sustains, rounded up. Exactly one field is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = rule(
    "has(self.inputTokensPerSecond) != has(self.outputTokensPerSecond)",
    "'tokenThroughput: ' + (has(self.inputTokensPerSecond) ? 'both inputTokensPerSecond and outputTokensPerSecond are set: remove one' \
     : 'neither inputTokensPerSecond nor outputTokensPerSecond is set: add the one that limits a unit')",
))]
pub struct TokenThroughput {
    /// Prompt tokens a second that one unit works off. Above 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "positive")]
    pub input_tokens_per_second: Option<Decimal>,
    /// Output tokens a second that one unit makes. Above 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "positive")]
    pub output_tokens_per_second: Option<Decimal>,
}

/// Size by requests that wait: units = waiting ÷ what one unit may hold, rounded up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct QueueDepth {
    /// Requests that may wait for each unit. Above 0.
    #[schemars(schema_with = "positive")]
    pub waiting_per_unit: Decimal,
}

/// Size by KV-cache use: units = Σ use of the ready units ÷ target, rounded up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KvCacheUsage {
    /// Share of the cache in use to aim at. Above 0, at most 1.
    #[schemars(schema_with = "positive_share")]
    pub target: Decimal,
}

/// Size by a series of the role's engines or of the gateway: units = sum ÷ target, rounded up.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MetricSignal {
    /// Name of the series, as it is scraped; with `:rate` behind it, its increase per second over the window.
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = r"^[a-zA-Z_:][a-zA-Z0-9_:]*$")
    )]
    pub name: String,
    /// Whose series are summed.
    #[serde(default)]
    pub from: MetricSource,
    /// What one unit may carry. Above 0.
    #[schemars(schema_with = "positive")]
    pub target_per_unit: Decimal,
}

/// Whose series a [`MetricSignal`] sums.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum MetricSource {
    /// The role's engines.
    #[default]
    Role,
    /// The endpoints where traffic is offered (`spec.traffic`).
    Traffic,
}
