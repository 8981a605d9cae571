//! When a role stays as it is: signals that are missing or old, starts, rollouts, pauses, conflicts, pods without a node.

use super::*;

#[test]
fn nothing_measured_holds_and_is_not_zero() {
    let case = Case::new(queue(bounds(1, 10), queue_limits()), fleet(&[6]));
    let mut starting = case;
    starting.now = 100;
    let decision = starting.decide();
    assert_eq!(
        (wanted(&decision), decision.roles[0].because),
        (vec![6], Because::Starting)
    );
    starting.now = 301;
    let decision = starting.decide();
    assert_eq!(
        (wanted(&decision), decision.roles[0].because),
        (vec![6], Because::MetricsLost)
    );
}

#[test]
fn stale_signals_stop_removing_then_hold_then_fall_back() {
    let lost = WhenLost {
        hold: seconds(300),
        replicas: vec![Some(3)],
    };
    let policy = queue(
        bounds(1, 10),
        Limits {
            lost,
            ..queue_limits()
        },
    );
    let aged = |age: u64, requests: f64| {
        let mut case = Case::new(policy.clone(), fleet(&[6])).waiting(requests);
        case.now += age;
        let decision = case.decide();
        (decision.roles[0].wanted, decision.roles[0].because)
    };
    assert_eq!(aged(10, 4.0), (5, Because::Rate), "two scrapes are fresh");
    assert_eq!(aged(11, 4.0), (6, Because::Held), "then nothing is removed");
    assert_eq!(aged(60, 32.0), (8, Because::Load), "but units are added");
    assert_eq!(
        aged(61, 32.0),
        (6, Because::MetricsStale),
        "then all is held"
    );
    assert_eq!(aged(300, 4.0), (6, Because::MetricsStale));
    assert_eq!(aged(301, 4.0), (3, Because::Fallback));
}

#[test]
fn a_sum_over_some_of_the_endpoints_removes_nothing() {
    let partial = RoleObservation {
        endpoints: 3,
        answered: 2,
        ..waiting(4.0)
    };
    let mut case = Case::new(queue(bounds(1, 10), queue_limits()), fleet(&[6]));
    case.history.observe(
        &case.policy,
        &observation(at(WARM), None, &[("server", partial)]),
    );
    let decision = case.decide();
    assert_eq!(
        (wanted(&decision), decision.roles[0].because),
        (vec![6], Because::Held)
    );
    assert!(limited(&decision, 0).contains(&Limit::StaleMetrics));
}

#[test]
fn a_gateway_that_vanished_leaves_the_engines_as_a_lower_bound() {
    let served = RoleObservation {
        endpoints: 1,
        answered: 1,
        input_tokens_per_second: Some(50_000.0),
        finished_per_second: Some(25.0),
        waiting: Some(0.0),
        running: Some(10.0),
        ..RoleObservation::default()
    };
    let with = |units: u32| {
        let mut case = Case::new(prefill_and_decode(limits()), fleet(&[units, 4]));
        case.history.observe(
            &case.policy,
            &observation(at(WARM), None, &[("prefill", served)]),
        );
        case.decide().roles[0].wanted
    };
    assert_eq!(with(3), 5, "it may add");
    assert_eq!(with(8), 8, "it may not remove");
}

#[test]
fn after_a_start_nothing_is_removed_for_one_window() {
    let policy = queue(bounds(1, 10), queue_limits());
    let mut case = Case::new(policy, fleet(&[6]));
    case.now = 299;
    let decision = Case { ..case }.waiting(4.0).decide();
    assert_eq!(
        (
            wanted(&decision),
            limited(&decision, 0).contains(&Limit::Restart)
        ),
        (vec![6], true)
    );
}

#[test]
fn a_rollout_stops_removing() {
    let mut case = Case::new(queue(bounds(1, 10), queue_limits()), fleet(&[6])).waiting(4.0);
    case.fleet.rollout = true;
    let decision = case.decide();
    assert_eq!(
        (
            wanted(&decision),
            limited(&decision, 0).contains(&Limit::Rollout)
        ),
        (vec![6], true)
    );
}

#[test]
fn paused_policies_and_conflicts_hold() {
    let policy = queue(
        bounds(1, 10),
        Limits {
            paused: true,
            ..queue_limits()
        },
    );
    let paused = Case::new(policy, fleet(&[6])).waiting(400.0).decide();
    assert_eq!(
        (wanted(&paused), paused.roles[0].because),
        (vec![6], Because::Paused)
    );
    let mut case = Case::new(queue(bounds(1, 10), queue_limits()), fleet(&[6])).waiting(400.0);
    case.fleet.roles[0].conflict = true;
    let conflict = case.decide();
    assert_eq!(
        (wanted(&conflict), conflict.roles[0].because),
        (vec![6], Because::Conflict)
    );
}

#[test]
fn while_a_role_may_not_move_no_set_comes_and_none_is_sized_for_it() {
    let roles = [("a", 3), ("b", 3)].map(|(name, min)| {
        let sizing = per_unit(Source::Waiting, 4.0);
        role(name, Stage::Aggregated, bounds(min, 4), sizing)
    });
    let sets = Some(bounds(2, 3));
    let policy = Policy::new(
        roles.to_vec(),
        Limits {
            sets,
            ..queue_limits()
        },
    );
    let mut case = Case::new(policy.unwrap(), fleet(&[3, 3])).waiting(0.0);
    case.fleet.roles[0].conflict = true;
    let decision = case.decide();
    assert_eq!((wanted(&decision), decision.sets.wanted), (vec![3, 3], 1));
    case.fleet.roles[0].conflict = false;
    let decision = case.decide();
    assert_eq!((wanted(&decision), decision.sets.wanted), (vec![6, 6], 2));
}

#[test]
fn units_that_cannot_be_scheduled_stop_growth_after_a_minute() {
    let with = |since: u64| {
        let mut case = Case::new(queue(bounds(1, 100), queue_limits()), fleet(&[6])).waiting(400.0);
        case.fleet.sets[0].roles[0].unschedulable = 1;
        case.fleet.sets[0].roles[0].unschedulable_for = seconds(since);
        case.decide()
    };
    assert_eq!(wanted(&with(59)), [12]);
    assert_eq!(wanted(&with(60)), [6]);
    assert!(limited(&with(60), 0).contains(&Limit::Unschedulable));
}
