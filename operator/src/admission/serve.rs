//! The HTTPS endpoint that the API server asks.
//!
//! Anybody who reaches the port may ask, as with every webhook; answers depend on nothing but the question, so nothing is given away.
//! What a question may cost is bounded: bytes, time, and how many are answered at a time.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::to_bytes;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use kube::api::DynamicObject;
use kube::core::admission::{AdmissionResponse, AdmissionReview};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use tokio::sync::Semaphore;
use tracing::{debug, warn};

use super::knowledge::Knowledge;
use super::{authorize, review};

/// Paths as upstream has them.
pub(crate) const DEFAULTING_PATH: &str = "/webhooks/default-podcliqueset";
pub(crate) const VALIDATING_PATH: &str = "/webhooks/validate-podcliqueset";
pub(crate) const AUTHORIZER_PATH: &str = "/webhooks/authorizer-webhook";

/// A review holds the object and the stored one, and the API server takes no object above 3 MiB.
const MOST_BYTES: usize = 8 * 1024 * 1024;
/// Shorter than the ten seconds that the API server waits, so that it gets an answer that says why.
const LIMIT: Duration = Duration::from_secs(8);
/// Reviews in memory at a time; more wait for their turn within [`LIMIT`].
const MOST_REVIEWS: usize = 32;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    webhook: &'static str,
    outcome: &'static str,
}

/// How many reviews were answered, and how.
#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    reviews: Family<Labels, Counter>,
}

impl Metrics {
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            reviews: Family::default(),
        };
        for webhook in Webhook::ALL.map(Webhook::name) {
            for outcome in ["allowed", "refused", "unanswered"] {
                drop(metrics.reviews.get_or_create(&Labels { webhook, outcome }));
            }
        }
        registry.register(
            "operator_admission_reviews",
            "Admission reviews by webhook: allowed, refused, or unanswered for want of a readable question or of time",
            metrics.reviews.clone(),
        );
        metrics
    }
}

/// One of the webhooks.
#[derive(Clone, Copy, Debug)]
enum Webhook {
    Defaulting,
    Validating,
    Authorizer,
}

impl Webhook {
    const ALL: [Self; 3] = [Self::Defaulting, Self::Validating, Self::Authorizer];

    fn name(self) -> &'static str {
        match self {
            Self::Defaulting => "defaulting",
            Self::Validating => "validating",
            Self::Authorizer => "authorizer",
        }
    }

    fn path(self) -> &'static str {
        match self {
            Self::Defaulting => DEFAULTING_PATH,
            Self::Validating => VALIDATING_PATH,
            Self::Authorizer => AUTHORIZER_PATH,
        }
    }

    async fn review(self, request: &review::Request, knowledge: &Knowledge) -> AdmissionResponse {
        match self {
            Self::Defaulting => review::complete(request),
            Self::Validating => review::validate(request, &knowledge.around(request).await),
            Self::Authorizer => match &knowledge.policy.guard {
                Some(guard) => authorize::decide(request, guard, |namespace, set| {
                    knowledge.cluster.protection(namespace, set)
                }),
                // Registered by an operator that ran before, with the switch on.
                None => AdmissionResponse::from(request),
            },
        }
    }
}

#[derive(Debug)]
struct Endpoint {
    metrics: Metrics,
    knowledge: Knowledge,
    places: Semaphore,
}

/// The routes of the endpoint.
pub(crate) fn router(metrics: Metrics, knowledge: Knowledge) -> Router {
    let endpoint = Arc::new(Endpoint {
        metrics,
        knowledge,
        places: Semaphore::new(MOST_REVIEWS),
    });
    let answer = |webhook: Webhook| {
        post(
            move |State(endpoint): State<Arc<Endpoint>>, request: Request| async move {
                endpoint.answer(webhook, request).await
            },
        )
    };
    Webhook::ALL
        .into_iter()
        .fold(Router::new(), |router, webhook| {
            router.route(webhook.path(), answer(webhook))
        })
        .with_state(endpoint)
}

impl Endpoint {
    async fn answer(&self, webhook: Webhook, request: Request) -> Response {
        let answered = tokio::time::timeout(LIMIT, self.review(webhook, request)).await;
        let late = || {
            let seconds = LIMIT.as_secs();
            Err((
                StatusCode::SERVICE_UNAVAILABLE,
                format!("the review was not read and answered within {seconds}s"),
            ))
        };
        let (outcome, response) = match answered.unwrap_or_else(|_| late()) {
            Ok(answer) => {
                let outcome = if answer.allowed { "allowed" } else { "refused" };
                (outcome, written(answer))
            }
            Err((code, message)) => {
                warn!(
                    webhook = webhook.name(),
                    code = code.as_u16(),
                    error = message,
                    "admission review not answered"
                );
                ("unanswered", (code, message).into_response())
            }
        };
        let webhook = webhook.name();
        self.metrics
            .reviews
            .get_or_create(&Labels { webhook, outcome })
            .inc();
        response
    }

    async fn review(
        &self,
        webhook: Webhook,
        request: Request,
    ) -> Result<AdmissionResponse, (StatusCode, String)> {
        let bad = |message: String| (StatusCode::BAD_REQUEST, message);
        // Never closed.
        let _place = self
            .places
            .acquire()
            .await
            .map_err(|error| bad(error.to_string()))?;
        let body = to_bytes(request.into_body(), MOST_BYTES)
            .await
            .map_err(|error| {
                (
                    StatusCode::PAYLOAD_TOO_LARGE,
                    format!("cannot read the review, of {MOST_BYTES} bytes at most: {error}"),
                )
            })?;
        let read: AdmissionReview<DynamicObject> =
            serde_json::from_slice(&body).map_err(|error| {
                bad(format!(
                    "this is no AdmissionReview of admission.k8s.io/v1: {error}"
                ))
            })?;
        let request: review::Request = read
            .try_into()
            .map_err(|_| bad("the AdmissionReview carries no request".to_owned()))?;
        let answer = webhook.review(&request, &self.knowledge).await;
        let (namespace, name) = (
            request.namespace.as_deref().unwrap_or_default(),
            &request.name,
        );
        if answer.allowed {
            debug!(
                webhook = webhook.name(),
                namespace,
                name,
                patched = answer.patch.is_some(),
                "admitted"
            );
        } else {
            let error = &answer.result.message;
            // The author has been told; anybody who reaches the port could fill the log.
            debug!(webhook = webhook.name(), namespace, name, error, "refused");
        }
        Ok(answer)
    }
}

fn written(answer: AdmissionResponse) -> Response {
    match serde_json::to_vec(&answer.into_review()) {
        Ok(body) => ([(header::CONTENT_TYPE, "application/json")], body).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use futures::future::BoxFuture;
    use http_body_util::BodyExt;
    use serde_json::{Value, json};
    use tower::ServiceExt;

    use super::*;
    use crate::admission::authorize::{Guard, Protection};
    use crate::admission::knowledge::{Look, Policy};
    use crate::admission::rules::backend::Queue;
    use crate::admission::rules::topology::Binding;

    /// A cluster where a binding is absent, and everything protected.
    #[derive(Debug)]
    struct Elsewhere;

    impl Look for Elsewhere {
        fn binding<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Binding> {
            Box::pin(async { Binding::Absent })
        }

        fn volcano_queue<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Queue> {
            Box::pin(async { Queue::Absent })
        }

        fn protection(&self, _: &str, _: &str) -> Protection {
            Protection::On
        }
    }

    fn knowledge() -> Knowledge {
        Knowledge {
            policy: Policy {
                guard: Some(Guard::default()),
                ..Policy::default()
            },
            cluster: Arc::new(Elsewhere),
        }
    }

    async fn ask(path: &str, body: Vec<u8>) -> (u16, Value, String) {
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry);
        let request = Request::post(path).body(Body::from(body)).unwrap();
        let response = router(metrics, knowledge()).oneshot(request).await.unwrap();
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let value =
            serde_json::from_slice(&body).unwrap_or_else(|_| json!(String::from_utf8_lossy(&body)));
        let mut metrics = String::new();
        prometheus_client::encoding::text::encode(&mut metrics, &registry).unwrap();
        (status, value, metrics)
    }

    fn review(minimum: i32) -> Vec<u8> {
        json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
            "uid": "one", "operation": "CREATE", "userInfo": {}, "oldObject": null,
            "kind": {"group": "grove.io", "version": "v1alpha1", "kind": "PodCliqueSet"},
            "resource": {"group": "grove.io", "version": "v1alpha1", "resource": "podcliquesets"},
            "object": {"apiVersion": "grove.io/v1alpha1", "kind": "PodCliqueSet", "metadata": {"name": "s"}, "spec": {
                "replicas": 1, "template": {"cliques": [{"name": "a", "spec": {"replicas": 1, "minAvailable": minimum,
                    "podSpec": {"containers": []}}}]}}},
        }})
        .to_string()
        .into_bytes()
    }

    #[tokio::test]
    async fn a_review_comes_back_with_its_uid_and_is_counted() {
        let (status, answer, metrics) = ask(VALIDATING_PATH, review(1)).await;
        assert_eq!((status, &answer["response"]["uid"]), (200, &json!("one")));
        assert_eq!(
            (&answer["kind"], &answer["apiVersion"]),
            (&json!("AdmissionReview"), &json!("admission.k8s.io/v1"))
        );
        assert_eq!(answer["response"]["allowed"], true);
        assert!(
            metrics.contains(
                "operator_admission_reviews_total{webhook=\"validating\",outcome=\"allowed\"} 1"
            ),
            "{metrics}"
        );
        let (status, answer, metrics) = ask(VALIDATING_PATH, review(2)).await;
        assert_eq!(
            (status, &answer["response"]["allowed"]),
            (200, &json!(false))
        );
        assert_eq!(answer["response"]["status"]["code"], 422);
        assert!(metrics.contains("outcome=\"refused\"} 1"), "{metrics}");
        let (status, answer, _) = ask(DEFAULTING_PATH, review(1)).await;
        assert_eq!(
            (status, &answer["response"]["patchType"]),
            (200, &json!("JSONPatch"))
        );
    }

    #[tokio::test]
    async fn answers_know_what_is_in_the_cluster() {
        let text = String::from_utf8(review(1)).unwrap();
        let mut constrained: Value = serde_json::from_str(&text).unwrap();
        constrained["request"]["object"]["spec"]["template"]["topologyConstraint"] =
            json!({"topologyName": "t", "pack": {"required": "rack"}});
        let (_, answer, _) = ask(VALIDATING_PATH, constrained.to_string().into_bytes()).await;
        let cause = &answer["response"]["status"]["details"]["causes"][0];
        assert_eq!(
            cause["field"],
            "spec.template.topologyConstraint.topologyName"
        );
        assert!(
            cause["message"]
                .as_str()
                .unwrap()
                .contains("there is no ClusterTopologyBinding of that name"),
            "{cause}"
        );
        let write = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
            "uid": "one", "operation": "DELETE", "userInfo": {"username": "eve"}, "name": "s-0", "namespace": "ns", "object": null,
            "kind": {"group": "", "version": "v1", "kind": "Service"},
            "resource": {"group": "", "version": "v1", "resource": "services"},
            "oldObject": {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s-0", "labels": {"app.kubernetes.io/part-of": "s"}}},
        }});
        let (_, answer, metrics) = ask(AUTHORIZER_PATH, write.to_string().into_bytes()).await;
        assert_eq!(answer["response"]["status"]["code"], 403, "{answer}");
        assert!(
            metrics.contains("webhook=\"authorizer\",outcome=\"refused\"} 1"),
            "{metrics}"
        );
    }

    #[tokio::test]
    async fn what_is_no_review_or_too_large_is_answered_with_a_reason() {
        let (status, answer, metrics) = ask(VALIDATING_PATH, b"{}".to_vec()).await;
        assert_eq!(status, 400);
        assert!(
            answer
                .as_str()
                .unwrap()
                .starts_with("this is no AdmissionReview"),
            "{answer}"
        );
        assert!(
            metrics.contains("webhook=\"validating\",outcome=\"unanswered\"} 1"),
            "{metrics}"
        );
        let empty = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"});
        let (status, answer, _) = ask(VALIDATING_PATH, empty.to_string().into_bytes()).await;
        assert_eq!(
            (status, answer),
            (400, json!("the AdmissionReview carries no request"))
        );
        let (status, answer, _) = ask(DEFAULTING_PATH, vec![b' '; MOST_BYTES + 1]).await;
        assert_eq!(status, 413, "{answer}");
        assert_eq!(ask("/webhooks/other", Vec::new()).await.0, 404);
    }

    /// A sender that never finishes must not hold its place for ever.
    #[tokio::test(start_paused = true)]
    async fn a_review_that_does_not_arrive_is_given_up() {
        let metrics = Metrics::register(&mut Registry::default());
        let never = Body::from_stream(futures::stream::pending::<
            Result<bytes::Bytes, std::io::Error>,
        >());
        let request = Request::post(VALIDATING_PATH).body(never).unwrap();
        let response = router(metrics, knowledge()).oneshot(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    }
}
