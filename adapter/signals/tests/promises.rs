//! What other metrics adapters were reported to get wrong about values and selections, as promises. The letters are the rows of
//! the list of such reports that the project keeps.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod support;

use std::collections::BTreeMap;
use std::sync::Arc;

use coppice_signals::{Metric, Missing, PodFacts, Query, Settings, Signal, Why};
use support::{Collector, body, pod, select};

fn collector(pods: &[&str]) -> Collector {
    let collector = Collector::with_settings(Settings::default());
    for name in pods {
        collector.apply(pod(name));
    }
    collector
}

/// A vLLM server's body with this in its queue, and so many tokens generated.
fn vllm(waiting: &str, tokens: &str) -> String {
    format!(
        "vllm:num_requests_running 1\nvllm:num_requests_waiting {waiting}\nvllm:generation_tokens_total {tokens}\n"
    )
}

fn why(missing: &Missing) -> Vec<Why> {
    match missing {
        Missing::QuorumNotMet { problems, .. } => {
            problems.iter().map(|problem| problem.why.clone()).collect()
        }
        other => panic!("{other}"),
    }
}

#[track_caller]
fn near(value: f64, expected: f64) {
    assert!((value - expected).abs() < 1e-9, "{value} is not {expected}");
}

/// D1.
#[test]
fn a_quantile_without_traffic_is_missing_and_not_a_number() {
    let collector = collector(&["a"]);
    let idle = "vllm:num_requests_running 0\n\
                vllm:time_to_first_token_seconds_bucket{le=\"1\"} 5\n\
                vllm:time_to_first_token_seconds_bucket{le=\"+Inf\"} 5\n\
                vllm:time_to_first_token_seconds_sum 2\n\
                vllm:time_to_first_token_seconds_count 5\n";
    collector.ingest(idle.as_bytes(), 0.0);
    collector.ingest(idle.as_bytes(), 15.0);
    let missing = collector.query("coppice_ttft_seconds_p95").unwrap_err();
    assert_eq!(missing.to_string(), "no observation within the last 15 s");
    let mean = collector
        .signals
        .signal(&select(""), Signal::Ttft, collector.now());
    assert!(matches!(mean, Err(Missing::NoObservations { .. })));
}

/// D1, D2, D6, D7.
#[test]
fn what_is_no_number_infinite_negative_or_absurd_is_missing() {
    for value in ["NaN", "+Inf", "-Inf", "-1", "1e300", "18446744073709551615"] {
        let collector = collector(&["a"]);
        collector.ingest(vllm(value, "0").as_bytes(), 0.0);
        let missing = collector.query("coppice_requests_waiting").unwrap_err();
        assert_eq!(why(&missing), [Why::Impossible], "{value}");
        near(
            collector.query("coppice_requests_running").unwrap().value,
            1.0,
        );
    }
}

/// D7.
#[test]
fn a_difference_below_zero_is_zero() {
    let collector = collector(&["a"]);
    // Two gauges that were not read at the same instant.
    let body = "nv_trt_llm_request_metrics{request_type=\"active\"} 4\n\
                nv_trt_llm_request_metrics{request_type=\"scheduled\"} 5\n";
    collector.ingest(body.as_bytes(), 0.0);
    near(
        collector.query("coppice_requests_waiting").unwrap().value,
        0.0,
    );
}

/// D6.
#[test]
fn a_counter_beyond_whole_numbers_still_grows() {
    let collector = collector(&["a"]);
    collector.ingest(vllm("0", "9.0e18").as_bytes(), 0.0);
    collector.ingest(vllm("0", "1.9e19").as_bytes(), 10.0);
    let rate = collector
        .query("coppice_output_tokens_per_second")
        .unwrap()
        .value;
    assert!((rate - 1e18).abs() < 1e9, "{rate}");
}

/// D8.
#[test]
fn a_restart_never_makes_a_rate_negative() {
    let collector = collector(&["a"]);
    for (second, tokens) in [(0.0, "900"), (5.0, "1000"), (10.0, "40")] {
        collector.ingest(vllm("0", tokens).as_bytes(), second);
    }
    near(
        collector
            .query("coppice_output_tokens_per_second")
            .unwrap()
            .value,
        14.0,
    );
}

/// D9, D10, E3.
#[test]
fn an_outage_is_an_error_with_its_age_and_never_zero() {
    let collector = collector(&["a", "b"]);
    collector.ingest(vllm("3", "0").as_bytes(), 0.0);
    collector.pass_to(45.0);
    let missing = collector.query("coppice_requests_waiting").unwrap_err();
    assert_eq!(
        missing.to_string(),
        "0 of 2 endpoints have a value, 2 are needed: 2 like serving/a last sample up to 50 s old"
    );
    assert!(collector.observe().waiting.is_err());
    let none = Collector::with_settings(Settings::default());
    assert!(matches!(
        none.query("coppice_requests_waiting"),
        Err(Missing::NoEndpoints { .. })
    ));
}

/// D3.
#[test]
fn a_mean_over_endpoints_that_all_fail_is_an_error() {
    let collector = collector(&["a", "b"]);
    let missing = collector.query("coppice_kv_cache_usage").unwrap_err();
    assert_eq!(why(&missing), [Why::NotScraped]);
}

/// D13, D16, H1.
#[test]
fn each_selection_sees_its_own_endpoints_under_the_same_metric() {
    let collector = collector(&["a", "b"]);
    collector.ingest_for("a", &vllm("3", "0"), 0.0).unwrap();
    collector.ingest_for("b", &vllm("40", "0"), 0.0).unwrap();
    let value = |selector: &str| {
        collector
            .query_with("coppice_requests_waiting", selector)
            .unwrap()
            .value
    };
    near(value("name=a"), 3.0);
    near(value("name=b"), 40.0);
    near(value("name!=a"), 40.0);
    near(value("name in (a,b)"), 43.0);
    assert!(matches!(
        collector.query_with("coppice_requests_waiting", "name=c"),
        Err(Missing::NoEndpoints { .. })
    ));
}

/// D17.
#[test]
fn another_namespace_s_values_are_never_in_an_answer() {
    let collector = collector(&["a"]);
    collector.apply(PodFacts {
        labels: Arc::new(BTreeMap::from([("name".to_owned(), "other".to_owned())])),
        ..PodFacts::ready("elsewhere", "a", [127, 0, 0, 2].into(), 8000)
    });
    let all = coppice_signals::Selection::default();
    let body = vllm("3", "0");
    collector
        .signals
        .ingest(&all, body.as_bytes(), collector.now())
        .unwrap();
    let answer = collector.query("coppice_requests_waiting").unwrap();
    near(answer.value, 3.0);
    assert_eq!(
        (answer.live, answer.labels["namespace"].as_str()),
        (1, "serving")
    );
}

/// E1.
#[test]
fn values_leave_with_their_pod() {
    let collector = collector(&["a", "b"]);
    collector.ingest_for("a", &vllm("3", "0"), 0.0).unwrap();
    collector.ingest_for("b", &vllm("40", "0"), 0.0).unwrap();
    collector
        .signals
        .delete_pod(collector.watch, "serving", "b");
    near(
        collector.query("coppice_requests_waiting").unwrap().value,
        3.0,
    );
}

/// E2.
#[test]
fn an_answer_is_as_old_as_its_oldest_part() {
    let collector = collector(&["a", "b"]);
    collector.ingest_for("a", &vllm("3", "0"), 0.0).unwrap();
    collector.ingest_for("b", &vllm("4", "0"), 20.0).unwrap();
    let answer = collector.query("coppice_requests_waiting").unwrap();
    assert_eq!(answer.timestamp, collector.at(0.0));
}

/// E5, A10.
#[test]
fn questions_are_answered_from_memory_however_many_there_are() {
    let collector = collector(&["a"]);
    collector.ingest(vllm("3", "0").as_bytes(), 0.0);
    for _ in 0..1000 {
        near(
            collector.query("coppice_requests_waiting").unwrap().value,
            3.0,
        );
    }
    // Nothing listens at the pod's address: a question that went there would fail.
    let status = &collector.signals.endpoints(&select(""), collector.now())[0];
    assert_eq!(status.failure, None);
}

/// C4, E9b.
#[test]
fn a_metric_is_known_whether_or_not_there_is_data() {
    let collector = collector(&["a"]);
    for metric in Metric::all() {
        let query = Query::parse(&metric.to_string(), Some("serving"), "").unwrap();
        let missing = collector
            .signals
            .query(&query, collector.now())
            .unwrap_err();
        assert!(!missing.to_string().is_empty(), "{metric}");
    }
}

/// H2.
#[test]
fn a_model_whose_name_is_no_label_value_can_be_selected() {
    let collector = collector(&["a"]);
    collector.ingest(&body("sglang-0.5.23-busy-t0.txt"), 0.0);
    for selector in [
        "model_id=qwen-qwen3-8b",
        "role=aggregated,model_id=qwen-qwen3-8b",
    ] {
        assert!(
            collector
                .query_with("coppice_requests_running", selector)
                .is_ok(),
            "{selector}"
        );
    }
}

/// H3.
#[test]
fn names_are_found_in_any_case() {
    let collector = collector(&["a"]);
    collector.ingest(vllm("3", "0").as_bytes(), 0.0);
    near(
        collector.query("Coppice_Requests_WAITING").unwrap().value,
        3.0,
    );
}

/// I5.
#[test]
fn only_needed_series_are_kept_of_a_body_of_any_size() {
    let collector = collector(&["a"]);
    let mut large = vllm("3", "0");
    for index in 0..50_000 {
        large.push_str(&format!("other_series{{id=\"{index}\"}} 1\n"));
    }
    // Each combination of adapters that ever ran stays a series; only the last one matters.
    for index in 0..20_000 {
        large.push_str(&format!(
            "vllm:lora_requests_info{{max_lora=\"4\",running_lora_adapters=\"a{index},b\",waiting_lora_adapters=\"\"}} 1{index}\n"
        ));
    }
    collector.ingest(large.as_bytes(), 0.0);
    let status = &collector.signals.endpoints(&select(""), collector.now())[0];
    assert_eq!(status.series, 3);
    let running = collector
        .signals
        .signal(&select(""), Signal::LoraRunning, collector.now())
        .unwrap();
    near(running.value, 2.0);
    let waiting = collector
        .signals
        .signal(&select(""), Signal::LoraWaiting, collector.now())
        .unwrap();
    near(waiting.value, 0.0);
}
