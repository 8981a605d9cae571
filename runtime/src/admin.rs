//! The administrative endpoint of a program: `/metrics`, `/healthz`, `/livez`, `/readyz`, on plain HTTP.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::registry::Registry;

use crate::health::{self, Readiness, Reasons};
use crate::process;

/// Where the administrative endpoint listens.
#[derive(Debug, Clone, clap::Args)]
pub struct AdminArgs {
    /// Address of /metrics, /healthz and /readyz; port 0 takes a free one and logs it
    #[arg(
        long,
        env = "COPPICE_ADMIN_ADDRESS",
        default_value = "0.0.0.0:8080",
        value_name = "ADDRESS:PORT"
    )]
    pub admin_address: SocketAddr,
}

/// Serves the registry's metrics, those of the process, and the health paths; merge it with the program's own plain-HTTP routes.
pub fn router(registry: Arc<Registry>, readiness: Readiness) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .with_state(registry)
        .merge(health::router(readiness, Reasons::Shown))
}

/// What `/metrics` answers: the registry's metrics and those of the process, as OpenMetrics text.
///
/// # Errors
/// A metric refuses to be written.
pub fn exposition(registry: &Registry) -> Result<String, fmt::Error> {
    let mut of_process = Registry::default();
    process::register(&mut of_process);
    let mut text = String::new();
    encode_registry(&mut text, registry)?;
    encode_registry(&mut text, &of_process)?;
    encode_eof(&mut text)?;
    Ok(text)
}

async fn metrics(State(registry): State<Arc<Registry>>) -> Response {
    match exposition(&registry) {
        Ok(text) => {
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            ([(header::CONTENT_TYPE, kind)], text).into_response()
        }
        Err(_) => (
            StatusCode::INTERNAL_SERVER_ERROR,
            "metrics could not be encoded\n",
        )
            .into_response(),
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::http::Request;
    use http_body_util::BodyExt;
    use prometheus_client::metrics::counter::Counter;
    use tower::ServiceExt;

    use super::*;

    #[tokio::test]
    async fn metrics_are_openmetrics_text() {
        let mut registry = Registry::default();
        let decisions: Counter = Counter::default();
        registry.register("decisions", "Decisions taken", decisions.clone());
        decisions.inc();
        let app = router(Arc::new(registry), Readiness::default());
        let response = app
            .oneshot(Request::get("/metrics").body(Body::empty()).unwrap())
            .await
            .unwrap();
        assert_eq!(response.status(), 200);
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let text = std::str::from_utf8(&body).unwrap();
        assert!(text.contains("decisions_total 1\n"), "{text}");
        assert!(text.contains("process_resident_memory_bytes"), "{text}");
        assert!(text.ends_with("# EOF\n"), "{text}");
    }
}
