//! llama.cpp's server. No labels, no histograms; the `*_tokens_seconds` gauges restart at each scrape of anybody, so the
//! counters are read.

use super::model::{Engine, Source, Tier, counter, gauge, prefix, quotient, rule};
use super::{PLAIN, Signal};

/// One server with its slots.
pub(super) static ENGINE: Engine = Engine {
    name: "llama.cpp",
    versions: "b6700 to b11549",
    place: "port 8080, /metrics, with --metrics",
    note: "The answer waits for the model's step: several seconds under load. Counters move when requests end.",
    tier: Tier::Engine,
    marks: &[prefix("llamacpp:")],
    rules: &[
        rule(
            Signal::Running,
            &[Source::of(&[gauge("llamacpp:requests_processing")])],
        ),
        rule(
            Signal::Waiting,
            &[Source::of(&[gauge("llamacpp:requests_deferred")])],
        ),
        rule(
            Signal::InputTokens,
            &[Source::of(&[
                counter("llamacpp:prompt_tokens_total"),
                counter("llamacpp:prompt_tokens_cached_total").optional(),
            ])
            .at_finish()],
        ),
        rule(
            Signal::ComputedInputTokens,
            &[Source::of(&[counter("llamacpp:prompt_tokens_total")]).at_finish()],
        ),
        rule(
            Signal::OutputTokens,
            &[Source::of(&[counter("llamacpp:tokens_predicted_total")]).at_finish()],
        ),
        rule(
            Signal::PrefixHits,
            &[Source::of(&[counter("llamacpp:prompt_tokens_cached_total")]).at_finish()],
        ),
        rule(
            Signal::PrefixQueries,
            &[Source::of(&[
                counter("llamacpp:prompt_tokens_cached_total"),
                counter("llamacpp:prompt_tokens_total"),
            ])
            .at_finish()],
        ),
        rule(
            Signal::TimePerOutputToken,
            &[Source::of(&[quotient(
                "llamacpp:tokens_predicted_seconds_total",
                "llamacpp:tokens_predicted_total",
            )])
            .at_finish()
            .versions("mean over tokens")],
        ),
    ],
    ..PLAIN
};
