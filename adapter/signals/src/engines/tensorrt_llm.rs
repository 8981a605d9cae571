//! TensorRT-LLM's own server (trtllm-serve), 1.0 to the main branch of August 2026.
//!
//! Always in Prometheus' multiprocess mode: each gauge names its process, and outlives it. 1.0 and 1.1 have five series, all
//! without a prefix; Dynamo puts `trtllm_` in front of them, `trtllm:` in older releases.

use super::model::LabelTest::Is;
use super::model::{
    Engine, Mark, Rule, Sign, Source, Spelling, Tier, counter, gauge, histogram, mean, prefix,
    ratio, rule,
};
use super::{PLAIN, Signal};

/// One server.
pub(super) static ENGINE: Engine = Engine {
    name: "tensorrt-llm",
    versions: "1.0, 1.1.0, main of 2026-08",
    place: "port 8000, /prometheus/metrics, with return_perf_metrics; gauges with enable_iter_perf_stats",
    note: "Everything but gauges moves when requests end. 1.0 and 1.1 have no gauges. Gauges appear with the first iteration.",
    tier: Tier::Engine,
    marks: &[
        prefix("trtllm_"),
        prefix("trtllm:"),
        Mark::new(Sign::Label("request_success_total", "engine_type")),
        Mark::new(Sign::Label(
            "e2e_request_latency_seconds_count",
            "engine_type",
        )),
    ],
    spellings: &[Spelling {
        rule: "trtllm_",
        others: &["trtllm:", ""],
    }],
    model_label: Some("model_name"),
    unnamed_model: Some("undefined"),
    process_label: Some("pid"),
    rules: RULES,
    ..PLAIN
};

const RULES: &[Rule] = &[
    rule(
        Signal::Running,
        &[Source::of(&[gauge("trtllm_num_requests_running")])
            .late()
            .versions("main")],
    ),
    rule(
        Signal::Waiting,
        &[Source::of(&[gauge("trtllm_num_requests_waiting")])
            .late()
            .versions("main")],
    ),
    rule(
        Signal::Paused,
        &[Source::of(&[gauge("trtllm_num_paused_requests")])
            .late()
            .versions("main")],
    ),
    rule(
        Signal::RunningLimit,
        &[
            Source::of(&[gauge("trtllm_max_num_active_requests")])
                .late()
                .versions("main"),
            Source::of(&[gauge("trtllm_max_batch_size_runtime")])
                .late()
                .versions("main"),
        ],
    ),
    rule(
        Signal::KvCacheUsage,
        &[
            Source::of(&[ratio("trtllm_kv_cache_utilization")])
                .late()
                .versions("main"),
            Source::of(&[
                gauge("trtllm_kv_cache_used_blocks"),
                gauge("trtllm_kv_cache_max_blocks").over(),
            ])
            .late()
            .versions("main"),
        ],
    ),
    rule(
        Signal::KvUsedTokens,
        &[Source::of(&[
            gauge("trtllm_kv_cache_used_blocks"),
            gauge("trtllm_kv_cache_tokens_per_block").times(),
        ])
        .late()
        .versions("main")],
    ),
    rule(
        Signal::KvCapacityTokens,
        &[Source::of(&[
            gauge("trtllm_kv_cache_max_blocks"),
            gauge("trtllm_kv_cache_tokens_per_block").times(),
        ])
        .late()
        .versions("main")],
    ),
    rule(
        Signal::InputTokens,
        &[Source::of(&[counter("trtllm_prompt_tokens_total")])
            .at_finish()
            .late()
            .versions("main")],
    ),
    rule(
        Signal::OutputTokens,
        &[Source::of(&[counter("trtllm_generation_tokens_total")])
            .at_finish()
            .late()
            .versions("main")],
    ),
    rule(
        Signal::PrefixHits,
        &[
            Source::of(&[counter("trtllm_kv_cache_reused_blocks_total")])
                .late()
                .versions("main, blocks"),
        ],
    ),
    rule(
        Signal::PrefixQueries,
        &[Source::of(&[
            counter("trtllm_kv_cache_reused_blocks_total"),
            counter("trtllm_kv_cache_missed_blocks_total"),
        ])
        .late()
        .versions("main, blocks")],
    ),
    rule(
        Signal::Finished,
        &[Source::of(&[counter("trtllm_request_success_total")]).late()],
    ),
    rule(
        Signal::FinishedStop,
        &[Source::of(&[
            counter("trtllm_request_success_total").only(&[("finished_reason", Is("stop"))])
        ])
        .late()],
    ),
    rule(
        Signal::FinishedLength,
        &[Source::of(&[
            counter("trtllm_request_success_total").only(&[("finished_reason", Is("length"))])
        ])
        .late()],
    ),
    rule(
        Signal::Aborted,
        &[Source::of(&[
            counter("trtllm_request_success_total").only(&[("finished_reason", Is("cancelled"))])
        ])
        .late()],
    ),
    rule(
        Signal::Failed,
        &[Source::of(&[counter("trtllm_request_error_total")])
            .late()
            .versions("main")],
    ),
    rule(
        Signal::Ttft,
        &[
            Source::of(&[histogram("trtllm_time_to_first_token_seconds")])
                .at_finish()
                .late(),
        ],
    ),
    rule(
        Signal::TimePerOutputToken,
        &[
            Source::of(&[histogram("trtllm_time_per_output_token_seconds")])
                .at_finish()
                .late(),
        ],
    ),
    rule(
        Signal::EndToEnd,
        &[
            Source::of(&[histogram("trtllm_e2e_request_latency_seconds")])
                .at_finish()
                .late(),
        ],
    ),
    rule(
        Signal::QueueTime,
        &[
            Source::of(&[histogram("trtllm_request_queue_time_seconds")])
                .at_finish()
                .late(),
        ],
    ),
    rule(
        Signal::InferenceTime,
        &[Source::of(&[mean("trtllm_request_inference_time_seconds")])
            .at_finish()
            .late()
            .versions("main, mean only")],
    ),
    rule(
        Signal::PrefillTime,
        &[Source::of(&[mean("trtllm_request_prefill_time_seconds")])
            .at_finish()
            .late()
            .versions("main")],
    ),
    rule(
        Signal::DecodeTime,
        &[Source::of(&[mean("trtllm_request_decode_time_seconds")])
            .at_finish()
            .late()
            .versions("main")],
    ),
];
