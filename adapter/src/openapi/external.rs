//! `external.metrics.k8s.io/v1beta1`: a path for each listed metric, so that `kubectl explain` finds it.

use serde_json::{Map, Value, json};

use super::{Dialect, kind, list, quantity, text, timestamp, window};
use crate::groups::Api;

/// Prefix of the schemas; other servers of this group use the same.
pub(super) const PACKAGE: &str = "io.k8s.metrics.pkg.apis.external.v1beta1";
const ITEM: &str = "ExternalMetricValue";

/// The path of each metric.
pub(super) fn paths(names: &[String], dialect: Dialect) -> Map<String, Value> {
    let answer = dialect.reference(PACKAGE, Api::External.list_kind());
    let path = |name: &String| {
        let mut operation = dialect.operation(
            &format!("read_{name}"),
            &format!("reads the metric {name}"),
            "externalMetrics_v1beta1",
            &answer,
        );
        operation["x-kubernetes-action"] = json!("get");
        operation["x-kubernetes-group-version-kind"] = kind(Api::External);
        let parameters = [
            dialect.parameter("namespace", "path", "namespace of the measured endpoints"),
            dialect.parameter(
                "labelSelector",
                "query",
                "selects endpoints by the labels of their pods, and by model, model_id and role",
            ),
        ];
        (
            format!("{}/namespaces/{{namespace}}/{name}", Api::External.path()),
            json!({"get": operation, "parameters": parameters}),
        )
    };
    names.iter().map(path).collect()
}

/// The objects of an answer.
pub(super) fn schemas(dialect: Dialect) -> Map<String, Value> {
    let item = dialect.reference(PACKAGE, ITEM);
    let items = "The values, which the HPA adds up; of this server always one.";
    let value = json!({
        "description": "A metric's value at one moment.",
        "type": "object",
        "required": ["metricName", "metricLabels", "timestamp", "value"],
        "properties": {
            "metricName": text("The name as it was asked for."),
            "metricLabels": {
                "description": "What the value is about, such as the namespace and the model.",
                "type": "object",
                "additionalProperties": {"type": "string"},
            },
            "timestamp": timestamp(),
            "window": window(),
            "value": quantity(),
        },
    });
    [
        (Api::External.list_kind(), list(Api::External, &item, items)),
        (ITEM, value),
    ]
    .map(|(name, schema)| (format!("{PACKAGE}.{name}"), schema))
    .into_iter()
    .collect()
}
