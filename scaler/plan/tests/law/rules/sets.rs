//! Sets: when they come, when they go, and what fits.

use super::*;

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
