//! The secure endpoint: limits, then who, then rights, then the answer.
//!
//! Everything but the health pages goes through [`answer`], which is the only way to a handler.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{Extension, Request, State};
use axum::http::header::CACHE_CONTROL;
use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue};
use axum::response::{IntoResponse, Response};
use coppice_runtime::health::{self, Readiness, Reasons};
use coppice_runtime::server::Peer;
use parking_lot::RwLock;
use tokio::sync::Semaphore;
use tracing::debug;

use crate::authn::Authenticator;
use crate::authz::{Allowed, Authorizer};
use crate::custom::ObjectRequest;
use crate::discovery::Discovery;
use crate::groups::{Api, Groups};
use crate::metrics::{Kind, RequestMetrics};
use crate::query::{MetricRequest, Sources};
use crate::route::{MetricPath, ObjectPath, Route, Target};
use crate::status::Refusal;

/// Everything that answering takes.
#[derive(Debug)]
pub(crate) struct Endpoint {
    /// Finds out who is calling.
    pub authenticator: Authenticator,
    /// Finds out what they may do.
    pub authorizer: Authorizer,
    /// Which groups are served.
    pub groups: Groups,
    /// The discovery documents of the moment.
    pub discovery: Arc<RwLock<Discovery>>,
    /// Values.
    pub sources: Sources,
    /// Counts.
    pub metrics: RequestMetrics,
    /// Requests that may be answered at a time.
    pub places: Arc<Semaphore>,
}

/// Answers come from memory; this bounds the reviews that may be needed first.
const LIMIT: Duration = Duration::from_secs(5);
const MAX_URI_BYTES: usize = 16 * 1024;

/// The routes of the secure endpoint.
pub(crate) fn router(endpoint: Endpoint, readiness: Readiness) -> Router {
    let answers = Router::new()
        .fallback(answer)
        .with_state(Arc::new(endpoint));
    health::router(readiness, Reasons::Withheld).fallback_service(answers)
}

async fn answer(
    State(endpoint): State<Arc<Endpoint>>,
    Extension(peer): Extension<Peer>,
    request: Request,
) -> Response {
    let started = Instant::now();
    let _in_flight = endpoint.metrics.begin();
    // Nothing here has a use for a body; it is never read.
    let (mut parts, _body) = request.into_parts();
    let audit_id = parts.headers.get(AUDIT_ID).cloned();
    let mut kind = Kind::Other;
    let outcome = match endpoint.places.try_acquire() {
        Err(_) => Err(Refusal::too_many_requests()),
        Ok(_place) => {
            match tokio::time::timeout(LIMIT, endpoint.handle(&mut parts, &peer, &mut kind)).await {
                Ok(outcome) => outcome,
                Err(_) => Err(Refusal::timeout()),
            }
        }
    };
    let mut response = outcome.unwrap_or_else(IntoResponse::into_response);
    let headers = response.headers_mut();
    headers
        .entry(CACHE_CONTROL)
        .or_insert(HeaderValue::from_static("no-cache, private"));
    if let Some(audit_id) = audit_id {
        headers.insert(AUDIT_ID, audit_id);
    }
    let code = response.status().as_u16();
    endpoint.metrics.answered(kind, code, started.elapsed());
    debug!(method = %parts.method, path = parts.uri.path(), code, address = %peer.address, "answered");
    response
}

const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");

impl Endpoint {
    async fn handle(
        &self,
        parts: &mut Parts,
        peer: &Peer,
        kind: &mut Kind,
    ) -> Result<Response, Refusal> {
        let length = parts.uri.path().len() + parts.uri.query().map_or(0, str::len);
        if length > MAX_URI_BYTES {
            return Err(Refusal::uri_too_long());
        }
        let caller = self
            .authenticator
            .authenticate(&mut parts.headers, peer)
            .await?;
        let route = Route::parse(&parts.method, &parts.uri).ok_or_else(|| {
            Refusal::bad_request("the path or the query holds an escape that is no text")
        })?;
        let allowed = self.authorizer.authorize(caller, route).await?;
        let route = allowed.get();
        if !route.is_get || route.is_watch() {
            let what = if route.is_watch() {
                "watching is not offered"
            } else {
                "only GET is offered"
            };
            return Err(Refusal::method_not_allowed(format!(
                "{what}: metrics are read-only values"
            )));
        }
        let headers = &parts.headers;
        match &route.target {
            Target::Metric(path) if self.groups.serves(Api::External) => {
                *kind = Kind::Value;
                let path = path.clone();
                self.sources.value(&metric(allowed, path), headers)
            }
            Target::OfObjects(path) if self.groups.serves(path.api) => {
                *kind = Kind::Value;
                let path = path.clone();
                self.sources.of_objects(&objects(allowed, path), headers)
            }
            Target::Explanation(path) if self.groups.serves(Api::External) => {
                *kind = Kind::Explanation;
                let path = path.clone();
                self.sources.explain(&metric(allowed, path), headers)
            }
            Target::Document(document) => {
                *kind = Kind::Discovery;
                let document = *document;
                let documents = self.discovery.read();
                documents.serve(&allowed.map(|_| document), headers)
            }
            Target::Metric(_) | Target::Explanation(_) | Target::OfObjects(_) | Target::Unknown => {
                Err(Refusal::unknown_path())
            }
        }
    }
}

fn metric(allowed: Allowed<Route>, path: MetricPath) -> Allowed<MetricRequest> {
    allowed.map(|route| MetricRequest {
        path,
        selector: parameter(&route, "labelSelector"),
    })
}

fn objects(allowed: Allowed<Route>, path: ObjectPath) -> Allowed<ObjectRequest> {
    allowed.map(|route| ObjectRequest {
        path,
        objects: parameter(&route, "labelSelector"),
        series: parameter(&route, "metricLabelSelector"),
    })
}

/// A query parameter that selects; left out, it selects everything, as an empty one does.
fn parameter(route: &Route, key: &str) -> String {
    route.parameter(key).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests;
