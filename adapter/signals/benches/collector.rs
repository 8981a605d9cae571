//! What a collector costs: taking in a body, answering over ten thousand pods.
//!
//! `cargo bench -p coppice-signals --bench collector`

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;

use coppice_signals::{Metrics, PodFacts, Query, Selection, Settings, Signals};
use divan::Bencher;
use divan::counter::BytesCount;
use jiff::{SignedDuration, Timestamp};
use prometheus_client::registry::Registry;

const T0: &[u8] = include_bytes!("../testdata/vllm-0.33.0-saturated-t0.txt");
const T1: &[u8] = include_bytes!("../testdata/vllm-0.33.0-saturated-t1.txt");

fn pod(index: u32, namespaces: u32) -> PodFacts {
    let labels = BTreeMap::from([
        (
            "grove.io/podclique".to_owned(),
            format!("clique-{}", index % 50),
        ),
        (
            "app.kubernetes.io/managed-by".to_owned(),
            "grove-operator".to_owned(),
        ),
    ]);
    let namespace = format!("namespace-{:04}", index % namespaces);
    let name = format!("pod-{index:05}");
    PodFacts {
        labels: Arc::new(labels),
        ..PodFacts::ready(&namespace, &name, [127, 0, 0, 1].into(), 8000)
    }
}

fn start() -> Timestamp {
    Timestamp::UNIX_EPOCH + SignedDuration::from_hours(500_000)
}

fn collector(pods: u32, namespaces: u32) -> Signals {
    let metrics = Metrics::register(&mut Registry::default());
    let signals =
        Signals::new(Settings::default(), metrics).expect("the default settings are valid");
    let watch = signals.begin_watch();
    signals.replace_pods(
        watch,
        (0..pods).map(|index| pod(index, namespaces)).collect(),
    );
    for (body, seconds) in [(T0, 0), (T1, 15)] {
        let at = start() + SignedDuration::from_secs(seconds);
        signals
            .ingest(&Selection::default(), body, at)
            .expect("the fixture is well-formed");
    }
    signals
}

/// One scrape's worth of work, once the bytes are there.
#[divan::bench]
fn ingest(bencher: Bencher<'_, '_>) {
    let signals = collector(1, 1);
    let second = Cell::new(15);
    bencher.counter(BytesCount::of_slice(T1)).bench_local(|| {
        second.set(second.get() + 5);
        signals.ingest(
            &Selection::default(),
            T1,
            start() + SignedDuration::from_secs(second.get()),
        )
    });
}

fn answer(bencher: Bencher<'_, '_>, metric: &str, namespaces: u32, selector: &str) {
    let signals = collector(10_000, namespaces);
    let query =
        Query::parse(metric, Some("namespace-0000"), selector).expect("the query is well-formed");
    // A question is answered anew after a fifth of a second; this long before the samples are stale.
    let millis = Cell::new(15_000);
    bencher.bench_local(|| {
        millis.set(millis.get() + 200);
        let now = start() + SignedDuration::from_millis(millis.get());
        signals.query(&query, now).expect("there is a value")
    });
}

#[divan::bench(sample_count = 20)]
fn gauge_of_100_pods_among_10_000(bencher: Bencher<'_, '_>) {
    answer(bencher, "coppice_requests_waiting", 100, "");
}

#[divan::bench(sample_count = 20)]
fn gauge_of_200_pods_of_a_namespace_of_10_000(bencher: Bencher<'_, '_>) {
    answer(
        bencher,
        "coppice_requests_waiting",
        1,
        "grove.io/podclique=clique-7",
    );
}

#[divan::bench(sample_count = 20)]
fn gauge_of_10_000_pods(bencher: Bencher<'_, '_>) {
    answer(bencher, "coppice_requests_waiting", 1, "");
}

#[divan::bench(sample_count = 20)]
fn quantile_of_10_000_pods(bencher: Bencher<'_, '_>) {
    answer(bencher, "coppice_ttft_seconds_p95", 1, "");
}

#[divan::bench(sample_count = 20)]
fn observation_of_100_pods_among_10_000(bencher: Bencher<'_, '_>) {
    let signals = collector(10_000, 100);
    let selection = Selection {
        namespace: Some("namespace-0000".to_owned()),
        ..Selection::default()
    };
    let now = start() + SignedDuration::from_secs(16);
    bencher.bench_local(|| signals.observe(&selection, now));
}

fn main() {
    divan::main();
}
