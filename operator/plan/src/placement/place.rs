//! Places one gang.

use super::needs::PodNeeds;
use super::nested::place_nested;
use super::node::Snapshot;
use super::pack::{Assignment, Room, pack};
use super::reason::{DomainReason, Obstacle, Reason, Unplaceable};
use super::search::{Found, search};
use super::table::Table;
use std::collections::{BTreeMap, BTreeSet};

/// Pods that are placed together or not at all. Pods of the gang that run already are not part of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gang {
    /// Name of the gang, for reasons and order.
    pub name: String,
    /// Pods by template.
    pub groups: Vec<Group>,
    /// A node label that all pods must share.
    pub topology: Option<Topology>,
    /// Parts of the gang that share domains of their own, inside the gang's. Of two parts one holds the other and comes
    /// first, or they have no group in common.
    pub parts: Vec<Part>,
    /// Nodes that this gang must not be planned on for now, because kube-scheduler refused them.
    pub avoid: BTreeSet<String>,
}

/// Pods of a gang with the same needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// Name of the group, for reasons.
    pub name: String,
    /// What each pod needs.
    pub needs: PodNeeds,
    /// Names of the pods. The first `floor` of them are placed or the gang is not.
    pub pods: Vec<String>,
    /// Pods that must be placed, `0..`; those above are placed where there is room.
    pub floor: u32,
}

/// Groups of a gang that share a domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Positions of the groups in the gang.
    pub groups: BTreeSet<usize>,
    /// The domain, which lies inside those of the parts that hold this one.
    pub topology: Topology,
}

impl Gang {
    /// The innermost scope of a group: 0 is the gang, any other number that of a part, counted from 1.
    pub(super) fn scope_of(&self, group: usize) -> usize {
        let holds = |part: &Part| part.groups.contains(&group);
        self.parts
            .iter()
            .rposition(holds)
            .map_or(0, |part| part + 1)
    }

    /// Whether the gang has pods beyond what must be placed.
    pub(super) fn has_pods_above(&self) -> bool {
        self.groups
            .iter()
            .any(|group| group.pods.len() as u64 > u64::from(group.floor))
    }
}

/// The domain that the pods of a gang, or of a part of it, share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// Key of the node label whose value is the domain.
    pub key: String,
    /// The domain in which pods of the gang run already.
    pub within: Option<String>,
    /// Whether pods that fit into no domain together wait; otherwise they are spread over several.
    pub required: bool,
}

/// Where the pods of a gang go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// The topology domain that was chosen.
    pub domain: Option<String>,
    /// The domain of each part of the gang; nothing where a preferred one was given up.
    pub parts: Vec<Option<String>>,
    /// The whole floor, and as many pods above it as there is room for.
    pub bindings: Vec<Binding>,
    /// Pods above the floor for which there is no room.
    pub left_out: Vec<String>,
}

/// A pod and its node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    /// Name of the pod.
    pub pod: String,
    /// Position of its group in the gang.
    pub group: usize,
    /// Name of the node.
    pub node: String,
}

/// Mixtures and nodes that are tried for one gang before it is given up: some tens of milliseconds.
pub(super) const EFFORT: u64 = 100_000;

/// Finds nodes for the whole floor of a gang, then for what it has above.
///
/// Of the domains that can hold the floor it takes the one with the least room, and in it the fullest nodes, so that
/// large gangs find room later. Equal choices are made by name: the same input gives the same answer. How domains are
/// chosen for a gang whose parts have some of their own is in `nested`.
///
/// # Errors
/// What stands in the way in each domain. Every reason but [`Reason::GaveUp`] is a proof.
pub fn place(snapshot: &Snapshot, gang: &Gang) -> Result<Placement, Unplaceable> {
    let mut placement = place_floor(snapshot, gang, EFFORT)?;
    if gang.has_pods_above() {
        let mut left = snapshot.clone();
        occupy(&mut left, gang, &placement.bindings);
        place_above(&left, gang, &mut placement);
    }
    Ok(placement)
}

/// Takes the room of bindings.
pub(super) fn occupy(snapshot: &mut Snapshot, gang: &Gang, bindings: &[Binding]) {
    for binding in bindings {
        snapshot.occupy(&binding.node, &gang.groups[binding.group].needs);
    }
}

/// Finds nodes for the floor alone, with the effort that may be spent on proofs.
pub(super) fn place_floor(
    snapshot: &Snapshot,
    gang: &Gang,
    mut effort: u64,
) -> Result<Placement, Unplaceable> {
    let mut table = Table::new(snapshot, gang);
    let nodes = table.rows.len();
    let everywhere = Domain {
        name: None,
        rows: (0..nodes).collect(),
    };
    let refuse = |domains| {
        Err(Unplaceable {
            gang: gang.name.clone(),
            domains,
        })
    };
    let for_all = |reason| {
        vec![DomainReason {
            domain: None,
            nodes,
            reason,
        }]
    };
    if let Some(reason) = incomplete(gang) {
        return refuse(for_all(reason));
    }
    if !gang.parts.is_empty() {
        return place_nested(&mut table, gang, &mut effort).or_else(refuse);
    }
    let Some(topology) = &gang.topology else {
        return place_in(&table, gang, vec![everywhere], &mut effort).or_else(refuse);
    };
    let domains = domains(&table, topology, &everywhere.rows);
    let narrow = if domains.is_empty() {
        Err(for_all(Reason::NoDomain {
            key: topology.key.clone(),
            value: topology.within.clone(),
        }))
    } else {
        place_in(&table, gang, domains, &mut effort)
    };
    match narrow {
        Ok(placement) => Ok(placement),
        Err(domains) if topology.required => refuse(domains),
        Err(_) => place_in(&table, gang, vec![everywhere], &mut effort).or_else(refuse),
    }
}

/// Adds the pods above the floor for which `snapshot`, where the floor has its room already, has room too.
pub(super) fn place_above(snapshot: &Snapshot, gang: &Gang, placement: &mut Placement) {
    let table = Table::new(snapshot, gang);
    let mut room = Room::everywhere(&table);
    let mut choices: BTreeMap<usize, Vec<Vec<usize>>> = BTreeMap::new();
    for (class, position) in table.classes_by_group() {
        let group = &gang.groups[position];
        let scope = table.classes[class].scope;
        for pod in group.pods.iter().skip(group.floor as usize) {
            let mut choices = choices
                .entry(scope)
                .or_insert_with(|| choices_above(&table, gang, placement, position))
                .iter();
            match choices.find_map(|rows| room.take_at(&table, class, rows.iter().copied())) {
                Some(row) => placement.bindings.push(binding(&table, pod, position, row)),
                None => placement.left_out.push(pod.clone()),
            }
        }
    }
}

/// The rows for pods of a group above the floor, the best choice first: in all domains that were chosen for the floor,
/// then without the preferred ones, from the innermost out.
fn choices_above(
    table: &Table<'_, '_>,
    gang: &Gang,
    placement: &Placement,
    group: usize,
) -> Vec<Vec<usize>> {
    let of_gang = gang.topology.iter().zip(&placement.domain);
    let parts = gang.parts.iter().zip(&placement.parts);
    let of_parts = parts
        .filter(|(part, _)| part.groups.contains(&group))
        .filter_map(|(part, domain)| Some((&part.topology, domain.as_ref()?)));
    let mut levels: Vec<(&Topology, &String)> = of_gang.chain(of_parts).collect();
    let mut choices = Vec::new();
    loop {
        let is_inside = |row: &usize| {
            let labels = &table.rows[*row].node.shape.labels;
            levels
                .iter()
                .all(|(topology, domain)| labels.get(&topology.key) == Some(*domain))
        };
        choices.push((0..table.rows.len()).filter(is_inside).collect());
        match levels.iter().rposition(|(topology, _)| !topology.required) {
            Some(innermost) => levels.remove(innermost),
            None => return choices,
        };
    }
}

fn incomplete(gang: &Gang) -> Option<Reason> {
    let short = gang
        .groups
        .iter()
        .find(|group| (group.pods.len() as u64) < u64::from(group.floor))?;
    Some(Reason::Incomplete {
        group: short.name.clone(),
        pods: short.pods.len(),
        floor: short.floor,
    })
}

/// Nodes among which one choice is made.
#[derive(Clone, Debug)]
pub(super) struct Domain {
    pub(super) name: Option<String>,
    /// In ascending order.
    pub(super) rows: Vec<usize>,
}

/// The domains among rows that pods may go to, by name.
pub(super) fn domains(table: &Table<'_, '_>, topology: &Topology, rows: &[usize]) -> Vec<Domain> {
    let mut rows_of: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for &position in rows {
        let labels = &table.rows[position].node.shape.labels;
        if let Some(value) = labels.get(&topology.key)
            && topology
                .within
                .as_ref()
                .is_none_or(|within| within == value)
        {
            rows_of.entry(value).or_default().push(position);
        }
    }
    rows_of
        .into_iter()
        .map(|(name, rows)| Domain {
            name: Some(name.to_owned()),
            rows,
        })
        .collect()
}

/// Places the gang in one of the domains.
fn place_in(
    table: &Table<'_, '_>,
    gang: &Gang,
    mut domains: Vec<Domain>,
    effort: &mut u64,
) -> Result<Placement, Vec<DomainReason>> {
    let scarcest = table.scarcest();
    let room = |domain: &Domain| table.supply(&domain.rows, scarcest);
    let all: Vec<usize> = (0..table.classes.len()).collect();
    // The sort is stable, and domains come by name.
    domains.sort_by_cached_key(room);
    let mut reasons = Vec::new();
    let mut hard = Vec::new();
    for domain in domains {
        if let Some(reason) = too_little(table, gang, &all, &domain.rows) {
            reasons.push(DomainReason {
                domain: domain.name,
                nodes: domain.rows.len(),
                reason,
            });
            continue;
        }
        match pack(table, &mut Room::new(table, &domain.rows)) {
            Some(assignment) => return Ok(finish(table, gang, domain.name, assignment)),
            None => hard.push(domain),
        }
    }
    for domain in hard {
        let reason = match search(table, &domain.rows, effort) {
            Found::Place(assignment) => return Ok(finish(table, gang, domain.name, assignment)),
            Found::Nothing => Reason::NotTogether,
            Found::Unknown => Reason::GaveUp,
        };
        reasons.push(DomainReason {
            domain: domain.name,
            nodes: domain.rows.len(),
            reason,
        });
    }
    reasons.sort_by(|a, b| a.domain.cmp(&b.domain));
    Err(reasons)
}

/// A reason why some classes do not fit into rows that follows from sums, without looking for a place.
pub(super) fn too_little(
    table: &Table<'_, '_>,
    gang: &Gang,
    classes: &[usize],
    rows: &[usize],
) -> Option<Reason> {
    for &position in classes {
        let class = &table.classes[position];
        let fit: u64 = rows
            .iter()
            .map(|&row| u64::from(table.capacity(position, row)))
            .sum();
        if fit < u64::from(class.floor) {
            return Some(Reason::TooFew {
                group: gang.groups[class.groups[0]].name.clone(),
                more_groups: class.groups.len() - 1,
                fit,
                floor: class.floor,
                obstacles: obstacles(table, position, rows),
            });
        }
    }
    let is_usable = |row: &usize| {
        let mut classes = classes.iter();
        classes.any(|&class| table.rows[*row].obstacles[class].is_none())
    };
    let usable: Vec<usize> = rows.iter().copied().filter(is_usable).collect();
    (0..table.columns()).find_map(|column| {
        let free_milli = table.supply(&usable, column);
        let needed_milli = table.demand(classes.iter().copied(), column);
        let resource = table
            .resources
            .get(column)
            .map_or("pod slots", AsRef::as_ref);
        (needed_milli > free_milli).then(|| Reason::TooMuchTogether {
            resource: resource.to_owned(),
            needed_milli,
            free_milli,
        })
    })
}

fn obstacles(table: &Table<'_, '_>, class: usize, rows: &[usize]) -> BTreeMap<Obstacle, usize> {
    let mut obstacles = BTreeMap::new();
    for &row in rows {
        let lacking = || {
            let column = table.shortest(class, &table.rows[row].free)?;
            Some(
                table
                    .resources
                    .get(column)
                    .map_or(Obstacle::NoSlot, |name| Obstacle::Lacks(name.clone())),
            )
        };
        if let Some(obstacle) = table.rows[row].obstacles[class].clone().or_else(lacking) {
            *obstacles.entry(obstacle).or_insert(0) += 1;
        }
    }
    obstacles
}

/// Turns the places of the floor into bindings.
pub(super) fn finish(
    table: &Table<'_, '_>,
    gang: &Gang,
    domain: Option<String>,
    assignment: Assignment,
) -> Placement {
    let mut placement = Placement {
        domain,
        ..Placement::default()
    };
    let mut rows_of: Vec<_> = assignment.into_iter().map(Vec::into_iter).collect();
    for (class, position) in table.classes_by_group() {
        let group = &gang.groups[position];
        let floor = group.pods.iter().take(group.floor as usize);
        let rows = rows_of[class].by_ref();
        placement.bindings.extend(
            floor
                .zip(rows)
                .map(|(pod, row)| binding(table, pod, position, row)),
        );
    }
    placement
}

fn binding(table: &Table<'_, '_>, pod: &str, group: usize, row: usize) -> Binding {
    Binding {
        pod: pod.to_owned(),
        group,
        node: table.rows[row].node.shape.name.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Node, NodeShape, Resources};
    use super::*;
    use std::sync::Arc;

    fn snapshot(cpus: &[i64]) -> Snapshot {
        let node = |(position, cpu): (usize, &i64)| {
            Node::empty(Arc::new(NodeShape {
                name: format!("n{position}"),
                ceiling: Resources::from_iter([("cpu", *cpu)]),
                slot_ceiling: 100,
                ..NodeShape::default()
            }))
        };
        Snapshot::new(cpus.iter().enumerate().map(node).collect())
    }

    /// Pods of `cpu`, `count` of each.
    fn gang(pods: &[(i64, u32)]) -> Gang {
        let group = |(cpu, count): &(i64, u32)| Group {
            name: format!("of-{cpu}"),
            needs: PodNeeds {
                requests: Resources::from_iter([("cpu", *cpu)]),
                ..PodNeeds::default()
            },
            pods: (0..*count).map(|pod| format!("of-{cpu}-{pod}")).collect(),
            floor: *count,
        };
        Gang {
            groups: pods.iter().map(group).collect(),
            ..Gang::default()
        }
    }

    fn reason(snapshot: &Snapshot, gang: &Gang, effort: u64) -> Option<Reason> {
        place_floor(snapshot, gang, effort)
            .err()
            .map(|refusal| refusal.domains[0].reason.clone())
    }

    #[test]
    fn what_greed_misses_is_found_and_without_effort_it_is_not_called_impossible() {
        // Filling with the largest first puts both fives on one node; five, four and three belong together.
        let (nodes, gang) = (snapshot(&[12, 12]), gang(&[(5, 2), (4, 2), (3, 2)]));
        assert_eq!(reason(&nodes, &gang, 0), Some(Reason::GaveUp));
        assert_eq!(reason(&nodes, &gang, EFFORT), None);
    }

    #[test]
    fn what_does_not_fit_together_is_proved() {
        assert_eq!(
            reason(&snapshot(&[5, 5]), &gang(&[(3, 2), (2, 1), (1, 1)]), EFFORT),
            None
        );
        assert_eq!(
            reason(&snapshot(&[5, 4]), &gang(&[(3, 1), (2, 3)]), EFFORT),
            None
        );
        assert_eq!(
            reason(&snapshot(&[5, 5]), &gang(&[(4, 2), (2, 1)]), EFFORT),
            Some(Reason::NotTogether)
        );
    }

    /// Every way to give two nodes three sizes of pods, compared with adding up what one node can take.
    #[test]
    fn all_small_mixtures_on_two_nodes_agree_with_adding_up() {
        let (mut missed_by_greed, mut impossible) = (0, 0);
        for (a, b) in (4..13).flat_map(|a| (a..13).map(move |b| (a, b))) {
            let nodes = snapshot(&[a, b]);
            for counts in 0..64u32 {
                let pods = [(5, counts % 4), (4, counts / 4 % 4), (3, counts / 16)];
                let total: i64 = pods
                    .iter()
                    .map(|(cpu, count)| cpu * i64::from(*count))
                    .sum();
                let on_first = |taken: u32| {
                    let taken = [taken % 4, taken / 4 % 4, taken / 16];
                    let is_part = taken
                        .iter()
                        .zip(&pods)
                        .all(|(taken, (_, count))| taken <= count);
                    let sum: i64 = taken
                        .iter()
                        .zip(&pods)
                        .map(|(taken, (cpu, _))| cpu * i64::from(*taken))
                        .sum();
                    is_part && sum <= a && total - sum <= b
                };
                let is_possible = (0..64).any(on_first);
                let gang = gang(&pods);
                let found = reason(&nodes, &gang, EFFORT);
                assert_eq!(found.is_none(), is_possible, "{a} {b} {pods:?}: {found:?}");
                missed_by_greed += u32::from(is_possible && reason(&nodes, &gang, 0).is_some());
                impossible += u32::from(found == Some(Reason::NotTogether));
            }
        }
        assert!(
            missed_by_greed > 10 && impossible > 10,
            "{missed_by_greed} {impossible}"
        );
    }
}
