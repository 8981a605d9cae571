//! Each fault does what it says, to whom it says, and the same each time.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

mod common;

use std::time::Duration;

use coppice_simulation::policy::Spec;
use coppice_simulation::policy::fixed::Fixed;
use coppice_simulation::{
    Fate, Fault, FaultKind, Faults, Life, Measures, Outcome, Scaler, Sight, World, simulate,
};

use common::*;

fn faults(at: u64, kind: FaultKind) -> Faults {
    Faults::new(vec![Fault {
        at: second(at),
        kind,
    }])
    .unwrap()
}

fn dead(outcome: &Outcome) -> Vec<&Life> {
    outcome.units.iter().filter(|unit| unit.died).collect()
}

fn aborted(outcome: &Outcome) -> usize {
    let ended = outcome.requests.iter();
    ended.filter(|ended| ended.fate == Fate::Aborted).count()
}

/// Every request ended, in one way only.
fn nothing_is_lost(outcome: &Outcome) {
    for ended in &outcome.requests {
        assert_ne!(ended.fate, Fate::Unfinished);
        assert!(ended.at.is_some());
    }
}

#[test]
fn a_share_of_the_units_dies_with_its_requests_and_is_replaced_after_a_whole_start() {
    for world in [pool(), disaggregated()] {
        let roles = world.roles().len();
        let requests = requests(1, 200, |_| 40.0);
        let faults = faults(100, FaultKind::UnitsDie { share: 0.2 });
        let mut fixed = Fixed::new(vec![6; roles]);
        let outcome = run_with(&world, &faults, &requests, second(200), &mut fixed);
        nothing_is_lost(&outcome);
        let dead = dead(&outcome);
        // A fifth of six, rounded up, of each role.
        assert_eq!(dead.len(), 2 * roles);
        for unit in &dead {
            assert_eq!(
                (unit.leaving, unit.gone),
                (Some(second(100)), Some(second(100)))
            );
        }
        let new: Vec<&Life> = outcome.units.iter().skip(6 * roles).collect();
        assert_eq!(new.len(), dead.len());
        for unit in new {
            assert_eq!(unit.created, second(100));
            // 1 + 4 + 35 s to start.
            assert_eq!(unit.ready, Some(second(140)));
        }
        // A third of what was under way is lost, and nothing that came later.
        assert!(aborted(&outcome) > 0);
        for (request, ended) in requests.iter().zip(&outcome.requests) {
            if ended.fate == Fate::Aborted {
                assert!(request.at <= second(100), "{request:?}");
                assert_eq!(ended.at, Some(second(100)));
            }
        }
    }
}

#[test]
fn who_dies_is_drawn_by_seed() {
    let world = pool();
    let requests = requests(1, 60, |_| 10.0);
    let faults = faults(30, FaultKind::UnitsDie { share: 0.25 });
    let dies = |seed: u64| -> Vec<usize> {
        let mut fixed = Fixed::new(vec![16]);
        let outcome = simulate(
            &world,
            &faults,
            &requests,
            second(60),
            &mut fixed,
            seed,
            streams,
        )
        .unwrap();
        let units = outcome.units.iter().enumerate();
        units
            .filter(|(_, unit)| unit.died)
            .map(|(index, _)| index)
            .collect()
    };
    assert_eq!(dies(1), dies(1));
    assert!((2..12).any(|seed| dies(seed) != dies(1)));
    assert_eq!(dies(1).len(), 4);
}

#[test]
fn a_dead_node_takes_its_units_and_its_gpus_until_it_is_back() {
    let world = pool().with_cluster_gpus(Some(6)).unwrap();
    let requests = requests(1, 400, |_| 10.0);
    let kind = FaultKind::NodeDies {
        gpus: 4,
        lasting: second(120),
    };
    let mut fixed = Fixed::new(vec![6]);
    let outcome = run_with(
        &world,
        &faults(100, kind),
        &requests,
        second(400),
        &mut fixed,
    );
    assert_eq!(dead(&outcome).len(), 4);
    let new: Vec<&Life> = outcome.units.iter().skip(6).collect();
    assert_eq!(new.len(), 4);
    for unit in new {
        assert_eq!(unit.created, second(100));
        assert_eq!(unit.bound, Some(second(220)), "when the node is back");
    }
    // Where the cluster has as many GPUs as are asked for, others take their place at once.
    let mut fixed = Fixed::new(vec![6]);
    let outcome = run_with(
        &pool(),
        &faults(100, kind),
        &requests,
        second(400),
        &mut fixed,
    );
    assert!(
        outcome.units[6..]
            .iter()
            .all(|unit| unit.bound == Some(second(100)))
    );
}

#[test]
fn a_node_takes_loading_units_and_only_those_that_fit_on_it() {
    let mut roles = pool().roles().to_vec();
    roles[0].gpus_per_unit = 2;
    let world = world(roles, coppice_simulation::Routing::LeastLoaded);
    let requests = requests(1, 100, |_| 1.0);
    let kind = FaultKind::NodeDies {
        gpus: 5,
        lasting: second(10),
    };
    // Bound at 11 s, ready at 51 s: at 30 s three of the four are loading.
    let mut script = Script::new(10, &[&[4]]);
    let outcome = run_with(
        &world,
        &faults(30, kind),
        &requests,
        second(100),
        &mut script,
    );
    let dead = dead(&outcome);
    assert_eq!(dead.len(), 2, "two of two GPUs each stand on five");
    assert!(dead.iter().any(|unit| unit.ready.is_none()));
    for unit in dead.iter().filter(|unit| unit.created > second(0)) {
        assert_eq!(unit.ready, None, "a dead unit does not become ready");
        assert_eq!(unit.given, 0);
    }
}

#[test]
fn while_there_are_no_gpus_nothing_is_bound_and_what_is_bound_stays() {
    let world = pool();
    let requests = requests(1, 300, |_| 10.0);
    let kind = FaultKind::NoGpus {
        lasting: second(150),
    };
    let mut script = Script::new(20, &[&[3]]);
    let outcome = run_with(
        &world,
        &faults(5, kind),
        &requests,
        second(300),
        &mut script,
    );
    assert_eq!(outcome.units[0].gone, None);
    for unit in &outcome.units[1..] {
        assert_eq!(unit.created, second(21));
        assert_eq!(unit.bound, Some(second(155)));
        assert_eq!(unit.ready, Some(second(195)));
    }
    // What waits for GPUs is not paid for.
    let measures = Measures::of(&world, &requests, &outcome, second(150));
    assert!((measures.mean_gpus - 1.0).abs() < 1e-9, "{measures:?}");
}

#[test]
fn slow_starts_take_so_many_times_as_long_with_the_same_draws_and_later_ones_do_not() {
    let mut world = pool();
    world.timing.load = coppice_simulation::StartUp::Lognormal {
        median: second(40),
        sigma: 0.3,
    };
    let requests = requests(1, 600, |_| 2.0);
    let loads = |faults: &Faults| -> Vec<f64> {
        let mut script = Script::new(50, &[&[2], &[3], &[3], &[3], &[3], &[4]]);
        let outcome = run_with(&world, faults, &requests, second(600), &mut script);
        let started = outcome.units[1..].iter();
        started
            .map(|unit| (unit.ready.unwrap() - unit.bound.unwrap() - second(5)).as_secs_f64())
            .collect()
    };
    let usual = loads(&Faults::default());
    let slow = loads(&faults(
        0,
        FaultKind::SlowStarts {
            factor: 3.0,
            lasting: second(200),
        },
    ));
    assert_eq!(usual.len(), 3);
    for (slow, expected) in slow.iter().zip([3.0 * usual[0], 3.0 * usual[1], usual[2]]) {
        assert!((slow - expected).abs() < 1e-6, "{slow} {expected}");
    }
}

/// Notes what it sees, wants always the same.
#[derive(Debug, Default)]
struct Watcher {
    /// Time of the decision, whether there is a fresh round, requests counted in the newest one, units in it, rate of requests.
    seen: Vec<(u64, bool, u64, usize, Option<f64>)>,
    wanted: Vec<u32>,
}

impl Scaler for Watcher {
    fn period(&self) -> Duration {
        second(5)
    }

    fn decide(&mut self, sight: &Sight<'_>) -> Vec<u32> {
        let newest = sight.scrapes().next();
        self.seen.push((
            sight.now.as_secs(),
            sight.fresh().is_some(),
            newest.map_or(0, |scrape| scrape.gateway.arrived),
            newest.map_or(0, |scrape| scrape.units.len()),
            sight.gateway_rate(second(15), |gateway| gateway.arrived),
        ));
        self.wanted.clone()
    }
}

fn watched(from: u64, kind: FaultKind, units: u32) -> Watcher {
    let requests = requests(1, 400, |_| 10.0);
    let mut watcher = Watcher {
        wanted: vec![units],
        ..Watcher::default()
    };
    run_with(
        &pool(),
        &faults(from, kind),
        &requests,
        second(400),
        &mut watcher,
    );
    watcher
}

#[test]
fn lost_metrics_are_seen_as_none_and_not_as_zero() {
    let kind = FaultKind::MetricsLost {
        lasting: second(100),
    };
    for (at, fresh, _, _, rate) in watched(100, kind, 1).seen {
        // The last round is that of 95 s, fresh for two intervals and the delay: until 106 s. The next is read at 200 s and seen a second later.
        assert_eq!(fresh, !(110..=200).contains(&at), "at {at}");
        assert_eq!(rate.is_some(), fresh && at > 5, "at {at}");
        if let Some(rate) = rate {
            assert!((4.0..16.0).contains(&rate), "at {at}: {rate}");
        }
    }
}

#[test]
fn frozen_metrics_look_fresh_repeat_themselves_and_say_nothing_of_new_units() {
    let kind = FaultKind::MetricsFrozen {
        lasting: second(100),
    };
    let at = |watcher: &Watcher, when: u64| {
        let mut seen = watcher.seen.iter();
        *seen.find(|(at, ..)| *at == when).unwrap()
    };
    let frozen = watched(100, kind, 3);
    // Decided at 5 s, ready at 46 s: three answer before. Seen at 105 s is the first frozen round, of 100 s.
    let (_, fresh, arrived, units, _) = at(&frozen, 105);
    assert!(fresh);
    assert_eq!(units, 3);
    for when in (110..=200).step_by(5) {
        let (_, fresh, now, units, rate) = at(&frozen, when);
        assert!(fresh, "at {when}");
        assert_eq!((now, units), (arrived, 3), "at {when}");
        if when > 125 {
            assert_eq!(rate, Some(0.0), "at {when}");
        }
    }
    assert!(at(&frozen, 205).2 > arrived + 500);
    // Frozen while the two new ones load.
    let early = watched(30, kind, 3);
    assert_eq!((at(&early, 100).3, at(&early, 140).3), (1, 3));
}

/// Units asked for from `from` to `to`, the one at `from` first.
fn asked(outcome: &Outcome, role: usize, from: u64, to: u64) -> Vec<u32> {
    let before = outcome
        .targets
        .iter()
        .rev()
        .find(|target| target.at <= second(from));
    let within = outcome
        .targets
        .iter()
        .filter(|target| target.at > second(from) && target.at <= second(to));
    before
        .into_iter()
        .chain(within)
        .map(|target| target.units[role])
        .collect()
}

/// These keep the last value of their own gauge, and the HPA behind it goes on to follow that, after its window: down to what was wanted before the loss.
const FOLLOW_THEIR_LAST: &[&str] = &["wva1", "wva2"];

/// Under a load that needs several units, the metrics go for five minutes: nobody may take that for a load of nothing.
#[test]
fn a_policy_without_metrics_holds_and_does_not_fall_to_its_minimum() {
    let requests = requests(3, 1_200, |second| if second < 720 { 40.0 } else { 1.0 });
    let kind = FaultKind::MetricsLost {
        lasting: second(300),
    };
    let faults = faults(400, kind);
    let under = |world: &World, policy: &str| {
        let spec: Spec = policy.parse().unwrap();
        let mut scaler = spec.build(world).unwrap();
        run_with(world, &faults, &requests, second(1_200), scaler.as_mut())
    };
    for (world, policies) in worlds() {
        for policy in policies {
            let outcome = under(&world, policy);
            for role in 0..world.roles().len() {
                // What was decided on the last fresh round is written by 420 s.
                let held = asked(&outcome, role, 420, 700);
                assert!(
                    held.iter().all(|units| *units >= held[0])
                        || FOLLOW_THEIR_LAST.contains(&policy),
                    "{policy}, role {role}: {held:?}"
                );
            }
        }
        // It was not at its minimum anyway, and it goes on once there are metrics again.
        let ours = under(&world, "coppice");
        let sum = |from: u64| -> u32 {
            let roles = 0..world.roles().len();
            roles.map(|role| asked(&ours, role, from, from)[0]).sum()
        };
        let least: u32 = world.roles().iter().map(|role| role.units.min()).sum();
        assert!(sum(700) > least, "{:?}", ours.targets);
        assert!(sum(1_200) < sum(700), "{:?}", ours.targets);
    }
}

#[test]
fn a_run_with_faults_is_the_same_twice() {
    let world = disaggregated().with_cluster_gpus(Some(10)).unwrap();
    let requests = requests(5, 600, |second| if second < 200 { 5.0 } else { 30.0 });
    let lasting = second(120);
    let all = [
        (
            150,
            FaultKind::SlowStarts {
                factor: 3.0,
                lasting,
            },
        ),
        (210, FaultKind::MetricsFrozen { lasting }),
        (300, FaultKind::UnitsDie { share: 0.3 }),
        (310, FaultKind::NoGpus { lasting }),
        (350, FaultKind::MetricsLost { lasting }),
        (400, FaultKind::NodeDies { gpus: 4, lasting }),
    ];
    let faults = Faults::new(
        all.into_iter()
            .map(|(at, kind)| Fault {
                at: second(at),
                kind,
            })
            .collect(),
    )
    .unwrap();
    let once = || {
        let spec: Spec = "coppice".parse().unwrap();
        let mut scaler = spec.build(&world).unwrap();
        run_with(&world, &faults, &requests, second(600), scaler.as_mut())
    };
    let outcome = once();
    assert_eq!(outcome, once());
    nothing_is_lost(&outcome);
    assert!(!dead(&outcome).is_empty());
    let measures = Measures::of(&world, &requests, &outcome, second(600));
    assert!(measures.peak_gpus <= 10, "{}", measures.peak_gpus);
    assert_eq!(measures.finished + measures.aborted, measures.arrived);
}
