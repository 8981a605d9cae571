//! NVIDIA Dynamo's planner: throughput mode every 180 s, load mode every 5 s, or both.
//!
//! ```text
//! throughput   d = predicted requests / interval, counted at completion
//!              N_p = max(ceil(d·T(isl)), min)                  T = wall time of a prompt's chunks
//!              N_d = max(ceil(d·osl·wall(B, B·ctx)/B), min)    ctx = isl + osl/2, B the largest batch within the ITL objective
//!              with load mode on these are lower bounds
//! load         prefill: Σ wall(chunks of queued + isl) against the TTFT objective; decode: wall(n + 1, kv + avg) against ITL
//!              +1 if all engines violate; −1 if with the load on one engine fewer: queue part < (TTFT − own)·0.8; kv < max and ITL < 0.8·objective
//!              nothing while the fleet still follows the last decision
//! budget       s = G/(pP + dD);  P' = max(minP, min(floor((G − minD·d)/p), floor(P·s)));  D' = floor((G − P'·p)/d)
//! ```
//!
//! Predictors: constant, or a Kalman filter of a local linear trend. Left out: ARIMA (the default) and Prophet; the correction factors of the older form;
//! the regressions: wall times are those of the engine's own profile, a regression that fits perfectly; prefix hits (h = 0). Units that do both
//! (not the planner's home ground) take, in throughput mode, d over what a benchmark of one unit serves, and in load mode both conditions. A load mode alone
//! starts from what is there.

use std::time::Duration;

use coppice_engine::{Chunk, StepModel};
use coppice_scaler_plan::{Stage, ceil_units};

use crate::known::Capacity;
use crate::scaler::Scaler;
use crate::scrape::UnitScrape;
use crate::sight::Sight;
use crate::world::{Lengths, Role, World};

const THROUGHPUT_INTERVAL: Duration = Duration::from_secs(180);
const LOAD_INTERVAL: Duration = Duration::from_secs(5);
/// Sensitivity of scaling down.
const DOWN: f64 = 0.8;

/// Which of the planner's modes are on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Modes {
    /// Throughput alone.
    Throughput,
    /// Load alone.
    Load,
    /// Load, with throughput's numbers as lower bounds.
    Both,
}

/// What the next interval brings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Predictor {
    /// What this one brought.
    Constant,
    /// A local linear trend.
    Kalman,
}

/// The planner.
#[derive(Debug)]
pub struct Dynamo {
    modes: Modes,
    predictor: Predictor,
    models: Vec<StepModel>,
    requests: Trend,
    lengths: Lengths,
    next_throughput: Duration,
    /// Throughput mode's numbers, by role.
    floor: Option<Vec<u32>>,
}

impl Dynamo {
    /// The planner for a world.
    #[must_use]
    pub fn new(world: &World, modes: Modes, predictor: Predictor) -> Self {
        let models = world
            .roles()
            .iter()
            .map(|role| StepModel::new(&role.profile));
        Self {
            modes,
            predictor,
            models: models.collect(),
            requests: Trend::new(),
            lengths: world.typical,
            next_throughput: THROUGHPUT_INTERVAL,
            floor: None,
        }
    }

    fn throughput(&mut self, sight: &Sight<'_>) -> Option<Vec<u32>> {
        let window = THROUGHPUT_INTERVAL;
        let finished = sight.gateway_rate(window, |gateway| gateway.finished)?;
        self.lengths = observed(sight, window).unwrap_or(self.lengths);
        self.requests.observe(finished);
        let rate = match self.predictor {
            Predictor::Constant => finished,
            Predictor::Kalman => self.requests.next().max(0.0),
        };
        let itl = sight.world.objectives.itl.as_secs_f64();
        let roles = sight.world.roles().iter();
        Some(
            roles
                .map(|role| by_throughput(role, rate, self.lengths, itl))
                .collect(),
        )
    }

    /// −1, 0 or +1 for a role.
    fn load(&self, sight: &Sight<'_>, index: usize) -> Option<i32> {
        let role = &sight.world.roles()[index];
        let seen = &sight.roles[index];
        let scrape = sight.fresh()?;
        let units: Vec<&UnitScrape> = scrape
            .units
            .iter()
            .filter(|unit| unit.role == index)
            .collect();
        let moving = seen.pending() > 0 || seen.desired != seen.ready();
        if moving || units.is_empty() || units.len() != seen.ready() as usize {
            return Some(0);
        }
        let estimates = units
            .iter()
            .map(|unit| self.estimate(sight, role, index, unit));
        let estimates: Vec<Estimate> = estimates.collect();
        Some(step(&estimates, role.stage))
    }

    fn estimate(
        &self,
        sight: &Sight<'_>,
        role: &Role,
        index: usize,
        unit: &UnitScrape,
    ) -> Estimate {
        let model = &self.models[index];
        let own = prefill(model, role, self.lengths.input);
        let queued = unit.prompt_tokens_in_flight as f64;
        let cache = role.engine.kv_capacity_tokens as f64;
        let average = self.lengths.input + self.lengths.output / 2.0;
        let kv = unit.kv_usage * cache + f64::from(unit.waiting) * average;
        let batch = unit.running.saturating_add(1);
        let decode = |kv: f64| model.decode(batch, whole(kv + average)).first;
        Estimate {
            own,
            queue: prefill(model, role, queued + self.lengths.input) - own,
            ttft_objective: sight
                .world
                .objectives
                .ttft_of(ceil_units(self.lengths.input))
                .as_secs_f64(),
            itl: decode(kv),
            kv_share: kv / cache,
            itl_objective: sight.world.objectives.itl.as_secs_f64(),
        }
    }
}

/// Mean lengths of the requests that ended within the window.
fn observed(sight: &Sight<'_>, window: Duration) -> Option<Lengths> {
    let requests = sight.gateway_rate(window, |gateway| gateway.finished)?;
    let input = sight.gateway_rate(window, |gateway| gateway.finished_input_tokens)?;
    let output = sight.mean_output(window)?;
    (requests > 0.0).then(|| Lengths {
        input: input / requests,
        output,
    })
}

fn by_throughput(role: &Role, rate: f64, lengths: Lengths, itl: f64) -> u32 {
    let capacity = Capacity::of(role, lengths, itl);
    let units = match role.stage {
        Stage::Prefill | Stage::Encode => rate * capacity.prefill_seconds,
        Stage::Decode => rate * lengths.output * capacity.step_seconds / capacity.batch,
        Stage::Aggregated | Stage::Other => rate / capacity.requests_per_second,
    };
    ceil_units(units).max(role.units.min())
}

/// Wall time of a prompt's chunks.
fn prefill(model: &StepModel, role: &Role, prompt: f64) -> f64 {
    let most = role.engine.max_num_batched_tokens;
    let mut left = ceil_units(prompt);
    let mut seconds = 0.0;
    let mut behind = 0;
    while left > 0 {
        let chunk = left.min(most);
        seconds += model.mixed(
            0,
            0,
            &[Chunk {
                tokens: chunk,
                behind,
            }],
        );
        // Prompts queue one behind the other: what is cached in front of a chunk is at most one prompt.
        behind = (behind + chunk).min(most);
        left -= chunk;
    }
    seconds
}

fn whole(value: f64) -> u64 {
    u64::from(ceil_units(value))
}

/// What the load mode knows of one engine; times in seconds.
#[derive(Debug, Clone, Copy)]
struct Estimate {
    own: f64,
    queue: f64,
    ttft_objective: f64,
    itl: f64,
    kv_share: f64,
    itl_objective: f64,
}

fn step(engines: &[Estimate], stage: Stage) -> i32 {
    let count = engines.len() as f64;
    let spread = count / (count - 1.0).max(f64::MIN_POSITIVE);
    let prefill = |engine: &Estimate| {
        let late = engine.own + engine.queue > engine.ttft_objective;
        let room = engine.queue * spread < (engine.ttft_objective - engine.own) * DOWN;
        (late, room)
    };
    let decode = |engine: &Estimate| {
        let late = engine.itl > engine.itl_objective;
        let room = engine.kv_share * spread < 1.0 && engine.itl < DOWN * engine.itl_objective;
        (late, room)
    };
    let judge = |engine: &Estimate| match stage {
        Stage::Prefill | Stage::Encode => prefill(engine),
        Stage::Decode => decode(engine),
        Stage::Aggregated | Stage::Other => {
            let (first, second) = (prefill(engine), decode(engine));
            (first.0 || second.0, first.1 && second.1)
        }
    };
    if engines.iter().all(|engine| judge(engine).0) {
        1
    } else if engines.len() > 1 && engines.iter().all(|engine| judge(engine).1) {
        -1
    } else {
        0
    }
}

impl Scaler for Dynamo {
    fn period(&self) -> Duration {
        LOAD_INTERVAL
    }

    fn decide(&mut self, sight: &Sight<'_>) -> Vec<u32> {
        let current: Vec<u32> = sight.roles.iter().map(|role| role.desired).collect();
        if self.modes != Modes::Load && sight.now >= self.next_throughput {
            self.next_throughput += THROUGHPUT_INTERVAL;
            self.floor = self.throughput(sight).or_else(|| self.floor.take());
        }
        if self.modes == Modes::Load {
            self.lengths = observed(sight, THROUGHPUT_INTERVAL).unwrap_or(self.lengths);
        }
        let wanted = match (self.modes, &self.floor) {
            (Modes::Throughput, Some(floor)) => floor.clone(),
            (Modes::Throughput, None) => current,
            (Modes::Load | Modes::Both, floor) => {
                let moved = current.iter().enumerate().map(|(role, current)| {
                    let step = self.load(sight, role).unwrap_or(0);
                    let least = floor.as_ref().map_or(0, |floor| floor[role]);
                    let least = least.max(sight.world.roles()[role].units.min());
                    current.saturating_add_signed(step).max(least)
                });
                moved.collect()
            }
        };
        match sight.world.budget_gpus {
            Some(budget) => within_budget(sight.world.roles(), wanted, budget),
            None => wanted,
        }
    }
}

/// The planner's rule for a budget; both zero when it is too small.
fn within_budget(roles: &[Role], wanted: Vec<u32>, budget: u32) -> Vec<u32> {
    let asked: u32 = roles
        .iter()
        .zip(&wanted)
        .map(|(role, units)| role.gpus_per_unit * units)
        .sum();
    if asked <= budget {
        return wanted;
    }
    let [prefill, decode] = roles else {
        return roles
            .iter()
            .zip(&wanted)
            .map(|(role, units)| (*units).min(budget / role.gpus_per_unit.max(1)))
            .collect();
    };
    let (p, d) = (prefill.gpus_per_unit.max(1), decode.gpus_per_unit.max(1));
    let (least_p, least_d) = (prefill.units.min(), decode.units.min());
    if least_p * p + least_d * d > budget {
        return vec![0, 0];
    }
    // floor(P·s) with s = G/(pP + dD), in whole numbers.
    let scaled = u64::from(wanted[0]) * u64::from(budget) / u64::from(asked.max(1));
    let scaled = u32::try_from(scaled).unwrap_or(u32::MAX);
    let prefills = least_p.max(((budget - least_d * d) / p).min(scaled));
    vec![prefills, (budget - prefills * p) / d]
}

/// A Kalman filter of a local linear trend: F = [[1, 1], [0, 1]], H = [1, 0], Q = diag(1, 0.1), R = 10, P0 = 1000·I.
#[derive(Debug, Clone)]
struct Trend {
    level: f64,
    slope: f64,
    /// Covariance: of the level, of both, of the slope.
    p: [f64; 3],
}

impl Trend {
    fn new() -> Self {
        Self {
            level: 0.0,
            slope: 0.0,
            p: [1000.0, 0.0, 1000.0],
        }
    }

    /// The expected next value.
    fn next(&self) -> f64 {
        self.level + self.slope
    }

    fn observe(&mut self, value: f64) {
        const LEVEL_NOISE: f64 = 1.0;
        const SLOPE_NOISE: f64 = 0.1;
        const NOISE: f64 = 10.0;
        let [a, b, c] = self.p;
        let (level, slope) = (self.level + self.slope, self.slope);
        let [a, b, c] = [a + 2.0 * b + c + LEVEL_NOISE, b + c, c + SLOPE_NOISE];
        let gain = (a / (a + NOISE), b / (a + NOISE));
        let innovation = value - level;
        self.level = level + gain.0 * innovation;
        self.slope = slope + gain.1 * innovation;
        self.p = [(1.0 - gain.0) * a, (1.0 - gain.0) * b, c - gain.1 * b];
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::testing::{disaggregated, pool};

    #[test]
    fn throughput_is_demand_over_what_a_unit_does() {
        let world = disaggregated();
        let lengths = Lengths {
            input: 3_000.0,
            output: 300.0,
        };
        // 8B on an H200: one prompt of 3,000 tokens takes 4.38 + 42.33 + 4.427 = 51.14 ms.
        let prefill = by_throughput(&world.roles()[0], 45.0, lengths, 0.010);
        assert_eq!(prefill, 3, "45 · 0.05114 = 2.30");
        // B: 4.38 + B(0.03948 + 3.009e-5·3150) ≤ 10 → 41.8, so 41 and 9.885 ms: 45·300·0.009885/41 = 3.25.
        let decode = by_throughput(&world.roles()[1], 45.0, lengths, 0.010);
        assert_eq!(decode, 4);
        assert_eq!(by_throughput(&world.roles()[0], 0.0, lengths, 0.010), 1);
    }

    #[test]
    fn load_mode_adds_when_all_are_late_and_removes_when_one_fewer_would_do() {
        let engine = |queue: f64, itl: f64, kv_share: f64| Estimate {
            own: 0.05,
            queue,
            ttft_objective: 0.25,
            itl,
            kv_share,
            itl_objective: 0.010,
        };
        let late = engine(0.21, 0.005, 0.1);
        let idle = engine(0.0, 0.005, 0.1);
        // Two to one doubles the queue part: 0.07 → 0.14 < 0.16, and 0.09 → 0.18.
        let busy = engine(0.09, 0.005, 0.1);
        let light = engine(0.07, 0.005, 0.1);
        for (engines, expected) in [
            (vec![late, late], 1),
            (vec![late, idle], 0),
            (vec![busy, busy], 0),
            (vec![light, light], -1),
            (vec![light], 0),
        ] {
            assert_eq!(step(&engines, Stage::Prefill), expected, "{engines:?}");
        }
        let slow = engine(0.0, 0.011, 0.1);
        let near = engine(0.0, 0.0081, 0.1);
        let full = engine(0.0, 0.005, 0.6);
        assert_eq!(step(&[slow, slow], Stage::Decode), 1);
        assert_eq!(step(&[near, near], Stage::Decode), 0);
        assert_eq!(step(&[full, full], Stage::Decode), 0);
        assert_eq!(step(&[idle, idle], Stage::Decode), -1);
    }

    #[test]
    fn the_budget_is_split_as_published() {
        let world = disaggregated();
        let split =
            |wanted: [u32; 2], budget| within_budget(world.roles(), wanted.to_vec(), budget);
        assert_eq!(split([2, 2], 4), [2, 2]);
        // s = 4/9: floor(3·4/9) = 1, then all the rest.
        assert_eq!(split([3, 6], 4), [1, 3]);
        // s = 4/8: floor(6/2) = 3, and one is left for decode.
        assert_eq!(split([6, 2], 4), [3, 1]);
        assert_eq!(split([5, 5], 1), [0, 0]);
        assert_eq!(within_budget(pool().roles(), vec![9], 4), [4]);
    }

    #[test]
    fn the_filter_learns_a_trend() {
        let mut trend = Trend::new();
        trend.observe(10.0);
        // P = [2001, 1000, 1000.1] before; gain 2001/2011.
        assert!((trend.level - 10.0 * 2001.0 / 2011.0).abs() < 1e-9);
        assert!((trend.slope - 10.0 * 1000.0 / 2011.0).abs() < 1e-9);
        for value in 1..200_u32 {
            trend.observe(10.0 + 2.0 * f64::from(value));
        }
        assert!((trend.next() - 410.0).abs() < 0.5, "{}", trend.next());
    }
}
