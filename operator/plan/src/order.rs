//! Start order: whose minimum must be ready before a clique's main containers start.
//!
//! Order never delays placement: pods wait in an init container on their nodes, so order and gangs cannot dead-lock.

use crate::ids::{CliqueId, CliqueName};
use crate::template::{CliqueTemplate, SetTemplate, Startup};

/// The cliques `clique` starts after, sorted, each with its minimum (`1..`).
///
/// In the base gang (standalone cliques and group replicas below the group's minimum) a standalone parent is itself, and
/// a parent inside a scaling group stands for that clique in every base replica of the group.
///
/// A scaled gang is ordered inside itself: parents outside its own group replica are left out, because the base gang
/// runs already. With [`Startup::InOrder`] the nearest earlier clique of the same group takes the place of a
/// predecessor outside it, so the order within the gang never vanishes.
#[must_use]
pub fn parents(template: &SetTemplate, clique: &CliqueId) -> Vec<CliqueId> {
    let Some(own) = template.clique(clique.template()) else {
        return Vec::new();
    };
    let mut parents = match clique.group() {
        Some((group, replica)) if !in_base(template, clique) => {
            scaled_parents(template, own, group, replica)
        }
        None | Some(_) => base_parents(template, own),
    };
    parents.sort();
    parents.dedup();
    parents
}

/// Whether the clique is part of the base gang.
#[must_use]
pub fn in_base(template: &SetTemplate, clique: &CliqueId) -> bool {
    match clique.group() {
        None => true,
        Some((group, replica)) => template
            .group(group)
            .is_some_and(|group| replica < group.min_available.get()),
    }
}

/// The template's own order, before expansion to live cliques.
fn named_parents<'a>(template: &'a SetTemplate, own: &'a CliqueTemplate) -> Vec<&'a CliqueName> {
    match template.startup() {
        Startup::AnyOrder => Vec::new(),
        Startup::InOrder => earlier(template, own).last().into_iter().collect(),
        Startup::Explicit => own.starts_after.iter().collect(),
    }
}

fn earlier<'a>(
    template: &'a SetTemplate,
    own: &'a CliqueTemplate,
) -> impl Iterator<Item = &'a CliqueName> {
    template
        .cliques()
        .iter()
        .map(|clique| &clique.name)
        .take_while(|name| **name != own.name)
}

fn base_parents(template: &SetTemplate, own: &CliqueTemplate) -> Vec<CliqueId> {
    let mut parents = Vec::new();
    for name in named_parents(template, own) {
        let Some(group) = template.group_of(name) else {
            parents.push(CliqueId::Standalone(name.clone()));
            continue;
        };
        parents.extend(
            (0..group.min_available.get()).map(|replica| CliqueId::Member {
                group: group.name.clone(),
                replica,
                clique: name.clone(),
            }),
        );
    }
    parents
}

fn scaled_parents(
    template: &SetTemplate,
    own: &CliqueTemplate,
    group: &crate::ids::GroupName,
    replica: u32,
) -> Vec<CliqueId> {
    let Some(group) = template.group(group) else {
        return Vec::new();
    };
    let inside = |name: &&CliqueName| group.cliques.contains(*name);
    let names: Vec<&CliqueName> = match template.startup() {
        Startup::InOrder => earlier(template, own)
            .filter(inside)
            .last()
            .into_iter()
            .collect(),
        Startup::AnyOrder | Startup::Explicit => named_parents(template, own)
            .into_iter()
            .filter(inside)
            .collect(),
    };
    names
        .into_iter()
        .map(|name| CliqueId::Member {
            group: group.name.clone(),
            replica,
            clique: name.clone(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::GroupName;
    use crate::template::fixtures::*;

    fn standalone(name: &str) -> CliqueId {
        CliqueId::Standalone(CliqueName::new(name).unwrap())
    }

    fn member(group: &str, replica: u32, name: &str) -> CliqueId {
        CliqueId::Member {
            group: GroupName::new(group).unwrap(),
            replica,
            clique: CliqueName::new(name).unwrap(),
        }
    }

    #[test]
    fn in_order_follows_the_template_over_all_base_replicas() {
        let set = set(
            vec![
                clique("pc-a", 2, 2),
                clique("pc-b", 1, 1),
                clique("pc-c", 3, 3),
            ],
            vec![group("sg-x", &["pc-b", "pc-c"], 3, 2)],
            Startup::InOrder,
        );
        assert_eq!(parents(&set, &standalone("pc-a")), []);
        assert_eq!(
            parents(&set, &member("sg-x", 1, "pc-b")),
            [standalone("pc-a")]
        );
        assert_eq!(
            parents(&set, &member("sg-x", 1, "pc-c")),
            [member("sg-x", 0, "pc-b"), member("sg-x", 1, "pc-b")]
        );
        // Replica 2 is a scaled gang.
        assert_eq!(parents(&set, &member("sg-x", 2, "pc-b")), []);
        assert_eq!(
            parents(&set, &member("sg-x", 2, "pc-c")),
            [member("sg-x", 2, "pc-b")]
        );
    }

    #[test]
    fn a_standalone_clique_waits_for_every_base_replica_of_a_group() {
        let set = set(
            vec![clique("lead", 1, 1), clique("front", 1, 1)],
            vec![group("g", &["lead"], 4, 2)],
            Startup::InOrder,
        );
        assert_eq!(
            parents(&set, &standalone("front")),
            [member("g", 0, "lead"), member("g", 1, "lead")]
        );
    }

    #[test]
    fn in_order_inside_a_scaled_gang_skips_predecessors_outside_the_group() {
        let set = set(
            vec![
                clique("lead", 1, 1),
                clique("front", 1, 1),
                clique("work", 1, 1),
            ],
            vec![group("g", &["lead", "work"], 2, 1)],
            Startup::InOrder,
        );
        assert_eq!(
            parents(&set, &member("g", 0, "work")),
            [standalone("front")]
        );
        assert_eq!(
            parents(&set, &member("g", 1, "work")),
            [member("g", 1, "lead")]
        );
    }

    #[test]
    fn explicit_order_keeps_names_apart_that_contain_each_other() {
        let set = set(
            vec![
                clique("worker", 1, 1),
                clique("my-worker", 1, 1),
                after(clique("pc", 1, 1), &["my-worker"]),
                after(clique("pc-b", 1, 1), &["pc", "worker"]),
            ],
            vec![],
            Startup::Explicit,
        );
        assert_eq!(parents(&set, &standalone("pc")), [standalone("my-worker")]);
        assert_eq!(
            parents(&set, &standalone("pc-b")),
            [standalone("pc"), standalone("worker")]
        );
    }

    #[test]
    fn any_order_ignores_starts_after() {
        let set = set(
            vec![clique("a", 1, 1), after(clique("b", 1, 1), &["a"])],
            vec![],
            Startup::AnyOrder,
        );
        assert_eq!(parents(&set, &standalone("b")), []);
    }
}
