//! A bound that no policy can beat: the GPUs that the work itself needs.

use std::time::Duration;

use coppice_engine::Profile;
use coppice_scaler_plan::{Stage, ceil_units};

use crate::known::Capacity;
use crate::world::{Lengths, Request, Role, World};

/// Work is spread over windows of this length; shorter ones could borrow from the next within the objective.
const WINDOW: Duration = Duration::from_secs(60);

/// GPU-hours without which not every request can be served in time, whatever the policy knows.
///
/// ```text
/// work of a request = per_prefill·n + attn·n²/2 + o·((t0 + overhead)/B* + per_seq + per_kv·(n + o/2))
/// units of a window = max(1, ⌈Σ work / window⌉), and no fewer than the role's minimum
/// ```
///
/// B*: the largest batch at the mean lengths whose step keeps the objective between tokens and whose context fits. Prefill and decode count apart where
/// they are apart. A policy that does not serve every request in time can be cheaper.
#[must_use]
pub fn least_gpu_hours(world: &World, requests: &[Request], duration: Duration) -> f64 {
    let lengths = mean_lengths(requests, world.typical);
    let itl = world.objectives.itl.as_secs_f64();
    let roles = world.roles().iter().map(|role| {
        let capacity = Capacity::of(role, lengths, itl);
        let unit_seconds = unit_seconds(role, capacity, requests, duration);
        unit_seconds * f64::from(role.gpus_per_unit) / 3600.0
    });
    roles.sum()
}

fn unit_seconds(role: &Role, capacity: Capacity, requests: &[Request], duration: Duration) -> f64 {
    let least = f64::from(role.units.min().max(1));
    let mut total = 0.0;
    let mut start = Duration::ZERO;
    let mut rest = requests;
    while start < duration {
        let end = (start + WINDOW).min(duration);
        let inside = rest.partition_point(|request| request.at < end);
        let work: f64 = rest[..inside]
            .iter()
            .map(|request| work(role, capacity, request))
            .sum();
        rest = &rest[inside..];
        let seconds = (end - start).as_secs_f64();
        total += f64::from(ceil_units(work / seconds)).max(least) * seconds;
        start = end;
    }
    total
}

/// Seconds that a request keeps one unit busy at the least.
fn work(role: &Role, capacity: Capacity, request: &Request) -> f64 {
    let cached = request.cached_tokens.min(request.input_tokens - 1);
    let prompt = f64::from(request.input_tokens - cached);
    let output = f64::from(request.output_tokens);
    let prefill = || prefill_ms(&role.profile, prompt) / 1000.0;
    let decode = || {
        let Profile {
            step,
            per_step_overhead_ms,
            per_seq_overhead_ms,
            ..
        } = &role.profile;
        let context = f64::from(request.input_tokens) + output / 2.0;
        let shared = (step.t0_ms + per_step_overhead_ms) / capacity.batch;
        let own = step.per_seq_ms + per_seq_overhead_ms + step.per_kv_token_ms * context;
        output * (shared + own) / 1000.0
    };
    match role.stage {
        Stage::Prefill | Stage::Encode => prefill(),
        Stage::Decode => decode(),
        Stage::Aggregated | Stage::Other => prefill() + decode(),
    }
}

fn prefill_ms(profile: &Profile, prompt: f64) -> f64 {
    let (per_token, attention) = match &profile.mixed_step {
        Some(mixed) => (mixed.per_token_ms, mixed.attn_ms_per_token2),
        None => (
            profile.step.per_prefill_token_ms,
            profile.step.attn_ms_per_token2,
        ),
    };
    per_token * prompt + attention * prompt * prompt / 2.0
}

fn mean_lengths(requests: &[Request], otherwise: Lengths) -> Lengths {
    if requests.is_empty() {
        return otherwise;
    }
    let count = requests.len() as f64;
    let mean = |length: fn(&Request) -> u32| {
        let sum: u64 = requests
            .iter()
            .map(|request| u64::from(length(request)))
            .sum();
        sum as f64 / count
    };
    Lengths {
        input: mean(|request| request.input_tokens),
        output: mean(|request| request.output_tokens),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::testing::{disaggregated, pool};

    fn steady(rate: u32, seconds: u64) -> Vec<Request> {
        let count = u64::from(rate) * seconds;
        (0..count)
            .map(|index| Request {
                at: Duration::from_nanos(index * 1_000_000_000 / u64::from(rate)),
                input_tokens: 1_000,
                output_tokens: 250,
                cached_tokens: 0,
            })
            .collect()
    }

    #[test]
    fn the_bound_is_work_over_time_by_hand() {
        let hour = Duration::from_secs(3_600);
        // Prefill: 14.11 + 0.4919 = 14.60 ms. Decode, ITL 35 ms: B* = 30.62/(0.03948 + 3.009e-5·1125) = 417:
        // 250·(4.38/417 + 0.03948 + 0.033851) = 20.96 ms. 100 a second: 3.556 units, so 4.
        let requests = steady(100, 3_600);
        assert!((least_gpu_hours(&pool(), &requests, hour) - 4.0).abs() < 1e-9);
        // Apart: 1.46 and 2.10 units, so 2 and 3.
        assert!((least_gpu_hours(&disaggregated(), &requests, hour) - 5.0).abs() < 1e-9);
        // Nothing to do costs the minimum.
        assert!((least_gpu_hours(&pool(), &[], hour) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn a_cached_prompt_costs_its_last_token() {
        let hour = Duration::from_secs(3_600);
        let mut requests = steady(100, 3_600);
        for request in &mut requests {
            request.cached_tokens = 2_000;
        }
        // 2.10 units of decode.
        assert!((least_gpu_hours(&pool(), &requests, hour) - 3.0).abs() < 1e-9);
    }
}
