use axum::body::Body;
use axum::http::header::ACCEPT;
use axum::http::{Method, StatusCode};
use coppice_signals::Signals;
use http_body_util::BodyExt;
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use super::*;
use crate::authn::{ConfigState, Tokens};
use crate::fixtures::{FakeApi, peer};
use crate::metrics::Measured;
use crate::wanted::WantedReplicas;

const BASE: &str = "/apis/external.metrics.k8s.io/v1beta1";

struct Server {
    router: Router,
    readiness: Readiness,
}

impl Server {
    /// A server whose callers are token users, one of which may do everything.
    fn new(places: usize) -> Self {
        coppice_runtime::crypto::install();
        let api = FakeApi::default();
        api.allowed.lock().push("token-user".to_owned());
        let Measured {
            requests: metrics,
            signals,
            ..
        } = Measured::new();
        let signals = Signals::new(coppice_signals::Settings::default(), signals).unwrap();
        let stop = CancellationToken::new();
        stop.cancel();
        let readiness = Readiness::default();
        let endpoint = Endpoint {
            authenticator: Authenticator::new(
                ConfigState::unknown(),
                Tokens::new(api.client()),
                true,
            ),
            authorizer: Authorizer::new(api.client()),
            discovery: Discovery::new(),
            sources: Sources {
                signals,
                wanted: WantedReplicas::watch(&api.client(), None, "system", &stop),
                metrics: metrics.clone(),
            },
            metrics,
            places: Arc::new(Semaphore::new(places)),
        };
        Self {
            router: router(endpoint, readiness.clone()),
            readiness,
        }
    }

    async fn ask(&self, method: Method, path: &str, extra: &[(&str, &str)]) -> (StatusCode, Value) {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in extra {
            request = request.header(*name, *value);
        }
        let mut request = request.body(Body::empty()).unwrap();
        request.extensions_mut().insert(peer(&[]));
        let response = self.router.clone().oneshot(request).await.unwrap();
        let code = response.status();
        assert!(!response.headers().contains_key("retry-after"));
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (
            code,
            serde_json::from_slice(&body).unwrap_or_else(|_| String::from_utf8_lossy(&body).into()),
        )
    }

    async fn get(&self, path: &str) -> (u16, Value) {
        let (code, body) = self
            .ask(Method::GET, path, &[("authorization", "Bearer good")])
            .await;
        (code.as_u16(), body)
    }
}

#[tokio::test]
async fn health_needs_no_rights_and_tells_no_reasons() {
    let server = Server::new(10);
    let condition = server.readiness.require("pods");
    assert_eq!(
        server.ask(Method::GET, "/livez", &[]).await,
        (StatusCode::OK, "ok".into())
    );
    condition.set_unmet("secret reason");
    let (code, body) = server.ask(Method::GET, "/readyz?verbose", &[]).await;
    assert_eq!(code, StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(
        body,
        "[-]pods failed: reason withheld\nreadyz check failed\n"
    );
}

#[tokio::test]
async fn without_rights_every_path_looks_the_same() {
    let server = Server::new(10);
    for path in [
        BASE,
        "/apis",
        "/nothing",
        &format!("{BASE}/namespaces/a/coppice_requests_waiting"),
        &format!("{BASE}/namespaces/a/nothing"),
    ] {
        for method in [Method::GET, Method::POST, Method::DELETE] {
            let (code, body) = server.ask(method, path, &[]).await;
            assert_eq!(
                (code, body["reason"].as_str()),
                (StatusCode::FORBIDDEN, Some("Forbidden")),
                "{path}"
            );
            assert!(
                body["message"]
                    .as_str()
                    .unwrap()
                    .contains("system:anonymous")
            );
        }
    }
}

#[tokio::test]
async fn requests_that_cannot_be_answered_have_the_right_code() {
    let server = Server::new(10);
    let metric = format!("{BASE}/namespaces/a/coppice_requests_waiting");
    for (path, code, reason) in [
        (
            format!("{BASE}/namespaces/a/coppice_nothing"),
            404,
            "NotFound",
        ),
        (format!("{BASE}/coppice_requests_waiting"), 404, "NotFound"),
        (format!("{BASE}/namespaces/a/b/c"), 404, "NotFound"),
        (
            format!("{BASE}/namespaces/*/coppice_requests_waiting"),
            404,
            "NotFound",
        ),
        ("/openapi/v4".to_owned(), 404, "NotFound"),
        (format!("{metric}?labelSelector=%28%28"), 400, "BadRequest"),
        (format!("{metric}?labelSelector=a+b"), 400, "BadRequest"),
        (
            format!("{metric}?labelSelector=a%3Db%2Fc"),
            400,
            "BadRequest",
        ),
        (format!("{metric}?labelSelector=%ff"), 400, "BadRequest"),
        (format!("{metric}?watch=true"), 405, "MethodNotAllowed"),
        (
            format!("{metric}?labelSelector={}", "a".repeat(17_000)),
            414,
            "RequestURITooLong",
        ),
        // Nothing has been listed or scraped: an error, never an empty list.
        (metric.clone(), 503, "ServiceUnavailable"),
        (
            format!("{BASE}/namespaces/a/coppice_wanted_replicas?labelSelector=policy%3Dx"),
            503,
            "ServiceUnavailable",
        ),
    ] {
        let (answered, body) = server.get(&path).await;
        assert_eq!(
            (answered, body["reason"].as_str()),
            (code, Some(reason)),
            "{path}: {body}"
        );
        assert_eq!(body["kind"], "Status");
    }
    for method in [Method::POST, Method::PUT, Method::DELETE, Method::PATCH] {
        let (code, _) = server
            .ask(method, &metric, &[("authorization", "Bearer good")])
            .await;
        assert_eq!(code, StatusCode::METHOD_NOT_ALLOWED);
    }
}

#[tokio::test]
async fn discovery_is_served_before_anything_was_scraped() {
    let server = Server::new(10);
    let (code, resources) = server.get(BASE).await;
    assert_eq!(
        (code, resources["kind"].as_str()),
        (200, Some("APIResourceList"))
    );
    for (path, kind) in [
        ("/apis", "APIGroupList"),
        ("/apis/external.metrics.k8s.io", "APIGroup"),
    ] {
        assert_eq!(server.get(path).await.1["kind"], kind);
    }
    assert_eq!(server.get("/openapi/v2").await.1["swagger"], "2.0");
    let index = server.get("/openapi/v3").await.1;
    let place = index["paths"]["apis/external.metrics.k8s.io/v1beta1"]["serverRelativeURL"]
        .as_str()
        .unwrap();
    assert_eq!(server.get(place).await.1["openapi"], "3.0.0");
    let v2 = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    let asked = [("authorization", "Bearer good"), (ACCEPT.as_str(), v2)];
    assert_eq!(
        server.ask(Method::GET, "/apis", &asked).await.1["kind"],
        "APIGroupDiscoveryList"
    );
}

#[tokio::test]
async fn media_types_that_cannot_be_served_are_refused() {
    let server = Server::new(10);
    let asked = [
        ("authorization", "Bearer good"),
        (ACCEPT.as_str(), "application/vnd.kubernetes.protobuf"),
    ];
    let (code, body) = server
        .ask(
            Method::GET,
            &format!("{BASE}/namespaces/a/coppice_requests_waiting"),
            &asked,
        )
        .await;
    assert_eq!(
        (code, body["reason"].as_str()),
        (StatusCode::NOT_ACCEPTABLE, Some("NotAcceptable"))
    );
}

#[tokio::test]
async fn above_the_limit_requests_are_refused_at_once() {
    let server = Server::new(0);
    let (code, body) = server.get(BASE).await;
    assert_eq!(
        (code, body["reason"].as_str()),
        (429, Some("TooManyRequests"))
    );
    assert_eq!(
        server.ask(Method::GET, "/livez", &[]).await.0,
        StatusCode::OK
    );
}
