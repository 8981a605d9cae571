//! Servers that users describe, and the table of those that are built in.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod support;

use coppice_signals::engines::{Aggregation, LabelCondition, Tier, Unit, table};
use coppice_signals::{Mapping, Missing, Selection, Signal, SignalMapping};
use support::{Collector, body, select};

fn mapped(signal: Signal, series: &str, aggregation: Aggregation, unit: Unit) -> SignalMapping {
    SignalMapping {
        signal,
        series: series.to_owned(),
        labels: Vec::new(),
        aggregation,
        unit,
        at_finish: false,
    }
}

/// A server that counts per worker, in percent and milliseconds.
fn acme() -> Mapping {
    Mapping {
        name: "acme".to_owned(),
        tier: Tier::Engine,
        recognised_by: vec!["acme_*".to_owned()],
        model_label: Some("served".to_owned()),
        start_time: None,
        signals: vec![
            SignalMapping {
                labels: vec![(
                    "state".to_owned(),
                    LabelCondition::OneOf(vec!["prefill".to_owned(), "decode".to_owned()]),
                )],
                ..mapped(
                    Signal::Running,
                    "acme_requests",
                    Aggregation::Sum,
                    Unit::Count,
                )
            },
            SignalMapping {
                labels: vec![("state".to_owned(), LabelCondition::Is("queued".to_owned()))],
                ..mapped(
                    Signal::Waiting,
                    "acme_requests",
                    Aggregation::Sum,
                    Unit::Count,
                )
            },
            mapped(
                Signal::RunningLimit,
                "acme_slots",
                Aggregation::Max,
                Unit::Count,
            ),
            mapped(
                Signal::KvCacheUsage,
                "acme_cache_percent",
                Aggregation::Mean,
                Unit::Percent,
            ),
            mapped(
                Signal::OutputTokens,
                "acme_tokens_total",
                Aggregation::Sum,
                Unit::Count,
            ),
            mapped(
                Signal::Ttft,
                "acme_first_token_ms",
                Aggregation::Sum,
                Unit::Milliseconds,
            ),
        ],
    }
}

fn acme_body(tokens: u32, first_tokens: u32) -> String {
    format!(
        "acme_requests{{served=\"m\",worker=\"0\",state=\"prefill\"}} 1\n\
         acme_requests{{served=\"m\",worker=\"1\",state=\"decode\"}} 4\n\
         acme_requests{{served=\"m\",worker=\"1\",state=\"queued\"}} 6\n\
         acme_slots{{served=\"m\",worker=\"0\"}} 16\n\
         acme_slots{{served=\"m\",worker=\"1\"}} 16\n\
         acme_cache_percent{{served=\"m\",worker=\"0\"}} 20\n\
         acme_cache_percent{{served=\"m\",worker=\"1\"}} 60\n\
         acme_tokens_total{{served=\"m\",worker=\"0\"}} {tokens}\n\
         acme_first_token_ms_bucket{{served=\"m\",le=\"100\"}} {first_tokens}\n\
         acme_first_token_ms_bucket{{served=\"m\",le=\"+Inf\"}} {first_tokens}\n\
         acme_first_token_ms_sum{{served=\"m\"}} {}\n\
         acme_first_token_ms_count{{served=\"m\"}} {first_tokens}\n",
        first_tokens * 50
    )
}

fn server(collector: &Collector) -> Option<String> {
    let statuses = collector
        .signals
        .endpoints(&Selection::default(), collector.now());
    statuses[0].server.clone()
}

#[track_caller]
fn near(collector: &Collector, signal: Signal, expected: f64) {
    let measured = collector
        .signals
        .signal(&select(""), signal, collector.now())
        .unwrap();
    let value = measured.value;
    assert!(
        (value - expected).abs() < 1e-9,
        "{signal} is {value}, not {expected}"
    );
}

#[test]
fn a_server_of_one_s_own_is_read_as_its_mapping_says() {
    let collector = Collector::new();
    collector.ingest(acme_body(100, 10).as_bytes(), 0.0);
    assert_eq!(server(&collector).as_deref(), Some("unknown"));
    collector.signals.set_mappings(vec![acme()]).unwrap();
    collector.ingest(acme_body(100, 10).as_bytes(), 5.0);
    assert_eq!(server(&collector).as_deref(), Some("acme"));
    near(&collector, Signal::Running, 5.0);
    near(&collector, Signal::Waiting, 6.0);
    near(&collector, Signal::RunningLimit, 16.0);
    near(&collector, Signal::KvCacheUsage, 0.4);
    collector.ingest(acme_body(300, 30).as_bytes(), 15.0);
    near(&collector, Signal::OutputTokens, 20.0);
    near(&collector, Signal::Ttft, 0.05);
    let answer = collector.query("coppice_ttft_seconds_p50").unwrap();
    assert!((answer.value - 0.05).abs() < 1e-9, "{}", answer.value);
    assert_eq!(answer.labels["model"], "m");
    let missing = collector
        .signals
        .signal(&select(""), Signal::Preemptions, collector.now());
    let servers = vec!["acme".to_owned()];
    assert_eq!(missing, Err(Missing::NotExposed { servers }));
    // Without it nobody knows the server any more.
    collector.signals.set_mappings(Vec::new()).unwrap();
    collector.ingest(acme_body(300, 30).as_bytes(), 20.0);
    assert_eq!(server(&collector).as_deref(), Some("unknown"));
}

#[test]
fn a_mapping_comes_before_what_is_built_in_and_the_rest_stays() {
    let collector = Collector::new();
    let mapping = Mapping {
        name: "our-vllm".to_owned(),
        recognised_by: vec!["vllm:num_requests_running".to_owned()],
        model_label: None,
        signals: vec![mapped(
            Signal::Waiting,
            "our_queue",
            Aggregation::Sum,
            Unit::Count,
        )],
        ..acme()
    };
    collector.signals.set_mappings(vec![mapping]).unwrap();
    let text = |waiting: u32| {
        format!("vllm:num_requests_running 2\nvllm:num_requests_waiting 1\nour_queue {waiting}\n")
    };
    collector.ingest(text(9).as_bytes(), 0.0);
    assert_eq!(server(&collector).as_deref(), Some("our-vllm+vllm"));
    near(&collector, Signal::Waiting, 9.0);
    near(&collector, Signal::Running, 2.0);
}

#[test]
fn a_change_of_mappings_leaves_other_servers_their_windows() {
    let collector = Collector::new();
    collector.ingest(&body("vllm-0.33.0-busy-t0.txt"), 0.0);
    collector.signals.set_mappings(vec![acme()]).unwrap();
    collector.ingest(&body("vllm-0.33.0-busy-t1.txt"), 15.0);
    assert!(collector.observe().output_tokens_per_second.is_ok());
}

#[test]
fn a_mapping_that_cannot_work_changes_nothing() {
    let collector = Collector::new();
    collector.signals.set_mappings(vec![acme()]).unwrap();
    let mut wrong = acme();
    wrong.signals[4].unit = Unit::Seconds;
    let refused = collector.signals.set_mappings(vec![wrong]).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "mapping acme: signals[4].unit is \"seconds\": output_tokens needs count"
    );
    collector.ingest(acme_body(0, 0).as_bytes(), 0.0);
    near(&collector, Signal::Running, 5.0);
}

#[test]
fn the_table_of_engines_is_what_the_code_says() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/engines.md");
    let committed = std::fs::read_to_string(file).unwrap_or_default();
    if committed != table() {
        let right = concat!(env!("CARGO_TARGET_TMPDIR"), "/engines.md");
        std::fs::write(right, table()).unwrap();
        panic!("docs/engines.md is not what the code says, which stands in {right}: copy it");
    }
}
