//! The names under which signals are served.

use std::fmt;

use crate::engines::Signal;

/// A metric that can be asked for.
///
/// Served names are lower case and compared without regard to case, because the HPA's client lower-cases them.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Metric {
    /// `coppice_requests_waiting`: requests, sum.
    RequestsWaiting,
    /// `coppice_requests_running`: requests, sum.
    RequestsRunning,
    /// `coppice_offered_requests_per_second`: arrivals at the gateway, sum.
    OfferedRequestsPerSecond,
    /// `coppice_offered_input_tokens_per_second`: prompt tokens arriving at the gateway, sum.
    OfferedInputTokensPerSecond,
    /// `coppice_input_tokens_per_second`: prompt tokens processed by engines, cached and transferred ones included, sum.
    InputTokensPerSecond,
    /// `coppice_output_tokens_per_second`: generated tokens, sum.
    OutputTokensPerSecond,
    /// `coppice_kv_cache_usage`: 0–1, mean over engines.
    KvCacheUsage,
    /// `coppice_kv_cache_usage_max`: 0–1, the fullest engine.
    KvCacheUsageMax,
    /// `coppice_ttft_seconds_p95` and its like: seconds, over all endpoints together.
    Latency(Latency, Percentile),
    /// `coppice_prefix_cache_hit_ratio`: 0–1, hit tokens over looked-up tokens.
    PrefixCacheHitRatio,
    /// `coppice_preemptions_per_second`, sum.
    PreemptionsPerSecond,
    /// `coppice_requests_finished_per_second`, sum over reasons.
    RequestsFinishedPerSecond,
    /// A scraped series by its own name, in lower case: the sum as it is.
    Series(String),
    /// A scraped counter by its own name with `:rate` behind it: increase per second over the window, sum.
    SeriesRate(String),
}

/// A latency that servers measure in histograms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Latency {
    /// Time to the first token.
    Ttft,
    /// Time between tokens.
    Itl,
    /// From arrival to the last token.
    EndToEnd,
    /// From arrival to being scheduled.
    Queue,
}

/// A percentile that is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Percentile {
    /// The median.
    P50,
    /// 90 %.
    P90,
    /// 95 %.
    P95,
    /// 99 %.
    P99,
}

/// A name that is not a metric: which, and what is known instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "metric {name:?} is not known: use one of the coppice_ metrics, or a scraped series by its own name"
)]
pub struct UnknownMetric {
    /// The name as asked for.
    pub name: String,
}

impl Latency {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Ttft, Self::Itl, Self::EndToEnd, Self::Queue];

    const fn name(self) -> &'static str {
        match self {
            Self::Ttft => "ttft",
            Self::Itl => "itl",
            Self::EndToEnd => "e2e",
            Self::Queue => "queue",
        }
    }

    /// The signal that measures it.
    #[must_use]
    pub const fn signal(self) -> Signal {
        match self {
            Self::Ttft => Signal::Ttft,
            Self::Itl => Signal::Itl,
            Self::EndToEnd => Signal::EndToEnd,
            Self::Queue => Signal::QueueTime,
        }
    }
}

impl Percentile {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::P50, Self::P90, Self::P95, Self::P99];

    /// As a share, `0.5` to `0.99`.
    #[must_use]
    pub const fn share(self) -> f64 {
        match self {
            Self::P50 => 0.5,
            Self::P90 => 0.9,
            Self::P95 => 0.95,
            Self::P99 => 0.99,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::P50 => "p50",
            Self::P90 => "p90",
            Self::P95 => "p95",
            Self::P99 => "p99",
        }
    }
}

impl Metric {
    /// Every metric with a name of our own, in a fixed order: what a discovery document lists.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let mut all = vec![
            Self::RequestsWaiting,
            Self::RequestsRunning,
            Self::OfferedRequestsPerSecond,
            Self::OfferedInputTokensPerSecond,
            Self::InputTokensPerSecond,
            Self::OutputTokensPerSecond,
            Self::KvCacheUsage,
            Self::KvCacheUsageMax,
        ];
        for latency in Latency::ALL {
            all.extend(Percentile::ALL.map(|percentile| Self::Latency(latency, percentile)));
        }
        all.extend([
            Self::PrefixCacheHitRatio,
            Self::PreemptionsPerSecond,
            Self::RequestsFinishedPerSecond,
        ]);
        all
    }

    /// Finds the metric of a name, without regard to case.
    ///
    /// A name without the prefix `coppice_` is a scraped series, with `:rate` behind it its rate.
    ///
    /// # Errors
    /// The name starts with `coppice_` and is none of ours, or cannot be the name of a series.
    pub fn parse(name: &str) -> Result<Self, UnknownMetric> {
        let lower = name.to_ascii_lowercase();
        let unknown = || UnknownMetric {
            name: name.chars().take(200).collect(),
        };
        if lower.starts_with("coppice_") {
            return Self::all()
                .into_iter()
                .find(|metric| metric.to_string() == lower)
                .ok_or_else(unknown);
        }
        let (series, is_rate) = lower
            .strip_suffix(":rate")
            .map_or((lower.as_str(), false), |series| (series, true));
        let is_name = series.len() <= 256
            && series.starts_with(|c: char| c.is_ascii_alphabetic() || matches!(c, '_' | ':'))
            && series
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | ':'));
        match (is_name, is_rate) {
            (false, _) => Err(unknown()),
            (true, true) => Ok(Self::SeriesRate(series.to_owned())),
            (true, false) => Ok(Self::Series(series.to_owned())),
        }
    }

    /// Whether it is measured over a window, and so has one in its answer; otherwise it is a snapshot.
    #[must_use]
    pub const fn is_windowed(&self) -> bool {
        match self {
            Self::RequestsWaiting
            | Self::RequestsRunning
            | Self::KvCacheUsage
            | Self::KvCacheUsageMax
            | Self::Series(_) => false,
            Self::OfferedRequestsPerSecond
            | Self::OfferedInputTokensPerSecond
            | Self::InputTokensPerSecond
            | Self::OutputTokensPerSecond
            | Self::Latency(..)
            | Self::PrefixCacheHitRatio
            | Self::PreemptionsPerSecond
            | Self::RequestsFinishedPerSecond
            | Self::SeriesRate(_) => true,
        }
    }
}

impl fmt::Display for Metric {
    /// The served name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::RequestsWaiting => "coppice_requests_waiting",
            Self::RequestsRunning => "coppice_requests_running",
            Self::OfferedRequestsPerSecond => "coppice_offered_requests_per_second",
            Self::OfferedInputTokensPerSecond => "coppice_offered_input_tokens_per_second",
            Self::InputTokensPerSecond => "coppice_input_tokens_per_second",
            Self::OutputTokensPerSecond => "coppice_output_tokens_per_second",
            Self::KvCacheUsage => "coppice_kv_cache_usage",
            Self::KvCacheUsageMax => "coppice_kv_cache_usage_max",
            Self::PrefixCacheHitRatio => "coppice_prefix_cache_hit_ratio",
            Self::PreemptionsPerSecond => "coppice_preemptions_per_second",
            Self::RequestsFinishedPerSecond => "coppice_requests_finished_per_second",
            Self::Latency(latency, percentile) => {
                return write!(
                    f,
                    "coppice_{}_seconds_{}",
                    latency.name(),
                    percentile.name()
                );
            }
            Self::Series(name) => name,
            Self::SeriesRate(name) => return write!(f, "{name}:rate"),
        };
        f.write_str(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_parses_to_itself_in_any_case() {
        let all = Metric::all();
        assert_eq!(all.len(), 27);
        for metric in all {
            assert_eq!(Metric::parse(&metric.to_string()), Ok(metric.clone()));
            assert_eq!(
                Metric::parse(&metric.to_string().to_uppercase()),
                Ok(metric)
            );
        }
        assert_eq!(
            Metric::parse("coppice_TTFT_seconds_p95"),
            Ok(Metric::Latency(Latency::Ttft, Percentile::P95))
        );
    }

    #[test]
    fn other_names_are_series_and_impossible_ones_are_refused() {
        assert_eq!(
            Metric::parse("vllm:num_requests_waiting"),
            Ok(Metric::Series("vllm:num_requests_waiting".to_owned()))
        );
        assert_eq!(
            Metric::parse("vllm:generation_tokens_total:rate"),
            Ok(Metric::SeriesRate(
                "vllm:generation_tokens_total".to_owned()
            ))
        );
        for name in [
            "coppice_requests_waitin",
            "",
            ":rate",
            "9lives",
            "a b",
            "a.b",
            "coppice_ttft_seconds_p97",
        ] {
            assert!(Metric::parse(name).is_err(), "{name}");
        }
    }
}
