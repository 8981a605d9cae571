//! What a PodCliqueSet asks for, reduced to what planning needs.
//!
//! Pod specs, labels and metrics stay outside: a clique is its counts, its place and the digest of its pod template.

use std::collections::BTreeSet;
use std::num::NonZeroU32;

use crate::hash::TemplateHash;
use crate::ids::{CliqueName, GroupName};

/// A set's template, checked: names are unique, members exist, order has no cycle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetTemplate {
    cliques: Vec<CliqueTemplate>,
    groups: Vec<GroupTemplate>,
    startup: Startup,
    strategy: Strategy,
    hash: TemplateHash,
}

/// One clique of the template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CliqueTemplate {
    /// Unique in the set.
    pub name: CliqueName,
    /// Pods, used when the clique is first created; later `/scale` owns the number.
    pub replicas: u32,
    /// Pods that belong to the gang's floor: placed with everything else or not at all.
    pub min_available: NonZeroU32,
    /// For [`Startup::Explicit`]: cliques that must be up before this one's main containers start.
    pub starts_after: Vec<CliqueName>,
    /// Digest of what its pods are made from.
    pub hash: TemplateHash,
    /// Whether a HorizontalPodAutoscaler is wanted for it.
    pub autoscaled: bool,
}

/// One scaling group of the template: cliques that scale together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupTemplate {
    /// Unique in the set.
    pub name: GroupName,
    /// Members, in the order gangs list them.
    pub cliques: Vec<CliqueName>,
    /// Group replicas, used when the group is first created.
    pub replicas: u32,
    /// Group replicas that belong to the base gang.
    pub min_available: NonZeroU32,
    /// Whether a HorizontalPodAutoscaler is wanted for it.
    pub autoscaled: bool,
}

/// How a set's cliques start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Startup {
    /// All at once.
    AnyOrder,
    /// Each clique after the one before it in the template.
    InOrder,
    /// Each clique after those it names.
    Explicit,
}

/// How a changed template reaches running pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// Pods are replaced one unit at a time.
    RollingRecreate,
    /// Pods are replaced when somebody deletes them.
    OnDelete,
}

/// A template that cannot be planned.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// The set has no cliques.
    #[error("the template has no cliques")]
    NoCliques,
    /// Two cliques share a name.
    #[error("clique {0} is defined twice")]
    DuplicateClique(CliqueName),
    /// Two scaling groups share a name.
    #[error("scaling group {0} is defined twice")]
    DuplicateGroup(GroupName),
    /// A scaling group has no members.
    #[error("scaling group {0} lists no cliques")]
    EmptyGroup(GroupName),
    /// A scaling group lists a clique that does not exist.
    #[error("scaling group {group} lists clique {clique}, which the template does not define")]
    UnknownMember {
        /// The group.
        group: GroupName,
        /// The missing clique.
        clique: CliqueName,
    },
    /// A clique is listed by two groups, or twice by one.
    #[error("clique {0} is listed more than once in scaling groups")]
    SharedMember(CliqueName),
    /// `startsAfter` names a clique that does not exist, or the clique itself.
    #[error("clique {clique} starts after {parent}, which is not another clique of the template")]
    UnknownParent {
        /// The clique with the bad entry.
        clique: CliqueName,
        /// The entry.
        parent: CliqueName,
    },
    /// `startsAfter` has a cycle.
    #[error("cliques {} wait for each other to start", names(.0))]
    StartCycle(Vec<CliqueName>),
}

fn names(cliques: &[CliqueName]) -> String {
    cliques
        .iter()
        .map(CliqueName::as_str)
        .collect::<Vec<_>>()
        .join(", ")
}

impl SetTemplate {
    /// Checks the parts against each other.
    ///
    /// # Errors
    /// The first inconsistency found, by name.
    pub fn new(
        cliques: Vec<CliqueTemplate>,
        groups: Vec<GroupTemplate>,
        startup: Startup,
        strategy: Strategy,
    ) -> Result<Self, TemplateError> {
        if cliques.is_empty() {
            return Err(TemplateError::NoCliques);
        }
        let mut known = BTreeSet::new();
        for clique in &cliques {
            if !known.insert(&clique.name) {
                return Err(TemplateError::DuplicateClique(clique.name.clone()));
            }
        }
        let mut group_names = BTreeSet::new();
        let mut members = BTreeSet::new();
        for group in &groups {
            if !group_names.insert(&group.name) {
                return Err(TemplateError::DuplicateGroup(group.name.clone()));
            }
            if group.cliques.is_empty() {
                return Err(TemplateError::EmptyGroup(group.name.clone()));
            }
            for clique in &group.cliques {
                if !known.contains(clique) {
                    return Err(TemplateError::UnknownMember {
                        group: group.name.clone(),
                        clique: clique.clone(),
                    });
                }
                if !members.insert(clique) {
                    return Err(TemplateError::SharedMember(clique.clone()));
                }
            }
        }
        if startup == Startup::Explicit {
            check_order(&cliques, &known)?;
        }
        let hash = TemplateHash::of_set(cliques.iter().map(|clique| (&clique.name, &clique.hash)));
        Ok(Self {
            cliques,
            groups,
            startup,
            strategy,
            hash,
        })
    }

    /// All cliques, in template order.
    #[must_use]
    pub fn cliques(&self) -> &[CliqueTemplate] {
        &self.cliques
    }

    /// All scaling groups, in template order.
    #[must_use]
    pub fn groups(&self) -> &[GroupTemplate] {
        &self.groups
    }

    /// How cliques start.
    #[must_use]
    pub fn startup(&self) -> Startup {
        self.startup
    }

    /// How template changes reach pods.
    #[must_use]
    pub fn strategy(&self) -> Strategy {
        self.strategy
    }

    /// Digest over all cliques' templates.
    #[must_use]
    pub fn hash(&self) -> &TemplateHash {
        &self.hash
    }

    /// The clique of that name.
    #[must_use]
    pub fn clique(&self, name: &CliqueName) -> Option<&CliqueTemplate> {
        self.cliques.iter().find(|clique| clique.name == *name)
    }

    /// The scaling group of that name.
    #[must_use]
    pub fn group(&self, name: &GroupName) -> Option<&GroupTemplate> {
        self.groups.iter().find(|group| group.name == *name)
    }

    /// The scaling group that lists the clique, if any.
    #[must_use]
    pub fn group_of(&self, clique: &CliqueName) -> Option<&GroupTemplate> {
        self.groups
            .iter()
            .find(|group| group.cliques.contains(clique))
    }

    /// Cliques outside every scaling group, in template order.
    pub fn standalone(&self) -> impl Iterator<Item = &CliqueTemplate> {
        self.cliques
            .iter()
            .filter(|clique| self.group_of(&clique.name).is_none())
    }

    /// Members of `group`, in the group's order.
    pub fn members<'a>(
        &'a self,
        group: &'a GroupTemplate,
    ) -> impl Iterator<Item = &'a CliqueTemplate> {
        group.cliques.iter().filter_map(|name| self.clique(name))
    }
}

fn check_order(
    cliques: &[CliqueTemplate],
    known: &BTreeSet<&CliqueName>,
) -> Result<(), TemplateError> {
    for clique in cliques {
        for parent in &clique.starts_after {
            if *parent == clique.name || !known.contains(parent) {
                return Err(TemplateError::UnknownParent {
                    clique: clique.name.clone(),
                    parent: parent.clone(),
                });
            }
        }
    }
    // Take away, again and again, what waits for nothing that is left; a rest is a cycle (and what waits behind it).
    let mut left: Vec<&CliqueTemplate> = cliques.iter().collect();
    loop {
        let waiting: BTreeSet<&CliqueName> = left.iter().map(|clique| &clique.name).collect();
        let before = left.len();
        left.retain(|clique| {
            clique
                .starts_after
                .iter()
                .any(|parent| waiting.contains(parent))
        });
        if left.is_empty() {
            return Ok(());
        }
        if left.len() == before {
            return Err(TemplateError::StartCycle(
                left.iter().map(|clique| clique.name.clone()).collect(),
            ));
        }
    }
}

/// How many copies really run when `desired` are asked for.
///
/// 0 means idle. A number below the minimum would be a gang that can never be whole, so it runs as the minimum.
#[must_use]
pub fn effective(desired: u32, min_available: NonZeroU32) -> u32 {
    if desired == 0 {
        0
    } else {
        desired.max(min_available.get())
    }
}

#[cfg(test)]
pub(crate) mod fixtures {
    use super::*;

    pub(crate) fn clique(name: &str, replicas: u32, min: u32) -> CliqueTemplate {
        CliqueTemplate {
            name: CliqueName::new(name).unwrap(),
            replicas,
            min_available: NonZeroU32::new(min).unwrap(),
            starts_after: Vec::new(),
            hash: TemplateHash::of(name),
            autoscaled: false,
        }
    }

    pub(crate) fn after(mut clique: CliqueTemplate, parents: &[&str]) -> CliqueTemplate {
        clique.starts_after = parents
            .iter()
            .map(|name| CliqueName::new(name).unwrap())
            .collect();
        clique
    }

    pub(crate) fn group(name: &str, cliques: &[&str], replicas: u32, min: u32) -> GroupTemplate {
        GroupTemplate {
            name: GroupName::new(name).unwrap(),
            cliques: cliques
                .iter()
                .map(|name| CliqueName::new(name).unwrap())
                .collect(),
            replicas,
            min_available: NonZeroU32::new(min).unwrap(),
            autoscaled: false,
        }
    }

    pub(crate) fn set(
        cliques: Vec<CliqueTemplate>,
        groups: Vec<GroupTemplate>,
        startup: Startup,
    ) -> SetTemplate {
        SetTemplate::new(cliques, groups, startup, Strategy::RollingRecreate).unwrap()
    }

    /// `pc-a` 2/1; `sg-x` 2/1 of `pc-b` 1/1 and `pc-c` 3/1.
    pub(crate) fn wl2(startup: Startup) -> SetTemplate {
        set(
            vec![
                clique("pc-a", 2, 1),
                clique("pc-b", 1, 1),
                clique("pc-c", 3, 1),
            ],
            vec![group("sg-x", &["pc-b", "pc-c"], 2, 1)],
            startup,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::fixtures::*;
    use super::*;

    #[test]
    fn effective_replicas_never_lie_between_zero_and_the_minimum() {
        let min = NonZeroU32::new(3).unwrap();
        assert_eq!([0, 1, 2, 3, 4].map(|n| effective(n, min)), [0, 3, 3, 3, 4]);
    }

    #[test]
    fn inconsistent_templates_are_refused_by_name() {
        let build = |cliques, groups, startup| {
            SetTemplate::new(cliques, groups, startup, Strategy::RollingRecreate)
                .unwrap_err()
                .to_string()
        };
        let any = Startup::AnyOrder;
        assert_eq!(build(vec![], vec![], any), "the template has no cliques");
        assert_eq!(
            build(vec![clique("a", 1, 1), clique("a", 1, 1)], vec![], any),
            "clique a is defined twice"
        );
        assert_eq!(
            build(vec![clique("a", 1, 1)], vec![group("g", &["b"], 1, 1)], any),
            "scaling group g lists clique b, which the template does not define"
        );
        assert_eq!(
            build(
                vec![clique("a", 1, 1)],
                vec![group("g", &["a"], 1, 1), group("h", &["a"], 1, 1)],
                any
            ),
            "clique a is listed more than once in scaling groups"
        );
        assert_eq!(
            build(
                vec![
                    after(clique("a", 1, 1), &["b"]),
                    after(clique("b", 1, 1), &["a"]),
                    clique("c", 1, 1)
                ],
                vec![],
                Startup::Explicit
            ),
            "cliques a, b wait for each other to start"
        );
        assert_eq!(
            build(
                vec![after(clique("a", 1, 1), &["a"])],
                vec![],
                Startup::Explicit
            ),
            "clique a starts after a, which is not another clique of the template"
        );
    }
}
