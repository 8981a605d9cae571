//! The load that is expected when a unit started now becomes ready: two experts, level and trend, and a margin from their past errors.

use std::collections::VecDeque;
use std::time::Duration;

use jiff::Timestamp;

/// Seconds in a bin.
const WIDTH: i64 = 10;
/// Bins that are kept: half an hour.
const KEPT: usize = 180;
/// Bins over which a hole may be bridged with the last value; a longer one starts anew.
const BRIDGED: i64 = 3;
/// Weight of the newest bin in the level.
const LEVEL_WEIGHT: f64 = 0.4;
/// Bins whose shortfall the margin leaves uncovered: a tenth of those that are kept.
const SURPRISES: usize = KEPT / 10;

/// A rate over time in bins of ten seconds, the newest still filling.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Bins {
    means: VecDeque<f64>,
    newest: Option<Newest>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Newest {
    index: i64,
    sum: f64,
    count: f64,
}

impl Newest {
    fn mean(self) -> f64 {
        self.sum / self.count
    }
}

impl Bins {
    /// Takes in one value of the rate.
    pub(crate) fn push(&mut self, at: Timestamp, value: f64) {
        let index = at.as_second().div_euclid(WIDTH);
        match self.newest {
            Some(newest) if index <= newest.index => {
                self.newest = Some(Newest {
                    sum: newest.sum + value,
                    count: newest.count + 1.0,
                    ..newest
                });
                return;
            }
            Some(newest) if index - newest.index > BRIDGED => self.means.clear(),
            Some(newest) => {
                for _ in newest.index..index {
                    self.means.push_back(newest.mean());
                }
            }
            None => {}
        }
        while self.means.len() >= KEPT {
            self.means.pop_front();
        }
        self.newest = Some(Newest {
            index,
            sum: value,
            count: 1.0,
        });
    }

    /// The means, oldest first, the newest bin's mean so far last.
    pub(crate) fn values(&self) -> Vec<f64> {
        self.means
            .iter()
            .copied()
            .chain(self.newest.map(Newest::mean))
            .collect()
    }
}

/// What the load is and what it is expected to be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Forecast {
    /// The present level.
    pub(crate) level: f64,
    /// The load at the horizon.
    pub(crate) at_horizon: f64,
    /// What past forecasts were short by, at the 90th percentile; at least 0.
    pub(crate) margin: f64,
    /// Variance of the arrivals of a bin over their mean, 1.5 to 20; 1 would be Poisson.
    pub(crate) burstiness: f64,
}

/// The forecast at `horizon`. `None` without any value.
pub(crate) fn forecast(bins: &Bins, horizon: Duration) -> Option<Forecast> {
    let series = Series::new(bins.values());
    let last = series.len().checked_sub(1)?;
    let ahead = steps(horizon);
    let window = steps(horizon + Duration::from_secs(60)).max(6);
    Some(Forecast {
        level: series.levels[last],
        at_horizon: series.expected(last, ahead, window),
        margin: series.margin(ahead, window),
        burstiness: series.burstiness(),
    })
}

fn steps(time: Duration) -> usize {
    usize::try_from(time.as_secs().div_ceil(WIDTH.unsigned_abs()))
        .map_or(KEPT, |steps| steps.clamp(1, KEPT))
}

/// A series with its level at each bin and the sums that make a trend over any window cheap.
struct Series {
    values: Vec<f64>,
    levels: Vec<f64>,
    /// Σ y, Σ i·y and Σ y² of all bins before the index.
    sums: Vec<(f64, f64, f64)>,
}

impl Series {
    fn new(values: Vec<f64>) -> Self {
        let mut levels = Vec::with_capacity(values.len());
        let mut sums = Vec::with_capacity(values.len() + 1);
        sums.push((0.0, 0.0, 0.0));
        let (mut sum, mut weighted, mut squares) = (0.0, 0.0, 0.0);
        for (index, value) in (0_u32..).zip(&values) {
            let before = levels.last().copied().unwrap_or(*value);
            levels.push(before + LEVEL_WEIGHT * (value - before));
            sum += value;
            weighted += f64::from(index) * value;
            squares += value * value;
            sums.push((sum, weighted, squares));
        }
        Self {
            values,
            levels,
            sums,
        }
    }

    fn len(&self) -> usize {
        self.values.len()
    }

    /// The load expected `ahead` bins after bin `now`: the larger of level and trend, within a quarter and four times the level.
    fn expected(&self, now: usize, ahead: usize, window: usize) -> f64 {
        let level = self.levels[now];
        let trend = level + self.slope(now, window) * count(ahead);
        trend.max(level).clamp(0.25 * level, 4.0 * level)
    }

    /// Least-squares slope per bin over the last `window` bins up to `now`, shrunk by how uncertain it is; 0 when it is not above its standard
    /// error.
    fn slope(&self, now: usize, window: usize) -> f64 {
        let first = (now + 1).saturating_sub(window);
        let n = count(now + 1 - first);
        if n < 4.0 {
            return 0.0;
        }
        let (from, to) = (self.sums[first], self.sums[now + 1]);
        let (sum, squares) = (to.0 - from.0, to.2 - from.2);
        let weighted = (to.1 - from.1) - count(first) * sum;
        let mean_index = (n - 1.0) / 2.0;
        let spread = n * (n * n - 1.0) / 12.0;
        let slope = (weighted - mean_index * sum) / spread;
        let residual = (squares - sum * sum / n - slope * slope * spread).max(0.0);
        let variance = residual / (n - 2.0) / spread;
        if slope * slope <= variance {
            0.0
        } else {
            slope * (1.0 - variance / (slope * slope))
        }
    }

    /// How much the forecasts made `ahead` bins before each bin fell short, but for [`SURPRISES`] of the bins that are kept.
    ///
    /// Bins that have not been yet count as without a surprise: else one step in a short memory would be paid for until the memory is full.
    fn margin(&self, ahead: usize, window: usize) -> f64 {
        let mut short: Vec<f64> = (ahead..self.len())
            .map(|bin| self.values[bin] - self.expected(bin - ahead, ahead, window))
            .collect();
        let Some(index) = short.len().checked_sub(SURPRISES + 1) else {
            return 0.0;
        };
        let (_, value, _) = short.select_nth_unstable_by(index, f64::total_cmp);
        value.max(0.0)
    }

    /// Variance over mean of the counts of a bin, from first differences over the last three minutes.
    fn burstiness(&self) -> f64 {
        let recent = &self.values[self.len().saturating_sub(18)..];
        let mean: f64 = recent.iter().sum::<f64>() / count(recent.len());
        if recent.len() < 6 || mean <= 0.0 {
            return 1.5;
        }
        let differences = recent
            .windows(2)
            .map(|pair| (pair[1] - pair[0]).powi(2))
            .sum::<f64>()
            / count(recent.len() - 1);
        (differences / 2.0 * WIDTH as f64 / mean).clamp(1.5, 20.0)
    }
}

fn count(bins: usize) -> f64 {
    f64::from(u32::try_from(bins).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bins(values: impl IntoIterator<Item = f64>) -> Bins {
        let mut bins = Bins::default();
        for (index, value) in (0_i64..).zip(values) {
            bins.push(Timestamp::from_second(index * WIDTH).unwrap(), value);
        }
        bins
    }

    const HORIZON: Duration = Duration::from_secs(120);

    #[test]
    fn a_constant_load_is_expected_to_stay_with_no_margin() {
        let forecast = forecast(&bins(std::iter::repeat_n(40.0, 100)), HORIZON).unwrap();
        assert_eq!(
            (
                forecast.level,
                forecast.at_horizon,
                forecast.margin,
                forecast.burstiness
            ),
            (40.0, 40.0, 0.0, 1.5)
        );
    }

    #[test]
    fn a_ramp_is_carried_on_to_the_horizon() {
        let forecast = forecast(&bins((0..60).map(|bin| 10.0 + f64::from(bin))), HORIZON).unwrap();
        assert!(
            (forecast.at_horizon - (69.0 + 12.0)).abs() < 2.0,
            "{forecast:?}"
        );
    }

    #[test]
    fn a_falling_load_is_not_expected_below_its_level() {
        let forecast = forecast(&bins((0..60).map(|bin| 100.0 - f64::from(bin))), HORIZON).unwrap();
        assert!(
            (forecast.at_horizon - forecast.level).abs() < 1e-9,
            "{forecast:?}"
        );
    }

    #[test]
    fn noise_without_a_trend_gives_a_margin_and_no_slope() {
        let noise = (0..150_u32)
            .map(|bin| 100.0 + f64::from(bin.wrapping_mul(2_654_435_761) >> 16 & 31) - 15.5);
        let forecast = forecast(&bins(noise), HORIZON).unwrap();
        assert!((forecast.at_horizon - 100.0).abs() < 12.0, "{forecast:?}");
        assert!(
            forecast.margin > 3.0 && forecast.margin < 25.0,
            "{forecast:?}"
        );
    }

    #[test]
    fn a_short_hole_is_bridged_and_a_long_one_starts_anew() {
        let mut series = bins([1.0, 2.0, 3.0]);
        series.push(Timestamp::from_second(45).unwrap(), 4.0);
        assert_eq!(series.values(), [1.0, 2.0, 3.0, 3.0, 4.0]);
        series.push(Timestamp::from_second(200).unwrap(), 9.0);
        assert_eq!(series.values(), [9.0]);
    }

    #[test]
    fn memory_is_bounded() {
        assert!(bins(std::iter::repeat_n(1.0, 1_000)).values().len() <= KEPT + 1);
    }
}
