//! Ten thousand pods scraped every five seconds over real connections: CPU and memory of the collector alone.
//!
//! `cargo bench -p coppice-signals --bench fleet [-- PODS [SECONDS]]`. The servers run in a process of their own. Needs about
//! twice as many file descriptors as pods: `ulimit -n`.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a measurement, printed"
)]

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use coppice_signals::{Metrics, PodFacts, Query, Selection, Settings, Signals};
use prometheus_client::registry::Registry;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

const BODY: &[u8] = include_bytes!("../testdata/vllm-0.33.0-saturated-t1.txt");

/// Answers every request on every address of 127.0.0.0/8 with the same body.
async fn serve() {
    let listener = TcpListener::bind("0.0.0.0:0").await.unwrap();
    println!("{}", listener.local_addr().unwrap().port());
    let mut response =
        format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", BODY.len()).into_bytes();
    response.extend_from_slice(BODY);
    let response: Arc<[u8]> = response.into();
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        let response = Arc::clone(&response);
        tokio::spawn(async move {
            let mut request = [0; 1024];
            while stream.read(&mut request).await.is_ok_and(|bytes| bytes > 0) {
                if stream.write_all(&response).await.is_err() {
                    return;
                }
            }
        });
    }
}

fn pod(index: u32, port: u16) -> PodFacts {
    let [_, high, middle, low] = (index + 0x40_0001).to_be_bytes();
    let address = [127, high, middle, low].into();
    PodFacts::ready("serving", &format!("pod-{index:05}"), address, port)
}

/// Processor time of this process so far, in seconds, and its resident memory in MiB.
fn usage() -> (f64, f64) {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<f64> = stat
        .rsplit(')')
        .next()
        .unwrap()
        .split_whitespace()
        .skip(1)
        .map(|field| field.parse().unwrap_or(0.0))
        .collect();
    // Fields 14 and 15 in hundredths of a second, 24 in pages of 4 KiB; the first here is field 4.
    ((fields[10] + fields[11]) / 100.0, fields[20] / 256.0)
}

async fn measure(pods: u32, seconds: u64) {
    let mut server = Command::new(std::env::current_exe().unwrap())
        .arg("serve")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    let port = line.trim().parse().unwrap();

    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry);
    let signals = Signals::new(Settings::default(), metrics).unwrap();
    let stop = CancellationToken::new();
    let run = tokio::spawn(signals.clone().run(stop.clone()));
    let watch = signals.begin_watch();
    signals.replace_pods(watch, (0..pods).map(|index| pod(index, port)).collect());
    sleep(Duration::from_secs(15)).await;

    let (begun, (cpu, _)) = (Instant::now(), usage());
    let scrapes = |registry: &Registry| -> u64 {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, registry).unwrap();
        let line = text
            .lines()
            .find(|line| line.starts_with("scrapes_total{outcome=\"ok\"}"))
            .unwrap();
        line.rsplit(' ').next().unwrap().parse().unwrap()
    };
    let before = scrapes(&registry);
    sleep(Duration::from_secs(seconds)).await;
    let took = begun.elapsed().as_secs_f64();
    let (cpu_after, memory) = usage();
    let done = scrapes(&registry) - before;
    println!(
        "{pods} pods: {:.0} scrapes/s, {:.2} cores, {:.0} us of CPU a scrape, {memory:.0} MiB resident",
        done as f64 / took,
        (cpu_after - cpu) / took,
        (cpu_after - cpu) / done as f64 * 1e6,
    );
    let observed = signals.observe(&Selection::default(), signals.now());
    println!(
        "fresh {} of {}, oldest sample {:?}",
        observed.endpoints.fresh, observed.endpoints.live, observed.oldest_sample
    );
    let query = Query::parse("coppice_requests_waiting", Some("serving"), "").unwrap();
    let begun = Instant::now();
    let answer = signals.query(&query, signals.now());
    println!(
        "sum over all pods: {:?} in {:?}",
        answer.map(|answer| answer.value),
        begun.elapsed()
    );
    stop.cancel();
    run.await.unwrap();
    server.kill().unwrap();
    server.wait().unwrap();
}

fn main() {
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| argument != "--bench")
        .collect();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    if arguments.first().is_some_and(|first| first == "serve") {
        runtime.block_on(serve());
    } else if std::env::args().any(|argument| argument == "--bench") {
        let number = |index: usize, default: u32| {
            arguments
                .get(index)
                .and_then(|text| text.parse().ok())
                .unwrap_or(default)
        };
        runtime.block_on(measure(number(0, 10_000), u64::from(number(1, 20))));
    }
}
