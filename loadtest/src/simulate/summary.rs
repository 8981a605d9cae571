//! Results as one JSON object: means over seeds, paired differences, and every policy over all scenarios.
//!
//! Runs of the same cells give the same bytes, so that two versions can be compared with a plain difference.

use serde::Serialize;

use super::overview::Overall;
use super::row::Rows;
use super::statistics::Spread;
use super::text::{Compared, Entry, Group};

/// Form of the object.
const FORMAT: &str = "coppice-scaling/1";

#[derive(Debug, Serialize)]
struct Summary<'a> {
    format: &'static str,
    version: &'static str,
    overview: Vec<Overall>,
    scenarios: Vec<OfScenario<'a>>,
}

#[derive(Debug, Serialize)]
struct OfScenario<'a> {
    name: &'a str,
    least_gpu_hours: f64,
    policies: Vec<OfPolicy<'a>>,
    coppice_against: Vec<Compared>,
}

#[derive(Debug, Serialize)]
struct OfPolicy<'a> {
    policy: &'a str,
    resolved: &'a str,
    seeds: Vec<u64>,
    frontier: bool,
    attainment: Spread,
    ttft_attainment: Spread,
    itl_attainment: Spread,
    bad_minutes: Spread,
    gpu_hours: Spread,
    /// GPU-hours ÷ those of the static peak; `null` where it did not run.
    of_peak: Option<f64>,
    reversals_per_10_minutes: Spread,
    /// `null`: the scenario has no budget.
    budget_violation_seconds: Option<f64>,
    aborted: Spread,
    unfinished: Spread,
}

/// Renders the object.
pub(super) fn render(rows: &Rows) -> serde_json::Result<String> {
    let groups = Group::all(rows);
    let summary = Summary {
        format: FORMAT,
        version: env!("CARGO_PKG_VERSION"),
        overview: Overall::all(&groups),
        scenarios: groups.iter().map(OfScenario::of).collect(),
    };
    let mut text = serde_json::to_string_pretty(&summary)?;
    text.push('\n');
    Ok(text)
}

impl<'a> OfScenario<'a> {
    fn of(group: &'a Group<'a>) -> Self {
        let entries = group.entries.iter();
        Self {
            name: group.scenario,
            least_gpu_hours: group.least(),
            policies: entries.map(|entry| OfPolicy::of(group, entry)).collect(),
            coppice_against: group.compared(),
        }
    }
}

impl<'a> OfPolicy<'a> {
    fn of(group: &Group<'a>, entry: &'a Entry<'a>) -> Self {
        let gpu_hours = entry.spread(|measures| measures.gpu_hours);
        Self {
            policy: entry.policy,
            resolved: entry.resolved,
            seeds: entry.rows.keys().copied().collect(),
            frontier: group.is_on_frontier(entry),
            attainment: entry.spread(|measures| measures.attainment),
            ttft_attainment: entry.spread(|measures| measures.ttft_attainment),
            itl_attainment: entry.spread(|measures| measures.itl_attainment),
            bad_minutes: entry.spread(|measures| f64::from(measures.bad_minutes)),
            gpu_hours,
            of_peak: group.peak_cost().map(|peak| gpu_hours.mean / peak),
            reversals_per_10_minutes: entry.turns(),
            budget_violation_seconds: entry.over_budget(),
            aborted: entry.spread(|measures| measures.aborted as f64),
            unfinished: entry.spread(|measures| measures.unfinished as f64),
        }
    }
}
