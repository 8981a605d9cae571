//! One line of results: a cell and its measures.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;

use anyhow::{Context, bail};
use coppice_simulation::Measures;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Form of a line; lines of another form are not read.
pub(super) const FORMAT: &str = "coppice-simulation/1";
/// Longest line that is read: a cell of weeks with a change every few seconds stays far below.
const LONGEST: usize = 64 << 20;
/// Significant digits of a measure.
const DIGITS: usize = 12;

/// What one cell gave.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub(super) struct Row {
    /// [`FORMAT`].
    pub(super) format: String,
    /// Version of the program.
    pub(super) version: String,
    /// Name of the scenario.
    pub(super) scenario: String,
    /// Changes when the scenario does.
    pub(super) scenario_digest: String,
    /// The policy as asked for.
    pub(super) policy: String,
    /// The policy that ran: differs where a fleet was looked for.
    pub(super) resolved: String,
    /// Seed of everything drawn.
    pub(super) seed: u64,
    /// Two cells with the same were offered the same requests.
    pub(super) schedule_digest: String,
    /// What came out.
    pub(super) measures: Measures,
}

/// What tells cells apart.
pub(super) type Key = (String, String, String, u64);

impl Row {
    pub(super) fn key(&self) -> Key {
        (
            self.scenario_digest.clone(),
            self.policy.clone(),
            self.resolved.clone(),
            self.seed,
        )
    }

    /// The same with measures of [`DIGITS`] digits: a number of more is not read back as it was written, to the last bit, by every reader.
    ///
    /// # Errors
    /// A measure is not finite, which would be a bug.
    pub(super) fn rounded(self) -> anyhow::Result<Self> {
        let mut measures = serde_json::to_value(&self.measures)?;
        round(&mut measures);
        Ok(Self {
            measures: serde_json::from_value(measures)?,
            ..self
        })
    }
}

fn round(value: &mut Value) {
    match value {
        Value::Number(number) if number.is_f64() => {
            let digits = DIGITS - 1;
            let rounded = number
                .as_f64()
                .and_then(|number| format!("{number:.digits$e}").parse().ok())
                .and_then(serde_json::Number::from_f64);
            if let Some(rounded) = rounded {
                *number = rounded;
            }
        }
        Value::Array(items) => items.iter_mut().for_each(round),
        Value::Object(fields) => fields.values_mut().for_each(round),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Rows by cell, the later of two of one cell.
pub(super) type Rows = BTreeMap<Key, Row>;

/// Reads a file of lines. A last line that was cut off, as by a run that was stopped, is left out; every other broken line is an error.
pub(super) fn read(path: &Path) -> anyhow::Result<Rows> {
    let shown = path.display();
    let text = std::fs::read_to_string(path).with_context(|| format!("reading {shown}"))?;
    let mut rows = Rows::new();
    let whole = text.ends_with('\n');
    let count = text.lines().count();
    for (index, line) in text.lines().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        if line.len() > LONGEST {
            bail!("{shown}, line {}: longer than {LONGEST} bytes", index + 1);
        }
        match serde_json::from_str::<Row>(line) {
            Ok(row) if row.format == FORMAT => {
                rows.insert(row.key(), row);
            }
            Ok(row) => bail!(
                "{shown}, line {}: the format is {:?}, this program reads {FORMAT:?}",
                index + 1,
                row.format
            ),
            Err(_) if !whole && index + 1 == count => {}
            Err(error) => {
                return Err(error).with_context(|| {
                    format!("{shown}, line {}: not a result of simulate", index + 1)
                });
            }
        }
    }
    Ok(rows)
}

/// A file to which lines are added.
#[derive(Debug)]
pub(super) struct Lines {
    file: std::fs::File,
    shown: String,
}

impl Lines {
    /// A file that holds these rows so far.
    pub(super) fn create(path: &Path, rows: &Rows) -> anyhow::Result<Self> {
        let shown = path.display().to_string();
        let file = std::fs::File::create(path).with_context(|| format!("creating {shown}"))?;
        let mut lines = Self { file, shown };
        for row in rows.values() {
            lines.add(row)?;
        }
        Ok(lines)
    }

    /// Adds a row at once, so that a run that is stopped loses no cell that was done.
    pub(super) fn add(&mut self, row: &Row) -> anyhow::Result<()> {
        let mut line = serde_json::to_string(row)?;
        line.push('\n');
        self.file
            .write_all(line.as_bytes())
            .with_context(|| format!("writing {}", self.shown))
    }
}
