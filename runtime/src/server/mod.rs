//! Serving HTTP and HTTPS from one accept loop.
//!
//! Limits come from outside trust: handshakes, headers, streams and connections are bounded. When draining begins, the listener stays
//! open for the lame-duck time, then connections are asked to end (GOAWAY on HTTP/2, `connection: close` on HTTP/1.1), requests in
//! flight finish, and what is left after the grace time is dropped.

mod connection;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use rustls::ServerConfig;
use rustls_pki_types::CertificateDer;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};

/// Who is at the other end of a connection; an extension of every request.
#[derive(Debug, Clone)]
pub struct Peer {
    /// Its address.
    pub address: SocketAddr,
    /// The certificate it proved to own, leaf first, then what it sent along. Empty without TLS or without a certificate.
    /// Whether the chain is trusted is decided by the verifier of the TLS configuration, or later by the handler.
    pub certificates: Arc<[CertificateDer<'static>]>,
}

/// Bounds of a server.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Connections at a time; more wait in the listener's queue.
    pub connections: usize,
    /// Time for a TLS handshake.
    pub handshake: Duration,
    /// Time to receive the headers of an HTTP/1.1 request, also of the first one.
    pub headers: Duration,
    /// Bytes of headers.
    pub header_bytes: u32,
    /// Requests at a time on one HTTP/2 connection.
    pub streams: u32,
    /// Age at which a connection is asked to end, so that load spreads again over replicas; up to a tenth is added at random. `None`: never.
    pub connection_age: Option<Duration>,
    /// How long new connections are still accepted after draining began.
    pub lame_duck: Duration,
    /// How long requests in flight may take after that.
    pub drain: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 4096,
            handshake: Duration::from_secs(5),
            headers: Duration::from_secs(10),
            header_bytes: 64 * 1024,
            streams: 100,
            connection_age: None,
            lame_duck: Duration::ZERO,
            drain: Duration::from_secs(20),
        }
    }
}

/// A listener could not be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}")]
pub struct BindError {
    /// The address that was asked for.
    pub address: SocketAddr,
    /// What the system says.
    #[source]
    pub source: std::io::Error,
}

/// Opens a listener; port 0 takes a free one. Returns the address it got, too.
///
/// # Errors
/// [`BindError`] when the address is taken or not ours.
pub async fn bind(address: SocketAddr) -> Result<(TcpListener, SocketAddr), BindError> {
    let wrong = |source| BindError { address, source };
    let listener = TcpListener::bind(address).await.map_err(wrong)?;
    let bound = listener.local_addr().map_err(wrong)?;
    Ok((listener, bound))
}

/// Serves plain HTTP/1.1 and HTTP/2 until `draining` is cancelled and the last request has ended.
pub async fn serve_http(
    listener: TcpListener,
    app: Router,
    limits: Limits,
    draining: CancellationToken,
) {
    accept_loop(listener, None, app, limits, draining).await;
}

/// Serves HTTPS until `draining` is cancelled and the last request has ended. `tls` comes from [`crate::tls::Tls::server_config`].
pub async fn serve_https(
    listener: TcpListener,
    tls: Arc<ServerConfig>,
    app: Router,
    limits: Limits,
    draining: CancellationToken,
) {
    accept_loop(
        listener,
        Some(TlsAcceptor::from(tls)),
        app,
        limits,
        draining,
    )
    .await;
}

async fn accept_loop(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    app: Router,
    limits: Limits,
    draining: CancellationToken,
) {
    if let Ok(address) = listener.local_addr() {
        info!(%address, tls = tls.is_some(), "listening");
    }
    let places = Arc::new(Semaphore::new(limits.connections));
    let closing = CancellationToken::new();
    let aborting = CancellationToken::new();
    // Also when this future is dropped.
    let _abort = aborting.clone().drop_guard();
    let connections = TaskTracker::new();
    let duck = async {
        draining.cancelled().await;
        tokio::time::sleep(limits.lame_duck).await;
    };
    let mut duck = std::pin::pin!(duck);
    loop {
        let accepted = tokio::select! {
            biased;
            () = &mut duck => break,
            accepted = accept(&listener, &places) => accepted,
        };
        match accepted {
            Ok((stream, address, place)) => {
                let serving = connection::serve(
                    stream,
                    address,
                    tls.clone(),
                    app.clone(),
                    limits.clone(),
                    closing.clone(),
                );
                let aborting = aborting.clone();
                connections.spawn(async move {
                    tokio::select! {
                        () = serving => {}
                        () = aborting.cancelled() => {}
                    }
                    drop(place);
                });
            }
            Err(error) => {
                // Out of file descriptors, or the peer is gone already: others are served, then it is tried again.
                warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    closing.cancel();
    connections.close();
    if tokio::time::timeout(limits.drain, connections.wait())
        .await
        .is_err()
    {
        warn!(
            open = connections.len(),
            "connections did not end in time and are dropped"
        );
    }
}

const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

async fn accept(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> std::io::Result<(
    tokio::net::TcpStream,
    SocketAddr,
    tokio::sync::OwnedSemaphorePermit,
)> {
    let place = Arc::clone(places)
        .acquire_owned()
        .await
        .map_err(std::io::Error::other)?;
    let (stream, address) = listener.accept().await?;
    Ok((stream, address, place))
}

#[cfg(test)]
mod tests;
