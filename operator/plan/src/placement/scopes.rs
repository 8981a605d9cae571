//! The gang and its parts as a tree of scopes: what lies in what, and whose pods each has.

use super::place::{Domain, Gang, Topology, domains, too_little};
use super::reason::Reason;
use super::table::Table;
use std::cmp::Reverse;

/// A set of pods that may have to share a domain. Scope 0 is the gang; scope `n` is the part at `n - 1`, which comes after
/// the scopes that it lies in.
#[derive(Debug)]
pub(super) struct Scope<'g> {
    pub(super) topology: Option<&'g Topology>,
    /// The innermost scope that holds it; 0 for the gang itself.
    pub(super) parent: usize,
    /// How many scopes it lies in.
    depth: usize,
    /// The scopes right inside it, those with a place already first, then those with the largest demand.
    pub(super) children: Vec<usize>,
    /// Classes of its pods that no scope inside it has.
    pub(super) own: Vec<usize>,
    /// Classes of all its pods.
    pub(super) all: Vec<usize>,
    /// A scope before it that could change places with it: both ask for the same, side by side.
    pub(super) alike: Option<usize>,
}

/// All scopes of a gang.
#[derive(Debug)]
pub(super) struct Scopes<'g> {
    pub(super) gang: &'g Gang,
    pub(super) scopes: Vec<Scope<'g>>,
    /// The column by which the room of domains is compared.
    pub(super) scarcest: usize,
}

/// Preferred domains of scopes this deep and deeper are given up.
#[derive(Clone, Copy, Debug)]
pub(super) struct GivenUp(usize);

impl<'g> Scopes<'g> {
    pub(super) fn new(table: &Table<'_, '_>, gang: &'g Gang) -> Self {
        let mut scopes: Vec<Scope<'g>> = vec![scope(gang.topology.as_ref(), 0, 0)];
        for (position, part) in gang.parts.iter().enumerate() {
            let before = &gang.parts[..position];
            let holds = |outer: &super::place::Part| part.groups.is_subset(&outer.groups);
            let parent = before.iter().rposition(holds).map_or(0, |outer| outer + 1);
            let depth = scopes[parent].depth + 1;
            scopes[parent].children.push(position + 1);
            scopes.push(scope(Some(&part.topology), parent, depth));
        }
        for (class, of) in table.classes.iter().enumerate() {
            scopes[of.scope].own.push(class);
        }
        for inner in (0..scopes.len()).rev() {
            let mut all = scopes[inner].own.clone();
            for &child in &scopes[inner].children {
                all.extend_from_slice(&scopes[child].all);
            }
            all.sort_unstable();
            scopes[inner].all = all;
        }
        let mut this = Self {
            gang,
            scopes,
            scarcest: table.scarcest(),
        };
        this.find_alike(table);
        this.order_children(table);
        this
    }

    fn find_alike(&mut self, table: &Table<'_, '_>) {
        for scope in 0..self.scopes.len() {
            let siblings = self.scopes[self.scopes[scope].parent].children.clone();
            let before = siblings.into_iter().filter(|sibling| *sibling < scope);
            self.scopes[scope].alike = before
                .rev()
                .find(|&other| self.is_alike(table, scope, other));
        }
    }

    fn is_alike(&self, table: &Table<'_, '_>, a: usize, b: usize) -> bool {
        let (a, b) = (&self.scopes[a], &self.scopes[b]);
        let asks = |scope: &Scope<'g>| {
            let of = |class: &usize| (table.classes[*class].needs, table.classes[*class].floor);
            scope.own.iter().map(of).collect::<Vec<_>>()
        };
        let mut children = a.children.iter().zip(&b.children);
        a.topology == b.topology
            && asks(a) == asks(b)
            && a.children.len() == b.children.len()
            && children.all(|(a, b)| self.is_alike(table, *a, *b))
    }

    fn order_children(&mut self, table: &Table<'_, '_>) {
        for scope in 0..self.scopes.len() {
            let mut children = std::mem::take(&mut self.scopes[scope].children);
            children.sort_by_cached_key(|&child| {
                let has_place = self.scopes[child]
                    .topology
                    .is_some_and(|topology| topology.within.is_some());
                (!has_place, Reverse(self.demand(table, child)), child)
            });
            self.scopes[scope].children = children;
        }
    }

    /// What the floors of a scope take of the scarcest resource.
    pub(super) fn demand(&self, table: &Table<'_, '_>, scope: usize) -> i128 {
        table.demand(self.scopes[scope].all.iter().copied(), self.scarcest)
    }

    /// What is given up in turn: nothing, then preferred domains from the innermost out.
    pub(super) fn rounds(&self) -> Vec<GivenUp> {
        let is_preferred = |scope: &&Scope<'g>| scope.topology.is_some_and(|of| !of.required);
        let preferred = self.scopes.iter().filter(is_preferred);
        let mut depths: Vec<usize> = preferred.map(|scope| scope.depth).collect();
        depths.push(usize::MAX);
        depths.sort_unstable_by_key(|depth| Reverse(*depth));
        depths.dedup();
        depths.into_iter().map(GivenUp).collect()
    }

    /// The domain that the pods of a scope have to share.
    pub(super) fn shared(&self, scope: usize, given_up: GivenUp) -> Option<&'g Topology> {
        let of = &self.scopes[scope];
        of.topology
            .filter(|topology| topology.required || of.depth < given_up.0)
    }

    /// Why a scope does not fit into rows, by sums over it and over each scope inside it.
    pub(super) fn obstacle(
        &self,
        table: &Table<'_, '_>,
        scope: usize,
        rows: &[usize],
        given_up: GivenUp,
    ) -> Option<Reason> {
        let of = &self.scopes[scope];
        too_little(table, self.gang, &of.all, rows).or_else(|| {
            let mut children = of.children.iter();
            children.find_map(|&child| match self.shared(child, given_up) {
                Some(topology) => self.no_domain(table, child, topology, rows, given_up),
                None => self.obstacle(table, child, rows, given_up),
            })
        })
    }

    /// Why a scope fits into none of the domains among rows.
    fn no_domain(
        &self,
        table: &Table<'_, '_>,
        scope: usize,
        topology: &Topology,
        rows: &[usize],
        given_up: GivenUp,
    ) -> Option<Reason> {
        let domains = domains(table, topology, rows);
        let mut most = None;
        for Domain { rows, .. } in &domains {
            let reason = self.obstacle(table, scope, rows, given_up)?;
            let room = table.supply(rows, self.scarcest);
            if most.as_ref().is_none_or(|(least, _)| room > *least) {
                most = Some((room, reason));
            }
        }
        let groups = |class: &usize| table.classes[*class].groups.iter().copied();
        let mut groups: Vec<usize> = self.scopes[scope].all.iter().flat_map(groups).collect();
        groups.sort_unstable();
        let first = groups.first().map(|&group| &self.gang.groups[group].name);
        Some(match most {
            None => Reason::NoDomain {
                key: topology.key.clone(),
                value: topology.within.clone(),
            },
            Some((_, reason)) => Reason::Part {
                group: first.cloned().unwrap_or_default(),
                more_groups: groups.len().saturating_sub(1),
                key: topology.key.clone(),
                domains: domains.len(),
                reason: Box::new(reason),
            },
        })
    }
}

fn scope(topology: Option<&Topology>, parent: usize, depth: usize) -> Scope<'_> {
    Scope {
        topology,
        parent,
        depth,
        children: Vec::new(),
        own: Vec::new(),
        all: Vec::new(),
        alike: None,
    }
}
