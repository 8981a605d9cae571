//! What the APIs look like, as OpenAPI 2 and 3: for `kubectl explain`, and for clients that read schemas.
//!
//! The aggregation layer asks for both once a minute and logs an error for every answer other than the documents or a 404. The documents
//! of both dialects hold the same paths and schemas; only their frames differ.

mod custom;
mod external;

use coppice_runtime::crypto;
use serde_json::{Map, Value, json};

use crate::groups::{Api, Groups};

/// The documents, as text.
#[derive(Debug)]
pub(crate) struct Documents {
    /// `/openapi/v2`: everything in one.
    pub v2: String,
    /// `/openapi/v3`: which documents there are.
    pub v3_index: String,
    /// `/openapi/v3/apis/GROUP/VERSION`.
    pub v3: Vec<(Api, String)>,
}

impl Documents {
    /// Describes the groups, and external metrics of these names.
    pub(crate) fn new(groups: Groups, names: &[String]) -> Self {
        let info = json!({"title": env!("CARGO_PKG_NAME"), "version": env!("CARGO_PKG_VERSION")});
        let mut all = Described::default();
        let (mut v3, mut index) = (Vec::new(), Map::new());
        for api in groups.apis() {
            let of_v2 = Described::of(api, names, Dialect::V2);
            all.paths.extend(of_v2.paths);
            all.schemas.extend(of_v2.schemas);
            let Described { paths, schemas } = Described::of(api, names, Dialect::V3);
            let text = json!({
                "openapi": "3.0.0", "info": info, "paths": paths, "components": {"schemas": schemas},
            })
            .to_string();
            // The hash makes the address one of this content, so that clients may keep what they read there.
            let hash = crypto::hex(&crypto::sha256(&[text.as_bytes()])).to_ascii_uppercase();
            let place = api.path();
            let url = format!("/openapi/v3{place}?hash={hash}");
            index.insert(
                place.trim_start_matches('/').to_owned(),
                json!({"serverRelativeURL": url}),
            );
            v3.push((api, text));
        }
        let v2 =
            json!({"swagger": "2.0", "info": info, "paths": all.paths, "definitions": all.schemas});
        Self {
            v2: v2.to_string(),
            v3_index: json!({"paths": index}).to_string(),
            v3,
        }
    }
}

/// What there is to say about one group and version.
#[derive(Debug, Default)]
struct Described {
    paths: Map<String, Value>,
    schemas: Map<String, Value>,
}

impl Described {
    fn of(api: Api, names: &[String], dialect: Dialect) -> Self {
        match api {
            Api::External => Self {
                paths: external::paths(names, dialect),
                schemas: external::schemas(dialect),
            },
            Api::CustomV1Beta2 | Api::CustomV1Beta1 => Self {
                paths: custom::paths(api, dialect),
                schemas: custom::schemas(api, dialect),
            },
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Dialect {
    V2,
    V3,
}

impl Dialect {
    fn reference(self, package: &str, schema: &str) -> Value {
        let place = match self {
            Self::V2 => "#/definitions/",
            Self::V3 => "#/components/schemas/",
        };
        json!({"$ref": format!("{place}{package}.{schema}")})
    }

    fn parameter(self, name: &str, place: &str, description: &str) -> Value {
        let mut parameter = json!({"name": name, "in": place, "description": description, "required": place == "path"});
        match self {
            Self::V2 => parameter["type"] = json!("string"),
            Self::V3 => parameter["schema"] = json!({"type": "string"}),
        }
        parameter
    }

    /// A GET that answers with this schema.
    fn operation(self, id: &str, description: &str, tag: &str, answer: &Value) -> Value {
        let ok = match self {
            Self::V2 => json!({"description": "OK", "schema": answer}),
            Self::V3 => {
                json!({"description": "OK", "content": {"application/json": {"schema": answer}}})
            }
        };
        let mut operation = json!({
            "operationId": id, "description": description, "tags": [tag], "responses": {"200": ok},
        });
        if self == Self::V2 {
            operation["produces"] = json!(["application/json"]);
            operation["schemes"] = json!(["https"]);
        }
        operation
    }
}

/// The kind that metrics are answered with.
fn kind(api: Api) -> Value {
    json!({"group": api.group(), "version": api.version(), "kind": api.list_kind()})
}

/// The schema of a list of values.
fn list(api: Api, item: &Value, items: &str) -> Value {
    json!({
        "description": "The values of a metric.",
        "type": "object",
        "required": ["items"],
        "properties": {
            "apiVersion": text("The group and version of this object."),
            "kind": text("The kind of this object."),
            "metadata": {"description": "Metadata of a list; always empty.", "type": "object"},
            "items": {"description": items, "type": "array", "items": item},
        },
        "x-kubernetes-group-version-kind": [kind(api)],
    })
}

fn text(description: &str) -> Value {
    json!({"description": description, "type": "string"})
}

fn timestamp() -> Value {
    json!({"description": "When the oldest sample in the value was taken.", "type": "string", "format": "date-time"})
}

fn window() -> Value {
    json!({
        "description": "Seconds that the value looks back; absent for a snapshot.", "type": "integer", "format": "int64",
    })
}

fn quantity() -> Value {
    text("The value as a quantity, such as 12500m for 12.5.")
}

#[cfg(test)]
mod tests;
