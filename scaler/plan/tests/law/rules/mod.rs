//! Each rule by itself.

mod budget;
mod holding;
mod moving;
mod objectives;
mod ratio;
mod sets;

use std::collections::BTreeSet;

use coppice_scaler_plan::*;

use crate::support::*;

/// A history that watched a constant observation every five seconds for `warm` seconds, with decisions recorded, up to second 0 of the test.
struct Case {
    policy: Policy,
    fleet: Fleet,
    history: History,
    now: u64,
}

const WARM: u64 = 4_000;

impl Case {
    /// Watched for long: no restart guard, the windows hold what is there.
    fn new(policy: Policy, fleet: Fleet) -> Self {
        let mut history = History::new(at(0));
        history.observe_fleet(&policy, &fleet, at(0));
        Self {
            policy,
            fleet,
            history,
            now: WARM,
        }
    }

    fn offered(mut self, requests: f64, input: f64, output: f64) -> Self {
        self.history.observe(
            &self.policy,
            &observation(at(self.now), Some(offered(requests, input, output)), &[]),
        );
        self
    }

    fn waiting(mut self, requests: f64) -> Self {
        self.history.observe(
            &self.policy,
            &observation(at(self.now), None, &[("server", waiting(requests))]),
        );
        self
    }

    fn recommend_before(mut self, seconds: u64, requests: f64) -> Self {
        let now = self.now;
        self.now = now - seconds;
        self = self.waiting(requests);
        let decision = self.decide();
        self.history.record(&self.policy, &decision, at(self.now));
        self.now = now;
        self
    }

    fn decide(&self) -> Decision {
        decide_checked(&self.policy, &self.history, &self.fleet, at(self.now))
    }
}

/// No gateway, so that the engines' queue is all there is.
fn queue_limits() -> Limits {
    Limits {
        traffic: false,
        ..limits()
    }
}

fn limited(decision: &Decision, role: usize) -> BTreeSet<Limit> {
    decision.roles[role].limited_by.clone()
}

#[test]
fn units_are_offered_load_over_target_rounded_up() {
    for (waiting, units) in [
        (0.0, 1),
        (4.0, 1),
        (4.1, 2),
        (8.0, 2),
        (12.0, 3),
        (16.0, 4),
        (39.9, 10),
    ] {
        let decision = Case::new(queue(bounds(1, 20), queue_limits()), fleet(&[10]))
            .waiting(waiting)
            .decide();
        assert_eq!(decision.roles[0].recommended, units, "{waiting} waiting");
    }
}

#[test]
fn both_roles_rise_in_one_decision_by_what_the_gateway_offers() {
    let case =
        Case::new(prefill_and_decode(limits()), fleet(&[1, 1])).offered(15.0, 2_000.0, 400.0);
    let decision = case.decide();
    assert_eq!(wanted(&decision), [3, 3]);
    assert_eq!(decision.roles[0].because, Because::Load);
    assert_eq!(decision.steps().len(), 2);
}

#[test]
fn bounds_hold_and_are_named() {
    let policy = queue(bounds(2, 5), queue_limits());
    let above = Case::new(policy.clone(), fleet(&[4]))
        .waiting(400.0)
        .decide();
    assert_eq!(
        (wanted(&above), above.roles[0].because),
        (vec![5], Because::Maximum)
    );
    assert!(limited(&above, 0).contains(&Limit::Max));
    let below = Case::new(policy.clone(), fleet(&[2])).waiting(0.0).decide();
    assert_eq!(
        (wanted(&below), below.roles[0].because),
        (vec![2], Because::Minimum)
    );
    let outside = Case::new(policy.clone(), fleet(&[9]))
        .waiting(16.0)
        .decide();
    assert_eq!(
        wanted(&outside),
        [5],
        "above the maximum is corrected at once"
    );
    let under = Case::new(policy, fleet(&[1])).waiting(0.0).decide();
    assert_eq!(
        wanted(&under),
        [2],
        "below the minimum is corrected at once"
    );
}

#[test]
fn never_between_zero_and_the_gang_minimum() {
    let mut gang = fleet(&[3]);
    gang.roles[0].quorum = 3;
    for (waiting, units) in [(0.0, 3), (4.0, 3), (20.0, 5)] {
        assert_eq!(
            wanted(
                &Case::new(queue(bounds(1, 10), queue_limits()), gang.clone())
                    .waiting(waiting)
                    .decide()
            ),
            [units]
        );
    }
    let impossible = Case::new(queue(bounds(1, 2), queue_limits()), gang)
        .waiting(4.0)
        .decide();
    assert_eq!(wanted(&impossible), [3], "held");
    assert_eq!(
        impossible.problems,
        [Problem::QuorumAboveMaximum { role: 0, quorum: 3 }]
    );
}
