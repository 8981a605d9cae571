//! Simulated engines on real sockets: OpenAI's API in front, vLLM's metrics behind, the step model of `coppice-engine` within.
//!
//! A request is a length: its prompt is counted ([`crate::openai::tokens`]), not read, and the answer is words of no meaning.
//! Time is real: a token leaves when the model's step ends. The step model itself runs on its own exact times, so a host that is
//! short of CPU delivers late but does not change what the engine would have done, nor its metrics.
//!
//! One process serves one engine ([`command`]) or, for a fleet of make-believe pods, thousands ([`hosted`]).
//!
//! P/D hand-over speaks vLLM's `kv_transfer_params`: a prefill engine answers with where its KV is, a decode engine that gets this
//! in a request waits for the modelled transfer and then tells the prefill engine to forget it.

mod answer;
pub mod arguments;
pub mod command;
mod handover;
pub mod hosted;
pub mod instance;
mod metrics;
mod outbox;
mod render;
mod routes;
mod simulation;

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
#[expect(
    clippy::float_cmp,
    reason = "metrics that count have whole values, which are exact"
)]
mod tests;
