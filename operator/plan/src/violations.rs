//! Checks a plan against its promises; for property tests, simulations and `debug_assert!`.

use std::collections::{BTreeMap, BTreeSet};

use crate::ids::{CliqueId, PodIndex, PodUid};
use crate::observed::{Pod, Replica, count};
use crate::pods::Because;
use crate::replica::Plan;
use crate::template::{SetTemplate, Strategy};

/// A broken promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    /// Two pods of a clique would have one index.
    SharedIndex(CliqueId, PodIndex),
    /// After the plan a clique would have this many pods instead of the number that should run.
    WrongCount(CliqueId, u32, u32),
    /// A clique would run with fewer pods than its minimum, without being idle.
    BelowMinimum(CliqueId, u32),
    /// A clique with pods belongs to no gang, or to two.
    NotInOneGang(CliqueId, u32),
    /// A pod is deleted that is not there, or twice.
    WrongDeletion(PodUid),
    /// An update takes down more than one serving unit of a component.
    OverBudget(CliqueId),
    /// An update touches pods although it may not.
    UntimelyUpdate(CliqueId),
    /// A clique that does not exist is told to keep its template.
    NothingToKeep(CliqueId),
}

/// Every promise that the plan breaks.
#[must_use]
pub fn violations(
    template: &SetTemplate,
    replica: &Replica,
    may_update: bool,
    plan: &Plan,
) -> Vec<Violation> {
    let mut found = Vec::new();
    let deleted = deletions(replica, plan, &mut found);
    for clique in &plan.cliques {
        check_pods(template, replica, plan, &deleted, clique, &mut found);
        let gangs = plan.gangs.iter().flat_map(|gang| &gang.members);
        let times = count(gangs.filter(|member| member.clique == clique.id));
        if times != u32::from(clique.effective > 0) {
            found.push(Violation::NotInOneGang(clique.id.clone(), times));
        }
        if clique.keep_template && !replica.cliques.contains_key(&clique.id) {
            found.push(Violation::NothingToKeep(clique.id.clone()));
        }
    }
    check_updates(template, replica, may_update, plan, &mut found);
    found
}

fn deletions(replica: &Replica, plan: &Plan, found: &mut Vec<Violation>) -> BTreeSet<PodUid> {
    let mut deleted = BTreeSet::new();
    for removal in &plan.delete {
        let clique = replica.cliques.get(&removal.clique);
        let is_there =
            clique.is_some_and(|clique| clique.pods.iter().any(|pod| pod.uid == removal.pod));
        if !is_there || !deleted.insert(removal.pod.clone()) {
            found.push(Violation::WrongDeletion(removal.pod.clone()));
        }
    }
    deleted
}

fn check_pods(
    template: &SetTemplate,
    replica: &Replica,
    plan: &Plan,
    deleted: &BTreeSet<PodUid>,
    clique: &crate::replica::CliquePlan,
    found: &mut Vec<Violation>,
) {
    let observed = replica.cliques.get(&clique.id);
    if observed.is_some_and(|observed| observed.terminating) {
        return;
    }
    let stay: Vec<&Pod> = observed
        .iter()
        .flat_map(|observed| observed.active())
        .filter(|pod| !deleted.contains(&pod.uid))
        .collect();
    let created = plan.create.get(&clique.id).map_or(&[][..], Vec::as_slice);
    let mut seen = BTreeSet::new();
    for index in stay
        .iter()
        .filter_map(|pod| pod.index)
        .chain(created.iter().copied())
    {
        if !seen.insert(index) {
            found.push(Violation::SharedIndex(clique.id.clone(), index));
        }
    }
    let total = count(stay.iter()) + count(created.iter());
    let is_held = plan.report.wake.is_some();
    if total > clique.effective || total < clique.effective && !is_held {
        found.push(Violation::WrongCount(
            clique.id.clone(),
            total,
            clique.effective,
        ));
    }
    let minimum = template
        .clique(clique.id.template())
        .map_or(0, |clique| clique.min_available.get());
    if clique.effective > 0 && clique.effective < minimum {
        found.push(Violation::BelowMinimum(clique.id.clone(), clique.effective));
    }
}

/// Serving pods an update takes down, by component: a standalone clique, or a replica of a group.
fn check_updates(
    template: &SetTemplate,
    replica: &Replica,
    may_update: bool,
    plan: &Plan,
    found: &mut Vec<Violation>,
) {
    let mut serving: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for removal in plan
        .delete
        .iter()
        .filter(|removal| removal.because == Because::Update)
    {
        if !may_update || template.strategy() == Strategy::OnDelete {
            found.push(Violation::UntimelyUpdate(removal.clique.clone()));
        }
        let pods = replica
            .cliques
            .get(&removal.clique)
            .map(|clique| &clique.pods);
        let Some(pod) = pods.and_then(|pods| pods.iter().find(|pod| pod.uid == removal.pod)) else {
            continue;
        };
        let (component, unit) = match removal.clique.group() {
            None => (format!("{:?}", removal.clique), format!("{:?}", pod.uid)),
            Some((group, index)) => (group.to_string(), index.to_string()),
        };
        // A replica that is not available serves nothing.
        let serves = match removal.clique.group() {
            None => pod.ready,
            Some((group, index)) => replica
                .cliques
                .iter()
                .filter(|(id, _)| id.group() == Some((group, index)))
                .all(|(id, clique)| {
                    let minimum = template
                        .clique(id.template())
                        .map_or(0, |clique| clique.min_available.get());
                    clique.ready() >= minimum.min(clique.replicas.max(minimum))
                }),
        };
        if serves {
            serving.entry(component).or_default().insert(unit);
        }
        if pod.ready && serving.values().any(|units| units.len() > 1) {
            found.push(Violation::OverBudget(removal.clique.clone()));
        }
    }
}
