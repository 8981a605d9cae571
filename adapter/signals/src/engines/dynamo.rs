//! NVIDIA Dynamo 1.x: the frontend, which counts a whole fleet at arrival, and the worker, which wraps an engine.

use super::LabelTest::{Is, NoneOf};
use super::{Engine, RoleLabel, Source, Tier, counter, gauge, histogram, mean, rule};
use crate::engines::Signal;

/// The frontend. Ids in its labels change with each start.
pub(super) static FRONTEND: Engine = Engine {
    name: "dynamo-frontend",
    tier: Tier::Frontend,
    prefixes: &["dynamo_frontend_"],
    model_label: Some("model"),
    role_label: None,
    start_time: None,
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
            &[Source::of(&[mean("dynamo_frontend_input_sequence_tokens", 1.0)]).late()],
        ),
        rule(
            Signal::OutputLength,
            &[
                Source::of(&[mean("dynamo_frontend_output_sequence_tokens", 1.0)])
                    .at_finish()
                    .late(),
            ],
        ),
    ],
};

/// The worker: its own families, beside the engine's own. Other endpoints than `generate` answer questions about the
/// cache, not requests.
pub(super) static WORKER: Engine = Engine {
    name: "dynamo-worker",
    tier: Tier::Worker,
    prefixes: &["dynamo_component_", "dynamo_work_handler_"],
    model_label: None,
    role_label: Some(RoleLabel {
        label: "dynamo_component",
        roles: &[("prefill", "prefill"), ("decode", "decode")],
    }),
    start_time: None,
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
};
