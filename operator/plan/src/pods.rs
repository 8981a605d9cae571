//! Which pods of one clique come and go.
//!
//! Counted are *active* pods only: a pod being deleted is replaced while it still terminates, and one that ended by
//! itself (evicted, completed) is deleted and replaced. Nothing is remembered between passes, so a restart changes
//! nothing.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use crate::hash::TemplateHash;
use crate::ids::{PodIndex, PodUid};
use crate::observed::{Clique, Pod, count};

/// What one pass changes in a clique.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Indexes to make pods for, ascending.
    pub create: Vec<PodIndex>,
    /// Pods to delete, in order.
    pub delete: Vec<Removal>,
    /// Replacements are held back until then.
    pub held_until: Option<Timestamp>,
}

/// A pod to delete, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removal {
    /// The pod.
    pub pod: PodUid,
    /// The reason.
    pub because: Because,
}

/// Why a pod is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Because {
    /// The clique is scaled in, or does not exist any more.
    ScaleIn,
    /// It ended by itself.
    Finished,
    /// Another pod has its index, or it has none.
    Index,
    /// Its template is old and its turn has come.
    Update,
}

impl Because {
    /// Word for events and metric labels.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ScaleIn => "ScaleIn",
            Self::Finished => "Finished",
            Self::Index => "DuplicateIndex",
            Self::Update => "Update",
        }
    }
}

/// Brings the clique to `want` active pods.
///
/// `target` is the digest that counts as new for the order of victims. Finished pods go first, then pods without an index
/// of their own (of two with the same index the younger one), then the excess in [`victim_order`]. Missing pods take the
/// lowest free indexes. While [`Clique::hold_until`] lies ahead, finished pods stay where they are, for people to look at,
/// and are not replaced.
#[must_use]
pub fn plan(clique: &Clique, want: u32, target: &TemplateHash, now: Timestamp) -> Changes {
    let mut changes = Changes::default();
    let remove = |pod: &Pod, because| Removal {
        pod: pod.uid.clone(),
        because,
    };
    let finished: Vec<&Pod> = clique
        .pods
        .iter()
        .filter(|pod| pod.is_finished() && !pod.terminating)
        .collect();
    let held = clique
        .hold_until
        .filter(|until| *until > now && !finished.is_empty());
    if held.is_none() {
        changes
            .delete
            .extend(finished.iter().map(|pod| remove(pod, Because::Finished)));
    }

    let mut by_age: Vec<&Pod> = clique.active().collect();
    by_age.sort_by_key(|pod| (pod.created, pod.uid.clone()));
    let mut kept: BTreeMap<PodIndex, &Pod> = BTreeMap::new();
    for pod in by_age {
        match pod.index {
            Some(index) if !kept.contains_key(&index) => {
                kept.insert(index, pod);
            }
            Some(_) | None => changes.delete.push(remove(pod, Because::Index)),
        }
    }

    let have = count(kept.values());
    if have > want {
        let mut victims: Vec<&Pod> = kept.values().copied().collect();
        victims.sort_by_key(|pod| victim_order(pod, target));
        let excess = usize::try_from(have - want).unwrap_or(usize::MAX);
        changes.delete.extend(
            victims
                .into_iter()
                .take(excess)
                .map(|pod| remove(pod, Because::ScaleIn)),
        );
    } else {
        let mut missing = want - have;
        if held.is_some() {
            changes.held_until = held;
            missing = missing.saturating_sub(count(finished.iter()));
        }
        let taken: BTreeSet<PodIndex> = kept.keys().copied().collect();
        changes.create = lowest_free(&taken, missing);
    }
    changes
}

/// Sort key of scale-in: the smallest goes first.
///
/// Not bound before bound, `Pending` < `Unknown` < `Running`, not ready before ready, old template before new, pods that
/// only follow the floor before floor pods, newest first, highest index first.
#[must_use]
pub fn victim_order(pod: &Pod, target: &TemplateHash) -> impl Ord + use<> {
    (
        pod.scheduled,
        pod.phase,
        pod.ready,
        pod.hash == *target,
        pod.lane.is_some_and(|lane| lane.floor),
        Reverse(pod.created),
        Reverse(pod.index),
        pod.uid.clone(),
    )
}

fn lowest_free(taken: &BTreeSet<PodIndex>, missing: u32) -> Vec<PodIndex> {
    (0..)
        .filter(|index| !taken.contains(index))
        .take(usize::try_from(missing).unwrap_or(usize::MAX))
        .collect()
}

#[cfg(test)]
pub(crate) mod fixtures {
    use super::*;
    use crate::observed::Phase;

    pub(crate) fn now() -> Timestamp {
        Timestamp::from_second(1_800_000_000).unwrap()
    }

    /// A bound, running, ready pod of template `new`.
    pub(crate) fn pod(uid: &str, index: u32) -> Pod {
        Pod {
            uid: PodUid::new(uid),
            index: Some(index),
            phase: Phase::Running,
            terminating: false,
            scheduled: true,
            gated: false,
            ready: true,
            started_unready: false,
            crashed: false,
            hash: TemplateHash::recorded("new"),
            created: Timestamp::from_second(1_700_000_000).unwrap(),
            lane: None,
        }
    }

    pub(crate) fn pending(uid: &str, index: u32) -> Pod {
        Pod {
            phase: Phase::Pending,
            scheduled: false,
            ready: false,
            ..pod(uid, index)
        }
    }

    pub(crate) fn clique(pods: Vec<Pod>) -> Clique {
        Clique {
            replicas: count(pods.iter()),
            hash: TemplateHash::recorded("new"),
            terminating: false,
            hold_until: None,
            pods,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::fixtures::*;
    use super::*;
    use crate::observed::Phase;

    fn target() -> TemplateHash {
        TemplateHash::recorded("new")
    }

    fn deleted(changes: &Changes) -> Vec<&str> {
        changes
            .delete
            .iter()
            .map(|removal| removal.pod.as_str())
            .collect()
    }

    #[test]
    fn scale_in_takes_the_least_useful_pod_first() {
        let older = Timestamp::from_second(1_600_000_000).unwrap();
        // From first victim to last survivor; every pair differs in one criterion.
        let ranking = vec![
            pending("not-bound", 6),
            Pod {
                scheduled: true,
                ..pending("bound-pending", 5)
            },
            Pod {
                phase: Phase::Unknown,
                ready: false,
                ..pod("node-silent", 4)
            },
            Pod {
                ready: false,
                ..pod("not-ready", 3)
            },
            Pod {
                hash: TemplateHash::recorded("old"),
                ..pod("old-template", 2)
            },
            pod("young", 1),
            Pod {
                created: older,
                ..pod("veteran", 0)
            },
        ];
        for survivors in 0..ranking.len() {
            let mut shuffled = ranking.clone();
            shuffled.rotate_left(3);
            let changes = plan(
                &clique(shuffled),
                u32::try_from(survivors).unwrap(),
                &target(),
                now(),
            );
            let expected: Vec<_> = ranking[..ranking.len() - survivors]
                .iter()
                .map(|pod| pod.uid.as_str())
                .collect();
            assert_eq!(deleted(&changes), expected);
            assert_eq!(changes.create, []);
        }
    }

    #[test]
    fn a_terminating_pod_is_replaced_at_once_at_the_same_index() {
        let mut pods = vec![pod("a", 0), pod("b", 1), pod("c", 2)];
        pods[1].terminating = true;
        let changes = plan(&clique(pods), 3, &target(), now());
        assert_eq!((changes.create, changes.delete), (vec![1], vec![]));
    }

    #[test]
    fn terminating_pods_never_cost_a_healthy_one() {
        let mut pods = vec![pod("a", 0), pod("b", 1), pod("c", 2)];
        pods[0].terminating = true;
        let changes = plan(&clique(pods), 2, &target(), now());
        assert_eq!(changes, Changes::default());
    }

    #[test]
    fn finished_pods_are_deleted_and_replaced_at_their_index() {
        for phase in [Phase::Failed, Phase::Succeeded] {
            let mut pods = vec![pod("a", 0), pod("b", 1)];
            pods[0].phase = phase;
            let changes = plan(&clique(pods), 2, &target(), now());
            assert_eq!(deleted(&changes), ["a"]);
            assert_eq!(changes.create, [0]);
        }
    }

    #[test]
    fn a_pod_that_ends_again_and_again_is_replaced_later() {
        let mut pods = vec![pod("a", 0), pod("b", 1)];
        pods[0].phase = Phase::Failed;
        let later = now() + jiff::SignedDuration::from_secs(8);
        let mut observed = clique(pods);
        observed.hold_until = Some(later);
        let changes = plan(&observed, 3, &target(), now());
        // The pod that never existed is not punished.
        assert_eq!(changes.create, [0]);
        assert_eq!(changes.delete, []);
        assert_eq!(changes.held_until, Some(later));
        assert_eq!(plan(&observed, 3, &target(), later).create, [0, 2]);
    }

    #[test]
    fn of_two_pods_with_one_index_the_younger_goes() {
        let mut pods = vec![pod("young", 0), pod("old", 0)];
        pods[1].created = Timestamp::from_second(1_600_000_000).unwrap();
        let changes = plan(&clique(pods), 2, &target(), now());
        assert_eq!(deleted(&changes), ["young"]);
        assert_eq!(changes.create, [1]);
    }

    #[test]
    fn new_pods_fill_holes_first() {
        let changes = plan(&clique(vec![pod("b", 1), pod("d", 3)]), 5, &target(), now());
        assert_eq!(changes.create, [0, 2, 4]);
    }

    #[test]
    fn nothing_changes_when_nothing_is_missing() {
        let observed = clique(vec![pod("b", 1), pod("d", 3)]);
        assert_eq!(plan(&observed, 2, &target(), now()), Changes::default());
    }
}
