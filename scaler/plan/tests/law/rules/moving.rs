//! How fast units come and go: rates, windows, tolerance.

use super::*;

#[test]
fn up_is_limited_to_the_larger_of_double_and_four() {
    for (current, units) in [(1, 5), (4, 8), (10, 20)] {
        let decision = Case::new(queue(bounds(1, 100), queue_limits()), fleet(&[current]))
            .waiting(400.0)
            .decide();
        assert_eq!(
            (wanted(&decision), decision.roles[0].because),
            (vec![units], Because::Rate)
        );
        assert!(limited(&decision, 0).contains(&Limit::ScaleUpRate));
    }
}

#[test]
fn the_rate_counts_what_was_added_within_the_period() {
    let mut case = Case::new(queue(bounds(1, 100), queue_limits()), fleet(&[4])).waiting(400.0);
    case.fleet = fleet(&[8]);
    case.history
        .observe_fleet(&case.policy, &case.fleet, at(WARM));
    assert_eq!(
        wanted(&case.decide()),
        [8],
        "the four of this period are used up"
    );
    case.now += 15;
    case = case.waiting(400.0);
    assert_eq!(wanted(&case.decide()), [16]);
}

#[test]
fn the_next_decision_is_due_when_the_rate_allows_more() {
    let mut case = Case::new(queue(bounds(1, 100), queue_limits()), fleet(&[4])).waiting(400.0);
    case.fleet = fleet(&[8]);
    case.history
        .observe_fleet(&case.policy, &case.fleet, at(WARM));
    case.now += 12;
    case = case.waiting(400.0);
    assert_eq!(case.decide().recheck_after, seconds(3));
}

#[test]
fn down_waits_for_the_window_and_then_goes_a_tenth_a_minute() {
    let policy = queue(bounds(1, 100), queue_limits());
    let within = Case::new(policy.clone(), fleet(&[40]))
        .recommend_before(200, 120.0)
        .waiting(40.0)
        .decide();
    assert_eq!(
        (wanted(&within), within.roles[0].because),
        (vec![36], Because::Rate),
        "30 within the window, a tenth at a time"
    );
    let held = Case::new(policy.clone(), fleet(&[40]))
        .recommend_before(200, 160.0)
        .waiting(40.0)
        .decide();
    assert_eq!(
        (wanted(&held), held.roles[0].because),
        (vec![40], Because::Stabilization)
    );
    assert!(limited(&held, 0).contains(&Limit::StabilizationWindow));
    let after = Case::new(policy.clone(), fleet(&[40]))
        .recommend_before(301, 160.0)
        .waiting(40.0)
        .decide();
    assert_eq!(wanted(&after), [36]);
    let mut again = Case::new(policy, fleet(&[40]))
        .recommend_before(301, 160.0)
        .waiting(40.0);
    again.fleet = fleet(&[36]);
    again
        .history
        .observe_fleet(&again.policy, &again.fleet, at(WARM));
    assert_eq!(wanted(&again.decide()), [36], "once a minute");
}

#[test]
fn the_up_window_takes_the_smallest_demand_in_it() {
    let up = Rules {
        window: seconds(60),
        ..Rules::default_up()
    };
    let policy = queue(
        bounds(1, 100),
        Limits {
            up,
            ..queue_limits()
        },
    );
    let decision = Case::new(policy, fleet(&[4]))
        .recommend_before(30, 20.0)
        .waiting(28.0)
        .decide();
    assert_eq!(
        (wanted(&decision), decision.roles[0].because),
        (vec![5], Because::Stabilization)
    );
}

#[test]
fn small_differences_downwards_are_within_tolerance() {
    let policy = queue(bounds(1, 100), queue_limits());
    for (units, expected) in [(19.0, 20), (18.0, 18), (17.0, 18)] {
        let decision = Case::new(policy.clone(), fleet(&[20]))
            .waiting(units * 4.0)
            .decide();
        assert_eq!(wanted(&decision), [expected], "20 to {units}");
    }
    let one = Case::new(policy, fleet(&[2])).waiting(4.0).decide();
    assert_eq!(wanted(&one), [1], "one unit of two is more than a tenth");
}

#[test]
fn a_disabled_direction_does_not_move() {
    let off = |rules: Rules| Rules {
        pick: Pick::Disabled,
        ..rules
    };
    let no_down = queue(
        bounds(1, 100),
        Limits {
            down: off(Rules::default_down()),
            ..queue_limits()
        },
    );
    assert_eq!(
        wanted(&Case::new(no_down, fleet(&[20])).waiting(4.0).decide()),
        [20]
    );
    let no_up = queue(
        bounds(1, 100),
        Limits {
            up: off(Rules::default_up()),
            ..queue_limits()
        },
    );
    assert_eq!(
        wanted(&Case::new(no_up, fleet(&[20])).waiting(400.0).decide()),
        [20]
    );
}

#[test]
fn the_smallest_of_several_limits_can_count() {
    let up = Rules {
        pick: Pick::Smallest,
        ..Rules::default_up()
    };
    let policy = queue(
        bounds(1, 100),
        Limits {
            up,
            ..queue_limits()
        },
    );
    assert_eq!(
        wanted(&Case::new(policy, fleet(&[10])).waiting(400.0).decide()),
        [14]
    );
}
