//! What one unit can do, and how many units a load needs for its objectives.
//!
//! Symbols: λ requests/s, I input tokens, O output tokens, S(I) = a + b·I + c·I² seconds of prefill, τ(B, K) = c0 + c1·B + c2·K seconds of a decode
//! step with B sequences holding K tokens, N units. Lengths are known by their means only, so I and O are taken as exponentially distributed where
//! a second moment is needed.

use crate::policy::Stage;
use crate::units::ceil_units;

/// Squared coefficient of variation assumed of the variable part of a prefill.
const LENGTH_VARIATION: f64 = 1.0;
/// Highest utilisation of a queue.
const BUSIEST: f64 = 0.98;
/// Utilisation aimed at when no number of units meets the objective.
const FALLBACK_UTILISATION: f64 = 0.7;
/// Share of the KV cache that a batch may fill.
const KV_SHARE: f64 = 0.88;
/// Share of the inter-token objective that a mean step may take.
const ITL_SHARE: f64 = 0.93;
/// More units than anyone has.
const MOST_UNITS: u32 = 1 << 20;

/// What one unit can do, as measured or modelled before. Times in seconds, lengths in tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Profile {
    prefill: [f64; 3],
    step: [f64; 3],
    kv_capacity: f64,
    max_sequences: f64,
    hand_over: f64,
}

/// A profile that describes no engine.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{field} is {value}: write a finite number {range}")]
pub struct ProfileError {
    /// Name of the coefficient.
    pub field: &'static str,
    /// Its value.
    pub value: f64,
    /// What it must be.
    pub range: &'static str,
}

impl Profile {
    /// A profile of these coefficients.
    ///
    /// `prefill`: a, b, c of S(I) = a + b·I + c·I². `step`: c0, c1, c2 of τ(B, K) = c0 + c1·B + c2·K. `kv_capacity`: tokens that the KV cache holds.
    /// `max_sequences`: sequences in one batch. `hand_over`: seconds from the end of prefill to the first decode step (KV transfer).
    ///
    /// # Errors
    /// When a coefficient is not finite, below zero, or zero where nothing would take any time or hold anything.
    pub fn new(
        prefill: [f64; 3],
        step: [f64; 3],
        kv_capacity: f64,
        max_sequences: f64,
        hand_over: f64,
    ) -> Result<Self, ProfileError> {
        let named = [
            ("prefill constant", prefill[0], false),
            ("prefill per token", prefill[1], true),
            ("prefill per squared token", prefill[2], false),
            ("step constant", step[0], true),
            ("step per sequence", step[1], false),
            ("step per KV token", step[2], false),
            ("KV capacity", kv_capacity, true),
            ("max sequences", max_sequences, true),
            ("hand-over", hand_over, false),
        ];
        for (field, value, above_zero) in named {
            if !value.is_finite() || value < 0.0 || (above_zero && value <= 0.0) {
                return Err(ProfileError {
                    field,
                    value,
                    range: if above_zero {
                        "above 0"
                    } else {
                        "of at least 0"
                    },
                });
            }
        }
        Ok(Self {
            prefill,
            step,
            kv_capacity,
            max_sequences,
            hand_over,
        })
    }

    /// S(I).
    fn prefill_seconds(&self, input: f64) -> f64 {
        self.prefill[0] + self.prefill[1] * input + self.prefill[2] * input * input
    }

    /// Input tokens per second of a unit that does nothing but prefill at this length: V_P.
    pub(crate) fn prefill_rate(&self, input: f64) -> f64 {
        let tokens = input.max(1.0);
        tokens / (self.prefill[1] * tokens + self.prefill[2] * tokens * tokens)
    }

    /// Input tokens per second of a unit that prefills and decodes these requests, batches as large as cache and engine allow. More cannot be had,
    /// whatever the objectives are.
    pub(crate) fn combined_rate(&self, input: f64, output: f64) -> f64 {
        let context = (input + output).max(1.0);
        let batch = self
            .max_sequences
            .min(KV_SHARE * self.kv_capacity / context)
            .max(1.0);
        let decoding = output * self.step_seconds(batch, context) / batch;
        let tokens = input.max(1.0);
        tokens / (tokens / self.prefill_rate(input) + decoding)
    }

    fn step_seconds(&self, batch: f64, context: f64) -> f64 {
        self.step[0] + self.step[1] * batch + self.step[2] * batch * context
    }

    /// B*: sequences that one unit decodes at once within `itl` seconds a token.
    pub(crate) fn batch(&self, itl: f64, context: f64) -> f64 {
        let by_time = (ITL_SHARE * itl - self.step[0])
            / (self.step[1] + self.step[2] * context).max(f64::MIN_POSITIVE);
        self.max_sequences
            .min(KV_SHARE * self.kv_capacity / context.max(1.0))
            .min(by_time)
    }
}

/// The load of a request stream at the horizon.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Stream {
    /// λ.
    pub(crate) requests: f64,
    /// Mean I.
    pub(crate) input: f64,
    /// Mean O.
    pub(crate) output: f64,
    /// Ca²: variance over mean of the arrivals of a bin.
    pub(crate) burstiness: f64,
}

impl Stream {
    /// The same stream with a share of the requests.
    pub(crate) fn scaled(self, share: f64) -> Self {
        Self {
            requests: self.requests * share,
            ..self
        }
    }

    /// c̄: mean context of a sequence met in a decode batch, length-biased: E[O(I + O/2)] ÷ E[O] with O exponential.
    fn context(&self) -> f64 {
        self.input + self.output
    }
}

/// An objective for the time to first token, at the mean length and at the tail.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct FirstToken {
    pub(crate) share: f64,
    pub(crate) target: f64,
    pub(crate) per_input_token: f64,
}

/// A number of units, and whether it meets the objective.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Need {
    pub(crate) units: f64,
    pub(crate) feasible: bool,
}

/// A prefill queue whose service may be slowed: its mean service time, its tail, and the objective left for waiting.
struct Queue {
    service: f64,
    variation: f64,
    slack: f64,
    share: f64,
}

impl Queue {
    fn new(profile: &Profile, stream: Stream, objective: FirstToken, slowdown: f64) -> Self {
        let service = profile.prefill_seconds(stream.input) * slowdown;
        let variable = (service - profile.prefill[0] * slowdown).max(0.0);
        let deviation = LENGTH_VARIATION.sqrt() * variable / service.max(f64::MIN_POSITIVE);
        let tail = 1.0 + normal_quantile(objective.share) * deviation;
        let allowed = objective.target + objective.per_input_token * stream.input * tail;
        Self {
            service,
            variation: deviation * deviation,
            slack: allowed - service * tail - profile.hand_over,
            share: objective.share,
        }
    }

    /// Whether `units` keep the wait within the slack: multi-server queue with general arrivals and service.
    fn meets(&self, units: f64, stream: Stream) -> bool {
        let busy = stream.requests * self.service / units;
        if busy >= BUSIEST {
            return false;
        }
        let waits = busy.powf((2.0 * (units + 1.0)).sqrt() - 1.0);
        let tail = 1.0 - self.share;
        if waits <= tail {
            return true;
        }
        let mean_of_waiting =
            (stream.burstiness + self.variation) / 2.0 * self.service / (units * (1.0 - busy));
        mean_of_waiting * (waits / tail).ln() <= self.slack
    }
}

/// N_flow of prefill: the least N whose wait stays within what the objective leaves.
pub(crate) fn prefill(profile: &Profile, stream: Stream, objective: FirstToken) -> Need {
    let queue = Queue::new(profile, stream, objective, 1.0);
    if queue.slack <= 0.0 {
        return Need {
            units: stream.requests * queue.service / FALLBACK_UTILISATION,
            feasible: false,
        };
    }
    least(|units| queue.meets(units, stream))
}

/// N_flow of decode: sequences in flight, with room for bursts, over what one unit decodes at once.
pub(crate) fn decode(profile: &Profile, stream: Stream, itl: f64) -> Need {
    let context = stream.context();
    let batch = profile.batch(itl, context);
    if batch < 1.0 {
        let alone = stream.output * profile.step_seconds(1.0, context);
        return Need {
            units: stream.requests * alone / FALLBACK_UTILISATION,
            feasible: false,
        };
    }
    let in_flight = stream.requests * residence(profile, stream, itl);
    Need {
        units: (in_flight + (in_flight * stream.burstiness.max(1.0)).sqrt()) / batch,
        feasible: true,
    }
}

/// Units that are busy all the time with this stream, whatever anyone waits: what it takes not to fall behind. Decode keeps its objective all the same.
pub(crate) fn busy(profile: &Profile, stage: Stage, stream: Stream, itl: Option<f64>) -> f64 {
    match (stage, itl) {
        (Stage::Decode, Some(itl)) => {
            let batch = profile.batch(itl, stream.context()).max(1.0);
            stream.requests * residence(profile, stream, itl) / batch
        }
        (Stage::Aggregated, _) => {
            stream.requests * stream.input / profile.combined_rate(stream.input, stream.output)
        }
        _ => stream.requests * profile.prefill_seconds(stream.input),
    }
}

/// R: seconds that a request spends in decode when batches are full.
pub(crate) fn residence(profile: &Profile, stream: Stream, itl: f64) -> f64 {
    let context = stream.context();
    stream.output * profile.step_seconds(profile.batch(itl, context).max(1.0), context)
}

/// N_flow of units that do both: the least N at which prefill takes a share of the steps and what is left decodes in time, and the first token
/// waits no longer than it may.
pub(crate) fn aggregated(profile: &Profile, stream: Stream, first: FirstToken, itl: f64) -> Need {
    let work = stream.requests * profile.prefill_seconds(stream.input);
    let context = stream.context();
    let alone = profile.step_seconds(1.0, context);
    if Queue::new(profile, stream, first, 1.0).slack <= 0.0 || ITL_SHARE * itl < alone {
        let work = work + stream.requests * stream.output * alone;
        return Need {
            units: work / FALLBACK_UTILISATION,
            feasible: false,
        };
    }
    least(|units| {
        let prefilling = work / units;
        if prefilling >= BUSIEST {
            return false;
        }
        let left = 1.0 - prefilling;
        let batch = profile.batch(itl * left, context);
        let in_flight =
            stream.requests * stream.output * profile.step_seconds(batch.max(1.0), context)
                / left
                / units;
        batch >= 1.0
            && in_flight + in_flight.sqrt() <= batch
            && Queue::new(profile, stream, first, 1.0).meets(units, stream)
    })
}

/// The least whole number of units for which `enough` holds; it must hold from some number on.
fn least(enough: impl Fn(f64) -> bool) -> Need {
    let mut most = 1;
    while !enough(f64::from(most)) {
        if most >= MOST_UNITS {
            return Need {
                units: f64::from(MOST_UNITS),
                feasible: false,
            };
        }
        most *= 2;
    }
    let mut short = most / 2;
    while most - short > 1 {
        let middle = short + (most - short) / 2;
        if enough(f64::from(middle)) {
            most = middle;
        } else {
            short = middle;
        }
    }
    Need {
        units: f64::from(most),
        feasible: true,
    }
}

/// Whole units of a need; none for no load.
pub(crate) fn whole(need: f64, stream: Stream) -> u32 {
    if stream.requests > 0.0 {
        ceil_units(need)
    } else {
        0
    }
}

/// Quantile of the standard normal distribution for a share above one half, to about 0.0005 (Abramowitz and Stegun 26.2.23).
fn normal_quantile(share: f64) -> f64 {
    let t = (-2.0 * (1.0 - share).max(1e-12).ln()).sqrt();
    let numerator = 2.515_517 + t * (0.802_853 + t * 0.010_328);
    let denominator = 1.0 + t * (1.432_788 + t * (0.189_269 + t * 0.001_308));
    (t - numerator / denominator).max(0.0)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// An 8B model on one H200, as published for it.
    pub(crate) fn h200() -> Profile {
        Profile::new(
            [0.018_55, 1.411e-5, 4.919e-10],
            [4.38e-3, 3.948e-5, 3.009e-8],
            945_029.0,
            1_024.0,
            0.0,
        )
        .unwrap()
    }

    fn stream(requests: f64) -> Stream {
        Stream {
            requests,
            input: 8_000.0,
            output: 1_000.0,
            burstiness: 1.5,
        }
    }

    const FIRST: FirstToken = FirstToken {
        share: 0.95,
        target: 3.0,
        per_input_token: 0.0,
    };

    #[test]
    fn normal_quantiles_are_those_of_the_tables() {
        for (share, z) in [(0.5, 0.0), (0.9, 1.2816), (0.95, 1.6449), (0.99, 2.3263)] {
            assert!((normal_quantile(share) - z).abs() < 1e-3, "{share}");
        }
    }

    #[test]
    fn needs_grow_with_the_load_and_never_fall() {
        let profile = h200();
        let needs = |requests: f64| {
            let stream = stream(requests);
            [
                prefill(&profile, stream, FIRST).units,
                decode(&profile, stream, 0.035).units,
                aggregated(&profile, stream, FIRST, 0.035).units,
            ]
        };
        let mut before = needs(0.1);
        for step in 2..400_u32 {
            let now = needs(f64::from(step) * 0.1);
            for (now, before) in now.iter().zip(before) {
                assert!(*now >= before, "{now} after {before} at {step}");
            }
            before = now;
        }
        assert!(
            before[0] >= 7.0,
            "40 requests/s of 8,000 tokens are 6.5 units of pure prefill: {before:?}"
        );
    }

    #[test]
    fn prefill_keeps_utilisation_below_one_and_waits_short() {
        let tight = FirstToken {
            target: 0.45,
            ..FIRST
        };
        let loose = prefill(&h200(), stream(20.0), FIRST);
        let short = prefill(&h200(), stream(20.0), tight);
        assert!(loose.feasible && short.feasible);
        assert!(short.units > loose.units, "{short:?} {loose:?}");
        assert!(20.0 * h200().prefill_seconds(8_000.0) / loose.units < BUSIEST);
    }

    #[test]
    fn an_objective_below_the_service_time_is_infeasible_and_sized_by_utilisation() {
        let need = prefill(
            &h200(),
            stream(20.0),
            FirstToken {
                target: 0.05,
                ..FIRST
            },
        );
        assert!(!need.feasible);
        assert!((need.units - 20.0 * h200().prefill_seconds(8_000.0) / 0.7).abs() < 1e-9);
        assert!(!decode(&h200(), stream(20.0), 0.001).feasible);
        assert!(!aggregated(&h200(), stream(20.0), FIRST, 0.001).feasible);
    }

    #[test]
    fn a_batch_is_bounded_by_time_cache_and_sequences() {
        let profile = h200();
        assert!((profile.batch(1e9, 10.0) - 1_024.0).abs() < 1e-9);
        assert!((profile.batch(1e9, 9_000.0) - 0.88 * 945_029.0 / 9_000.0).abs() < 1e-9);
        let batch = profile.batch(0.02, 9_000.0);
        assert!(profile.step_seconds(batch, 9_000.0) <= 0.02);
    }

    #[test]
    fn a_profile_of_nonsense_is_refused_by_name() {
        let error = Profile::new([0.0, 0.0, 0.0], [1.0, 0.0, 0.0], 1.0, 1.0, 0.0).unwrap_err();
        assert_eq!(
            error.to_string(),
            "prefill per token is 0: write a finite number above 0"
        );
        assert!(Profile::new([0.0, 1.0, 0.0], [f64::NAN, 0.0, 0.0], 1.0, 1.0, 0.0).is_err());
    }
}
