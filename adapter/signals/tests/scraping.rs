//! Real sockets, and everything that can go wrong on them.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod support;

use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use coppice_signals::{Limits, Metrics, PodFacts, Query, Selection, Settings, Signals};
use flate2::Compression;
use flate2::write::GzEncoder;
use prometheus_client::registry::Registry;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

const BODY: &str =
    "vllm:num_requests_running 2\nvllm:num_requests_waiting 1\nvllm:generation_tokens_total 10\n";

/// A server that answers each request on each connection with what `respond` writes; connections it was asked on.
async fn server<F, R>(respond: F) -> (SocketAddr, Arc<AtomicUsize>)
where
    F: Fn(TcpStream, usize) -> R + Send + Sync + 'static,
    R: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&connections);
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let number = counted.fetch_add(1, Ordering::SeqCst);
            tokio::spawn(respond(stream, number));
        }
    });
    (address, connections)
}

/// Reads one request's head; false at the end of the connection.
async fn request(stream: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let byte = stream.read_u8().await.ok()?;
        head.push(byte);
    }
    String::from_utf8(head).ok()
}

fn ok(headers: &str, body: &[u8]) -> Vec<u8> {
    let mut response = format!(
        "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n{headers}\r\n",
        body.len()
    )
    .into_bytes();
    response.extend_from_slice(body);
    response
}

/// A server that answers every request with the same bytes, and then closes if `close` says so.
async fn always(response: Vec<u8>, close: bool) -> (SocketAddr, Arc<AtomicUsize>) {
    let response = Arc::new(response);
    server(move |mut stream, _| {
        let response = Arc::clone(&response);
        async move {
            while request(&mut stream).await.is_some() {
                if stream.write_all(&response).await.is_err() || close {
                    return;
                }
            }
        }
    })
    .await
}

struct Scraping {
    signals: Signals,
    registry: Registry,
    stop: CancellationToken,
    run: tokio::task::JoinHandle<()>,
}

fn settings() -> Settings {
    Settings {
        interval: Duration::from_millis(100),
        deadline: Duration::from_millis(400),
        window: Duration::from_secs(2),
        stale_after: Some(Duration::from_secs(5)),
        limits: Limits {
            body_bytes: 1 << 20,
            ..Limits::default()
        },
        ..Settings::default()
    }
}

fn pod_at(address: SocketAddr) -> PodFacts {
    PodFacts {
        address: Some(address.ip()),
        ports: vec![("http".to_owned(), address.port())],
        ..support::pod("pod-0")
    }
}

impl Scraping {
    fn start(settings: Settings, address: SocketAddr) -> Self {
        let mut registry = Registry::default();
        let metrics = Metrics::register(registry.sub_registry_with_prefix("adapter"));
        let signals = Signals::new(settings, metrics).unwrap();
        let stop = CancellationToken::new();
        let run = tokio::spawn(signals.clone().run(stop.clone()));
        let watch = signals.begin_watch();
        signals.replace_pods(watch, vec![pod_at(address)]);
        Self {
            signals,
            registry,
            stop,
            run,
        }
    }

    fn failure(&self) -> Option<String> {
        self.signals
            .endpoints(&Selection::default(), self.signals.now())[0]
            .failure
            .clone()
    }

    fn running(&self) -> Option<f64> {
        let query = Query::parse("coppice_requests_running", None, "").unwrap();
        self.signals
            .query(&query, self.signals.now())
            .ok()
            .map(|answer| answer.value)
    }

    fn exposed(&self) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).unwrap();
        text
    }

    async fn stop(self) {
        self.stop.cancel();
        timeout(Duration::from_secs(5), self.run)
            .await
            .expect("the collector stops")
            .unwrap();
    }
}

/// Waits until `predicate` holds.
async fn until(what: &str, predicate: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !predicate() {
        assert!(Instant::now() < deadline, "{what}");
        sleep(Duration::from_millis(5)).await;
    }
}

async fn fails_with(response: Vec<u8>, expected: &str) {
    let (address, _) = always(response, false).await;
    let scraping = Scraping::start(settings(), address);
    until(expected, || scraping.failure().is_some()).await;
    assert_eq!(scraping.failure().unwrap(), expected);
    assert_eq!(scraping.running(), None);
    scraping.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_is_scraped_again_and_again_over_one_connection() {
    let (address, connections) = always(
        ok(
            "Content-Type: text/plain; version=0.0.4\r\n",
            BODY.as_bytes(),
        ),
        false,
    )
    .await;
    let scraping = Scraping::start(settings(), address);
    until("several scrapes", || {
        scraping
            .exposed()
            .contains("adapter_scrapes_total{outcome=\"ok\"} 5")
    })
    .await;
    assert_eq!(connections.load(Ordering::SeqCst), 1);
    assert_eq!(scraping.running(), Some(2.0));
    let exposed = scraping.exposed();
    assert!(
        exposed.contains("adapter_scrape_duration_seconds_count"),
        "{exposed}"
    );
    until("house is kept", || {
        scraping
            .exposed()
            .contains("adapter_endpoints{engine=\"vllm\",state=\"fresh\"} 1")
    })
    .await;
    assert!(scraping.exposed().contains("adapter_stale_series 0"));
    scraping.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_request_asks_for_the_old_text_format() {
    let (sender, mut heads) = tokio::sync::mpsc::unbounded_channel();
    let (address, _) = server(move |mut stream, _| {
        let sender = sender.clone();
        async move {
            if let Some(head) = request(&mut stream).await {
                sender.send(head).unwrap();
                stream.write_all(&ok("", BODY.as_bytes())).await.unwrap();
            }
        }
    })
    .await;
    let scraping = Scraping::start(settings(), address);
    let head = timeout(Duration::from_secs(10), heads.recv())
        .await
        .unwrap()
        .unwrap()
        .to_ascii_lowercase();
    assert!(head.starts_with("get /metrics http/1.1\r\n"), "{head}");
    assert!(
        head.contains("accept: text/plain;version=0.0.4\r\n")
            && head.contains("accept-encoding: identity\r\n"),
        "{head}"
    );
    assert!(head.contains(&format!("host: {address}\r\n")), "{head}");
    scraping.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_drops_idle_connections_is_asked_again_on_a_new_one() {
    let (address, connections) = always(ok("", BODY.as_bytes()), true).await;
    let scraping = Scraping::start(settings(), address);
    until("several scrapes", || {
        scraping
            .exposed()
            .contains("adapter_scrapes_total{outcome=\"ok\"} 4")
    })
    .await;
    assert!(connections.load(Ordering::SeqCst) >= 4);
    assert_eq!(scraping.failure(), None);
    scraping.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn chunked_and_gzip_bodies_are_read() {
    let chunked = format!(
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{BODY}\r\n0\r\n\r\n",
        BODY.len()
    );
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(BODY.as_bytes()).unwrap();
    let gzip = encoder.finish().unwrap();
    let responses = [
        chunked.into_bytes(),
        ok("Content-Encoding: gzip\r\n", &gzip),
        ok("", &gzip),
    ];
    for response in responses {
        let (address, _) = always(response, false).await;
        let scraping = Scraping::start(settings(), address);
        until("a value", || scraping.running() == Some(2.0)).await;
        scraping.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_body_is_given_up_at_the_deadline_of_the_whole_scrape() {
    let (address, _) = server(|mut stream, _| async move {
        if request(&mut stream).await.is_none() {
            return;
        }
        let head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        drop(stream.write_all(head).await);
        // Each read succeeds quickly; the body never ends.
        while stream.write_all(b"2\r\n#\n\r\n").await.is_ok() {
            sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    let scraping = Scraping::start(settings(), address);
    until("a failure", || scraping.failure().is_some()).await;
    assert_eq!(scraping.failure().unwrap(), "no answer within 400ms");
    assert!(scraping.exposed().contains("outcome=\"deadline\""));
    scraping.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_accepts_and_says_nothing_is_given_up() {
    let (address, _) = server(|stream, _| async move {
        sleep(Duration::from_secs(60)).await;
        drop(stream);
    })
    .await;
    let scraping = Scraping::start(settings(), address);
    until("a failure", || scraping.failure().is_some()).await;
    assert_eq!(scraping.failure().unwrap(), "no answer within 400ms");
    scraping.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endless_body_is_cut_off_at_the_limit() {
    let sent = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&sent);
    let (address, _) = server(move |mut stream, _| {
        let sent = Arc::clone(&counted);
        async move {
            if request(&mut stream).await.is_none() {
                return;
            }
            drop(stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await);
            let line = "# nothing but comments\n".repeat(1000);
            while stream.write_all(line.as_bytes()).await.is_ok() {
                sent.fetch_add(line.len(), Ordering::SeqCst);
            }
        }
    })
    .await;
    let scraping = Scraping::start(
        Settings {
            deadline: Duration::from_secs(10),
            ..settings()
        },
        address,
    );
    until("a failure", || scraping.failure().is_some()).await;
    assert_eq!(
        scraping.failure().unwrap(),
        "the body exceeds 1048576 bytes (limits.body_bytes)"
    );
    scraping.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_announced_too_large_is_not_read() {
    let response = b"HTTP/1.1 200 OK\r\nContent-Length: 999999999\r\n\r\n".to_vec();
    fails_with(
        response,
        "the body exceeds 1048576 bytes (limits.body_bytes)",
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gzip_bomb_is_cut_off_while_it_inflates() {
    let bomb = std::fs::read(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../exposition/testdata/adversarial/gzip-bomb.bin"
    ))
    .unwrap();
    fails_with(
        ok("Content-Encoding: gzip\r\n", &bomb),
        "the body exceeds 1048576 bytes (limits.body_bytes)",
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn gzip_cut_short_is_refused() {
    let cut = std::fs::read(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../exposition/testdata/adversarial/gzip-truncated.bin"
    ))
    .unwrap();
    fails_with(
        ok("Content-Encoding: gzip\r\n", &cut),
        "the gzip data is broken",
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn statuses_say_what_to_do() {
    let status = |line: &str| {
        format!("HTTP/1.1 {line}\r\nContent-Length: 0\r\nLocation: http://127.0.0.1:1/\r\n\r\n")
            .into_bytes()
    };
    fails_with(status("500 Internal Server Error"), "status 500").await;
    fails_with(
        status("404 Not Found"),
        "status 404, no such path (SGLang needs --enable-metrics)",
    )
    .await;
    fails_with(
        status("501 Not Implemented"),
        "status 501, not implemented (llama.cpp needs --metrics)",
    )
    .await;
    fails_with(
        status("302 Found"),
        "status 302, redirects are not followed",
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn other_content_is_refused() {
    fails_with(
        ok("Content-Type: text/html\r\n", b"<html>"),
        "content type text/html",
    )
    .await;
    fails_with(
        ok("Content-Type: application/json\r\n", b"{}"),
        "content type application/json, no exposition (trtllm-serve: use the path /prometheus/metrics, which needs return_perf_metrics)",
    )
    .await;
    fails_with(ok("Content-Encoding: br\r\n", b"x"), "content encoding br").await;
    fails_with(
        ok("", b"<html></html>"),
        "the body is HTML, not an exposition",
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_shorter_than_announced_is_refused() {
    let (address, _) = always(
        format!("HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{BODY}").into_bytes(),
        true,
    )
    .await;
    let scraping = Scraping::start(settings(), address);
    until("a failure", || scraping.failure().is_some()).await;
    assert_eq!(scraping.failure().unwrap(), "the connection broke");
    scraping.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_of_unknown_length_must_end_with_a_line() {
    let (address, _) = always(
        format!("HTTP/1.1 200 OK\r\n\r\n{}", BODY.trim_end()).into_bytes(),
        true,
    )
    .await;
    let scraping = Scraping::start(settings(), address);
    until("a failure", || scraping.failure().is_some()).await;
    assert_eq!(scraping.failure().unwrap(), "the body ends within a line");
    scraping.stop().await;
    let (address, _) = always(format!("HTTP/1.1 200 OK\r\n\r\n{BODY}").into_bytes(), true).await;
    let scraping = Scraping::start(settings(), address);
    until("a value", || scraping.running() == Some(2.0)).await;
    scraping.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_connection_fails_one_scrape_and_not_the_next() {
    let (address, _) = server(|mut stream, number| async move {
        if request(&mut stream).await.is_none() {
            return;
        }
        if number < 2 {
            let begun = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nvllm:";
            drop(stream.write_all(begun).await);
            stream.set_zero_linger().unwrap();
            return;
        }
        drop(stream.write_all(&ok("", BODY.as_bytes())).await);
    })
    .await;
    let scraping = Scraping::start(settings(), address);
    until("a failure", || {
        scraping.exposed().contains("outcome=\"transport\"")
    })
    .await;
    until("a value after it", || scraping.running() == Some(2.0)).await;
    scraping.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_listens() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let scraping = Scraping::start(settings(), address);
    until("a failure", || scraping.failure().is_some()).await;
    assert_eq!(scraping.failure().unwrap(), "cannot connect");
    scraping.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stuck_endpoint_does_not_hold_up_another() {
    let (stuck, _) = server(|stream, _| async move {
        sleep(Duration::from_secs(60)).await;
        drop(stream);
    })
    .await;
    let (good, _) = always(ok("", BODY.as_bytes()), false).await;
    let scraping = Scraping::start(settings(), stuck);
    let watch = scraping.signals.begin_watch();
    scraping.signals.apply_pod(
        watch,
        PodFacts {
            name: "pod-1".to_owned(),
            ..pod_at(good)
        },
    );
    let query = Query::parse("coppice_requests_running", None, "name=pod-0").unwrap();
    until("the good one", || {
        let each = scraping
            .signals
            .query_each(&query, scraping.signals.now())
            .unwrap();
        each.iter()
            .any(|answer| answer.pod == "pod-1" && answer.value.is_ok())
    })
    .await;
    scraping.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_goes_is_not_asked_any_more() {
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    let (address, _) = server(move |mut stream, _| {
        let asked = Arc::clone(&counted);
        async move {
            while request(&mut stream).await.is_some() {
                asked.fetch_add(1, Ordering::SeqCst);
                if stream.write_all(&ok("", BODY.as_bytes())).await.is_err() {
                    return;
                }
            }
        }
    })
    .await;
    let scraping = Scraping::start(settings(), address);
    until("two scrapes", || asked.load(Ordering::SeqCst) >= 2).await;
    let other = scraping.signals.begin_watch();
    scraping.signals.apply_pod(
        other,
        PodFacts {
            ending: true,
            ..pod_at(address)
        },
    );
    assert!(
        scraping
            .signals
            .endpoints(&Selection::default(), scraping.signals.now())
            .is_empty()
    );
    // A request may be under way; after it there is none.
    let before = asked.load(Ordering::SeqCst);
    let (probe, _) = always(ok("", BODY.as_bytes()), false).await;
    scraping.signals.apply_pod(
        other,
        PodFacts {
            name: "probe".to_owned(),
            ..pod_at(probe)
        },
    );
    until("others go on", || scraping.running().is_some()).await;
    assert!(asked.load(Ordering::SeqCst) <= before + 1);
    scraping.stop().await;
}
