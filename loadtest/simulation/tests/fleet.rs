//! What holds of every run, whatever the scaling does.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

mod common;

use std::time::Duration;

use coppice_scaler_plan::Bounds;
use coppice_simulation::policy::Spec;
use coppice_simulation::policy::fixed::Fixed;
use coppice_simulation::{
    Fate, Faults, Measures, Outcome, Request, Routing, StartUp, Timing, World, simulate,
};
use proptest::prelude::*;

use common::*;

fn count(outcome: &Outcome, fate: Fate) -> usize {
    let ended = outcome.requests.iter();
    ended.filter(|ended| ended.fate == fate).count()
}

/// Every request that came ended once, in its own order of instants, and every unit lived in order.
fn check(world: &World, requests: &[Request], outcome: &Outcome) {
    assert_eq!(outcome.requests.len(), requests.len());
    for (request, ended) in requests.iter().zip(&outcome.requests) {
        match ended.fate {
            Fate::Finished => {
                let (first, at) = (ended.first.unwrap(), ended.at.unwrap());
                assert!(request.at <= first && first <= at, "{request:?} {ended:?}");
                assert_eq!(
                    first == at,
                    request.output_tokens == 1,
                    "{request:?} {ended:?}"
                );
            }
            Fate::Refused | Fate::Aborted => assert!(ended.at.unwrap() >= request.at),
            Fate::Unfinished => assert_eq!(ended.at, None),
        }
    }
    let Timing {
        scheduling,
        node,
        load,
        ..
    } = world.timing;
    for unit in &outcome.units {
        let (Some(bound), Some(ready)) = (unit.bound, unit.ready) else {
            assert_eq!(
                unit.given, 0,
                "a unit that is not ready got requests: {unit:?}"
            );
            continue;
        };
        if unit.created > Duration::ZERO {
            assert!(bound >= unit.created, "{unit:?}");
            if let StartUp::Fixed(load) = load {
                assert_eq!(ready - bound, scheduling + node + load, "{unit:?}");
            }
        }
        if let Some(gone) = unit.gone {
            let leaving = unit.leaving.unwrap();
            assert!(
                leaving <= gone && gone - leaving <= world.timing.grace,
                "{unit:?}"
            );
        }
    }
    if let Some(there) = world.cluster_gpus {
        let end = second(1_000_000);
        let measures = Measures::of(world, requests, outcome, end);
        assert!(measures.peak_gpus <= there, "{} GPUs", measures.peak_gpus);
    }
}

fn wanted() -> impl Strategy<Value = Vec<Vec<u32>>> {
    proptest::collection::vec(proptest::collection::vec(1..10_u32, 2), 1..30)
}

fn routing() -> impl Strategy<Value = Routing> {
    prop_oneof![
        Just(Routing::Random),
        Just(Routing::RoundRobin),
        Just(Routing::LeastLoaded),
        (1..40_u32).prop_map(|per_unit| Routing::Central { per_unit }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn no_request_is_lost_whatever_the_scaling_does(
        seed in 0..1_000_u64,
        wanted in wanted(),
        routing in routing(),
        split in any::<bool>(),
        gpus in 2..12_u32,
        rate in 1.0..30.0_f64,
    ) {
        let base = if split { disaggregated() } else { pool() };
        let roles = base.roles().len();
        let mut world = base.with_cluster_gpus(Some(gpus)).unwrap();
        world.routing = routing;
        // However slow the fleet: all of it is followed to its end.
        world.timing.follow = second(1_000_000);
        let requests = requests(seed, 300, |_| rate);
        let wanted: Vec<&[u32]> = wanted.iter().map(|units| &units[..roles]).collect();
        let mut script = Script::new(10, &wanted);
        let outcome = run(&world, &requests, second(300), &mut script);
        check(&world, &requests, &outcome);
        prop_assert_eq!(count(&outcome, Fate::Finished), requests.len());
    }

    #[test]
    fn a_short_grace_period_aborts_and_loses_nothing_out_of_sight(
        seed in 0..1_000_u64,
        wanted in wanted(),
        split in any::<bool>(),
    ) {
        let base = if split { disaggregated() } else { pool() };
        let roles = base.roles().len();
        let mut world = base;
        world.timing.grace = Duration::from_millis(300);
        let requests = requests(seed, 300, |_| 20.0);
        let wanted: Vec<&[u32]> = wanted.iter().map(|units| &units[..roles]).collect();
        let mut script = Script::new(10, &wanted);
        let outcome = run(&world, &requests, second(300), &mut script);
        check(&world, &requests, &outcome);
        let (finished, aborted) = (count(&outcome, Fate::Finished), count(&outcome, Fate::Aborted));
        prop_assert_eq!(finished + aborted, requests.len());
    }
}

#[test]
fn draining_loses_no_request_and_takes_no_new_one() {
    let world = pool();
    let requests = requests(1, 200, |_| 40.0);
    let mut script = Script::new(20, &[&[4], &[4], &[4], &[4], &[1]]);
    let outcome = run(&world, &requests, second(200), &mut script);
    assert_eq!(count(&outcome, Fate::Finished), requests.len());
    let left: Vec<_> = outcome
        .units
        .iter()
        .filter(|unit| unit.leaving.is_some() && unit.given > 0)
        .collect();
    assert_eq!(left.len(), 3);
    for unit in left {
        // What it had at the end took it a while.
        assert!(unit.gone.unwrap() > unit.leaving.unwrap(), "{unit:?}");
    }
}

#[test]
fn a_unit_serves_from_its_readiness_on_and_not_before() {
    let world = pool();
    let requests = requests(1, 300, |_| 5.0);
    let outcome = run(
        &world,
        &requests,
        second(300),
        &mut Script::new(10, &[&[2]]),
    );
    let second_unit = outcome.units[1];
    // Decided at 10 s, written a second later, bound at once, 1 + 4 + 35 s to start.
    assert_eq!(second_unit.created, second(11));
    assert_eq!(second_unit.bound, Some(second(11)));
    assert_eq!(second_unit.ready, Some(second(51)));
    assert!(second_unit.given > 0);
}

#[test]
fn units_without_gpus_wait_until_others_have_left() {
    let world = pool().with_cluster_gpus(Some(2)).unwrap();
    let requests = requests(1, 400, |_| 2.0);
    let mut script = Script::new(10, &[&[3]]);
    let outcome = run(&world, &requests, second(400), &mut script);
    assert_eq!(outcome.units[1].bound, Some(second(11)));
    assert_eq!(outcome.units[2].bound, None, "the cluster has two");
    // What waits goes first, so nothing that serves is taken.
    let mut back = Script::new(100, &[&[3], &[2]]);
    let outcome = run(&world, &requests, second(400), &mut back);
    assert_eq!(outcome.units[2].gone, outcome.units[2].leaving);
    assert_eq!(outcome.units[2].bound, None);
    assert_eq!(outcome.units[0].leaving, None);
}

#[test]
fn start_up_times_are_drawn_by_seed_and_are_the_same_under_another_policy() {
    let mut world = pool();
    world.timing.load = StartUp::Lognormal {
        median: second(60),
        sigma: 0.3,
    };
    let requests = requests(1, 400, |_| 2.0);
    let starts = |script: &mut Script| -> Vec<Duration> {
        let outcome = run(&world, &requests, second(400), script);
        let units = outcome.units.iter().skip(1);
        units
            .filter_map(|unit| Some(unit.ready? - unit.bound?))
            .collect()
    };
    let at_once = starts(&mut Script::new(10, &[&[4]]));
    let later = starts(&mut Script::new(10, &[&[1], &[2], &[3], &[4]]));
    assert_eq!(at_once.len(), 3);
    assert_eq!(at_once, later);
    assert!(at_once[0] != at_once[1]);
}

#[test]
fn a_policy_sees_scrapes_only_after_their_delay() {
    let mut world = pool();
    world.timing.scrape_interval = second(15);
    world.timing.scrape_delay = second(7);
    let requests = requests(1, 120, |_| 2.0);
    let mut script = Script::new(5, &[&[1]]);
    run(&world, &requests, second(120), &mut script);
    // At 5 s the scrape of 0 s is still on its way; from 10 s on the newest is between 7 and 22 s old.
    assert_eq!(script.ages[0], None);
    let ages: Vec<u64> = script.ages[1..]
        .iter()
        .map(|age| age.unwrap().as_secs())
        .collect();
    assert_eq!(ages[..4], [10, 15, 20, 10], "{ages:?}");
    assert!(ages.iter().all(|age| (7..22).contains(age)), "{ages:?}");
}

#[test]
fn a_request_that_fits_no_engine_is_refused_and_counts_as_a_miss() {
    let world = pool();
    let mut requests = requests(1, 20, |_| 2.0);
    requests[3].input_tokens = 10_000_000;
    let outcome = run(&world, &requests, second(20), &mut Fixed::new(vec![2]));
    assert_eq!(outcome.requests[3].fate, Fate::Refused);
    let measures = Measures::of(&world, &requests, &outcome, second(20));
    assert_eq!(measures.refused, 1);
    assert_eq!(measures.finished + 1, measures.arrived);
    assert!(measures.attainment < 1.0);
}

#[test]
fn what_cannot_be_run_is_refused_with_a_reason() {
    let world = pool();
    let mut requests = requests(1, 20, |_| 2.0);
    let refusal = |requests: &[Request], units: Vec<u32>| {
        let mut fixed = Fixed::new(units);
        let none = Faults::default();
        simulate(&world, &none, requests, second(20), &mut fixed, 1, streams)
            .unwrap_err()
            .to_string()
    };
    assert!(refusal(&requests, vec![1, 1]).contains("give each its number"));
    assert!(refusal(&requests, vec![17]).contains("has 1 to 16"));
    requests.swap(2, 5);
    assert!(refusal(&requests, vec![1]).contains("sort the requests by time"));
}

#[test]
fn runs_are_the_same_on_any_thread() {
    let world = disaggregated();
    let requests = requests(9, 600, |second| 5.0 + f64::from(second % 300) / 10.0);
    let spec: Spec = "coppice".parse().unwrap();
    let once = || {
        let mut scaler = spec.build(&world).unwrap();
        run(&world, &requests, second(600), scaler.as_mut())
    };
    let alone = once();
    let beside: Vec<Outcome> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(once)).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    for outcome in beside {
        assert_eq!(outcome, alone);
    }
}

#[test]
fn bounds_hold_whatever_a_policy_wants() {
    let mut roles = pool().roles().to_vec();
    roles[0].units = Bounds::new(2, 3).unwrap();
    roles[0].initial = 2;
    let world = world(roles, Routing::LeastLoaded);
    let requests = requests(1, 100, |_| 2.0);
    let outcome = run(
        &world,
        &requests,
        second(100),
        &mut Script::new(10, &[&[0], &[99]]),
    );
    let units: Vec<u32> = outcome
        .targets
        .iter()
        .map(|target| target.units[0])
        .collect();
    assert_eq!(units, [2, 3]);
}
