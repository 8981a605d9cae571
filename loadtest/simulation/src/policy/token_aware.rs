//! llm-d's token-aware scaling through KEDA.
//!
//! Prefill: seconds of prefill work in flight, each unit to carry θ of them. Decode: Σ of the KV use, each unit to carry 0.8. Units that do both have both
//! triggers, of which the larger counts. KEDA hands each to an HPA as an External metric with an average value, so the HPA's tolerance applies.
//!
//! V_P is a chunk of the token budget over the idle time to first token; here from the profile, there from a measurement through the whole path.

use std::time::Duration;

use coppice_scaler_plan::Stage;

use super::behavior::{Amount, Behavior, ScalingRules, Stabiliser, TOLERANCE};
use super::hpa::{SYNC, external_average};
use crate::known::Capacity;
use crate::scaler::Scaler;
use crate::sight::Sight;
use crate::world::{Lengths, World};

/// Share of the KV cache that a unit is to use.
const KV_TARGET: f64 = 0.8;
/// Seconds of prefill work that a unit is to have, as published.
pub const DEFAULT_THETA: f64 = 1.5;

/// The rule for all roles.
#[derive(Debug)]
pub struct TokenAware {
    theta: f64,
    /// V_P in tokens per second, by role.
    prefill_rates: Vec<f64>,
    roles: Vec<Stabiliser>,
}

impl TokenAware {
    /// The rule with `theta` seconds of prefill work a unit.
    #[must_use]
    pub fn new(world: &World, theta: f64) -> Self {
        let rate = |role: &crate::world::Role| {
            let chunk = f64::from(role.engine.max_num_batched_tokens);
            let lengths = Lengths {
                input: chunk,
                output: world.typical.output,
            };
            let itl = world.objectives.itl.as_secs_f64();
            chunk / Capacity::of(role, lengths, itl).idle_ttft_seconds
        };
        let behavior = Behavior {
            up: ScalingRules::new(0, &[(Amount::Pods(1), 180)]),
            down: ScalingRules::new(300, &[(Amount::Pods(1), 300)]),
        };
        Self {
            theta,
            prefill_rates: world.roles().iter().map(rate).collect(),
            roles: world
                .roles()
                .iter()
                .map(|_| Stabiliser::new(behavior.clone()))
                .collect(),
        }
    }

    fn recommend(&self, sight: &Sight<'_>, role: usize) -> Option<u32> {
        let current = sight.roles[role].desired;
        let average =
            |sum: f64, target: f64| external_average(sum, target, current, (TOLERANCE, TOLERANCE));
        let prefill = || {
            let tokens = sight.fresh()?.gateway.input_tokens_in_flight;
            let seconds = prefill_seconds(tokens as f64, self.prefill_rates[role]);
            Some(average(seconds, self.theta))
        };
        let decode = || Some(average(sight.sum(role, |unit| unit.kv_usage)?, KV_TARGET));
        match sight.world.roles()[role].stage {
            Stage::Prefill | Stage::Encode => prefill(),
            Stage::Decode => decode(),
            Stage::Aggregated | Stage::Other => Some(prefill()?.max(decode()?)),
        }
    }
}

/// Σ in-flight tokens / V_P.
fn prefill_seconds(tokens: f64, rate: f64) -> f64 {
    tokens / rate
}

impl Scaler for TokenAware {
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

    /// 120,000 tokens in flight at 20,000 a second are 6 s of work: four units of 1.5 s each.
    #[test]
    fn prefill_is_work_in_flight_over_theta() {
        let work = prefill_seconds(120_000.0, 20_000.0);
        assert_eq!(external_average(work, DEFAULT_THETA, 1, (0.1, 0.1)), 4);
        // 6 s over four units is the target itself; 6.5 s is within a tenth of it, 6.7 s is not.
        assert_eq!(external_average(6.5, DEFAULT_THETA, 4, (0.1, 0.1)), 4);
        assert_eq!(external_average(6.7, DEFAULT_THETA, 4, (0.1, 0.1)), 5);
    }

    /// Three caches' worth of tokens at 0.8 each: 3.75, so four units.
    #[test]
    fn decode_is_kv_use_over_eight_tenths() {
        assert_eq!(external_average(3.0, KV_TARGET, 2, (0.1, 0.1)), 4);
    }
}
