//! What the API looks like, as OpenAPI 2 and 3: for `kubectl explain`, and for clients that read schemas.
//!
//! The aggregation layer asks for both once a minute and logs an error for every answer other than the documents or a 404. All metrics
//! answer with the same object, so both documents hold the same schemas; only their frames differ.

use coppice_runtime::crypto;
use serde_json::{Map, Value, json};

use crate::route::{GROUP, VERSION};
use crate::wire::ExternalMetricValueList;

/// The three documents, as text.
#[derive(Debug)]
pub(crate) struct Documents {
    /// `/openapi/v2`.
    pub v2: String,
    /// `/openapi/v3`: which documents there are.
    pub v3_index: String,
    /// `/openapi/v3/apis/GROUP/VERSION`.
    pub v3: String,
}

/// Prefix of our schemas; other servers of this group use the same.
const PACKAGE: &str = "io.k8s.metrics.pkg.apis.external.v1beta1";

impl Documents {
    /// Describes the metrics of these names.
    pub(crate) fn new(names: &[String]) -> Self {
        let info = json!({"title": env!("CARGO_PKG_NAME"), "version": env!("CARGO_PKG_VERSION")});
        let v2 = json!({
            "swagger": "2.0",
            "info": info,
            "paths": paths(names, Dialect::V2),
            "definitions": schemas(Dialect::V2),
        });
        let v3 = json!({
            "openapi": "3.0.0",
            "info": info,
            "paths": paths(names, Dialect::V3),
            "components": {"schemas": schemas(Dialect::V3)},
        })
        .to_string();
        let place = format!("apis/{GROUP}/{VERSION}");
        // The hash makes the address one of this content, so that clients may keep what they read there.
        let hash = crypto::hex(&crypto::sha256(&[v3.as_bytes()])).to_ascii_uppercase();
        let url = format!("/openapi/v3/{place}?hash={hash}");
        let v3_index = json!({"paths": {place: {"serverRelativeURL": url}}});
        Self {
            v2: v2.to_string(),
            v3_index: v3_index.to_string(),
            v3,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Dialect {
    V2,
    V3,
}

impl Dialect {
    fn reference(self, schema: &str) -> Value {
        let place = match self {
            Self::V2 => "#/definitions/",
            Self::V3 => "#/components/schemas/",
        };
        json!({"$ref": format!("{place}{PACKAGE}.{schema}")})
    }

    fn parameter(self, name: &str, place: &str, description: &str) -> Value {
        let mut parameter = json!({"name": name, "in": place, "description": description, "required": place == "path"});
        match self {
            Self::V2 => parameter["type"] = json!("string"),
            Self::V3 => parameter["schema"] = json!({"type": "string"}),
        }
        parameter
    }

    fn answer(self, schema: &str) -> Value {
        let reference = self.reference(schema);
        match self {
            Self::V2 => json!({"description": "OK", "schema": reference}),
            Self::V3 => {
                json!({"description": "OK", "content": {"application/json": {"schema": reference}}})
            }
        }
    }
}

/// The kind that every metric answers with.
fn kind() -> Value {
    json!({"group": GROUP, "version": VERSION, "kind": ExternalMetricValueList::KIND})
}

fn paths(names: &[String], dialect: Dialect) -> Map<String, Value> {
    let path = |name: &String| {
        let mut operation = json!({
            "operationId": format!("read_{name}"),
            "description": format!("reads the metric {name}"),
            "tags": ["externalMetrics_v1beta1"],
            "responses": {"200": dialect.answer("ExternalMetricValueList")},
            "x-kubernetes-action": "get",
            "x-kubernetes-group-version-kind": kind(),
        });
        if dialect == Dialect::V2 {
            operation["produces"] = json!(["application/json"]);
            operation["schemes"] = json!(["https"]);
        }
        let parameters = [
            dialect.parameter("namespace", "path", "namespace of the measured endpoints"),
            dialect.parameter(
                "labelSelector",
                "query",
                "selects endpoints by the labels of their pods, and by model, model_id and role",
            ),
        ];
        (
            format!("/apis/{GROUP}/{VERSION}/namespaces/{{namespace}}/{name}"),
            json!({"get": operation, "parameters": parameters}),
        )
    };
    names.iter().map(path).collect()
}

fn schemas(dialect: Dialect) -> Value {
    let list = json!({
        "description": "The values of a metric; the HPA adds them up.",
        "type": "object",
        "required": ["items"],
        "properties": {
            "apiVersion": {"description": "The group and version of this object.", "type": "string"},
            "kind": {"description": "The kind of this object.", "type": "string"},
            "metadata": {"description": "Metadata of a list; always empty.", "type": "object"},
            "items": {
                "description": "The values; of this server always one.",
                "type": "array",
                "items": dialect.reference("ExternalMetricValue"),
            },
        },
        "x-kubernetes-group-version-kind": [kind()],
    });
    let value = json!({
        "description": "A metric's value at one moment.",
        "type": "object",
        "required": ["metricName", "metricLabels", "timestamp", "value"],
        "properties": {
            "metricName": {"description": "The name as it was asked for.", "type": "string"},
            "metricLabels": {
                "description": "What the value is about, such as the namespace and the model.",
                "type": "object",
                "additionalProperties": {"type": "string"},
            },
            "timestamp": {"description": "When the oldest sample in the value was taken.", "type": "string", "format": "date-time"},
            "window": {
                "description": "Seconds that the value looks back; absent for a snapshot.",
                "type": "integer",
                "format": "int64",
            },
            "value": {"description": "The value as a quantity, such as 12500m for 12.5.", "type": "string"},
        },
    });
    json!({format!("{PACKAGE}.ExternalMetricValueList"): list, format!("{PACKAGE}.ExternalMetricValue"): value})
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use jiff::Timestamp;

    use super::*;
    use crate::wire::ExternalMetricValue;

    fn documents() -> [Value; 3] {
        let Documents { v2, v3_index, v3 } = Documents::new(&["one".to_owned(), "two".to_owned()]);
        [v2, v3_index, v3].map(|text| serde_json::from_str(&text).unwrap())
    }

    fn references<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
        match value {
            Value::Object(fields) => {
                found.extend(fields.get("$ref").and_then(Value::as_str));
                fields.values().for_each(|field| references(field, found));
            }
            Value::Array(items) => items.iter().for_each(|item| references(item, found)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }

    #[test]
    fn every_reference_leads_to_a_schema_and_every_metric_has_a_path() {
        let [v2, _, v3] = documents();
        for document in [v2, v3] {
            let mut found = Vec::new();
            references(&document, &mut found);
            assert!(found.len() >= 3, "{found:?}");
            for reference in found {
                let pointer = reference.strip_prefix('#').unwrap();
                assert!(document.pointer(pointer).is_some(), "{reference}");
            }
            let paths = document["paths"].as_object().unwrap();
            assert_eq!(paths.len(), 2);
            let path = "/apis/external.metrics.k8s.io/v1beta1/namespaces/{namespace}/one";
            assert_eq!(
                paths[path]["get"]["x-kubernetes-group-version-kind"]["kind"],
                "ExternalMetricValueList"
            );
        }
    }

    #[test]
    fn the_index_leads_to_the_document_by_its_content() {
        let [_, index, _] = documents();
        let url = index["paths"]["apis/external.metrics.k8s.io/v1beta1"]["serverRelativeURL"]
            .as_str()
            .unwrap();
        let (path, hash) = url.split_once("?hash=").unwrap();
        assert_eq!(path, "/openapi/v3/apis/external.metrics.k8s.io/v1beta1");
        assert_eq!(hash.len(), 64);
        let other: Value = serde_json::from_str(&Documents::new(&[]).v3_index).unwrap();
        assert_ne!(other, index, "other content, other address");
    }

    /// What is sent has exactly the fields that the schemas know, and all that they require.
    #[test]
    fn the_schemas_describe_what_is_sent() {
        let item = ExternalMetricValue {
            metric_name: "one".into(),
            metric_labels: std::iter::once(("model".to_owned(), "m".to_owned())).collect(),
            timestamp: Timestamp::UNIX_EPOCH,
            window: Some(60),
            value: "1".into(),
        };
        let list = serde_json::to_value(ExternalMetricValueList::new(vec![item])).unwrap();
        for schemas in [schemas(Dialect::V2), schemas(Dialect::V3)] {
            for (name, sent) in [
                ("ExternalMetricValueList", &list),
                ("ExternalMetricValue", &list["items"][0]),
            ] {
                let schema = &schemas[format!("{PACKAGE}.{name}")];
                let sent = sent.as_object().unwrap();
                let known = schema["properties"].as_object().unwrap();
                assert_eq!(
                    sent.keys().collect::<BTreeSet<_>>(),
                    known.keys().collect::<BTreeSet<_>>()
                );
                for (field, value) in sent {
                    let wanted = match value {
                        Value::String(_) => "string",
                        Value::Number(_) => "integer",
                        Value::Array(_) => "array",
                        _ => "object",
                    };
                    assert_eq!(known[field]["type"], wanted, "{field}");
                }
                for required in schema["required"].as_array().unwrap() {
                    assert!(sent.contains_key(required.as_str().unwrap()), "{required}");
                }
            }
        }
    }
}
