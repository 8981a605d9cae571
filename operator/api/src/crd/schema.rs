use super::tables::{DEFAULTS, FOREIGN, LIST_MAPS, REQUIRED_COUNTERS};
use crate::gang::PodGangPhase;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps,
};
use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value, json};

/// A domain of a topology, where one may be named.
pub(crate) fn domain_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "minLength": 1, "maxLength": 63, "pattern": "^[a-z][a-z0-9-]*$"})
}

/// A domain of a topology, where one must be named.
pub(crate) fn required_domain_schema(generator: &mut SchemaGenerator) -> Schema {
    domain_schema(generator)
}

/// Key of a node label: a name of at most 63 characters behind an optional prefix.
///
/// Upstream bounds the whole key by 63 and so refuses keys that Kubernetes allows; here the prefix has its own 253.
pub(crate) fn label_key_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "string",
        "minLength": 1,
        "maxLength": 317,
        "pattern": "^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]/)?([A-Za-z0-9][-A-Za-z0-9_.]{0,61})?[A-Za-z0-9]$",
    })
}

/// A gang's phase, where only the five words of upstream are allowed.
pub(crate) fn phase_schema(_: &mut SchemaGenerator) -> Schema {
    let phases = [
        PodGangPhase::Pending,
        PodGangPhase::Starting,
        PodGangPhase::Running,
        PodGangPhase::Failed,
        PodGangPhase::Succeeded,
    ];
    let words: Vec<&str> = phases.iter().map(PodGangPhase::as_str).collect();
    json_schema!({"type": "string", "enum": words})
}

/// Adds to a derived definition what the derive cannot say.
pub(super) fn finish(mut definition: CustomResourceDefinition) -> CustomResourceDefinition {
    for version in &mut definition.spec.versions {
        let schema = version
            .schema
            .as_mut()
            .and_then(|validation| validation.open_api_v3_schema.as_mut());
        if let Some(schema) = schema {
            *schema = finish_schema(schema);
        }
    }
    definition
}

fn finish_schema(schema: &JSONSchemaProps) -> JSONSchemaProps {
    let mut value = serde_json::to_value(schema).expect("a schema is plain data");
    let mut path = Vec::new();
    visit(&mut value, &mut path, false);
    serde_json::from_value(value).expect("the changes keep a schema a schema")
}

/// Walks a schema. `path` holds the names of properties from the root; `foreign` is true below a Kubernetes type.
fn visit(schema: &mut Value, path: &mut Vec<String>, foreign: bool) {
    let Some(object) = schema.as_object_mut() else {
        return;
    };
    change(object, path, foreign);
    if let Some(Value::Object(properties)) = object.get_mut("properties") {
        for (name, property) in properties {
            let is_foreign = foreign || FOREIGN.contains(&name.as_str());
            path.push(name.clone());
            visit(property, path, is_foreign);
            path.pop();
        }
    }
    for inner in ["items", "additionalProperties"] {
        if let Some(child) = object.get_mut(inner) {
            visit(child, path, foreign);
        }
    }
}

fn change(object: &mut Map<String, Value>, path: &[String], foreign: bool) {
    // A null is the same as an absent field, as in upstream's schemas: the server drops it and applies the default.
    object.remove("nullable");
    object.remove("title");
    if foreign {
        object.remove("description");
    }
    if let Some(Value::String(text)) = object.get_mut("description") {
        // Line ends of the source are not those of the text.
        *text = text.split('\n').collect::<Vec<_>>().join(" ");
    }
    if object
        .get("format")
        .is_some_and(|format| format == "uint32" || format == "uint64")
    {
        object.remove("format");
    }
    if object.get("type").is_some_and(|kind| kind == "array") {
        describe_list(object, path);
    } else if let Some((_, default)) = DEFAULTS
        .iter()
        .find(|(pattern, _)| ends_with(path, pattern))
    {
        let value = serde_json::from_str(default).expect("the table holds JSON");
        object.insert("default".to_owned(), value);
    }
    match path.last().map(String::as_str) {
        Some("metadata") if foreign => replace_metadata(object),
        Some("conditions") => describe_condition(object),
        Some("status") if !foreign && path.len() == 1 => require_counters(object),
        Some(_) | None => {}
    }
}

fn describe_list(object: &mut Map<String, Value>, path: &[String]) {
    if let Some((_, keys)) = LIST_MAPS
        .iter()
        .find(|(pattern, _)| ends_with(path, pattern))
    {
        object.insert("x-kubernetes-list-type".to_owned(), json!("map"));
        object.insert("x-kubernetes-list-map-keys".to_owned(), json!(keys));
    } else {
        object.insert("x-kubernetes-list-type".to_owned(), json!("atomic"));
    }
}

/// Metadata inside a template: only labels and annotations mean anything there.
fn replace_metadata(object: &mut Map<String, Value>) {
    let map = json!({"type": "object", "additionalProperties": {"type": "string"}});
    *object = Map::from_iter([
        ("type".to_owned(), json!("object")),
        (
            "properties".to_owned(),
            json!({"labels": map, "annotations": map}),
        ),
    ]);
}

/// Bounds of a condition, as the Kubernetes API conventions have them.
fn describe_condition(object: &mut Map<String, Value>) {
    let Some(properties) = object
        .get_mut("items")
        .and_then(|items| items.get_mut("properties"))
    else {
        return;
    };
    let qualified = concat!(
        r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?",
        r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$"
    );
    properties["type"] = json!({"type": "string", "maxLength": 316, "pattern": qualified});
    properties["status"] = json!({"type": "string", "enum": ["True", "False", "Unknown"]});
    let reason = r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$";
    properties["reason"] =
        json!({"type": "string", "minLength": 1, "maxLength": 1024, "pattern": reason});
    properties["message"] = json!({"type": "string", "maxLength": 32768});
    properties["lastTransitionTime"] = json!({"type": "string", "format": "date-time"});
    properties["observedGeneration"] = json!({"type": "integer", "format": "int64", "minimum": 0});
    if let Some(items) = object.get_mut("items").and_then(Value::as_object_mut) {
        items.remove("description");
        items.insert(
            "required".to_owned(),
            json!(["lastTransitionTime", "message", "reason", "status", "type"]),
        );
    }
}

/// Upstream lists its counters as required, with a default of 0.
fn require_counters(object: &mut Map<String, Value>) {
    let Some(Value::Object(properties)) = object.get("properties") else {
        return;
    };
    let counters = REQUIRED_COUNTERS
        .iter()
        .filter(|name| properties.contains_key(**name))
        .map(|name| json!(name));
    let mut required: Vec<Value> = counters.collect();
    if let Some(Value::Array(existing)) = object.get("required") {
        required.extend(existing.iter().cloned());
    }
    if !required.is_empty() {
        required.sort_by_key(|name| name.as_str().map(str::to_owned));
        required.dedup();
        object.insert("required".to_owned(), Value::Array(required));
    }
}

fn ends_with(path: &[String], pattern: &[&str]) -> bool {
    path.len() >= pattern.len()
        && path[path.len() - pattern.len()..]
            .iter()
            .zip(pattern)
            .all(|(a, b)| a == b)
}
