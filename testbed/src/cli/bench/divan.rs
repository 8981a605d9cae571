//! Reads the table that divan prints.

use std::io::Read;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use coppice_testbed::figures::{Better, Figures, Row};

use super::print;

#[derive(Debug, Args)]
pub(super) struct Divan {
    /// Where the figures go.
    #[arg(long, value_name = "FILE")]
    output: PathBuf,
    /// Put before every name.
    #[arg(long, default_value = "")]
    prefix: String,
}

impl Divan {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let mut text = String::new();
        std::io::stdin()
            .read_to_string(&mut text)
            .context("cannot read divan's table from standard input")?;
        let rows = rows(&text, &self.prefix);
        anyhow::ensure!(!rows.is_empty(), "no divan table in the input");
        let figures = Figures::new(rows);
        print(&figures);
        figures
            .save(&self.output)
            .with_context(|| format!("cannot write {}", self.output.display()))?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Benchmarks of a table, named by their path in the tree. Where divan counts bytes or items, the rate is the figure,
/// else the time. `runs` are divan's own summary of its samples: fastest, slowest, median; `value` is the median.
///
/// A line is `├─ name  fastest │ slowest │ median │ mean │ samples │ iters`, followed, where there are counters, by one
/// line for each of them with the same columns.
fn rows(text: &str, prefix: &str) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    let mut path: Vec<String> = Vec::new();
    for line in text.lines() {
        let Some((tree, cells)) = split(line) else {
            continue;
        };
        let name = tree.trim_start_matches(['│', '├', '╰', '─', ' ']).trim();
        let depth = tree
            .chars()
            .take_while(|c| matches!(c, '│' | '├' | '╰' | '─' | ' '))
            .count()
            / 3;
        if name.is_empty() {
            // A counter of the benchmark above.
            if let (Some(rate), Some(row)) =
                (cells.get(2).and_then(|cell| rate(cell)), rows.last_mut())
            {
                let all = [0, 1, 2].map(|at| cells.get(at).and_then(|cell| self::rate(cell)));
                row.unit = rate.1.to_owned();
                row.runs = all.into_iter().flatten().map(|(value, _)| value).collect();
                row.value = rate.0;
                row.better = Better::Higher;
            }
            continue;
        }
        path.truncate(depth);
        path.push(name.to_owned());
        let times: Vec<f64> = [0, 1, 2]
            .iter()
            .filter_map(|at| seconds(cells.get(*at)?))
            .collect();
        if times.len() == 3 {
            rows.push(Row {
                name: format!("{prefix}{}", path[1.min(path.len() - 1)..].join(" ")),
                value: times[2],
                unit: "s".to_owned(),
                runs: times,
                better: Better::Lower,
                mark: None,
                peer: None,
            });
        }
    }
    rows
}

/// The tree's part of a line and the cells after it.
fn split(line: &str) -> Option<(&str, Vec<&str>)> {
    // The first cell is apart from the name by two spaces at least; the tree itself may hold bars.
    let body = line.trim_end();
    let first = body
        .char_indices()
        .skip_while(|(_, c)| matches!(c, '│' | '├' | '╰' | '─' | ' '))
        .map(|(at, _)| at)
        .next()?;
    let (tree, rest) =
        if body[first..].starts_with(|c: char| c.is_ascii_digit()) && !body.contains("─") {
            body.split_at(first)
        } else {
            let end = body[first..].find("  ").map_or(body.len(), |at| first + at);
            body.split_at(end)
        };
    Some((tree, rest.split('│').map(str::trim).collect()))
}

fn seconds(cell: &str) -> Option<f64> {
    let (number, unit) = cell.split_once(' ')?;
    let factor = match unit {
        "ns" => 1e-9,
        "µs" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        _ => return None,
    };
    Some(number.parse::<f64>().ok()? * factor)
}

fn rate(cell: &str) -> Option<(f64, &'static str)> {
    let (number, unit) = cell.split_once(' ')?;
    let number: f64 = number.parse().ok()?;
    Some(match unit {
        "B/s" => (number / 1e6, "MB/s"),
        "KB/s" => (number / 1e3, "MB/s"),
        "MB/s" => (number, "MB/s"),
        "GB/s" => (number * 1e3, "MB/s"),
        "item/s" => (number, "items/s"),
        "Kitem/s" => (number * 1e3, "items/s"),
        "Mitem/s" => (number * 1e6, "items/s"),
        "Gitem/s" => (number * 1e9, "items/s"),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
Timer precision: 20 ns
reading              fastest       │ slowest       │ median        │ mean          │ samples │ iters
├─ needed                          │               │               │               │         │
│  ├─ vllm           29.91 µs      │ 60.1 µs       │ 31.02 µs      │ 32.5 µs       │ 100     │ 100
│  │                 1.672 GB/s    │ 832 MB/s      │ 1.612 GB/s    │ 1.538 GB/s    │         │
│  ╰─ sglang         10 ms         │ 12 ms         │ 11 ms         │ 11 ms         │ 100     │ 100
╰─ whole             1.5 s         │ 2 s           │ 1.75 s        │ 1.7 s         │ 3       │ 3
";

    #[test]
    fn times_and_rates_of_a_table_are_read() {
        let rows = rows(TABLE, "reader: ");
        let short: Vec<_> = rows
            .iter()
            .map(|row| (row.name.as_str(), row.value, row.unit.as_str()))
            .collect();
        assert_eq!(
            short,
            [
                ("reader: needed vllm", 1612.0, "MB/s"),
                ("reader: needed sglang", 0.011, "s"),
                ("reader: whole", 1.75, "s")
            ]
        );
        assert_eq!(rows[0].better, Better::Higher);
        assert_eq!(rows[0].runs, [1672.0, 832.0, 1612.0]);
    }

    #[test]
    fn a_text_without_a_table_has_no_rows() {
        assert_eq!(rows("running 3 tests\nok\n", ""), []);
    }
}
