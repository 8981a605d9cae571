//! What an engine is asked to do.

/// A request, as lengths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Prompt tokens, `1..`.
    pub prompt_tokens: u32,
    /// Tokens to make, `1..`.
    pub output_tokens: u32,
    /// Leading prompt tokens that the prefix cache holds; rounded down to whole blocks, and at least one token is computed.
    pub cached_tokens: u32,
    /// Leading prompt tokens whose KV comes from another engine. Not 0: the request waits until blocks for the prompt are
    /// free, then for the transfer. At least one token is computed here.
    pub remote_tokens: u32,
    /// Keep the KV after the end, for another engine to fetch, until [`crate::Engine::release`].
    pub keeps_kv: bool,
    /// The most tokens the client allowed; for the statistics only.
    pub max_tokens: u32,
    /// Why it ends when it ends by itself.
    pub ends_with: FinishReason,
}

impl Request {
    /// A plain request that ends at its length.
    #[must_use]
    pub const fn new(prompt_tokens: u32, output_tokens: u32) -> Self {
        Self {
            prompt_tokens,
            output_tokens,
            cached_tokens: 0,
            remote_tokens: 0,
            keeps_kv: false,
            max_tokens: output_tokens,
            ends_with: FinishReason::Length,
        }
    }
}

/// Names a request of one engine; meaningless to others, and never reused for a later request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl RequestId {
    /// A small number that no other *living* request of the engine has: an index for the caller's own table.
    #[must_use]
    pub const fn index(self) -> usize {
        self.index as usize
    }
}

/// Why a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FinishReason {
    /// The model ended its answer.
    Stop,
    /// The asked number of tokens was made.
    Length,
    /// The client went away.
    Abort,
}

/// Why a request was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// Nothing to compute.
    #[error("{field} is 0, at least 1 is needed")]
    Empty {
        /// The field.
        field: &'static str,
    },
    /// More tokens than the model's context, or than the whole KV cache.
    #[error(
        "prompt of {prompt_tokens} and output of {output_tokens} tokens exceed the context of {limit}"
    )]
    TooLong {
        /// Prompt tokens asked for.
        prompt_tokens: u32,
        /// Output tokens asked for.
        output_tokens: u32,
        /// The most that prompt and output may have together.
        limit: u32,
    },
    /// The engine takes no new requests.
    #[error("the engine is draining")]
    Draining,
}
