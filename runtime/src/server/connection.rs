//! One connection from its handshake to its end.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;
use tracing::debug;

use super::{Limits, Peer};
use crate::telemetry::chain;

pub(super) async fn serve(
    stream: TcpStream,
    address: SocketAddr,
    tls: Option<TlsAcceptor>,
    app: Router,
    limits: Limits,
    closing: CancellationToken,
) {
    if let Err(error) = stream.set_nodelay(true) {
        debug!(%address, %error, "connection ended before it began");
        return;
    }
    let Some(tls) = tls else {
        let peer = Peer {
            address,
            certificates: Arc::from([]),
        };
        return exchange(stream, peer, app, &limits, &closing).await;
    };
    match tokio::time::timeout(limits.handshake, tls.accept(stream)).await {
        Ok(Ok(stream)) => {
            let certificates = stream.get_ref().1.peer_certificates().unwrap_or_default();
            let peer = Peer {
                address,
                certificates: certificates
                    .iter()
                    .map(|der| der.clone().into_owned())
                    .collect(),
            };
            exchange(stream, peer, app, &limits, &closing).await;
        }
        Ok(Err(error)) => debug!(%address, %error, "handshake failed"),
        Err(_) => debug!(%address, limit = ?limits.handshake, "handshake took too long"),
    }
}

async fn exchange<S>(
    stream: S,
    peer: Peer,
    app: Router,
    limits: &Limits,
    closing: &CancellationToken,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.headers)
        .max_buf_size(
            usize::try_from(limits.header_bytes)
                .unwrap_or(usize::MAX)
                .max(8 * 1024),
        )
        .http2()
        .timer(TokioTimer::new())
        .max_header_list_size(limits.header_bytes)
        .max_concurrent_streams(limits.streams)
        .keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE);
    let address = peer.address;
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(peer.clone());
        app.clone().oneshot(request)
    });
    let mut connection =
        pin!(builder.serve_connection_with_upgrades(TokioIo::new(stream), service));
    let mut too_old = pin!(reach_age(limits.connection_age));
    let mut is_ending = false;
    let outcome = loop {
        tokio::select! {
            outcome = connection.as_mut() => break outcome,
            () = closing.cancelled(), if !is_ending => {}
            () = &mut too_old, if !is_ending => {}
        }
        is_ending = true;
        connection.as_mut().graceful_shutdown();
    };
    if let Err(error) = outcome {
        debug!(%address, error = %chain(error.as_ref()), "connection ended with an error");
    }
}

/// Silent HTTP/2 peers are asked for a sign of life this often, and given this long to answer.
const KEEP_ALIVE: Duration = Duration::from_secs(30);

async fn reach_age(age: Option<Duration>) {
    match age {
        Some(age) => tokio::time::sleep(age.mul_f64(1.0 + 0.1 * rand::random::<f64>())).await,
        None => std::future::pending().await,
    }
}
