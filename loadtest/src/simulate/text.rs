//! Results as text, and what both outputs share: means over seeds by scenario and policy.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use coppice_simulation::Measures;

use super::row::{Row, Rows};
use super::statistics::{Difference, Spread};
use crate::drive::text::{right_aligned, table, time};

/// The policy that costs are given relative to.
pub(super) const PEAK: &str = "peak-static";
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

/// The table of every scenario, and our law against each policy where there are seeds to pair.
pub(super) fn render(rows: &Rows) -> String {
    let mut out = String::new();
    for group in Group::all(rows) {
        let _infallible = writeln!(
            out,
            "{}: the work itself needs {:.2} GPU-h\n{}\n",
            group.scenario,
            group.least(),
            results(&group)
        );
        if let Some(compared) = compared(&group) {
            let _infallible = writeln!(out, "{compared}\n");
        }
    }
    out.push_str(
        "attained: share of all requests that met both objectives, ± over seeds; worst: 5th percentile by minute; GPU-h: from binding to release; \
         units: held on average by role;\nturns: changes against the last one within 300 s, by role and ten minutes; *: nobody is cheaper and as good, or as cheap and better.\n",
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
    let ours = group.entry(OURS)?;
    let mut rows = table(&[
        "coppice against",
        "attained, points",
        "95 %",
        "GPU-h, %",
        "95 %",
        "seeds",
    ]);
    let mut any = false;
    for other in group
        .entries
        .iter()
        .filter(|other| other.policy != ours.policy)
    {
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
        let attained = differences(|ours, theirs| 100.0 * (ours.attainment - theirs.attainment));
        let cost = differences(|ours, theirs| 100.0 * (ours.gpu_hours / theirs.gpu_hours - 1.0));
        let (Some(attained), Some(cost)) = (attained, cost) else {
            continue;
        };
        any = true;
        let sign = |difference: &Difference| {
            let tie = if difference.is_tie() { " (tie)" } else { "" };
            format!("{:+.2}{tie}", difference.mean)
        };
        let interval =
            |difference: &Difference| format!("{:+.2} to {:+.2}", difference.low, difference.high);
        rows.add_row([
            other.name(),
            sign(&attained),
            interval(&attained),
            sign(&cost),
            interval(&cost),
            pairs.len().to_string(),
        ]);
    }
    any.then(|| right_aligned(rows, 1))
}
