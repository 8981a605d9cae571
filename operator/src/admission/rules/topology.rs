//! Which ClusterTopologyBinding a set's constraints mean: one for the whole set, named where a constraint cannot inherit it.
//!
//! Whether the binding exists, and has the levels, is not asked here: see the condition `TopologyLevelsUnavailable`.

use coppice_operator_api::PodCliqueSet;
use coppice_operator_api::topology::TopologyConstraint;

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

/// Names, from the outside to the inside.
pub(super) fn check(set: &PodCliqueSet, errors: &mut Vec<FieldError>) {
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
