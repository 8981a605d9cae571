//! Limits and metrics of a HorizontalPodAutoscaler that the operator keeps for a clique or a scaling group.

use k8s_openapi::api::autoscaling::v2::MetricSpec;
use kube::core::Rule;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Limits and metrics of the HorizontalPodAutoscaler of one clique or scaling group.
///
/// The field is called `autoScalingConfig` on a clique and `scaleConfig` on a scaling group.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [max_is_not_below_min()]))]
pub struct AutoScalingConfig {
    /// Fewest replicas the autoscaler may ask for. Defaults to the replicas of the clique or group in the template.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub min_replicas: Option<i32>,
    /// Most replicas the autoscaler may ask for.
    #[schemars(range(min = 1))]
    pub max_replicas: i32,
    /// Metrics of the autoscaler, as in autoscaling/v2. Without any, the server's own default applies (80 % CPU).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metrics: Option<Vec<MetricSpec>>,
}

/// The message is a constant: the server bounds the cost of rules inside lists, and a computed text is over it.
fn max_is_not_below_min() -> Rule {
    Rule::new("!has(self.minReplicas) || self.maxReplicas >= self.minReplicas")
        .message("maxReplicas must be at least minReplicas")
        .field_path(".maxReplicas")
}
