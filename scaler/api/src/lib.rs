//! The custom resources of `autoscaling.coppice.dev/v1alpha1`: [`ScalingPolicy`] (what a serving system promises, its roles and its limits, and the
//! record of what was decided) and [`GpuBudget`] (a pool of GPUs that several policies share).
//!
//! This crate knows the wire form, the rules a single object can be checked against, and how a decision reads as an English sentence. It has no
//! client and knows nothing of how a decision comes about.

mod budget;
mod conditions;
mod policy;
mod quantity;
mod rules;
mod sentence;
mod signal;
mod status;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;

pub use budget::{BudgetClass, BudgetGrant, GpuBudget, GpuBudgetSpec, GpuBudgetStatus};
pub use conditions::{ConditionType, Reason};
pub use policy::{
    Actuation, AfterHold, Behavior, Budget, ConfigMapKey, Exposition, ItlObjective, Mode,
    Objectives, OnMetricsLost, PolicyType, Profile, RatioBand, Role, RoleEndpoints, ScaledKind,
    Scales, ScalingPolicy, ScalingPolicySpec, ScalingRule, ScalingRules, SelectPolicy, SetLimits,
    Stage, Startup, Target, Traffic, TrafficEndpoints, TtftObjective,
};
pub use quantity::{Decimal, DecimalError, Duration, DurationError};
pub use sentence::{sentence, summary};
pub use signal::{
    KvCacheUsage, MetricSignal, MetricSource, QueueDepth, Signal, SignalKind, Slo, TokenThroughput,
};
pub use status::{
    Because, DecisionStatus, GpuStatus, LimitedBy, RoleStatus, ScalingPolicyStatus, SetShare,
    SetsStatus, SignalValue,
};

/// API group of both kinds.
pub const GROUP: &str = "autoscaling.coppice.dev";

/// Version of both kinds.
pub const VERSION: &str = "v1alpha1";

/// Name of the Lease that the scaler holds while it decides. A decision record is only as good as this Lease is fresh.
pub const LEASE_NAME: &str = "coppice-scaler";

/// `kind` of the set that policies usually scale; any other target is one object with a `/scale` subresource.
pub const SET_KIND: &str = "PodCliqueSet";

/// The definitions of both kinds, as they are installed in a cluster.
///
/// Integer formats that OpenAPI does not know are written as the ones it does, so that the API server accepts them without a warning; bounds
/// are kept.
#[must_use]
pub fn crds() -> Vec<CustomResourceDefinition> {
    [ScalingPolicy::crd(), GpuBudget::crd()]
        .into_iter()
        .map(with_known_formats)
        .collect()
}

fn with_known_formats(crd: CustomResourceDefinition) -> CustomResourceDefinition {
    let mut value = serde_json::to_value(crd).expect("a definition is plain data");
    rename_formats(&mut value);
    serde_json::from_value(value).expect("only format names were changed")
}

fn rename_formats(value: &mut serde_json::Value) {
    match value {
        serde_json::Value::Object(fields) => {
            if let Some(serde_json::Value::String(format)) = fields.get_mut("format") {
                match format.as_str() {
                    "uint16" | "uint32" => "int32".clone_into(format),
                    "uint64" => "int64".clone_into(format),
                    _ => {}
                }
            }
            fields.values_mut().for_each(rename_formats);
        }
        serde_json::Value::Array(items) => items.iter_mut().for_each(rename_formats),
        _ => {}
    }
}
