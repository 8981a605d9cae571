//! Text Generation Inference. No labels of model or engine; counters have no `_total`; a Rust exporter, so that a series
//! appears with its first event.

use super::model::{Engine, Rule, Source, Tier, counter, gauge, histogram, mean, prefix, rule};
use super::{PLAIN, Signal};

/// One server.
pub(super) static ENGINE: Engine = Engine {
    name: "tgi",
    versions: "3.3.7",
    place: "the main port (container: 80) or 9000, /metrics",
    note: "Usage of the KV cache is what is reserved, not what is used. Tokens and times are counted when requests end. A fresh \
           server has one series.",
    tier: Tier::Engine,
    marks: &[prefix("tgi_")],
    appears_late: true,
    rules: RULES,
    ..PLAIN
};

const RULES: &[Rule] = &[
    rule(
        Signal::Running,
        &[Source::of(&[gauge("tgi_batch_current_size")])],
    ),
    rule(Signal::Waiting, &[Source::of(&[gauge("tgi_queue_size")])]),
    rule(
        Signal::KvCacheUsage,
        &[Source::of(&[
            gauge("tgi_batch_current_max_tokens"),
            gauge("tgi_batch_max_total_tokens").over(),
        ])],
    ),
    rule(
        Signal::KvUsedTokens,
        &[Source::of(&[gauge("tgi_batch_current_max_tokens")])],
    ),
    rule(
        Signal::KvCapacityTokens,
        &[Source::of(&[gauge("tgi_batch_max_total_tokens")])],
    ),
    rule(
        Signal::ReceivedRequests,
        &[Source::of(&[counter("tgi_request_count")])],
    ),
    rule(
        Signal::InputTokens,
        &[Source::of(&[counter("tgi_request_input_length_sum")]).at_finish()],
    ),
    rule(
        Signal::OutputTokens,
        &[Source::of(&[counter("tgi_request_generated_tokens_sum")]).at_finish()],
    ),
    rule(
        Signal::PrefixHits,
        &[Source::of(&[counter("tgi_request_skipped_tokens_sum")]).at_finish()],
    ),
    rule(
        Signal::PrefixQueries,
        &[Source::of(&[counter("tgi_request_input_length_sum")]).at_finish()],
    ),
    rule(
        Signal::Finished,
        &[Source::of(&[
            counter("tgi_request_success"),
            counter("tgi_request_failure").optional(),
        ])],
    ),
    rule(
        Signal::Failed,
        &[Source::of(&[counter("tgi_request_failure")])],
    ),
    rule(
        Signal::TimePerOutputToken,
        &[Source::of(&[histogram("tgi_request_mean_time_per_token_duration")]).at_finish()],
    ),
    rule(
        Signal::EndToEnd,
        &[Source::of(&[histogram("tgi_request_duration")]).at_finish()],
    ),
    rule(
        Signal::QueueTime,
        &[Source::of(&[histogram("tgi_request_queue_duration")]).at_finish()],
    ),
    rule(
        Signal::InferenceTime,
        &[Source::of(&[histogram("tgi_request_inference_duration")]).at_finish()],
    ),
    rule(
        Signal::InputLength,
        &[Source::of(&[mean("tgi_request_input_length")]).at_finish()],
    ),
    rule(
        Signal::OutputLength,
        &[Source::of(&[mean("tgi_request_generated_tokens")]).at_finish()],
    ),
];
