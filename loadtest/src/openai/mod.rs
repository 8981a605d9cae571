//! What engine, gateway and driver agree on about OpenAI's API.

pub mod error;
pub mod request;
pub mod tokens;

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

/// The largest request body that is read: a prompt of about 4 million tokens as text.
pub const BODY_LIMIT: usize = 32 << 20;

/// The two endpoints that generate text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Endpoint {
    /// `POST /v1/completions`.
    Completions,
    /// `POST /v1/chat/completions`.
    ChatCompletions,
}

impl Endpoint {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Completions, Self::ChatCompletions];

    /// The path.
    #[must_use]
    pub const fn path(self) -> &'static str {
        match self {
            Self::Completions => "/v1/completions",
            Self::ChatCompletions => "/v1/chat/completions",
        }
    }
}
