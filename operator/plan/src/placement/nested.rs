//! Places a gang whose parts share domains of their own, such as a rack for each replica of a group inside the gang's block.
//!
//! First greedily: a scope takes the domain with the least room that holds it, the scopes inside it come before the rest
//! of its pods, and a domain that was taken for one scope is not reconsidered for the sake of another beside it. What
//! greed misses is tried out: every choice of domains whose sums allow it, and for each choice every way to divide the
//! pods over the nodes. So a place that exists is found, and its absence proved, within the effort that a gang may cost;
//! beyond it the answer is [`Reason::GaveUp`], which proves nothing.
//!
//! Preferred domains are given up by depth, the innermost first, until a place is found; required ones never. Within the
//! depths that are given up greed still keeps each domain that it can. What is tried out after it keeps none of these, so
//! one part of such a depth may be spread although only another one of the same depth had to be.

use super::pack::{Assignment, Room, pack};
use super::place::{Domain, Gang, Placement, domains, finish};
use super::reason::{DomainReason, Reason};
use super::scopes::{GivenUp, Scopes};
use super::search::{Found, search};
use super::table::Table;

/// Places the floor of the gang.
///
/// # Errors
/// What stands in the way in each domain of the gang, were all preferred domains given up.
pub(super) fn place_nested<'g>(
    table: &mut Table<'_, 'g>,
    gang: &'g Gang,
    effort: &mut u64,
) -> Result<Placement, Vec<DomainReason>> {
    let scopes = Scopes::new(table, gang);
    let rounds = scopes.rounds();
    let reasons = rounds
        .last()
        .map(|&given_up| reasons(&scopes, table, given_up))
        .unwrap_or_default();
    if reasons.iter().all(|(_, reason)| reason.is_some()) {
        return Err(named(reasons, &Reason::NotTogether));
    }
    let mut last = Reason::NotTogether;
    for (round, &given_up) in rounds.iter().enumerate() {
        if let Some((assignment, domains)) = greedy(&scopes, table, given_up) {
            return Ok(placed(table, gang, assignment, domains));
        }
        // Rounds to come keep their share, so that a wish that is hard to prove impossible costs no other.
        let share = *effort / u64::try_from(rounds.len() - round).unwrap_or(1);
        let mut trial = Trial::new(&scopes, table, given_up, share);
        let found = trial.choose(0);
        let domains = std::mem::take(&mut trial.names);
        *effort = *effort - share + trial.effort;
        last = match found {
            Found::Place(assignment) => return Ok(placed(table, gang, assignment, domains)),
            Found::Nothing => Reason::NotTogether,
            Found::Unknown => Reason::GaveUp,
        };
    }
    Err(named(reasons, &last))
}

fn placed(
    table: &Table<'_, '_>,
    gang: &Gang,
    assignment: Assignment,
    domains: Vec<Option<String>>,
) -> Placement {
    let mut domains = domains.into_iter();
    let of_gang = domains.next().flatten();
    Placement {
        parts: domains.collect(),
        ..finish(table, gang, of_gang, assignment)
    }
}

/// The domains of the gang, and what sums say against each.
fn reasons(
    scopes: &Scopes<'_>,
    table: &Table<'_, '_>,
    given_up: GivenUp,
) -> Vec<(Domain, Option<Reason>)> {
    let everywhere = Domain {
        name: None,
        rows: (0..table.rows.len()).collect(),
    };
    let all = match scopes.shared(0, given_up) {
        Some(topology) => {
            let domains = domains(table, topology, &everywhere.rows);
            if domains.is_empty() {
                let reason = Reason::NoDomain {
                    key: topology.key.clone(),
                    value: topology.within.clone(),
                };
                return vec![(everywhere, Some(reason))];
            }
            domains
        }
        None => vec![everywhere],
    };
    all.into_iter()
        .map(|domain| {
            let reason = scopes.obstacle(table, 0, &domain.rows, given_up);
            (domain, reason)
        })
        .collect()
}

fn named(reasons: Vec<(Domain, Option<Reason>)>, otherwise: &Reason) -> Vec<DomainReason> {
    reasons
        .into_iter()
        .map(|(domain, reason)| DomainReason {
            domain: domain.name,
            nodes: domain.rows.len(),
            reason: reason.unwrap_or_else(|| otherwise.clone()),
        })
        .collect()
}

/// An assignment, and the domain of each scope.
type Nested = (Assignment, Vec<Option<String>>);

fn greedy(scopes: &Scopes<'_>, table: &Table<'_, '_>, given_up: GivenUp) -> Option<Nested> {
    let everywhere: Vec<usize> = (0..table.rows.len()).collect();
    let mut greed = Greed {
        scopes,
        table,
        given_up,
        room: Room::everywhere(table),
        taken: Vec::new(),
        names: vec![None; scopes.scopes.len()],
    };
    if !greed.settle(0, &everywhere) {
        return None;
    }
    let mut assignment = vec![Vec::new(); table.classes.len()];
    for (class, row) in greed.taken {
        assignment[class].push(row);
    }
    Some((assignment, greed.names))
}

struct Greed<'t, 's, 'g> {
    scopes: &'t Scopes<'g>,
    table: &'t Table<'s, 'g>,
    given_up: GivenUp,
    room: Room,
    /// Class and row of each pod that has its place, in the order of placing.
    taken: Vec<(usize, usize)>,
    names: Vec<Option<String>>,
}

impl Greed<'_, '_, '_> {
    /// Finds a domain among rows for a scope, or spreads it where it need not share one.
    fn settle(&mut self, scope: usize, rows: &[usize]) -> bool {
        let (scopes, table) = (self.scopes, self.table);
        if let Some(topology) = scopes.scopes[scope].topology {
            let demand = scopes.demand(table, scope);
            let domains = domains(table, topology, rows).into_iter();
            let mut domains: Vec<(i128, Domain)> = domains
                .map(|domain| (self.room.left(&domain.rows, scopes.scarcest), domain))
                .filter(|(left, _)| *left >= demand)
                .collect();
            // The sort is stable, and domains come by name.
            domains.sort_by_key(|(left, _)| *left);
            for (_, domain) in domains {
                if self.fill(scope, &domain.rows) {
                    self.names[scope] = domain.name;
                    return true;
                }
            }
        }
        self.names[scope] = None;
        scopes.shared(scope, self.given_up).is_none() && self.fill(scope, rows)
    }

    /// Places all pods of a scope on rows, or none.
    fn fill(&mut self, scope: usize, rows: &[usize]) -> bool {
        let (before, scopes) = (self.taken.len(), self.scopes);
        let of = &scopes.scopes[scope];
        let is_full = of.children.iter().all(|&child| self.settle(child, rows))
            && of.own.iter().all(|&class| self.fill_class(class, rows));
        if !is_full {
            for (class, row) in self.taken.drain(before..) {
                self.room.put_back(self.table, class, row);
            }
        }
        is_full
    }

    fn fill_class(&mut self, class: usize, rows: &[usize]) -> bool {
        (0..self.table.classes[class].floor).all(|_| {
            let row = self.room.take_at(self.table, class, rows.iter().copied());
            self.taken.extend(row.map(|row| (class, row)));
            row.is_some()
        })
    }
}

/// Tries out which domains scopes take.
struct Trial<'t, 's, 'g> {
    scopes: &'t Scopes<'g>,
    table: &'t mut Table<'s, 'g>,
    given_up: GivenUp,
    /// What may still be spent: one for each domain that is tried, and one for each row that is looked at for it.
    effort: u64,
    everywhere: Vec<usize>,
    /// For each scope that has chosen, where its pods go.
    rows: Vec<Vec<usize>>,
    names: Vec<Option<String>>,
    /// For each scope that has chosen, the position of its choice in the list of its domains.
    choices: Vec<usize>,
}

impl<'t, 's, 'g> Trial<'t, 's, 'g> {
    fn new(
        scopes: &'t Scopes<'g>,
        table: &'t mut Table<'s, 'g>,
        given_up: GivenUp,
        effort: u64,
    ) -> Self {
        let count = scopes.scopes.len();
        Self {
            scopes,
            given_up,
            effort,
            everywhere: (0..table.rows.len()).collect(),
            rows: vec![Vec::new(); count],
            names: vec![None; count],
            choices: vec![0; count],
            table,
        }
    }

    /// Lets the scopes from this one on choose.
    fn choose(&mut self, scope: usize) -> Found {
        let Some(of) = self.scopes.scopes.get(scope) else {
            return self.divide();
        };
        let around = match scope {
            0 => self.everywhere.clone(),
            _ => self.rows[of.parent].clone(),
        };
        let Some(topology) = self.scopes.shared(scope, self.given_up) else {
            (self.rows[scope], self.names[scope]) = (around, None);
            return self.choose(scope + 1);
        };
        if !self.spend(around.len()) {
            return Found::Unknown;
        }
        let mut domains = domains(self.table, topology, &around);
        domains.retain(|domain| {
            let obstacle = self
                .scopes
                .obstacle(self.table, scope, &domain.rows, self.given_up);
            obstacle.is_none()
        });
        domains.sort_by_cached_key(|domain| self.table.supply(&domain.rows, self.scopes.scarcest));
        // Of two scopes that could change places, only one order is tried.
        let first = of.alike.map_or(0, |alike| self.choices[alike]);
        for (position, Domain { name, rows }) in domains.into_iter().enumerate().skip(first) {
            if !self.spend(rows.len()) {
                return Found::Unknown;
            }
            self.choices[scope] = position;
            (self.rows[scope], self.names[scope]) = (rows, name);
            if self.is_overfull(scope) {
                continue;
            }
            match self.choose(scope + 1) {
                Found::Nothing => {}
                found @ (Found::Place(_) | Found::Unknown) => return found,
            }
        }
        Found::Nothing
    }

    /// Divides the pods over the nodes of their scopes.
    fn divide(&mut self) -> Found {
        let rows = self.table.confine(|scope| self.rows[scope].as_slice());
        let found = if !self.spend(rows.len()) {
            Found::Unknown
        } else if let Some(assignment) = pack(self.table, &mut Room::new(self.table, &rows)) {
            Found::Place(assignment)
        } else {
            search(self.table, &rows, &mut self.effort)
        };
        self.table.set_free();
        found
    }

    /// Whether the scopes that have chosen want more than there is of a domain that the choice of `latest` lies in.
    fn is_overfull(&self, latest: usize) -> bool {
        let chosen = self.rows[..=latest].iter();
        let mut around = chosen.filter(|rows| is_within(&self.rows[latest], rows));
        around.any(|rows| {
            let is_inside = |class: &usize| {
                let mut scope = self.table.classes[*class].scope;
                while scope > latest {
                    scope = self.scopes.scopes[scope].parent;
                }
                is_within(&self.rows[scope], rows)
            };
            let inside: Vec<usize> = (0..self.table.classes.len()).filter(is_inside).collect();
            (0..self.table.columns()).any(|column| {
                let demand = self.table.demand(inside.iter().copied(), column);
                demand > self.table.supply(rows, column)
            })
        })
    }

    /// Whether there is effort left after this much.
    fn spend(&mut self, rows: usize) -> bool {
        let cost = u64::try_from(rows).unwrap_or(u64::MAX).saturating_add(1);
        self.effort = self.effort.saturating_sub(cost);
        self.effort > 0
    }
}

/// Whether ascending rows are all among others.
fn is_within(rows: &[usize], others: &[usize]) -> bool {
    let mut others = others.iter();
    rows.iter()
        .all(|row| others.by_ref().find(|other| *other >= row) == Some(row))
}
