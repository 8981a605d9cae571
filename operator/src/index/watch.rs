//! Watches that keep the index.

use std::collections::HashSet;
use std::fmt::Debug;
use std::sync::Arc;

use coppice_operator_api::{ClusterTopologyBinding, PodCliqueSet, labels};
use futures::{Stream, StreamExt};
use kube::core::DeserializeGuard;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Config, Event, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tracing::{debug, info, warn};

use super::entry::Record;
use super::key::Kind;
use super::record::{
    CliqueRecord, GangRecord, GroupRecord, PlacementRecord, PlainRecord, PodRecord,
};
use super::view::{
    AccountView, AutoscalerView, BindingView, ClaimView, CliqueView, CompositeView, DomainView,
    GangView, GroupView, KaiGroupView, PodGroupView, PodView, RoleView, ServiceView,
    VolcanoGroupView, WorkloadView,
};
use super::{Index, Source};
use crate::backends::GangBackend;

/// A kind that the index keeps: how a view becomes a record.
pub(crate) trait Filed:
    Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static
{
    /// What it is filed as.
    const KIND: Kind;

    /// What is remembered of it.
    fn record(self) -> Record;
}

macro_rules! filed {
    ($($view:ty as $kind:ident: $record:expr;)*) => {
        $(impl Filed for $view {
            const KIND: Kind = Kind::$kind;

            fn record(self) -> Record {
                let record: fn(Self) -> Record = $record;
                record(self)
            }
        })*
    };
}

filed! {
    CliqueView as Clique: |view| Record::Clique(CliqueRecord::of(view));
    GroupView as Group: |view| Record::Group(GroupRecord::of(view));
    GangView as Gang: |view| Record::Gang(GangRecord::of(&view));
    PodView as Pod: |view| Record::Pod(PodRecord::of(&view));
    ServiceView as Service: |view| Record::Plain(PlainRecord::of(&view.metadata, Some(&view.spec)));
    AutoscalerView as Autoscaler: |view| Record::Plain(PlainRecord::of(&view.metadata, Some(&view.spec)));
    AccountView as ServiceAccount: |view| Record::Plain(PlainRecord::of(&view.metadata, None));
    RoleView as Role: |view| Record::Plain(PlainRecord::of(&view.metadata, Some(&view.rules)));
    BindingView as RoleBinding: |view| Record::Plain(PlainRecord::of(&view.metadata, Some(&view.subjects)));
    PodGroupView as PodGroup: |view| Record::Placement(PlacementRecord::of_group(&view));
    CompositeView as CompositePodGroup: |view| Record::Placement(PlacementRecord::of_composite(&view));
    WorkloadView as Workload: |view| Record::Plain(PlainRecord::of(&view.metadata, None));
    ClaimView as Claim: |view| Record::Plain(PlainRecord::of(&view.metadata, None));
    DomainView as ComputeDomain: |view| Record::Plain(PlainRecord::of(&view.metadata, Some(&view.spec)));
    KaiGroupView as KaiPodGroup: |view| Record::Plain(PlainRecord::of(&view.metadata, Some(&view.spec)));
    VolcanoGroupView as VolcanoPodGroup: |view| Record::Plain(PlainRecord::of(&view.metadata, Some(&view.spec)));
}

impl Index {
    /// Takes in what the server answered to a write.
    pub(crate) fn absorb<V: Filed>(&self, view: V) {
        let meta = view.meta().clone();
        self.put(V::KIND, &meta, view.record(), Source::Answer);
    }
}

/// Tells when every watch has its first list.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    synced: Vec<watch::Receiver<bool>>,
}

impl Progress {
    fn expect(&mut self) -> watch::Sender<bool> {
        let (sender, receiver) = watch::channel(false);
        self.synced.push(receiver);
        sender
    }

    /// Returns when all lists are complete. No decision is made before.
    pub(crate) async fn complete(mut self) {
        for synced in &mut self.synced {
            // A watch ends only with the program.
            synced.wait_for(|synced| *synced).await.ok();
        }
    }
}

/// Starts one watch per kind and namespace. They run until the program ends.
pub(crate) fn start(
    client: &Client,
    index: &Arc<Index>,
    namespaces: &[String],
    backend: &dyn GangBackend,
) -> Progress {
    let mut progress = Progress::default();
    let places: Vec<Option<String>> = match namespaces {
        [] => vec![None],
        some => some.iter().cloned().map(Some).collect(),
    };
    tokio::spawn(keep_bindings(
        watcher(Api::all(client.clone()), Config::default()).default_backoff(),
        Arc::clone(index),
        progress.expect(),
    ));
    for place in places {
        let sets =
            stream::<DeserializeGuard<PodCliqueSet>>(client, place.as_deref(), Config::default());
        tokio::spawn(keep_sets(
            sets,
            Arc::clone(index),
            place.clone(),
            progress.expect(),
        ));
        let watches = Watches {
            client,
            index,
            place,
        };
        watches.start::<CliqueView>(&mut progress);
        watches.start::<GroupView>(&mut progress);
        watches.start::<GangView>(&mut progress);
        watches.start::<PodView>(&mut progress);
        watches.start::<ServiceView>(&mut progress);
        watches.start::<AutoscalerView>(&mut progress);
        watches.start::<AccountView>(&mut progress);
        watches.start::<RoleView>(&mut progress);
        watches.start::<BindingView>(&mut progress);
        // Not every cluster has them.
        watches.start::<ClaimView>(&mut progress);
        watches.start::<DomainView>(&mut progress);
        match backend.gang_kind() {
            Some(Kind::KaiPodGroup) => watches.start::<KaiGroupView>(&mut progress),
            Some(Kind::VolcanoPodGroup) => watches.start::<VolcanoGroupView>(&mut progress),
            _ => {}
        }
        if backend.has_groups() {
            watches.start::<PodGroupView>(&mut progress);
            watches.start::<CompositeView>(&mut progress);
            watches.start::<WorkloadView>(&mut progress);
        }
    }
    progress
}

struct Watches<'a> {
    client: &'a Client,
    index: &'a Arc<Index>,
    place: Option<String>,
}

impl Watches<'_> {
    fn start<V>(&self, progress: &mut Progress)
    where
        V: Filed + Resource<Scope = kube::core::NamespaceResourceScope>,
    {
        let config = Config::default().labels(&labels::managed_selector());
        let events = stream::<V>(self.client, self.place.as_deref(), config);
        tokio::spawn(keep(
            events,
            Arc::clone(self.index),
            self.place.clone(),
            progress.expect(),
        ));
    }
}

fn stream<V>(
    client: &Client,
    namespace: Option<&str>,
    config: Config,
) -> impl Stream<Item = Result<Event<V>, watcher::Error>> + Send + use<V>
where
    V: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
        + Clone
        + Debug
        + DeserializeOwned
        + Send
        + 'static,
{
    let api = match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    };
    watcher(api, config.page_size(500)).default_backoff()
}

async fn keep<V: Filed>(
    events: impl Stream<Item = Result<Event<V>, watcher::Error>>,
    index: Arc<Index>,
    namespace: Option<String>,
    synced: watch::Sender<bool>,
) {
    let is_optional = matches!(V::KIND, Kind::Claim | Kind::ComputeDomain);
    let mut events = std::pin::pin!(events);
    let mut since = 0;
    let mut seen = HashSet::new();
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => {
                since = index.begin_list();
                seen.clear();
            }
            Ok(Event::InitApply(view)) => {
                seen.insert(Arc::from(view.meta().uid.as_deref().unwrap_or_default()));
                put(&index, view);
            }
            Ok(Event::InitDone) => {
                index.end_list(V::KIND, since, &seen, namespace.as_deref());
                seen = HashSet::new();
                if is_optional {
                    index.set_served(V::KIND, true);
                }
                synced.send_replace(true);
            }
            Ok(Event::Apply(view)) => put(&index, view),
            Ok(Event::Delete(view)) => index.remove(V::KIND, view.meta()),
            Err(error) if is_optional && is_absent(&error) => {
                if index.is_served(V::KIND) {
                    info!(kind = V::KIND.as_str(), error = %coppice_runtime::telemetry::chain(&error), "there are no objects of that kind as long as they cannot be read");
                }
                index.set_served(V::KIND, false);
                // Where the kind was taken away, so were its objects.
                index.end_list(
                    V::KIND,
                    index.begin_list(),
                    &HashSet::new(),
                    namespace.as_deref(),
                );
                synced.send_replace(true);
            }
            Err(error) => report(V::KIND.as_str(), &error),
        }
    }
}

fn put<V: Filed>(index: &Index, view: V) {
    let meta = view.meta().clone();
    index.put(V::KIND, &meta, view.record(), Source::Watch);
}

/// Bindings are of the cluster. Where they may not be read, or are not served, there are none, and nothing waits for them.
async fn keep_bindings(
    events: impl Stream<Item = Result<Event<DeserializeGuard<ClusterTopologyBinding>>, watcher::Error>>,
    index: Arc<Index>,
    synced: watch::Sender<bool>,
) {
    let mut events = std::pin::pin!(events);
    let mut seen = HashSet::new();
    let mut is_warned = false;
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => seen.clear(),
            Ok(Event::InitApply(binding)) => {
                seen.insert(Arc::<str>::from(binding.name_any()));
                put_binding(&index, binding);
            }
            Ok(Event::InitDone) => {
                let known = index.bindings();
                for name in known.iter().filter(|name| !seen.contains(*name)) {
                    index.put_binding(name, None);
                }
                synced.send_replace(true);
            }
            Ok(Event::Apply(binding)) => put_binding(&index, binding),
            Ok(Event::Delete(binding)) => {
                index.put_binding(&Arc::from(binding.name_any()), None);
            }
            Err(error) => {
                if !is_absent(&error) {
                    report("ClusterTopologyBinding", &error);
                } else if !std::mem::replace(&mut is_warned, true) {
                    warn!(error = %coppice_runtime::telemetry::chain(&error), "ClusterTopologyBindings cannot be read: topology constraints are not applied");
                    synced.send_replace(true);
                }
            }
        }
    }
}

/// One that cannot be read is left as it was, until somebody mends it.
fn put_binding(index: &Index, binding: DeserializeGuard<ClusterTopologyBinding>) {
    let name: Arc<str> = Arc::from(binding.name_any());
    match binding.0 {
        Ok(binding) => {
            let levels = binding.spec.levels.iter();
            let levels =
                levels.map(|level| (level.domain.as_str().into(), level.key.as_str().into()));
            index.put_binding(&name, Some(&levels.collect()));
        }
        Err(error) => {
            warn!(name = &*name, error = %error.error, "a ClusterTopologyBinding cannot be read");
        }
    }
}

async fn keep_sets(
    events: impl Stream<Item = Result<Event<DeserializeGuard<PodCliqueSet>>, watcher::Error>>,
    index: Arc<Index>,
    namespace: Option<String>,
    synced: watch::Sender<bool>,
) {
    let mut events = std::pin::pin!(events);
    let mut seen = HashSet::new();
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => seen.clear(),
            Ok(Event::InitApply(set)) => {
                seen.extend(set.meta().uid.clone());
                put_set(&index, set);
            }
            Ok(Event::InitDone) => {
                for known in index.known_sets(namespace.as_deref()) {
                    if !known
                        .metadata
                        .uid
                        .as_ref()
                        .is_some_and(|uid| seen.contains(uid))
                    {
                        index.remove_set(&known.metadata);
                    }
                }
                synced.send_replace(true);
            }
            Ok(Event::Apply(set)) => put_set(&index, set),
            Ok(Event::Delete(set)) => index.remove_set(set.meta()),
            Err(error) => report("PodCliqueSet", &error),
        }
    }
}

/// A set that cannot be read is left as it is, with everything below it, until somebody mends it.
fn put_set(index: &Index, set: DeserializeGuard<PodCliqueSet>) {
    let name = set.name_any();
    let namespace = set.namespace();
    match set.0 {
        Ok(set) => index.put_set(set, Source::Watch),
        Err(error) => warn!(namespace, name, error = %error.error, "a PodCliqueSet cannot be read"),
    }
}

/// The kind is not served, or may not be read.
fn is_absent(error: &watcher::Error) -> bool {
    matches!(
        error,
        watcher::Error::InitialListFailed(kube::Error::Api(status))
            if matches!(status.code, 403 | 404)
    )
}

fn report(kind: &'static str, error: &watcher::Error) {
    // Watches end all the time: servers close them, versions expire.
    if let watcher::Error::WatchError(status) = error
        && status.code == 410
    {
        debug!(kind, "the watch starts over");
        return;
    }
    warn!(kind, error = %coppice_runtime::telemetry::chain(error), "a watch failed and is tried again");
}
