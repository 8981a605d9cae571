//! vLLM, V0 to 0.33 and its Rust front end; also what wraps or imitates it under `vllm:` names.

use super::LabelTest::Is;
use super::{
    Engine, Reading, RoleLabel, Source, Term, Tier, counter, gauge, histogram, mean, ratio, rule,
};
use crate::engines::Signal;

/// One engine, or several data-parallel ranks (label `engine`) behind one or more API servers.
pub(super) static ENGINE: Engine = Engine {
    name: "vllm",
    tier: Tier::Engine,
    prefixes: &["vllm:", "vllm_num_requests_"],
    model_label: Some("model_name"),
    role_label: None::<RoleLabel>,
    start_time: Some("process_start_time_seconds"),
    rules: &[
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
            ])],
        ),
        rule(
            Signal::WaitingDeferred,
            &[Source::of(&[
                gauge("vllm:num_requests_waiting_by_reason").only(&[("reason", Is("deferred"))])
            ])],
        ),
        rule(
            Signal::KvCacheUsage,
            &[
                Source::of(&[ratio("vllm:kv_cache_usage_perc")]),
                Source::of(&[ratio("vllm:gpu_cache_usage_perc")]),
            ],
        ),
        rule(
            Signal::KvCapacityTokens,
            &[Source::of(&[Term::new(
                "vllm:cache_config_info",
                Reading::Labels(&[&["kv_cache_size_tokens"], &["num_gpu_blocks", "block_size"]]),
            )])],
        ),
        rule(
            Signal::Awake,
            &[Source::of(&[
                gauge("vllm:engine_sleep_state").only(&[("sleep_state", Is("awake"))])
            ])],
        ),
        rule(
            Signal::InputTokens,
            &[Source::of(&[counter("vllm:prompt_tokens_total")])],
        ),
        rule(
            Signal::ComputedInputTokens,
            &[Source::of(&[counter("vllm:prompt_tokens_by_source_total")
                .only(&[("source", Is("local_compute"))])])],
        ),
        rule(
            Signal::OutputTokens,
            &[Source::of(&[counter("vllm:generation_tokens_total")])],
        ),
        rule(
            Signal::Finished,
            &[Source::of(&[counter("vllm:request_success_total")])],
        ),
        rule(
            Signal::Failed,
            &[Source::of(&[
                counter("vllm:request_success_total").only(&[("finished_reason", Is("error"))]),
                counter("vllm:admission_rejections_total").optional(),
            ])
            .late()],
        ),
        rule(
            Signal::Preemptions,
            &[Source::of(&[counter("vllm:num_preemptions_total")])],
        ),
        rule(
            Signal::PrefixHits,
            &[
                Source::of(&[counter("vllm:prefix_cache_hits_total")]),
                Source::of(&[counter("vllm:gpu_prefix_cache_hits_total")]),
            ],
        ),
        rule(
            Signal::PrefixQueries,
            &[
                Source::of(&[counter("vllm:prefix_cache_queries_total")]),
                Source::of(&[counter("vllm:gpu_prefix_cache_queries_total")]),
            ],
        ),
        rule(
            Signal::Ttft,
            &[Source::of(&[histogram("vllm:time_to_first_token_seconds")])],
        ),
        rule(
            Signal::Itl,
            &[
                Source::of(&[histogram("vllm:inter_token_latency_seconds")]),
                Source::of(&[histogram("vllm:time_per_output_token_seconds")]),
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
            &[Source::of(&[mean("vllm:request_prefill_time_seconds", 1.0)]).at_finish()],
        ),
        rule(
            Signal::DecodeTime,
            &[Source::of(&[mean("vllm:request_decode_time_seconds", 1.0)]).at_finish()],
        ),
        rule(
            Signal::TransferTime,
            &[Source::of(&[mean("vllm:nixl_xfer_time_seconds", 1.0)]).late()],
        ),
        rule(
            Signal::InputLength,
            &[Source::of(&[mean("vllm:request_prompt_tokens", 1.0)]).at_finish()],
        ),
        rule(
            Signal::OutputLength,
            &[Source::of(&[mean("vllm:request_generation_tokens", 1.0)]).at_finish()],
        ),
    ],
};
