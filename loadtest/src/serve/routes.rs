//! The engine's HTTP interface.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use coppice_engine::{FinishReason, Request, SubmitError};
use parking_lot::{Mutex, RwLock};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

use super::answer::Pending;
use super::arguments::{EngineConfig, Role};
use super::handover::{KvSource, RELEASE_PATH};
use super::metrics::{self, Snapshot};
use super::render::Answer;
use super::simulation::{Handover, Simulation};
use crate::openai::error::ApiError;
use crate::openai::request::GenerationRequest;
use crate::openai::{BODY_LIMIT, ENGINE_HEADER, Endpoint};

/// One engine as its clients see it.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) config: EngineConfig,
    pub(crate) simulation: Arc<Simulation>,
    address: SocketAddr,
    name: HeaderValue,
    /// Makes names of requests differ from those of every other engine.
    salt: u64,
    serial: AtomicU64,
    /// Seconds since 1970.
    started: f64,
    answered: [StatusCounts; 2],
    /// The body that `/metrics` is stuck at.
    frozen: RwLock<Option<Bytes>>,
    random: Mutex<ChaCha8Rng>,
}

/// Answers of an endpoint by the first digit of their status.
#[derive(Debug, Default)]
pub(crate) struct StatusCounts {
    pub(crate) success: AtomicU64,
    pub(crate) client_error: AtomicU64,
    pub(crate) server_error: AtomicU64,
}

impl Server {
    pub(crate) fn new(
        config: EngineConfig,
        simulation: Arc<Simulation>,
        address: SocketAddr,
    ) -> Self {
        let name = config.name.clone().unwrap_or_else(|| address.to_string());
        let name = HeaderValue::from_str(&name).unwrap_or(HeaderValue::from_static("engine"));
        let random = ChaCha8Rng::seed_from_u64(config.settings.seed ^ 0x414e_5357_4552_5321);
        let started = jiff::Timestamp::now().as_duration().as_secs_f64();
        Self {
            config,
            simulation,
            address,
            name,
            salt: rand::random(),
            serial: AtomicU64::new(0),
            started,
            answered: Default::default(),
            frozen: RwLock::new(None),
            random: Mutex::new(random),
        }
    }

    /// Lets `/metrics` answer what it says now until it is thawed.
    pub(crate) fn freeze(&self, frozen: bool) {
        let body = frozen.then(|| self.metrics());
        *self.frozen.write() = body;
    }

    fn metrics(&self) -> Bytes {
        if let Some(frozen) = self.frozen.read().as_ref() {
            return frozen.clone();
        }
        let failed_notifications = self.simulation.failed_notifications();
        let text = self.simulation.look(|engine| {
            metrics::render(&Snapshot {
                model: &self.config.model,
                role: self.config.role,
                load: engine.load(),
                statistics: engine.statistics(),
                settings: engine.settings(),
                context_limit: engine.context_limit(),
                started: self.started,
                failed_notifications,
                answered: &self.answered,
            })
        });
        text.into()
    }

    fn generate(
        &self,
        endpoint: Endpoint,
        headers: &HeaderMap,
        body: &[u8],
    ) -> Result<Accepted, ApiError> {
        let asked = GenerationRequest::parse(endpoint, headers, body)?;
        if !asked.model.is_empty() && asked.model != self.config.model {
            return Err(ApiError::unknown_model(&asked.model, &self.config.model));
        }
        let serial = self.serial.fetch_add(1, Ordering::Relaxed);
        let created = jiff::Timestamp::now().as_second();
        let answer = Answer::new(
            endpoint,
            &format!("{:016x}{serial:016x}", self.salt),
            created,
            &self.config.model,
        );
        let transfer = asked.kv_transfer.clone().unwrap_or_default();
        let limit = self.simulation.look(coppice_engine::Engine::context_limit);
        let handover = Handover {
            keep_as: transfer.do_remote_decode.then(|| answer.id().to_owned()),
            source: if transfer.do_remote_prefill {
                KvSource::of(&transfer)
            } else {
                None
            },
        };
        let ticket = self
            .simulation
            .submit(self.lengths(&asked, limit), handover)
            .map_err(|error| match error {
                SubmitError::Draining => ApiError::unavailable(
                    "the engine is draining; send the request to another one",
                    1,
                ),
                other => ApiError::bad_request("max_tokens", other.to_string()),
            })?;
        let kv_transfer = transfer
            .do_remote_decode
            .then(|| self.kv_transfer(headers, answer.id(), asked.prompt_tokens));
        Ok(Accepted {
            pending: Pending {
                ticket,
                answer,
                prompt_tokens: asked.prompt_tokens,
                cached_tokens: asked.cached_tokens,
            },
            asked,
            kv_transfer,
        })
    }

    /// What the engine is asked to do.
    fn lengths(&self, asked: &GenerationRequest, limit: u32) -> Request {
        let room = limit.saturating_sub(asked.prompt_tokens).max(1);
        let default = NonZeroU32::new(self.config.default_max_tokens.get().min(room))
            .unwrap_or(NonZeroU32::MIN);
        let max_tokens = asked.max_tokens_or(default);
        let stops_after = if asked.ignore_eos {
            None
        } else {
            self.draw_stop()
        };
        let (output_tokens, ends_with) = match stops_after.map(|stop| stop.max(asked.min_tokens)) {
            Some(stop) if stop < max_tokens => (stop, FinishReason::Stop),
            Some(_) | None => (max_tokens, FinishReason::Length),
        };
        let transfer = asked.kv_transfer.as_ref();
        let is_remote = transfer.is_some_and(|transfer| transfer.do_remote_prefill);
        Request {
            prompt_tokens: asked.prompt_tokens,
            output_tokens,
            cached_tokens: asked.cached_tokens,
            remote_tokens: if is_remote { asked.prompt_tokens } else { 0 },
            keeps_kv: transfer.is_some_and(|transfer| transfer.do_remote_decode),
            max_tokens,
            ends_with,
        }
    }

    /// After how many tokens, `1..`, the model ends its answer, when it may: geometric.
    fn draw_stop(&self) -> Option<u32> {
        let probability = self.config.stop_probability;
        if probability <= 0.0 {
            return None;
        }
        let uniform: f64 = self.random.lock().random();
        let tokens = ((1.0 - uniform).ln() / (1.0 - probability).ln()).floor() + 1.0;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "at least 1, and the cast saturates"
        )]
        Some(tokens as u32)
    }

    /// Where a decode engine finds the KV: the address by which this engine was reached.
    fn kv_transfer(&self, headers: &HeaderMap, request: &str, prompt_tokens: u32) -> Value {
        let reached: Option<axum::http::uri::Authority> = headers
            .get(header::HOST)
            .and_then(|host| host.to_str().ok())
            .and_then(|host| host.parse().ok());
        let (host, port) = match &reached {
            Some(authority) => {
                let host = authority
                    .host()
                    .trim_start_matches('[')
                    .trim_end_matches(']');
                (host.to_owned(), authority.port_u16().unwrap_or(80))
            }
            None => (self.address.ip().to_string(), self.address.port()),
        };
        // A real connector lists every block; nobody reads the list here, so one entry stands for them.
        let blocks = prompt_tokens.div_ceil(coppice_engine::BLOCK_TOKENS);
        json!({
            "do_remote_prefill": true,
            "do_remote_decode": false,
            "remote_engine_id": self.name.to_str().unwrap_or_default(),
            "remote_request_id": request,
            "remote_block_ids": [[blocks]],
            "remote_host": host,
            "remote_port": port,
            "tp_size": self.config.tensor_parallel,
        })
    }
}

/// A request the engine has taken.
struct Accepted {
    pending: Pending,
    asked: GenerationRequest,
    kv_transfer: Option<Value>,
}

/// Routes of one engine.
pub(crate) fn router(server: Arc<Server>) -> Router {
    Router::new()
        .route(Endpoint::Completions.path(), post(completions))
        .route(Endpoint::ChatCompletions.path(), post(chat_completions))
        .route("/v1/models", get(models))
        .route("/health", get(health))
        .route("/metrics", get(metrics_text))
        .route(&format!("{RELEASE_PATH}{{request}}"), post(release))
        .layer(DefaultBodyLimit::max(BODY_LIMIT))
        .with_state(server)
}

async fn completions(
    State(server): State<Arc<Server>>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    generation(&server, Endpoint::Completions, &headers, body).await
}

async fn chat_completions(
    State(server): State<Arc<Server>>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    generation(&server, Endpoint::ChatCompletions, &headers, body).await
}

async fn generation(
    server: &Server,
    endpoint: Endpoint,
    headers: &HeaderMap,
    body: Bytes,
) -> Response {
    let accepted = server.generate(endpoint, headers, &body);
    drop(body);
    let mut response = match accepted {
        Ok(Accepted { pending, asked, .. }) if asked.stream => pending.stream(asked.include_usage),
        Ok(Accepted {
            pending,
            kv_transfer,
            ..
        }) => pending.whole(kv_transfer).await,
        Err(error) => error.into_response(),
    };
    server.answered[endpoint as usize].count(response.status());
    response
        .headers_mut()
        .insert(HeaderName::from_static(ENGINE_HEADER), server.name.clone());
    response
}

impl StatusCounts {
    fn count(&self, status: StatusCode) {
        let counter = if status.is_success() {
            &self.success
        } else if status.is_client_error() {
            &self.client_error
        } else {
            &self.server_error
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

async fn models(State(server): State<Arc<Server>>) -> axum::Json<Value> {
    let model = &server.config.model;
    let limit = server
        .simulation
        .look(coppice_engine::Engine::context_limit);
    axum::Json(json!({"object": "list", "data": [{
        "id": model, "object": "model", "created": jiff::Timestamp::now().as_second(), "owned_by": "vllm",
        "root": model, "parent": null, "max_model_len": limit,
    }]}))
}

async fn health(State(server): State<Arc<Server>>) -> StatusCode {
    if server.simulation.is_draining() {
        StatusCode::SERVICE_UNAVAILABLE
    } else {
        StatusCode::OK
    }
}

async fn metrics_text(State(server): State<Arc<Server>>) -> Response {
    let kind = HeaderValue::from_static("text/plain; version=1.0.0; charset=utf-8");
    ([(header::CONTENT_TYPE, kind)], server.metrics()).into_response()
}

async fn release(State(server): State<Arc<Server>>, Path(request): Path<String>) -> StatusCode {
    if server.simulation.release(&request) {
        StatusCode::NO_CONTENT
    } else {
        StatusCode::NOT_FOUND
    }
}

impl Role {
    /// Whether the engine takes part in KV transfers.
    pub(crate) fn transfers_kv(self) -> bool {
        match self {
            Self::Aggregated => false,
            Self::Prefill | Self::Decode => true,
        }
    }
}
