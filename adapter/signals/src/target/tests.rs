//! What a target remembers, body by body.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use proptest::prelude::*;

use super::{Ingested, NotIngested, Target};
use crate::collection::Catalogue;
use crate::engines::{Servers, Signal};
use crate::histogram::WindowHistogram;
use crate::query::Why;
use crate::reading::{Absent, Models, What};
use crate::settings::Limits;

const WINDOW: Duration = Duration::from_secs(60);

struct Scraped {
    target: Target,
    catalogue: Catalogue,
    limits: Limits,
}

impl Scraped {
    fn new() -> Self {
        Self {
            target: Target::new(14),
            catalogue: Catalogue::default(),
            limits: Limits::default(),
        }
    }

    fn take_in(&mut self, second: i64, body: &str) -> Result<Ingested, NotIngested> {
        let Self {
            target,
            catalogue,
            limits,
        } = self;
        let at = Timestamp::from_second(1_000_000 + second).unwrap();
        let servers = Servers::built_in();
        target.ingest(body.as_bytes(), true, at, limits, servers, |recognition| {
            catalogue.collection(recognition)
        })
    }

    fn rate(&self, signal: Signal) -> Result<f64, Absent> {
        self.target
            .rate(What::Signal(signal), Models::ALL, WINDOW)
            .map(|read| read.value)
    }

    fn gauge(&self, signal: Signal) -> Result<f64, Absent> {
        self.target
            .gauge(What::Signal(signal), Models::ALL)
            .map(|read| read.value.sum)
    }

    fn histogram(&self, signal: Signal) -> WindowHistogram {
        let mut merged = WindowHistogram::default();
        self.target
            .add_histogram(What::Signal(signal), Models::ALL, WINDOW, &mut merged)
            .unwrap();
        merged
    }

    fn quantile(&self, signal: Signal, q: f64) -> Option<f64> {
        self.histogram(signal).quantile(q)
    }
}

/// A vLLM body with these lines behind the prefix.
fn vllm(lines: &[&str]) -> String {
    lines.iter().map(|line| format!("vllm:{line}\n")).collect()
}

#[track_caller]
fn near(value: Result<f64, Absent>, expected: f64) {
    let value = value.unwrap();
    assert!((value - expected).abs() < 1e-9, "{value} is not {expected}");
}

#[test]
fn the_first_sample_of_a_counter_is_no_rate() {
    let mut scraped = Scraped::new();
    scraped
        .take_in(0, &vllm(&["generation_tokens_total 500"]))
        .unwrap();
    assert_eq!(
        scraped.rate(Signal::OutputTokens),
        Err(Absent::Because(Why::FirstSample))
    );
    scraped
        .take_in(5, &vllm(&["generation_tokens_total 600"]))
        .unwrap();
    near(scraped.rate(Signal::OutputTokens), 20.0);
}

#[test]
fn a_counter_that_fell_counts_from_zero_series_by_series() {
    let mut scraped = Scraped::new();
    scraped
        .take_in(
            0,
            &vllm(&[
                "generation_tokens_total{engine=\"0\"} 1000",
                "generation_tokens_total{engine=\"1\"} 1000",
            ]),
        )
        .unwrap();
    scraped
        .take_in(
            10,
            &vllm(&[
                "generation_tokens_total{engine=\"0\"} 1100",
                "generation_tokens_total{engine=\"1\"} 30",
                "generation_tokens_total{engine=\"2\"} 7",
            ]),
        )
        .unwrap();
    near(scraped.rate(Signal::OutputTokens), 13.7);
}

#[test]
fn a_moved_start_time_resets_every_counter_even_those_that_grew() {
    let mut scraped = Scraped::new();
    let body = |start: u32, tokens: u32| {
        format!(
            "process_start_time_seconds {start}\n{}",
            vllm(&[&format!("generation_tokens_total {tokens}")])
        )
    };
    scraped.take_in(0, &body(100, 50)).unwrap();
    let found = scraped.take_in(10, &body(200, 80)).unwrap();
    assert!(found.restarted);
    near(scraped.rate(Signal::OutputTokens), 8.0);
}

#[test]
fn a_series_that_is_absent_for_a_while_goes_on_where_it_was() {
    let mut scraped = Scraped::new();
    let with = vllm(&[
        "request_success_total{finished_reason=\"stop\"} 10",
        "request_success_total{finished_reason=\"length\"} 5",
    ]);
    scraped.take_in(0, &with).unwrap();
    scraped
        .take_in(
            5,
            &vllm(&["request_success_total{finished_reason=\"stop\"} 12"]),
        )
        .unwrap();
    let back = vllm(&[
        "request_success_total{finished_reason=\"stop\"} 14",
        "request_success_total{finished_reason=\"length\"} 6",
    ]);
    scraped.take_in(10, &back).unwrap();
    near(scraped.rate(Signal::Finished), 0.5);
}

#[test]
fn rates_look_back_one_window_and_not_over_an_outage() {
    let mut scraped = Scraped::new();
    let body = |tokens: i64| vllm(&[&format!("generation_tokens_total {tokens}")]);
    for step in 0..=20 {
        // 10 a second for the first 50 s, then 100 a second.
        let second = step * 5;
        let tokens = if second <= 50 {
            second * 10
        } else {
            500 + (second - 50) * 100
        };
        scraped.take_in(second, &body(tokens)).unwrap();
    }
    // The window of 60 s up to 100 s holds 10 s of the slow part.
    near(
        scraped.rate(Signal::OutputTokens),
        (10.0 * 10.0 + 50.0 * 100.0) / 60.0,
    );
    scraped.take_in(1000, &body(1_000_000)).unwrap();
    assert!(
        scraped.rate(Signal::OutputTokens).is_ok(),
        "two samples, however far apart, are all there is"
    );
    scraped.take_in(1005, &body(1_000_050)).unwrap();
    near(scraped.rate(Signal::OutputTokens), 10.0);
}

#[test]
fn a_refused_body_leaves_everything_as_it_was() {
    let mut scraped = Scraped::new();
    let good = |tokens: u32| {
        vllm(&[
            "num_requests_running 3",
            &format!("generation_tokens_total {tokens}"),
        ])
    };
    scraped.take_in(0, &good(100)).unwrap();
    let cut = vllm(&[
        "num_requests_running 9",
        "generation_tokens_total 900",
        "prompt_tokens_total{a=\"b",
    ]);
    let cut = cut.trim_end();
    assert_eq!(scraped.take_in(5, cut), Err(NotIngested::Truncated));
    let garbage = vllm(&[
        "num_requests_running 9",
        "generation_tokens_total x",
        "generation_tokens_total y",
        "generation_tokens_total z",
        "generation_tokens_total",
    ]);
    let refused = scraped.take_in(6, &garbage).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "4 malformed lines, the first at line 2, column 30: not a number"
    );
    assert!(matches!(
        scraped.take_in(7, "<html>"),
        Err(NotIngested::Refused(_))
    ));
    near(scraped.gauge(Signal::Running), 3.0);
    scraped.take_in(10, &good(200)).unwrap();
    near(scraped.rate(Signal::OutputTokens), 10.0);
}

#[test]
fn an_absent_gauge_is_missing_and_not_zero() {
    let mut scraped = Scraped::new();
    scraped
        .take_in(0, &vllm(&["num_requests_running 3"]))
        .unwrap();
    assert_eq!(
        scraped.gauge(Signal::Waiting),
        Err(Absent::Because(Why::NotExposed))
    );
    assert_eq!(
        scraped.gauge(Signal::KvCacheUsage),
        Err(Absent::Because(Why::NotExposed))
    );
    assert_eq!(
        Scraped::new().gauge(Signal::Running),
        Err(Absent::Because(Why::NotScraped))
    );
}

#[test]
fn one_impossible_series_spoils_its_signal_for_that_body_only() {
    let mut scraped = Scraped::new();
    let body = |waiting: &str, tokens: &str| {
        vllm(&[
            "num_requests_waiting{engine=\"0\"} 4",
            &format!("num_requests_waiting{{engine=\"1\"}} {waiting}"),
            &format!("generation_tokens_total {tokens}"),
        ])
    };
    scraped.take_in(0, &body("1", "100")).unwrap();
    let found = scraped.take_in(5, &body("NaN", "-3")).unwrap();
    assert_eq!(found.implausible, 2);
    assert_eq!(
        scraped.gauge(Signal::Waiting),
        Err(Absent::Because(Why::Impossible))
    );
    assert_eq!(
        scraped.rate(Signal::OutputTokens),
        Err(Absent::Because(Why::Impossible))
    );
    scraped.take_in(10, &body("2", "150")).unwrap();
    near(scraped.gauge(Signal::Waiting), 6.0);
    near(scraped.rate(Signal::OutputTokens), 5.0);
}

#[test]
fn another_server_in_the_place_of_the_old_one_is_recognised() {
    let mut scraped = Scraped::new();
    scraped
        .take_in(
            0,
            &vllm(&["num_requests_running 3", "generation_tokens_total 100"]),
        )
        .unwrap();
    let sglang = |tokens: u32| {
        format!(
            "sglang:num_running_reqs 5\nsglang:num_queue_reqs 1\nsglang:realtime_tokens_total{{mode=\"decode\"}} {tokens}\n"
        )
    };
    scraped.take_in(5, &sglang(1000)).unwrap();
    assert_eq!(
        scraped.rate(Signal::OutputTokens),
        Err(Absent::Because(Why::FirstSample)),
        "a new window"
    );
    scraped.take_in(10, &sglang(1050)).unwrap();
    near(scraped.rate(Signal::OutputTokens), 10.0);
    assert_eq!(scraped.target.recognition().unwrap().name(), "sglang");
    near(scraped.gauge(Signal::Running), 5.0);
}

#[test]
fn a_worker_that_lacks_its_engine_for_a_body_keeps_its_window() {
    let mut scraped = Scraped::new();
    let worker = "dynamo_component_inflight_requests{dynamo_endpoint=\"generate\"} 4\n";
    let whole = |tokens: u32| {
        format!(
            "{worker}{}",
            vllm(&[
                "num_requests_running 3",
                &format!("generation_tokens_total {tokens}")
            ])
        )
    };
    scraped.take_in(0, &whole(100)).unwrap();
    assert!(matches!(
        scraped.take_in(5, worker),
        Err(NotIngested::Incomplete {
            name: "vllm:num_requests_running"
        })
    ));
    scraped.take_in(10, &whole(200)).unwrap();
    near(scraped.rate(Signal::OutputTokens), 10.0);
    near(scraped.gauge(Signal::InFlight), 4.0);
}

#[test]
fn an_empty_body_is_looked_at_again_until_a_server_shows() {
    let mut scraped = Scraped::new();
    scraped.take_in(0, "# EOF\n").unwrap();
    assert_eq!(
        scraped.gauge(Signal::Running),
        Err(Absent::Because(Why::Unrecognised))
    );
    assert!(
        !scraped.target.glance.foreign,
        "nothing says that it is another kind of server"
    );
    scraped
        .take_in(5, &vllm(&["num_requests_running 3"]))
        .unwrap();
    near(scraped.gauge(Signal::Running), 3.0);
    let mut foreign = Scraped::new();
    foreign.take_in(0, "nginx_up 1\n").unwrap();
    assert!(foreign.target.glance.foreign);
}

fn itl(buckets: &[(&str, u32)], sum: f64, count: u32) -> String {
    let mut lines: Vec<String> = buckets
        .iter()
        .map(|(le, value)| format!("inter_token_latency_seconds_bucket{{le=\"{le}\"}} {value}"))
        .collect();
    lines.push(format!("inter_token_latency_seconds_sum {sum}"));
    lines.push(format!("inter_token_latency_seconds_count {count}"));
    vllm(&lines.iter().map(String::as_str).collect::<Vec<_>>())
}

#[test]
fn changed_bounds_start_the_buckets_over_and_keep_sum_and_count() {
    let mut scraped = Scraped::new();
    scraped
        .take_in(0, &itl(&[("0.1", 10), ("1", 20), ("+Inf", 20)], 5.0, 20))
        .unwrap();
    scraped
        .take_in(5, &itl(&[("0.1", 20), ("1", 30), ("+Inf", 30)], 8.0, 30))
        .unwrap();
    assert_eq!(scraped.quantile(Signal::Itl, 0.5), Some(0.05));
    scraped
        .take_in(15, &itl(&[("0.2", 30), ("2", 40), ("+Inf", 40)], 10.0, 40))
        .unwrap();
    let histogram = scraped.histogram(Signal::Itl);
    assert_eq!((histogram.count(), histogram.sum()), (20.0, 5.0));
    assert_eq!(
        histogram.quantile(0.5),
        None,
        "nothing is known about the new buckets yet"
    );
    scraped
        .take_in(20, &itl(&[("0.2", 40), ("2", 50), ("+Inf", 50)], 11.0, 50))
        .unwrap();
    assert_eq!(scraped.quantile(Signal::Itl, 0.5), Some(0.1));
}

#[test]
fn contradicting_buckets_are_left_out_and_start_over() {
    let mut scraped = Scraped::new();
    scraped
        .take_in(0, &itl(&[("0.1", 10), ("1", 20), ("+Inf", 20)], 5.0, 20))
        .unwrap();
    let found = scraped
        .take_in(5, &itl(&[("0.1", 30), ("1", 25), ("+Inf", 30)], 6.0, 30))
        .unwrap();
    assert_eq!(found.inconsistent, 1);
    let histogram = scraped.histogram(Signal::Itl);
    assert_eq!(
        (histogram.count(), histogram.sum(), histogram.quantile(0.5)),
        (10.0, 1.0, None)
    );
    scraped
        .take_in(10, &itl(&[("0.1", 30), ("1", 35), ("+Inf", 40)], 7.0, 40))
        .unwrap();
    scraped
        .take_in(15, &itl(&[("0.1", 40), ("1", 45), ("+Inf", 50)], 8.0, 50))
        .unwrap();
    assert_eq!(scraped.quantile(Signal::Itl, 0.5), Some(0.05));
}

#[test]
fn without_a_last_bucket_the_count_says_how_many_lie_above() {
    let mut scraped = Scraped::new();
    scraped
        .take_in(0, &itl(&[("0.1", 0), ("1", 0)], 0.0, 0))
        .unwrap();
    scraped
        .take_in(5, &itl(&[("0.1", 5), ("1", 7)], 20.0, 9))
        .unwrap();
    assert_eq!(
        scraped.quantile(Signal::Itl, 0.9),
        Some(1.0),
        "beyond the last bound"
    );
    assert_eq!(scraped.quantile(Signal::Itl, 0.5), Some(0.09));
}

#[test]
fn a_histogram_that_appears_later_counts_from_zero() {
    let mut scraped = Scraped::new();
    scraped
        .take_in(0, &vllm(&["num_requests_running 0"]))
        .unwrap();
    let body = format!(
        "{}{}",
        vllm(&["num_requests_running 1"]),
        itl(&[("0.1", 8), ("1", 10), ("+Inf", 10)], 1.0, 10)
    );
    scraped.take_in(5, &body).unwrap();
    assert_eq!(scraped.quantile(Signal::Itl, 0.4), Some(0.05));
}

#[test]
fn a_raw_name_added_later_counts_from_then_on() {
    let mut scraped = Scraped::new();
    let body = |value: u32| {
        vllm(&[
            "num_requests_running 1",
            &format!("some_total {value}"),
            &format!("generation_tokens_total {value}"),
        ])
    };
    scraped.take_in(0, &body(100)).unwrap();
    scraped.catalogue.add_raw("vllm:some_total");
    scraped.catalogue.add_raw("vllm:generation_tokens_total");
    let raw = |name: &str, scraped: &Scraped| What::Raw(scraped.catalogue.raw(name).unwrap());
    scraped.take_in(5, &body(150)).unwrap();
    let unknown = raw("vllm:some_total", &scraped);
    assert_eq!(
        scraped
            .target
            .rate(unknown, Models::ALL, WINDOW)
            .unwrap_err(),
        Absent::Because(Why::FirstSample)
    );
    near(scraped.rate(Signal::OutputTokens), 10.0);
    scraped.take_in(10, &body(200)).unwrap();
    for name in ["vllm:some_total", "vllm:generation_tokens_total"] {
        let read = scraped
            .target
            .rate(raw(name, &scraped), Models::ALL, WINDOW)
            .unwrap();
        assert!((read.value - 10.0).abs() < 1e-9, "{name}: {read:?}");
        assert!(
            (scraped
                .target
                .gauge(raw(name, &scraped), Models::ALL)
                .unwrap()
                .value
                .sum
                - 200.0)
                .abs()
                < 1e-9
        );
    }
    near(scraped.rate(Signal::OutputTokens), 10.0);
    let id = raw("vllm:some_total", &scraped);
    scraped
        .catalogue
        .retain_raw(|name| name != "vllm:some_total");
    scraped.take_in(15, &body(250)).unwrap();
    assert_eq!(
        scraped.target.gauge(id, Models::ALL).unwrap_err(),
        Absent::NotYet
    );
}

#[test]
fn churning_series_are_forgotten() {
    let mut scraped = Scraped::new();
    for step in 0..400 {
        let line = format!("request_success_total{{finished_reason=\"r{step}\"}} 1");
        scraped
            .take_in(step, &vllm(&["num_requests_running 1", &line]))
            .unwrap();
    }
    assert!(scraped.target.series() < 200, "{}", scraped.target.series());
    near(scraped.rate(Signal::Finished), 1.0);
}

proptest! {
    /// Whatever a counter does, its rate is what a plain sum of increases gives, and never negative.
    #[test]
    fn rates_equal_the_sum_of_increases(
        steps in proptest::collection::vec(proptest::collection::btree_map(0_u8..4, 0_u32..1000, 1..4), 2..12),
    ) {
        let mut scraped = Scraped::new();
        let mut last: BTreeMap<u8, u32> = BTreeMap::new();
        let mut increase = 0_u32;
        for (step, values) in (0_i64..).zip(&steps) {
            let lines: Vec<String> = values.iter().map(|(rank, value)| format!("generation_tokens_total{{engine=\"{rank}\"}} {value}")).collect();
            scraped.take_in(step * 5, &vllm(&lines.iter().map(String::as_str).collect::<Vec<_>>())).unwrap();
            for (rank, value) in values {
                let before = last.insert(*rank, *value);
                increase += match before {
                    None if step == 0 => 0,
                    None => *value,
                    Some(before) if *value < before => *value,
                    Some(before) => value - before,
                };
            }
        }
        let seconds = f64::from(u32::try_from(steps.len() - 1).unwrap()) * 5.0;
        let rate = scraped.rate(Signal::OutputTokens).unwrap();
        prop_assert!((rate - f64::from(increase) / seconds).abs() < 1e-9, "{} {}", rate, increase);
    }

    /// Any bytes after a good body: no panic, and a gauge is either the old one, a new one, or missing.
    #[test]
    fn any_body_leaves_the_target_usable(bytes in proptest::collection::vec("[a-z:_{}=\", 0-9#\n]{0,12}|vllm:num_requests_running|\\{le=\"1\"\\} 5\n", 0..12)) {
        let mut scraped = Scraped::new();
        scraped.take_in(0, &vllm(&["num_requests_running 3"])).unwrap();
        drop(scraped.take_in(5, &bytes.concat()));
        drop(scraped.take_in(10, &bytes.concat()));
        drop((scraped.gauge(Signal::Running), scraped.rate(Signal::OutputTokens)));
        scraped.take_in(15, &vllm(&["num_requests_running 4"])).unwrap();
        near(scraped.gauge(Signal::Running), 4.0);
    }
}

#[test]
fn collections_are_shared() {
    let mut catalogue = Catalogue::default();
    let known = crate::engines::recognise(b"vllm:x 1\n", &Limits::default().reader()).unwrap();
    assert!(Arc::ptr_eq(
        &catalogue.collection(known),
        &catalogue.collection(known)
    ));
}
