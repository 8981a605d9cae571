//! The band between two roles.

use super::*;

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
