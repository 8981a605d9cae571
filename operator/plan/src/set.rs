//! One PodCliqueSet: which replicas exist, and which one may change.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::hash::TemplateHash;
use crate::ids::ReplicaIndex;
use crate::status::summary::{Share, Summary};
use crate::status::{Look, Progress, progress};
use crate::template::{SetTemplate, Strategy};

/// What the set's status said before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Before {
    /// The last update.
    pub progress: Option<Progress>,
    /// The digest the set was going to.
    pub current: Option<TemplateHash>,
    /// The replica that was being updated, and since when.
    pub updating: Option<(ReplicaIndex, Timestamp)>,
}

/// What should be, for the set as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Replicas `0..replicas` should exist.
    pub replicas: u32,
    /// Replicas that exist and should not, ascending.
    pub remove: Vec<ReplicaIndex>,
    /// The one replica whose pods may change to a new template now, and since when.
    pub updating: Option<(ReplicaIndex, Timestamp)>,
    /// The set's counts.
    pub status: SetStatus,
}

/// Counts over all replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetStatus {
    /// Replicas that should exist.
    pub replicas: u32,
    /// Of these: available.
    pub available: u32,
    /// Of these: available in the present template.
    pub updated: u32,
    /// Standalone cliques in the present template.
    pub cliques: Share,
    /// Groups in the present template.
    pub groups: Share,
    /// The update that runs, or the last one.
    pub progress: Option<Progress>,
}

/// Plans the set. `summaries` holds every replica of which something exists; one that has not looked at the template yet
/// counts as old.
///
/// Under [`Strategy::RollingRecreate`] one replica at a time changes; it keeps its turn until it is available in the new
/// template. Next come replicas with nothing bound (they lose nothing), then those in breach, then by index.
#[must_use]
pub fn plan(
    template: &SetTemplate,
    replicas: u32,
    summaries: &BTreeMap<ReplicaIndex, Summary>,
    before: &Before,
    now: Timestamp,
) -> Plan {
    let known: BTreeMap<ReplicaIndex, Summary> = summaries
        .range(..replicas)
        .map(|(index, summary)| (*index, summary.under(template)))
        .collect();
    let updating = updating(template, &known, before, now);
    // Those that have not looked at the template yet are neither old nor new.
    let all_looked = known.values().all(|summary| summary.is_of(template));
    let has_old = known
        .values()
        .any(|summary| summary.is_old && summary.is_of(template));
    let moved = |current: &TemplateHash| current != template.hash();
    let look = Look {
        set_hash: template.hash(),
        target: template.hash(),
        begins: before.current.as_ref().is_some_and(moved) || before.progress.is_some() && has_old,
        has_old,
        is_done: updating.is_none() && !has_old && all_looked,
        strategy: template.strategy(),
        now,
    };
    let add = |total: Share, part: Share| Share {
        done: total.done + part.done,
        total: total.total + part.total,
    };
    let number = |holds: fn(&Summary) -> bool| {
        crate::observed::count(known.values().filter(|summary| holds(summary)))
    };
    Plan {
        replicas,
        remove: summaries
            .range(replicas..)
            .map(|(index, _)| *index)
            .collect(),
        updating,
        status: SetStatus {
            replicas,
            available: number(|summary| summary.is_available),
            updated: number(|summary| summary.is_updated),
            cliques: known
                .values()
                .map(|summary| summary.cliques)
                .fold(Share::default(), add),
            groups: known
                .values()
                .map(|summary| summary.groups)
                .fold(Share::default(), add),
            progress: progress(before.progress.as_ref(), look),
        },
    }
}

fn updating(
    template: &SetTemplate,
    known: &BTreeMap<ReplicaIndex, Summary>,
    before: &Before,
    now: Timestamp,
) -> Option<(ReplicaIndex, Timestamp)> {
    if template.strategy() == Strategy::OnDelete {
        return None;
    }
    if let Some((index, since)) = before.updating {
        let is_done = known
            .get(&index)
            .is_none_or(|summary| summary.is_updated && !summary.is_old);
        if !is_done {
            return Some((index, since));
        }
    }
    // Who comes next can be said when all have looked at the template.
    if known.values().any(|summary| !summary.is_of(template)) {
        return None;
    }
    let old = known.iter().filter(|(_, summary)| summary.is_old);
    let next =
        old.min_by_key(|(index, summary)| (summary.has_scheduled, !summary.is_breached, **index));
    next.map(|(index, _)| (*index, now))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pods::fixtures::now;
    use crate::template::Startup;
    use crate::template::fixtures::wl2;

    fn summary(is_old: bool) -> Summary {
        Summary {
            template: Some(wl2(Startup::AnyOrder).hash().clone()),
            is_available: true,
            is_updated: !is_old,
            is_old,
            has_scheduled: true,
            ..Summary::default()
        }
    }

    #[test]
    fn replicas_above_the_number_are_removed() {
        let summaries = [
            (0, summary(false)),
            (2, summary(false)),
            (3, summary(false)),
        ]
        .into();
        let plan = plan(
            &wl2(Startup::AnyOrder),
            2,
            &summaries,
            &Before::default(),
            now(),
        );
        assert_eq!(
            (plan.remove, plan.updating, plan.status.available),
            (vec![2, 3], None, 1)
        );
    }

    #[test]
    fn one_replica_at_a_time_idle_and_broken_ones_first() {
        let template = wl2(Startup::AnyOrder);
        let mut summaries: BTreeMap<_, _> = (0..4).map(|index| (index, summary(true))).collect();
        summaries.get_mut(&3).unwrap().has_scheduled = false;
        summaries.get_mut(&2).unwrap().is_breached = true;
        let mut before = Before::default();
        let mut turns = Vec::new();
        while let Some((index, since)) = plan(&template, 4, &summaries, &before, now()).updating {
            turns.push(index);
            before.updating = Some((index, since));
            // Half-way: no pod is old any more, but not all are ready.
            summaries.insert(
                index,
                Summary {
                    is_available: false,
                    is_updated: false,
                    ..summary(false)
                },
            );
            assert_eq!(
                plan(&template, 4, &summaries, &before, now()).updating,
                Some((index, since))
            );
            summaries.insert(index, summary(false));
        }
        assert_eq!(turns, [3, 2, 0, 1]);
    }

    #[test]
    fn nobody_s_turn_comes_and_no_update_ends_before_all_have_looked_at_the_template() {
        let template = wl2(Startup::AnyOrder);
        let unaware = Summary {
            template: Some(TemplateHash::of("earlier")),
            cliques: Share { done: 1, total: 1 },
            ..summary(false)
        };
        let mut summaries: BTreeMap<_, _> = [(0, unaware), (1, summary(true))].into();
        let mut before = Before {
            current: Some(TemplateHash::of("earlier")),
            ..Before::default()
        };
        let begun = plan(&template, 2, &summaries, &before, now());
        assert_eq!((begun.updating, begun.status.updated), (None, 0));
        assert_eq!(begun.status.cliques, Share { done: 0, total: 1 });
        before.current = Some(template.hash().clone());
        before.progress = begun.status.progress;
        summaries.insert(1, summary(false));
        let plan_now = |summaries: &BTreeMap<_, _>, before: &Before| {
            plan(&template, 2, summaries, before, now())
        };
        assert!(
            plan_now(&summaries, &before)
                .status
                .progress
                .unwrap()
                .runs()
        );
        summaries.insert(0, summary(true));
        assert_eq!(plan_now(&summaries, &before).updating, Some((0, now())));
        summaries.insert(0, summary(false));
        assert!(
            !plan_now(&summaries, &before)
                .status
                .progress
                .unwrap()
                .runs()
        );
    }

    #[test]
    fn an_operator_that_starts_takes_an_update_that_is_over_for_what_it_is() {
        let template = wl2(Startup::AnyOrder);
        let over = Progress {
            started: now(),
            ended: Some(now()),
            set_hash: template.hash().clone(),
            template_hash: template.hash().clone(),
        };
        let before = Before {
            progress: Some(over.clone()),
            current: Some(template.hash().clone()),
            updating: None,
        };
        // Replicas have said nothing yet.
        let summaries = [(0, Summary::default()), (1, summary(false))].into();
        let plan = plan(&template, 2, &summaries, &before, now());
        assert_eq!((plan.status.progress, plan.updating), (Some(over), None));
    }

    #[test]
    fn an_update_that_is_over_when_it_is_first_seen_ends_in_that_look() {
        let template = wl2(Startup::AnyOrder);
        let before = Before {
            current: Some(TemplateHash::of("earlier")),
            ..Before::default()
        };
        let plan = plan(&template, 1, &[(0, summary(false))].into(), &before, now());
        assert!(!plan.status.progress.unwrap().runs());
    }

    #[test]
    fn progress_begins_with_a_new_digest_and_ends_with_the_last_replica() {
        let template = wl2(Startup::AnyOrder);
        let mut summaries: BTreeMap<_, _> = [(0, summary(true))].into();
        let mut before = Before::default();
        assert_eq!(
            plan(&template, 1, &summaries, &before, now())
                .status
                .progress,
            None
        );
        before.current = Some(TemplateHash::of("earlier"));
        let begun = plan(&template, 1, &summaries, &before, now());
        assert!(begun.status.progress.as_ref().unwrap().runs());
        before.current = Some(template.hash().clone());
        before.progress = begun.status.progress;
        before.updating = begun.updating;
        summaries.insert(0, summary(false));
        assert!(
            !plan(&template, 1, &summaries, &before, now())
                .status
                .progress
                .unwrap()
                .runs()
        );
    }
}
