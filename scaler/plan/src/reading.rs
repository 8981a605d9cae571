//! Measured values and how old they are.

use std::time::Duration;

use jiff::Timestamp;

/// What a reading is of. Names and units are those of the decision record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Quantity {
    /// Offered requests per second.
    OfferedRequests,
    /// Offered input tokens per second.
    OfferedInputTokens,
    /// Offered output tokens per second: offered requests × mean output tokens.
    OfferedOutputTokens,
    /// Mean output tokens of a request.
    MeanOutputTokens,
    /// Prompt tokens worked off per second by the role's engines.
    InputTokens,
    /// Output tokens made per second by the role's engines.
    OutputTokens,
    /// Requests finished per second by the role's engines.
    Finished,
    /// Requests that wait for the role's engines.
    Waiting,
    /// Requests in the batches of the role's engines.
    Running,
    /// Σ of the KV-cache use of the role's engines.
    KvUsage,
    /// The series that the policy names.
    Metric,
    /// Requests held at the gateway.
    GatewayWaiting,
    /// Requests per second expected when a unit started now becomes ready, with a margin. Of roles that make tokens and take no prompts.
    ForecastRequests,
    /// Input tokens per second expected when a unit started now becomes ready, with a margin. Of roles that take prompts.
    ForecastInputTokens,
    /// Time from creation to readiness: the 90th percentile of recent starts, or what the policy assumes.
    Startup,
    /// What saturated units were seen to work off, as a share of what the profile says. Below 1 the load counts for more by as much.
    Efficiency,
    /// Units that the load needs before any limit.
    Demand,
}

impl Quantity {
    /// Name in the decision record.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::OfferedRequests => "offeredRequests",
            Self::OfferedInputTokens => "offeredInputTokens",
            Self::OfferedOutputTokens => "offeredOutputTokens",
            Self::MeanOutputTokens => "meanOutputTokens",
            Self::InputTokens => "inputTokens",
            Self::OutputTokens => "outputTokens",
            Self::Finished => "finishedRequests",
            Self::Waiting => "waiting",
            Self::Running => "running",
            Self::KvUsage => "kvCacheUsageSum",
            Self::Metric => "metric",
            Self::GatewayWaiting => "gatewayWaiting",
            Self::ForecastRequests => "forecastRequests",
            Self::ForecastInputTokens => "forecastInputTokens",
            Self::Startup => "startup",
            Self::Efficiency => "efficiency",
            Self::Demand => "demand",
        }
    }

    /// Unit in the decision record.
    #[must_use]
    pub const fn unit(self) -> &'static str {
        match self {
            Self::OfferedRequests | Self::ForecastRequests | Self::Finished => "requests/s",
            Self::OfferedInputTokens
            | Self::ForecastInputTokens
            | Self::OfferedOutputTokens
            | Self::InputTokens
            | Self::OutputTokens => "tokens/s",
            Self::MeanOutputTokens => "tokens",
            Self::Waiting | Self::Running | Self::GatewayWaiting => "requests",
            Self::KvUsage => "caches",
            Self::Metric => "",
            Self::Startup => "s",
            Self::Efficiency => "1",
            Self::Demand => "units",
        }
    }
}

/// How old the signals of a role are. Later is worse.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Age {
    /// At most two scrapes old.
    Fresh,
    /// Older, at most 60 s: nothing is removed.
    Stale,
    /// Older, at most the policy's hold time: what is there is held.
    Held,
    /// Never measured since the start, which is not longer ago than the hold time.
    Starting,
    /// Missing beyond the hold time.
    Lost,
}

/// Signals that are older than this hold everything.
const STALE_LIMIT: Duration = Duration::from_secs(60);

/// One measured value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Reading {
    pub(crate) value: f64,
    pub(crate) at: Timestamp,
    /// Whether every endpoint that ought to answer did. A sum over fewer is a lower bound.
    pub(crate) complete: bool,
}

/// How old a value of `at` is at `now`.
pub(crate) fn age_of(
    at: Timestamp,
    now: Timestamp,
    scrape_interval: Duration,
    hold: Duration,
) -> Age {
    let age = elapsed(at, now);
    if age <= scrape_interval * 2 {
        Age::Fresh
    } else if age <= STALE_LIMIT.min(hold) {
        Age::Stale
    } else if age <= hold {
        Age::Held
    } else {
        Age::Lost
    }
}

/// Time from `from` to `to`, zero when that is negative.
pub(crate) fn elapsed(from: Timestamp, to: Timestamp) -> Duration {
    Duration::try_from(to.duration_since(from)).unwrap_or(Duration::ZERO)
}
