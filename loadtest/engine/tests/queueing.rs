//! Against queueing theory: an engine that serves one request at a time is a single server.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "helpers of tests fail by panicking"
)]

mod common;

use std::collections::VecDeque;
use std::time::Duration;

use common::{Arrival, profile, replay, seconds};
use coppice_engine::{Engine, EventKind, Request, Settings};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Seconds of prefill per prompt token in these tests.
const SECONDS_PER_TOKEN: f64 = 1e-5;

fn exponential(random: &mut ChaCha8Rng, mean: f64) -> f64 {
    -mean * (1.0 - random.random::<f64>()).ln()
}

fn prompt_lasting(seconds: f64) -> Request {
    let tokens = (seconds / SECONDS_PER_TOKEN)
        .round()
        .clamp(1.0, 10_000_000.0);
    Request::new(tokens as u32, 1)
}

fn single_server() -> Engine {
    let mut profile = profile(0.0, 0.0, 0.0, SECONDS_PER_TOKEN * 1000.0);
    profile.kv_capacity_tokens = 20_000_000;
    let settings = Settings {
        max_num_seqs: 1,
        max_num_batched_tokens: u32::MAX,
        max_model_len: u32::MAX,
        ..Settings::of(&profile)
    };
    Engine::new(&profile, settings)
}

/// Mean wait before service of `count` Poisson arrivals.
fn mean_wait(rate: f64, count: u32, mut service: impl FnMut(&mut ChaCha8Rng) -> f64) -> f64 {
    let mut random = ChaCha8Rng::seed_from_u64(11);
    let mut at = 0.0;
    let arrivals: Vec<Arrival> = (0..count)
        .map(|_| {
            at += exponential(&mut random, 1.0 / rate);
            Arrival {
                at: seconds(at),
                request: prompt_lasting(service(&mut random)),
            }
        })
        .collect();
    let mut engine = single_server();
    let mut ended = 0;
    let mut arrivals = arrivals.into_iter().peekable();
    while let Some(now) = [
        arrivals.peek().map(|arrival| arrival.at),
        engine.next_event_at(),
    ]
    .into_iter()
    .flatten()
    .min()
    {
        let events = engine.advance(now);
        ended += events
            .iter()
            .filter(|event| matches!(event.kind, EventKind::Finished(_)))
            .count();
        while let Some(arrival) = arrivals.next_if(|arrival| arrival.at == now) {
            engine.submit(now, arrival.request).unwrap();
        }
    }
    assert_eq!(ended, count as usize);
    let waits = &engine.statistics().queue_time;
    waits.sum() / waits.count() as f64
}

fn near(value: f64, expected: f64, relative: f64) {
    assert!(
        (value / expected - 1.0).abs() <= relative,
        "{value:.4}, expected {expected:.4}"
    );
}

#[test]
fn constant_service_waits_as_m_d_1() {
    // ρ/(2μ(1−ρ)) with λ = 8, μ = 10
    near(mean_wait(8.0, 200_000, |_| 0.1), 0.2, 0.05);
}

#[test]
fn exponential_service_waits_as_m_m_1() {
    // ρ/(μ−λ)
    near(
        mean_wait(8.0, 400_000, |random| exponential(random, 0.1)),
        0.4,
        0.06,
    );
}

/// Several single servers behind one queue: share of arrivals that wait, and their mean wait.
fn central_queue(servers: usize, rate: f64, count: u32) -> (f64, f64) {
    let mut random = ChaCha8Rng::seed_from_u64(5);
    let mut engines: Vec<Engine> = (0..servers).map(|_| single_server()).collect();
    let mut queue: VecDeque<(Duration, Request)> = VecDeque::new();
    let (mut waited, mut total_wait, mut ended) = (0, 0.0, 0);
    let mut next = seconds(exponential(&mut random, 1.0 / rate));
    let mut arrived = 0;
    while ended < count {
        let own = engines.iter().filter_map(Engine::next_event_at).min();
        let arrival = (arrived < count).then_some(next);
        let now = [own, arrival]
            .into_iter()
            .flatten()
            .min()
            .expect("something is left to do");
        for engine in &mut engines {
            let events = engine.advance(now);
            let finished = events
                .iter()
                .filter(|event| matches!(event.kind, EventKind::Finished(_)));
            ended += u32::try_from(finished.count()).unwrap();
        }
        if arrival == Some(now) {
            arrived += 1;
            queue.push_back((now, prompt_lasting(exponential(&mut random, 1.0))));
            next = now + seconds(exponential(&mut random, 1.0 / rate));
        }
        for engine in &mut engines {
            if !engine.is_empty() {
                continue;
            }
            let Some((since, request)) = queue.pop_front() else {
                break;
            };
            waited += u32::from(since < now);
            total_wait += (now - since).as_secs_f64();
            engine.submit(now, request).unwrap();
        }
    }
    (
        f64::from(waited) / f64::from(count),
        total_wait / f64::from(count),
    )
}

#[test]
fn several_servers_wait_as_erlang_c() {
    let (share, wait) = central_queue(4, 3.0, 300_000);
    near(share, 0.5094, 0.04);
    near(wait, 0.5094, 0.08);
    let (share, wait) = central_queue(10, 8.0, 300_000);
    near(share, 0.4092, 0.04);
    near(wait, 0.2046, 0.08);
}

#[test]
fn requests_in_the_system_are_rate_times_time() {
    let mut random = ChaCha8Rng::seed_from_u64(3);
    let profile = profile(8.0, 0.1, 1e-4, 0.02);
    let settings = Settings {
        max_num_seqs: 24,
        ..Settings::of(&profile)
    };
    let mut at = 0.0;
    let arrivals: Vec<Arrival> = (0..3000)
        .map(|_| {
            at += exponential(&mut random, 0.15);
            let request = Request::new(random.random_range(1..3000), random.random_range(1..400));
            Arrival {
                at: seconds(at),
                request,
            }
        })
        .collect();

    let mut engine = Engine::new(&profile, settings.clone());
    let (mut area, mut waiting_area, mut before) = (0.0, 0.0, Duration::ZERO);
    let mut upcoming = arrivals.iter().peekable();
    while let Some(now) = [
        upcoming.peek().map(|arrival| arrival.at),
        engine.next_event_at(),
    ]
    .into_iter()
    .flatten()
    .min()
    {
        let load = engine.load();
        let span = (now - before).as_secs_f64();
        area += f64::from(load.running + load.waiting()) * span;
        waiting_area += f64::from(load.waiting()) * span;
        before = now;
        engine.advance(now);
        while let Some(arrival) = upcoming.next_if(|arrival| arrival.at == now) {
            engine.submit(now, arrival.request).unwrap();
        }
        engine.advance(now);
    }
    let outcomes = replay(&mut Engine::new(&profile, settings), &arrivals);
    let sojourn: f64 = outcomes.iter().map(common::Outcome::e2e).sum();
    // An arrival joins the queue at the next step's start: until then it is in neither gauge, as in vLLM.
    let arriving: f64 = sojourn - area;
    assert!(
        arriving >= 0.0 && arriving < 0.05 * sojourn,
        "{arriving} of {sojourn}"
    );
    let queue = engine.statistics().queue_time.sum();
    assert!(
        (queue - waiting_area - arriving).abs() < 1e-6 * sojourn,
        "{queue} {waiting_area} {arriving}"
    );
}
