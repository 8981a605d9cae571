//! Status of a PodCliqueSet.

use std::time::Duration;

use coppice_operator_api::condition::{self, ConditionStatus, ConditionType, Observed, Reason};
use coppice_operator_api::error_code::ErrorCode;
use coppice_operator_api::pod_clique_set::{PodCliqueSetUpdateProgress, ReplicaUpdateProgress};
use coppice_operator_api::{PodCliqueSet, PodCliqueSetStatus, labels};
use coppice_operator_plan::set::{Plan, SetStatus};
use coppice_operator_plan::status::Progress;
use coppice_operator_plan::topology::Standing;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use crate::apply::WriteError;
use crate::controller::Context;
use crate::controller::errors::Errors;
use crate::controller::pacing::Pace;
use crate::index::entry::SetRecord;
use crate::index::key::{Kind, SetKey, Unit};
use crate::validated::{Invalid, Validated};

/// Writes the status if it differs, once for a burst of changes. Returns when to look again.
pub(super) async fn report(
    cx: &Context,
    record: &SetRecord,
    set: &Validated,
    planned: &Plan,
    errors: &mut Errors,
    unit: &Unit,
) -> Option<Duration> {
    let before = record.object.status.clone().unwrap_or_default();
    let wanted = status(set, planned, &before, errors, Timestamp::now());
    if before == wanted {
        cx.pacing.level(unit);
        return None;
    }
    // The digest the set goes to, and a change of turns, must not be lost: progress is told from them.
    let is_urgent = before.current_generation_hash != wanted.current_generation_hash
        || currently_updating(&before) != currently_updating(&wanted);
    match cx.pacing.behind(unit, &cx.queue) {
        Pace::Wait(pause) if !is_urgent => Some(pause),
        Pace::Write | Pace::Wait(_) => {
            cx.pacing.level(unit);
            write(cx, &set.key, &wanted, errors).await;
            None
        }
    }
}

fn currently_updating(status: &PodCliqueSetStatus) -> Option<i32> {
    let progress = status.update_progress.as_ref()?;
    progress
        .currently_updating
        .as_ref()?
        .first()
        .map(|current| current.replica_index)
}

/// A set that cannot be planned keeps what it has; its status says what to mend.
pub(super) async fn refuse(
    cx: &Context,
    key: &SetKey,
    record: &SetRecord,
    invalid: &Invalid,
    errors: &mut Errors,
) -> Option<Duration> {
    let before = record.object.status.clone().unwrap_or_default();
    let mut wanted = before.clone();
    let generation = record.object.metadata.generation;
    let mut conditions = before.conditions.clone().unwrap_or_default();
    let observed = Observed {
        kind: ConditionType::Degraded,
        status: ConditionStatus::True,
        reason: Reason::InvalidSpec,
        message: format!("{invalid}; nothing is changed until this is mended"),
    };
    condition::set(
        &mut conditions,
        observed,
        generation,
        Time(Timestamp::now()),
    );
    wanted.conditions = Some(conditions);
    wanted.observed_generation = generation;
    if before != wanted {
        write(cx, key, &wanted, errors).await;
    }
    None
}

async fn write(cx: &Context, key: &SetKey, status: &PodCliqueSetStatus, errors: &mut Errors) {
    let answer = cx.writer.apply_status::<PodCliqueSet, PodCliqueSet>(
        Kind::Set,
        key.namespace(),
        key.name(),
        status,
    );
    match answer.await {
        Ok(set) => cx.index.absorb_set(set),
        Err(WriteError::Missing { .. }) => {}
        Err(error) => errors.note(ErrorCode::SyncPodClique, None, error),
    }
}

fn status(
    set: &Validated,
    planned: &Plan,
    before: &PodCliqueSetStatus,
    errors: &Errors,
    now: Timestamp,
) -> PodCliqueSetStatus {
    let SetStatus {
        replicas,
        available,
        updated,
        cliques,
        groups,
        progress,
    } = &planned.status;
    let lines = errors.lines(None, before.last_errors.as_ref(), now);
    PodCliqueSetStatus {
        observed_generation: Some(set.generation()),
        conditions: Some(conditions(set, planned, before, errors, now)),
        last_errors: (!lines.is_empty()).then_some(lines),
        replicas: number(*replicas),
        updated_replicas: number(*updated),
        available_replicas: number(*available),
        hpa_pod_selector: Some(labels::set_selector(set.key.name())),
        pod_gang_statuses: None,
        current_generation_hash: Some(set.template.hash().as_str().to_owned()),
        update_progress: progress
            .as_ref()
            .map(|progress: &Progress| PodCliqueSetUpdateProgress {
                update_started_at: Some(Time(progress.started)),
                update_ended_at: progress.ended.map(Time),
                updated_pod_cliques_count: number(cliques.done),
                total_pod_cliques_count: number(cliques.total),
                updated_pod_clique_scaling_groups_count: number(groups.done),
                total_pod_clique_scaling_groups_count: number(groups.total),
                currently_updating: planned.updating.map(|(index, since)| {
                    vec![ReplicaUpdateProgress {
                        replica_index: number(index),
                        update_started_at: Some(Time(since)),
                        update_ended_at: None,
                    }]
                }),
            }),
    }
}

fn conditions(
    set: &Validated,
    planned: &Plan,
    before: &PodCliqueSetStatus,
    errors: &Errors,
    now: Timestamp,
) -> Vec<Condition> {
    let mut conditions = before.conditions.clone().unwrap_or_default();
    let generation = Some(set.generation());
    let mut put = |kind, status: ConditionStatus, reason, message: String| {
        condition::set(
            &mut conditions,
            Observed {
                kind,
                status,
                reason,
                message,
            },
            generation,
            Time(now),
        );
    };
    let SetStatus {
        replicas,
        available,
        updated,
        ..
    } = planned.status;
    let count = format!("{available} of {replicas} replicas are available");
    if replicas == 0 {
        put(
            ConditionType::Available,
            ConditionStatus::True,
            Reason::ScaledToZero,
            "no replicas are wanted".to_owned(),
        );
    } else if available >= replicas {
        put(
            ConditionType::Available,
            ConditionStatus::True,
            Reason::AllReplicasAvailable,
            count,
        );
    } else {
        put(
            ConditionType::Available,
            ConditionStatus::False,
            Reason::ReplicasUnavailable,
            count,
        );
    }
    if let Some((index, _)) = planned.updating {
        let message =
            format!("replica {index} takes over the new template; {updated} of {replicas} have it");
        put(
            ConditionType::Progressing,
            ConditionStatus::True,
            Reason::UpdateInProgress,
            message,
        );
    } else if available < replicas || !planned.remove.is_empty() {
        let message = format!(
            "{available} of {replicas} replicas are available, {} are removed",
            planned.remove.len()
        );
        put(
            ConditionType::Progressing,
            ConditionStatus::True,
            Reason::Scaling,
            message,
        );
    } else {
        put(
            ConditionType::Progressing,
            ConditionStatus::False,
            Reason::UpToDate,
            "nothing is to be done".to_owned(),
        );
    }
    match errors.first() {
        Some(first) if errors.has_name_conflict() => {
            put(
                ConditionType::Degraded,
                ConditionStatus::True,
                Reason::NameConflict,
                first,
            );
        }
        Some(first) => put(
            ConditionType::Degraded,
            ConditionStatus::True,
            Reason::ApplyFailed,
            first,
        ),
        None => put(
            ConditionType::Degraded,
            ConditionStatus::False,
            Reason::UpToDate,
            "nothing failed".to_owned(),
        ),
    }
    match of_topology(&set.topology.standing) {
        Some((status, reason, message)) => put(
            ConditionType::TopologyLevelsUnavailable,
            status,
            reason,
            message,
        ),
        None => drop(condition::remove(
            &mut conditions,
            ConditionType::TopologyLevelsUnavailable,
        )),
    }
    conditions
}

/// Whether the levels that the set's constraints name can be told.
fn of_topology(standing: &Standing) -> Option<(ConditionStatus, Reason, String)> {
    match standing {
        Standing::None => None,
        Standing::Unnamed => Some((
            ConditionStatus::Unknown,
            Reason::TopologyNameMissing,
            "no topologyConstraint has a topologyName: name a ClusterTopologyBinding".to_owned(),
        )),
        Standing::NoBinding(name) => Some((
            ConditionStatus::Unknown,
            Reason::ClusterTopologyNotFound,
            format!(
                "ClusterTopologyBinding {name} does not exist: pods are placed without constraints"
            ),
        )),
        Standing::Resolved(domains) if domains.is_empty() => Some((
            ConditionStatus::False,
            Reason::AllClusterTopologyLevelsAvailable,
            "all domains of the constraints are levels of the binding".to_owned(),
        )),
        Standing::Resolved(domains) => {
            let domains: Vec<&str> = domains.iter().map(AsRef::as_ref).collect();
            let domains = domains.join(", ");
            Some((
                ConditionStatus::True,
                Reason::ClusterTopologyLevelsUnavailable,
                format!(
                    "the binding has no level {domains}: constraints that name it are not applied"
                ),
            ))
        }
    }
}

fn number(count: u32) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}
