//! Arrivals drawn from a rate and a shape of gaps.

use std::time::Duration;

use rand::RngExt;

use super::gaps::Gaps;
use super::numeric::duration;
use super::rate::Rate;
use super::seed::stream;

/// Draws the instants of one arrival process until `until`.
///
/// Unit-mean gaps are added up in operational time and mapped back through Λ⁻¹. The first gap is shortened by a uniform
/// factor, because a process is not known to have had an arrival at 0.
#[must_use]
pub fn arrivals(rate: &Rate, gaps: Gaps, until: Duration, seed: u64, entity: u64) -> Vec<Duration> {
    let sampler = gaps.sampler();
    let mut rng = stream(seed, "arrivals", entity);
    let until_seconds = until.as_secs_f64();
    let mut total = 0.0;
    let mut instants = Vec::new();
    loop {
        let mut gap = sampler.draw(&mut rng);
        if instants.is_empty() && total <= 0.0 {
            gap *= rng.random::<f64>();
        }
        total += gap;
        match rate.inverse(total) {
            Some(at) if at < until_seconds => instants.push(duration(at)),
            _ => return instants,
        }
    }
}
