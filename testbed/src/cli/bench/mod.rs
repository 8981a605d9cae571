//! `bench`: figures that a program can compare, measured here or read from a benchmark's table.
//!
//! A file of figures is `{commit, cpus, rows: [{name, value, unit, runs, better, mark, peer}]}`; `value` is the median of
//! `runs`. `coppice-loadtest drive --find-max --bench-file` writes the same.

mod divan;
mod operator;
mod pods;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::Context;
use clap::{Args, Subcommand};
use serde::{Deserialize, Serialize};

use super::say;

#[derive(Debug, Args)]
pub(crate) struct Bench {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// The operator on a control plane of its own: 500 × 2 pods made, grown, shrunk, removed; writes, processor, memory.
    Operator(operator::Operator),
    /// Turn what divan prints (standard input) into a file of figures.
    Divan(divan::Divan),
    /// Print files of figures as one table.
    Show(Show),
}

impl Bench {
    pub(crate) async fn run(self) -> anyhow::Result<ExitCode> {
        match self.what {
            What::Operator(operator) => operator.run().await,
            What::Divan(divan) => divan.run(),
            What::Show(show) => show.run(),
        }
    }
}

#[derive(Debug, Args)]
struct Show {
    /// Files of figures.
    #[arg(required = true)]
    files: Vec<PathBuf>,
}

impl Show {
    fn run(self) -> anyhow::Result<ExitCode> {
        for path in &self.files {
            let text =
                std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
            let figures: Figures = serde_json::from_slice(&text)
                .with_context(|| format!("{} holds no figures", path.display()))?;
            figures.print();
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Results of one benchmark.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Figures {
    /// Commit of the measured code; empty where unknown.
    commit: String,
    /// Processors of the machine.
    cpus: usize,
    rows: Vec<Row>,
}

/// One result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Row {
    name: String,
    /// Median of the runs.
    value: f64,
    unit: String,
    runs: Vec<f64>,
    better: Better,
    /// What is aimed at.
    mark: Option<f64>,
    /// The same measured of somebody else's program in the same session.
    peer: Option<Peer>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Better {
    Lower,
    Higher,
}

/// Somebody else's result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Peer {
    name: String,
    value: f64,
}

impl Row {
    fn lower(name: impl Into<String>, unit: &str, runs: Vec<f64>, mark: Option<f64>) -> Self {
        Self {
            name: name.into(),
            value: median(&runs),
            unit: unit.to_owned(),
            runs,
            better: Better::Lower,
            mark,
            peer: None,
        }
    }

    fn line(&self) -> String {
        let runs: Vec<String> = self.runs.iter().map(|run| short(*run)).collect();
        let mark = self.mark.map_or_else(String::new, |mark| {
            let (sign, reached) = match self.better {
                Better::Lower => ("≤", self.value <= mark),
                Better::Higher => ("≥", self.value >= mark),
            };
            let word = if reached { "reached" } else { "not reached" };
            format!("{sign} {} {word}", short(mark))
        });
        format!(
            "  {:<58} {:>9} {:<10} {:<22} runs {}",
            self.name,
            short(self.value),
            self.unit,
            mark,
            runs.join(" ")
        )
    }
}

impl Figures {
    fn new(rows: Vec<Row>) -> Self {
        Self {
            commit: commit(),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            rows,
        }
    }

    fn print(&self) {
        for row in &self.rows {
            say(&row.line());
        }
    }

    fn save(&self, path: &Path) -> anyhow::Result<()> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)
                .with_context(|| format!("cannot create {}", folder.display()))?;
        }
        let text = serde_json::to_string_pretty(self)?;
        std::fs::write(path, format!("{text}\n"))
            .with_context(|| format!("cannot write {}", path.display()))
    }
}

/// Three significant digits: what a noisy machine can tell.
fn short(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return value.to_string();
    }
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the logarithm of a number that is no zero and no infinity lies between -324 and 309"
    )]
    let magnitude = value.abs().log10().floor() as i32;
    format!("{value:.*}", usize::try_from(2 - magnitude).unwrap_or(0))
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        count if count % 2 == 1 => sorted[count / 2],
        count => f64::midpoint(sorted[count / 2 - 1], sorted[count / 2]),
    }
}

fn commit() -> String {
    Command::new("git")
        .args(["rev-parse", "--short=12", "HEAD"])
        .output()
        .ok()
        .filter(|output| output.status.success())
        .map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_says_whether_its_mark_is_reached() {
        let row = Row::lower("pods ready", "s", vec![9.0, 12.0, 8.0], Some(10.0));
        assert_eq!(short(row.value), "9.00");
        assert!(row.line().contains("≤ 10.0 reached"), "{}", row.line());
        let missed = Row {
            better: Better::Higher,
            ..row
        };
        assert!(missed.line().contains("≥ 10.0 not reached"));
    }

    #[test]
    fn values_have_three_digits() {
        assert_eq!(
            [1234.5, 12.345, 0.012_345, 0.0].map(short),
            ["1234", "12.3", "0.0123", "0"]
        );
    }

    #[test]
    fn the_median_of_an_even_number_is_between_the_middle_two() {
        assert_eq!(short(median(&[4.0, 1.0, 3.0, 2.0])), "2.50");
        assert!(median(&[]).is_nan());
    }
}
