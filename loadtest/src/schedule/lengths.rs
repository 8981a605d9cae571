//! Distributions of prompt and output lengths.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use super::numeric::{index, normal_cdf, normal_quantile, tokens};
use super::trace::{self, TraceError};
use super::{NotValid, Written};

/// How long prompts or outputs are, in tokens. Written:
///
/// | text | distribution |
/// |---|---|
/// | `512` | always 512 |
/// | `uniform:100..1000` | equally likely from 100 to 1000 |
/// | `exponential:MEAN` | |
/// | `lognormal:MU,SIGMA` | of ln tokens |
/// | `weibull:SHAPE,SCALE` | |
/// | `pareto:MINIMUM,ALPHA` | |
/// | `trace:NAME` or `trace:FILE` | the empirical quantiles of that trace, linear between them in ln tokens |
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "String")]
pub enum LengthSpec {
    /// Always the same.
    Fixed(u32),
    /// Equally likely between two bounds, both included.
    Uniform {
        /// Shortest.
        low: u32,
        /// Longest.
        high: u32,
    },
    /// Exponential.
    Exponential {
        /// Mean.
        mean: f64,
    },
    /// Lognormal.
    Lognormal {
        /// Mean of ln tokens.
        mu: f64,
        /// Standard deviation of ln tokens.
        sigma: f64,
    },
    /// Weibull.
    Weibull {
        /// Shape.
        shape: f64,
        /// Scale, in tokens.
        scale: f64,
    },
    /// Pareto.
    Pareto {
        /// Shortest.
        minimum: f64,
        /// Tail index.
        alpha: f64,
    },
    /// As in a trace.
    Trace(PathBuf),
}

/// Which column of a trace an empirical distribution reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Column {
    /// Prompt tokens.
    Input,
    /// Generated tokens.
    Output,
}

/// A distribution that can be drawn from.
#[derive(Debug, Clone)]
pub enum Lengths {
    /// One of the closed forms.
    Closed(LengthSpec),
    /// Sorted ln tokens of a sample.
    Empirical(Arc<[f64]>),
}

impl LengthSpec {
    /// Reads what has to be read (the trace of an empirical distribution).
    ///
    /// # Errors
    /// The trace cannot be read.
    pub fn resolve(&self, column: Column) -> Result<Lengths, TraceError> {
        let Self::Trace(source) = self else {
            return Ok(Lengths::Closed(self.clone()));
        };
        let rows = trace::read(source, None)?.rows;
        let mut sample: Vec<f64> = rows
            .iter()
            .map(|row| match column {
                Column::Input => f64::from(row.input_tokens),
                Column::Output => f64::from(row.output_tokens),
            })
            .map(|tokens| tokens.max(1.0).ln())
            .collect();
        sample.sort_by(f64::total_cmp);
        Ok(Lengths::Empirical(sample.into()))
    }
}

impl Lengths {
    /// The length that a share `u` (0 ≤ u < 1) of requests does not exceed.
    #[must_use]
    pub fn quantile(&self, u: f64) -> u32 {
        match self {
            Self::Closed(spec) => match spec {
                LengthSpec::Fixed(tokens) => *tokens,
                LengthSpec::Uniform { low, high } => {
                    let span = f64::from(*high) - f64::from(*low) + 1.0;
                    tokens((f64::from(*low) + (span * u).floor()).min(f64::from(*high)))
                }
                LengthSpec::Exponential { mean } => tokens(-mean * (1.0 - u).ln()),
                LengthSpec::Lognormal { mu, sigma } => {
                    tokens((mu + sigma * normal_quantile(u)).exp())
                }
                LengthSpec::Weibull { shape, scale } => {
                    tokens(scale * (-(1.0 - u).ln()).powf(1.0 / shape))
                }
                LengthSpec::Pareto { minimum, alpha } => {
                    tokens(minimum * (1.0 - u).powf(-1.0 / alpha))
                }
                // Resolved to a sample before anything is drawn.
                LengthSpec::Trace(_) => 1,
            },
            Self::Empirical(sample) => {
                let position = u * (sample.len().saturating_sub(1)) as f64;
                let below = index(position);
                let Some(low) = sample.get(below) else {
                    return 1;
                };
                let high = sample.get(below + 1).unwrap_or(low);
                tokens((low + (high - low) * (position - position.floor())).exp())
            }
        }
    }
}

/// Draws (input, output) pairs whose rank correlation is the asked one, by a Gaussian copula.
///
/// Every pair takes exactly two uniform numbers, so that changing a distribution moves no other draw.
#[derive(Debug, Clone)]
pub struct Pairs {
    input: Lengths,
    output: Lengths,
    /// Correlation of the two normal variables: r = 2 sin(πρ/6) for a rank correlation ρ.
    correlation: f64,
}

impl Pairs {
    /// Pairs with Spearman rank correlation `rank_correlation`, −1 to 1.
    #[must_use]
    pub fn new(input: Lengths, output: Lengths, rank_correlation: f64) -> Self {
        Self {
            input,
            output,
            correlation: (2.0 * (std::f64::consts::PI * rank_correlation / 6.0).sin())
                .clamp(-1.0, 1.0),
        }
    }

    /// The next pair.
    pub fn draw(&self, rng: &mut ChaCha8Rng) -> (u32, u32) {
        let (first, second): (f64, f64) = (rng.random(), rng.random());
        let second = if self.correlation == 0.0 {
            second
        } else {
            let independent =
                normal_quantile(second) * (1.0 - self.correlation * self.correlation).sqrt();
            normal_cdf(self.correlation * normal_quantile(first) + independent)
        };
        (self.input.quantile(first), self.output.quantile(second))
    }
}

impl FromStr for LengthSpec {
    type Err = NotValid;

    fn from_str(text: &str) -> Result<Self, NotValid> {
        let refuse = |hint: &str| NotValid::new("a length distribution", text, hint);
        let general = "write tokens (512), uniform:LOW..HIGH, exponential:MEAN, lognormal:MU,SIGMA, weibull:SHAPE,SCALE, pareto:MINIMUM,ALPHA or trace:NAME";
        let Some((kind, rest)) = text.split_once(':') else {
            return text
                .parse()
                .ok()
                .filter(|tokens| *tokens > 0)
                .map(Self::Fixed)
                .ok_or_else(|| refuse(general));
        };
        let number = |text: &str| {
            text.trim()
                .parse::<f64>()
                .ok()
                .filter(|value| value.is_finite())
        };
        let pair = || {
            rest.split_once(',')
                .and_then(|(first, second)| Some((number(first)?, number(second)?)))
        };
        match kind {
            "uniform" => rest
                .split_once("..")
                .and_then(|(low, high)| Some((low.parse().ok()?, high.parse().ok()?)))
                .filter(|(low, high): &(u32, u32)| *low > 0 && low <= high)
                .map(|(low, high)| Self::Uniform { low, high })
                .ok_or_else(|| refuse("write uniform:LOW..HIGH with 1 ≤ LOW ≤ HIGH")),
            "exponential" => number(rest)
                .filter(|mean| *mean >= 1.0)
                .map(|mean| Self::Exponential { mean })
                .ok_or_else(|| refuse("write exponential:MEAN with a mean of at least 1 token")),
            "lognormal" => pair()
                .filter(|(mu, sigma)| mu.abs() < 20.0 && (0.0..5.0).contains(sigma))
                .map(|(mu, sigma)| Self::Lognormal { mu, sigma })
                .ok_or_else(|| {
                    refuse("write lognormal:MU,SIGMA of ln tokens, such as lognormal:5.0,0.9")
                }),
            "weibull" => pair()
                .filter(|(shape, scale)| *shape > 0.0 && *scale > 0.0)
                .map(|(shape, scale)| Self::Weibull { shape, scale })
                .ok_or_else(|| refuse("write weibull:SHAPE,SCALE, both above 0")),
            "pareto" => pair()
                .filter(|(minimum, alpha)| *minimum >= 1.0 && *alpha > 0.0)
                .map(|(minimum, alpha)| Self::Pareto { minimum, alpha })
                .ok_or_else(|| refuse("write pareto:MINIMUM,ALPHA with MINIMUM ≥ 1 and ALPHA > 0")),
            "trace" if !rest.is_empty() => Ok(Self::Trace(PathBuf::from(rest))),
            _ => Err(refuse(general)),
        }
    }
}

impl fmt::Display for LengthSpec {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(tokens) => write!(formatter, "{tokens}"),
            Self::Uniform { low, high } => write!(formatter, "uniform:{low}..{high}"),
            Self::Exponential { mean } => write!(formatter, "exponential:{mean}"),
            Self::Lognormal { mu, sigma } => write!(formatter, "lognormal:{mu},{sigma}"),
            Self::Weibull { shape, scale } => write!(formatter, "weibull:{shape},{scale}"),
            Self::Pareto { minimum, alpha } => write!(formatter, "pareto:{minimum},{alpha}"),
            Self::Trace(source) => write!(formatter, "trace:{}", source.display()),
        }
    }
}

impl TryFrom<Written> for LengthSpec {
    type Error = NotValid;

    fn try_from(written: Written) -> Result<Self, NotValid> {
        written.to_string().parse()
    }
}

impl From<LengthSpec> for String {
    fn from(spec: LengthSpec) -> Self {
        spec.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::seed::stream;

    fn draw(text: &str) -> Vec<f64> {
        let lengths = text
            .parse::<LengthSpec>()
            .unwrap()
            .resolve(Column::Input)
            .unwrap();
        let mut rng = stream(3, "lengths", 0);
        (0..100_000)
            .map(|_| f64::from(lengths.quantile(rng.random())))
            .collect()
    }

    fn mean(values: &[f64]) -> f64 {
        values.iter().sum::<f64>() / values.len() as f64
    }

    #[test]
    fn means_are_those_of_the_closed_forms() {
        for (text, expected) in [
            ("512", 512.0),
            ("uniform:100..300", 200.0),
            ("exponential:200", 200.0),
            ("lognormal:5,0.5", (5.0_f64 + 0.125).exp()),
            ("weibull:2,300", 300.0 * 0.886_226_925),
            ("pareto:100,3", 150.0),
        ] {
            let seen = mean(&draw(text));
            assert!(
                (seen / expected - 1.0).abs() < 0.02,
                "{text}: mean {seen}, expected {expected}"
            );
        }
    }

    #[test]
    fn an_empirical_distribution_gives_back_its_trace() {
        let input = draw("trace:azure-2023-conv");
        assert!(
            (mean(&input) / 1155.0 - 1.0).abs() < 0.02,
            "mean {}",
            mean(&input)
        );
        let mut sorted = input;
        sorted.sort_by(f64::total_cmp);
        assert!(
            (sorted[50_000] - 1020.0).abs() < 15.0,
            "p50 {}",
            sorted[50_000]
        );
        assert!(
            (sorted[99_000] / 4142.0 - 1.0).abs() < 0.02,
            "p99 {}",
            sorted[99_000]
        );
    }

    #[test]
    fn the_copula_gives_the_asked_rank_correlation_and_leaves_the_margins() {
        let lengths = |text: &str| {
            text.parse::<LengthSpec>()
                .unwrap()
                .resolve(Column::Output)
                .unwrap()
        };
        for expected in [-0.5, 0.0, 0.7] {
            let pairs = Pairs::new(
                lengths("exponential:1000"),
                lengths("lognormal:5,1"),
                expected,
            );
            let mut rng = stream(5, "pairs", 0);
            let drawn: Vec<(u32, u32)> = (0..20_000).map(|_| pairs.draw(&mut rng)).collect();
            let rank = |key: fn(&(u32, u32)) -> u32| {
                let mut order: Vec<usize> = (0..drawn.len()).collect();
                order.sort_by_key(|index| key(&drawn[*index]));
                let mut ranks = vec![0.0; drawn.len()];
                for (rank, index) in order.into_iter().enumerate() {
                    ranks[index] = rank as f64;
                }
                ranks
            };
            let (x, y) = (rank(|pair| pair.0), rank(|pair| pair.1));
            let middle = mean(&x);
            let covariance: f64 = x
                .iter()
                .zip(&y)
                .map(|(a, b)| (a - middle) * (b - middle))
                .sum();
            let variance: f64 = x.iter().map(|a| (a - middle).powi(2)).sum();
            assert!(
                (covariance / variance - expected).abs() < 0.02,
                "asked {expected}, got {}",
                covariance / variance
            );
        }
    }

    #[test]
    fn specs_survive_being_written_and_read_and_nonsense_is_refused() {
        for text in [
            "512",
            "uniform:1..9",
            "exponential:30",
            "lognormal:5,0.9",
            "weibull:0.9,2000",
            "pareto:10,1.5",
            "trace:azure-2023-conv",
        ] {
            assert_eq!(text.parse::<LengthSpec>().unwrap().to_string(), text);
        }
        for text in [
            "0",
            "-3",
            "uniform:9..1",
            "exponential:0",
            "lognormal:5",
            "weibull:0,1",
            "trace:",
            "zipf:3",
        ] {
            assert!(text.parse::<LengthSpec>().is_err(), "{text} was accepted");
        }
    }
}
