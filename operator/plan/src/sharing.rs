//! Resource claims that pods share: which should exist, and which of them a pod gets.
//!
//! A claim belongs to the set, to a scaling group of a set replica, or to a clique, and is either one for all replicas of
//! its owner or one for each. It is told by what it is for; where its content comes from and what it is called is not known
//! here.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::ids::{CliqueId, CliqueName, GroupName, PodIndex, ReplicaIndex};
use crate::observed::Replica;
use crate::replica::Plan;

/// How many claims an entry stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// One for all replicas of the owner.
    AllReplicas,
    /// One for each replica of the owner.
    PerReplica,
}

/// Whose pods get a claim.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Among {
    /// All below the owner.
    #[default]
    Everybody,
    /// Those of these cliques, and those of all cliques in these groups.
    Only {
        /// Cliques of the template.
        cliques: BTreeSet<CliqueName>,
        /// Groups of the template.
        groups: BTreeSet<GroupName>,
    },
}

/// An entry of a list: claims from one template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// Name of the claim template.
    pub template: Arc<str>,
    /// How many.
    pub scope: Scope,
    /// For whom.
    pub among: Among,
}

impl Share {
    fn is_for(&self, clique: &CliqueId) -> bool {
        match &self.among {
            Among::Everybody => true,
            Among::Only { cliques, groups } => {
                let group = clique.group();
                cliques.contains(clique.template())
                    || group.is_some_and(|(group, _)| groups.contains(group))
            }
        }
    }
}

/// What a set's template says about claims.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sharing {
    /// Shared by pods of the whole set.
    pub set: Vec<Share>,
    /// Shared by pods of a group of one set replica.
    pub groups: BTreeMap<GroupName, Vec<Share>>,
    /// Shared by pods of one clique.
    pub cliques: BTreeMap<CliqueName, Vec<Share>>,
}

/// With what a claim comes and goes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Owner {
    /// The set. Its claims for one set replica count as that replica's.
    Set,
    /// A group of a set replica.
    Group(GroupName),
    /// A clique of a set replica.
    Clique(CliqueId),
}

/// One claim.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClaimId {
    /// With what it comes and goes.
    pub owner: Owner,
    /// Which replica of the owner it is for: of a set, of a group, or a pod of a clique. Absent: for all.
    pub of: Option<u32>,
    /// Name of the template.
    pub template: Arc<str>,
}

impl Sharing {
    /// Nothing is shared.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let mut lists = self.groups.values().chain(self.cliques.values());
        self.set.is_empty() && lists.all(Vec::is_empty)
    }

    /// Some claim may be used by more than one pod.
    #[must_use]
    pub fn ties_pods(&self) -> bool {
        let mut of_cliques = self.cliques.values().flatten();
        !self.set.is_empty()
            || self.groups.values().any(|shares| !shares.is_empty())
            || of_cliques.any(|share| share.scope == Scope::AllReplicas)
    }

    /// Claims of the set as a whole.
    #[must_use]
    pub fn of_set(&self) -> BTreeSet<ClaimId> {
        claims(&Owner::Set, &self.set, [None]).collect()
    }

    /// Claims that a set replica has under this plan for what was observed.
    ///
    /// A pod's own claim is there for as long as the pod is, also while it ends: the next pod of that index uses it again.
    #[must_use]
    pub fn of_replica(
        &self,
        replica: ReplicaIndex,
        plan: &Plan,
        observed: &Replica,
    ) -> BTreeSet<ClaimId> {
        let mut wanted: BTreeSet<ClaimId> =
            claims(&Owner::Set, &self.set, [Some(replica)]).collect();
        for group in &plan.groups {
            if let Some(shares) = self.groups.get(&group.name) {
                let numbers = (0..group.effective).map(Some).chain([None]);
                wanted.extend(claims(&Owner::Group(group.name.clone()), shares, numbers));
            }
        }
        for clique in &plan.cliques {
            if let Some(shares) = self.cliques.get(clique.id.template()) {
                let pods = observed.cliques.get(&clique.id);
                let pods = pods.into_iter().flat_map(|clique| &clique.pods);
                let created = plan.create.get(&clique.id).into_iter().flatten();
                let indexes: BTreeSet<PodIndex> = pods
                    .filter_map(|pod| pod.index)
                    .chain(created.copied())
                    .collect();
                let numbers = indexes.into_iter().map(Some).chain([None]);
                wanted.extend(claims(&Owner::Clique(clique.id.clone()), shares, numbers));
            }
        }
        wanted
    }

    /// Claims of one pod, in the order in which it names them: those of the set first, then of its group, then of its
    /// clique; on each level those for all first.
    #[must_use]
    pub fn of_pod(
        &self,
        replica: ReplicaIndex,
        clique: &CliqueId,
        index: PodIndex,
    ) -> Vec<ClaimId> {
        let mut found = Vec::new();
        let mut add = |owner: Owner, shares: Option<&Vec<Share>>, number: u32| {
            let mine: Vec<Share> = shares
                .into_iter()
                .flatten()
                .filter(|share| share.is_for(clique))
                .cloned()
                .collect();
            found.extend(claims(&owner, &mine, [None, Some(number)]));
        };
        add(Owner::Set, Some(&self.set), replica);
        if let Some((group, number)) = clique.group() {
            let shares = self.groups.get(group);
            add(Owner::Group(group.clone()), shares, number);
        }
        let shares = self.cliques.get(clique.template());
        add(Owner::Clique(clique.clone()), shares, index);
        found
    }
}

/// Claims of an owner for these numbers of its replicas; `None` stands for what is one for all.
fn claims(
    owner: &Owner,
    shares: &[Share],
    numbers: impl IntoIterator<Item = Option<u32>>,
) -> impl Iterator<Item = ClaimId> {
    let numbers = numbers.into_iter();
    numbers.flat_map(move |number| {
        let scope = match number {
            None => Scope::AllReplicas,
            Some(_) => Scope::PerReplica,
        };
        let of_scope = shares.iter().filter(move |share| share.scope == scope);
        of_scope.map(move |share| ClaimId {
            owner: owner.clone(),
            of: number,
            template: Arc::clone(&share.template),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observed::{Clique, Pod};
    use crate::pods::fixtures::{now, pod};
    use crate::replica::{Permit, plan};
    use crate::template::Startup;
    use crate::template::fixtures::wl2;

    fn share(template: &str, scope: Scope) -> Share {
        Share {
            template: Arc::from(template),
            scope,
            among: Among::Everybody,
        }
    }

    fn clique(name: &str) -> CliqueName {
        CliqueName::new(name).unwrap()
    }

    fn group() -> GroupName {
        GroupName::new("sg-x").unwrap()
    }

    /// Both scopes on every level, for WL2: `pc-a`, and `sg-x` of `pc-b` and `pc-c`.
    fn sharing() -> Sharing {
        let both = |name: &str| {
            vec![
                share(name, Scope::PerReplica),
                share(name, Scope::AllReplicas),
            ]
        };
        Sharing {
            set: both("s"),
            groups: [(group(), both("g"))].into(),
            cliques: [(clique("pc-a"), both("a")), (clique("pc-b"), both("b"))].into(),
        }
    }

    fn member(name: &str, replica: u32) -> CliqueId {
        CliqueId::Member {
            group: group(),
            replica,
            clique: clique(name),
        }
    }

    fn texts<'a>(claims: impl IntoIterator<Item = &'a ClaimId>) -> Vec<String> {
        let text = |claim: &ClaimId| {
            let of = claim
                .of
                .map_or_else(|| "all".to_owned(), |of| of.to_string());
            format!("{}-{of}", claim.template)
        };
        claims.into_iter().map(text).collect()
    }

    #[test]
    fn a_pod_gets_the_claims_of_every_level_around_it_from_the_outside_to_the_inside() {
        let sharing = sharing();
        let of_b = sharing.of_pod(3, &member("pc-b", 1), 2);
        assert_eq!(
            texts(&of_b),
            ["s-all", "s-3", "g-all", "g-1", "b-all", "b-2"]
        );
        let of_c = sharing.of_pod(0, &member("pc-c", 1), 2);
        assert_eq!(texts(&of_c), ["s-all", "s-0", "g-all", "g-1"]);
        let of_a = sharing.of_pod(0, &CliqueId::Standalone(clique("pc-a")), 1);
        assert_eq!(texts(&of_a), ["s-all", "s-0", "a-all", "a-1"]);
    }

    #[test]
    fn only_claims_of_single_pods_tie_no_pods() {
        let of_clique = |scope| Sharing {
            cliques: [(clique("pc-a"), vec![share("a", scope)])].into(),
            ..Sharing::default()
        };
        assert!(!Sharing::default().ties_pods() && !of_clique(Scope::PerReplica).ties_pods());
        assert!(of_clique(Scope::AllReplicas).ties_pods() && sharing().ties_pods());
        let of_group = Sharing {
            groups: [(group(), vec![share("g", Scope::PerReplica)])].into(),
            ..Sharing::default()
        };
        assert!(of_group.ties_pods());
    }

    #[test]
    fn a_filter_names_cliques_or_their_groups() {
        let mut sharing = Sharing {
            set: vec![share("s", Scope::AllReplicas)],
            ..Sharing::default()
        };
        let mut has = |among: Among, id: &CliqueId| {
            sharing.set[0].among = among;
            !sharing.of_pod(0, id, 0).is_empty()
        };
        let only_a = || Among::Only {
            cliques: [clique("pc-a")].into(),
            groups: BTreeSet::new(),
        };
        let only_x = || Among::Only {
            cliques: BTreeSet::new(),
            groups: [group()].into(),
        };
        let a = CliqueId::Standalone(clique("pc-a"));
        let b = member("pc-b", 0);
        assert!(has(only_a(), &a) && !has(only_a(), &b));
        assert!(has(only_x(), &b) && !has(only_x(), &a));
    }

    /// What pods name has to exist, whatever a plan does; and nothing else is there.
    #[test]
    fn every_claim_that_pods_name_exists_and_goes_with_what_it_is_for() {
        let (template, sharing) = (wl2(Startup::AnyOrder), sharing());
        let permit = Permit { may_update: false };
        let empty = Replica::default();
        let first = plan(&template, &empty, permit, now());
        let there = sharing.of_replica(0, &first, &empty);
        for (id, indexes) in &first.create {
            for index in indexes {
                for claim in sharing.of_pod(0, id, *index) {
                    assert!(
                        there.contains(&claim) || sharing.of_set().contains(&claim),
                        "{claim:?}"
                    );
                }
            }
        }
        // One of the set; three of the group; of pc-a one and two; of each pc-b one and one.
        assert_eq!(there.len(), 1 + 3 + 3 + 2 * 2);
        assert_eq!(texts(&sharing.of_set()), ["s-all"]);
    }

    #[test]
    fn a_pods_claim_stays_while_it_ends_and_indexes_with_holes_keep_theirs() {
        let (template, sharing) = (wl2(Startup::AnyOrder), sharing());
        let a = CliqueId::Standalone(clique("pc-a"));
        let mut observed = Replica::default();
        let hash = template.clique(a.template()).unwrap().hash.clone();
        let of_template = |uid: &str, index: u32| Pod {
            hash: hash.clone(),
            ..pod(uid, index)
        };
        let ending = Pod {
            terminating: true,
            ..of_template("x", 4)
        };
        let found = Clique {
            replicas: 1,
            hash: hash.clone(),
            terminating: false,
            hold_until: None,
            pods: vec![of_template("y", 2), ending],
        };
        observed.cliques.insert(a.clone(), found);
        let permit = Permit { may_update: false };
        let of_pods = |observed: &Replica| {
            let planned = plan(&template, observed, permit, now());
            let claims = sharing.of_replica(0, &planned, observed);
            let own = claims
                .into_iter()
                .filter(|claim| claim.owner == Owner::Clique(a.clone()));
            own.filter_map(|claim| claim.of).collect::<Vec<_>>()
        };
        assert_eq!(of_pods(&observed), [2, 4]);
        observed.cliques.get_mut(&a).unwrap().pods.pop();
        assert_eq!(of_pods(&observed), [2]);
    }
}
