//! The fleet's one loop: what happens comes in, each pod's [`Actor`] answers, effects go out.
//!
//! No pod has a task of its own. All waiting is in one timer heap, all writes in one queue with bounded concurrency. A
//! pod has at most one write on its way; changes that come meanwhile are merged into the next one.

mod commands;
mod nodes;
mod output;
mod pods;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::warn;

use self::nodes::{Errand, NodeEntry};
use super::actor::{Actor, Input, Stage};
use super::addresses::Addresses;
use super::command::{Command, CommandError, FleetState};
use super::engines::{EngineEvent, Engines};
use super::gate::Gate;
use super::heartbeat::Heartbeats;
use super::settings::{Farewell, FleetSettings};
use super::status::Conditions;
use super::timers::Timers;
use super::writes::Writes;

/// A command and where its answer goes.
#[derive(Debug)]
pub(super) struct Envelope {
    pub(super) command: Command,
    pub(super) reply: oneshot::Sender<Result<FleetState, CommandError>>,
}

/// Everything the loop owns.
#[derive(Debug)]
pub(super) struct Driver {
    settings: Arc<FleetSettings>,
    heartbeats: Heartbeats,
    addresses: Addresses,
    nodes: BTreeMap<String, NodeEntry>,
    pods: HashMap<String, PodEntry>,
    /// `NAMESPACE/POD` to UID.
    by_id: HashMap<String, String>,
    by_node: HashMap<String, HashSet<String>>,
    /// UIDs of the list that is being received; what is not in it at its end is gone.
    listed: Option<HashSet<String>>,
    gate: Gate,
    engines: Engines,
    timers: Timers<Timer>,
    writes: Writes,
    /// Requests about nodes on their way.
    errands: JoinSet<Errand>,
    slow_starts: f64,
    behind_max: Duration,
}

/// One pod in play, with what the loop has to remember about it.
#[derive(Debug)]
struct PodEntry {
    id: String,
    namespace: String,
    name: String,
    node: String,
    address: Ipv4Addr,
    actor: Actor,
    conditions: Conditions,
    /// The timer that counts; earlier ones are stale.
    wake: u64,
    /// Since when a status waits to be written.
    unwritten_since: Option<Instant>,
    wants_removal: bool,
    /// In the queue or on its way.
    is_writing: bool,
    /// The version that our last write made; older events tell nothing new.
    written_version: u64,
}

#[derive(Debug)]
enum Timer {
    /// A pod's own wish, valid while its number is the pod's last.
    Wake(String, u64),
    /// A write that failed is due again.
    Rewrite(String),
}

impl Driver {
    pub(super) fn new(
        client: Client,
        settings: Arc<FleetSettings>,
        heartbeats: Heartbeats,
        addresses: Addresses,
        engines: Engines,
    ) -> Self {
        Self {
            gate: Gate::new(client.clone()),
            writes: Writes::new(client, settings.concurrency),
            settings,
            heartbeats,
            addresses,
            nodes: BTreeMap::new(),
            pods: HashMap::new(),
            by_id: HashMap::new(),
            by_node: HashMap::new(),
            listed: None,
            engines,
            timers: Timers::new(),
            errands: JoinSet::new(),
            slow_starts: 1.0,
            behind_max: Duration::ZERO,
        }
    }

    /// Runs until the commands' channel closes or a farewell comes.
    pub(super) async fn run(
        mut self,
        client: Client,
        mut commands: mpsc::UnboundedReceiver<Envelope>,
        mut engine_events: mpsc::UnboundedReceiver<EngineEvent>,
        mut farewell: oneshot::Receiver<Farewell>,
    ) {
        let mut pods = std::pin::pin!(watch(client));
        let farewell = loop {
            self.send_due_writes();
            tokio::select! {
                farewell = &mut farewell => break farewell.unwrap_or(Farewell::Leave),
                Some(envelope) = commands.recv() => self.obey(envelope),
                Some(Ok(errand)) = self.errands.join_next() => self.finish(errand),
                Some(event) = pods.next() => match event {
                    Ok(event) => self.observe(event),
                    Err(error) => warn!(%error, "cannot watch pods; trying again"),
                },
                Some(event) = engine_events.recv() => self.hear(event),
                uids = self.gate.next() => {
                    for uid in uids {
                        self.step(&uid, Input::GateOpen);
                    }
                }
                timer = self.timers.next() => self.wake(timer),
                written = self.writes.next() => self.acknowledge(written),
            }
        };
        if farewell == Farewell::CleanUp {
            self.remove_all_nodes().await;
            self.flush().await;
        }
        self.engines.end().await;
    }

    /// Sends what is queued and waits for the answers, within reason.
    async fn flush(&mut self) {
        let all = async {
            while self.pods.values().any(|pod| pod.is_writing) {
                self.send_due_writes();
                let written = self.writes.next().await;
                self.acknowledge(written);
            }
        };
        if tokio::time::timeout(Duration::from_secs(20), all)
            .await
            .is_err()
        {
            warn!("not all pods could be removed");
        }
    }

    fn state(&self) -> FleetState {
        let mut pods = BTreeMap::new();
        for pod in self.pods.values() {
            *pods
                .entry(stage_name(pod.actor.stage).to_owned())
                .or_default() += 1;
        }
        let behind = self
            .pods
            .values()
            .filter_map(|pod| pod.unwritten_since)
            .min()
            .map(|since| since.elapsed());
        FleetState {
            nodes: self.nodes.len(),
            dead_nodes: self
                .nodes
                .iter()
                .filter(|(_, node)| !node.is_alive)
                .map(|(name, _)| name.clone())
                .collect(),
            pods,
            engines: self
                .pods
                .values()
                .filter(|pod| pod.actor.script.engine.is_some())
                .count(),
            writes: self.writes.sent,
            retries: self.writes.retries,
            behind_seconds: behind.unwrap_or_default().as_secs_f64(),
            behind_seconds_max: self.behind_max.as_secs_f64(),
            slow_starts: self.slow_starts,
        }
    }
}

/// All pods that are bound to a node.
fn watch(client: Client) -> impl Stream<Item = watcher::Result<Event<Pod>>> {
    let pods: Api<Pod> = Api::all(client);
    watcher(pods, watcher::Config::default().fields("spec.nodeName!=")).default_backoff()
}

fn stage_name(stage: Stage) -> &'static str {
    match stage {
        Stage::Held => "held",
        Stage::Starting => "starting",
        Stage::Opening => "opening",
        Stage::Ready => "ready",
        Stage::Down { .. } => "down",
        Stage::Draining => "draining",
        Stage::Ended { .. } => "ended",
        Stage::Lost => "lost",
        Stage::Removed => "removed",
    }
}
