//! The gateway's HTTP interface.

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use coppice_runtime::health::{Readiness, Reasons};
use serde::Deserialize;
use serde_json::{Value, json};

use super::forward::{Asked, Begun, Forwarder};
use super::metrics::{self, Kind, Outcome};
use super::models::{Model, Models};
use super::relay::Relay;
use super::track::Track;
use crate::drive::api::Usage;
use crate::openai::error::ApiError;
use crate::openai::request::GenerationRequest;
use crate::openai::{BODY_LIMIT, ENGINE_HEADER, Endpoint};

/// What handlers share.
#[derive(Debug)]
pub(crate) struct Gateway {
    pub(crate) models: Models,
    pub(crate) forwarder: Forwarder,
}

/// Routes of the gateway.
pub(crate) fn router(gateway: Arc<Gateway>, readiness: Readiness) -> Router {
    Router::new()
        .route(Endpoint::Completions.path(), post(completions))
        .route(Endpoint::ChatCompletions.path(), post(chat_completions))
        .route("/v1/models", get(models))
        .route("/health", get(health))
        .route("/metrics", get(metrics_text))
        .layer(DefaultBodyLimit::max(BODY_LIMIT))
        .with_state(gateway)
        .merge(coppice_runtime::health::router(readiness, Reasons::Shown))
}

async fn completions(
    State(gateway): State<Arc<Gateway>>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    gateway
        .generation(Endpoint::Completions, headers, body)
        .await
}

async fn chat_completions(
    State(gateway): State<Arc<Gateway>>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    gateway
        .generation(Endpoint::ChatCompletions, headers, body)
        .await
}

impl Gateway {
    async fn generation(&self, endpoint: Endpoint, headers: HeaderMap, body: Bytes) -> Response {
        let request = match GenerationRequest::parse(endpoint, &headers, &body) {
            Ok(request) => request,
            Err(error) => return error.into_response(),
        };
        let Some(model) = self.model(&request.model) else {
            let served: Vec<&str> = self.models.keys().map(String::as_str).collect();
            return ApiError::unknown_model(&request.model, &served.join(", ")).into_response();
        };
        let kind = Kind {
            endpoint,
            stream: request.stream,
        };
        let track = Track::begin(Arc::clone(model), kind, request.prompt_tokens);
        let asked = Asked {
            endpoint,
            headers,
            body,
            prompt_tokens: request.prompt_tokens,
            stream: request.stream,
        };
        match self.forwarder.begin(model, &asked).await {
            Ok(begun) => respond(begun, track),
            Err(error) => {
                track.end(if error.status.is_client_error() {
                    Outcome::Validation
                } else {
                    Outcome::Unavailable
                });
                error.into_response()
            }
        }
    }

    /// The model of a name; a client that names none means the only one.
    fn model(&self, name: &str) -> Option<&Arc<Model>> {
        match self.models.get(name) {
            None if name.is_empty() && self.models.len() == 1 => self.models.values().next(),
            found => found,
        }
    }
}

fn respond(begun: Begun, mut track: Track) -> Response {
    let Begun {
        status,
        mut headers,
        body,
        rest,
        place,
    } = begun;
    let engine = HeaderName::from_static(ENGINE_HEADER);
    if !headers.contains_key(&engine)
        && let Ok(name) = HeaderValue::from_str(&place.backend().name)
    {
        headers.insert(engine, name);
    }
    let body = match rest {
        Some(rest) => Body::from_stream(Relay::new(body, rest, place, track)),
        None => {
            if status.is_success() {
                let usage = usage_of(&body);
                track.tokens(usage.completion_tokens);
                track.usage(usage);
                track.end(Outcome::Success);
            } else {
                track.end(if status.is_client_error() {
                    Outcome::Validation
                } else {
                    Outcome::Internal
                });
            }
            Body::from(body)
        }
    };
    let mut response = Response::new(body);
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}

fn usage_of(answer: &[u8]) -> Usage {
    #[derive(Deserialize)]
    struct Answer {
        #[serde(default)]
        usage: Usage,
    }
    serde_json::from_slice::<Answer>(answer)
        .map(|answer| answer.usage)
        .unwrap_or_default()
}

async fn models(State(gateway): State<Arc<Gateway>>) -> axum::Json<Value> {
    let created = jiff::Timestamp::now().as_second();
    let describe = |name: &String| json!({"id": name, "object": "model", "created": created, "owned_by": "coppice"});
    let models: Vec<Value> = gateway.models.keys().map(describe).collect();
    axum::Json(json!({"object": "list", "data": models}))
}

async fn health(State(gateway): State<Arc<Gateway>>) -> (StatusCode, axum::Json<Value>) {
    let ready: Vec<&String> = gateway
        .models
        .iter()
        .filter(|(_, model)| model.is_ready())
        .map(|(name, _)| name)
        .collect();
    (
        StatusCode::OK,
        axum::Json(json!({"status": "healthy", "ready_models": ready})),
    )
}

async fn metrics_text(State(gateway): State<Arc<Gateway>>) -> Response {
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    (
        [(header::CONTENT_TYPE, kind)],
        metrics::render(&gateway.models),
    )
        .into_response()
}
