//! Speed of the engine: requests a second when jumping, steps a second when every token is reported.

use std::time::Duration;

use coppice_engine::{Detail, Engine, Profile, Request, Settings};
use divan::Bencher;
use divan::counter::ItemsCount;

fn main() {
    divan::main();
}

/// A request every `gap`, lengths from a fixed pattern around the given means.
fn arrivals(count: u32, gap: Duration, prompt: u32, output: u32) -> Vec<(Duration, Request)> {
    (0..count)
        .map(|index| {
            let vary = |mean: u32, salt: u32| {
                1 + mean / 2 + (index.wrapping_mul(2_654_435_761 + salt) >> 8) % mean
            };
            (gap * index, Request::new(vary(prompt, 0), vary(output, 2)))
        })
        .collect()
}

fn run(detail: Detail, arrivals: &[(Duration, Request)]) -> u64 {
    let profile = Profile::named("llama-3.1-8b-fp8_h200_tp1").expect("a built-in profile");
    let settings = Settings {
        detail,
        max_num_seqs: 256,
        ..Settings::of(&profile)
    };
    let mut engine = Engine::new(&profile, settings);
    let mut events = Vec::new();
    for (at, request) in arrivals {
        engine.advance_into(*at, &mut events);
        events.clear();
        engine.submit(*at, *request).expect("the request fits");
    }
    while let Some(at) = engine.next_event_at() {
        engine.advance_into(at, &mut events);
        events.clear();
    }
    engine.statistics().step_tokens.count()
}

#[divan::bench(name = "requests: chat, 1000 in, 250 out, jumped")]
fn chat(bencher: Bencher<'_, '_>) {
    let arrivals = arrivals(20_000, Duration::from_millis(40), 1000, 250);
    bencher
        .counter(ItemsCount::new(arrivals.len()))
        .bench(|| run(Detail::Milestones, &arrivals));
}

#[divan::bench(name = "requests: reasoning, 500 in, 8000 out, jumped")]
fn reasoning(bencher: Bencher<'_, '_>) {
    let arrivals = arrivals(4_000, Duration::from_millis(2500), 500, 8000);
    bencher
        .counter(ItemsCount::new(arrivals.len()))
        .bench(|| run(Detail::Milestones, &arrivals));
}

#[divan::bench(name = "steps: chat, every token reported")]
fn steps(bencher: Bencher<'_, '_>) {
    let arrivals = arrivals(5_000, Duration::from_millis(40), 1000, 250);
    let steps = run(Detail::Tokens, &arrivals);
    bencher
        .counter(ItemsCount::new(steps))
        .bench(|| run(Detail::Tokens, &arrivals));
}
