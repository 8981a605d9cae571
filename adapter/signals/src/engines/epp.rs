//! The endpoint picker of the Gateway API inference extension, now llm-d's: a router, which tells about its pool.
//!
//! Each value stands under one or two names: the newest there is holds, and they are never added. The averages keep their last
//! value while no engine is ready; times the number of ready ones they tell the truth.

use super::model::LabelTest::{Is, NoneOf, OneOf};
use super::model::{
    Engine, Rule, Source, Tier, counter, gauge, histogram, mean, prefix, ratio, rule,
};
use super::{PLAIN, Signal};

/// One endpoint picker, with one pool.
pub(super) static ENGINE: Engine = Engine {
    name: "llm-d-epp",
    versions: "GIE 1.5.0, llm-d 0.8 to 0.10.0",
    place: "port 9090, /metrics, may want a bearer token",
    note: "Tells about a pool, from what it scraped itself. Waiting are those in the engines and those held back here.",
    tier: Tier::Frontend,
    marks: &[
        prefix("llm_d_epp_"),
        prefix("inference_pool_"),
        prefix("inference_objective_"),
        prefix("inference_extension_"),
        prefix("inference_model_"),
        prefix("llm_d_inference_scheduler_"),
        prefix("llm_d_router_epp_"),
    ],
    model_label: Some("target_model_name"),
    start_time: Some("process_start_time_seconds"),
    rules: RULES,
    ..PLAIN
};

const NEW: &str = "0.9 on";
const OLD: &str = "to 0.10";

const RULES: &[Rule] = &[
    rule(
        Signal::OfferedRequests,
        &[
            Source::of(&[counter("llm_d_epp_request_total")])
                .late()
                .versions(NEW),
            Source::of(&[counter("inference_objective_request_total")])
                .late()
                .versions(OLD),
        ],
    ),
    rule(
        Signal::OfferedInputTokens,
        &[
            Source::of(&[counter("llm_d_epp_request_input_tokens_sum")])
                .at_finish()
                .late()
                .versions(NEW),
            Source::of(&[counter("inference_objective_input_tokens_sum")])
                .at_finish()
                .late()
                .versions(OLD),
        ],
    ),
    rule(
        Signal::InFlight,
        &[
            Source::of(&[gauge("llm_d_epp_request_running")])
                .late()
                .versions(NEW),
            Source::of(&[gauge("inference_objective_running_requests")])
                .late()
                .versions(OLD),
        ],
    ),
    rule(
        Signal::Running,
        &[
            Source::of(&[
                gauge("llm_d_epp_average_running_requests"),
                gauge("llm_d_epp_ready_endpoints").times(),
            ])
            .versions(NEW),
            Source::of(&[
                gauge("inference_pool_average_running_requests"),
                gauge("inference_pool_ready_pods").times(),
            ])
            .versions(OLD),
        ],
    ),
    rule(
        Signal::Waiting,
        &[
            Source::of(&[
                gauge("llm_d_epp_average_queue_size"),
                gauge("llm_d_epp_ready_endpoints").times(),
                gauge("llm_d_epp_flow_control_queue_size").optional(),
            ])
            .versions(NEW),
            Source::of(&[
                gauge("inference_pool_average_queue_size"),
                gauge("inference_pool_ready_pods").times(),
                gauge("inference_extension_flow_control_queue_size").optional(),
            ])
            .versions(OLD),
        ],
    ),
    rule(
        Signal::HeldAtRouter,
        &[
            Source::of(&[gauge("llm_d_epp_flow_control_queue_size")])
                .late()
                .versions(NEW),
            Source::of(&[gauge("inference_extension_flow_control_queue_size")])
                .late()
                .versions(OLD),
        ],
    ),
    rule(
        Signal::ReadyEndpoints,
        &[
            Source::of(&[gauge("llm_d_epp_ready_endpoints")]).versions(NEW),
            Source::of(&[gauge("inference_pool_ready_pods")]).versions(OLD),
        ],
    ),
    rule(
        Signal::PoolSaturation,
        &[
            Source::of(&[gauge("llm_d_epp_flow_control_pool_saturation")
                .only(&[("stage", OneOf(&["", "effective"]))])])
            .late()
            .versions(NEW),
            Source::of(&[gauge("inference_extension_flow_control_pool_saturation")
                .only(&[("stage", OneOf(&["", "effective"]))])])
            .late()
            .versions(OLD),
        ],
    ),
    // Times and over the number of ready engines: unknown while there are none.
    rule(
        Signal::KvCacheUsage,
        &[
            Source::of(&[
                ratio("llm_d_epp_average_kv_cache_utilization"),
                gauge("llm_d_epp_ready_endpoints").times(),
                gauge("llm_d_epp_ready_endpoints").over(),
            ])
            .versions(NEW),
            Source::of(&[
                ratio("inference_pool_average_kv_cache_utilization"),
                gauge("inference_pool_ready_pods").times(),
                gauge("inference_pool_ready_pods").over(),
            ])
            .versions(OLD),
        ],
    ),
    rule(
        Signal::InputTokens,
        &[
            Source::of(&[counter("llm_d_epp_request_input_tokens_sum")])
                .at_finish()
                .late()
                .versions(NEW),
            Source::of(&[counter("inference_objective_input_tokens_sum")])
                .at_finish()
                .late()
                .versions(OLD),
        ],
    ),
    rule(
        Signal::OutputTokens,
        &[
            Source::of(&[counter("llm_d_epp_request_output_tokens_sum")])
                .at_finish()
                .late()
                .versions(NEW),
            Source::of(&[counter("inference_objective_output_tokens_sum")])
                .at_finish()
                .late()
                .versions(OLD),
        ],
    ),
    rule(
        Signal::PrefixHits,
        &[
            Source::of(&[counter("llm_d_epp_request_cached_tokens_sum")])
                .at_finish()
                .late()
                .versions(NEW),
            Source::of(&[counter("inference_objective_prompt_cached_tokens_sum")])
                .at_finish()
                .late()
                .versions(OLD),
        ],
    ),
    rule(
        Signal::PrefixQueries,
        &[
            Source::of(&[counter("llm_d_epp_request_input_tokens_sum")])
                .at_finish()
                .late()
                .versions(NEW),
            Source::of(&[counter("inference_objective_input_tokens_sum")])
                .at_finish()
                .late()
                .versions(OLD),
        ],
    ),
    rule(
        Signal::Finished,
        &[
            Source::of(&[counter("llm_d_epp_request_duration_seconds_count")])
                .late()
                .versions(NEW),
            Source::of(&[counter(
                "inference_objective_request_duration_seconds_count",
            )])
            .late()
            .versions(OLD),
        ],
    ),
    rule(
        Signal::Aborted,
        &[
            Source::of(&[counter("llm_d_epp_request_error_total")
                .only(&[("error_code", Is("context_canceled"))])])
            .late()
            .versions(NEW),
            Source::of(&[counter("inference_objective_request_error_total")
                .only(&[("error_code", Is("context_canceled"))])])
            .late()
            .versions(OLD),
        ],
    ),
    rule(
        Signal::Failed,
        &[
            Source::of(&[counter("llm_d_epp_request_error_total")
                .only(&[("error_code", NoneOf(&["context_canceled"]))])])
            .late()
            .versions(NEW),
            Source::of(&[counter("inference_objective_request_error_total")
                .only(&[("error_code", NoneOf(&["context_canceled"]))])])
            .late()
            .versions(OLD),
        ],
    ),
    rule(
        Signal::Unservable,
        &[
            Source::of(&[counter("llm_d_epp_flow_control_requests_total")
                .only(&[("outcome", Is("RejectedNoEndpoints"))])])
            .late()
            .versions(NEW),
        ],
    ),
    rule(
        Signal::Ttft,
        &[Source::of(&[histogram("llm_d_epp_request_ttft_seconds")])
            .late()
            .versions(NEW)],
    ),
    rule(
        Signal::Itl,
        &[
            Source::of(&[histogram("llm_d_epp_request_streaming_itl_seconds")])
                .late()
                .versions(NEW),
        ],
    ),
    rule(
        Signal::TimePerOutputToken,
        &[
            Source::of(&[histogram("llm_d_epp_request_streaming_tpot_seconds")])
                .at_finish()
                .late()
                .versions(NEW),
        ],
    ),
    rule(
        Signal::EndToEnd,
        &[
            Source::of(&[histogram("llm_d_epp_request_duration_seconds")])
                .at_finish()
                .late()
                .versions(NEW),
            Source::of(&[histogram("inference_objective_request_duration_seconds")])
                .at_finish()
                .late()
                .versions(OLD),
        ],
    ),
    rule(
        Signal::QueueTime,
        &[
            Source::of(&[
                histogram("llm_d_epp_flow_control_request_queue_duration_seconds")
                    .only(&[("outcome", Is("Dispatched"))]),
            ])
            .late()
            .versions(NEW),
            Source::of(&[histogram(
                "inference_extension_flow_control_request_queue_duration_seconds",
            )
            .only(&[("outcome", Is("Dispatched"))])])
            .late()
            .versions(OLD),
        ],
    ),
    rule(
        Signal::InputLength,
        &[
            Source::of(&[mean("llm_d_epp_request_input_tokens")])
                .at_finish()
                .late()
                .versions(NEW),
            Source::of(&[mean("inference_objective_input_tokens")])
                .at_finish()
                .late()
                .versions(OLD),
        ],
    ),
    rule(
        Signal::OutputLength,
        &[
            Source::of(&[mean("llm_d_epp_request_output_tokens")])
                .at_finish()
                .late()
                .versions(NEW),
            Source::of(&[mean("inference_objective_output_tokens")])
                .at_finish()
                .late()
                .versions(OLD),
        ],
    ),
];
