//! The summary of a run as text that needs no explanation.

use std::fmt::Write as _;

use comfy_table::{CellAlignment, Table, presets};

use super::self_test::Comparison;
use super::summary::{Distribution, Mode, RunSummary, StreamSummary};

/// Renders a run: first whether to believe it, then what was offered, then what came back.
#[must_use]
pub fn render(summary: &RunSummary) -> String {
    let mut out = String::new();
    verdict(&mut out, summary);
    offered(&mut out, summary);
    let streams = listed(summary);
    let _infallible = write!(out, "\n{}\n\n{}\n", outcomes(&streams), latencies(&streams));
    failures(&mut out, &streams);
    for note in &summary.validity.notes {
        let _infallible = writeln!(out, "Note: {note}.");
    }
    out
}

/// Each stream, and all of them together when there are several.
fn listed(summary: &RunSummary) -> Vec<&StreamSummary> {
    let mut streams: Vec<&StreamSummary> = summary.streams.iter().collect();
    if streams.len() != 1 {
        streams.push(&summary.total);
    }
    streams
}

fn verdict(out: &mut String, summary: &RunSummary) {
    let _infallible = if summary.validity.valid {
        writeln!(
            out,
            "VALID: the driver was on time, kept the rate and was short of nothing."
        )
    } else {
        writeln!(
            out,
            "INVALID: the figures below measure the driver, not the server. Broken rules:"
        )
    };
    for rule in summary.validity.rules.iter().filter(|rule| !rule.kept) {
        let _infallible = writeln!(out, "  {}: {}.", rule.name, rule.detail);
    }
}

fn offered(out: &mut String, summary: &RunSummary) {
    let schedule = &summary.schedule;
    let mode = match summary.mode {
        Mode::OpenLoop => "open loop".to_owned(),
        Mode::ClosedLoop {
            users,
            think_seconds,
        } => format!(
            "closed loop, {users} users, {} between answers and requests",
            time(think_seconds)
        ),
    };
    let warmup = if summary.warmup_seconds > 0.0 {
        format!(", the first {} not measured", time(summary.warmup_seconds))
    } else {
        String::new()
    };
    let driver = &summary.driver;
    let lateness = summary.total.lateness.map_or_else(
        || "nothing was sent".to_owned(),
        |lateness| {
            format!(
                "sent {} late at p99, {} at most",
                time(lateness.p99),
                time(lateness.max)
            )
        },
    );
    let _infallible = write!(
        out,
        "\n\
         Run       {}, {} long{warmup}, {mode}, to {}\n\
         Offered   {} requests, {:.2} per second, busiest second {}, dispersion {:.2}; seed {}, schedule {}\n\
         Lengths   prompts {:.0} tokens (p50 {}, p99 {}), outputs {:.0} (p50 {}, p99 {})\n\
         Driver    {lateness}; {} workers, {} connections, {:.2} of {} processors\n",
        summary.started_at.strftime("%Y-%m-%d %H:%M:%S UTC"),
        time(summary.measured_seconds + summary.warmup_seconds),
        distinct(&summary.urls).join(", "),
        count(schedule.requests as u64),
        schedule.mean_rate,
        times(schedule.peak_over_mean_1s),
        schedule.dispersion_1s,
        summary.scenario.seed,
        summary.schedule_digest,
        schedule.input_tokens.mean,
        count(schedule.input_tokens.p50.into()),
        count(schedule.input_tokens.p99.into()),
        schedule.output_tokens.mean,
        count(schedule.output_tokens.p50.into()),
        count(schedule.output_tokens.p99.into()),
        driver.workers,
        count(driver.connections),
        driver.cpus_used,
        summary.host.cpus,
    );
    for stream in &summary.streams {
        if let Some(objectives) = stream.objectives {
            let limits: Vec<String> = [
                objectives.ttft.map(|limit| format!("TTFT at most {limit}")),
                objectives
                    .itl
                    .map(|limit| format!("mean gap at most {limit}")),
            ]
            .into_iter()
            .flatten()
            .collect();
            if !limits.is_empty() {
                let _infallible =
                    writeln!(out, "Good      {}: {}", stream.model, limits.join(", "));
            }
        }
    }
}

/// How many times the mean something is.
#[must_use]
pub fn times(factor: Option<f64>) -> String {
    factor.map_or_else(missing, |factor| format!("{factor:.1}x"))
}

fn distinct(values: &[String]) -> Vec<String> {
    let mut seen: Vec<String> = Vec::new();
    for value in values {
        if !seen.contains(value) {
            seen.push(value.clone());
        }
    }
    seen
}

/// Counts and rates by stream.
#[must_use]
pub fn outcomes(streams: &[&StreamSummary]) -> String {
    let mut table = table(&[
        "model",
        "planned",
        "complete",
        "failed",
        "good",
        "good %",
        "offered/s",
        "good/s",
        "output tokens/s",
        "cached %",
    ]);
    for stream in streams {
        let requests = &stream.requests;
        let cached = (stream.tokens.input > 0)
            .then(|| 100.0 * stream.tokens.cached as f64 / stream.tokens.input as f64);
        table.add_row([
            stream.model.clone(),
            count(requests.planned),
            count(requests.complete),
            count(requests.failed),
            count(requests.good),
            requests
                .attainment()
                .map_or_else(missing, |share| format!("{:.2}", 100.0 * share)),
            format!("{:.2}", stream.rates.offered_per_second),
            format!("{:.2}", stream.rates.goodput_per_second),
            format!("{:.0}", stream.rates.output_tokens_per_second),
            cached.map_or_else(missing, |share| format!("{share:.1}")),
        ]);
    }
    right_aligned(table, 1)
}

/// Latencies by stream.
#[must_use]
pub fn latencies(streams: &[&StreamSummary]) -> String {
    let mut table = table(&[
        "model", "measure", "mean", "p50", "p90", "p95", "p99", "p99.9", "max",
    ]);
    for stream in streams {
        let measures: [(&str, Option<Distribution>); 4] = [
            ("TTFT", stream.ttft),
            ("ITL", stream.itl),
            ("TPOT", stream.tpot),
            ("E2E", stream.end_to_end),
        ];
        for (name, distribution) in measures {
            let mut row = vec![stream.model.clone(), name.to_owned()];
            match distribution {
                None => row.extend(std::iter::repeat_with(missing).take(7)),
                Some(Distribution {
                    count: _,
                    mean,
                    p50,
                    p90,
                    p95,
                    p99,
                    p999,
                    max,
                }) => row.extend([mean, p50, p90, p95, p99, p999, max].map(time)),
            }
            table.add_row(row);
        }
    }
    right_aligned(table, 2)
}

fn failures(out: &mut String, streams: &[&StreamSummary]) {
    let mut table = table(&["model", "failure", "requests", "meaning", "first message"]);
    let mut any = false;
    for stream in streams
        .iter()
        .filter(|stream| stream.model != "all" || streams.len() == 1)
    {
        for (kind, failure) in &stream.failures {
            any = true;
            table.add_row([
                stream.model.clone(),
                kind.clone(),
                count(failure.count),
                failure.meaning.clone(),
                failure.example.chars().take(60).collect(),
            ]);
        }
    }
    if any {
        let _infallible = write!(out, "\n{table}\n");
    }
}

/// The figures of a self-test against the truth.
#[must_use]
pub fn comparisons(comparisons: &[Comparison]) -> String {
    let mut table = table(&["figure", "true", "reported", "apart", "allowed", ""]);
    for comparison in comparisons {
        let Comparison {
            name,
            truth,
            reported,
            tolerance,
            passed,
        } = comparison;
        table.add_row([
            name.clone(),
            time(*truth),
            time(*reported),
            time((reported - truth).abs()),
            time(*tolerance),
            if *passed { "ok" } else { "WRONG" }.to_owned(),
        ]);
    }
    right_aligned(table, 1)
}

/// A table without the noise of inner lines.
pub(crate) fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY);
    table.set_header(header.to_vec());
    table
}

/// The table's text with all columns from `first` on aligned to the right.
pub(crate) fn right_aligned(mut table: Table, first: usize) -> String {
    for column in table.column_iter_mut().skip(first) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.to_string()
}

fn missing() -> String {
    "-".to_owned()
}

/// A time in the unit that suits it: `412 µs`, `51.0 ms`, `1.25 s`.
#[must_use]
pub fn time(seconds: f64) -> String {
    if !seconds.is_finite() {
        return missing();
    }
    let digits = |value: f64| {
        if value >= 99.95 {
            0
        } else if value >= 9.995 {
            1
        } else {
            2
        }
    };
    if seconds.abs() < 0.000_999_5 {
        format!("{:.0} µs", seconds * 1e6)
    } else if seconds.abs() < 0.9995 {
        let milliseconds = seconds * 1e3;
        format!("{milliseconds:.*} ms", digits(milliseconds))
    } else {
        format!("{seconds:.*} s", digits(seconds))
    }
}

/// A count with its thousands set apart.
#[must_use]
pub fn count(value: u64) -> String {
    let digits = value.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_in_the_unit_that_suits_them() {
        for (seconds, text) in [
            (0.0, "0 µs"),
            (0.000_412, "412 µs"),
            (0.0014, "1.40 ms"),
            (0.051, "51.0 ms"),
            (0.25, "250 ms"),
            (1.25, "1.25 s"),
            (12.34, "12.3 s"),
            (400.0, "400 s"),
            (f64::NAN, "-"),
        ] {
            assert_eq!(time(seconds), text);
        }
    }

    #[test]
    fn counts_have_their_thousands_apart() {
        for (value, text) in [
            (0, "0"),
            (999, "999"),
            (1000, "1,000"),
            (1_234_567, "1,234,567"),
        ] {
            assert_eq!(count(value), text);
        }
    }
}
