//! Standings and the ledger, without a cluster.

use std::collections::BTreeMap;
use std::time::Duration;

use coppice_scaler_plan::{RoleFleet, RoleInSet, SetFleet};
use serde_json::json;

use super::ledger::next;
use super::*;
use crate::policy::{Pace, validate};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn grant(policy: &str, role: Option<&str>, gpus: u32, second: i64) -> BudgetGrant {
    BudgetGrant {
        policy: policy.to_owned(),
        role: role.map(str::to_owned),
        units: gpus / 2,
        gpus,
        at: at(second),
    }
}

fn pools(scope: Option<&str>, grants: Vec<BudgetGrant>) -> Pools {
    let view = PoolView {
        resource: "nvidia.com/gpu".to_owned(),
        limit: 16,
        classes: BTreeMap::from([("batch".to_owned(), 10), ("production".to_owned(), 100)]),
        grants,
        version: Some("7".to_owned()),
    };
    Pools {
        views: Ok(BTreeMap::from([("pool".to_owned(), Arc::new(view))])),
        named: ["batch", "production"]
            .map(|name| (key(name), "pool".to_owned()))
            .into(),
        scope: scope.map(str::to_owned),
        resource: "nvidia.com/gpu".to_owned(),
    }
}

fn key(name: &str) -> Key {
    ("serving".to_owned(), name.to_owned())
}

/// A policy of one role with two GPUs a unit.
struct Case {
    key: Key,
    spec: ScalingPolicySpec,
    plan: Policy,
    history: History,
    fleet: Fleet,
}

impl Case {
    /// Units that exist, in a class, of a role that has at least `min` units.
    fn new(name: &str, class: &str, units: u32, min: u32) -> Self {
        let spec = json!({
            "target": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
            "roles": [{"name": "server", "stage": "Aggregated", "min": min, "max": 20, "signal": {"queueDepth": {"waitingPerUnit": 4}}}],
            "budget": {"name": "pool", "class": class},
        });
        let spec: ScalingPolicySpec = serde_json::from_value(spec).unwrap();
        let pace = Pace {
            interval: Duration::from_secs(5),
            scrape_interval: Duration::from_secs(5),
        };
        let role = RoleInSet {
            desired: Some(units),
            ready: units,
            gpus: units * 2,
            ..RoleInSet::default()
        };
        Self {
            key: key(name),
            plan: validate(&spec, &BTreeMap::new(), pace).unwrap(),
            spec,
            history: History::new(at(0)),
            fleet: Fleet {
                roles: vec![RoleFleet {
                    gpus_per_unit: Some(2),
                    quorum: 1,
                    initial: 1,
                    starting: Vec::new(),
                    conflict: false,
                }],
                desired_sets: 1,
                sets: vec![SetFleet {
                    index: 0,
                    roles: vec![role],
                    other_gpus: 0,
                    other_terminating_gpus: 0,
                }],
                gpus_beside_roles: Some(0),
                rollout: false,
            },
        }
    }

    fn member(&self) -> Member<'_> {
        Member {
            key: &self.key,
            spec: &self.spec,
            plan: &self.plan,
            history: &self.history,
            fleet: &self.fleet,
        }
    }
}

fn room(standing: &Standing) -> (u32, u32) {
    match standing {
        Standing::Member { allotted, held, .. } => (*allotted, *held),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_higher_class_takes_what_a_lower_one_lets_go_and_no_sooner() {
    let (batch, production) = (
        Case::new("batch", "batch", 7, 1),
        Case::new("production", "production", 1, 6),
    );
    let standings =
        pools(None, Vec::new()).standings(&[batch.member(), production.member()], at(100));
    assert_eq!(
        room(&standings[0]),
        (4, 14),
        "all but the minimum of the other"
    );
    assert_eq!(room(&standings[1]), (2, 2), "nothing is free yet");
}

#[test]
fn a_grant_counts_before_its_pods_are_seen_and_so_does_a_foreign_one() {
    let batch = Case::new("batch", "batch", 2, 8);
    let grants = vec![
        grant("elsewhere/other", Some("server"), 4, 0),
        grant("serving/production", Some("server"), 6, 0),
    ];
    let standings = pools(Some("serving"), grants).standings(&[batch.member()], at(100));
    assert_eq!(
        room(&standings[0]),
        (6, 4),
        "16 less 4 elsewhere less 6 of a policy that cannot be followed now"
    );
}

#[test]
fn grants_of_policies_that_are_gone_are_returned_by_those_who_can_tell() {
    let grants = vec![
        grant("elsewhere/other", Some("server"), 4, 0),
        grant("serving/deleted", Some("server"), 6, 0),
    ];
    let ledger = pools(Some("serving"), grants.clone()).ledger("pool", &[], at(100));
    assert_eq!(ledger, Some(vec![grants[0].clone()]), "one namespace");
    let ledger = pools(None, grants).ledger("pool", &[], at(100));
    assert_eq!(ledger, Some(Vec::new()), "the whole cluster");
}

#[test]
fn a_grant_rises_at_once_and_sinks_when_its_writes_have_been_seen() {
    let old = grant("serving/batch", Some("server"), 8, 100);
    let more = grant("serving/batch", Some("server"), 10, 110);
    let less = grant("serving/batch", Some("server"), 6, 110);
    assert_eq!(next(Some(&old), more.clone(), false, at(110)), Some(more));
    assert_eq!(
        next(Some(&old), less.clone(), true, at(110)),
        Some(old.clone()),
        "raised just now"
    );
    assert_eq!(
        next(Some(&old), less.clone(), false, at(200)),
        Some(old.clone()),
        "a write has not been seen"
    );
    let sunk = BudgetGrant { at: old.at, ..less };
    assert_eq!(next(Some(&old), sunk.clone(), true, at(115)), Some(sunk));
    let nothing = grant("serving/batch", Some("server"), 0, 200);
    assert_eq!(next(Some(&old), nothing.clone(), true, at(200)), None);
    assert_eq!(next(None, nothing, true, at(200)), None);
}

#[test]
fn a_ledger_in_another_order_is_left_alone() {
    let grants = vec![
        grant("serving/b", Some("server"), 4, 0),
        grant("elsewhere/a", Some("server"), 4, 0),
    ];
    let ledger = pools(Some("batch"), grants).ledger("pool", &[], at(100));
    assert_eq!(ledger, None);
}

#[test]
fn a_ledger_that_says_what_is_held_is_not_written() {
    let batch = Case::new("batch", "batch", 3, 1);
    let held = batch.fleet.holdings().unwrap();
    let grants = vec![grant("serving/batch", Some("server"), 6, 0)];
    let decided = [(batch.member(), Some(&held), true)];
    assert_eq!(pools(None, grants).ledger("pool", &decided, at(100)), None);
    let raised = pools(None, Vec::new()).ledger("pool", &decided, at(100));
    assert_eq!(
        raised,
        Some(vec![grant("serving/batch", Some("server"), 6, 100)])
    );
}

#[test]
fn what_is_not_known_grows_nothing_and_is_said_with_the_next_step() {
    let stranger = Case::new("batch", "gold", 1, 1);
    let mut all = pools(None, Vec::new());
    let why = |pools: &Pools| match pools.standings(&[stranger.member()], at(1)).remove(0) {
        Standing::Unavailable(why) => why,
        other => panic!("{other:?}"),
    };
    assert!(
        why(&all).contains("budget.class: \"gold\" is not one of its classes (batch, production)")
    );
    all.resource = "amd.com/gpu".to_owned();
    assert!(why(&all).contains("counts nvidia.com/gpu, and this scaler counts amd.com/gpu"));
    all.views = Ok(BTreeMap::new());
    assert!(why(&all).contains("GpuBudget \"pool\" does not exist, so nothing grows: create it"));
    all.views = Err("forbidden".to_owned());
    assert!(why(&all).contains("cannot be read, so nothing grows: forbidden"));
}

#[test]
fn a_policy_that_only_advises_asks_for_no_room() {
    let (mut advising, production) = (
        Case::new("batch", "production", 2, 8),
        Case::new("production", "production", 1, 6),
    );
    advising.spec.mode = Mode::Advise;
    let standings =
        pools(None, Vec::new()).standings(&[advising.member(), production.member()], at(100));
    assert_eq!(room(&standings[1]), (12, 2));
    assert_eq!(room(&standings[0]), (14, 4), "what it could have now");
}
