//! llm-d's SLO-aware scaling through KEDA.
//!
//! ```text
//! n provisioned, r ready, c = r/n while 0 < r < n, else 1
//! s = mean over 45 s of min(max(P90 TTFT / S1, P90 TPOT / S2), 2)
//! s > 0.55: n + ceil(n(s·c/0.55 − 1))      s < 0.40: n − floor(n(1 − s/0.40))      else n
//! ```
//!
//! KEDA hands the number to an HPA as an External metric with an average value of 1, so the HPA's tolerance of a tenth applies to it. Where the objective
//! grows with the prompt, S1 is that of the typical prompt. Of two roles, prefill looks at TTFT alone and decode at TPOT alone. The look-back of the
//! quantiles is not published; a minute is taken.

use std::collections::VecDeque;
use std::time::Duration;

use coppice_scaler_plan::{Stage, ceil_units};

use super::behavior::{Amount, Behavior, ScalingRules, Stabiliser, TOLERANCE};
use super::hpa::{SYNC, external_average};
use crate::scaler::Scaler;
use crate::sight::Sight;
use crate::world::World;

const UP: f64 = 0.55;
const DOWN: f64 = 0.40;
const HIGHEST: f64 = 2.0;
const MEAN_OVER: Duration = Duration::from_secs(45);
const QUANTILE_WINDOW: Duration = Duration::from_secs(60);

/// The rule for all roles.
#[derive(Debug)]
pub struct SloAware {
    /// S1 and S2 in seconds.
    objectives: (f64, f64),
    /// Scores of the last 45 s, by role.
    scores: Vec<VecDeque<(Duration, f64)>>,
    roles: Vec<Stabiliser>,
}

impl SloAware {
    /// The rule with the world's objectives.
    #[must_use]
    pub fn new(world: &World) -> Self {
        let behavior = Behavior {
            up: ScalingRules::new(30, &[(Amount::Percent(100), 60), (Amount::Pods(4), 60)]),
            down: ScalingRules::new(180, &[(Amount::Pods(1), 120)]),
        };
        let ttft = world.objectives.ttft_of(ceil_units(world.typical.input));
        let roles = world.roles().len();
        Self {
            objectives: (ttft.as_secs_f64(), world.objectives.itl.as_secs_f64()),
            scores: vec![VecDeque::new(); roles],
            roles: vec![Stabiliser::new(behavior); roles],
        }
    }

    fn score(&self, sight: &Sight<'_>, stage: Stage) -> Option<f64> {
        let ttft = sight
            .quantile(QUANTILE_WINDOW, 0.9, |gateway| &gateway.ttft)
            .map(|ttft| ttft / self.objectives.0);
        let tpot = sight
            .quantile(QUANTILE_WINDOW, 0.9, |gateway| &gateway.tpot)
            .map(|tpot| tpot / self.objectives.1);
        let worst = match stage {
            Stage::Prefill | Stage::Encode => ttft?,
            Stage::Decode => tpot?,
            Stage::Aggregated | Stage::Other => ttft.into_iter().chain(tpot).reduce(f64::max)?,
        };
        Some(worst.min(HIGHEST))
    }

    fn recommend(&mut self, sight: &Sight<'_>, role: usize) -> Option<u32> {
        let score = self.score(sight, sight.world.roles()[role].stage);
        let scores = &mut self.scores[role];
        scores.extend(score.map(|score| (sight.now, score)));
        scores.retain(|(at, _)| sight.now.saturating_sub(*at) < MEAN_OVER);
        if scores.is_empty() {
            return None;
        }
        let mean = scores.iter().map(|(_, score)| score).sum::<f64>() / scores.len() as f64;
        let seen = &sight.roles[role];
        let value = wanted(seen.desired, seen.ready(), mean);
        let tolerance = (TOLERANCE, TOLERANCE);
        Some(external_average(value, 1.0, seen.desired, tolerance))
    }
}

/// The number that the formula gives.
fn wanted(provisioned: u32, ready: u32, score: f64) -> f64 {
    let n = f64::from(provisioned);
    let confidence = if 0 < ready && ready < provisioned {
        f64::from(ready) / n
    } else {
        1.0
    };
    if score > UP {
        n + (n * (score * confidence / UP - 1.0)).ceil()
    } else if score < DOWN {
        n - (n * (1.0 - score / DOWN)).floor()
    } else {
        n
    }
}

impl Scaler for SloAware {
    fn period(&self) -> Duration {
        SYNC
    }

    fn decide(&mut self, sight: &Sight<'_>) -> Vec<u32> {
        let recommended: Vec<Option<u32>> = (0..self.roles.len())
            .map(|role| self.recommend(sight, role))
            .collect();
        super::settled(&mut self.roles, sight, &recommended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_formula_by_hand() {
        for (provisioned, ready, score, expected) in [
            (4, 4, 0.50, 4.0),
            // 4·(1.1/0.55 − 1) = 4 more.
            (4, 4, 1.10, 8.0),
            // Half are ready: 4·(1.1·0.5/0.55 − 1) = 0 more.
            (4, 2, 1.10, 4.0),
            // None is ready: no confidence to take off.
            (4, 0, 1.10, 8.0),
            // 4·(0.6/0.55 − 1) = 0.36: one more.
            (4, 4, 0.60, 5.0),
            // 4·(1 − 0.2/0.4) = 2 fewer; 4·(1 − 0.35/0.4) = 0.5: none.
            (4, 4, 0.20, 2.0),
            (4, 4, 0.35, 4.0),
        ] {
            let value = wanted(provisioned, ready, score);
            assert!(
                (value - expected).abs() < 1e-9,
                "{provisioned} {ready} {score}: {value}"
            );
        }
    }
}
