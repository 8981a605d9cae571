//! Which charts a report has, and in which order.

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::Report;
use super::chart::{Chart, Line, Look, Quantity};
use super::timeline::{Points, Role, Timeline};
use crate::drive::Series;
use crate::drive::summary::StreamSummary;
use crate::drive::text::{count, time};
use crate::schedule::numeric::duration;
use crate::schedule::span::Span;

/// Charts that belong together.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Section {
    pub(super) title: String,
    pub(super) charts: Vec<Chart>,
}

/// A report's charts with the time that they share.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Layout {
    /// The page's instant 0.
    pub(super) origin: Timestamp,
    /// Length of the time axis in seconds.
    pub(super) seconds: f64,
    /// Instants of the time line's events on that axis.
    pub(super) events: Vec<f64>,
    pub(super) sections: Vec<Section>,
}

impl Layout {
    pub(super) fn of(report: &Report) -> Self {
        let starts = report
            .runs
            .iter()
            .map(|run| run.started_at)
            .chain(report.timeline.as_ref().map(|timeline| timeline.start));
        let origin = starts.min().unwrap_or(Timestamp::UNIX_EPOCH);
        let since_origin = |at: Timestamp| at.duration_since(origin).as_secs_f64();
        let run_ends = report.runs.iter().map(|run| since_origin(run.ended_at));
        let timeline_end = report
            .timeline
            .as_ref()
            .map(|timeline| since_origin(timeline.start) + timeline.seconds());
        let seconds = run_ends.chain(timeline_end).fold(1.0, f64::max);
        let mut sections = Vec::new();
        let mut shown_systems = BTreeSet::new();
        for run in &report.runs {
            let offset = since_origin(run.started_at);
            for stream in &run.streams {
                let mut charts = stream_charts(stream, offset);
                if let Some(timeline) = &report.timeline
                    && let Some(roles) = timeline.systems.get(&stream.model)
                    && shown_systems.insert(stream.model.clone())
                {
                    charts.extend(
                        roles
                            .iter()
                            .map(|role| role_chart(role, since_origin(timeline.start))),
                    );
                }
                sections.push(Section {
                    title: stream.model.clone(),
                    charts,
                });
            }
        }
        if let Some(timeline) = &report.timeline {
            let offset = since_origin(timeline.start);
            for (system, roles) in &timeline.systems {
                if !shown_systems.contains(system) {
                    sections.push(Section {
                        title: system.clone(),
                        charts: roles.iter().map(|role| role_chart(role, offset)).collect(),
                    });
                }
            }
            sections.push(fleet(timeline, offset));
        }
        for section in &mut sections {
            section.charts.retain(Chart::has_points);
        }
        sections.retain(|section| !section.charts.is_empty());
        Self {
            origin,
            seconds,
            events: report
                .timeline
                .iter()
                .flat_map(|timeline| {
                    timeline
                        .events
                        .iter()
                        .map(|event| since_origin(timeline.start) + event.t)
                })
                .collect(),
            sections,
        }
    }
}

/// Load, latencies and what was under way, of one stream.
fn stream_charts(stream: &StreamSummary, offset: f64) -> Vec<Chart> {
    let series = &stream.coarse;
    let every = format!("every {}", Span(duration(series.interval_seconds)));
    let rate = |name: &str, look, counts: &[u64]| Line {
        name: name.to_owned(),
        look,
        steps: false,
        points: points(series, offset, counts, |count| {
            Some(*count as f64 / series.interval_seconds)
        }),
    };
    let times = |name: &str, look, values: &[Option<f64>]| Line {
        name: name.to_owned(),
        look,
        steps: false,
        points: points(series, offset, values, |value| *value),
    };
    // What is asked for is drawn last, over what is there.
    let mut load = vec![rate("answered", Look::There, &series.done)];
    if stream.requests.good < stream.requests.complete {
        load.push(rate("within the objectives", Look::Also, &series.good));
    }
    if stream.requests.failed > 0 {
        load.push(rate("failed", Look::Bad, &series.failed));
    }
    load.push(rate("offered", Look::Asked, &series.offered));
    let objectives = stream.objectives.unwrap_or_default();
    let mean_prompt = stream
        .tokens
        .planned_input
        .checked_div(stream.requests.complete)
        .unwrap_or(0);
    let ttft_limit = objectives.ttft.map(|limit| {
        let at_mean = limit
            .of(u32::try_from(mean_prompt).unwrap_or(u32::MAX))
            .as_secs_f64();
        let label = if limit.per_input_token.is_zero() {
            format!("limit {}", time(at_mean))
        } else {
            format!(
                "limit {} (for the mean prompt, {} tokens)",
                time(at_mean),
                count(mean_prompt)
            )
        };
        (label, at_mean)
    });
    let itl_limit = objectives.itl.map(|limit| {
        (
            format!(
                "limit {} (on a request's mean)",
                time(limit.0.as_secs_f64())
            ),
            limit.0.as_secs_f64(),
        )
    });
    vec![
        Chart {
            title: format!("Requests per second, {every}"),
            quantity: Quantity::Rate,
            lines: load,
            limits: Vec::new(),
        },
        Chart {
            title: "Requests in flight".to_owned(),
            quantity: Quantity::Count,
            lines: vec![Line {
                name: "sent and not ended".to_owned(),
                look: Look::There,
                steps: false,
                points: points(series, offset, &series.in_flight, |count| {
                    Some(*count as f64)
                }),
            }],
            limits: Vec::new(),
        },
        Chart {
            title: format!("Time to first token, {every}"),
            quantity: Quantity::Time,
            lines: vec![
                times("p99", Look::Tail, &series.ttft_p99),
                times("p95", Look::Upper, &series.ttft_p95),
                times("p50", Look::Middle, &series.ttft_p50),
            ],
            limits: ttft_limit.into_iter().collect(),
        },
        Chart {
            title: format!("Time between tokens, {every}"),
            quantity: Quantity::Time,
            lines: vec![
                times("p99", Look::Tail, &series.itl_p99),
                times("p95", Look::Upper, &series.itl_p95),
                times("p50", Look::Middle, &series.itl_p50),
            ],
            limits: itl_limit.into_iter().collect(),
        },
    ]
}

/// Points in the middle of their intervals.
fn points<T>(
    series: &Series,
    offset: f64,
    values: &[T],
    value: impl Fn(&T) -> Option<f64>,
) -> Vec<(f64, Option<f64>)> {
    let place = |position: usize| offset + (position as f64 + 0.5) * series.interval_seconds;
    values
        .iter()
        .enumerate()
        .map(|(position, item)| (place(position), value(item)))
        .collect()
}

fn role_chart(role: &Role, offset: f64) -> Chart {
    let title = if role.name == "sets" {
        "Set replicas".to_owned()
    } else {
        format!("Role {}, units", role.name)
    };
    let mut lines = Vec::new();
    for (name, look, held) in [
        ("ready", Look::There, &role.ready),
        ("existing", Look::Also, &role.current),
        ("wanted", Look::Asked, &role.wanted),
    ] {
        if !held.is_empty() {
            lines.push(steps(name, look, held, offset));
        }
    }
    Chart {
        title,
        quantity: Quantity::Count,
        lines,
        limits: Vec::new(),
    }
}

fn steps(name: &str, look: Look, held: &Points, offset: f64) -> Line {
    Line {
        name: name.to_owned(),
        look,
        steps: true,
        points: held
            .iter()
            .map(|(t, value)| (offset + t, Some(*value)))
            .collect(),
    }
}

fn fleet(timeline: &Timeline, offset: f64) -> Section {
    let lines = |series: &std::collections::BTreeMap<String, Points>,
                 looks: &[(&str, Look)]|
     -> Vec<Line> {
        looks
            .iter()
            .filter_map(|(name, look)| {
                series
                    .get(*name)
                    .map(|held| steps(name, *look, held, offset))
            })
            .collect()
    };
    Section {
        title: "Fleet".to_owned(),
        charts: vec![
            Chart {
                title: "GPUs".to_owned(),
                quantity: Quantity::Count,
                lines: lines(
                    &timeline.gpus,
                    &[("used", Look::There), ("budget", Look::Bad)],
                ),
                limits: Vec::new(),
            },
            Chart {
                title: "Gangs".to_owned(),
                quantity: Quantity::Count,
                lines: lines(
                    &timeline.gangs,
                    &[
                        ("whole", Look::There),
                        ("waiting", Look::Asked),
                        ("partial", Look::Bad),
                    ],
                ),
                limits: Vec::new(),
            },
        ],
    }
}
