//! Statuses of everything inside one set replica, and what the set hears of it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use coppice_operator_api::condition::{self, ConditionStatus, ConditionType, Observed, Reason};
use coppice_operator_api::error_code::ErrorCode;
use coppice_operator_api::event::EventReason;
use coppice_operator_api::pod_clique::PodCliqueUpdateProgress;
use coppice_operator_api::scaling_group::PodCliqueScalingGroupUpdateProgress;
use coppice_operator_api::{
    PodClique, PodCliqueScalingGroup, PodCliqueScalingGroupStatus, PodCliqueStatus, PodGang,
    PodGangStatus, labels,
};
use coppice_operator_plan::hash::TemplateHash;
use coppice_operator_plan::ids::{CliqueId, GroupName};
use coppice_operator_plan::replica::Plan;
use coppice_operator_plan::status::clique::{self, CliqueStatus};
use coppice_operator_plan::status::gang::status as gang_status;
use coppice_operator_plan::status::group::{self, GroupStatus};
use coppice_operator_plan::status::summary::summarise;
use coppice_operator_plan::status::{Truth, Verdict};
use coppice_operator_plan::termination::Termination;
use futures::future::join_all;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::Resource;

use super::fetch::Fetched;
use super::judge::Judged;
use super::{gangs, view};
use crate::apply::WriteError;
use crate::build;
use crate::controller::Context;
use crate::controller::errors::Errors;
use crate::controller::pacing::Pace;
use crate::index::key::{Kind, Unit};
use crate::index::record::{CliqueRecord, GroupRecord};
use crate::index::view::{CliqueView, GangView, GroupView};

/// Statuses that differ from what the objects say.
#[derive(Debug, Default)]
struct Differing {
    cliques: Vec<(Arc<str>, PodCliqueStatus)>,
    groups: Vec<(Arc<str>, PodCliqueScalingGroupStatus)>,
    gangs: Vec<(Arc<str>, PodGangStatus)>,
}

/// Tells the set what was judged, and writes what differs, once for a burst of changes. Returns when to look again.
pub(super) async fn report(
    cx: &Context,
    fetched: &Fetched,
    planned: &Plan,
    judged: &Judged,
    ending: &Termination,
    errors: &mut Errors,
    unit: &Unit,
) -> Option<Duration> {
    let Judged {
        cliques,
        groups,
        now,
    } = judged;
    let now = *now;
    let mut differing = Differing::default();
    compare_cliques(fetched, cliques, ending, errors, now, &mut differing);
    compare_groups(fetched, groups, ending, errors, now, &mut differing);
    compare_gangs(cx, fetched, planned, now, &mut differing);
    let summary = summarise(
        &fetched.set.template,
        cliques,
        groups,
        planned.report.is_old,
    );
    cx.index.report(&fetched.set.key, fetched.replica, summary);

    let wake = [planned.report.wake, ending.wake()];
    let wake = wake.into_iter().flatten().min().map(|at| until(at, now));
    if differing.cliques.is_empty() && differing.groups.is_empty() && differing.gangs.is_empty() {
        cx.pacing.level(unit);
        return wake;
    }
    match cx.pacing.behind(unit, &cx.queue) {
        // What was decided must not be forgotten: the groups say that everything is taken down before it is.
        Pace::Wait(pause) if !ending.is_whole() => Some(wake.map_or(pause, |wake| wake.min(pause))),
        Pace::Write | Pace::Wait(_) => {
            cx.pacing.level(unit);
            warn_of_losses(cx, fetched, &differing);
            write(cx, fetched, differing, errors).await;
            wake
        }
    }
}

fn until(at: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(at.duration_since(now)).unwrap_or_default()
}

fn compare_cliques(
    fetched: &Fetched,
    cliques: &BTreeMap<CliqueId, CliqueStatus>,
    ending: &Termination,
    errors: &Errors,
    now: Timestamp,
    differing: &mut Differing,
) {
    for (id, status) in cliques {
        let name = fetched.scope().clique(id);
        let Some((name, record)) = fetched.entry.shelf.cliques.get_key_value(&*name) else {
            continue;
        };
        let mut wanted = clique_status(fetched, id, name, record, status, errors, now);
        announce(&mut wanted.conditions, ending.cliques.get(id));
        if *record.status != wanted {
            differing.cliques.push((Arc::clone(name), wanted));
        }
    }
}

fn clique_status(
    fetched: &Fetched,
    id: &CliqueId,
    name: &str,
    record: &CliqueRecord,
    status: &CliqueStatus,
    errors: &Errors,
    now: Timestamp,
) -> PodCliqueStatus {
    let before = &record.status;
    let mut conditions = before.conditions.clone().unwrap_or_default();
    let mut put = |kind, status, reason, message: String| {
        condition::set(
            &mut conditions,
            Observed {
                kind,
                status,
                reason,
                message,
            },
            None,
            Time(now),
        );
    };
    let (floor, bound) = (status.minimum, status.scheduled);
    if status.is_scheduled {
        let message = format!("at least {floor} pods are bound to nodes");
        put(
            ConditionType::PodCliqueScheduled,
            ConditionStatus::True,
            Reason::SufficientScheduledPods,
            message,
        );
    } else {
        let message = format!("{bound} of at least {floor} pods are bound to nodes");
        put(
            ConditionType::PodCliqueScheduled,
            ConditionStatus::False,
            Reason::InsufficientScheduledPods,
            message,
        );
    }
    let Verdict {
        is,
        reason,
        message,
    } = &status.breach;
    let reason = match reason {
        clique::BreachReason::UpdateInProgress => Reason::UpdateInProgress,
        clique::BreachReason::ScheduledBelowMinimum => Reason::ScheduledReplicasBelowMinAvailable,
        clique::BreachReason::TooFewReady => Reason::InsufficientReadyPods,
        clique::BreachReason::Sufficient => Reason::SufficientReadyPods,
    };
    put(
        ConditionType::MinAvailableBreached,
        truth(*is),
        reason,
        message.clone(),
    );
    if status.is_healthy {
        note_healthy(&mut conditions, now);
    }
    let lines = errors.lines(Some(name), before.last_errors.as_ref(), now);
    let selector = || labels::clique_selector(fetched.set.key.name(), name);
    PodCliqueStatus {
        observed_generation: Some(record.version.generation),
        last_errors: (!lines.is_empty()).then_some(lines),
        replicas: number(status.replicas),
        ready_replicas: number(status.ready),
        updated_replicas: number(status.updated),
        schedule_gated_replicas: number(status.gated),
        scheduled_replicas: number(status.scheduled),
        effective_replicas: Some(number(status.effective)),
        hpa_pod_selector: id.group().is_none().then(selector),
        conditions: Some(conditions),
        current_pod_clique_set_generation_hash: status.current_set.as_ref().map(text),
        current_pod_template_hash: status.current.as_ref().map(text),
        update_progress: status
            .progress
            .as_ref()
            .map(|progress| PodCliqueUpdateProgress {
                update_started_at: Some(Time(progress.started)),
                update_ended_at: progress.ended.map(Time),
                pod_clique_set_generation_hash: text(&progress.set_hash),
                pod_template_hash: text(&progress.template_hash),
                ready_pods_selected_to_update: None,
            }),
    }
}

fn compare_groups(
    fetched: &Fetched,
    groups: &BTreeMap<GroupName, GroupStatus>,
    ending: &Termination,
    errors: &Errors,
    now: Timestamp,
    differing: &mut Differing,
) {
    for (group, status) in groups {
        let name = fetched.scope().group(group);
        let Some((name, record)) = fetched.entry.shelf.groups.get_key_value(&*name) else {
            continue;
        };
        let mut wanted = group_status(fetched, name, record, status, errors, now);
        announce(&mut wanted.conditions, ending.groups.get(group));
        let conditions = wanted.conditions.get_or_insert_default();
        if ending.is_whole() {
            note_ending(conditions, now);
        } else if status.is_healthy {
            condition::remove(conditions, ConditionType::GangTerminationInProgress);
        }
        if *record.status != wanted {
            differing.groups.push((Arc::clone(name), wanted));
        }
    }
}

fn group_status(
    fetched: &Fetched,
    name: &str,
    record: &GroupRecord,
    status: &GroupStatus,
    errors: &Errors,
    now: Timestamp,
) -> PodCliqueScalingGroupStatus {
    let before = &record.status;
    let mut conditions = before.conditions.clone().unwrap_or_default();
    let Verdict {
        is,
        reason,
        message,
    } = &status.breach;
    let observed = Observed {
        kind: ConditionType::MinAvailableBreached,
        status: truth(*is),
        reason: match reason {
            group::BreachReason::UpdateInProgress => Reason::UpdateInProgress,
            group::BreachReason::TooFewReplicas => {
                Reason::InsufficientAvailableScalingGroupReplicas
            }
            group::BreachReason::Sufficient => Reason::SufficientAvailableScalingGroupReplicas,
        },
        message: message.clone(),
    };
    condition::set(&mut conditions, observed, None, Time(now));
    if status.is_healthy {
        note_healthy(&mut conditions, now);
    }
    let lines = errors.lines(Some(name), before.last_errors.as_ref(), now);
    PodCliqueScalingGroupStatus {
        replicas: number(status.replicas),
        scheduled_replicas: number(status.scheduled),
        available_replicas: number(status.available),
        updated_replicas: number(status.updated),
        effective_replicas: Some(number(status.replicas)),
        selector: Some(labels::group_selector(fetched.set.key.name(), name)),
        observed_generation: Some(record.version.generation),
        last_errors: (!lines.is_empty()).then_some(lines),
        conditions: Some(conditions),
        current_pod_clique_set_generation_hash: status.current_set.as_ref().map(text),
        update_progress: status.progress.as_ref().map(|progress| {
            PodCliqueScalingGroupUpdateProgress {
                update_started_at: Time(progress.started),
                update_ended_at: progress.ended.map(Time),
                pod_clique_set_generation_hash: text(&progress.set_hash),
                updated_pod_cliques_count: number(status.members_updated),
                total_pod_cliques_count: number(status.members),
                ready_replica_indices_selected_to_update: None,
            }
        }),
    }
}

fn compare_gangs(
    cx: &Context,
    fetched: &Fetched,
    planned: &Plan,
    now: Timestamp,
    differing: &mut Differing,
) {
    let effective = gangs::effective(planned);
    let view = view(fetched, planned);
    for gang in &planned.gangs {
        let counts = gang_status(gang, &fetched.observed, &effective);
        let name = fetched.scope().gang(&gang.id);
        let Some((name, record)) = fetched.entry.shelf.gangs.get_key_value(&*name) else {
            continue;
        };
        let refusal = if counts.is_scheduled() {
            None
        } else {
            cx.backend.refusal(view, gang)
        };
        let wanted = build::gang::status(&record.status, &counts, refusal.as_deref(), now);
        let conditions =
            build::gang::own_conditions(record.status.conditions.as_deref().unwrap_or_default());
        if record.status.phase != wanted.phase || Some(conditions) != wanted.conditions {
            differing.gangs.push((Arc::clone(name), wanted));
        }
    }
}

async fn write(cx: &Context, fetched: &Fetched, differing: Differing, errors: &mut Errors) {
    let namespace = fetched.set.key.namespace();
    let cliques = differing.cliques.iter().map(|(name, status)| async move {
        let answer =
            cx.writer
                .apply_status::<PodClique, CliqueView>(Kind::Clique, namespace, name, status);
        answer.await.map(|view| cx.index.absorb(view))
    });
    let groups = differing.groups.iter().map(|(name, status)| async move {
        let answer = cx.writer.apply_status::<PodCliqueScalingGroup, GroupView>(
            Kind::Group,
            namespace,
            name,
            status,
        );
        answer.await.map(|view| cx.index.absorb(view))
    });
    let gangs = differing.gangs.iter().map(|(name, status)| async move {
        let answer =
            cx.writer
                .apply_status::<PodGang, GangView>(Kind::Gang, namespace, name, status);
        answer.await.map(|view| cx.index.absorb(view))
    });
    let (cliques, groups, gangs) =
        tokio::join!(join_all(cliques), join_all(groups), join_all(gangs));
    for (code, done) in [
        (ErrorCode::SyncPodClique, cliques),
        (ErrorCode::SyncScalingGroup, groups),
        (ErrorCode::CreateOrPatchPodGang, gangs),
    ] {
        for done in done {
            // An object that is gone has no status to write.
            if !matches!(done, Err(WriteError::Missing { .. })) {
                errors.check(code, None, done);
            }
        }
    }
}

/// Says so when a clique or group that had bound pods has none left.
fn warn_of_losses(cx: &Context, fetched: &Fetched, differing: &Differing) {
    let shelf = &fetched.entry.shelf;
    let namespace = Some(fetched.set.key.namespace().to_owned());
    for (name, status) in &differing.cliques {
        let Some(record) = shelf.cliques.get(name) else {
            continue;
        };
        let is_idle = status.effective_replicas == Some(0);
        if record.status.scheduled_replicas > 0 && status.scheduled_replicas == 0 && !is_idle {
            let about = reference::<PodClique>(namespace.clone(), name, &record.version.uid);
            cx.events.warning(
                &about,
                EventReason::AllScheduledReplicasLost,
                "no pod is bound to a node any more",
            );
        }
    }
    for (name, status) in &differing.groups {
        let Some(record) = shelf.groups.get(name) else {
            continue;
        };
        if record.status.scheduled_replicas > 0
            && status.scheduled_replicas == 0
            && status.replicas > 0
        {
            let about =
                reference::<PodCliqueScalingGroup>(namespace.clone(), name, &record.version.uid);
            cx.events.warning(
                &about,
                EventReason::AllScheduledReplicasLost,
                "no replica is bound to nodes any more",
            );
        }
    }
    for (name, status) in &differing.gangs {
        let Some(record) = shelf.gangs.get(name) else {
            continue;
        };
        let is = |conditions: Option<&Vec<Condition>>| {
            conditions.is_some_and(|list| {
                condition::is(list, ConditionType::Scheduled, ConditionStatus::True)
            })
        };
        if is(status.conditions.as_ref()) && !is(record.status.conditions.as_ref()) {
            cx.metrics
                .gang_scheduled(until(Timestamp::now(), record.created));
        }
    }
}

fn reference<K: Resource<DynamicType = ()>>(
    namespace: Option<String>,
    name: &str,
    uid: &str,
) -> ObjectReference {
    ObjectReference {
        api_version: Some(K::api_version(&()).into_owned()),
        kind: Some(K::kind(&()).into_owned()),
        namespace,
        name: Some(name.to_owned()),
        uid: Some(uid.to_owned()),
        ..ObjectReference::default()
    }
}

/// A breach says what will come of it, and when.
fn announce(conditions: &mut Option<Vec<Condition>>, due: Option<&Timestamp>) {
    let breach = ConditionType::MinAvailableBreached.as_str();
    let mut conditions = conditions.iter_mut().flatten();
    if let Some(due) = due
        && let Some(condition) = conditions.find(|condition| condition.type_ == breach)
    {
        let message = &mut condition.message;
        *message = format!(
            "{message}; unless that changes, its gang is taken down and made anew at {due:.0}"
        );
    }
}

fn note_ending(conditions: &mut Vec<Condition>, now: Timestamp) {
    let observed = Observed {
        kind: ConditionType::GangTerminationInProgress,
        status: ConditionStatus::True,
        reason: Reason::GangTerminationActive,
        message: "the set replica is taken down as a whole and made anew".to_owned(),
    };
    condition::set(conditions, observed, None, Time(now));
}

fn note_healthy(conditions: &mut Vec<Condition>, now: Timestamp) {
    let observed = Observed {
        kind: ConditionType::HealthyStateObserved,
        status: ConditionStatus::True,
        reason: Reason::MinAvailableReached,
        message: "the minimum has been ready once".to_owned(),
    };
    condition::set(conditions, observed, None, Time(now));
}

fn truth(is: Truth) -> ConditionStatus {
    match is {
        Truth::True => ConditionStatus::True,
        Truth::False => ConditionStatus::False,
        Truth::Unknown => ConditionStatus::Unknown,
    }
}

fn number(count: u32) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

fn text(hash: &TemplateHash) -> String {
    hash.as_str().to_owned()
}
