//! Runs of a real vLLM, replayed. `testdata/golden_vllm_runs.csv` and its origin: see `profiles/README.md`.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "helpers of tests fail by panicking"
)]

mod common;

use common::{Arrival, Outcome, mean, quantile, replay, seconds};
use coppice_engine::{Engine, Profile, Request, Settings};

struct Row {
    arrival: f64,
    input: u32,
    output: u32,
    ttft: f64,
    e2e: f64,
}

fn rows(run: &str) -> Vec<Row> {
    let text = include_str!("../testdata/golden_vllm_runs.csv");
    let mut lines = text.lines();
    assert_eq!(
        lines.next(),
        Some("run,arrival_s,input_tokens,output_tokens,queue_s,ttft_s,e2e_s")
    );
    lines
        .map(|line| line.split(',').collect::<Vec<_>>())
        .filter(|fields| fields[0] == run)
        .map(|fields| Row {
            arrival: fields[1].parse().unwrap(),
            input: fields[2].parse().unwrap(),
            output: fields[3].parse().unwrap(),
            ttft: fields[5].parse().unwrap(),
            e2e: fields[6].parse().unwrap(),
        })
        .collect()
}

/// Means within 5 %, percentiles within 15 %. Answers the worst errors and the engine.
fn check(run: &str, profile: &str) -> Engine {
    let rows = rows(run);
    assert_eq!(rows.len(), 300);
    let profile = Profile::named(profile).unwrap();
    let mut engine = Engine::new(&profile, Settings::of(&profile));
    let arrivals: Vec<Arrival> = rows
        .iter()
        .map(|row| Arrival {
            at: seconds(row.arrival),
            request: Request::new(row.input, row.output),
        })
        .collect();
    let outcomes = replay(&mut engine, &arrivals);

    let tpot_seen = |row: &Row| (row.e2e - row.ttft) / (f64::from(row.output) - 1.0);
    let tpot_made = |(outcome, row): (&Outcome, &Row)| outcome.tpot(row.output);
    let measures: [(&str, Vec<f64>, Vec<f64>); 3] = [
        (
            "ttft",
            rows.iter().map(|row| row.ttft).collect(),
            outcomes.iter().map(Outcome::ttft).collect(),
        ),
        (
            "tpot",
            rows.iter().map(tpot_seen).collect(),
            outcomes.iter().zip(&rows).filter_map(tpot_made).collect(),
        ),
        (
            "e2e",
            rows.iter().map(|row| row.e2e).collect(),
            outcomes.iter().map(Outcome::e2e).collect(),
        ),
    ];
    let mut failures = Vec::new();
    for (name, seen, made) in measures {
        let mut compare = |statistic: &str, seen: f64, made: f64, allowed: f64| {
            let error = made / seen - 1.0;
            println!(
                "{run} {name} {statistic}: vLLM {seen:.4} s, model {made:.4} s, {:+.1} %",
                error * 100.0
            );
            if error.abs() > allowed {
                failures.push(format!("{name} {statistic} {:+.1} %", error * 100.0));
            }
        };
        compare("mean", mean(&seen), mean(&made), 0.05);
        for q in [0.5, 0.9, 0.95, 0.99] {
            compare(
                &format!("p{}", q * 100.0),
                quantile(&seen, q),
                quantile(&made, q),
                0.15,
            );
        }
    }
    println!("{run}: {} preemptions", engine.statistics().preemptions);
    assert!(failures.is_empty(), "{run}: {}", failures.join(", "));
    engine
}

#[test]
fn llama_8b_on_rtx_pro_6000() {
    check("llama8b_rtxpro6000_tp1", "llama-3.1-8b-bf16_rtxpro6000_tp1");
}

#[test]
fn llama_8b_on_rtx_4090_whose_kv_cache_overflows() {
    let engine = check("llama8b_rtx4090_tp1", "llama-3.1-8b-bf16_rtx4090_tp1");
    assert!(
        engine.statistics().preemptions > 50,
        "{}",
        engine.statistics().preemptions
    );
}

#[test]
fn qwen3_32b_on_two_rtx_pro_6000() {
    check("qwen32b_rtxpro6000_tp2", "qwen3-32b-bf16_rtxpro6000_tp2");
}
