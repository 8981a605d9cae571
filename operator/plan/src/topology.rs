//! Where the pods of a gang have to be, relative to each other: from the domains a set names to the node labels that tell
//! them.
//!
//! A set speaks of domains (`rack`), a binding says which node label each one is. What cannot be resolved is dropped and
//! named, so that pods come up without a constraint rather than not at all, and a status can say so.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::ids::{CliqueId, CliqueName, GangId, GroupIndex, GroupName};

/// A kind of domain, such as `rack`, and the key of the node label that tells the domain of a node.
pub type Level = (Arc<str>, Arc<str>);

/// Domains that pods should share, by the set's names for them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wish {
    /// All pods are in one domain of this kind, or none is started.
    pub required: Option<Arc<str>>,
    /// All pods are in one domain of this kind where that is possible.
    pub preferred: Option<Arc<str>>,
}

/// The same in keys of node labels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Packing {
    /// Nodes of all pods share the value of this label.
    pub required: Option<Arc<str>>,
    /// They should.
    pub preferred: Option<Arc<str>>,
}

/// What a set asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wishes {
    /// Name of the binding.
    pub binding: Option<Arc<str>>,
    /// For a set replica.
    pub set: Option<Wish>,
    /// For a replica of a scaling group.
    pub groups: BTreeMap<GroupName, Wish>,
    /// For a clique.
    pub cliques: BTreeMap<CliqueName, Wish>,
}

impl Wishes {
    /// Nothing is asked for.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.set.is_none() && self.groups.is_empty() && self.cliques.is_empty()
    }

    fn all(&self) -> impl Iterator<Item = &Wish> {
        self.set
            .iter()
            .chain(self.groups.values())
            .chain(self.cliques.values())
    }
}

/// How far the wishes could be resolved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Standing {
    /// There are none.
    #[default]
    None,
    /// They name no binding.
    Unnamed,
    /// The binding does not exist.
    NoBinding(Arc<str>),
    /// The binding has no level for these domains, and all others are resolved.
    Resolved(BTreeSet<Arc<str>>),
}

/// The wishes of a set, resolved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    /// How far.
    pub standing: Standing,
    /// Name of the binding, where something was resolved.
    pub binding: Option<Arc<str>>,
    set: Option<Packing>,
    groups: BTreeMap<GroupName, Packing>,
    cliques: BTreeMap<CliqueName, Packing>,
}

/// A part of a gang that is packed more closely than the rest: one replica of a scaling group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part<'a> {
    /// The group.
    pub group: &'a GroupName,
    /// Its replica.
    pub replica: GroupIndex,
    /// Its cliques, in gang order.
    pub cliques: Vec<&'a CliqueId>,
    /// How.
    pub packing: &'a Packing,
}

/// Resolves wishes. `levels` are those of the binding the wishes name; `None` if it does not exist.
#[must_use]
pub fn resolve(wishes: &Wishes, levels: Option<&[Level]>) -> Topology {
    if wishes.is_empty() {
        return Topology::default();
    }
    let standing = |standing| Topology {
        standing,
        ..Topology::default()
    };
    let Some(binding) = &wishes.binding else {
        return standing(Standing::Unnamed);
    };
    let Some(levels) = levels else {
        return standing(Standing::NoBinding(Arc::clone(binding)));
    };
    let key = |domain: &Arc<str>| {
        let level = levels.iter().find(|(name, _)| name == domain);
        level.map(|(_, key)| Arc::clone(key))
    };
    let packing = |wish: &Wish| {
        let packing = Packing {
            required: wish.required.as_ref().and_then(key),
            preferred: wish.preferred.as_ref().and_then(key),
        };
        (packing != Packing::default()).then_some(packing)
    };
    let named = wishes
        .all()
        .flat_map(|wish| wish.required.iter().chain(&wish.preferred));
    let topology = Topology {
        standing: Standing::Resolved(
            named
                .filter(|domain| key(domain).is_none())
                .cloned()
                .collect(),
        ),
        binding: None,
        set: wishes.set.as_ref().and_then(packing),
        groups: resolved(&wishes.groups, packing),
        cliques: resolved(&wishes.cliques, packing),
    };
    let is_empty =
        topology.set.is_none() && topology.groups.is_empty() && topology.cliques.is_empty();
    Topology {
        binding: (!is_empty).then(|| Arc::clone(binding)),
        ..topology
    }
}

fn resolved<N: Ord + Clone>(
    wishes: &BTreeMap<N, Wish>,
    packing: impl Fn(&Wish) -> Option<Packing>,
) -> BTreeMap<N, Packing> {
    let pairs = wishes.iter();
    pairs
        .filter_map(|(name, wish)| Some((name.clone(), packing(wish)?)))
        .collect()
}

impl Topology {
    /// For all pods of a gang: of the set replica for a base gang, of the group's replica, or else the set's, for a scaled one.
    #[must_use]
    pub fn of_gang(&self, gang: &GangId) -> Option<&Packing> {
        match gang {
            GangId::Base => self.set.as_ref(),
            GangId::Scaled { group, .. } => self.groups.get(group).or(self.set.as_ref()),
        }
    }

    /// For all pods of a clique.
    #[must_use]
    pub fn of_clique(&self, clique: &CliqueId) -> Option<&Packing> {
        self.cliques.get(clique.template())
    }

    /// For the pods of a clique's group replica, where that is only a part of its gang.
    #[must_use]
    pub fn of_part(&self, gang: &GangId, clique: &CliqueId) -> Option<&Packing> {
        let (group, _) = clique.group().filter(|_| *gang == GangId::Base)?;
        self.groups.get(group)
    }

    /// Parts of a gang, of which these are cliques, that are packed more closely than the rest.
    #[must_use]
    pub fn parts<'a>(
        &'a self,
        gang: &GangId,
        cliques: impl IntoIterator<Item = &'a CliqueId>,
    ) -> Vec<Part<'a>> {
        let mut parts: Vec<Part<'a>> = Vec::new();
        for clique in cliques {
            let Some((group, replica)) = clique.group() else {
                continue;
            };
            let Some(packing) = self.of_part(gang, clique) else {
                continue;
            };
            let of_same = |part: &&mut Part<'a>| (part.group, part.replica) == (group, replica);
            match parts.iter_mut().find(of_same) {
                Some(part) => part.cliques.push(clique),
                None => parts.push(Part {
                    group,
                    replica,
                    cliques: vec![clique],
                    packing,
                }),
            }
        }
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gang::{Gang, Scale, compose};
    use crate::template::Startup;
    use crate::template::fixtures::wl2;

    fn wish(required: &str) -> Wish {
        Wish {
            required: Some(Arc::from(required)),
            preferred: None,
        }
    }

    fn levels() -> Vec<Level> {
        [("block", "example.com/block"), ("rack", "example.com/rack")]
            .map(|(domain, key)| (Arc::from(domain), Arc::from(key)))
            .into()
    }

    /// WL2 with a block for the set, a rack for each replica of its group, and something for `pc-a`.
    fn wishes(of_a: Wish) -> Wishes {
        Wishes {
            binding: Some(Arc::from("site")),
            set: Some(wish("block")),
            groups: [(GroupName::new("sg-x").unwrap(), wish("rack"))].into(),
            cliques: [(CliqueName::new("pc-a").unwrap(), of_a)].into(),
        }
    }

    fn required(packing: Option<&Packing>) -> Option<&str> {
        packing?.required.as_deref()
    }

    #[test]
    fn constraints_go_to_the_gang_to_its_parts_and_to_its_cliques() {
        let topology = resolve(&wishes(wish("rack")), Some(&levels()));
        assert_eq!(topology.standing, Standing::Resolved(BTreeSet::new()));
        let gangs = compose(&wl2(Startup::AnyOrder), &Scale::default());
        let (base, scaled) = (&gangs[0], &gangs[1]);
        assert_eq!(
            required(topology.of_gang(&base.id)),
            Some("example.com/block")
        );
        assert_eq!(
            required(topology.of_gang(&scaled.id)),
            Some("example.com/rack")
        );
        let members = |gang: &'_ Gang| -> Vec<CliqueId> {
            gang.members
                .iter()
                .map(|member| member.clique.clone())
                .collect()
        };
        let (of_base, of_scaled) = (members(base), members(scaled));
        let parts = topology.parts(&base.id, &of_base);
        assert_eq!(parts.len(), 1);
        assert_eq!((parts[0].replica, parts[0].cliques.len()), (0, 2));
        assert_eq!(required(Some(parts[0].packing)), Some("example.com/rack"));
        assert!(
            topology.parts(&scaled.id, &of_scaled).is_empty(),
            "the gang's own constraint says it"
        );
        let of_a = &base.members[0].clique;
        assert_eq!(required(topology.of_clique(of_a)), Some("example.com/rack"));
    }

    #[test]
    fn a_domain_that_the_binding_lacks_is_dropped_and_named() {
        let mut of_a = wish("nvl-domain");
        of_a.preferred = Some(Arc::from("rack"));
        let topology = resolve(&wishes(of_a), Some(&levels()));
        assert_eq!(
            topology.standing,
            Standing::Resolved([Arc::from("nvl-domain")].into())
        );
        let of_a = CliqueId::Standalone(CliqueName::new("pc-a").unwrap());
        let expected = Packing {
            required: None,
            preferred: Some(Arc::from("example.com/rack")),
        };
        assert_eq!(topology.of_clique(&of_a), Some(&expected));
    }

    #[test]
    fn without_a_binding_nothing_is_constrained() {
        let topology = resolve(&wishes(wish("rack")), None);
        assert_eq!(topology.standing, Standing::NoBinding(Arc::from("site")));
        assert_eq!(
            (topology.of_gang(&GangId::Base), &topology.binding),
            (None, &None)
        );
        let unnamed = Wishes {
            binding: None,
            ..wishes(wish("rack"))
        };
        assert_eq!(
            resolve(&unnamed, Some(&levels())).standing,
            Standing::Unnamed
        );
        assert_eq!(resolve(&Wishes::default(), None), Topology::default());
    }
}
