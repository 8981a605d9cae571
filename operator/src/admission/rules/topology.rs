//! Which ClusterTopologyBinding a set's constraints mean: one for the whole set, named where a constraint cannot inherit it;
//! and whether it can tell what they ask for.
//!
//! Asked of new sets alone. What becomes of the binding later is said by the condition `TopologyLevelsUnavailable`.

use std::sync::Arc;

use coppice_operator_api::PodCliqueSet;
use coppice_operator_api::topology::TopologyConstraint;
use coppice_operator_plan::topology::Level;

use super::{clique_path, group_path};
use crate::admission::field::FieldError;

/// The name a constraint resolves to, from its own and the one it would inherit.
fn resolve<'a>(
    path: &str,
    constraint: &'a TopologyConstraint,
    inherited: Option<&'a str>,
    errors: &mut Vec<FieldError>,
) -> Option<&'a str> {
    let field = || format!("{path}.topologyConstraint.topologyName");
    let own = constraint
        .topology_name
        .as_deref()
        .filter(|name| !name.is_empty());
    match (own, inherited) {
        (None, None) => {
            let rule = "name the ClusterTopologyBinding that tells the domains: nothing around this constraint names one";
            errors.push(FieldError::required(field(), rule));
        }
        (Some(own), Some(inherited)) if own != inherited => {
            let rule = format!(
                "must be {inherited}, as around it, or be left out: a set uses one ClusterTopologyBinding"
            );
            errors.push(FieldError::invalid(field(), own, &rule));
        }
        _ => {}
    }
    own.or(inherited)
}

/// The ClusterTopologyBinding that a set names, as far as it is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Binding {
    /// Nobody looked.
    #[default]
    Unasked,
    /// It does not exist.
    Absent,
    /// It cannot be read, and why.
    Unreadable(String),
    /// Its levels, broadest first.
    Levels(Arc<[Level]>),
}

/// All constraints of a set: the set's, then those of groups, then those of cliques.
fn constraints(set: &PodCliqueSet) -> impl Iterator<Item = &TopologyConstraint> {
    let template = &set.spec.template;
    let groups = template.scaling_groups().iter();
    let cliques = template.cliques.iter();
    template
        .topology_constraint
        .iter()
        .chain(groups.filter_map(|group| group.topology_constraint.as_ref()))
        .chain(cliques.filter_map(|clique| clique.topology_constraint.as_ref()))
}

/// The binding that a set's constraints mean: the first one that is named.
pub(crate) fn binding_name(set: &PodCliqueSet) -> Option<&str> {
    constraints(set).find_map(|constraint| constraint.topology_name.as_deref())
}

/// Names, the binding, its levels, and their order; each only when what comes before is right.
pub(super) fn check(set: &PodCliqueSet, binding: &Binding, errors: &mut Vec<FieldError>) {
    let before = errors.len();
    names(set, errors);
    let Some(name) = binding_name(set).filter(|_| errors.len() == before) else {
        return;
    };
    let field = "spec.template.topologyConstraint.topologyName";
    match binding {
        Binding::Unasked => {}
        Binding::Absent => {
            let rule =
                "there is no ClusterTopologyBinding of that name: create it first, or name another";
            errors.push(FieldError::invalid(field, name, rule));
        }
        Binding::Unreadable(why) => {
            let rule = format!("ClusterTopologyBinding {name} cannot be read: {why}");
            errors.push(FieldError::internal(field, rule));
        }
        Binding::Levels(levels) => {
            known_domains(set, name, levels, errors);
            if errors.len() == before {
                broader_outside(set, levels, errors);
            }
        }
    }
}

/// A constraint, where it is, and the name of its level for people.
struct Placed<'a> {
    path: String,
    constraint: &'a TopologyConstraint,
}

fn of_set(set: &PodCliqueSet) -> Option<Placed<'_>> {
    let constraint = set.spec.template.topology_constraint.as_ref()?;
    Some(Placed {
        path: "spec.template.topologyConstraint".to_owned(),
        constraint,
    })
}

fn of_group(set: &PodCliqueSet, position: usize) -> Option<Placed<'_>> {
    let group = set.spec.template.scaling_groups().get(position)?;
    Some(Placed {
        path: format!("{}.topologyConstraint", group_path(position)),
        constraint: group.topology_constraint.as_ref()?,
    })
}

fn of_clique(set: &PodCliqueSet, position: usize) -> Option<Placed<'_>> {
    let clique = set.spec.template.cliques.get(position)?;
    Some(Placed {
        path: format!("{}.topologyConstraint", clique_path(position)),
        constraint: clique.topology_constraint.as_ref()?,
    })
}

fn all(set: &PodCliqueSet) -> Vec<Placed<'_>> {
    let template = &set.spec.template;
    let groups = 0..template.scaling_groups().len();
    let cliques = 0..template.cliques.len();
    let inner = groups
        .filter_map(|position| of_group(set, position))
        .chain(cliques.filter_map(|position| of_clique(set, position)));
    of_set(set).into_iter().chain(inner).collect()
}

/// Paths of all constraints.
pub(super) fn constrained_paths(set: &PodCliqueSet) -> Vec<String> {
    all(set).into_iter().map(|placed| placed.path).collect()
}

fn known_domains(
    set: &PodCliqueSet,
    binding: &str,
    levels: &[Level],
    errors: &mut Vec<FieldError>,
) {
    for Placed { path, constraint } in all(set) {
        let pack = constraint.pack.as_ref();
        for (field, domain) in [
            ("packDomain", constraint.pack_domain.as_deref()),
            (
                "pack.required",
                pack.and_then(|pack| pack.required.as_deref()),
            ),
            (
                "pack.preferred",
                pack.and_then(|pack| pack.preferred.as_deref()),
            ),
        ] {
            let Some(domain) = domain else { continue };
            if index(levels, Some(domain)).is_none() {
                let known: Vec<&str> = levels.iter().map(|(name, _)| &**name).collect();
                let rule = format!(
                    "is no level of ClusterTopologyBinding {binding}: name one of {}",
                    known.join(", ")
                );
                errors.push(FieldError::invalid(format!("{path}.{field}"), domain, rule));
            }
        }
    }
}

/// Position of a domain among the levels; 0 is the broadest.
fn index(levels: &[Level], domain: Option<&str>) -> Option<usize> {
    let domain = domain?;
    levels.iter().position(|(name, _)| **name == *domain)
}

/// What is inside cannot be spread wider than what is around it. Required and preferred domains are compared each with their
/// own kind.
fn broader_outside(set: &PodCliqueSet, levels: &[Level], errors: &mut Vec<FieldError>) {
    let template = &set.spec.template;
    let mut compare = |outer: Option<&Placed<'_>>, inner: Option<Placed<'_>>| {
        let (Some(outer), Some(inner)) = (outer, inner) else {
            return;
        };
        let required = |of: &Placed<'_>| of.constraint.required_domain().map(str::to_owned);
        let preferred = |of: &Placed<'_>| of.constraint.preferred_domain().map(str::to_owned);
        for (field, out, within) in [
            ("", required(outer), required(&inner)),
            (".pack.preferred", preferred(outer), preferred(&inner)),
        ] {
            let positions = index(levels, out.as_deref()).zip(index(levels, within.as_deref()));
            if positions.is_some_and(|(out, within)| out > within) {
                let rule = format!(
                    "is narrower than {} of {}, which is inside: name that or a broader one",
                    within.as_deref().unwrap_or_default(),
                    inner.path
                );
                let field = format!("{}{field}", outer.path);
                errors.push(FieldError::invalid(field, out.unwrap_or_default(), rule));
            }
        }
    };
    let set_level = of_set(set);
    for position in 0..template.cliques.len() {
        compare(set_level.as_ref(), of_clique(set, position));
    }
    for (position, group) in template.scaling_groups().iter().enumerate() {
        compare(set_level.as_ref(), of_group(set, position));
        let around = of_group(set, position);
        let members = template.cliques.iter().enumerate();
        for (member, _) in members.filter(|(_, clique)| group.clique_names.contains(&clique.name)) {
            compare(around.as_ref(), of_clique(set, member));
        }
    }
}

/// What is accepted and has less effect than it seems.
pub(super) fn warnings(set: &PodCliqueSet, binding: &Binding) -> Vec<String> {
    let mut warnings = Vec::new();
    for Placed { path, constraint } in all(set) {
        if constraint.pack_domain.is_some() {
            warnings.push(format!(
                "{path}.packDomain is deprecated: write pack.required"
            ));
        }
        let Binding::Levels(levels) = binding else {
            continue;
        };
        let required = index(levels, constraint.required_domain());
        let preferred = index(levels, constraint.preferred_domain());
        if required
            .zip(preferred)
            .is_some_and(|(required, preferred)| preferred < required)
        {
            warnings.push(format!(
                "{path}.pack.preferred has no effect: it is broader than what is required"
            ));
        }
    }
    warnings
}

/// Names, from the outside to the inside.
fn names(set: &PodCliqueSet, errors: &mut Vec<FieldError>) {
    let template = &set.spec.template;
    let of_set = template
        .topology_constraint
        .as_ref()
        .and_then(|constraint| resolve("spec.template", constraint, None, errors));
    // Beside each other, the first one decides.
    let mut first = of_set;
    let mut of_groups = Vec::new();
    for (position, group) in template.scaling_groups().iter().enumerate() {
        let Some(constraint) = &group.topology_constraint else {
            continue;
        };
        let beside = first.filter(|_| constraint.topology_name.is_some());
        let inherited = of_set.or(beside);
        let name = resolve(&group_path(position), constraint, inherited, errors);
        first = first.or(name);
        of_groups.push((group, name));
    }
    for (position, clique) in template.cliques.iter().enumerate() {
        let Some(constraint) = &clique.topology_constraint else {
            continue;
        };
        let around = of_groups
            .iter()
            .find(|(group, _)| group.clique_names.contains(&clique.name))
            .and_then(|(_, name)| *name)
            .or(of_set);
        let beside = first.filter(|_| constraint.topology_name.is_some());
        let inherited = around.or(beside);
        let name = resolve(&clique_path(position), constraint, inherited, errors);
        first = first.or(name);
    }
}
