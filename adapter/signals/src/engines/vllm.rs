//! vLLM, V0 to 0.33 and its Rust front end; also what wraps or imitates it under `vllm:` names.

use super::model::LabelTest::{Is, OneOf};
use super::model::{
    Engine, LabelTest, Mark, Reading, Rule, Sign, Source, Spelling, Term, Tier, counter, gauge,
    histogram, mean, prefix, ratio, rule,
};
use super::{PLAIN, Signal};

/// The current set of adapters; every earlier one is still a series.
const fn newest(label: &'static str, names: bool) -> Term {
    Term::new("vllm:lora_requests_info", Reading::Newest { label, names })
}

/// One engine, or several data-parallel ranks (label `engine`) behind one or more API servers.
pub(super) static ENGINE: Engine = Engine {
    name: "vllm",
    versions: "0.6.6 to 0.33.0, V0 and V1, and the Rust front end",
    place: "port 8000, /metrics",
    note: "Gauges are snapshots of the last scheduler step: before the first step ends they read 0. LoRA series are reliable with one \
           engine and one API server only; a name with a comma counts as two.",
    tier: Tier::Engine,
    marks: &[
        prefix("vllm:"),
        Mark::new(Sign::Name("vllm_num_requests_running")),
        prefix("ray_vllm_"),
    ],
    spellings: &[Spelling {
        rule: "vllm:",
        others: &["vllm_", "ray_vllm_"],
    }],
    model_label: Some("model_name"),
    start_time: Some("process_start_time_seconds"),
    rules: RULES,
    ..PLAIN
};

/// Requests that ended for this reason.
const fn ended(reason: &'static [(&'static str, LabelTest)]) -> Term {
    counter("vllm:request_success_total").only(reason)
}

const RULES: &[Rule] =
    &[
        rule(
            Signal::Running,
            &[Source::of(&[gauge("vllm:num_requests_running")])],
        ),
        rule(
            Signal::Waiting,
            &[Source::of(&[gauge("vllm:num_requests_waiting")])],
        ),
        rule(
            Signal::WaitingCapacity,
            &[Source::of(&[
                gauge("vllm:num_requests_waiting_by_reason").only(&[("reason", Is("capacity"))])
            ])
            .versions("0.20.2 on")],
        ),
        rule(
            Signal::WaitingDeferred,
            &[Source::of(&[
                gauge("vllm:num_requests_waiting_by_reason").only(&[("reason", Is("deferred"))])
            ])
            .versions("0.20.2 on")],
        ),
        rule(
            Signal::KvFetchWaiting,
            &[Source::of(&[gauge("vllm:num_requests_kv_fetch_by_stage")
                .only(&[("stage", Is("waiting_to_start"))])])
            .versions("0.33, KV consumers")],
        ),
        rule(
            Signal::KvFetchRunning,
            &[Source::of(&[
                gauge("vllm:num_requests_kv_fetch_by_stage").only(&[("stage", Is("in_progress"))])
            ])
            .versions("0.33, KV consumers")],
        ),
        rule(
            Signal::Paused,
            &[Source::of(&[gauge("vllm:num_requests_swapped")]).versions("V0")],
        ),
        rule(
            Signal::KvCacheUsage,
            &[
                Source::of(&[ratio("vllm:kv_cache_usage_perc")]).versions("0.9.2 on"),
                Source::of(&[ratio("vllm:gpu_cache_usage_perc")]).versions("to 0.10.2"),
            ],
        ),
        rule(
            Signal::KvCapacityTokens,
            &[Source::of(&[Term::new(
                "vllm:cache_config_info",
                Reading::Labels(&[&["kv_cache_size_tokens"], &["num_gpu_blocks", "block_size"]]),
            )])
            .versions("not the Rust front end")],
        ),
        rule(
            Signal::Awake,
            &[Source::of(
                &[gauge("vllm:engine_sleep_state").only(&[("sleep_state", Is("awake"))])],
            )
            .versions("0.11 on, not the Rust front end")],
        ),
        rule(
            Signal::Asleep,
            &[Source::of(&[gauge("vllm:engine_sleep_state")
                .only(&[("sleep_state", OneOf(&["weights_offloaded", "discard_all"]))])])
            .versions("0.11 on, not the Rust front end")],
        ),
        rule(
            Signal::LoraRunning,
            &[Source::of(&[newest("running_lora_adapters", true)]).versions("with LoRA")],
        ),
        rule(
            Signal::LoraWaiting,
            &[Source::of(&[newest("waiting_lora_adapters", true)]).versions("with LoRA")],
        ),
        rule(
            Signal::LoraSlots,
            &[Source::of(&[newest("max_lora", false)]).versions("with LoRA")],
        ),
        rule(
            Signal::InputTokens,
            &[Source::of(&[counter("vllm:prompt_tokens_total")])],
        ),
        rule(
            Signal::ComputedInputTokens,
            &[Source::of(&[counter("vllm:prompt_tokens_by_source_total")
                .only(&[("source", Is("local_compute"))])])
            .versions("0.16 on")],
        ),
        rule(
            Signal::OutputTokens,
            &[Source::of(&[counter("vllm:generation_tokens_total")])],
        ),
        rule(Signal::Finished, &[Source::of(&[ended(&[])])]),
        rule(
            Signal::FinishedStop,
            &[Source::of(&[ended(&[("finished_reason", Is("stop"))])])],
        ),
        rule(
            Signal::FinishedLength,
            &[Source::of(&[ended(&[("finished_reason", Is("length"))])])],
        ),
        rule(
            Signal::Aborted,
            &[Source::of(&[ended(&[("finished_reason", Is("abort"))])])],
        ),
        rule(
            Signal::Failed,
            &[Source::of(&[
                ended(&[("finished_reason", Is("error"))]),
                counter("vllm:admission_rejections_total").optional(),
            ])
            .late()
            .versions("errors 0.13 on, refusals 0.32 on")],
        ),
        rule(
            Signal::Preemptions,
            &[Source::of(&[counter("vllm:num_preemptions_total")])],
        ),
        rule(
            Signal::PrefixHits,
            &[
                Source::of(&[counter("vllm:prefix_cache_hits_total")]).versions("0.9.2 on"),
                Source::of(&[counter("vllm:gpu_prefix_cache_hits_total")]).versions("to 0.10.2"),
            ],
        ),
        rule(
            Signal::PrefixQueries,
            &[
                Source::of(&[counter("vllm:prefix_cache_queries_total")]).versions("0.9.2 on"),
                Source::of(&[counter("vllm:gpu_prefix_cache_queries_total")]).versions("to 0.10.2"),
            ],
        ),
        rule(
            Signal::Ttft,
            &[Source::of(&[histogram("vllm:time_to_first_token_seconds")])],
        ),
        rule(
            Signal::Itl,
            &[
                Source::of(&[histogram("vllm:inter_token_latency_seconds")]).versions("0.10.2 on"),
                Source::of(&[histogram("vllm:time_per_output_token_seconds")]).versions("to 0.13"),
            ],
        ),
        rule(
            Signal::TimePerOutputToken,
            &[
                Source::of(&[mean("vllm:request_time_per_output_token_seconds")])
                    .at_finish()
                    .versions("0.11 on, mean only"),
            ],
        ),
        rule(
            Signal::EndToEnd,
            &[Source::of(&[histogram("vllm:e2e_request_latency_seconds")]).at_finish()],
        ),
        rule(
            Signal::QueueTime,
            &[Source::of(&[histogram("vllm:request_queue_time_seconds")]).at_finish()],
        ),
        rule(
            Signal::PrefillTime,
            &[Source::of(&[mean("vllm:request_prefill_time_seconds")]).at_finish()],
        ),
        rule(
            Signal::DecodeTime,
            &[Source::of(&[mean("vllm:request_decode_time_seconds")]).at_finish()],
        ),
        rule(
            Signal::TransferTime,
            &[Source::of(&[mean("vllm:nixl_xfer_time_seconds")])
                .late()
                .versions("with NIXL")],
        ),
        rule(
            Signal::InputLength,
            &[Source::of(&[mean("vllm:request_prompt_tokens")]).at_finish()],
        ),
        rule(
            Signal::OutputLength,
            &[Source::of(&[mean("vllm:request_generation_tokens")]).at_finish()],
        ),
    ];
