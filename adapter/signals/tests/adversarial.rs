//! Bodies that break collectors: what the manifest of `adapter/exposition/testdata/adversarial` wants beyond reading.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod support;

use std::path::PathBuf;

use coppice_signals::{Missing, Settings, Why};
use serde_json::Value;
use support::{Collector, pod};

fn adversarial(file: &str) -> Vec<u8> {
    let folder =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../exposition/testdata/adversarial");
    std::fs::read(folder.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

fn manifest() -> Vec<Value> {
    serde_json::from_slice::<Vec<Value>>(&adversarial("manifest.json")).unwrap()
}

#[test]
fn growth_is_judged_series_by_series() {
    let mut pairs = 0;
    for entry in manifest() {
        let (Some(first), Some(increases)) = (
            entry["expect"]["pair"].as_str(),
            entry["expect"]["increase"].as_object(),
        ) else {
            continue;
        };
        pairs += 1;
        let second = entry["file"].as_str().unwrap();
        let collector = Collector::new();
        for series in increases.keys() {
            assert!(matches!(
                collector.query(&format!("{series}:rate")),
                Err(Missing::JustAdded { .. })
            ));
        }
        collector.ingest(&adversarial(first), 0.0);
        collector.ingest(&adversarial(second), 10.0);
        for (series, increase) in increases {
            let rate = collector.query(&format!("{series}:rate")).unwrap().value;
            assert!(
                (rate * 10.0 - increase.as_f64().unwrap()).abs() < 1e-9,
                "{second}: {series} {rate}"
            );
        }
    }
    assert_eq!(pairs, 3);
}

#[test]
fn every_body_leaves_a_collector_in_order() {
    for entry in manifest() {
        let file = entry["file"].as_str().unwrap();
        let collector = Collector::new();
        let good = "vllm:num_requests_running 2\nvllm:num_requests_waiting 1\n";
        collector.ingest(good.as_bytes(), 0.0);
        collector.pass_to(5.0);
        let taken =
            collector
                .signals
                .ingest(&support::select(""), &adversarial(file), collector.now());
        if entry["expect"]["ok"] == Value::Bool(false) || entry["expect"].get("encoding").is_some()
        {
            assert!(taken.is_err(), "{file}");
            assert!(
                (collector.query("coppice_requests_running").unwrap().value - 2.0).abs() < 1e-9,
                "{file}: as before"
            );
        }
    }
}

#[test]
fn a_series_sent_three_times_counts_once_and_the_last_holds() {
    let collector = Collector::new();
    collector.ingest(&adversarial("duplicate-series.txt"), 0.0);
    assert!((collector.query("coppice_requests_running").unwrap().value - 11.0).abs() < 1e-9);
}

#[test]
fn impossible_values_are_missing_not_numbers() {
    let collector = Collector::new();
    collector.ingest(&adversarial("gauge-out-of-range.txt"), 0.0);
    for metric in [
        "coppice_requests_running",
        "coppice_requests_waiting",
        "coppice_kv_cache_usage",
        "coppice_kv_cache_usage_max",
    ] {
        match collector.query(metric).unwrap_err() {
            Missing::QuorumNotMet { problems, .. } => {
                assert_eq!(problems[0].why, Why::Impossible, "{metric}")
            }
            other => panic!("{metric}: {other}"),
        }
    }
    let collector = Collector::new();
    collector.ingest(&adversarial("negative-counter.txt"), 0.0);
    collector.ingest(&adversarial("negative-counter.txt"), 10.0);
    for metric in [
        "coppice_input_tokens_per_second",
        "coppice_output_tokens_per_second",
    ] {
        assert!(collector.query(metric).is_err(), "{metric}");
    }
}

#[test]
fn two_models_on_one_endpoint_are_told_apart() {
    let collector = Collector::new();
    let body = String::from_utf8(adversarial("two-models-one-endpoint.txt")).unwrap();
    collector.ingest(body.as_bytes(), 0.0);
    let models = collector.observe().models;
    assert_eq!(models.len(), 2, "{models:?}");
    let expected = |model: &str| -> f64 {
        let lines = body
            .lines()
            .filter(|line| line.starts_with("vllm:num_requests_running") && line.contains(model));
        lines
            .map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap())
            .sum()
    };
    let mut sum = 0.0;
    for model in &models {
        let id = coppice_signals::model_id(model);
        let answer = collector
            .query_with("coppice_requests_running", &format!("model_id={id}"))
            .unwrap();
        assert!(
            (answer.value - expected(&format!("\"{model}\""))).abs() < 1e-9,
            "{model}"
        );
        assert_eq!(answer.labels.get("model"), Some(model));
        sum += answer.value;
    }
    let all = collector.query("coppice_requests_running").unwrap();
    assert!((all.value - sum).abs() < 1e-9);
    assert_eq!(
        all.labels.get("model"),
        None,
        "no label where contributors differ"
    );
}

#[test]
fn escaped_colons_of_an_openmetrics_answer_are_understood() {
    let collector = Collector::new();
    collector.ingest(
        &adversarial("openmetrics-colons-become-underscores.txt"),
        0.0,
    );
    let signals = collector.observe();
    assert!(signals.running.is_ok() && signals.waiting.is_ok() && signals.kv_cache_usage.is_ok());
}

#[test]
fn a_body_cut_at_a_line_end_shows_by_what_it_lacks() {
    let collector = Collector::new();
    collector.ingest(&support::body("vllm-0.33.0-saturated-t0.txt"), 0.0);
    let cut = adversarial("truncated-mid-histogram.txt");
    // Families are in no fixed order: put the gauges behind the cut.
    let cut: String = String::from_utf8(cut)
        .unwrap()
        .lines()
        .filter(|line| !line.starts_with("vllm:num_requests_running"))
        .flat_map(|line| [line, "\n"])
        .collect();
    for seconds in [5.0, 10.0] {
        let refused = collector.ingest_for("pod-0", &cut, seconds).unwrap_err();
        assert_eq!(
            refused,
            "series vllm:num_requests_running is missing, the body seems incomplete"
        );
    }
    assert_eq!(
        collector.ingest_for("pod-0", &cut, 15.0),
        Ok(()),
        "a third time it is what the server sends"
    );
    let refused = collector.signals.ingest(
        &support::select(""),
        &adversarial("truncated-mid-line.txt"),
        collector.now(),
    );
    assert_eq!(refused.unwrap_err(), "the body ends within a line");
}

#[test]
fn each_limit_of_a_target_says_which() {
    let limited = |change: fn(&mut Settings), body: &[u8]| {
        let mut settings = Settings::default();
        change(&mut settings);
        let collector = Collector::with_settings(settings);
        collector.apply(pod("pod-0"));
        collector
            .signals
            .ingest(&support::select(""), body, collector.now())
            .unwrap_err()
    };
    let vllm = support::body("vllm-0.33.0-busy-t0.txt");
    assert_eq!(
        limited(|settings| settings.limits.series_per_target = 50, &vllm),
        "limit limits.series_per_target of 50 reached"
    );
    assert_eq!(
        limited(
            |settings| settings.limits.models_per_target = 1,
            &adversarial("two-models-one-endpoint.txt")
        ),
        "limit limits.models_per_target of 1 reached"
    );
    assert_eq!(
        limited(|settings| settings.limits.body_bytes = 2000, &vllm),
        format!(
            "the body has {} bytes, more than the limit of 2000 (body_bytes)",
            vllm.len()
        )
    );
}

#[test]
fn a_leaked_prompt_in_a_label_is_cut_and_its_value_kept() {
    let collector = Collector::new();
    collector.ingest(&adversarial("long-line.txt"), 0.0);
    assert!((collector.query("coppice_requests_waiting").unwrap().value - 3.0).abs() < 1e-9);
    assert!(collector.query("coppice_requests_running").is_ok());
    let models = collector.observe().models;
    assert!(
        models.iter().all(|model| model.len() <= 512 + 17),
        "{}",
        models[0].len()
    );
}
