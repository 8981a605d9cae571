//! Time series captured from real engines under a real load, against values worked out apart from this crate, and against
//! what the load generator saw.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod support;

use std::collections::BTreeSet;

use coppice_signals::{Missing, Selection, Signal};
use serde_json::{Map, Value};
use support::case::{Case, check_pair, collector};
use support::{Collector, body, files};

fn runs() -> Vec<Value> {
    serde_json::from_slice(&body("captured/expected.json")).unwrap()
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap()
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().unwrap()
}

fn captured(file: &str) -> Vec<u8> {
    body(&format!("captured/{file}"))
}

fn signal(collector: &Collector, signal: Signal) -> Result<f64, Missing> {
    collector
        .signals
        .signal(&support::select(""), signal, collector.now())
        .map(|measured| measured.value)
}

#[test]
fn every_captured_body_gives_its_gauges_and_its_server() {
    let mut tested = BTreeSet::new();
    for run in runs() {
        for each in list(&run, "bodies") {
            let file = text(each, "file");
            let collector = collector();
            collector.ingest(&captured(file), 0.0);
            let status = &collector
                .signals
                .endpoints(&Selection::default(), collector.now())[0];
            assert_eq!(status.server.as_deref(), run["server"].as_str(), "{file}");
            Case::new(file, text(&run, "engine"), &collector)
                .check_all(each["instant"].as_object().unwrap());
            tested.insert(file.to_owned());
        }
    }
    let there: BTreeSet<_> = files("captured")
        .into_iter()
        .filter(|file| file.ends_with(".txt"))
        .collect();
    assert_eq!(tested, there, "bodies without a test, or tests without one");
    assert_eq!(there.len(), 193);
}

#[test]
fn every_captured_step_gives_its_rates_and_latencies() {
    let none = Map::new();
    for run in runs() {
        for pair in list(&run, "pairs") {
            let (first, second) = (text(pair, "t0_file"), text(pair, "t1_file"));
            let files = (
                format!("captured/{first}"),
                format!("captured/{second}"),
                pair["interval_s"].as_f64().unwrap(),
            );
            check_pair(
                second,
                text(&run, "engine"),
                (&files.0, &files.1, files.2),
                [&none, &none, pair["window"].as_object().unwrap()],
            );
        }
    }
}

/// Requests that the load generator saw answered.
fn answered(client: &str) -> usize {
    let rows = String::from_utf8(captured(client)).unwrap();
    let rows = rows.lines().skip(1);
    rows.filter(|row| row.split(',').nth(1) == Some("200"))
        .count()
}

#[test]
fn requests_that_finished_are_those_that_the_client_saw_answered() {
    for engine in ["vllm_slots-0.32.0", "vllm_kv-0.32.0", "vllm_emu-0.32.0"] {
        let clients =
            ["busy", "saturated"].map(|load| answered(&format!("client-{engine}-{load}.csv")));
        let collector = Collector::new();
        collector.ingest(&captured(&format!("{engine}-idle-0015.txt")), 0.0);
        collector.ingest(&captured(&format!("{engine}-after-0000.txt")), 60.0);
        let finished = signal(&collector, Signal::Finished).unwrap() * 60.0;
        let sent: usize = clients.iter().sum();
        #[expect(clippy::cast_precision_loss, reason = "a few hundred")]
        let sent = sent as f64;
        assert!(
            (finished - sent).abs() < 1e-6,
            "{engine}: {finished} of {sent}"
        );
    }
}

/// The signals of each body of a run, in order.
fn over_time(run: &str, each: Signal) -> Vec<f64> {
    let runs = runs();
    let run = runs.iter().find(|known| text(known, "run") == run).unwrap();
    let collector = Collector::new();
    list(run, "bodies")
        .iter()
        .map(|each_body| {
            let t = each_body["t"].as_f64().unwrap();
            collector.ingest(&captured(text(each_body, "file")), t);
            signal(&collector, each).unwrap()
        })
        .collect()
}

fn greatest(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::NEG_INFINITY, f64::max)
}

#[test]
fn an_engine_out_of_slots_waits_with_an_empty_cache() {
    let waiting = over_time("vllm_slots-0.32.0-saturated", Signal::Waiting);
    let usage = over_time("vllm_slots-0.32.0-saturated", Signal::KvCacheUsage);
    let running = over_time("vllm_slots-0.32.0-saturated", Signal::Running);
    assert!((greatest(&waiting) - 241.0).abs() < 1e-9);
    assert!((greatest(&running) - 8.0).abs() < 1e-9, "its limit");
    assert!(greatest(&usage) < 0.2, "{usage:?}");
}

#[test]
fn an_engine_out_of_cache_waits_with_free_slots_and_preempts() {
    let waiting = over_time("vllm_kv-0.32.0-saturated", Signal::Waiting);
    let usage = over_time("vllm_kv-0.32.0-saturated", Signal::KvCacheUsage);
    let running = over_time("vllm_kv-0.32.0-saturated", Signal::Running);
    assert!(greatest(&waiting) > 200.0 && greatest(&usage) > 0.99);
    assert!(greatest(&running) < 64.0, "its limit");
    let collector = Collector::new();
    for (file, t) in [("saturated-0015", 15.0), ("saturated-0030", 30.0)] {
        collector.ingest(&captured(&format!("vllm_kv-0.32.0-{file}.txt")), t);
    }
    assert!(signal(&collector, Signal::Preemptions).unwrap() > 0.0);
}

#[test]
fn a_fast_engine_looks_idle_by_its_gauges_and_not_by_its_tokens() {
    let running = over_time("vllm-0.20.2-saturated", Signal::Running);
    assert!(greatest(&running) < 1e-9, "{running:?}");
    let collector = Collector::new();
    for (file, t) in [("0003", 3.0), ("0009", 9.0)] {
        collector.ingest(&captured(&format!("vllm-0.20.2-saturated-{file}.txt")), t);
    }
    assert!(signal(&collector, Signal::OutputTokens).unwrap() > 1000.0);
}

#[test]
fn a_frontend_s_queue_is_the_sum_of_what_its_workers_hold() {
    for t in ["0015", "0030", "0060"] {
        let (frontend, worker) = (Collector::new(), Collector::new());
        frontend.ingest(
            &captured(&format!("dynamo_frontend-1.6.1-saturated-{t}.txt")),
            0.0,
        );
        worker.ingest(
            &captured(&format!("dynamo_worker1-1.6.1-saturated-{t}.txt")),
            0.0,
        );
        for each in [Signal::Waiting, Signal::Running, Signal::InFlight] {
            let (one, other) = (signal(&frontend, each), signal(&worker, each));
            assert!((one.unwrap() - other.unwrap()).abs() < 1e-9, "{t} {each}");
        }
    }
}
