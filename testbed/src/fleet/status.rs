//! The status that a kubelet would write for a pod. Pure: the actor's stage in, a patch out.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::actor::{Actor, Stage, Termination};
use super::script::{Played, Script};

/// The conditions that a kubelet owns, with the instant of their last change.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Conditions(BTreeMap<&'static str, (bool, Timestamp)>);

impl Conditions {
    /// Sets a condition and returns when it last changed.
    fn set(&mut self, kind: &'static str, is_true: bool, now: Timestamp) -> Timestamp {
        let entry = self.0.entry(kind).or_insert((is_true, now));
        if entry.0 != is_true {
            *entry = (is_true, now);
        }
        entry.1
    }
}

/// Whether the pod would be reported as ready.
pub(super) fn is_ready(actor: &Actor) -> bool {
    actor.stage == Stage::Ready
}

/// A strategic merge patch of the pod's status. It names the pod's UID, so that the server refuses it for a successor.
pub(super) fn patch(
    actor: &Actor,
    conditions: &mut Conditions,
    uid: &str,
    pod_address: Ipv4Addr,
    host_address: Ipv4Addr,
    now: Timestamp,
) -> Value {
    let is_initialized = !matches!(actor.stage, Stage::Held | Stage::Lost);
    let is_ready = is_ready(actor);
    let reason = match actor.stage {
        Stage::Ended { succeeded: true } => Some("PodCompleted"),
        Stage::Ended { succeeded: false } => Some("PodFailed"),
        _ => Some("ContainersNotReady"),
    };
    let mut condition = |kind: &'static str, is_true: bool, reason: Option<&str>| {
        let since = conditions.set(kind, is_true, now);
        json!({
            "type": kind,
            "status": if is_true { "True" } else { "False" },
            "lastTransitionTime": time(since),
            // Null takes an earlier reason away.
            "reason": reason.filter(|_| !is_true),
            "message": null,
        })
    };
    let has_sandbox = !matches!(actor.stage, Stage::Ended { .. });
    json!({
        "metadata": {"uid": uid},
        "status": {
            "phase": phase(actor),
            "startTime": time(actor.arrived),
            "hostIP": host_address,
            "hostIPs": [{"ip": host_address}],
            "podIP": pod_address,
            "podIPs": [{"ip": pod_address}],
            "conditions": [
                condition("PodReadyToStartContainers", has_sandbox, None),
                condition("Initialized", is_initialized, Some("ContainersNotInitialized")),
                condition("ContainersReady", is_ready, reason),
                condition("Ready", is_ready, reason),
            ],
            "initContainerStatuses": init_containers(actor),
            "containerStatuses": containers(actor),
        },
    })
}

fn phase(actor: &Actor) -> &'static str {
    match actor.stage {
        Stage::Held | Stage::Lost => "Pending",
        Stage::Starting
        | Stage::Opening
        | Stage::Ready
        | Stage::Down { .. }
        | Stage::Draining
        | Stage::Removed => "Running",
        Stage::Ended { succeeded: true } => "Succeeded",
        Stage::Ended { succeeded: false } => "Failed",
    }
}

fn init_containers(actor: &Actor) -> Vec<Value> {
    let is_held = matches!(actor.stage, Stage::Held | Stage::Lost);
    let mut is_behind_gate = false;
    let mut statuses = Vec::new();
    for container in &actor.script.init_containers {
        let done = terminated(0, "Completed", "", actor.arrived, actor.started);
        let is_gate = is_held && Script::is_gate(container);
        let (state, ready) = if is_behind_gate {
            (json!({"waiting": {"reason": "PodInitializing"}}), false)
        } else if is_gate {
            (running(actor.arrived), false)
        } else if container.is_sidecar && !matches!(actor.stage, Stage::Ended { .. }) {
            (running(actor.arrived), true)
        } else {
            (done, true)
        };
        is_behind_gate |= is_gate;
        statuses.push(container_status(
            container,
            &state,
            None,
            ready,
            ready || is_gate,
            0,
        ));
    }
    statuses
}

fn containers(actor: &Actor) -> Vec<Value> {
    let last = actor.last.as_ref();
    let state = match actor.stage {
        Stage::Held | Stage::Lost => json!({"waiting": {"reason": "PodInitializing"}}),
        Stage::Starting | Stage::Opening | Stage::Ready | Stage::Draining | Stage::Removed => {
            running(actor.started)
        }
        Stage::Down { .. } => json!({"waiting": {
            "reason": "CrashLoopBackOff",
            "message": last.map_or("", |last| last.message.as_str()),
        }}),
        Stage::Ended { .. } => last.map_or_else(
            || terminated(0, "Completed", "", actor.started, actor.started),
            ended,
        ),
    };
    // The present state of an ended container is its last one.
    let last = last
        .filter(|_| !matches!(actor.stage, Stage::Ended { .. }))
        .map(ended);
    let has_started = matches!(actor.stage, Stage::Ready | Stage::Draining);
    actor
        .script
        .containers
        .iter()
        .map(|played| {
            container_status(
                played,
                &state,
                last.as_ref(),
                is_ready(actor),
                has_started,
                actor.restarts,
            )
        })
        .collect()
}

fn container_status(
    container: &Played,
    state: &Value,
    last: Option<&Value>,
    ready: bool,
    started: bool,
    restarts: u32,
) -> Value {
    json!({
        "name": container.name,
        "image": container.image,
        "imageID": format!("testbed://{}", container.image),
        "containerID": format!("testbed://{}-{restarts}", container.name),
        "state": state,
        "lastState": last.cloned().unwrap_or_else(|| json!({})),
        "ready": ready,
        "started": started,
        "restartCount": restarts,
    })
}

fn running(since: Timestamp) -> Value {
    json!({"running": {"startedAt": time(since)}})
}

fn ended(last: &Termination) -> Value {
    let reason = if last.exit_code == 0 {
        "Completed"
    } else {
        "Error"
    };
    terminated(
        last.exit_code,
        reason,
        &last.message,
        last.started_at,
        last.finished_at,
    )
}

fn terminated(
    exit_code: i32,
    reason: &str,
    message: &str,
    from: Timestamp,
    to: Timestamp,
) -> Value {
    json!({"terminated": {
        "exitCode": exit_code,
        "reason": reason,
        "message": message,
        "startedAt": time(from),
        "finishedAt": time(to),
    }})
}

/// RFC 3339 in whole seconds, the resolution of Kubernetes' `Time`.
pub(super) fn time(instant: Timestamp) -> String {
    instant.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::actor::{Conduct, Input};
    use k8s_openapi::api::core::v1::{Pod, PodStatus};
    use std::time::Duration;

    const HOST: Ipv4Addr = Ipv4Addr::new(127, 64, 0, 1);
    const ADDRESS: Ipv4Addr = Ipv4Addr::new(127, 64, 0, 9);

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn conduct(startup: u64, now: i64) -> Conduct {
        Conduct {
            startup: Duration::from_secs(startup),
            fenced: true,
            now: at(now),
        }
    }

    fn gated() -> Script {
        let yaml = "
metadata: {name: p}
spec:
  initContainers:
  - {name: first, image: a}
  - {name: grove-initc, image: b, args: ['--podcliques=x:1']}
  - {name: after, image: c}
  containers: [{name: main, image: d}]
";
        Script::read(&serde_saphyr::from_str::<Pod>(yaml).unwrap())
    }

    fn status(actor: &Actor, conditions: &mut Conditions, now: i64) -> PodStatus {
        let patch = patch(actor, conditions, "u", ADDRESS, HOST, at(now));
        assert_eq!(patch["metadata"]["uid"], "u");
        serde_json::from_value(patch["status"].clone()).unwrap()
    }

    fn condition(status: &PodStatus, kind: &str) -> (String, i64) {
        let condition = status
            .conditions
            .iter()
            .flatten()
            .find(|condition| condition.type_ == kind)
            .unwrap();
        (
            condition.status.clone(),
            condition
                .last_transition_time
                .as_ref()
                .unwrap()
                .0
                .as_second(),
        )
    }

    #[test]
    fn conditions_move_when_they_change_and_not_otherwise() {
        let (mut actor, _) = Actor::arrive(gated(), false, conduct(20, 100));
        let mut conditions = Conditions::default();
        let held = status(&actor, &mut conditions, 100);
        assert_eq!(held.phase.as_deref(), Some("Pending"));
        assert_eq!(condition(&held, "Initialized"), ("False".to_owned(), 100));
        let states: Vec<_> = held
            .init_container_statuses
            .iter()
            .flatten()
            .map(|c| c.state.as_ref().unwrap())
            .map(|state| {
                (
                    state.terminated.is_some(),
                    state.running.is_some(),
                    state.waiting.is_some(),
                )
            })
            .collect();
        assert_eq!(
            states,
            [
                (true, false, false),
                (false, true, false),
                (false, false, true)
            ]
        );

        actor.step(Input::GateOpen, conduct(20, 105));
        let starting = status(&actor, &mut conditions, 105);
        assert_eq!(starting.phase.as_deref(), Some("Running"));
        assert_eq!(
            condition(&starting, "Initialized"),
            ("True".to_owned(), 105)
        );
        assert_eq!(
            condition(&starting, "Ready"),
            ("False".to_owned(), 100),
            "it was not ready before either"
        );
        assert_eq!(
            starting.container_statuses.as_ref().unwrap()[0].started,
            Some(false)
        );

        actor.step(Input::Woken, conduct(20, 125));
        let ready = status(&actor, &mut conditions, 125);
        assert_eq!(condition(&ready, "Ready"), ("True".to_owned(), 125));
        assert_eq!(condition(&ready, "Initialized"), ("True".to_owned(), 105));
        let container = &ready.container_statuses.as_ref().unwrap()[0];
        assert!(container.ready && container.started == Some(true));
        assert_eq!(ready.pod_ip.as_deref(), Some("127.64.0.9"));
    }

    #[test]
    fn a_crash_shows_in_restart_count_and_last_state() {
        let (mut actor, _) = Actor::arrive(gated(), true, conduct(0, 100));
        actor.step(
            Input::Crash {
                exit_code: 3,
                stay_down: true,
            },
            conduct(0, 110),
        );
        let down = status(&actor, &mut Conditions::default(), 110);
        let container = &down.container_statuses.as_ref().unwrap()[0];
        assert_eq!(container.restart_count, 1);
        assert_eq!(
            container
                .last_state
                .as_ref()
                .unwrap()
                .terminated
                .as_ref()
                .unwrap()
                .exit_code,
            3
        );
        let waiting = container.state.as_ref().unwrap().waiting.as_ref().unwrap();
        assert_eq!(waiting.reason.as_deref(), Some("CrashLoopBackOff"));
    }

    #[test]
    fn an_ended_pod_is_failed_or_succeeded() {
        let mut script = gated();
        script.restart = super::super::script::Restart::Never;
        for (code, phase) in [(0, "Succeeded"), (7, "Failed")] {
            let (mut actor, _) = Actor::arrive(script.clone(), true, conduct(0, 100));
            actor.step(
                Input::Crash {
                    exit_code: code,
                    stay_down: false,
                },
                conduct(0, 110),
            );
            let status = status(&actor, &mut Conditions::default(), 110);
            assert_eq!(status.phase.as_deref(), Some(phase));
            let state = status.container_statuses.as_ref().unwrap()[0]
                .state
                .clone()
                .unwrap();
            assert_eq!(state.terminated.unwrap().exit_code, code);
        }
    }
}
