//! Results as text, and what both outputs share: means over seeds by scenario and policy.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use coppice_simulation::Measures;
use serde::Serialize;

use super::overview::Overall;
use super::row::{Row, Rows};
use super::statistics::{Difference, Spread};
use crate::drive::text::{right_aligned, table, time};

/// The policy that costs are given relative to.
pub(super) const PEAK: &str = "peak-static";
/// Behind the name of a fleet that was looked for where none reaches the goal.
pub(super) const MISSED: &str = " missed";
/// The policy that others are compared with.
const OURS: &str = "coppice";

/// All seeds of one policy in one scenario.
#[derive(Debug, Clone)]
pub(super) struct Entry<'a> {
    pub(super) policy: &'a str,
    pub(super) resolved: &'a str,
    /// By seed.
    pub(super) rows: BTreeMap<u64, &'a Row>,
}

/// All policies of one scenario, best attainment first.
#[derive(Debug, Clone)]
pub(super) struct Group<'a> {
    pub(super) scenario: &'a str,
    pub(super) entries: Vec<Entry<'a>>,
}

impl Entry<'_> {
    /// Mean and spread of a measure over seeds.
    pub(super) fn spread(&self, value: impl Fn(&Measures) -> f64) -> Spread {
        let values: Vec<f64> = self.rows.values().map(|row| value(&row.measures)).collect();
        Spread::of(&values).unwrap_or(Spread {
            mean: f64::NAN,
            deviation: 0.0,
        })
    }

    /// Name, whether or not a fleet that was looked for was found.
    pub(super) fn asked_for(&self) -> &str {
        self.policy.strip_suffix(MISSED).unwrap_or(self.policy)
    }

    /// Changes of the fleet against the one before in ten minutes, over all roles.
    pub(super) fn turns(&self) -> Spread {
        self.spread(|measures| {
            let roles = measures.roles.iter();
            roles.map(|role| role.reversals_per_10_minutes).sum()
        })
    }

    /// Seconds above the budget, on average over seeds; `None`: the scenario has no budget.
    pub(super) fn over_budget(&self) -> Option<f64> {
        let seconds = |row: &&Row| row.measures.budget_violation_seconds;
        let seconds: Option<Vec<f64>> = self.rows.values().map(seconds).collect();
        Some(Spread::of(&seconds?)?.mean)
    }

    /// Name, with what was found where a fleet was looked for.
    pub(super) fn name(&self) -> String {
        if self.policy.contains("static") && self.policy != self.resolved {
            let found = self.resolved.trim_start_matches("static:");
            format!("{} ({found})", self.policy)
        } else {
            self.policy.to_owned()
        }
    }
}

/// Our law minus another policy, over pairs of the same seed.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Compared {
    /// The other one.
    pub(super) policy: String,
    /// Seeds that both have.
    pub(super) seeds: usize,
    /// Attainment, in points of a hundred.
    pub(super) attained_points: Difference,
    /// GPU-hours, in hundredths of the other's.
    pub(super) gpu_hours_percent: Difference,
}

impl<'a> Group<'a> {
    /// Rows by scenario and policy.
    pub(super) fn all(rows: &'a Rows) -> Vec<Self> {
        let mut groups: BTreeMap<&str, BTreeMap<(&str, &str), Entry<'a>>> = BTreeMap::new();
        for row in rows.values() {
            let entries = groups.entry(&row.scenario).or_default();
            entries
                .entry((&row.policy, &row.resolved))
                .or_insert_with(|| Entry {
                    policy: &row.policy,
                    resolved: &row.resolved,
                    rows: BTreeMap::new(),
                })
                .rows
                .insert(row.seed, row);
        }
        let groups = groups.into_iter().map(|(scenario, entries)| {
            let mut entries: Vec<Entry<'a>> = entries.into_values().collect();
            let attainment = |entry: &Entry<'_>| entry.spread(|measures| measures.attainment).mean;
            entries.sort_by(|one, other| attainment(other).total_cmp(&attainment(one)));
            Self { scenario, entries }
        });
        groups.collect()
    }

    pub(super) fn entry(&self, policy: &str) -> Option<&Entry<'a>> {
        self.entries.iter().find(|entry| {
            entry.policy == policy
                || entry
                    .policy
                    .strip_prefix(policy)
                    .is_some_and(|rest| rest.starts_with([':', ' ']))
        })
    }

    /// GPU-hours that the work itself needs, on average over seeds.
    pub(super) fn least(&self) -> f64 {
        let first = self.entries.first();
        first.map_or(f64::NAN, |entry| {
            entry.spread(|measures| measures.least_gpu_hours).mean
        })
    }

    /// GPU-hours of the static peak, where it ran.
    pub(super) fn peak_cost(&self) -> Option<f64> {
        let peak = self.entry(PEAK)?;
        Some(peak.spread(|measures| measures.gpu_hours).mean).filter(|cost| *cost > 0.0)
    }

    /// Our law against each other policy; none where there are no two seeds to pair.
    pub(super) fn compared(&self) -> Vec<Compared> {
        let Some(ours) = self.entry(OURS) else {
            return Vec::new();
        };
        let others = self.entries.iter();
        let others = others.filter(|other| other.policy != ours.policy);
        others
            .filter_map(|other| Compared::of(ours, other))
            .collect()
    }

    /// Whether nobody is both cheaper and better (or one of them at the same of the other).
    pub(super) fn is_on_frontier(&self, entry: &Entry<'_>) -> bool {
        let place = |entry: &Entry<'_>| {
            (
                entry.spread(|measures| measures.attainment).mean,
                entry.spread(|measures| measures.gpu_hours).mean,
            )
        };
        let own = place(entry);
        !self.entries.iter().map(place).any(|other| {
            other.0 >= own.0 && other.1 <= own.1 && (other.0 > own.0 || other.1 < own.1)
        })
    }
}

impl Compared {
    fn of(ours: &Entry<'_>, other: &Entry<'_>) -> Option<Self> {
        let pairs: Vec<(&Measures, &Measures)> = ours
            .rows
            .iter()
            .filter_map(|(seed, row)| Some((&row.measures, &other.rows.get(seed)?.measures)))
            .collect();
        let differences = |value: fn(&Measures, &Measures) -> f64| {
            let each: Vec<f64> = pairs
                .iter()
                .map(|(ours, theirs)| value(ours, theirs))
                .collect();
            Difference::of(&each)
        };
        Some(Self {
            policy: other.name(),
            seeds: pairs.len(),
            attained_points: differences(|ours, theirs| {
                100.0 * (ours.attainment - theirs.attainment)
            })?,
            gpu_hours_percent: differences(|ours, theirs| {
                100.0 * (ours.gpu_hours / theirs.gpu_hours - 1.0)
            })?,
        })
    }
}

/// The table of every scenario, and our law against each policy where there are seeds to pair.
pub(super) fn render(rows: &Rows) -> String {
    let mut out = String::new();
    let groups = Group::all(rows);
    for group in &groups {
        let _infallible = writeln!(
            out,
            "{}: the work itself needs {:.2} GPU-h\n{}\n",
            group.scenario,
            group.least(),
            results(group)
        );
        if let Some(compared) = compared(group) {
            let _infallible = writeln!(out, "{compared}\n");
        }
    }
    if groups.len() > 1 {
        let _infallible = writeln!(out, "all scenarios:\n{}\n", overview(&groups));
    }
    out.push_str(
        "attained: share of all requests that met both objectives, ± over seeds; worst: 5th percentile by minute; GPU-h: from binding to release; \
         units: held on average by role;\nturns: changes against the last one within 300 s, by role and ten minutes; over: seconds above the budget of GPUs;\n*: nobody is cheaper and as good, or as cheap and better.\n",
    );
    out
}

fn results(group: &Group<'_>) -> String {
    let mut rows = table(&[
        "",
        "policy",
        "attained %",
        "ttft %",
        "itl %",
        "worst %",
        "GPU-h",
        "of peak",
        "units",
        "turns",
        "over",
        "ttft p95",
        "itl p95",
        "aborted",
    ]);
    let peak = group.peak_cost();
    for entry in &group.entries {
        let percent =
            |value: fn(&Measures) -> f64| format!("{:.2}", 100.0 * entry.spread(value).mean);
        let attained = entry.spread(|measures| measures.attainment);
        let cost = entry.spread(|measures| measures.gpu_hours);
        let worst = entry.spread(|measures| measures.worst_minutes.unwrap_or(f64::NAN));
        let tail = |value: fn(&Measures) -> Option<f64>| {
            time(
                entry
                    .spread(|measures| value(measures).unwrap_or(f64::NAN))
                    .mean,
            )
        };
        rows.add_row([
            if group.is_on_frontier(entry) { "*" } else { "" }.to_owned(),
            entry.name(),
            format!(
                "{:.2} ± {:.2}",
                100.0 * attained.mean,
                100.0 * attained.deviation
            ),
            percent(|measures| measures.ttft_attainment),
            percent(|measures| measures.itl_attainment),
            format!("{:.1}", 100.0 * worst.mean),
            format!("{:.2} ± {:.2}", cost.mean, cost.deviation),
            peak.map_or_else(|| "-".to_owned(), |peak| format!("{:.3}", cost.mean / peak)),
            by_role(entry, |role| role.mean_units, 2),
            by_role(entry, |role| role.reversals_per_10_minutes, 1),
            entry
                .over_budget()
                .map_or_else(|| "-".to_owned(), |seconds| format!("{seconds:.0}")),
            tail(|measures| measures.ttft.map(|ttft| ttft.p95)),
            tail(|measures| measures.itl.map(|itl| itl.p95)),
            format!(
                "{:.0}",
                entry
                    .spread(|measures| (measures.aborted + measures.unfinished) as f64)
                    .mean
            ),
        ]);
    }
    right_aligned(rows, 2)
}

fn by_role(
    entry: &Entry<'_>,
    value: impl Fn(&coppice_simulation::RoleMeasures) -> f64,
    digits: usize,
) -> String {
    let roles = entry
        .rows
        .values()
        .next()
        .map_or(0, |row| row.measures.roles.len());
    let means = (0..roles).map(|role| {
        let mean = entry.spread(|measures| measures.roles.get(role).map_or(f64::NAN, &value));
        format!("{:.digits$}", mean.mean)
    });
    means.collect::<Vec<_>>().join(" + ")
}

/// Our law minus each other policy, paired by seed.
fn compared(group: &Group<'_>) -> Option<String> {
    let compared = group.compared();
    let mut rows = table(&[
        "coppice against",
        "attained, points",
        "95 %",
        "GPU-h, %",
        "95 %",
        "seeds",
    ]);
    let sign = |difference: &Difference| {
        let tie = if difference.is_tie() { " (tie)" } else { "" };
        format!("{:+.2}{tie}", difference.mean)
    };
    let interval =
        |difference: &Difference| format!("{:+.2} to {:+.2}", difference.low, difference.high);
    for one in &compared {
        rows.add_row([
            one.policy.clone(),
            sign(&one.attained_points),
            interval(&one.attained_points),
            sign(&one.gpu_hours_percent),
            interval(&one.gpu_hours_percent),
            one.seeds.to_string(),
        ]);
    }
    (!compared.is_empty()).then(|| right_aligned(rows, 1))
}

/// Every policy over all scenarios.
fn overview(groups: &[Group<'_>]) -> String {
    let mut rows = table(&[
        "policy",
        "scenarios",
        "attained %",
        "worst %",
        "GPU-h",
        "of least",
        "turns",
        "over",
    ]);
    for overall in Overall::all(groups) {
        rows.add_row([
            overall.policy.clone(),
            overall.scenarios.to_string(),
            format!("{:.2}", 100.0 * overall.attainment),
            format!(
                "{:.2} in {}",
                100.0 * overall.worst.attainment,
                overall.worst.scenario
            ),
            format!("{:.2}", overall.gpu_hours),
            format!("{:.3}", overall.of_least),
            format!("{:.2}", overall.reversals_per_10_minutes),
            overall
                .budget_violation_seconds
                .map_or_else(|| "-".to_owned(), |seconds| format!("{seconds:.0}")),
        ]);
    }
    right_aligned(rows, 1)
}
