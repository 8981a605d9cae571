use axum::body::Body;
use axum::http::header::ACCEPT;
use axum::http::{Method, StatusCode};
use http_body_util::BodyExt;
use serde_json::Value;
use tower::ServiceExt;

use super::*;
use crate::authn::{ConfigState, Tokens};
use crate::fixtures::{FakeApi, TestPod, list_pods, peer, sources};

const BASE: &str = "/apis/external.metrics.k8s.io/v1beta1";
const CUSTOM: &str = "/apis/custom.metrics.k8s.io/v1beta2";

struct Server {
    router: Router,
    readiness: Readiness,
}

impl Server {
    /// A server whose callers are token users, one of which may do everything. It serves every group.
    fn new(places: usize) -> Self {
        Self::with(Groups::Both, sources(), places)
    }

    fn with(groups: Groups, sources: Sources, places: usize) -> Self {
        let api = FakeApi::default();
        api.allowed.lock().push("token-user".to_owned());
        let metrics = sources.metrics.clone();
        let readiness = Readiness::default();
        let endpoint = Endpoint {
            authenticator: Authenticator::new(
                ConfigState::unknown(),
                Tokens::new(api.client()),
                true,
            ),
            authorizer: Authorizer::new(api.client()),
            groups,
            discovery: Arc::new(RwLock::new(Discovery::new(groups, &[]))),
            sources,
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
        CUSTOM,
        &format!("{CUSTOM}/namespaces/a/pods/*/coppice_requests_waiting"),
        &format!("{CUSTOM}/namespaces/a/services/b/nothing"),
        &format!("{CUSTOM}/namespaces/a/metrics/coppice_requests_waiting"),
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
    let pods = format!("{CUSTOM}/namespaces/a/pods/*/coppice_requests_waiting");
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
        (
            format!("{CUSTOM}/nodes/n/coppice_requests_waiting"),
            404,
            "NotFound",
        ),
        (
            format!("{CUSTOM}/namespaces/a/services/s/coppice_requests_waiting"),
            404,
            "NotFound",
        ),
        (format!("{pods}?watch=true"), 405, "MethodNotAllowed"),
        (format!("{pods}?labelSelector=%28%28"), 400, "BadRequest"),
        (
            format!("{pods}?metricLabelSelector=%28%28"),
            400,
            "BadRequest",
        ),
        (pods.clone(), 503, "ServiceUnavailable"),
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

#[tokio::test]
async fn a_group_that_is_not_served_is_unknown() {
    let sources = sources();
    list_pods(
        &sources,
        &[TestPod {
            name: "a",
            labels: &[],
            waiting: Some(3),
        }],
    );
    let external = format!("{BASE}/namespaces/serving/coppice_requests_waiting");
    let custom = format!("{CUSTOM}/namespaces/serving/pods/*/coppice_requests_waiting");
    for (groups, served, other) in [
        (Groups::External, &external, &custom),
        (Groups::Custom, &custom, &external),
    ] {
        let server = Server::with(groups, sources.clone(), 10);
        let (code, body) = server.get(served).await;
        assert_eq!((code, &body["items"][0]["value"]), (200, &"3".into()));
        assert_eq!(server.get(other).await.0, 404, "{groups:?}");
        let base = other.split("/namespaces").next().unwrap();
        assert_eq!(server.get(base).await.0, 404, "{groups:?}");
    }
}

/// Namespaces are the border between tenants: what runs in one is not told in another.
#[tokio::test]
async fn a_namespace_sees_its_own_pods_alone() {
    let sources = sources();
    list_pods(
        &sources,
        &[TestPod {
            name: "a",
            labels: &[
                ("grove.io/podclique", "c"),
                ("app.kubernetes.io/managed-by", "grove-operator"),
            ],
            waiting: Some(3),
        }],
    );
    let server = Server::with(Groups::Both, sources, 10);
    for path in [
        format!("{BASE}/namespaces/NS/coppice_requests_waiting"),
        format!("{BASE}/namespaces/NS/coppice_requests_waiting?labelSelector=pod%3Da"),
        format!("{CUSTOM}/namespaces/NS/pods/*/coppice_requests_waiting"),
        format!("{CUSTOM}/namespaces/NS/pods/a/coppice_requests_waiting"),
        format!("{CUSTOM}/namespaces/NS/podcliques.grove.io/c/coppice_requests_waiting"),
        format!("{CUSTOM}/namespaces/NS/metrics/coppice_requests_waiting"),
    ] {
        let own = server.get(&path.replace("NS", "serving")).await;
        assert_eq!(
            (own.0, &own.1["items"][0]["value"]),
            (200, &"3".into()),
            "{path}"
        );
        let (code, body) = server.get(&path.replace("NS", "other")).await;
        assert_eq!(code, 404, "{path}");
        assert!(!body.to_string().contains("serving"), "{body}");
        assert_eq!(server.get(&path.replace("NS", "*")).await.0, 404, "{path}");
    }
}

/// The same question in the words of each client, and questions that differ in what they select.
#[tokio::test]
async fn a_metric_is_found_in_any_case_and_selected_by_the_whole_grammar() {
    let sources = sources();
    let pod = |name, labels, waiting| TestPod {
        name,
        labels,
        waiting: Some(waiting),
    };
    list_pods(
        &sources,
        &[
            pod("a", &[("app", "vllm"), ("rank", "7"), ("tier", "")], 1),
            pod("b", &[("app", "vllm"), ("rank", "9")], 2),
            pod("c", &[("app", "sglang")], 4),
        ],
    );
    let server = Server::with(Groups::Both, sources, 10);
    let base = format!("{BASE}/namespaces/serving");
    for (path, value) in [
        ("coppice_requests_waiting", "7"),
        ("Coppice_Requests_Waiting", "7"),
        ("coppice%5Frequests%5Fwaiting", "7"),
        (
            "coppice_requests_waiting?limit=500&timeout=32s&resourceVersion=0&pretty=true",
            "7",
        ),
        ("coppice_requests_waiting?labelSelector=", "7"),
        ("coppice_requests_waiting?labelSelector=app%3Dvllm", "3"),
        ("coppice_requests_waiting?labelSelector=app%3D%3Dvllm", "3"),
        (
            "coppice_requests_waiting?labelSelector=app+%21%3D+vllm",
            "4",
        ),
        (
            "coppice_requests_waiting?labelSelector=app+in+(vllm%2Csglang)",
            "7",
        ),
        ("coppice_requests_waiting?labelSelector=rank+notin+(7)", "6"),
        ("coppice_requests_waiting?labelSelector=rank", "3"),
        ("coppice_requests_waiting?labelSelector=!rank", "4"),
        ("coppice_requests_waiting?labelSelector=rank%3E7", "2"),
        (
            "coppice_requests_waiting?labelSelector=rank%3C9%2Capp%3Dvllm",
            "1",
        ),
        ("coppice_requests_waiting?labelSelector=tier%3D", "1"),
        (
            "coppice_requests_waiting?labelSelector=model_id%3Dqwen-qwen3",
            "7",
        ),
    ] {
        let (code, body) = server.get(&format!("{base}/{path}")).await;
        assert_eq!(
            (code, &body["items"][0]["value"]),
            (200, &value.into()),
            "{path}: {body}"
        );
    }
    let nothing = format!("{base}/coppice_requests_waiting?labelSelector=app%3Dabsent");
    let (code, body) = server.get(&nothing).await;
    assert_eq!((code, &body["reason"]), (404, &"NotFound".into()), "{body}");
}

#[tokio::test]
async fn a_refusal_repeats_no_credentials() {
    let server = Server::new(10);
    for credentials in ["Bearer top-secret-token", "Basic dG9wLXNlY3JldA=="] {
        let headers = [
            ("authorization", credentials),
            ("x-remote-user", "top-secret-user"),
        ];
        let (code, body) = server.ask(Method::GET, BASE, &headers).await;
        assert_eq!(code, StatusCode::UNAUTHORIZED);
        assert!(!body.to_string().contains("secret"), "{body}");
        assert!(!body.to_string().contains("dG9w"), "{body}");
    }
}

#[tokio::test]
async fn a_rule_is_an_external_metric_with_an_explanation_and_no_metric_of_objects() {
    let sources = sources();
    let bounds = crate::rules::Bounds {
        window: Duration::from_secs(60),
    };
    let set = crate::rules::read(
        b"rules: [{name: load, expression: waiting + running}]",
        bounds,
    );
    sources.rules.replace(set.unwrap());
    let pod = TestPod {
        name: "a",
        labels: &[],
        waiting: Some(4),
    };
    list_pods(&sources, &[pod]);
    let server = Server::with(Groups::Both, sources, 10);
    let (code, body) = server.get(&format!("{BASE}/namespaces/serving/load")).await;
    assert_eq!((code, body["items"][0]["value"].as_str()), (200, Some("5")));
    let (code, body) = server
        .get(&format!("{BASE}/namespaces/serving/load/explain"))
        .await;
    let rule = body["answer"]["rule"].as_str().unwrap_or_default();
    assert_eq!(code, 200);
    assert!(
        rule.starts_with("waiting + running, where waiting = 4 (sum, 1 of 1 endpoints)"),
        "{body}"
    );
    let (code, body) = server
        .get(&format!("{CUSTOM}/namespaces/serving/pods/*/load"))
        .await;
    let message = body["message"].as_str().unwrap_or_default();
    assert_eq!(code, 404);
    assert!(message.contains("as an External metric"), "{message}");
}
