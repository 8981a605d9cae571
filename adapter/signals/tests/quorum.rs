//! From many endpoints to one value, or to none: the rules for dead, new, stale and silent endpoints.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod support;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use coppice_signals::{Missing, PodFacts, Query, Rule, Settings, Why};
use support::{Collector, pod, select};

fn collector(pods: &[&str]) -> Collector {
    let collector = Collector::with_settings(Settings::default());
    for name in pods {
        collector.apply(pod(name));
    }
    collector
}

fn vllm(waiting: u32, tokens: u32) -> String {
    format!(
        "vllm:num_requests_running 1\nvllm:num_requests_waiting {waiting}\nvllm:generation_tokens_total {tokens}\nvllm:kv_cache_usage_perc 0.{waiting}\n"
    )
}

fn near(value: f64, expected: f64) {
    assert!((value - expected).abs() < 1e-9, "{value} is not {expected}");
}

#[test]
fn a_sum_over_all_is_the_sum() {
    let collector = collector(&["a", "b"]);
    collector.ingest_for("a", &vllm(3, 0), 0.0).unwrap();
    collector.ingest_for("b", &vllm(4, 0), 2.0).unwrap();
    let answer = collector.query("coppice_requests_waiting").unwrap();
    near(answer.value, 7.0);
    assert_eq!(
        (answer.rule, answer.contributing, answer.live),
        (Rule::Sum, 2, 2)
    );
    assert_eq!(
        answer.timestamp,
        collector.at(0.0),
        "the oldest contributing sample"
    );
    assert_eq!(answer.window, None);
    assert_eq!(answer.warnings, Vec::<String>::new());
    near(
        collector.query("coppice_kv_cache_usage").unwrap().value,
        0.35,
    );
    near(
        collector.query("coppice_kv_cache_usage_max").unwrap().value,
        0.4,
    );
}

#[test]
fn no_endpoint_is_missing_and_not_zero() {
    let collector = collector(&[]);
    let missing = collector.query("coppice_requests_waiting").unwrap_err();
    assert_eq!(
        missing,
        Missing::NoEndpoints {
            selection: "namespace serving".to_owned()
        }
    );
    assert!(collector.observe().waiting.is_err());
}

#[test]
fn a_dead_pod_leaves_at_once() {
    let collector = collector(&["a", "b"]);
    collector.ingest_for("a", &vllm(3, 0), 0.0).unwrap();
    collector.ingest_for("b", &vllm(4, 0), 0.0).unwrap();
    collector.apply(PodFacts {
        ending: true,
        ..pod("b")
    });
    near(
        collector.query("coppice_requests_waiting").unwrap().value,
        3.0,
    );
    collector
        .signals
        .delete_pod(collector.watch, "serving", "a");
    assert!(matches!(
        collector.query("coppice_requests_waiting"),
        Err(Missing::NoEndpoints { .. })
    ));
}

#[test]
fn a_pod_that_is_not_ready_does_not_count_and_its_window_is_there_when_it_is() {
    let collector = collector(&["a"]);
    collector.apply(PodFacts {
        ready: false,
        ..pod("b")
    });
    for (seconds, tokens) in [(0.0, 0), (5.0, 100)] {
        collector
            .ingest_for("a", &vllm(3, tokens), seconds)
            .unwrap();
    }
    assert_eq!(
        collector
            .query("coppice_output_tokens_per_second")
            .unwrap()
            .live,
        1
    );
    assert_eq!(collector.observe().endpoints.total, 2);
    collector.apply(pod("b"));
    let missing = collector
        .query("coppice_output_tokens_per_second")
        .unwrap_err();
    assert_eq!(
        missing.to_string(),
        "1 of 2 endpoints have a value, 2 are needed: serving/b not scraped yet",
        "a new pod without a sample counts against the quorum"
    );
}

#[test]
fn above_the_quorum_a_sum_is_scaled_up_and_says_so() {
    let collector = collector(&["a", "b", "c", "d", "e"]);
    for name in ["a", "b", "c", "d"] {
        collector.ingest_for(name, &vllm(8, 0), 0.0).unwrap();
    }
    let answer = collector.query("coppice_requests_waiting").unwrap();
    near(answer.value, 40.0);
    assert_eq!(
        (answer.rule, answer.contributing, answer.live),
        (Rule::SumScaledUp, 4, 5)
    );
    assert_eq!(
        answer.warnings,
        [
            "scaled up by 1.25: 1 of 5 endpoints have no value",
            "serving/e: not scraped yet"
        ]
    );
    let observed = collector.observe().waiting.unwrap();
    assert!(observed.scaled_up && observed.endpoints == 4);
    // A mean speaks for those that did not answer, and needs no scaling.
    near(
        collector.query("coppice_kv_cache_usage").unwrap().value,
        0.8,
    );
}

#[test]
fn below_the_quorum_there_is_no_value() {
    let collector = collector(&["a", "b", "c", "d", "e"]);
    for name in ["a", "b", "c"] {
        collector.ingest_for(name, &vllm(8, 0), 0.0).unwrap();
    }
    for metric in [
        "coppice_requests_waiting",
        "coppice_kv_cache_usage",
        "coppice_kv_cache_usage_max",
    ] {
        match collector.query(metric).unwrap_err() {
            Missing::QuorumNotMet {
                known: 3,
                live: 5,
                needed: 4,
                problems,
            } => {
                assert_eq!(
                    (problems[0].endpoints, problems[0].example.as_str()),
                    (2, "serving/d")
                );
            }
            other => panic!("{metric}: {other}"),
        }
    }
}

#[test]
fn a_stale_sample_does_not_count() {
    let collector = collector(&["a"]);
    collector.ingest_for("a", &vllm(8, 0), 0.0).unwrap();
    collector.pass_to(30.0);
    assert!(collector.query("coppice_requests_waiting").is_ok());
    collector.pass_to(31.0);
    match collector.query("coppice_requests_waiting").unwrap_err() {
        Missing::QuorumNotMet { problems, .. } => assert_eq!(problems[0].why, Why::Stale(40)),
        other => panic!("{other}"),
    }
    let observed = collector.observe();
    assert_eq!(
        (
            observed.endpoints.live,
            observed.endpoints.stale,
            observed.endpoints.fresh
        ),
        (1, 1, 0)
    );
}

#[test]
fn a_server_that_lacks_a_signal_spoils_a_sum_but_not_a_mean() {
    let collector = collector(&["a", "b"]);
    collector.ingest_for("a", &vllm(5, 0), 0.0).unwrap();
    collector
        .ingest_for(
            "b",
            "llamacpp:requests_processing 1\nllamacpp:requests_deferred 2\n",
            0.0,
        )
        .unwrap();
    near(
        collector.query("coppice_requests_waiting").unwrap().value,
        7.0,
    );
    let answer = collector.query("coppice_kv_cache_usage").unwrap();
    near(answer.value, 0.5);
    assert_eq!(
        answer.warnings,
        ["1 endpoints do not expose it and are left out"]
    );
    for second in [0.0, 5.0] {
        collector.ingest_for("a", &vllm(5, 0), second).unwrap();
    }
    let missing = collector
        .query("coppice_preemptions_per_second")
        .unwrap_err();
    assert!(matches!(missing, Missing::NotExposed { .. }), "{missing}");
    assert_eq!(missing.to_string(), "not exposed by llama.cpp, vllm");
}

#[test]
fn a_series_that_comes_with_its_first_event_is_zero_where_others_have_it() {
    let collector = collector(&["a", "b"]);
    let idle = "sglang:num_running_reqs 0\nsglang:num_queue_reqs 0\n";
    let busy =
        |tokens: u32| format!("{idle}sglang:realtime_tokens_total{{mode=\"decode\"}} {tokens}\n");
    for (second, tokens) in [(0.0, 0), (10.0, 500)] {
        collector.ingest_for("a", idle, second).unwrap();
        collector.ingest_for("b", &busy(tokens), second).unwrap();
    }
    let answer = collector.query("coppice_output_tokens_per_second").unwrap();
    near(answer.value, 50.0);
    assert_eq!(answer.rule, Rule::Sum, "nothing to make up for");
    let alone = collector
        .query_with("coppice_output_tokens_per_second", "name=a")
        .unwrap_err();
    assert!(matches!(alone, Missing::NotExposed { .. }), "{alone}");
}

const FRONTEND: &str = "dynamo_frontend_inflight_requests{model=\"m\"} 9\ndynamo_frontend_queued_requests{model=\"m\"} 4\n\
    dynamo_frontend_requests_started_total{model=\"m\"} ";

#[test]
fn a_gateway_and_its_engines_are_never_added() {
    let collector = collector(&["gateway", "engine"]);
    for (second, started) in [(0.0, 100), (10.0, 150)] {
        collector
            .ingest_for("gateway", &format!("{FRONTEND}{started}\n"), second)
            .unwrap();
        collector.ingest_for("engine", &vllm(3, 0), second).unwrap();
    }
    let waiting = collector.query("coppice_requests_waiting").unwrap();
    near(waiting.value, 3.0);
    assert_eq!(waiting.live, 1, "the gateway counts what its engine counts");
    let offered = collector
        .query("coppice_offered_requests_per_second")
        .unwrap();
    near(offered.value, 5.0);
    assert_eq!(offered.live, 1);
    assert_eq!(
        offered.labels.get("role").map(String::as_str),
        Some("frontend")
    );
    near(
        collector
            .query_with("coppice_requests_waiting", "name=gateway")
            .unwrap()
            .value,
        4.0,
    );
    let engines = collector
        .query_with("coppice_offered_requests_per_second", "name=engine")
        .unwrap_err();
    assert!(matches!(engines, Missing::NoEndpoints { .. }), "{engines}");
}

#[test]
fn other_kinds_of_pods_do_not_count() {
    let collector = collector(&["engine", "sidecar"]);
    collector.ingest_for("engine", &vllm(3, 0), 0.0).unwrap();
    collector
        .ingest_for("sidecar", "nginx_up 1\n", 0.0)
        .unwrap();
    assert_eq!(collector.query("coppice_requests_waiting").unwrap().live, 1);
    let alone = collector
        .query_with("coppice_requests_waiting", "name=sidecar")
        .unwrap_err();
    assert_eq!(alone.to_string(), "not exposed by unknown");
}

#[test]
fn arrivals_are_estimated_from_what_finished_and_what_piled_up() {
    let collector = collector(&["a"]);
    let body = |running: u32, waiting: u32, finished: u32| {
        format!(
            "vllm:num_requests_running {running}\nvllm:num_requests_waiting {waiting}\nvllm:request_success_total {finished}\n"
        )
    };
    collector.ingest_for("a", &body(4, 0, 100), 0.0).unwrap();
    collector.ingest_for("a", &body(8, 16, 150), 10.0).unwrap();
    near(
        collector
            .observe()
            .estimated_requests_per_second
            .unwrap()
            .value,
        5.0 + 0.4 + 1.6,
    );
}

#[test]
fn each_pod_is_answered_by_itself() {
    let collector = collector(&["a", "b", "c"]);
    collector.ingest_for("a", &vllm(3, 0), 0.0).unwrap();
    collector.ingest_for("b", &vllm(4, 0), 0.0).unwrap();
    let query = Query::parse("coppice_requests_waiting", Some("serving"), "").unwrap();
    let answers = collector
        .signals
        .query_each(&query, collector.now())
        .unwrap();
    let values: Vec<_> = answers
        .iter()
        .map(|answer| {
            (
                answer.pod.as_str(),
                answer.value.as_ref().ok().map(|measured| measured.value),
            )
        })
        .collect();
    assert_eq!(values, [("a", Some(3.0)), ("b", Some(4.0)), ("c", None)]);
}

#[test]
fn namespaces_are_apart() {
    let collector = collector(&["a"]);
    collector.apply(PodFacts {
        namespace: "other".to_owned(),
        ..pod("a")
    });
    let all = coppice_signals::Selection::default();
    collector
        .signals
        .ingest(&all, vllm(5, 0).as_bytes(), collector.now())
        .unwrap();
    near(
        collector.query("coppice_requests_waiting").unwrap().value,
        5.0,
    );
    let everywhere = Query::parse("coppice_requests_waiting", None, "").unwrap();
    let answer = collector
        .signals
        .query(&everywhere, collector.now())
        .unwrap();
    near(answer.value, 10.0);
    assert_eq!(answer.labels.get("namespace"), None);
}

#[test]
fn a_raw_series_is_collected_from_the_first_question_and_forgotten_when_nobody_asks() {
    let mut settings = Settings::default();
    settings.limits.raw_names = 2;
    let collector = Collector::with_settings(settings);
    collector.apply(pod("a"));
    let body = "vllm:num_requests_running 1\nMy_Queue{x=\"1\"} 2\nMy_Queue{x=\"2\"} 3\n";
    assert!(matches!(
        collector.query("my_queue"),
        Err(Missing::JustAdded { .. })
    ));
    assert!(matches!(
        collector.query("other"),
        Err(Missing::JustAdded { .. })
    ));
    let refused = collector.query("third").unwrap_err();
    assert_eq!(
        refused,
        Missing::TooManySeries {
            name: "third".to_owned(),
            limit: 2
        }
    );
    collector.ingest_for("a", body, 0.0).unwrap();
    near(collector.query("My_Queue").unwrap().value, 5.0);
    assert_eq!(
        collector.query("other").unwrap_err().to_string(),
        "not exposed by vllm"
    );
}

#[test]
fn a_shorter_window_is_honoured() {
    let collector = collector(&["a"]);
    for (second, tokens) in [(0.0, 0), (5.0, 10), (10.0, 20), (15.0, 120)] {
        collector.ingest_for("a", &vllm(0, tokens), second).unwrap();
    }
    let mut query = Query::parse("coppice_output_tokens_per_second", Some("serving"), "").unwrap();
    let rate = |query: &Query| collector.signals.query(query, collector.now()).unwrap();
    near(rate(&query).value, 8.0);
    query.window = Some(Duration::from_secs(5));
    near(rate(&query).value, 20.0);
    assert_eq!(rate(&query).window, Some(Duration::from_secs(5)));
    query.window = Some(Duration::from_secs(5000));
    near(rate(&query).value, 8.0);
}

#[test]
fn nothing_happened_is_missing_for_ratios_and_quantiles() {
    let collector = collector(&["a"]);
    let body = "vllm:num_requests_running 0\nvllm:prefix_cache_hits_total 5\nvllm:prefix_cache_queries_total 9\n";
    collector.ingest_for("a", body, 0.0).unwrap();
    collector.ingest_for("a", body, 5.0).unwrap();
    let missing = collector
        .query("coppice_prefix_cache_hit_ratio")
        .unwrap_err();
    assert_eq!(
        missing,
        Missing::NoObservations {
            window: Duration::from_secs(5)
        }
    );
}

#[test]
fn labels_of_pods_and_of_servers_select() {
    let collector = collector(&[]);
    for (name, model) in [("a", "org/One"), ("b", "org/Two")] {
        let labels = BTreeMap::from([
            ("name".to_owned(), name.to_owned()),
            ("grove.io/podclique".to_owned(), "decode".to_owned()),
        ]);
        collector.apply(PodFacts {
            labels: Arc::new(labels),
            ..pod(name)
        });
        let body = format!("vllm:num_requests_waiting{{model_name=\"{model}\"}} 6\n");
        collector.ingest_for(name, &body, 0.0).unwrap();
    }
    near(
        collector
            .query_with("coppice_requests_waiting", "grove.io/podclique=decode")
            .unwrap()
            .value,
        12.0,
    );
    near(
        collector
            .query_with("coppice_requests_waiting", "model_id=org-two")
            .unwrap()
            .value,
        6.0,
    );
    let observed = collector
        .signals
        .observe(&select("model_id=org-two"), collector.now());
    assert_eq!(observed.models, ["org/Two"]);
    assert_eq!(observed.endpoints.live, 1);
}
