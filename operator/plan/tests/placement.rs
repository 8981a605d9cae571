//! The placement planner against a brute force that shares no code with it, and the promises of the queue.

#![expect(clippy::unwrap_used, reason = "a test stops where it cannot go on")]

use coppice_operator_plan::placement::{
    Binding, Effect, Gang, Group, Node, NodeShape, PodNeeds, Reason, Resources, Settings, Snapshot,
    Taint, Toleration, Topology, Waiting, place, schedule,
};
#[path = "placement/nested.rs"]
mod nested;

use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A node in the test's own words.
#[derive(Clone, Debug)]
struct TestNode {
    cpu: i64,
    gpu: i64,
    slots: u32,
    rack: Option<u8>,
    pool: u8,
    tainted: bool,
    cordoned: bool,
}

/// A group in the test's own words.
#[derive(Clone, Debug)]
struct TestGroup {
    cpu: i64,
    gpu: i64,
    floor: u32,
    above: usize,
    tolerates: bool,
    pool: Option<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Rack {
    Any,
    Preferred,
    Required,
}

fn nodes() -> impl Strategy<Value = Vec<TestNode>> {
    let rack = prop_oneof![1 => Just(None), 6 => (0u8..2).prop_map(Some)];
    let node = (
        0i64..5,
        0i64..4,
        1u32..5,
        rack,
        0u8..2,
        prop::bool::weighted(0.15),
        prop::bool::weighted(0.1),
    )
        .prop_map(
            |(cpu, gpu, slots, rack, pool, tainted, cordoned)| TestNode {
                cpu,
                gpu,
                slots,
                rack,
                pool,
                tainted,
                cordoned,
            },
        );
    prop::collection::vec(node, 1..5)
}

fn groups() -> impl Strategy<Value = Vec<TestGroup>> {
    let pool = prop_oneof![3 => Just(None), 1 => (0u8..2).prop_map(Some)];
    let group = (0i64..3, 0i64..3, 0u32..4, 0usize..2, any::<bool>(), pool).prop_map(
        |(cpu, gpu, floor, above, tolerates, pool)| TestGroup {
            cpu,
            gpu,
            floor,
            above,
            tolerates,
            pool,
        },
    );
    prop::collection::vec(group, 1..4)
}

fn racks() -> impl Strategy<Value = Rack> {
    prop_oneof![Just(Rack::Any), Just(Rack::Preferred), Just(Rack::Required)]
}

fn amounts(cpu: i64, gpu: i64) -> Resources {
    Resources::from_iter([("cpu", cpu * 1000), ("nvidia.com/gpu", gpu * 1000)])
}

fn snapshot(nodes: &[TestNode]) -> Snapshot {
    let node = |(position, node): (usize, &TestNode)| {
        let mut labels = BTreeMap::from([("pool".to_owned(), node.pool.to_string())]);
        labels.extend(node.rack.map(|rack| ("rack".to_owned(), rack.to_string())));
        let taint = Taint {
            key: "gpu".to_owned(),
            value: String::new(),
            effect: Effect::NoSchedule,
        };
        Node::empty(Arc::new(NodeShape {
            name: format!("n{position}"),
            labels,
            taints: node.tainted.then_some(taint).into_iter().collect(),
            unschedulable: node.cordoned,
            ceiling: amounts(node.cpu, node.gpu),
            slot_ceiling: node.slots,
        }))
    };
    Snapshot::new(nodes.iter().enumerate().map(node).collect())
}

fn gang(name: &str, groups: &[TestGroup], rack: Rack) -> Gang {
    let group = |(position, group): (usize, &TestGroup)| {
        let toleration = Toleration {
            key: Some("gpu".to_owned()),
            ..Toleration::default()
        };
        let name = format!("{name}-g{position}");
        Group {
            pods: (0..group.floor as usize + group.above)
                .map(|pod| format!("{name}-{pod}"))
                .collect(),
            name,
            needs: PodNeeds {
                requests: amounts(group.cpu, group.gpu),
                tolerations: group.tolerates.then_some(toleration).into_iter().collect(),
                node_selector: group
                    .pool
                    .map(|pool| ("pool".to_owned(), pool.to_string()))
                    .into_iter()
                    .collect(),
                node_affinity: None,
            },
            floor: group.floor,
        }
    };
    let topology = Topology {
        key: "rack".to_owned(),
        within: None,
        required: rack == Rack::Required,
    };
    Gang {
        name: name.to_owned(),
        groups: groups.iter().enumerate().map(group).collect(),
        topology: (rack != Rack::Any).then_some(topology),
        parts: Vec::new(),
        avoid: BTreeSet::new(),
    }
}

fn may_go(node: &TestNode, group: &TestGroup) -> bool {
    !node.cordoned
        && (!node.tainted || group.tolerates)
        && group.pool.is_none_or(|pool| pool == node.pool)
}

/// Tries every node for every pod.
fn brute_force(nodes: &mut [TestNode], pods: &[&TestGroup], racks: &[Option<u8>]) -> bool {
    let Some((pod, rest)) = pods.split_first() else {
        return true;
    };
    for position in 0..nodes.len() {
        let node = &nodes[position];
        let fits = node.cpu >= pod.cpu && node.gpu >= pod.gpu && node.slots > 0;
        if !(fits && may_go(node, pod) && racks.contains(&node.rack)) {
            continue;
        }
        let before = node.clone();
        nodes[position].cpu -= pod.cpu;
        nodes[position].gpu -= pod.gpu;
        nodes[position].slots -= 1;
        let is_placed = brute_force(nodes, rest, racks);
        nodes[position] = before;
        if is_placed {
            return true;
        }
    }
    false
}

fn is_possible(nodes: &[TestNode], groups: &[TestGroup], rack: Rack) -> bool {
    let pods: Vec<&TestGroup> = groups
        .iter()
        .flat_map(|group| std::iter::repeat_n(group, group.floor as usize))
        .collect();
    let existing: BTreeSet<Option<u8>> = nodes
        .iter()
        .map(|node| node.rack)
        .filter(Option::is_some)
        .collect();
    match rack {
        Rack::Required => existing
            .iter()
            .any(|rack| brute_force(&mut nodes.to_vec(), &pods, &[*rack])),
        Rack::Any | Rack::Preferred => {
            brute_force(&mut nodes.to_vec(), &pods, &[None, Some(0), Some(1)])
        }
    }
}

/// What bindings leave of the nodes; fails when they break a rule.
fn apply(nodes: &mut [TestNode], groups: &[TestGroup], bindings: &[Binding]) {
    for binding in bindings {
        let group = &groups[binding.group];
        let node = &mut nodes[binding.node[1..].parse::<usize>().unwrap()];
        assert!(
            may_go(node, group),
            "{binding:?} goes to a node that keeps it off"
        );
        node.cpu -= group.cpu;
        node.gpu -= group.gpu;
        node.slots = node.slots.checked_sub(1).expect("a slot is free");
        assert!(
            node.cpu >= 0 && node.gpu >= 0,
            "{binding:?} makes the node overfull"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn a_gang_is_whole_or_absent_and_refused_only_when_there_is_no_way(nodes in nodes(), groups in groups(), rack in racks()) {
        let (snapshot, gang) = (snapshot(&nodes), gang("g", &groups, rack));
        let placed = place(&snapshot, &gang);
        prop_assert_eq!(&placed, &place(&snapshot, &gang), "the same input gives the same answer");
        match placed {
            Err(unplaceable) => {
                prop_assert!(!is_possible(&nodes, &groups, rack), "refused although possible: {unplaceable}");
                prop_assert!(unplaceable.domains.iter().all(|domain| domain.reason != Reason::GaveUp));
                prop_assert!(!unplaceable.domains.is_empty());
            }
            Ok(placement) => {
                apply(&mut nodes.clone(), &groups, &placement.bindings);
                let bound: Vec<&String> = placement.bindings.iter().map(|binding| &binding.pod).collect();
                let unique: BTreeSet<&String> = bound.iter().copied().chain(&placement.left_out).collect();
                let pods: BTreeSet<&String> = gang.groups.iter().flat_map(|group| &group.pods).collect();
                prop_assert_eq!(unique.len(), bound.len() + placement.left_out.len());
                prop_assert_eq!(unique, pods);
                for group in &gang.groups {
                    prop_assert!(group.pods[..group.floor as usize].iter().all(|pod| bound.contains(&pod)));
                }
                if rack == Rack::Required {
                    let node = |binding: &Binding| nodes[binding.node[1..].parse::<usize>().unwrap()].rack;
                    let racks: BTreeSet<Option<u8>> = placement.bindings.iter().map(node).collect();
                    prop_assert!(racks.len() <= 1 && !racks.contains(&None));
                }
            }
        }
    }

    #[test]
    fn what_is_left_out_fits_nowhere(nodes in nodes(), groups in groups()) {
        let gang = gang("g", &groups, Rack::Any);
        if let Ok(placement) = place(&snapshot(&nodes), &gang) {
            let mut left = nodes.clone();
            apply(&mut left, &groups, &placement.bindings);
            for (group, of) in gang.groups.iter().zip(&groups) {
                if group.pods.iter().any(|pod| placement.left_out.contains(pod)) {
                    prop_assert!(!brute_force(&mut left, &[of], &[None, Some(0), Some(1)]));
                }
            }
        }
    }

    #[test]
    fn a_queue_never_overfills_and_leaves_no_room_idle_that_a_whole_gang_fits(
        nodes in nodes(),
        gangs in prop::collection::vec((groups(), racks(), 0i32..2, 0i64..100), 0..6),
        patience in prop_oneof![Just(0i64), Just(50), Just(1000)],
    ) {
        let waiting: Vec<Waiting> = gangs.iter().enumerate().map(|(position, (groups, rack, priority, since))| Waiting {
            gang: gang(&format!("g{position}"), groups, *rack),
            priority: *priority,
            since: Timestamp::from_second(*since).unwrap(),
        }).collect();
        let now = Timestamp::from_second(100).unwrap();
        let settings = Settings { patience: SignedDuration::from_secs(patience) };
        let plan = schedule(&snapshot(&nodes), &waiting, now, settings);
        prop_assert_eq!(&plan, &schedule(&snapshot(&nodes), &waiting, now, settings));

        let (mut left, mut left_by_floors) = (nodes.clone(), nodes.clone());
        let mut seen = BTreeSet::new();
        for (position, placement) in &plan.placements {
            prop_assert!(seen.insert(*position));
            let groups = &gangs[*position].0;
            apply(&mut left, groups, &placement.bindings);
            let floor: usize = groups.iter().map(|group| group.floor as usize).sum();
            prop_assert!(placement.bindings.len() >= floor, "a gang was torn");
            apply(&mut left_by_floors, groups, &placement.bindings[..floor]);
        }
        for (position, _) in &plan.refusals {
            prop_assert!(seen.insert(*position));
            if plan.claim.is_none() {
                prop_assert!(!is_possible(&left, &gangs[*position].0, gangs[*position].1), "room stands idle");
                if gangs.iter().all(|gang| gang.2 == gangs[0].2) {
                    let is_possible = is_possible(&left_by_floors, &gangs[*position].0, gangs[*position].1);
                    prop_assert!(!is_possible, "pods above a floor took the room of a floor");
                }
            }
        }
        prop_assert_eq!(seen.len(), waiting.len());
        if let Some(claim) = &plan.claim {
            let since = gangs[claim.gang].3;
            prop_assert!(since + patience <= 100, "a gang claims before its patience has run out");
            let first = plan.placements.iter().filter(|(position, _)| {
                let order = |position: usize| (-gangs[position].2, gangs[position].3, position);
                order(*position) > order(claim.gang)
            });
            for (_, placement) in first {
                prop_assert!(placement.bindings.iter().all(|binding| !claim.nodes.contains(&binding.node)));
            }
        }
    }

    #[test]
    fn planning_again_on_the_planned_state_changes_nothing(
        nodes in nodes(),
        gangs in prop::collection::vec((groups(), racks(), 0i64..100), 0..5),
        patience in prop_oneof![Just(0i64), Just(1000)],
    ) {
        let whole = |(position, (groups, rack, since)): (usize, &(Vec<TestGroup>, Rack, i64))| {
            let groups: Vec<TestGroup> = groups.iter().map(|group| TestGroup { above: 0, ..group.clone() }).collect();
            Waiting { gang: gang(&format!("g{position}"), &groups, *rack), priority: 0, since: Timestamp::from_second(*since).unwrap() }
        };
        let waiting: Vec<Waiting> = gangs.iter().enumerate().map(whole).collect();
        let now = Timestamp::from_second(100).unwrap();
        let settings = Settings { patience: SignedDuration::from_secs(patience) };
        let mut state = snapshot(&nodes);
        let plan = schedule(&state, &waiting, now, settings);
        for (position, placement) in &plan.placements {
            for binding in &placement.bindings {
                state.occupy(&binding.node, &waiting[*position].gang.groups[binding.group].needs);
            }
        }
        let rest: Vec<Waiting> = plan.refusals.iter().map(|(position, _)| waiting[*position].clone()).collect();
        prop_assert!(schedule(&state, &rest, now, settings).placements.is_empty());
    }
}

fn plain(cpu: i64, gpu: i64) -> TestNode {
    TestNode {
        cpu,
        gpu,
        slots: 10,
        rack: None,
        pool: 0,
        tainted: false,
        cordoned: false,
    }
}

fn of(floor: u32, cpu: i64, gpu: i64) -> TestGroup {
    TestGroup {
        cpu,
        gpu,
        floor,
        above: 0,
        tolerates: false,
        pool: None,
    }
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn wait(name: &str, groups: &[TestGroup], since: i64) -> Waiting {
    Waiting {
        gang: gang(name, groups, Rack::Any),
        priority: 0,
        since: at(since),
    }
}

fn patience(seconds: i64) -> Settings {
    Settings {
        patience: SignedDuration::from_secs(seconds),
    }
}

#[test]
fn a_refusal_counts_what_stands_in_the_way() {
    let mut nodes = vec![
        plain(4, 1),
        plain(4, 0),
        plain(4, 0),
        plain(4, 8),
        plain(4, 8),
    ];
    nodes[3].tainted = true;
    nodes[4].cordoned = true;
    let refusal = place(
        &snapshot(&nodes),
        &gang("ml/w-0", &[of(2, 1, 1)], Rack::Any),
    )
    .unwrap_err();
    assert_eq!(
        refusal.to_string(),
        "5 nodes: 1 of 2 pods of ml/w-0-g0 fit; nodes that take none: 1 cordoned, 1 tainted gpu:NoSchedule, 2 too little nvidia.com/gpu"
    );
}

#[test]
fn a_gang_goes_to_the_rack_with_the_least_room_and_pods_without_gpu_stay_off_gpu_nodes() {
    let rack = |rack, node: TestNode| TestNode {
        rack: Some(rack),
        ..node
    };
    let nodes = [
        rack(0, plain(8, 3)),
        rack(0, plain(8, 3)),
        rack(1, plain(8, 4)),
        rack(1, plain(8, 0)),
    ];
    let placement = place(
        &snapshot(&nodes),
        &gang("g", &[of(4, 1, 1), of(2, 1, 0)], Rack::Required),
    )
    .unwrap();
    assert_eq!(placement.domain.as_deref(), Some("1"));
    let on = |node: &str| {
        placement
            .bindings
            .iter()
            .filter(|binding| binding.node == node)
            .count()
    };
    assert_eq!((on("n2"), on("n3")), (4, 2));
}

#[test]
fn a_gang_whose_pods_run_in_a_rack_stays_in_it() {
    let rack = |rack, node: TestNode| TestNode {
        rack: Some(rack),
        ..node
    };
    let nodes = [rack(0, plain(8, 1)), rack(1, plain(8, 8))];
    let mut gang = gang("g", &[of(2, 1, 1)], Rack::Required);
    gang.topology.as_mut().unwrap().within = Some("0".to_owned());
    let refusal = place(&snapshot(&nodes), &gang).unwrap_err();
    assert!(
        refusal.to_string().starts_with("0 (1 nodes): 1 of 2 pods"),
        "{refusal}"
    );
    gang.topology.as_mut().unwrap().within = Some("9".to_owned());
    assert_eq!(
        place(&snapshot(&nodes), &gang).unwrap_err().to_string(),
        "2 nodes: no node has the label rack=9"
    );
}

#[test]
fn a_node_that_the_scheduler_refused_is_left_alone() {
    let mut gang = gang("g", &[of(1, 1, 0)], Rack::Any);
    gang.avoid.insert("n0".to_owned());
    let placement = place(&snapshot(&[plain(1, 0), plain(8, 0)]), &gang).unwrap();
    assert_eq!(placement.bindings[0].node, "n1");
    let refusal = place(&snapshot(&[plain(1, 0)]), &gang).unwrap_err();
    assert!(
        refusal
            .to_string()
            .ends_with("1 refused by the scheduler lately"),
        "{refusal}"
    );
}

/// Small gangs come and go on two nodes; a gang that needs both whole gets them within one life time of what runs.
#[test]
fn small_gangs_cannot_starve_a_large_one() {
    let large = wait("large", &[of(2, 0, 4)], 0);
    let mut running: Vec<(u64, String)> = vec![(5, "n0".to_owned()), (9, "n1".to_owned())];
    for second in 1..60 {
        running.retain(|(until, _)| *until > second);
        let mut state = snapshot(&[plain(8, 4), plain(8, 4)]);
        for (_, node) in &running {
            state.occupy(
                node,
                &gang("small", &[of(1, 0, 2)], Rack::Any).groups[0].needs,
            );
        }
        // One small gang a second, which runs for ten.
        let now = i64::try_from(second).unwrap();
        let waiting = [large.clone(), wait("small", &[of(1, 0, 2)], now)];
        let plan = schedule(&state, &waiting, at(now), patience(10));
        assert_eq!(
            plan.claim.is_some(),
            now >= 10 && !plan.placements.iter().any(|(position, _)| *position == 0)
        );
        for (position, placement) in &plan.placements {
            if *position == 0 {
                assert!((10..=20).contains(&second), "placed at {second}");
                return;
            }
            running.push((second + 10, placement.bindings[0].node.clone()));
        }
    }
    panic!("the large gang was never placed");
}

/// Seven pods' room, as in a service whose base gang needs three and has ten, with two more gangs of two.
#[test]
fn floors_come_before_pods_above_a_floor() {
    let base = TestGroup {
        above: 7,
        ..of(3, 0, 1)
    };
    let waiting = [
        wait("base", &[base], 0),
        wait("scaled-1", &[of(2, 0, 1)], 1),
        wait("scaled-2", &[of(2, 0, 1)], 2),
    ];
    let counts = |gpus: i64, priorities: [i32; 3]| {
        let mut waiting = waiting.clone();
        for (waiting, priority) in waiting.iter_mut().zip(priorities) {
            waiting.priority = priority;
        }
        let plan = schedule(
            &snapshot(&[plain(0, gpus)]),
            &waiting,
            at(5),
            patience(1000),
        );
        let mut counts = [0; 3];
        for (position, placement) in plan.placements {
            counts[position] = placement.bindings.len();
        }
        counts
    };
    assert_eq!(
        counts(4, [0; 3]),
        [4, 0, 0],
        "room that no floor can use is used"
    );
    assert_eq!(counts(5, [0; 3]), [3, 2, 0]);
    assert_eq!(counts(7, [0; 3]), [3, 2, 2]);
    assert_eq!(counts(9, [0; 3]), [5, 2, 2]);
    assert_eq!(
        counts(7, [1, 0, 0]),
        [7, 0, 0],
        "a higher priority comes first with all it has"
    );
}

#[test]
fn a_gang_that_fits_on_no_empty_node_claims_nothing() {
    let waiting = [
        wait("huge", &[of(1, 0, 9)], 0),
        wait("small", &[of(1, 0, 1)], 50),
    ];
    let plan = schedule(&snapshot(&[plain(8, 4)]), &waiting, at(100), patience(10));
    assert_eq!(
        (plan.claim, plan.placements.len(), plan.placements[0].0),
        (None, 1, 1)
    );
}

#[test]
fn the_next_claim_is_announced() {
    let waiting = [wait("a", &[of(1, 0, 4)], 40), wait("b", &[of(1, 0, 4)], 30)];
    let mut state = snapshot(&[plain(8, 4)]);
    state.occupy("n0", &waiting[0].gang.groups[0].needs);
    let plan = schedule(&state, &waiting, at(50), patience(60));
    assert_eq!((plan.claim, plan.recheck_at), (None, Some(at(90))));
}

#[test]
fn equal_gangs_are_refused_under_their_own_names() {
    let waiting: Vec<Waiting> = (0..3)
        .map(|i| wait(&format!("g{i}"), &[of(1, 0, 4)], i))
        .collect();
    let plan = schedule(&snapshot(&[plain(8, 4)]), &waiting, at(50), patience(1000));
    let refused: Vec<String> = plan
        .refusals
        .iter()
        .map(|(_, refusal)| format!("{}: {refusal}", refusal.gang))
        .collect();
    assert_eq!(plan.placements[0].0, 0);
    assert_eq!(
        refused,
        [
            "g1: 1 nodes: 0 of 1 pods of g1-g0 fit; nodes that take none: 1 too little nvidia.com/gpu",
            "g2: 1 nodes: 0 of 1 pods of g2-g0 fit; nodes that take none: 1 too little nvidia.com/gpu"
        ]
    );
}
