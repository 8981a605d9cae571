//! llama.cpp's server. No labels, no histograms; the `*_tokens_seconds` gauges restart at each scrape of anybody, so the
//! counters are read.

use super::{Engine, Source, Tier, counter, gauge, rule};
use crate::engines::Signal;

/// One server with its slots.
pub(super) static ENGINE: Engine = Engine {
    name: "llama.cpp",
    tier: Tier::Engine,
    prefixes: &["llamacpp:"],
    model_label: None,
    role_label: None,
    start_time: None,
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
    ],
};
