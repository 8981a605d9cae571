//! What whoever sets a policy up knows about a unit: its profile in the law's form, and what it does at given lengths.

use coppice_engine::{Chunk, Profile, StepModel};
use coppice_scaler_plan::{Profile as LawProfile, ProfileError};

use crate::world::{Lengths, Role};

/// A unit's capacity at some lengths, as a benchmark of one unit would find it. Times in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Capacity {
    /// Time of one prompt on an idle engine, without what passes before the engine.
    pub prefill_seconds: f64,
    /// Time to first token on an idle engine.
    pub idle_ttft_seconds: f64,
    /// Prompt tokens per second of an engine that does nothing else.
    pub prefill_tokens_per_second: f64,
    /// Sequences decoded at once within the objective between tokens, `1..`.
    pub batch: f64,
    /// Time of a step of that batch.
    pub step_seconds: f64,
    /// Output tokens per second of that batch.
    pub decode_tokens_per_second: f64,
    /// Requests per second of a unit that does both.
    pub requests_per_second: f64,
}

impl Capacity {
    /// The capacity of a role's unit at `lengths`, with at most `itl_seconds` a token.
    #[must_use]
    pub fn of(role: &Role, lengths: Lengths, itl_seconds: f64) -> Self {
        let model = StepModel::new(&role.profile);
        let prefill_seconds = prefill_seconds(&model, role, lengths.input);
        let context = lengths.input + lengths.output / 2.0;
        let batch = batch(&model, role, context, itl_seconds);
        let step_seconds = model
            .decode(batch, tokens(f64::from(batch) * context))
            .first;
        let decoding = f64::from(batch);
        Self {
            prefill_seconds,
            idle_ttft_seconds: role.profile.fixed_ttft_ms / 1000.0 + prefill_seconds,
            prefill_tokens_per_second: lengths.input / prefill_seconds,
            batch: decoding,
            step_seconds,
            decode_tokens_per_second: decoding / step_seconds,
            requests_per_second: 1.0 / (prefill_seconds + lengths.output * step_seconds / decoding),
        }
    }
}

/// One prompt on an idle engine, in chunks.
fn prefill_seconds(model: &StepModel, role: &Role, input: f64) -> f64 {
    let most = role.engine.max_num_batched_tokens;
    let mut left = u32::try_from(tokens(input)).unwrap_or(u32::MAX).max(1);
    let mut behind = 0;
    let mut seconds = 0.0;
    while left > 0 {
        let chunk = left.min(most);
        let chunks = [Chunk {
            tokens: chunk,
            behind,
        }];
        seconds += model.mixed(0, 0, &chunks);
        behind += chunk;
        left -= chunk;
    }
    seconds
}

/// The largest batch whose step keeps the objective and whose context fits.
fn batch(model: &StepModel, role: &Role, context: f64, itl_seconds: f64) -> u32 {
    let fits = |batch: u32| {
        let context = f64::from(batch) * context;
        context <= role.engine.kv_capacity_tokens as f64
            && model.decode(batch, tokens(context)).first <= itl_seconds
    };
    let mut good = 1;
    let mut bad = role.engine.max_num_seqs.saturating_add(1);
    while bad - good > 1 {
        let middle = good + (bad - good) / 2;
        if fits(middle) {
            good = middle;
        } else {
            bad = middle;
        }
    }
    good
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the cast saturates, and a number of tokens is not negative"
)]
fn tokens(value: f64) -> u64 {
    value.round() as u64
}

/// A profile in the form that the scaling law takes, as the scaler reads it where no fit of a prompt alone is given: a prefill is what the steps of one
/// prompt add up to.
///
/// # Errors
/// When the coefficients describe no engine.
pub fn law_profile(profile: &Profile, hand_over_seconds: f64) -> Result<LawProfile, ProfileError> {
    let comm = profile.tp_comm;
    let (comm_t0, comm_token) = comm.map_or((0.0, 0.0), |comm| (comm.t0_ms, comm.per_token_ms));
    let overhead = profile.per_step_overhead_ms + comm_t0;
    let step = &profile.step;
    let prefill = match &profile.mixed_step {
        Some(mixed) => [
            mixed.t0_ms + overhead,
            mixed.per_token_ms,
            mixed.attn_ms_per_token2,
        ],
        None => [
            step.t0_ms + overhead,
            step.per_prefill_token_ms,
            step.attn_ms_per_token2,
        ],
    };
    LawProfile::new(
        [
            (prefill[0] + profile.fixed_ttft_ms) / 1000.0,
            (prefill[1] + comm_token) / 1000.0,
            prefill[2] / 2.0 / 1000.0,
        ],
        [
            (step.t0_ms + overhead) / 1000.0,
            (step.per_seq_ms + profile.per_seq_overhead_ms + comm_token) / 1000.0,
            step.per_kv_token_ms / 1000.0,
        ],
        profile.kv_capacity_tokens as f64,
        f64::from(profile.max_num_seqs),
        hand_over_seconds,
    )
}
