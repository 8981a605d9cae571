//! Admission: a PodCliqueSet is completed before it is checked, and checked before it is stored.
//!
//! [`defaults`] and [`rules`] are pure: object in, object or errors out. [`review`] makes an answer of them, [`serve`] carries it over
//! HTTPS, [`register`] tells the API server where to ask. Which rule lives in the schema and which here is written in [`rules`].
//!
//! Every replica of the operator serves, because a Service sends the API server to any of them; the leader alone registers. In a cluster
//! they share a certificate, and the authority that signs it, through a Secret (`--tls-secret`), which whoever finds it due renews. Outside,
//! registered by URL, there is one host to name: the leader registers its own port, and with `--tls-secret` and a fixed port a restart
//! changes nothing; without a Secret each process is its own authority, and each start writes the configurations once.
//!
//! The webhooks fail closed, as upstream's: with no operator there, sets can neither be created nor edited, but scaled (`/scale` passes by)
//! and deleted. Nothing else in the cluster asks them.

pub(crate) mod authorize;
mod defaults;
pub(crate) mod field;
pub(crate) mod knowledge;
pub(crate) mod register;
mod review;
pub(crate) mod rules;
pub(crate) mod serve;
pub(crate) mod settings;

use std::time::Duration;

use anyhow::Context as _;
use coppice_runtime::server::{self, Limits};
use coppice_runtime::tls::ClientAuth;
use kube::Client;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::info;

pub(crate) use defaults::complete_pod_spec;
use knowledge::Knowledge;
use register::Registration;
use serve::Metrics;
use settings::{AdmissionArgs, Reach};

/// How long new connections are accepted after the operator was told to end, until the API server has noticed that this replica goes.
const LAME_DUCK: Duration = Duration::from_secs(5);
/// Time for reviews in flight after that.
const DRAIN: Duration = Duration::from_secs(5);
/// The API server keeps a connection for as long as it can, and would stay with one of several replicas.
const CONNECTION_AGE: Duration = Duration::from_secs(20 * 60);
/// The API server's replicas are the only ones who should ask.
const CONNECTIONS: usize = 256;

/// A running endpoint.
#[derive(Debug)]
pub(crate) struct Admission {
    /// What the leader tells the API server.
    pub(crate) registration: Registration,
    serving: JoinHandle<()>,
}

impl Admission {
    /// Waits until the last review is answered, after draining has begun.
    pub(crate) async fn ended(self) {
        if let Err(error) = self.serving.await {
            tracing::error!(%error, "the admission endpoint ended badly");
        }
    }
}

/// Starts to answer reviews, where the flags ask for it. `namespace` is the operator's own, `namespaces` are those it works in.
///
/// # Errors
/// The flags do not fit together, the address is taken, or there is no certificate.
pub(crate) async fn start(
    args: &AdmissionArgs,
    client: &Client,
    namespace: &str,
    namespaces: &[String],
    metrics: Metrics,
    knowledge: Knowledge,
    draining: CancellationToken,
) -> anyhow::Result<Option<Admission>> {
    let Some(reach) = args.reach()? else {
        info!(
            "admission is off: name --webhook-service or --webhook-url-host to have sets checked before they are stored"
        );
        return Ok(None);
    };
    let (listener, bound) = server::bind(args.webhook_address).await?;
    let address = reach.address(namespace, bound);
    let tls = args
        .tls
        .start(address.names(), client, namespace, draining.clone())
        .await
        .context("no certificate for the admission webhooks")?;
    let config = tls.server_config(args.tls.tls_min_version, ClientAuth::Off)?;
    let limits = Limits {
        connections: CONNECTIONS,
        connection_age: Some(CONNECTION_AGE),
        lame_duck: match reach {
            Reach::Service(..) => LAME_DUCK,
            Reach::Host(_) => Duration::ZERO,
        },
        drain: DRAIN,
        ..Limits::default()
    };
    let registration = Registration {
        address,
        has_authorizer: knowledge.policy.guard.is_some(),
        namespaces: namespaces.to_vec(),
        authorities: tls.ca_bundle(),
    };
    let app = serve::router(metrics, knowledge);
    let serving = tokio::spawn(server::serve_https(listener, config, app, limits, draining));
    Ok(Some(Admission {
        registration,
        serving,
    }))
}
