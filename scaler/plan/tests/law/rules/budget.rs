//! Roles that share a maximum or a budget.

use super::*;

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
