//! Results as one page: the frontier of each scenario, its table, and units over time.

use std::fmt::Write as _;

use super::overview::Overall;
use super::row::Rows;
use super::text::{Entry, Group};
use crate::report::chart::{Chart, Line, Look, Quantity, TimeAxis, escape};
use crate::report::html::STYLE;
use crate::report::scale::{Axis, number};

const WIDTH: f64 = 600.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 60.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 16.0;
const BOTTOM: f64 = 44.0;

/// Renders the page.
pub(super) fn render(rows: &Rows) -> String {
    let mut out = String::with_capacity(256 * 1024);
    let title = "Scaling policies, simulated";
    let _infallible = write!(
        out,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <meta name=\"color-scheme\" content=\"light dark\"><title>{title}</title><style>{STYLE}</style></head><body><main>\n<h1>{title}</h1>\n\
         <p class=\"facts\">Every figure is simulated, not measured. Attained: share of all requests that met both objectives; cost: GPUs held from binding to \
         release. Points are means over seeds; the line joins policies than which nobody is cheaper and as good, or as cheap and better.</p>\n"
    );
    let groups = Group::all(rows);
    if groups.len() > 1 {
        overview(&mut out, &groups);
    }
    for group in &groups {
        scenario(&mut out, group);
    }
    let _infallible = write!(
        out,
        "<footer>Made by coppice-loadtest {}.</footer>\n</main></body></html>\n",
        env!("CARGO_PKG_VERSION")
    );
    out
}

/// Every policy over all scenarios.
fn overview(out: &mut String, groups: &[Group<'_>]) {
    out.push_str(
        "<h2>All scenarios</h2>\n<p class=\"facts\">Each scenario counts the same; GPU-hours alone are a sum. Compare policies that ran in the same number of \
         scenarios. Of least: GPU-hours over those that the work itself needs, geometric mean.</p>\n\
         <div class=\"scroll\"><table class=\"numbers\"><thead><tr><th class=\"word\">Policy</th><th>Scenarios</th><th>Attained&nbsp;%</th>\
         <th>Worst&nbsp;%</th><th class=\"word\">in</th><th>GPU-hours</th><th>Of least</th><th>Turns in ten minutes</th><th>Seconds over budget</th></tr></thead><tbody>",
    );
    for overall in Overall::all(groups) {
        let _infallible = write!(
            out,
            "<tr><td class=\"word\">{}</td><td>{}</td><td>{:.2}</td><td>{:.2}</td><td class=\"word\">{}</td><td>{:.2}</td><td>{:.3}</td><td>{:.2}</td><td>{}</td></tr>",
            escape(&overall.policy),
            overall.scenarios,
            100.0 * overall.attainment,
            100.0 * overall.worst.attainment,
            escape(&overall.worst.scenario),
            overall.gpu_hours,
            overall.of_least,
            overall.reversals_per_10_minutes,
            whole_seconds(overall.budget_violation_seconds)
        );
    }
    out.push_str("</tbody></table></div>\n");
}

/// A time, or a dash where there is none to be measured.
fn whole_seconds(seconds: Option<f64>) -> String {
    seconds.map_or_else(|| "–".to_owned(), |seconds| format!("{seconds:.0}"))
}

fn scenario(out: &mut String, group: &Group<'_>) {
    let _infallible = write!(
        out,
        "<h2>{}</h2>\n<p class=\"facts\">The work itself needs {:.2} GPU-hours: a bound for whoever serves everything in time.</p>\n<div class=\"charts\"><figure><figcaption>Attained over GPU-hours</figcaption>{}</figure></div>\n",
        escape(group.scenario),
        group.least(),
        frontier(group)
    );
    table(out, group);
    out.push_str("<div class=\"charts\">");
    for entry in &group.entries {
        for chart in units(entry) {
            let axis = TimeAxis {
                seconds: seconds(entry),
                events: &[],
            };
            let _infallible = write!(
                out,
                "<figure><figcaption>{}</figcaption>{}{}</figure>",
                escape(&chart.title),
                chart.legend(),
                chart.svg(&axis)
            );
        }
    }
    out.push_str("</div>\n");
}

/// A point of the frontier's chart.
struct Point {
    number: usize,
    cost: f64,
    attained: f64,
    best: bool,
}

fn points(group: &Group<'_>) -> Vec<Point> {
    let entries = group.entries.iter().enumerate();
    entries
        .map(|(index, entry)| Point {
            number: index + 1,
            cost: entry.spread(|measures| measures.gpu_hours).mean,
            attained: entry.spread(|measures| measures.attainment).mean,
            best: group.is_on_frontier(entry),
        })
        .collect()
}

/// Cost to the right, attainment upwards; numbers are those of the table.
fn frontier(group: &Group<'_>) -> String {
    let points = points(group);
    let costs = Axis::linear(
        points.iter().map(|point| point.cost).fold(0.0, f64::max),
        false,
    );
    let lowest = points
        .iter()
        .map(|point| point.attained)
        .fold(1.0, f64::min);
    // From a tenth below the worst to all of them.
    let floor = ((lowest * 10.0).floor() / 10.0).min(0.9);
    let x = |cost: f64| LEFT + (WIDTH - LEFT - RIGHT) * costs.place(cost);
    let y = |attained: f64| {
        let place = ((attained - floor) / (1.0 - floor)).clamp(0.0, 1.0);
        TOP + (HEIGHT - TOP - BOTTOM) * (1.0 - place)
    };
    let mut out = format!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"attained over GPU-hours, {}\">",
        escape(group.scenario)
    );
    for step in 0..=5_u32 {
        let attained = floor + (1.0 - floor) * f64::from(step) / 5.0;
        let at = y(attained);
        let _infallible = write!(
            out,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{:.0}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/><text class=\"tick\" x=\"{:.0}\" y=\"{at:.1}\" dy=\"0.35em\" text-anchor=\"end\">{} %</text>",
            WIDTH - RIGHT,
            LEFT - 6.0,
            number(100.0 * attained)
        );
    }
    for tick in &costs.ticks {
        let at = x(*tick);
        let _infallible = write!(
            out,
            "<line class=\"grid\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{:.0}\" y2=\"{:.0}\"/><text class=\"tick\" x=\"{at:.1}\" y=\"{:.0}\" text-anchor=\"middle\">{}</text>",
            y(floor),
            y(floor) + 5.0,
            HEIGHT - BOTTOM + 20.0,
            number(*tick)
        );
    }
    let _infallible = write!(
        out,
        "<text class=\"tick\" x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"end\">GPU-hours</text>",
        WIDTH - RIGHT,
        HEIGHT - 6.0
    );
    let mut best: Vec<&Point> = points.iter().filter(|point| point.best).collect();
    best.sort_by(|one, other| one.cost.total_cmp(&other.cost));
    let path: Vec<String> = best
        .iter()
        .map(|point| format!("{:.1} {:.1}", x(point.cost), y(point.attained)))
        .collect();
    if !path.is_empty() {
        let _infallible = write!(
            out,
            "<path class=\"line there\" d=\"M{}\"/>",
            path.join("L")
        );
    }
    for point in &points {
        let look = if point.best { Look::There } else { Look::Bad };
        let (at, up) = (x(point.cost), y(point.attained));
        let _infallible = write!(
            out,
            "<circle class=\"line {}\" cx=\"{at:.1}\" cy=\"{up:.1}\" r=\"3\"><title>{}</title></circle><text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            look.class(),
            escape(&group.entries[point.number - 1].name()),
            at + 5.0,
            up - 5.0,
            point.number
        );
    }
    out.push_str("</svg>");
    out
}

fn table(out: &mut String, group: &Group<'_>) {
    out.push_str(
        "<div class=\"scroll\"><table class=\"numbers\"><thead><tr><th></th><th class=\"word\">Policy</th><th>Attained&nbsp;%</th><th>TTFT&nbsp;%</th>\
         <th>ITL&nbsp;%</th><th>Minutes below 90&nbsp;%</th><th>GPU-hours</th><th>Of static peak</th><th>Turns in ten minutes</th><th>Seconds over budget</th><th>Seeds</th></tr></thead><tbody>",
    );
    let peak = group.peak_cost();
    for (index, entry) in group.entries.iter().enumerate() {
        let attained = entry.spread(|measures| measures.attainment);
        let cost = entry.spread(|measures| measures.gpu_hours);
        let _infallible = write!(
            out,
            "<tr><td>{}</td><td class=\"word\">{}</td><td>{:.2} ± {:.2}</td><td>{:.2}</td><td>{:.2}</td><td>{:.1}</td><td>{:.2} ± {:.2}</td><td>{}</td><td>{:.1}</td><td>{}</td><td>{}</td></tr>",
            index + 1,
            escape(&entry.name()),
            100.0 * attained.mean,
            100.0 * attained.deviation,
            100.0 * entry.spread(|measures| measures.ttft_attainment).mean,
            100.0 * entry.spread(|measures| measures.itl_attainment).mean,
            entry
                .spread(|measures| f64::from(measures.bad_minutes))
                .mean,
            cost.mean,
            cost.deviation,
            peak.map_or_else(|| "–".to_owned(), |peak| format!("{:.3}", cost.mean / peak)),
            entry.turns().mean,
            whole_seconds(entry.over_budget()),
            entry.rows.len()
        );
    }
    out.push_str("</tbody></table></div>\n");
}

fn seconds(entry: &Entry<'_>) -> f64 {
    let first = entry.rows.values().next();
    first.map_or(1.0, |row| row.measures.seconds.max(1.0))
}

/// Units of each role over time, of the first seed; fleets that never change are left out.
fn units(entry: &Entry<'_>) -> Vec<Chart> {
    let Some((seed, row)) = entry.rows.first_key_value() else {
        return Vec::new();
    };
    let moving = row.measures.roles.iter().any(|role| role.changes > 0);
    let roles = row.measures.roles.iter().filter(|_| moving);
    roles
        .map(|role| {
            let line = |name: &str, look: Look, points: &[(f64, u32)]| Line {
                name: name.to_owned(),
                look,
                steps: true,
                points: points
                    .iter()
                    .map(|(at, units)| (*at, Some(f64::from(*units))))
                    .collect(),
            };
            Chart {
                title: format!("{}, {} (seed {seed})", entry.name(), role.name),
                quantity: Quantity::Count,
                lines: vec![
                    line("ready", Look::There, &role.ready),
                    line("asked for", Look::Asked, &role.asked),
                ],
                limits: Vec::new(),
            }
        })
        .collect()
}
