//! NVIDIA Dynamo 1.x: the frontend, which counts a whole fleet at arrival, and the worker, which wraps an engine.

use super::model::LabelTest::{Is, NoneOf};
use super::model::{
    Engine, RoleLabel, Sign, Source, Tier, counter, gauge, histogram, mean, prefix, rule,
};
use super::{PLAIN, Signal};

/// The frontend. Ids in its labels change with each start.
pub(super) static FRONTEND: Engine = Engine {
    name: "dynamo-frontend",
    versions: "1.4.2 to 1.6.1",
    place: "the HTTP port (8000), /metrics",
    note: "Counts the whole fleet. Where workers drop out every gauge falls to 0 while failures grow. With another prefix \
           (DYN_METRICS_PREFIX) it is recognised, and its series need a mapping.",
    tier: Tier::Frontend,
    marks: &[
        prefix("dynamo_frontend_"),
        prefix("dynamo_router_overhead_").without(Sign::Prefix("dynamo_work_handler_")),
    ],
    model_label: Some("model"),
    rules: &[
        rule(
            Signal::OfferedRequests,
            &[Source::of(&[counter("dynamo_frontend_requests_started_total")]).late()],
        ),
        rule(
            Signal::OfferedInputTokens,
            &[Source::of(&[counter("dynamo_frontend_input_sequence_tokens_sum")]).late()],
        ),
        rule(
            Signal::InFlight,
            &[Source::of(&[gauge("dynamo_frontend_inflight_requests")])],
        ),
        rule(
            Signal::Running,
            &[Source::of(&[
                gauge("dynamo_frontend_inflight_requests"),
                gauge("dynamo_frontend_queued_requests").minus(),
            ])],
        ),
        rule(
            Signal::Waiting,
            &[Source::of(&[
                gauge("dynamo_frontend_queued_requests"),
                gauge("dynamo_frontend_router_queue_pending_requests").optional(),
            ])],
        ),
        rule(
            Signal::HeldAtRouter,
            &[Source::of(&[gauge("dynamo_frontend_router_queue_pending_requests")]).late()],
        ),
        rule(
            Signal::KvCacheDemand,
            &[Source::of(&[
                gauge("dynamo_frontend_worker_active_decode_blocks")
                    .only(&[("worker_type", NoneOf(&["prefill"]))]),
                gauge("dynamo_frontend_model_total_kv_blocks").over_each(),
            ])
            .late()
            .versions("the router's own books: gone workers may remain")],
        ),
        rule(
            Signal::InputTokens,
            &[Source::of(&[counter("dynamo_frontend_input_sequence_tokens_sum")]).late()],
        ),
        rule(
            Signal::OutputTokens,
            &[Source::of(&[counter("dynamo_frontend_output_tokens_total")]).late()],
        ),
        rule(
            Signal::Finished,
            &[Source::of(&[counter("dynamo_frontend_requests_total")]).late()],
        ),
        rule(
            Signal::Failed,
            &[Source::of(&[
                counter("dynamo_frontend_requests_total").only(&[("status", NoneOf(&["success"]))])
            ])
            .late()],
        ),
        rule(
            Signal::Unservable,
            &[Source::of(&[counter("dynamo_frontend_requests_total")
                .only(&[("error_type", Is("unavailable"))])])
            .late()],
        ),
        rule(
            Signal::Ttft,
            &[Source::of(&[histogram("dynamo_frontend_time_to_first_token_seconds")]).late()],
        ),
        rule(
            Signal::Itl,
            &[Source::of(&[histogram("dynamo_frontend_inter_token_latency_seconds")]).late()],
        ),
        rule(
            Signal::EndToEnd,
            &[
                Source::of(&[histogram("dynamo_frontend_request_duration_seconds")])
                    .at_finish()
                    .late(),
            ],
        ),
        rule(
            Signal::InputLength,
            &[Source::of(&[mean("dynamo_frontend_input_sequence_tokens")]).late()],
        ),
        rule(
            Signal::OutputLength,
            &[
                Source::of(&[mean("dynamo_frontend_output_sequence_tokens")])
                    .at_finish()
                    .late(),
            ],
        ),
    ],
    ..PLAIN
};

/// The worker: its own families, beside the engine's own. Other endpoints than `generate` answer questions about the
/// cache, not requests.
pub(super) static WORKER: Engine = Engine {
    name: "dynamo-worker",
    versions: "1.4.2 to 1.6.1",
    place: "DYN_SYSTEM_PORT (off by default), /metrics",
    note: "The engine's own series stand in the same body and are read too.",
    tier: Tier::Worker,
    marks: &[prefix("dynamo_component_"), prefix("dynamo_work_handler_")],
    role_label: Some(RoleLabel {
        label: "dynamo_component",
        roles: &[("prefill", "prefill"), ("decode", "decode")],
    }),
    rules: &[
        rule(
            Signal::InFlight,
            &[Source::of(&[gauge("dynamo_component_inflight_requests")
                .only(&[("dynamo_endpoint", Is("generate"))])])],
        ),
        rule(
            Signal::ReceivedRequests,
            &[Source::of(&[counter("dynamo_component_requests_total")
                .only(&[("dynamo_endpoint", Is("generate"))])])],
        ),
        rule(
            Signal::Failed,
            &[Source::of(&[counter("dynamo_component_errors_total")
                .only(&[("dynamo_endpoint", Is("generate"))])])
            .late()],
        ),
    ],
    ..PLAIN
};
