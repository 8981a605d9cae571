//! The measures of one stream, added up request by request. Formulas: the module documentation of [`crate::drive`].

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::host::microseconds;
use super::objective::Objectives;
use super::record::Record;
use super::worker::{new_histogram, record_in};
use crate::schedule::Planned;

/// Sums and histograms; mergeable.
#[derive(Debug, Clone)]
pub(super) struct Measures {
    pub(super) requests: u64,
    pub(super) sent: u64,
    pub(super) complete: u64,
    pub(super) good: u64,
    pub(super) met_ttft: u64,
    pub(super) met_itl: u64,
    pub(super) failures: BTreeMap<String, FailureCount>,
    pub(super) replicas: BTreeMap<String, u64>,
    pub(super) planned_input_tokens: u64,
    pub(super) planned_output_tokens: u64,
    pub(super) input_tokens: u64,
    pub(super) cached_tokens: u64,
    pub(super) output_tokens: u64,
    pub(super) good_output_tokens: u64,
    /// Complete answers whose server did not count tokens.
    pub(super) without_usage: u64,
    pub(super) chunks: u64,
    /// Complete answers with more tokens than chunks.
    pub(super) several_tokens_a_chunk: u64,
    pub(super) ttft: Histogram<u64>,
    pub(super) ttft_sent: Histogram<u64>,
    pub(super) end_to_end: Histogram<u64>,
    pub(super) tpot: Histogram<u64>,
    pub(super) itl: Histogram<u64>,
    pub(super) lateness: Histogram<u64>,
}

/// Failures of one kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailureCount {
    /// How many.
    pub count: u64,
    /// What it means.
    pub meaning: String,
    /// What the first of them said.
    pub example: String,
}

/// One request's figures, also for the series and the file of requests.
#[derive(Debug, Clone, Copy)]
pub(super) struct Figures {
    pub(super) lateness: Option<Duration>,
    /// Of complete answers only.
    pub(super) answer: Option<Answer>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Answer {
    pub(super) ttft: Duration,
    pub(super) ttft_sent: Duration,
    pub(super) end_to_end: Duration,
    pub(super) tpot: Option<Duration>,
    pub(super) met_ttft: bool,
    pub(super) met_itl: bool,
}

impl Answer {
    pub(super) fn is_good(&self) -> bool {
        self.met_ttft && self.met_itl
    }
}

impl Figures {
    pub(super) fn of(record: &Record, planned: &Planned, objectives: &Objectives) -> Self {
        let lateness = record.sent.map(|sent| sent.saturating_sub(record.planned));
        let answer = match (&record.outcome, record.sent, record.first(), record.last()) {
            (Ok(()), Some(sent), Some(first), Some(last)) => {
                let ttft = first.saturating_sub(record.planned);
                let tpot = record.time_per_output_token();
                let met = objectives.judge(planned.input_tokens, ttft, tpot);
                Some(Answer {
                    ttft,
                    ttft_sent: first.saturating_sub(sent),
                    end_to_end: last.saturating_sub(record.planned),
                    tpot,
                    met_ttft: met.ttft,
                    met_itl: met.itl,
                })
            }
            _ => None,
        };
        Self { lateness, answer }
    }
}

impl Measures {
    pub(super) fn new() -> Self {
        Self {
            requests: 0,
            sent: 0,
            complete: 0,
            good: 0,
            met_ttft: 0,
            met_itl: 0,
            failures: BTreeMap::new(),
            replicas: BTreeMap::new(),
            planned_input_tokens: 0,
            planned_output_tokens: 0,
            input_tokens: 0,
            cached_tokens: 0,
            output_tokens: 0,
            good_output_tokens: 0,
            without_usage: 0,
            chunks: 0,
            several_tokens_a_chunk: 0,
            ttft: new_histogram(),
            ttft_sent: new_histogram(),
            end_to_end: new_histogram(),
            tpot: new_histogram(),
            itl: new_histogram(),
            lateness: new_histogram(),
        }
    }

    pub(super) fn add(&mut self, record: &Record, planned: &Planned, figures: &Figures) {
        self.requests += 1;
        if let Some(lateness) = figures.lateness {
            self.sent += 1;
            record_duration(&mut self.lateness, lateness);
        }
        if let Err(failure) = &record.outcome {
            self.failures
                .entry(failure.kind.name())
                .or_insert_with(|| FailureCount {
                    count: 0,
                    meaning: failure.kind.meaning().to_owned(),
                    example: failure.detail.clone(),
                })
                .count += 1;
        }
        if let Some(replica) = &record.replica {
            match self.replicas.get_mut(replica) {
                Some(count) => *count += 1,
                None => drop(self.replicas.insert(replica.clone(), 1)),
            }
        }
        let Some(answer) = figures.answer else { return };
        self.complete += 1;
        self.good += u64::from(answer.is_good());
        self.met_ttft += u64::from(answer.met_ttft);
        self.met_itl += u64::from(answer.met_itl);
        self.planned_input_tokens += u64::from(planned.input_tokens);
        self.planned_output_tokens += u64::from(planned.output_tokens);
        let output_tokens = u64::from(record.output_tokens());
        self.output_tokens += output_tokens;
        if answer.is_good() {
            self.good_output_tokens += output_tokens;
        }
        match record.usage {
            None => self.without_usage += 1,
            Some(usage) => {
                self.input_tokens += u64::from(usage.prompt_tokens);
                self.cached_tokens += u64::from(usage.prompt_tokens_details.cached_tokens);
            }
        }
        let chunks = record.chunks.len() as u64;
        self.chunks += chunks;
        self.several_tokens_a_chunk += u64::from(output_tokens > chunks);
        record_duration(&mut self.ttft, answer.ttft);
        record_duration(&mut self.ttft_sent, answer.ttft_sent);
        record_duration(&mut self.end_to_end, answer.end_to_end);
        if let Some(tpot) = answer.tpot {
            record_duration(&mut self.tpot, tpot);
        }
        for gap in gaps(record) {
            record_in(&mut self.itl, gap.microseconds, gap.count);
        }
    }

    pub(super) fn merge(&mut self, other: &Self) {
        let Self {
            requests,
            sent,
            complete,
            good,
            met_ttft,
            met_itl,
            failures,
            replicas,
            planned_input_tokens,
            planned_output_tokens,
            input_tokens,
            cached_tokens,
            output_tokens,
            good_output_tokens,
            without_usage,
            chunks,
            several_tokens_a_chunk,
            ttft,
            ttft_sent,
            end_to_end,
            tpot,
            itl,
            lateness,
        } = other;
        self.requests += requests;
        self.sent += sent;
        self.complete += complete;
        self.good += good;
        self.met_ttft += met_ttft;
        self.met_itl += met_itl;
        for (kind, failure) in failures {
            let known = self
                .failures
                .entry(kind.clone())
                .or_insert_with(|| FailureCount {
                    count: 0,
                    ..failure.clone()
                });
            known.count += failure.count;
        }
        for (replica, count) in replicas {
            *self.replicas.entry(replica.clone()).or_default() += count;
        }
        self.planned_input_tokens += planned_input_tokens;
        self.planned_output_tokens += planned_output_tokens;
        self.input_tokens += input_tokens;
        self.cached_tokens += cached_tokens;
        self.output_tokens += output_tokens;
        self.good_output_tokens += good_output_tokens;
        self.without_usage += without_usage;
        self.chunks += chunks;
        self.several_tokens_a_chunk += several_tokens_a_chunk;
        for (mine, theirs) in [
            (&mut self.ttft, ttft),
            (&mut self.ttft_sent, ttft_sent),
            (&mut self.end_to_end, end_to_end),
            (&mut self.tpot, tpot),
            (&mut self.itl, itl),
            (&mut self.lateness, lateness),
        ] {
            mine.add(theirs).expect("both grow as needed");
        }
    }
}

fn record_duration(histogram: &mut Histogram<u64>, duration: Duration) {
    record_in(histogram, microseconds(duration), 1);
}

/// `count` gaps between tokens of this length, ending `end` µs after the request was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Gap {
    pub(super) microseconds: u64,
    pub(super) count: u64,
    pub(super) end: u32,
}

/// The gaps between a request's tokens.
///
/// A chunk of k tokens, g after the chunk before it, is k gaps of g/k. Where the server does not count tokens along the way
/// but counted more tokens than chunks in the end, the surplus is spread evenly over the chunks.
pub(super) fn gaps(record: &Record) -> impl Iterator<Item = Gap> + '_ {
    let chunks = record.chunks.len() as u64;
    let counted_along_the_way = record.chunk_tokens.len() == record.chunks.len();
    // Every chunk after the first brings at least one token; the first chunk's own tokens have no gap to measure.
    let gap_tokens = u64::from(record.output_tokens())
        .saturating_sub(1)
        .max(chunks.saturating_sub(1));
    record
        .chunks
        .windows(2)
        .enumerate()
        .map(move |(index, pair)| {
            let index = index as u64;
            let gap = u64::from(pair[1].saturating_sub(pair[0]));
            let count = if counted_along_the_way {
                usize::try_from(index + 1)
                    .ok()
                    .and_then(|at| record.chunk_tokens.get(at))
                    .map_or(1, |tokens| u64::from(*tokens).max(1))
            } else {
                // The whole numbers of an even division: their sum is exact.
                (index + 1) * gap_tokens / (chunks - 1) - index * gap_tokens / (chunks - 1)
            };
            Gap {
                microseconds: gap / count.max(1),
                count,
                end: pair[1],
            }
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drive::api::Usage;
    use crate::drive::record::{Failure, FailureKind};
    use crate::schedule::Prefix;

    #[test]
    fn a_wait_of_minutes_is_not_cut_to_a_second() {
        let mut histogram = new_histogram();
        for seconds in [1, 40, 600] {
            record_duration(&mut histogram, Duration::from_secs(seconds));
        }
        let seconds = |quantile| (histogram.value_at_quantile(quantile) + 500_000) / 1_000_000;
        assert_eq!([seconds(0.3), seconds(0.6), seconds(1.0)], [1, 40, 600]);
    }

    fn record(chunks: &[u32], completion_tokens: u32) -> Record {
        let mut record = Record::new(0, Duration::from_millis(1000));
        record.sent = Some(Duration::from_millis(1001));
        record.chunks = chunks.to_vec();
        record.usage = Some(Usage {
            prompt_tokens: 12,
            completion_tokens,
            ..Usage::default()
        });
        record.outcome = Ok(());
        record
    }

    fn planned() -> Planned {
        Planned {
            at: Duration::from_millis(1000),
            stream: 0,
            client: 0,
            input_tokens: 10,
            output_tokens: 4,
            prefix: Prefix::None,
        }
    }

    fn pairs(record: &Record) -> Vec<(u64, u64)> {
        gaps(record)
            .map(|gap| (gap.microseconds, gap.count))
            .collect()
    }

    #[test]
    fn latencies_count_from_the_planned_instant() {
        let record = record(&[50_000, 60_000, 75_000], 3);
        let figures = Figures::of(&record, &planned(), &Objectives::default());
        let answer = figures.answer.unwrap();
        assert_eq!(figures.lateness, Some(Duration::from_millis(1)));
        assert_eq!(answer.ttft, Duration::from_millis(51));
        assert_eq!(answer.ttft_sent, Duration::from_millis(50));
        assert_eq!(answer.end_to_end, Duration::from_millis(76));
        assert_eq!(answer.tpot, Some(Duration::from_micros(12_500)));
        assert_eq!(pairs(&record), [(10_000, 1), (15_000, 1)]);
    }

    #[test]
    fn one_token_has_no_time_per_output_token() {
        let record = record(&[50_000], 1);
        assert_eq!(
            Figures::of(&record, &planned(), &Objectives::default())
                .answer
                .unwrap()
                .tpot,
            None
        );
        assert!(pairs(&record).is_empty());
    }

    #[test]
    fn chunks_of_several_tokens_become_several_gaps() {
        // 7 tokens in 3 chunks: 6 gaps over 2 chunk gaps.
        assert_eq!(
            pairs(&record(&[0, 30_000, 60_000], 7)),
            [(10_000, 3), (10_000, 3)]
        );
        // 6 tokens: 5 gaps, unevenly but exactly.
        assert_eq!(
            pairs(&record(&[0, 30_000, 60_000], 6))
                .iter()
                .map(|(_, count)| count)
                .sum::<u64>(),
            5
        );
        let mut counted = record(&[0, 30_000, 60_000], 7);
        counted.chunk_tokens = vec![1, 2, 4];
        assert_eq!(pairs(&counted), [(15_000, 2), (7_500, 4)]);
    }

    #[test]
    fn failures_stay_out_of_latencies_and_are_counted_by_kind() {
        let mut measures = Measures::new();
        let objectives = Objectives {
            ttft: Some("60ms".parse().unwrap()),
            itl: None,
        };
        let mut add = |record: &Record| {
            let figures = Figures::of(record, &planned(), &objectives);
            measures.add(record, &planned(), &figures);
        };
        add(&record(&[50_000, 60_000], 2));
        add(&record(&[90_000, 95_000], 2));
        let mut failed = record(&[70_000], 1);
        failed.outcome = Err(Failure::new(FailureKind::CutStream, "after 1 chunks"));
        add(&failed);
        assert_eq!(
            (measures.requests, measures.complete, measures.good),
            (3, 2, 1)
        );
        assert_eq!(measures.ttft.len(), 2);
        assert_eq!(measures.failures["CutStream"].count, 1);
        assert_eq!(measures.failures["CutStream"].example, "after 1 chunks");
        let mut twice = measures.clone();
        twice.merge(&measures);
        assert_eq!(
            (
                twice.requests,
                twice.ttft.len(),
                twice.failures["CutStream"].count
            ),
            (6, 4, 2)
        );
    }
}
