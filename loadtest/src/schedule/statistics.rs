//! What a schedule looks like, in numbers: printed with every run, because a mean rate hides bursts.

use serde::{Deserialize, Serialize};

use super::Schedule;
use super::rate::counts;

/// A schedule in numbers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Statistics {
    /// Requests.
    pub requests: usize,
    /// Seconds from the start to the end of the schedule.
    pub duration_seconds: f64,
    /// Requests per second over the whole.
    pub mean_rate: f64,
    /// The busiest second over the mean; none when shorter than a second.
    pub peak_over_mean_1s: Option<f64>,
    /// The busiest minute over the mean; none when shorter than a minute.
    pub peak_over_mean_60s: Option<f64>,
    /// Variance over mean of counts per second; 1 for Poisson.
    pub dispersion_1s: f64,
    /// Prompt lengths.
    pub input_tokens: Lengths,
    /// Output lengths.
    pub output_tokens: Lengths,
}

/// A distribution of lengths, in tokens.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Lengths {
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: u32,
    /// 99th percentile.
    pub p99: u32,
    /// Longest.
    pub max: u32,
}

impl Statistics {
    /// The numbers of a schedule.
    #[must_use]
    pub fn of(schedule: &Schedule) -> Self {
        let requests = schedule.requests();
        let duration = schedule.duration().as_secs_f64();
        let instants = || requests.iter().map(|request| request.at.as_secs_f64());
        let mean_rate = if duration > 0.0 {
            requests.len() as f64 / duration
        } else {
            0.0
        };
        let peak = |window: f64| {
            let most = counts(instants(), window, duration)
                .into_iter()
                .max()
                .unwrap_or(0);
            (duration >= window && mean_rate > 0.0).then(|| f64::from(most) / window / mean_rate)
        };
        Self {
            requests: requests.len(),
            duration_seconds: duration,
            mean_rate,
            peak_over_mean_1s: peak(1.0),
            peak_over_mean_60s: peak(60.0),
            dispersion_1s: dispersion(instants(), 1.0, duration),
            input_tokens: Lengths::of(
                requests
                    .iter()
                    .map(|request| request.input_tokens)
                    .collect(),
            ),
            output_tokens: Lengths::of(
                requests
                    .iter()
                    .map(|request| request.output_tokens)
                    .collect(),
            ),
        }
    }
}

impl Lengths {
    fn of(mut tokens: Vec<u32>) -> Self {
        tokens.sort_unstable();
        let at = |share: f64| {
            tokens
                .get(super::numeric::index(
                    share * (tokens.len().saturating_sub(1)) as f64,
                ))
                .copied()
                .unwrap_or(0)
        };
        let total: f64 = tokens.iter().map(|tokens| f64::from(*tokens)).sum();
        Self {
            mean: if tokens.is_empty() {
                0.0
            } else {
                total / tokens.len() as f64
            },
            p50: at(0.5),
            p99: at(0.99),
            max: at(1.0),
        }
    }
}

/// Variance over mean of counts in equal windows; 1 for a Poisson process, 0 when there is nothing.
pub fn dispersion(instants: impl Iterator<Item = f64>, window: f64, duration: f64) -> f64 {
    let counts = counts(instants, window, duration);
    let mean = counts.iter().map(|count| f64::from(*count)).sum::<f64>() / counts.len() as f64;
    if mean <= 0.0 {
        return 0.0;
    }
    let variance = counts
        .iter()
        .map(|count| (f64::from(*count) - mean).powi(2))
        .sum::<f64>()
        / counts.len() as f64;
    variance / mean
}
