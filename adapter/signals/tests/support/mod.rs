//! A collector with pods that are never scraped: bodies are taken in by hand.
#![allow(dead_code, reason = "each test binary uses a part of it")]

pub(crate) mod case;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;

use coppice_signals::{
    Answer, Metrics, Missing, PodFacts, Query, RoleSignals, Selection, Settings, Signals, WatchId,
};
use flate2::read::GzDecoder;
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

pub(crate) fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("testdata")
}

/// A file of `testdata/`, plain or with `.gz` at its end.
pub(crate) fn body(file: &str) -> Vec<u8> {
    let path = folder().join(file);
    if path.exists() {
        return std::fs::read(path).unwrap();
    }
    let packed = std::fs::File::open(folder().join(format!("{file}.gz")))
        .unwrap_or_else(|error| panic!("{file}: {error}"));
    let mut body = Vec::new();
    GzDecoder::new(packed).read_to_end(&mut body).unwrap();
    body
}

/// The names of the files in a folder of `testdata/`, without `.gz`.
pub(crate) fn files(subfolder: &str) -> BTreeSet<String> {
    let entries = std::fs::read_dir(folder().join(subfolder)).unwrap();
    entries
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.file_type().unwrap().is_file())
        .map(|entry| {
            let name = entry.file_name().into_string().unwrap();
            name.strip_suffix(".gz").unwrap_or(&name).to_owned()
        })
        .collect()
}

/// Every fixture's name with its expected values.
pub(crate) fn fixtures() -> Vec<(String, Value)> {
    files("")
        .iter()
        .filter_map(|file| {
            let name = file.strip_suffix(".expected.json")?.to_owned();
            Some((name, serde_json::from_slice(&body(file)).unwrap()))
        })
        .collect()
}
