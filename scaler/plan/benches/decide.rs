//! Time of one decision.

use std::time::Duration;

use coppice_scaler_plan::*;
use jiff::Timestamp;

fn main() {
    divan::main();
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).expect("in range")
}

/// A policy of `count` roles by throughput or by objective, a history of half an hour, and a fleet of four sets under a budget that bites.
fn scene(count: u32, by_objective: bool) -> (Policy, History, Fleet) {
    let profile = Profile::new(
        [0.018_55, 1.411e-5, 4.919e-10],
        [4.38e-3, 3.948e-5, 3.009e-8],
        945_029.0,
        1_024.0,
        0.0,
    )
    .expect("a profile");
    let objective = |milliseconds| Objective {
        share: 0.95,
        target: Duration::from_millis(milliseconds),
        per_input_token: Duration::ZERO,
    };
    let roles = (0..count).map(|index| {
        let sizing = if by_objective {
            Sizing::Slo(Box::new(SloSizing {
                ttft: Some(objective(3_000)),
                itl: Some(objective(35)),
                profile,
            }))
        } else {
            Sizing::PerUnit {
                source: Source::InputTokens,
                target: Positive::new(10_000.0).expect("positive"),
            }
        };
        let stage = if index % 2 == 0 {
            Stage::Prefill
        } else {
            Stage::Decode
        };
        RolePolicy {
            name: format!("role-{index}"),
            stage,
            units: Bounds::new(1, 64).expect("bounds"),
            sizing,
        }
    });
    let limits = Limits {
        sets: Bounds::new(1, 8),
        ratio: (count > 1).then_some(RatioBand {
            numerator: 0,
            denominator: 1,
            min: 0.25,
            max: 4.0,
        }),
        budget: Budget::Gpus(20 * count),
        startup: Duration::from_secs(120),
        up: Rules::default_up(),
        down: Rules::default_down(),
        lost: WhenLost {
            hold: Duration::from_secs(300),
            replicas: Vec::new(),
        },
        paused: false,
        traffic: true,
        scrape_interval: Duration::from_secs(5),
        interval: Duration::from_secs(5),
    };
    let policy = Policy::new(roles.collect(), limits).expect("a policy");
    let unit = RoleInSet {
        desired: Some(4),
        ready: 4,
        gpus: 4,
        ..RoleInSet::default()
    };
    let set = |index| SetFleet {
        index,
        roles: vec![unit; count as usize],
        other_gpus: 0,
        other_terminating_gpus: 0,
    };
    let role = RoleFleet {
        gpus_per_unit: Some(1),
        quorum: 1,
        initial: 1,
        starting: Vec::new(),
        conflict: false,
    };
    let fleet = Fleet {
        roles: vec![role; count as usize],
        desired_sets: 4,
        sets: (0..4).map(set).collect(),
        gpus_beside_roles: Some(0),
        rollout: false,
    };
    let mut history = History::new(at(0));
    for second in (0..1_800).step_by(5) {
        let requests = 60.0 + 20.0 * (f64::from(second) / 300.0).sin();
        let offered = Offered {
            requests_per_second: Some(requests),
            input_tokens_per_second: Some(requests * 8_000.0),
            mean_output_tokens: Some(1_000.0),
            waiting: Some(3.0),
        };
        history.observe(
            &policy,
            &Observation {
                at: at(second.into()),
                offered: Some(offered),
                roles: std::collections::BTreeMap::new(),
            },
        );
        history.observe_fleet(&policy, &fleet, at(second.into()));
        if second % 60 == 0 {
            let decision = decide(&policy, &history, &fleet, at(second.into()));
            history.record(&policy, &decision, at(second.into()));
        }
    }
    (policy, history, fleet)
}

#[divan::bench(args = [1, 10, 100])]
fn by_throughput(bencher: divan::Bencher<'_, '_>, roles: u32) {
    let (policy, history, fleet) = scene(roles, false);
    bencher.bench(|| decide(&policy, &history, &fleet, at(1_800)));
}

#[divan::bench(args = [1, 10, 100])]
fn by_objective(bencher: divan::Bencher<'_, '_>, roles: u32) {
    let (policy, history, fleet) = scene(roles, true);
    bencher.bench(|| decide(&policy, &history, &fleet, at(1_800)));
}
