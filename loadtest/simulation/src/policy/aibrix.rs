//! AIBrix's two autoscalers on a mean over pods, for one pool.
//!
//! ```text
//! APA  r = u/target      r > 1.1 → min(ceil(N·r), ceil(2N))      r < 0.9 → max(ceil(N·r), floor(N/2))
//! KPA  ceil(total over the window ÷ target) in [floor(N/2), ceil(2N)], window 180 s; in panic 60 s and only up
//!      panic when the short window wants twice what is ready, until 60 s have passed without that; down only what 300 s wanted
//! ```
//!
//! u is the share of the KV cache in use (0.5 a unit is the documented example). KPA needs a total: the mean over pods times the pods, which the published
//! code mixes up; here it is the total.

use std::collections::VecDeque;
use std::time::Duration;

use coppice_scaler_plan::ceil_units;

use super::hpa::SYNC;
use crate::scaler::Scaler;
use crate::sight::Sight;

/// Share of the KV cache that a unit is to use, from the documentation's example.
pub const DEFAULT_TARGET: f64 = 0.5;
const TOLERANCE: f64 = 0.1;
const STABLE: Duration = Duration::from_secs(180);
const PANIC: Duration = Duration::from_secs(60);
const PANIC_AT: f64 = 2.0;
const DOWN: Duration = Duration::from_secs(300);

/// The application-specific autoscaler.
#[derive(Debug)]
pub struct Apa {
    target: f64,
}

impl Apa {
    /// The rule for this mean use of a unit's cache.
    #[must_use]
    pub fn new(target: f64) -> Self {
        Self { target }
    }
}

fn apa(units: u32, mean: f64, target: f64) -> u32 {
    let n = f64::from(units);
    let ratio = mean / target;
    if ratio > 1.0 + TOLERANCE {
        ceil_units(n * ratio).min(units.saturating_mul(2))
    } else if ratio < 1.0 - TOLERANCE {
        ceil_units(n * ratio).max(units / 2)
    } else {
        units
    }
}

/// Σ of the KV use, and how many units it is of.
fn use_of_caches(sight: &Sight<'_>) -> Option<(f64, usize)> {
    let units = sight.gauges(0, |unit| unit.kv_usage)?;
    let (sum, count) = units.fold((0.0, 0), |(sum, count), usage| (sum + usage, count + 1));
    (count > 0).then_some((sum, count))
}

impl Scaler for Apa {
    fn period(&self) -> Duration {
        SYNC
    }

    fn decide(&mut self, sight: &Sight<'_>) -> Vec<u32> {
        let current = sight.roles[0].desired;
        let wanted =
            use_of_caches(sight).map(|(sum, count)| apa(current, sum / count as f64, self.target));
        vec![wanted.unwrap_or(current)]
    }
}

/// The Knative-like autoscaler.
#[derive(Debug)]
pub struct Kpa {
    target: f64,
    totals: VecDeque<(Duration, f64)>,
    recommended: VecDeque<(Duration, u32)>,
    /// Since when it panics, by the last moment that asked for it, and the most that was wanted since.
    panic: Option<(Duration, u32)>,
}

impl Kpa {
    /// The rule for this use of a unit's cache.
    #[must_use]
    pub fn new(target: f64) -> Self {
        Self {
            target,
            totals: VecDeque::new(),
            recommended: VecDeque::new(),
            panic: None,
        }
    }

    fn mean(&self, now: Duration, window: Duration) -> f64 {
        let within = || {
            self.totals
                .iter()
                .filter(|(at, _)| now.saturating_sub(*at) < window)
                .map(|(_, total)| total)
        };
        within().sum::<f64>() / (within().count().max(1)) as f64
    }

    /// Units wanted at `now` for a new total, with `current` there and `ready` of them ready.
    fn step(&mut self, now: Duration, total: f64, current: u32, ready: u32) -> u32 {
        self.totals.push_back((now, total));
        self.totals
            .retain(|(at, _)| now.saturating_sub(*at) < STABLE);
        let within = |wanted: u32| wanted.clamp(current / 2, current.saturating_mul(2).max(1));
        let stable = within(ceil_units(self.mean(now, STABLE) / self.target));
        let short = within(ceil_units(self.mean(now, PANIC) / self.target));
        if f64::from(short) >= PANIC_AT * f64::from(ready.max(1)) {
            let most = self.panic.map_or(current, |(_, most)| most);
            self.panic = Some((now, most));
        }
        let mut wanted = stable;
        if let Some((since, most)) = self.panic {
            if now.saturating_sub(since) < PANIC {
                wanted = short.max(most).max(current);
                self.panic = Some((since, wanted));
            } else {
                self.panic = None;
            }
        }
        self.recommended.push_back((now, wanted));
        self.recommended
            .retain(|(at, _)| now.saturating_sub(*at) < DOWN);
        let recent = self.recommended.iter().map(|(_, wanted)| *wanted).max();
        wanted.max(recent.unwrap_or(wanted).min(current))
    }
}

impl Scaler for Kpa {
    fn period(&self) -> Duration {
        SYNC
    }

    fn decide(&mut self, sight: &Sight<'_>) -> Vec<u32> {
        let seen = &sight.roles[0];
        let wanted = use_of_caches(sight)
            .map(|(sum, _)| self.step(sight.now, sum, seen.desired, seen.ready()));
        vec![wanted.unwrap_or(seen.desired)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn apa_by_hand() {
        // r = 1.6: ceil(4·1.6) = 7; r = 3: 12, at most double.
        assert_eq!(apa(4, 0.8, 0.5), 7);
        assert_eq!(apa(4, 1.5, 0.5), 8);
        // r = 1.1 and 0.9 are within the tolerance.
        assert_eq!(apa(4, 0.55, 0.5), 4);
        assert_eq!(apa(4, 0.45, 0.5), 4);
        // r = 0.6: ceil(2.4) = 3; r = 0.1: 1, at least half.
        assert_eq!(apa(4, 0.3, 0.5), 3);
        assert_eq!(apa(4, 0.05, 0.5), 2);
    }

    #[test]
    fn kpa_holds_down_for_five_minutes_and_panics_at_twice_what_is_ready() {
        let second = Duration::from_secs;
        let mut kpa = Kpa::new(0.5);
        assert_eq!(kpa.step(second(0), 1.0, 2, 2), 2);
        // The minute's mean is 2.5: wants 5, at most 4, which is twice what is ready: panic.
        assert_eq!(kpa.step(second(15), 4.0, 2, 2), 4);
        // Panic lasts, and nothing falls meanwhile.
        assert_eq!(kpa.step(second(30), 0.0, 4, 2), 4);
        let mut later = 0;
        for step in 3..=40_u64 {
            later = kpa.step(second(15 * step), 0.0, 4, 4);
            if step * 15 < 315 {
                assert_eq!(later, 4, "{} s", step * 15);
            }
        }
        assert!(later < 4, "{later}");
    }
}
