//! Writes to the API server. Everything the operator changes goes through a [`Writer`].

pub(crate) mod limit;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use coppice_operator_api::names;
use coppice_operator_plan::ids::PodUid;
use coppice_runtime::lease::Tenure;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{
    DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions, PropagationPolicy,
};
use kube::core::{NamespaceResourceScope, Request, Resource};
use kube::{Client, Error};
use serde::Serialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::Value;

use self::limit::{Answer, Limit};
use crate::canonical;
use crate::index::key::Kind;
use crate::metrics::Metrics;

/// Owner of the fields that the operator writes.
pub(crate) const FIELD_MANAGER: &str = "coppice-operator";
/// On objects the operator writes: digest of what it wrote, by which it sees after a restart that nothing is to be done, and
/// also when a field it does not want any more has to go.
pub(crate) const FINGERPRINT: &str = "coppice.dev/applied";

/// A write that was not done.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WriteError {
    /// This process is not the leader (any more).
    #[error("not the leader")]
    NotLeader,
    /// Somebody else changed the object in between.
    #[error("{kind} {name} was changed by somebody else")]
    Conflict {
        /// Kind of the object.
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// An object of that name exists.
    #[error("{kind} {name} exists already")]
    Exists {
        /// Kind of the object.
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// An object of that name belongs to somebody else.
    #[error("{kind} {name} exists and belongs to {owner}: rename or remove one of them")]
    Taken {
        /// Kind of the object.
        kind: &'static str,
        /// Its name.
        name: String,
        /// Who owns it.
        owner: String,
    },
    /// Something that the object needs is not there.
    #[error("{kind} {name} cannot be made: {lack}")]
    Lacking {
        /// Kind of the object.
        kind: &'static str,
        /// Its name.
        name: String,
        /// What is missing, and what to do.
        lack: String,
    },
    /// The object is not there.
    #[error("{kind} {name} does not exist")]
    Missing {
        /// Kind of the object.
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// The server refuses the object as it is, or the operator may not write it.
    #[error("{kind} {name} was refused: {message}")]
    Refused {
        /// Kind of the object.
        kind: &'static str,
        /// Its name.
        name: String,
        /// The server's words.
        message: String,
    },
    /// The server did not answer, or was too busy.
    #[error("cannot write {kind} {name}")]
    Server {
        /// Kind of the object.
        kind: &'static str,
        /// Its name.
        name: String,
        /// What happened.
        #[source]
        source: Box<Error>,
    },
}

impl WriteError {
    /// Stable word for metric labels and logs.
    pub(crate) fn category(&self) -> &'static str {
        match self {
            Self::NotLeader => "NotLeader",
            Self::Conflict { .. } => "Conflict",
            Self::Exists { .. } => "AlreadyExists",
            Self::Taken { .. } => "NameConflict",
            Self::Lacking { .. } => "Lacking",
            Self::Missing { .. } => "NotFound",
            Self::Refused { .. } => "Refused",
            Self::Server { .. } => "ServerError",
        }
    }

    fn of(error: Error, kind: Kind, name: &str) -> Self {
        let (kind, name) = (kind.as_str(), name.to_owned());
        let Error::Api(status) = error else {
            return Self::Server {
                kind,
                name,
                source: Box::new(error),
            };
        };
        match (status.code, status.reason.as_str()) {
            (404, _) => Self::Missing { kind, name },
            (409, "AlreadyExists") => Self::Exists { kind, name },
            (409, _) => Self::Conflict { kind, name },
            (400 | 403 | 405 | 413 | 422, _) => Self::Refused {
                kind,
                name,
                message: status.message.clone(),
            },
            _ => Self::Server {
                kind,
                name,
                source: Box::new(Error::Api(status)),
            },
        }
    }
}

/// Writes, bounded and only while this process leads.
#[derive(Clone)]
pub(crate) struct Writer {
    client: Client,
    limit: Arc<Limit>,
    tenure: Tenure,
    metrics: Arc<Metrics>,
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer")
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}

/// An answer that carries nothing of interest.
type Nothing = IgnoredAny;

impl Writer {
    pub(crate) fn new(
        client: Client,
        limit: Arc<Limit>,
        tenure: Tenure,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            client,
            limit,
            tenure,
            metrics,
        }
    }

    /// Creates an object; the answer is read as `V`.
    pub(crate) async fn create<K, V>(&self, kind: Kind, object: &K) -> Result<V, WriteError>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Serialize,
        V: DeserializeOwned,
    {
        let (namespace, name) = identity(object.meta());
        let parameters = PostParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PostParams::default()
        };
        let body = serde_json::to_vec(object).expect("Kubernetes objects are plain data");
        let request = request::<K>(namespace).create(&parameters, body);
        self.send("create", kind, name, request).await
    }

    /// Reads one object.
    pub(crate) async fn get<V>(
        &self,
        kind: Kind,
        namespace: &str,
        name: &str,
    ) -> Result<V, WriteError>
    where
        V: Resource<DynamicType = (), Scope = NamespaceResourceScope> + DeserializeOwned,
    {
        let request = request::<V>(namespace).get(name, &kube::api::GetParams::default());
        self.send("get", kind, name, request).await
    }

    /// Server-side apply of the operator's fields. `is_ours`: an object known to be ours, whose fields are taken back from
    /// whoever changed them; otherwise an object of somebody else is left alone.
    pub(crate) async fn apply<K, V>(
        &self,
        kind: Kind,
        object: &K,
        is_ours: bool,
    ) -> Result<V, WriteError>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Serialize,
        V: DeserializeOwned,
    {
        let (namespace, name) = identity(object.meta());
        let mut parameters = PatchParams::apply(FIELD_MANAGER);
        parameters.force = is_ours;
        let body = typed::<K>(object);
        let request = request::<K>(namespace).patch(name, &parameters, &Patch::Apply(&body));
        let answer = self.send("apply", kind, name, request).await;
        match answer {
            // Whoever has the name owns fields that this would change, or is controlled by another owner.
            Err(WriteError::Conflict { kind, name }) if !is_ours => Err(WriteError::Taken {
                kind,
                name,
                owner: "another writer".to_owned(),
            }),
            Err(WriteError::Refused {
                kind,
                name,
                message,
            }) if message.contains("Only one reference can have") => Err(WriteError::Taken {
                kind,
                name,
                owner: "another owner".to_owned(),
            }),
            other => other,
        }
    }

    /// Server-side apply of a status.
    pub(crate) async fn apply_status<K, V>(
        &self,
        kind: Kind,
        namespace: &str,
        name: &str,
        status: &impl Serialize,
    ) -> Result<V, WriteError>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
        V: DeserializeOwned,
    {
        let body = serde_json::json!({
            "apiVersion": K::api_version(&()), "kind": K::kind(&()),
            "metadata": {"name": name}, "status": status,
        });
        let parameters = PatchParams::apply(FIELD_MANAGER).force();
        let request = request::<K>(namespace).patch_subresource(
            "status",
            name,
            &parameters,
            &Patch::Apply(&body),
        );
        self.send("status", kind, name, request).await
    }

    /// Merge patch.
    pub(crate) async fn merge<K, V>(
        &self,
        kind: Kind,
        namespace: &str,
        name: &str,
        patch: &Value,
    ) -> Result<V, WriteError>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
        V: DeserializeOwned,
    {
        let parameters = PatchParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let request = request::<K>(namespace).patch(name, &parameters, &Patch::Merge(patch));
        self.send("patch", kind, name, request).await
    }

    /// Takes the operator's gate off a pod; gates of others stay.
    pub(crate) async fn lift_gate<V: DeserializeOwned>(
        &self,
        namespace: &str,
        name: &str,
        uid: &PodUid,
    ) -> Result<V, WriteError> {
        let gate = serde_json::json!({"$patch": "delete", "name": names::SCHEDULING_GATE});
        // Another pod of the same name is not meant.
        let patch = serde_json::json!({"metadata": {"uid": uid.as_str()}, "spec": {"schedulingGates": [gate]}});
        let parameters = PatchParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let request = request::<k8s_openapi::api::core::v1::Pod>(namespace).patch(
            name,
            &parameters,
            &Patch::Strategic(&patch),
        );
        self.send("patch", Kind::Pod, name, request).await
    }

    /// Deletes an object with that uid; one that is gone, or is another one by now, counts as deleted.
    pub(crate) async fn delete<K>(
        &self,
        kind: Kind,
        namespace: &str,
        name: &str,
        uid: &str,
    ) -> Result<(), WriteError>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        let parameters = DeleteParams {
            preconditions: Some(Preconditions {
                uid: Some(uid.to_owned()),
                resource_version: None,
            }),
            propagation_policy: Some(PropagationPolicy::Background),
            ..DeleteParams::default()
        };
        let request = request::<K>(namespace).delete(name, &parameters);
        match self.send::<Nothing>("delete", kind, name, request).await {
            Ok(_) | Err(WriteError::Missing { .. } | WriteError::Conflict { .. }) => Ok(()),
            Err(other) => Err(other),
        }
    }

    /// Deletes a pod.
    pub(crate) async fn delete_pod(
        &self,
        namespace: &str,
        name: &str,
        uid: &PodUid,
    ) -> Result<(), WriteError> {
        self.delete::<k8s_openapi::api::core::v1::Pod>(Kind::Pod, namespace, name, uid.as_str())
            .await
    }

    /// Deletes a pod if it is still in the version that the decision was made about; otherwise that is a conflict, and the
    /// decision has to be made anew. A pod that is gone counts as deleted.
    pub(crate) async fn delete_unchanged_pod(
        &self,
        namespace: &str,
        name: &str,
        uid: &PodUid,
        resource: u64,
    ) -> Result<(), WriteError> {
        let parameters = DeleteParams {
            preconditions: Some(Preconditions {
                uid: Some(uid.as_str().to_owned()),
                resource_version: Some(resource.to_string()),
            }),
            ..DeleteParams::default()
        };
        let request =
            request::<k8s_openapi::api::core::v1::Pod>(namespace).delete(name, &parameters);
        match self
            .send::<Nothing>("delete", Kind::Pod, name, request)
            .await
        {
            Ok(_) | Err(WriteError::Missing { .. }) => Ok(()),
            Err(other) => Err(other),
        }
    }

    /// Deletes everything of a kind that the label selector matches.
    pub(crate) async fn delete_collection<K>(
        &self,
        kind: Kind,
        namespace: &str,
        selector: &str,
    ) -> Result<(), WriteError>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        let parameters = DeleteParams {
            propagation_policy: Some(PropagationPolicy::Background),
            ..DeleteParams::default()
        };
        let request = request::<K>(namespace)
            .delete_collection(&parameters, &ListParams::default().labels(selector));
        self.send::<Nothing>("deletecollection", kind, selector, request)
            .await
            .map(drop)
    }

    async fn send<V: DeserializeOwned>(
        &self,
        verb: &'static str,
        kind: Kind,
        name: &str,
        request: Result<http::Request<Vec<u8>>, kube::core::request::Error>,
    ) -> Result<V, WriteError> {
        let request =
            request.map_err(|error| WriteError::of(Error::BuildRequest(error), kind, name))?;
        let _turn = self.limit.turn().await;
        if !self.tenure.is_current() {
            return Err(WriteError::NotLeader);
        }
        let answer = self.client.request::<V>(request).await;
        self.limit.learn(load(answer.as_ref().err()));
        let outcome = answer.map_err(|error| WriteError::of(error, kind, name));
        let word = outcome.as_ref().map_or_else(WriteError::category, |_| "Ok");
        self.metrics.write(verb, kind.as_str(), word);
        #[cfg(debug_assertions)]
        if verb != "get" {
            fault::after_write();
        }
        outcome
    }
}

/// Tests let the process die after a number of writes, to see what the next one makes of it. Not in release builds.
#[cfg(debug_assertions)]
mod fault {
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicI64, Ordering};

    static LEFT: LazyLock<AtomicI64> = LazyLock::new(|| {
        let left = std::env::var("COPPICE_TEST_DIE_AFTER_WRITES");
        AtomicI64::new(
            left.ok()
                .and_then(|text| text.parse().ok())
                .unwrap_or(i64::MAX),
        )
    });

    pub(super) fn after_write() {
        if LEFT.fetch_sub(1, Ordering::Relaxed) == 1 {
            std::process::abort();
        }
    }
}

fn load(error: Option<&Error>) -> Answer {
    match error {
        None => Answer::Fine,
        Some(Error::Api(status)) if status.code != 429 && status.code < 500 => Answer::Fine,
        Some(_) => Answer::TooMuch,
    }
}

fn request<K: Resource<DynamicType = (), Scope = NamespaceResourceScope>>(
    namespace: &str,
) -> Request {
    Request::new(K::url_path(&(), Some(namespace)))
}

fn identity(meta: &ObjectMeta) -> (&str, &str) {
    (
        meta.namespace.as_deref().unwrap_or_default(),
        meta.name.as_deref().unwrap_or_default(),
    )
}

/// The object as JSON with its type, which apply needs.
fn typed<K: Resource<DynamicType = ()> + Serialize>(object: &K) -> Value {
    let mut value = serde_json::to_value(object).expect("Kubernetes objects are plain data");
    if let Some(map) = value.as_object_mut() {
        map.insert(
            "apiVersion".to_owned(),
            Value::String(K::api_version(&()).into_owned()),
        );
        map.insert("kind".to_owned(), Value::String(K::kind(&()).into_owned()));
    }
    value
}

/// Puts the digest of an object's content into its annotations, and returns it.
///
/// The number that `/scale` changes leaves no trace in it: it belongs to whoever scales the object.
pub(crate) fn fingerprint<K: Resource<DynamicType = ()> + Serialize>(object: &mut K) -> String {
    let mut value = serde_json::to_value(&*object).expect("Kubernetes objects are plain data");
    if K::group(&()) == coppice_operator_api::GROUP
        && let Some(spec) = value.get_mut("spec").and_then(Value::as_object_mut)
    {
        spec.remove("replicas");
    }
    let digest = coppice_operator_plan::hash::TemplateHash::of(&canonical::text(&value))
        .as_str()
        .to_owned();
    let annotations = object
        .meta_mut()
        .annotations
        .get_or_insert_with(BTreeMap::new);
    annotations.insert(FINGERPRINT.to_owned(), digest.clone());
    digest
}
