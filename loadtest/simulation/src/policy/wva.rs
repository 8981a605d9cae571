//! llm-d's workload variant autoscaler (WVA), saturation engine, versions 1 and 2, for one pool of one variant.
//!
//! ```text
//! V1  unsaturated: kv < 0.80 and queue < 5, largest of a minute
//!     mean spare kv < 0.1 or mean spare queue < 3 → ready + 1, unless something is pending
//!     margins hold with the load spread over one unit fewer (two unsaturated or more) → −1
//! V2  capacity = median of min(0.8·KV, k2)      k2 = tokens in use when queueing (mean of ten), else N_ss(I + O/2)
//!     N_ss = min(B·O/(I + O), S)                B token budget of a step, S largest batch
//!     demand = tokens in use + queue·I          required = demand/0.85 − supply(ready + pending)      spare = supply − demand/0.70
//! ```
//!
//! The number is handed to an HPA with default behaviour as an External metric with an average value of 1. Left out: several variants (the cheapest grows,
//! the dearest shrinks), the throughput analyser, the queueing model, and the scheduler's own queue (the gateway holds requests only while nothing is
//! ready, and they count as queued). The period of the engine is its documented 60 s.

use std::collections::VecDeque;
use std::time::Duration;

use coppice_scaler_plan::ceil_units;

use super::behavior::{Behavior, Stabiliser, TOLERANCE};
use super::hpa::{SYNC, external_average};
use crate::scaler::Scaler;
use crate::sight::Sight;
use crate::world::{Lengths, World};

const KV_LIMIT: f64 = 0.80;
const QUEUE_LIMIT: f64 = 5.0;
const KV_SPARE: f64 = 0.1;
const QUEUE_SPARE: f64 = 3.0;
const OPTIMISE: Duration = Duration::from_secs(60);
const LOOK_BACK: Duration = Duration::from_secs(60);
const UP: f64 = 0.85;
const DOWN: f64 = 0.70;
/// Observations that k2 is the mean of.
const QUEUEING: usize = 10;

/// Which version of the saturation engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// Spare capacity of units.
    V1,
    /// Tokens.
    V2,
}

/// The engine and its HPA.
#[derive(Debug)]
pub struct Wva {
    version: Version,
    wanted: Option<u32>,
    next: Duration,
    /// Tokens in use of units that queued, latest last.
    queueing: VecDeque<f64>,
    lengths: Lengths,
    hpa: Stabiliser,
}

impl Wva {
    /// The engine for a world with one role; the caller has checked that.
    #[must_use]
    pub fn new(world: &World, version: Version) -> Self {
        Self {
            version,
            wanted: None,
            next: Duration::ZERO,
            queueing: VecDeque::new(),
            lengths: world.typical,
            hpa: Stabiliser::new(Behavior::default()),
        }
    }

    fn optimise(&mut self, sight: &Sight<'_>) -> Option<u32> {
        match self.version {
            Version::V1 => v1(sight),
            Version::V2 => self.v2(sight),
        }
    }

    fn v2(&mut self, sight: &Sight<'_>) -> Option<u32> {
        let scrape = sight.fresh()?;
        let role = &sight.world.roles()[0];
        let cache = role.engine.kv_capacity_tokens as f64;
        self.lengths.input = sight.mean_input(LOOK_BACK).unwrap_or(self.lengths.input);
        self.lengths.output = sight.mean_output(LOOK_BACK).unwrap_or(self.lengths.output);
        let queueing = scrape.units.iter().filter(|unit| unit.waiting > 0);
        for unit in queueing {
            self.queueing.push_back(unit.kv_usage * cache);
        }
        while self.queueing.len() > QUEUEING {
            self.queueing.pop_front();
        }
        let observed = if self.queueing.is_empty() {
            steady(
                self.lengths,
                f64::from(role.engine.max_num_batched_tokens),
                f64::from(role.engine.max_num_seqs),
            )
        } else {
            self.queueing.iter().sum::<f64>() / self.queueing.len() as f64
        };
        // One variant: every unit has the same capacity, so the median is it.
        let capacity = (KV_LIMIT * cache).min(observed);
        let queued =
            scrape.units.iter().map(|unit| unit.waiting).sum::<u32>() + scrape.gateway.held;
        let in_use: f64 = scrape.units.iter().map(|unit| unit.kv_usage * cache).sum();
        let demand = in_use + f64::from(queued) * self.lengths.input;
        let units = sight.roles[0].staying();
        Some(by_tokens(units, capacity, demand))
    }
}

/// Tokens that a unit holds at its steady batch.
fn steady(lengths: Lengths, budget: f64, most_sequences: f64) -> f64 {
    let Lengths { input, output } = lengths;
    let batch = (budget * output / (input + output)).min(most_sequences);
    batch * (input + output / 2.0)
}

/// Units for a demand: enough for it at 0.85 of the supply; fewer while it stays below 0.70.
fn by_tokens(units: u32, capacity: f64, demand: f64) -> u32 {
    let supply = f64::from(units) * capacity;
    let required = demand / UP - supply;
    let spare = supply - demand / DOWN;
    if required > 0.0 {
        units + ceil_units(required / capacity)
    } else if spare >= capacity {
        // Whole units that are spare: the rest is needed.
        ceil_units(demand / DOWN / capacity).max(1).min(units)
    } else {
        units
    }
}

fn v1(sight: &Sight<'_>) -> Option<u32> {
    let scrape = sight.fresh()?;
    let loads: Vec<(f64, f64)> = scrape
        .units
        .iter()
        .filter_map(|unit| {
            let kv = sight.most(unit.unit, LOOK_BACK, |unit| unit.kv_usage)?;
            let queue = sight.most(unit.unit, LOOK_BACK, |unit| f64::from(unit.waiting))?;
            Some((kv, queue))
        })
        .collect();
    if loads.is_empty() {
        return None;
    }
    let seen = &sight.roles[0];
    Some(by_spare(&loads, seen.ready(), seen.pending()))
}

/// Units for the largest (kv, queue) of each.
fn by_spare(loads: &[(f64, f64)], ready: u32, pending: u32) -> u32 {
    let open: Vec<(f64, f64)> = loads
        .iter()
        .copied()
        .filter(|(kv, queue)| *kv < KV_LIMIT && *queue < QUEUE_LIMIT)
        .collect();
    let count = open.len() as f64;
    let kv: f64 = open.iter().map(|(kv, _)| kv).sum();
    let queue: f64 = open.iter().map(|(_, queue)| queue).sum();
    let has_margin = |units: f64| {
        KV_LIMIT - kv / units >= KV_SPARE && QUEUE_LIMIT - queue / units >= QUEUE_SPARE
    };
    let now = ready + pending;
    if open.is_empty() || !has_margin(count) {
        return if pending == 0 { ready + 1 } else { now };
    }
    if open.len() >= 2 && has_margin(count - 1.0) {
        return now.saturating_sub(1);
    }
    now
}

impl Scaler for Wva {
    fn period(&self) -> Duration {
        SYNC
    }

    fn decide(&mut self, sight: &Sight<'_>) -> Vec<u32> {
        if sight.now >= self.next {
            self.next = sight.now + OPTIMISE;
            self.wanted = self.optimise(sight).or(self.wanted);
        }
        let current = sight.roles[0].desired;
        let tolerance = (TOLERANCE, TOLERANCE);
        let recommended = self
            .wanted
            .map(|wanted| external_average(f64::from(wanted), 1.0, current, tolerance));
        super::settled(std::slice::from_mut(&mut self.hpa), sight, &[recommended])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn v1_by_hand() {
        let of = |loads: &[(f64, f64)]| by_spare(loads, u32::try_from(loads.len()).unwrap(), 0);
        // Spare kv 0.8 − 0.75 = 0.05 < 0.1: one more.
        assert_eq!(of(&[(0.75, 0.0), (0.75, 0.0)]), 3);
        // Spare queue 5 − 3 = 2 < 3: one more.
        assert_eq!(of(&[(0.1, 3.0), (0.1, 3.0)]), 3);
        // 0.5 each: spare 0.3; over one unit: −0.2: hold.
        assert_eq!(of(&[(0.5, 0.0), (0.5, 0.0)]), 2);
        // 0.3 each: over one unit 0.6, spare 0.2: one fewer.
        assert_eq!(of(&[(0.3, 0.0), (0.3, 0.0)]), 1);
        // The saturated unit does not count; one open unit alone never shrinks.
        assert_eq!(of(&[(0.3, 0.0), (0.9, 0.0)]), 2);
        // All saturated: one more, unless one is on its way.
        assert_eq!(of(&[(0.9, 9.0)]), 2);
        assert_eq!(by_spare(&[(0.9, 9.0)], 1, 1), 2);
    }

    #[test]
    fn v2_by_hand() {
        // 170 tokens at 0.85 need 200: two units of 100.
        assert_eq!(by_tokens(2, 100.0, 170.0), 2);
        assert_eq!(by_tokens(2, 100.0, 171.0), 3);
        // 140 at 0.70 need 200: of four, two are spare.
        assert_eq!(by_tokens(4, 100.0, 140.0), 2);
        // 141 need 201.4: one is spare.
        assert_eq!(by_tokens(4, 100.0, 141.0), 3);
        assert_eq!(by_tokens(3, 100.0, 0.0), 1);
        let lengths = Lengths {
            input: 3_000.0,
            output: 1_000.0,
        };
        // min(8192·1000/4000, 1024) = 1024 sequences of 3,500 tokens.
        assert!((steady(lengths, 8_192.0, 1_024.0) - 3_584_000.0).abs() < 1e-6);
        // min(2048·1000/4000, 1024) = 512.
        assert!((steady(lengths, 2_048.0, 1_024.0) - 1_792_000.0).abs() < 1e-6);
    }
}
