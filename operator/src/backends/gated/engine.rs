//! The task that places gangs: watches, plans, patches.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::pin::Pin as Pinned;
use std::sync::Arc;
use std::time::Duration;

use coppice_operator_plan::ids::PodUid;
use coppice_operator_plan::placement::{self, Placement, Schedule, Settings, Waiting};
use coppice_runtime::telemetry::chain;
use futures::stream::{SelectAll, Stream, StreamExt, select_all};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use kube::core::NamespaceResourceScope;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Config, Event, watcher};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::gangs::{Avoid, Release};
use super::ledger::{Key, Ledger, Pin, key};
use super::lift;
use super::reasons::Reasons;
use super::view::{GangView, NodeView, PodView};
use crate::apply::WriteError;
use crate::backends::Companion;
use crate::index::key::Kind;

/// How long news is gathered before gangs are planned: the pods of a set come in a burst.
const GATHER: Duration = Duration::from_millis(20);
/// How long a gang is not planned on a node that refused it.
const AVOID: SignedDuration = SignedDuration::from_secs(60);
/// Longest pause of a gang whose pods cannot be patched.
const LONGEST_PAUSE: u32 = 30;

/// See the module.
pub(super) struct Engine {
    companion: Companion,
    reasons: Arc<Reasons>,
    bind_timeout: SignedDuration,
    settings: Settings,
    ledger: Ledger,
    avoid: Avoid,
    /// Gangs whose pods could not be patched: how often in a row, and until when they rest.
    resting: BTreeMap<Key, (u32, Timestamp)>,
    writes: JoinSet<Written>,
}

/// A write that is over.
#[derive(Debug)]
enum Written {
    Lifted {
        pod: Key,
        uid: Box<str>,
        gang: Key,
        outcome: Result<Box<PodView>, WriteError>,
    },
    Deleted {
        pod: Key,
        uid: Box<str>,
        outcome: Result<(), WriteError>,
    },
}

/// Events of one list, each with the list's number.
type Numbered<V> = Pinned<Box<dyn Stream<Item = (usize, Result<Event<V>, watcher::Error>)> + Send>>;

/// Watches of one kind, and what of each list has been seen.
struct Watch<V> {
    events: SelectAll<Numbered<V>>,
    lists: Vec<List>,
}

/// A list of everything, or of one namespace.
#[derive(Default)]
struct List {
    namespace: Option<Arc<str>>,
    seen: BTreeSet<Key>,
    is_complete: bool,
}

impl<V> Watch<V>
where
    V: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    /// Watches all objects of the cluster.
    fn all(client: &Client) -> Self {
        let events =
            watcher(Api::all(client.clone()), Config::default().page_size(500)).default_backoff();
        Self {
            events: select_all([stream(0, events)]),
            lists: vec![List::default()],
        }
    }

    fn is_complete(&self) -> bool {
        self.lists.iter().all(|list| list.is_complete)
    }
}

impl<V> Watch<V>
where
    V: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + DeserializeOwned
        + Send
        + 'static,
{
    /// Watches objects of these namespaces, or of all when there is none.
    fn within(client: &Client, namespaces: &[String]) -> Self {
        if namespaces.is_empty() {
            return Self::all(client);
        }
        let events = namespaces.iter().enumerate().map(|(number, namespace)| {
            let api = Api::namespaced(client.clone(), namespace);
            stream(
                number,
                watcher(api, Config::default().page_size(500)).default_backoff(),
            )
        });
        let list = |namespace: &String| List {
            namespace: Some(Arc::from(namespace.as_str())),
            ..List::default()
        };
        Self {
            events: select_all(events),
            lists: namespaces.iter().map(list).collect(),
        }
    }
}

fn stream<V: Send + 'static>(
    number: usize,
    events: impl Stream<Item = Result<Event<V>, watcher::Error>> + Send + 'static,
) -> Numbered<V> {
    Box::pin(events.map(move |event| (number, event)))
}

impl Engine {
    pub(super) fn new(
        companion: Companion,
        reasons: Arc<Reasons>,
        bind_timeout: Duration,
        patience: Duration,
    ) -> Self {
        let signed = |duration| SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX);
        Self {
            companion,
            reasons,
            bind_timeout: signed(bind_timeout),
            settings: Settings {
                patience: signed(patience),
            },
            ledger: Ledger::default(),
            avoid: Avoid::new(),
            resting: BTreeMap::new(),
            writes: JoinSet::new(),
        }
    }

    /// Works until draining begins. Nothing is decided before all three lists are complete.
    pub(super) async fn run(mut self) {
        let client = self.companion.client.clone();
        let mut nodes = Watch::<NodeView>::all(&client);
        let mut pods = Watch::<PodView>::all(&client);
        let mut gangs = Watch::<GangView>::within(&client, &self.companion.namespaces);
        let draining = self.companion.draining.clone();
        let mut due: Option<Instant> = None;
        loop {
            let is_complete = nodes.is_complete() && pods.is_complete() && gangs.is_complete();
            let is_news = tokio::select! {
                () = draining.cancelled() => break,
                Some((number, event)) = nodes.events.next() => self.see_node(event, &mut nodes.lists[number]),
                Some((number, event)) = pods.events.next() => self.see_pod(event, &mut pods.lists[number]),
                Some((number, event)) = gangs.events.next() => self.see_gang(event, &mut gangs.lists[number]),
                Some(written) = self.writes.join_next() => match written {
                    Ok(written) => self.see_written(written),
                    Err(error) => {
                        tracing::error!(%error, "a write ended badly");
                        true
                    }
                },
                () = at(due), if is_complete => {
                    due = self.pass().await.map(until);
                    false
                }
            };
            if is_news {
                let soon = Instant::now() + GATHER;
                due = Some(due.map_or(soon, |due| due.min(soon)));
            }
        }
        self.reasons.clear();
    }

    /// Plans all gangs that wait, and returns when to look again although nothing happens.
    async fn pass(&mut self) -> Option<Timestamp> {
        let now = Timestamp::now();
        self.avoid.retain(|_, nodes| {
            nodes.retain(|_, until| *until > now);
            !nodes.is_empty()
        });
        self.resting
            .retain(|key, _| self.ledger.gangs.contains_key(key));
        self.ledger.settle();
        let (releases, next_due) = self.ledger.overdue(now, self.bind_timeout);
        for release in releases {
            self.release(release, now);
        }
        let mut queue = self.ledger.queue(&self.avoid);
        let rests = |key: &Key| self.resting.get(key).is_some_and(|(_, until)| *until > now);
        let resting: Vec<bool> = queue.keys.iter().map(rests).collect();
        keep_where(&mut queue.waiting, &resting);
        keep_where(&mut queue.keys, &resting);

        let waiting = Arc::new(queue.waiting);
        let Schedule {
            placements,
            refusals,
            claim,
            recheck_at,
        } = self.plan(&waiting, now).await;
        if let Some(claim) = claim {
            debug!(
                gang = waiting[claim.gang].gang.name,
                nodes = claim.nodes.len(),
                "a gang that waits long claims nodes"
            );
        }
        for (position, placement) in placements {
            self.let_go(&queue.keys[position], &waiting[position], placement, now);
        }
        let refused = refusals
            .into_iter()
            .map(|(position, refusal)| (queue.keys[position].clone(), refusal.to_string()));
        let (changed, next_text) = self
            .reasons
            .publish(queue.held.into_iter().chain(refused).collect(), now);
        for (namespace, name) in changed {
            debug!(%namespace, %name, reason = self.reasons.of(&(namespace.clone(), name.clone())), "a gang waits");
            self.companion
                .index
                .look_again(Kind::Gang, &namespace, &name);
        }
        let rested = self
            .resting
            .values()
            .map(|(_, until)| *until)
            .filter(|until| *until > now)
            .min();
        let forgiven = self
            .avoid
            .values()
            .flat_map(BTreeMap::values)
            .min()
            .copied();
        [next_due, recheck_at, next_text, rested, forgiven]
            .into_iter()
            .flatten()
            .min()
    }

    async fn plan(&mut self, waiting: &Arc<Vec<Waiting>>, now: Timestamp) -> Schedule {
        if waiting.is_empty() {
            self.companion.metrics.gangs_planned(Duration::ZERO, 0);
            return Schedule::default();
        }
        let (snapshot, settings) = (self.ledger.snapshot(), self.settings);
        let (begin, waiting) = (Instant::now(), Arc::clone(waiting));
        let count = waiting.len();
        // Nothing can change meanwhile: this task alone reads the watches and makes promises.
        let planned = tokio::task::spawn_blocking(move || {
            placement::schedule(&snapshot, &waiting, now, settings)
        })
        .await;
        let schedule = planned.unwrap_or_else(|error| {
            tracing::error!(%error, "planning gangs ended badly");
            let again = now.checked_add(SignedDuration::from_secs(1)).ok();
            Schedule {
                recheck_at: again,
                ..Schedule::default()
            }
        });
        self.companion
            .metrics
            .gangs_planned(begin.elapsed(), count - schedule.placements.len());
        schedule
    }

    /// Gives pods their room and lets them go.
    fn let_go(&mut self, gang: &Key, waiting: &Waiting, placement: Placement, now: Timestamp) {
        let Placement {
            domain,
            parts,
            bindings,
            left_out,
        } = placement;
        if bindings.is_empty() {
            return;
        }
        info!(
            namespace = %gang.0, name = %gang.1, pods = bindings.len(), left_out = left_out.len(), domain, ?parts,
            gated = waiting.gang.groups.iter().map(|group| group.pods.len()).sum::<usize>(), "placing a gang"
        );
        self.companion.metrics.gang_placement("placed");
        self.ledger.begin(gang);
        for binding in bindings {
            let pod: Key = (Arc::clone(&gang.0), Arc::from(binding.pod));
            let Some(record) = self.ledger.pods.get(&pod) else {
                continue;
            };
            let Some(gate) = &record.gate else { continue };
            let uid = record.uid.clone();
            let patch = lift::patch(
                &uid,
                &gate.gates,
                gate.affinity.as_deref(),
                &binding.node,
                now,
            );
            self.ledger.promise(
                &pod,
                Pin {
                    node: Arc::from(binding.node),
                    at: now,
                },
            );
            let (writer, gang) = (self.companion.writer.clone(), gang.clone());
            self.writes.spawn(async move {
                let outcome = writer
                    .merge::<Pod, PodView>(Kind::Pod, &pod.0, &pod.1, &patch)
                    .await;
                Written::Lifted {
                    pod,
                    uid,
                    gang,
                    outcome: outcome.map(Box::new),
                }
            });
        }
    }

    /// Takes back what was not bound in time.
    fn release(&mut self, release: Release, now: Timestamp) {
        let Release {
            gang,
            pods,
            refused,
        } = release;
        warn!(
            namespace = %gang.0, name = %gang.1, pods = pods.len(), nodes = ?refused,
            "not bound in time, placing anew"
        );
        self.companion.metrics.gang_placement("released");
        let until = now.saturating_add(AVOID).unwrap_or(now);
        self.avoid
            .entry(gang)
            .or_default()
            .extend(refused.into_iter().map(|node| (node, until)));
        for (pod, uid) in pods {
            self.ledger.expect_end(&pod, &uid, true);
            let writer = self.companion.writer.clone();
            self.writes.spawn(async move {
                let outcome = writer.delete_pod(&pod.0, &pod.1, &PodUid::new(&uid)).await;
                Written::Deleted { pod, uid, outcome }
            });
        }
    }

    fn see_written(&mut self, written: Written) -> bool {
        match written {
            Written::Lifted {
                pod,
                gang,
                outcome: Ok(view),
                ..
            } => {
                self.resting.remove(&gang);
                self.ledger.put_pod(&view);
                // What was planned has come; nobody else can use the room.
                self.ledger.is_in_flight(&pod)
            }
            Written::Lifted {
                pod,
                uid,
                gang,
                outcome: Err(error),
            } => {
                self.ledger.withdraw(&pod, &uid);
                match &error {
                    WriteError::NotLeader => return false,
                    WriteError::Missing { .. } => {
                        debug!(namespace = %pod.0, name = %pod.1, "the pod is gone")
                    }
                    _ => {
                        warn!(namespace = %pod.0, name = %pod.1, error = %chain(&error), "cannot let a placed pod go");
                        self.companion.metrics.gang_placement("failed");
                        self.rest(gang);
                    }
                }
                true
            }
            Written::Deleted {
                pod,
                uid,
                outcome: Ok(()),
            } => {
                self.companion.metrics.pod_deleted("Unbound");
                self.companion
                    .index
                    .doom(&pod.0, &[(Arc::clone(&pod.1), PodUid::new(&uid))]);
                true
            }
            Written::Deleted {
                pod,
                uid,
                outcome: Err(error),
            } => {
                if !matches!(error, WriteError::NotLeader) {
                    warn!(namespace = %pod.0, name = %pod.1, error = %chain(&error), "cannot take a pod back");
                }
                self.ledger.expect_end(&pod, &uid, false);
                true
            }
        }
    }

    fn rest(&mut self, gang: Key) {
        let entry = self
            .resting
            .entry(gang)
            .or_insert((0, Timestamp::UNIX_EPOCH));
        entry.0 = entry.0.saturating_add(1);
        let seconds = 1_u32
            .checked_shl(entry.0 - 1)
            .unwrap_or(LONGEST_PAUSE)
            .clamp(1, LONGEST_PAUSE);
        let now = Timestamp::now();
        entry.1 = now
            .saturating_add(SignedDuration::from_secs(seconds.into()))
            .unwrap_or(now);
    }

    fn see_node(
        &mut self,
        event: Result<Event<NodeView>, watcher::Error>,
        list: &mut List,
    ) -> bool {
        let name = |view: &NodeView| key(&view.metadata).1;
        match event {
            Ok(Event::Init) => list.seen.clear(),
            Ok(Event::InitApply(view)) => {
                list.seen.insert((Arc::from(""), name(&view)));
                return self.ledger.put_node(&view);
            }
            Ok(Event::InitDone) => {
                let seen = std::mem::take(&mut list.seen)
                    .into_iter()
                    .map(|(_, name)| name)
                    .collect();
                self.ledger.keep_nodes(&seen);
                list.is_complete = true;
                return true;
            }
            Ok(Event::Apply(view)) => return self.ledger.put_node(&view),
            Ok(Event::Delete(view)) => return self.ledger.remove_node(&name(&view)),
            Err(error) => report("Node", &error),
        }
        false
    }

    fn see_pod(&mut self, event: Result<Event<PodView>, watcher::Error>, list: &mut List) -> bool {
        match event {
            Ok(Event::Init) => list.seen.clear(),
            Ok(Event::InitApply(view)) => {
                list.seen.insert(key(&view.metadata));
                return self.ledger.put_pod(&view);
            }
            Ok(Event::InitDone) => {
                self.ledger.keep_pods(&std::mem::take(&mut list.seen));
                list.is_complete = true;
                return true;
            }
            Ok(Event::Apply(view)) => return self.ledger.put_pod(&view),
            Ok(Event::Delete(view)) => return self.ledger.remove_pod(&key(&view.metadata)),
            Err(error) => report("Pod", &error),
        }
        false
    }

    fn see_gang(
        &mut self,
        event: Result<Event<GangView>, watcher::Error>,
        list: &mut List,
    ) -> bool {
        match event {
            Ok(Event::Init) => list.seen.clear(),
            Ok(Event::InitApply(view)) => {
                list.seen.insert(key(&view.metadata));
                return self.ledger.put_gang(view);
            }
            Ok(Event::InitDone) => {
                self.ledger
                    .keep_gangs(list.namespace.as_deref(), &std::mem::take(&mut list.seen));
                list.is_complete = true;
                return true;
            }
            Ok(Event::Apply(view)) => return self.ledger.put_gang(view),
            Ok(Event::Delete(view)) => return self.ledger.remove_gang(&key(&view.metadata)),
            Err(error) => report("PodGang", &error),
        }
        false
    }
}

fn report(kind: &'static str, error: &watcher::Error) {
    warn!(kind, error = %chain(error), "a watch broke, starting it again");
}

fn keep_where<T>(list: &mut Vec<T>, left_out: &[bool]) {
    let mut flags = left_out.iter();
    list.retain(|_| flags.next().is_none_or(|left_out| !left_out));
}

async fn at(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

/// The wall clock's instant on the clock that timers use, a little later rather than earlier.
fn until(instant: Timestamp) -> Instant {
    let wait = Duration::try_from(instant.duration_since(Timestamp::now())).unwrap_or_default();
    Instant::now() + wait + Duration::from_millis(1)
}
