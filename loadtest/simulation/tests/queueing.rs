//! Where theory knows the answer, the simulation gives it.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

mod common;

use std::time::Duration;

use coppice_engine::{Profile, Settings};
use coppice_scaler_plan::{Bounds, Stage};
use coppice_simulation::policy::fixed::Fixed;
use coppice_simulation::{Request, Role, Routing, World};

use common::*;

/// A step takes a millisecond whatever is in it, so a request of n tokens takes n milliseconds.
fn server(units: u32) -> Role {
    let text = r#"{"id": "test", "step": {"t0_ms": 1.0, "per_seq_ms": 0, "per_kv_token_ms": 0},
        "kv_capacity_tokens": 1600000, "max_num_seqs": 1, "max_num_batched_tokens": 2048}"#;
    let profile = Profile::from_json(text).unwrap();
    Role {
        name: "server".to_owned(),
        stage: Stage::Aggregated,
        engine: Settings::of(&profile),
        profile,
        gpus_per_unit: 1,
        units: Bounds::new(1, 64).unwrap(),
        initial: units,
    }
}

/// Share of requests that waited, and the mean wait in seconds, of `count` requests at `rate` per second, each a second long on average.
fn waits(routing: Routing, units: u32, rate: f64, count: u32) -> (f64, f64) {
    let mut random = streams(3, "requests", 0);
    let mut at = 0.0;
    let requests: Vec<Request> = (0..count)
        .map(|_| {
            at += exponential(&mut random) / rate;
            let milliseconds = 1.0 + exponential(&mut random) * 1_000.0;
            Request {
                at: Duration::from_secs_f64(at),
                input_tokens: 1,
                output_tokens: coppice_scaler_plan::ceil_units(milliseconds - 1.0).max(1),
                cached_tokens: 0,
            }
        })
        .collect();
    let world = world(vec![server(units)], routing);
    let outcome = run(
        &world,
        &requests,
        Duration::from_secs_f64(at),
        &mut Fixed::new(vec![units]),
    );
    let waits: Vec<f64> = requests
        .iter()
        .zip(&outcome.requests)
        .map(|(request, ended)| {
            let service = Duration::from_millis(u64::from(request.output_tokens));
            (ended.at.unwrap() - request.at - service).as_secs_f64()
        })
        .collect();
    let waited = waits.iter().filter(|wait| **wait > 1e-6).count();
    let count = f64::from(count);
    (waited as f64 / count, waits.iter().sum::<f64>() / count)
}

fn close(value: f64, expected: f64, tolerance: f64, what: &str) {
    assert!(
        (value / expected - 1.0).abs() < tolerance,
        "{what}: {value}, expected {expected}"
    );
}

#[test]
fn one_unit_is_an_m_m_1_queue() {
    // ρ = 0.5: mean wait ρ/(μ − λ) = 1 s, and half of the requests wait.
    let (share, wait) = waits(Routing::Central { per_unit: 1 }, 1, 0.5, 200_000);
    close(share, 0.5, 0.02, "share");
    close(wait, 1.0, 0.04, "wait");
}

#[test]
fn a_central_queue_over_many_units_is_erlangs() {
    for (units, rate, share, wait) in [(4, 3.0, 0.5094, 0.5094), (10, 8.0, 0.4092, 0.2046)] {
        let (measured, mean) = waits(Routing::Central { per_unit: 1 }, units, rate, 300_000);
        close(measured, share, 0.03, "share");
        close(mean, wait, 0.06, "wait");
    }
}

#[test]
fn routing_without_a_central_queue_waits_longer_the_less_it_knows() {
    let wait = |routing| waits(routing, 4, 3.0, 60_000).1;
    let central = wait(Routing::Central { per_unit: 1 });
    let shortest = wait(Routing::LeastLoaded);
    let turns = wait(Routing::RoundRobin);
    let random = wait(Routing::Random);
    assert!(
        central < shortest && shortest < turns && turns < random,
        "{central} {shortest} {turns} {random}"
    );
    // Random splitting makes four M/M/1 queues of ρ = 0.75: 3 s.
    close(random, 3.0, 0.15, "random");
}

#[test]
fn requests_in_flight_are_rate_times_time() {
    let world: World = pool();
    let requests = requests(5, 600, |_| 10.0);
    let outcome = run(&world, &requests, second(600), &mut Fixed::new(vec![2]));
    let inside: f64 = requests
        .iter()
        .zip(&outcome.requests)
        .map(|(request, ended)| (ended.at.unwrap() - request.at).as_secs_f64())
        .sum();
    // What is in flight each second, summed up, is the time that requests spent inside.
    let mut sampled = 0.0;
    for sample in 0..6_400_u32 {
        let at = Duration::from_millis(u64::from(sample) * 100);
        sampled += requests
            .iter()
            .zip(&outcome.requests)
            .filter(|(request, ended)| request.at <= at && ended.at.unwrap() > at)
            .count() as f64
            * 0.1;
    }
    close(sampled, inside, 0.01, "L = λW");
}
