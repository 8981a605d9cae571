//! Figures of benchmarks that a program can compare.
//!
//! A file of them is `{commit, cpus, rows: [{name, value, unit, runs, better, mark, peer}]}`; `value` is the median of
//! `runs`. `coppice-loadtest drive --find-max --bench-file` writes the same.

use std::io;
use std::path::Path;
use std::process::Command;

use serde::{Deserialize, Serialize};

/// Results of one benchmark.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Commit of the measured code; empty where unknown.
    pub commit: String,
    /// Processors of the machine.
    pub cpus: usize,
    /// What was measured.
    pub rows: Vec<Row>,
}

/// One result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// What was measured.
    pub name: String,
    /// Median of the runs.
    pub value: f64,
    /// Unit of `value`, `runs` and `mark`.
    pub unit: String,
    /// Every run.
    pub runs: Vec<f64>,
    /// Which way is better.
    pub better: Better,
    /// What is aimed at.
    pub mark: Option<f64>,
    /// The same measured of somebody else's program.
    pub peer: Option<Peer>,
}

/// Which way is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// Less.
    Lower,
    /// More.
    Higher,
}

/// Somebody else's result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Peer {
    /// Program and version.
    pub name: String,
    /// Its value.
    pub value: f64,
}

impl Row {
    /// A figure of `runs`, of which less is better.
    #[must_use]
    pub fn lower(name: impl Into<String>, unit: &str, runs: Vec<f64>, mark: Option<f64>) -> Self {
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

    /// One line of a table.
    #[must_use]
    pub fn line(&self) -> String {
        let runs: Vec<String> = self.runs.iter().map(|run| short(*run)).collect();
        let mark = self.mark.map_or_else(String::new, |mark| {
            let (sign, reached) = match self.better {
                Better::Lower => ("≤", self.value <= mark),
                Better::Higher => ("≥", self.value >= mark),
            };
            let word = if reached { "reached" } else { "not reached" };
            format!("{sign} {} {word}", short(mark))
        });
        let peer = self.peer.as_ref().map_or_else(String::new, |peer| {
            format!("  {}: {}", peer.name, short(peer.value))
        });
        format!(
            "  {:<58} {:>9} {:<10} {:<22} runs {}{peer}",
            self.name,
            short(self.value),
            self.unit,
            mark,
            runs.join(" ")
        )
    }
}

impl Figures {
    /// The rows, with the commit and the machine of now.
    #[must_use]
    pub fn new(rows: Vec<Row>) -> Self {
        Self {
            commit: commit(),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            rows,
        }
    }

    /// Writes a file, and its folder where that is missing.
    ///
    /// # Errors
    ///
    /// It cannot be written.
    pub fn save(&self, path: &Path) -> io::Result<()> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let text = serde_json::to_string_pretty(self).map_err(io::Error::other)?;
        std::fs::write(path, format!("{text}\n"))
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

/// The middle value, or what is between the middle two.
#[must_use]
pub fn median(values: &[f64]) -> f64 {
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
