//! A proxy between the adapter and the API server that writes down who asked for what, and whether it was allowed.
//!
//! It speaks for a service account, so that the server judges by that account's rights, and only by those.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use axum::Router;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{Method, StatusCode, Uri};
use kube::Client;
use parking_lot::Mutex;
use tokio_util::task::AbortOnDropHandle;

/// Something that was done, in the words of RBAC.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Deed {
    pub(crate) group: String,
    /// With its subresource, such as `pods/status`; a path where it is no resource.
    pub(crate) resource: String,
    /// Empty for all namespaces and for objects of the cluster.
    pub(crate) namespace: String,
    /// Empty where no name was given.
    pub(crate) name: String,
    pub(crate) verb: &'static str,
}

/// The proxy.
pub(crate) struct Recorder {
    pub(crate) kubeconfig: PathBuf,
    log: Arc<Log>,
    _server: AbortOnDropHandle<()>,
}

#[derive(Default)]
struct Log {
    done: Mutex<BTreeSet<Deed>>,
    refused: Mutex<Vec<(Deed, StatusCode)>>,
}

impl Recorder {
    /// Starts one that speaks for the client's identity. Its kubeconfig is written into the folder, with the namespace as in a pod.
    pub(crate) async fn start(
        client: Client,
        folder: &std::path::Path,
        namespace: &str,
    ) -> anyhow::Result<Self> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let kubeconfig = folder.join("recorded.kubeconfig");
        let text = serde_json::json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "recorded",
            "clusters": [{"name": "recorded", "cluster": {"server": format!("http://{}", listener.local_addr()?)}}],
            "users": [{"name": "recorded", "user": {}}],
            "contexts": [{"name": "recorded", "context": {"cluster": "recorded", "user": "recorded", "namespace": namespace}}],
        });
        std::fs::write(&kubeconfig, text.to_string())?;
        let log = Arc::new(Log::default());
        let app = Router::new()
            .fallback(pass_on)
            .with_state((client, Arc::clone(&log)));
        let server = tokio::spawn(async move {
            axum::serve(listener, app)
                .await
                .expect("serving does not end");
        });
        Ok(Self {
            kubeconfig,
            log,
            _server: AbortOnDropHandle::new(server),
        })
    }

    /// Everything that was done so far.
    pub(crate) fn done(&self) -> BTreeSet<Deed> {
        self.log.done.lock().clone()
    }

    /// What the server refused for want of rights.
    pub(crate) fn refused(&self) -> Vec<(Deed, StatusCode)> {
        self.log.refused.lock().clone()
    }
}

async fn pass_on(State((client, log)): State<(Client, Arc<Log>)>, request: Request) -> Response {
    match forward(&client, &log, request).await {
        Ok(response) => response,
        Err(error) => (StatusCode::BAD_GATEWAY, format!("{error:#}")).into_response(),
    }
}

async fn forward(client: &Client, log: &Log, request: Request) -> anyhow::Result<Response> {
    const MAX_BYTES: usize = 4 << 20;
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, MAX_BYTES).await?;
    let mut forwarded = http::Request::builder()
        .method(parts.method.clone())
        .uri(parts.uri.clone());
    for header in [ACCEPT, CONTENT_TYPE] {
        if let Some(value) = parts.headers.get(&header) {
            forwarded = forwarded.header(header, value);
        }
    }
    let forwarded = forwarded.body(kube::client::Body::from(body.to_vec()))?;
    let answer = client.send(forwarded).await?;
    let status = answer.status();
    let deed = deed(&parts.method, &parts.uri).context("an unknown method")?;
    if matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
        log.refused.lock().push((deed, status));
    } else {
        let mut done = log.done.lock();
        if deed.verb == "patch" && status == StatusCode::CREATED {
            // The server has checked the right to create, too, without a name.
            let create = Deed {
                verb: "create",
                name: String::new(),
                ..deed.clone()
            };
            done.insert(create);
        }
        done.insert(deed);
    }
    let mut response = Response::builder().status(status);
    if let Some(kind) = answer.headers().get(CONTENT_TYPE) {
        response = response.header(CONTENT_TYPE, kind);
    }
    Ok(response.body(axum::body::Body::new(answer.into_body()))?)
}

/// What a request means. A name in a field selector is the name that the server checks.
fn deed(method: &Method, uri: &Uri) -> Option<Deed> {
    let parts: Vec<&str> = uri
        .path()
        .split('/')
        .filter(|part| !part.is_empty())
        .collect();
    let (group, rest) = match parts.as_slice() {
        ["api", _, rest @ ..] => ("", rest),
        ["apis", group, _, rest @ ..] => (*group, rest),
        _ => ("", [].as_slice()),
    };
    let (namespace, rest) = match rest {
        ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (*namespace, rest),
        other => ("", other),
    };
    let (resource, mut name, subresource) = match rest {
        [resource] => (*resource, String::new(), None),
        [resource, name] => (*resource, (*name).to_owned(), None),
        [resource, name, subresource] => (*resource, (*name).to_owned(), Some(*subresource)),
        _ => (uri.path(), String::new(), None),
    };
    let query = uri.query().unwrap_or_default();
    let is_watch = query
        .split('&')
        .any(|pair| matches!(pair, "watch=true" | "watch=1"));
    let verb = match (method.as_str(), name.is_empty()) {
        ("GET", _) if is_watch => "watch",
        ("GET", true) => "list",
        ("GET", false) => "get",
        ("POST", _) => "create",
        ("PUT", _) => "update",
        ("PATCH", _) => "patch",
        ("DELETE", _) => "delete",
        _ => return None,
    };
    if let (true, Some((_, selected))) = (name.is_empty(), query.split_once("metadata.name%3D")) {
        name = selected.split('&').next().unwrap_or_default().to_owned();
    }
    Some(Deed {
        group: group.to_owned(),
        resource: subresource.map_or_else(
            || resource.to_owned(),
            |subresource| format!("{resource}/{subresource}"),
        ),
        namespace: namespace.to_owned(),
        name,
        verb,
    })
}
