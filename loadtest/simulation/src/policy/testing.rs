//! Worlds for tests of policies.

use std::time::Duration;

use coppice_engine::{Profile, Settings};
use coppice_scaler_plan::{Bounds, Stage};

use crate::world::{Lengths, Objectives, Role, Routing, StartUp, Timing, World};

fn role(name: &str, stage: Stage) -> Role {
    let profile = Profile::named("llama-3.1-8b-fp8_h200_tp1").unwrap();
    Role {
        name: name.to_owned(),
        stage,
        engine: Settings::of(&profile),
        profile,
        gpus_per_unit: 1,
        units: Bounds::new(1, 64).unwrap(),
        initial: 1,
    }
}

fn world(roles: Vec<Role>) -> World {
    let second = Duration::from_secs;
    let timing = Timing {
        scheduling: second(1),
        node: Duration::ZERO,
        load: StartUp::Fixed(second(30)),
        scrape_interval: second(5),
        scrape_delay: second(1),
        actuation: second(1),
        grace: second(300),
        follow: second(600),
    };
    let objectives = Objectives {
        ttft: second(1),
        ttft_per_input_token: Duration::ZERO,
        itl: Duration::from_millis(35),
    };
    let typical = Lengths {
        input: 1_000.0,
        output: 250.0,
    };
    World::new(roles, Routing::LeastLoaded, timing, objectives, typical).unwrap()
}

/// One pool of 8B engines.
pub(crate) fn pool() -> World {
    world(vec![role("server", Stage::Aggregated)])
}

/// Prefill and decode of 8B engines.
pub(crate) fn disaggregated() -> World {
    world(vec![
        role("prefill", Stage::Prefill),
        role("decode", Stage::Decode),
    ])
}
