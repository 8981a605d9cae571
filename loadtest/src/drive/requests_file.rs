//! One line per request, for analyses that the summary does not make.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::time::Duration;

use serde::Serialize;

use super::measures::Figures;
use super::record::Record;
use crate::schedule::Planned;

/// Columns of the CSV form, which are the members of the JSON-lines form.
const HEADER: &str = "request,model,client,planned_s,sent_s,headers_s,first_s,last_s,ended_s,status,outcome,planned_input_tokens,input_tokens,cached_tokens,\
planned_output_tokens,output_tokens,chunks,ttft_s,tpot_s,e2e_s,lateness_s,good,replica";

/// Writes lines as CSV, or as JSON lines when the file's name ends in `.jsonl`.
#[derive(Debug)]
pub(super) struct RequestsFile {
    out: BufWriter<File>,
    json: bool,
}

/// One line. Times in seconds from the run's start; what is not known is left out.
#[derive(Debug, Serialize)]
struct Line<'a> {
    request: u32,
    model: &'a str,
    client: u32,
    planned_s: f64,
    sent_s: Option<f64>,
    headers_s: Option<f64>,
    first_s: Option<f64>,
    last_s: Option<f64>,
    ended_s: f64,
    status: Option<u16>,
    outcome: String,
    planned_input_tokens: u32,
    input_tokens: Option<u32>,
    cached_tokens: Option<u32>,
    planned_output_tokens: u32,
    output_tokens: Option<u32>,
    chunks: usize,
    ttft_s: Option<f64>,
    tpot_s: Option<f64>,
    e2e_s: Option<f64>,
    lateness_s: Option<f64>,
    good: bool,
    replica: Option<&'a str>,
}

impl RequestsFile {
    /// Creates the file.
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        let mut out = BufWriter::new(File::create(path)?);
        let json = path
            .extension()
            .is_some_and(|extension| extension == "jsonl");
        if !json {
            writeln!(out, "{HEADER}")?;
        }
        Ok(Self { out, json })
    }

    /// Writes one request.
    pub(super) fn write(
        &mut self,
        record: &Record,
        planned: &Planned,
        model: &str,
        figures: &Figures,
    ) -> io::Result<()> {
        let seconds = |duration: Duration| duration.as_secs_f64();
        let line = Line {
            request: record.request,
            model,
            client: planned.client,
            planned_s: seconds(record.planned),
            sent_s: record.sent.map(seconds),
            headers_s: record.headers.map(seconds),
            first_s: record.first().map(seconds),
            last_s: record.last().map(seconds),
            ended_s: seconds(record.ended),
            status: record.status,
            outcome: match &record.outcome {
                Ok(()) => "Complete".to_owned(),
                Err(failure) => failure.kind.name(),
            },
            planned_input_tokens: planned.input_tokens,
            input_tokens: record.usage.map(|usage| usage.prompt_tokens),
            cached_tokens: record
                .usage
                .map(|usage| usage.prompt_tokens_details.cached_tokens),
            planned_output_tokens: planned.output_tokens,
            output_tokens: figures.answer.map(|_| record.output_tokens()),
            chunks: record.chunks.len(),
            ttft_s: figures.answer.map(|answer| seconds(answer.ttft)),
            tpot_s: figures.answer.and_then(|answer| answer.tpot).map(seconds),
            e2e_s: figures.answer.map(|answer| seconds(answer.end_to_end)),
            lateness_s: figures.lateness.map(seconds),
            good: figures.answer.is_some_and(|answer| answer.is_good()),
            replica: record.replica.as_deref(),
        };
        if self.json {
            serde_json::to_writer(&mut self.out, &line)?;
            return writeln!(self.out);
        }
        self.write_csv(&line)
    }

    fn write_csv(&mut self, line: &Line<'_>) -> io::Result<()> {
        fn cell<T: ToString>(value: Option<T>) -> String {
            value.map_or_else(String::new, |value| value.to_string())
        }
        fn time(value: Option<f64>) -> String {
            value.map_or_else(String::new, |seconds| format!("{seconds:.6}"))
        }
        let Line {
            request,
            model,
            client,
            planned_s,
            sent_s,
            headers_s,
            first_s,
            last_s,
            ended_s,
            status,
            outcome,
            planned_input_tokens,
            input_tokens,
            cached_tokens,
            planned_output_tokens,
            output_tokens,
            chunks,
            ttft_s,
            tpot_s,
            e2e_s,
            lateness_s,
            good,
            replica,
        } = line;
        let cells = [
            request.to_string(),
            quoted(model),
            client.to_string(),
            time(Some(*planned_s)),
            time(*sent_s),
            time(*headers_s),
            time(*first_s),
            time(*last_s),
            time(Some(*ended_s)),
            cell(*status),
            outcome.clone(),
            planned_input_tokens.to_string(),
            cell(*input_tokens),
            cell(*cached_tokens),
            planned_output_tokens.to_string(),
            cell(*output_tokens),
            chunks.to_string(),
            time(*ttft_s),
            time(*tpot_s),
            time(*e2e_s),
            time(*lateness_s),
            good.to_string(),
            quoted(replica.unwrap_or("")),
        ];
        writeln!(self.out, "{}", cells.join(","))
    }

    /// Writes what is buffered.
    pub(super) fn finish(mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// A CSV cell, quoted where it must be.
fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}
