//! `/metrics` with the Dynamo frontend's names, types, labels and bounds (1.6.1).
//!
//! Requests and their prompt tokens count when they arrive. `queued_requests` are those without a first token, held ones
//! included; how many are held because nothing is ready is `coppice_gateway_held_requests`.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use coppice_engine::Histogram;
use parking_lot::Mutex;

use super::models::{Model, Models};
use crate::exposition::{Buckets, Numbers, Text, escape};
use crate::openai::Endpoint;
use crate::serve::arguments::Role;

const FIRST_TOKEN: &[f64] = &[
    0.0, 0.0022, 0.0047, 0.01, 0.022, 0.047, 0.1, 0.22, 0.47, 1.0, 2.2, 4.7, 10.0, 22.0, 48.0,
    100.0, 220.0, 480.0,
];
const TOKEN: &[f64] = &[
    0.0, 0.0018, 0.0033, 0.0059, 0.011, 0.02, 0.035, 0.064, 0.12, 0.21, 0.38, 0.69, 1.2, 2.3, 4.1,
    7.4, 13.0, 24.0, 44.0, 80.0,
];
const REQUEST: &[f64] = &[0.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 130.0, 260.0, 510.0];
const INPUT: &[f64] = &[
    0.0, 100.0, 210.0, 430.0, 870.0, 1800.0, 3600.0, 7400.0, 15000.0, 31000.0, 63000.0, 130_000.0,
];
const OUTPUT: &[f64] = &[
    0.0, 100.0, 210.0, 430.0, 880.0, 1800.0, 3700.0, 7600.0, 16000.0, 32000.0,
];

/// What is counted for one model.
#[derive(Debug)]
pub(crate) struct ModelMetrics {
    pub(crate) in_flight: AtomicI64,
    /// In flight and without a first token.
    pub(crate) queued: AtomicI64,
    pub(crate) output_tokens: AtomicU64,
    pub(crate) disconnected: AtomicU64,
    counted: Mutex<Counted>,
}

#[derive(Debug)]
struct Counted {
    started: BTreeMap<Kind, u64>,
    ended: BTreeMap<(Kind, Outcome), u64>,
    first_token: Histogram,
    token: Histogram,
    duration: Histogram,
    input: Histogram,
    cached: Histogram,
    output: Histogram,
}

/// What was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Kind {
    pub(crate) endpoint: Endpoint,
    pub(crate) stream: bool,
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Outcome {
    /// With its answer.
    Success,
    /// The request was refused as wrong.
    Validation,
    /// Nobody could serve it.
    Unavailable,
    /// An engine failed.
    Internal,
    /// The client went away.
    Cancelled,
}

impl Outcome {
    const fn labels(self) -> (&'static str, &'static str) {
        match self {
            Self::Success => ("", "success"),
            Self::Validation => ("validation", "error"),
            Self::Unavailable => ("unavailable", "error"),
            Self::Internal => ("internal", "error"),
            Self::Cancelled => ("cancelled", "error"),
        }
    }
}

impl Kind {
    fn labels(self) -> (&'static str, &'static str) {
        let endpoint = match self.endpoint {
            Endpoint::Completions => "completions",
            Endpoint::ChatCompletions => "chat_completions",
        };
        (endpoint, if self.stream { "stream" } else { "unary" })
    }
}

impl ModelMetrics {
    pub(crate) fn new() -> Self {
        Self {
            in_flight: AtomicI64::new(0),
            queued: AtomicI64::new(0),
            output_tokens: AtomicU64::new(0),
            disconnected: AtomicU64::new(0),
            counted: Mutex::new(Counted {
                started: BTreeMap::new(),
                ended: BTreeMap::new(),
                first_token: Histogram::new(FIRST_TOKEN),
                token: Histogram::new(TOKEN),
                duration: Histogram::new(REQUEST),
                input: Histogram::new(INPUT),
                cached: Histogram::new(INPUT),
                output: Histogram::new(OUTPUT),
            }),
        }
    }

    pub(crate) fn arrived(&self, kind: Kind, prompt_tokens: u32) {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        self.queued.fetch_add(1, Ordering::Relaxed);
        let mut counted = self.counted.lock();
        *counted.started.entry(kind).or_default() += 1;
        counted.input.observe(prompt_tokens.into());
    }

    pub(crate) fn first_token(&self, after: Duration) {
        self.queued.fetch_sub(1, Ordering::Relaxed);
        self.counted.lock().first_token.observe(after.as_secs_f64());
    }

    /// `tokens` came together, `gap` after the ones before: that many gaps of equal parts.
    pub(crate) fn tokens(&self, tokens: u32, gap: Duration) {
        self.output_tokens
            .fetch_add(tokens.into(), Ordering::Relaxed);
        let each = gap.as_secs_f64() / f64::from(tokens.max(1));
        self.counted.lock().token.observe_times(each, tokens.into());
    }

    /// `cached`: prompt tokens from a cache, where the engine said so.
    pub(crate) fn ended(
        &self,
        kind: Kind,
        outcome: Outcome,
        after: Duration,
        made: u32,
        cached: Option<u32>,
    ) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
        let mut counted = self.counted.lock();
        *counted.ended.entry((kind, outcome)).or_default() += 1;
        counted.duration.observe(after.as_secs_f64());
        if made > 0 {
            counted.output.observe(made.into());
        }
        if let Some(cached) = cached {
            counted.cached.observe(cached.into());
        }
    }
}

/// The body, with families and models in order of their names.
pub(crate) fn render(models: &Models) -> String {
    let mut page = Page {
        text: Text::new(Numbers::Rust),
        models: Vec::new(),
    };
    page.models = models
        .values()
        .map(|model| (format!("model=\"{}\"", escape(&model.name)), model.as_ref()))
        .collect();
    page.gauge(
        "dynamo_frontend_active_requests",
        "Requests being handled.",
        in_flight,
    );
    page.histogram(
        "dynamo_frontend_cached_tokens",
        "Prompt tokens from a cache.",
        |counted| &counted.cached,
    );
    page.disconnected();
    page.gauge(
        "dynamo_frontend_inflight_requests",
        "Requests accepted and not ended.",
        in_flight,
    );
    page.histogram(
        "dynamo_frontend_input_sequence_tokens",
        "Prompt tokens, at arrival.",
        |counted| &counted.input,
    );
    page.histogram(
        "dynamo_frontend_inter_token_latency_seconds",
        "Time between tokens.",
        |counted| &counted.token,
    );
    page.gauge(
        "dynamo_frontend_model_ready",
        "Whether a request could be sent off now.",
        |model| model.is_ready().into(),
    );
    page.histogram(
        "dynamo_frontend_output_sequence_tokens",
        "Tokens of an answer.",
        |counted| &counted.output,
    );
    page.counter(
        "dynamo_frontend_output_tokens_total",
        "Tokens of answers, as they come.",
        |model| model.metrics.output_tokens.load(Ordering::Relaxed),
    );
    page.gauge(
        "dynamo_frontend_queued_requests",
        "Requests without a first token.",
        |model| model.metrics.queued.load(Ordering::Relaxed),
    );
    page.histogram(
        "dynamo_frontend_request_duration_seconds",
        "Time from arrival to end.",
        |counted| &counted.duration,
    );
    page.started();
    page.ended();
    page.histogram(
        "dynamo_frontend_time_to_first_token_seconds",
        "Time to the first token.",
        |counted| &counted.first_token,
    );
    page.own();
    page.text.finish()
}

fn in_flight(model: &Model) -> i64 {
    model.metrics.in_flight.load(Ordering::Relaxed)
}

struct Page<'a> {
    text: Text,
    /// With their label.
    models: Vec<(String, &'a Model)>,
}

impl Page<'_> {
    fn gauge(&mut self, name: &str, help: &str, value: impl Fn(&Model) -> i64) {
        self.text.family(name, "gauge", help);
        for (label, model) in &self.models {
            self.text.sample(name, label, value(model) as f64);
        }
    }

    fn counter(&mut self, name: &str, help: &str, value: impl Fn(&Model) -> u64) {
        self.text.family(name, "counter", help);
        for (label, model) in &self.models {
            self.text.sample(name, label, value(model) as f64);
        }
    }

    fn histogram(&mut self, name: &str, help: &str, pick: impl Fn(&Counted) -> &Histogram) {
        self.text.family(name, "histogram", help);
        for (label, model) in &self.models {
            let counted = model.metrics.counted.lock();
            let histogram = pick(&counted);
            let cumulative: Vec<u64> = histogram.cumulative().collect();
            let buckets = Buckets {
                bounds: histogram.bounds(),
                cumulative: &cumulative,
                sum: histogram.sum(),
            };
            self.text.histogram(name, label, "", buckets);
        }
    }

    fn disconnected(&mut self) {
        let name = "dynamo_frontend_disconnected_clients";
        self.text.family(
            name,
            "gauge",
            "Clients that went away before their answer was whole.",
        );
        let all: u64 = self
            .models
            .iter()
            .map(|(_, model)| model.metrics.disconnected.load(Ordering::Relaxed))
            .sum();
        self.text.sample(name, "", all as f64);
    }

    fn started(&mut self) {
        let name = "dynamo_frontend_requests_started_total";
        self.text.family(name, "counter", "Requests that arrived.");
        for (label, model) in &self.models {
            for (kind, count) in &model.metrics.counted.lock().started {
                let (endpoint, request_type) = kind.labels();
                let labels =
                    format!("endpoint=\"{endpoint}\",{label},request_type=\"{request_type}\"");
                self.text.sample(name, &labels, *count as f64);
            }
        }
    }

    fn ended(&mut self) {
        let name = "dynamo_frontend_requests_total";
        self.text.family(name, "counter", "Requests that ended.");
        for (label, model) in &self.models {
            for ((kind, outcome), count) in &model.metrics.counted.lock().ended {
                let ((endpoint, request_type), (error_type, status)) =
                    (kind.labels(), outcome.labels());
                let labels = format!(
                    "endpoint=\"{endpoint}\",error_type=\"{error_type}\",{label},request_type=\"{request_type}\",status=\"{status}\""
                );
                self.text.sample(name, &labels, *count as f64);
            }
        }
    }

    /// What the imitated frontend has no name for.
    fn own(&mut self) {
        let name = "coppice_gateway_held_requests";
        self.text.family(
            name,
            "gauge",
            "Requests that wait because no engine is ready.",
        );
        for (label, model) in &self.models {
            self.text.sample(name, label, model.held() as f64);
        }
        let name = "coppice_gateway_engines";
        self.text
            .family(name, "gauge", "Engines that requests can be sent to.");
        for (label, model) in &self.models {
            for (role, role_name) in [
                (Role::Aggregated, "aggregated"),
                (Role::Prefill, "prefill"),
                (Role::Decode, "decode"),
            ] {
                self.text.sample(
                    name,
                    &format!("{label},role=\"{role_name}\""),
                    model.engines(role) as f64,
                );
            }
        }
    }
}
