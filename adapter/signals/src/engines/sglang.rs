//! SGLang, 0.4.6 to 0.5.23. Scheduler families carry rank labels, tokenizer families do not.
//!
//! Always in Prometheus' multiprocess mode: a labelled series appears with its first event, and there is no restart stamp.

use super::model::LabelTest::{Is, OneOf};
use super::model::{
    Engine, LabelTest, RoleLabel, Rule, Source, Spelling, Term, Tier, counter, gauge, histogram,
    mean, prefix, ratio, rule,
};
use super::{PLAIN, Signal};

/// The first rank of each tensor and pipeline group; with a flag every rank reports the same numbers.
const FIRST_RANK: (&str, LabelTest) = ("tp_rank", OneOf(&["", "0"]));
const FIRST_STAGE: (&str, LabelTest) = ("pp_rank", OneOf(&["", "0"]));
/// With priority scheduling the total is the series with an empty priority.
const ALL_PRIORITIES: (&str, LabelTest) = ("priority", Is(""));

const fn queue(name: &'static str) -> Term {
    gauge(name).only(&[FIRST_RANK, FIRST_STAGE, ALL_PRIORITIES])
}

const PREFILL: LabelTest = OneOf(&["prefill_compute", "prefill_cache"]);

const REALTIME: &str = "sglang:realtime_tokens_total";

/// The model gateway, a router; its series are not read, so that they are not taken for an engine's.
pub(super) static GATEWAY: Engine = Engine {
    name: "sglang-gateway",
    versions: "0.5.23",
    place: "port 29000, /metrics",
    note: "A router that tells nothing we read: select the engines behind it.",
    tier: Tier::Frontend,
    marks: &[prefix("smg_")],
    ..PLAIN
};

/// One server; with DP attention several ranks (label `dp_rank`), which are summed.
pub(super) static ENGINE: Engine = Engine {
    name: "sglang",
    versions: "0.4.6 to 0.5.23",
    place: "port 30000, /metrics, with --enable-metrics",
    note: "Gauges are refreshed every 40 decode steps. Before 0.5.12 tokens are counted only when requests end.",
    tier: Tier::Engine,
    marks: &[prefix("sglang:"), prefix("sglang_")],
    spellings: &[Spelling {
        rule: "sglang:",
        others: &["sglang_"],
    }],
    model_label: Some("model_name"),
    role_label: Some(RoleLabel {
        label: "engine_type",
        roles: &[
            ("prefill", "prefill"),
            ("decode", "decode"),
            ("unified", "aggregated"),
        ],
    }),
    rules: RULES,
    ..PLAIN
};

const RULES: &[Rule] = &[
    rule(
        Signal::Running,
        &[Source::of(&[queue("sglang:num_running_reqs")])],
    ),
    rule(
        Signal::Waiting,
        &[Source::of(&[
            queue("sglang:num_queue_reqs"),
            queue("sglang:num_grammar_queue_reqs").optional(),
        ])],
    ),
    rule(
        Signal::WaitingDeferred,
        &[Source::of(&[queue("sglang:num_grammar_queue_reqs")])],
    ),
    rule(
        Signal::WaitingForTransfer,
        &[Source::of(&[
            queue("sglang:num_decode_prealloc_queue_reqs"),
            queue("sglang:num_decode_transfer_queue_reqs").optional(),
            queue("sglang:num_prefill_bootstrap_queue_reqs").optional(),
            queue("sglang:num_prefill_prealloc_queue_reqs").optional(),
            queue("sglang:num_prefill_inflight_queue_reqs").optional(),
            queue("sglang:num_prefill_infight_queue_reqs").optional(),
        ])],
    ),
    rule(
        Signal::PrefillBootstrap,
        &[
            Source::of(&[queue("sglang:num_prefill_bootstrap_queue_reqs")]).versions("0.5.12 on"),
            Source::of(&[queue("sglang:num_prefill_prealloc_queue_reqs")])
                .versions("0.4.9 to 0.5.6"),
        ],
    ),
    rule(
        Signal::PrefillInFlight,
        &[
            Source::of(&[queue("sglang:num_prefill_inflight_queue_reqs")]),
            Source::of(&[queue("sglang:num_prefill_infight_queue_reqs")]).versions("0.4.9"),
        ],
    ),
    rule(
        Signal::DecodePreallocation,
        &[Source::of(&[queue(
            "sglang:num_decode_prealloc_queue_reqs",
        )])],
    ),
    rule(
        Signal::DecodeTransfer,
        &[Source::of(&[queue(
            "sglang:num_decode_transfer_queue_reqs",
        )])],
    ),
    rule(
        Signal::KvUsedTokens,
        &[Source::of(&[gauge("sglang:num_used_tokens").only(&[
            FIRST_RANK,
            FIRST_STAGE,
            ALL_PRIORITIES,
        ])])],
    ),
    rule(
        Signal::LoraSlotsUsed,
        &[
            Source::of(&[gauge("sglang:lora_pool_slots_used").only(&[FIRST_RANK, FIRST_STAGE])])
                .versions("with LoRA"),
        ],
    ),
    rule(
        Signal::LoraSlots,
        &[
            Source::of(&[gauge("sglang:lora_pool_slots_total").only(&[FIRST_RANK, FIRST_STAGE])])
                .versions("with LoRA"),
        ],
    ),
    rule(
        Signal::KvCacheUsage,
        &[Source::of(&[ratio("sglang:token_usage").only(&[
            FIRST_RANK,
            FIRST_STAGE,
            ALL_PRIORITIES,
        ])])],
    ),
    rule(
        Signal::KvCapacityTokens,
        &[
            Source::of(&[gauge("sglang:max_total_num_tokens").only(&[FIRST_RANK, FIRST_STAGE])])
                .versions("0.5.6 on"),
        ],
    ),
    rule(
        Signal::InputTokens,
        &[
            Source::of(&[counter(REALTIME).only(&[FIRST_RANK, FIRST_STAGE, ("mode", PREFILL)])])
                .late()
                .versions("0.5.12 on"),
            Source::of(&[counter("sglang:prompt_tokens_total")])
                .at_finish()
                .late(),
        ],
    ),
    rule(
        Signal::ComputedInputTokens,
        &[Source::of(&[counter(REALTIME).only(&[
            FIRST_RANK,
            FIRST_STAGE,
            ("mode", Is("prefill_compute")),
        ])])
        .late()
        .versions("0.5.12 on")],
    ),
    rule(
        Signal::OutputTokens,
        &[
            Source::of(&[counter(REALTIME).only(&[
                FIRST_RANK,
                FIRST_STAGE,
                ("mode", Is("decode")),
            ])])
            .late()
            .versions("0.5.12 on"),
            Source::of(&[counter("sglang:generation_tokens_total")])
                .at_finish()
                .late(),
        ],
    ),
    rule(
        Signal::Finished,
        &[Source::of(&[counter("sglang:num_requests_total")]).late()],
    ),
    rule(
        Signal::Failed,
        &[Source::of(&[counter("sglang:num_aborted_requests_total")]).late()],
    ),
    rule(
        Signal::Aborted,
        &[Source::of(&[counter("sglang:num_aborted_requests_total")]).late()],
    ),
    rule(
        Signal::Preemptions,
        &[
            Source::of(&[counter("sglang:num_retracted_requests_total")])
                .late()
                .versions("0.5.12 on"),
        ],
    ),
    rule(
        Signal::PrefixHits,
        &[
            Source::of(&[counter(REALTIME).only(&[
                FIRST_RANK,
                FIRST_STAGE,
                ("mode", Is("prefill_cache")),
            ])])
            .late()
            .versions("0.5.12 on"),
            Source::of(&[counter("sglang:cached_tokens_total")])
                .at_finish()
                .late(),
        ],
    ),
    rule(
        Signal::PrefixQueries,
        &[
            Source::of(&[counter(REALTIME).only(&[FIRST_RANK, FIRST_STAGE, ("mode", PREFILL)])])
                .late()
                .versions("0.5.12 on"),
            Source::of(&[counter("sglang:prompt_tokens_total")])
                .at_finish()
                .late(),
        ],
    ),
    rule(
        Signal::Ttft,
        &[Source::of(&[histogram("sglang:time_to_first_token_seconds")]).late()],
    ),
    rule(
        Signal::Itl,
        &[Source::of(&[histogram("sglang:inter_token_latency_seconds")]).late()],
    ),
    rule(
        Signal::TimePerOutputToken,
        &[
            Source::of(&[mean("sglang:request_time_per_output_token_seconds")])
                .at_finish()
                .late()
                .versions("0.5.23, mean only"),
        ],
    ),
    rule(
        Signal::EndToEnd,
        &[
            Source::of(&[histogram("sglang:e2e_request_latency_seconds")])
                .at_finish()
                .late(),
        ],
    ),
    rule(
        Signal::QueueTime,
        &[
            Source::of(&[histogram("sglang:queue_time_seconds").only(&[FIRST_RANK, FIRST_STAGE])])
                .late()
                .versions("0.5.6 on"),
        ],
    ),
    rule(
        Signal::TransferTime,
        &[Source::of(&[mean("sglang:kv_transfer_latency_ms")
            .scaled(1e-3)
            .only(&[FIRST_RANK, FIRST_STAGE])])
        .late()
        .versions("0.5.12 on")],
    ),
    rule(
        Signal::InputLength,
        &[Source::of(&[mean("sglang:prompt_tokens_histogram")])
            .at_finish()
            .late()],
    ),
    rule(
        Signal::OutputLength,
        &[Source::of(&[mean("sglang:generation_tokens_histogram")])
            .at_finish()
            .late()],
    ),
];
