//! The objects of `custom.metrics.k8s.io` as they go over the wire, in both versions.

use coppice_signals::{Requirement, Selector, Test};
use serde::Serialize;
use serde_json::{Value as Json, json};

use crate::groups::Api;
use crate::query::{Value, whole_seconds};

/// An object that a value is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ObjectReference {
    /// Group and version.
    pub api_version: &'static str,
    /// Kind.
    pub kind: &'static str,
    /// Namespace; left out for an object of the cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Name.
    pub name: String,
}

/// A value of an object.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Item {
    pub(super) described: ObjectReference,
    pub(super) value: Value,
}

/// Which metric was asked for.
#[derive(Debug, Clone, Copy)]
pub(super) struct MetricIdentifier<'a> {
    pub(super) name: &'a str,
    pub(super) selector: &'a Selector,
}

/// The answer in a version of the group.
pub(super) fn list(api: Api, metric: &MetricIdentifier<'_>, items: &[Item]) -> Json {
    let selector = label_selector(metric.selector);
    let items: Vec<Json> = items
        .iter()
        .map(|item| json_item(api, metric.name, selector.as_ref(), item))
        .collect();
    json!({
        "kind": api.list_kind(), "apiVersion": api.group_version(), "metadata": {}, "items": items,
    })
}

fn json_item(api: Api, name: &str, selector: Option<&Json>, item: &Item) -> Json {
    let Item { described, value } = item;
    let mut json = json!({
        "describedObject": described,
        "timestamp": format!("{:.0}", value.timestamp),
        "value": value.quantity.text,
    });
    let window = value.window.map(whole_seconds);
    match api {
        Api::CustomV1Beta1 => {
            json["metricName"] = json!(name);
            put(&mut json, "selector", selector);
            put(&mut json, "window", window);
        }
        Api::CustomV1Beta2 | Api::External => {
            json["metric"] = json!({"name": name});
            put(&mut json["metric"], "selector", selector);
            put(&mut json, "windowSeconds", window);
        }
    }
    json
}

/// Fields without a value are left out.
fn put(json: &mut Json, key: &str, value: Option<impl Serialize>) {
    if let Some(value) = value {
        json[key] = json!(value);
    }
}

/// The selector as an object, as clients that sent it had it. `None` for one that selects everything, and for one with `>` or `<`,
/// which the object cannot say.
fn label_selector(selector: &Selector) -> Option<Json> {
    if selector.is_everything() {
        return None;
    }
    let mut labels = serde_json::Map::new();
    let mut expressions = Vec::new();
    for Requirement { key, test } in selector.requirements() {
        let (operator, values) = match test {
            Test::In(values) if values.len() == 1 && !labels.contains_key(key) => {
                labels.insert(key.clone(), json!(values.first()));
                continue;
            }
            Test::In(values) => ("In", Some(values)),
            Test::NotIn(values) => ("NotIn", Some(values)),
            Test::Exists => ("Exists", None),
            Test::DoesNotExist => ("DoesNotExist", None),
            Test::GreaterThan(_) | Test::LessThan(_) => return None,
        };
        let mut expression = json!({"key": key, "operator": operator});
        put(&mut expression, "values", values);
        expressions.push(expression);
    }
    let mut object = json!({});
    put(
        &mut object,
        "matchLabels",
        (!labels.is_empty()).then_some(labels),
    );
    put(
        &mut object,
        "matchExpressions",
        (!expressions.is_empty()).then_some(expressions),
    );
    Some(object)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

    use super::*;
    use crate::quantity::quantity;

    /// An answer with every field set, which the published schemas are held against.
    pub(crate) fn full(api: Api) -> Json {
        let value = Value {
            quantity: quantity(12.5).unwrap(),
            timestamp: "2026-08-20T10:15:30.9Z".parse().unwrap(),
            window: Some(Duration::from_secs(60)),
            labels: BTreeMap::new(),
            warnings: Vec::new(),
        };
        let item = Item {
            described: crate::custom::subject::pod("serving", "decode-0"),
            value,
        };
        let selector: Selector = "model_id=qwen3".parse().unwrap();
        let metric = MetricIdentifier {
            name: "coppice_output_tokens_per_second",
            selector: &selector,
        };
        list(api, &metric, &[item])
    }

    #[test]
    fn each_version_has_its_own_fields() {
        let described =
            json!({"kind": "Pod", "namespace": "serving", "name": "decode-0", "apiVersion": "v1"});
        let selector = json!({"matchLabels": {"model_id": "qwen3"}});
        assert_eq!(
            full(Api::CustomV1Beta2),
            json!({
                "kind": "MetricValueList", "apiVersion": "custom.metrics.k8s.io/v1beta2", "metadata": {},
                "items": [{
                    "describedObject": described,
                    "metric": {"name": "coppice_output_tokens_per_second", "selector": selector},
                    "timestamp": "2026-08-20T10:15:30Z", "windowSeconds": 60, "value": "12500m",
                }],
            })
        );
        assert_eq!(
            full(Api::CustomV1Beta1),
            json!({
                "kind": "MetricValueList", "apiVersion": "custom.metrics.k8s.io/v1beta1", "metadata": {},
                "items": [{
                    "describedObject": described,
                    "metricName": "coppice_output_tokens_per_second", "selector": selector,
                    "timestamp": "2026-08-20T10:15:30Z", "window": 60, "value": "12500m",
                }],
            })
        );
    }

    #[test]
    fn a_selector_is_sent_back_as_the_object_that_clients_know() {
        let object = |text: &str| label_selector(&text.parse().unwrap());
        assert_eq!(object(""), None);
        assert_eq!(object("rank>3"), None);
        let full = object("a=1,b in (x,y),c notin (z),d,!e").unwrap();
        let read: LabelSelector = serde_json::from_value(full).unwrap();
        assert_eq!(read.match_labels.unwrap()["a"], "1");
        let operators: Vec<_> = read
            .match_expressions
            .unwrap()
            .into_iter()
            .map(|expression| expression.operator)
            .collect();
        assert_eq!(operators, ["In", "NotIn", "Exists", "DoesNotExist"]);
    }
}
