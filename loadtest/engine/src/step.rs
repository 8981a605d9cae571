//! How long a step takes.

use crate::profile::{CommunicationTimes, MixedStepTimes, Profile, StepTimes};

/// The shortest step, so that a profile of zeros still makes progress in time.
const SHORTEST_SECONDS: f64 = 1e-6;

/// Step durations of one profile.
///
/// With B decoding sequences that hold KV tokens in all, chunks of nᵢ new prompt tokens behind kᵢ that are there already,
/// N = B + Σ nᵢ:
///
/// ```text
/// no chunk         t = t0 + per_seq·B + per_kv·KV
/// chunks           t = t0 + per_seq·B + per_kv·KV + per_prefill·max(0, Σ nᵢ − free) + attn·Σ nᵢ(kᵢ + nᵢ/2)
/// chunks, with m   t = m.t0 + m.per_token·max(0, N − m.free) + m.per_seq·B + m.per_kv·KV
///                      + m.attn·Σ nᵢ(kᵢ + nᵢ/2) + m.per_prefix·Σ kᵢ                          m = the profile's mixed_step
/// experts          t += moe·(1 − (1 − topk/experts)^N)
/// always           t += per_step_overhead + per_seq_overhead·B + comm.t0 + comm.per_token·N
/// ```
#[derive(Debug, Clone)]
pub struct StepModel {
    step: StepTimes,
    mixed: Option<MixedStepTimes>,
    communication: CommunicationTimes,
    per_step_overhead_ms: f64,
    per_seq_overhead_ms: f64,
}

/// Durations of consecutive steps of one batch: first, first + increment, first + 2·increment, …
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Progression {
    /// Seconds of the first step.
    pub first: f64,
    /// Seconds each step takes longer than the one before: every sequence reads one more token.
    pub increment: f64,
}

impl Progression {
    /// Seconds of step `number`, counted from 1.
    #[must_use]
    pub fn step(&self, number: u64) -> f64 {
        self.first + self.increment * (number as f64 - 1.0)
    }

    /// Seconds of the first `steps` steps together.
    #[must_use]
    pub fn total(&self, steps: u64) -> f64 {
        let steps = steps as f64;
        self.first * steps + self.increment * (steps * (steps - 1.0) / 2.0)
    }
}

/// A piece of a prompt worked off in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chunk {
    /// New tokens, `1..`.
    pub tokens: u32,
    /// Tokens of the same sequence that are in the KV cache already.
    pub behind: u32,
}

impl StepModel {
    /// The model of a profile.
    #[must_use]
    pub fn new(profile: &Profile) -> Self {
        Self {
            step: profile.step,
            mixed: profile.mixed_step,
            communication: profile.tp_comm.unwrap_or(CommunicationTimes {
                t0_ms: 0.0,
                per_token_ms: 0.0,
            }),
            per_step_overhead_ms: profile.per_step_overhead_ms,
            per_seq_overhead_ms: profile.per_seq_overhead_ms,
        }
    }

    /// Steps of `batch` decoding sequences that hold `kv_tokens` in the first of them.
    #[must_use]
    pub fn decode(&self, batch: u32, kv_tokens: u64) -> Progression {
        let sequences = f64::from(batch);
        let step = &self.step;
        let first = step.t0_ms
            + step.per_seq_ms * sequences
            + step.per_kv_token_ms * kv_tokens as f64
            + self.every_step_ms(sequences, sequences);
        Progression {
            first: seconds(first).max(SHORTEST_SECONDS),
            increment: seconds(step.per_kv_token_ms * sequences),
        }
    }

    /// Seconds of a step with prompt chunks beside `batch` decoding sequences that hold `kv_tokens`.
    #[must_use]
    pub fn mixed(&self, batch: u32, kv_tokens: u64, chunks: &[Chunk]) -> f64 {
        let sequences = f64::from(batch);
        let mut new = 0.0;
        let mut prefix = 0.0;
        let mut attention = 0.0;
        for chunk in chunks {
            let (tokens, behind) = (f64::from(chunk.tokens), f64::from(chunk.behind));
            new += tokens;
            prefix += behind;
            attention += tokens * (behind + tokens / 2.0);
        }
        let all = sequences + new;
        let own = match &self.mixed {
            Some(mixed) => {
                mixed.t0_ms
                    + mixed.per_token_ms * (all - mixed.free_tokens).max(0.0)
                    + mixed.per_seq_ms * sequences
                    + mixed.per_kv_token_ms * kv_tokens as f64
                    + mixed.attn_ms_per_token2 * attention
                    + mixed.per_prefix_token_ms * prefix
            }
            None => {
                let step = &self.step;
                step.t0_ms
                    + step.per_seq_ms * sequences
                    + step.per_kv_token_ms * kv_tokens as f64
                    + step.per_prefill_token_ms * (new - step.prefill_free_tokens).max(0.0)
                    + step.attn_ms_per_token2 * attention
            }
        };
        seconds(own + self.every_step_ms(sequences, all)).max(SHORTEST_SECONDS)
    }

    fn every_step_ms(&self, sequences: f64, tokens: f64) -> f64 {
        let step = &self.step;
        let experts = if step.moe_experts > 0.0 {
            step.moe_ms * (1.0 - (1.0 - step.moe_topk / step.moe_experts).powf(tokens))
        } else {
            0.0
        };
        experts
            + self.per_step_overhead_ms
            + self.per_seq_overhead_ms * sequences
            + self.communication.t0_ms
            + self.communication.per_token_ms * tokens
    }
}

fn seconds(milliseconds: f64) -> f64 {
    milliseconds / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(name: &str) -> StepModel {
        StepModel::new(&Profile::named(name).unwrap())
    }

    fn close(left: f64, right: f64) {
        assert!(
            (left - right).abs() <= 1e-12 * right.abs().max(1.0),
            "{left} is not {right}"
        );
    }

    #[test]
    fn a_decode_step_is_linear_in_sequences_and_kv() {
        let progression = model("llama-3.1-8b-fp8_h200_tp1").decode(100, 50_000);
        close(
            progression.first,
            (4.38 + 0.03948 * 100.0 + 3.009e-5 * 50_000.0) / 1000.0,
        );
        close(
            progression.step(11),
            progression.first + 10.0 * 100.0 * 3.009e-5 / 1000.0,
        );
        close(
            progression.total(3),
            3.0 * progression.first + 3.0 * progression.increment,
        );
    }

    #[test]
    fn a_chunk_costs_its_tokens_and_its_attention() {
        let chunks = [Chunk {
            tokens: 1000,
            behind: 2000,
        }];
        let seconds = model("llama-3.1-8b-fp8_h200_tp1").mixed(0, 0, &chunks);
        close(
            seconds,
            (4.38 + 0.01411 * 1000.0 + 9.838e-7 * 1000.0 * 2500.0) / 1000.0,
        );
    }

    #[test]
    fn a_measured_mixed_step_replaces_the_plain_form() {
        let chunks = [Chunk {
            tokens: 1000,
            behind: 48,
        }];
        let seconds = model("qwen3-32b-bf16_rtxpro6000_tp2").mixed(8, 4000, &chunks);
        let own = 26.32
            + 0.07529 * (1008.0 - 115.9)
            + 0.02123 * 8.0
            + 0.0003183 * 4000.0
            + 2.92e-6 * 1000.0 * 548.0
            + 0.0009388 * 48.0;
        close(seconds, (own + 6.0 + 0.08 * 1008.0) / 1000.0);
    }

    #[test]
    fn experts_fill_up_with_tokens() {
        let model = model("qwen3-30b-a3b-bf16_h200_tp1_modelled");
        let step = model.step;
        let one = model.decode(1, 0).first;
        let share = 1.0 - (1.0 - step.moe_topk / step.moe_experts);
        close(
            one,
            (step.t0_ms + step.per_seq_ms + step.moe_ms * share + 0.7 + 0.028) / 1000.0,
        );
        assert!(model.decode(64, 0).first > one);
    }

    #[test]
    fn a_profile_of_zeros_still_takes_time() {
        let text = r#"{"id": "x", "step": {"t0_ms": 0, "per_seq_ms": 0, "per_kv_token_ms": 0},
            "kv_capacity_tokens": 1600, "max_num_seqs": 1, "max_num_batched_tokens": 8}"#;
        let model = StepModel::new(&Profile::from_json(text).unwrap());
        assert!(model.decode(1, 1).first > 0.0);
        assert!(
            model.mixed(
                0,
                0,
                &[Chunk {
                    tokens: 1,
                    behind: 0
                }]
            ) > 0.0
        );
    }
}
