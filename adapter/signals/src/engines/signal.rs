//! What servers can tell about themselves.

/// Something a server can tell, in our words and units.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Signal {
    /// Requests in the batch. Gauge.
    Running,
    /// Requests queued, deferred ones included. Gauge.
    Waiting,
    /// Part of waiting that more replicas would help. Gauge.
    WaitingCapacity,
    /// Part of waiting that more replicas would not help. Gauge.
    WaitingDeferred,
    /// Requests in the hand-over queues of disaggregated serving, where counted apart from waiting. Gauge.
    WaitingForTransfer,
    /// Requests accepted and not finished, where counted as one. Gauge.
    InFlight,
    /// Used share of the KV cache, 0–1. Ratio.
    KvCacheUsage,
    /// Tokens the KV cache holds. Gauge.
    KvCapacityTokens,
    /// Engines that are awake. Gauge.
    Awake,
    /// Requests that arrived. Counter.
    OfferedRequests,
    /// Prompt tokens that arrived. Counter.
    OfferedInputTokens,
    /// Requests that reached the engine. Counter.
    ReceivedRequests,
    /// Prompt tokens processed, cached and transferred ones included. Counter.
    InputTokens,
    /// Prompt tokens computed. Counter.
    ComputedInputTokens,
    /// Tokens generated. Counter.
    OutputTokens,
    /// Requests that ended, for whatever reason. Counter.
    Finished,
    /// Requests that ended in an error or were refused. Counter.
    Failed,
    /// Preemptions. Counter.
    Preemptions,
    /// Tokens found in the prefix cache. Counter.
    PrefixHits,
    /// Tokens looked up in the prefix cache. Counter.
    PrefixQueries,
    /// Time to first token, seconds. Histogram.
    Ttft,
    /// Time between tokens, seconds. Histogram.
    Itl,
    /// Arrival to last token, seconds. Histogram.
    EndToEnd,
    /// Arrival to being scheduled, seconds. Histogram.
    QueueTime,
    /// Scheduled to first token, seconds. Mean.
    PrefillTime,
    /// First to last token, seconds. Mean.
    DecodeTime,
    /// KV transfer between workers, seconds. Mean.
    TransferTime,
    /// Prompt length, tokens. Mean.
    InputLength,
    /// Output length, tokens. Mean.
    OutputLength,
}

impl Signal {
    /// All of them, in order.
    pub const ALL: [Self; 29] = [
        Self::Running,
        Self::Waiting,
        Self::WaitingCapacity,
        Self::WaitingDeferred,
        Self::WaitingForTransfer,
        Self::InFlight,
        Self::KvCacheUsage,
        Self::KvCapacityTokens,
        Self::Awake,
        Self::OfferedRequests,
        Self::OfferedInputTokens,
        Self::ReceivedRequests,
        Self::InputTokens,
        Self::ComputedInputTokens,
        Self::OutputTokens,
        Self::Finished,
        Self::Failed,
        Self::Preemptions,
        Self::PrefixHits,
        Self::PrefixQueries,
        Self::Ttft,
        Self::Itl,
        Self::EndToEnd,
        Self::QueueTime,
        Self::PrefillTime,
        Self::DecodeTime,
        Self::TransferTime,
        Self::InputLength,
        Self::OutputLength,
    ];

    /// Whether it is measured where load arrives, before any engine.
    #[must_use]
    pub const fn is_offered(self) -> bool {
        matches!(self, Self::OfferedRequests | Self::OfferedInputTokens)
    }
}
