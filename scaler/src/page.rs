//! What the scaler shows of itself: a live page at `/`, the same as JSON at `/api/policies`, and changes as server-sent events at `/api/events`.
//!
//! The page needs nothing from elsewhere: no network, no build step.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::header;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{Html, IntoResponse};
use axum::routing::get;
use coppice_scaler_api::{RoleStatus, ScalingPolicy, ScalingPolicyStatus, SignalValue};
use coppice_scaler_plan::Quantity;
use futures::Stream;
use jiff::Timestamp;
use serde::Serialize;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::watch::Key;

/// Points of the time line that are kept for each policy: twenty minutes at one every five seconds.
const POINTS: usize = 240;
/// Decisions that are kept for each policy.
const DECISIONS: usize = 30;

/// What is shown. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Board {
    shown: Arc<watch::Sender<BTreeMap<Key, Arc<Entry>>>>,
}

/// What is shown of one policy.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Entry {
    namespace: String,
    name: String,
    target: String,
    mode: String,
    leading: bool,
    at: Timestamp,
    status: ScalingPolicyStatus,
    /// What `load` and `forecast` of the points are of, by role. `None`: nothing was measured.
    loads: Vec<Option<Load>>,
    decisions: VecDeque<Said>,
    points: VecDeque<Point>,
}

/// A decision that changed something.
#[derive(Debug, Clone, Serialize)]
struct Said {
    at: Timestamp,
    sentence: String,
}

/// One instant of the time line.
#[derive(Debug, Clone, Serialize)]
struct Point {
    at: Timestamp,
    sets: Option<u32>,
    roles: Vec<RolePoint>,
}

#[derive(Debug, Clone, Serialize)]
struct RolePoint {
    demand: Option<f64>,
    load: Option<f64>,
    forecast: Option<f64>,
    wanted: u32,
    ready: u32,
}

/// The signal that drives a role.
#[derive(Debug, Clone, Serialize)]
struct Load {
    name: String,
    unit: String,
}

impl Default for Board {
    fn default() -> Self {
        Self {
            shown: Arc::new(watch::Sender::new(BTreeMap::new())),
        }
    }
}

impl Board {
    /// Shows the decision about a policy.
    pub(crate) fn show(
        &self,
        key: &Key,
        policy: &ScalingPolicy,
        status: &ScalingPolicyStatus,
        leading: bool,
        now: Timestamp,
    ) {
        self.shown.send_modify(|shown| {
            let before = shown.get(key);
            let mut decisions = before
                .map(|entry| entry.decisions.clone())
                .unwrap_or_default();
            let mut points = before.map(|entry| entry.points.clone()).unwrap_or_default();
            let moving = status.roles.iter().any(|role| role.wanted != role.current)
                || status
                    .sets
                    .as_ref()
                    .is_some_and(|sets| sets.wanted != sets.current);
            let sentence = status
                .decision
                .as_ref()
                .map(|decision| decision.sentence.clone())
                .unwrap_or_default();
            if moving
                && decisions
                    .front()
                    .is_none_or(|said: &Said| said.sentence != sentence)
            {
                decisions.push_front(Said { at: now, sentence });
                decisions.truncate(DECISIONS);
            }
            points.push_back(point(status, now));
            if points.len() > POINTS {
                points.pop_front();
            }
            let entry = Entry {
                namespace: key.0.clone(),
                name: key.1.clone(),
                target: format!("{} {}", policy.spec.target.kind, policy.spec.target.name),
                mode: format!("{:?}", policy.spec.mode),
                leading,
                at: now,
                status: ScalingPolicyStatus {
                    history: None,
                    ..status.clone()
                },
                loads: loads(status),
                decisions,
                points,
            };
            shown.insert(key.clone(), Arc::new(entry));
        });
    }

    /// Shows no policy but these.
    pub(crate) fn keep(&self, exists: impl Fn(&Key) -> bool) {
        self.shown.send_if_modified(|shown| {
            let before = shown.len();
            shown.retain(|key, _| exists(key));
            shown.len() != before
        });
    }

    /// The routes. Streams end when `draining` begins.
    pub(crate) fn router(self, draining: CancellationToken) -> Router {
        Router::new()
            .route("/", get(|| async { page() }))
            .route("/api/policies", get(policies))
            .route("/api/events", get(events))
            .with_state((self, draining))
    }

    fn json(&self) -> String {
        let shown = self.shown.borrow();
        let entries: Vec<&Entry> = shown.values().map(AsRef::as_ref).collect();
        serde_json::to_string(&entries).expect("plain data with text keys")
    }
}

fn point(status: &ScalingPolicyStatus, now: Timestamp) -> Point {
    let roles = status.roles.iter().map(|role| RolePoint {
        demand: value(role, Quantity::Demand),
        load: driver(role).map(|signal| signal.value.as_f64()),
        forecast: value(role, Quantity::ForecastRequests)
            .or_else(|| value(role, Quantity::ForecastInputTokens)),
        wanted: role.wanted,
        ready: role.ready,
    });
    Point {
        at: now,
        sets: status.sets.as_ref().map(|sets| sets.wanted),
        roles: roles.collect(),
    }
}

fn loads(status: &ScalingPolicyStatus) -> Vec<Option<Load>> {
    let load = |role| {
        driver(role).map(|signal| Load {
            name: signal.name.clone(),
            unit: signal.unit.clone(),
        })
    };
    status.roles.iter().map(load).collect()
}

fn signal(role: &RoleStatus, quantity: Quantity) -> Option<&SignalValue> {
    role.signals
        .iter()
        .find(|signal| signal.name == quantity.name())
}

fn value(role: &RoleStatus, quantity: Quantity) -> Option<f64> {
    signal(role, quantity).map(|signal| signal.value.as_f64())
}

/// The signal that a role's size follows from: the one that its forecast is of, else the first.
fn driver(role: &RoleStatus) -> Option<&SignalValue> {
    let forecasts = [
        (Quantity::ForecastRequests, Quantity::OfferedRequests),
        (Quantity::ForecastInputTokens, Quantity::OfferedInputTokens),
    ];
    let of_forecast = forecasts
        .into_iter()
        .find(|(forecast, _)| signal(role, *forecast).is_some());
    match of_forecast {
        Some((_, offered)) => signal(role, offered),
        None => role
            .signals
            .first()
            .filter(|first| first.name != Quantity::Demand.name()),
    }
}

fn page() -> impl IntoResponse {
    (
        [(header::CACHE_CONTROL, "no-store")],
        Html(include_str!("page.html")),
    )
}

async fn policies(State((board, _)): State<(Board, CancellationToken)>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], board.json())
}

async fn events(
    State((board, draining)): State<(Board, CancellationToken)>,
) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let changes = board.shown.subscribe();
    let stream = futures::stream::unfold(
        (board, changes, true),
        |(board, mut changes, first)| async move {
            if !first {
                changes.changed().await.ok()?;
            }
            changes.borrow_and_update();
            let event = Event::default().data(board.json());
            Some((Ok(event), (board, changes, false)))
        },
    );
    Sse::new(futures::StreamExt::take_until(
        stream,
        draining.cancelled_owned(),
    ))
    .keep_alive(KeepAlive::default())
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::http::Request;
    use http_body_util::BodyExt;
    use serde_json::json;
    use tower::ServiceExt;

    use super::*;

    fn policy() -> ScalingPolicy {
        serde_json::from_value(json!({
            "apiVersion": "autoscaling.coppice.dev/v1alpha1", "kind": "ScalingPolicy", "metadata": {"name": "chat", "namespace": "serving"},
            "spec": {
                "target": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "chat"},
                "roles": [{"name": "server", "stage": "Aggregated", "max": 8, "signal": {"queueDepth": {"waitingPerUnit": 4}}}],
            },
            "status": {"roles": [{
                "name": "server", "current": 2, "ready": 2, "wanted": 4, "because": "Load",
                "signals": [{"name": "waiting", "value": 15, "unit": "requests"}, {"name": "demand", "value": "3.75", "unit": "units"}],
            }]},
        }))
        .unwrap()
    }

    async fn body(board: &Board, path: &str) -> String {
        let app = board.clone().router(CancellationToken::new());
        let response = app
            .oneshot(Request::get(path).body(Body::empty()).unwrap())
            .await
            .unwrap();
        assert_eq!(response.status(), 200);
        String::from_utf8(
            response
                .into_body()
                .collect()
                .await
                .unwrap()
                .to_bytes()
                .to_vec(),
        )
        .unwrap()
    }

    #[tokio::test]
    async fn policies_are_shown_and_forgotten() {
        let board = Board::default();
        let key = ("serving".to_owned(), "chat".to_owned());
        let policy = policy();
        board.show(
            &key,
            &policy,
            policy.status.as_ref().unwrap(),
            true,
            Timestamp::UNIX_EPOCH,
        );
        let shown: serde_json::Value =
            serde_json::from_str(&body(&board, "/api/policies").await).unwrap();
        assert_eq!(shown[0]["name"], "chat");
        assert_eq!(shown[0]["status"]["roles"][0]["wanted"], 4);
        let point = &shown[0]["points"][0]["roles"][0];
        assert_eq!(
            *point,
            json!({"demand": 3.75, "load": 15.0, "forecast": null, "wanted": 4, "ready": 2})
        );
        assert_eq!(
            shown[0]["loads"],
            json!([{"name": "waiting", "unit": "requests"}])
        );
        board.keep(|_| false);
        assert_eq!(body(&board, "/api/policies").await, "[]");
    }

    #[tokio::test]
    async fn the_page_asks_for_nothing_from_elsewhere() {
        let page = body(&Board::default(), "/").await;
        assert!(page.contains("/api/events"));
        for outside in ["http://", "https://", "src=\"//"] {
            assert!(
                !page
                    .replace("http://www.w3.org/2000/svg", "")
                    .contains(outside),
                "{outside}"
            );
        }
    }

    #[tokio::test]
    async fn memory_is_bounded() {
        let board = Board::default();
        let key = ("serving".to_owned(), "chat".to_owned());
        let policy = policy();
        for second in 0..1_000 {
            let now = Timestamp::from_second(second).unwrap();
            board.show(&key, &policy, policy.status.as_ref().unwrap(), true, now);
        }
        assert_eq!(board.shown.borrow()[&key].points.len(), POINTS);
    }
}
