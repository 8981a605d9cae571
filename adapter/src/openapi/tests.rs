use std::collections::BTreeSet;

use jiff::Timestamp;

use super::*;
use crate::wire::{ExternalMetricValue, ExternalMetricValueList};

fn documents(groups: Groups) -> (Value, Value, Vec<Value>) {
    let Documents { v2, v3_index, v3 } =
        Documents::new(groups, &["one".to_owned(), "two".to_owned()]);
    let read = |text: &str| serde_json::from_str(text).unwrap();
    let v3 = v3.iter().map(|(_, text)| read(text)).collect();
    (read(&v2), read(&v3_index), v3)
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
    let (v2, _, v3) = documents(Groups::Both);
    let external = "/apis/external.metrics.k8s.io/v1beta1/namespaces/{namespace}/one";
    for document in [&v2, &v3[0]] {
        let paths = document["paths"].as_object().unwrap();
        assert_eq!(
            paths[external]["get"]["x-kubernetes-group-version-kind"]["kind"],
            "ExternalMetricValueList"
        );
    }
    for (document, paths) in [(&v2, 6), (&v3[0], 2), (&v3[1], 2), (&v3[2], 2)] {
        let mut found = Vec::new();
        references(document, &mut found);
        assert!(found.len() >= 3, "{found:?}");
        for reference in found {
            let pointer = reference.strip_prefix('#').unwrap();
            assert!(document.pointer(pointer).is_some(), "{reference}");
        }
        assert_eq!(document["paths"].as_object().unwrap().len(), paths);
    }
}

/// A path's parameters are all declared, or a strict reader refuses the document.
#[test]
fn every_parameter_of_a_path_is_declared() {
    let (v2, _, v3) = documents(Groups::Both);
    for document in v3.iter().chain([&v2]) {
        for (path, item) in document["paths"].as_object().unwrap() {
            let in_path: BTreeSet<&str> = path
                .split('/')
                .filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
                .collect();
            let declared: BTreeSet<&str> = item["parameters"]
                .as_array()
                .unwrap()
                .iter()
                .filter(|parameter| parameter["in"] == "path")
                .map(|parameter| parameter["name"].as_str().unwrap())
                .collect();
            assert_eq!(in_path, declared, "{path}");
        }
    }
}

#[test]
fn the_index_leads_to_each_document_by_its_content() {
    let (_, index, _) = documents(Groups::Both);
    let places = index["paths"].as_object().unwrap();
    assert_eq!(places.len(), 3);
    for (place, entry) in places {
        let url = entry["serverRelativeURL"].as_str().unwrap();
        let (path, hash) = url.split_once("?hash=").unwrap();
        assert_eq!(path, format!("/openapi/v3/{place}"));
        assert_eq!(hash.len(), 64);
    }
    let other: Value = serde_json::from_str(&Documents::new(Groups::Both, &[]).v3_index).unwrap();
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
    for dialect in [Dialect::V2, Dialect::V3] {
        check(
            dialect,
            external::PACKAGE,
            &external::schemas(dialect),
            Api::External,
            &list,
        );
        for api in [Api::CustomV1Beta1, Api::CustomV1Beta2] {
            check(
                dialect,
                &custom::package(api),
                &custom::schemas(api, dialect),
                api,
                &crate::custom::wire::tests::full(api),
            );
        }
    }
}

fn check(dialect: Dialect, package: &str, schemas: &Map<String, Value>, api: Api, list: &Value) {
    let schema = dialect.reference(package, api.list_kind());
    fits(schemas, &schema, list);
}

/// Follows references. Fields that hold a map, or a selector of which the example has one half, are not looked into.
fn fits(schemas: &Map<String, Value>, schema: &Value, sent: &Value) {
    let schema = match schema["$ref"].as_str() {
        Some(reference) => &schemas[reference.rsplit('/').next().unwrap()],
        None => schema,
    };
    if let Some(kind) = schema["type"].as_str() {
        let is = match sent {
            Value::String(_) => "string",
            Value::Number(_) => "integer",
            Value::Array(_) => "array",
            _ => "object",
        };
        assert_eq!(kind, is, "{sent}");
    }
    for item in sent.as_array().into_iter().flatten() {
        fits(schemas, &schema["items"], item);
    }
    let (Some(known), Some(sent)) = (schema["properties"].as_object(), sent.as_object()) else {
        return;
    };
    let names = |map: &Map<String, Value>| map.keys().cloned().collect::<BTreeSet<_>>();
    if known.contains_key("matchLabels") {
        assert!(names(sent).is_subset(&names(known)));
    } else {
        assert_eq!(names(sent), names(known));
    }
    for required in schema["required"].as_array().into_iter().flatten() {
        assert!(sent.contains_key(required.as_str().unwrap()), "{required}");
    }
    for (field, value) in sent {
        fits(schemas, &known[field], value);
    }
}
