//! `serve`: everything put together.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use coppice_runtime::health::Readiness;
use coppice_runtime::server::{self, Limits};
use coppice_runtime::shutdown::Shutdown;
use coppice_runtime::tls::ClientAuth;
use coppice_runtime::{admin, client};
use coppice_signals::Signals;
use parking_lot::RwLock;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::api::{self, Endpoint};
use crate::authn::{Authenticator, Tokens, watch_config};
use crate::authz::Authorizer;
use crate::discovery::Discovery;
use crate::keda;
use crate::metrics::Measured;
use crate::query::Sources;
use crate::register;
use crate::rules::{Follower, Rules};
use crate::settings::ServeArgs;
use crate::wanted::WantedReplicas;

/// Time for requests in flight after new connections are no longer accepted.
const DRAIN: Duration = Duration::from_secs(10);

/// How often conditions are looked at that nobody announces.
const LOOK: Duration = Duration::from_millis(200);

/// Scrapes and serves until told to end.
pub(crate) async fn serve(args: ServeArgs, kube: client::KubeArgs) -> anyhow::Result<()> {
    let shutdown = Shutdown::install().context("cannot listen for signals")?;
    let stop = shutdown.draining();
    let kube = client::connect(&kube).await?;
    let namespace = kube.default_namespace().to_owned();

    let Measured {
        registry,
        requests: metrics,
        rules: rule_metrics,
        signals,
    } = Measured::new();
    let signals = Signals::new(args.scrape.settings(), signals)?;
    let rules = Rules::default();
    let discovery = Arc::new(RwLock::new(Discovery::new(args.apis, &[])));
    if let Some(path) = &args.rules {
        let follower = Follower::start(
            path.clone(),
            signals.clone(),
            rules.clone(),
            Arc::clone(&discovery),
            args.apis,
            rule_metrics,
        )?;
        tokio::spawn(follower.run(stop.clone()));
    }

    let readiness = Readiness::default();
    readiness.follow(stop.clone());
    let config = watch_config(
        kube.clone(),
        readiness.require("authentication"),
        stop.clone(),
    );
    let pods = readiness.require("pods");
    pods.set_unmet("pods are still being listed");

    // What is scraped and watched goes on while the last requests are answered.
    let collecting = CancellationToken::new();
    let _collecting = collecting.clone().drop_guard();
    tokio::spawn(signals.clone().run(collecting.clone()));
    tokio::spawn(coppice_signals::watch_pods(
        signals.clone(),
        kube.clone(),
        args.scrape.pods(),
        collecting.clone(),
    ));
    let lease_namespace = args.scaler_lease_namespace.as_deref().unwrap_or(&namespace);
    let wanted = WantedReplicas::watch(
        &kube,
        args.scrape.namespace.as_deref(),
        lease_namespace,
        &collecting,
    );

    let (listener, bound) = server::bind(args.bind_address).await?;
    let address = args.address(&namespace, bound);
    let tls = args
        .tls
        .start(address.names(), &kube, &namespace, collecting.clone())
        .await?;
    let tls_config = tls.server_config(args.tls.tls_min_version, ClientAuth::Requested)?;
    if let Some(registration) = args.registration(&address) {
        tokio::spawn(register::keep(
            kube.clone(),
            registration,
            tls.ca_bundle(),
            stop.clone(),
        ));
    }
    let keda = args
        .keda
        .open(&tls, args.tls.tls_min_version, collecting.clone())
        .await?;
    let (admin_listener, _) = server::bind(args.admin.admin_address).await?;

    let places = usize::try_from(args.max_requests)
        .context("--max-requests is too large for this machine")?;
    let sources = Sources {
        signals: signals.clone(),
        wanted,
        rules,
        metrics: metrics.clone(),
    };
    let endpoint = Endpoint {
        authenticator: Authenticator::new(config, Tokens::new(kube.clone()), args.anonymous),
        authorizer: Authorizer::new(kube),
        groups: args.apis,
        discovery,
        sources: sources.clone(),
        metrics: metrics.clone(),
        places: Arc::new(Semaphore::new(places)),
    };
    let secure = api::router(endpoint, readiness.clone());
    let plain = admin::router(Arc::new(registry), readiness);
    let limits = Limits {
        lame_duck: args.shutdown_delay,
        drain: DRAIN,
        ..Limits::default()
    };
    // A long-lived connection of the API server would pin it to one of several adapters.
    let secure_limits = Limits {
        connection_age: Some(Duration::from_secs(20 * 60)),
        ..limits.clone()
    };

    let look = async {
        loop {
            if signals.is_discovered() {
                pods.set_met();
            }
            metrics.certificate(tls.not_after());
            tokio::time::sleep(LOOK).await;
        }
    };
    let work = async {
        tokio::select! {
            outcome = async { tokio::join!(
                server::serve_https(listener, tls_config, secure, secure_limits, stop.clone()),
                server::serve_http(admin_listener, plain, limits.clone(), stop.clone()),
                serve_keda(keda, sources, limits.clone(), stop.clone()),
            ) } => outcome.2,
            outcome = look => outcome,
        }
    };
    shutdown
        .guard(args.shutdown_delay + DRAIN * 2, work)
        .await?
}

async fn serve_keda(
    port: Option<keda::Port>,
    sources: Sources,
    limits: Limits,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    match port {
        Some(port) => port.serve(sources, limits, stop).await,
        None => Ok(()),
    }
}
