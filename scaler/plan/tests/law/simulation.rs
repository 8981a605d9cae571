//! Scripted days on a virtual clock.

use coppice_scaler_plan::*;

use crate::support::*;

fn world(limits: Limits) -> World {
    World::new(prefill_and_decode(limits))
}

fn sets(min: u32, max: u32) -> Limits {
    Limits {
        sets: Some(bounds(min, max)),
        ..limits()
    }
}

#[test]
fn a_step_raises_both_roles_in_one_record_within_two_intervals_and_comes_back_after_the_window() {
    let mut world = world(limits());
    world.run("0s load 5\n 400s load 25\n 410s end");
    assert_eq!(
        (world.desired(0), world.desired(1)),
        (5, 3),
        "{}",
        world.timeline
    );
    world.run("900s load 5\n 1190s end");
    assert_eq!(
        (world.desired(0), world.desired(1)),
        (5, 3),
        "the window is not over"
    );
    world.run("2400s end");
    assert_eq!((world.desired(0), world.desired(1)), (1, 1));
    insta::assert_snapshot!(world.timeline);
}

#[test]
fn sets_grow_when_the_groups_are_full_and_go_when_the_rest_has_taken_over() {
    let mut world = world(sets(1, 3));
    world.run("0s load 5\n 200s load 90\n 400s end");
    assert_eq!(
        (world.desired_sets(), world.ready(0)),
        (3, 18),
        "{}",
        world.timeline
    );
    world.run("900s load 10\n 6000s end");
    assert_eq!(
        (world.desired_sets(), world.desired(0), world.desired(1)),
        (1, 2, 1),
        "{}",
        world.timeline
    );
    insta::assert_snapshot!(world.timeline);
}

#[test]
fn the_budget_is_never_exceeded_though_the_mix_turns_over() {
    let mut world = world(Limits {
        budget: Budget::Gpus(48),
        ..sets(1, 2)
    });
    world.run("0s load 20 4000 100\n 300s load 20 500 1200\n 800s load 20 6000 100\n 1200s load 60 500 300\n 2000s end");
    assert!(
        world.peak_gpus > 40,
        "the budget was used: {}",
        world.peak_gpus
    );
    insta::assert_snapshot!(world.timeline);
}

#[test]
fn lost_scrapes_hold_whatever_the_load_does_meanwhile() {
    let mut world = world(limits());
    world.run("0s load 25\n 400s metrics lost\n 405s load 0\n 1500s end");
    assert_eq!((world.desired(0), world.desired(1)), (5, 3));
    let writes = world.writes;
    world.run("1500s metrics back\n 1505s load 25\n 1900s end");
    assert_eq!(
        world.writes, writes,
        "back at the same load, nothing moves\n{}",
        world.timeline
    );
}

#[test]
fn constant_load_is_left_alone() {
    for requests in [0.0, 1.0, 5.0, 24.9, 25.0, 37.3, 79.0] {
        let mut world = world(sets(1, 3));
        world.run(&format!("0s load {requests}\n 1500s end"));
        let writes = world.writes;
        world.run("6000s end");
        assert_eq!(
            world.writes, writes,
            "{requests} requests/s\n{}",
            world.timeline
        );
    }
}

#[test]
fn noise_around_a_boundary_does_not_flap() {
    let mut world = world(limits());
    let mut script = "0s load 20\n".to_owned();
    for second in (600_u64..3_600).step_by(10) {
        let noise = if second % 20 == 0 { 19.8 } else { 20.3 };
        script.push_str(&format!("{second}s load {noise}\n"));
    }
    world.run(&script);
    assert!(world.writes <= 4, "{}", world.timeline);
}

#[test]
fn a_restart_in_the_middle_changes_nothing_that_the_rules_do_not_ask_for() {
    let script = |restart: &str| format!("0s load 25\n 600s load 10\n {restart} 2400s end");
    let mut whole = world(limits());
    whole.run(&script(""));
    let mut broken = world(limits());
    broken.run(&script("950s restart\n"));
    let moves = |world: &World| {
        world
            .timeline
            .lines()
            .filter(|line| !line.contains("--"))
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert_eq!(moves(&whole), moves(&broken));
}

#[test]
fn a_restart_after_a_gap_removes_nothing_for_one_window() {
    let mut world = world(limits());
    world.run("0s load 25\n 600s load 5\n 700s end");
    world.history = History::new(at(world.now));
    world.run("995s end");
    assert_eq!(
        (world.desired(0), world.desired(1)),
        (5, 3),
        "{}",
        world.timeline
    );
    world.run("1500s end");
    assert!(world.desired(0) < 5, "{}", world.timeline);
}

#[test]
fn what_cannot_be_scheduled_stops_growth_and_not_shrinking() {
    let mut world = world(limits());
    world.run("0s hardware 16\n 1s load 40\n 500s end");
    assert!(
        world.desired(0) + world.desired(1) <= 12,
        "{}",
        world.timeline
    );
    world.run("500s load 5\n 3000s end");
    assert_eq!(
        (world.desired(0), world.desired(1)),
        (1, 1),
        "{}",
        world.timeline
    );
}

#[test]
fn sizing_by_objective_follows_a_ramp_ahead_of_it() {
    let roles = vec![role("server", Stage::Aggregated, bounds(1, 64), slo())];
    let mut world = World::new(
        Policy::new(
            roles,
            Limits {
                startup: seconds(60),
                ..limits()
            },
        )
        .unwrap(),
    );
    world.startup = 60;
    let mut script = "0s load 2 8000 1000\n".to_owned();
    for minute in 10_u32..30 {
        script.push_str(&format!(
            "{}s load {} 8000 1000\n",
            minute * 60,
            2.0 + f64::from(minute - 10) * 0.8
        ));
    }
    script.push_str("1800s end");
    world.run(&script);
    assert!(world.desired(0) > 3, "{}", world.timeline);
    insta::assert_snapshot!(world.timeline);
}

#[test]
fn units_that_do_less_than_their_profile_says_are_added_until_nothing_waits() {
    let roles = vec![role("server", Stage::Aggregated, bounds(1, 64), slo())];
    let mut world = World::new(Policy::new(roles, limits()).unwrap());
    world.pace = 0.4;
    world.run("0s load 8 8000 1000\n 1800s end");
    assert!(
        world.waiting(0) < 1.0 && world.ready(0) >= 10,
        "{} wait for {} units\n{}",
        world.waiting(0),
        world.ready(0),
        world.timeline
    );
}

/// Steps systems that share a pool, each with the priority beside it, and checks that the pool holds at every instant.
fn step_together(pool: u32, systems: &mut [(i32, World)]) {
    let claims: Vec<pool::Claim> = systems
        .iter()
        .map(|(priority, world)| {
            let ask = world.ask(pool);
            pool::Claim {
                priority: *priority,
                held: ask.held,
                minimum: ask.minimum,
                wanted: ask.wanted,
                step: ask.step,
            }
        })
        .collect();
    let shares = pool::shares(pool.into(), &claims);
    let allotments = pool::allotments(pool.into(), &claims, &shares);
    for ((_, world), allotted) in systems.iter_mut().zip(allotments) {
        world.policy = world
            .policy
            .with_budget(Budget::Gpus(u32::try_from(allotted).unwrap()));
        world.pooled = true;
        world.step();
    }
    let gpus: u32 = systems.iter().map(|(_, world)| world.gpus()).sum();
    assert!(gpus <= pool, "{gpus} GPUs of {pool}");
}

fn step_until(second: u64, pool: u32, systems: &mut [(i32, World)]) {
    while systems[0].1.now < second {
        step_together(pool, systems);
    }
}

#[test]
fn two_systems_in_opposite_phases_share_a_pool_that_is_never_exceeded() {
    let mut systems = [(0, world(limits())), (0, world(limits()))];
    let mut served = Vec::new();
    for phase in 0..6_u64 {
        let (busy, quiet) = if phase % 2 == 0 { (0, 1) } else { (1, 0) };
        systems[busy].1.load.requests = 25.0;
        systems[quiet].1.load.requests = 3.0;
        step_until((phase + 1) * 1_200, 44, &mut systems);
        served.push((systems[busy].1.ready(0), systems[busy].1.ready(1)));
    }
    assert_eq!(served, vec![(5, 3); 6], "the busy one has what it needs");
}

#[test]
fn a_system_of_higher_priority_takes_from_a_lower_one_at_once_and_gives_back_later() {
    let mut systems = [(10, world(limits())), (100, world(limits()))];
    systems[0].1.load.requests = 40.0;
    step_until(1_200, 48, &mut systems);
    assert!(systems[0].1.gpus() >= 36, "the lower one fills the pool");
    systems[1].1.load.requests = 25.0;
    step_until(1_320, 48, &mut systems);
    assert_eq!(
        (systems[1].1.desired(0), systems[1].1.desired(1)),
        (5, 3),
        "the higher one is served within two minutes:\n{}",
        systems[1].1.timeline
    );
    assert!(
        systems[0].1.ready(0) >= 1 && systems[0].1.ready(1) >= 1,
        "the minimum stays"
    );
    systems[1].1.load.requests = 0.0;
    step_until(4_000, 48, &mut systems);
    assert!(systems[0].1.gpus() >= 36, "{}", systems[0].1.timeline);
}
