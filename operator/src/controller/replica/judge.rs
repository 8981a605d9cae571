//! What everything inside one set replica is like: the planner's judgement of what is there and what the statuses said.

use std::collections::BTreeMap;

use coppice_operator_api::{PodCliqueScalingGroupStatus, PodCliqueStatus};
use coppice_operator_plan::hash::TemplateHash;
use coppice_operator_plan::ids::{CliqueId, GroupName};
use coppice_operator_plan::replica::Plan;
use coppice_operator_plan::status::Progress;
use coppice_operator_plan::status::clique::{self, CliqueStatus, Wanted};
use coppice_operator_plan::status::group::{self, GroupStatus};
use jiff::Timestamp;

use super::fetch::Fetched;

/// What everything in the replica is like now.
#[derive(Debug)]
pub(super) struct Judged {
    pub(super) cliques: BTreeMap<CliqueId, CliqueStatus>,
    pub(super) groups: BTreeMap<GroupName, GroupStatus>,
    pub(super) now: Timestamp,
}

pub(super) fn judge(fetched: &Fetched, planned: &Plan) -> Judged {
    let now = Timestamp::now();
    let cliques = judge_cliques(fetched, planned, now);
    let groups = judge_groups(fetched, planned, &cliques, now);
    Judged {
        cliques,
        groups,
        now,
    }
}

fn judge_cliques(
    fetched: &Fetched,
    planned: &Plan,
    now: Timestamp,
) -> BTreeMap<CliqueId, CliqueStatus> {
    let template = &fetched.set.template;
    let mut statuses = BTreeMap::new();
    for plan in &planned.cliques {
        let Some(observed) = fetched.observed.cliques.get(&plan.id) else {
            continue;
        };
        let Some(of_template) = template.clique(plan.id.template()) else {
            continue;
        };
        let record = fetched
            .entry
            .shelf
            .cliques
            .get(&*fetched.scope().clique(&plan.id));
        let before = record
            .map(|record| clique_before(&record.status))
            .unwrap_or_default();
        let wanted = Wanted {
            template: of_template,
            set_hash: template.hash(),
            strategy: template.strategy(),
            effective: plan.effective,
        };
        statuses.insert(
            plan.id.clone(),
            clique::status(observed, wanted, &before, now),
        );
    }
    statuses
}

fn clique_before(status: &PodCliqueStatus) -> clique::Before {
    let progress = status.update_progress.as_ref().map(|progress| Progress {
        started: progress
            .update_started_at
            .as_ref()
            .map_or(Timestamp::UNIX_EPOCH, |time| time.0),
        ended: progress.update_ended_at.as_ref().map(|time| time.0),
        set_hash: TemplateHash::recorded(&progress.pod_clique_set_generation_hash),
        template_hash: TemplateHash::recorded(&progress.pod_template_hash),
    });
    clique::Before {
        progress,
        current: status
            .current_pod_template_hash
            .as_deref()
            .map(TemplateHash::recorded),
        current_set: status
            .current_pod_clique_set_generation_hash
            .as_deref()
            .map(TemplateHash::recorded),
    }
}

fn judge_groups(
    fetched: &Fetched,
    planned: &Plan,
    cliques: &BTreeMap<CliqueId, CliqueStatus>,
    now: Timestamp,
) -> BTreeMap<GroupName, GroupStatus> {
    let template = &fetched.set.template;
    let mut statuses = BTreeMap::new();
    for plan in &planned.groups {
        let record = fetched
            .entry
            .shelf
            .groups
            .get(&*fetched.scope().group(&plan.name));
        let (Some(record), Some(group)) = (record, template.group(&plan.name)) else {
            continue;
        };
        let before = group_before(&record.status);
        statuses.insert(
            plan.name.clone(),
            group::status(template, group, plan.effective, cliques, &before, now),
        );
    }
    statuses
}

fn group_before(status: &PodCliqueScalingGroupStatus) -> group::Before {
    let progress = status.update_progress.as_ref().map(|progress| {
        let set_hash = TemplateHash::recorded(&progress.pod_clique_set_generation_hash);
        Progress {
            started: progress.update_started_at.0,
            ended: progress.update_ended_at.as_ref().map(|time| time.0),
            template_hash: set_hash.clone(),
            set_hash,
        }
    });
    let current_set = status
        .current_pod_clique_set_generation_hash
        .as_deref()
        .map(TemplateHash::recorded);
    group::Before {
        progress,
        current_set,
    }
}
