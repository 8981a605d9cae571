//! PodGang objects, and their statuses.

use std::collections::BTreeMap;

use coppice_operator_api::condition::{self, ConditionStatus, ConditionType, Observed, Reason};
use coppice_operator_api::gang::{
    NamespacedName, PodGroup, SchedPackConstraint, SchedTopologyConstraint,
    TopologyConstraintGroupConfig,
};
use coppice_operator_api::labels::{self, Component, annotations};
use coppice_operator_api::{PodGang, PodGangPhase, PodGangSpec, PodGangStatus};
use coppice_operator_plan::gang::Gang;
use coppice_operator_plan::status::gang::{GangStatus, Phase};
use coppice_operator_plan::topology::Packing;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, Time};

use super::scope::Scope;

/// The PodGang of a gang, complete: `pods` lists the names of the active pods of each member, by PodClique name.
pub(crate) fn gang(
    scope: Scope<'_>,
    gang: &Gang,
    pods: &BTreeMap<String, Vec<String>>,
    scheduler: &str,
) -> PodGang {
    let namespace = scope.set.key.namespace();
    let topology = &scope.set.topology;
    let reference = |name: &String| NamespacedName {
        namespace: namespace.to_owned(),
        name: name.clone(),
    };
    let group = |member: &coppice_operator_plan::gang::Member| {
        let name = scope.clique(&member.clique);
        let mut references: Vec<NamespacedName> = pods
            .get(&name)
            .into_iter()
            .flatten()
            .map(reference)
            .collect();
        references.sort();
        PodGroup {
            name,
            pod_references: references,
            min_replicas: i32::try_from(member.min).unwrap_or(i32::MAX),
            topology_constraint: topology.of_clique(&member.clique).map(constraint),
        }
    };
    let name = scope.gang(&gang.id);
    let set = &scope.set.object.metadata;
    let mut labels = foreign(set.labels.as_ref());
    labels.extend(scope.labels(&name, Component::Gang));
    labels.insert(labels::SCHEDULER_NAME.to_owned(), scheduler.to_owned());
    let mut annotations = foreign(set.annotations.as_ref());
    if let Some(binding) = &topology.binding {
        annotations.insert(annotations::TOPOLOGY_NAME.to_owned(), binding.to_string());
    }
    let cliques = gang.members.iter().map(|member| &member.clique);
    let parts = topology.parts(&gang.id, cliques).into_iter();
    let parts: Vec<TopologyConstraintGroupConfig> = parts
        .map(|part| TopologyConstraintGroupConfig {
            name: format!("{}-{}", scope.group(part.group), part.replica),
            pod_group_names: part.cliques.iter().map(|id| scope.clique(id)).collect(),
            topology_constraint: Some(constraint(part.packing)),
        })
        .collect();
    PodGang {
        metadata: ObjectMeta {
            annotations: (!annotations.is_empty()).then_some(annotations),
            labels: Some(labels),
            name: Some(name),
            namespace: Some(namespace.to_owned()),
            owner_references: Some(vec![scope.set.owner()]),
            ..ObjectMeta::default()
        },
        spec: PodGangSpec {
            pod_groups: gang.members.iter().map(group).collect(),
            topology_constraint: topology.of_gang(&gang.id).map(constraint),
            topology_constraint_group_configs: (!parts.is_empty()).then_some(parts),
            priority_class_name: scope.set.object.spec.template.priority_class_name.clone(),
            reuse_reservation_ref: None,
        },
        status: None,
    }
}

fn constraint(packing: &Packing) -> SchedTopologyConstraint {
    SchedTopologyConstraint {
        pack_constraint: Some(SchedPackConstraint {
            required: packing.required.as_deref().map(str::to_owned),
            preferred: packing.preferred.as_deref().map(str::to_owned),
        }),
    }
}

/// A gang that exists keeps its constraints when the binding that tells them is gone: its pods are where they are.
pub(crate) fn keep_topology(gang: &mut PodGang, before: &PodGangSpec, binding: &str) {
    gang.spec.topology_constraint = before.topology_constraint.clone();
    gang.spec.topology_constraint_group_configs = before.topology_constraint_group_configs.clone();
    for group in &mut gang.spec.pod_groups {
        let same = before
            .pod_groups
            .iter()
            .find(|known| known.name == group.name);
        group.topology_constraint = same.and_then(|known| known.topology_constraint.clone());
    }
    let mut groups = gang.spec.pod_groups.iter();
    let is_constrained = gang.spec.topology_constraint.is_some()
        || gang.spec.topology_constraint_group_configs.is_some()
        || groups.any(|group| group.topology_constraint.is_some());
    if is_constrained {
        let annotations = gang.metadata.annotations.get_or_insert_default();
        annotations.insert(annotations::TOPOLOGY_NAME.to_owned(), binding.to_owned());
    }
}

/// What a PodGang takes over from its set: everything but the operator's own keys, and what `kubectl apply` notes.
fn foreign(of_set: Option<&BTreeMap<String, String>>) -> BTreeMap<String, String> {
    let keys = of_set.into_iter().flatten();
    let kept = keys.filter(|(key, _)| !key.starts_with(labels::PREFIX) && *key != LAST_APPLIED);
    kept.map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// The status of a PodGang that exists. `refusal` is why the scheduler does not place it.
pub(crate) fn status(
    before: &PodGangStatus,
    counts: &GangStatus,
    refusal: Option<&str>,
    now: Timestamp,
) -> PodGangStatus {
    let mut conditions = own_conditions(before.conditions.as_deref().unwrap_or_default());
    let mut put = |kind, status: bool, reason, message: String| {
        let observed = Observed {
            kind,
            status: ConditionStatus::from(status),
            reason,
            message,
        };
        condition::set(&mut conditions, observed, None, Time(now));
    };
    put(
        ConditionType::Initialized,
        true,
        Reason::PodGangPodsCreated,
        "all pods of the gang have been created".to_owned(),
    );
    let GangStatus {
        scheduled,
        ready,
        floor,
        ..
    } = counts;
    if counts.is_scheduled() {
        let message = format!("all {floor} pods of the floor are bound to nodes");
        put(
            ConditionType::Scheduled,
            true,
            Reason::PodGangScheduled,
            message,
        );
    } else if let Some(refusal) = refusal {
        put(
            ConditionType::Scheduled,
            false,
            Reason::Unschedulable,
            refusal.to_owned(),
        );
    } else {
        let message = format!("{scheduled} of {floor} pods of the floor are bound to nodes");
        put(
            ConditionType::Scheduled,
            false,
            Reason::PodGangPodsNotScheduled,
            message,
        );
    }
    if counts.is_ready() {
        let message = format!("all {floor} pods of the floor are ready");
        put(ConditionType::Ready, true, Reason::PodGangReady, message);
    } else {
        let message = format!("{ready} of {floor} pods of the floor are ready");
        put(
            ConditionType::Ready,
            false,
            Reason::PodGangPodsNotReady,
            message,
        );
    }
    PodGangStatus {
        phase: match counts.phase() {
            Phase::Pending => PodGangPhase::Pending,
            Phase::Starting => PodGangPhase::Starting,
            Phase::Running => PodGangPhase::Running,
        },
        conditions: Some(conditions),
        placement_score: None,
    }
}

/// Conditions the operator writes; a scheduler's are its own and stay untouched.
pub(crate) fn own_conditions(all: &[Condition]) -> Vec<Condition> {
    let own = [
        ConditionType::Initialized,
        ConditionType::Scheduled,
        ConditionType::Ready,
    ];
    let is_own = |condition: &&Condition| own.iter().any(|kind| kind.as_str() == condition.type_);
    all.iter().filter(is_own).cloned().collect()
}
