//! Simulated requests per second on one core, fleet, router, scrapes and policy included.

use std::time::Duration;

use coppice_engine::{Profile, Settings};
use coppice_scaler_plan::{Bounds, Stage};
use coppice_simulation::policy::Spec;
use coppice_simulation::{
    Faults, Lengths, Objectives, Request, Role, Routing, StartUp, Timing, World, simulate,
};
use divan::Bencher;
use divan::counter::ItemsCount;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

fn main() {
    divan::main();
}

fn streams(seed: u64, name: &str, entity: u64) -> ChaCha8Rng {
    ChaCha8Rng::seed_from_u64(seed ^ entity ^ name.len() as u64)
}

fn world(stages: &[Stage], typical: Lengths) -> World {
    let profile = Profile::named("llama-3.1-8b-fp8_h200_tp1").expect("a built-in profile");
    let roles = stages.iter().map(|stage| Role {
        name: format!("{stage:?}"),
        stage: *stage,
        engine: Settings::of(&profile),
        profile: profile.clone(),
        gpus_per_unit: 1,
        units: Bounds::new(1, 64).expect("a range"),
        initial: 8,
    });
    let second = Duration::from_secs;
    let timing = Timing {
        scheduling: second(1),
        node: Duration::ZERO,
        load: StartUp::Lognormal {
            median: second(120),
            sigma: 0.2,
        },
        scrape_interval: second(5),
        scrape_delay: second(1),
        actuation: second(1),
        grace: second(600),
        follow: second(600),
    };
    let objectives = Objectives {
        ttft: second(1),
        ttft_per_input_token: Duration::from_micros(500),
        itl: Duration::from_millis(100),
    };
    World::new(
        roles.collect(),
        Routing::LeastLoaded,
        timing,
        objectives,
        typical,
    )
    .expect("a world that can be simulated")
}

/// A request every `gap`, lengths from a fixed pattern around the means.
fn requests(count: u32, gap: Duration, input: u32, output: u32) -> Vec<Request> {
    (0..count)
        .map(|index| {
            let vary = |mean: u32, salt: u32| {
                1 + mean / 2 + (index.wrapping_mul(2_654_435_761 + salt) >> 8) % mean
            };
            Request {
                at: gap * index,
                input_tokens: vary(input, 0),
                output_tokens: vary(output, 2),
                cached_tokens: 0,
            }
        })
        .collect()
}

/// A schedule of one of these loads.
struct Load {
    count: u32,
    gap: Duration,
    input: u32,
    output: u32,
}

/// A hundred short conversations a second.
const CHAT: Load = Load {
    count: 50_000,
    gap: Duration::from_millis(10),
    input: 1_000,
    output: 250,
};

/// Three long answers a second.
const REASONING: Load = Load {
    count: 5_000,
    gap: Duration::from_millis(300),
    input: 500,
    output: 8_000,
};

fn bench(bencher: Bencher<'_, '_>, stages: &[Stage], policy: &str, load: &Load) {
    let typical = Lengths {
        input: f64::from(load.input),
        output: f64::from(load.output),
    };
    let world = world(stages, typical);
    let requests = requests(load.count, load.gap, load.input, load.output);
    let duration = load.gap * load.count;
    let spec: Spec = policy.parse().expect("a policy");
    bencher.counter(ItemsCount::new(requests.len())).bench(|| {
        let mut scaler = spec.build(&world).expect("a policy for this world");
        let requests = &requests;
        simulate(
            &world,
            &Faults::default(),
            requests,
            duration,
            scaler.as_mut(),
            1,
            streams,
        )
        .expect("a run")
    });
}

#[divan::bench(name = "requests: chat, 1000 in, 250 out, coppice", sample_count = 20)]
fn chat(bencher: Bencher<'_, '_>) {
    bench(bencher, &[Stage::Aggregated], "coppice", &CHAT);
}

#[divan::bench(
    name = "requests: chat, 1000 in, 250 out, eight units",
    sample_count = 20
)]
fn chat_static(bencher: Bencher<'_, '_>) {
    bench(bencher, &[Stage::Aggregated], "static:8", &CHAT);
}

#[divan::bench(
    name = "requests: chat, 1000 in, 250 out, prefill and decode, coppice",
    sample_count = 20
)]
fn chat_split(bencher: Bencher<'_, '_>) {
    bench(bencher, &[Stage::Prefill, Stage::Decode], "coppice", &CHAT);
}

#[divan::bench(
    name = "requests: reasoning, 500 in, 8000 out, coppice",
    sample_count = 5
)]
fn reasoning(bencher: Bencher<'_, '_>) {
    bench(bencher, &[Stage::Aggregated], "coppice", &REASONING);
}
