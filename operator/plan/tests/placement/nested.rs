//! Domains inside domains, against a brute force that shares no code with the planner.

use coppice_operator_plan::placement::{
    Gang, Group, Node, NodeShape, Part, Placement, PodNeeds, Reason, Resources, Settings, Snapshot,
    Topology, Waiting, place, schedule,
};
use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const KEYS: [&str; 3] = ["block", "rack", "host"];

/// A node: GPUs, slots, and the rack it is in. Racks 0 and 1 are in block 0, rack 2 is in block 1.
type TestNode = (i64, u32, Option<u8>);

/// A domain that some groups share.
#[derive(Clone, Debug)]
struct Level {
    groups: BTreeSet<usize>,
    key: usize,
    required: bool,
    /// The domain of a node where pods are already.
    pin: Option<usize>,
    depth: usize,
}

/// GPUs and count of the pods of each group, and the levels, outer ones first.
#[derive(Clone, Debug)]
struct Problem {
    nodes: Vec<TestNode>,
    groups: Vec<(i64, u32)>,
    levels: Vec<Level>,
}

fn label(nodes: &[TestNode], node: usize, key: usize) -> Option<String> {
    match key {
        0 => nodes[node].2.map(|rack| format!("b{}", rack / 2)),
        1 => nodes[node].2.map(|rack| format!("r{rack}")),
        _ => Some(format!("n{node}")),
    }
}

/// Key, whether it is required, and perhaps a node whose domain is taken already.
type Wish = Option<(usize, bool, Option<usize>)>;

fn wish() -> impl Strategy<Value = Wish> {
    let pin = prop_oneof![5 => Just(None), 1 => (0usize..6).prop_map(Some)];
    prop::option::weighted(0.6, (0usize..3, any::<bool>(), pin))
}

fn problem() -> impl Strategy<Value = Problem> {
    let node = (
        0i64..5,
        1u32..5,
        prop_oneof![1 => Just(None), 9 => (0u8..3).prop_map(Some)],
    );
    let group = (0i64..4, 0u32..3, wish());
    (
        prop::collection::vec(node, 1..6),
        prop::collection::vec(group, 1..5),
        wish(),
        (wish(), wish()),
        1usize..4,
    )
        .prop_map(|(nodes, groups, of_gang, of_configs, split)| {
            let count = groups.len();
            let split = split.min(count);
            let pinned = nodes.len();
            let level = |groups: BTreeSet<usize>, wish: Wish, depth| {
                let (key, required, pin) = wish.filter(|_| !groups.is_empty())?;
                let pin = pin.filter(|node| *node < pinned);
                Some(Level {
                    groups,
                    key,
                    required,
                    pin,
                    depth,
                })
            };
            let (first, second) = (
                level((0..split).collect(), of_configs.0, 1),
                level((split..count).collect(), of_configs.1, 1),
            );
            let depth_of = |group: usize| {
                let around = if group < split { &first } else { &second };
                1 + usize::from(around.is_some())
            };
            let cliques: Vec<Level> = (0..count)
                .filter_map(|group| level([group].into(), groups[group].2, depth_of(group)))
                .collect();
            let mut levels: Vec<Level> = level((0..count).collect(), of_gang, 0)
                .into_iter()
                .collect();
            levels.extend(first.into_iter().chain(second).chain(cliques));
            Problem {
                nodes,
                groups: groups
                    .iter()
                    .map(|(gpu, count, _)| (*gpu, *count))
                    .collect(),
                levels,
            }
        })
}

fn snapshot(nodes: &[TestNode]) -> Snapshot {
    let node = |(position, (gpu, slots, _)): (usize, &TestNode)| {
        let labels = KEYS.iter().enumerate();
        let labels: BTreeMap<String, String> = labels
            .filter_map(|(key, name)| Some(((*name).to_owned(), label(nodes, position, key)?)))
            .collect();
        Node::empty(Arc::new(NodeShape {
            name: format!("n{position}"),
            labels,
            ceiling: Resources::from_iter([("gpu", gpu * 1000)]),
            slot_ceiling: *slots,
            ..NodeShape::default()
        }))
    };
    Snapshot::new(nodes.iter().enumerate().map(node).collect())
}

fn gang(problem: &Problem) -> Gang {
    let group = |(position, (gpu, count)): (usize, &(i64, u32))| Group {
        name: format!("g{position}"),
        needs: PodNeeds {
            requests: Resources::from_iter([("gpu", gpu * 1000)]),
            ..PodNeeds::default()
        },
        pods: (0..*count)
            .map(|pod| format!("g{position}-{pod}"))
            .collect(),
        floor: *count,
    };
    let topology = |level: &Level| Topology {
        key: KEYS[level.key].to_owned(),
        within: level
            .pin
            .and_then(|node| label(&problem.nodes, node, level.key)),
        required: level.required,
    };
    let (of_gang, parts): (Vec<&Level>, Vec<&Level>) =
        problem.levels.iter().partition(|level| level.depth == 0);
    Gang {
        name: "g".to_owned(),
        groups: problem.groups.iter().enumerate().map(group).collect(),
        topology: of_gang.first().copied().map(topology),
        parts: parts
            .into_iter()
            .map(|level| Part {
                groups: level.groups.clone(),
                topology: topology(level),
            })
            .collect(),
        avoid: BTreeSet::new(),
    }
}

/// Whether a level allows a pod on a node, beside the domain that its other pods are in.
fn allows(problem: &Problem, level: &Level, taken: &Option<String>, node: usize) -> bool {
    let domain = label(&problem.nodes, node, level.key);
    let pinned = level
        .pin
        .and_then(|node| label(&problem.nodes, node, level.key));
    domain.is_some()
        && (pinned.is_none() || domain == pinned)
        && (taken.is_none() || *taken == domain)
}

/// Tries every node for every pod; levels that are preferred and this deep or deeper do not count.
fn brute_force(problem: &Problem, given_up: usize) -> bool {
    let pods: Vec<usize> = problem
        .groups
        .iter()
        .enumerate()
        .flat_map(|(group, (_, count))| std::iter::repeat_n(group, *count as usize))
        .collect();
    let counts = |level: &&Level| level.required || level.depth < given_up;
    let levels: Vec<&Level> = problem.levels.iter().filter(counts).collect();
    // A scope without pods needs a domain too, inside those around it: give every scope a choice first.
    choose_domains(problem, &levels, &mut Vec::new(), &pods)
}

/// Every node stands for its domain: a level takes the domain of one, inside the domains of the levels around it.
fn choose_domains(
    problem: &Problem,
    levels: &[&Level],
    chosen: &mut Vec<Vec<usize>>,
    pods: &[usize],
) -> bool {
    let Some(level) = levels.get(chosen.len()) else {
        let mut nodes = problem.nodes.clone();
        return put(problem, levels, chosen, pods, &mut nodes);
    };
    let outer: Vec<usize> = (0..chosen.len())
        .filter(|&outer| level.groups.is_subset(&levels[outer].groups))
        .collect();
    let mut domains = BTreeSet::new();
    for node in 0..problem.nodes.len() {
        if allows(problem, level, &None, node) {
            domains.insert(label(&problem.nodes, node, level.key));
        }
    }
    for domain in domains {
        let inside: Vec<usize> = (0..problem.nodes.len())
            .filter(|&node| label(&problem.nodes, node, level.key) == domain)
            .filter(|node| outer.iter().all(|&outer| chosen[outer].contains(node)))
            .collect();
        if inside.is_empty() {
            continue;
        }
        chosen.push(inside);
        let is_placed = choose_domains(problem, levels, chosen, pods);
        chosen.pop();
        if is_placed {
            return true;
        }
    }
    false
}

fn put(
    problem: &Problem,
    levels: &[&Level],
    chosen: &[Vec<usize>],
    pods: &[usize],
    nodes: &mut [TestNode],
) -> bool {
    let Some((&group, rest)) = pods.split_first() else {
        return true;
    };
    let gpu = problem.groups[group].0;
    for node in 0..nodes.len() {
        let mut around = levels.iter().zip(chosen);
        let is_inside =
            around.all(|(level, inside)| !level.groups.contains(&group) || inside.contains(&node));
        if !is_inside || nodes[node].0 < gpu || nodes[node].1 == 0 {
            continue;
        }
        nodes[node].0 -= gpu;
        nodes[node].1 -= 1;
        let is_placed = put(problem, levels, chosen, rest, nodes);
        nodes[node].0 += gpu;
        nodes[node].1 += 1;
        if is_placed {
            return true;
        }
    }
    false
}

/// Whether the pods of a level are in one domain, and in the pinned one where there is one.
fn holds(problem: &Problem, placement: &Placement, level: &Level) -> bool {
    let mut taken = None;
    let mut bindings = placement.bindings.iter();
    bindings.all(|binding| {
        if !level.groups.contains(&binding.group) {
            return true;
        }
        let node: usize = binding.node[1..].parse().unwrap();
        let is_allowed = allows(problem, level, &taken, node);
        taken = label(&problem.nodes, node, level.key);
        is_allowed
    })
}

/// Every pod has a node with room for it.
fn check(problem: &Problem, gang: &Gang, placement: &Placement) {
    let mut left = problem.nodes.clone();
    let mut pods = BTreeSet::new();
    for binding in &placement.bindings {
        let node = &mut left[binding.node[1..].parse::<usize>().unwrap()];
        node.0 -= problem.groups[binding.group].0;
        node.1 = node.1.checked_sub(1).expect("a slot is free");
        assert!(
            node.0 >= 0 || problem.groups[binding.group].0 == 0,
            "{binding:?} makes the node overfull"
        );
        assert!(
            gang.groups[binding.group].pods.contains(&binding.pod) && pods.insert(&binding.pod),
            "{binding:?}"
        );
    }
    let all: usize = gang.groups.iter().map(|group| group.pods.len()).sum();
    assert_eq!(pods.len(), all, "a gang was torn");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn a_gang_is_whole_in_its_domains_or_absent_and_gives_up_preferred_ones_from_the_innermost_out(problem in problem()) {
        let (snapshot, gang) = (snapshot(&problem.nodes), gang(&problem));
        let placed = place(&snapshot, &gang);
        prop_assert_eq!(&placed, &place(&snapshot, &gang), "the same input gives the same answer");
        match placed {
            Err(unplaceable) => {
                prop_assert!(!brute_force(&problem, 0), "refused although possible: {unplaceable}");
                prop_assert!(unplaceable.domains.iter().all(|domain| domain.reason != Reason::GaveUp));
                prop_assert!(!unplaceable.domains.is_empty());
            }
            Ok(placement) => {
                check(&problem, &gang, &placement);
                let kept = (0..=3).rev().find(|&given_up| brute_force(&problem, given_up));
                let kept = kept.expect("what was placed is possible");
                for level in problem.levels.iter().filter(|level| level.required || level.depth < kept) {
                    prop_assert!(holds(&problem, &placement, level), "{level:?} is broken although all so deep can hold: {placement:?}");
                }
                for (part, domain) in gang.parts.iter().zip(&placement.parts) {
                    for binding in placement.bindings.iter().filter(|binding| part.groups.contains(&binding.group)) {
                        let shape = &snapshot.node(&binding.node).unwrap().shape;
                        prop_assert!(domain.is_none() || shape.labels.get(&part.topology.key) == domain.as_ref());
                    }
                }
                prop_assert_eq!(gang.parts.len(), placement.parts.len());
            }
        }
    }
}

fn rack(rack: u8, gpus: i64) -> TestNode {
    (gpus, 10, Some(rack))
}

fn level(groups: &[usize], key: usize, required: bool, depth: usize) -> Level {
    Level {
        groups: groups.iter().copied().collect(),
        key,
        required,
        pin: None,
        depth,
    }
}

fn nodes_of(placement: &Placement, group: usize) -> Vec<&str> {
    let bindings = placement.bindings.iter();
    bindings
        .filter(|binding| binding.group == group)
        .map(|binding| &*binding.node)
        .collect()
}

/// A block for the gang, a rack for each replica of a group, a host for each of their cliques.
fn three_levels(nodes: Vec<TestNode>) -> Problem {
    Problem {
        nodes,
        groups: vec![(1, 2); 4],
        levels: vec![
            level(&[0, 1, 2, 3], 0, true, 0),
            level(&[0, 1], 1, true, 1),
            level(&[2, 3], 1, true, 1),
            level(&[0], 2, true, 2),
            level(&[1], 2, true, 2),
            level(&[2], 2, true, 2),
            level(&[3], 2, true, 2),
        ],
    }
}

#[test]
fn three_levels_hold_at_once() {
    let nodes = vec![
        rack(2, 4),
        rack(0, 3),
        rack(1, 2),
        rack(0, 2),
        rack(1, 2),
        rack(2, 3),
    ];
    let problem = three_levels(nodes);
    let placement = place(&snapshot(&problem.nodes), &gang(&problem)).unwrap();
    check(&problem, &gang(&problem), &placement);
    assert!(
        problem
            .levels
            .iter()
            .all(|level| holds(&problem, &placement, level)),
        "{placement:?}"
    );
    assert_eq!(placement.domain.as_deref(), Some("b0"));
}

#[test]
fn a_part_that_fits_into_no_domain_is_named() {
    let mut problem = three_levels(vec![rack(0, 8), rack(1, 1), rack(2, 1), rack(2, 1)]);
    problem.levels[5].pin = Some(1);
    let refusal = place(&snapshot(&problem.nodes), &gang(&problem)).unwrap_err();
    assert_eq!(
        refusal.to_string(),
        "b0 (2 nodes): g2 and 1 more groups must share one rack, and none of 2 holds them; in the one with the most room, no node \
         has the label host=n1; b1 (2 nodes): all pods together need 8 of gpu, 2 are free"
    );
}

/// Greed gives the first part the host with fewer GPUs, which is the only one with the slots for the second.
#[test]
fn a_choice_that_greed_gets_wrong_is_found() {
    let mut problem = Problem {
        nodes: vec![rack(0, 4), rack(0, 5)],
        groups: vec![(2, 2), (1, 4)],
        levels: vec![level(&[0], 2, true, 1), level(&[1], 2, true, 1)],
    };
    let on = |problem: &Problem| {
        let placement = place(&snapshot(&problem.nodes), &gang(problem)).unwrap();
        let first = |group| nodes_of(&placement, group)[0].to_owned();
        (first(0), first(1))
    };
    assert_eq!(on(&problem), ("n0".to_owned(), "n1".to_owned()));
    (problem.nodes[0].1, problem.nodes[1].1) = (5, 3);
    assert_eq!(on(&problem), ("n1".to_owned(), "n0".to_owned()));
}

#[test]
fn a_lost_pod_of_a_preferred_domain_goes_elsewhere_only_when_it_must() {
    let mut problem = Problem {
        nodes: vec![rack(0, 1), rack(0, 2), rack(2, 8)],
        groups: vec![(1, 1), (1, 1)],
        levels: vec![
            level(&[0, 1], 0, true, 0),
            Level {
                pin: Some(0),
                ..level(&[0], 2, false, 1)
            },
        ],
    };
    let node = |problem: &Problem| {
        let placement = place(&snapshot(&problem.nodes), &gang(problem)).unwrap();
        (
            placement.domain.clone().unwrap(),
            nodes_of(&placement, 0)[0].to_owned(),
            placement.parts[0].clone(),
        )
    };
    assert_eq!(
        node(&problem),
        ("b0".to_owned(), "n0".to_owned(), Some("n0".to_owned()))
    );
    problem.nodes[0].0 = 0;
    assert_eq!(node(&problem), ("b0".to_owned(), "n1".to_owned(), None));
}

#[test]
fn pods_above_the_floor_stay_in_required_domains_and_leave_preferred_ones_when_full() {
    let problem = |required: bool| Problem {
        nodes: vec![rack(0, 2), rack(1, 8), rack(2, 9)],
        groups: vec![(1, 4)],
        levels: vec![
            level(&[0], 0, true, 0),
            Level {
                pin: Some(0),
                ..level(&[0], 1, required, 1)
            },
        ],
    };
    for (required, elsewhere, left_out) in [(true, 0, 2), (false, 2, 0)] {
        let problem = problem(required);
        let mut gang = gang(&problem);
        gang.groups[0].floor = 1;
        let placement = place(&snapshot(&problem.nodes), &gang).unwrap();
        let nodes = nodes_of(&placement, 0);
        let count = |name: &str| nodes.iter().filter(|node| **node == name).count();
        assert_eq!(
            (count("n0"), count("n1"), count("n2")),
            (2, elsewhere, 0),
            "{placement:?}"
        );
        assert_eq!(placement.left_out.len(), left_out);
    }
}

/// The gang waits for a host of four; small ones keep coming. It claims a host on which its part fits.
#[test]
fn a_gang_with_parts_claims_nodes_that_hold_them() {
    let problem = Problem {
        nodes: vec![rack(0, 2), rack(0, 4), rack(1, 2), rack(1, 2), rack(2, 8)],
        groups: vec![(1, 4), (1, 1)],
        levels: vec![level(&[0, 1], 0, true, 0), level(&[0], 2, true, 1)],
    };
    let mut state = snapshot(&problem.nodes);
    let gang = gang(&problem);
    for (node, pods) in [("n1", 1), ("n4", 7)] {
        for _ in 0..pods {
            assert!(state.occupy(node, &gang.groups[0].needs));
        }
    }
    let waiting = [Waiting {
        gang,
        priority: 0,
        since: Timestamp::UNIX_EPOCH,
    }];
    let settings = Settings {
        patience: SignedDuration::from_secs(10),
    };
    let now = Timestamp::from_second(20).unwrap();
    let plan = schedule(&state, &waiting, now, settings);
    assert!(plan.placements.is_empty(), "{plan:?}");
    let claim = plan.claim.unwrap();
    assert!(
        claim.nodes.contains("n1") && !claim.nodes.contains("n4"),
        "the block where less has to leave: {claim:?}"
    );
}
