//! Policies under test: our own law and published rules of others.

pub mod aibrix;
pub mod behavior;
pub mod coordinated;
pub mod coppice;
pub mod disaggregated;
pub mod dynamo;
pub mod fixed;
pub mod hpa;
pub mod slo_aware;
mod spec;
pub mod token_aware;
pub mod wva;

#[cfg(test)]
pub(crate) mod testing;

pub use spec::{OF_ONE_POOL, OF_PREFILL_AND_DECODE, Spec, SpecError};

use crate::sight::Sight;
use behavior::Stabiliser;

/// Each role's recommendation through its HPA; a role without one is held.
fn settled(roles: &mut [Stabiliser], sight: &Sight<'_>, recommended: &[Option<u32>]) -> Vec<u32> {
    roles
        .iter_mut()
        .zip(recommended)
        .enumerate()
        .map(|(role, (stabiliser, recommended))| {
            let current = sight.roles[role].desired;
            let units = sight.world.roles()[role].units;
            recommended.map_or(current, |recommended| {
                stabiliser.settle(sight.now, current, recommended, (units.min(), units.max()))
            })
        })
        .collect()
}
