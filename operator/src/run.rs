//! `coppice-operator run`: watches, then, as the leader, works.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use coppice_runtime::admin;
use coppice_runtime::client::{self, KubeArgs};
use coppice_runtime::health::Readiness;
use coppice_runtime::lease::{Elector, Ended, LeaseMetrics, Tenure};
use coppice_runtime::server::{self, Limits};
use coppice_runtime::shutdown::Shutdown;
use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::admission::{
    self,
    knowledge::{Cluster, Knowledge, Policy},
    register::{self, Registration},
};
use crate::apply::Writer;
use crate::apply::limit::Limit;
use crate::backends::{Companion, GangBackend, discovery};
use crate::controller::pacing::Pacing;
use crate::controller::{Context, PodSettings, worker};
use crate::events::Events;
use crate::index::{Index, watch};
use crate::metrics::Metrics;
use crate::queue::Queue;
use crate::settings::RunArgs;

/// How long draining may take before the process ends anyway.
const GRACE: Duration = Duration::from_secs(20);
/// How often gauges are read.
const READING: Duration = Duration::from_secs(2);

/// Runs until a signal, or until the lease is lost.
pub(crate) async fn run(args: RunArgs, kube: KubeArgs) -> anyhow::Result<()> {
    let shutdown = Shutdown::install().context("cannot listen for signals")?;
    let client = client::connect(&kube).await?;
    let work = operate(args, client, shutdown.draining());
    shutdown.guard(GRACE, work).await?
}

async fn operate(
    args: RunArgs,
    client: kube::Client,
    draining: CancellationToken,
) -> anyhow::Result<()> {
    let mut registry = Registry::default();
    let metrics = Arc::new(Metrics::register(&mut registry));
    let lease_metrics = LeaseMetrics::register(&mut registry);
    let admission_metrics = admission::serve::Metrics::register(&mut registry);
    let lease = args
        .lease
        .resolve(&args.lease_name, client.default_namespace())?;
    let own_namespace = args.lease.lease_namespace.as_deref();
    let namespace = own_namespace
        .unwrap_or_else(|| client.default_namespace())
        .to_owned();
    let readiness = Readiness::default();
    let lists = readiness.require("lists");
    lists.set_unmet("first lists are not complete");
    readiness.follow(draining.clone());

    let (listener, address) = server::bind(args.admin.admin_address).await?;
    info!(%address, "serving metrics and health");
    let admin = admin::router(Arc::new(registry), readiness);
    tokio::spawn(server::serve_http(
        listener,
        admin,
        Limits::default(),
        draining.clone(),
    ));

    let backend = discovery::choose(&client, args.gang_backend, args.gated.clone()).await?;
    let queue = Arc::new(Queue::default());
    let index = Arc::new(Index::new(Arc::clone(&queue)));
    let knowledge = Knowledge {
        policy: Policy {
            auto_mnnvl: args.auto_mnnvl,
            guard: args.admission.guard(&client).await?,
            scheduler: backend.gang_kind().map(|_| backend.scheduler()),
        },
        cluster: Arc::new(Cluster {
            index: Arc::clone(&index),
            client: client.clone(),
        }),
    };
    let admission = admission::start(
        &args.admission,
        &client,
        &namespace,
        &args.namespaces,
        admission_metrics,
        knowledge,
        draining.clone(),
    )
    .await?;
    let limit = Arc::new(Limit::new(args.max_writes.into()));
    let progress = watch::start(&client, &index, &args.namespaces, &*backend);
    tokio::select! {
        () = progress.complete() => {}
        () = draining.cancelled() => return Ok(()),
    }
    lists.set_met();
    let (sets, pods) = index.sizes();
    info!(sets, pods, "lists are complete");
    tokio::spawn(read_gauges(
        Arc::clone(&metrics),
        Arc::clone(&queue),
        Arc::clone(&limit),
        Arc::clone(&index),
    ));

    let leader = Leader {
        args,
        client: client.clone(),
        index,
        queue,
        limit,
        metrics,
        backend,
        registration: admission
            .as_ref()
            .map(|admission| admission.registration.clone()),
    };
    let elector = Elector::new(client, lease, lease_metrics);
    match elector.run(draining, |tenure| leader.lead(tenure)).await {
        Ended::InOrder => {
            if let Some(admission) = admission {
                admission.ended().await;
            }
            Ok(())
        }
        Ended::Lost => {
            anyhow::bail!("lost the leader lease; ending, so that nothing of this tenure remains")
        }
    }
}

struct Leader {
    args: RunArgs,
    client: kube::Client,
    index: Arc<Index>,
    queue: Arc<Queue>,
    limit: Arc<Limit>,
    metrics: Arc<Metrics>,
    backend: Arc<dyn GangBackend>,
    registration: Option<Registration>,
}

impl Leader {
    /// Works until the tenure ends.
    async fn lead(self, tenure: Tenure) {
        info!(workers = self.args.workers, "leading");
        let stop = CancellationToken::new();
        let writer = Writer::new(
            self.client.clone(),
            self.limit,
            tenure.clone(),
            Arc::clone(&self.metrics),
        );
        let events = Events::default();
        let companion = Companion {
            index: Arc::clone(&self.index),
            writer: writer.clone(),
            client: self.client.clone(),
            namespaces: self.args.namespaces.as_slice().into(),
            metrics: Arc::clone(&self.metrics),
            draining: stop.clone(),
        };
        let beside = tokio::spawn(self.backend.accompany(companion));
        let registered = self.registration.map(|registration| {
            let (client, tenure, stop) = (self.client.clone(), tenure.clone(), stop.clone());
            tokio::spawn(register::keep(client, registration, tenure, stop))
        });
        let sender = tokio::spawn(events.clone().send(self.client, stop.clone()));
        for unit in self.index.units() {
            self.queue.mark(&unit);
        }
        let cx = Context {
            index: self.index,
            queue: self.queue,
            writer,
            backend: self.backend,
            events,
            metrics: self.metrics,
            pacing: Arc::new(Pacing::default()),
            pods: Arc::new(PodSettings {
                init_image: self.args.init_image,
                cluster_domain: self.args.cluster_domain,
            }),
            auto_mnnvl: self.args.auto_mnnvl,
        };
        let end = async {
            tenure.ended().await;
            stop.cancel();
        };
        tokio::join!(end, worker::run(cx, self.args.workers.into(), stop.clone()));
        for task in [beside, sender].into_iter().chain(registered) {
            if let Err(error) = task.await {
                tracing::error!(%error, "a task of the leader ended badly");
            }
        }
    }
}

async fn read_gauges(
    metrics: Arc<Metrics>,
    queue: Arc<Queue>,
    limit: Arc<Limit>,
    index: Arc<Index>,
) {
    let mut tick = tokio::time::interval(READING);
    loop {
        tick.tick().await;
        metrics.sizes(queue.depth(), limit.gauge(), index.sizes());
    }
}
