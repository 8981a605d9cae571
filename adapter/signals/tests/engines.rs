//! The signals of every body in `testdata/`, against the values beside it.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod support;

use std::collections::BTreeSet;

use coppice_signals::engines::{ENGINES, Reading};
use coppice_signals::{Missing, Query, Selection, Signal};
use serde_json::{Map, Value};
use support::case::{Case, check_pair, collector};
use support::{Collector, body, files, fixtures};

fn object<'a>(expected: &'a Value, key: &str) -> &'a Map<String, Value> {
    expected.get(key).and_then(Value::as_object).unwrap()
}

fn server(collector: &Collector) -> String {
    collector
        .signals
        .endpoints(&Selection::default(), collector.now())[0]
        .server
        .clone()
        .unwrap()
}

/// The bodies that a fixture consists of.
fn bodies(expected: &Value) -> Vec<&str> {
    ["file", "t0_file", "t1_file"]
        .into_iter()
        .filter_map(|key| expected[key].as_str())
        .collect()
}

fn check(name: &str, expected: &Value) {
    let engine = expected["engine"].as_str().unwrap();
    if let [first, second] = bodies(expected)[..] {
        let interval = expected["interval_s"].as_f64().unwrap();
        let parts = ["instant_t0", "instant_t1", "window"].map(|part| object(expected, part));
        return check_pair(name, engine, (first, second, interval), parts);
    }
    let collector = collector();
    collector.ingest(&body(expected["file"].as_str().unwrap()), 0.0);
    // A body without a known series is unknown yet, which is another reason than not exposed.
    if name == "vllm-rustfrontend-2026-08-idle" {
        let signals = collector.observe();
        for reading in [signals.running, signals.waiting, signals.kv_cache_usage] {
            let reason = reading.unwrap_err().to_string();
            assert_eq!(reason, "not exposed by unknown", "{name}");
        }
        return;
    }
    Case::new(name, engine, &collector).check_all(object(expected, "instant"));
}

#[test]
fn every_fixture_gives_its_expected_values_and_every_body_belongs_to_one() {
    let mut tested = BTreeSet::new();
    let fixtures = fixtures();
    for (name, expected) in &fixtures {
        check(name, expected);
        tested.extend(bodies(expected).into_iter().map(str::to_owned));
    }
    let there: BTreeSet<_> = files("")
        .into_iter()
        .filter(|file| file.ends_with(".txt"))
        .collect();
    assert_eq!(tested, there, "bodies without a test, or tests without one");
    assert_eq!(fixtures.len(), 57, "a fixture came or went");
}

#[test]
fn every_fixture_is_recognised_by_what_is_in_it() {
    for (name, expected) in fixtures() {
        for file in bodies(&expected) {
            let collector = Collector::new();
            collector.ingest(&body(file), 0.0);
            let expected = match name.as_str() {
                "vllm-rustfrontend-2026-08-idle" => "unknown",
                "dynamo-worker-1.6.1-pd-prefill-busy" => "dynamo-worker",
                "ray-2.60.0-vllm-names" => "ray+vllm",
                name if name.starts_with("dynamo-frontend") => "dynamo-frontend",
                name if name.starts_with("dynamo-worker") => "dynamo-worker+vllm",
                name if name.starts_with("llamacpp") => "llama.cpp",
                name if name.starts_with("llm-d-epp") => "llm-d-epp",
                name if name.starts_with("triton-trtllm") => "triton-tensorrt-llm",
                name if name.starts_with("trtllm") => "tensorrt-llm",
                name => name.split('-').next().unwrap(),
            };
            assert_eq!(server(&collector), expected, "{file}");
        }
    }
}

/// The families that were seen, by server.
fn catalogue() -> Vec<(String, String)> {
    String::from_utf8(body("catalogue.tsv"))
        .unwrap()
        .lines()
        .skip(1)
        .map(|line| {
            let mut columns = line.split('\t');
            let server = columns.next().unwrap().to_owned();
            (server, columns.nth(1).unwrap().to_owned())
        })
        .collect()
}

/// Series that no body here has, because they come with an event, a feature or a version that none of them shows.
const UNSEEN: [&str; 12] = [
    "vllm:admission_rejections_total",
    "sglang:lora_pool_slots_total",
    "sglang:lora_pool_slots_used",
    "sglang:num_prefill_infight_queue_reqs",
    "trtllm_request_error_total",
    "nv_inference_first_response_histogram_ms",
    "ray_serve_replica_processing_queries",
    "ray_serve_deployment_queued_queries",
    "dynamo_component_errors_total",
    "inference_objective_request_error_total",
    "sglang:num_retracted_requests_total",
    "sglang:num_aborted_requests_total",
];

#[test]
fn every_series_of_the_rules_was_seen_at_a_real_server() {
    let seen: BTreeSet<String> = catalogue()
        .into_iter()
        .flat_map(|(server, family)| {
            // Five series of 1.0 and 1.1 have no prefix.
            let prefixed = server
                .starts_with("trtllm-1")
                .then(|| format!("trtllm_{family}"));
            [Some(family), prefixed].into_iter().flatten()
        })
        .collect();
    let is_seen = |name: &str| {
        let family = ["_sum", "_count", "_total"]
            .iter()
            .find_map(|part| name.strip_suffix(part));
        seen.contains(name) || family.is_some_and(|family| seen.contains(family))
    };
    let mut unseen = BTreeSet::new();
    for engine in ENGINES {
        for rule in engine.rules {
            for term in rule.sources.iter().flat_map(|source| source.terms) {
                let count = match term.reading {
                    Reading::Mean { count } => Some(count),
                    _ => None,
                };
                unseen.extend(
                    [Some(term.name), count]
                        .into_iter()
                        .flatten()
                        .filter(|name| !is_seen(name)),
                );
            }
        }
    }
    let documented: BTreeSet<_> = UNSEEN.into_iter().collect();
    let surprises: Vec<_> = unseen.difference(&documented).collect();
    assert!(surprises.is_empty(), "never seen: {surprises:?}");
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

/// A collector that took in two bodies, 15 s apart.
fn after(bodies: [&str; 2]) -> Collector {
    let collector = Collector::new();
    collector.ingest(&body(bodies[0]), 0.0);
    collector.ingest(&body(bodies[1]), 15.0);
    collector
}

fn signal(collector: &Collector, signal: Signal) -> Result<f64, Missing> {
    collector
        .signals
        .signal(&support::select(""), signal, collector.now())
        .map(|measured| measured.value)
}

#[track_caller]
fn near(value: Result<f64, Missing>, expected: f64) {
    let value = value.unwrap();
    assert!((value - expected).abs() < 1e-6, "{value} is not {expected}");
}

#[test]
fn of_all_combinations_of_adapters_the_current_one_counts() {
    // The greatest of four stands at two that run and at one that waits, whose name holds a comma and so counts as two.
    let collector = after(["vllm-0.33.0-lora-t0.txt", "vllm-0.33.0-lora-t1.txt"]);
    near(signal(&collector, Signal::LoraRunning), 2.0);
    near(signal(&collector, Signal::LoraWaiting), 2.0);
    near(signal(&collector, Signal::LoraSlots), 4.0);
    let without = after(["vllm-0.33.0-busy-t0.txt", "vllm-0.33.0-busy-t1.txt"]);
    assert!(matches!(
        signal(&without, Signal::LoraRunning),
        Err(Missing::NotExposed { .. })
    ));
}

#[test]
fn an_engine_that_sleeps_says_so() {
    let collector = Collector::new();
    collector.ingest(&body("vllm-0.33.0-sleeping-level1.txt"), 0.0);
    near(signal(&collector, Signal::Awake), 0.0);
    near(signal(&collector, Signal::Asleep), 1.0);
    let awake = Collector::new();
    awake.ingest(&body("vllm-0.33.0-dp4-multiproc-t0.txt"), 0.0);
    near(signal(&awake, Signal::Awake), 4.0);
    near(signal(&awake, Signal::Asleep), 0.0);
}

#[test]
fn limits_and_capacities_are_read_where_servers_tell_them() {
    for (file, limit) in [
        ("lmdeploy-0.18.0-busy-t0.txt", 128.0),
        ("nim-1.x-busy-t0.txt", 256.0),
        ("trtllm-main-2026-08-busy-t0.txt", 256.0),
        ("triton-trtllm-25.09-busy-t0.txt", 512.0),
    ] {
        let collector = Collector::new();
        collector.ingest(&body(file), 0.0);
        near(signal(&collector, Signal::RunningLimit), limit);
    }
    for (file, capacity) in [
        ("trtllm-main-2026-08-busy-t0.txt", 9375.0 * 32.0),
        ("triton-trtllm-25.09-busy-t0.txt", 3437.0 * 32.0),
        ("tgi-3.3.7-busy-t0.txt", 110_000.0),
    ] {
        let collector = Collector::new();
        collector.ingest(&body(file), 0.0);
        near(signal(&collector, Signal::KvCapacityTokens), capacity);
    }
}

#[test]
fn a_mean_is_no_quantile() {
    let collector = after([
        "triton-trtllm-25.09-busy-t0.txt",
        "triton-trtllm-25.09-busy-t1.txt",
    ]);
    let mean = signal(&collector, Signal::EndToEnd).unwrap();
    assert!((1.0..100.0).contains(&mean), "{mean} seconds");
    assert_eq!(
        collector
            .query("coppice_e2e_seconds_p95")
            .unwrap_err()
            .to_string(),
        "not exposed by triton-tensorrt-llm"
    );
}

#[test]
fn a_router_s_promises_over_what_there_is_may_exceed_one() {
    let collector = Collector::new();
    collector.ingest(&body("dynamo-frontend-1.6.1-agg-saturated-t0.txt"), 0.0);
    near(signal(&collector, Signal::KvCacheDemand), 968.0 / 512.0);
}

#[test]
fn values_of_a_pool_without_engines_are_not_its_last_ones() {
    let collector = Collector::new();
    let text = String::from_utf8(body("llm-d-epp-0.10.0-saturated-t0.txt")).unwrap();
    let empty = text.replace(
        "llm_d_epp_ready_endpoints{name=\"llama-pool\"} 3",
        "llm_d_epp_ready_endpoints{name=\"llama-pool\"} 0",
    );
    assert_ne!(text, empty);
    collector.ingest(text.as_bytes(), 0.0);
    near(signal(&collector, Signal::Waiting), 20.0 * 3.0 + 98.0);
    collector.ingest(empty.as_bytes(), 5.0);
    near(signal(&collector, Signal::Running), 0.0);
    near(signal(&collector, Signal::Waiting), 98.0);
    let usage = signal(&collector, Signal::KvCacheUsage).unwrap_err();
    assert_eq!(
        usage.to_string(),
        "0 of 1 endpoints have a value, 1 are needed: serving/pod-0 a share of nothing"
    );
}

#[test]
fn an_older_router_is_read_under_its_older_names() {
    let collector = Collector::new();
    let text = String::from_utf8(body("llm-d-epp-0.10.0-saturated-t0.txt")).unwrap();
    let older: String = text
        .lines()
        .filter(|line| !line.starts_with("llm_d_epp_"))
        .flat_map(|line| [line, "\n"])
        .collect();
    collector.ingest(older.as_bytes(), 0.0);
    near(signal(&collector, Signal::ReadyEndpoints), 3.0);
    near(signal(&collector, Signal::Waiting), 20.0 * 3.0 + 98.0);
    near(signal(&collector, Signal::KvCacheUsage), 0.9952);
}

#[test]
fn gauges_of_a_dead_process_do_not_count() {
    let collector = Collector::new();
    let old =
        "trtllm_num_requests_running{pid=\"30\"} 7\ntrtllm_num_requests_waiting{pid=\"30\"} 2\n";
    let both = |running: u32| {
        format!(
            "{old}trtllm_num_requests_running{{pid=\"31\"}} {running}\ntrtllm_num_requests_waiting{{pid=\"31\"}} 0\n"
        )
    };
    collector.ingest(old.as_bytes(), 0.0);
    near(signal(&collector, Signal::Running), 7.0);
    for (second, running) in [(5.0, 1), (10.0, 3), (15.0, 3)] {
        collector.ingest(both(running).as_bytes(), second);
        near(signal(&collector, Signal::Running), f64::from(running));
        near(signal(&collector, Signal::Waiting), 0.0);
    }
}

#[test]
fn a_name_that_was_not_set_is_no_model() {
    let collector = after(["trtllm-1.1.0-busy-t0.txt", "trtllm-1.1.0-busy-t1.txt"]);
    assert_eq!(collector.observe().models, Vec::<String>::new());
}

#[test]
fn requests_at_a_server_s_door_wait_too() {
    let collector = Collector::new();
    collector.ingest(
        b"lmdeploy:num_requests_waiting 3\nlmdeploy:num_api_requests_waiting 4\n",
        0.0,
    );
    near(signal(&collector, Signal::Waiting), 7.0);
}

#[test]
fn triton_s_queue_is_what_is_active_and_not_scheduled_where_it_does_not_tell() {
    let collector = Collector::new();
    let body = "nv_trt_llm_request_metrics{model=\"m\",request_type=\"active\"} 9\n\
                nv_trt_llm_request_metrics{model=\"m\",request_type=\"scheduled\"} 4\n";
    collector.ingest(body.as_bytes(), 0.0);
    near(signal(&collector, Signal::Waiting), 5.0);
    let telling =
        format!("{body}nv_trt_llm_request_metrics{{model=\"m\",request_type=\"waiting\"}} 2\n");
    collector.ingest(telling.as_bytes(), 5.0);
    near(signal(&collector, Signal::Waiting), 2.0);
}

#[test]
fn another_server_is_recognised_though_nothing_fell_and_nothing_restarted() {
    // Neither has gauges that every body must have, nor a start time.
    let collector = Collector::new();
    collector.ingest(&body("trtllm-1.1.0-busy-t0.txt"), 0.0);
    assert_eq!(server(&collector), "tensorrt-llm");
    collector.ingest(&body("tgi-3.3.7-busy-t0.txt"), 5.0);
    assert_eq!(server(&collector), "tgi");
    near(signal(&collector, Signal::Running), 46.0);
}

#[test]
fn ranks_that_say_the_same_count_once_and_data_parallel_ones_add_up() {
    let collector = Collector::new();
    let mut body = String::new();
    for (dp, running) in [(0, 5), (1, 7)] {
        for rank in 0..4 {
            for (priority, count) in [("", running), ("0", 2), ("1", running - 2)] {
                body.push_str(&format!(
                    "sglang:num_running_reqs{{dp_rank=\"{dp}\",tp_rank=\"{rank}\",pp_rank=\"0\",priority=\"{priority}\"}} {count}\n"
                ));
            }
        }
    }
    collector.ingest(body.as_bytes(), 0.0);
    near(signal(&collector, Signal::Running), 12.0);
}

#[test]
fn replicas_of_a_node_add_up_under_the_names_that_the_node_gives() {
    let collector = Collector::new();
    let body = |second: u32| {
        format!(
            "ray_vllm_num_requests_running{{ReplicaId=\"a\",model_name=\"m\"}} 3\n\
             ray_vllm_num_requests_running{{ReplicaId=\"b\",model_name=\"m\"}} 4\n\
             ray_vllm_generation_tokens_total{{ReplicaId=\"a\",model_name=\"m\"}} {second}\n"
        )
    };
    collector.ingest(body(0).as_bytes(), 0.0);
    collector.ingest(body(100).as_bytes(), 10.0);
    assert_eq!(server(&collector), "ray+vllm");
    near(signal(&collector, Signal::Running), 7.0);
    near(signal(&collector, Signal::OutputTokens), 10.0);
    // A counter comes with its first event: so far none was preempted, and nobody can tell.
    assert!(signal(&collector, Signal::Preemptions).is_err());
}

#[test]
fn an_outage_behind_a_frontend_shows_as_failures_and_not_as_idleness() {
    let collector = Collector::new();
    let text = String::from_utf8(body("dynamo-frontend-1.6.1-pd-failing-t0.txt")).unwrap();
    let later = text
        .replace("status=\"error\"} 977", "status=\"error\"} 1127")
        .replace("status=\"error\"} 14", "status=\"error\"} 44");
    collector.ingest(text.as_bytes(), 0.0);
    collector.ingest(later.as_bytes(), 15.0);
    near(signal(&collector, Signal::InFlight), 0.0);
    near(signal(&collector, Signal::Waiting), 0.0);
    near(signal(&collector, Signal::Failed), 12.0);
    near(signal(&collector, Signal::Unservable), 2.0);
}
