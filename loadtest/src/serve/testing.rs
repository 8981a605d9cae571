//! Engines and clients for tests.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use coppice_engine::{Detail, Profile, Settings};
use coppice_exposition::Limits;
use serde_json::{Value, json};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::arguments::{EngineArgs, EngineConfig};
use super::instance::{Control, Neighbours, run};

/// Nothing in a test takes longer.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);

/// An engine that listens on a free port of the loopback device.
pub(crate) struct TestEngine {
    pub(crate) address: SocketAddr,
    pub(crate) drain: CancellationToken,
    pub(crate) grace: watch::Sender<Option<Duration>>,
    pub(crate) frozen: watch::Sender<bool>,
    pub(crate) task: JoinHandle<()>,
}

/// 2 ms a step and 20 µs a prompt token.
pub(crate) fn config(words: &[&str]) -> EngineConfig {
    slow_config(2.0, words)
}

/// So many milliseconds a step.
pub(crate) fn slow_config(step_ms: f64, words: &[&str]) -> EngineConfig {
    let mut config = EngineArgs::from_words(words).unwrap().resolve().unwrap();
    let text = format!(
        r#"{{"id": "test", "step": {{"t0_ms": {step_ms}, "per_seq_ms": 0.0, "per_kv_token_ms": 0.0, "per_prefill_token_ms": 0.02}},
            "kv_capacity_tokens": 320000, "max_num_seqs": 64, "max_num_batched_tokens": 4096}}"#
    );
    config.profile = Profile::from_json(&text).unwrap();
    let settings = Settings {
        detail: Detail::Tokens,
        max_model_len: 32768,
        ..Settings::of(&config.profile)
    };
    let asked = config.settings;
    config.settings = Settings {
        transfer: asked.transfer,
        kept_kv_expires_after: asked.kept_kv_expires_after,
        ..settings
    };
    config
}

impl TestEngine {
    pub(crate) async fn start(config: EngineConfig) -> Self {
        Self::start_among(config, Neighbours::default()).await
    }

    pub(crate) async fn start_among(config: EngineConfig, neighbours: Neighbours) -> Self {
        Self::start_at("127.0.0.1:0".parse().unwrap(), config, neighbours).await
    }

    pub(crate) async fn start_at(
        address: SocketAddr,
        config: EngineConfig,
        neighbours: Neighbours,
    ) -> Self {
        let drain = CancellationToken::new();
        let (grace, grace_wish) = watch::channel(None);
        let (frozen, frozen_wish) = watch::channel(false);
        let control = Control {
            drain: drain.clone(),
            grace: grace_wish,
            frozen: frozen_wish,
        };
        let (listening, address_of) = oneshot::channel();
        let task = tokio::spawn(async move {
            run(config, address, neighbours, control, |address| {
                listening.send(address).unwrap()
            })
            .await
            .unwrap();
        });
        let address = address_of.await.unwrap();
        Self {
            address,
            drain,
            grace,
            frozen,
            task,
        }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// The value of a metric's only series, or the sum over its series.
    pub(crate) async fn metric(&self, name: &str) -> f64 {
        metric(&text(&self.url("/metrics")).await, name)
    }
}

impl Drop for TestEngine {
    fn drop(&mut self) {
        self.task.abort();
    }
}

pub(crate) fn client() -> reqwest::Client {
    reqwest::Client::builder().no_proxy().build().unwrap()
}

pub(crate) async fn text(url: &str) -> String {
    client()
        .get(url)
        .send()
        .await
        .unwrap()
        .text()
        .await
        .unwrap()
}

/// Posts a request; answers status, headers and body.
pub(crate) async fn post(url: &str, body: &Value) -> reqwest::Response {
    client().post(url).json(body).send().await.unwrap()
}

/// The events of a stream, its end included; panics when it does not end as it should.
pub(crate) async fn stream(url: &str, body: &Value) -> Vec<Value> {
    let response = post(url, body).await;
    assert_eq!(response.status(), 200);
    assert_eq!(
        response.headers()["content-type"],
        "text/event-stream; charset=utf-8"
    );
    let text = response.text().await.unwrap();
    let mut events: Vec<&str> = text.split_terminator("\n\n").collect();
    assert_eq!(events.pop(), Some("data: [DONE]"), "{text}");
    events
        .into_iter()
        .map(|event| serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap())
        .collect()
}

/// A chat request of `tokens` one-word tokens.
pub(crate) fn chat(tokens: usize, max_tokens: u32) -> Value {
    json!({"model": "sim", "messages": [{"role": "user", "content": "word ".repeat(tokens)}], "max_tokens": max_tokens,
        "stream": true, "stream_options": {"include_usage": true}})
}

/// Waits until a condition holds.
pub(crate) async fn eventually<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    let deadline = Instant::now() + DEADLINE;
    while !holds().await {
        assert!(Instant::now() < deadline, "never: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Sum of a metric's samples in an exposition, which has to be one down to its last line.
pub(crate) fn metric(body: &str, name: &str) -> f64 {
    let (samples, report) =
        coppice_exposition::collect(body.as_bytes(), &Limits::default()).unwrap();
    assert_eq!(report.malformed, 0, "{:?}", report.problems);
    let values: Vec<f64> = samples
        .iter()
        .filter(|sample| sample.name == name)
        .map(|sample| sample.value)
        .collect();
    assert!(!values.is_empty(), "no metric {name} in\n{body}");
    values.iter().sum()
}

/// Families of an exposition that pass `wanted`, one line each as in `testdata/shapes`.
pub(crate) fn shape(body: &str, wanted: impl Fn(&str) -> bool) -> String {
    let mut out = String::new();
    let mut family: Option<Family> = None;
    for line in body.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            out.extend(family.take().map(|family| family.line()));
            let (name, kind) = rest.split_once(' ').unwrap();
            family = wanted(name).then(|| Family::new(name, kind));
        } else if let Some(family) = family.as_mut().filter(|_| !line.starts_with('#')) {
            family.sample(line);
        }
    }
    out.extend(family.map(|family| family.line()));
    out
}

struct Family {
    name: String,
    kind: String,
    labels: Vec<String>,
    values: BTreeMap<String, Vec<String>>,
    bounds: Vec<String>,
}

impl Family {
    fn new(name: &str, kind: &str) -> Self {
        let (name, kind) = (name.to_owned(), kind.to_owned());
        Self {
            name,
            kind,
            labels: Vec::new(),
            values: BTreeMap::new(),
            bounds: Vec::new(),
        }
    }

    fn sample(&mut self, line: &str) {
        let (series, _) = line.rsplit_once(' ').unwrap();
        let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
        let is_histogram = self.kind == "histogram";
        if is_histogram && !name.ends_with("_bucket") {
            return;
        }
        let labels = labels.strip_suffix('}').unwrap();
        let pairs: Vec<(&str, &str)> = labels
            .split_terminator("\",")
            .map(|pair| pair.split_once("=\"").unwrap())
            .map(|(name, value)| (name, value.trim_end_matches('"')))
            .collect();
        self.labels = pairs.iter().map(|(name, _)| (*name).to_owned()).collect();
        for (name, value) in pairs {
            if name == "le" && !self.bounds.iter().any(|bound| bound == value) {
                self.bounds.push(value.to_owned());
            }
            if [
                "reason",
                "finished_reason",
                "source",
                "stage",
                "sleep_state",
            ]
            .contains(&name)
            {
                self.values
                    .entry(name.to_owned())
                    .or_default()
                    .push(value.to_owned());
            }
        }
    }

    fn line(&self) -> String {
        let mut line = format!("{} {} {}", self.name, self.kind, self.labels.join(","));
        for (name, values) in &self.values {
            write!(line, " {name}={}", values.join("|")).unwrap();
        }
        if !self.bounds.is_empty() {
            write!(line, " le={}", self.bounds.join("|")).unwrap();
        }
        line + "\n"
    }
}
