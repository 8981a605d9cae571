//! The life of one engine: starting up, serving, draining, gone.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use coppice_runtime::server::{BindError, Limits, bind, serve_http};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::arguments::EngineConfig;
pub use super::handover::Neighbours;
use super::routes::{Server, router};
use super::simulation::Simulation;

/// Clients keep connections open between requests for this long.
const IDLE_CONNECTION: Duration = Duration::from_secs(300);
/// Time for the last bytes of answers to leave after the last request has ended.
const LAST_BYTES: Duration = Duration::from_secs(2);

/// The wishes of whoever owns an engine.
#[derive(Debug, Clone)]
pub struct Control {
    /// Cancelled: take no new requests, finish those that are here, end.
    pub drain: CancellationToken,
    /// How long finishing may take once `drain` is cancelled; `None`: the engine's own setting.
    pub grace: watch::Receiver<Option<Duration>>,
    /// True: `/metrics` answers what it said when this became true.
    pub frozen: watch::Receiver<bool>,
}

/// Runs one engine until it has drained. Dropping the future ends it at once, with its connections.
///
/// Flow: wait for the start-up time, listen, tell `on_listening` the address, serve. When `control` asks to drain, `/health` and new
/// requests answer 503; the engine ends with its last request (and, for a prefill engine, when its KV has been fetched), or when the
/// grace is over.
///
/// # Errors
/// The address cannot be listened on.
pub async fn run(
    config: EngineConfig,
    address: SocketAddr,
    neighbours: Neighbours,
    control: Control,
    on_listening: impl FnOnce(SocketAddr),
) -> Result<(), BindError> {
    let Control {
        drain,
        grace,
        mut frozen,
    } = control;
    tokio::select! {
        () = drain.cancelled() => return Ok(()),
        () = tokio::time::sleep(config.start_up) => {}
    }
    let (listener, address) = bind(address).await?;
    let default_grace = config.drain;
    let simulation = Simulation::new(&config, neighbours.clone());
    neighbours.enter(address, &simulation);
    let _leave = Leave {
        neighbours: &neighbours,
        address,
    };
    let server = Arc::new(Server::new(config, Arc::clone(&simulation), address));
    let closing = CancellationToken::new();
    let limits = Limits {
        connections: 1 << 16,
        headers: IDLE_CONNECTION,
        drain: LAST_BYTES,
        ..Limits::default()
    };
    let serving = serve_http(
        listener,
        router(Arc::clone(&server)),
        limits,
        closing.clone(),
    );
    on_listening(address);

    let freezing = async {
        loop {
            let wish = *frozen.borrow_and_update();
            server.freeze(wish);
            if frozen.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    };
    let draining = async {
        drain.cancelled().await;
        simulation.drain();
        let grace = grace.borrow().unwrap_or(default_grace);
        info!(%address, grace_seconds = grace.as_secs_f64(), "draining");
        if tokio::time::timeout(grace, simulation.empty())
            .await
            .is_err()
        {
            let left = simulation.look(coppice_engine::Engine::load);
            let (requests, kept) = (left.running + left.waiting(), left.kept);
            warn!(%address, requests, kept, "requests or kept KV did not end in time and are dropped");
        }
        closing.cancel();
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = serving => {}
        () = Arc::clone(&simulation).run() => {}
        () = freezing => {}
        () = draining => {}
    }
    Ok(())
}

/// Takes the engine out of its neighbours' book, also when it is ended from outside.
struct Leave<'a> {
    neighbours: &'a Neighbours,
    address: SocketAddr,
}

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        self.neighbours.leave(self.address);
    }
}
