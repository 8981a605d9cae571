//! The report as text for terminals.

use std::fmt::Write as _;

use super::Report;
use super::timeline::{Timeline, mean_over_time};
use crate::drive::text::{render as render_run, right_aligned, table};

/// Renders the report: the verdict, each run, and the fleet.
#[must_use]
pub fn render(report: &Report) -> String {
    let mut out = String::new();
    let _infallible = writeln!(out, "{}\n", report.title);
    if !report.checks.is_empty() {
        let mut checks = table(&["check", "", "figures"]);
        for check in &report.checks {
            checks.add_row([
                check.name.as_str(),
                if check.passed { "passed" } else { "FAILED" },
                check.detail.as_str(),
            ]);
        }
        let _infallible = writeln!(out, "{checks}\n");
    }
    for run in &report.runs {
        let _infallible = writeln!(out, "{}", render_run(run));
    }
    if let Some(timeline) = &report.timeline {
        let _infallible = write!(out, "{}", fleet(timeline));
    }
    out
}

fn fleet(timeline: &Timeline) -> String {
    let end = timeline.seconds();
    let mut rows = table(&["fleet", "", "mean", "lowest", "highest", "last"]);
    let mut add = |name: &str, kind: &str, points: &[(f64, f64)]| {
        let (Some(mean), Some((_, last))) = (mean_over_time(points, end), points.last()) else {
            return;
        };
        let values = || points.iter().map(|(_, value)| *value);
        let (low, high) = (
            values().fold(f64::INFINITY, f64::min),
            values().fold(f64::NEG_INFINITY, f64::max),
        );
        rows.add_row([
            name.to_owned(),
            kind.to_owned(),
            format!("{mean:.2}"),
            format!("{low}"),
            format!("{high}"),
            format!("{last}"),
        ]);
    };
    for (system, roles) in &timeline.systems {
        for role in roles {
            let name = format!("{system}/{}", role.name);
            add(&name, "wanted", &role.wanted);
            add(&name, "existing", &role.current);
            add(&name, "ready", &role.ready);
        }
    }
    for (group, series) in [("gpus", &timeline.gpus), ("gangs", &timeline.gangs)] {
        for (kind, points) in series {
            add(group, kind, points);
        }
    }
    let mut out = format!("{}\n", right_aligned(rows, 2));
    for event in &timeline.events {
        let detail = if event.detail.is_empty() {
            String::new()
        } else {
            format!(": {}", event.detail)
        };
        let _infallible = writeln!(out, "{:>6.0} s  {}{detail}", event.t, event.title);
    }
    out
}
