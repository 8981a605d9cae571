//! The fleet's one loop: what happens comes in, each pod's [`Actor`] answers, effects go out.
//!
//! No pod has a task of its own. All waiting is in one timer heap, all writes in one queue with bounded concurrency. A
//! pod has at most one write on its way; changes that come meanwhile are merged into the next one.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, ResourceExt};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::actor::{Actor, Conduct, Effect, Input, Stage};
use super::addresses::Addresses;
use super::command::{Command, CommandError, FleetState};
use super::engines::{EngineEvent, Engines};
use super::gate::Gate;
use super::heartbeat::Heartbeats;
use super::node;
use super::script::Script;
use super::settings::FleetSettings;
use super::startup;
use super::status::{self, Conditions};
use super::timers::Timers;
use super::writes::{Written, Writes};

/// A command and where its answer goes.
#[derive(Debug)]
pub(super) struct Envelope {
    pub(super) command: Command,
    pub(super) reply: oneshot::Sender<Result<FleetState, CommandError>>,
}

/// How a fleet ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Farewell {
    /// Nodes and pods stay as they are, and are lost to the cluster when their leases run out.
    Leave,
    /// Nodes are deleted and their pods removed.
    CleanUp,
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
    slow_starts: f64,
    behind_max: Duration,
}

#[derive(Debug)]
struct NodeEntry {
    address: Ipv4Addr,
    is_alive: bool,
    fenced: bool,
}

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

/// A failed write is tried again after this.
const RETRY: Duration = Duration::from_millis(500);

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
                Some(envelope) = commands.recv() => {
                    let result = self.obey(envelope.command).await;
                    // Who asked may have gone.
                    drop(envelope.reply.send(result.map(|()| self.state())));
                }
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
            let names: Vec<_> = self.nodes.keys().cloned().collect();
            for name in names {
                if let Err(error) = self.remove_node(&name).await {
                    warn!(node = %name, %error, "cannot remove the node");
                }
            }
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
        if tokio::time::timeout(Duration::from_secs(20), all).await.is_err() {
            warn!("not all pods could be removed");
        }
    }

    // ---- nodes ------------------------------------------------------------------------------------------------

    /// Registers `count` nodes behind the present ones.
    pub(super) async fn add_nodes(&mut self, count: usize) -> Result<(), CommandError> {
        let first = self.nodes.len();
        let mut fresh = Vec::with_capacity(count);
        for index in first..first + count {
            let address = self.addresses.take().ok_or_else(no_address)?;
            let name = node::name(&self.settings.name_prefix, index);
            self.nodes.insert(name, NodeEntry { address, is_alive: true, fenced: true });
            fresh.push((index, address));
        }
        self.heartbeats.register(fresh).await.map_err(|e| CommandError::Refused(e.to_string()))
    }

    fn kill_node(&mut self, name: &str, fenced: bool) -> Result<(), CommandError> {
        let node = self.nodes.get_mut(name).ok_or_else(|| CommandError::NoSuchNode(name.to_owned()))?;
        node.is_alive = false;
        node.fenced = fenced;
        self.heartbeats.stop(name);
        info!(node = name, fenced, "node killed");
        for uid in self.pods_on(name) {
            self.step(&uid, Input::NodeDied);
        }
        Ok(())
    }

    async fn revive_node(&mut self, name: &str) -> Result<(), CommandError> {
        let node = self.nodes.get_mut(name).ok_or_else(|| CommandError::NoSuchNode(name.to_owned()))?;
        if node.is_alive {
            return Ok(());
        }
        node.is_alive = true;
        let address = node.address;
        self.heartbeats.revive(name, address).await.map_err(|e| CommandError::Refused(e.to_string()))?;
        info!(node = name, "node revived");
        for uid in self.pods_on(name) {
            self.step(&uid, Input::NodeBack);
            self.enter_gate(&uid);
        }
        Ok(())
    }

    async fn remove_node(&mut self, name: &str) -> Result<(), CommandError> {
        let address = self.nodes.get(name).ok_or_else(|| CommandError::NoSuchNode(name.to_owned()))?.address;
        self.heartbeats.unregister(name).await.map_err(|e| CommandError::Refused(e.to_string()))?;
        for uid in self.pods_on(name) {
            self.step(&uid, Input::Deleted { grace: Duration::ZERO });
        }
        // The name stays known, so that numbers are not given twice and its last pods are still seen to their end.
        if let Some(node) = self.nodes.get_mut(name) {
            node.is_alive = false;
            node.fenced = true;
        }
        self.addresses.release(address);
        info!(node = name, "node removed");
        Ok(())
    }

    fn pods_on(&self, node: &str) -> Vec<String> {
        self.by_node.get(node).into_iter().flatten().cloned().collect()
    }

    // ---- commands ---------------------------------------------------------------------------------------------

    async fn obey(&mut self, command: Command) -> Result<(), CommandError> {
        match command {
            Command::AddNodes { count } => self.add_nodes(count).await,
            Command::KillNode { node, fenced } => self.kill_node(&node, fenced),
            Command::ReviveNode { node } => self.revive_node(&node).await,
            Command::RemoveNode { node } => self.remove_node(&node).await,
            Command::CrashPod { pod, exit_code, stay_down } => {
                self.step_if(&pod, "crash-pod", "a running pod", Input::Crash { exit_code, stay_down }, |actor| {
                    actor.is_running()
                })
            }
            Command::RecoverPod { pod } => {
                self.step_if(&pod, "recover-pod", "a pod that is kept down", Input::Recover, |actor| {
                    actor.stage == Stage::Down { until_recovered: true }
                })
            }
            Command::SlowStarts { factor } if factor.is_finite() && factor >= 0.0 => {
                self.slow_starts = factor;
                Ok(())
            }
            Command::SlowStarts { factor } => {
                Err(CommandError::BadValue { field: "factor", value: factor.to_string(), rule: "a number of at least 0" })
            }
            Command::FreezeMetrics { pod, frozen } => {
                if let Some(id) = &pod {
                    let uid = self.by_id.get(id).ok_or_else(|| CommandError::NoSuchPod(id.clone()))?;
                    if self.pods.get(uid).is_none_or(|pod| pod.actor.script.engine.is_none()) {
                        return Err(CommandError::NotNow {
                            subject: id.clone(),
                            state: "no simulated engine".to_owned(),
                            what: "freeze-metrics",
                            needs: "one",
                        });
                    }
                }
                self.engines.freeze(pod.as_deref(), frozen);
                Ok(())
            }
            Command::Status => Ok(()),
        }
    }

    fn step_if(
        &mut self,
        id: &str,
        what: &'static str,
        needs: &'static str,
        input: Input,
        is_possible: impl Fn(&Actor) -> bool,
    ) -> Result<(), CommandError> {
        let no_such_pod = || CommandError::NoSuchPod(id.to_owned());
        let uid = self.by_id.get(id).ok_or_else(no_such_pod)?.clone();
        let actor = &self.pods.get(&uid).ok_or_else(no_such_pod)?.actor;
        if !is_possible(actor) {
            let state = stage_name(actor.stage).to_owned();
            return Err(CommandError::NotNow { subject: id.to_owned(), state, what, needs });
        }
        self.step(&uid, input);
        Ok(())
    }

    fn state(&self) -> FleetState {
        let mut pods = BTreeMap::new();
        for pod in self.pods.values() {
            *pods.entry(stage_name(pod.actor.stage).to_owned()).or_default() += 1;
        }
        let behind = self.pods.values().filter_map(|pod| pod.unwritten_since).min().map(|since| since.elapsed());
        FleetState {
            nodes: self.nodes.len(),
            dead_nodes: self.nodes.iter().filter(|(_, node)| !node.is_alive).map(|(name, _)| name.clone()).collect(),
            pods,
            engines: self.pods.values().filter(|pod| pod.actor.script.engine.is_some()).count(),
            writes: self.writes.sent,
            retries: self.writes.retries,
            behind_seconds: behind.unwrap_or_default().as_secs_f64(),
            behind_seconds_max: self.behind_max.as_secs_f64(),
            slow_starts: self.slow_starts,
        }
    }

    // ---- pods -------------------------------------------------------------------------------------------------

    fn observe(&mut self, event: Event<Pod>) {
        match event {
            Event::Init => self.listed = Some(HashSet::new()),
            Event::InitApply(pod) => {
                if let (Some(listed), Some(uid)) = (&mut self.listed, pod.uid()) {
                    listed.insert(uid);
                }
                self.observe_pod(&pod);
            }
            Event::InitDone => {
                let listed = self.listed.take().unwrap_or_default();
                let gone: Vec<_> = self.pods.keys().filter(|uid| !listed.contains(*uid)).cloned().collect();
                for uid in gone {
                    self.forget(&uid);
                }
            }
            Event::Apply(pod) => self.observe_pod(&pod),
            Event::Delete(pod) => {
                if let Some(uid) = pod.uid() {
                    self.forget(&uid);
                }
            }
        }
    }

    fn observe_pod(&mut self, pod: &Pod) {
        let (Some(uid), Some(node)) = (pod.uid(), pod.spec.as_ref().and_then(|spec| spec.node_name.clone())) else {
            return;
        };
        if !self.nodes.contains_key(&node) {
            return;
        }
        if !self.pods.contains_key(&uid) {
            self.arrive(pod, uid.clone(), node);
        }
        if pod.metadata.deletion_timestamp.is_some() {
            let grace = pod.metadata.deletion_grace_period_seconds.and_then(|s| u64::try_from(s).ok()).unwrap_or(0);
            self.gate.leave(&uid);
            self.step(&uid, Input::Deleted { grace: Duration::from_secs(grace) });
            return;
        }
        self.correct(pod, &uid);
    }

    /// Somebody else may have changed what we wrote: the node controller marks pods as not ready when heartbeats were
    /// late. Then the status is written again, as a kubelet would.
    fn correct(&mut self, pod: &Pod, uid: &str) {
        let Some(entry) = self.pods.get(uid) else { return };
        let is_news = status_version(pod) > entry.written_version;
        let is_alive = self.nodes.get(&entry.node).is_some_and(|node| node.is_alive);
        let has_written = entry.written_version > 0;
        if is_news && is_alive && has_written && !entry.is_writing && is_ready(pod) != status::is_ready(&entry.actor) {
            debug!(pod = %entry.id, "somebody else changed the pod's readiness; writing it again");
            self.publish(uid);
        }
    }

    fn arrive(&mut self, pod: &Pod, uid: String, node: String) {
        let namespace = pod.namespace().unwrap_or_default();
        let name = pod.name_any();
        let id = format!("{namespace}/{name}");
        let script = Script::read(pod);
        for complaint in &script.complaints {
            warn!(pod = %id, complaint, "the pod is played without it");
        }
        let known = pod.status.as_ref().and_then(|status| status.pod_ip.as_ref()?.parse().ok());
        let kept = known.filter(|&address| self.addresses.keep(address));
        let Some(address) = kept.or_else(|| self.addresses.take()) else {
            warn!(pod = %id, "no address is free; the pod is not played");
            return;
        };
        let now = Timestamp::now();
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        let (actor, effects) = match phase {
            Some("Succeeded") => (Actor::ended(script, true, now), vec![]),
            Some("Failed") => (Actor::ended(script, false, now), vec![]),
            Some("Running") if is_ready(pod) => {
                let (restarts, since) = earlier_life(pod, now);
                Actor::adopt(script, restarts, since, now)
            }
            _ => {
                let gate = script.gate.as_ref().map(|arguments| self.gate.enter(&uid, &namespace, arguments));
                let is_open = match gate {
                    None => true,
                    Some(Ok(is_open)) => is_open,
                    Some(Err(error)) => {
                        warn!(pod = %id, error, "the pod's start-order gate cannot be read; the pod waits for ever");
                        false
                    }
                };
                let conduct = self.conduct(&script, 0, &node);
                Actor::arrive(script, is_open, conduct)
            }
        };
        let entry = PodEntry {
            id: id.clone(),
            namespace,
            name,
            node: node.clone(),
            address,
            actor,
            conditions: Conditions::default(),
            wake: 0,
            unwritten_since: None,
            wants_removal: false,
            is_writing: false,
            written_version: 0,
        };
        self.by_id.insert(id, uid.clone());
        self.by_node.entry(node.clone()).or_default().insert(uid.clone());
        self.pods.insert(uid.clone(), entry);
        if self.nodes.get(&node).is_some_and(|node| node.is_alive) {
            self.carry_out(&uid, effects);
        } else {
            // Bound to a machine that is off: nobody is there to do anything.
            self.step(&uid, Input::NodeDied);
        }
    }

    /// The pod's object is gone.
    fn forget(&mut self, uid: &str) {
        let Some(entry) = self.pods.remove(uid) else { return };
        self.gate.leave(uid);
        if entry.actor.script.engine.is_some() && entry.actor.stage != Stage::Removed {
            self.engines.stop(&entry.id);
        }
        self.addresses.release(entry.address);
        if self.by_id.get(&entry.id).is_some_and(|known| known == uid) {
            self.by_id.remove(&entry.id);
        }
        if let Some(pods) = self.by_node.get_mut(&entry.node) {
            pods.remove(uid);
        }
    }

    /// A pod whose node came back waits at its gate again.
    fn enter_gate(&mut self, uid: &str) {
        let Some(entry) = self.pods.get(uid) else { return };
        if entry.actor.stage != Stage::Held {
            return;
        }
        let is_open = match &entry.actor.script.gate {
            None => true,
            // It was read once already, so a complaint would be the same one.
            Some(arguments) => self.gate.enter(uid, &entry.namespace.clone(), &arguments.clone()).unwrap_or(false),
        };
        if is_open {
            self.step(uid, Input::GateOpen);
        }
    }

    fn hear(&mut self, event: EngineEvent) {
        let (id, input) = match event {
            EngineEvent::Listening { id } => (id, Input::EngineListening),
            EngineEvent::Drained { id } => (id, Input::EngineDrained),
            EngineEvent::Failed { id, error } => {
                warn!(pod = %id, error, "an engine failed");
                (id, Input::EngineFailed(error))
            }
            EngineEvent::AllEnded(error) => {
                warn!(error, "all engines failed");
                self.engines.forget();
                let engines: Vec<_> = self
                    .pods
                    .iter()
                    .filter(|(_, pod)| pod.actor.script.engine.is_some())
                    .filter(|(_, pod)| matches!(pod.actor.stage, Stage::Opening | Stage::Ready | Stage::Draining))
                    .map(|(uid, _)| uid.clone())
                    .collect();
                for uid in engines {
                    self.step(&uid, Input::EngineFailed(error.clone()));
                }
                return;
            }
        };
        if let Some(uid) = self.by_id.get(&id).cloned() {
            self.step(&uid, input);
        }
    }

    fn wake(&mut self, timer: Timer) {
        match timer {
            Timer::Wake(uid, number) => {
                if self.pods.get(&uid).is_some_and(|pod| pod.wake == number) {
                    self.step(&uid, Input::Woken);
                }
            }
            Timer::Rewrite(uid) => {
                if let Some(pod) = self.pods.get_mut(&uid) {
                    pod.is_writing = false;
                    self.enqueue(&uid);
                }
            }
        }
    }

    fn step(&mut self, uid: &str, input: Input) {
        let Some(entry) = self.pods.get(uid) else { return };
        let conduct = self.conduct(&entry.actor.script, entry.actor.starts, &entry.node);
        let Some(entry) = self.pods.get_mut(uid) else { return };
        let effects = entry.actor.step(input, conduct);
        self.carry_out(uid, effects);
    }

    fn conduct(&self, script: &Script, starts: u32, node: &str) -> Conduct {
        Conduct {
            startup: startup::delay(self.settings.startup, script.startup, self.slow_starts, &script.who, starts),
            fenced: self.nodes.get(node).is_none_or(|node| node.fenced),
            now: Timestamp::now(),
        }
    }

    fn carry_out(&mut self, uid: &str, effects: Vec<Effect>) {
        for effect in effects {
            let Some(entry) = self.pods.get_mut(uid) else { return };
            match effect {
                Effect::Publish => self.publish(uid),
                Effect::Wake(pause) => {
                    entry.wake += 1;
                    self.timers.set(Instant::now() + pause, Timer::Wake(uid.to_owned(), entry.wake));
                }
                Effect::StartEngine => {
                    if let Some(engine) = &entry.actor.script.engine {
                        let address = SocketAddrV4::new(entry.address, engine.port);
                        self.engines.start(&entry.id, address, &engine.arguments);
                    }
                }
                Effect::DrainEngine { grace } => self.engines.drain(&entry.id, grace),
                Effect::StopEngine => self.engines.stop(&entry.id),
                Effect::Delete => {
                    entry.wants_removal = true;
                    entry.unwritten_since.get_or_insert_with(Instant::now);
                    self.enqueue(uid);
                }
            }
        }
    }

    // ---- writes -----------------------------------------------------------------------------------------------

    fn publish(&mut self, uid: &str) {
        if let Some(entry) = self.pods.get_mut(uid) {
            entry.unwritten_since.get_or_insert_with(Instant::now);
            self.enqueue(uid);
        }
    }

    fn enqueue(&mut self, uid: &str) {
        if let Some(entry) = self.pods.get_mut(uid)
            && !entry.is_writing
            && entry.unwritten_since.is_some()
        {
            entry.is_writing = true;
            self.writes.enqueue(uid.to_owned());
        }
    }

    /// Sends as many queued writes as may be on their way. What is written is decided here, at the last moment.
    fn send_due_writes(&mut self) {
        while let Some(uid) = self.writes.turn() {
            let Some(entry) = self.pods.get_mut(&uid) else { continue };
            if let Some(since) = entry.unwritten_since.take() {
                self.behind_max = self.behind_max.max(since.elapsed());
            }
            if entry.wants_removal {
                self.writes.send(uid.clone(), removal(entry, uid));
                continue;
            }
            // A dead node writes nothing.
            let Some(node) = self.nodes.get(&entry.node).filter(|node| node.is_alive) else {
                entry.is_writing = false;
                continue;
            };
            let PodEntry { actor, conditions, address, namespace, name, .. } = entry;
            let patch = status::patch(actor, conditions, &uid, *address, node.address, Timestamp::now());
            let job = super::writes::Job::Status { namespace: namespace.clone(), name: name.clone(), patch };
            self.writes.send(uid, job);
        }
    }

    fn acknowledge(&mut self, written: Written) {
        use super::writes::Outcome;
        let Written { uid, outcome } = written;
        let Some(entry) = self.pods.get_mut(&uid) else { return };
        match outcome {
            Outcome::Done { version } => {
                entry.written_version = entry.written_version.max(version);
                entry.is_writing = false;
                self.enqueue(&uid);
            }
            // The watch will say so, too.
            Outcome::Gone => entry.is_writing = false,
            Outcome::Refused(reason) => {
                warn!(pod = %entry.id, reason, "the API server refuses what the fleet writes about the pod");
                entry.is_writing = false;
            }
            Outcome::Failed(reason) => {
                debug!(pod = %entry.id, reason, "a write failed; trying again");
                self.writes.retries += 1;
                entry.unwritten_since.get_or_insert_with(Instant::now);
                self.timers.set(Instant::now() + RETRY, Timer::Rewrite(uid));
            }
        }
    }
}

fn removal(entry: &PodEntry, uid: String) -> super::writes::Job {
    super::writes::Job::Removal { namespace: entry.namespace.clone(), name: entry.name.clone(), uid }
}

/// All pods that are bound to a node.
fn watch(client: Client) -> impl Stream<Item = watcher::Result<Event<Pod>>> {
    let pods: Api<Pod> = Api::all(client);
    watcher(pods, watcher::Config::default().fields("spec.nodeName!=")).default_backoff()
}

fn no_address() -> CommandError {
    CommandError::Refused("no address of 127.64.0.0/10 is free".to_owned())
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

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

fn status_version(pod: &Pod) -> u64 {
    super::writes::version(pod.metadata.resource_version.as_deref())
}

/// Restarts and start time of a pod that ran before this fleet.
fn earlier_life(pod: &Pod, now: Timestamp) -> (u32, Timestamp) {
    let container = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref()?.first());
    let restarts = container.and_then(|container| u32::try_from(container.restart_count).ok()).unwrap_or_default();
    let since = container
        .and_then(|container| container.state.as_ref()?.running.as_ref()?.started_at.as_ref())
        .map_or(now, |started| started.0);
    (restarts, since)
}
