//! Telling a prefill engine that its KV has been fetched.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use parking_lot::RwLock;
use tracing::debug;

use super::simulation::Simulation;
use crate::openai::request::KvTransfer;

/// Path under which an engine is told to forget the KV of a request, followed by the request's name.
pub(crate) const RELEASE_PATH: &str = "/internal/kv/release/";

/// An answer to that takes longer than this is not waited for; the KV then expires on its own.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);

/// Where the KV of a request is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KvSource {
    host: String,
    port: u16,
    request: String,
}

impl KvSource {
    /// The source a decode request names, when it names one.
    pub(crate) fn of(transfer: &KvTransfer) -> Option<Self> {
        Some(Self {
            host: transfer.remote_host.clone()?,
            port: transfer.remote_port?,
            request: transfer.remote_request_id.clone()?,
        })
    }
}

/// The engines of this process by address, and a client for the others.
#[derive(Debug, Clone)]
pub struct Neighbours {
    here: Arc<RwLock<BTreeMap<SocketAddr, Weak<Simulation>>>>,
    client: Client<HttpConnector, Body>,
}

impl Default for Neighbours {
    fn default() -> Self {
        Self {
            here: Arc::default(),
            client: Client::builder(TokioExecutor::new()).build_http(),
        }
    }
}

impl Neighbours {
    pub(crate) fn enter(&self, address: SocketAddr, simulation: &Arc<Simulation>) {
        self.here
            .write()
            .insert(address, Arc::downgrade(simulation));
    }

    pub(crate) fn leave(&self, address: SocketAddr) {
        self.here.write().remove(&address);
    }

    /// Lets the source forget the KV, in the background; `failures` counts those that could not be told.
    ///
    /// Never in the caller's own turn, also for an engine next door: the caller may hold its engine, and two engines that fetch
    /// from each other would wait for each other.
    pub(crate) fn release(&self, source: KvSource, failures: &Arc<AtomicU64>) {
        let address = source
            .host
            .parse()
            .ok()
            .map(|host| SocketAddr::new(host, source.port));
        let near =
            address.and_then(|address| self.here.read().get(&address).and_then(Weak::upgrade));
        let (client, failures) = (self.client.clone(), Arc::clone(failures));
        tokio::spawn(async move {
            if let Some(near) = near {
                near.release(&source.request);
                return;
            }
            if let Err(error) = release_far(&client, &source).await {
                let KvSource { host, port, .. } = &source;
                debug!(host, port, %error, "prefill engine not told that its KV was fetched");
                failures.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
}

async fn release_far(
    client: &Client<HttpConnector, Body>,
    source: &KvSource,
) -> anyhow::Result<()> {
    let host = if source.host.contains(':') {
        format!("[{}]", source.host)
    } else {
        source.host.clone()
    };
    let uri = format!(
        "http://{host}:{}{RELEASE_PATH}{}",
        source.port, source.request
    );
    let request = Request::post(uri).body(Body::empty())?;
    let response = tokio::time::timeout(RELEASE_TIMEOUT, client.request(request)).await??;
    anyhow::ensure!(
        response.status().is_success(),
        "answered {}",
        response.status()
    );
    Ok(())
}
