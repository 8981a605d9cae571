//! Two published ways to keep roles in step, each over the same HPA-like recommendation: [`Source::Throughput`].
//!
//! Kthena: a recommendation with a tolerance of a tenth; panic while it is at least twice what is there, for 60 s, in which nothing falls and a role may
//! grow to eleven times what it had; then a band for prefill : decode.
//!
//! ```text
//! n/d < lo → n = ceil(lo·d), saturated: lower d      n/d > hi → d = ceil(n/hi), saturated: lower n      one side 0 → 1; (0, 0) is kept
//! ```
//!
//! The band is half to twice the ratio that the typical lengths ask for. Kthena's own choice of metrics is left out.
//!
//! RBG (RoleBasedGroup): roles grow together. Downs are immediate.
//!
//! ```text
//! progress = current/desired      allowed = min progress + skew      target = max(current + 1, ceil(allowed·desired))
//! ```
//!
//! once everything that was created is scheduled. RBG coordinates what others decide; here an HPA with default behaviour does.

use std::time::Duration;

use coppice_scaler_plan::{Bounds, ceil_units};

use super::behavior::{Behavior, Stabiliser};
use super::disaggregated::ratio_of;
use super::hpa::{Hpa, SYNC, Source};
use crate::scaler::Scaler;
use crate::sight::Sight;
use crate::world::World;

const PANIC_AT: u32 = 2;
const PANIC: Duration = Duration::from_secs(60);
const PANIC_GROWTH: u32 = 11;
/// Lead that one role may have before the slowest.
const SKEW: f64 = 0.1;

/// Kthena's autoscaler for prefill and decode.
#[derive(Debug)]
pub struct Kthena {
    inner: Hpa,
    roles: Vec<Stabiliser>,
    /// When each role last had a reason to panic.
    panic: Vec<Option<Duration>>,
    band: (f64, f64),
}

impl Kthena {
    /// The rule with `share` of a unit's capacity to be used.
    #[must_use]
    pub fn new(world: &World, share: f64) -> Self {
        let ratio = ratio_of(world);
        let roles = world.roles().len();
        Self {
            inner: Hpa::new(world, Source::Throughput { share }),
            roles: vec![Stabiliser::new(Behavior::default()); roles],
            panic: vec![None; roles],
            band: (ratio / 2.0, ratio * 2.0),
        }
    }
}

/// (n, d) brought into the band.
fn within_band(units: (u32, u32), band: (f64, f64), bounds: (Bounds, Bounds)) -> (u32, u32) {
    let (low, high) = band;
    let (n, d) = match units {
        (0, 0) => return (0, 0),
        (n, d) => (n.max(1), d.max(1)),
    };
    let ratio = f64::from(n) / f64::from(d);
    if ratio < low {
        let wanted = ceil_units(low * f64::from(d));
        if wanted <= bounds.0.max() {
            return (wanted, d);
        }
        let most = bounds.0.max();
        return (most, floor(f64::from(most) / low).max(1));
    }
    if ratio > high {
        let wanted = ceil_units(f64::from(n) / high);
        if wanted <= bounds.1.max() {
            return (n, wanted);
        }
        let most = bounds.1.max();
        return (floor(f64::from(most) * high).max(1), most);
    }
    (n, d)
}

fn floor(units: f64) -> u32 {
    ceil_units(units.floor())
}

impl Scaler for Kthena {
    fn period(&self) -> Duration {
        SYNC
    }

    fn decide(&mut self, sight: &Sight<'_>) -> Vec<u32> {
        let recommended = self.inner.recommended(sight);
        let mut wanted = super::settled(&mut self.roles, sight, &recommended);
        for (role, wanted) in wanted.iter_mut().enumerate() {
            let current = sight.roles[role].desired;
            let Some(recommended) = recommended[role] else {
                continue;
            };
            if recommended >= PANIC_AT * current.max(1) {
                self.panic[role] = Some(sight.now);
            }
            let panics =
                self.panic[role].is_some_and(|since| sight.now.saturating_sub(since) < PANIC);
            if panics {
                let most = current.max(1).saturating_mul(PANIC_GROWTH);
                *wanted = recommended.min(most).max(current);
            }
        }
        let roles = sight.world.roles();
        let bounds = (roles[0].units, roles[1].units);
        let (prefill, decode) = within_band((wanted[0], wanted[1]), self.band, bounds);
        vec![prefill, decode]
    }
}

/// An HPA whose roles grow in step.
#[derive(Debug)]
pub struct Rbg {
    inner: Hpa,
    roles: Vec<Stabiliser>,
    /// What the HPA wants of each role.
    desired: Vec<u32>,
}

impl Rbg {
    /// The rule with `share` of a unit's capacity to be used.
    #[must_use]
    pub fn new(world: &World, share: f64) -> Self {
        Self {
            inner: Hpa::new(world, Source::Throughput { share }),
            roles: vec![Stabiliser::new(Behavior::default()); world.roles().len()],
            desired: world.roles().iter().map(|role| role.initial).collect(),
        }
    }
}

/// Units of each role on the way from `current` to `desired`.
fn in_step(current: &[u32], desired: &[u32], all_scheduled: bool) -> Vec<u32> {
    let progress = |(current, desired): (&u32, &u32)| {
        if *desired == 0 {
            1.0
        } else {
            f64::from(*current) / f64::from(*desired)
        }
    };
    let slowest = current
        .iter()
        .zip(desired)
        .map(progress)
        .fold(1.0, f64::min);
    let allowed = slowest + SKEW;
    current
        .iter()
        .zip(desired)
        .map(|(current, desired)| {
            if desired <= current {
                *desired
            } else if all_scheduled {
                ceil_units(allowed * f64::from(*desired))
                    .max(current + 1)
                    .min(*desired)
            } else {
                *current
            }
        })
        .collect()
}

impl Scaler for Rbg {
    fn period(&self) -> Duration {
        SYNC
    }

    fn decide(&mut self, sight: &Sight<'_>) -> Vec<u32> {
        let recommended = self.inner.recommended(sight);
        for (role, recommended) in recommended.iter().enumerate() {
            if let Some(recommended) = recommended {
                // The HPA's target is the group's role, which has what was asked for last.
                let units = sight.world.roles()[role].units;
                let bounds = (units.min(), units.max());
                self.desired[role] =
                    self.roles[role].settle(sight.now, self.desired[role], *recommended, bounds);
            }
        }
        let current: Vec<u32> = sight.roles.iter().map(|role| role.desired).collect();
        let units = sight.roles.iter().flat_map(|role| &role.units);
        let all_scheduled = units
            .filter(|unit| !unit.leaving)
            .all(|unit| unit.bound.is_some());
        in_step(&current, &self.desired, all_scheduled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kthenas_band_by_hand() {
        let bounds = |n, d| (Bounds::new(1, n).unwrap(), Bounds::new(1, d).unwrap());
        let wide = bounds(20, 20);
        let band = (0.5, 2.0);
        assert_eq!(within_band((3, 4), band, wide), (3, 4));
        // 1/4 < 0.5: ceil(0.5·4) = 2.
        assert_eq!(within_band((1, 4), band, wide), (2, 4));
        // 9/2 > 2: ceil(9/2) = 5.
        assert_eq!(within_band((9, 2), band, wide), (9, 5));
        // Saturated: with at most 3 prefill units, 10 decode units become 6.
        assert_eq!(within_band((1, 10), band, bounds(3, 20)), (3, 6));
        // With at most 2 decode units, 9 prefill units become 4.
        assert_eq!(within_band((9, 1), band, bounds(20, 2)), (4, 2));
        assert_eq!(within_band((0, 0), band, wide), (0, 0));
        assert_eq!(within_band((0, 1), band, wide), (1, 1));
    }

    #[test]
    fn rbgs_roles_grow_in_step_by_hand() {
        // Progress 0.2 and 0.5: allowed 0.3: ceil(0.3·10) = 3, and decode takes the one step that is always allowed.
        assert_eq!(in_step(&[2, 5], &[10, 10], true), [3, 6]);
        // Progress 0.5 and 0.5: allowed 0.6.
        assert_eq!(in_step(&[5, 10], &[10, 20], true), [6, 12]);
        // Something is not scheduled: growth waits, going down does not.
        assert_eq!(in_step(&[5, 10], &[10, 4], false), [5, 4]);
        assert_eq!(in_step(&[9, 3], &[10, 3], true), [10, 3]);
    }
}
