//! Gaps between arrivals: their shape, with mean 1.

use std::fmt;
use std::str::FromStr;

use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Exp1, Gamma};
use serde::{Deserialize, Serialize};

use super::NotValid;
use super::numeric::ln_gamma;

/// The distribution of gaps between arrivals, scaled to mean 1.
///
/// Written `constant`, `poisson`, `gamma:CV` or `weibull:CV`; CV is the coefficient of variation, 1 for Poisson, above 1 for bursts.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Gaps {
    /// All gaps are equal.
    Constant,
    /// Exponential gaps.
    Poisson,
    /// Gamma gaps.
    Gamma {
        /// Coefficient of variation, above 0.
        cv: f64,
    },
    /// Weibull gaps.
    Weibull {
        /// Coefficient of variation, above 0.
        cv: f64,
    },
}

impl Gaps {
    /// A sampler of gaps with mean 1.
    #[must_use]
    pub fn sampler(self) -> Sampler {
        match self {
            Self::Constant => Sampler::Constant,
            Self::Poisson => Sampler::Poisson,
            Self::Gamma { cv } => {
                let shape = 1.0 / (cv * cv);
                // Shape and scale are positive and finite because `cv` is.
                Gamma::new(shape, 1.0 / shape).map_or(Sampler::Poisson, Sampler::Gamma)
            }
            Self::Weibull { cv } => {
                let shape = weibull_shape(cv);
                Sampler::Weibull {
                    shape,
                    scale: (-ln_gamma(1.0 + 1.0 / shape)).exp(),
                }
            }
        }
    }
}

/// Draws gaps.
#[derive(Debug, Clone, Copy)]
pub enum Sampler {
    /// Always 1.
    Constant,
    /// Exponential.
    Poisson,
    /// Gamma.
    Gamma(Gamma<f64>),
    /// Weibull, by inversion.
    Weibull {
        /// Shape.
        shape: f64,
        /// Scale.
        scale: f64,
    },
}

impl Sampler {
    /// The next gap, in units of the mean gap.
    pub fn draw(&self, rng: &mut ChaCha8Rng) -> f64 {
        match self {
            Self::Constant => 1.0,
            Self::Poisson => Exp1.sample(rng),
            Self::Gamma(gamma) => gamma.sample(rng),
            Self::Weibull { shape, scale } => {
                let uniform: f64 = rng.random();
                scale * (-(1.0 - uniform).ln()).powf(1.0 / shape)
            }
        }
    }
}

/// The Weibull shape k whose coefficient of variation is `cv`: cv² = Γ(1+2/k)/Γ(1+1/k)² − 1.
///
/// The right side falls with k, so bisection on ln k finds it.
#[must_use]
pub fn weibull_shape(cv: f64) -> f64 {
    let squared =
        |shape: f64| (ln_gamma(1.0 + 2.0 / shape) - 2.0 * ln_gamma(1.0 + 1.0 / shape)).exp() - 1.0;
    let (mut low, mut high) = (0.05_f64.ln(), 100.0_f64.ln());
    for _ in 0..100 {
        let middle = 0.5 * (low + high);
        if squared(middle.exp()) > cv * cv {
            low = middle;
        } else {
            high = middle;
        }
    }
    (0.5 * (low + high)).exp()
}

impl FromStr for Gaps {
    type Err = NotValid;

    fn from_str(text: &str) -> Result<Self, NotValid> {
        const HINT: &str =
            "write constant, poisson, gamma:CV or weibull:CV, with CV from 0.05 to 50";
        let refuse = || NotValid::new("a shape of arrivals", text, HINT);
        let (name, cv) = match text.split_once(':') {
            None => (text, None),
            Some((name, cv)) => (name, Some(cv.parse::<f64>().map_err(|_| refuse())?)),
        };
        match (name, cv) {
            ("constant", None) => Ok(Self::Constant),
            ("poisson", None) => Ok(Self::Poisson),
            ("gamma", Some(cv)) if (0.05..=50.0).contains(&cv) => Ok(Self::Gamma { cv }),
            ("weibull", Some(cv)) if (0.05..=50.0).contains(&cv) => Ok(Self::Weibull { cv }),
            _ => Err(refuse()),
        }
    }
}

impl fmt::Display for Gaps {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Constant => write!(formatter, "constant"),
            Self::Poisson => write!(formatter, "poisson"),
            Self::Gamma { cv } => write!(formatter, "gamma:{cv}"),
            Self::Weibull { cv } => write!(formatter, "weibull:{cv}"),
        }
    }
}

impl TryFrom<String> for Gaps {
    type Error = NotValid;

    fn try_from(text: String) -> Result<Self, NotValid> {
        text.parse()
    }
}

impl From<Gaps> for String {
    fn from(gaps: Gaps) -> Self {
        gaps.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::seed::stream;

    fn moments(gaps: Gaps) -> (f64, f64) {
        let sampler = gaps.sampler();
        let mut rng = stream(7, "moments", 0);
        let draws: Vec<f64> = (0..200_000).map(|_| sampler.draw(&mut rng)).collect();
        let mean = draws.iter().sum::<f64>() / 200_000.0;
        let variance = draws.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / 200_000.0;
        (mean, variance.sqrt() / mean)
    }

    #[test]
    fn weibull_shapes_are_those_of_the_closed_form() {
        for (cv, shape) in [
            (0.5, 2.101),
            (1.0, 1.0),
            (1.5, 0.685),
            (2.0, 0.543),
            (3.0, 0.411),
            (5.0, 0.311),
        ] {
            assert!(
                (weibull_shape(cv) - shape).abs() < 0.0006,
                "cv {cv}: {}",
                weibull_shape(cv)
            );
        }
    }

    #[test]
    fn every_shape_has_mean_one_and_its_coefficient_of_variation() {
        for (gaps, cv, tolerance) in [
            (Gaps::Constant, 0.0, 1e-12),
            (Gaps::Poisson, 1.0, 0.01),
            (Gaps::Gamma { cv: 0.5 }, 0.5, 0.01),
            (Gaps::Gamma { cv: 3.0 }, 3.0, 0.06),
            (Gaps::Weibull { cv: 0.5 }, 0.5, 0.01),
            (Gaps::Weibull { cv: 2.0 }, 2.0, 0.06),
        ] {
            let (mean, seen) = moments(gaps);
            assert!((mean - 1.0).abs() < 0.02, "{gaps}: mean {mean}");
            assert!((seen - cv).abs() <= tolerance, "{gaps}: cv {seen}");
        }
    }

    #[test]
    fn shapes_survive_being_written_and_read_and_nonsense_is_refused() {
        for text in ["constant", "poisson", "gamma:2.5", "weibull:0.7"] {
            assert_eq!(text.parse::<Gaps>().unwrap().to_string(), text);
        }
        for text in [
            "gamma",
            "gamma:0",
            "poisson:2",
            "weibull:-1",
            "weibull:x",
            "",
        ] {
            assert!(text.parse::<Gaps>().is_err(), "{text} was accepted");
        }
    }
}
