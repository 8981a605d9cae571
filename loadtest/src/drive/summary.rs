//! The result of a run, as it is written to JSON and read by `report`. Times in seconds, lengths in tokens.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::host::Host;
use super::measures::{FailureCount, Measures};
use super::objective::Objectives;
use super::series::{Series, SeriesBuilder};
use super::validity::Validity;
use crate::schedule::spec::Scenario;
use crate::schedule::statistics::Statistics;

/// Value of [`RunSummary::format`].
pub const FORMAT: &str = "coppice-loadtest-run/v1";

/// A run: what was offered, from where, whether to believe it, and what came back.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunSummary {
    /// [`FORMAT`].
    pub format: String,
    /// Version of the program.
    pub version: String,
    /// Whether the figures may be believed. First, because nothing below counts without it.
    pub validity: Validity,
    /// When the first instant of the schedule was.
    pub started_at: Timestamp,
    /// When the last request had ended.
    pub ended_at: Timestamp,
    /// Seconds from the end of the warm-up to the last end.
    pub measured_seconds: f64,
    /// Seconds at the start whose requests are sent but not measured.
    pub warmup_seconds: f64,
    /// How requests were sent.
    pub mode: Mode,
    /// Servers, by stream.
    pub urls: Vec<String>,
    /// What was asked for.
    pub scenario: Scenario,
    /// What that schedule looks like.
    pub schedule: Statistics,
    /// [`crate::schedule::Schedule::digest`] in hexadecimal: equal for runs that offered the same requests.
    pub schedule_digest: String,
    /// The driver's machine.
    pub host: Host,
    /// How the driver fared.
    pub driver: DriverSummary,
    /// All streams together.
    pub total: StreamSummary,
    /// Each stream.
    pub streams: Vec<StreamSummary>,
}

/// How requests were sent.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum Mode {
    /// At their planned instants, whatever else is in flight.
    OpenLoop,
    /// By users who wait for each answer: the server's slowness lowers the load, so latencies at an offered rate cannot be read.
    ClosedLoop {
        /// How many.
        users: usize,
        /// Pause after each answer.
        think_seconds: f64,
    },
}

/// How the driver itself fared.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DriverSummary {
    /// Threads that send and read.
    pub workers: usize,
    /// Connections opened.
    pub connections: u64,
    /// Limit on requests in flight, where one was asked for.
    pub max_in_flight: Option<usize>,
    /// Delay of the workers' event loops, sampled every 10 ms.
    pub loop_lag: Option<Distribution>,
    /// Processors used by the whole process, on average.
    pub cpus_used: f64,
    /// Share of the time that the busiest worker ran.
    pub busiest_worker: Option<f64>,
    /// Share of the time that the most neglected worker was ready to run and had no processor.
    pub waited_for_cpu: Option<f64>,
}

/// Measures of one stream.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StreamSummary {
    /// Model; "all" for the total.
    pub model: String,
    /// Objectives; absent for the total when streams differ.
    pub objectives: Option<Objectives>,
    /// Counts.
    pub requests: Counts,
    /// Per second of the measured time.
    pub rates: Rates,
    /// Tokens of complete answers.
    pub tokens: Tokens,
    /// First chunk with text − planned.
    pub ttft: Option<Distribution>,
    /// First chunk with text − sent.
    pub ttft_sent: Option<Distribution>,
    /// Last chunk with text − planned.
    pub end_to_end: Option<Distribution>,
    /// (last − first chunk) / (tokens − 1), per request.
    pub tpot: Option<Distribution>,
    /// Gaps between tokens.
    pub itl: Option<Distribution>,
    /// Sent − planned.
    pub lateness: Option<Distribution>,
    /// Failures by kind.
    pub failures: BTreeMap<String, FailureCount>,
    /// Requests by replica, where a header names it.
    pub replicas: BTreeMap<String, u64>,
    /// The time line.
    pub series: Series,
    /// The same in at most 150 longer intervals, with their own percentiles: for charts.
    pub coarse: Series,
}

/// Requests of the measured time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Due.
    pub planned: u64,
    /// First byte handed over.
    pub sent: u64,
    /// Answered completely.
    pub complete: u64,
    /// Complete and within all objectives.
    pub good: u64,
    /// Complete and within the limit on the time to first token.
    pub met_ttft: u64,
    /// Complete and within the limit on the mean gap.
    pub met_itl: u64,
    /// Not answered completely: failed, refused, cut off, timed out, unfinished. All of them are misses.
    pub failed: u64,
}

impl Counts {
    /// Share of planned requests that were good; none when nothing was planned.
    #[must_use]
    pub fn attainment(&self) -> Option<f64> {
        (self.planned > 0).then(|| self.good as f64 / self.planned as f64)
    }
}

/// Rates over the measured time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// Requests due per second of the schedule.
    pub offered_per_second: f64,
    /// Complete answers per second.
    pub complete_per_second: f64,
    /// Good requests per second.
    pub goodput_per_second: f64,
    /// Generated tokens of complete answers per second.
    pub output_tokens_per_second: f64,
    /// Prompt tokens of complete answers per second.
    pub input_tokens_per_second: f64,
}

/// Tokens of complete answers.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Tokens {
    /// Prompt tokens as planned.
    pub planned_input: u64,
    /// Prompt tokens as the server counted them.
    pub input: u64,
    /// Of these, found in a prefix cache.
    pub cached: u64,
    /// Output tokens as planned.
    pub planned_output: u64,
    /// Generated tokens: the server's count, else one a chunk.
    pub output: u64,
    /// Generated tokens of good requests.
    pub good_output: u64,
    /// Chunks with text.
    pub chunks: u64,
    /// Answers without a count by the server.
    pub answers_without_usage: u64,
    /// Answers with more tokens than chunks: their gaps are means.
    pub answers_with_several_tokens_a_chunk: u64,
}

/// A distribution of times, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Distribution {
    /// Samples.
    pub count: u64,
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 95th percentile.
    pub p95: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p999: f64,
    /// Largest.
    pub max: f64,
}

impl Distribution {
    /// Of a histogram in µs; none when it is empty.
    #[must_use]
    pub fn of(histogram: &Histogram<u64>) -> Option<Self> {
        if histogram.is_empty() {
            return None;
        }
        let at = |quantile| histogram.value_at_quantile(quantile) as f64 / 1e6;
        Some(Self {
            count: histogram.len(),
            mean: histogram.mean() / 1e6,
            p50: at(0.50),
            p90: at(0.90),
            p95: at(0.95),
            p99: at(0.99),
            p999: at(0.999),
            max: histogram.max() as f64 / 1e6,
        })
    }
}

impl StreamSummary {
    /// The measures over `measured_seconds`, of which the schedule offered during `offered_seconds`.
    pub(super) fn of(
        model: &str,
        objectives: Option<Objectives>,
        measures: &Measures,
        series: &SeriesBuilder,
        measured_seconds: f64,
        offered_seconds: f64,
    ) -> Self {
        let per = |count: u64, seconds: f64| {
            if seconds > 0.0 {
                count as f64 / seconds
            } else {
                0.0
            }
        };
        Self {
            model: model.to_owned(),
            objectives,
            requests: Counts {
                planned: measures.requests,
                sent: measures.sent,
                complete: measures.complete,
                good: measures.good,
                met_ttft: measures.met_ttft,
                met_itl: measures.met_itl,
                failed: measures.requests - measures.complete,
            },
            rates: Rates {
                offered_per_second: per(measures.requests, offered_seconds),
                complete_per_second: per(measures.complete, measured_seconds),
                goodput_per_second: per(measures.good, measured_seconds),
                output_tokens_per_second: per(measures.output_tokens, measured_seconds),
                input_tokens_per_second: per(measures.input_tokens, measured_seconds),
            },
            tokens: Tokens {
                planned_input: measures.planned_input_tokens,
                input: measures.input_tokens,
                cached: measures.cached_tokens,
                planned_output: measures.planned_output_tokens,
                output: measures.output_tokens,
                good_output: measures.good_output_tokens,
                chunks: measures.chunks,
                answers_without_usage: measures.without_usage,
                answers_with_several_tokens_a_chunk: measures.several_tokens_a_chunk,
            },
            ttft: Distribution::of(&measures.ttft),
            ttft_sent: Distribution::of(&measures.ttft_sent),
            end_to_end: Distribution::of(&measures.end_to_end),
            tpot: Distribution::of(&measures.tpot),
            itl: Distribution::of(&measures.itl),
            lateness: Distribution::of(&measures.lateness),
            failures: measures.failures.clone(),
            replicas: measures.replicas.clone(),
            series: series.build(),
            coarse: series.coarse().build(),
        }
    }
}
