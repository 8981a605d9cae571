//! Limits and switches of an engine.

use std::time::Duration;

use crate::profile::Profile;

/// Limits and switches; [`Settings::of`] takes a profile's.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Most sequences in a batch, `1..`.
    pub max_num_seqs: u32,
    /// Most tokens in a step, `1..`.
    pub max_num_batched_tokens: u32,
    /// Most tokens of prompt and output together, `2..`.
    pub max_model_len: u32,
    /// Tokens the KV cache holds; whole blocks count.
    pub kv_capacity_tokens: u64,
    /// Admit a request only while its whole prompt fits the free blocks, though only a chunk is taken.
    pub reserve_full_prompt: bool,
    /// Moving a prompt's KV from another engine.
    pub transfer: Transfer,
    /// How long kept KV waits to be fetched. vLLM's NIXL connector: 480 s.
    pub kept_kv_expires_after: Duration,
    /// Standard deviation of a step's duration relative to the model's, 0 for none. With noise every step is drawn, none jumped.
    pub noise: f64,
    /// Seed of the noise.
    pub seed: u64,
    /// Which events are reported.
    pub detail: Detail,
}

/// How KV travels between engines: `set_up + tokens · bytes per token / bandwidth`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Transfer {
    /// Before the first byte.
    pub set_up: Duration,
    /// Size of a token's KV.
    pub bytes_per_token: u64,
    /// Effective bandwidth, above 0.
    pub bytes_per_second: f64,
}

/// Which events are reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    /// Every token, for a server that streams; each step is an event.
    Tokens,
    /// First tokens and ends only, for simulation; steps in between are jumped.
    Milestones,
}

/// 400G InfiniBand after protocol, from the profile data's notes.
const DEFAULT_BYTES_PER_SECOND: f64 = 40e9;

impl Settings {
    /// A profile's limits, a context of up to 128 Ki tokens, KV over 400G InfiniBand, no noise, milestones only.
    #[must_use]
    pub fn of(profile: &Profile) -> Self {
        Self {
            max_num_seqs: profile.max_num_seqs,
            max_num_batched_tokens: profile.max_num_batched_tokens,
            max_model_len: u32::try_from(profile.kv_capacity_tokens)
                .unwrap_or(u32::MAX)
                .min(131_072),
            kv_capacity_tokens: profile.kv_capacity_tokens,
            reserve_full_prompt: false,
            transfer: Transfer {
                set_up: Duration::from_millis(1),
                bytes_per_token: profile.kv_bytes_per_token,
                bytes_per_second: DEFAULT_BYTES_PER_SECOND,
            },
            kept_kv_expires_after: Duration::from_secs(480),
            noise: 0.0,
            seed: 0,
            detail: Detail::Milestones,
        }
    }
}

impl Transfer {
    /// How long the KV of `tokens` takes.
    #[must_use]
    pub fn time(&self, tokens: u32) -> Duration {
        let bytes = self.bytes_per_token as f64 * f64::from(tokens);
        let seconds = bytes / self.bytes_per_second;
        self.set_up + Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX / 2)
    }
}
