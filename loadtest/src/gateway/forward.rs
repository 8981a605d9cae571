//! Getting a request answered: choosing engines, calling them, trying again.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::http::{HeaderMap, HeaderName, Request, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use serde_json::value::RawValue;
use tracing::{debug, warn};

use super::models::{Model, Route};
use super::pool::{Backend, Place};
use super::rewrite;
use crate::openai::error::ApiError;
use crate::openai::{CACHED_TOKENS_HEADER, Endpoint};

/// Engines tried for one request before it fails.
const ATTEMPTS: usize = 3;
/// Time to reach an engine; they are near.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Idle connections are given up before engines do it.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// The largest answer that is read whole.
const ANSWER_LIMIT: usize = 64 << 20;

/// A client of the engines.
#[derive(Debug, Clone)]
pub(crate) struct Forwarder {
    client: Client<HttpConnector, Full<Bytes>>,
}

/// A request as it came.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) endpoint: Endpoint,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) prompt_tokens: u32,
    pub(crate) stream: bool,
}

/// An answer that has begun: nothing has reached the client, and from here on no other engine can step in.
#[derive(Debug)]
pub(crate) struct Begun {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    /// All of it, or where it is streamed, its beginning.
    pub(crate) body: Bytes,
    /// What follows of a stream.
    pub(crate) rest: Option<Incoming>,
    /// Who makes it.
    pub(crate) place: Place,
}

/// Why an attempt came to nothing.
enum Missed {
    /// Another engine may do better; what to answer when there is none.
    TryAnother(ApiError),
    /// Nobody would.
    GiveUp(ApiError),
}

impl Forwarder {
    pub(crate) fn new() -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_TIMEOUT)
            .build(connector);
        Self { client }
    }

    /// Gets the answer going.
    ///
    /// # Errors
    /// 503 when no engine is ready or every one tried failed, 400 when the body cannot be rewritten.
    pub(crate) async fn begin(&self, model: &Model, asked: &Asked) -> Result<Begun, ApiError> {
        let mut avoid = Vec::new();
        let mut attempt = 1;
        loop {
            match self.attempt(model, asked, &mut avoid).await {
                Ok(begun) => return Ok(begun),
                Err(Missed::GiveUp(error)) => return Err(error),
                Err(Missed::TryAnother(error)) if attempt == ATTEMPTS => return Err(error),
                Err(Missed::TryAnother(error)) => debug!(
                    model = model.name,
                    attempt,
                    error = error.message,
                    "trying another engine"
                ),
            }
            attempt += 1;
        }
    }

    async fn attempt(
        &self,
        model: &Model,
        asked: &Asked,
        avoid: &mut Vec<Arc<Backend>>,
    ) -> Result<Begun, Missed> {
        let tokens = asked.prompt_tokens;
        let route = model.route(tokens, avoid).await.map_err(Missed::GiveUp)?;
        let prefill = match route {
            Route::Whole(place) => {
                return self
                    .answer(
                        place,
                        asked,
                        asked.headers.clone(),
                        asked.body.clone(),
                        avoid,
                    )
                    .await;
            }
            Route::Split(place) => place,
        };
        let kv_transfer = match self.prefill(prefill, asked, avoid).await? {
            Prompt::Done(kv_transfer) => kv_transfer,
            Prompt::Refused(begun) => return Ok(*begun),
        };
        let decode = model
            .route_answer(tokens, avoid)
            .await
            .map_err(Missed::GiveUp)?;
        let mut headers = asked.headers.clone();
        // The prefix is cached where the prompt was worked off, not here.
        headers.remove(CACHED_TOKENS_HEADER);
        let body = match kv_transfer {
            Some(kv_transfer) => rewrite::for_decode(&asked.body, &kv_transfer)
                .map_err(Missed::GiveUp)?
                .into(),
            None => asked.body.clone(),
        };
        self.answer(decode, asked, headers, body, avoid).await
    }

    /// Has the prompt worked off.
    async fn prefill(
        &self,
        place: Place,
        asked: &Asked,
        avoid: &mut Vec<Arc<Backend>>,
    ) -> Result<Prompt, Missed> {
        let body = rewrite::for_prefill(&asked.body).map_err(Missed::GiveUp)?;
        let asked = Asked {
            headers: asked.headers.clone(),
            body: body.into(),
            stream: false,
            ..*asked
        };
        let (headers, body) = (asked.headers.clone(), asked.body.clone());
        let begun = self.answer(place, &asked, headers, body, avoid).await?;
        if !begun.status.is_success() {
            return Ok(Prompt::Refused(Box::new(begun)));
        }
        let engine = &begun.place.backend().name;
        match rewrite::kv_transfer_of(&begun.body) {
            Ok(Some(kv_transfer)) => Ok(Prompt::Done(Some(kv_transfer))),
            Ok(None) => {
                warn!(
                    engine,
                    "a prefill engine kept no KV; the decode engine computes the prompt again"
                );
                Ok(Prompt::Done(None))
            }
            Err(error) => Err(Missed::GiveUp(ApiError::bad_gateway(format!(
                "prefill engine {engine} answered no JSON: {error}"
            )))),
        }
    }

    /// Calls one engine, up to the first part of its answer.
    async fn answer(
        &self,
        place: Place,
        asked: &Asked,
        headers: HeaderMap,
        body: Bytes,
        avoid: &mut Vec<Arc<Backend>>,
    ) -> Result<Begun, Missed> {
        let backend = Arc::clone(place.backend());
        let mut failed = |what: String, is_suspect: bool| {
            if is_suspect {
                backend.suspect();
            }
            avoid.push(Arc::clone(&backend));
            let message = format!("engine {} {what}", backend.name);
            Missed::TryAnother(ApiError::unavailable(message, 1))
        };
        let uri = format!(
            "http://{}{}{}",
            backend.url.authority(),
            backend.url.path,
            asked.endpoint.path()
        );
        let mut request = Request::post(uri).body(Full::new(body)).map_err(|error| {
            Missed::GiveUp(ApiError::bad_gateway(format!(
                "engine {} has no usable address: {error}",
                backend.name
            )))
        })?;
        *request.headers_mut() = end_to_end(headers);
        let response = match self.client.request(request).await {
            Ok(response) => response,
            Err(error) => {
                return Err(failed(
                    format!("could not be reached: {}", cause(&error)),
                    true,
                ));
            }
        };
        let (head, mut incoming) = response.into_parts();
        if head.status == StatusCode::SERVICE_UNAVAILABLE {
            return Err(failed("takes no requests".to_owned(), false));
        }
        let headers = end_to_end(head.headers);
        if asked.stream && head.status.is_success() {
            return match first_part(&mut incoming).await {
                Ok(Some(body)) => Ok(Begun {
                    status: head.status,
                    headers,
                    body,
                    rest: Some(incoming),
                    place,
                }),
                Ok(None) => Err(failed("ended its answer before it began".to_owned(), true)),
                Err(error) => Err(failed(
                    format!("broke off before its first token: {}", cause(&error)),
                    true,
                )),
            };
        }
        match Limited::new(incoming, ANSWER_LIMIT).collect().await {
            Ok(body) => Ok(Begun {
                status: head.status,
                headers,
                body: body.to_bytes(),
                rest: None,
                place,
            }),
            Err(error) => Err(failed(
                format!("broke off its answer: {}", cause(error.as_ref())),
                true,
            )),
        }
    }
}

/// What became of a prompt.
enum Prompt {
    /// Worked off; where its KV is, when it was kept.
    Done(Option<Box<RawValue>>),
    /// The engine refused the request; its answer is the client's.
    Refused(Box<Begun>),
}

async fn first_part(body: &mut Incoming) -> Result<Option<Bytes>, hyper::Error> {
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame?.into_data()
            && !data.is_empty()
        {
            return Ok(Some(data));
        }
    }
    Ok(None)
}

/// The innermost reason: outer ones only say that sending failed.
pub(crate) fn cause(error: &(dyn std::error::Error + 'static)) -> String {
    let mut inner = error;
    while let Some(source) = inner.source() {
        inner = source;
    }
    inner.to_string()
}

/// Headers without those that belong to one connection.
fn end_to_end(mut headers: HeaderMap) -> HeaderMap {
    const OF_A_CONNECTION: [HeaderName; 9] = [
        header::CONNECTION,
        header::HOST,
        header::CONTENT_LENGTH,
        header::TRANSFER_ENCODING,
        header::TE,
        header::TRAILER,
        header::UPGRADE,
        header::EXPECT,
        header::DATE,
    ];
    for name in OF_A_CONNECTION {
        headers.remove(name);
    }
    headers
}
