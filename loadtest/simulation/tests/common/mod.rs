//! Worlds and requests for tests.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::time::Duration;

use coppice_engine::{Profile, Settings};
use coppice_scaler_plan::{Bounds, Stage};
use coppice_simulation::policy::{OF_ONE_POOL, OF_PREFILL_AND_DECODE};
use coppice_simulation::{
    Faults, Lengths, Objectives, Outcome, Request, Role, Routing, Scaler, Sight, StartUp, Timing,
    World, simulate,
};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

pub(crate) const fn second(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Any rule will do here; the program brings that of its schedules.
pub(crate) fn streams(seed: u64, name: &str, entity: u64) -> ChaCha8Rng {
    let name: u64 = name.bytes().fold(7, |sum, byte| sum * 31 + u64::from(byte));
    ChaCha8Rng::seed_from_u64(
        seed ^ name.rotate_left(17) ^ entity.wrapping_mul(0x9e37_79b9_7f4a_7c15),
    )
}

pub(crate) fn role(name: &str, stage: Stage, profile: &Profile) -> Role {
    Role {
        name: name.to_owned(),
        stage,
        engine: Settings::of(profile),
        profile: profile.clone(),
        gpus_per_unit: profile.gpus_per_replica,
        units: Bounds::new(1, 16).unwrap(),
        initial: 1,
    }
}

pub(crate) fn timing() -> Timing {
    Timing {
        scheduling: second(1),
        node: second(4),
        load: StartUp::Fixed(second(35)),
        scrape_interval: second(5),
        scrape_delay: second(1),
        actuation: second(1),
        grace: second(3_600),
        follow: second(3_600),
    }
}

pub(crate) fn objectives() -> Objectives {
    Objectives {
        ttft: second(1),
        ttft_per_input_token: Duration::from_micros(500),
        itl: Duration::from_millis(50),
    }
}

pub(crate) fn typical() -> Lengths {
    Lengths {
        input: 1_000.0,
        output: 200.0,
    }
}

pub(crate) fn world(roles: Vec<Role>, routing: Routing) -> World {
    World::new(roles, routing, timing(), objectives(), typical()).unwrap()
}

pub(crate) fn h200() -> Profile {
    Profile::named("llama-3.1-8b-fp8_h200_tp1").unwrap()
}

/// One pool of 8B engines.
pub(crate) fn pool() -> World {
    world(
        vec![role("server", Stage::Aggregated, &h200())],
        Routing::LeastLoaded,
    )
}

/// Prefill and decode of 8B engines.
pub(crate) fn disaggregated() -> World {
    world(
        vec![
            role("prefill", Stage::Prefill, &h200()),
            role("decode", Stage::Decode, &h200()),
        ],
        Routing::LeastLoaded,
    )
}

/// Poisson arrivals with a rate for each second, lengths between half and one and a half of the typical ones.
pub(crate) fn requests(seed: u64, seconds: u32, rate: impl Fn(u32) -> f64) -> Vec<Request> {
    let mut random = streams(seed, "requests", 0);
    let mut all = Vec::new();
    for second in 0..seconds {
        let rate = rate(second);
        let mut at = exponential(&mut random) / rate;
        while at < 1.0 {
            let mut length = |mean: u32| mean / 2 + random.random_range(0..mean);
            all.push(Request {
                at: Duration::from_secs_f64(f64::from(second) + at),
                input_tokens: length(1_000),
                output_tokens: length(200),
                cached_tokens: 0,
            });
            at += exponential(&mut random) / rate;
        }
    }
    all
}

pub(crate) fn exponential(random: &mut ChaCha8Rng) -> f64 {
    -(1.0 - random.random::<f64>()).ln()
}

pub(crate) fn run(
    world: &World,
    requests: &[Request],
    duration: Duration,
    scaler: &mut dyn Scaler,
) -> Outcome {
    run_with(world, &Faults::default(), requests, duration, scaler)
}

pub(crate) fn run_with(
    world: &World,
    faults: &Faults,
    requests: &[Request],
    duration: Duration,
    scaler: &mut dyn Scaler,
) -> Outcome {
    simulate(world, faults, requests, duration, scaler, 1, streams).unwrap()
}

/// Wants what a list says, one entry each period, and the last one from then on.
#[derive(Debug, Clone)]
pub(crate) struct Script {
    pub(crate) period: Duration,
    pub(crate) wanted: Vec<Vec<u32>>,
    pub(crate) next: usize,
    /// Age of the newest scrape at each decision.
    pub(crate) ages: Vec<Option<Duration>>,
}

impl Script {
    pub(crate) fn new(period: u64, wanted: &[&[u32]]) -> Self {
        Self {
            period: second(period),
            wanted: wanted.iter().map(|units| units.to_vec()).collect(),
            next: 0,
            ages: Vec::new(),
        }
    }
}

impl Scaler for Script {
    fn period(&self) -> Duration {
        self.period
    }

    fn decide(&mut self, sight: &Sight<'_>) -> Vec<u32> {
        let newest = sight.scrapes().next();
        self.ages.push(newest.map(|scrape| sight.now - scrape.at));
        let entry = self.next.min(self.wanted.len() - 1);
        self.next += 1;
        self.wanted[entry].clone()
    }
}

/// A world of each kind, and the policies that can size it.
pub(crate) fn worlds() -> [(World, Vec<&'static str>); 2] {
    let of_pool = [OF_ONE_POOL, &["dynamo-kalman"]].concat();
    [
        (pool(), of_pool),
        (disaggregated(), OF_PREFILL_AND_DECODE.to_vec()),
    ]
}
