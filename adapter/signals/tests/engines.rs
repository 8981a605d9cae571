//! The signals of every body in `testdata/`, against the values beside it.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod support;

use coppice_signals::{LatencyReading, Missing, Query, Reading, RoleSignals, Selection};
use serde_json::{Map, Value};
use support::{Collector, body, fixtures};

/// Relative tolerances: gauges and rates, quantiles. The files have nine decimals.
const EXACT: f64 = 1e-9;
const QUANTILE: f64 = 1e-6;
const DECIMALS: f64 = 1e-9;

/// Values that the files tell apart by a label that no signal of ours keeps.
const NOT_A_SIGNAL: [&str; 5] = [
    "kv_fetch_waiting",
    "kv_fetch_in_progress",
    "requests_finished_stop_per_s",
    "requests_finished_length_per_s",
    "requests_finished_abort_per_s",
];

/// Names under which a value of the files is a series by its own name.
const RAW: [(&str, &str); 19] = [
    (
        "prefill_bootstrap_queue",
        "sglang:num_prefill_bootstrap_queue_reqs",
    ),
    (
        "prefill_inflight_queue",
        "sglang:num_prefill_inflight_queue_reqs",
    ),
    (
        "decode_prealloc_queue",
        "sglang:num_decode_prealloc_queue_reqs",
    ),
    (
        "decode_transfer_queue",
        "sglang:num_decode_transfer_queue_reqs",
    ),
    ("gen_throughput_gauge", "sglang:gen_throughput"),
    ("cache_hit_rate_gauge", "sglang:cache_hit_rate"),
    (
        "prompt_tokens_finished_per_s",
        "sglang:prompt_tokens_total:rate",
    ),
    (
        "generation_tokens_finished_per_s",
        "sglang:generation_tokens_total:rate",
    ),
    (
        "requests_aborted_per_s",
        "sglang:num_aborted_requests_total:rate",
    ),
    (
        "requests_waiting_first_token",
        "dynamo_frontend_queued_requests",
    ),
    ("active_requests", "dynamo_frontend_active_requests"),
    (
        "router_queue_pending",
        "dynamo_frontend_router_queue_pending_requests",
    ),
    (
        "worker_active_decode_blocks",
        "dynamo_frontend_worker_active_decode_blocks",
    ),
    (
        "worker_active_prefill_tokens",
        "dynamo_frontend_worker_active_prefill_tokens",
    ),
    (
        "model_total_kv_blocks",
        "dynamo_frontend_model_total_kv_blocks",
    ),
    ("model_max_num_seqs", "dynamo_frontend_model_max_num_seqs"),
    (
        "work_handler_queue_depth",
        "dynamo_work_handler_queue_depth",
    ),
    ("busy_slots_per_decode", "llamacpp:n_busy_slots_per_decode"),
    (
        "prompt_busy_seconds_per_s",
        "llamacpp:prompt_seconds_total:rate",
    ),
];

struct Case<'a> {
    name: &'a str,
    engine: &'a str,
    collector: &'a Collector,
    signals: RoleSignals,
}

impl Case<'_> {
    fn assert_near(&self, key: &str, got: f64, expected: f64, tolerance: f64) {
        let allowed = expected.abs() * tolerance + DECIMALS;
        assert!(
            (got - expected).abs() <= allowed,
            "{}: {key} is {got}, expected {expected}",
            self.name
        );
    }

    fn assert_missing<T>(&self, key: &str, got: Result<T, Missing>) {
        if let Err(missing) = got {
            let known = matches!(
                missing,
                Missing::NotExposed { .. } | Missing::NoObservations { .. }
            );
            assert!(known, "{}: {key}: {missing}", self.name);
        } else {
            panic!("{}: {key} has a value, expected none", self.name);
        }
    }

    fn check_reading(&self, key: &str, reading: &Reading, expected: &Value) {
        match (reading, expected.as_f64()) {
            (Ok(measured), Some(expected)) => {
                self.assert_near(key, measured.value, expected, EXACT)
            }
            (reading, None) => self.assert_missing(key, reading.clone()),
            (Err(missing), Some(_)) => panic!("{}: {key}: {missing}", self.name),
        }
    }

    fn check_latency(&self, key: &str, reading: &LatencyReading, expected: &Value) {
        let count = expected.get("count").and_then(Value::as_f64);
        let (Some(count), true) = (count, count != Some(0.0)) else {
            return self.assert_missing(key, reading.clone());
        };
        let histogram = match reading {
            Ok(measured) => &measured.histogram,
            Err(missing) => panic!("{}: {key}: {missing}", self.name),
        };
        let number = |part: &str| expected[part].as_f64().unwrap();
        self.assert_near(&format!("{key}.count"), histogram.count(), count, EXACT);
        self.assert_near(&format!("{key}.sum"), histogram.sum(), number("sum"), EXACT);
        self.assert_near(
            &format!("{key}.mean"),
            histogram.mean().unwrap(),
            number("mean"),
            EXACT,
        );
        for (part, share) in [("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99)] {
            self.assert_near(
                &format!("{key}.{part}"),
                histogram.quantile(share).unwrap(),
                number(part),
                QUANTILE,
            );
        }
    }

    /// A histogram of which only the mean is kept.
    fn check_mean(&self, key: &str, reading: &Reading, expected: &Value, unit: f64) {
        match expected.get("mean").and_then(Value::as_f64) {
            None => self.assert_missing(key, reading.clone()),
            Some(mean) => match reading {
                Ok(measured) => self.assert_near(key, measured.value, mean * unit, EXACT * 10.0),
                Err(missing) => panic!("{}: {key}: {missing}", self.name),
            },
        }
    }

    fn check_raw(&self, key: &str, series: &str, expected: &Value) {
        let got = self.collector.query(series);
        match (got, expected.as_f64()) {
            (Ok(answer), Some(expected)) => self.assert_near(key, answer.value, expected, EXACT),
            (got, None) => self.assert_missing(key, got),
            (Err(missing), Some(_)) => panic!("{}: {key}: {missing}", self.name),
        }
    }

    fn check(&self, key: &str, expected: &Value) {
        let signals = &self.signals;
        if let Some((_, series)) = RAW.iter().find(|(name, _)| *name == key) {
            return self.check_raw(key, series, expected);
        }
        match key {
            key if NOT_A_SIGNAL.contains(&key) => {}
            "requests_running" => self.check_reading(key, &signals.running, expected),
            "requests_waiting" => self.check_reading(key, &signals.waiting, expected),
            "requests_waiting_capacity" => {
                self.check_reading(key, &signals.waiting_for_capacity, expected)
            }
            "requests_waiting_deferred" => {
                self.check_reading(key, &signals.waiting_deferred, expected)
            }
            "requests_inflight" | "component_inflight" => {
                self.check_reading(key, &signals.in_flight, expected)
            }
            "kv_usage_max" => self.check_reading(key, &signals.kv_cache_usage_max, expected),
            "kv_usage_mean" => self.check_reading(key, &signals.kv_cache_usage, expected),
            "kv_capacity_tokens" => self.check_reading(key, &signals.kv_capacity_tokens, expected),
            "awake" => self.check_reading(key, &signals.awake_engines, expected),
            "prompt_tokens_per_s" => {
                self.check_reading(key, &signals.input_tokens_per_second, expected);
                if self.engine == "dynamo" {
                    self.check_reading(key, &signals.offered_input_tokens_per_second, expected);
                }
            }
            "prompt_tokens_computed_per_s" => {
                self.check_reading(key, &signals.computed_input_tokens_per_second, expected);
            }
            "prompt_tokens_cached_per_s" => self.check_cached(expected),
            // Old servers of this kind count at the end only, which the signal says, and the file gives apart.
            "generation_tokens_per_s" if expected.is_null() && self.engine == "sglang" => {
                assert!(
                    signals.output_tokens_per_second.as_ref().is_err()
                        || signals.output_tokens_per_second.as_ref().unwrap().at_finish
                );
            }
            "generation_tokens_per_s" => {
                self.check_reading(key, &signals.output_tokens_per_second, expected)
            }
            "preemptions_per_s" => {
                self.check_reading(key, &signals.preemptions_per_second, expected)
            }
            "requests_finished_per_s" => {
                self.check_reading(key, &signals.finished_per_second, expected)
            }
            "requests_started_per_s" => {
                self.check_reading(key, &signals.offered_requests_per_second, expected)
            }
            "requests_received_per_s" => {
                self.check_reading(key, &signals.received_requests_per_second, expected)
            }
            "prefix_hit_ratio" => {
                self.check_reading(key, &signals.prefix_cache_hit_ratio, expected)
            }
            "ttft_s" => self.check_latency(key, &signals.ttft, expected),
            "itl_s" => self.check_latency(key, &signals.itl, expected),
            "e2e_s" => self.check_latency(key, &signals.end_to_end, expected),
            "queue_s" => self.check_latency(key, &signals.queue_time, expected),
            "prefill_s" => self.check_mean(key, &signals.mean_prefill_seconds, expected, 1.0),
            "decode_s" => self.check_mean(key, &signals.mean_decode_seconds, expected, 1.0),
            "kv_transfer_s" => self.check_mean(key, &signals.mean_transfer_seconds, expected, 1.0),
            "kv_transfer_latency_ms" => {
                self.check_mean(key, &signals.mean_transfer_seconds, expected, 1e-3)
            }
            "prompt_len" => self.check_mean(key, &signals.mean_input_tokens, expected, 1.0),
            "generation_len" => self.check_mean(key, &signals.mean_output_tokens, expected, 1.0),
            unknown => panic!("{}: the test does not know {unknown}", self.name),
        }
    }

    /// Cached prompt tokens show in the ratio of hits and in the difference between all and computed ones.
    fn check_cached(&self, expected: &Value) {
        let Some(cached) = expected.as_f64() else {
            return;
        };
        let value = |reading: &Reading| reading.as_ref().unwrap().value;
        let all = value(&self.signals.input_tokens_per_second);
        let computed = value(&self.signals.computed_input_tokens_per_second);
        self.assert_near("cached", all - computed, cached, EXACT * 10.0);
        self.assert_near(
            "hit ratio",
            value(&self.signals.prefix_cache_hit_ratio),
            cached / all,
            EXACT * 10.0,
        );
    }
}

fn object<'a>(expected: &'a Value, key: &str) -> Option<&'a Map<String, Value>> {
    expected.get(key).and_then(Value::as_object)
}

#[test]
fn every_fixture_gives_its_expected_values() {
    let fixtures = fixtures();
    assert!(fixtures.len() > 25, "{}", fixtures.len());
    for (name, expected) in fixtures {
        let engine = expected["engine"].as_str().unwrap();
        let collector = Collector::new();
        for (_, series) in RAW {
            assert!(matches!(
                collector.query(series),
                Err(Missing::JustAdded { .. })
            ));
        }
        let case = |signals| Case {
            name: &name,
            engine,
            collector: &collector,
            signals,
        };
        let take_in = |file: &str, at: f64| collector.ingest(&body(file), at);
        if let Some(file) = expected["file"].as_str() {
            take_in(file, 0.0);
            let case = case(collector.observe());
            for (key, value) in object(&expected, "instant").unwrap() {
                // A body without a known series is unknown yet, which is another reason than not exposed.
                if name.contains("rustfrontend") {
                    assert!(case.signals.running.is_err() && case.signals.waiting.is_err());
                } else {
                    case.check(key, value);
                }
            }
            continue;
        }
        take_in(expected["t0_file"].as_str().unwrap(), 0.0);
        let first = case(collector.observe());
        for (key, value) in object(&expected, "instant_t0").unwrap() {
            first.check(key, value);
        }
        take_in(
            expected["t1_file"].as_str().unwrap(),
            expected["interval_s"].as_f64().unwrap(),
        );
        let second = case(collector.observe());
        for part in ["instant_t1", "window"] {
            for (key, value) in object(&expected, part).unwrap() {
                second.check(key, value);
            }
        }
    }
}

#[test]
fn every_fixture_is_recognised() {
    for (name, _) in fixtures() {
        let collector = Collector::new();
        let file = [format!("{name}-t0.txt"), format!("{name}.txt")]
            .into_iter()
            .find(|file| support::exists(file))
            .unwrap();
        collector.ingest(&body(&file), 0.0);
        let server = collector
            .signals
            .endpoints(&Selection::default(), collector.now())[0]
            .server
            .clone()
            .unwrap();
        let expected = match name.as_str() {
            "vllm-rustfrontend-2026-08-idle" => "unknown",
            name if name.starts_with("vllm") => "vllm",
            name if name.starts_with("sglang") => "sglang",
            name if name.starts_with("llamacpp") => "llama.cpp",
            name if name.starts_with("dynamo-frontend") => "dynamo-frontend",
            "dynamo-worker-1.6.1-pd-prefill-busy" => "dynamo-worker",
            _ => "dynamo-worker+vllm",
        };
        assert_eq!(server, expected, "{name}");
    }
}

#[test]
fn roles_models_and_capacity_come_from_the_body() {
    let collector = Collector::new();
    collector.ingest(&body("sglang-0.5.23-pd-prefill-t0.txt"), 0.0);
    let answer = collector.query("coppice_requests_running").unwrap();
    let label = |key: &str| answer.labels.get(key).map(String::as_str);
    assert_eq!(label("model"), Some("Qwen/Qwen3-8B"));
    assert_eq!(label("model_id"), Some("qwen-qwen3-8b"));
    assert_eq!(label("role"), Some("prefill"));
    assert_eq!(label("namespace"), Some("serving"));

    let collector = Collector::new();
    collector.ingest(&body("vllm-0.33.0-dp4-multiproc-t0.txt"), 0.0);
    let signals = collector.observe();
    assert_eq!(signals.models.len(), 1);
    let text = String::from_utf8(body("vllm-0.33.0-dp4-multiproc-t0.txt")).unwrap();
    let config = text
        .lines()
        .filter(|line| line.starts_with("vllm:cache_config_info{"));
    let capacity: f64 = config
        .map(|line| {
            let number = |label: &str| -> Option<f64> {
                let start = line.find(&format!("{label}=\""))? + label.len() + 2;
                line[start..].split('"').next()?.parse().ok()
            };
            number("kv_cache_size_tokens").unwrap_or_else(|| {
                number(",num_gpu_blocks").unwrap() * number("block_size").unwrap()
            })
        })
        .sum();
    assert!(capacity > 0.0);
    assert!((signals.kv_capacity_tokens.unwrap().value - capacity).abs() < 0.5);
}

#[test]
fn percentiles_are_served_by_name() {
    let collector = Collector::new();
    collector.ingest(&body("vllm-0.33.0-busy-t0.txt"), 0.0);
    assert!(
        matches!(
            collector.query("coppice_ttft_seconds_p95"),
            Err(Missing::QuorumNotMet { .. })
        ),
        "one sample is not enough"
    );
    collector.ingest(&body("vllm-0.33.0-busy-t1.txt"), 15.0);
    let answer = collector.query("coppice_ttft_seconds_p95").unwrap();
    assert!((answer.value - 0.242_071_429).abs() < 1e-6);
    assert_eq!(answer.window.unwrap().as_secs(), 15);
    let answer = collector.query("coppice_itl_seconds_p50").unwrap();
    assert!((answer.value - 0.039_746_439).abs() < 1e-6);
    assert!(Query::parse("coppice_itl_seconds_p51", None, "").is_err());
}
