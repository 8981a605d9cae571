//! Takes down what has lost its minimum for too long; the passes that follow make it anew.

use std::collections::BTreeMap;
use std::sync::Arc;

use coppice_operator_api::condition::{self, ConditionStatus, ConditionType};
use coppice_operator_api::error_code::ErrorCode;
use coppice_operator_api::event::EventReason;
use coppice_operator_api::{PodClique, PodGang, labels};
use coppice_operator_plan::gang::gang_of;
use coppice_operator_plan::ids::{GangId, PodUid};
use coppice_operator_plan::replica::scale;
use coppice_operator_plan::status::Truth;
use coppice_operator_plan::termination::{
    Breach, Episodes, Group, Scope, State, Termination, plan,
};
use jiff::{SignedDuration, Timestamp, TimestampRound, Unit};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::Resource;
use tracing::info;

use super::fetch::Fetched;
use super::judge::Judged;
use crate::apply::WriteError;
use crate::controller::Context;
use crate::controller::errors::Errors;
use crate::index::key::Kind;

/// What is to be taken down, and when.
pub(super) fn decide(fetched: &Fetched, judged: &Judged) -> Termination {
    plan(
        &fetched.set.template,
        &scale(&fetched.observed),
        &state(fetched, judged),
        delay(fetched),
        judged.now,
    )
}

fn delay(fetched: &Fetched) -> SignedDuration {
    let delay = fetched
        .set
        .object
        .spec
        .template
        .effective_termination_delay();
    SignedDuration::from_nanos(delay.as_nanoseconds())
}

fn state(fetched: &Fetched, judged: &Judged) -> State {
    let shelf = &fetched.entry.shelf;
    let mut state = State {
        episodes: fetched.entry.episodes.clone(),
        ..State::default()
    };
    for (id, status) in &judged.cliques {
        let Some(record) = shelf.cliques.get(&*fetched.scope().clique(id)) else {
            continue;
        };
        if record.version.terminating {
            continue;
        }
        let created = record.meta.creation_timestamp.as_ref().map(|time| time.0);
        state.oldest = [state.oldest, created].into_iter().flatten().min();
        if status.breach.is == Truth::True {
            let breach = breach(record.status.conditions.as_deref(), judged.now);
            state.cliques.insert(id.clone(), breach);
        }
    }
    for (name, status) in &judged.groups {
        let Some(record) = shelf.groups.get(&*fetched.scope().group(name)) else {
            continue;
        };
        let conditions = record.status.conditions.as_deref();
        let in_breach = status.breach.is == Truth::True;
        let group = Group {
            breach: in_breach.then(|| breach(conditions, judged.now)),
            updates: status.breach.is == Truth::Unknown,
            ending_since: since(conditions, ConditionType::GangTerminationInProgress)
                .filter(|_| !status.is_healthy),
        };
        state.groups.insert(name.clone(), group);
    }
    state
}

fn breach(conditions: Option<&[Condition]>, now: Timestamp) -> Breach {
    // The server keeps whole seconds; so does what counts from now, or the time that is announced would move.
    let this_second = || {
        let rounding = TimestampRound::new()
            .smallest(Unit::Second)
            .mode(jiff::RoundMode::Trunc);
        now.round(rounding).unwrap_or(now)
    };
    Breach {
        since: since(conditions, ConditionType::MinAvailableBreached).unwrap_or_else(this_second),
        ran: since(conditions, ConditionType::HealthyStateObserved).is_some(),
    }
}

/// Since when a condition is true.
fn since(conditions: Option<&[Condition]>, kind: ConditionType) -> Option<Timestamp> {
    let conditions = conditions.unwrap_or_default();
    let found = condition::find(conditions, kind)?;
    let is_true = found.status == ConditionStatus::True.as_str();
    is_true.then_some(found.last_transition_time.0)
}

/// Takes down what is due: the PodCliques, so that nothing is made for them any more, their pods, and their gangs, whose
/// statuses are about what was.
pub(super) async fn apply(
    cx: &Context,
    fetched: &Fetched,
    ending: &Termination,
    errors: &mut Errors,
) {
    for (scope, count) in &ending.now {
        let (code, reason, failed, level) = match scope {
            Scope::Whole => (
                ErrorCode::DeleteSetReplica,
                EventReason::SetReplicaDeleteSuccessful,
                EventReason::SetReplicaDeleteFailed,
                "set",
            ),
            Scope::GroupReplica(..) => (
                ErrorCode::SyncScalingGroup,
                EventReason::ScalingGroupReplicaDeleteSuccessful,
                EventReason::ScalingGroupReplicaDeleteFailed,
                "group",
            ),
        };
        let about = fetched.set.object.object_ref(&());
        let done = take_down(cx, fetched, scope, *count).await;
        if let Err(error) = &done {
            let text = format!("{} could not be taken down: {error}", words(fetched, scope));
            cx.events.warning(&about, failed, &text);
        } else {
            info!(
                namespace = fetched.set.key.namespace(),
                name = fetched.set.key.name(),
                replica = fetched.replica,
                ?scope,
                count,
                "taken down: it had lost its minimum for too long"
            );
            cx.metrics.gang_terminated(level);
            let text = format!(
                "gang taken down and made anew: {} had less than its minimum for longer than {}",
                words(fetched, scope),
                fetched
                    .set
                    .object
                    .spec
                    .template
                    .effective_termination_delay()
            );
            cx.events.normal(&about, reason, 1, &text);
        }
        errors.check(code, None, done);
    }
}

fn words(fetched: &Fetched, scope: &Scope) -> String {
    match scope {
        Scope::Whole => format!("set replica {}", fetched.replica),
        Scope::GroupReplica(group, replica) => {
            format!("replica {replica} of {}", fetched.scope().group(group))
        }
    }
}

async fn take_down(
    cx: &Context,
    fetched: &Fetched,
    scope: &Scope,
    count: u32,
) -> Result<(), WriteError> {
    let set = &fetched.set;
    let namespace = set.key.namespace();
    let shelf = &fetched.entry.shelf;
    let selector = match scope {
        Scope::Whole => labels::set_replica_selector(set.key.name(), fetched.replica),
        Scope::GroupReplica(group, replica) => format!(
            "{},{}={replica}",
            labels::group_selector(set.key.name(), &fetched.scope().group(group)),
            labels::GROUP_REPLICA_INDEX
        ),
    };
    let belongs = |group: Option<&Arc<str>>, replica: Option<u32>| match scope {
        Scope::Whole => true,
        Scope::GroupReplica(name, index) => {
            let name = fetched.scope().group(name);
            group.is_some_and(|group| **group == *name) && replica == Some(*index)
        }
    };
    let cliques: BTreeMap<Arc<str>, (Arc<str>, u32)> = shelf
        .cliques
        .iter()
        .filter(|(_, record)| belongs(record.group.as_ref(), record.group_replica))
        .map(|(name, record)| {
            let was = (Arc::clone(&record.version.uid), record.replicas);
            (Arc::clone(name), was)
        })
        .collect();
    let pods: Vec<(Arc<str>, PodUid)> = shelf
        .pods
        .iter()
        .filter(|(_, pod)| cliques.contains_key(&pod.clique) && !pod.pod.terminating)
        .map(|(name, pod)| (Arc::clone(name), pod.pod.uid.clone()))
        .collect();
    cx.writer
        .delete_collection::<PodClique>(Kind::Clique, namespace, &selector)
        .await?;
    let episodes = Episodes {
        count,
        last: Timestamp::now(),
    };
    cx.index
        .take_down(&set.key, fetched.replica, scope.clone(), episodes, &cliques);
    cx.writer
        .delete_collection::<Pod>(Kind::Pod, namespace, &selector)
        .await?;
    cx.index.doom(namespace, &pods);
    for _ in &pods {
        cx.metrics.pod_deleted("GangTermination");
    }
    for gang in gangs(fetched, scope) {
        let Some((name, record)) = shelf.gangs.get_key_value(&*fetched.scope().gang(&gang)) else {
            continue;
        };
        cx.writer
            .delete::<PodGang>(Kind::Gang, namespace, name, &record.version.uid)
            .await?;
    }
    Ok(())
}

/// Gangs that are taken down with everything in them.
fn gangs(fetched: &Fetched, scope: &Scope) -> Vec<GangId> {
    let template = &fetched.set.template;
    let mut gangs: Vec<GangId> = fetched
        .observed
        .cliques
        .keys()
        .filter(|id| match scope {
            Scope::Whole => true,
            Scope::GroupReplica(name, index) => id.group() == Some((name, *index)),
        })
        .map(|id| gang_of(template, id))
        .filter(|gang| *scope == Scope::Whole || *gang != GangId::Base)
        .collect();
    gangs.sort();
    gangs.dedup();
    gangs
}
