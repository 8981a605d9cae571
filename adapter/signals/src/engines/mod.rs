//! Inference servers: how to recognise each, and which of its series make up which signal.

/// What a server can tell about itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Signal {
    /// Requests in the batch.
    Running,
    /// Requests queued, deferred ones included.
    Waiting,
    /// Part of waiting that more replicas would help.
    WaitingCapacity,
    /// Part of waiting that more replicas would not help.
    WaitingDeferred,
    /// Requests in the hand-over queues of disaggregated serving, where counted apart from waiting.
    WaitingForTransfer,
    /// Requests accepted and not finished.
    InFlight,
    /// Used share of the KV cache, 0–1.
    KvCacheUsage,
    /// Tokens the KV cache holds.
    KvCapacityTokens,
    /// Engines that are awake.
    Awake,
    /// Requests that arrived.
    OfferedRequests,
    /// Prompt tokens that arrived.
    OfferedInputTokens,
    /// Prompt tokens processed, cached and transferred ones included.
    InputTokens,
    /// Prompt tokens computed.
    ComputedInputTokens,
    /// Tokens generated.
    OutputTokens,
    /// Requests that ended.
    Finished,
    /// Requests that ended in an error or were refused.
    Failed,
    /// Preemptions.
    Preemptions,
    /// Tokens found in the prefix cache.
    PrefixHits,
    /// Tokens looked up in the prefix cache.
    PrefixQueries,
    /// Time to first token, seconds.
    Ttft,
    /// Time between tokens, seconds.
    Itl,
    /// Arrival to last token, seconds.
    EndToEnd,
    /// Arrival to being scheduled, seconds.
    QueueTime,
    /// Scheduled to first token, seconds.
    PrefillTime,
    /// First to last token, seconds.
    DecodeTime,
    /// KV transfer between workers, seconds.
    TransferTime,
    /// Prompt length, tokens.
    InputLength,
    /// Output length, tokens.
    OutputLength,
}
