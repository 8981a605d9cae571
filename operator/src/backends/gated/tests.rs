//! The ledger and what is decided from it, without a cluster.

use std::sync::Arc;

use coppice_operator_plan::placement::{self, Settings};
use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::gangs::{Avoid, Queue};
use super::ledger::{Key, Ledger, Pin};
use super::lift::PLACED_AT;
use super::view::{GangView, NodeView, PodView};

mod overdue;

fn key(name: &str) -> Key {
    (Arc::from("ml"), Arc::from(name))
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

/// Fields are merged into the object.
fn merged(mut object: Value, fields: Value) -> Value {
    json_merge(&mut object, fields);
    object
}

fn json_merge(into: &mut Value, fields: Value) {
    match (into, fields) {
        (Value::Object(into), Value::Object(fields)) => {
            for (name, value) in fields {
                json_merge(into.entry(name).or_insert(Value::Null), value);
            }
        }
        (into, value) => *into = value,
    }
}

fn node(name: &str, gpus: u32) -> NodeView {
    let of = json!({
        "metadata": {"name": name, "resourceVersion": "1", "labels": {"rack": "r1"}},
        "status": {"allocatable": {"nvidia.com/gpu": gpus.to_string(), "pods": "110"}},
    });
    serde_json::from_value(of).unwrap()
}

/// Pod `<clique>-<index>` of gang `g`, gated, in need of one GPU.
fn gated(clique: &str, index: u32) -> Value {
    json!({
        "metadata": {
            "namespace": "ml", "name": format!("{clique}-{index}"), "uid": format!("{clique}-{index}"), "resourceVersion": "1",
            "labels": {
                "app.kubernetes.io/managed-by": "grove-operator", "grove.io/podgang": "g", "grove.io/podclique": clique,
                "grove.io/podclique-pod-index": index.to_string(),
            },
        },
        "spec": {
            "schedulingGates": [{"name": "grove.io/podgang-pending-creation"}],
            "containers": [{"resources": {"requests": {"nvidia.com/gpu": "1"}}}],
        },
        "status": {"phase": "Pending"},
    })
}

fn pinned(clique: &str, index: u32, node: &str, placed: i64) -> Value {
    let selector = json!({"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]});
    let fields = json!({
        "metadata": {"resourceVersion": "2", "annotations": {PLACED_AT: at(placed).to_string()}},
        "spec": {"schedulingGates": [], "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": selector}}},
    });
    merged(gated(clique, index), fields)
}

fn bound(clique: &str, index: u32, node: &str, placed: i64) -> Value {
    merged(
        pinned(clique, index, node, placed),
        json!({"metadata": {"resourceVersion": "3"}, "spec": {"nodeName": node}}),
    )
}

fn gang(name: &str, groups: &[(&str, u32)]) -> GangView {
    let group = |(name, minimum): &(&str, u32)| json!({"name": name, "minReplicas": minimum, "podReferences": []});
    let of = json!({
        "metadata": {"namespace": "ml", "name": name, "uid": name, "resourceVersion": "1", "creationTimestamp": at(0).to_string()},
        "spec": {"podgroups": groups.iter().map(group).collect::<Vec<_>>()},
        "status": {"phase": "Pending"},
    });
    serde_json::from_value(of).unwrap()
}

fn pod(of: &Value) -> PodView {
    serde_json::from_value(of.clone()).unwrap()
}

fn ledger(nodes: &[(&str, u32)], groups: &[(&str, u32)], pods: &[Value]) -> Ledger {
    let mut ledger = Ledger::default();
    for (name, gpus) in nodes {
        assert!(ledger.put_node(&node(name, *gpus)));
    }
    assert!(ledger.put_gang(gang("g", groups)));
    for of in pods {
        assert!(ledger.put_pod(&pod(of)));
    }
    assert!(ledger.is_balanced());
    ledger
}

fn free_gpus(ledger: &mut Ledger, node: &str) -> i64 {
    ledger
        .snapshot()
        .node(node)
        .unwrap()
        .free
        .milli("nvidia.com/gpu")
        / 1000
}

/// Floors and pods of the gang that waits.
fn waiting(ledger: &mut Ledger) -> Vec<(String, u32, Vec<String>)> {
    let queue = queued(ledger);
    let groups = queue
        .waiting
        .into_iter()
        .flat_map(|waiting| waiting.gang.groups);
    groups
        .map(|group| (group.name, group.floor, group.pods))
        .collect()
}

fn queued(ledger: &mut Ledger) -> Queue {
    ledger.settle();
    ledger.queue(&Avoid::new())
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn a_pod_has_its_room_from_the_promise_until_it_is_gone() {
    let mut ledger = ledger(&[("n1", 4)], &[("a", 1)], &[gated("a", 0)]);
    assert_eq!(free_gpus(&mut ledger, "n1"), 4);
    ledger.promise(
        &key("a-0"),
        Pin {
            node: Arc::from("n1"),
            at: at(5),
        },
    );
    assert_eq!(free_gpus(&mut ledger, "n1"), 3);
    assert_eq!(
        waiting(&mut ledger),
        [],
        "a promised pod is not planned again"
    );

    // A watch that lags still shows the gate.
    assert!(!ledger.put_pod(&pod(&merged(
        gated("a", 0),
        json!({"metadata": {"resourceVersion": "2"}})
    ))));
    assert_eq!(free_gpus(&mut ledger, "n1"), 3);
    ledger.put_pod(&pod(&merged(
        pinned("a", 0, "n1", 5),
        json!({"metadata": {"resourceVersion": "4"}}),
    )));
    assert!(!ledger.is_in_flight(&key("a-0")));
    assert!(
        !ledger.put_pod(&pod(&gated("a", 0))),
        "an older version does not count"
    );
    assert_eq!(free_gpus(&mut ledger, "n1"), 3);

    let bound = merged(
        bound("a", 0, "n1", 5),
        json!({"metadata": {"resourceVersion": "5"}}),
    );
    ledger.put_pod(&pod(&bound));
    ledger.put_pod(&pod(&merged(
        bound.clone(),
        json!({"metadata": {"resourceVersion": "6", "deletionTimestamp": at(9).to_string()}}),
    )));
    assert_eq!(
        free_gpus(&mut ledger, "n1"),
        3,
        "a pod that ends has its room until it is gone"
    );
    assert!(ledger.remove_pod(&key("a-0")));
    assert_eq!(free_gpus(&mut ledger, "n1"), 4);
    assert!(ledger.is_balanced());
}

#[test]
fn a_promise_that_fails_is_taken_back() {
    let mut ledger = ledger(&[("n1", 4)], &[("a", 1)], &[gated("a", 0)]);
    ledger.promise(
        &key("a-0"),
        Pin {
            node: Arc::from("n1"),
            at: at(5),
        },
    );
    ledger.withdraw(&key("a-0"), "another pod");
    assert_eq!(free_gpus(&mut ledger, "n1"), 3);
    ledger.withdraw(&key("a-0"), "a-0");
    assert_eq!(free_gpus(&mut ledger, "n1"), 4);
    assert_eq!(waiting(&mut ledger), [("a".to_owned(), 1, names(&["a-0"]))]);
    assert!(ledger.is_balanced());
}

#[test]
fn pods_of_others_lower_the_ceiling_and_finished_ones_take_nothing() {
    let mut ledger = ledger(&[("n1", 4)], &[("a", 1)], &[bound("a", 0, "n1", 1)]);
    let other = json!({
        "metadata": {"namespace": "kube-system", "name": "d", "uid": "d", "resourceVersion": "1"},
        "spec": {"nodeName": "n1", "containers": [{"resources": {"requests": {"nvidia.com/gpu": "2"}}}]}, "status": {"phase": "Running"},
    });
    ledger.put_pod(&pod(&other));
    let snapshot = ledger.snapshot();
    let on = snapshot.node("n1").unwrap();
    assert_eq!(
        (
            on.free.milli("nvidia.com/gpu"),
            on.shape.ceiling.milli("nvidia.com/gpu")
        ),
        (1000, 2000)
    );
    assert_eq!((on.free_slots, on.shape.slot_ceiling), (108, 109));
    ledger.put_pod(&pod(&merged(
        other,
        json!({"metadata": {"resourceVersion": "2"}, "status": {"phase": "Succeeded"}}),
    )));
    let snapshot = ledger.snapshot();
    assert_eq!(
        snapshot
            .node("n1")
            .unwrap()
            .shape
            .ceiling
            .milli("nvidia.com/gpu"),
        4000
    );
    assert!(ledger.is_balanced());
}

#[test]
fn a_list_forgets_what_it_does_not_have() {
    let mut ledger = ledger(
        &[("n1", 4), ("n2", 4)],
        &[("a", 1)],
        &[bound("a", 0, "n1", 1), bound("a", 1, "n2", 1)],
    );
    ledger.keep_pods(&[key("a-1")].into());
    ledger.keep_nodes(&[Arc::from("n2")].into());
    assert_eq!((ledger.pods.len(), ledger.snapshot().nodes().len()), (1, 1));
    ledger.keep_gangs(Some("other"), &Default::default());
    assert_eq!(ledger.gangs.len(), 1);
    ledger.keep_gangs(Some("ml"), &Default::default());
    assert!(ledger.gangs.is_empty() && ledger.is_balanced());
}

#[test]
fn a_gang_waits_with_what_is_missing_of_its_floor() {
    let pods = [gated("a", 1), gated("a", 0), gated("a", 2), gated("b", 0)];
    assert_eq!(
        waiting(&mut ledger(&[], &[("a", 2), ("b", 2)], &pods)),
        [
            ("a".to_owned(), 2, names(&["a-0", "a-1"])),
            ("b".to_owned(), 2, names(&["b-0"]))
        ],
        "b has a pod too few, which the planner says"
    );
    // One of two runs: one is missing. b is at its minimum.
    let pods = [
        bound("a", 0, "n1", 1),
        gated("a", 1),
        gated("a", 2),
        bound("b", 0, "n1", 1),
        pinned("b", 1, "n1", 1),
        gated("b", 2),
    ];
    assert_eq!(
        waiting(&mut ledger(&[], &[("a", 2), ("b", 2)], &pods)),
        [("a".to_owned(), 1, names(&["a-1"]))]
    );
    assert_eq!(
        waiting(&mut ledger(&[], &[("a", 1), ("c", 1)], &[gated("a", 0)])),
        [
            ("a".to_owned(), 1, names(&["a-0"])),
            ("c".to_owned(), 1, names(&[]))
        ],
        "a clique without any pod keeps the gang waiting"
    );
}

#[test]
fn pods_above_the_floor_wait_until_the_floor_is_bound() {
    let above = gated("a", 2);
    let is_on_its_way = [
        bound("a", 0, "n1", 1),
        pinned("a", 1, "n1", 1),
        above.clone(),
    ];
    assert_eq!(
        waiting(&mut ledger(&[("n1", 4)], &[("a", 2)], &is_on_its_way)),
        []
    );
    let is_bound = [bound("a", 0, "n1", 1), bound("a", 1, "n1", 1), above];
    assert_eq!(
        waiting(&mut ledger(&[("n1", 4)], &[("a", 2)], &is_bound)),
        [("a".to_owned(), 0, names(&["a-2"]))]
    );
}

#[test]
fn pods_of_two_templates_are_two_groups_with_one_floor() {
    let large = merged(
        gated("a", 0),
        json!({"spec": {"containers": [{"resources": {"requests": {"nvidia.com/gpu": "2"}}}]}}),
    );
    let pods = [large, gated("a", 1), gated("a", 2)];
    assert_eq!(
        waiting(&mut ledger(&[], &[("a", 2)], &pods)),
        [
            ("a".to_owned(), 1, names(&["a-0"])),
            ("a".to_owned(), 1, names(&["a-1"]))
        ]
    );
}

/// kube-scheduler notes on each new pod that it is gated, which is a second event, but not news: nothing may depend on its
/// coming before the plan is made.
#[test]
fn a_new_pod_is_planned_by_its_first_event_alone() {
    let mut ledger = ledger(&[("n1", 4)], &[("a", 1)], &[]);
    assert_eq!(waiting(&mut ledger), []);
    assert!(ledger.put_pod(&pod(&gated("a", 0))));
    assert_eq!(waiting(&mut ledger), [("a".to_owned(), 1, names(&["a-0"]))]);
}

#[test]
fn a_scaled_gang_waits_for_its_base() {
    let of_scaled = |name: &str| {
        let labels = json!({"grove.io/podgang": "s", "grove.io/base-podgang": "g"});
        merged(gated(name, 0), json!({"metadata": {"labels": labels}}))
    };
    let mut ledger = ledger(&[("n1", 4)], &[("a", 1)], &[gated("a", 0), of_scaled("b")]);
    ledger.put_gang(gang("s", &[("b", 1)]));
    let queue = queued(&mut ledger);
    assert_eq!(queue.keys, [key("g")]);
    assert_eq!(
        queue.held,
        [(key("s"), "waits until gang g is bound to nodes".to_owned())]
    );
    ledger.put_pod(&pod(&bound("a", 0, "n1", 1)));
    assert_eq!(queued(&mut ledger).keys, [key("s")]);
    ledger.remove_gang(&key("g"));
    assert_eq!(
        queued(&mut ledger).held.len(),
        1,
        "without its base it waits"
    );
}

#[test]
fn a_gate_of_somebody_else_is_waited_for() {
    let theirs = json!({"spec": {"schedulingGates": [{"name": "example.com/quota"}, {"name": "grove.io/podgang-pending-creation"}]}});
    let pods = [gated("a", 0), merged(gated("a", 1), theirs.clone())];
    let queue = queued(&mut ledger(&[], &[("a", 2)], &pods));
    assert_eq!(
        queue.held,
        [(
            key("g"),
            "waits for the scheduling gate example.com/quota of pod a-1".to_owned()
        )]
    );
    assert_eq!(
        waiting(&mut ledger(&[], &[("a", 1)], &pods)),
        [("a".to_owned(), 1, names(&["a-0"]))],
        "a pod above the floor holds up nobody"
    );
}

#[test]
fn a_gang_stays_in_the_rack_of_its_pods() {
    let mut ledger = ledger(
        &[("n1", 4)],
        &[("a", 2)],
        &[bound("a", 0, "n1", 1), gated("a", 1)],
    );
    let mut packed = gang("g", &[("a", 2)]);
    packed.metadata.resource_version = Some("2".to_owned());
    packed.spec.topology_constraint =
        serde_json::from_value(json!({"packConstraint": {"required": "rack"}})).unwrap();
    ledger.put_gang(packed);
    let topology = queued(&mut ledger).waiting.remove(0).gang.topology.unwrap();
    assert_eq!(
        (
            topology.key.as_str(),
            topology.within.as_deref(),
            topology.required
        ),
        ("rack", Some("r1"), true)
    );
}

fn constrained(name: &str, of: &[(&str, u32)], fields: &Value) -> GangView {
    let mut gang = gang(name, of);
    gang.metadata.resource_version = Some("2".to_owned());
    gang.spec.topology_constraint = serde_json::from_value(fields["gang"].clone()).unwrap();
    let configs: Option<_> = serde_json::from_value(fields["configs"].clone()).unwrap();
    gang.spec.topology_constraint_group_configs = configs.unwrap_or_default();
    for group in &mut gang.spec.groups {
        let constraint = fields["groups"][&*group.name].clone();
        group.topology_constraint = serde_json::from_value(constraint).unwrap();
    }
    gang
}

/// Keys of a level's domain, and the domain that pods of it are in.
fn level(topology: &placement::Topology) -> (&str, Option<&str>, bool) {
    (&topology.key, topology.within.as_deref(), topology.required)
}

#[test]
fn groups_and_cliques_have_domains_of_their_own_inside_the_gangs() {
    let pods = [
        gated("r", 0),
        bound("a", 0, "n1", 1),
        gated("a", 1),
        gated("b", 0),
        gated("c", 0),
    ];
    let groups = [("r", 1), ("a", 2), ("b", 1), ("c", 1)];
    let mut ledger = ledger(&[("n1", 4)], &groups, &pods);
    let fields = json!({
        "gang": {"packConstraint": {"required": "rack", "preferred": "row"}},
        "configs": [
            {"name": "u-0", "podGroupNames": ["a", "b"], "topologyConstraint": {"packConstraint": {"preferred": "rack"}}},
            {"name": "u-1", "podGroupNames": ["c"]},
        ],
        "groups": {"a": {"packConstraint": {"required": "name"}}, "c": {"packConstraint": {"required": "rack", "preferred": "rack"}}},
    });
    assert!(
        ledger.put_gang(constrained("g", &groups, &fields)),
        "new constraints are news"
    );
    let gang = queued(&mut ledger).waiting.remove(0).gang;
    let groups: Vec<&str> = gang.groups.iter().map(|group| &*group.name).collect();
    assert_eq!(groups, ["r", "a", "b", "c"]);
    assert_eq!(
        level(gang.topology.as_ref().unwrap()),
        ("rack", Some("r1"), true)
    );
    let parts: Vec<(Vec<usize>, _)> = gang
        .parts
        .iter()
        .map(|part| (part.groups.iter().copied().collect(), level(&part.topology)))
        .collect();
    assert_eq!(
        parts,
        [
            (vec![0, 1, 2, 3], ("row", None, false)),
            (vec![1, 2], ("rack", Some("r1"), false)),
            (vec![1], ("name", None, true)),
            (vec![3], ("rack", None, true)),
        ]
    );
}

#[test]
fn the_domain_of_everything_that_waits_is_the_gangs() {
    let groups = [("a", 2), ("b", 1)];
    let pods = [
        bound("b", 0, "n1", 1),
        bound("a", 0, "n1", 1),
        gated("a", 1),
    ];
    let mut ledger = ledger(&[("n1", 4)], &groups, &pods);
    let fields = json!({"groups": {"a": {"packConstraint": {"required": "rack"}}, "b": {"packConstraint": {"required": "name"}}}});
    ledger.put_gang(constrained("g", &groups, &fields));
    let gang = queued(&mut ledger).waiting.remove(0).gang;
    assert_eq!(
        level(gang.topology.as_ref().unwrap()),
        ("rack", Some("r1"), true)
    );
    assert!(gang.parts.is_empty(), "{:?}", gang.parts);
}

#[test]
fn a_group_in_two_entries_is_refused_by_name() {
    let entry = |groups: &[&str]| json!({"name": "u", "podGroupNames": groups, "topologyConstraint": {"packConstraint": {"required": "rack"}}});
    let groups = [("a", 1), ("b", 1)];
    let mut ledger = ledger(&[("n1", 4)], &groups, &[gated("a", 0), gated("b", 0)]);
    let fields = json!({"configs": [entry(&["a", "b"]), entry(&["b"])]});
    ledger.put_gang(constrained("g", &groups, &fields));
    let queue = queued(&mut ledger);
    assert!(
        queue.waiting.is_empty() && queue.held[0].1.contains("names b in two entries"),
        "{queue:?}"
    );
}

const LIMIT: SignedDuration = SignedDuration::from_secs(30);

/// What may happen to a pod.
#[derive(Clone, Copy, Debug)]
enum Step {
    Gate,
    Promise,
    Withdraw,
    Pin,
    Bind,
    Finish,
    End,
    Remove,
}

proptest! {
    #[test]
    fn usage_and_what_gangs_wait_for_are_as_the_pods_are_whatever_happens(
        steps in prop::collection::vec((0u32..3, prop_oneof![
            Just(Step::Gate), Just(Step::Promise), Just(Step::Withdraw), Just(Step::Pin), Just(Step::Bind), Just(Step::Finish),
            Just(Step::End), Just(Step::Remove),
        ], 0u32..2, any::<bool>()), 0..40),
    ) {
        let mut ledger = ledger(&[("n0", 4), ("n1", 4)], &[("a", 2)], &[]);
        for (version, (index, step, node, looks)) in steps.into_iter().enumerate() {
            let on = format!("n{node}");
            let name = key(&format!("a-{index}"));
            let newer = |of: Value| pod(&merged(of, json!({"metadata": {"resourceVersion": (version + 10).to_string()}})));
            match step {
                Step::Gate => _ = ledger.put_pod(&newer(gated("a", index))),
                Step::Promise => ledger.promise(&name, Pin { node: Arc::from(on), at: at(1) }),
                Step::Withdraw => ledger.withdraw(&name, &name.1),
                Step::Pin => _ = ledger.put_pod(&newer(pinned("a", index, &on, 1))),
                Step::Bind => _ = ledger.put_pod(&newer(bound("a", index, &on, 1))),
                Step::Finish => {
                    let finished = merged(bound("a", index, &on, 1), json!({"status": {"phase": "Failed"}}));
                    _ = ledger.put_pod(&newer(finished));
                }
                Step::End => ledger.expect_end(&name, &name.1, true),
                Step::Remove => _ = ledger.remove_pod(&name),
            }
            prop_assert!(ledger.is_balanced(), "after {step:?} of {}", name.1);
            if looks {
                ledger.settle();
                let of_news = (ledger.open.clone(), ledger.pending.clone());
                ledger.touched.insert(key("g"));
                ledger.settle();
                let of_everything = (ledger.open.clone(), ledger.pending.clone());
                prop_assert_eq!(of_news, of_everything, "after {:?} of {}", step, name.1);
            }
        }
    }
}

#[test]
fn a_whole_gang_is_planned_and_nothing_of_one_that_does_not_fit() {
    let pods = [gated("a", 0), gated("a", 1), gated("a", 2)];
    let settings = Settings {
        patience: SignedDuration::from_secs(300),
    };
    for (gpus, placed) in [(2, 0), (3, 3)] {
        let mut ledger = ledger(&[("n1", gpus)], &[("a", 3)], &pods);
        let queue = queued(&mut ledger);
        let schedule = placement::schedule(&ledger.snapshot(), &queue.waiting, at(1), settings);
        let bindings: usize = schedule
            .placements
            .iter()
            .map(|(_, placement)| placement.bindings.len())
            .sum();
        assert_eq!(bindings, placed);
    }
}
