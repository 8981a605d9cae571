//! Status of one PodCliqueScalingGroup.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::clique::{CliqueStatus, Wanted};
use super::{Look, Progress, Truth, Verdict, progress};
use crate::hash::TemplateHash;
use crate::ids::{CliqueId, GroupIndex};
use crate::observed::count;
use crate::template::{GroupTemplate, SetTemplate};

/// Why a group is, or is not, in breach of its minimum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BreachReason {
    /// An update is running.
    UpdateInProgress,
    /// Fewer healthy replicas than the minimum.
    TooFewReplicas,
    /// Enough healthy replicas.
    Sufficient,
}

/// What the status said before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Before {
    /// The last update.
    pub progress: Option<Progress>,
    /// The set's digest all members had reached.
    pub current_set: Option<TemplateHash>,
}

/// Status of one PodCliqueScalingGroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupStatus {
    /// Replicas that should run.
    pub replicas: u32,
    /// Of these: all members have their minimum bound.
    pub scheduled: u32,
    /// Of these: all members have their minimum ready.
    pub available: u32,
    /// Of these: all members have reached the set's present template.
    pub updated: u32,
    /// The minimum while it is not idle, else 0.
    pub minimum: u32,
    /// Breach of the minimum.
    pub breach: Verdict<BreachReason>,
    /// The minimum is available now; once true the fact is kept for good.
    pub is_healthy: bool,
    /// Member cliques that have reached the set's present template.
    pub members_updated: u32,
    /// Member cliques that should exist.
    pub members: u32,
    /// The update that runs, or the last one.
    pub progress: Option<Progress>,
    /// The set's digest all members have reached.
    pub current_set: Option<TemplateHash>,
}

impl GroupStatus {
    /// Every member has reached the set's present template.
    #[must_use]
    pub fn is_converged(&self, set_hash: &TemplateHash) -> bool {
        self.current_set.as_ref() == Some(set_hash)
    }
}

/// Counts and judges. `cliques` holds the statuses of the member cliques that exist.
#[must_use]
pub fn status(
    template: &SetTemplate,
    group: &GroupTemplate,
    effective: u32,
    cliques: &BTreeMap<CliqueId, CliqueStatus>,
    before: &Before,
    now: Timestamp,
) -> GroupStatus {
    let minimum = if effective == 0 {
        0
    } else {
        group.min_available.get()
    };
    let mut tally = Tally::default();
    for index in 0..effective {
        tally.add(template, group, index, cliques);
    }
    let members = effective * count(group.cliques.iter());
    let all_new = tally.members_updated == members;
    let look = Look {
        set_hash: template.hash(),
        target: template.hash(),
        // A first template is no update, and another clique's change is none of this group.
        begins: before.current_set.is_some() && tally.has_old,
        has_old: tally.has_old,
        is_done: all_new,
        strategy: template.strategy(),
        now,
    };
    let progress = progress(before.progress.as_ref(), look);
    let runs = progress.as_ref().is_some_and(Progress::runs);
    let current_set = if all_new && !runs {
        Some(template.hash().clone())
    } else {
        before.current_set.clone()
    };
    GroupStatus {
        replicas: effective,
        scheduled: tally.scheduled,
        available: tally.available,
        updated: tally.updated,
        minimum,
        breach: breach(tally.healthy, minimum, runs),
        is_healthy: minimum > 0 && tally.available >= minimum,
        members_updated: tally.members_updated,
        members,
        progress,
        current_set,
    }
}

#[derive(Default)]
struct Tally {
    scheduled: u32,
    available: u32,
    updated: u32,
    healthy: u32,
    members_updated: u32,
    has_old: bool,
}

impl Tally {
    fn add(
        &mut self,
        template: &SetTemplate,
        group: &GroupTemplate,
        replica: GroupIndex,
        cliques: &BTreeMap<CliqueId, CliqueStatus>,
    ) {
        let (mut scheduled, mut available, mut updated, mut healthy) = (true, true, true, true);
        for member in template.members(group) {
            let id = CliqueId::Member {
                group: group.name.clone(),
                replica,
                clique: member.name.clone(),
            };
            let Some(clique) = cliques.get(&id) else {
                (scheduled, available, updated, healthy) = (false, false, false, false);
                continue;
            };
            let converged = clique.is_converged(Wanted {
                template: member,
                set_hash: template.hash(),
                strategy: template.strategy(),
                effective: clique.effective,
            });
            self.members_updated += u32::from(converged);
            self.has_old |= clique
                .current
                .as_ref()
                .is_some_and(|current| *current != member.hash)
                || clique.progress.as_ref().is_some_and(Progress::runs);
            scheduled &= clique.is_scheduled;
            available &= clique.is_scheduled && clique.ready >= clique.minimum;
            updated &= converged;
            healthy &= clique.breach.is != Truth::True;
        }
        self.scheduled += u32::from(scheduled);
        self.available += u32::from(available);
        self.updated += u32::from(available && updated);
        self.healthy += u32::from(healthy);
    }
}

fn breach(healthy: u32, minimum: u32, update_runs: bool) -> Verdict<BreachReason> {
    let (is, reason, message) = if update_runs {
        (
            Truth::Unknown,
            BreachReason::UpdateInProgress,
            "an update is running".to_owned(),
        )
    } else if healthy < minimum {
        (
            Truth::True,
            BreachReason::TooFewReplicas,
            format!("{healthy} of at least {minimum} replicas are healthy"),
        )
    } else if minimum == 0 {
        (
            Truth::False,
            BreachReason::Sufficient,
            "idle: no replicas are wanted".to_owned(),
        )
    } else {
        (
            Truth::False,
            BreachReason::Sufficient,
            format!("at least {minimum} replicas are healthy"),
        )
    };
    Verdict {
        is,
        reason,
        message,
    }
}
