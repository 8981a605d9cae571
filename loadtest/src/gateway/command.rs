//! `coppice-loadtest gateway`.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use coppice_runtime::health::Readiness;
use coppice_runtime::server::{Limits, bind, serve_http};
use coppice_runtime::shutdown::Shutdown;
use kube::Client;
use tracing::info;

pub use super::arguments::Args;
use super::arguments::Engines;
use super::discovery::{self, FirstLists, Selection};
use super::forward::Forwarder;
use super::models::{Model, Models};
use super::routes::{Gateway, router};
use crate::drive::target::BaseUrl;
use crate::serve::arguments::Role;

/// Clients keep connections open between requests for this long.
const IDLE_CONNECTION: Duration = Duration::from_secs(300);
/// Added to the drain time before the process gives up.
const MARGIN: Duration = Duration::from_secs(5);

/// Runs until a signal and the drain that follows.
///
/// # Errors
/// Wrong arguments, no cluster where one is needed, or an address that cannot be listened on.
pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let shutdown = Shutdown::install().context("listening for signals")?;
    coppice_runtime::crypto::install();
    let readiness = Readiness::default();
    let models = prepare(&args, &readiness).await?;
    let gateway = Arc::new(Gateway {
        models,
        forwarder: Forwarder::new(),
    });
    let (listener, _) = bind(SocketAddr::new(args.host, args.port)).await?;
    let drain = args.drain.0;
    let limits = Limits {
        connections: 1 << 16,
        headers: IDLE_CONNECTION,
        drain,
        ..Limits::default()
    };
    readiness.follow(shutdown.draining());
    let serving = serve_http(
        listener,
        router(gateway, readiness),
        limits,
        shutdown.draining(),
    );
    shutdown.guard(drain + MARGIN, serving).await?;
    Ok(ExitCode::SUCCESS)
}

/// Makes the models and fills them with engines, fixed ones at once, pods as they come and go.
async fn prepare(args: &Args, readiness: &Readiness) -> anyhow::Result<Models> {
    let mut models = Models::new();
    let mut selections = Vec::new();
    for (name, engines) in args.engines()? {
        let model = Arc::new(Model::new(&name, args.hold()));
        match engines {
            Engines::Fixed(backends) => set_fixed(&model, &backends),
            Engines::Selected(selectors) => {
                selections.extend(
                    selectors
                        .into_iter()
                        .map(|(role, selector)| (Arc::clone(&model), role, selector)),
                );
            }
        }
        models.insert(name, model);
    }
    if selections.is_empty() {
        return Ok(models);
    }
    let client: Client = coppice_runtime::client::connect(&args.kube).await?;
    let namespace = args
        .namespace
        .clone()
        .unwrap_or_else(|| client.default_namespace().to_owned());
    let first_lists = FirstLists::new(selections.len(), readiness.require("engines-listed"));
    for (model, role, selector) in selections {
        info!(
            model = model.name,
            ?role,
            namespace,
            selector,
            "watching engines"
        );
        let selection = Selection {
            model,
            role,
            namespace: namespace.clone(),
            selector,
            port: args.engine_port,
        };
        tokio::spawn(discovery::follow(
            client.clone(),
            selection,
            first_lists.clone(),
        ));
    }
    Ok(models)
}

fn set_fixed(model: &Model, backends: &[(Role, BaseUrl)]) {
    for role in [Role::Aggregated, Role::Prefill, Role::Decode] {
        let of_role = backends.iter().filter(|(other, _)| *other == role);
        let engines: BTreeMap<String, BaseUrl> = of_role
            .map(|(_, url)| (url.authority(), url.clone()))
            .collect();
        model.set(role, &engines);
    }
}
