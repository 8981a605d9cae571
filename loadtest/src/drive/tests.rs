//! Whole runs against servers that behave and servers that do not.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::prompt::Prompts;
use super::route::{PromptKind, Route, RouteOptions};
use super::run::{Stop, execute};
use super::self_test::server::KnownServer;
use super::self_test::{Truth, compare};
use super::settings::Settings;
use super::summary::{Mode, RunSummary};
use super::target::Target;
use super::*;
use crate::schedule::spec::Scenario;

/// What a scripted server does with the n-th request of all.
type Script = dyn Fn(usize, &mut TcpStream) -> Then + Send + Sync;

/// What it does with the connection afterwards.
#[derive(PartialEq)]
enum Then {
    Keep,
    Close,
}

/// A server that follows a script; its threads end with the connections.
fn scripted(script: impl Fn(usize, &mut TcpStream) -> Then + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let script: Arc<Script> = Arc::new(script);
    let count = Arc::new(AtomicUsize::new(0));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, script, count) = (stream.unwrap(), script.clone(), count.clone());
            std::thread::spawn(move || {
                while read_request(&mut stream).is_some() {
                    if script(count.fetch_add(1, Ordering::SeqCst), &mut stream) == Then::Close {
                        return;
                    }
                }
            });
        }
    });
    url
}

fn read_request(stream: &mut TcpStream) -> Option<()> {
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let count = stream.read(&mut buffer).ok().filter(|count| *count > 0)?;
        bytes.extend_from_slice(&buffer[..count]);
        let text = String::from_utf8_lossy(&bytes);
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length: usize = head
                .lines()
                .find_map(|line| line.strip_prefix("content-length: "))
                .unwrap()
                .parse()
                .unwrap();
            if body.len() >= length {
                return Some(());
            }
        }
    }
}

fn send(stream: &mut TcpStream, parts: &[&str]) {
    for part in parts {
        // The client may have gone, as some scripts want.
        drop(stream.write_all(part.as_bytes()));
    }
}

const STREAM_HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\nx-coppice-engine: engine-0\r\n\r\n";
const END: &str = "0\r\n\r\n";

/// An event as one chunk.
fn event(data: &str) -> String {
    let event = format!("data: {data}\n\n");
    format!("{:x}\r\n{event}\r\n", event.len())
}

fn token() -> String {
    event(r#"{"choices":[{"delta":{"content":"hi"}}]}"#)
}

fn role() -> String {
    event(r#"{"choices":[{"delta":{"role":"assistant","content":""}}]}"#)
}

fn usage(tokens: u32) -> String {
    event(&format!(
        r#"{{"choices":[],"usage":{{"prompt_tokens":20,"completion_tokens":{tokens},"prompt_tokens_details":{{"cached_tokens":5}}}}}}"#
    ))
}

fn done() -> String {
    event("[DONE]") + END
}

/// Settings for a scenario with one stream, in short runs.
async fn settings(url: &str, scenario: &str) -> Settings {
    let scenario: Scenario = toml::from_str(scenario).unwrap();
    let schedule = Arc::new(scenario.schedule().unwrap());
    let target = Arc::new(Target::resolve(url.parse().unwrap(), None).await.unwrap());
    let options = RouteOptions {
        prompt: PromptKind::Text,
        ignore_eos: true,
        ..RouteOptions::default()
    };
    let routes = schedule
        .streams()
        .iter()
        .map(|stream| Route::new(target.clone(), &stream.model, &options, Prompts::new(1)))
        .collect();
    Settings {
        objectives: vec![objective::Objectives::default(); schedule.streams().len()],
        scenario,
        schedule,
        routes,
        mode: Mode::OpenLoop,
        warmup: Duration::ZERO,
        timeout: Duration::from_secs(20),
        drain: Duration::from_secs(20),
        workers: 1,
        max_in_flight: None,
        replica_header: crate::openai::ENGINE_HEADER.to_owned(),
        delayed_acks: false,
        interval: Duration::from_secs(1),
        requests_file: None,
    }
}

const TEN: &str = "[[stream]]\nmodel = \"m\"\nrate = \"100\"\nshape = \"constant\"\nrequests = 10\ninput-tokens = \"20\"\noutput-tokens = \"2\"\n";

async fn driven(settings: Settings) -> RunSummary {
    tokio::task::spawn_blocking(move || execute(&settings, &Stop::default(), |_| {}).unwrap())
        .await
        .unwrap()
}

async fn run_against(
    script: impl Fn(usize, &mut TcpStream) -> Then + Send + Sync + 'static,
) -> RunSummary {
    driven(settings(&scripted(script), TEN).await).await
}

fn only_failure(summary: &RunSummary, kind: &str) -> String {
    let kinds: Vec<_> = summary.total.failures.keys().cloned().collect();
    assert_eq!(kinds, [kind], "{:?}", summary.total.failures);
    assert_eq!(summary.total.failures[kind].count, 10);
    assert_eq!(
        (summary.total.requests.failed, summary.total.requests.good),
        (10, 0)
    );
    assert!(summary.total.ttft.is_none(), "failures have no latency");
    summary.total.failures[kind].example.clone()
}

#[tokio::test]
async fn a_chunk_with_a_role_only_is_not_the_first_token_and_usage_counts_tokens() {
    let summary = run_against(|_, stream| {
        send(stream, &[STREAM_HEAD, &role()]);
        std::thread::sleep(Duration::from_millis(30));
        send(stream, &[&token(), &token(), &usage(2), &done()]);
        Then::Keep
    })
    .await;
    let total = &summary.total;
    assert_eq!(
        (total.requests.complete, total.requests.good),
        (10, 10),
        "{:?}",
        total.failures
    );
    assert!(total.ttft.unwrap().p50 >= 0.030, "{:?}", total.ttft);
    assert_eq!(
        (total.tokens.input, total.tokens.cached, total.tokens.output),
        (200, 50, 20)
    );
    assert_eq!(total.replicas["engine-0"], 10);
    assert_eq!(
        summary
            .validity
            .rules
            .iter()
            .find(|rule| rule.name == "rate")
            .map(|rule| rule.kept),
        Some(true)
    );
}

#[tokio::test]
async fn refused_connections_are_named() {
    let free = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let summary = driven(settings(&format!("http://{free}"), TEN).await).await;
    only_failure(&summary, "ConnectRefused");
}

#[tokio::test]
async fn refusals_and_overload_are_named_by_status_with_the_servers_message() {
    for (status, kind) in [
        ("429 Too Many Requests", "Http429"),
        ("503 Service Unavailable", "Http503"),
    ] {
        let summary = run_against(move |_, stream| {
            let body = r#"{"error":{"message":"queue is full"}}"#;
            send(
                stream,
                &[&format!(
                    "HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}",
                    body.len()
                )],
            );
            Then::Keep
        })
        .await;
        assert_eq!(only_failure(&summary, kind), "queue is full");
    }
}

#[tokio::test]
async fn cut_streams_are_named() {
    let summary = run_against(|_, stream| {
        send(stream, &[STREAM_HEAD, &token()]);
        Then::Close
    })
    .await;
    assert_eq!(only_failure(&summary, "CutStream"), "after 1 chunks");
    // A proper end of the body without the stream's own end is cut as well.
    let summary = run_against(|_, stream| {
        send(stream, &[STREAM_HEAD, &token(), END]);
        Then::Keep
    })
    .await;
    only_failure(&summary, "CutStream");
}

#[tokio::test]
async fn what_is_no_stream_of_events_is_named() {
    let summary = run_against(|_, stream| {
        send(stream, &[STREAM_HEAD, &event("{\"choices\":[{]}"), &done()]);
        Then::Close
    })
    .await;
    assert!(only_failure(&summary, "MalformedEvent").contains("choices"));
    let summary = run_against(|_, stream| {
        send(stream, &["ICY 200 OK\r\n\r\n"]);
        Then::Close
    })
    .await;
    only_failure(&summary, "MalformedHttp");
    let summary = run_against(|_, stream| {
        send(
            stream,
            &["HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"],
        );
        Then::Keep
    })
    .await;
    only_failure(&summary, "NotAStream");
}

#[tokio::test]
async fn errors_inside_a_stream_and_streams_without_tokens_are_named() {
    let summary = run_against(|_, stream| {
        send(
            stream,
            &[
                STREAM_HEAD,
                &token(),
                &event(r#"{"error":{"message":"engine died"}}"#),
                &done(),
            ],
        );
        Then::Keep
    })
    .await;
    assert_eq!(only_failure(&summary, "ErrorEvent"), "engine died");
    let summary = run_against(|_, stream| {
        send(stream, &[STREAM_HEAD, &role(), &done()]);
        Then::Keep
    })
    .await;
    only_failure(&summary, "NoTokens");
}

#[tokio::test]
async fn silence_becomes_a_timeout() {
    let mut silent = settings(
        &scripted(|_, stream| {
            send(stream, &[STREAM_HEAD, &token()]);
            // Until the client gives up.
            drop(stream.read(&mut [0]));
            Then::Close
        }),
        TEN,
    )
    .await;
    silent.timeout = Duration::from_millis(300);
    only_failure(&driven(silent).await, "Timeout");
}

#[tokio::test]
async fn what_is_in_flight_at_the_end_is_unfinished_and_a_miss() {
    let mut endless = settings(
        &scripted(|_, stream| {
            drop(stream.read(&mut [0]));
            Then::Close
        }),
        TEN,
    )
    .await;
    endless.drain = Duration::from_millis(100);
    only_failure(&driven(endless).await, "Unfinished");
}

#[tokio::test]
async fn a_connection_that_was_closed_while_idle_costs_no_request() {
    // Announces keep-alive and closes all the same.
    let summary = run_against(|_, stream| {
        send(
            stream,
            &[STREAM_HEAD, &token(), &token(), &usage(2), &done()],
        );
        Then::Close
    })
    .await;
    assert_eq!(
        summary.total.requests.complete, 10,
        "{:?}",
        summary.total.failures
    );
    assert_eq!(summary.driver.connections, 10);
}

#[tokio::test]
async fn connections_are_used_again() {
    let summary = run_against(|_, stream| {
        send(
            stream,
            &[STREAM_HEAD, &token(), &token(), &usage(2), &done()],
        );
        Then::Keep
    })
    .await;
    assert_eq!(summary.total.requests.complete, 10);
    assert!(
        summary.driver.connections < 10,
        "{} connections",
        summary.driver.connections
    );
}

#[tokio::test]
async fn waiting_for_a_place_counts_and_makes_the_run_invalid() {
    let slow = scripted(|_, stream| {
        std::thread::sleep(Duration::from_millis(50));
        send(
            stream,
            &[STREAM_HEAD, &token(), &token(), &usage(2), &done()],
        );
        Then::Keep
    });
    let mut capped = settings(&slow, TEN).await;
    capped.max_in_flight = Some(1);
    let summary = driven(capped).await;
    assert_eq!(summary.total.requests.complete, 10);
    // Ten requests 10 ms apart, served one after the other in 50 ms each: the last one waits 9 × 40 ms.
    let ttft = summary.total.ttft.unwrap();
    assert!(
        ttft.max >= 0.40 && summary.total.ttft_sent.unwrap().p50 < 0.2,
        "{ttft:?}"
    );
    assert!(!summary.validity.valid);
    let lateness = summary
        .validity
        .rules
        .iter()
        .find(|rule| rule.name == "lateness")
        .unwrap();
    assert!(
        !lateness.kept && lateness.detail.contains("2.0 ms are allowed"),
        "{lateness:?}"
    );
    let text = text::render(&summary);
    assert!(
        text.starts_with("INVALID: the figures below measure the driver"),
        "{text}"
    );
}

#[tokio::test]
async fn objectives_decide_what_is_good() {
    let mut judged = settings(
        &scripted(|number, stream| {
            std::thread::sleep(Duration::from_millis(if number % 2 == 0 { 0 } else { 400 }));
            send(
                stream,
                &[STREAM_HEAD, &token(), &token(), &usage(2), &done()],
            );
            Then::Keep
        }),
        TEN,
    )
    .await;
    judged.objectives[0].ttft = Some("300ms".parse().unwrap());
    let summary = driven(judged).await;
    assert_eq!(
        (summary.total.requests.complete, summary.total.requests.good),
        (10, 5)
    );
    assert_eq!(summary.total.requests.attainment(), Some(0.5));
    assert_eq!(summary.total.series.good.iter().sum::<u64>(), 5);
}

#[tokio::test]
async fn an_interrupted_run_says_what_was_not_sent_and_is_invalid() {
    let url = scripted(|_, stream| {
        send(
            stream,
            &[STREAM_HEAD, &token(), &token(), &usage(2), &done()],
        );
        Then::Keep
    });
    let long = settings(
        &url,
        "[[stream]]\nrate = \"1\"\nshape = \"constant\"\nrequests = 1000\n",
    )
    .await;
    let stop = Stop::default();
    stop.ask();
    let summary = tokio::task::spawn_blocking(move || execute(&long, &stop, |_| {}).unwrap())
        .await
        .unwrap();
    assert_eq!(summary.total.failures["NotSent"].count, 1000);
    assert!(!summary.validity.valid);
    assert!(
        summary
            .validity
            .rules
            .iter()
            .any(|rule| rule.name == "completed" && !rule.kept)
    );
}

#[tokio::test]
async fn a_closed_loop_keeps_its_number_of_users_and_says_so() {
    let in_flight = Arc::new(AtomicUsize::new(0));
    let most = Arc::new(AtomicUsize::new(0));
    let (seen, highest) = (in_flight.clone(), most.clone());
    let url = scripted(move |_, stream| {
        highest.fetch_max(seen.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(5));
        seen.fetch_sub(1, Ordering::SeqCst);
        send(
            stream,
            &[STREAM_HEAD, &token(), &token(), &usage(2), &done()],
        );
        Then::Keep
    });
    let mut closed = settings(&url, "[[stream]]\nrate = \"1000\"\nduration = \"500ms\"\n").await;
    closed.mode = Mode::ClosedLoop {
        users: 3,
        think_seconds: 0.0,
    };
    closed.workers = 2;
    let planned = closed.schedule.requests().len() as u64;
    let summary = driven(closed).await;
    assert!(most.load(Ordering::SeqCst) <= 3);
    let requests = summary.total.requests;
    assert!(
        requests.complete > 10 && requests.complete < planned && requests.failed == 0,
        "{requests:?}"
    );
    assert!(summary.validity.notes[0].contains("closed loop of 3 users"));
}

#[tokio::test]
async fn the_warm_up_is_sent_and_shown_but_not_measured() {
    let url = scripted(|_, stream| {
        send(
            stream,
            &[STREAM_HEAD, &token(), &token(), &usage(2), &done()],
        );
        Then::Keep
    });
    let mut warm = settings(&url, TEN).await;
    warm.warmup = warm.schedule.requests()[5].at;
    let summary = driven(warm).await;
    assert_eq!(summary.total.requests.planned, 5);
    assert_eq!(summary.total.series.sent.iter().sum::<u64>(), 10);
}

#[tokio::test]
async fn each_request_has_its_line_in_both_forms() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["requests.csv", "requests.jsonl"] {
        let url = scripted(|number, stream| {
            if number == 0 {
                send(stream, &["HTTP/1.1 500 Oops\r\ncontent-length: 0\r\n\r\n"]);
            } else {
                send(
                    stream,
                    &[STREAM_HEAD, &token(), &token(), &usage(2), &done()],
                );
            }
            Then::Keep
        });
        let mut written = settings(&url, &TEN.replace("\"m\"", "\"a,b\"")).await;
        let path = folder.path().join(name);
        written.requests_file = Some(path.clone());
        driven(written).await;
        let text = std::fs::read_to_string(path).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        if name.ends_with("csv") {
            assert_eq!(lines.len(), 11);
            let columns = lines[0].split(',').count();
            assert!(
                lines[1..]
                    .iter()
                    .all(|line| line.replace("\"a,b\"", "m").split(',').count() == columns),
                "{text}"
            );
            assert_eq!(
                lines
                    .iter()
                    .filter(|line| line.contains(",Http500,"))
                    .count(),
                1
            );
        } else {
            assert_eq!(lines.len(), 10);
            let rows: Vec<serde_json::Value> = lines
                .iter()
                .map(|line| serde_json::from_str(line).unwrap())
                .collect();
            assert_eq!(
                rows.iter()
                    .filter(|row| row["outcome"] == "Complete"
                        && row["good"] == true
                        && row["output_tokens"] == 2)
                    .count(),
                9
            );
        }
    }
}

#[tokio::test]
async fn several_models_are_measured_apart_and_together() {
    let url = scripted(|_, stream| {
        send(
            stream,
            &[STREAM_HEAD, &token(), &token(), &usage(2), &done()],
        );
        Then::Keep
    });
    let two = TEN.to_owned()
        + &TEN
            .replace("\"m\"", "\"n\"")
            .replace("requests = 10", "requests = 5");
    let summary = driven(settings(&url, &two).await).await;
    let counts: Vec<(&str, u64)> = summary
        .streams
        .iter()
        .map(|stream| (stream.model.as_str(), stream.requests.complete))
        .collect();
    assert_eq!(counts, [("m", 10), ("n", 5)]);
    assert_eq!(
        (
            summary.total.requests.complete,
            summary.total.ttft.unwrap().count
        ),
        (15, 15)
    );
    let read: RunSummary = serde_json::from_str(&serde_json::to_string(&summary).unwrap()).unwrap();
    assert_eq!(
        text::render(&read),
        text::render(&summary),
        "a summary survives being written and read"
    );
}

#[tokio::test]
async fn reported_medians_are_the_known_servers_times() {
    let truth = Truth {
        ttft: Duration::from_millis(40),
        itl: Duration::from_millis(10),
    };
    let server = KnownServer::start(truth).unwrap();
    let known = settings(&server.url(), "[[stream]]\nrate = \"200\"\nduration = \"3s\"\ninput-tokens = \"30\"\noutput-tokens = \"8\"\n").await;
    let summary = driven(known).await;
    assert_eq!(
        summary.total.requests.failed, 0,
        "{:?}",
        summary.total.failures
    );
    assert_eq!(
        summary.total.tokens.output,
        8 * summary.total.requests.complete
    );
    assert_eq!(
        summary.total.tokens.input,
        30 * summary.total.requests.complete
    );
    // The 99th percentiles depend on what else the machine does; `drive --self-test` compares them too.
    for comparison in compare(&summary, truth)
        .iter()
        .filter(|comparison| comparison.name.ends_with("p50"))
    {
        assert!(comparison.passed, "{comparison:?}");
    }
    let itl = summary.total.itl.unwrap();
    assert_eq!(itl.count, 7 * summary.total.requests.complete);
}
