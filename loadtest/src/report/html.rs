//! The report as one page: no scripts, nothing fetched.

use std::fmt::Write as _;

use super::Report;
use super::chart::{TimeAxis, escape};
use super::layout::{Layout, Section};
use super::scale::clock;
use crate::drive::summary::{Distribution, Mode, RunSummary, StreamSummary};
use crate::drive::text::{count, time, times};

pub(crate) const STYLE: &str = include_str!("style.css");

/// Renders the page.
#[must_use]
pub fn render(report: &Report) -> String {
    let layout = Layout::of(report);
    let mut out = String::with_capacity(256 * 1024);
    let title = escape(&report.title);
    let _infallible = write!(
        out,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <meta name=\"color-scheme\" content=\"light dark\"><title>{title}</title><style>{STYLE}</style></head><body><main>\n<h1>{title}</h1>\n"
    );
    verdict(&mut out, report);
    facts(&mut out, report);
    checks(&mut out, report);
    results(&mut out, report);
    events(&mut out, report, &layout);
    let axis = TimeAxis {
        seconds: layout.seconds,
        events: &layout.events,
    };
    for section in &layout.sections {
        charts(&mut out, section, &axis);
    }
    failures(&mut out, report);
    method(&mut out, report);
    let _infallible = write!(
        out,
        "<footer>Time on all charts is minutes and seconds from {}. Made by coppice-loadtest {}.</footer>\n</main></body></html>\n",
        layout.origin.strftime("%Y-%m-%d %H:%M:%S UTC"),
        env!("CARGO_PKG_VERSION")
    );
    out
}

fn verdict(out: &mut String, report: &Report) {
    let failed = report.checks.iter().filter(|check| !check.passed).count();
    let invalid = report.runs.iter().filter(|run| !run.validity.valid).count();
    let (class, text) = if invalid > 0 {
        ("bad", "Not valid: the driver was not able to keep to the schedule, so the latencies below are partly its own.".to_owned())
    } else if failed > 0 {
        (
            "bad",
            format!(
                "Failed: {failed} of {} checks did not hold.",
                report.checks.len()
            ),
        )
    } else if report.checks.is_empty() {
        (
            "good",
            "Valid: the driver was on time, kept the rate and was short of nothing.".to_owned(),
        )
    } else {
        (
            "good",
            format!(
                "Passed: all {} checks held, and the measurement is valid.",
                report.checks.len()
            ),
        )
    };
    let _infallible = writeln!(out, "<p class=\"verdict {class}\">{text}</p>");
    for run in &report.runs {
        for rule in run.validity.rules.iter().filter(|rule| !rule.kept) {
            let _infallible = writeln!(
                out,
                "<p class=\"broken\"><b>{}</b>: {}.</p>",
                escape(&rule.name),
                escape(&rule.detail)
            );
        }
    }
}

fn facts(out: &mut String, report: &Report) {
    for run in &report.runs {
        let mode = match run.mode {
            Mode::OpenLoop => "open loop".to_owned(),
            Mode::ClosedLoop { users, .. } => format!("closed loop of {users} users"),
        };
        let _infallible = writeln!(
            out,
            "<p class=\"facts\">{}, {} long, {mode}: {} requests planned, {:.2} per second on average, busiest second {} that; \
             prompts {:.0} tokens on average (p99 {}), outputs {:.0} (p99 {}).</p>",
            run.started_at.strftime("%Y-%m-%d %H:%M UTC"),
            time(run.measured_seconds + run.warmup_seconds),
            count(run.schedule.requests as u64),
            run.schedule.mean_rate,
            times(run.schedule.peak_over_mean_1s),
            run.schedule.input_tokens.mean,
            count(run.schedule.input_tokens.p99.into()),
            run.schedule.output_tokens.mean,
            count(run.schedule.output_tokens.p99.into()),
        );
    }
}

fn checks(out: &mut String, report: &Report) {
    if report.checks.is_empty() {
        return;
    }
    out.push_str("<h2>Verdict</h2>\n<div class=\"scroll\"><table><thead><tr><th>Check</th><th></th><th>Figures</th></tr></thead><tbody>");
    for check in &report.checks {
        let (class, word) = if check.passed {
            ("good", "passed")
        } else {
            ("bad", "failed")
        };
        let _infallible = write!(
            out,
            "<tr><td>{}</td><td class=\"{class}\">{word}</td><td>{}</td></tr>",
            escape(&check.name),
            escape(&check.detail)
        );
    }
    out.push_str("</tbody></table></div>\n");
}

/// Streams of a run, and their total where there are several.
fn rows(run: &RunSummary) -> impl Iterator<Item = &StreamSummary> {
    run.streams
        .iter()
        .chain((run.streams.len() > 1).then_some(&run.total))
}

fn results(out: &mut String, report: &Report) {
    out.push_str(
        "<h2>Results</h2>\n<div class=\"scroll\"><table class=\"numbers\"><thead><tr><th>Model</th><th>Planned</th><th>Complete</th><th>Failed</th>\
         <th>Good</th><th>Good&nbsp;%</th><th>Good/s</th><th>Output tokens/s</th></tr></thead><tbody>",
    );
    for run in &report.runs {
        for stream in rows(run) {
            let requests = &stream.requests;
            let attainment = requests
                .attainment()
                .map_or_else(|| "–".to_owned(), |share| format!("{:.2}", 100.0 * share));
            let _infallible = write!(
                out,
                "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{attainment}</td><td>{:.2}</td><td>{:.0}</td></tr>",
                escape(&stream.model),
                count(requests.planned),
                count(requests.complete),
                count(requests.failed),
                count(requests.good),
                stream.rates.goodput_per_second,
                stream.rates.output_tokens_per_second
            );
        }
    }
    out.push_str(
        "</tbody></table></div>\n<div class=\"scroll\"><table class=\"numbers\"><thead><tr><th>Model</th><th class=\"word\">Measure</th><th>Mean</th><th>p50</th>\
         <th>p90</th><th>p95</th><th>p99</th><th>p99.9</th><th>Max</th></tr></thead><tbody>",
    );
    for stream in report.runs.iter().flat_map(rows) {
        let measures: [(&str, Option<Distribution>); 4] = [
            ("Time to first token", stream.ttft),
            ("Between tokens", stream.itl),
            ("Per output token", stream.tpot),
            ("End to end", stream.end_to_end),
        ];
        let known: Vec<(&str, Distribution)> = measures
            .into_iter()
            .filter_map(|(name, distribution)| Some((name, distribution?)))
            .collect();
        for (position, (name, distribution)) in known.iter().enumerate() {
            let Distribution {
                count: _,
                mean,
                p50,
                p90,
                p95,
                p99,
                p999,
                max,
            } = *distribution;
            out.push_str("<tr>");
            if position == 0 {
                let _infallible = write!(
                    out,
                    "<td rowspan=\"{}\">{}</td>",
                    known.len(),
                    escape(&stream.model)
                );
            }
            let _infallible = write!(out, "<td class=\"word\">{name}</td>");
            for value in [mean, p50, p90, p95, p99, p999, max] {
                let _infallible = write!(out, "<td>{}</td>", time(value));
            }
            out.push_str("</tr>");
        }
    }
    out.push_str("</tbody></table></div>\n");
}

fn events(out: &mut String, report: &Report, layout: &Layout) {
    let Some(timeline) = report
        .timeline
        .as_ref()
        .filter(|timeline| !timeline.events.is_empty())
    else {
        return;
    };
    out.push_str("<h2>What happened</h2>\n<ol class=\"events\">");
    for (event, at) in timeline.events.iter().zip(&layout.events) {
        let detail = if event.detail.is_empty() {
            String::new()
        } else {
            format!(": {}", escape(&event.detail))
        };
        let _infallible = write!(
            out,
            "<li><b>{}</b> {}{detail}</li>",
            clock(*at, layout.seconds),
            escape(&event.title)
        );
    }
    out.push_str("</ol>\n");
}

fn charts(out: &mut String, section: &Section, axis: &TimeAxis<'_>) {
    let _infallible = write!(
        out,
        "<h2>{}</h2>\n<div class=\"charts\">",
        escape(&section.title)
    );
    for chart in &section.charts {
        let _infallible = write!(
            out,
            "<figure><figcaption>{}</figcaption>{}{}</figure>",
            escape(&chart.title),
            chart.legend(),
            chart.svg(axis)
        );
    }
    out.push_str("</div>\n");
}

fn failures(out: &mut String, report: &Report) {
    let streams: Vec<&StreamSummary> = report
        .runs
        .iter()
        .flat_map(|run| &run.streams)
        .filter(|stream| !stream.failures.is_empty())
        .collect();
    if streams.is_empty() {
        return;
    }
    out.push_str(
        "<h2>Failures</h2>\n<div class=\"scroll\"><table><thead><tr><th>Model</th><th>Kind</th><th>Requests</th><th>Meaning</th><th>First message</th></tr></thead><tbody>",
    );
    for stream in streams {
        for (kind, failure) in &stream.failures {
            let _infallible = write!(
                out,
                "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
                escape(&stream.model),
                escape(kind),
                count(failure.count),
                escape(&failure.meaning),
                escape(&failure.example)
            );
        }
    }
    out.push_str("</tbody></table></div>\n");
}

fn method(out: &mut String, report: &Report) {
    out.push_str(
        "<h2>How this was measured</h2>\n\
         <p>Requests are sent at the instants of a schedule, whatever else is in flight. All times count from the planned instant: a driver that is \
         late cannot hide it. Time to first token ends with the first chunk that carries text, and is drawn where the request was due; a chunk of several tokens counts as several equal gaps. \
         A request is good when it is complete and within all its objectives; failed, refused, cut and unfinished requests are not. \
         Percentiles come from merged histograms with three significant digits.</p>\n",
    );
    for run in &report.runs {
        let lateness = run
            .total
            .lateness
            .map_or_else(|| "–".to_owned(), |lateness| time(lateness.p99));
        let _infallible = writeln!(
            out,
            "<p>Schedule {} with seed {}; sent to {} over {} connections by {} workers on {} processors (kernel {}), using {:.2} of them; \
             99 % of requests were sent within {lateness} of their instant.</p>",
            escape(&run.schedule_digest),
            run.scenario.seed,
            escape(&run.urls.join(", ")),
            count(run.driver.connections),
            run.driver.workers,
            run.host.cpus,
            escape(&run.host.kernel),
            run.driver.cpus_used,
        );
        out.push_str("<ul>");
        for stream in &run.streams {
            if let Some(objectives) = stream
                .objectives
                .filter(|objectives| objectives.ttft.is_some() || objectives.itl.is_some())
            {
                let limits: Vec<String> = [
                    objectives
                        .ttft
                        .map(|limit| format!("time to first token at most {limit}")),
                    objectives
                        .itl
                        .map(|limit| format!("mean time between tokens at most {limit}")),
                ]
                .into_iter()
                .flatten()
                .collect();
                let _infallible = write!(
                    out,
                    "<li>Objectives of {}: {}.</li>",
                    escape(&stream.model),
                    escape(&limits.join(", "))
                );
            }
        }
        for note in &run.validity.notes {
            let _infallible = write!(out, "<li>{}.</li>", escape(note));
        }
        out.push_str("</ul>\n");
    }
}
