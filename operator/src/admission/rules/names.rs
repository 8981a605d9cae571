//! Names, and the names that are made from them.
//!
//! A PodClique is called `<set>-<i>-<clique>`, or `<set>-<i>-<group>-<k>-<clique>` inside a scaling group, and that becomes part of
//! pod names, host names and label values. So names are DNS labels, not the subdomains that upstream takes and fails with later,
//! no two may lead to the same object, and the longest must fit.

use std::collections::{BTreeMap, BTreeSet};

use coppice_operator_api::pod_clique_set::{PodCliqueScalingGroupConfig, PodCliqueTemplateSpec};
use coppice_operator_api::{PodCliqueSet, defaults};
use coppice_operator_plan::ids::{CliqueName, GroupName};

use super::{clique_path, group_path};
use crate::admission::field::FieldError;

/// Longest name of a PodClique: the server keeps 58 characters before the five it adds to a pod's name, one of them a hyphen.
const LONGEST_CLIQUE: usize = 57;
/// Longest host name, and longest value of a label.
pub(super) const LONGEST_LABEL: usize = 63;

/// What planning depends on.
pub(super) fn check(set: &PodCliqueSet, errors: &mut Vec<FieldError>) {
    let name = set.metadata.name.as_deref().unwrap_or_default();
    // It becomes part of host names and of a Service's name, so the rules for a clique's name are its rules.
    if let Err(wrong) = CliqueName::new(name) {
        errors.push(FieldError::invalid("metadata.name", name, wrong.problem));
    }
    let template = &set.spec.template;
    for (position, clique) in template.cliques.iter().enumerate() {
        if let Err(wrong) = CliqueName::new(&clique.name) {
            let field = format!("{}.name", clique_path(position));
            errors.push(FieldError::invalid(field, &clique.name, wrong.problem));
        }
    }
    let mut taken = BTreeMap::new();
    for (position, group) in template.scaling_groups().iter().enumerate() {
        let field = format!("{}.name", group_path(position));
        if let Err(wrong) = GroupName::new(&group.name) {
            errors.push(FieldError::invalid(field, &group.name, wrong.problem));
        } else if let Some(first) = taken.insert(&group.name, position) {
            let rule = format!(
                "is the name of {} already: rename one of them",
                group_path(first)
            );
            errors.push(FieldError::duplicate(field, &group.name, rule));
        }
    }
    same_autoscaler(set, errors);
    same_clique(set, errors);
}

/// The autoscalers of a clique and of a scaling group of one name would be one object.
fn same_autoscaler(set: &PodCliqueSet, errors: &mut Vec<FieldError>) {
    let template = &set.spec.template;
    let scaled: BTreeSet<&str> = standalone(set)
        .filter(|(_, clique)| clique.spec.auto_scaling_config.is_some())
        .map(|(_, clique)| clique.name.as_str())
        .collect();
    for (position, group) in template.scaling_groups().iter().enumerate() {
        if group.scale_config.is_some() && scaled.contains(group.name.as_str()) {
            let field = format!("{}.name", group_path(position));
            let rule = format!(
                "is the name of a clique, and both autoscalers would be called <set>-<replica>-{}: rename one of them",
                group.name
            );
            errors.push(FieldError::duplicate(field, &group.name, rule));
        }
    }
}

/// Two places in the template that lead to PodCliques of one name, for some index of a scaling-group replica.
///
/// A member is `<group>-#-<clique>`, where `#` is any index. Such a name can be read in two ways only if a group's or a clique's name
/// holds an index itself. Each name is taken apart at the indices in it, and looked up; so this takes time in proportion to the text.
fn same_clique(set: &PodCliqueSet, errors: &mut Vec<FieldError>) {
    let groups = set.spec.template.scaling_groups();
    // Group, clique → position of the group.
    let mut members: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for (position, group) in groups.iter().enumerate() {
        for clique in &group.clique_names {
            members.insert((&group.name, clique), position);
        }
    }
    for (position, clique) in standalone(set) {
        for (group, index, rest) in split_at_index(&clique.name) {
            let Some(member) = rest.filter(|rest| members.contains_key(&(group, *rest))) else {
                continue;
            };
            let rule = format!(
                "is what clique {member} is called in replica {index} of scaling group {group}: rename one of them"
            );
            let field = format!("{}.name", clique_path(position));
            errors.push(FieldError::duplicate(field, &clique.name, rule));
        }
    }
    // `a-1` with member `b`, in its replica 2, is `a-1-2-b`; so is group `a` with member `2-b`, in its replica 1.
    let mut inner: BTreeMap<(&str, Option<&str>, &str), (&str, &str)> = BTreeMap::new();
    for &(group, clique) in members.keys() {
        for (before, _, after) in split_at_first_index(clique) {
            inner.insert((group, before, after), (group, clique));
        }
    }
    for (&(group, clique), &position) in &members {
        for (outer, _, rest) in split_at_index(group) {
            if let Some((other, member)) = inner.get(&(outer, rest, clique)) {
                let rule = format!(
                    "with clique {clique} leads to the same names as scaling group {other} with clique {member}: rename one of them"
                );
                errors.push(FieldError::duplicate(
                    format!("{}.name", group_path(position)),
                    group,
                    rule,
                ));
            }
        }
    }
}

/// Every way to read `name` as `<front>-<index>` or `<front>-<index>-<rest>`.
fn split_at_index(name: &str) -> impl Iterator<Item = (&str, &str, Option<&str>)> {
    name.match_indices('-').filter_map(|(at, _)| {
        let (front, behind) = (&name[..at], &name[at + 1..]);
        let (index, rest) = match behind.split_once('-') {
            Some((index, rest)) => (index, Some(rest)),
            None => (behind, None),
        };
        (!front.is_empty() && is_index(index)).then_some((front, index, rest))
    })
}

/// Every way to read `name` as `<index>-<rest>` or `<front>-<index>-<rest>`.
fn split_at_first_index(name: &str) -> impl Iterator<Item = (Option<&str>, &str, &str)> {
    let begins = name
        .split_once('-')
        .filter(|(index, _)| is_index(index))
        .map(|(index, rest)| (None, index, rest));
    let inside =
        split_at_index(name).filter_map(|(front, index, rest)| Some((Some(front), index, rest?)));
    begins.into_iter().chain(inside)
}

/// Whether an index of a replica is written like that.
fn is_index(text: &str) -> bool {
    !text.is_empty()
        && text.bytes().all(|digit| digit.is_ascii_digit())
        && (text == "0" || !text.starts_with('0'))
}

/// Cliques outside every scaling group, with their positions.
fn standalone(set: &PodCliqueSet) -> impl Iterator<Item = (usize, &PodCliqueTemplateSpec)> {
    let template = &set.spec.template;
    let members: BTreeSet<&str> = template
        .scaling_groups()
        .iter()
        .flat_map(|group| group.clique_names.iter().map(String::as_str))
        .collect();
    let cliques = template.cliques.iter().enumerate();
    cliques.filter(move |(_, clique)| !members.contains(clique.name.as_str()))
}

/// Lengths, and the first letter of the set's name.
pub(super) fn check_lengths(set: &PodCliqueSet, errors: &mut Vec<FieldError>) {
    let name = set.metadata.name.as_deref().unwrap_or_default();
    if name.starts_with(|first: char| first.is_ascii_digit()) {
        let rule = "must start with a letter: the headless Service is named after it, and servers before 1.34 want that of a Service";
        errors.push(FieldError::invalid("metadata.name", name, rule));
    }
    let template = &set.spec.template;
    let set_index = set_index_digits(set);
    for (position, clique) in standalone(set) {
        let field = format!("{}.name", clique_path(position));
        if name.len() + clique.name.len() > defaults::MAX_COMBINED_NAME_LENGTH {
            errors.push(too_long(field, name, None, &clique.name));
            continue;
        }
        let length = name.len() + set_index + clique.name.len() + 2;
        derived(
            field,
            &clique.name,
            length,
            pod_index_digits(clique),
            errors,
        );
    }
    let cliques: BTreeMap<&str, _> = template
        .cliques
        .iter()
        .map(|clique| (clique.name.as_str(), clique))
        .collect();
    for (position, group) in template.scaling_groups().iter().enumerate() {
        let group_index = group_index_digits(group);
        for (member, clique) in group.clique_names.iter().enumerate() {
            let field = format!("{}.cliqueNames[{member}]", group_path(position));
            if name.len() + group.name.len() + clique.len() > defaults::MAX_COMBINED_NAME_LENGTH {
                errors.push(too_long(field, name, Some(&group.name), clique));
                continue;
            }
            let length = name.len() + set_index + group.name.len() + group_index + clique.len() + 4;
            let pods = cliques
                .get(clique.as_str())
                .map_or(1, |clique| pod_index_digits(clique));
            derived(field, clique, length, pods, errors);
        }
    }
}

/// Digits of the highest index among so many replicas, now or when they are scaled.
fn index_digits(now: i32, scaled: Option<i32>) -> usize {
    let highest = now.max(scaled.unwrap_or(now)).max(1) - 1;
    highest.to_string().len()
}

pub(super) fn set_index_digits(set: &PodCliqueSet) -> usize {
    index_digits(set.spec.replicas, None)
}

pub(super) fn group_index_digits(group: &PodCliqueScalingGroupConfig) -> usize {
    let scaled = group.scale_config.as_ref();
    index_digits(
        group.template_replicas(),
        scaled.map(|config| config.max_replicas),
    )
}

pub(super) fn pod_index_digits(clique: &PodCliqueTemplateSpec) -> usize {
    let scaled = clique.spec.auto_scaling_config.as_ref();
    index_digits(
        clique.spec.template_replicas(),
        scaled.map(|config| config.max_replicas),
    )
}

fn too_long(field: String, set: &str, group: Option<&str>, clique: &str) -> FieldError {
    let limit = defaults::MAX_COMBINED_NAME_LENGTH;
    let rule = match group {
        None => format!(
            "has {} characters together with the name {set} of the set, and {limit} is the limit: shorten one of them",
            set.len() + clique.len()
        ),
        Some(group) => format!(
            "has {} characters together with the names {set} of the set and {group} of the scaling group, and {limit} is the limit: \
             shorten one of them",
            set.len() + group.len() + clique.len()
        ),
    };
    FieldError::invalid(field, clique, rule)
}

/// The longest names that come of a clique whose PodClique's name has `length` characters at most.
fn derived(
    field: String,
    clique: &str,
    length: usize,
    pod_digits: usize,
    errors: &mut Vec<FieldError>,
) {
    let hostname = length + 1 + pod_digits;
    let rule = if length > LONGEST_CLIQUE {
        format!(
            "leads to a PodClique with a name of {length} characters at the replicas asked for, and {LONGEST_CLIQUE} is the limit"
        )
    } else if hostname > LONGEST_LABEL {
        format!(
            "leads to a host name of {hostname} characters at the replicas asked for, and {LONGEST_LABEL} is the limit"
        )
    } else {
        return;
    };
    errors.push(FieldError::invalid(
        field,
        clique,
        format!("{rule}: shorten a name, or ask for fewer replicas"),
    ));
}
