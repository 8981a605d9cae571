//! Coefficients of a model on a GPU, as measured or modelled.

use serde::Deserialize;

/// One engine's coefficients and limits, as in `profiles/engine_profiles.json`.
///
/// Unit of every time: milliseconds; of every length: tokens. [`crate::StepModel`] says how they combine.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Profile {
    /// Name, as `llama-3.1-8b-fp8_h200_tp1`.
    pub id: String,
    /// Model and number format.
    #[serde(default)]
    pub model: String,
    /// GPU type.
    #[serde(default)]
    pub gpu: String,
    /// GPUs of one replica, `1..`.
    #[serde(default = "one")]
    pub gpus_per_replica: u32,
    /// Steps without a prompt chunk, and prompt chunks where [`Profile::mixed_step`] is absent.
    pub step: StepTimes,
    /// Steps that carry a prompt chunk.
    pub mixed_step: Option<MixedStepTimes>,
    /// Communication between GPUs, added to every step.
    pub tp_comm: Option<CommunicationTimes>,
    /// Added to every step: scheduling and sampling on the host.
    #[serde(default)]
    pub per_step_overhead_ms: f64,
    /// Added to every step for each decoding sequence.
    #[serde(default)]
    pub per_seq_overhead_ms: f64,
    /// Time a request spends before it reaches the scheduler: HTTP, tokenising.
    #[serde(default)]
    pub fixed_ttft_ms: f64,
    /// Tokens the KV cache holds.
    pub kv_capacity_tokens: u64,
    /// Size of one token's KV over all layers, for transfers.
    #[serde(default = "kv_bytes_of_an_8b_model")]
    pub kv_bytes_per_token: u64,
    /// Most sequences in a batch.
    pub max_num_seqs: u32,
    /// Most tokens in a step.
    pub max_num_batched_tokens: u32,
    /// Where the numbers come from, with licence.
    #[serde(default)]
    pub source: String,
}

/// Coefficients of a step; fields as in the profile file.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
pub struct StepTimes {
    /// A step of nothing: reading the weights.
    pub t0_ms: f64,
    /// For each decoding sequence.
    pub per_seq_ms: f64,
    /// For each token in the KV cache that decoding sequences read.
    pub per_kv_token_ms: f64,
    /// For each prompt token beyond the free ones.
    #[serde(default)]
    pub per_prefill_token_ms: f64,
    /// Prompt tokens that ride along while the step waits for weights.
    #[serde(default)]
    pub prefill_free_tokens: f64,
    /// Attention of a chunk of n tokens behind k others, times n(k + n/2).
    #[serde(default)]
    pub attn_ms_per_token2: f64,
    /// A step that touches every expert; absent in dense models.
    #[serde(default)]
    pub moe_ms: f64,
    /// Experts of a layer.
    #[serde(default)]
    pub moe_experts: f64,
    /// Experts a token uses.
    #[serde(default)]
    pub moe_topk: f64,
}

/// Coefficients of a step that carries at least one prompt chunk.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
pub struct MixedStepTimes {
    /// A step of nothing.
    pub t0_ms: f64,
    /// For each token of the step beyond the free ones.
    pub per_token_ms: f64,
    /// Tokens that cost nothing extra.
    pub free_tokens: f64,
    /// For each decoding sequence.
    pub per_seq_ms: f64,
    /// For each token in the KV cache that decoding sequences read.
    pub per_kv_token_ms: f64,
    /// Attention of a chunk of n tokens behind k others, times n(k + n/2).
    pub attn_ms_per_token2: f64,
    /// For each token in front of a chunk.
    pub per_prefix_token_ms: f64,
}

/// Communication of tensor parallelism.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
pub struct CommunicationTimes {
    /// For each step.
    pub t0_ms: f64,
    /// For each token of the step.
    pub per_token_ms: f64,
}

/// A profile that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// The text is neither a profile nor a file of profiles.
    #[error("reading an engine profile")]
    Read(#[source] serde_json::Error),
    /// No built-in profile has this name.
    #[error("no engine profile is named {name:?}; there are {}", known.join(", "))]
    Unknown {
        /// The name asked for.
        name: String,
        /// The names there are.
        known: Vec<String>,
    },
    /// A limit that leaves the engine unable to run anything.
    #[error("engine profile {id}: {field} is {value}, at least {least} is needed")]
    TooSmall {
        /// The profile.
        id: String,
        /// The field.
        field: &'static str,
        /// Its value.
        value: String,
        /// The least that works.
        least: u32,
    },
}

#[derive(Deserialize)]
struct ProfileFile {
    profiles: Vec<Profile>,
}

const BUILT_IN: &str = include_str!("../profiles/engine_profiles.json");

impl Profile {
    /// Every profile that comes with the crate, in the file's order.
    ///
    /// # Panics
    /// Never: a test reads the built-in file.
    #[must_use]
    pub fn built_in() -> Vec<Self> {
        let file: ProfileFile =
            serde_json::from_str(BUILT_IN).expect("the built-in profiles are valid");
        file.profiles
    }

    /// The built-in profile with this name.
    ///
    /// # Errors
    /// [`ProfileError::Unknown`] lists the names.
    pub fn named(name: &str) -> Result<Self, ProfileError> {
        let all = Self::built_in();
        match all.iter().find(|profile| profile.id == name) {
            Some(profile) => Ok(profile.clone()),
            None => Err(ProfileError::Unknown {
                name: name.to_owned(),
                known: all.into_iter().map(|profile| profile.id).collect(),
            }),
        }
    }

    /// Reads one profile from JSON.
    ///
    /// # Errors
    /// [`ProfileError::Read`] for text that is no profile, [`ProfileError::TooSmall`] for limits that cannot work.
    pub fn from_json(text: &str) -> Result<Self, ProfileError> {
        let profile: Self = serde_json::from_str(text).map_err(ProfileError::Read)?;
        profile.check()?;
        Ok(profile)
    }

    fn check(&self) -> Result<(), ProfileError> {
        let refuse = |field, value: String, least| {
            Err(ProfileError::TooSmall {
                id: self.id.clone(),
                field,
                value,
                least,
            })
        };
        let times = [
            ("step.t0_ms", self.step.t0_ms),
            ("step.per_seq_ms", self.step.per_seq_ms),
            ("step.per_kv_token_ms", self.step.per_kv_token_ms),
            ("step.per_prefill_token_ms", self.step.per_prefill_token_ms),
            ("per_step_overhead_ms", self.per_step_overhead_ms),
            ("per_seq_overhead_ms", self.per_seq_overhead_ms),
            ("fixed_ttft_ms", self.fixed_ttft_ms),
        ];
        for (field, value) in times {
            if !(value.is_finite() && value >= 0.0) {
                return refuse(field, value.to_string(), 0);
            }
        }
        if self.kv_capacity_tokens < u64::from(crate::BLOCK_TOKENS) {
            return refuse(
                "kv_capacity_tokens",
                self.kv_capacity_tokens.to_string(),
                crate::BLOCK_TOKENS,
            );
        }
        if self.max_num_seqs == 0 {
            return refuse("max_num_seqs", "0".to_owned(), 1);
        }
        if self.max_num_batched_tokens == 0 {
            return refuse("max_num_batched_tokens", "0".to_owned(), 1);
        }
        Ok(())
    }
}

const fn one() -> u32 {
    1
}

/// 2 (key and value) · 32 layers · 8 KV heads · 128 per head · 2 bytes.
const fn kv_bytes_of_an_8b_model() -> u64 {
    2 * 32 * 8 * 128 * 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_built_in_profile_can_run() {
        let all = Profile::built_in();
        assert_eq!(all.len(), 21);
        for profile in &all {
            profile.check().unwrap();
        }
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_known_ones() {
        let error = Profile::named("llama").unwrap_err().to_string();
        assert!(
            error.contains("\"llama\"") && error.contains("llama-3.1-8b-fp8_h200_tp1"),
            "{error}"
        );
    }

    #[test]
    fn a_limit_of_zero_is_refused_by_name() {
        let text = r#"{"id": "x", "step": {"t0_ms": 1, "per_seq_ms": 0, "per_kv_token_ms": 0},
            "kv_capacity_tokens": 1600, "max_num_seqs": 0, "max_num_batched_tokens": 8}"#;
        let error = Profile::from_json(text).unwrap_err().to_string();
        assert_eq!(
            error,
            "engine profile x: max_num_seqs is 0, at least 1 is needed"
        );
    }
}
