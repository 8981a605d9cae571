//! Multi-node NVLink: which cliques' pods are in one domain, told by the name of a group.
//!
//! A group can be chosen for the set, for a scaling group and for a clique; the innermost choice counts. Only cliques with
//! GPUs take part. Each set replica has a domain of its own for each group.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::ids::{CliqueName, GroupName};
use crate::template::SetTemplate;

/// What one level says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// No domain.
    Off,
    /// The domain of that group.
    Group(Arc<str>),
}

/// What a set says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choices {
    /// For everything in it.
    pub set: Option<Choice>,
    /// For the cliques of a scaling group.
    pub groups: BTreeMap<GroupName, Choice>,
    /// For a clique.
    pub cliques: BTreeMap<CliqueName, Choice>,
    /// Cliques of which a container asks for GPUs.
    pub with_gpus: BTreeSet<CliqueName>,
}

/// The group of each clique that is in one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Domains {
    of: BTreeMap<CliqueName, Arc<str>>,
}

/// Finds the group of every clique.
#[must_use]
pub fn resolve(template: &SetTemplate, choices: &Choices) -> Domains {
    let group_of = |clique: &CliqueName| {
        let group = template.group_of(clique);
        let of_group = group.and_then(|group| choices.groups.get(&group.name));
        let of_clique = choices.cliques.get(clique);
        match of_clique.or(of_group).or(choices.set.as_ref())? {
            Choice::Off => None,
            Choice::Group(group) => Some(Arc::clone(group)),
        }
    };
    let cliques = template.cliques().iter().map(|clique| &clique.name);
    let with_gpus = cliques.filter(|clique| choices.with_gpus.contains(*clique));
    Domains {
        of: with_gpus
            .filter_map(|clique| Some((clique.clone(), group_of(clique)?)))
            .collect(),
    }
}

impl Domains {
    /// The clique's group.
    #[must_use]
    pub fn of_clique(&self, clique: &CliqueName) -> Option<&Arc<str>> {
        self.of.get(clique)
    }

    /// Groups that some clique is in: so many domains each set replica has.
    #[must_use]
    pub fn groups(&self) -> BTreeSet<&Arc<str>> {
        self.of.values().collect()
    }

    /// No clique is in a domain.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.of.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::template::Startup;
    use crate::template::fixtures::wl2;

    fn group(name: &str) -> Choice {
        Choice::Group(Arc::from(name))
    }

    fn clique(name: &str) -> CliqueName {
        CliqueName::new(name).unwrap()
    }

    /// The groups of `pc-a`, and of `pc-b` and `pc-c` in `sg-x`.
    fn resolved(choices: Choices) -> [Option<String>; 3] {
        let choices = Choices {
            with_gpus: ["pc-a", "pc-b", "pc-c"].map(clique).into(),
            ..choices
        };
        let domains = resolve(&wl2(Startup::AnyOrder), &choices);
        ["pc-a", "pc-b", "pc-c"].map(|name| domains.of_clique(&clique(name)).map(|g| g.to_string()))
    }

    fn some(names: [&str; 3]) -> [Option<String>; 3] {
        names.map(|name| (!name.is_empty()).then(|| name.to_owned()))
    }

    #[test]
    fn the_innermost_choice_counts_and_none_is_one() {
        let set = || Choices {
            set: Some(group("s")),
            ..Choices::default()
        };
        let of_group = |choice: Choice| [(GroupName::new("sg-x").unwrap(), choice)].into();
        assert_eq!(resolved(Choices::default()), some(["", "", ""]));
        assert_eq!(resolved(set()), some(["s", "s", "s"]));
        let inner = Choices {
            groups: of_group(group("g")),
            cliques: [(clique("pc-c"), group("c"))].into(),
            ..set()
        };
        assert_eq!(resolved(inner), some(["s", "g", "c"]));
        let off = Choices {
            groups: of_group(Choice::Off),
            cliques: [(clique("pc-c"), group("c"))].into(),
            ..set()
        };
        assert_eq!(resolved(off), some(["s", "", "c"]));
        let off = Choices {
            cliques: [(clique("pc-a"), Choice::Off)].into(),
            ..set()
        };
        assert_eq!(resolved(off), some(["", "s", "s"]));
    }

    #[test]
    fn cliques_without_gpus_take_no_part() {
        let choices = Choices {
            set: Some(group("s")),
            cliques: [(clique("pc-c"), group("alone"))].into(),
            with_gpus: [clique("pc-b")].into(),
            ..Choices::default()
        };
        let domains = resolve(&wl2(Startup::AnyOrder), &choices);
        assert_eq!(domains.of_clique(&clique("pc-a")), None);
        assert_eq!(domains.groups().len(), 1);
        assert!(
            !domains.is_empty() && resolve(&wl2(Startup::AnyOrder), &Choices::default()).is_empty()
        );
    }
}
