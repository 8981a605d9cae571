//! Means over seeds, and differences between two policies paired by seed.

use rand::RngExt;
use serde::Serialize;

use crate::schedule::seed::stream;

/// Resamples of a bootstrap.
const RESAMPLES: usize = 10_000;

/// Mean and standard deviation.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Spread {
    pub(super) mean: f64,
    /// 0 for one value.
    pub(super) deviation: f64,
}

impl Spread {
    /// `None` for no values.
    pub(super) fn of(values: &[f64]) -> Option<Self> {
        let count = values.len() as f64;
        if values.is_empty() {
            return None;
        }
        let mean = values.iter().sum::<f64>() / count;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        let deviation = if values.len() > 1 {
            (squares / (count - 1.0)).sqrt()
        } else {
            0.0
        };
        Some(Self { mean, deviation })
    }
}

/// A mean difference with its 95 % interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Difference {
    pub(super) mean: f64,
    pub(super) low: f64,
    pub(super) high: f64,
}

impl Difference {
    /// From differences of pairs, by bootstrap; `None` for fewer than two.
    pub(super) fn of(differences: &[f64]) -> Option<Self> {
        let Spread { mean, .. } = Spread::of(differences).filter(|_| differences.len() > 1)?;
        let mut random = stream(1, "bootstrap", 0);
        let mut means: Vec<f64> = (0..RESAMPLES)
            .map(|_| {
                let drawn = (0..differences.len())
                    .map(|_| differences[random.random_range(0..differences.len())]);
                drawn.sum::<f64>() / differences.len() as f64
            })
            .collect();
        means.sort_by(f64::total_cmp);
        Some(Self {
            mean,
            low: means[RESAMPLES / 40],
            high: means[RESAMPLES - RESAMPLES / 40 - 1],
        })
    }

    /// The interval holds zero.
    pub(super) fn is_tie(&self) -> bool {
        self.low <= 0.0 && 0.0 <= self.high
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spreads_and_intervals() {
        assert!(Spread::of(&[]).is_none());
        let spread = Spread::of(&[1.0, 2.0, 3.0]).unwrap();
        assert!((spread.mean - 2.0).abs() < 1e-12 && (spread.deviation - 1.0).abs() < 1e-12);
        assert!(Difference::of(&[1.0]).is_none());
        let same = Difference::of(&[0.5; 10]).unwrap();
        assert!(
            (same.low - 0.5).abs() < 1e-12 && (same.high - 0.5).abs() < 1e-12 && !same.is_tie()
        );
        let noisy: Vec<f64> = (0..10)
            .map(|n| if n % 2 == 0 { 1.0 } else { -1.0 })
            .collect();
        let noisy = Difference::of(&noisy).unwrap();
        assert!(noisy.is_tie() && noisy.low < -0.3 && noisy.high > 0.3);
    }
}
