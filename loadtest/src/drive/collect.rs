//! Adds finished requests up while the run goes on.

use std::io;
use std::time::Duration;

use super::measures::{Figures, Measures};
use super::record::{Failure, FailureKind, Record};
use super::requests_file::RequestsFile;
use super::series::SeriesBuilder;
use super::settings::Settings;
use super::summary::Mode;

/// What is known so far, for a progress display.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Progress {
    /// Time since the run's start.
    pub elapsed: Duration,
    /// Planned length.
    pub duration: Duration,
    /// Requests of the whole schedule.
    pub planned: u64,
    /// Requests due by now.
    pub offered: u64,
    /// Sent.
    pub sent: u64,
    /// Answered completely.
    pub done: u64,
    /// Of these, within their objectives.
    pub good: u64,
    /// Failed.
    pub failed: u64,
    /// Median time to first token so far.
    pub ttft_p50: Option<Duration>,
    /// 99th percentile.
    pub ttft_p99: Option<Duration>,
    /// 99th percentile of lateness.
    pub lateness_p99: Option<Duration>,
}

impl Progress {
    /// Sent and not ended.
    #[must_use]
    pub fn in_flight(&self) -> u64 {
        self.sent.saturating_sub(self.done + self.failed)
    }
}

/// Collects records.
#[derive(Debug)]
pub(super) struct Collector<'a> {
    settings: &'a Settings,
    streams: Vec<Stream>,
    /// Which requests have ended.
    seen: Vec<bool>,
    requests_file: Option<RequestsFile>,
    /// First and last (planned, sent) of measured requests.
    first: Option<(Duration, Duration)>,
    last: Option<(Duration, Duration)>,
    last_end: Duration,
    done: u64,
    good: u64,
    failed: u64,
}

#[derive(Debug)]
struct Stream {
    measures: Measures,
    series: SeriesBuilder,
}

/// What was collected.
#[derive(Debug)]
pub(super) struct Collected {
    /// Per stream.
    pub(super) streams: Vec<(Measures, SeriesBuilder)>,
    /// All together.
    pub(super) total: (Measures, SeriesBuilder),
    /// Planned and actual time between the first and the last request.
    pub(super) spans: Option<(Duration, Duration)>,
    /// When the last request ended.
    pub(super) last_end: Duration,
}

impl<'a> Collector<'a> {
    pub(super) fn new(settings: &'a Settings) -> io::Result<Self> {
        let mut streams: Vec<Stream> = settings
            .schedule
            .streams()
            .iter()
            .map(|_| Stream {
                measures: Measures::new(),
                series: SeriesBuilder::new(settings.interval),
            })
            .collect();
        if settings.mode == Mode::OpenLoop {
            for request in settings.schedule.requests() {
                streams[usize::from(request.stream)]
                    .series
                    .offer(request.at, request.input_tokens);
            }
        }
        Ok(Self {
            settings,
            streams,
            seen: vec![false; settings.schedule.requests().len()],
            requests_file: settings
                .requests_file
                .as_deref()
                .map(RequestsFile::create)
                .transpose()?,
            first: None,
            last: None,
            last_end: Duration::ZERO,
            done: 0,
            good: 0,
            failed: 0,
        })
    }

    pub(super) fn add(&mut self, record: &Record) -> io::Result<()> {
        let at = usize::try_from(record.request).unwrap_or(usize::MAX);
        let schedule = &self.settings.schedule;
        let planned = &schedule.requests()[at];
        let position = usize::from(planned.stream);
        let figures = Figures::of(record, planned, &self.settings.objectives[position]);
        self.seen[at] = true;
        self.last_end = self.last_end.max(record.ended);
        match figures.answer {
            Some(answer) => {
                self.done += 1;
                self.good += u64::from(answer.is_good());
            }
            None => self.failed += 1,
        }
        let stream = &mut self.streams[position];
        stream.series.add(
            record,
            planned,
            &figures,
            self.settings.mode != Mode::OpenLoop,
        );
        if let Some(file) = &mut self.requests_file {
            file.write(
                record,
                planned,
                &schedule.streams()[position].model,
                &figures,
            )?;
        }
        if record.planned < self.settings.warmup {
            return Ok(());
        }
        stream.measures.add(record, planned, &figures);
        if let Some(sent) = record.sent {
            let pair = (record.planned, sent);
            self.first = Some(
                self.first
                    .map_or(pair, |first| if pair.0 < first.0 { pair } else { first }),
            );
            self.last = Some(
                self.last
                    .map_or(pair, |last| if pair.0 > last.0 { pair } else { last }),
            );
        }
        Ok(())
    }

    /// What is known at `elapsed`; `sent` is counted by the workers.
    pub(super) fn progress(&self, elapsed: Duration, sent: u64) -> Progress {
        let schedule = &self.settings.schedule;
        let requests = schedule.requests();
        let mut ttft = super::worker::new_histogram();
        let mut lateness = super::worker::new_histogram();
        for stream in &self.streams {
            ttft.add(&stream.measures.ttft)
                .expect("both grow as needed");
            lateness
                .add(&stream.measures.lateness)
                .expect("both grow as needed");
        }
        let at = |histogram: &hdrhistogram::Histogram<u64>, quantile| {
            (!histogram.is_empty())
                .then(|| Duration::from_micros(histogram.value_at_quantile(quantile)))
        };
        Progress {
            elapsed,
            duration: schedule.duration(),
            planned: requests.len() as u64,
            offered: match self.settings.mode {
                Mode::OpenLoop => requests.partition_point(|request| request.at <= elapsed) as u64,
                Mode::ClosedLoop { .. } => sent,
            },
            sent,
            done: self.done,
            good: self.good,
            failed: self.failed,
            ttft_p50: at(&ttft, 0.50),
            ttft_p99: at(&ttft, 0.99),
            lateness_p99: at(&lateness, 0.99),
        }
    }

    /// Ends the collection; requests of an open loop that never reached a worker are counted as not sent.
    pub(super) fn finish(mut self) -> io::Result<Collected> {
        if self.settings.mode == Mode::OpenLoop {
            let missing: Vec<usize> = self
                .seen
                .iter()
                .enumerate()
                .filter(|(_, seen)| !**seen)
                .map(|(at, _)| at)
                .collect();
            for at in missing {
                let planned = self.settings.schedule.requests()[at].at;
                let mut record = Record::new(u32::try_from(at).unwrap_or(u32::MAX), planned);
                record.outcome = Err(Failure::new(FailureKind::NotSent, ""));
                let last_end = self.last_end;
                self.add(&record)?;
                self.last_end = last_end;
            }
        }
        if let Some(file) = self.requests_file.take() {
            file.finish()?;
        }
        let mut total = (Measures::new(), SeriesBuilder::new(self.settings.interval));
        for stream in &self.streams {
            total.0.merge(&stream.measures);
            total.1.merge(&stream.series);
        }
        Ok(Collected {
            streams: self
                .streams
                .into_iter()
                .map(|stream| (stream.measures, stream.series))
                .collect(),
            total,
            spans: self
                .first
                .zip(self.last)
                .map(|(first, last)| (last.0 - first.0, last.1.saturating_sub(first.1))),
            last_end: self.last_end,
        })
    }
}
