//! What happened.

use std::time::Duration;

use crate::request::{FinishReason, RequestId};

/// Something that happened to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// When, from the engine's origin.
    pub at: Duration,
    /// To which request.
    pub request: RequestId,
    /// What.
    pub kind: EventKind,
}

/// What happened to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    /// Its first token appeared.
    FirstToken,
    /// A further token appeared; only with [`crate::Detail::Tokens`].
    Token,
    /// It lost its KV to others and waits again.
    Preempted,
    /// The KV of its prompt has come from another engine, which may now forget it.
    Fetched,
    /// It ended; its last token has been reported.
    Finished(FinishReason),
    /// Nobody fetched the KV it kept, and it is gone.
    Expired,
}
