//! One HTTP request for one body, within limits.
//!
//! No redirects, no proxies, no cookies; a body is never larger than its limit, inflated or not. The connection is kept for
//! the next request. Servers that drop idle connections (llama.cpp does after five seconds) get one more try on a new one.

use std::future::{Future, poll_fn};
use std::io::Read;
use std::pin::{Pin, pin};
use std::task::Poll;

use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use http::header::{
    ACCEPT, ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HOST,
    TRANSFER_ENCODING, USER_AGENT,
};
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::Instant;

/// Bytes read from a connection at a time, and the most that response headers may have.
const READ_BUFFER: usize = 8 << 10;

/// Moves the bytes of a connection.
type Driver = Pin<Box<http1::Connection<TokioIo<TcpStream>, Empty<Bytes>>>>;

/// A connection to one endpoint.
pub(crate) struct Connection {
    sender: http1::SendRequest<Empty<Bytes>>,
    /// `None` once the connection has ended. Polled only together with a request.
    driver: Option<Driver>,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection")
            .field("open", &self.driver.is_some())
            .finish_non_exhaustive()
    }
}

/// A body that came.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fetched {
    /// When its headers came.
    pub(crate) at: Instant,
    /// Whether the transport vouches for its length.
    pub(crate) whole: bool,
}

/// Why no body came.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotFetched {
    /// No connection.
    #[error("cannot connect")]
    Connect(#[source] std::io::Error),
    /// The connection broke, or what came is not HTTP.
    #[error("the connection broke")]
    Transport(#[source] hyper::Error),
    /// The address or path cannot be requested.
    #[error("the address or path is malformed")]
    Malformed(#[source] http::Error),
    /// It answers with something other than 200.
    #[error("status {}{}", .0.as_u16(), hint(*.0))]
    Status(StatusCode),
    /// It answers with something that is no exposition.
    #[error("content type {0}{hint}", hint = type_hint(.0))]
    ContentType(String),
    /// It answers in an encoding that was not asked for.
    #[error("content encoding {0}")]
    Encoding(String),
    /// More bytes than allowed, inflated or not.
    #[error("the body exceeds {limit} bytes (limits.body_bytes)")]
    TooLarge {
        /// The limit.
        limit: usize,
    },
    /// The gzip data is broken or cut short.
    #[error("the gzip data is broken")]
    Inflate(#[source] std::io::Error),
}

impl NotFetched {
    /// A short name, for metrics.
    pub(crate) const fn category(&self) -> &'static str {
        match self {
            Self::Connect(_) => "connect",
            Self::Transport(_) => "transport",
            Self::Malformed(_) => "malformed_address",
            Self::Status(_) => "status",
            Self::ContentType(_) => "content_type",
            Self::Encoding(_) => "encoding",
            Self::TooLarge { .. } => "too_large",
            Self::Inflate(_) => "inflate",
        }
    }
}

fn hint(status: StatusCode) -> &'static str {
    match status {
        StatusCode::NOT_FOUND => ", no such path (SGLang needs --enable-metrics)",
        StatusCode::NOT_IMPLEMENTED => ", not implemented (llama.cpp needs --metrics)",
        status if status.is_redirection() => ", redirects are not followed",
        _ => "",
    }
}

fn type_hint(content_type: &str) -> &'static str {
    if content_type.starts_with("application/json") {
        ", no exposition (trtllm-serve: use the path /prometheus/metrics, which needs return_perf_metrics)"
    } else {
        ""
    }
}

/// Gets `path` from `address` into `body`, over `connection` where that still works.
///
/// Leaves the connection for the next request if the whole body was read. The deadline is the caller's: dropping the future
/// ends the request.
pub(crate) async fn fetch(
    connection: &mut Option<Connection>,
    address: &str,
    path: &str,
    limit: usize,
    body: &mut Vec<u8>,
) -> Result<Fetched, NotFetched> {
    // Taken out, so that a request that is dropped half way does not leave its connection behind.
    let kept = match connection.take() {
        Some(kept) => kept.ready().await,
        None => None,
    };
    let was_kept = kept.is_some();
    let mut current = match kept {
        Some(kept) => kept,
        None => Connection::open(address).await?,
    };
    let mut response = current.request(address, path).await;
    if was_kept && matches!(&response, Err(NotFetched::Transport(error)) if is_dropped(error)) {
        current = Connection::open(address).await?;
        response = current.request(address, path).await;
    }
    let response = response?;
    let at = Instant::now();
    let headers = response.headers().clone();
    check(response.status(), &headers)?;
    let length = headers
        .get(CONTENT_LENGTH)
        .and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    if length.is_some_and(|length| length > limit) {
        return Err(NotFetched::TooLarge { limit });
    }
    body.clear();
    current.collect(response, limit, body).await?;
    let whole = length.is_some() || headers.contains_key(TRANSFER_ENCODING);
    inflate(&headers, limit, body)?;
    *connection = Some(current);
    Ok(Fetched { at, whole })
}

/// Whether a kept connection had been dropped by the server before it saw the request.
fn is_dropped(error: &hyper::Error) -> bool {
    error.is_canceled()
        || error.is_closed()
        || error.is_incomplete_message()
        || error.is_body_write_aborted()
        || {
            let source = std::error::Error::source(error)
                .and_then(|source| source.downcast_ref::<std::io::Error>());
            source.is_some_and(|source| {
                matches!(
                    source.kind(),
                    std::io::ErrorKind::ConnectionReset | std::io::ErrorKind::BrokenPipe
                )
            })
        }
}

/// Refuses what cannot hold an exposition.
fn check(status: StatusCode, headers: &HeaderMap) -> Result<(), NotFetched> {
    if status != StatusCode::OK {
        return Err(NotFetched::Status(status));
    }
    let text = |name| {
        headers
            .get(name)
            .map(|value| String::from_utf8_lossy(value.as_bytes()).to_ascii_lowercase())
    };
    if let Some(content_type) = text(CONTENT_TYPE) {
        let refused = [
            "text/html",
            "application/json",
            "application/vnd.google.protobuf",
        ];
        if refused
            .iter()
            .any(|refused| content_type.starts_with(refused))
        {
            return Err(NotFetched::ContentType(
                content_type.chars().take(80).collect(),
            ));
        }
    }
    match text(CONTENT_ENCODING).as_deref() {
        None | Some("" | "identity" | "gzip" | "x-gzip") => Ok(()),
        Some(other) => Err(NotFetched::Encoding(other.chars().take(80).collect())),
    }
}

/// Inflates a gzip body; some proxies compress without saying so.
fn inflate(headers: &HeaderMap, limit: usize, body: &mut Vec<u8>) -> Result<(), NotFetched> {
    let said = headers
        .get(CONTENT_ENCODING)
        .is_some_and(|value| value.as_bytes().ends_with(b"gzip"));
    if !said && !body.starts_with(b"\x1f\x8b") {
        return Ok(());
    }
    let mut inflated = Vec::with_capacity(body.len().saturating_mul(4).min(limit));
    // One byte more than allowed tells a body that is too large from one that just fits.
    let mut reader = MultiGzDecoder::new(body.as_slice()).take(limit as u64 + 1);
    reader
        .read_to_end(&mut inflated)
        .map_err(NotFetched::Inflate)?;
    if inflated.len() > limit {
        return Err(NotFetched::TooLarge { limit });
    }
    *body = inflated;
    Ok(())
}

impl Connection {
    async fn open(address: &str) -> Result<Self, NotFetched> {
        let stream = TcpStream::connect(address)
            .await
            .map_err(NotFetched::Connect)?;
        stream.set_nodelay(true).map_err(NotFetched::Connect)?;
        let (sender, driver) = http1::Builder::new()
            .read_buf_exact_size(Some(READ_BUFFER))
            .handshake(TokioIo::new(stream))
            .await
            .map_err(NotFetched::Transport)?;
        Ok(Self {
            sender,
            driver: Some(Box::pin(driver)),
        })
    }

    /// Runs `work` while the connection moves its bytes.
    async fn drive<F: Future>(driver: &mut Option<Driver>, work: F) -> F::Output {
        let mut work = pin!(work);
        poll_fn(|context| {
            if let Poll::Ready(output) = work.as_mut().poll(context) {
                return Poll::Ready(output);
            }
            if let Some(connection) = driver
                && connection.as_mut().poll(context).is_ready()
            {
                *driver = None;
            }
            // What the connection has just moved may be what the work waits for.
            work.as_mut().poll(context)
        })
        .await
    }

    /// The connection, if it can take another request.
    async fn ready(mut self) -> Option<Self> {
        let Self { sender, driver } = &mut self;
        // Notices a server that closed in the meantime.
        if let Some(connection) = driver {
            let ended =
                poll_fn(|context| Poll::Ready(connection.as_mut().poll(context).is_ready())).await;
            if ended {
                return None;
            }
        }
        Self::drive(driver, sender.ready())
            .await
            .is_ok()
            .then_some(self)
    }

    async fn request(
        &mut self,
        address: &str,
        path: &str,
    ) -> Result<Response<Incoming>, NotFetched> {
        let request = Request::get(path)
            .header(HOST, address)
            .header(USER_AGENT, concat!("coppice/", env!("CARGO_PKG_VERSION")))
            // Newer Python servers escape colons when they are asked for OpenMetrics.
            .header(ACCEPT, "text/plain;version=0.0.4")
            // Compression costs the engine more than it saves the network.
            .header(ACCEPT_ENCODING, "identity")
            .body(Empty::new())
            .map_err(NotFetched::Malformed)?;
        let Self { sender, driver } = self;
        Self::drive(driver, sender.send_request(request))
            .await
            .map_err(NotFetched::Transport)
    }

    async fn collect(
        &mut self,
        response: Response<Incoming>,
        limit: usize,
        body: &mut Vec<u8>,
    ) -> Result<(), NotFetched> {
        let mut incoming = response.into_body();
        while let Some(frame) = Self::drive(&mut self.driver, incoming.frame()).await {
            let frame = frame.map_err(NotFetched::Transport)?;
            let Ok(bytes) = frame.into_data() else {
                continue;
            };
            if body.len() + bytes.len() > limit {
                return Err(NotFetched::TooLarge { limit });
            }
            body.extend_from_slice(&bytes);
        }
        Ok(())
    }
}
