//! LMDeploy. Gauges are refreshed every 10 s; some totals are gauges; reasons are spelled as its Python enum.

use super::model::LabelTest::{Is, NoneOf};
use super::model::{
    Engine, Reading, Rule, Source, Spelling, Term, Tier, counter, gauge, histogram, mean, prefix,
    ratio, rule,
};
use super::{PLAIN, Signal};

/// One server, with one or more engines (label `engine`).
pub(super) static ENGINE: Engine = Engine {
    name: "lmdeploy",
    versions: "0.18.0",
    place: "port 23333, /metrics, before 0.18 with --enable-metrics",
    note: "Gauges are refreshed every 10 s.",
    tier: Tier::Engine,
    marks: &[prefix("lmdeploy:"), prefix("lmdeploy_")],
    spellings: &[Spelling {
        rule: "lmdeploy:",
        others: &["lmdeploy_"],
    }],
    model_label: Some("model_name"),
    start_time: Some("process_start_time_seconds"),
    rules: RULES,
    ..PLAIN
};

const RULES: &[Rule] = &[
    rule(
        Signal::Running,
        &[Source::of(&[gauge("lmdeploy:num_requests_running")])],
    ),
    rule(
        Signal::Waiting,
        &[Source::of(&[
            gauge("lmdeploy:num_requests_waiting"),
            gauge("lmdeploy:num_api_requests_waiting").optional(),
        ])],
    ),
    rule(
        Signal::RunningLimit,
        &[Source::of(&[Term::new(
            "lmdeploy:backend_config_info",
            Reading::Labels(&[&["max_batch_size"]]),
        )])],
    ),
    rule(
        Signal::KvCacheUsage,
        &[Source::of(&[ratio("lmdeploy:gpu_cache_usage_perc")])],
    ),
    rule(
        Signal::InputTokens,
        &[Source::of(&[counter("lmdeploy:prompt_tokens_total")])],
    ),
    rule(
        Signal::OutputTokens,
        &[Source::of(&[counter("lmdeploy:generation_tokens_total")])],
    ),
    rule(
        Signal::PrefixHits,
        &[Source::of(&[counter("lmdeploy:cached_tokens_total")])],
    ),
    rule(
        Signal::PrefixQueries,
        &[Source::of(&[counter("lmdeploy:prompt_tokens_total")])],
    ),
    rule(
        Signal::Finished,
        &[Source::of(&[counter("lmdeploy:request_success_total")]).late()],
    ),
    rule(
        Signal::Aborted,
        &[Source::of(&[counter("lmdeploy:request_success_total")
            .only(&[("finished_reason", Is("ResponseType.CANCEL"))])])
        .late()],
    ),
    rule(
        Signal::Failed,
        &[
            Source::of(&[counter("lmdeploy:request_success_total").only(&[(
                "finished_reason",
                NoneOf(&[
                    "ResponseType.SUCCESS",
                    "ResponseType.FINISH",
                    "ResponseType.CANCEL",
                ]),
            )])])
            .late(),
        ],
    ),
    rule(
        Signal::Ttft,
        &[Source::of(&[histogram(
            "lmdeploy:time_to_first_token_seconds",
        )])],
    ),
    rule(
        Signal::Itl,
        &[Source::of(&[histogram("lmdeploy:iter_token_latency")])],
    ),
    rule(
        Signal::TimePerOutputToken,
        &[Source::of(&[histogram(
            "lmdeploy:time_per_output_token_seconds",
        )])],
    ),
    rule(
        Signal::EndToEnd,
        &[Source::of(&[histogram("lmdeploy:e2e_request_latency_seconds")]).at_finish()],
    ),
    rule(
        Signal::QueueTime,
        &[Source::of(&[histogram("lmdeploy:request_queue_time_seconds")]).at_finish()],
    ),
    rule(
        Signal::InferenceTime,
        &[
            Source::of(&[mean("lmdeploy:request_inference_time_seconds")])
                .at_finish()
                .versions("mean only"),
        ],
    ),
    rule(
        Signal::PrefillTime,
        &[Source::of(&[mean("lmdeploy:request_prefill_time_seconds")]).at_finish()],
    ),
    rule(
        Signal::DecodeTime,
        &[Source::of(&[mean("lmdeploy:request_decode_time_seconds")]).at_finish()],
    ),
    rule(
        Signal::InputLength,
        &[Source::of(&[mean("lmdeploy:request_prompt_tokens")]).at_finish()],
    ),
    rule(
        Signal::OutputLength,
        &[Source::of(&[mean("lmdeploy:request_generation_tokens")]).at_finish()],
    ),
];
