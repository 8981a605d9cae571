//! Placements that do not come about in time.

use super::*;

/// Pods that come back at `now`, and when the next may.
fn overdue(ledger: &mut Ledger, now: i64) -> (Vec<String>, Option<Timestamp>) {
    ledger.settle();
    let (releases, next) = ledger.overdue(at(now), LIMIT);
    (
        releases
            .into_iter()
            .flat_map(|release| release.pods)
            .map(|((_, name), _)| name.to_string())
            .collect(),
        next,
    )
}

#[test]
fn a_gang_that_did_not_come_together_comes_back_whole() {
    let pods = [
        bound("a", 0, "n1", 10),
        pinned("a", 1, "n2", 10),
        gated("b", 0),
    ];
    let mut ledger = ledger(&[("n1", 1), ("n2", 1)], &[("a", 2), ("b", 0)], &pods);
    assert_eq!(overdue(&mut ledger, 39), (vec![], Some(at(40))));
    assert_eq!(overdue(&mut ledger, 40).0, names(&["a-0", "a-1"]));
    let (releases, _) = ledger.overdue(at(40), LIMIT);
    assert_eq!(
        releases[0].refused,
        ["n2".to_owned()].into(),
        "the node that bound its pod is not to blame"
    );
    ledger.expect_end(&key("a-0"), "a-0", true);
    ledger.expect_end(&key("a-1"), "a-1", true);
    assert_eq!(
        overdue(&mut ledger, 41),
        (vec![], None),
        "it is not taken back twice"
    );
}

#[test]
fn pods_that_are_ready_do_not_make_a_gang_whole() {
    let mut ledger = ledger(
        &[("n1", 1), ("n2", 1)],
        &[("a", 2)],
        &[gated("a", 0), gated("a", 1)],
    );
    ledger.begin(&key("g"));
    let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    ledger.put_pod(&pod(&merged(bound("a", 0, "n1", 10), ready.clone())));
    ledger.put_pod(&pod(&pinned("a", 1, "n2", 10)));
    assert_eq!(overdue(&mut ledger, 40).0, names(&["a-0", "a-1"]));

    // Once it was whole, a pod that is lost and not bound again takes nobody with it.
    ledger.put_pod(&pod(&merged(bound("a", 1, "n2", 10), ready)));
    assert_eq!(overdue(&mut ledger, 41), (vec![], None));
    ledger.remove_pod(&key("a-1"));
    ledger.begin(&key("g"));
    ledger.put_pod(&pod(&pinned("a", 2, "n2", 50)));
    assert_eq!(overdue(&mut ledger, 80).0, names(&["a-2"]));
}

#[test]
fn a_gang_torn_by_a_lost_pod_before_it_was_whole_comes_back_whole() {
    // a-1 was deleted on its way; the pod made in its place finds no room.
    let mut ledger = ledger(
        &[("n1", 1)],
        &[("a", 2)],
        &[bound("a", 0, "n1", 10), gated("a", 1)],
    );
    assert_eq!(overdue(&mut ledger, 40).0, names(&["a-0"]));
}

#[test]
fn a_gang_that_runs_loses_only_the_placement_that_failed() {
    let pods = [bound("a", 0, "n1", 10), bound("a", 1, "n2", 10)];
    let mut ledger = ledger(&[("n1", 1), ("n2", 1)], &[("a", 2)], &pods);
    assert_eq!(overdue(&mut ledger, 100), (vec![], None));
    // A pod is lost; its replacement is placed and not bound.
    ledger.remove_pod(&key("a-1"));
    ledger.put_pod(&pod(&pinned("a", 2, "n2", 200)));
    assert_eq!(overdue(&mut ledger, 229), (vec![], Some(at(230))));
    assert_eq!(overdue(&mut ledger, 230).0, names(&["a-2"]));
}

#[test]
fn a_new_leader_sees_by_ready_pods_that_a_gang_has_run() {
    let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    let pods = [merged(bound("a", 0, "n1", 10), ready), gated("a", 1)];
    let mut ledger = ledger(&[("n1", 1)], &[("a", 2)], &pods);
    assert_eq!(overdue(&mut ledger, 100), (vec![], None));
}

#[test]
fn a_bonus_pod_that_is_not_bound_comes_back_alone() {
    let pods = [bound("a", 0, "n1", 10), pinned("a", 1, "n2", 10)];
    let mut ledger = ledger(&[("n1", 1), ("n2", 1)], &[("a", 1)], &pods);
    assert_eq!(overdue(&mut ledger, 40).0, names(&["a-1"]));
}
