//! Gangs by the stock scheduler's own means: PodGroups, under a CompositePodGroup where several cliques are placed together.
//!
//! Pods name their group from the start. A group that does not exist yet holds its pods in the scheduler's queue, so
//! scaled gangs wait for the base gang, and pods above the floor wait for the floor, without gates and without a write per
//! pod. What belongs to a group is decided by [`rounds`]; groups are made once and never changed.
//!
//! Pods that share a resource claim are in no group. The scheduler (1.37) finds nodes for all pods of a group before it writes any
//! allocation down, and refuses a pod whose claim another one is about to allocate: such a group would wait for ever. So these
//! pods are placed one by one, and a gang that is not complete says so. `gated` places them all or none.

use std::collections::BTreeMap;
use std::sync::Arc;

use coppice_operator_api::labels::{self, Component};
use coppice_operator_plan::gang::{Gang, gang_of};
use coppice_operator_plan::ids::{CliqueId, GangId};
use coppice_operator_plan::observed::Lane;
use coppice_operator_plan::rounds::{self, Existing, Groups};
use coppice_operator_plan::topology::{Packing, Part};
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{
    Pod, PodAffinityTerm, PodSchedulingGroup, WeightedPodAffinityTerm,
};
use k8s_openapi::api::scheduling::v1alpha3::{
    BasicSchedulingPolicy, CompositeGangSchedulingPolicy, CompositePodGroup,
    CompositePodGroupSchedulingConstraints, CompositePodGroupSchedulingPolicy,
    CompositePodGroupSpec, CompositePodGroupTemplate, GangSchedulingPolicy, PodGroup,
    PodGroupSchedulingConstraints, PodGroupSchedulingPolicy, PodGroupSpec, PodGroupTemplate,
    TopologyConstraint, TypedLocalObjectReference, Workload, WorkloadReference, WorkloadSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use kube::Resource;

use super::{Companion, GangBackend, Placement, PlacementObject, PodPlace, ReplicaView};
use crate::build::scope::{Scope, set_labels};
use crate::build::{FLOOR_GROUPS_ANNOTATION, LANE_ANNOTATION};
use crate::index::key::{Kind, SetKey};
use crate::index::record::write_lane;
use crate::validated::Validated;

/// Template of composite groups in every Workload. Many groups may use one template without being equal to it, so one of
/// each kind is enough for any number of cliques.
const COMPOSITE_TEMPLATE: &str = "gang";
/// Template of groups.
const GROUP_TEMPLATE: &str = "clique";

/// What a gang says whose pods cannot be in a group.
const ONE_BY_ONE: &str = "its pods share resource claims, which the stock scheduler cannot place together: they are placed one by one; start \
                          the operator with --gang-backend=gated to have them placed all or none";

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
        // A gang of one clique is one group, which needs no Workload; pods that share claims are in no group.
        (!set.sharing.ties_pods() && set.template.cliques().len() > 1).then(|| workload(set))
    }

    fn place(&self, view: ReplicaView<'_>) -> Placement {
        if view.scope.set.sharing.ties_pods() {
            return Placement::default();
        }
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
            add_objects(view.scope, group, &known, &mut placement);
        }
        for key in rounds.remove {
            if let Some((name, uid)) = known.group_names.get(&key) {
                placement
                    .remove
                    .push((Kind::PodGroup, Arc::clone(name), Arc::clone(uid)));
            }
        }
        // A part goes with its parent, also where the parent went alone.
        let stays = |key: &(GangId, u32)| {
            known.composite_names.contains_key(key) && !rounds.remove_composites.contains(key)
                || rounds
                    .groups
                    .iter()
                    .any(|group| group.composite && (&group.gang, group.round) == (&key.0, key.1))
        };
        let roots = rounds
            .remove_composites
            .iter()
            .filter_map(|key| known.composite_names.get(key));
        let parts = known.nested.iter().filter(|(key, _)| !stays(key));
        for (name, uid) in roots.chain(parts.flat_map(|(_, parts)| parts)) {
            placement
                .remove
                .push((Kind::CompositePodGroup, Arc::clone(name), Arc::clone(uid)));
        }
        placement.remove.extend(known.strays);
        placement
    }

    fn prepare_pod(&self, pod: &mut Pod, of: PodPlace<'_>) {
        stay_near(pod, of);
        let Some(lane) = of.lane else { return };
        let annotations = pod.metadata.annotations.get_or_insert_default();
        annotations.insert(LANE_ANNOTATION.to_owned(), write_lane(lane));
        if let Some(spec) = &mut pod.spec {
            spec.scheduling_group = Some(PodSchedulingGroup {
                pod_group_name: Some(group_name(&of.scope.clique(of.clique), lane)),
            });
        }
    }

    fn refusal(&self, view: ReplicaView<'_>, gang: &Gang) -> Option<String> {
        if view.scope.set.sharing.ties_pods() {
            return Some(ONE_BY_ONE.to_owned());
        }
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

/// Name and uid of an object.
type Identity = (Arc<str>, Arc<str>);

/// The groups that exist, in the planner's terms.
#[derive(Default)]
struct Known {
    groups: Groups,
    group_names: BTreeMap<(CliqueId, Lane), Identity>,
    composite_names: BTreeMap<(GangId, u32), Identity>,
    /// Composite groups of parts, by gang and round of their parent.
    nested: BTreeMap<(GangId, u32), Vec<Identity>>,
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
                    if record.parented {
                        known.nested.entry(key).or_default().push(identity);
                        continue;
                    }
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

fn add_objects(scope: Scope<'_>, group: &rounds::Group, known: &Known, placement: &mut Placement) {
    let gang = scope.gang(&group.gang);
    let floor = Lane {
        round: group.round,
        floor: true,
    };
    let root = group.composite.then(|| composite_name(&gang, group.round));
    let parts = if group.composite {
        parts(scope, group)
    } else {
        Vec::new()
    };
    if let Some(root) = &root {
        let in_parts: usize = parts.iter().map(|part| part.cliques.len()).sum();
        let key = (group.gang.clone(), group.round);
        if !known.groups.composites.contains_key(&key) {
            let children = group.floor.len() - in_parts + parts.len();
            let required = scope.set.topology.of_gang(&group.gang);
            let mut object = composite(scope, &gang, root, floor, children, required);
            if !parts.is_empty() {
                let annotations = object.metadata.annotations.get_or_insert_default();
                let below = group.floor.len().to_string();
                annotations.insert(FLOOR_GROUPS_ANNOTATION.to_owned(), below);
            }
            placement
                .objects
                .push(PlacementObject::Composite(Box::new(object)));
        }
        let nested = known.nested.get(&key).into_iter().flatten();
        let nested: Vec<&Arc<str>> = nested.map(|(name, _)| name).collect();
        for part in &parts {
            let name = part_name(root, part);
            if nested.iter().any(|known| ***known == *name) {
                continue;
            }
            let children = part.cliques.len();
            let mut object = composite(scope, &gang, &name, floor, children, Some(part.packing));
            object.spec.parent_composite_pod_group_name = Some(root.clone());
            object.spec.priority_class_name = None;
            placement
                .objects
                .push(PlacementObject::Composite(Box::new(object)));
        }
    }
    let missing =
        |clique: &CliqueId, lane| !known.groups.existing.contains_key(&(clique.clone(), lane));
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
        let part = parts.iter().find(|part| part.cliques.contains(&clique));
        let parent = root
            .as_deref()
            .map(|root| part.map_or_else(|| root.to_owned(), |part| part_name(root, part)));
        let mut object = pod_group(scope, &gang, &name, floor, policy, parent.as_deref());
        object.spec.scheduling_constraints =
            own_constraint(scope, &group.gang, clique, parent.is_some());
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

/// Parts that the scheduler has to be told of: preferences are for pods.
fn parts<'a>(scope: Scope<'a>, group: &'a rounds::Group) -> Vec<Part<'a>> {
    let cliques = group.floor.iter().map(|(clique, _)| clique);
    let mut parts = scope.set.topology.parts(&group.gang, cliques);
    parts.retain(|part| part.packing.required.is_some());
    parts
}

/// Name of the composite group of a part. Dots keep it apart from every other name.
fn part_name(root: &str, part: &Part<'_>) -> String {
    format!("{root}.{}-{}", part.group, part.replica)
}

/// The constraint of a PodGroup: its clique's, or, where no composite group says it, that of what is around it.
fn own_constraint(
    scope: Scope<'_>,
    gang: &GangId,
    clique: &CliqueId,
    has_parent: bool,
) -> Option<PodGroupSchedulingConstraints> {
    let topology = &scope.set.topology;
    let required = |packing: Option<&Packing>| packing.and_then(|packing| packing.required.clone());
    let around =
        || required(topology.of_part(gang, clique)).or_else(|| required(topology.of_gang(gang)));
    let key = required(topology.of_clique(clique)).or_else(|| (!has_parent).then(around)?)?;
    Some(PodGroupSchedulingConstraints {
        topology: Some(vec![TopologyConstraint {
            key: key.to_string(),
        }]),
    })
}

/// Ties a pod to pods that run, by affinity, where its group cannot: a pod that is placed after its gang's first placement
/// has to go where the gang is, and a preference is nothing that groups know.
///
/// The scheduler counts only pods that match every term, and takes a pod for the first of its kind where none does. So a
/// requirement is stated for what runs: a clique that lost all its pods is tied to the rest of its gang.
fn stay_near(pod: &mut Pod, of: PodPlace<'_>) {
    let topology = &of.scope.set.topology;
    // It is let go when the floor of its own clique runs.
    let follows = of.lane.is_some_and(|lane| !lane.floor);
    let runs = |is_of: &dyn Fn(&CliqueId) -> bool| {
        let mut cliques = of.observed.cliques.iter();
        follows || cliques.any(|(id, clique)| is_of(id) && clique.scheduled() > 0)
    };
    let mut required = Vec::new();
    let mut preferred = Vec::new();
    let mut tie = |packing: Option<&Packing>, near: BTreeMap<String, String>, runs: bool| {
        let Some(packing) = packing else { return };
        let term = |key: &str| PodAffinityTerm {
            label_selector: Some(LabelSelector {
                match_labels: Some(near.clone()),
                ..LabelSelector::default()
            }),
            topology_key: key.to_owned(),
            ..PodAffinityTerm::default()
        };
        required.extend(packing.required.as_deref().filter(|_| runs).map(term));
        preferred.extend(
            packing
                .preferred
                .as_deref()
                .map(|key| WeightedPodAffinityTerm {
                    pod_affinity_term: term(key),
                    weight: 100,
                }),
        );
    };
    let label = |key: &str, value: String| (key.to_owned(), value);
    tie(
        topology.of_clique(of.clique),
        BTreeMap::from([label(labels::CLIQUE, of.scope.clique(of.clique))]),
        runs(&|id| id == of.clique),
    );
    if let Some((group, replica)) = of.clique.group() {
        let near = [
            label(labels::SCALING_GROUP, of.scope.group(group)),
            label(labels::GROUP_REPLICA_INDEX, replica.to_string()),
        ];
        tie(
            topology.of_part(of.gang, of.clique),
            BTreeMap::from(near),
            runs(&|id| id.group() == Some((group, replica))),
        );
    }
    tie(
        topology.of_gang(of.gang),
        BTreeMap::from([label(labels::GANG, of.scope.gang(of.gang))]),
        runs(&|id| gang_of(&of.scope.set.template, id) == *of.gang),
    );
    if required.is_empty() && preferred.is_empty() {
        return;
    }
    let spec = pod.spec.get_or_insert_default();
    let near = spec
        .affinity
        .get_or_insert_default()
        .pod_affinity
        .get_or_insert_default();
    near.required_during_scheduling_ignored_during_execution
        .get_or_insert_default()
        .extend(required);
    near.preferred_during_scheduling_ignored_during_execution
        .get_or_insert_default()
        .extend(preferred);
}

fn composite(
    scope: Scope<'_>,
    gang: &str,
    name: &str,
    lane: Lane,
    children: usize,
    packing: Option<&Packing>,
) -> CompositePodGroup {
    let children = i32::try_from(children).unwrap_or(i32::MAX);
    let required = packing.and_then(|packing| packing.required.as_deref());
    CompositePodGroup {
        metadata: ObjectMeta {
            owner_references: Some(vec![scope.set.owner()]),
            ..metadata(scope, name, gang, lane)
        },
        spec: CompositePodGroupSpec {
            priority_class_name: scope.set.object.spec.template.priority_class_name.clone(),
            scheduling_constraints: required.map(|key| CompositePodGroupSchedulingConstraints {
                topology: Some(vec![TopologyConstraint {
                    key: key.to_owned(),
                }]),
            }),
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
