//! What happened in each second of a run.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::host::microseconds;
use super::measures::{Figures, gaps};
use super::record::Record;
use super::sparse::Sparse;
use crate::schedule::Planned;
use crate::schedule::numeric::index;

/// The time line of one stream, by columns of equal length. Missing is `null`, never 0.
///
/// Times to first token belong to the interval in which the request was due; gaps and tokens to the one in which they
/// arrived; sent and ended requests to the one in which they were.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Series {
    /// Length of an interval in seconds.
    pub interval_seconds: f64,
    /// Requests due.
    pub offered: Vec<u64>,
    /// Prompt tokens due.
    pub offered_input_tokens: Vec<u64>,
    /// Requests sent.
    pub sent: Vec<u64>,
    /// Requests that ended with a complete answer.
    pub done: Vec<u64>,
    /// Of these, those that met their objectives.
    pub good: Vec<u64>,
    /// Requests that ended otherwise.
    pub failed: Vec<u64>,
    /// Requests sent and not ended at the interval's end.
    pub in_flight: Vec<u64>,
    /// Generated tokens that arrived.
    pub output_tokens: Vec<u64>,
    /// Median time to first token, seconds.
    pub ttft_p50: Vec<Option<f64>>,
    /// 95th percentile.
    pub ttft_p95: Vec<Option<f64>>,
    /// 99th percentile.
    pub ttft_p99: Vec<Option<f64>>,
    /// Median gap between tokens, seconds.
    pub itl_p50: Vec<Option<f64>>,
    /// 95th percentile.
    pub itl_p95: Vec<Option<f64>>,
    /// 99th percentile.
    pub itl_p99: Vec<Option<f64>>,
}

/// A chart shows no more points than this well.
const COARSE_INTERVALS: f64 = 150.0;
/// By how much intervals may be lengthened, so that they stay round.
const COARSE_FACTORS: [usize; 14] = [
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200,
];

/// Collects a [`Series`].
#[derive(Debug, Clone)]
pub(super) struct SeriesBuilder {
    interval: f64,
    bins: Vec<Bin>,
}

#[derive(Debug, Clone, Default)]
struct Bin {
    offered: u64,
    offered_input_tokens: u64,
    sent: u64,
    done: u64,
    good: u64,
    failed: u64,
    failed_unsent: u64,
    output_tokens: u64,
    ttft: Sparse,
    itl: Sparse,
}

impl Bin {
    fn add(&mut self, other: &Self) {
        let Self {
            offered,
            offered_input_tokens,
            sent,
            done,
            good,
            failed,
            failed_unsent,
            output_tokens,
            ttft,
            itl,
        } = other;
        self.offered += offered;
        self.offered_input_tokens += offered_input_tokens;
        self.sent += sent;
        self.done += done;
        self.good += good;
        self.failed += failed;
        self.failed_unsent += failed_unsent;
        self.output_tokens += output_tokens;
        self.ttft.merge(ttft);
        self.itl.merge(itl);
    }
}

impl SeriesBuilder {
    pub(super) fn new(interval: Duration) -> Self {
        Self {
            interval: interval.as_secs_f64(),
            bins: Vec::new(),
        }
    }

    fn bin(&mut self, at: Duration) -> &mut Bin {
        let position = index(at.as_secs_f64() / self.interval);
        if position >= self.bins.len() {
            self.bins.resize(position + 1, Bin::default());
        }
        &mut self.bins[position]
    }

    /// A request is due.
    pub(super) fn offer(&mut self, at: Duration, input_tokens: u32) {
        let bin = self.bin(at);
        bin.offered += 1;
        bin.offered_input_tokens += u64::from(input_tokens);
    }

    /// A request has ended.
    pub(super) fn add(
        &mut self,
        record: &Record,
        planned: &Planned,
        figures: &Figures,
        is_closed_loop: bool,
    ) {
        if is_closed_loop {
            self.offer(record.planned, planned.input_tokens);
        }
        if let Some(sent) = record.sent {
            self.bin(sent).sent += 1;
        }
        let ended = self.bin(record.ended);
        match figures.answer {
            Some(answer) => {
                ended.done += 1;
                ended.good += u64::from(answer.is_good());
                self.bin(record.planned)
                    .ttft
                    .add(microseconds(answer.ttft), 1);
            }
            None => {
                ended.failed += 1;
                ended.failed_unsent += u64::from(record.sent.is_none());
            }
        }
        let Some(sent) = record.sent else { return };
        if let Some(first) = record.first() {
            self.bin(first).output_tokens += 1;
        }
        for gap in gaps(record) {
            let bin = self.bin(sent + Duration::from_micros(u64::from(gap.end)));
            bin.itl.add(gap.microseconds, gap.count);
            bin.output_tokens += gap.count;
        }
    }

    /// Adds another stream's time line to this one.
    pub(super) fn merge(&mut self, other: &Self) {
        if other.bins.len() > self.bins.len() {
            self.bins.resize(other.bins.len(), Bin::default());
        }
        for (mine, theirs) in self.bins.iter_mut().zip(&other.bins) {
            mine.add(theirs);
        }
    }

    /// The same time line in longer intervals, of which there are at most [`COARSE_INTERVALS`].
    pub(super) fn coarse(&self) -> Self {
        let total = self.interval * self.bins.len() as f64;
        let factor = COARSE_FACTORS
            .into_iter()
            .find(|factor| total / (self.interval * *factor as f64) <= COARSE_INTERVALS)
            .unwrap_or_else(|| self.bins.len().max(1));
        let mut coarse = Self {
            interval: self.interval * factor as f64,
            bins: vec![Bin::default(); self.bins.len().div_ceil(factor)],
        };
        for (position, bin) in self.bins.iter().enumerate() {
            coarse.bins[position / factor].add(bin);
        }
        coarse
    }

    pub(super) fn build(&self) -> Series {
        let mut series = Series {
            interval_seconds: self.interval,
            ..Series::default()
        };
        let mut in_flight: u64 = 0;
        for bin in &self.bins {
            in_flight =
                (in_flight + bin.sent).saturating_sub(bin.done + bin.failed - bin.failed_unsent);
            series.offered.push(bin.offered);
            series.offered_input_tokens.push(bin.offered_input_tokens);
            series.sent.push(bin.sent);
            series.done.push(bin.done);
            series.good.push(bin.good);
            series.failed.push(bin.failed);
            series.in_flight.push(in_flight);
            series.output_tokens.push(bin.output_tokens);
            let seconds =
                |sparse: &Sparse, share| sparse.quantile(share).map(|micros| micros as f64 / 1e6);
            series.ttft_p50.push(seconds(&bin.ttft, 0.50));
            series.ttft_p95.push(seconds(&bin.ttft, 0.95));
            series.ttft_p99.push(seconds(&bin.ttft, 0.99));
            series.itl_p50.push(seconds(&bin.itl, 0.50));
            series.itl_p95.push(seconds(&bin.itl, 0.95));
            series.itl_p99.push(seconds(&bin.itl, 0.99));
        }
        series
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drive::objective::Objectives;
    use crate::schedule::Prefix;

    #[test]
    fn a_request_leaves_its_marks_in_the_right_seconds() {
        let planned = Planned {
            at: Duration::from_millis(900),
            stream: 0,
            client: 0,
            input_tokens: 7,
            output_tokens: 3,
            prefix: Prefix::None,
        };
        let mut record = Record::new(0, planned.at);
        record.sent = Some(Duration::from_millis(1100));
        record.chunks = vec![1_000_000, 2_000_000, 3_000_000];
        record.ended = Duration::from_millis(4200);
        record.outcome = Ok(());
        let figures = Figures::of(&record, &planned, &Objectives::default());
        let mut builder = SeriesBuilder::new(Duration::from_secs(1));
        builder.offer(planned.at, planned.input_tokens);
        builder.add(&record, &planned, &figures, false);
        let series = builder.build();
        assert_eq!(series.offered, [1, 0, 0, 0, 0]);
        assert_eq!(series.sent, [0, 1, 0, 0, 0]);
        assert_eq!(series.done, [0, 0, 0, 0, 1]);
        assert_eq!(series.in_flight, [0, 1, 1, 1, 0]);
        assert_eq!(series.output_tokens, [0, 0, 1, 1, 1]);
        assert_eq!(series.ttft_p50[0], Some(1.2));
        assert_eq!(series.ttft_p50[1], None);
        assert_eq!(series.itl_p99[3], Some(1.0));
        let mut long = SeriesBuilder::new(Duration::from_secs(1));
        for second in 0..301 {
            long.offer(Duration::from_secs(second), 1);
        }
        let coarse = long.coarse().build();
        assert!((coarse.interval_seconds - 5.0).abs() < 1e-9);
        assert_eq!(
            (coarse.offered.len(), coarse.offered[0], coarse.offered[60]),
            (61, 5, 1)
        );
        let mut twice = builder.clone();
        twice.merge(&builder);
        assert_eq!(twice.build().offered[0], 2);
    }
}
