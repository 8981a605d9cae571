//! What one role of a serving system looks like: every signal at once, each with its age or the reason it is missing.

use std::time::Duration;

use jiff::Timestamp;

use crate::answer::{Evaluated, Evaluation};
use crate::engines::Signal;
use crate::histogram::WindowHistogram;
use crate::query::{Measured, Missing};
use crate::reading::What;

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
    /// Requests per second that reached the engines, where they count them (Dynamo workers).
    pub received_requests_per_second: Reading,
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
    /// Part of `waiting` that more replicas would help, where the server tells (vLLM).
    pub waiting_for_capacity: Reading,
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
    /// Mean seconds from being scheduled to the first token, of requests that ended.
    pub mean_prefill_seconds: Reading,
    /// Mean seconds from the first to the last token, of requests that ended.
    pub mean_decode_seconds: Reading,
    /// Mean seconds that the KV transfer of a request took.
    pub mean_transfer_seconds: Reading,
    /// Engines that are awake, where the server tells (vLLM).
    pub awake_engines: Reading,
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
    /// Evaluates every signal over the endpoints of one selection.
    pub(crate) fn observe(evaluation: &Evaluation<'_>, endpoints: EndpointCounts) -> Self {
        let measured = |evaluated: Result<Evaluated, Missing>| {
            evaluated.map(|each| evaluation.measured(&each))
        };
        let gauge = |signal| measured(evaluation.gauge_sum(What::Signal(signal)));
        let rate = |signal| measured(evaluation.rate(What::Signal(signal)));
        let latency = |signal| evaluation.measured_histogram(What::Signal(signal));
        let mean = |signal| evaluation.mean(What::Signal(signal));
        let mut models: Vec<String> = Vec::new();
        for each in evaluation.selected {
            let state = each.endpoint.tracked.state.lock();
            models.extend(state.target.models_among(each.models).map(str::to_owned));
        }
        models.sort_unstable();
        models.dedup();
        let fresh = evaluation
            .selected
            .iter()
            .filter(|each| each.problem.is_none());
        let oldest = fresh.filter_map(|each| each.last).min();
        Self {
            at: evaluation.now,
            endpoints,
            oldest_sample: oldest.map(|oldest| {
                Duration::try_from(evaluation.now.duration_since(oldest)).unwrap_or_default()
            }),
            models,
            offered_requests_per_second: rate(Signal::OfferedRequests),
            offered_input_tokens_per_second: rate(Signal::OfferedInputTokens),
            received_requests_per_second: rate(Signal::ReceivedRequests),
            estimated_requests_per_second: measured(evaluation.estimated_arrivals()),
            input_tokens_per_second: rate(Signal::InputTokens),
            computed_input_tokens_per_second: rate(Signal::ComputedInputTokens),
            output_tokens_per_second: rate(Signal::OutputTokens),
            waiting: gauge(Signal::Waiting),
            waiting_for_capacity: gauge(Signal::WaitingCapacity),
            waiting_deferred: gauge(Signal::WaitingDeferred),
            waiting_for_transfer: gauge(Signal::WaitingForTransfer),
            running: gauge(Signal::Running),
            in_flight: gauge(Signal::InFlight),
            kv_cache_usage: measured(evaluation.gauge_mean(What::Signal(Signal::KvCacheUsage))),
            kv_cache_usage_max: measured(evaluation.gauge_max(What::Signal(Signal::KvCacheUsage))),
            kv_capacity_tokens: gauge(Signal::KvCapacityTokens),
            ttft: latency(Signal::Ttft),
            itl: latency(Signal::Itl),
            end_to_end: latency(Signal::EndToEnd),
            queue_time: latency(Signal::QueueTime),
            mean_input_tokens: mean(Signal::InputLength),
            mean_output_tokens: mean(Signal::OutputLength),
            mean_prefill_seconds: mean(Signal::PrefillTime),
            mean_decode_seconds: mean(Signal::DecodeTime),
            mean_transfer_seconds: mean(Signal::TransferTime),
            awake_engines: gauge(Signal::Awake),
            finished_per_second: rate(Signal::Finished),
            failed_per_second: rate(Signal::Failed),
            preemptions_per_second: rate(Signal::Preemptions),
            prefix_cache_hit_ratio: measured(
                evaluation.ratio(Signal::PrefixHits, Signal::PrefixQueries),
            ),
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
