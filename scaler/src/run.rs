//! `run`: everything put together, and the loop.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use coppice_operator_api::{PodClique, PodCliqueScalingGroup, PodCliqueSet};
use coppice_runtime::client::{self, KubeArgs};
use coppice_runtime::health::{Condition, Readiness};
use coppice_runtime::lease::{Elector, Ended, LeaseMetrics, Tenure};
use coppice_runtime::server::{self, Limits};
use coppice_runtime::shutdown::Shutdown;
use coppice_runtime::{admin, lease};
use coppice_scaler_api::{GpuBudget, LEASE_NAME, ScalingPolicy};
use coppice_signals::{PodFacts, Signals, WatchId};
use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::core::DeserializeGuard;
use kube::{Api, Client, Resource};
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use serde::de::DeserializeOwned;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::consider::{Considered, Considerer};
use crate::decide::{Ledgers, Work, decide_all};
use crate::events::Events;
use crate::memory::Memory;
use crate::metrics::Metrics;
use crate::page::Board;
use crate::policy::Pace;
use crate::pool::{PoolView, Pools};
use crate::prepare::Views;
use crate::settings::RunArgs;
use crate::views::{PodView, ScaledView, SetView};
use crate::watch::{Cache, Key};

/// Time for requests in flight and the last writes after the program was told to end.
const DRAIN: Duration = Duration::from_secs(5);
/// No two passes closer than this, however much changes.
const BREATH: Duration = Duration::from_millis(500);
/// Policies considered side by side.
const SIDE_BY_SIDE: usize = 16;

/// Watches, decides and writes until told to end.
pub(crate) async fn run(args: RunArgs, kube: KubeArgs) -> anyhow::Result<()> {
    let shutdown = Shutdown::install().context("cannot listen for signals")?;
    let stop = shutdown.draining();
    let client = client::connect(&kube).await?;
    let settings = args.lease.resolve(LEASE_NAME, client.default_namespace())?;

    let mut registry = Registry::default();
    let own = registry.sub_registry_with_prefix("scaler");
    let metrics = Metrics::register(own);
    let signals = Signals::new(
        args.scrape.settings(),
        coppice_signals::Metrics::register(own),
    )?;
    let lease_metrics = LeaseMetrics::register(own);

    let readiness = Readiness::default();
    readiness.follow(stop.clone());
    let listed = readiness.require("watches");
    listed.set_unmet("policies and pods are still being listed");

    let (listener, _) = server::bind(args.admin.admin_address).await?;
    let board = Board::default();
    let router =
        admin::router(Arc::new(registry), readiness).merge(board.clone().router(stop.clone()));

    let collecting = CancellationToken::new();
    let _collecting = collecting.clone().drop_guard();
    tokio::spawn(signals.clone().run(collecting.clone()));

    let tenure = CurrentTenure::default();
    let scaler = Scaler::new(
        &args,
        client.clone(),
        signals,
        metrics,
        board,
        tenure.clone(),
        &collecting,
    );
    let elector = Elector::new(client, settings, lease_metrics);
    let work = async {
        let serving = server::serve_http(
            listener,
            router,
            Limits {
                drain: DRAIN,
                ..Limits::default()
            },
            stop.clone(),
        );
        let looping = scaler.run(listed, stop.clone());
        let leading = elector.run(stop.clone(), |current| tenure.hold(current));
        let ended = async {
            let ended = leading.await;
            if ended == Ended::Lost {
                // The process ends, so that nothing of the old tenure remains; its successor starts with a clean memory.
                shutdown.drain();
            }
            ended
        };
        let ((), (), ended) = tokio::join!(serving, looping, ended);
        ended
    };
    match shutdown.guard(DRAIN * 3, work).await? {
        lease::Ended::InOrder => Ok(()),
        lease::Ended::Lost => anyhow::bail!("lost the leader lease"),
    }
}

/// The tenure of this process, while it leads. Clones share it.
#[derive(Debug, Clone, Default)]
struct CurrentTenure {
    tenure: Arc<Mutex<Option<Tenure>>>,
}

impl CurrentTenure {
    async fn hold(&self, tenure: Tenure) {
        *self.tenure.lock() = Some(tenure.clone());
        tenure.ended().await;
        *self.tenure.lock() = None;
    }

    fn get(&self) -> Option<Tenure> {
        self.tenure.lock().clone().filter(Tenure::is_current)
    }
}

/// The watches.
#[derive(Debug)]
struct Watches {
    policies: Cache<ScalingPolicy>,
    sets: Cache<SetView>,
    cliques: Cache<ScaledView>,
    groups: Cache<ScaledView>,
    pods: Cache<PodView>,
    budgets: Cache<PoolView>,
}

/// The loop's state.
struct Scaler {
    considerer: Considerer,
    watches: Watches,
    changed: Arc<Notify>,
    memories: BTreeMap<Key, Memory>,
    fed: Vec<PodFacts>,
    watch_id: WatchId,
    tenure: CurrentTenure,
    interval: Duration,
    /// The namespace that is followed. `None`: all.
    scope: Option<String>,
    gpu_resource: String,
}

impl Scaler {
    fn new(
        args: &RunArgs,
        client: Client,
        signals: Signals,
        metrics: Metrics,
        board: Board,
        tenure: CurrentTenure,
        stop: &CancellationToken,
    ) -> Self {
        let changed = Arc::new(Notify::new());
        let quiet = Arc::new(Notify::new());
        let namespace = args.namespace.as_deref();
        let (set_resource, pod_resource) = (args.gpu_resource.clone(), args.gpu_resource.clone());
        let watches = Watches {
            policies: Cache::watch(
                api(&client, namespace),
                |policy: ScalingPolicy| Some(policy),
                Arc::clone(&changed),
                stop.clone(),
            ),
            sets: Cache::watch(
                api(&client, namespace),
                move |set: PodCliqueSet| Some(SetView::new(set, &set_resource)),
                Arc::clone(&quiet),
                stop.clone(),
            ),
            cliques: Cache::watch(
                api(&client, namespace),
                |clique: PodClique| ScaledView::of_clique(&clique),
                Arc::clone(&quiet),
                stop.clone(),
            ),
            groups: Cache::watch(
                api(&client, namespace),
                |group: PodCliqueScalingGroup| ScaledView::of_group(&group),
                Arc::clone(&quiet),
                stop.clone(),
            ),
            pods: Cache::watch(
                api(&client, namespace),
                move |pod: Pod| Some(PodView::new(pod, &pod_resource)),
                Arc::clone(&quiet),
                stop.clone(),
            ),
            budgets: Cache::watch(
                Api::all(client.clone()),
                |budget: GpuBudget| Some(PoolView::new(budget)),
                quiet,
                stop.clone(),
            ),
        };
        let watch_id = signals.begin_watch();
        let pace = Pace {
            interval: args.interval,
            scrape_interval: args.scrape.scrape_interval,
        };
        let events = Events::new(client.clone());
        Self {
            considerer: Considerer {
                client,
                signals,
                metrics,
                board,
                events,
                pace,
            },
            watches,
            changed,
            memories: BTreeMap::new(),
            fed: Vec::new(),
            watch_id,
            tenure,
            interval: args.interval,
            scope: args.namespace.clone(),
            gpu_resource: args.gpu_resource.clone(),
        }
    }

    /// Passes until `stop`: every interval, sooner when a policy changes or a limit that depends on time runs out.
    async fn run(mut self, listed: Condition, stop: CancellationToken) {
        loop {
            let begun = Instant::now();
            let next = self.pass(&listed).await;
            let next = next
                .min(self.interval)
                .saturating_sub(begun.elapsed())
                .max(BREATH);
            let due = tokio::time::sleep(next);
            let asked = async {
                self.changed.notified().await;
                tokio::time::sleep(BREATH).await;
            };
            tokio::select! {
                () = stop.cancelled() => return,
                () = due => {}
                () = asked => {}
            }
        }
    }

    /// One pass over all policies. Gives the time until the next one is due.
    async fn pass(&mut self, listed: &Condition) -> Duration {
        let begun = Instant::now();
        let (Some(policies), Some(pods)) = (self.watches.policies.all(), self.watches.pods.all())
        else {
            let trouble = self
                .watches
                .policies
                .trouble()
                .or_else(|| self.watches.pods.trouble());
            listed.set_unmet(
                trouble.unwrap_or_else(|| "policies and pods are still being listed".to_owned()),
            );
            return BREATH;
        };
        listed.set_met();
        self.forget(&policies);
        let now = self.considerer.signals.now();
        let views = Views {
            sets: self.watches.sets.all(),
            cliques: self.watches.cliques.all().unwrap_or_default(),
            groups: self.watches.groups.all().unwrap_or_default(),
            pods: by_namespace(&pods),
            trouble: self
                .watches
                .sets
                .trouble()
                .or_else(|| self.watches.cliques.trouble())
                .or_else(|| self.watches.groups.trouble()),
            children_listed: self.watches.cliques.is_listed() && self.watches.groups.is_listed(),
        };
        let pools = self.pools(&policies);
        self.considerer.metrics.budgets(&pools.totals());
        let tenure = self.tenure.get();
        let mut work = self.prepare(&policies, &views, tenure.is_some(), now).await;
        let ledgers = tenure.as_ref().map(|_| Ledgers {
            client: &self.considerer.client,
            metrics: &self.considerer.metrics,
        });
        decide_all(&mut work, &pools, ledgers, now).await;
        let finished = {
            let (considerer, tenure) = (&self.considerer, tenure.as_ref());
            let each = work.into_iter().map(|mut work| async move {
                let considered = considerer.finish(&mut work, tenure, now).await;
                (work.key, work.memory, considered)
            });
            side_by_side(each).await
        };
        let mut recheck = self.interval;
        for (key, memory, Considered { recheck_after }) in finished {
            recheck = recheck.min(recheck_after);
            self.memories.insert(key, memory);
        }
        self.feed(&pods);
        self.considerer
            .metrics
            .passed(policies.len(), begun.elapsed());
        recheck
    }

    /// The first half of a pass, for all policies.
    async fn prepare(
        &mut self,
        policies: &BTreeMap<Key, Arc<ScalingPolicy>>,
        views: &Views,
        leading: bool,
        now: Timestamp,
    ) -> Vec<Work> {
        let mut memories = std::mem::take(&mut self.memories);
        let begun: Vec<(Key, Arc<ScalingPolicy>, Memory)> = policies
            .iter()
            .map(|(key, policy)| {
                let memory = memories
                    .remove(key)
                    .filter(|memory| memory.uid == policy.metadata.uid);
                (
                    key.clone(),
                    Arc::clone(policy),
                    memory.unwrap_or_else(|| Memory::new(policy, now)),
                )
            })
            .collect();
        let considerer = &self.considerer;
        let each = begun
            .into_iter()
            .map(|(key, policy, mut memory)| async move {
                let prepared = considerer
                    .prepare(&key, &policy, &mut memory, views, leading, now)
                    .await;
                Work {
                    key,
                    policy,
                    memory,
                    prepared,
                    decided: None,
                }
            });
        let mut work = side_by_side(each).await;
        work.sort_by(|one, other| one.key.cmp(&other.key));
        work
    }

    fn pools(&self, policies: &BTreeMap<Key, Arc<ScalingPolicy>>) -> Pools {
        let named = policies.iter().filter_map(|(key, policy)| {
            let budget = policy.spec.budget.as_ref()?;
            Some((key.clone(), budget.name.clone()?))
        });
        let views = self.watches.budgets.all().map(|views| {
            let views = views.into_iter();
            views.map(|((_, name), view)| (name, view)).collect()
        });
        Pools {
            views: views.ok_or_else(|| {
                let trouble = self.watches.budgets.trouble();
                trouble.unwrap_or_else(|| "they are still being listed".to_owned())
            }),
            named: named.collect(),
            scope: self.scope.clone(),
            resource: self.gpu_resource.clone(),
        }
    }

    /// Gives the collector the pods that policies read, when these have changed.
    fn feed(&mut self, pods: &BTreeMap<Key, Arc<PodView>>) {
        let wanted: BTreeSet<&String> = self
            .memories
            .values()
            .flat_map(|memory| &memory.endpoints.pods)
            .collect();
        let facts: Vec<PodFacts> = pods
            .values()
            .filter(|pod| wanted.contains(&pod.facts.uid))
            .map(|pod| pod.facts.clone())
            .collect();
        if facts != self.fed {
            self.considerer
                .signals
                .replace_pods(self.watch_id, facts.clone());
            self.fed = facts;
        }
    }

    /// Forgets policies that are gone.
    fn forget(&mut self, policies: &BTreeMap<Key, Arc<ScalingPolicy>>) {
        let gone: Vec<Key> = self
            .memories
            .keys()
            .filter(|key| !policies.contains_key(*key))
            .cloned()
            .collect();
        for key in gone {
            self.memories.remove(&key);
            self.considerer.forget(&key);
        }
        self.considerer.board.keep(|key| policies.contains_key(key));
    }
}

async fn side_by_side<F: Future>(each: impl Iterator<Item = F>) -> Vec<F::Output> {
    futures::stream::iter(each)
        .buffer_unordered(SIDE_BY_SIDE)
        .collect()
        .await
}

fn by_namespace(pods: &BTreeMap<Key, Arc<PodView>>) -> BTreeMap<String, Vec<Arc<PodView>>> {
    let mut sorted: BTreeMap<String, Vec<Arc<PodView>>> = BTreeMap::new();
    for ((namespace, _), pod) in pods {
        sorted
            .entry(namespace.clone())
            .or_default()
            .push(Arc::clone(pod));
    }
    sorted
}

fn api<K>(client: &Client, namespace: Option<&str>) -> Api<DeserializeGuard<K>>
where
    K: Resource<Scope = k8s_openapi::NamespaceResourceScope>
        + DeserializeOwned
        + Clone
        + std::fmt::Debug,
    K::DynamicType: Default,
{
    match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    }
}
