//! Status of one PodClique.

use jiff::Timestamp;

use super::{Look, Progress, Truth, Verdict, progress};
use crate::hash::TemplateHash;
use crate::observed::{Clique, count};
use crate::template::{CliqueTemplate, Strategy};

/// Why a clique is, or is not, in breach of its minimum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BreachReason {
    /// An update is running.
    UpdateInProgress,
    /// Fewer pods are bound than the minimum.
    ScheduledBelowMinimum,
    /// Bound pods that fail, or are up and not ready, leave fewer than the minimum.
    TooFewReady,
    /// Enough pods are ready or starting.
    Sufficient,
}

/// What the status said before; it carries what cannot be read off the pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Before {
    /// The last update.
    pub progress: Option<Progress>,
    /// The template all pods had reached.
    pub current: Option<TemplateHash>,
    /// The set's digest all pods had reached.
    pub current_set: Option<TemplateHash>,
}

/// The set's side of a clique's status.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// The clique in the set's template.
    pub template: &'a CliqueTemplate,
    /// Digest of the set's template.
    pub set_hash: &'a TemplateHash,
    /// How changes reach pods.
    pub strategy: Strategy,
    /// Pods that should run.
    pub effective: u32,
}

/// Status of one PodClique.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CliqueStatus {
    /// Active pods.
    pub replicas: u32,
    /// Of these: ready.
    pub ready: u32,
    /// Of these: bound to a node.
    pub scheduled: u32,
    /// Of these: held by a scheduling gate.
    pub gated: u32,
    /// Of these: made from the template the object holds.
    pub updated: u32,
    /// Pods that should run.
    pub effective: u32,
    /// The minimum while it is not idle, else 0.
    pub minimum: u32,
    /// The minimum is bound.
    pub is_scheduled: bool,
    /// Breach of the minimum.
    pub breach: Verdict<BreachReason>,
    /// The minimum is ready now; once true the fact is kept for good.
    pub is_healthy: bool,
    /// The update that runs, or the last one.
    pub progress: Option<Progress>,
    /// The template all pods have reached.
    pub current: Option<TemplateHash>,
    /// The set's digest all pods have reached.
    pub current_set: Option<TemplateHash>,
}

impl CliqueStatus {
    /// All its pods, and enough of them, are ready in the set's present template.
    #[must_use]
    pub fn is_converged(&self, wanted: Wanted<'_>) -> bool {
        self.current.as_ref() == Some(&wanted.template.hash)
            && self.current_set.as_ref() == Some(wanted.set_hash)
            && self.ready >= self.minimum
            && self.updated >= self.minimum
    }
}

/// Counts and judges.
#[must_use]
pub fn status(
    clique: &Clique,
    wanted: Wanted<'_>,
    before: &Before,
    now: Timestamp,
) -> CliqueStatus {
    let minimum = if wanted.effective == 0 {
        0
    } else {
        wanted.template.min_available.get()
    };
    let replicas = count(clique.active());
    let (scheduled, ready) = (clique.scheduled(), clique.ready());
    let updated = count(clique.active().filter(|pod| pod.hash == clique.hash));
    let is_new = clique.hash == wanted.template.hash;
    let all_new = updated == replicas;
    let progress = if is_new {
        let target = &wanted.template.hash;
        let look = Look {
            set_hash: wanted.set_hash,
            target,
            // A first template is no update, and neither is one that all pods have already.
            begins: before
                .current
                .as_ref()
                .is_some_and(|current| current != target || !all_new),
            has_old: !all_new,
            is_done: all_new && ready == replicas && replicas == wanted.effective,
            strategy: wanted.strategy,
            now,
        };
        progress(before.progress.as_ref(), look)
    } else {
        before.progress.clone()
    };
    let runs = progress.as_ref().is_some_and(Progress::runs);
    let (current, current_set) = if is_new && !runs && all_new {
        (Some(clique.hash.clone()), Some(wanted.set_hash.clone()))
    } else {
        (before.current.clone(), before.current_set.clone())
    };
    CliqueStatus {
        replicas,
        ready,
        scheduled,
        gated: count(clique.active().filter(|pod| pod.gated && !pod.scheduled)),
        updated,
        effective: wanted.effective,
        minimum,
        is_scheduled: scheduled >= minimum,
        breach: breach(clique, scheduled, minimum, runs),
        is_healthy: minimum > 0 && ready >= minimum,
        progress,
        current,
        current_set,
    }
}

/// A pod that is starting counts as fine; one that crashed, or is up and not ready, does not.
fn breach(
    clique: &Clique,
    scheduled: u32,
    minimum: u32,
    update_runs: bool,
) -> Verdict<BreachReason> {
    let failing = |pod: &&crate::observed::Pod| {
        pod.scheduled && !pod.ready && (pod.crashed || pod.started_unready)
    };
    let good = scheduled - count(clique.active().filter(failing)).min(scheduled);
    if update_runs {
        return Verdict {
            is: Truth::Unknown,
            reason: BreachReason::UpdateInProgress,
            message: "an update is running".to_owned(),
        };
    }
    if scheduled < minimum {
        return Verdict {
            is: Truth::True,
            reason: BreachReason::ScheduledBelowMinimum,
            message: format!("{scheduled} of at least {minimum} pods are bound to nodes"),
        };
    }
    if good < minimum {
        return Verdict {
            is: Truth::True,
            reason: BreachReason::TooFewReady,
            message: format!("{good} of at least {minimum} pods are ready or starting"),
        };
    }
    Verdict {
        is: Truth::False,
        reason: BreachReason::Sufficient,
        message: if minimum == 0 {
            "idle: no pods are wanted".to_owned()
        } else {
            format!("at least {minimum} pods are ready or starting")
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observed::Pod;
    use crate::pods::fixtures::{now, pending, pod};
    use crate::template::fixtures::clique as template;

    fn object(hash: &TemplateHash, pods: Vec<Pod>) -> Clique {
        Clique {
            hash: hash.clone(),
            ..crate::pods::fixtures::clique(pods)
        }
    }

    fn of(hash: &TemplateHash, pod: Pod) -> Pod {
        Pod {
            hash: hash.clone(),
            ..pod
        }
    }

    struct World {
        template: CliqueTemplate,
        set: TemplateHash,
        strategy: Strategy,
        before: Before,
    }

    impl World {
        fn new() -> Self {
            Self {
                template: template("a", 2, 2),
                set: TemplateHash::of("set-1"),
                strategy: Strategy::RollingRecreate,
                before: Before::default(),
            }
        }

        fn judge(&mut self, clique: &Clique, seconds: i64) -> CliqueStatus {
            let wanted = Wanted {
                template: &self.template,
                set_hash: &self.set,
                strategy: self.strategy,
                effective: 2,
            };
            let status = status(
                clique,
                wanted,
                &self.before,
                now() + jiff::SignedDuration::from_secs(seconds),
            );
            self.before = Before {
                progress: status.progress.clone(),
                current: status.current.clone(),
                current_set: status.current_set.clone(),
            };
            status
        }
    }

    #[test]
    fn pods_on_their_way_out_count_nowhere() {
        let mut world = World::new();
        let hash = world.template.hash.clone();
        let mut pods = vec![
            of(&hash, pod("x", 0)),
            of(&hash, pod("y", 1)),
            of(&hash, pending("z", 1)),
        ];
        pods[1].terminating = true;
        let status = world.judge(&object(&hash, pods), 0);
        assert_eq!(
            (
                status.replicas,
                status.ready,
                status.scheduled,
                status.updated
            ),
            (2, 1, 1, 2)
        );
        assert_eq!(status.breach.reason, BreachReason::ScheduledBelowMinimum);
        assert_eq!(
            status.breach.message,
            "1 of at least 2 pods are bound to nodes"
        );
    }

    #[test]
    fn starting_pods_are_fine_and_failing_ones_are_not() {
        let mut world = World::new();
        let hash = world.template.hash.clone();
        let starting = Pod {
            ready: false,
            ..of(&hash, pod("x", 0))
        };
        let mut pods = vec![starting.clone(), starting];
        let mut reason = |pods: &[Pod]| world.judge(&object(&hash, pods.to_vec()), 0).breach.reason;
        assert_eq!(reason(&pods), BreachReason::Sufficient);
        pods[0].started_unready = true;
        assert_eq!(reason(&pods), BreachReason::TooFewReady);
        pods[0].started_unready = false;
        pods[0].crashed = true;
        assert_eq!(reason(&pods), BreachReason::TooFewReady);
    }

    #[test]
    fn an_update_ends_when_every_wanted_pod_is_ready_in_the_new_template() {
        let mut world = World::new();
        let old = TemplateHash::of("old");
        world.template.hash = old.clone();
        let first = world.judge(
            &object(&old, vec![of(&old, pod("x", 0)), of(&old, pod("y", 1))]),
            0,
        );
        assert_eq!((first.progress, first.current.as_ref()), (None, Some(&old)));

        let new = TemplateHash::of("new");
        world.template.hash = new.clone();
        world.set = TemplateHash::of("set-2");
        let kept = world.judge(
            &object(&old, vec![of(&old, pod("x", 0)), of(&old, pod("y", 1))]),
            1,
        );
        assert_eq!((kept.progress, kept.current), (None, Some(old.clone())));

        let begun = world.judge(
            &object(&new, vec![of(&old, pod("x", 0)), of(&new, pending("z", 1))]),
            2,
        );
        assert!(begun.progress.as_ref().unwrap().runs());
        assert_eq!(begun.breach.is, Truth::Unknown);
        assert_eq!(begun.updated, 1);

        let starting = world.judge(
            &object(&new, vec![of(&new, pod("w", 0)), of(&new, pending("z", 1))]),
            3,
        );
        assert!(starting.progress.unwrap().runs());
        assert_eq!(starting.current, Some(old));

        let done = world.judge(
            &object(&new, vec![of(&new, pod("w", 0)), of(&new, pod("z", 1))]),
            4,
        );
        assert!(!done.progress.unwrap().runs());
        assert_eq!(
            (done.current, done.current_set),
            (Some(new), Some(TemplateHash::of("set-2")))
        );
    }

    #[test]
    fn an_update_whose_first_look_comes_when_all_is_done_ends_in_that_look() {
        let mut world = World::new();
        let (old, new) = (TemplateHash::of("old"), TemplateHash::of("new"));
        world.template.hash = old.clone();
        world.judge(
            &object(&old, vec![of(&old, pod("x", 0)), of(&old, pod("y", 1))]),
            0,
        );
        world.template.hash = new.clone();
        let done = world.judge(
            &object(&new, vec![of(&new, pod("w", 0)), of(&new, pod("z", 1))]),
            1,
        );
        assert!(!done.progress.unwrap().runs());
        assert_eq!(done.current, Some(new));
    }

    #[test]
    fn going_back_before_any_pod_changed_ends_the_update() {
        let mut world = World::new();
        let (old, new) = (TemplateHash::of("old"), TemplateHash::of("new"));
        let pods = vec![of(&old, pod("x", 0)), of(&old, pod("y", 1))];
        world.template.hash = old.clone();
        world.judge(&object(&old, pods.clone()), 0);
        world.template.hash = new.clone();
        let begun = world.judge(&object(&new, pods.clone()), 1);
        assert!(begun.progress.unwrap().runs());
        world.template.hash = old.clone();
        world.set = TemplateHash::of("set-3");
        let back = world.judge(&object(&old, pods), 2);
        assert!(!back.progress.unwrap().runs());
        assert_eq!(
            (back.current, back.current_set),
            (Some(old), Some(TemplateHash::of("set-3")))
        );
    }

    #[test]
    fn on_delete_updates_are_over_when_they_begin_and_reached_when_all_pods_are_new() {
        let mut world = World::new();
        world.strategy = Strategy::OnDelete;
        let (old, new) = (TemplateHash::of("old"), TemplateHash::of("new"));
        world.template.hash = old.clone();
        world.judge(
            &object(&old, vec![of(&old, pod("x", 0)), of(&old, pod("y", 1))]),
            0,
        );
        world.template.hash = new.clone();
        let status = world.judge(
            &object(&new, vec![of(&old, pod("x", 0)), of(&new, pod("z", 1))]),
            1,
        );
        assert!(!status.progress.unwrap().runs());
        assert_eq!((status.updated, status.current), (1, Some(old)));
        assert_eq!(status.breach.is, Truth::False);
    }

    #[test]
    fn an_update_ends_with_the_strategy_and_begins_anew_with_it() {
        let mut world = World::new();
        let (old, new) = (TemplateHash::of("old"), TemplateHash::of("new"));
        world.template.hash = old.clone();
        let pods = vec![of(&old, pod("x", 0)), of(&old, pod("y", 1))];
        world.judge(&object(&old, pods.clone()), 0);
        world.template.hash = new.clone();
        let runs = |status: CliqueStatus| status.progress.unwrap().runs();
        assert!(runs(world.judge(&object(&new, pods.clone()), 1)));
        world.strategy = Strategy::OnDelete;
        assert!(!runs(world.judge(&object(&new, pods.clone()), 2)));
        world.strategy = Strategy::RollingRecreate;
        assert!(runs(world.judge(&object(&new, pods), 3)));
    }

    #[test]
    fn another_cliques_change_only_moves_the_sets_digest() {
        let mut world = World::new();
        let hash = world.template.hash.clone();
        let clique = object(&hash, vec![of(&hash, pod("x", 0)), of(&hash, pod("y", 1))]);
        world.judge(&clique, 0);
        world.set = TemplateHash::of("set-2");
        let status = world.judge(&clique, 1);
        assert_eq!(
            (status.progress, status.current_set),
            (None, Some(TemplateHash::of("set-2")))
        );
    }
}
