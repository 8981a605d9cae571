//! What an engine has done so far, counted as vLLM counts it.

use std::time::Duration;

use crate::histogram::Histogram;
use crate::request::FinishReason;
use crate::sequence::Sequence;

/// Counters and histograms since the engine began; times in seconds, lengths in tokens.
///
/// Bounds of the histograms are vLLM 0.33's. TTFT counts when the first token appears and ITL with each further one; queue,
/// prefill, decode and end-to-end times and the lengths count when a request ends.
#[derive(Debug, Clone)]
pub struct Statistics {
    /// Prompt tokens of requests that have made their first token: computed, cached and fetched ones.
    pub prompt_tokens: u64,
    /// Those of [`Statistics::prompt_tokens`] that were computed here.
    pub prompt_tokens_computed: u64,
    /// Those that the prefix cache held.
    pub prompt_tokens_cached: u64,
    /// Those whose KV came from another engine.
    pub prompt_tokens_fetched: u64,
    /// Tokens made.
    pub generation_tokens: u64,
    /// Sequences thrown out of the batch for want of KV blocks.
    pub preemptions: u64,
    /// Prompt tokens looked up in the prefix cache.
    pub prefix_cache_queries: u64,
    /// Those of [`Statistics::prefix_cache_queries`] that were there.
    pub prefix_cache_hits: u64,
    /// Prompt tokens asked of other engines.
    pub external_cache_queries: u64,
    /// Those of [`Statistics::external_cache_queries`] that came.
    pub external_cache_hits: u64,
    /// Requests whose kept KV nobody fetched in time.
    pub kv_expired: u64,
    /// Requests that ended.
    pub finished: Finished,
    /// Submission to first token.
    pub time_to_first_token: Histogram,
    /// Gaps between tokens.
    pub inter_token_latency: Histogram,
    /// Mean gap of a request.
    pub time_per_output_token: Histogram,
    /// Submission to end.
    pub end_to_end: Histogram,
    /// Reaching the scheduler to first admission.
    pub queue_time: Histogram,
    /// First admission to last token.
    pub inference_time: Histogram,
    /// First admission to first token.
    pub prefill_time: Histogram,
    /// First to last token.
    pub decode_time: Histogram,
    /// Prompt lengths.
    pub prompt_length: Histogram,
    /// Output lengths.
    pub generation_length: Histogram,
    /// Limits that clients set.
    pub max_tokens: Histogram,
    /// Prompt tokens computed here, of a request.
    pub computed_length: Histogram,
    /// How often a request was preempted.
    pub preemptions_of_request: Histogram,
    /// Tokens of a step.
    pub step_tokens: Histogram,
    /// Duration of KV transfers.
    pub transfer_time: Histogram,
    /// Bytes of KV transfers.
    pub transfer_bytes: Histogram,
}

/// Requests that ended, by reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Finished {
    /// The model ended its answer.
    pub stop: u64,
    /// The asked number of tokens was made.
    pub length: u64,
    /// The client went away.
    pub abort: u64,
}

impl Finished {
    /// All of them.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.stop + self.length + self.abort
    }

    fn count(&mut self, reason: FinishReason) {
        match reason {
            FinishReason::Stop => self.stop += 1,
            FinishReason::Length => self.length += 1,
            FinishReason::Abort => self.abort += 1,
        }
    }
}

const FIRST_TOKEN: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
];
const TOKEN: &[f64] = &[
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
];
const REQUEST: &[f64] = &[
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
];
const STEP_TOKENS: &[f64] = &[
    1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0,
];
const PREEMPTIONS: &[f64] = &[1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0];
const TRANSFER: &[f64] = &[
    0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 5.0,
];
const BYTES: &[f64] = &[
    2048.0,
    8192.0,
    32768.0,
    131_072.0,
    524_288.0,
    2_097_152.0,
    8_388_608.0,
    33_554_432.0,
    134_217_728.0,
    536_870_912.0,
    2_147_483_648.0,
    8_589_934_592.0,
];

/// 1, 2, 5, 10, 20, 50, … up to `limit`: vLLM's bounds for lengths.
fn lengths(limit: u32) -> Vec<f64> {
    let limit = f64::from(limit);
    let decades = (0..10).map(|power| 10_f64.powi(power));
    decades
        .flat_map(|decade| [decade, 2.0 * decade, 5.0 * decade])
        .take_while(|bound| *bound <= limit)
        .collect()
}

impl Statistics {
    pub(crate) fn new(max_model_len: u32) -> Self {
        let lengths = lengths(max_model_len);
        let of = Histogram::new;
        Self {
            prompt_tokens: 0,
            prompt_tokens_computed: 0,
            prompt_tokens_cached: 0,
            prompt_tokens_fetched: 0,
            generation_tokens: 0,
            preemptions: 0,
            prefix_cache_queries: 0,
            prefix_cache_hits: 0,
            external_cache_queries: 0,
            external_cache_hits: 0,
            kv_expired: 0,
            finished: Finished::default(),
            time_to_first_token: of(FIRST_TOKEN),
            inter_token_latency: of(TOKEN),
            time_per_output_token: of(TOKEN),
            end_to_end: of(REQUEST),
            queue_time: of(REQUEST),
            inference_time: of(REQUEST),
            prefill_time: of(REQUEST),
            decode_time: of(REQUEST),
            prompt_length: of(&lengths),
            generation_length: of(&lengths),
            max_tokens: of(&lengths),
            computed_length: of(&lengths),
            preemptions_of_request: of(PREEMPTIONS),
            step_tokens: of(STEP_TOKENS),
            transfer_time: of(TRANSFER),
            transfer_bytes: of(BYTES),
        }
    }

    pub(crate) fn first_token(&mut self, sequence: &Sequence, at: Duration) {
        self.time_to_first_token
            .observe((at - sequence.submitted).as_secs_f64());
        let prompt = u64::from(sequence.request.prompt_tokens);
        let cached = u64::from(sequence.taken_from_cache);
        let fetched = u64::from(sequence.taken_from_remote);
        self.prompt_tokens += prompt;
        self.prompt_tokens_cached += cached;
        self.prompt_tokens_fetched += fetched;
        self.prompt_tokens_computed += prompt - cached - fetched;
    }

    pub(crate) fn finished(&mut self, sequence: &Sequence, reason: FinishReason, at: Duration) {
        self.finished.count(reason);
        let request = &sequence.request;
        self.end_to_end
            .observe((at - sequence.submitted).as_secs_f64());
        self.prompt_length.observe(f64::from(request.prompt_tokens));
        self.generation_length
            .observe(f64::from(sequence.generated));
        self.max_tokens.observe(f64::from(request.max_tokens));
        self.preemptions_of_request
            .observe(f64::from(sequence.preemptions));
        let elsewhere = sequence.taken_from_cache + sequence.taken_from_remote;
        self.computed_length
            .observe(f64::from(request.prompt_tokens - elsewhere));
        let (Some(admitted), Some(first)) = (sequence.admitted, sequence.first_token) else {
            return;
        };
        let last = sequence.last_token;
        self.queue_time
            .observe((admitted - sequence.queued).as_secs_f64());
        self.inference_time.observe((last - admitted).as_secs_f64());
        self.prefill_time.observe((first - admitted).as_secs_f64());
        self.decode_time.observe((last - first).as_secs_f64());
        if sequence.generated > 1 {
            let gaps = f64::from(sequence.generated - 1);
            self.time_per_output_token
                .observe((last - first).as_secs_f64() / gaps);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn length_bounds_follow_the_context() {
        assert_eq!(lengths(32), [1.0, 2.0, 5.0, 10.0, 20.0]);
        assert_eq!(lengths(131_072).last(), Some(&100_000.0));
    }
}
