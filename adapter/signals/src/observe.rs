//! What one role of a serving system looks like: every signal at once, each with its age or the reason it is missing.

use std::time::Duration;

use jiff::Timestamp;

use crate::histogram::WindowHistogram;
use crate::query::{Measured, Missing, Selection};

/// A measured value, or why there is none.
pub type Reading = Result<Measured, Missing>;

/// Latencies of the window, or why there are none.
pub type LatencyReading = Result<MeasuredHistogram, Missing>;

/// Everything known about the endpoints of one selection.
///
/// Sums run over all live endpoints, scaled up when some above the quorum did not answer; usages are means and maxima
/// over engines. Where engines and a gateway are selected together, engine signals come from engines alone, and
/// `offered_*` from the gateway alone. A field is `Err` where it is unknown, never zero.
#[derive(Debug, Clone, PartialEq)]
pub struct RoleSignals {
    /// When this was put together.
    pub at: Timestamp,
    /// Endpoints by state.
    pub endpoints: EndpointCounts,
    /// Age of the oldest sample that contributed to anything; `None` if nothing did.
    pub oldest_sample: Option<Duration>,
    /// Models served, sorted.
    pub models: Vec<String>,
    /// Requests per second arriving at a gateway.
    pub offered_requests_per_second: Reading,
    /// Prompt tokens per second arriving at a gateway.
    pub offered_input_tokens_per_second: Reading,
    /// Arrivals per second as engines show them: finished per second plus growth of running and waiting. For roles
    /// without a gateway; lags a little, never negative.
    pub estimated_requests_per_second: Reading,
    /// Prompt tokens per second processed, cached and transferred ones included.
    pub input_tokens_per_second: Reading,
    /// Prompt tokens per second really computed, without cache hits and transfers.
    pub computed_input_tokens_per_second: Reading,
    /// Tokens per second generated.
    pub output_tokens_per_second: Reading,
    /// Requests waiting in engine queues, deferred ones included.
    pub waiting: Reading,
    /// Requests that wait for a KV transfer, a grammar or the like, which more replicas do not help. With vLLM part of
    /// `waiting`.
    pub waiting_deferred: Reading,
    /// Requests in the hand-over queues of disaggregated serving, where the server counts them apart (SGLang): bootstrap,
    /// in flight, pre-allocation, transfer. Not part of `waiting`.
    pub waiting_for_transfer: Reading,
    /// Requests running.
    pub running: Reading,
    /// Requests accepted and not finished, where the server counts them as one (Dynamo).
    pub in_flight: Reading,
    /// KV-cache usage, mean over engines, 0–1.
    pub kv_cache_usage: Reading,
    /// KV-cache usage of the fullest engine, 0–1.
    pub kv_cache_usage_max: Reading,
    /// Tokens the KV caches hold together.
    pub kv_capacity_tokens: Reading,
    /// Time to first token.
    pub ttft: LatencyReading,
    /// Time between tokens.
    pub itl: LatencyReading,
    /// Arrival to last token, of requests that ended.
    pub end_to_end: LatencyReading,
    /// Arrival to being scheduled; most servers record it when a request ends.
    pub queue_time: LatencyReading,
    /// Mean prompt length in tokens, of requests that ended (gateway: that arrived).
    pub mean_input_tokens: Reading,
    /// Mean output length in tokens, of requests that ended.
    pub mean_output_tokens: Reading,
    /// Requests per second that ended, for whatever reason.
    pub finished_per_second: Reading,
    /// Requests per second that ended in an error or were refused by the server.
    pub failed_per_second: Reading,
    /// Preemptions per second.
    pub preemptions_per_second: Reading,
    /// Prefix-cache hits, tokens over tokens, 0–1.
    pub prefix_cache_hit_ratio: Reading,
}

impl RoleSignals {
    /// Nothing known, because no endpoint matches.
    pub(crate) fn unknown(selection: &Selection, now: Timestamp) -> Self {
        let missing = Missing::NoEndpoints {
            selection: selection.to_string(),
        };
        let reading = || Err(missing.clone());
        Self {
            at: now,
            endpoints: EndpointCounts::default(),
            oldest_sample: None,
            models: Vec::new(),
            offered_requests_per_second: reading(),
            offered_input_tokens_per_second: reading(),
            estimated_requests_per_second: reading(),
            input_tokens_per_second: reading(),
            computed_input_tokens_per_second: reading(),
            output_tokens_per_second: reading(),
            waiting: reading(),
            waiting_deferred: reading(),
            waiting_for_transfer: reading(),
            running: reading(),
            in_flight: reading(),
            kv_cache_usage: reading(),
            kv_cache_usage_max: reading(),
            kv_capacity_tokens: reading(),
            ttft: Err(missing.clone()),
            itl: Err(missing.clone()),
            end_to_end: Err(missing.clone()),
            queue_time: Err(missing.clone()),
            mean_input_tokens: reading(),
            mean_output_tokens: reading(),
            finished_per_second: reading(),
            failed_per_second: reading(),
            preemptions_per_second: reading(),
            prefix_cache_hit_ratio: reading(),
        }
    }
}

/// How many endpoints are in which state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EndpointCounts {
    /// Known, ready or not.
    pub total: usize,
    /// Ready and not terminating.
    pub live: usize,
    /// Live, with a sample within the age limit.
    pub fresh: usize,
    /// Live, with samples, all too old.
    pub stale: usize,
    /// Live, and never scraped with success.
    pub never_scraped: usize,
}

/// Observations of the window with what they rest on.
#[derive(Debug, Clone, PartialEq)]
pub struct MeasuredHistogram {
    /// The observations; at least one.
    pub histogram: WindowHistogram,
    /// Age of the oldest contributing sample.
    pub age: Duration,
    /// Endpoints that contributed.
    pub endpoints: usize,
    /// Whether the server records a request only when it ends.
    pub at_finish: bool,
}
