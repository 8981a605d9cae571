//! One body, or two of one process, against the values that a correct reader gets from them.

use coppice_signals::{LatencyReading, Missing, Reading, RoleSignals, Signal};
use serde_json::{Map, Value};

use super::{Collector, body, select};

/// Relative tolerances: gauges and rates, quantiles. The files have nine decimals.
const EXACT: f64 = 1e-9;
const QUANTILE: f64 = 1e-6;
const DECIMALS: f64 = 1e-9;

/// Names under which a value of the files is a series by its own name.
const RAW: [(&str, &str); 24] = [
    ("gen_throughput_gauge", "sglang:gen_throughput"),
    ("cache_hit_rate_gauge", "sglang:cache_hit_rate"),
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
    ("pool_avg_queue", "llm_d_epp_average_queue_size"),
    ("pool_avg_running", "llm_d_epp_average_running_requests"),
    ("legacy_pool_avg_queue", "inference_pool_average_queue_size"),
    ("legacy_ready_pods", "inference_pool_ready_pods"),
    ("api_requests_waiting", "lmdeploy:num_api_requests_waiting"),
    ("prefix_hit_rate_gauge", "lmdeploy:prefix_cache_hit_rate"),
    ("triton_pending", "nv_inference_pending_request_count"),
    ("scheduled_batch_size", "trtllm_scheduled_batch_size"),
    (
        "requests_completed_iter_per_s",
        "trtllm_num_requests_completed_total:rate",
    ),
    // SGLang counts these only when requests end; since 0.5.12 we read counters that move with each step.
    (
        "sglang prompt_tokens_finished_per_s",
        "sglang:prompt_tokens_total:rate",
    ),
    (
        "sglang generation_tokens_finished_per_s",
        "sglang:generation_tokens_total:rate",
    ),
    // The same under its older name, which the files do not know.
    (
        "older prefill_bootstrap_queue",
        "sglang:num_prefill_prealloc_queue_reqs",
    ),
];

/// Names under which a value of the files is a signal.
const SIGNALS: [(&str, Signal); 36] = [
    ("requests_waiting_capacity", Signal::WaitingCapacity),
    ("requests_waiting_deferred", Signal::WaitingDeferred),
    ("requests_inflight", Signal::InFlight),
    ("requests_active", Signal::InFlight),
    ("component_inflight", Signal::InFlight),
    ("max_requests", Signal::RunningLimit),
    ("kv_usage_mean", Signal::KvCacheUsage),
    ("pool_avg_kv", Signal::KvCacheUsage),
    ("kv_capacity_tokens", Signal::KvCapacityTokens),
    ("batch_tokens_limit", Signal::KvCapacityTokens),
    ("batch_tokens", Signal::KvUsedTokens),
    ("awake", Signal::Awake),
    ("kv_fetch_waiting", Signal::KvFetchWaiting),
    ("kv_fetch_in_progress", Signal::KvFetchRunning),
    ("prefill_bootstrap_queue", Signal::PrefillBootstrap),
    ("prefill_inflight_queue", Signal::PrefillInFlight),
    ("decode_prealloc_queue", Signal::DecodePreallocation),
    ("decode_transfer_queue", Signal::DecodeTransfer),
    ("flow_control_queue", Signal::HeldAtRouter),
    ("pool_saturation", Signal::PoolSaturation),
    ("ready_endpoints", Signal::ReadyEndpoints),
    ("prompt_tokens_per_s", Signal::InputTokens),
    ("prompt_tokens_finished_per_s", Signal::InputTokens),
    ("prompt_tokens_computed_per_s", Signal::ComputedInputTokens),
    ("generation_tokens_per_s", Signal::OutputTokens),
    ("generation_tokens_finished_per_s", Signal::OutputTokens),
    ("preemptions_per_s", Signal::Preemptions),
    ("requests_finished_per_s", Signal::Finished),
    ("requests_finished_stop_per_s", Signal::FinishedStop),
    ("requests_finished_length_per_s", Signal::FinishedLength),
    ("requests_finished_abort_per_s", Signal::Aborted),
    ("requests_aborted_per_s", Signal::Aborted),
    ("requests_cancelled_per_s", Signal::Aborted),
    ("requests_failed_per_s", Signal::Failed),
    ("requests_received_per_s", Signal::ReceivedRequests),
    ("requests_waiting", Signal::Waiting),
];

/// Observations of the files, with what turns them into our unit.
const OBSERVATIONS: [(&str, Signal, f64); 12] = [
    ("ttft_s", Signal::Ttft, 1.0),
    ("itl_s", Signal::Itl, 1.0),
    ("tpot_s", Signal::TimePerOutputToken, 1.0),
    ("e2e_s", Signal::EndToEnd, 1.0),
    ("queue_s", Signal::QueueTime, 1.0),
    ("inference_s", Signal::InferenceTime, 1.0),
    ("prefill_s", Signal::PrefillTime, 1.0),
    ("decode_s", Signal::DecodeTime, 1.0),
    ("kv_transfer_s", Signal::TransferTime, 1.0),
    ("kv_transfer_latency_ms", Signal::TransferTime, 1e-3),
    ("prompt_len", Signal::InputLength, 1.0),
    ("generation_len", Signal::OutputLength, 1.0),
];

/// What a collector makes of the bodies taken in so far.
pub(crate) struct Case<'a> {
    name: &'a str,
    engine: &'a str,
    collector: &'a Collector,
    signals: RoleSignals,
}

/// A collector that keeps every series which [`Case`] looks at by its own name.
pub(crate) fn collector() -> Collector {
    let collector = Collector::new();
    for (_, series) in RAW {
        assert!(matches!(
            collector.query(series),
            Err(Missing::JustAdded { .. })
        ));
    }
    collector
}

/// Takes in two bodies of one process and checks what happened between them.
pub(crate) fn check_pair(
    name: &str,
    engine: &str,
    (first, second, interval): (&str, &str, f64),
    parts: [&Map<String, Value>; 3],
) {
    let [before, after, window] = parts;
    let collector = collector();
    collector.ingest(&body(first), 0.0);
    Case::new(name, engine, &collector).check_all(before);
    collector.ingest(&body(second), interval);
    let case = Case::new(name, engine, &collector);
    case.check_all(after);
    case.check_all(window);
}

impl<'a> Case<'a> {
    pub(crate) fn new(name: &'a str, engine: &'a str, collector: &'a Collector) -> Self {
        Self {
            name,
            engine,
            collector,
            signals: collector.observe(),
        }
    }

    pub(crate) fn check_all(&self, expected: &Map<String, Value>) {
        for (key, value) in expected {
            self.check(key, value);
        }
    }

    fn assert_near(&self, key: &str, got: f64, expected: f64, tolerance: f64) {
        let allowed = expected.abs() * tolerance + DECIMALS;
        assert!(
            (got - expected).abs() <= allowed,
            "{}: {key} is {got}, expected {expected}",
            self.name
        );
    }

    /// A value that the server does not have is missing, with a reason that says so.
    fn assert_missing<T>(&self, key: &str, got: Result<T, Missing>) {
        let Err(missing) = got else {
            panic!("{}: {key} has a value, expected none", self.name)
        };
        let known = matches!(
            missing,
            Missing::NotExposed { .. } | Missing::NoObservations { .. }
        );
        assert!(known, "{}: {key}: {missing}", self.name);
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

    fn signal(&self, signal: Signal) -> Reading {
        self.collector
            .signals
            .signal(&select(""), signal, self.collector.now())
    }

    fn observations(&self, signal: Signal) -> LatencyReading {
        self.collector
            .signals
            .observations(&select(""), signal, self.collector.now())
    }

    fn check_observations(&self, key: &str, signal: Signal, unit: f64, expected: &Value) {
        let reading = self.observations(signal);
        let count = expected.get("count").and_then(Value::as_f64);
        let (Some(count), true) = (count, count != Some(0.0)) else {
            return self.assert_missing(key, reading);
        };
        let histogram = match reading {
            Ok(measured) => measured.histogram,
            Err(missing) => panic!("{}: {key}: {missing}", self.name),
        };
        let number = |part: &str| expected[part].as_f64().unwrap() * unit;
        self.assert_near(&format!("{key}.count"), histogram.count(), count, EXACT);
        self.assert_near(&format!("{key}.sum"), histogram.sum(), number("sum"), EXACT);
        let mean = histogram.mean().unwrap();
        self.assert_near(&format!("{key}.mean"), mean, number("mean"), EXACT * 10.0);
        // Of some only the mean is kept.
        if histogram.buckets().is_empty() {
            let is_mean = ["prefill_s", "decode_s", "prompt_len", "generation_len"].contains(&key)
                || key.starts_with("kv_transfer");
            assert!(is_mean, "{}: {key} has no buckets", self.name);
            return;
        }
        for (part, share) in [("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99)] {
            self.assert_near(
                &format!("{key}.{part}"),
                histogram.quantile(share).unwrap(),
                number(part),
                QUANTILE,
            );
        }
    }

    fn check_raw(&self, key: &str, series: &str, expected: &Value) {
        match (self.collector.query(series), expected.as_f64()) {
            (Ok(answer), Some(expected)) => self.assert_near(key, answer.value, expected, EXACT),
            (got, None) => self.assert_missing(key, got),
            (Err(missing), Some(_)) => panic!("{}: {key}: {missing}", self.name),
        }
    }

    fn check(&self, key: &str, expected: &Value) {
        let signals = &self.signals;
        let sglang = format!("sglang {key}");
        let raw_key = if self.engine == "sglang" && RAW.iter().any(|(name, _)| *name == sglang) {
            &sglang
        } else {
            key
        };
        if let Some((_, series)) = RAW.iter().find(|(name, _)| *name == raw_key) {
            return self.check_raw(key, series, expected);
        }
        if let Some((_, signal, unit)) = OBSERVATIONS.iter().find(|(name, ..)| *name == key) {
            return self.check_observations(key, *signal, *unit, expected);
        }
        let is_router = self.engine == "llm-d EPP";
        match key {
            // What the router has accepted; in its engines run fewer.
            "requests_running" if is_router => {
                self.check_reading(key, &signals.in_flight, expected);
                self.check_product(Signal::Running, "llm_d_epp_average_running_requests");
            }
            "requests_running" => self.check_reading(key, &signals.running, expected),
            "kv_usage_max" => self.check_reading(key, &signals.kv_cache_usage_max, expected),
            "prompt_tokens_cached_per_s" => self.check_cached(expected),
            "prefix_hit_ratio" => {
                self.check_reading(key, &signals.prefix_cache_hit_ratio, expected)
            }
            // The file counts those that succeeded; the signal counts those that ended.
            "requests_finished_per_s" if self.engine == "tgi" => {
                let ended = self.signal(Signal::Finished).unwrap().value;
                let failed = self.signal(Signal::Failed).unwrap().value;
                self.assert_near(
                    key,
                    ended - failed,
                    expected.as_f64().unwrap(),
                    EXACT * 10.0,
                );
            }
            "requests_started_per_s" if self.engine == "tgi" => {
                self.check_reading(key, &self.signal(Signal::ReceivedRequests), expected);
            }
            "requests_started_per_s" => {
                self.check_reading(key, &signals.offered_requests_per_second, expected)
            }
            // Old servers of this kind count at the end only, which the signal says, and the file gives apart.
            "generation_tokens_per_s" if expected.is_null() && self.engine == "sglang" => {
                let reading = &signals.output_tokens_per_second;
                assert!(reading.as_ref().is_ok_and(|read| read.at_finish) || reading.is_err());
            }
            "prefill_bootstrap_queue" if expected.is_null() => self.check_older_name(),
            key => {
                let Some((_, signal)) = SIGNALS.iter().find(|(name, _)| *name == key) else {
                    panic!("{}: the test does not know {key}", self.name)
                };
                let reading = self.signal(*signal);
                self.check_reading(key, &reading, expected);
                if let (Ok(measured), true) = (reading, key.contains("tokens_finished")) {
                    assert!(measured.at_finish, "{}: {key}", self.name);
                }
                if key == "prompt_tokens_per_s" && self.engine == "dynamo" {
                    self.check_reading(key, &signals.offered_input_tokens_per_second, expected);
                }
            }
        }
    }

    /// A number of requests in a pool is its mean times the number of its engines.
    fn check_product(&self, signal: Signal, mean: &str) {
        let mean = self.collector.query(mean).unwrap().value;
        let ready = self.signal(Signal::ReadyEndpoints).unwrap().value;
        let product = self.signal(signal).unwrap().value;
        self.assert_near(signal.name(), product, mean * ready, EXACT * 10.0);
    }

    /// The queue that the files know by its newer name.
    fn check_older_name(&self) {
        match self
            .collector
            .query("sglang:num_prefill_prealloc_queue_reqs")
        {
            Ok(older) => {
                let reading = self.signal(Signal::PrefillBootstrap).unwrap();
                self.assert_near("prefill_bootstrap", reading.value, older.value, EXACT);
            }
            Err(_) => {
                self.assert_missing("prefill_bootstrap", self.signal(Signal::PrefillBootstrap))
            }
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
        let ratio = &self.signals.prefix_cache_hit_ratio;
        if all > 0.0 {
            self.assert_near("hit ratio", value(ratio), cached / all, EXACT * 10.0);
        } else {
            self.assert_missing("hit ratio", ratio.clone());
        }
    }
}
