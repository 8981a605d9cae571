//! What a PodCliqueSet must keep to. Object in, errors out: all of them, not only the first.
//!
//! Which rule lives where:
//!
//! - **Schema and CEL** (`operator/api`), on every path and without the operator: types, required fields, `spec.replicas` ≥ 0,
//!   `minAvailable` ≥ 1, a group's `replicas` ≥ 1, at least one clique and one member, unique clique names, unique container, volume
//!   and variable names, start-up and update types, the form of durations and `terminationDelay` > 0, `maxReplicas` ≥ `minReplicas`,
//!   the shape of topology constraints, the deprecated `packDomain` in new objects. The API server checks them after the defaulting
//!   webhook and before the validating one, so they hold when the rules here look. They are not repeated.
//! - **[`plannable`]**, here: what planning cannot do without. The controllers ask it too, for sets that came into the cluster without
//!   admission; what it lets through, the planner's own types take (a property test looks for gaps).
//! - **[`check`]**, here: the above and everything else that one object alone shows to be wrong.
//! - **[`update`]**, here: what may not change.
//! - **[`check_new`]**, here: what new sets have to keep to beside that, as far as it depends on the cluster: whether their
//!   ClusterTopologyBinding exists and has the levels they name, whether MNNVL is on.
//! - **Nowhere**: whether a PriorityClass or a ResourceClaimTemplate exists. A refusal would depend on the order in which files
//!   are applied; the operator's conditions say it.
//!
//! Stricter than upstream: names are DNS labels (they become host names, which hold no dots), an autoscaler's metrics are looked at
//! (else the server refuses it later, and nothing of the set is ever created), derived names may not meet or grow too long.
//! Kinder than upstream: `minReplicas: 0` where the autoscaler can wake from it, and `restartPolicy` other than Always without a
//! warning, because it is obeyed.

pub(crate) mod backend;
mod claims;
mod metadata;
mod names;
mod pods;
mod scaling;
mod start;
pub(crate) mod topology;
pub(crate) mod update;

use std::collections::BTreeMap;

use coppice_operator_api::pod_clique_set::{CliqueStartupType, PodCliqueTemplateSpec};
use coppice_operator_api::{PodCliqueSet, defaults};

use self::backend::Queue;
use self::topology::Binding;
use super::field::FieldError;

/// What keeps the set from being planned.
pub(crate) fn plannable(set: &PodCliqueSet) -> Vec<FieldError> {
    let mut errors = Vec::new();
    // The schema says it too; but a number that is taken for another one scales a service away.
    if set.spec.replicas < 0 {
        let rule = "must be 0 or more";
        errors.push(FieldError::invalid(
            "spec.replicas",
            set.spec.replicas,
            rule,
        ));
    }
    names::check(set, &mut errors);
    for (position, clique) in set.spec.template.cliques.iter().enumerate() {
        let (replicas, minimum) = (
            clique.spec.template_replicas(),
            clique.spec.effective_min_available(),
        );
        scaling::minimum(
            &format!("{}.spec", clique_path(position)),
            minimum,
            replicas,
            &mut errors,
        );
    }
    for (position, group) in set.spec.template.scaling_groups().iter().enumerate() {
        let (replicas, minimum) = (group.template_replicas(), group.effective_min_available());
        scaling::minimum(&group_path(position), minimum, replicas, &mut errors);
    }
    members(set, &mut errors);
    start::check(set, &mut errors);
    errors
}

/// Everything that is wrong with the set.
pub(crate) fn check(set: &PodCliqueSet, around: &Around) -> Vec<FieldError> {
    let mut errors = plannable(set);
    names::check_lengths(set, &mut errors);
    roles(set, &mut errors);
    backend::check(set, around, &mut errors);
    for (position, clique) in set.spec.template.cliques.iter().enumerate() {
        let path = clique_path(position);
        metadata::labels(
            &format!("{path}.labels"),
            clique.labels.as_ref(),
            &mut errors,
        );
        metadata::annotations(
            &format!("{path}.annotations"),
            clique.annotations.as_ref(),
            &mut errors,
        );
        pods::check(
            &format!("{path}.spec.podSpec"),
            &clique.spec.pod_spec,
            &mut errors,
        );
    }
    for (position, group) in set.spec.template.scaling_groups().iter().enumerate() {
        let path = format!("{}.annotations", group_path(position));
        metadata::annotations(&path, group.annotations.as_ref(), &mut errors);
    }
    scaling::check(set, &mut errors);
    claims::check(set, &mut errors);
    errors
}

/// What the rules know beside the set.
#[derive(Clone, Debug, Default)]
pub(crate) struct Around {
    /// ComputeDomains are made.
    pub(crate) auto_mnnvl: bool,
    /// The ClusterTopologyBinding that the set names.
    pub(crate) binding: Binding,
    /// The scheduler that gangs are sent to by a backend of its own; absent: the stock one, or whichever a set names.
    pub(crate) scheduler: Option<&'static str>,
    /// The Queue of the Volcano scheduler that the set comes to.
    pub(crate) queue: Queue,
}

/// Rules for new sets alone, beside [`check`].
pub(crate) fn check_new(set: &PodCliqueSet, around: &Around) -> Vec<FieldError> {
    let mut errors = Vec::new();
    metadata::mnnvl(set, around.auto_mnnvl, &mut errors);
    errors.extend(check_topology(set, around));
    errors
}

/// What may not change, beside [`update::check`], as far as it depends on who places gangs.
pub(crate) fn check_queue(
    old: &PodCliqueSet,
    new: &PodCliqueSet,
    around: &Around,
) -> Vec<FieldError> {
    let mut errors = Vec::new();
    backend::check_update(old, new, around, &mut errors);
    errors
}

/// The rules about constraints among those for new sets.
pub(crate) fn check_topology(set: &PodCliqueSet, around: &Around) -> Vec<FieldError> {
    let mut errors = Vec::new();
    topology::check(set, &around.binding, &mut errors);
    errors
}

/// What is accepted and has no effect.
pub(crate) fn warnings(set: &PodCliqueSet, around: &Around) -> Vec<String> {
    let template = &set.spec.template;
    let mut warnings = topology::warnings(set, &around.binding);
    if template.startup_type != CliqueStartupType::Explicit {
        let positions = template.cliques.iter().enumerate();
        let idle = positions
            .filter(|(_, clique)| clique.spec.starts_after.iter().flatten().next().is_some());
        warnings.extend(idle.map(|(position, _)| {
            format!(
                "{}.spec.startsAfter has no effect unless cliqueStartupType is CliqueStartupTypeExplicit",
                clique_path(position)
            )
        }));
    }
    warnings
}

/// Where in the template each clique stands, by its name.
fn positions(cliques: &[PodCliqueTemplateSpec]) -> BTreeMap<&str, usize> {
    cliques
        .iter()
        .enumerate()
        .map(|(position, clique)| (clique.name.as_str(), position))
        .collect()
}

fn members(set: &PodCliqueSet, errors: &mut Vec<FieldError>) {
    let template = &set.spec.template;
    let known = positions(&template.cliques);
    let mut taken: BTreeMap<&str, &str> = BTreeMap::new();
    for (position, group) in template.scaling_groups().iter().enumerate() {
        for (member, name) in group.clique_names.iter().enumerate() {
            let field = format!("{}.cliqueNames[{member}]", group_path(position));
            if !known.contains_key(name.as_str()) {
                let rule = "names no clique of the template: name one of spec.template.cliques";
                errors.push(FieldError::not_found(field, name, rule));
                continue;
            }
            match taken.insert(name, &group.name) {
                None => {}
                Some(first) if first == group.name => {
                    let rule = "is listed twice by this scaling group: list it once";
                    errors.push(FieldError::duplicate(field, name, rule));
                }
                Some(first) => {
                    let rule = format!(
                        "is a member of scaling group {first} already: a clique is in at most one scaling group"
                    );
                    errors.push(FieldError::duplicate(field, name, rule));
                }
            }
        }
    }
}

/// A role that is left out counts as the empty one, so at most one clique may leave it out.
fn roles(set: &PodCliqueSet, errors: &mut Vec<FieldError>) {
    let mut taken: BTreeMap<&str, &str> = BTreeMap::new();
    for (position, clique) in set.spec.template.cliques.iter().enumerate() {
        let role = clique.spec.role_name.as_deref().unwrap_or_default();
        let Some(first) = taken.insert(role, &clique.name) else {
            continue;
        };
        let field = format!("{}.spec.roleName", clique_path(position));
        errors.push(if role.is_empty() {
            let rule = format!(
                "clique {first} has no roleName either, and at most one may leave it out: write one"
            );
            FieldError::required(field, rule)
        } else {
            let rule =
                format!("is the role of clique {first} already: each clique has a role of its own");
            FieldError::duplicate(field, role, rule)
        });
    }
}

/// The scheduler that the pods of a clique go to.
fn scheduler(clique: &PodCliqueTemplateSpec) -> &str {
    let named = clique.spec.pod_spec.scheduler_name.as_deref();
    named
        .filter(|name| !name.is_empty())
        .unwrap_or(defaults::SCHEDULER_NAME)
}

fn clique_path(position: usize) -> String {
    format!("spec.template.cliques[{position}]")
}

fn group_path(position: usize) -> String {
    format!("spec.template.podCliqueScalingGroups[{position}]")
}

#[cfg(test)]
mod tests;
