//! How long a pod takes to become ready. Pure and repeatable.

use std::time::Duration;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, LogNormal};

use super::settings::Startup;

/// The delay of one start: log-normal around `median` (the pod's own or the fleet's), multiplied by `factor`.
///
/// `who` is the pod's stable name (its hostname where it has one) and `start` counts its starts, so that a run with the
/// same seed sees the same delays, in whatever order pods arrive.
pub(super) fn delay(
    settings: Startup,
    median: Option<Duration>,
    factor: f64,
    who: &str,
    start: u32,
) -> Duration {
    let median = median.unwrap_or(settings.median).as_secs_f64() * factor.max(0.0);
    if median <= 0.0 {
        return Duration::ZERO;
    }
    let mut random = ChaCha8Rng::seed_from_u64(settings.seed ^ hash(who, start));
    let seconds = match LogNormal::new(median.ln(), settings.spread.max(0.0)) {
        Ok(distribution) => distribution.sample(&mut random),
        // The spread is not a number.
        Err(_) => median,
    };
    // A day is forever here; it keeps an absurd spread inside what a Duration can hold.
    Duration::from_secs_f64(seconds.min(86_400.0))
}

/// FNV-1a; the standard library's hasher does not promise the same value tomorrow.
fn hash(who: &str, start: u32) -> u64 {
    who.bytes()
        .chain(start.to_le_bytes())
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(spread: f64) -> Startup {
        Startup {
            median: Duration::from_secs(20),
            spread,
            seed: 7,
        }
    }

    #[test]
    fn without_spread_every_start_takes_the_median_times_the_factor() {
        assert_eq!(
            delay(settings(0.0), None, 1.0, "a", 0),
            Duration::from_secs(20)
        );
        assert_eq!(
            delay(settings(0.0), Some(Duration::from_secs(3)), 2.0, "a", 0),
            Duration::from_secs(6)
        );
        assert_eq!(
            delay(settings(0.0), Some(Duration::ZERO), 5.0, "a", 0),
            Duration::ZERO
        );
    }

    #[test]
    fn delays_repeat_and_differ_by_pod_and_by_start() {
        let of = |who, start| delay(settings(0.25), None, 1.0, who, start);
        assert_eq!(of("a", 0), of("a", 0));
        assert_ne!(of("a", 0), of("b", 0));
        assert_ne!(of("a", 0), of("a", 1));
    }

    #[test]
    fn half_of_the_delays_are_below_the_median_and_two_thirds_near_it() {
        let mut delays: Vec<_> = (0..2000)
            .map(|i| delay(settings(0.25), None, 1.0, &format!("pod-{i}"), 0).as_secs_f64())
            .collect();
        delays.sort_by(f64::total_cmp);
        assert!((delays[1000] - 20.0).abs() < 0.7, "median {}", delays[1000]);
        let near = delays
            .iter()
            .filter(|delay| (20.0 / 1.284..20.0 * 1.284).contains(*delay))
            .count();
        assert!(
            (1280..1450).contains(&near),
            "{near} of 2000 within one standard deviation, want about 1366"
        );
    }
}
