//! `custom.metrics.k8s.io` in both versions. Metrics are subresources here, which `kubectl explain` does not know, so a path stands for
//! all of them.

use serde_json::{Map, Value, json};

use super::{Dialect, list, quantity, text, timestamp, window};
use crate::groups::Api;

const ITEM: &str = "MetricValue";
const OBJECT: &str = "ObjectReference";
const METRIC: &str = "MetricIdentifier";
const SELECTOR: &str = "LabelSelector";

/// Prefix of the schemas. Those of other groups are not referred to: this document stands for itself.
pub(super) fn package(api: Api) -> String {
    format!("io.k8s.metrics.pkg.apis.custom_metrics.{}", api.version())
}

/// The two forms of paths.
pub(super) fn paths(api: Api, dialect: Dialect) -> Map<String, Value> {
    let version = api.version();
    let answer = dialect.reference(&package(api), api.list_kind());
    let tag = format!("customMetrics_{version}");
    let metric = dialect.parameter("metric", "path", "name of the metric");
    let series = dialect.parameter(
        "metricLabelSelector",
        "query",
        "selects series by the labels of their pods, and by model, model_id and role",
    );
    let of_objects = json!({
        "get": dialect.operation(
            &format!("readMetricOfObjects_{version}"),
            "reads a metric of an object, or with the name * of every pod",
            &tag,
            &answer,
        ),
        "parameters": [
            dialect.parameter("namespace", "path", "namespace of the objects"),
            dialect.parameter("resource", "path", "pods, podcliques.grove.io, podcliquescalinggroups.grove.io or podcliquesets.grove.io"),
            dialect.parameter("name", "path", "name of the object, or * for all pods"),
            metric,
            dialect.parameter("labelSelector", "query", "with the name *: selects pods by their labels"),
            series,
        ],
    });
    let of_namespace = json!({
        "get": dialect.operation(
            &format!("readMetricOfNamespace_{version}"),
            "reads a metric over all pods of a namespace",
            &tag,
            &answer,
        ),
        "parameters": [dialect.parameter("namespace", "path", "the namespace"), metric, series],
    });
    let base = format!("{}/namespaces/{{namespace}}", api.path());
    [
        (
            format!("{base}/{{resource}}/{{name}}/{{metric}}"),
            of_objects,
        ),
        (format!("{base}/metrics/{{metric}}"), of_namespace),
    ]
    .into_iter()
    .collect()
}

/// The objects of an answer.
pub(super) fn schemas(api: Api, dialect: Dialect) -> Map<String, Value> {
    let package = package(api);
    let reference = |schema: &str| dialect.reference(&package, schema);
    let mut properties = json!({
        "describedObject": reference(OBJECT),
        "timestamp": timestamp(),
        "value": quantity(),
    });
    let mut required = vec!["describedObject", "timestamp", "value"];
    let mut schemas = vec![
        (
            api.list_kind(),
            list(api, &reference(ITEM), "The values, one for each object."),
        ),
        (OBJECT, object()),
        (SELECTOR, selector()),
    ];
    match api {
        Api::CustomV1Beta1 => {
            properties["metricName"] = text("The name as it was asked for.");
            properties["selector"] = reference(SELECTOR);
            properties["window"] = window();
            required.push("metricName");
        }
        Api::CustomV1Beta2 | Api::External => {
            properties["metric"] = reference(METRIC);
            properties["windowSeconds"] = window();
            required.push("metric");
            let metric = json!({
                "description": "Which metric of the object.",
                "type": "object",
                "required": ["name"],
                "properties": {"name": text("The name as it was asked for."), "selector": reference(SELECTOR)},
            });
            schemas.push((METRIC, metric));
        }
    }
    let item = json!({
        "description": "A metric's value of one object at one moment.", "type": "object", "required": required,
        "properties": properties,
    });
    schemas.push((ITEM, item));
    schemas
        .into_iter()
        .map(|(name, schema)| (format!("{package}.{name}"), schema))
        .collect()
}

fn object() -> Value {
    json!({
        "description": "The object that a value is about.",
        "type": "object",
        "properties": {
            "apiVersion": text("Its group and version."),
            "kind": text("Its kind."),
            "namespace": text("Its namespace; absent for an object of the cluster."),
            "name": text("Its name."),
        },
    })
}

fn selector() -> Value {
    json!({
        "description": "Which series of the object are in the value; absent where all are.",
        "type": "object",
        "properties": {
            "matchLabels": {
                "description": "Labels and the values they must have.",
                "type": "object",
                "additionalProperties": {"type": "string"},
            },
            "matchExpressions": {
                "description": "Further requirements: key, operator and values.",
                "type": "array",
                "items": {"type": "object"},
            },
        },
    })
}
