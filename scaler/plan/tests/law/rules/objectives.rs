//! Sizing for objectives, and roles that go idle.

use super::*;

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
