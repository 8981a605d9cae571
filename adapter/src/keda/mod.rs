//! KEDA's external scaler: the metrics of the external API over KEDA's own protocol, for clusters in which KEDA owns that API.
//!
//! A trigger's metadata name a metric, a selector and a target ([`trigger`]); the namespace is always the ScaledObject's. Values are those
//! of [`crate::query`], to the thousandth. What has no value is the status UNAVAILABLE: KEDA then applies the ScaledObject's fallback, or
//! holds. It is never 0.
//!
//! KEDA does not say for whom it asks, so there are no rights to check per caller: whoever reaches the port may read the metrics of every
//! namespace. Let only KEDA reach it, by a client certificate ([`clients`]) or a NetworkPolicy.

mod clients;
mod service;
mod trigger;

/// Messages and service, generated from `proto/externalscaler.proto`; a test compares.
#[expect(
    unreachable_pub,
    clippy::allow_attributes_without_reason,
    reason = "generated"
)]
pub(crate) mod proto {
    include!("externalscaler.rs");
}

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use coppice_runtime::server::{self, Limits};
use coppice_runtime::tls::{ClientAuth, MinVersion, Tls};
use rustls::ServerConfig;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use crate::query::Sources;

pub(crate) use service::Scaler;

/// Flags of KEDA's port.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct KedaArgs {
    /// Address of KEDA's external scaler (gRPC); without it there is none
    #[arg(long, env = "COPPICE_KEDA_BIND_ADDRESS", value_name = "ADDRESS:PORT")]
    pub keda_bind_address: Option<SocketAddr>,
    /// Serve KEDA without TLS; otherwise with the certificate of the HTTPS endpoint (`enableTLS` and `caCert` of the trigger)
    #[arg(
        long,
        env = "COPPICE_KEDA_PLAINTEXT",
        requires = "keda_bind_address",
        conflicts_with = "keda_client_ca_file"
    )]
    pub keda_plaintext: bool,
    /// Certificates (PEM) of which one must have signed KEDA's own; without it whoever reaches the port is answered
    #[arg(
        long,
        env = "COPPICE_KEDA_CLIENT_CA_FILE",
        requires = "keda_bind_address",
        value_name = "FILE"
    )]
    pub keda_client_ca_file: Option<PathBuf>,
    /// Streams (triggers of type external-push) that are served at a time; more are refused
    #[arg(long, env = "COPPICE_KEDA_MAX_STREAMS", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000), value_name = "COUNT")]
    pub keda_max_streams: u32,
}

/// KEDA's port, open and not yet served.
#[derive(Debug)]
pub(crate) struct Port {
    listener: TcpListener,
    tls: Option<Arc<ServerConfig>>,
    streams: u32,
}

impl KedaArgs {
    /// Opens the port, if there is to be one. `stop` ends what keeps the clients' authorities current.
    ///
    /// # Errors
    /// When it cannot be opened, or the clients' authorities cannot be read.
    pub(crate) async fn open(
        &self,
        tls: &Tls,
        min_version: MinVersion,
        stop: CancellationToken,
    ) -> anyhow::Result<Option<Port>> {
        let Some(address) = self.keda_bind_address else {
            return Ok(None);
        };
        let tls = if self.keda_plaintext {
            None
        } else {
            let clients = match &self.keda_client_ca_file {
                Some(path) => ClientAuth::Verified(clients::follow(path, stop)?),
                None => ClientAuth::Off,
            };
            Some(tls.server_config(min_version, clients)?)
        };
        let (listener, _) = server::bind(address).await?;
        Ok(Some(Port {
            listener,
            tls,
            streams: self.keda_max_streams,
        }))
    }
}

impl Port {
    /// Answers until `stop`; streams end then, the rest within the limits' time.
    ///
    /// # Errors
    /// The number of streams does not fit this machine.
    pub(crate) async fn serve(
        self,
        sources: Sources,
        limits: Limits,
        stop: CancellationToken,
    ) -> anyhow::Result<()> {
        let places = usize::try_from(self.streams).context("--keda-max-streams is too large")?;
        let scaler = Scaler::new(sources, places, LOOK, stop.clone());
        let limits = Limits {
            // KEDA sends everything over one connection: all streams, and its other calls beside them.
            streams: self.streams.saturating_add(limits.streams),
            ..limits
        };
        let app = router(scaler);
        match self.tls {
            Some(tls) => server::serve_https(self.listener, tls, app, limits, stop).await,
            None => server::serve_http(self.listener, app, limits, stop).await,
        }
        Ok(())
    }
}

/// How often a stream looks for a change. Values change when something is scraped, every few seconds.
const LOOK: Duration = Duration::from_secs(1);

/// Bytes of one message. A trigger's metadata are a few hundred.
const MAX_MESSAGE_BYTES: usize = 64 * 1024;

/// The routes of KEDA's port.
pub(crate) fn router(scaler: Scaler) -> Router {
    let service = proto::external_scaler_server::ExternalScalerServer::new(scaler)
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES);
    Router::new()
        .route_service("/externalscaler.ExternalScaler/{method}", service)
        .fallback(async || {
            Status::unimplemented("only externalscaler.ExternalScaler is served here")
                .into_http::<axum::body::Body>()
        })
}

#[cfg(test)]
mod tests;
