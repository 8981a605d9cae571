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

use super::review;
use super::rules::Around;

/// Paths as upstream has them.
pub(crate) const DEFAULTING_PATH: &str = "/webhooks/default-podcliqueset";
pub(crate) const VALIDATING_PATH: &str = "/webhooks/validate-podcliqueset";

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
        for webhook in [DEFAULTING.name, VALIDATING.name] {
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

/// One of the two webhooks.
struct Webhook {
    name: &'static str,
    review: fn(&review::Request, &Around) -> AdmissionResponse,
}

static DEFAULTING: Webhook = Webhook {
    name: "defaulting",
    review: |request, _| review::complete(request),
};
static VALIDATING: Webhook = Webhook {
    name: "validating",
    review: review::validate,
};

#[derive(Debug)]
struct Endpoint {
    metrics: Metrics,
    around: Around,
    places: Semaphore,
}

/// The routes of the endpoint.
pub(crate) fn router(metrics: Metrics, around: Around) -> Router {
    let endpoint = Arc::new(Endpoint {
        metrics,
        around,
        places: Semaphore::new(MOST_REVIEWS),
    });
    let answer = |webhook: &'static Webhook| {
        post(
            move |State(endpoint): State<Arc<Endpoint>>, request: Request| async move {
                endpoint.answer(webhook, request).await
            },
        )
    };
    Router::new()
        .route(DEFAULTING_PATH, answer(&DEFAULTING))
        .route(VALIDATING_PATH, answer(&VALIDATING))
        .with_state(endpoint)
}

impl Endpoint {
    async fn answer(&self, webhook: &Webhook, request: Request) -> Response {
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
                    webhook = webhook.name,
                    code = code.as_u16(),
                    error = message,
                    "admission review not answered"
                );
                ("unanswered", (code, message).into_response())
            }
        };
        let webhook = webhook.name;
        self.metrics
            .reviews
            .get_or_create(&Labels { webhook, outcome })
            .inc();
        response
    }

    async fn review(
        &self,
        webhook: &Webhook,
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
        let answer = (webhook.review)(&request, &self.around);
        let (namespace, name) = (
            request.namespace.as_deref().unwrap_or_default(),
            &request.name,
        );
        if answer.allowed {
            debug!(
                webhook = webhook.name,
                namespace,
                name,
                patched = answer.patch.is_some(),
                "admitted"
            );
        } else {
            let error = &answer.result.message;
            // The author has been told; anybody who reaches the port could fill the log.
            debug!(
                webhook = webhook.name,
                namespace, name, error, "refused a PodCliqueSet"
            );
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
    use http_body_util::BodyExt;
    use serde_json::{Value, json};
    use tower::ServiceExt;

    use super::*;

    async fn ask(path: &str, body: Vec<u8>) -> (u16, Value, String) {
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry);
        let request = Request::post(path).body(Body::from(body)).unwrap();
        let response = router(metrics, Around::default())
            .oneshot(request)
            .await
            .unwrap();
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
        let response = router(metrics, Around::default())
            .oneshot(request)
            .await
            .unwrap();
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    }
}
