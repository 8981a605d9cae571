//! What servers can tell about themselves.

use std::fmt;
use std::str::FromStr;

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
    /// Part of waiting whose KV transfer has not begun. Gauge.
    KvFetchWaiting,
    /// Part of waiting whose KV transfer is going on. Gauge.
    KvFetchRunning,
    /// Requests at a prefill worker that wait for their decode worker's answer. Gauge.
    PrefillBootstrap,
    /// Requests at a prefill worker whose KV is being sent. Gauge.
    PrefillInFlight,
    /// Requests at a decode worker that wait for KV memory; growing means that decode is short of it. Gauge.
    DecodePreallocation,
    /// Requests at a decode worker whose KV is being received; growing means that the network is slow. Gauge.
    DecodeTransfer,
    /// Requests that a router holds back, which are in no engine's queue. Gauge.
    HeldAtRouter,
    /// Requests evicted from the batch that wait to go on. Gauge.
    Paused,
    /// Requests accepted and not finished, where counted as one. Gauge.
    InFlight,
    /// Requests that can run at once. Gauge.
    RunningLimit,
    /// Engines that a router can send to. Gauge.
    ReadyEndpoints,
    /// How full a router deems its pool; 1 is full, more is possible. Gauge.
    PoolSaturation,
    /// Used share of the KV cache, 0–1. Ratio.
    KvCacheUsage,
    /// KV blocks that a router has promised over those there are, queued requests included; may exceed 1. Gauge.
    KvCacheDemand,
    /// Tokens in the KV cache, or reserved in it. Gauge.
    KvUsedTokens,
    /// Tokens the KV cache holds. Gauge.
    KvCapacityTokens,
    /// Engines that are awake. Gauge.
    Awake,
    /// Engines that sleep: their weights are offloaded or gone. Gauge.
    Asleep,
    /// LoRA adapters with requests in the batch. Gauge.
    LoraRunning,
    /// LoRA adapters with requests that wait. Gauge.
    LoraWaiting,
    /// LoRA adapters loaded. Gauge.
    LoraSlotsUsed,
    /// LoRA adapters that can be loaded at once. Gauge.
    LoraSlots,
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
    /// Requests that ended by a stop token or text. Counter.
    FinishedStop,
    /// Requests that ended at their longest length. Counter.
    FinishedLength,
    /// Requests that their client gave up. Counter.
    Aborted,
    /// Requests that ended in an error or were refused. Counter.
    Failed,
    /// Requests refused because there was no engine to serve them: the sign to scale from zero. Counter.
    Unservable,
    /// Preemptions. Counter.
    Preemptions,
    /// Tokens, or blocks, found in the prefix cache. Counter.
    PrefixHits,
    /// Tokens, or blocks, looked up in the prefix cache. Counter.
    PrefixQueries,
    /// Time to first token, seconds. Histogram.
    Ttft,
    /// Time between tokens, seconds. Histogram.
    Itl,
    /// A request's mean time for each output token after the first, seconds. Histogram.
    TimePerOutputToken,
    /// Arrival to last token, seconds. Histogram.
    EndToEnd,
    /// Arrival to being scheduled, seconds. Histogram.
    QueueTime,
    /// Scheduled to last token, seconds. Histogram.
    InferenceTime,
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

/// How a signal is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// A number of things, now.
    Gauge,
    /// A share 0–1, now.
    Ratio,
    /// A number of things since the process began.
    Counter,
    /// Observations since the process began, in buckets where the server has them.
    Histogram,
    /// Observations of which only the mean is kept.
    Mean,
}

/// A text that names no signal.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("signal {name:?} is not known: use one of {}", names())]
pub struct UnknownSignal {
    /// The name as given.
    pub name: String,
}

fn names() -> String {
    Signal::ALL.map(Signal::name).join(", ")
}

impl Signal {
    /// All of them, in order.
    pub const ALL: [Self; 53] = [
        Self::Running,
        Self::Waiting,
        Self::WaitingCapacity,
        Self::WaitingDeferred,
        Self::WaitingForTransfer,
        Self::KvFetchWaiting,
        Self::KvFetchRunning,
        Self::PrefillBootstrap,
        Self::PrefillInFlight,
        Self::DecodePreallocation,
        Self::DecodeTransfer,
        Self::HeldAtRouter,
        Self::Paused,
        Self::InFlight,
        Self::RunningLimit,
        Self::ReadyEndpoints,
        Self::PoolSaturation,
        Self::KvCacheUsage,
        Self::KvCacheDemand,
        Self::KvUsedTokens,
        Self::KvCapacityTokens,
        Self::Awake,
        Self::Asleep,
        Self::LoraRunning,
        Self::LoraWaiting,
        Self::LoraSlotsUsed,
        Self::LoraSlots,
        Self::OfferedRequests,
        Self::OfferedInputTokens,
        Self::ReceivedRequests,
        Self::InputTokens,
        Self::ComputedInputTokens,
        Self::OutputTokens,
        Self::Finished,
        Self::FinishedStop,
        Self::FinishedLength,
        Self::Aborted,
        Self::Failed,
        Self::Unservable,
        Self::Preemptions,
        Self::PrefixHits,
        Self::PrefixQueries,
        Self::Ttft,
        Self::Itl,
        Self::TimePerOutputToken,
        Self::EndToEnd,
        Self::QueueTime,
        Self::InferenceTime,
        Self::PrefillTime,
        Self::DecodeTime,
        Self::TransferTime,
        Self::InputLength,
        Self::OutputLength,
    ];

    /// Its name in mappings, tables and messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Waiting => "waiting",
            Self::WaitingCapacity => "waiting_capacity",
            Self::WaitingDeferred => "waiting_deferred",
            Self::WaitingForTransfer => "waiting_for_transfer",
            Self::KvFetchWaiting => "kv_fetch_waiting",
            Self::KvFetchRunning => "kv_fetch_running",
            Self::PrefillBootstrap => "prefill_bootstrap",
            Self::PrefillInFlight => "prefill_in_flight",
            Self::DecodePreallocation => "decode_preallocation",
            Self::DecodeTransfer => "decode_transfer",
            Self::HeldAtRouter => "held_at_router",
            Self::Paused => "paused",
            Self::InFlight => "in_flight",
            Self::RunningLimit => "running_limit",
            Self::ReadyEndpoints => "ready_endpoints",
            Self::PoolSaturation => "pool_saturation",
            Self::KvCacheUsage => "kv_cache_usage",
            Self::KvCacheDemand => "kv_cache_demand",
            Self::KvUsedTokens => "kv_used_tokens",
            Self::KvCapacityTokens => "kv_capacity_tokens",
            Self::Awake => "awake",
            Self::Asleep => "asleep",
            Self::LoraRunning => "lora_running",
            Self::LoraWaiting => "lora_waiting",
            Self::LoraSlotsUsed => "lora_slots_used",
            Self::LoraSlots => "lora_slots",
            Self::OfferedRequests => "offered_requests",
            Self::OfferedInputTokens => "offered_input_tokens",
            Self::ReceivedRequests => "received_requests",
            Self::InputTokens => "input_tokens",
            Self::ComputedInputTokens => "computed_input_tokens",
            Self::OutputTokens => "output_tokens",
            Self::Finished => "finished",
            Self::FinishedStop => "finished_stop",
            Self::FinishedLength => "finished_length",
            Self::Aborted => "aborted",
            Self::Failed => "failed",
            Self::Unservable => "unservable",
            Self::Preemptions => "preemptions",
            Self::PrefixHits => "prefix_hits",
            Self::PrefixQueries => "prefix_queries",
            Self::Ttft => "ttft",
            Self::Itl => "itl",
            Self::TimePerOutputToken => "time_per_output_token",
            Self::EndToEnd => "end_to_end",
            Self::QueueTime => "queue_time",
            Self::InferenceTime => "inference_time",
            Self::PrefillTime => "prefill_time",
            Self::DecodeTime => "decode_time",
            Self::TransferTime => "transfer_time",
            Self::InputLength => "input_length",
            Self::OutputLength => "output_length",
        }
    }

    /// How it is measured.
    #[must_use]
    pub const fn kind(self) -> Kind {
        match self {
            Self::Running
            | Self::Waiting
            | Self::WaitingCapacity
            | Self::WaitingDeferred
            | Self::WaitingForTransfer
            | Self::KvFetchWaiting
            | Self::KvFetchRunning
            | Self::PrefillBootstrap
            | Self::PrefillInFlight
            | Self::DecodePreallocation
            | Self::DecodeTransfer
            | Self::HeldAtRouter
            | Self::Paused
            | Self::InFlight
            | Self::RunningLimit
            | Self::ReadyEndpoints
            | Self::PoolSaturation
            | Self::KvCacheDemand
            | Self::KvUsedTokens
            | Self::KvCapacityTokens
            | Self::Awake
            | Self::Asleep
            | Self::LoraRunning
            | Self::LoraWaiting
            | Self::LoraSlotsUsed
            | Self::LoraSlots => Kind::Gauge,
            Self::KvCacheUsage => Kind::Ratio,
            Self::OfferedRequests
            | Self::OfferedInputTokens
            | Self::ReceivedRequests
            | Self::InputTokens
            | Self::ComputedInputTokens
            | Self::OutputTokens
            | Self::Finished
            | Self::FinishedStop
            | Self::FinishedLength
            | Self::Aborted
            | Self::Failed
            | Self::Unservable
            | Self::Preemptions
            | Self::PrefixHits
            | Self::PrefixQueries => Kind::Counter,
            Self::Ttft
            | Self::Itl
            | Self::TimePerOutputToken
            | Self::EndToEnd
            | Self::QueueTime
            | Self::InferenceTime => Kind::Histogram,
            Self::PrefillTime
            | Self::DecodeTime
            | Self::TransferTime
            | Self::InputLength
            | Self::OutputLength => Kind::Mean,
        }
    }

    /// Whether it is a time in seconds.
    #[must_use]
    pub const fn is_time(self) -> bool {
        match self.kind() {
            Kind::Histogram => true,
            Kind::Mean => !matches!(self, Self::InputLength | Self::OutputLength),
            Kind::Gauge | Kind::Ratio | Kind::Counter => false,
        }
    }

    /// Whether it is measured where load arrives, before any engine.
    #[must_use]
    pub const fn is_offered(self) -> bool {
        matches!(self, Self::OfferedRequests | Self::OfferedInputTokens)
    }

    /// Whether only what stands before engines has it.
    pub(crate) const fn is_of_frontends(self) -> bool {
        self.is_offered()
            || matches!(
                self,
                Self::HeldAtRouter
                    | Self::ReadyEndpoints
                    | Self::PoolSaturation
                    | Self::KvCacheDemand
                    | Self::Unservable
            )
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Signal {
    type Err = UnknownSignal;

    fn from_str(name: &str) -> Result<Self, UnknownSignal> {
        Self::ALL
            .into_iter()
            .find(|signal| signal.name() == name)
            .ok_or_else(|| UnknownSignal {
                name: name.chars().take(100).collect(),
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_signal_stands_at_its_place_and_is_found_by_its_name() {
        for (index, signal) in Signal::ALL.into_iter().enumerate() {
            assert_eq!(signal as usize, index, "{signal}");
            assert_eq!(signal.name().parse(), Ok(signal));
        }
        let unknown = "runing".parse::<Signal>().unwrap_err().to_string();
        assert!(
            unknown.starts_with("signal \"runing\" is not known: use one of running, waiting, "),
            "{unknown}"
        );
    }
}
