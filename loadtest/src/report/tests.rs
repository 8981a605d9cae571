use std::time::Duration;

use super::timeline::{Event, Role, Timeline};
use super::*;
use crate::drive::Series;
use crate::drive::host::Host;
use crate::drive::objective::Objectives;
use crate::drive::summary::{
    Counts, Distribution, DriverSummary, FORMAT, Mode, Rates, StreamSummary, Tokens,
};
use crate::drive::validity::{Rule, Validity};
use crate::schedule::spec::Scenario;
use crate::schedule::statistics::{Lengths, Statistics};

fn distribution(p50: f64) -> Option<Distribution> {
    Some(Distribution {
        count: 100,
        mean: p50,
        p50,
        p90: p50 * 1.5,
        p95: p50 * 2.0,
        p99: p50 * 3.0,
        p999: p50 * 4.0,
        max: p50 * 5.0,
    })
}

fn stream(model: &str) -> StreamSummary {
    let series = Series {
        interval_seconds: 5.0,
        offered: vec![10, 20, 30],
        offered_input_tokens: vec![100, 200, 300],
        sent: vec![10, 20, 30],
        done: vec![9, 19, 25],
        good: vec![9, 18, 20],
        failed: vec![0, 0, 2],
        in_flight: vec![1, 2, 5],
        output_tokens: vec![90, 190, 250],
        ttft_p50: vec![Some(0.1), None, Some(0.3)],
        ttft_p95: vec![Some(0.2), None, Some(0.4)],
        ttft_p99: vec![Some(0.3), None, Some(0.5)],
        itl_p50: vec![Some(0.01); 3],
        itl_p95: vec![Some(0.02); 3],
        itl_p99: vec![Some(0.03); 3],
    };
    StreamSummary {
        model: model.to_owned(),
        objectives: Some(Objectives {
            ttft: Some("200ms+1ms/token".parse().unwrap()),
            itl: Some("50ms".parse().unwrap()),
        }),
        requests: Counts {
            planned: 60,
            sent: 60,
            complete: 53,
            good: 47,
            met_ttft: 47,
            met_itl: 53,
            failed: 7,
        },
        rates: Rates {
            offered_per_second: 4.0,
            complete_per_second: 3.5,
            goodput_per_second: 3.1,
            output_tokens_per_second: 35.0,
            input_tokens_per_second: 40.0,
        },
        tokens: Tokens {
            planned_input: 5300,
            input: 5300,
            cached: 0,
            planned_output: 530,
            output: 530,
            good_output: 470,
            chunks: 530,
            answers_without_usage: 0,
            answers_with_several_tokens_a_chunk: 0,
        },
        ttft: distribution(0.1),
        ttft_sent: distribution(0.1),
        end_to_end: distribution(1.0),
        tpot: distribution(0.01),
        itl: distribution(0.01),
        lateness: distribution(0.0001),
        failures: [(
            "Http503".to_owned(),
            crate::drive::FailureCount {
                count: 7,
                meaning: "the server failed or is overloaded".to_owned(),
                example: "<no> engine & no queue".to_owned(),
            },
        )]
        .into(),
        replicas: std::collections::BTreeMap::new(),
        coarse: series.clone(),
        series,
    }
}

fn run(model: &str) -> RunSummary {
    let lengths = Lengths {
        mean: 100.0,
        p50: 90,
        p99: 400,
        max: 500,
    };
    RunSummary {
        format: FORMAT.to_owned(),
        version: "0.0.0".to_owned(),
        validity: Validity {
            valid: true,
            rules: vec![Rule {
                name: "lateness".to_owned(),
                kept: true,
                detail: "sent in time".to_owned(),
            }],
            notes: vec!["p99 and above rest on 53 answers only".to_owned()],
        },
        started_at: "2026-11-30T17:00:10Z".parse().unwrap(),
        ended_at: "2026-11-30T17:00:25Z".parse().unwrap(),
        measured_seconds: 15.0,
        warmup_seconds: 0.0,
        mode: Mode::OpenLoop,
        urls: vec!["http://127.0.0.1:8000".to_owned()],
        scenario: Scenario {
            seed: 1,
            streams: Vec::new(),
        },
        schedule: Statistics {
            requests: 60,
            duration_seconds: 15.0,
            mean_rate: 4.0,
            peak_over_mean_1s: Some(2.0),
            peak_over_mean_60s: None,
            dispersion_1s: 1.0,
            input_tokens: lengths,
            output_tokens: lengths,
        },
        schedule_digest: "0123456789abcdef".to_owned(),
        host: Host {
            cpus: 2,
            kernel: "6.1".to_owned(),
            descriptors: 1024,
        },
        driver: DriverSummary {
            workers: 1,
            connections: 5,
            max_in_flight: None,
            loop_lag: None,
            cpus_used: 0.5,
            busiest_worker: None,
            waited_for_cpu: None,
        },
        total: StreamSummary {
            model: "all".to_owned(),
            ..stream(model)
        },
        streams: vec![stream(model)],
    }
}

fn timeline() -> Timeline {
    Timeline {
        start: "2026-11-30T17:00:00Z".parse().unwrap(),
        systems: [(
            "qwen3".to_owned(),
            vec![Role {
                name: "prefill".to_owned(),
                wanted: vec![(0.0, 1.0), (12.0, 3.0)],
                current: vec![(0.0, 1.0)],
                ready: vec![(0.0, 0.0), (4.0, 1.0)],
            }],
        )]
        .into(),
        gpus: [("used".to_owned(), vec![(0.0, 8.0)])].into(),
        gangs: std::collections::BTreeMap::new(),
        events: vec![Event {
            t: 14.0,
            title: "node killed".to_owned(),
            detail: "node-07 <rack 1>".to_owned(),
        }],
    }
}

fn report() -> Report {
    Report {
        title: "Demo & more".to_owned(),
        runs: vec![run("qwen3"), run("llama")],
        timeline: Some(timeline()),
        checks: vec![Check {
            name: "the budget was never exceeded".to_owned(),
            passed: true,
            detail: "at most 56 of 64 GPUs".to_owned(),
        }],
    }
}

#[test]
fn a_page_holds_everything_and_fetches_nothing() {
    let page = html::render(&report());
    for part in [
        "Demo &amp; more",
        "Passed: all 1 checks",
        "qwen3",
        "llama",
        "Role prefill",
        "node killed",
        "node-07 &lt;rack 1&gt;",
        "&lt;no&gt; engine &amp; no queue",
    ] {
        assert!(page.contains(part), "{part} is missing");
    }
    for forbidden in ["<script", "src=", "href=", "@import", "url("] {
        assert!(!page.contains(forbidden), "{forbidden} is in the page");
    }
    assert!(page.contains("prefers-color-scheme: dark") && page.contains("@media print"));
}

#[test]
fn every_tag_that_opens_is_closed() {
    let page = html::render(&report());
    let body = &page[page.find("<body").unwrap()..page.find("</html>").unwrap()];
    let mut open: Vec<&str> = Vec::new();
    for tag in body.split('<').skip(1) {
        let name = tag
            .split([' ', '>', '/'])
            .find(|part| !part.is_empty())
            .unwrap();
        if let Some(closed) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), closed.split('>').next(), "at {tag:.60}");
        } else if !tag.split('>').next().unwrap().ends_with('/') {
            open.push(name);
        }
    }
    assert!(open.is_empty(), "still open: {open:?}");
}

#[test]
fn the_verdict_is_the_worst_of_validity_and_checks() {
    let mut failed = report();
    failed.checks[0].passed = false;
    assert!(html::render(&failed).contains("Failed: 1 of 1 checks did not hold"));
    assert!(text::render(&failed).contains("FAILED"));
    assert!(!failed.passed());
    let mut invalid = report();
    invalid.runs[0].validity.valid = false;
    invalid.runs[0].validity.rules[0].kept = false;
    let page = html::render(&invalid);
    assert!(page.contains("Not valid:") && page.contains("<b>lateness</b>: sent in time."));
    assert!(!invalid.passed());
}

#[test]
fn runs_and_fleet_share_one_time_axis() {
    let layout = layout::Layout::of(&report());
    // The fleet's time line starts 10 s before the load and has its last event at 14 s; the runs end at 25 s.
    assert!((layout.seconds - 25.0).abs() < 1e-9);
    assert!((layout.events[0] - 14.0).abs() < 1e-9);
    let load = &layout.sections[0].charts[0];
    assert!(
        (load.lines[0].points[0].0 - 12.5).abs() < 1e-9,
        "the middle of the first interval"
    );
    let offered = load
        .lines
        .iter()
        .find(|line| line.name == "offered")
        .unwrap();
    assert_eq!(offered.points[0].1, Some(2.0));
    let titles: Vec<&str> = layout
        .sections
        .iter()
        .map(|section| section.title.as_str())
        .collect();
    assert_eq!(titles, ["qwen3", "llama", "Fleet"]);
    assert!(
        layout.sections[0]
            .charts
            .iter()
            .any(|chart| chart.title == "Role prefill, units")
    );
}

#[test]
fn limits_hold_for_the_mean_prompt() {
    let layout = layout::Layout::of(&report());
    let ttft = layout.sections[0]
        .charts
        .iter()
        .find(|chart| chart.title.starts_with("Time to first token"))
        .unwrap();
    assert_eq!(
        ttft.limits[0].0,
        "limit 300 ms (for the mean prompt, 100 tokens)"
    );
    assert!((ttft.limits[0].1 - Duration::from_millis(300).as_secs_f64()).abs() < 1e-9);
}

#[test]
fn unknown_values_leave_a_gap() {
    let layout = layout::Layout::of(&report());
    let axis = chart::TimeAxis {
        seconds: layout.seconds,
        events: &layout.events,
    };
    let ttft = layout.sections[0]
        .charts
        .iter()
        .find(|chart| chart.title.starts_with("Time to first token"))
        .unwrap();
    let svg = ttft.svg(&axis);
    assert_eq!(
        svg.matches("<circle class=\"line").count(),
        6,
        "two lone values in each of three lines: {svg}"
    );
}

#[test]
fn text_names_the_fleet_and_its_events() {
    let text = text::render(&report());
    assert!(
        text.contains("qwen3/prefill") && text.contains("14 s  node killed: node-07"),
        "{text}"
    );
}
