//! Each rule by itself.

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

#[test]
fn a_role_at_its_maximum_bounds_the_flow_of_the_others() {
    let case =
        Case::new(prefill_and_decode(limits()), fleet(&[8, 8])).offered(80.0, 2_000.0, 200.0);
    let decision = case.decide();
    assert!(
        (decision.served_fraction - 0.5).abs() < 0.01,
        "prefill needs 16 and has at most 8: {}",
        decision.served_fraction
    );
    assert_eq!(
        decision.roles[1].recommended, 4,
        "decode is sized for what prefill lets through"
    );
}

#[test]
fn a_queue_at_its_maximum_does_not_starve_a_flow() {
    let roles = vec![
        role(
            "prefill",
            Stage::Prefill,
            bounds(1, 2),
            per_unit(Source::Waiting, 4.0),
        ),
        role(
            "decode",
            Stage::Decode,
            bounds(1, 8),
            per_unit(Source::OutputTokens, 2_000.0),
        ),
    ];
    let policy = Policy::new(roles, limits()).unwrap();
    let mut case = Case::new(policy, fleet(&[2, 4]));
    let observed = observation(
        at(WARM),
        Some(offered(60.0, 2_000.0, 200.0)),
        &[("prefill", waiting(400.0))],
    );
    case.history.observe(&case.policy, &observed);
    assert_eq!(case.decide().roles[1].recommended, 6);
}

#[test]
fn the_budget_is_shared_in_proportion_and_named() {
    let policy = prefill_and_decode(Limits {
        budget: Budget::Gpus(24),
        ..limits()
    });
    let decision = Case::new(policy, fleet(&[1, 1]))
        .offered(40.0, 2_000.0, 200.0)
        .decide();
    assert_eq!(wanted(&decision), [4, 2], "8 and 4 are needed, 6 units fit");
    assert!(decision.roles.iter().all(|role| role.because == Because::Budget && role.limited_by.contains(&Limit::Budget)));
    assert_eq!(
        decision.gpus,
        Some(GpuUse {
            wanted: 24,
            committed: Holdings {
                roles: vec![16, 8],
                beside: 0
            },
            limit: 24
        })
    );
    assert!((decision.served_fraction - 0.5).abs() < 0.02);
}

#[test]
fn a_budget_below_the_objectives_starves_no_role() {
    let objective = |milliseconds| Objective {
        share: 0.95,
        target: std::time::Duration::from_millis(milliseconds),
        per_input_token: std::time::Duration::ZERO,
    };
    let sizing = Sizing::Slo(Box::new(SloSizing {
        ttft: Some(objective(200)),
        itl: Some(objective(10)),
        profile: h200(),
    }));
    let roles = vec![
        role("prefill", Stage::Prefill, bounds(1, 3), sizing.clone()),
        role("decode", Stage::Decode, bounds(1, 3), sizing),
    ];
    let limits = Limits {
        budget: Budget::Gpus(16),
        ..limits()
    };
    let policy = Policy::new(roles, limits).unwrap();
    for requests in [25.0, 35.0, 45.0] {
        let decision = Case::new(policy.clone(), fleet(&[1, 1]))
            .offered(requests, 3_000.0, 300.0)
            .decide();
        assert_eq!(
            wanted(&decision),
            [2, 2],
            "four units for {requests} requests/s: prefill needs most of them for a few requests already, and decode gets its part"
        );
    }
}

#[test]
fn growth_waits_for_the_gpus_of_what_is_going_away() {
    let policy = prefill_and_decode(Limits {
        budget: Budget::Gpus(24),
        ..limits()
    });
    let mut case = Case::new(policy, fleet(&[2, 1])).offered(40.0, 2_000.0, 200.0);
    case.fleet.sets[0].roles[0].terminating_gpus = 8;
    let decision = case.decide();
    assert_eq!(
        wanted(&decision).iter().sum::<u32>(),
        4,
        "two units' GPUs are still held"
    );
    assert_eq!(decision.gpus.unwrap().committed.total(), 24);
}

#[test]
fn what_is_needed_now_takes_the_room_of_what_only_waits_to_shrink() {
    let policy = prefill_and_decode(Limits {
        budget: Budget::Gpus(40),
        ..limits()
    });
    let case = Case::new(policy, fleet(&[8, 2])).offered(10.0, 2_000.0, 1_400.0);
    let decision = case.decide();
    assert_eq!(
        wanted(&decision)[0],
        4,
        "prefill needs 2 and gives what decode may take now, 6 of 10 units"
    );
    assert_eq!(
        wanted(&decision)[1],
        2,
        "nothing is free before prefill's pods are gone"
    );
    let steps = decision.steps();
    assert_eq!((steps.len(), steps[0].to), (1, 4));
}

#[test]
fn unknown_gpus_do_not_grow_under_a_budget() {
    let policy = prefill_and_decode(Limits {
        budget: Budget::Gpus(400),
        ..limits()
    });
    let mut case = Case::new(policy, fleet(&[1, 1])).offered(40.0, 2_000.0, 200.0);
    case.fleet.roles[1].gpus_per_unit = None;
    let decision = case.decide();
    assert_eq!(wanted(&decision), [1, 1]);
    assert!(limited(&decision, 1).contains(&Limit::UnknownGpus));
    let unknown = prefill_and_decode(Limits {
        budget: Budget::Unknown,
        ..limits()
    });
    assert_eq!(
        wanted(
            &Case::new(unknown, fleet(&[1, 1]))
                .offered(40.0, 2_000.0, 200.0)
                .decide()
        ),
        [1, 1]
    );
}

#[test]
fn a_budget_below_the_minimum_is_reported_and_nothing_grows() {
    let policy = prefill_and_decode(Limits {
        budget: Budget::Gpus(4),
        ..limits()
    });
    let decision = Case::new(policy, fleet(&[1, 1]))
        .offered(40.0, 2_000.0, 200.0)
        .decide();
    assert_eq!(wanted(&decision), [1, 1]);
    assert_eq!(
        decision.problems,
        [Problem::BudgetBelowMinimum {
            minimum: 8,
            limit: 4
        }]
    );
}

#[test]
fn a_gang_is_never_grown_to_less_than_its_minimum() {
    let policy = prefill_and_decode(Limits {
        budget: Budget::Gpus(16),
        ..limits()
    });
    let mut case = Case::new(policy, fleet(&[2, 0])).offered(5.0, 2_000.0, 400.0);
    case.fleet.roles[1].quorum = 3;
    let decision = case.decide();
    assert_eq!(
        wanted(&decision)[1],
        0,
        "three units need 12 GPUs and 8 are free"
    );
    assert!(limited(&decision, 1).contains(&Limit::Budget));
}

#[test]
fn the_ratio_band_raises_the_smaller_side() {
    let ratio = Some(RatioBand {
        numerator: 0,
        denominator: 1,
        min: 0.5,
        max: 2.0,
    });
    let policy = prefill_and_decode(Limits { ratio, ..limits() });
    let decision = Case::new(policy, fleet(&[1, 2]))
        .offered(5.0, 2_000.0, 2_400.0)
        .decide();
    assert_eq!(wanted(&decision), [3, 6]);
    assert_eq!(decision.roles[0].because, Because::Ratio);
}

#[test]
fn the_ratio_band_lowers_the_larger_side_when_the_smaller_is_at_its_maximum() {
    let ratio = Some(RatioBand {
        numerator: 0,
        denominator: 1,
        min: 1.0,
        max: 4.0,
    });
    let roles = vec![
        role(
            "prefill",
            Stage::Prefill,
            bounds(1, 2),
            per_unit(Source::InputTokens, 10_000.0),
        ),
        role(
            "decode",
            Stage::Decode,
            bounds(1, 8),
            per_unit(Source::OutputTokens, 2_000.0),
        ),
    ];
    let policy = Policy::new(roles, Limits { ratio, ..limits() }).unwrap();
    let decision = Case::new(policy, fleet(&[1, 1]))
        .offered(5.0, 2_000.0, 2_400.0)
        .decide();
    assert_eq!(wanted(&decision), [2, 2]);
}

#[test]
fn a_ratio_within_the_dead_band_is_left_alone() {
    let ratio = Some(RatioBand {
        numerator: 0,
        denominator: 1,
        min: 0.5,
        max: 2.0,
    });
    let policy = prefill_and_decode(Limits { ratio, ..limits() });
    let roles = policy.roles().iter().map(|role| RolePolicy {
        units: bounds(1, 100),
        ..role.clone()
    });
    let policy = Policy::new(roles.collect(), policy.limits().clone()).unwrap();
    let decision = Case::new(policy, fleet(&[10, 11]))
        .offered(50.0, 2_000.0, 880.0)
        .decide();
    assert_eq!(
        decision
            .roles
            .iter()
            .map(|role| role.recommended)
            .collect::<Vec<_>>(),
        [10, 22],
        "10 to 22 is 0.455"
    );
}

fn sets(min: u32, max: u32) -> Limits {
    Limits {
        sets: Some(bounds(min, max)),
        ..limits()
    }
}

#[test]
fn sets_grow_when_the_groups_are_at_their_maximum_and_not_before() {
    let full = Case::new(prefill_and_decode(sets(1, 4)), fleet(&[8, 5]))
        .offered(50.0, 2_000.0, 200.0)
        .decide();
    assert_eq!(
        (wanted(&full), full.sets.wanted),
        (vec![10, 5], 2),
        "{full:#?}"
    );
    let shares: Vec<u32> = full.roles[0]
        .shares
        .iter()
        .map(|share| share.wanted)
        .collect();
    assert_eq!(shares, [8, 2]);
    let room = Case::new(prefill_and_decode(sets(1, 4)), fleet(&[6, 4]))
        .offered(40.0, 2_000.0, 200.0)
        .decide();
    assert_eq!((wanted(&room), room.sets.wanted), (vec![8, 4], 1));
}

#[test]
fn sets_that_are_not_the_policys_are_never_changed() {
    let decision = Case::new(prefill_and_decode(limits()), fleet(&[8, 8]))
        .offered(400.0, 2_000.0, 200.0)
        .decide();
    assert_eq!(decision.sets.wanted, 1);
    let two = Case::new(prefill_and_decode(limits()), fleet_of(&[&[1, 1], &[1, 1]]))
        .offered(1.0, 2_000.0, 200.0)
        .decide();
    assert_eq!(two.sets.wanted, 2);
}

#[test]
fn a_set_is_removed_only_when_the_others_have_taken_over() {
    let case = |first: &[u32]| {
        Case::new(prefill_and_decode(sets(1, 4)), fleet_of(&[first, &[1, 1]]))
            .offered(14.0, 2_000.0, 400.0)
    };
    let early = case(&[2, 2]).decide();
    assert_eq!(early.sets.wanted, 2);
    let shares: Vec<u32> = early.roles[0]
        .shares
        .iter()
        .map(|share| share.wanted)
        .collect();
    assert_eq!(
        shares,
        [3, 1],
        "the first set takes all of it before the last one goes"
    );
    let ready = case(&[3, 3]).decide();
    assert_eq!((ready.sets.wanted, wanted(&ready)), (1, vec![3, 3]));
}

#[test]
fn a_new_set_must_fit_the_budget_as_it_starts() {
    let policy = |gpus| {
        prefill_and_decode(Limits {
            budget: Budget::Gpus(gpus),
            ..sets(1, 4)
        })
    };
    let with = |gpus: u32| {
        let mut case = Case::new(policy(gpus), fleet(&[8, 8])).offered(50.0, 2_000.0, 390.0);
        case.fleet.gpus_beside_roles = Some(2);
        case.fleet.sets[0].other_gpus = 2;
        case.decide()
    };
    assert_eq!(
        with(75).sets.wanted,
        1,
        "66 are held, the new set starts with 10"
    );
    assert_eq!(with(80).sets.wanted, 2);
}

#[test]
fn a_role_whose_next_unit_needs_a_set_that_does_not_fit_names_both_limits() {
    let limits = Limits {
        budget: Budget::Gpus(60),
        ..sets(1, 4)
    };
    let roles = prefill_and_decode(limits.clone());
    let roles = roles.roles().iter().map(|role| RolePolicy {
        units: bounds(4, 8),
        ..role.clone()
    });
    let policy = Policy::new(roles.collect(), limits).unwrap();
    let decision = Case::new(policy, fleet(&[8, 5]))
        .offered(50.0, 2_000.0, 200.0)
        .decide();
    assert_eq!((wanted(&decision), decision.sets.wanted), (vec![8, 4], 1));
    assert_eq!(
        limited(&decision, 0),
        BTreeSet::from([Limit::Max, Limit::Budget]),
        "a ninth unit fits 60 GPUs, a second set with four of each does not"
    );
}

#[test]
fn an_idle_role_sleeps_after_ten_quiet_minutes_and_wakes_at_a_request() {
    let roles = vec![
        role(
            "prefill",
            Stage::Prefill,
            bounds(0, 8),
            per_unit(Source::InputTokens, 10_000.0),
        ),
        role(
            "decode",
            Stage::Decode,
            bounds(0, 8),
            per_unit(Source::OutputTokens, 2_000.0),
        ),
    ];
    let policy = Policy::new(roles, limits()).unwrap();
    let mut quiet = Case::new(policy.clone(), fleet(&[1, 1]));
    quiet.now = 599;
    let quiet = quiet.offered(0.0, 0.0, 0.0);
    assert_eq!(wanted(&quiet.decide()), [1, 1]);
    let mut quiet = quiet;
    quiet.now = 601;
    let decision = quiet.offered(0.0, 0.0, 0.0).decide();
    assert_eq!(
        (wanted(&decision), decision.roles[0].because),
        (vec![0, 0], Because::Idle)
    );
    let woken = Case::new(policy, fleet(&[0, 0]))
        .offered(0.5, 2_000.0, 200.0)
        .decide();
    assert_eq!(
        (wanted(&woken), woken.roles[1].because),
        (vec![1, 1], Because::Wake),
        "both roles at once"
    );
}

#[test]
fn objectives_size_for_the_load_that_is_coming() {
    let roles = vec![role("server", Stage::Aggregated, bounds(1, 64), slo())];
    let policy = Policy::new(
        roles,
        Limits {
            startup: seconds(120),
            ..limits()
        },
    )
    .unwrap();
    let mut case = Case::new(policy, fleet(&[4]));
    for bin in 0..30_u32 {
        case.now = WARM + u64::from(bin) * 10;
        let requests = 2.0 + 0.2 * f64::from(bin);
        case = case.offered(requests, 8_000.0, 1_000.0);
    }
    let rising = case.decide().roles[0].recommended;
    let mut flat = Case::new(case.policy.clone(), fleet(&[4]));
    for bin in 0..30_u64 {
        flat.now = WARM + bin * 10;
        flat = flat.offered(7.8, 8_000.0, 1_000.0);
    }
    let steady = flat.decide().roles[0].recommended;
    assert!(
        rising > steady,
        "at the same load now, a rising one needs more: {rising} and {steady}"
    );
}

#[test]
fn a_backlog_adds_units_that_work_it_off() {
    let roles = vec![role("prefill", Stage::Prefill, bounds(1, 64), slo())];
    let policy = Policy::new(roles, limits()).unwrap();
    let with = |queued: f64| {
        let mut case = Case::new(policy.clone(), fleet(&[4]));
        for bin in 0..10_u64 {
            case.now = WARM + bin * 10;
            case.history.observe(
                &case.policy,
                &observation(
                    at(case.now),
                    Some(offered(10.0, 8_000.0, 1_000.0)),
                    &[("prefill", waiting(queued))],
                ),
            );
        }
        case.decide().roles[0].recommended
    };
    assert!(with(4_000.0) > with(0.0), "{} {}", with(4_000.0), with(0.0));
}

#[test]
fn an_objective_that_nothing_meets_is_reported() {
    let Sizing::Slo(slo) = slo() else {
        unreachable!()
    };
    let tight = Objective {
        share: 0.95,
        target: std::time::Duration::from_millis(10),
        per_input_token: std::time::Duration::ZERO,
    };
    let sizing = Sizing::Slo(Box::new(SloSizing {
        ttft: Some(tight),
        ..*slo
    }));
    let policy = Policy::new(
        vec![role("prefill", Stage::Prefill, bounds(1, 64), sizing)],
        limits(),
    )
    .unwrap();
    let decision = Case::new(policy, fleet(&[4]))
        .offered(10.0, 8_000.0, 1_000.0)
        .decide();
    assert_eq!(decision.problems, [Problem::Infeasible { role: 0 }]);
}
