//! NVIDIA NIM for language models, 1.x; 2.x shows the series of the engine inside. Known from documentation only.

use super::model::LabelTest::Is;
use super::model::{
    Engine, Mark, Rule, Sign, Source, Tier, counter, gauge, histogram, mean, ratio, rule,
};
use super::{PLAIN, Signal};

/// One server.
pub(super) static ENGINE: Engine = Engine {
    name: "nim",
    versions: "1.x, from documentation",
    place: "port 8000, /v1/metrics, in first releases /metrics",
    note: "2.x shows the series of vLLM or SGLang, which are read instead.",
    tier: Tier::Engine,
    marks: &[Mark::new(Sign::Name("num_request_max")).with(Sign::Name("gpu_cache_usage_perc"))],
    model_label: Some("model_name"),
    rules: RULES,
    ..PLAIN
};

const RULES: &[Rule] = &[
    rule(
        Signal::Running,
        &[Source::of(&[gauge("num_requests_running")])],
    ),
    rule(
        Signal::Waiting,
        &[Source::of(&[gauge("num_requests_waiting")])],
    ),
    rule(
        Signal::RunningLimit,
        &[Source::of(&[gauge("num_request_max")])],
    ),
    rule(
        Signal::KvCacheUsage,
        &[Source::of(&[ratio("gpu_cache_usage_perc")])],
    ),
    rule(
        Signal::InputTokens,
        &[Source::of(&[counter("prompt_tokens_total")])],
    ),
    rule(
        Signal::OutputTokens,
        &[Source::of(&[counter("generation_tokens_total")])],
    ),
    rule(
        Signal::Finished,
        &[Source::of(&[counter("request_finish_total")]).late()],
    ),
    rule(
        Signal::FinishedStop,
        &[
            Source::of(&[counter("request_finish_total").only(&[("finished_reason", Is("stop"))])])
                .late(),
        ],
    ),
    rule(
        Signal::FinishedLength,
        &[Source::of(
            &[counter("request_finish_total").only(&[("finished_reason", Is("length"))])],
        )
        .late()],
    ),
    rule(
        Signal::Failed,
        &[Source::of(&[counter("request_failure_total")]).late()],
    ),
    rule(
        Signal::Ttft,
        &[Source::of(&[histogram("time_to_first_token_seconds")])],
    ),
    rule(
        Signal::Itl,
        &[Source::of(&[histogram("time_per_output_token_seconds")])],
    ),
    rule(
        Signal::EndToEnd,
        &[Source::of(&[histogram("e2e_request_latency_seconds")]).at_finish()],
    ),
    rule(
        Signal::InputLength,
        &[Source::of(&[mean("request_prompt_tokens")]).at_finish()],
    ),
    rule(
        Signal::OutputLength,
        &[Source::of(&[mean("request_generation_tokens")]).at_finish()],
    ),
];
