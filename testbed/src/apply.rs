//! Applying manifests as `kubectl apply --server-side` does.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kube::api::{DynamicObject, Patch, PatchParams};
use kube::discovery::{ApiCapabilities, ApiResource, Scope};
use kube::{Api, Client, Discovery, ResourceExt};

use crate::wait;

/// A manifest could not be applied.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The text is not a list of Kubernetes objects.
    #[error("cannot read the manifest: {0}")]
    Read(String),
    /// The server does not serve a kind, even after a while.
    #[error(
        "cannot find the kind of {object} on the server; is its CustomResourceDefinition applied?"
    )]
    Kind {
        /// Kind and name.
        object: String,
        /// What discovery said last.
        #[source]
        source: wait::WaitError,
    },
    /// The server refused an object. The message is the server's own.
    #[error("{object} is refused: {message}")]
    Refused {
        /// Kind and name.
        object: String,
        /// The server's words.
        message: String,
        /// The HTTP status; 0 when there was no answer.
        code: u16,
    },
}

/// The manifests (`*.yaml`) in a folder and all below it, in the order of their paths.
///
/// # Errors
///
/// A folder cannot be read.
pub fn manifests_below(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path
                .extension()
                .is_some_and(|extension| extension == "yaml")
            {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

/// The objects of a YAML text with any number of documents; empty documents are left out, `List`s are opened.
///
/// # Errors
///
/// The text is not YAML, or a document is not an object with a kind.
pub fn parse_yaml(yaml: &str) -> Result<Vec<DynamicObject>, ApplyError> {
    let documents: Vec<serde_json::Value> =
        serde_saphyr::from_multiple(yaml).map_err(|e| ApplyError::Read(e.to_string()))?;
    let mut objects = Vec::new();
    for document in documents {
        let items = match document["kind"].as_str() {
            _ if document.is_null() => continue,
            Some("List") => document["items"].as_array().cloned().unwrap_or_default(),
            _ => vec![document],
        };
        for item in items {
            let object: DynamicObject =
                serde_json::from_value(item).map_err(|e| ApplyError::Read(e.to_string()))?;
            if object
                .types
                .as_ref()
                .is_none_or(|types| types.kind.is_empty() || types.api_version.is_empty())
            {
                return Err(ApplyError::Read(format!(
                    "{:?} has no apiVersion or no kind",
                    object.metadata.name
                )));
            }
            objects.push(object);
        }
    }
    Ok(objects)
}

/// Applies every object of `yaml`, in its order, with server-side apply and force. An object without a namespace, of a
/// namespaced kind, goes to `namespace`. A kind that is not served yet is waited for (10 s), so that definitions and
/// objects may stand in one text.
///
/// # Errors
///
/// See [`ApplyError`]; objects before the failing one stay applied.
pub async fn apply(
    client: &Client,
    yaml: &str,
    namespace: &str,
) -> Result<Vec<DynamicObject>, ApplyError> {
    let mut discovery: Option<Discovery> = None;
    let mut applied = Vec::new();
    for object in parse_yaml(yaml)? {
        let known = discovery
            .as_ref()
            .and_then(|discovery| discovery.resolve_object(&object));
        let (resource, capabilities) = if let Some(known) = known {
            known
        } else {
            let (fresh, found) = discover(client, &object).await?;
            discovery = Some(fresh);
            found
        };
        applied.push(apply_one(client, object, &resource, &capabilities, namespace).await?);
    }
    Ok(applied)
}

async fn discover(
    client: &Client,
    object: &DynamicObject,
) -> Result<(Discovery, (ApiResource, ApiCapabilities)), ApplyError> {
    wait::until(Duration::from_secs(10), "the kind", || async {
        let discovery = Discovery::new(client.clone())
            .run_aggregated()
            .await
            .map_err(|e| e.to_string())?;
        let found = discovery.resolve_object(object).ok_or("not served")?;
        Ok::<_, String>((discovery, found))
    })
    .await
    .map_err(|source| ApplyError::Kind {
        object: describe(object),
        source,
    })
}

async fn apply_one(
    client: &Client,
    mut object: DynamicObject,
    resource: &ApiResource,
    capabilities: &ApiCapabilities,
    namespace: &str,
) -> Result<DynamicObject, ApplyError> {
    let api: Api<DynamicObject> = match capabilities.scope {
        Scope::Cluster => Api::all_with(client.clone(), resource),
        Scope::Namespaced => {
            let namespace = object
                .metadata
                .namespace
                .get_or_insert_with(|| namespace.to_owned());
            Api::namespaced_with(client.clone(), namespace, resource)
        }
    };
    let parameters = PatchParams::apply("coppice-testbed").force();
    api.patch(&object.name_any(), &parameters, &Patch::Apply(&object))
        .await
        .map_err(|e| {
            let (message, code) = match e {
                kube::Error::Api(status) => (status.message.clone(), status.code),
                other => (other.to_string(), 0),
            };
            ApplyError::Refused {
                object: describe(&object),
                message,
                code,
            }
        })
}

fn describe(object: &DynamicObject) -> String {
    let kind = object
        .types
        .as_ref()
        .map_or("object", |types| types.kind.as_str());
    format!("{kind} {}", object.name_any())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_and_lists_become_objects() {
        let yaml = "---\n# nothing here\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {x: \"1\"}\n---\n\
                    apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Secret, metadata: {name: b}}\n";
        let objects = parse_yaml(yaml).unwrap();
        let names: Vec<_> = objects.iter().map(describe).collect();
        assert_eq!(names, ["ConfigMap a", "Secret b"]);
        assert_eq!(objects[0].data["data"]["x"], "1");
        assert!(parse_yaml("metadata: {name: c}").is_err());
    }
}
