//! Whether the program lives and is ready, as named conditions, and the endpoints that tell.
//!
//! `/livez` and `/healthz` answer as long as the process serves. `/readyz` needs every condition. As the Kubernetes servers do,
//! `?verbose` lists the checks, `?exclude=NAME` skips one and `/readyz/NAME` asks one.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, RawQuery, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use parking_lot::RwLock;

/// The set of conditions that must hold before the program is ready. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Readiness {
    conditions: Arc<RwLock<BTreeMap<&'static str, Result<(), String>>>>,
}

/// One condition of a [`Readiness`]; starts unmet.
#[derive(Debug, Clone)]
pub struct Condition {
    name: &'static str,
    all: Readiness,
}

impl Readiness {
    /// Adds a condition that must hold, unmet so far. `name` is what `/readyz` calls it: lower case, words joined by `-`.
    #[must_use]
    pub fn require(&self, name: &'static str) -> Condition {
        self.conditions
            .write()
            .insert(name, Err("not yet".to_owned()));
        Condition {
            name,
            all: self.clone(),
        }
    }

    /// The conditions that do not hold, with the reason of each, by name. Empty: ready.
    #[must_use]
    pub fn unmet(&self) -> Vec<(&'static str, String)> {
        let conditions = self.conditions.read();
        conditions
            .iter()
            .filter_map(|(name, state)| state.as_ref().err().map(|reason| (*name, reason.clone())))
            .collect()
    }

    /// Whether every condition holds.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.conditions.read().values().all(Result::is_ok)
    }

    /// Makes the program unready as soon as draining begins: adds the condition `shutdown` and watches the token.
    pub fn follow(&self, draining: tokio_util::sync::CancellationToken) {
        let condition = self.require("shutdown");
        condition.set_met();
        tokio::spawn(async move {
            draining.cancelled().await;
            condition.set_unmet("shutting down");
        });
    }

    fn snapshot(&self) -> Vec<(&'static str, Result<(), String>)> {
        self.conditions
            .read()
            .iter()
            .map(|(name, state)| (*name, state.clone()))
            .collect()
    }
}

impl Condition {
    /// The condition holds.
    pub fn set_met(&self) {
        self.all.conditions.write().insert(self.name, Ok(()));
    }

    /// The condition does not hold; `reason` is shown to people with access to the verbose page.
    pub fn set_unmet(&self, reason: impl Into<String>) {
        self.all
            .conditions
            .write()
            .insert(self.name, Err(reason.into()));
    }
}

/// Whether the health pages say why a condition does not hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reasons {
    /// They do: for an endpoint that only people of the cluster reach.
    Shown,
    /// They name the condition alone: for an endpoint that anybody may ask.
    Withheld,
}

/// Serves `/healthz`, `/livez`, `/readyz` and `/readyz/NAME`.
pub fn router(readiness: Readiness, reasons: Reasons) -> Router {
    Router::new()
        .route("/healthz", get(alive))
        .route("/livez", get(alive))
        .route("/readyz", get(ready))
        .route("/readyz/{name}", get(one_check))
        .with_state((readiness, reasons))
}

async fn alive() -> Response {
    plain(StatusCode::OK, "ok".to_owned())
}

async fn ready(
    State((readiness, reasons)): State<(Readiness, Reasons)>,
    RawQuery(query): RawQuery,
) -> Response {
    let query = query.unwrap_or_default();
    let excluded: Vec<&str> = query
        .split('&')
        .filter_map(|pair| pair.strip_prefix("exclude="))
        .collect();
    let is_verbose = query
        .split('&')
        .any(|pair| pair == "verbose" || pair.starts_with("verbose="));
    let mut lines = String::new();
    let mut failed = false;
    for (name, state) in readiness.snapshot() {
        if excluded.contains(&name) {
            line(&mut lines, format_args!("[+]{name} excluded: ok"));
            continue;
        }
        match state {
            Ok(()) => line(&mut lines, format_args!("[+]{name} ok")),
            Err(reason) => {
                failed = true;
                line(
                    &mut lines,
                    format_args!("[-]{name} failed: {}", shown(&reason, reasons)),
                );
            }
        }
    }
    if failed {
        line(&mut lines, format_args!("readyz check failed"));
        return plain(StatusCode::INTERNAL_SERVER_ERROR, lines);
    }
    if is_verbose {
        line(&mut lines, format_args!("readyz check passed"));
        return plain(StatusCode::OK, lines);
    }
    plain(StatusCode::OK, "ok".to_owned())
}

async fn one_check(
    State((readiness, reasons)): State<(Readiness, Reasons)>,
    Path(asked): Path<String>,
) -> Response {
    match readiness
        .snapshot()
        .into_iter()
        .find(|(name, _)| *name == asked)
    {
        Some((_, Ok(()))) => plain(StatusCode::OK, "ok".to_owned()),
        Some((name, Err(reason))) => plain(
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("[-]{name} failed: {}\n", shown(&reason, reasons)),
        ),
        None => plain(StatusCode::NOT_FOUND, "no such check\n".to_owned()),
    }
}

fn shown(reason: &str, reasons: Reasons) -> &str {
    match reasons {
        Reasons::Shown => reason,
        Reasons::Withheld => "reason withheld",
    }
}

fn line(text: &mut String, content: std::fmt::Arguments<'_>) {
    // Writing to a String cannot fail.
    let _written: std::fmt::Result = writeln!(text, "{content}");
}

fn plain(status: StatusCode, body: String) -> Response {
    (
        status,
        [
            (header::CONTENT_TYPE, "text/plain; charset=utf-8"),
            (header::CACHE_CONTROL, "no-store"),
        ],
        body,
    )
        .into_response()
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::http::Request;
    use http_body_util::BodyExt;
    use tower::ServiceExt;

    use super::*;

    async fn ask(readiness: &Readiness, path: &str) -> (u16, String) {
        let request = Request::get(path).body(Body::empty()).unwrap();
        let response = router(readiness.clone(), Reasons::Shown)
            .oneshot(request)
            .await
            .unwrap();
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn readyz_needs_every_condition_and_livez_none() {
        let readiness = Readiness::default();
        let caches = readiness.require("caches");
        let certificate = readiness.require("certificate");
        certificate.set_met();
        assert_eq!(ask(&readiness, "/livez").await, (200, "ok".into()));
        assert_eq!(
            ask(&readiness, "/readyz").await,
            (
                500,
                "[-]caches failed: not yet\n[+]certificate ok\nreadyz check failed\n".into()
            )
        );
        assert_eq!(
            ask(&readiness, "/readyz?exclude=caches").await,
            (200, "ok".into())
        );
        assert_eq!(
            ask(&readiness, "/readyz/certificate").await,
            (200, "ok".into())
        );
        assert_eq!(ask(&readiness, "/readyz/caches").await.0, 500);
        assert_eq!(ask(&readiness, "/readyz/other").await.0, 404);
        caches.set_met();
        assert_eq!(ask(&readiness, "/readyz").await, (200, "ok".into()));
        assert_eq!(
            ask(&readiness, "/readyz?verbose").await,
            (
                200,
                "[+]caches ok\n[+]certificate ok\nreadyz check passed\n".into()
            )
        );
    }

    #[tokio::test]
    async fn draining_makes_the_program_unready_at_once() {
        let readiness = Readiness::default();
        let token = tokio_util::sync::CancellationToken::new();
        readiness.follow(token.clone());
        assert!(readiness.is_ready());
        token.cancel();
        tokio::task::yield_now().await;
        assert_eq!(
            readiness.unmet(),
            [("shutdown", "shutting down".to_owned())]
        );
    }
}
