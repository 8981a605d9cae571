//! What holds of every policy, and what our law does.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

mod common;

use std::time::Duration;

use coppice_simulation::policy::Spec;
use coppice_simulation::{Measures, Outcome, Request, Target, World};

use common::*;

fn under(policy: &str, world: &World, requests: &[Request], duration: Duration) -> Outcome {
    let spec: Spec = policy.parse().unwrap();
    let mut scaler = spec.build(world).unwrap();
    run(world, requests, duration, scaler.as_mut())
}

/// Eighteen minutes.
const RUN: Duration = second(1_080);

/// 10 requests/s, a step to 50, and back.
fn step() -> Vec<Request> {
    requests(4, 1_080, |second| {
        if (300..600).contains(&second) {
            50.0
        } else {
            10.0
        }
    })
}

#[test]
fn no_policy_sees_the_future() {
    let turn = second(350);
    let full = step();
    let mut other: Vec<Request> = full
        .iter()
        .copied()
        .filter(|request| request.at < turn)
        .collect();
    other.extend(
        requests(99, 1_080, |_| 60.0)
            .into_iter()
            .filter(|request| request.at >= turn),
    );
    let before = |targets: &[Target]| -> Vec<Target> {
        let early = targets.iter().filter(|target| target.at <= turn);
        early.cloned().collect()
    };
    for (world, policies) in worlds() {
        for policy in policies {
            let [one, two] = [&full, &other].map(|requests| {
                let outcome = under(policy, &world, requests, RUN);
                (before(&outcome.decisions), before(&outcome.targets))
            });
            assert_eq!(one, two, "{policy}");
        }
    }
}

#[test]
fn every_policy_stays_within_bounds_and_nobody_beats_a_fleet_at_its_largest() {
    let requests = step();
    for (world, policies) in worlds() {
        let result = |policy: &str| {
            let outcome = under(policy, &world, &requests, RUN);
            let attainment = Measures::of(&world, &requests, &outcome, RUN).attainment;
            (outcome, attainment)
        };
        let largest = if world.is_disaggregated() {
            "static:16+16"
        } else {
            "static:16"
        };
        let (_, best) = result(largest);
        assert!(best > 0.999, "{best}");
        for policy in policies {
            let (outcome, own) = result(policy);
            assert!(own <= best, "{policy} {own} {best}");
            let wanted = outcome.decisions.iter().flat_map(|target| &target.units);
            assert!(
                wanted.clone().all(|units| (1..=16).contains(units)),
                "{policy}"
            );
            let moves = ["coppice", "hpa-load"];
            assert!(
                outcome.targets.len() > 1 || !moves.contains(&policy),
                "{policy} did nothing"
            );
        }
    }
}

#[test]
fn our_law_follows_a_step_and_comes_back() {
    let requests = step();
    for (world, _) in worlds() {
        let outcome = under("coppice", &world, &requests, RUN);
        let measures = Measures::of(&world, &requests, &outcome, RUN);
        let at = |when: u64| -> u32 {
            let target = outcome
                .targets
                .iter()
                .rev()
                .find(|target| target.at <= second(when));
            target.unwrap().units.iter().sum()
        };
        assert!(at(360) > at(290), "{:?}", outcome.targets);
        assert!(at(1_080) < at(590), "{:?}", outcome.targets);
        assert!(measures.attainment > 0.7, "{}", measures.attainment);
        assert_eq!(measures.aborted + measures.unfinished + measures.refused, 0);
    }
}

#[test]
fn a_budget_is_kept_by_those_who_know_it() {
    let requests = step();
    for (world, _) in worlds() {
        let world = world.with_budget_gpus(Some(4));
        for policy in ["coppice", "dynamo-throughput"] {
            let outcome = under(policy, &world, &requests, RUN);
            let measures = Measures::of(&world, &requests, &outcome, RUN);
            assert_eq!(measures.budget_violation_seconds, Some(0.0), "{policy}");
        }
    }
}
