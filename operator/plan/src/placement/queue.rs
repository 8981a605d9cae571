//! Which of the gangs that wait gets room first.
//!
//! The rule: higher priority first, then who has waited longest, then the name. Pods above the floor come after the
//! floors of all gangs of their priority. A gang that fits is placed even when an earlier one does not fit, so that no
//! room stands idle. That could starve a large gang for ever, because small
//! ones keep taking what becomes free. So the first gang in the order that has waited longer than
//! [`Settings::patience`] *claims* nodes: those on which it needs the least to be vacated. Gangs behind it get nothing
//! on them until it is placed. A gang that would not even fit on empty nodes claims nothing.

use super::node::{Node, Snapshot};
use super::place::{EFFORT, Gang, Group, Placement, Topology, occupy, place_above, place_floor};
use super::reason::{Reason, Unplaceable};
use super::table::{Table, part};
use jiff::{SignedDuration, Timestamp};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// A gang that waits for nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The gang.
    pub gang: Gang,
    /// Priority of its pods; higher goes first.
    pub priority: i32,
    /// Since when it waits.
    pub since: Timestamp,
}

/// How the order works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How long a gang lets others pass before it claims nodes.
    pub patience: SignedDuration,
}

/// What is done about all gangs that wait.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    /// Positions in the list of waiting gangs, and where each goes.
    pub placements: Vec<(usize, Placement)>,
    /// Positions in the list of waiting gangs, and why each does not fit. With many equal gangs the numbers are those
    /// of the first one's attempt.
    pub refusals: Vec<(usize, Unplaceable)>,
    /// Nodes that are kept for the gang that has waited too long.
    pub claim: Option<Claim>,
    /// When the answer may change although nothing else does.
    pub recheck_at: Option<Timestamp>,
}

/// Nodes kept for one gang.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Position of the gang in the list of waiting gangs.
    pub gang: usize,
    /// Names of the nodes.
    pub nodes: BTreeSet<String>,
}

/// Places as many gangs as fit, in the fair order, each on what the ones before it left.
#[must_use]
pub fn schedule(
    snapshot: &Snapshot,
    waiting: &[Waiting],
    now: Timestamp,
    settings: Settings,
) -> Schedule {
    let mut order: Vec<usize> = (0..waiting.len()).collect();
    order.sort_by_key(|&position| {
        let Waiting {
            gang,
            priority,
            since,
        } = &waiting[position];
        (Reverse(*priority), *since, &gang.name)
    });
    let mut left = snapshot.clone();
    let mut refused: BTreeMap<Signature<'_>, usize> = BTreeMap::new();
    let mut schedule = Schedule::default();
    let mut above = Vec::new();
    for position in order {
        let Waiting {
            gang,
            since,
            priority,
        } = &waiting[position];
        place_all_above(&mut left, waiting, &mut above, &mut schedule, |of| {
            of > *priority
        });
        let signature = Signature::of(gang);
        // Room only shrinks from here on, so what was refused once stays refused.
        let attempt = match refused.get(&signature) {
            Some(&earlier) => Err(renamed(
                &schedule.refusals[earlier].1,
                &waiting[schedule.refusals[earlier].0].gang,
                gang,
            )),
            None => place_floor(&left, gang, EFFORT),
        };
        match attempt {
            Ok(placement) => {
                occupy(&mut left, gang, &placement.bindings);
                if gang.has_pods_above() {
                    above.push(schedule.placements.len());
                }
                schedule.placements.push((position, placement));
            }
            Err(unplaceable) => {
                refused.entry(signature).or_insert(schedule.refusals.len());
                schedule.refusals.push((position, unplaceable));
                if schedule.claim.is_none() && has_patience_run_out(*since, now, settings) {
                    schedule.claim = claim(&left, gang).map(|nodes| Claim {
                        gang: position,
                        nodes,
                    });
                    for node in schedule.claim.iter().flat_map(|claim| &claim.nodes) {
                        left.withhold(node);
                    }
                }
            }
        }
    }
    place_all_above(&mut left, waiting, &mut above, &mut schedule, |_| true);
    schedule.recheck_at = recheck_at(&schedule, waiting, now, settings);
    schedule
}

/// Adds the pods above the floor of gangs whose priority is `due`, and takes these gangs off the list.
fn place_all_above(
    left: &mut Snapshot,
    waiting: &[Waiting],
    above: &mut Vec<usize>,
    schedule: &mut Schedule,
    due: impl Fn(i32) -> bool,
) {
    above.retain(|&number| {
        let (position, placement) = &mut schedule.placements[number];
        let Waiting { gang, priority, .. } = &waiting[*position];
        if !due(*priority) {
            return true;
        }
        let floor = placement.bindings.len();
        place_above(left, gang, placement);
        occupy(left, gang, &placement.bindings[floor..]);
        false
    });
}

fn has_patience_run_out(since: Timestamp, now: Timestamp, settings: Settings) -> bool {
    since
        .checked_add(settings.patience)
        .is_ok_and(|until| until <= now)
}

/// The next instant at which a gang may begin to claim nodes.
fn recheck_at(
    schedule: &Schedule,
    waiting: &[Waiting],
    now: Timestamp,
    settings: Settings,
) -> Option<Timestamp> {
    if schedule.claim.is_some() {
        return None;
    }
    let refused = schedule
        .refusals
        .iter()
        .map(|(position, _)| waiting[*position].since);
    refused
        .filter_map(|since| since.checked_add(settings.patience).ok())
        .filter(|until| *until > now)
        .min()
}

/// A domain: its key, the value that it must have, and whether it is required.
type Level<'g> = (&'g str, Option<&'g str>, bool);

/// What decides whether a gang fits: two gangs with equal ones fit or do not fit together.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Signature<'g> {
    groups: Vec<(&'g super::PodNeeds, u32, bool)>,
    topology: Option<Level<'g>>,
    parts: Vec<(&'g BTreeSet<usize>, Level<'g>)>,
    avoid: &'g BTreeSet<String>,
}

impl<'g> Signature<'g> {
    fn of(gang: &'g Gang) -> Self {
        let group = |group: &'g Group| {
            (
                &group.needs,
                group.floor,
                group.pods.len() as u64 >= u64::from(group.floor),
            )
        };
        let level = |topology: &'g Topology| {
            (
                topology.key.as_str(),
                topology.within.as_deref(),
                topology.required,
            )
        };
        let parts = gang.parts.iter();
        Self {
            groups: gang.groups.iter().map(group).collect(),
            topology: gang.topology.as_ref().map(level),
            parts: parts
                .map(|part| (&part.groups, level(&part.topology)))
                .collect(),
            avoid: &gang.avoid,
        }
    }
}

/// The refusal of one gang in the words of another one with the same signature.
fn renamed(unplaceable: &Unplaceable, from: &Gang, to: &Gang) -> Unplaceable {
    let mut renamed = Unplaceable {
        gang: to.name.clone(),
        domains: unplaceable.domains.clone(),
    };
    for domain in &mut renamed.domains {
        rename(&mut domain.reason, from, to);
    }
    renamed
}

fn rename(reason: &mut Reason, from: &Gang, to: &Gang) {
    let of = |name: &String| {
        let position = from.groups.iter().position(|group| group.name == *name)?;
        Some(&to.groups[position])
    };
    match reason {
        Reason::Incomplete { group, pods, .. } => {
            if let Some(of) = of(group) {
                (*group, *pods) = (of.name.clone(), of.pods.len());
            }
        }
        Reason::TooFew { group, .. } => {
            if let Some(of) = of(group) {
                group.clone_from(&of.name);
            }
        }
        Reason::Part { group, reason, .. } => {
            if let Some(of) = of(group) {
                group.clone_from(&of.name);
            }
            rename(reason, from, to);
        }
        Reason::NoDomain { .. }
        | Reason::TooMuchTogether { .. }
        | Reason::NotTogether
        | Reason::GaveUp => {}
    }
}

/// The nodes that a gang would take if it waited for others to leave: those where the least has to leave.
fn claim(snapshot: &Snapshot, gang: &Gang) -> Option<BTreeSet<String>> {
    let emptied = snapshot.emptied();
    if !gang.parts.is_empty() {
        return claim_nested(snapshot, &emptied, gang);
    }
    let (now, then) = (Table::new(snapshot, gang), Table::new(&emptied, gang));
    let names = |rows: BTreeSet<usize>| {
        rows.into_iter()
            .map(|row| now.rows[row].node.shape.name.clone())
            .collect()
    };
    let everywhere: Vec<usize> = (0..now.rows.len()).collect();
    let Some(topology) = &gang.topology else {
        return vacate(&now, &then, &everywhere).map(|(_, rows)| names(rows));
    };
    let domains = super::place::domains(&now, topology, &everywhere).into_iter();
    let candidates = domains.filter_map(|domain| vacate(&now, &then, &domain.rows));
    let best = candidates.min_by_key(|(shortage, _)| *shortage);
    let spread = || {
        if topology.required {
            None
        } else {
            vacate(&now, &then, &everywhere)
        }
    };
    best.or_else(spread).map(|(_, rows)| names(rows))
}

/// The same for a gang whose parts share domains: it is placed on empty nodes, in each of its own domains, and the domain
/// where the least has to leave counts. Inside it the parts take what they would take if everything were empty.
fn claim_nested(snapshot: &Snapshot, emptied: &Snapshot, gang: &Gang) -> Option<BTreeSet<String>> {
    let mut of_domain: BTreeMap<&str, Vec<Node>> = BTreeMap::new();
    if let Some(topology) = &gang.topology {
        for node in emptied.nodes() {
            if let Some(domain) = node.shape.labels.get(&topology.key) {
                of_domain.entry(domain).or_default().push(node.clone());
            }
        }
    }
    let effort = EFFORT / u64::try_from(of_domain.len().max(1)).unwrap_or(EFFORT);
    let on = |nodes: &Snapshot| {
        let placement = place_floor(nodes, gang, effort).ok()?;
        Some((shortage(snapshot, gang, &placement), placement))
    };
    let domains = of_domain
        .into_values()
        .filter_map(|nodes| on(&Snapshot::new(nodes)));
    let best = domains.min_by_key(|(shortage, _)| *shortage);
    let (_, placement) = best.or_else(|| on(emptied))?;
    let nodes = placement.bindings.into_iter().map(|binding| binding.node);
    Some(nodes.collect())
}

/// How much would have to leave for a placement, in thousandths of the largest node's resources.
fn shortage(snapshot: &Snapshot, gang: &Gang, placement: &Placement) -> i128 {
    let table = Table::new(snapshot, gang);
    let class_of: BTreeMap<usize, usize> = table
        .classes_by_group()
        .into_iter()
        .map(|(class, group)| (group, class))
        .collect();
    let mut free: BTreeMap<&str, Vec<i64>> = BTreeMap::new();
    for row in &table.rows {
        free.insert(&row.node.shape.name, row.free.clone());
    }
    let mut sum = 0;
    for binding in &placement.bindings {
        let request = &table.classes[class_of[&binding.group]].request;
        let Some(free) = free.get_mut(&*binding.node) else {
            continue;
        };
        for (column, (amount, free)) in request.iter().zip(free).enumerate() {
            let missing = amount.saturating_sub((*free).max(0)).max(0);
            sum += i128::from(part(missing, table.scale(column)));
            *free = free.saturating_sub(*amount);
        }
    }
    sum
}

/// Places the floor as if nodes could be vacated, and says how much would have to leave, and which nodes are used.
///
/// `now` and `then` are tables of the same nodes and gang, as full as they are and as empty as they can become.
fn vacate(
    now: &Table<'_, '_>,
    then: &Table<'_, '_>,
    rows: &[usize],
) -> Option<(i128, BTreeSet<usize>)> {
    let mut free_now: BTreeMap<usize, Vec<i64>> = rows
        .iter()
        .map(|&row| (row, now.rows[row].free.clone()))
        .collect();
    let mut free_then: BTreeMap<usize, Vec<i64>> = rows
        .iter()
        .map(|&row| (row, then.rows[row].free.clone()))
        .collect();
    let (mut shortage, mut used) = (0, BTreeSet::new());
    // The two tables may list classes in different orders; the order of `then` counts.
    for (class, of) in then.classes.iter().enumerate() {
        for _ in 0..of.floor {
            let fits = |row: &&usize| then.fits(class, **row, &free_then[*row]);
            let missing = |row: &usize| -> i128 {
                let columns = of.request.iter().zip(&free_now[row]).enumerate();
                let short = columns.map(|(column, (amount, free))| {
                    if *amount > 0 {
                        part(
                            amount.saturating_sub((*free).max(0)).max(0),
                            then.scale(column),
                        )
                    } else {
                        0
                    }
                });
                short.map(i128::from).sum()
            };
            // By name among equals, and not the fullest: others filling up must not move the claim.
            let row = *rows
                .iter()
                .filter(fits)
                .min_by_key(|row| (missing(row), **row))?;
            shortage += missing(&row);
            used.insert(row);
            for free in [free_now.get_mut(&row), free_then.get_mut(&row)]
                .into_iter()
                .flatten()
            {
                free.iter_mut()
                    .zip(&of.request)
                    .for_each(|(free, amount)| *free = free.saturating_sub(*amount));
            }
        }
    }
    Some((shortage, used))
}
