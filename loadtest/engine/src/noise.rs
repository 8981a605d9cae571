//! Random variation of step durations.

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal};

/// Draws a factor for each step: lognormal, mean 1.
#[derive(Debug, Clone)]
pub(crate) struct Noise {
    sigma: f64,
    random: ChaCha8Rng,
}

impl Noise {
    /// `deviation` is relative to the mean; none without.
    pub(crate) fn new(deviation: f64, seed: u64) -> Option<Self> {
        if deviation <= 0.0 {
            return None;
        }
        // A lognormal variable of mean 1 has the relative deviation sqrt(exp(σ²) − 1).
        let sigma = deviation.powi(2).ln_1p().sqrt();
        Some(Self {
            sigma,
            random: ChaCha8Rng::seed_from_u64(seed),
        })
    }

    pub(crate) fn factor(&mut self) -> f64 {
        let normal: f64 = StandardNormal.sample(&mut self.random);
        (self.sigma * normal - self.sigma.powi(2) / 2.0).exp()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_have_mean_one_and_the_asked_deviation() {
        let mut noise = Noise::new(0.2, 7).unwrap();
        let factors: Vec<f64> = (0..100_000).map(|_| noise.factor()).collect();
        let mean = factors.iter().sum::<f64>() / factors.len() as f64;
        let variance = factors
            .iter()
            .map(|factor| (factor - mean).powi(2))
            .sum::<f64>()
            / factors.len() as f64;
        assert!((mean - 1.0).abs() < 0.003, "{mean}");
        assert!((variance.sqrt() - 0.2).abs() < 0.003, "{variance}");
    }

    #[test]
    fn no_deviation_means_no_draws() {
        assert!(Noise::new(0.0, 7).is_none());
    }
}
