//! Triton Inference Server: with the TensorRT-LLM backend, and with any other.
//!
//! Counters have no `_total`, durations are in microseconds. An ensemble reports each of its steps as a model, and the whole
//! as one more: where the backend tells which one runs the model, only that one is read. Triton's `exec_count` counts batches,
//! not requests that run.

use super::model::LabelTest::{Is, NoneOf};
use super::model::{
    Engine, LabelTest, Rule, Sign, Source, Term, Tier, counter, gauge, histogram, mean, prefix,
    quotient, rule,
};
use super::{PLAIN, Signal};

/// The step of an ensemble that runs the model.
const MODEL: (&str, LabelTest) = ("model", Is("tensorrt_llm"));

/// With `tensorrtllm_backend`, which refreshes its gauges about once a second.
pub(super) static TENSORRT_LLM: Engine = Engine {
    name: "triton-tensorrt-llm",
    versions: "25.09",
    place: "port 8002, /metrics",
    note: "Of an ensemble only the model tensorrt_llm is read.",
    tier: Tier::Engine,
    marks: &[prefix("nv_trt_llm_")],
    model_label: Some("model"),
    rules: BACKEND,
    ..PLAIN
};

/// With any other backend; vLLM's brings its own series.
pub(super) static OTHER_BACKENDS: Engine = Engine {
    name: "triton",
    versions: "25.09",
    place: "port 8002, /metrics",
    note: "Each model is told apart; an ensemble is one more. It does not tell how many requests run.",
    tier: Tier::Engine,
    marks: &[prefix("nv_inference_").without(Sign::Prefix("nv_trt_llm_"))],
    model_label: Some("model"),
    rules: CORE,
    ..PLAIN
};

const REQUESTS: &str = "nv_trt_llm_request_metrics";
const BLOCKS: &str = "nv_trt_llm_kv_cache_block_metrics";

const fn requests(kind: &'static [(&'static str, LabelTest)]) -> Term {
    gauge(REQUESTS).only(kind)
}

const fn blocks(kind: &'static [(&'static str, LabelTest)]) -> Term {
    gauge(BLOCKS).only(kind)
}

const BACKEND: &[Rule] = &[
    rule(
        Signal::Running,
        &[Source::of(&[requests(&[(
            "request_type",
            Is("scheduled"),
        )])])],
    ),
    rule(
        Signal::Waiting,
        &[
            Source::of(&[requests(&[("request_type", Is("waiting"))])]).by_labels(),
            Source::of(&[
                requests(&[("request_type", Is("active"))]),
                requests(&[("request_type", Is("scheduled"))]).minus(),
            ]),
        ],
    ),
    rule(
        Signal::InFlight,
        &[Source::of(&[requests(&[("request_type", Is("active"))])])],
    ),
    rule(
        Signal::RunningLimit,
        &[Source::of(&[requests(&[("request_type", Is("max"))])])],
    ),
    rule(
        Signal::Paused,
        &[Source::of(&[gauge("nv_trt_llm_inflight_batcher_metrics")
            .only(&[(
                "inflight_batcher_specific_metric",
                Is("paused_requests"),
            )])])],
    ),
    rule(
        Signal::KvCacheUsage,
        &[Source::of(&[
            blocks(&[("kv_cache_block_type", Is("used"))]),
            blocks(&[("kv_cache_block_type", Is("max"))]).over(),
        ])],
    ),
    rule(
        Signal::KvUsedTokens,
        &[Source::of(&[
            blocks(&[("kv_cache_block_type", Is("used"))]),
            blocks(&[("kv_cache_block_type", Is("tokens_per"))]).times(),
        ])],
    ),
    rule(
        Signal::KvCapacityTokens,
        &[Source::of(&[
            blocks(&[("kv_cache_block_type", Is("max"))]),
            blocks(&[("kv_cache_block_type", Is("tokens_per"))]).times(),
        ])],
    ),
    rule(
        Signal::InputTokens,
        &[Source::of(&[counter("nv_llm_input_token_len_sum")])
            .at_finish()
            .late()],
    ),
    rule(
        Signal::OutputTokens,
        &[Source::of(&[counter("nv_llm_output_token_len_sum")])
            .at_finish()
            .late()],
    ),
    rule(
        Signal::Finished,
        &[Source::of(&[
            counter("nv_inference_request_success").only(&[MODEL]),
            counter("nv_inference_request_failure")
                .only(&[MODEL])
                .optional(),
        ])],
    ),
    rule(
        Signal::Aborted,
        &[Source::of(&[
            counter("nv_inference_request_failure").only(&[MODEL, ("reason", Is("CANCELED"))])
        ])],
    ),
    rule(
        Signal::Failed,
        &[Source::of(&[counter("nv_inference_request_failure")
            .only(&[MODEL, ("reason", NoneOf(&["CANCELED"]))])])],
    ),
    rule(
        Signal::Ttft,
        &[
            Source::of(&[histogram("nv_inference_first_response_histogram_ms")
                .scaled(1e-3)
                .only(&[MODEL])])
            .late()
            .versions("opt-in"),
        ],
    ),
    rule(
        Signal::EndToEnd,
        &[Source::of(&[quotient(
            "nv_inference_request_duration_us",
            "nv_inference_request_success",
        )
        .scaled(1e-6)
        .only(&[MODEL])])
        .at_finish()
        .versions("mean only")],
    ),
    rule(
        Signal::QueueTime,
        &[Source::of(&[quotient(
            "nv_inference_queue_duration_us",
            "nv_inference_request_success",
        )
        .scaled(1e-6)
        .only(&[MODEL])])
        .at_finish()
        .versions("mean only; Triton's queue, not the backend's")],
    ),
    rule(
        Signal::InputLength,
        &[Source::of(&[mean("nv_llm_input_token_len")])
            .at_finish()
            .late()],
    ),
    rule(
        Signal::OutputLength,
        &[Source::of(&[mean("nv_llm_output_token_len")])
            .at_finish()
            .late()],
    ),
];

const CORE: &[Rule] = &[
    rule(
        Signal::Waiting,
        &[Source::of(&[gauge("nv_inference_pending_request_count")])],
    ),
    rule(
        Signal::Finished,
        &[Source::of(&[
            counter("nv_inference_request_success"),
            counter("nv_inference_request_failure").optional(),
        ])],
    ),
    rule(
        Signal::Aborted,
        &[Source::of(&[
            counter("nv_inference_request_failure").only(&[("reason", Is("CANCELED"))])
        ])],
    ),
    rule(
        Signal::Failed,
        &[Source::of(&[
            counter("nv_inference_request_failure").only(&[("reason", NoneOf(&["CANCELED"]))])
        ])],
    ),
    rule(
        Signal::Ttft,
        &[
            Source::of(&[histogram("nv_inference_first_response_histogram_ms").scaled(1e-3)])
                .late()
                .versions("opt-in"),
        ],
    ),
    rule(
        Signal::EndToEnd,
        &[Source::of(&[quotient(
            "nv_inference_request_duration_us",
            "nv_inference_request_success",
        )
        .scaled(1e-6)])
        .at_finish()
        .versions("mean only")],
    ),
    rule(
        Signal::QueueTime,
        &[Source::of(&[quotient(
            "nv_inference_queue_duration_us",
            "nv_inference_request_success",
        )
        .scaled(1e-6)])
        .at_finish()
        .versions("mean only")],
    ),
];
