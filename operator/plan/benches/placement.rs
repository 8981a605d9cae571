//! Time to place 100 gangs on 1,000 nodes.

use coppice_operator_plan::placement::{
    Gang, Group, Node, NodeShape, Part, PodNeeds, Resources, Settings, Snapshot, Topology, Waiting,
    schedule,
};
use divan::Bencher;
use jiff::{SignedDuration, Timestamp};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

fn main() {
    divan::main();
}

fn nodes(count: usize, gpus: i64) -> Snapshot {
    let node = |position: usize| {
        Node::empty(Arc::new(NodeShape {
            name: format!("node-{position:05}"),
            labels: BTreeMap::from([
                (
                    "kubernetes.io/hostname".to_owned(),
                    format!("node-{position:05}"),
                ),
                (
                    "topology.kubernetes.io/rack".to_owned(),
                    format!("rack-{:03}", position / 16),
                ),
            ]),
            taints: Vec::new(),
            unschedulable: false,
            ceiling: Resources::from_iter([
                ("cpu", 192_000),
                ("memory", 2 << 50),
                ("nvidia.com/gpu", gpus * 1000),
            ]),
            slot_ceiling: 110,
        }))
    };
    Snapshot::new((0..count).map(node).collect())
}

fn group(name: &str, floor: u32, cpu: i64, gpu: i64) -> Group {
    let needs = PodNeeds {
        requests: Resources::from_iter([
            ("cpu", cpu * 1000),
            ("memory", 64 << 40),
            ("nvidia.com/gpu", gpu * 1000),
        ]),
        ..PodNeeds::default()
    };
    Group {
        pods: (0..floor).map(|pod| format!("{name}-{pod}")).collect(),
        name: name.to_owned(),
        needs,
        floor,
    }
}

/// A router, four prefill pods with two GPUs, and two decode groups of a leader and seven workers.
fn gangs(count: usize, in_rack: bool) -> Vec<Waiting> {
    let gang = |position: usize| {
        let name = format!("ml/service-{position:03}");
        let of = |group: &str| format!("{name}-{group}");
        let topology = Topology {
            key: "topology.kubernetes.io/rack".to_owned(),
            within: None,
            required: true,
        };
        let groups = vec![
            group(&of("router"), 1, 4, 0),
            group(&of("prefill"), 4, 16, 2),
            group(&of("leader"), 2, 8, 1),
            group(&of("worker"), 14, 8, 1),
        ];
        Waiting {
            gang: Gang {
                name,
                groups,
                topology: in_rack.then_some(topology),
                parts: Vec::new(),
                avoid: BTreeSet::new(),
            },
            priority: 0,
            since: Timestamp::from_second(i64::try_from(position).unwrap_or(0)).unwrap_or_default(),
        }
    };
    (0..count).map(gang).collect()
}

/// Prefill, and the leaders, on one host each.
fn on_hosts(mut waiting: Vec<Waiting>) -> Vec<Waiting> {
    for of in &mut waiting {
        let part = |group: usize| Part {
            groups: BTreeSet::from([group]),
            topology: Topology {
                key: "kubernetes.io/hostname".to_owned(),
                within: None,
                required: true,
            },
        };
        of.gang.parts = vec![part(1), part(2)];
    }
    waiting
}

fn run(bencher: Bencher<'_, '_>, gpus: i64, in_rack: bool) {
    run_waiting(bencher, gpus, &gangs(100, in_rack));
}

fn run_waiting(bencher: Bencher<'_, '_>, gpus: i64, waiting: &[Waiting]) {
    let snapshot = nodes(1000, gpus);
    let settings = Settings {
        patience: SignedDuration::from_secs(300),
    };
    let now = Timestamp::from_second(1000).unwrap_or_default();
    bencher.bench(|| {
        schedule(
            divan::black_box(&snapshot),
            divan::black_box(waiting),
            now,
            settings,
        )
    });
}

#[divan::bench]
fn all_fit(bencher: Bencher<'_, '_>) {
    run(bencher, 8, false);
}

#[divan::bench]
fn all_fit_each_in_a_rack(bencher: Bencher<'_, '_>) {
    run(bencher, 8, true);
}

#[divan::bench]
fn all_fit_each_in_a_rack_and_cliques_on_hosts(bencher: Bencher<'_, '_>) {
    run_waiting(bencher, 8, &on_hosts(gangs(100, true)));
}

#[divan::bench]
fn none_fits_on_hosts(bencher: Bencher<'_, '_>) {
    run_waiting(bencher, 3, &on_hosts(gangs(100, false)));
}

#[divan::bench]
fn none_fits(bencher: Bencher<'_, '_>) {
    run(bencher, 0, false);
}
