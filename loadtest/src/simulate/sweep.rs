//! Fixed fleets that know the future: the smallest that is good enough, found by trying.

use anyhow::Context;
use coppice_simulation::policy::Spec;
use coppice_simulation::policy::fixed::Fixed;
use coppice_simulation::{Measures, World, simulate};

use super::scenario::Instance;
use crate::schedule::seed::stream;

/// What a fixed fleet is to reach.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Goal {
    /// This attainment over the run.
    Attainment(f64),
    /// No minute below 90 %.
    EveryMinute,
}

impl Goal {
    fn is_met(self, measures: &Measures) -> bool {
        match self {
            Self::Attainment(least) => measures.attainment >= least,
            Self::EveryMinute => measures.bad_minutes == 0,
        }
    }
}

/// A fixed fleet, and whether it reaches the goal; where none does it is the one with the best attainment.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Found {
    pub(super) units: Vec<u32>,
    pub(super) reached: bool,
}

impl Found {
    /// The fleet times a factor, within bounds and cluster.
    pub(super) fn times(&self, factor: f64, world: &World) -> Vec<u32> {
        let grown = self.units.iter().zip(world.roles()).map(|(units, role)| {
            role.units
                .clamp(coppice_scaler_plan::ceil_units(f64::from(*units) * factor))
        });
        let grown: Vec<u32> = grown.collect();
        if fits(world, &grown) {
            grown
        } else {
            self.units.clone()
        }
    }

    /// The policy that it is.
    pub(super) fn spec(units: Vec<u32>) -> Spec {
        Spec::Static { units }
    }
}

/// The measures of one fleet.
fn measure(instance: &Instance, units: &[u32], seed: u64) -> anyhow::Result<Measures> {
    let Instance {
        world,
        faults,
        requests,
        duration,
        ..
    } = instance;
    let mut fixed = Fixed::new(units.to_vec());
    let outcome = simulate(world, faults, requests, *duration, &mut fixed, seed, stream)
        .context("looking for a fixed fleet")?;
    Ok(Measures::of(world, requests, &outcome, *duration))
}

fn fits(world: &World, units: &[u32]) -> bool {
    let gpus: u64 = units
        .iter()
        .zip(world.roles())
        .map(|(units, role)| u64::from(*units) * u64::from(role.gpus_per_unit))
        .sum();
    let limits = [world.cluster_gpus, world.budget_gpus];
    limits
        .into_iter()
        .flatten()
        .all(|limit| gpus <= u64::from(limit))
}

/// The smallest fleet within the roles' bounds that reaches each goal; among splits of the same size the one with the best attainment.
///
/// With one role more units are never worse, so half of the sizes are ruled out at each trial; splits are tried one by one.
pub(super) fn smallest(
    instance: &Instance,
    goals: &[Goal],
    seed: u64,
) -> anyhow::Result<Vec<Found>> {
    match instance.world.roles() {
        [role] => {
            let largest = (role.units.min()..=role.units.max())
                .rev()
                .find(|units| fits(&instance.world, &[*units]))
                .unwrap_or_else(|| role.units.min());
            let least = role.units.min().max(1);
            goals
                .iter()
                .map(|goal| of_pool(instance, *goal, seed, least, largest))
                .collect()
        }
        [prefill, decode] => {
            let mut splits: Vec<[u32; 2]> = Vec::new();
            for p in prefill.units.min().max(1)..=prefill.units.max() {
                for d in decode.units.min().max(1)..=decode.units.max() {
                    if fits(&instance.world, &[p, d]) {
                        splits.push([p, d]);
                    }
                }
            }
            let gpus = |split: &[u32; 2]| {
                split[0] * prefill.gpus_per_unit + split[1] * decode.gpus_per_unit
            };
            splits.sort_by_key(|split| (gpus(split), split[0]));
            of_splits(instance, goals, seed, &splits, gpus)
        }
        _ => anyhow::bail!("a fixed fleet is looked for with one or two roles"),
    }
}

fn of_pool(
    instance: &Instance,
    goal: Goal,
    seed: u64,
    least: u32,
    largest: u32,
) -> anyhow::Result<Found> {
    let reaches = |units: u32| -> anyhow::Result<bool> {
        Ok(goal.is_met(&measure(instance, &[units], seed)?))
    };
    if !reaches(largest)? {
        return Ok(Found {
            units: vec![largest],
            reached: false,
        });
    }
    let (mut short, mut enough) = (least.saturating_sub(1), largest);
    while enough - short > 1 {
        let middle = short + (enough - short) / 2;
        if reaches(middle)? {
            enough = middle;
        } else {
            short = middle;
        }
    }
    Ok(Found {
        units: vec![enough],
        reached: true,
    })
}

fn of_splits(
    instance: &Instance,
    goals: &[Goal],
    seed: u64,
    splits: &[[u32; 2]],
    gpus: impl Fn(&[u32; 2]) -> u32,
) -> anyhow::Result<Vec<Found>> {
    let mut found: Vec<Option<Found>> = vec![None; goals.len()];
    let mut best: Option<(f64, [u32; 2])> = None;
    for size in splits.chunk_by(|one, other| gpus(one) == gpus(other)) {
        let mut of_size: Vec<(Measures, [u32; 2])> = Vec::with_capacity(size.len());
        for split in size {
            of_size.push((measure(instance, split, seed)?, *split));
        }
        of_size.sort_by(|one, other| other.0.attainment.total_cmp(&one.0.attainment));
        for (measures, split) in &of_size {
            if best.is_none_or(|(most, _)| measures.attainment > most) {
                best = Some((measures.attainment, *split));
            }
        }
        for (goal, found) in goals.iter().zip(&mut found) {
            if found.is_none() {
                let good = of_size.iter().find(|(measures, _)| goal.is_met(measures));
                *found = good.map(|(_, split)| Found {
                    units: split.to_vec(),
                    reached: true,
                });
            }
        }
        if found.iter().all(Option::is_some) {
            break;
        }
    }
    let (_, best) = best.context("no fixed fleet fits the bounds, the budget and the cluster")?;
    let missed = Found {
        units: best.to_vec(),
        reached: false,
    };
    Ok(found
        .into_iter()
        .map(|found| found.unwrap_or_else(|| missed.clone()))
        .collect())
}
