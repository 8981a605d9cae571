//! How a changed template reaches the pods of one set replica.
//!
//! Progress is never remembered: old and new are told apart by the digest a pod carries, each pass anew, so a second
//! change or a revert in the middle needs no rule of its own. A PodClique object that has not been admitted keeps its old
//! template, so a pod that dies before its replica's turn comes back as it was.
//!
//! One availability budget: what serves nothing may go at once; of what serves, one unit at a time, and only while
//! everything else in its component is up. A unit is a pod of a standalone clique, or a replica of a scaling group.

use std::collections::{BTreeMap, BTreeSet};

use crate::gang::Scale;
use crate::hash::TemplateHash;
use crate::ids::{CliqueId, GroupIndex, PodUid};
use crate::observed::{Clique, Pod, Replica, count};
use crate::template::{CliqueTemplate, GroupTemplate, SetTemplate, Strategy};

/// What a template change does in this pass.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rollout {
    /// Cliques whose object keeps the template it has. All others have, or get, the set's.
    pub keep: BTreeSet<CliqueId>,
    /// Pods to delete, in order.
    pub delete: Vec<(CliqueId, PodUid)>,
    /// Something still has an old template.
    pub is_old: bool,
}

/// Decides for one set replica. `may_update` says that it is this replica's turn.
#[must_use]
pub fn plan(template: &SetTemplate, replica: &Replica, scale: &Scale, may_update: bool) -> Rollout {
    let mut rollout = Rollout {
        is_old: is_old(template, replica),
        ..Rollout::default()
    };
    if !rollout.is_old || template.strategy() == Strategy::OnDelete {
        return rollout;
    }
    if !may_update {
        let old = replica
            .cliques
            .iter()
            .filter(|(id, clique)| object_is_old(template, id, clique));
        rollout.keep = old.map(|(id, _)| id.clone()).collect();
        return rollout;
    }
    for clique in template.standalone() {
        let id = CliqueId::Standalone(clique.name.clone());
        if let Some(observed) = replica.cliques.get(&id) {
            let want = scale.clique(template, &id);
            let old = old_pods_to_delete(clique, observed, want);
            rollout
                .delete
                .extend(old.into_iter().map(|pod| (id.clone(), pod)));
        }
    }
    for group in template.groups() {
        update_group(template, group, replica, scale, &mut rollout);
    }
    rollout
}

/// Whether anything in the replica has an old template. Cliques that are about to go do not count.
#[must_use]
pub fn is_old(template: &SetTemplate, replica: &Replica) -> bool {
    replica.cliques.iter().any(|(id, clique)| {
        template.clique(id.template()).is_some_and(|target| {
            clique.hash != target.hash || clique.active().any(|pod| pod.hash != target.hash)
        })
    })
}

fn object_is_old(template: &SetTemplate, id: &CliqueId, clique: &Clique) -> bool {
    template
        .clique(id.template())
        .is_some_and(|target| clique.hash != target.hash)
}

fn old_pods<'a>(clique: &'a Clique, target: &'a TemplateHash) -> impl Iterator<Item = &'a Pod> {
    clique.active().filter(move |pod| pod.hash != *target)
}

/// Old pods of a standalone clique that go now: all that serve nothing, else the oldest one that does, when every other
/// pod is there and ready and what stays is enough.
fn old_pods_to_delete(template: &CliqueTemplate, clique: &Clique, want: u32) -> Vec<PodUid> {
    let idle: Vec<PodUid> = old_pods(clique, &template.hash)
        .filter(|pod| !pod.ready)
        .map(|pod| pod.uid.clone())
        .collect();
    if !idle.is_empty() {
        return idle;
    }
    let ready = clique.ready();
    let everything_is_up = count(clique.active()) == want && ready == want;
    let floor = template.min_available.get().min(want.saturating_sub(1));
    if !everything_is_up || ready <= floor {
        return Vec::new();
    }
    let oldest = old_pods(clique, &template.hash)
        .min_by_key(|pod| (pod.created, pod.index, pod.uid.clone()));
    oldest.into_iter().map(|pod| pod.uid.clone()).collect()
}

/// Where a replica of a scaling group stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// All objects and pods have the set's template.
    New,
    /// Objects have it, some pods do not: it was admitted and not all its pods are gone yet, or the strategy was `OnDelete`.
    Begun,
    /// An object has an old template.
    Old,
}

fn update_group(
    template: &SetTemplate,
    group: &GroupTemplate,
    replica: &Replica,
    scale: &Scale,
    rollout: &mut Rollout,
) {
    let replicas = scale.group(template, &group.name);
    let mut standing = BTreeMap::new();
    let mut available = BTreeSet::new();
    for index in 0..replicas {
        let members: Vec<(&CliqueTemplate, Option<&Clique>)> = template
            .members(group)
            .map(|member| {
                (
                    member,
                    replica.cliques.get(&member_id(group, index, member)),
                )
            })
            .collect();
        let old_object = members
            .iter()
            .any(|(target, observed)| observed.is_some_and(|clique| clique.hash != target.hash));
        let old_pod = members.iter().any(|(target, observed)| {
            observed.is_some_and(|clique| old_pods(clique, &target.hash).next().is_some())
        });
        standing.insert(
            index,
            match (old_object, old_pod) {
                (true, _) => Standing::Old,
                (false, true) => Standing::Begun,
                (false, false) => Standing::New,
            },
        );
        let is_available = members.iter().all(|(target, observed)| {
            let id = member_id(group, index, target);
            let needed = if scale.clique(template, &id) == 0 {
                0
            } else {
                target.min_available.get()
            };
            observed.map_or(needed == 0, |clique| clique.ready() >= needed)
        });
        if is_available {
            available.insert(index);
        }
    }

    // What serves goes one at a time, while everything is up. One that was begun and cut short comes before others: it
    // looks like one whose objects were changed under `OnDelete`, and both still serve.
    let floor = group.min_available.get().min(replicas.saturating_sub(1));
    let mut may_take_one = count(available.iter()) == replicas && replicas > floor;
    let mut outdated: Vec<(GroupIndex, Standing)> = standing
        .into_iter()
        .filter(|(_, standing)| *standing != Standing::New)
        .collect();
    outdated.sort_by_key(|(index, standing)| (*standing == Standing::Old, *index));
    for (index, standing) in outdated {
        let admitted = !available.contains(&index) || std::mem::take(&mut may_take_one);
        delete_or_keep(template, group, index, replica, standing, admitted, rollout);
    }
}

/// An admitted replica loses all its pods, so that it starts as one; one that was admitted before only loses what is left
/// of the old ones. Pods with the new template go first: while an old one is left, the rest is not forgotten.
fn delete_or_keep(
    template: &SetTemplate,
    group: &GroupTemplate,
    index: u32,
    replica: &Replica,
    standing: Standing,
    admitted: bool,
    rollout: &mut Rollout,
) {
    let mut old = Vec::new();
    for member in template.members(group) {
        let id = member_id(group, index, member);
        let Some(observed) = replica.cliques.get(&id) else {
            continue;
        };
        if !admitted {
            if observed.hash != member.hash {
                rollout.keep.insert(id);
            }
            continue;
        }
        for pod in observed.active() {
            let victim = (id.clone(), pod.uid.clone());
            if pod.hash != member.hash {
                old.push(victim);
            } else if standing == Standing::Old {
                rollout.delete.push(victim);
            }
        }
    }
    rollout.delete.extend(old);
}

fn member_id(group: &GroupTemplate, replica: u32, member: &CliqueTemplate) -> CliqueId {
    CliqueId::Member {
        group: group.name.clone(),
        replica,
        clique: member.name.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::CliqueName;
    use crate::pods::fixtures::{clique as observed, pending, pod};
    use crate::template::Startup;
    use crate::template::fixtures::*;

    fn standalone(name: &str) -> CliqueId {
        CliqueId::Standalone(CliqueName::new(name).unwrap())
    }

    fn member(index: u32, name: &str) -> CliqueId {
        CliqueId::Member {
            group: crate::ids::GroupName::new("g").unwrap(),
            replica: index,
            clique: CliqueName::new(name).unwrap(),
        }
    }

    fn with(hash: &TemplateHash, mut pod: Pod) -> Pod {
        pod.hash = hash.clone();
        pod
    }

    fn old() -> TemplateHash {
        TemplateHash::recorded("old")
    }

    fn object(hash: &TemplateHash, pods: Vec<Pod>) -> Clique {
        Clique {
            hash: hash.clone(),
            ..observed(pods)
        }
    }

    fn victims(rollout: &Rollout) -> Vec<&str> {
        rollout.delete.iter().map(|(_, pod)| pod.as_str()).collect()
    }

    fn one_clique(replicas: u32, min: u32) -> (SetTemplate, TemplateHash) {
        let set = set(vec![clique("a", replicas, min)], vec![], Startup::AnyOrder);
        let hash = set.cliques()[0].hash.clone();
        (set, hash)
    }

    #[test]
    fn a_replica_whose_turn_has_not_come_keeps_its_template() {
        let (set, _) = one_clique(2, 1);
        let mut replica = Replica::default();
        replica.cliques.insert(
            standalone("a"),
            object(&old(), vec![with(&old(), pod("x", 0))]),
        );
        let rollout = plan(&set, &replica, &Scale::default(), false);
        assert_eq!(
            (rollout.keep.len(), rollout.delete.len(), rollout.is_old),
            (1, 0, true)
        );
    }

    #[test]
    fn serving_pods_are_taken_one_at_a_time_while_all_others_are_ready() {
        let (set, new) = one_clique(3, 3);
        let mut replica = Replica::default();
        let mut pods = vec![
            with(&old(), pod("x", 0)),
            with(&old(), pod("y", 1)),
            with(&new, pod("z", 2)),
        ];
        let mut check = |pods: &[Pod], expected: &[&str]| {
            replica
                .cliques
                .insert(standalone("a"), object(&new, pods.to_vec()));
            assert_eq!(
                victims(&plan(&set, &replica, &Scale::default(), true)),
                expected
            );
        };
        check(&pods, &["x"]);
        pods[2].ready = false;
        check(&pods, &[]);
        pods[0].terminating = true;
        pods[2].ready = true;
        check(&pods, &[]);
    }

    #[test]
    fn pods_that_serve_nothing_are_not_charged() {
        let (set, new) = one_clique(3, 2);
        let pods = vec![
            with(&old(), pod("x", 0)),
            with(&old(), pending("y", 1)),
            with(&old(), pending("z", 2)),
        ];
        let mut replica = Replica::default();
        replica.cliques.insert(standalone("a"), object(&new, pods));
        assert_eq!(
            victims(&plan(&set, &replica, &Scale::default(), true)),
            ["y", "z"]
        );
    }

    #[test]
    fn replicas_left_old_under_on_delete_go_one_at_a_time_when_the_strategy_changes() {
        let set = set(
            vec![clique("a", 1, 1)],
            vec![group("g", &["a"], 2, 2)],
            Startup::AnyOrder,
        );
        let new = set.cliques()[0].hash.clone();
        let mut replica = Replica::default();
        for index in 0..2 {
            let left = vec![with(&old(), pod(&format!("x{index}"), 0))];
            replica
                .cliques
                .insert(member(index, "a"), object(&new, left));
        }
        let first = plan(&set, &replica, &Scale::default(), true);
        assert_eq!(victims(&first), ["x0"]);
        // It has not come up again: the other stays.
        replica.cliques.insert(
            member(0, "a"),
            object(&new, vec![with(&new, pending("y0", 0))]),
        );
        assert!(victims(&plan(&set, &replica, &Scale::default(), true)).is_empty());
    }

    #[test]
    fn on_delete_changes_objects_and_no_pods() {
        let set = SetTemplate::new(
            vec![clique("a", 1, 1)],
            vec![],
            Startup::AnyOrder,
            Strategy::OnDelete,
        )
        .unwrap();
        let mut replica = Replica::default();
        replica.cliques.insert(
            standalone("a"),
            object(&old(), vec![with(&old(), pod("x", 0))]),
        );
        for turn in [true, false] {
            let rollout = plan(&set, &replica, &Scale::default(), turn);
            assert_eq!(
                (rollout.keep.len(), rollout.delete.len(), rollout.is_old),
                (0, 0, true)
            );
        }
    }

    /// Group `g` of `lead` and `work`, three replicas; `work` has changed.
    fn group_world(min: u32) -> (SetTemplate, Replica) {
        let set = set(
            vec![clique("lead", 1, 1), clique("work", 1, 1)],
            vec![group("g", &["lead", "work"], 3, min)],
            Startup::AnyOrder,
        );
        let lead = set.cliques()[0].hash.clone();
        let mut replica = Replica::default();
        for index in 0..3 {
            let pods = vec![with(&lead, pod(&format!("lead-{index}"), 0))];
            replica
                .cliques
                .insert(member(index, "lead"), object(&lead, pods));
            let pods = vec![with(&old(), pod(&format!("work-{index}"), 0))];
            replica
                .cliques
                .insert(member(index, "work"), object(&old(), pods));
        }
        (set, replica)
    }

    #[test]
    fn a_group_replica_is_taken_as_a_whole_lowest_index_first() {
        let (set, mut replica) = group_world(1);
        let rollout = plan(&set, &replica, &Scale::default(), true);
        assert_eq!(victims(&rollout), ["lead-0", "work-0"]);
        assert_eq!(rollout.keep, [member(1, "work"), member(2, "work")].into());

        // The object has the new template, the old pod is still there: the new leader is left alone.
        let new = set.cliques()[1].hash.clone();
        replica.cliques.get_mut(&member(0, "work")).unwrap().hash = new.clone();
        replica.cliques.get_mut(&member(0, "lead")).unwrap().pods[0].uid =
            PodUid::new("lead-0-again");
        assert_eq!(
            victims(&plan(&set, &replica, &Scale::default(), true)),
            ["work-0"]
        );

        // Its worker is not ready yet: nobody else moves.
        replica.cliques.get_mut(&member(0, "work")).unwrap().pods =
            vec![with(&new, pending("work-0-new", 0))];
        assert_eq!(
            victims(&plan(&set, &replica, &Scale::default(), true)),
            Vec::<&str>::new()
        );
        replica.cliques.get_mut(&member(0, "work")).unwrap().pods =
            vec![with(&new, pod("work-0-new", 0))];
        assert_eq!(
            victims(&plan(&set, &replica, &Scale::default(), true)),
            ["lead-1", "work-1"]
        );
    }

    #[test]
    fn broken_old_group_replicas_go_at_once_and_do_not_use_up_the_budget() {
        let (set, mut replica) = group_world(1);
        for index in [1, 2] {
            replica
                .cliques
                .get_mut(&member(index, "work"))
                .unwrap()
                .pods[0]
                .ready = false;
        }
        assert_eq!(
            victims(&plan(&set, &replica, &Scale::default(), true)),
            ["lead-1", "work-1", "lead-2", "work-2"]
        );
    }

    #[test]
    fn going_back_to_the_first_template_needs_no_memory() {
        let (set, mut replica) = group_world(1);
        // One replica had been changed to the template that is old now.
        for index in [0, 1] {
            let new = set.cliques()[1].hash.clone();
            let work = replica.cliques.get_mut(&member(index, "work")).unwrap();
            work.hash = new.clone();
            work.pods[0].hash = new;
        }
        assert_eq!(
            victims(&plan(&set, &replica, &Scale::default(), true)),
            ["lead-2", "work-2"]
        );
    }
}
