//! What one unit can do, read from a ConfigMap: a profile in the form of `engine_profiles.json`, one object of its list.

use coppice_scaler_plan::{Profile, ProfileError};
use serde::Deserialize;

/// A profile as it is written: milliseconds and tokens.
#[derive(Debug, Clone, Deserialize)]
struct Written {
    step: Step,
    #[serde(default)]
    prefill_fit: Option<PrefillFit>,
    #[serde(default)]
    tp_comm: Option<Communication>,
    #[serde(default)]
    fixed_ttft_ms: f64,
    #[serde(default)]
    per_step_overhead_ms: f64,
    #[serde(default)]
    per_seq_overhead_ms: f64,
    kv_capacity_tokens: f64,
    max_num_seqs: f64,
    /// Seconds that handing a KV cache over takes; 0 where nothing is handed over.
    #[serde(default)]
    kv_transfer_ms: f64,
}

#[derive(Debug, Clone, Deserialize)]
struct Step {
    t0_ms: f64,
    per_seq_ms: f64,
    per_kv_token_ms: f64,
    #[serde(default)]
    per_prefill_token_ms: Option<f64>,
    #[serde(default)]
    attn_ms_per_token2: f64,
}

#[derive(Debug, Clone, Deserialize)]
struct PrefillFit {
    a_ms: f64,
    b_ms: f64,
    c_ms: f64,
}

#[derive(Debug, Clone, Deserialize)]
struct Communication {
    t0_ms: f64,
    per_token_ms: f64,
}

/// A text that is no profile.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unreadable {
    /// Not the JSON of a profile.
    #[error(
        "not a profile: {0}; write one object with step, kv_capacity_tokens, max_num_seqs and prefill_fit"
    )]
    Json(#[from] serde_json::Error),
    /// Nothing says how long a prefill takes.
    #[error("neither prefill_fit nor step.per_prefill_token_ms is given: add one of them")]
    NoPrefill,
    /// The coefficients describe no engine.
    #[error(transparent)]
    Coefficients(#[from] ProfileError),
}

/// The profile that `text` describes.
///
/// Prefill: the fit for a prompt alone where there is one, else what the steps of one prompt add up to. Decode: the step, with overheads and the
/// communication of tensor parallelism added.
///
/// # Errors
/// [`Unreadable`], naming the field.
pub(crate) fn parse(text: &str) -> Result<Profile, Unreadable> {
    let written: Written = serde_json::from_str(text)?;
    let communication = written.tp_comm.as_ref().unwrap_or(&Communication {
        t0_ms: 0.0,
        per_token_ms: 0.0,
    });
    let constant = written.step.t0_ms + written.per_step_overhead_ms + communication.t0_ms;
    let per_sequence =
        written.step.per_seq_ms + written.per_seq_overhead_ms + communication.per_token_ms;
    let prefill = match (&written.prefill_fit, written.step.per_prefill_token_ms) {
        (Some(fit), _) => [
            fit.a_ms + written.fixed_ttft_ms_beside(),
            fit.b_ms,
            fit.c_ms,
        ],
        (None, Some(per_token)) => {
            let per_token = per_token + communication.per_token_ms;
            [
                constant + written.fixed_ttft_ms,
                per_token,
                written.step.attn_ms_per_token2 / 2.0,
            ]
        }
        (None, None) => return Err(Unreadable::NoPrefill),
    };
    let seconds = |milliseconds: [f64; 3]| milliseconds.map(|value| value / 1_000.0);
    let step = seconds([constant, per_sequence, written.step.per_kv_token_ms]);
    Ok(Profile::new(
        seconds(prefill),
        step,
        written.kv_capacity_tokens,
        written.max_num_seqs,
        written.kv_transfer_ms / 1_000.0,
    )?)
}

impl Written {
    /// The part of the fixed time to first token that a fit of model time lacks: it is carried as an overhead there and is part of the fit's own
    /// constant where the fit is of measured times.
    fn fixed_ttft_ms_beside(&self) -> f64 {
        if self.per_step_overhead_ms > 0.0 {
            self.fixed_ttft_ms
        } else {
            0.0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEASURED: &str = r#"{"id": "llama-3.1-8b-fp8_h200_tp1", "step": {"t0_ms": 4.38, "per_seq_ms": 0.03948, "per_kv_token_ms": 3.009e-05,
        "per_prefill_token_ms": 0.01411, "prefill_free_tokens": 0, "attn_ms_per_token2": 9.838e-07}, "fixed_ttft_ms": 14.17, "per_step_overhead_ms": 0.0,
        "prefill_fit": {"r2": 0.9977, "a_ms": 18.55, "b_ms": 0.01411, "c_ms": 4.919e-07}, "kv_capacity_tokens": 945029, "max_num_seqs": 1024}"#;

    #[test]
    fn a_published_profile_is_read_with_its_units() {
        let expected = Profile::new(
            [0.01855, 1.411e-5, 4.919e-10],
            [4.38e-3, 3.948e-5, 3.009e-8],
            945_029.0,
            1_024.0,
            0.0,
        )
        .unwrap();
        let read = parse(MEASURED).unwrap();
        assert_eq!(format!("{read:.9?}"), format!("{expected:.9?}"));
    }

    #[test]
    fn without_a_fit_the_steps_stand_in() {
        let mut value: serde_json::Value = serde_json::from_str(MEASURED).unwrap();
        value.as_object_mut().unwrap().remove("prefill_fit");
        parse(&value.to_string()).unwrap();
        value["step"]
            .as_object_mut()
            .unwrap()
            .remove("per_prefill_token_ms");
        assert!(matches!(
            parse(&value.to_string()),
            Err(Unreadable::NoPrefill)
        ));
    }

    #[test]
    fn nonsense_names_the_field() {
        assert!(
            parse("[]")
                .unwrap_err()
                .to_string()
                .contains("not a profile")
        );
        let broken = MEASURED.replace(
            "\"kv_capacity_tokens\": 945029",
            "\"kv_capacity_tokens\": 0",
        );
        assert_eq!(
            parse(&broken).unwrap_err().to_string(),
            "KV capacity is 0: write a finite number above 0"
        );
    }
}
