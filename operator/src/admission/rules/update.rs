//! What may not change.
//!
//! Free to change: replicas of every level, the update strategy, `terminationDelay`, `priorityClassName`, the headless Service,
//! limits and metrics of autoscalers, labels, annotations, and pod specs but for `schedulerName`. Everything that decides which
//! objects exist, which of them form a gang and who waits for whom stays: running gangs were placed by it.
//!
//! Compared is what is meant: an absent list and an empty one, `""` and the default scheduler, `minAvailable` left out and the number
//! that it stands for are the same.

use std::collections::{BTreeMap, BTreeSet};

use coppice_operator_api::PodCliqueSet;
use coppice_operator_api::pod_clique_set::{
    CliqueStartupType, PodCliqueScalingGroupConfig, PodCliqueTemplateSpec,
};
use coppice_operator_api::topology::TopologyConstraint;
use serde::Serialize;

use super::metadata::mnnvl_groups;
use super::{clique_path, group_path, scheduler};
use crate::admission::field::{FieldError, shown};

const INSTEAD: &str = "create another PodCliqueSet for that";

/// Everything in `new` that `old` forbids.
pub(crate) fn check(old: &PodCliqueSet, new: &PodCliqueSet) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let (before, after) = (&old.spec.template, &new.spec.template);
    same(
        "spec.template.cliqueStartupType",
        &before.startup_type,
        &after.startup_type,
        &mut errors,
    );
    same_list(
        "spec.template.resourceClaimTemplates",
        before.resource_claim_templates.as_deref(),
        after.resource_claim_templates.as_deref(),
        &mut errors,
    );
    same_list(
        "spec.template.resourceSharing",
        before.resource_sharing.as_deref(),
        after.resource_sharing.as_deref(),
        &mut errors,
    );
    same_place(
        "spec.template.topologyConstraint",
        before.topology_constraint.as_ref(),
        after.topology_constraint.as_ref(),
        &mut errors,
    );
    cliques(old, new, &mut errors);
    groups(old, new, &mut errors);
    mnnvl(old, new, &mut errors);
    errors
}

fn cliques(old: &PodCliqueSet, new: &PodCliqueSet, errors: &mut Vec<FieldError>) {
    let (before, after) = (&old.spec.template.cliques, &new.spec.template.cliques);
    let name = |clique: &PodCliqueTemplateSpec| clique.name.clone();
    let list = Names {
        path: "spec.template.cliques",
        entry: clique_path,
        what: "clique",
    };
    if list.same(before.iter().map(name), after.iter().map(name), errors)
        && new.spec.template.startup_type != CliqueStartupType::AnyOrder
        && !before.iter().map(name).eq(after.iter().map(name))
    {
        let order: Vec<String> = after.iter().map(name).collect();
        let stored: Vec<String> = before.iter().map(name).collect();
        let rule = format!(
            "the order of cliques cannot change where it is the start order; it was {}",
            shown(stored)
        );
        errors.push(FieldError::invalid("spec.template.cliques", order, rule));
    }
    let stored: BTreeMap<&str, &PodCliqueTemplateSpec> = before
        .iter()
        .map(|clique| (clique.name.as_str(), clique))
        .collect();
    for (position, clique) in after.iter().enumerate() {
        if let Some(stored) = stored.get(clique.name.as_str()) {
            same_clique(&clique_path(position), stored, clique, errors);
        }
    }
}

fn same_clique(
    path: &str,
    old: &PodCliqueTemplateSpec,
    new: &PodCliqueTemplateSpec,
    errors: &mut Vec<FieldError>,
) {
    let role = |clique: &PodCliqueTemplateSpec| clique.spec.role_name.clone().unwrap_or_default();
    same(
        &format!("{path}.spec.roleName"),
        &role(old),
        &role(new),
        errors,
    );
    same(
        &format!("{path}.spec.minAvailable"),
        &old.spec.effective_min_available(),
        &new.spec.effective_min_available(),
        errors,
    );
    let parents = |clique: &PodCliqueTemplateSpec| -> BTreeSet<String> {
        clique.spec.starts_after.iter().flatten().cloned().collect()
    };
    same(
        &format!("{path}.spec.startsAfter"),
        &parents(old),
        &parents(new),
        errors,
    );
    same(
        &format!("{path}.spec.podSpec.schedulerName"),
        &scheduler(old),
        &scheduler(new),
        errors,
    );
    same_list(
        &format!("{path}.resourceSharing"),
        old.resource_sharing.as_deref(),
        new.resource_sharing.as_deref(),
        errors,
    );
    same_place(
        &format!("{path}.topologyConstraint"),
        old.topology_constraint.as_ref(),
        new.topology_constraint.as_ref(),
        errors,
    );
}

fn groups(old: &PodCliqueSet, new: &PodCliqueSet, errors: &mut Vec<FieldError>) {
    let (before, after) = (
        old.spec.template.scaling_groups(),
        new.spec.template.scaling_groups(),
    );
    let name = |group: &PodCliqueScalingGroupConfig| group.name.clone();
    let list = Names {
        path: "spec.template.podCliqueScalingGroups",
        entry: group_path,
        what: "scaling group",
    };
    list.same(before.iter().map(name), after.iter().map(name), errors);
    let stored: BTreeMap<&str, &PodCliqueScalingGroupConfig> = before
        .iter()
        .map(|group| (group.name.as_str(), group))
        .collect();
    for (position, new) in after.iter().enumerate() {
        let Some(old) = stored.get(new.name.as_str()) else {
            continue;
        };
        let path = group_path(position);
        same(
            &format!("{path}.cliqueNames"),
            &old.clique_names,
            &new.clique_names,
            errors,
        );
        same(
            &format!("{path}.minAvailable"),
            &old.effective_min_available(),
            &new.effective_min_available(),
            errors,
        );
        same_list(
            &format!("{path}.resourceSharing"),
            old.resource_sharing.as_deref(),
            new.resource_sharing.as_deref(),
            errors,
        );
        same_place(
            &format!("{path}.topologyConstraint"),
            old.topology_constraint.as_ref(),
            new.topology_constraint.as_ref(),
            errors,
        );
    }
}

/// A list whose entries can neither come nor go.
struct Names {
    path: &'static str,
    entry: fn(usize) -> String,
    what: &'static str,
}

impl Names {
    /// Whether both have the same names, in whatever order.
    fn same(
        &self,
        old: impl Iterator<Item = String>,
        new: impl Iterator<Item = String>,
        errors: &mut Vec<FieldError>,
    ) -> bool {
        let count = errors.len();
        let Self { path, entry, what } = self;
        let mut gone: BTreeSet<String> = old.collect();
        let stored = gone.clone();
        for (position, name) in new.enumerate() {
            gone.remove(&name);
            if !stored.contains(&name) {
                let rule = format!("{what} {name} cannot be added or renamed: {INSTEAD}");
                errors.push(FieldError::forbidden(
                    format!("{}.name", entry(position)),
                    rule,
                ));
            }
        }
        for name in gone {
            let rule = format!("{what} {name} cannot be taken out or renamed: {INSTEAD}");
            errors.push(FieldError::forbidden(*path, rule));
        }
        errors.len() == count
    }
}

fn same<T: PartialEq + Serialize>(path: &str, old: &T, new: &T, errors: &mut Vec<FieldError>) {
    if old != new {
        let rule = format!("field is immutable and was {}: {INSTEAD}", shown(old));
        errors.push(FieldError::invalid(path, new, rule));
    }
}

fn same_list<T: PartialEq + Serialize>(
    path: &str,
    old: Option<&[T]>,
    new: Option<&[T]>,
    errors: &mut Vec<FieldError>,
) {
    let (old, new) = (old.unwrap_or_default(), new.unwrap_or_default());
    if old != new {
        let rule = format!("field is immutable: {INSTEAD}");
        errors.push(FieldError::invalid(path, new, rule));
    }
}

/// A constraint may move from the deprecated `packDomain` to `pack.required`, and a deprecated one may be given the name that it lacks.
fn same_place(
    path: &str,
    old: Option<&TopologyConstraint>,
    new: Option<&TopologyConstraint>,
    errors: &mut Vec<FieldError>,
) {
    let is_same = match (old, new) {
        (None, None) => true,
        (Some(old), Some(new)) => {
            let is_named_at_last = old.topology_name.is_none() && old.pack_domain.is_some();
            (old.topology_name == new.topology_name || is_named_at_last)
                && old.required_domain() == new.required_domain()
                && old.preferred_domain() == new.preferred_domain()
        }
        (None, Some(_)) | (Some(_), None) => false,
    };
    if !is_same {
        let rule = format!("the constraint cannot change while gangs are placed by it: {INSTEAD}");
        errors.push(FieldError::forbidden(path, rule));
    }
}

fn mnnvl(old: &PodCliqueSet, new: &PodCliqueSet, errors: &mut Vec<FieldError>) {
    let mut stored: BTreeMap<_, _> = mnnvl_groups(old)
        .into_iter()
        .map(|(path, place, value)| (place, (path, value)))
        .collect();
    for (path, place, value) in mnnvl_groups(new) {
        match stored.remove(&place) {
            None => errors.push(FieldError::forbidden(
                path,
                format!("cannot be added: {INSTEAD}"),
            )),
            Some((_, before)) => same(&path, &before, &value, errors),
        }
    }
    for (path, _) in stored.into_values() {
        errors.push(FieldError::forbidden(
            path,
            format!("cannot be taken out: {INSTEAD}"),
        ));
    }
}
