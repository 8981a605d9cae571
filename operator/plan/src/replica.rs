//! Everything inside one set replica, in one pass.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use crate::gang::{self, Gang, Scale};
use crate::ids::{CliqueId, GangId, GroupName, PodIndex, PodUid};
use crate::observed::{Clique, Replica};
use crate::order;
use crate::pods::{self, Because};
use crate::rollout;
use crate::template::SetTemplate;

/// What the set says about this replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permit {
    /// It is this replica's turn to take over a changed template.
    pub may_update: bool,
}

/// What should exist in one set replica, and what changes now. Nothing is left to decide.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Scaling-group objects that should exist, in template order.
    pub groups: Vec<GroupPlan>,
    /// PodClique objects that should exist, in gang order.
    pub cliques: Vec<CliquePlan>,
    /// Gangs that should exist, base gang first.
    pub gangs: Vec<Gang>,
    /// Pods to create, by clique.
    pub create: BTreeMap<CliqueId, Vec<PodIndex>>,
    /// Pods to delete, in order.
    pub delete: Vec<PodRemoval>,
    /// PodClique objects to delete together with their pods.
    pub remove_cliques: BTreeSet<CliqueId>,
    /// Scaling-group objects to delete.
    pub remove_groups: BTreeSet<GroupName>,
    /// What the plan says about itself.
    pub report: Report,
}

/// A scaling-group object that should exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupPlan {
    /// Which group.
    pub name: GroupName,
    /// `spec.replicas`: what it is scaled to, or the template's number when it is created.
    pub replicas: u32,
    /// Replicas that run, see [`crate::template::effective`].
    pub effective: u32,
}

/// A PodClique object that should exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CliquePlan {
    /// Which clique.
    pub id: CliqueId,
    /// The gang its pods belong to.
    pub gang: GangId,
    /// `spec.replicas`: what it is scaled to, or the template's number when it is created.
    pub replicas: u32,
    /// Pods that run, see [`crate::template::effective`].
    pub effective: u32,
    /// Cliques that must be up before its main containers start. Idle ones are left out: they never would be.
    pub parents: Vec<CliqueId>,
    /// The object keeps the template it holds; nothing but its count may be changed.
    pub keep_template: bool,
}

/// A pod to delete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodRemoval {
    /// Its clique.
    pub clique: CliqueId,
    /// The pod.
    pub pod: PodUid,
    /// Why.
    pub because: Because,
}

/// What a plan says about itself, for people, metrics and the work queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Something has an old template.
    pub is_old: bool,
    /// Cliques that get nothing while their object is being deleted.
    pub waits_for_deletion: BTreeSet<CliqueId>,
    /// When a plan for the same state would differ.
    pub wake: Option<Timestamp>,
}

impl Plan {
    /// Whether carrying out the plan would change pods, cliques or groups that exist.
    #[must_use]
    pub fn changes_pods(&self) -> bool {
        !self.create.is_empty() || !self.delete.is_empty() || !self.remove_cliques.is_empty()
    }
}

/// The numbers in effect, read from the objects where they exist: `/scale` and people's edits are inputs.
#[must_use]
pub fn scale(replica: &Replica) -> Scale {
    let groups = replica
        .groups
        .iter()
        .filter(|(_, group)| !group.terminating);
    let cliques = replica
        .cliques
        .iter()
        .filter(|(_, clique)| !clique.terminating);
    let cliques = cliques.map(|(id, clique)| (id.clone(), clique.replicas));
    let taken_down = replica
        .taken_down
        .iter()
        .map(|(id, replicas)| (id.clone(), *replicas));
    Scale {
        groups: groups
            .map(|(name, group)| (name.clone(), group.replicas))
            .collect(),
        cliques: taken_down.chain(cliques).collect(),
    }
}

/// Plans one set replica that should exist.
#[must_use]
pub fn plan(template: &SetTemplate, replica: &Replica, permit: Permit, now: Timestamp) -> Plan {
    let scale = scale(replica);
    let rollout = rollout::plan(template, replica, &scale, permit.may_update);
    let mut plan = Plan {
        groups: groups(template, replica, &scale),
        cliques: Vec::new(),
        gangs: gang::compose(template, &scale),
        create: BTreeMap::new(),
        delete: rollout
            .delete
            .iter()
            .map(|(clique, pod)| PodRemoval {
                clique: clique.clone(),
                pod: pod.clone(),
                because: Because::Update,
            })
            .collect(),
        remove_cliques: BTreeSet::new(),
        remove_groups: BTreeSet::new(),
        report: Report {
            is_old: rollout.is_old,
            ..Report::default()
        },
    };
    let wanted: Vec<CliqueId> = gang::cliques(template, &scale);
    for id in &wanted {
        plan_clique(template, replica, &scale, id, &rollout, now, &mut plan);
    }
    let wanted: BTreeSet<&CliqueId> = wanted.iter().collect();
    plan.remove_cliques = replica
        .cliques
        .keys()
        .filter(|id| !wanted.contains(id))
        .cloned()
        .collect();
    plan.remove_groups = replica
        .groups
        .keys()
        .filter(|name| template.group(name).is_none())
        .cloned()
        .collect();
    plan
}

fn groups(template: &SetTemplate, replica: &Replica, scale: &Scale) -> Vec<GroupPlan> {
    template
        .groups()
        .iter()
        .map(|group| GroupPlan {
            name: group.name.clone(),
            replicas: replica
                .groups
                .get(&group.name)
                .map_or(group.replicas, |found| found.replicas),
            effective: scale.group(template, &group.name),
        })
        .collect()
}

fn plan_clique(
    template: &SetTemplate,
    replica: &Replica,
    scale: &Scale,
    id: &CliqueId,
    rollout: &rollout::Rollout,
    now: Timestamp,
    plan: &mut Plan,
) {
    let Some(target) = template.clique(id.template()) else {
        return;
    };
    let observed = replica.cliques.get(id);
    let effective = scale.clique(template, id);
    let is_idle = |parent: &CliqueId| {
        scale.clique(template, parent) == 0
            || parent
                .group()
                .is_some_and(|(group, replica)| replica >= scale.group(template, group))
    };
    let mut parents = order::parents(template, id);
    parents.retain(|parent| !is_idle(parent));
    plan.cliques.push(CliquePlan {
        id: id.clone(),
        gang: gang::gang_of(template, id),
        replicas: observed
            .map(|clique| clique.replicas)
            .or_else(|| replica.taken_down.get(id).copied())
            .unwrap_or(target.replicas),
        effective,
        parents,
        keep_template: rollout.keep.contains(id),
    });

    let Some(observed) = observed else {
        if effective > 0 {
            plan.create.insert(id.clone(), (0..effective).collect());
        }
        return;
    };
    if observed.terminating {
        plan.report.waits_for_deletion.insert(id.clone());
        return;
    }
    let updated: BTreeSet<&PodUid> = rollout
        .delete
        .iter()
        .filter(|(clique, _)| clique == id)
        .map(|(_, pod)| pod)
        .collect();
    let rest = Clique {
        pods: observed
            .pods
            .iter()
            .filter(|pod| !updated.contains(&pod.uid))
            .cloned()
            .collect(),
        ..observed.clone()
    };
    let target_hash = if rollout.keep.contains(id) {
        &observed.hash
    } else {
        &target.hash
    };
    let changes = pods::plan(&rest, effective, target_hash, now);
    plan.delete
        .extend(changes.delete.into_iter().map(|removal| PodRemoval {
            clique: id.clone(),
            pod: removal.pod,
            because: removal.because,
        }));
    if !changes.create.is_empty() {
        plan.create.insert(id.clone(), changes.create);
    }
    plan.report.wake = [plan.report.wake, changes.held_until]
        .into_iter()
        .flatten()
        .min();
}
