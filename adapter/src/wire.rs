//! The objects of `external.metrics.k8s.io/v1beta1` as they go over the wire, and the Table that people see.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::groups::Api;

/// One value of a metric.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ExternalMetricValue {
    /// The name as it was asked for.
    pub metric_name: String,
    /// What the value is about.
    pub metric_labels: BTreeMap<String, String>,
    /// When it was measured; whole seconds.
    #[serde(serialize_with = "whole_seconds")]
    pub timestamp: Timestamp,
    /// Look-back in seconds; left out for a snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<i64>,
    /// A quantity.
    pub value: String,
}

/// The answer to a metric request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ExternalMetricValueList {
    kind: String,
    api_version: String,
    metadata: BTreeMap<String, String>,
    /// The values; the HPA adds them up.
    pub items: Vec<ExternalMetricValue>,
}

/// How a value came about; the answer to `…/METRIC/explain`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Explanation {
    /// The metric's served name.
    pub metric: String,
    /// Namespace of the endpoints.
    pub namespace: String,
    /// The selector as text; empty selects everything.
    pub selector: String,
    /// The value, when there is one.
    pub answer: Option<ExplainedAnswer>,
    /// Why there is none, when there is none.
    pub missing: Option<String>,
    /// Each endpoint that was asked.
    pub endpoints: Vec<ExplainedEndpoint>,
}

/// A value and what it rests on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ExplainedAnswer {
    /// The value as measured.
    pub value: f64,
    /// The value as sent to autoscalers.
    pub quantity: String,
    /// Seconds since the oldest sample in it was taken.
    pub age_seconds: f64,
    /// Look-back in seconds; absent for a snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window_seconds: Option<f64>,
    /// How many values became one.
    pub rule: String,
    /// Endpoints whose value is in it.
    pub contributing: usize,
    /// Endpoints that were asked.
    pub live: usize,
    /// What the value is about.
    pub labels: BTreeMap<String, String>,
    /// What a careful reader should know.
    pub warnings: Vec<String>,
}

/// One endpoint's part.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ExplainedEndpoint {
    /// Namespace and name of its pod.
    pub pod: String,
    /// Its value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<f64>,
    /// Seconds since its sample was taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub age_seconds: Option<f64>,
    /// Why it has no value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
}

impl ExternalMetricValueList {
    /// A list of these values.
    pub(crate) fn new(items: Vec<ExternalMetricValue>) -> Self {
        Self {
            kind: Api::External.list_kind().to_owned(),
            api_version: Api::External.group_version(),
            metadata: BTreeMap::new(),
            items,
        }
    }

    /// The same as a Table.
    pub(crate) fn table(&self, namespace: &str, now: Timestamp) -> serde_json::Value {
        let column = |name, format, description, priority| serde_json::json!({"name": name, "type": "string", "format": format, "description": description, "priority": priority});
        let rows: Vec<_> = self
            .items
            .iter()
            .map(|item| {
                let labels: Vec<_> = item.metric_labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
                let age = now.duration_since(item.timestamp).as_secs().max(0);
                serde_json::json!({
                    "cells": [item.metric_name, item.value, format!("{age}s"), labels.join(",")],
                    "object": {
                        "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
                        "metadata": {"name": item.metric_name, "namespace": namespace, "creationTimestamp": null},
                    },
                })
            })
            .collect();
        serde_json::json!({
            "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": {"resourceVersion": ""},
            "columnDefinitions": [
                column("Metric", "name", "Name of the metric", 0),
                column("Value", "", "Value as a quantity", 0),
                column("Age", "", "Time since the oldest sample in it was taken", 0),
                column("Labels", "", "What the value is about", 1),
            ],
            "rows": rows,
        })
    }
}

fn whole_seconds<S: serde::Serializer>(
    timestamp: &Timestamp,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{timestamp:.0}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list() -> ExternalMetricValueList {
        ExternalMetricValueList::new(vec![ExternalMetricValue {
            metric_name: "coppice_requests_waiting".into(),
            metric_labels: BTreeMap::from([("model".into(), "qwen3".into())]),
            timestamp: "2026-08-20T10:15:30.9Z".parse().unwrap(),
            window: None,
            value: "12500m".into(),
        }])
    }

    #[test]
    fn the_list_has_the_fields_that_clients_read() {
        let expected = serde_json::json!({
            "kind": "ExternalMetricValueList", "apiVersion": "external.metrics.k8s.io/v1beta1", "metadata": {},
            "items": [{
                "metricName": "coppice_requests_waiting", "metricLabels": {"model": "qwen3"},
                "timestamp": "2026-08-20T10:15:30Z", "value": "12500m",
            }],
        });
        assert_eq!(serde_json::to_value(list()).unwrap(), expected);
    }

    #[test]
    fn the_window_is_called_window_and_in_seconds() {
        let mut list = list();
        list.items[0].window = Some(60);
        assert_eq!(
            serde_json::to_value(list).unwrap()["items"][0]["window"],
            60
        );
    }

    #[test]
    fn the_table_shows_value_age_and_labels() {
        let table = list().table("serving", "2026-08-20T10:15:34Z".parse().unwrap());
        assert_eq!(
            table["rows"][0]["cells"],
            serde_json::json!(["coppice_requests_waiting", "12500m", "3s", "model=qwen3"])
        );
        assert_eq!(table["columnDefinitions"].as_array().unwrap().len(), 4);
    }
}
