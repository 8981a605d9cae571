//! What engine, gateway and driver agree on about OpenAI's API.

/// Request header: the prompt's length in tokens.
///
/// A client that replays a trace sends it with a short prompt, so that a 100k-token prompt costs no bandwidth and no
/// tokenising. It wins over the length of the body's prompt; real engines ignore it. Unit: tokens, `1..`.
pub const PROMPT_TOKENS_HEADER: &str = "x-coppice-prompt-tokens";

/// Request header: how many leading tokens of the prompt a prefix cache already holds.
///
/// Unit: tokens, `0..=prompt`. Absent: none. Real engines ignore it.
pub const CACHED_TOKENS_HEADER: &str = "x-coppice-cached-tokens";

/// Response header: the engine (prefill and decode: the decoding one) that served the request.
pub const ENGINE_HEADER: &str = "x-coppice-engine";
