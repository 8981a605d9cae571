//! Readers of published request traces.
//!
//! | format | recognised by | notes |
//! |---|---|---|
//! | `coppice` | header `arrival_s,input_tokens,output_tokens` | optional `prefix_hit_tokens`; columns by name |
//! | `azure` | header `TIMESTAMP,ContextTokens,GeneratedTokens` | Azure LLM inference traces of 2023 and 2024 |
//! | `mooncake` | first byte `{` | JSON lines; `timestamp` in ms, `hash_ids` of 512-token blocks |
//! | `burst-gpt` | header with `Request tokens` | response 0 marks a failed request, which is skipped and counted |
//!
//! Any of them may be gzip-compressed. Rows come out sorted by time, counted from the first.

mod azure;
mod builtin;
mod burst_gpt;
mod coppice;
mod csv;
mod mooncake;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Prefix;

pub use builtin::names as builtin_names;

/// A request as a trace has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// From the trace's first request.
    pub at: Duration,
    /// Prompt tokens, at least 1.
    pub input_tokens: u32,
    /// Generated tokens, at least 1.
    pub output_tokens: u32,
    /// Who sent it, where the trace says so; else 0.
    pub client: u32,
    /// What its prompt shares.
    pub prefix: Prefix,
}

/// A trace that was read.
#[derive(Debug, Clone)]
pub struct Trace {
    /// How it was written.
    pub format: Format,
    /// Requests, sorted by time.
    pub rows: Vec<Row>,
    /// Rows left out because the trace marks them as failed.
    pub failed: usize,
}

/// How a trace is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Format {
    /// `arrival_s,input_tokens,output_tokens[,prefix_hit_tokens]`.
    Coppice,
    /// Azure LLM inference trace, 2023 or 2024.
    Azure,
    /// Mooncake JSON lines.
    Mooncake,
    /// BurstGPT, with or without sessions.
    BurstGpt,
}

/// Why a trace could not be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file could not be opened or read.
    #[error("reading the trace {source_name}")]
    Read {
        /// File or built-in name.
        source_name: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// No built-in trace has this name and no file does.
    #[error(
        "there is no trace {source_name:?}: give a file, or one of the built-in traces {known}"
    )]
    Unknown {
        /// What was given.
        source_name: String,
        /// What is built in.
        known: String,
    },
    /// The first line fits none of the formats.
    #[error(
        "the trace {source_name} begins with {first_line:?}, which is none of the known formats (coppice, azure, mooncake, burst-gpt)"
    )]
    UnknownFormat {
        /// File or built-in name.
        source_name: String,
        /// Its first line, shortened.
        first_line: String,
    },
    /// A line is not as the format wants it.
    #[error("the trace {source_name}, line {line}: {reason}")]
    Line {
        /// File or built-in name.
        source_name: String,
        /// From 1.
        line: usize,
        /// Field, value and what was expected.
        reason: String,
    },
    /// There is nothing in it.
    #[error("the trace {source_name} holds no requests")]
    Empty {
        /// File or built-in name.
        source_name: String,
    },
}

/// A row before times are counted from the first.
#[derive(Debug, Clone)]
struct RawRow {
    /// Nanoseconds from any origin.
    at_nanoseconds: i128,
    input_tokens: u32,
    output_tokens: u32,
    client: u32,
    prefix: Prefix,
}

/// Reads the lines after the header; a reason, without its place, where one is wrong.
type LineReader = Box<dyn Fn(&str) -> Result<Line, String>>;

/// What one line says.
#[derive(Debug)]
enum Line {
    Request(RawRow),
    /// Marked as failed by the trace.
    Failed,
}

/// Reads a trace: a file, or a built-in one by its name (see [`builtin_names`]).
///
/// # Errors
/// See [`TraceError`]; a wrong line is an error, never skipped.
pub fn read(source: &Path, format: Option<Format>) -> Result<Trace, TraceError> {
    let source_name = source.display().to_string();
    let bytes = match builtin::find(&source_name) {
        Some(bytes) => bytes.to_vec(),
        None if source.exists() => std::fs::read(source).map_err(|error| TraceError::Read {
            source_name: source_name.clone(),
            source: error,
        })?,
        None => {
            return Err(TraceError::Unknown {
                source_name,
                known: builtin::names().collect::<Vec<_>>().join(", "),
            });
        }
    };
    parse(&source_name, bytes, format)
}

/// Reads a trace from memory; `source_name` only serves errors.
///
/// # Errors
/// See [`TraceError`].
pub fn parse(
    source_name: &str,
    bytes: Vec<u8>,
    format: Option<Format>,
) -> Result<Trace, TraceError> {
    let text = decompress(bytes).map_err(|source| TraceError::Read {
        source_name: source_name.to_owned(),
        source,
    })?;
    let first_line = text.lines().next().unwrap_or("");
    let format = match format.or_else(|| recognise(first_line)) {
        Some(format) => format,
        None if text.trim().is_empty() => {
            return Err(TraceError::Empty {
                source_name: source_name.to_owned(),
            });
        }
        None => {
            return Err(TraceError::UnknownFormat {
                source_name: source_name.to_owned(),
                first_line: first_line.chars().take(80).collect(),
            });
        }
    };
    let at_line = |line: usize, reason: String| TraceError::Line {
        source_name: source_name.to_owned(),
        line,
        reason,
    };
    let reader: LineReader = match format {
        Format::Coppice => coppice::reader(first_line).map_err(|reason| at_line(1, reason))?,
        Format::Azure => azure::reader(first_line).map_err(|reason| at_line(1, reason))?,
        Format::BurstGpt => burst_gpt::reader(first_line).map_err(|reason| at_line(1, reason))?,
        Format::Mooncake => Box::new(mooncake::line),
    };
    let header_lines = usize::from(format != Format::Mooncake);
    let mut raw = Vec::new();
    let mut failed = 0;
    for (index, line) in text.lines().enumerate().skip(header_lines) {
        if line.trim().is_empty() {
            continue;
        }
        match reader(line).map_err(|reason| at_line(index + 1, reason))? {
            Line::Request(row) => raw.push(row),
            Line::Failed => failed += 1,
        }
    }
    let rows = from_first(raw);
    if rows.is_empty() {
        return Err(TraceError::Empty {
            source_name: source_name.to_owned(),
        });
    }
    Ok(Trace {
        format,
        rows,
        failed,
    })
}

fn decompress(bytes: Vec<u8>) -> std::io::Result<String> {
    let bytes = if bytes.starts_with(&[0x1f, 0x8b]) {
        let mut plain = Vec::with_capacity(bytes.len() * 4);
        flate2::read::MultiGzDecoder::new(bytes.as_slice()).read_to_end(&mut plain)?;
        plain
    } else {
        bytes
    };
    let mut text = String::from_utf8(bytes)
        .map_err(|error| std::io::Error::new(std::io::ErrorKind::InvalidData, error))?;
    if text.starts_with('\u{feff}') {
        text.remove(0);
    }
    Ok(text)
}

fn recognise(first_line: &str) -> Option<Format> {
    if first_line.trim_start().starts_with('{') {
        Some(Format::Mooncake)
    } else if first_line.contains("arrival_s") {
        Some(Format::Coppice)
    } else if first_line.contains("ContextTokens") {
        Some(Format::Azure)
    } else if first_line.contains("Request tokens") {
        Some(Format::BurstGpt)
    } else {
        None
    }
}

/// Sorts by time (equal times keep their order) and counts from the first.
fn from_first(mut raw: Vec<RawRow>) -> Vec<Row> {
    raw.sort_by_key(|row| row.at_nanoseconds);
    let origin = raw.first().map_or(0, |row| row.at_nanoseconds);
    raw.into_iter()
        .map(|row| Row {
            at: Duration::from_nanos(
                u64::try_from(row.at_nanoseconds - origin).unwrap_or(u64::MAX),
            ),
            input_tokens: row.input_tokens.max(1),
            output_tokens: row.output_tokens.max(1),
            client: row.client,
            prefix: row.prefix,
        })
        .collect()
}

/// The files of a trace given by path, for messages and records.
#[must_use]
pub fn display_name(source: &Path) -> String {
    source.file_name().map_or_else(
        || PathBuf::from(source).display().to_string(),
        |name| name.to_string_lossy().into_owned(),
    )
}

#[cfg(test)]
mod tests;
