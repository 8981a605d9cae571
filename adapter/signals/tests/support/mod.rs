//! A collector with pods that are never scraped: bodies are taken in by hand.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use coppice_signals::{
    Answer, Metrics, Missing, PodFacts, Query, RoleSignals, Selection, Settings, Signals, WatchId,
};
use jiff::{SignedDuration, Timestamp};
use prometheus_client::registry::Registry;
use serde_json::Value;

pub(crate) struct Collector {
    pub(crate) signals: Signals,
    pub(crate) watch: WatchId,
    start: Timestamp,
    now: std::cell::Cell<f64>,
}

impl Collector {
    /// With one ready pod `serving/pod-0`.
    pub(crate) fn new() -> Self {
        let collector = Self::with_settings(Settings::default());
        collector.apply(pod("pod-0"));
        collector
    }

    pub(crate) fn with_settings(settings: Settings) -> Self {
        let metrics = Metrics::register(Registry::default().sub_registry_with_prefix("test"));
        let signals = Signals::new(settings, metrics).unwrap();
        let watch = signals.begin_watch();
        let start = Timestamp::from_second(1_800_000_000).unwrap();
        Self {
            signals,
            watch,
            start,
            now: std::cell::Cell::new(0.0),
        }
    }

    pub(crate) fn apply(&self, pod: PodFacts) {
        self.signals.apply_pod(self.watch, pod);
    }

    /// Seconds since the start, as a timestamp.
    pub(crate) fn at(&self, seconds: f64) -> Timestamp {
        self.start
            .checked_add(SignedDuration::from_secs_f64(seconds))
            .unwrap()
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.at(self.now.get())
    }

    pub(crate) fn pass_to(&self, seconds: f64) {
        self.now.set(seconds);
    }

    /// Takes a body in for every pod.
    pub(crate) fn ingest(&self, body: &[u8], seconds: f64) {
        self.now.set(seconds);
        self.signals
            .ingest(&Selection::default(), body, self.now())
            .unwrap();
    }

    /// Takes a body in for the pod of this name.
    pub(crate) fn ingest_for(&self, name: &str, body: &str, seconds: f64) -> Result<(), String> {
        self.now.set(seconds);
        self.signals.ingest(
            &select(&format!("name={name}")),
            body.as_bytes(),
            self.now(),
        )
    }

    pub(crate) fn query(&self, metric: &str) -> Result<Answer, Missing> {
        self.query_with(metric, "")
    }

    pub(crate) fn query_with(&self, metric: &str, selector: &str) -> Result<Answer, Missing> {
        self.signals.query(
            &Query::parse(metric, Some("serving"), selector).unwrap(),
            self.now(),
        )
    }

    pub(crate) fn observe(&self) -> RoleSignals {
        self.signals.observe(&select(""), self.now())
    }
}

pub(crate) fn select(selector: &str) -> Selection {
    Selection {
        namespace: Some("serving".to_owned()),
        selector: selector.parse().unwrap(),
    }
}

pub(crate) fn pod(name: &str) -> PodFacts {
    PodFacts {
        uid: format!("uid of {name}"),
        labels: Arc::new(BTreeMap::from([("name".to_owned(), name.to_owned())])),
        ..PodFacts::ready("serving", name, [127, 0, 0, 1].into(), 8000)
    }
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("testdata")
}

pub(crate) fn exists(file: &str) -> bool {
    folder().join(file).exists()
}

pub(crate) fn body(file: &str) -> Vec<u8> {
    std::fs::read(folder().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// Every fixture's name with its expected values.
pub(crate) fn fixtures() -> Vec<(String, Value)> {
    let mut fixtures: Vec<_> = std::fs::read_dir(folder())
        .unwrap()
        .filter_map(|entry| {
            let file = entry.unwrap().file_name().into_string().unwrap();
            let name = file.strip_suffix(".expected.json")?.to_owned();
            Some((name, serde_json::from_slice(&body(&file)).unwrap()))
        })
        .collect();
    fixtures.sort_by(|(one, _), (other, _)| one.cmp(other));
    fixtures
}
