//! Pods: seen on the watch, told what happens, and their wishes carried out.

use std::collections::HashSet;
use std::net::SocketAddrV4;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::runtime::watcher::Event;
use tokio::time::Instant;
use tracing::{debug, warn};

use super::super::actor::{Actor, Conduct, Effect, Input, Stage};
use super::super::engines::EngineEvent;
use super::super::script::Script;
use super::super::startup;
use super::super::status::{self, Conditions};
use super::super::writes::version;
use super::{Driver, PodEntry, Timer};

impl Driver {
    pub(super) fn observe(&mut self, event: Event<Pod>) {
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
                let gone: Vec<_> = self
                    .pods
                    .keys()
                    .filter(|uid| !listed.contains(*uid))
                    .cloned()
                    .collect();
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
        let (Some(uid), Some(node)) = (
            pod.uid(),
            pod.spec.as_ref().and_then(|spec| spec.node_name.clone()),
        ) else {
            return;
        };
        if !self.nodes.contains_key(&node) {
            return;
        }
        if !self.pods.contains_key(&uid) {
            self.arrive(pod, &uid, &node);
        }
        if pod.metadata.deletion_timestamp.is_some() {
            let grace = pod
                .metadata
                .deletion_grace_period_seconds
                .and_then(|s| u64::try_from(s).ok())
                .unwrap_or(0);
            self.gate.leave(&uid);
            self.step(
                &uid,
                Input::Deleted {
                    grace: Duration::from_secs(grace),
                },
            );
            return;
        }
        self.correct(pod, &uid);
    }

    /// Somebody else may have changed what we wrote: the node controller marks pods as not ready when heartbeats were
    /// late. Then the status is written again, as a kubelet would.
    fn correct(&mut self, pod: &Pod, uid: &str) {
        let Some(entry) = self.pods.get(uid) else {
            return;
        };
        let is_news = resource_version(pod) > entry.written_version;
        let is_alive = self
            .nodes
            .get(&entry.node)
            .is_some_and(|node| node.is_alive);
        let has_written = entry.written_version > 0;
        if is_news
            && is_alive
            && has_written
            && !entry.is_writing
            && is_ready(pod) != status::is_ready(&entry.actor)
        {
            debug!(pod = %entry.id, "somebody else changed the pod's readiness; writing it again");
            self.publish(uid);
        }
    }

    fn arrive(&mut self, pod: &Pod, uid: &str, node: &str) {
        let namespace = pod.namespace().unwrap_or_default();
        let name = pod.name_any();
        let id = format!("{namespace}/{name}");
        if let Some(predecessor) = self.by_id.get(&id).cloned() {
            self.forget(&predecessor);
        }
        let script = Script::read(pod);
        for complaint in &script.complaints {
            warn!(pod = %id, complaint, "the pod is played without it");
        }
        let earlier_address = pod
            .status
            .as_ref()
            .and_then(|status| status.pod_ip.as_ref()?.parse().ok());
        let kept = earlier_address.filter(|&address| self.addresses.keep(address));
        let Some(address) = kept.or_else(|| self.addresses.take()) else {
            warn!(pod = %id, "no address is free; the pod is not played");
            return;
        };
        let now = Timestamp::now();
        let phase = pod
            .status
            .as_ref()
            .and_then(|status| status.phase.as_deref());
        // What somebody wrote about the pod before counts as ours, so that a change of it is noticed.
        let mut written_version = 0;
        let (actor, effects) = match phase {
            Some("Succeeded") => (Actor::ended(script, true, now), vec![]),
            Some("Failed") => (Actor::ended(script, false, now), vec![]),
            Some("Running") if is_ready(pod) => {
                let (restarts, since) = earlier_life(pod, now);
                written_version = resource_version(pod);
                Actor::adopt(script, restarts, since, now)
            }
            _ => {
                let gate = script
                    .gate
                    .as_ref()
                    .map(|arguments| self.gate.enter(uid, &namespace, arguments));
                let is_open = match gate {
                    None => true,
                    Some(Ok(is_open)) => is_open,
                    Some(Err(error)) => {
                        warn!(pod = %id, error, "the pod's start-order gate cannot be read; the pod waits for ever");
                        false
                    }
                };
                let conduct = self.conduct(&script, 0, node);
                Actor::arrive(script, is_open, conduct)
            }
        };
        let entry = PodEntry {
            id: id.clone(),
            namespace,
            name,
            node: node.to_owned(),
            address,
            actor,
            conditions: Conditions::default(),
            wake: 0,
            unwritten_since: None,
            wants_removal: false,
            is_writing: false,
            written_version,
        };
        self.by_id.insert(id, uid.to_owned());
        self.by_node
            .entry(node.to_owned())
            .or_default()
            .insert(uid.to_owned());
        self.pods.insert(uid.to_owned(), entry);
        if self.nodes.get(node).is_some_and(|node| node.is_alive) {
            self.carry_out(uid, effects);
        } else {
            // Bound to a machine that is off: nobody is there to do anything.
            self.step(uid, Input::NodeDied);
        }
    }

    /// The pod's object is gone.
    fn forget(&mut self, uid: &str) {
        let Some(entry) = self.pods.remove(uid) else {
            return;
        };
        self.gate.leave(uid);
        self.addresses.release(entry.address);
        // A successor of the same name may be here already.
        if self.by_id.get(&entry.id).is_some_and(|known| known == uid) {
            self.by_id.remove(&entry.id);
            self.engines.stop(&entry.id);
        }
        if let Some(pods) = self.by_node.get_mut(&entry.node) {
            pods.remove(uid);
        }
    }

    /// A pod whose node came back waits at its gate again.
    pub(super) fn enter_gate(&mut self, uid: &str) {
        let Some(entry) = self.pods.get(uid) else {
            return;
        };
        if entry.actor.stage != Stage::Held {
            return;
        }
        let is_open = match &entry.actor.script.gate {
            None => true,
            // It was read once already, so a complaint would be the same one.
            Some(arguments) => self
                .gate
                .enter(uid, &entry.namespace.clone(), &arguments.clone())
                .unwrap_or(false),
        };
        if is_open {
            self.step(uid, Input::GateOpen);
        }
    }

    pub(super) fn hear(&mut self, event: EngineEvent) {
        if !self.engines.note(&event) {
            debug!(?event, "an engine that was stopped says something");
            return;
        }
        let (id, input) = match event {
            EngineEvent::Listening { id } => (id, Input::EngineListening),
            EngineEvent::Drained { id } => (id, Input::EngineDrained),
            EngineEvent::Failed { id, error } => {
                warn!(pod = %id, error, "an engine failed");
                (id, Input::EngineFailed(error))
            }
            EngineEvent::AllEnded(error) => {
                warn!(error, "all engines failed");
                let engines: Vec<_> = self
                    .pods
                    .iter()
                    .filter(|(_, pod)| pod.actor.script.engine.is_some())
                    .filter(|(_, pod)| {
                        matches!(
                            pod.actor.stage,
                            Stage::Opening | Stage::Ready | Stage::Draining
                        )
                    })
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

    pub(super) fn wake(&mut self, timer: Timer) {
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

    pub(super) fn step(&mut self, uid: &str, input: Input) {
        let Some(entry) = self.pods.get(uid) else {
            return;
        };
        let conduct = self.conduct(&entry.actor.script, entry.actor.starts, &entry.node);
        let Some(entry) = self.pods.get_mut(uid) else {
            return;
        };
        let effects = entry.actor.step(input, conduct);
        self.carry_out(uid, effects);
    }

    fn conduct(&self, script: &Script, starts: u32, node: &str) -> Conduct {
        Conduct {
            startup: startup::delay(
                self.settings.startup,
                script.startup,
                self.slow_starts,
                &script.who,
                starts,
            ),
            fenced: self.nodes.get(node).is_none_or(|node| node.fenced),
            now: Timestamp::now(),
        }
    }

    fn carry_out(&mut self, uid: &str, effects: Vec<Effect>) {
        for effect in effects {
            let Some(entry) = self.pods.get_mut(uid) else {
                return;
            };
            match effect {
                Effect::Publish => self.publish(uid),
                Effect::Wake(pause) => {
                    entry.wake += 1;
                    self.timers.set(
                        Instant::now() + pause,
                        Timer::Wake(uid.to_owned(), entry.wake),
                    );
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
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    conditions
        .into_iter()
        .flatten()
        .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

fn resource_version(pod: &Pod) -> u64 {
    version(pod.metadata.resource_version.as_deref())
}

/// Restarts and start time of a pod that ran before this fleet.
fn earlier_life(pod: &Pod, now: Timestamp) -> (u32, Timestamp) {
    let container = pod
        .status
        .as_ref()
        .and_then(|status| status.container_statuses.as_ref()?.first());
    let restarts = container
        .and_then(|container| u32::try_from(container.restart_count).ok())
        .unwrap_or_default();
    let since = container
        .and_then(|container| {
            container
                .state
                .as_ref()?
                .running
                .as_ref()?
                .started_at
                .as_ref()
        })
        .map_or(now, |started| started.0);
    (restarts, since)
}
