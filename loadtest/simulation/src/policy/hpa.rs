//! Kubernetes HorizontalPodAutoscaler, autoscaling/v2 as of release 1.37, on metrics that serving systems export.
//!
//! Every 15 s: a recommendation from each metric, the largest of them, then [`super::behavior`]. Left out: resource metrics (CPU), with them the rules for
//! pods that are still initialising; metrics that fail one by one (here all of a round of scrapes are lost, or none); `HPAScaleToZero`.

use std::time::Duration;

use coppice_scaler_plan::{Stage, ceil_units};

use super::behavior::{Behavior, Stabiliser, TOLERANCE};
use crate::known::Capacity;
use crate::scaler::Scaler;
use crate::scrape::UnitScrape;
use crate::sight::{RoleSight, Sight};
use crate::world::World;

/// Time between two passes of the controller.
pub const SYNC: Duration = Duration::from_secs(15);
/// Look-back of the rates in [`Source::Throughput`].
const RATE_WINDOW: Duration = Duration::from_secs(60);

/// What an HPA looks at.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Source {
    /// Pods metric: requests that wait, on average over pods.
    Queue {
        /// `averageValue`.
        target: f64,
    },
    /// Pods metric: share of the KV cache in use, on average over pods.
    KvUsage {
        /// `averageValue`, `0..=1`.
        target: f64,
    },
    /// External metric: what arrives per second, each unit to carry this share of what a benchmark of one found.
    ///
    /// Prompt tokens for prefill, requests × mean output tokens for decode, requests for units that do both.
    Throughput {
        /// Share of a unit's capacity, above 0.
        share: f64,
    },
}

/// A sample of one pod.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Pod {
    /// It has a value.
    Sample(f64),
    /// It runs and has none.
    Missing,
    /// It is not running yet.
    Unready,
}

/// Replicas that a Pods metric asks for; `None`: hold, because no pod has a value.
#[must_use]
pub fn pods_metric(pods: &[Pod], target: f64, current: u32, tolerance: (f64, f64)) -> Option<u32> {
    let values = || {
        pods.iter().filter_map(|pod| match pod {
            Pod::Sample(value) => Some(*value),
            Pod::Missing | Pod::Unready => None,
        })
    };
    let count = |wanted: Pod| pods.iter().filter(|pod| **pod == wanted).count() as f64;
    let ready = values().count() as f64;
    if ready < 0.5 {
        return None;
    }
    let sum: f64 = values().sum();
    let ratio = sum / ready / target;
    let (missing, unready) = (count(Pod::Missing), count(Pod::Unready));
    let counts_unready = unready > 0.5 && ratio > 1.0;
    if missing < 0.5 && !counts_unready {
        return Some(if is_within(ratio, tolerance) {
            current
        } else {
            ceil_units(ratio * ready)
        });
    }
    let assumed = if ratio < 1.0 { missing * target } else { 0.0 };
    let considered = ready + missing + if counts_unready { unready } else { 0.0 };
    let all = (sum + assumed) / considered / target;
    let turned = (ratio < 1.0 && all > 1.0) || (ratio > 1.0 && all < 1.0);
    if is_within(all, tolerance) || turned {
        return Some(current);
    }
    let wanted = ceil_units(all * considered);
    let contradicts = (all < 1.0 && wanted > current) || (all > 1.0 && wanted < current);
    Some(if contradicts { current } else { wanted })
}

/// Replicas that an External metric with an `averageValue` asks for.
#[must_use]
pub fn external_average(sum: f64, target: f64, current: u32, tolerance: (f64, f64)) -> u32 {
    let ratio = sum / (target * f64::from(current));
    if current > 0 && is_within(ratio, tolerance) {
        current
    } else {
        ceil_units(sum / target)
    }
}

/// `tolerance`: of adding and of removing.
fn is_within(ratio: f64, (up, down): (f64, f64)) -> bool {
    // The last bits of a sum may not decide.
    (1.0 - down - 1e-9..=1.0 + up + 1e-9).contains(&ratio)
}

/// An HPA for each role.
#[derive(Debug)]
pub struct Hpa {
    source: Source,
    roles: Vec<Stabiliser>,
    capacity: Vec<Capacity>,
}

impl Hpa {
    /// The same metric for every role, with the default behaviour.
    #[must_use]
    pub fn new(world: &World, source: Source) -> Self {
        let itl = world.objectives.itl.as_secs_f64();
        Self {
            source,
            roles: world
                .roles()
                .iter()
                .map(|_| Stabiliser::new(Behavior::default()))
                .collect(),
            capacity: world
                .roles()
                .iter()
                .map(|role| Capacity::of(role, world.typical, itl))
                .collect(),
        }
    }

    /// What each role's metric asks for; `None`: hold.
    pub(crate) fn recommended(&self, sight: &Sight<'_>) -> Vec<Option<u32>> {
        (0..self.roles.len())
            .map(|role| self.recommend(sight, role))
            .collect()
    }

    fn recommend(&self, sight: &Sight<'_>, role: usize) -> Option<u32> {
        let current = sight.roles[role].desired;
        let tolerance = (TOLERANCE, TOLERANCE);
        let of_pods = |gauge: fn(&UnitScrape) -> f64, target: f64| {
            let pods = pods(sight, &sight.roles[role], gauge)?;
            pods_metric(&pods, target, current, tolerance)
        };
        match self.source {
            Source::Queue { target } => of_pods(|unit| f64::from(unit.waiting), target),
            Source::KvUsage { target } => of_pods(|unit| unit.kv_usage, target),
            Source::Throughput { share } => {
                let (load, capacity) = self.load(sight, role)?;
                let target = capacity * share;
                Some(external_average(load, target, current, tolerance))
            }
        }
    }

    /// What arrives for a role, and what one unit carries of it.
    fn load(&self, sight: &Sight<'_>, role: usize) -> Option<(f64, f64)> {
        let capacity = &self.capacity[role];
        let requests = || sight.gateway_rate(RATE_WINDOW, |gateway| gateway.arrived);
        match sight.world.roles()[role].stage {
            Stage::Prefill => {
                let tokens =
                    sight.gateway_rate(RATE_WINDOW, |gateway| gateway.arrived_input_tokens)?;
                Some((tokens, capacity.prefill_tokens_per_second))
            }
            Stage::Decode => {
                let output = sight.mean_output(RATE_WINDOW)?;
                Some((requests()? * output, capacity.decode_tokens_per_second))
            }
            Stage::Aggregated | Stage::Encode | Stage::Other => {
                Some((requests()?, capacity.requests_per_second))
            }
        }
    }
}

/// The pods of a role as the controller sees them; `None`: the metrics API has no answer.
pub(crate) fn pods(
    sight: &Sight<'_>,
    role: &RoleSight,
    gauge: impl Fn(&UnitScrape) -> f64,
) -> Option<Vec<Pod>> {
    let scrape = sight.fresh()?;
    let staying = role.units.iter().filter(|unit| !unit.leaving);
    let pods = staying.map(|unit| {
        let sample = scrape.units.iter().find(|other| other.unit == unit.unit);
        match (sample, unit.ready) {
            (Some(sample), _) => Pod::Sample(gauge(sample)),
            (None, Some(_)) => Pod::Missing,
            (None, None) => Pod::Unready,
        }
    });
    Some(pods.collect())
}

impl Scaler for Hpa {
    fn period(&self) -> Duration {
        SYNC
    }

    fn decide(&mut self, sight: &Sight<'_>) -> Vec<u32> {
        let recommended = self.recommended(sight);
        super::settled(&mut self.roles, sight, &recommended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Pod::{Missing, Sample, Unready};

    const DEFAULT: (f64, f64) = (0.1, 0.1);

    /// Why, pods, target, current replicas, wanted replicas.
    type Case = (&'static str, &'static [Pod], f64, u32, Option<u32>);

    /// Worked by hand from the rules of the controller.
    #[test]
    fn pods_metrics_ask_for_what_the_table_says() {
        let table: &[Case] = &[
            (
                "20/10 over two: double",
                &[Sample(20.0), Sample(20.0)],
                10.0,
                2,
                Some(4),
            ),
            (
                "within the tolerance",
                &[Sample(10.9), Sample(10.9)],
                10.0,
                2,
                Some(2),
            ),
            (
                "just above it",
                &[Sample(11.1), Sample(11.1)],
                10.0,
                2,
                Some(3),
            ),
            (
                "half of it",
                &[Sample(5.0), Sample(5.0), Sample(5.0), Sample(5.0)],
                10.0,
                4,
                Some(2),
            ),
            (
                "nothing waits",
                &[Sample(0.0), Sample(0.0)],
                10.0,
                2,
                Some(0),
            ),
            // r = 3 over one ready pod; with the unready one at 0: (30 + 0)/2/10 = 1.5, over two pods: 3.
            (
                "unready pods count as idle going up",
                &[Sample(30.0), Unready],
                10.0,
                2,
                Some(3),
            ),
            // r = 1.5; with three unready at 0: 15/4/10 = 0.375 < 1: turned round, hold.
            (
                "unready pods turn the ratio round",
                &[Sample(15.0), Unready, Unready, Unready],
                10.0,
                4,
                Some(4),
            ),
            // r = 0.5 < 1: unready pods do not count: ceil(0.5·1) = 1.
            (
                "unready pods do not count going down",
                &[Sample(5.0), Unready],
                10.0,
                2,
                Some(1),
            ),
            // r = 0.2; missing at the target: (2 + 10)/2/10 = 0.6, over two pods: ceil(1.2) = 2.
            (
                "missing pods are at the target going down",
                &[Sample(2.0), Missing],
                10.0,
                2,
                Some(2),
            ),
            // r = 4; missing at 0: 40/2/10 = 2, over two pods: 4.
            (
                "missing pods are idle going up",
                &[Sample(40.0), Missing],
                10.0,
                2,
                Some(4),
            ),
            ("nobody has a value", &[Missing, Unready], 10.0, 2, None),
        ];
        for (why, pods, target, current, expected) in table {
            assert_eq!(
                pods_metric(pods, *target, *current, DEFAULT),
                *expected,
                "{why}"
            );
        }
    }

    #[test]
    fn an_external_average_of_one_never_moves_by_one_from_eleven_on() {
        for current in 1..=9 {
            let wanted = f64::from(current) + 1.0;
            assert_eq!(external_average(wanted, 1.0, current, DEFAULT), current + 1);
        }
        assert_eq!(external_average(12.0, 1.0, 11, DEFAULT), 11);
        assert_eq!(external_average(9.0, 1.0, 10, DEFAULT), 10);
        assert_eq!(external_average(12.0, 1.0, 11, (0.0, 0.0)), 12);
        assert_eq!(external_average(0.4, 1.0, 0, DEFAULT), 1);
    }
}
