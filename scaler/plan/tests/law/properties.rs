//! What holds in every world.

use coppice_scaler_plan::*;
use proptest::prelude::*;

use crate::support::*;

#[derive(Debug, Clone)]
struct Scene {
    policy: Policy,
    fleet: Fleet,
    requests: f64,
    input: f64,
    output: f64,
    waiting: f64,
    age: u64,
    watched: u64,
}

prop_compose! {
    fn a_role(index: usize)(min in 0_u32..4, span in 0_u32..20, kind in 0_u8..4, quorum in 1_u32..4, gpus in prop::option::weighted(0.9, 0_u32..9),
        initial in 1_u32..3, conflict in prop::bool::weighted(0.05)) -> (RolePolicy, RoleFleet) {
        let (stage, sizing) = match kind {
            0 => (Stage::Prefill, per_unit(Source::InputTokens, 10_000.0)),
            1 => (Stage::Decode, per_unit(Source::OutputTokens, 2_000.0)),
            2 => (Stage::Aggregated, per_unit(Source::Waiting, 4.0)),
            _ => (Stage::Aggregated, slo()),
        };
        let policy = role(&format!("role-{index}"), stage, bounds(min, (min + span).max(1)), sizing);
        (policy, RoleFleet { gpus_per_unit: gpus, quorum, initial: initial.max(quorum), starting: Vec::new(), conflict })
    }
}

fn a_set(index: u32, roles: usize) -> impl Strategy<Value = SetFleet> {
    let unit = (0_u32..24, 0_u32..3, prop::bool::weighted(0.1), 0_u32..40).prop_map(
        |(desired, missing, stuck, terminating)| RoleInSet {
            desired: Some(desired),
            ready: desired.saturating_sub(missing),
            unschedulable: u32::from(stuck),
            unschedulable_for: seconds(if stuck { 90 } else { 0 }),
            gpus: desired.saturating_sub(missing) * 4,
            terminating_gpus: if terminating > 35 { terminating } else { 0 },
        },
    );
    prop::collection::vec(unit, roles).prop_map(move |roles| SetFleet {
        index,
        roles,
        other_gpus: 1,
        other_terminating_gpus: 0,
    })
}

prop_compose! {
    fn a_scene()(count in 1_usize..5, sets in 1_u32..4)
        (roles in (0..count).map(a_role).collect::<Vec<_>>(), sets in (0..sets).map(move |index| a_set(index, count)).collect::<Vec<_>>(),
         bounded in prop::option::of((1_u32..3, 0_u32..4)), ratio in prop::option::of((0.2_f64..1.0, 1.0_f64..4.0)),
         budget in prop::option::of(0_u32..400), requests in 0.0_f64..120.0, input in 100.0_f64..8_000.0, output in 10.0_f64..2_000.0,
         waiting in 0.0_f64..200.0, age in 0_u64..400, watched in 0_u64..5_000, rollout in prop::bool::weighted(0.1)) -> Scene {
        let (policies, fleets): (Vec<RolePolicy>, Vec<RoleFleet>) = roles.into_iter().unzip();
        let ratio = ratio.filter(|_| policies.len() > 1).map(|(min, max)| RatioBand { numerator: 0, denominator: 1, min, max });
        let limits = Limits {
            sets: bounded.map(|(min, span)| bounds(min, min + span)),
            ratio,
            budget: budget.map_or(Budget::Unlimited, Budget::Gpus),
            ..limits()
        };
        let fleet = Fleet {
            roles: fleets, desired_sets: u32::try_from(sets.len()).unwrap(), sets, gpus_beside_roles: Some(1), rollout,
        };
        Scene { policy: Policy::new(policies, limits).unwrap(), fleet, requests, input, output, waiting, age, watched }
    }
}

impl Scene {
    fn history(&self) -> History {
        let now = self.watched.max(self.age);
        let mut history = History::new(at(0));
        history.observe_fleet(&self.policy, &self.fleet, at(0));
        let roles: Vec<(&str, RoleObservation)> = self
            .policy
            .roles()
            .iter()
            .map(|role| (role.name.as_str(), waiting(self.waiting)))
            .collect();
        history.observe(
            &self.policy,
            &observation(
                at(now - self.age),
                Some(offered(self.requests, self.input, self.output)),
                &roles,
            ),
        );
        history
    }

    fn now(&self) -> jiff::Timestamp {
        at(self.watched.max(self.age))
    }
}

/// The fleet after the decision was written and everything it asks for is there and ready.
fn carried_out(fleet: &Fleet, decision: &Decision) -> Fleet {
    let mut after = fleet.clone();
    after.desired_sets = decision.sets.wanted;
    after.sets = (0..decision.sets.wanted)
        .map(|index| {
            let roles = decision.roles.iter().zip(&fleet.roles).map(|(role, unit)| {
                let wanted = role.shares[index as usize].wanted;
                RoleInSet {
                    desired: Some(wanted),
                    ready: wanted,
                    gpus: wanted * unit.gpus_per_unit.unwrap_or(0),
                    ..RoleInSet::default()
                }
            });
            SetFleet {
                index,
                roles: roles.collect(),
                other_gpus: 1,
                other_terminating_gpus: 0,
            }
        })
        .collect();
    after
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn no_decision_breaks_a_rule(scene in a_scene()) {
        let decision = decide(&scene.policy, &scene.history(), &scene.fleet, scene.now());
        prop_assert_eq!(violations(&scene.policy, &scene.fleet, &decision), vec![]);
    }

    #[test]
    fn the_same_arguments_give_the_same_decision(scene in a_scene()) {
        let history = scene.history();
        let first = decide(&scene.policy, &history, &scene.fleet, scene.now());
        prop_assert_eq!(decide(&scene.policy, &history, &scene.fleet, scene.now()), first);
    }

    #[test]
    fn deciding_on_what_was_decided_changes_nothing(mut scene in a_scene()) {
        // What is still on its way (units going away, GPUs about to be free, sets being emptied) ends by itself and may allow more then.
        for set in &mut scene.fleet.sets {
            for role in &mut set.roles {
                *role = RoleInSet { ready: role.desired.unwrap(), unschedulable: 0, terminating_gpus: 0, ..*role };
            }
        }
        let limits = Limits { budget: Budget::Unlimited, ..scene.policy.limits().clone() };
        let policy = Policy::new(scene.policy.roles().to_vec(), limits).unwrap();
        let mut history = scene.history();
        let first = decide(&policy, &history, &scene.fleet, scene.now());
        let after = carried_out(&scene.fleet, &first);
        history.record(&policy, &first, scene.now());
        history.observe_fleet(&policy, &after, scene.now());
        let second = decide(&policy, &history, &after, scene.now());
        // Removing a set takes two steps by design: first the others take over, then it goes.
        let removing = first.sets.recommended < first.sets.wanted;
        prop_assert!(removing || second.steps().is_empty(), "{:?} then {:?}", first, second.steps());
    }

    #[test]
    fn more_load_never_asks_for_less(scene in a_scene(), more in 1.0_f64..3.0) {
        let heavier = Scene { requests: scene.requests * more, waiting: scene.waiting * more, ..scene.clone() };
        let policy = Policy::new(scene.policy.roles().to_vec(), Limits { budget: Budget::Unlimited, ratio: None, ..scene.policy.limits().clone() }).unwrap();
        let (light, heavy) = (Scene { policy: policy.clone(), ..scene }, Scene { policy, ..heavier });
        let before = decide(&light.policy, &light.history(), &light.fleet, light.now());
        let after = decide(&heavy.policy, &heavy.history(), &heavy.fleet, heavy.now());
        // A role that reaches its maximum bounds what the others can use; apart from that, more load never asks for less.
        if after.served_fraction >= 1.0 {
            for (before, after) in before.roles.iter().zip(&after.roles) {
                prop_assert!(after.recommended >= before.recommended, "{:?} then {:?}", before, after);
            }
        }
    }

}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn a_snapshot_survives_its_text(requests in prop::collection::vec(0.0_f64..90.0, 1..8)) {
        let mut world = World::new(prefill_and_decode(Limits { sets: Some(bounds(1, 3)), ..limits() }));
        for (index, requests) in requests.iter().enumerate() {
            world.run(&format!("{}s load {requests}", index * 150));
        }
        let snapshot = world.history.snapshot(at(world.now));
        let again: Snapshot = serde_json::from_str(&serde_json::to_string(&snapshot).unwrap()).unwrap();
        prop_assert_eq!(&again, &snapshot);
        let restored = History::restore(&again, at(world.now)).unwrap();
        prop_assert_eq!(restored.snapshot(at(world.now)), snapshot);
    }

    #[test]
    fn random_days_keep_the_budget_and_settle(loads in prop::collection::vec((0.0_f64..90.0, 200.0_f64..6_000.0, 50.0_f64..1_500.0), 1..6), gpus in 8_u32..160) {
        let mut world = World::new(prefill_and_decode(Limits { sets: Some(bounds(1, 3)), budget: Budget::Gpus(gpus), ..limits() }));
        let mut second = 0;
        for (requests, input, output) in loads {
            world.run(&format!("{second}s load {requests} {input} {output}"));
            second += 200;
        }
        world.run(&format!("{}s end", second + 6_000));
        let writes = world.writes;
        world.run(&format!("{}s end", second + 8_000));
        prop_assert_eq!(world.writes, writes, "{}", world.timeline);
    }
}
