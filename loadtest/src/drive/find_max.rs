//! The highest rate at which the driver still tells the truth, on this machine, with the known server beside it.

use std::io;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use serde::{Deserialize, Serialize};

use super::self_test::{self, Truth};
use super::summary::RunSummary;

/// The search ends when the next rate would differ by less than this share.
const PRECISION: f64 = 0.04;
/// The rate to beat, requests per second on two processors.
const MARK_REQUESTS: f64 = 10_000.0;
/// Chunks per second to beat on two processors.
const MARK_CHUNKS: f64 = 100_000.0;

/// One trial.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Trial {
    /// Requests per second asked for.
    pub rate: f64,
    /// It was valid and truthful.
    pub passed: bool,
    /// What broke first, when it did not pass.
    pub because: String,
    /// The run.
    #[serde(skip)]
    pub summary: RunSummary,
}

/// How to search.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Search {
    /// First rate, requests per second.
    pub from: f64,
    /// Attempts at a rate before it counts as too high: other work on the machine disturbs single trials.
    pub attempts: u32,
    /// What the known server does.
    pub truth: Truth,
}

/// Doubles the rate until it is too high, then halves the interval. `run` drives one trial at a rate.
///
/// Returns every trial in order; the highest passed rate is the result.
///
/// # Errors
/// A trial could not be run.
pub fn search(
    search: Search,
    mut run: impl FnMut(f64) -> anyhow::Result<RunSummary>,
    mut show: impl FnMut(&Trial),
) -> anyhow::Result<Vec<Trial>> {
    let mut trials: Vec<Trial> = Vec::new();
    let mut attempt = |rate: f64, trials: &mut Vec<Trial>| -> anyhow::Result<bool> {
        for _ in 0..search.attempts.max(1) {
            let summary = run(rate)?;
            let because = why_not(&summary, search.truth);
            let trial = Trial {
                rate,
                passed: because.is_none(),
                because: because.unwrap_or_default(),
                summary,
            };
            show(&trial);
            let passed = trial.passed;
            trials.push(trial);
            if passed {
                return Ok(true);
            }
        }
        Ok(false)
    };
    let (mut good, mut bad) = (0.0, f64::INFINITY);
    let mut rate = search.from;
    while bad - good > PRECISION * good.max(1.0) {
        if attempt(rate, &mut trials)? {
            good = rate;
        } else {
            bad = rate;
        }
        if good <= 0.0 && bad < 10.0 {
            break;
        }
        rate = if bad.is_infinite() {
            good * 2.0
        } else {
            0.5 * (good + bad)
        }
        .round();
    }
    Ok(trials)
}

/// The trial with the highest passed rate.
#[must_use]
pub fn best(trials: &[Trial]) -> Option<&Trial> {
    trials
        .iter()
        .filter(|trial| trial.passed)
        .max_by(|a, b| a.rate.total_cmp(&b.rate))
}

fn why_not(summary: &RunSummary, truth: Truth) -> Option<String> {
    if let Some(rule) = summary.validity.rules.iter().find(|rule| !rule.kept) {
        return Some(format!("{}: {}", rule.name, rule.detail));
    }
    if let Some((kind, failure)) = summary.total.failures.iter().next() {
        return Some(format!("{} requests failed: {kind}", failure.count));
    }
    self_test::compare(summary, truth)
        .into_iter()
        .find(|comparison| !comparison.passed)
        .map(|comparison| {
            format!(
                "{} reported as {}, true {}",
                comparison.name,
                super::text::time(comparison.reported),
                super::text::time(comparison.truth)
            )
        })
}

/// A file of results that programs can compare.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BenchFile {
    /// Commit of the measured code; empty where unknown.
    pub commit: String,
    /// Processors of the machine.
    pub cpus: usize,
    /// Results.
    pub rows: Vec<BenchRow>,
}

/// One result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BenchRow {
    /// What was measured.
    pub name: String,
    /// Median of the runs.
    pub value: f64,
    /// Its unit.
    pub unit: String,
    /// Every run.
    pub runs: Vec<f64>,
    /// `higher` or `lower`.
    pub better: String,
    /// What is aimed at.
    pub mark: Option<f64>,
    /// The same measured of somebody else's program in the same session.
    pub peer: Option<BenchPeer>,
}

/// Somebody else's result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BenchPeer {
    /// Program and version.
    pub name: String,
    /// Its value.
    pub value: f64,
}

/// What a search varies to push one limit of the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// What is pushed, for the table.
    pub name: &'static str,
    /// Tokens of each answer, one chunk each.
    pub output_tokens: u32,
    /// As [`super::settings::Settings::delayed_acks`].
    pub delayed_acks: bool,
}

/// Short answers push the rate of requests, long ones the rate of chunks. On a loopback interface an acknowledgement of every
/// chunk costs more than reading it, and both ends pay on the same machine; the last shape shows how much.
pub const SHAPES: [Shape; 3] = [
    Shape {
        name: "8 chunks a request",
        output_tokens: 8,
        delayed_acks: true,
    },
    Shape {
        name: "100 chunks a request",
        output_tokens: 100,
        delayed_acks: true,
    },
    Shape {
        name: "8 chunks, each acknowledged",
        output_tokens: 8,
        delayed_acks: false,
    },
];

/// The rows for the results of some searches with one shape.
#[must_use]
pub fn rows(shape: Shape, searches: &[Vec<Trial>]) -> Vec<BenchRow> {
    let row =
        |what: &str, unit: &str, mark: Option<f64>, better: &str, of: &dyn Fn(&Trial) -> f64| {
            let runs: Vec<f64> = searches
                .iter()
                .map(|trials| best(trials).map_or(0.0, of))
                .collect();
            BenchRow {
                name: format!("driver, {}: {what}", shape.name),
                value: median(&runs),
                unit: unit.to_owned(),
                runs,
                better: better.to_owned(),
                mark,
                peer: None,
            }
        };
    let mark = |pushed: Shape, mark: f64| (shape == pushed).then_some(mark);
    vec![
        row(
            "highest valid rate",
            "requests/s",
            mark(SHAPES[0], MARK_REQUESTS),
            "higher",
            &|trial| trial.rate,
        ),
        row(
            "chunks at that rate",
            "chunks/s",
            mark(SHAPES[1], MARK_CHUNKS),
            "higher",
            &|trial| trial.rate * f64::from(shape.output_tokens),
        ),
        row(
            "processors used at that rate, the known server's included",
            "processors",
            None,
            "lower",
            &|trial| trial.summary.driver.cpus_used,
        ),
    ]
}

fn median(runs: &[f64]) -> f64 {
    let mut sorted = runs.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        length if length.is_multiple_of(2) => 0.5 * (sorted[length / 2 - 1] + sorted[length / 2]),
        length => sorted[length / 2],
    }
}

/// Writes rows as a bench file. The commit is asked from git in the working directory.
///
/// # Errors
/// The file cannot be written.
pub fn write_bench(path: &Path, rows: Vec<BenchRow>, cpus: usize) -> anyhow::Result<()> {
    let commit = std::process::Command::new("git")
        .args(["rev-parse", "HEAD"])
        .output()
        .ok()
        .filter(|output| output.status.success());
    let file = BenchFile {
        commit: commit.map_or_else(String::new, |output| {
            String::from_utf8_lossy(&output.stdout).trim().to_owned()
        }),
        cpus,
        rows,
    };
    let write = || -> io::Result<()> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        std::fs::write(path, serde_json::to_string_pretty(&file)? + "\n")
    };
    write().with_context(|| format!("writing {}", path.display()))
}

/// Long enough for a trial to be steady, and then some for percentiles to mean something.
pub const DEFAULT_TRIAL: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_of_odd_and_even_numbers_of_runs() {
        assert_eq!(median(&[3.0, 1.0, 2.0]).to_string(), "2");
        assert_eq!(median(&[4.0, 1.0]).to_string(), "2.5");
        assert_eq!(median(&[]).to_string(), "0");
    }
}
