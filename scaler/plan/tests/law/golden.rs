//! Whole records, as they are.

use coppice_scaler_plan::*;

use crate::support::*;

#[test]
fn a_joint_step_under_a_budget() {
    let policy = prefill_and_decode(Limits {
        budget: Budget::Gpus(48),
        sets: Some(bounds(1, 2)),
        ..limits()
    });
    let fleet = fleet(&[2, 2]);
    let mut history = History::new(at(0));
    history.observe_fleet(&policy, &fleet, at(0));
    history.observe(
        &policy,
        &observation(at(1_000), Some(offered(60.0, 2_000.0, 200.0)), &[]),
    );
    insta::assert_debug_snapshot!(decide_checked(&policy, &history, &fleet, at(1_000)));
}

#[test]
fn a_snapshot_is_small() {
    let mut world = World::new(prefill_and_decode(Limits {
        sets: Some(bounds(1, 3)),
        ..limits()
    }));
    world.run("0s load 4 \n 100s load 60 \n 400s load 20 \n 1500s end");
    let snapshot = world.history.snapshot(at(world.now));
    let text = serde_json::to_string(&snapshot).unwrap();
    assert!(text.len() < 2_000, "{} bytes: {text}", text.len());
    insta::assert_snapshot!(text);
}
