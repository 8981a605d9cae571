//! Two published rules for prefill and decode together.

use std::time::Duration;

use coppice_scaler_plan::ceil_units;

use super::behavior::{Behavior, Stabiliser};
use super::hpa::SYNC;
use crate::known::Capacity;
use crate::scaler::Scaler;
use crate::sight::Sight;
use crate::world::World;

/// Look-back of the rates, which neither source publishes.
const WINDOW: Duration = Duration::from_secs(60);

/// HeteroScale: decode tokens per second steer the whole, a fixed ratio steers prefill.
///
/// ```text
/// I* = decode tokens per second / target of a unit;  I*/I > 1 + θ or < 1 − θ:  P = ceil(I*·ρ/(1 + ρ)), D = P/ρ, ρ = P:D
/// mean time between tokens > 1.2 · objective: both · 1.2
/// ```
///
/// The target is of one decode unit, so I and I* count decode units here: D = ceil(I*) and P = ceil(ρ·D), ρ from the typical lengths. The target is 0.8 of what a benchmark of one
/// decode unit makes within the objective; θ is a tenth both ways. Left out: placement over networks and GPU types, which the source is mostly about.
#[derive(Debug)]
pub struct HeteroScale {
    target: f64,
    ratio: f64,
}

const THETA: f64 = 0.1;
const TARGET: f64 = 0.8;
const LATE: f64 = 1.2;

impl HeteroScale {
    /// The rule for a world of prefill and decode.
    #[must_use]
    pub fn new(world: &World) -> Self {
        let itl = world.objectives.itl.as_secs_f64();
        let decode = Capacity::of(&world.roles()[1], world.typical, itl);
        Self {
            target: TARGET * decode.decode_tokens_per_second,
            ratio: ratio_of(world),
        }
    }
}

/// Prefill units for each decode unit at the typical lengths.
pub(super) fn ratio_of(world: &World) -> f64 {
    let itl = world.objectives.itl.as_secs_f64();
    let capacity = |role: usize| Capacity::of(&world.roles()[role], world.typical, itl);
    let decoding = world.typical.output / capacity(1).decode_tokens_per_second;
    capacity(0).prefill_seconds / decoding
}

/// (P, D) for decode tokens per second, with the units there are.
fn hetero(tokens: f64, target: f64, ratio: f64, current: (u32, u32), late: bool) -> (u32, u32) {
    let wanted = tokens / target;
    let now = f64::from(current.1);
    let decode = if wanted > now * (1.0 + THETA) || wanted < now * (1.0 - THETA) {
        ceil_units(wanted).max(1)
    } else {
        current.1
    };
    let prefill = if decode == current.1 {
        current.0
    } else {
        ceil_units(ratio * f64::from(decode)).max(1)
    };
    if late {
        let more = |units: u32| ceil_units(f64::from(units) * LATE);
        return (prefill.max(more(current.0)), decode.max(more(current.1)));
    }
    (prefill, decode)
}

impl Scaler for HeteroScale {
    fn period(&self) -> Duration {
        SYNC
    }

    fn decide(&mut self, sight: &Sight<'_>) -> Vec<u32> {
        let current = (sight.roles[0].desired, sight.roles[1].desired);
        let Some(tokens) = sight.rate(1, WINDOW, |unit| unit.generation_tokens) else {
            return vec![current.0, current.1];
        };
        // While units are on their way, the tail says nothing about them.
        let settled = sight.roles.iter().all(|role| role.pending() == 0);
        let objective = sight.world.objectives.itl.as_secs_f64();
        let late = settled
            && sight
                .quantile(WINDOW, 0.5, |gateway| &gateway.tpot)
                .is_some_and(|tpot| tpot > LATE * objective);
        let (prefill, decode) = hetero(tokens, self.target, self.ratio, current, late);
        vec![prefill, decode]
    }
}

/// TokenScale: token velocities.
///
/// ```text
/// N_P = λ·I / min(V_P, V_N)      N_D = λ·tokens / V_D
/// ```
///
/// V_P, V_D: tokens per second of one unit by its profile, V_N: of the network between them. Left out: buckets of lengths (one bucket, with the mean
/// lengths of the last minute), and decoders that turn to prefill in bursts. Behind it stands an HPA's default behaviour, as nothing is published.
#[derive(Debug)]
pub struct TokenScale {
    roles: Vec<Stabiliser>,
    network: f64,
}

impl TokenScale {
    /// The rule for a world of prefill and decode.
    #[must_use]
    pub fn new(world: &World) -> Self {
        let transfer = &world.roles()[0].engine.transfer;
        Self {
            roles: vec![Stabiliser::new(Behavior::default()); world.roles().len()],
            network: transfer.bytes_per_second / (transfer.bytes_per_token.max(1)) as f64,
        }
    }
}

/// (N_P, N_D) for input and output tokens per second.
fn velocities(input: f64, output: f64, prefill: f64, network: f64, decode: f64) -> (u32, u32) {
    (
        ceil_units(input / prefill.min(network)),
        ceil_units(output / decode),
    )
}

impl Scaler for TokenScale {
    fn period(&self) -> Duration {
        SYNC
    }

    fn decide(&mut self, sight: &Sight<'_>) -> Vec<u32> {
        let wanted = || {
            let requests = sight.gateway_rate(WINDOW, |gateway| gateway.arrived)?;
            let input = sight.gateway_rate(WINDOW, |gateway| gateway.arrived_input_tokens)?;
            let typical = sight.world.typical;
            let lengths = crate::world::Lengths {
                input: sight.mean_input(WINDOW).unwrap_or(typical.input),
                output: sight.mean_output(WINDOW).unwrap_or(typical.output),
            };
            let itl = sight.world.objectives.itl.as_secs_f64();
            let capacity = |role: usize| Capacity::of(&sight.world.roles()[role], lengths, itl);
            Some(velocities(
                input,
                requests * lengths.output,
                capacity(0).prefill_tokens_per_second,
                self.network,
                capacity(1).decode_tokens_per_second,
            ))
        };
        let wanted = wanted();
        let recommended = [
            wanted.map(|(prefill, _)| prefill),
            wanted.map(|(_, decode)| decode),
        ];
        super::settled(&mut self.roles, sight, &recommended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heteroscale_by_hand() {
        // 5,000 tokens/s at 1,000 a unit: 5 decode units, and half as many prefill units.
        assert_eq!(hetero(5_000.0, 1_000.0, 0.5, (1, 2), false), (3, 5));
        // 4,400 is within a tenth of four units' 4,000: held; 4,401 is not.
        assert_eq!(hetero(4_400.0, 1_000.0, 0.5, (2, 4), false), (2, 4));
        assert_eq!(hetero(4_401.0, 1_000.0, 0.5, (2, 4), false), (3, 5));
        assert_eq!(hetero(3_599.0, 1_000.0, 0.5, (2, 4), false), (2, 4));
        assert_eq!(hetero(2_000.0, 1_000.0, 0.5, (2, 4), false), (1, 2));
        // Late: both a fifth more.
        assert_eq!(hetero(4_000.0, 1_000.0, 0.5, (2, 4), true), (3, 5));
        assert_eq!(hetero(0.0, 1_000.0, 0.5, (2, 4), false), (1, 1));
    }

    #[test]
    fn tokenscale_by_hand() {
        // 30,000 tokens/s over 20,000 a unit; 4,500 over 2,000.
        assert_eq!(
            velocities(30_000.0, 4_500.0, 20_000.0, 1e6, 2_000.0),
            (2, 3)
        );
        // The network carries 10,000 tokens a second: three senders.
        assert_eq!(
            velocities(30_000.0, 4_500.0, 20_000.0, 1e4, 2_000.0),
            (3, 3)
        );
        assert_eq!(velocities(0.0, 0.0, 20_000.0, 1e6, 2_000.0), (0, 0));
    }
}
