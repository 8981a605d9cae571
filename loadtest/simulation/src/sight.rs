//! What a policy sees: scrapes that have come in, and the cluster's objects.

use std::collections::VecDeque;
use std::time::Duration;

use coppice_engine::Histogram;

use crate::scrape::{GatewayScrape, Scrape, UnitScrape};
use crate::world::World;

/// Share of a role's units that must have a value, or it is missing.
const QUORUM: f64 = 0.8;

/// What a policy sees when it decides.
#[derive(Debug)]
pub struct Sight<'a> {
    /// The time of the decision.
    pub now: Duration,
    /// What whoever set the policy up knows.
    pub world: &'a World,
    /// The objects of each role, as a watch shows them.
    pub roles: Vec<RoleSight>,
    scrapes: &'a VecDeque<Scrape>,
    visible: usize,
}

/// The objects of one role.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoleSight {
    /// Units asked for.
    pub desired: u32,
    /// Units that exist, leaving ones included, oldest first.
    pub units: Vec<UnitSight>,
}

/// One unit, as its object says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnitSight {
    /// Its name.
    pub unit: usize,
    /// When it was created.
    pub created: Duration,
    /// When it was bound. `None`: it cannot be scheduled.
    pub bound: Option<Duration>,
    /// When it became ready.
    pub ready: Option<Duration>,
    /// It is being removed.
    pub leaving: bool,
}

impl RoleSight {
    /// Units that serve.
    #[must_use]
    pub fn ready(&self) -> u32 {
        self.count(|unit| unit.ready.is_some())
    }

    /// Units that exist and stay.
    #[must_use]
    pub fn staying(&self) -> u32 {
        self.count(|_| true)
    }

    /// Units that stay and are not ready.
    #[must_use]
    pub fn pending(&self) -> u32 {
        self.count(|unit| unit.ready.is_none())
    }

    fn count(&self, which: impl Fn(&UnitSight) -> bool) -> u32 {
        let units = self
            .units
            .iter()
            .filter(|unit| !unit.leaving && which(unit));
        u32::try_from(units.count()).unwrap_or(u32::MAX)
    }
}

impl<'a> Sight<'a> {
    /// What is seen at `now`; scrapes that were not older than the delay are still on their way.
    pub(crate) fn new(
        now: Duration,
        world: &'a World,
        roles: Vec<RoleSight>,
        scrapes: &'a VecDeque<Scrape>,
    ) -> Self {
        let delay = world.timing.scrape_delay;
        let visible = scrapes.partition_point(|scrape| scrape.at + delay <= now);
        Self {
            now,
            world,
            roles,
            scrapes,
            visible,
        }
    }

    /// Rounds of scrapes that have come in, newest first.
    pub fn scrapes(&self) -> impl Iterator<Item = &'a Scrape> {
        self.scrapes.iter().take(self.visible).rev()
    }

    /// The newest round that is not older than two intervals and its delay.
    #[must_use]
    pub fn fresh(&self) -> Option<&'a Scrape> {
        let timing = &self.world.timing;
        let oldest = timing.scrape_interval * 2 + timing.scrape_delay;
        self.scrapes()
            .next()
            .filter(|scrape| self.now.saturating_sub(scrape.at) <= oldest)
    }

    /// Rounds of a window, oldest first: from the last one that is at least `window` older than the newest (else the oldest there is) to the newest.
    fn span(&self, window: Duration) -> impl Iterator<Item = &'a Scrape> {
        let newest = self.fresh().map(|scrape| scrape.at);
        let from = newest.map_or(self.visible, |newest| {
            let reach = newest.saturating_sub(window);
            let upto = self
                .scrapes
                .partition_point(|scrape| scrape.at <= reach)
                .min(self.visible);
            upto.saturating_sub(1)
        });
        self.scrapes.range(from..self.visible)
    }

    /// Increase per second of one of the gateway's counters over a window.
    #[must_use]
    pub fn gateway_rate(
        &self,
        window: Duration,
        counter: impl Fn(&GatewayScrape) -> u64,
    ) -> Option<f64> {
        let (from, to) = self.ends(window)?;
        let seconds = (to.at - from.at).as_secs_f64();
        Some((counter(&to.gateway) - counter(&from.gateway)) as f64 / seconds)
    }

    fn ends(&self, window: Duration) -> Option<(&'a Scrape, &'a Scrape)> {
        let mut span = self.span(window);
        let from = span.next()?;
        let to = span.last()?;
        Some((from, to))
    }

    /// Mean output tokens of the requests that ended within a window.
    #[must_use]
    pub fn mean_output(&self, window: Duration) -> Option<f64> {
        let (from, to) = self.ends(window)?;
        let ended = to.gateway.finished - from.gateway.finished;
        let tokens = to.gateway.finished_output_tokens - from.gateway.finished_output_tokens;
        (ended > 0).then(|| tokens as f64 / ended as f64)
    }

    /// Mean prompt tokens of the requests that came within a window.
    #[must_use]
    pub fn mean_input(&self, window: Duration) -> Option<f64> {
        let (from, to) = self.ends(window)?;
        let came = to.gateway.arrived - from.gateway.arrived;
        let tokens = to.gateway.arrived_input_tokens - from.gateway.arrived_input_tokens;
        (came > 0).then(|| tokens as f64 / came as f64)
    }

    /// The quantile of the gateway's histogram over a window, linear inside a bucket; `None` when nothing was observed.
    #[must_use]
    pub fn quantile(
        &self,
        window: Duration,
        share: f64,
        histogram: impl Fn(&GatewayScrape) -> &Histogram,
    ) -> Option<f64> {
        let (from, to) = self.ends(window)?;
        quantile(histogram(&from.gateway), histogram(&to.gateway), share)
    }

    /// Σ over the units of a role of the increase per second of a counter. A unit counts from its first scrape in the window.
    #[must_use]
    pub fn rate(
        &self,
        role: usize,
        window: Duration,
        counter: impl Fn(&UnitScrape) -> u64,
    ) -> Option<f64> {
        let newest = self.fresh()?;
        let (mut known, mut total) = (0_usize, 0.0);
        let mut units = 0_usize;
        for unit in newest.units.iter().filter(|unit| unit.role == role) {
            units += 1;
            let first = self
                .span(window)
                .find_map(|scrape| Some((scrape.at, find(scrape, unit.unit)?)));
            if let Some((at, first)) = first.filter(|(at, _)| *at < newest.at) {
                known += 1;
                total += (counter(unit) - counter(first)) as f64 / (newest.at - at).as_secs_f64();
            }
        }
        (units > 0 && known as f64 >= QUORUM * units as f64).then_some(total)
    }

    /// The newest values of a gauge of the units of a role.
    pub fn gauges(
        &self,
        role: usize,
        gauge: impl Fn(&UnitScrape) -> f64,
    ) -> Option<impl Iterator<Item = f64>> {
        let newest = self.fresh()?;
        let units = newest.units.iter().filter(move |unit| unit.role == role);
        Some(units.map(gauge))
    }

    /// Σ over the units of a role of a gauge. `None`: no fresh scrape.
    #[must_use]
    pub fn sum(&self, role: usize, gauge: impl Fn(&UnitScrape) -> f64) -> Option<f64> {
        self.gauges(role, gauge).map(Iterator::sum)
    }

    /// Largest value of a gauge of one unit within a window.
    #[must_use]
    pub fn most(
        &self,
        unit: usize,
        window: Duration,
        gauge: impl Fn(&UnitScrape) -> f64,
    ) -> Option<f64> {
        let values = self
            .span(window)
            .filter_map(|scrape| find(scrape, unit))
            .map(gauge);
        values.reduce(f64::max)
    }
}

/// Units are listed by number.
fn find(scrape: &Scrape, unit: usize) -> Option<&UnitScrape> {
    let at = scrape
        .units
        .binary_search_by_key(&unit, |unit| unit.unit)
        .ok()?;
    scrape.units.get(at)
}

/// As Prometheus does it: linear inside the bucket, and the highest bound for what lies above.
fn quantile(from: &Histogram, to: &Histogram, share: f64) -> Option<f64> {
    let counts: Vec<u64> = to
        .cumulative()
        .zip(from.cumulative())
        .map(|(to, from)| to - from)
        .collect();
    let total = counts.last().copied().filter(|total| *total > 0)?;
    let rank = share * total as f64;
    let bucket = counts.iter().position(|count| *count as f64 >= rank)?;
    let bounds = to.bounds();
    let Some(upper) = bounds.get(bucket) else {
        return bounds.last().copied();
    };
    let (lower, below) = match bucket.checked_sub(1) {
        Some(before) => (bounds[before], counts[before]),
        None => (0.0, 0),
    };
    let inside = counts[bucket] - below;
    let place = if inside > 0 {
        (rank - below as f64) / inside as f64
    } else {
        1.0
    };
    Some(lower + (upper - lower) * place)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_read_as_prometheus_reads_it() {
        let empty = Histogram::new(&[1.0, 2.0, 4.0]);
        let mut full = empty.clone();
        assert_eq!(quantile(&empty, &full, 0.9), None);
        full.observe_times(0.5, 5);
        full.observe_times(3.0, 5);
        // Rank 9 of 10 is the fourth of five in the bucket from 2 to 4.
        assert!((quantile(&empty, &full, 0.9).unwrap() - 3.6).abs() < 1e-12);
        full.observe_times(9.0, 90);
        assert_eq!(quantile(&empty, &full, 0.9), Some(4.0));
    }
}
