//! Ray's node agent, which shows every replica of the node in one body. vLLM's series stand there with `ray_vllm_` in front;
//! they are read by vLLM's rules.

use super::model::{Engine, Source, Tier, gauge, prefix, rule};
use super::{PLAIN, Signal};

/// One node.
pub(super) static NODE: Engine = Engine {
    name: "ray",
    versions: "2.60.0",
    place: "port 8080 of the node agent, /metrics",
    note: "All replicas of the node together; series of workers that are gone linger. Sums of histograms are rebuilt from \
           buckets, so that means are estimates. A request counts in each deployment that it passes through.",
    tier: Tier::Worker,
    marks: &[prefix("ray_vllm_"), prefix("ray_serve_")],
    appears_late: true,
    rules: &[rule(
        Signal::InFlight,
        &[Source::of(&[
            gauge("ray_serve_replica_processing_queries"),
            gauge("ray_serve_deployment_queued_queries").optional(),
        ])],
    )],
    ..PLAIN
};
