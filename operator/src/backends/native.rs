//! Gangs by the stock scheduler's own means: PodGroups, under a CompositePodGroup where several cliques are placed together.
//!
//! Pods name their group from the start. A group that does not exist yet holds its pods in the scheduler's queue, so
//! scaled gangs wait for the base gang, and pods above the floor wait for the floor, without gates and without a write per
//! pod. What belongs to a group is decided by [`rounds`]; groups are made once and never changed.

use std::collections::BTreeMap;
use std::sync::Arc;

use coppice_operator_api::labels::{self, Component};
use coppice_operator_plan::gang::Gang;
use coppice_operator_plan::ids::{CliqueId, GangId};
use coppice_operator_plan::observed::Lane;
use coppice_operator_plan::rounds::{self, Existing, Groups};
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{Pod, PodSchedulingGroup};
use k8s_openapi::api::scheduling::v1alpha3::{
    BasicSchedulingPolicy, CompositeGangSchedulingPolicy, CompositePodGroup,
    CompositePodGroupSchedulingPolicy, CompositePodGroupSpec, CompositePodGroupTemplate,
    GangSchedulingPolicy, PodGroup, PodGroupSchedulingPolicy, PodGroupSpec, PodGroupTemplate,
    TypedLocalObjectReference, Workload, WorkloadReference, WorkloadSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;

use super::{Companion, GangBackend, Placement, PlacementObject, ReplicaView};
use crate::build::LANE_ANNOTATION;
use crate::build::scope::{Scope, set_labels};
use crate::index::key::{Kind, SetKey};
use crate::index::record::write_lane;
use crate::validated::Validated;

/// Template of composite groups in every Workload. Many groups may use one template without being equal to it, so one of
/// each kind is enough for any number of cliques.
const COMPOSITE_TEMPLATE: &str = "gang";
/// Template of groups.
const GROUP_TEMPLATE: &str = "clique";

/// The backend `native`.
#[derive(Debug)]
pub(crate) struct Native;

impl GangBackend for Native {
    fn name(&self) -> &'static str {
        "native"
    }

    fn has_groups(&self) -> bool {
        true
    }

    fn workload(&self, set: &Validated) -> Option<Workload> {
        // A gang of one clique is one group, which needs no Workload.
        (set.template.cliques().len() > 1).then(|| workload(set))
    }

    fn place(&self, view: ReplicaView<'_>) -> Placement {
        let known = Known::read(view);
        let rounds = rounds::plan(
            &view.plan.gangs,
            view.observed,
            &view.plan.create,
            &known.groups,
            |gang| view.may_place(gang),
        );
        let mut placement = Placement {
            lanes: rounds.lanes,
            restart: rounds.restart,
            ..Placement::default()
        };
        for group in &rounds.groups {
            add_objects(view.scope, group, &known.groups, &mut placement);
        }
        for key in rounds.remove {
            if let Some((name, uid)) = known.group_names.get(&key) {
                placement
                    .remove
                    .push((Kind::PodGroup, Arc::clone(name), Arc::clone(uid)));
            }
        }
        for key in rounds.remove_composites {
            if let Some((name, uid)) = known.composite_names.get(&key) {
                placement
                    .remove
                    .push((Kind::CompositePodGroup, Arc::clone(name), Arc::clone(uid)));
            }
        }
        placement.remove.extend(known.strays);
        placement
    }

    fn prepare_pod(&self, pod: &mut Pod, clique: &str, lane: Option<Lane>) {
        let Some(lane) = lane else { return };
        let annotations = pod.metadata.annotations.get_or_insert_default();
        annotations.insert(LANE_ANNOTATION.to_owned(), write_lane(lane));
        if let Some(spec) = &mut pod.spec {
            spec.scheduling_group = Some(PodSchedulingGroup {
                pod_group_name: Some(group_name(clique, lane)),
            });
        }
    }

    fn refusal(&self, view: ReplicaView<'_>, gang: &Gang) -> Option<String> {
        let name = view.scope.gang(&gang.id);
        let members: Vec<String> = gang
            .members
            .iter()
            .map(|member| view.scope.clique(&member.clique))
            .collect();
        let mut refusals = view
            .shelf
            .placements
            .iter()
            .filter_map(|((kind, _), record)| {
                let is_ours = match kind {
                    Kind::CompositePodGroup => *record.subject == *name,
                    _ => members.iter().any(|member| *record.subject == **member),
                };
                is_ours.then_some(record.refusal.as_deref()).flatten()
            });
        refusals.next().map(str::to_owned)
    }

    fn look_at(&self, _: &SetKey, _: u32) {}

    fn accompany(&self, companion: Companion) -> BoxFuture<'static, ()> {
        Box::pin(async move { companion.draining.cancelled().await })
    }
}

/// The groups that exist, in the planner's terms.
#[derive(Default)]
struct Known {
    groups: Groups,
    group_names: BTreeMap<(CliqueId, Lane), (Arc<str>, Arc<str>)>,
    composite_names: BTreeMap<(GangId, u32), (Arc<str>, Arc<str>)>,
    /// Groups of cliques and gangs that do not exist any more.
    strays: Vec<(Kind, Arc<str>, Arc<str>)>,
}

impl Known {
    fn read(view: ReplicaView<'_>) -> Self {
        let cliques: BTreeMap<String, &CliqueId> = view
            .plan
            .cliques
            .iter()
            .map(|clique| (view.scope.clique(&clique.id), &clique.id))
            .collect();
        let gangs: BTreeMap<String, &GangId> = view
            .plan
            .gangs
            .iter()
            .map(|gang| (view.scope.gang(&gang.id), &gang.id))
            .collect();
        let mut known = Self::default();
        for ((kind, name), record) in &view.shelf.placements {
            let identity = (Arc::clone(name), Arc::clone(&record.version.uid));
            let lane = record.lane;
            match (
                kind,
                lane,
                cliques.get(&*record.subject),
                gangs.get(&*record.subject),
            ) {
                (Kind::PodGroup, Some(lane), Some(clique), _) => {
                    let key = ((*clique).clone(), lane);
                    let existing = Existing {
                        min: record.min.max(1),
                        parented: record.parented,
                        placed: record.placed,
                        terminating: record.version.terminating,
                    };
                    known.groups.existing.insert(key.clone(), existing);
                    known.group_names.insert(key, identity);
                }
                (Kind::CompositePodGroup, Some(lane), _, Some(gang))
                    if !record.version.terminating =>
                {
                    let key = ((*gang).clone(), lane.round);
                    known.groups.composites.insert(key.clone(), record.min);
                    known.composite_names.insert(key, identity);
                }
                _ if !record.version.terminating => {
                    known.strays.push((*kind, identity.0, identity.1))
                }
                _ => {}
            }
        }
        known
    }
}

fn add_objects(scope: Scope<'_>, group: &rounds::Group, known: &Groups, placement: &mut Placement) {
    let gang = scope.gang(&group.gang);
    let floor = Lane {
        round: group.round,
        floor: true,
    };
    let parent = group.composite.then(|| composite_name(&gang, group.round));
    if let Some(parent) = &parent
        && !known
            .composites
            .contains_key(&(group.gang.clone(), group.round))
    {
        let composite = composite(scope, &gang, parent, group);
        placement
            .objects
            .push(PlacementObject::Composite(Box::new(composite)));
    }
    let missing = |clique: &CliqueId, lane| !known.existing.contains_key(&(clique.clone(), lane));
    for (clique, minimum) in group
        .floor
        .iter()
        .filter(|(clique, _)| missing(clique, floor))
    {
        let policy = PodGroupSchedulingPolicy {
            gang: Some(GangSchedulingPolicy {
                min_count: i32::try_from(*minimum).unwrap_or(i32::MAX),
            }),
            basic: None,
        };
        let name = scope.clique(clique);
        let object = pod_group(scope, &gang, &name, floor, policy, parent.as_deref());
        placement
            .objects
            .push(PlacementObject::Group(Box::new(object), name));
    }
    let follow = Lane {
        round: group.round,
        floor: false,
    };
    for clique in group
        .followers
        .iter()
        .filter(|clique| missing(clique, follow))
    {
        let policy = PodGroupSchedulingPolicy {
            basic: Some(BasicSchedulingPolicy(serde_json::json!({}))),
            gang: None,
        };
        let name = scope.clique(clique);
        let object = pod_group(scope, &gang, &name, follow, policy, None);
        placement
            .objects
            .push(PlacementObject::Group(Box::new(object), name));
    }
}

/// Name of a PodGroup. The first one has the PodClique's name; a dot keeps later ones apart from every PodClique.
fn group_name(clique: &str, lane: Lane) -> String {
    match (lane.round, lane.floor) {
        (0, true) => clique.to_owned(),
        (round, true) => format!("{clique}.r{round}"),
        (round, false) => format!("{clique}.f{round}"),
    }
}

fn composite_name(gang: &str, round: u32) -> String {
    if round == 0 {
        gang.to_owned()
    } else {
        format!("{gang}.r{round}")
    }
}

fn metadata(scope: Scope<'_>, name: &str, gang: &str, lane: Lane) -> ObjectMeta {
    let mut labels = scope.labels(name, Component::Gang);
    labels.insert(labels::GANG.to_owned(), gang.to_owned());
    ObjectMeta {
        annotations: Some([(LANE_ANNOTATION.to_owned(), write_lane(lane))].into()),
        labels: Some(labels),
        name: Some(name.to_owned()),
        namespace: Some(scope.set.key.namespace().to_owned()),
        ..ObjectMeta::default()
    }
}

fn reference(scope: Scope<'_>, template: &str) -> WorkloadReference {
    WorkloadReference {
        workload_name: scope.set.key.name().to_owned(),
        template_name: template.to_owned(),
    }
}

fn composite(scope: Scope<'_>, gang: &str, name: &str, group: &rounds::Group) -> CompositePodGroup {
    let lane = Lane {
        round: group.round,
        floor: true,
    };
    let children = i32::try_from(group.floor.len()).unwrap_or(i32::MAX);
    CompositePodGroup {
        metadata: ObjectMeta {
            owner_references: Some(vec![scope.set.owner()]),
            ..metadata(scope, name, gang, lane)
        },
        spec: CompositePodGroupSpec {
            priority_class_name: scope.set.object.spec.template.priority_class_name.clone(),
            scheduling_policy: CompositePodGroupSchedulingPolicy {
                gang: Some(CompositeGangSchedulingPolicy {
                    min_group_count: children,
                }),
                basic: None,
            },
            workload_ref: reference(scope, COMPOSITE_TEMPLATE),
            ..CompositePodGroupSpec::default()
        },
        status: None,
    }
}

/// A PodGroup; its owner, the PodClique, is added when its uid is known.
fn pod_group(
    scope: Scope<'_>,
    gang: &str,
    clique: &str,
    lane: Lane,
    policy: PodGroupSchedulingPolicy,
    parent: Option<&str>,
) -> PodGroup {
    let mut metadata = metadata(scope, &group_name(clique, lane), gang, lane);
    metadata
        .labels
        .get_or_insert_default()
        .insert(labels::CLIQUE.to_owned(), clique.to_owned());
    let class = &scope.set.object.spec.template.priority_class_name;
    PodGroup {
        metadata,
        spec: PodGroupSpec {
            parent_composite_pod_group_name: parent.map(str::to_owned),
            priority_class_name: if parent.is_none() {
                class.clone()
            } else {
                None
            },
            scheduling_policy: policy,
            workload_ref: parent.map(|_| reference(scope, GROUP_TEMPLATE)),
            ..PodGroupSpec::default()
        },
        status: None,
    }
}

fn workload(set: &Validated) -> Workload {
    let name = set.key.name().to_owned();
    let group = PodGroupTemplate {
        name: GROUP_TEMPLATE.to_owned(),
        scheduling_policy: PodGroupSchedulingPolicy {
            gang: Some(GangSchedulingPolicy { min_count: 1 }),
            basic: None,
        },
        ..PodGroupTemplate::default()
    };
    let composite = CompositePodGroupTemplate {
        name: COMPOSITE_TEMPLATE.to_owned(),
        scheduling_policy: CompositePodGroupSchedulingPolicy {
            gang: Some(CompositeGangSchedulingPolicy { min_group_count: 1 }),
            basic: None,
        },
        pod_group_templates: Some(vec![group]),
        ..CompositePodGroupTemplate::default()
    };
    let owner = set.owner();
    Workload {
        metadata: ObjectMeta {
            labels: Some(set_labels(set.key.name(), &name, Component::Gang)),
            name: Some(name.clone()),
            namespace: Some(set.key.namespace().to_owned()),
            owner_references: Some(vec![owner.clone()]),
            ..ObjectMeta::default()
        },
        spec: WorkloadSpec {
            composite_pod_group_templates: Some(vec![composite]),
            controller_ref: Some(TypedLocalObjectReference {
                api_group: Some(coppice_operator_api::PodCliqueSet::group(&()).into_owned()),
                kind: owner.kind,
                name,
            }),
            pod_group_templates: None,
        },
    }
}
