//! Every policy over all scenarios: what a reader looks at first.

use std::collections::BTreeMap;

use serde::Serialize;

use super::text::{Entry, Group};

/// One policy over the scenarios that it ran in. Every scenario counts the same, whatever its size; GPU-hours alone are a sum.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Overall {
    /// The policy as asked for.
    pub(super) policy: String,
    /// Scenarios that it ran in; compare only policies with the same number.
    pub(super) scenarios: usize,
    /// Mean attainment.
    pub(super) attainment: f64,
    /// Where it attained least.
    pub(super) worst: Worst,
    /// Sum of GPU-hours.
    pub(super) gpu_hours: f64,
    /// Geometric mean of GPU-hours ÷ those that the work itself needs.
    pub(super) of_least: f64,
    /// Mean number of changes against the one before within 300 s, in ten minutes.
    pub(super) reversals_per_10_minutes: f64,
    /// Seconds above the budget, summed; `None`: no scenario has a budget.
    pub(super) budget_violation_seconds: Option<f64>,
}

/// The scenario in which a policy attained least.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Worst {
    pub(super) scenario: String,
    pub(super) attainment: f64,
}

impl Overall {
    /// Policies by falling number of scenarios, then falling attainment.
    pub(super) fn all(groups: &[Group<'_>]) -> Vec<Self> {
        let mut by_policy: BTreeMap<&str, Vec<(&Group<'_>, &Entry<'_>)>> = BTreeMap::new();
        for group in groups {
            for entry in &group.entries {
                let ran = by_policy.entry(entry.asked_for()).or_default();
                ran.push((group, entry));
            }
        }
        let all = by_policy.into_iter();
        let mut all: Vec<Self> = all
            .filter_map(|(policy, ran)| Self::of(policy, &ran))
            .collect();
        all.sort_by(|one, other| {
            let scenarios = other.scenarios.cmp(&one.scenarios);
            scenarios.then(other.attainment.total_cmp(&one.attainment))
        });
        all
    }

    fn of(policy: &str, ran: &[(&Group<'_>, &Entry<'_>)]) -> Option<Self> {
        let attained = |entry: &Entry<'_>| entry.spread(|measures| measures.attainment).mean;
        let cost = |entry: &Entry<'_>| entry.spread(|measures| measures.gpu_hours).mean;
        let (worst_group, worst) = ran
            .iter()
            .min_by(|(_, one), (_, other)| attained(one).total_cmp(&attained(other)))?;
        let count = ran.len() as f64;
        let mean = |value: &dyn Fn(&Group<'_>, &Entry<'_>) -> f64| {
            ran.iter()
                .map(|(group, entry)| value(group, entry))
                .sum::<f64>()
                / count
        };
        let over: Vec<f64> = ran
            .iter()
            .filter_map(|(_, entry)| entry.over_budget())
            .collect();
        Some(Self {
            policy: policy.to_owned(),
            scenarios: ran.len(),
            attainment: mean(&|_, entry| attained(entry)),
            worst: Worst {
                scenario: worst_group.scenario.to_owned(),
                attainment: attained(worst),
            },
            gpu_hours: ran.iter().map(|(_, entry)| cost(entry)).sum(),
            of_least: mean(&|group, entry| (cost(entry) / group.least()).ln()).exp(),
            reversals_per_10_minutes: mean(&|_, entry| entry.turns().mean),
            budget_violation_seconds: (!over.is_empty()).then(|| over.iter().sum()),
        })
    }
}
