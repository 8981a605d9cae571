//! An OpenAI endpoint in front of the engines that are ready.
//!
//! Engines come from the cluster (pods by label selector, [`discovery`]) or from the command line. A request is counted when it
//! arrives, also while nothing can serve it: that is the demand a scaler has to see. It goes to the engine with the least in flight;
//! with prefill and decode engines it goes to one of each, joined by vLLM's `kv_transfer_params`. When nothing is ready it waits, up
//! to a limit of time and number. An engine that cannot be reached, that drains, or that breaks before the first token costs
//! the client nothing: another one is tried.
//!
//! `/metrics` has the Dynamo frontend's names ([`metrics`](self)).

mod arguments;
pub mod command;
mod discovery;
mod forward;
mod metrics;
mod models;
mod pool;
mod relay;
mod rewrite;
mod routes;
mod track;

#[cfg(test)]
#[expect(
    clippy::float_cmp,
    reason = "metrics that count have whole values, which are exact"
)]
mod tests;
