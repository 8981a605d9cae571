//! What has to hold before a run.

use crate::scaler::Scaler;
use crate::world::{Request, World};

/// A run that cannot be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The schedule goes back in time.
    #[error("request {index} comes before the one in front of it: sort the requests by time")]
    Unsorted {
        /// Position from 0.
        index: usize,
    },
    /// More requests than a run holds.
    #[error("the schedule holds {count} requests, a run at most {most}: take a window of it")]
    TooMany {
        /// How many there are.
        count: usize,
        /// The most.
        most: u32,
    },
    /// The policy starts with units that the world does not allow.
    #[error("the policy starts with {units:?} units: {reason}")]
    Initial {
        /// Units by role.
        units: Vec<u32>,
        /// What is wrong and what to do.
        reason: String,
    },
    /// The policy never decides, or decides without end.
    #[error("the policy's period is 0: give a time above 0")]
    Period,
}

/// Refuses a schedule that no run can take.
pub(crate) fn check(requests: &[Request]) -> Result<(), RunError> {
    // The last number stands for nobody.
    if u32::try_from(requests.len()).is_ok_and(|count| count < u32::MAX) {
        match requests.windows(2).position(|pair| pair[0].at > pair[1].at) {
            Some(index) => Err(RunError::Unsorted { index: index + 1 }),
            None => Ok(()),
        }
    } else {
        Err(RunError::TooMany {
            count: requests.len(),
            most: u32::MAX - 1,
        })
    }
}

/// The units of each role that a run begins with.
pub(crate) fn initial(world: &World, scaler: &dyn Scaler) -> Result<Vec<u32>, RunError> {
    let own: Vec<u32> = world.roles().iter().map(|role| role.initial).collect();
    let Some(units) = scaler.initial() else {
        return Ok(own);
    };
    let refuse = |reason: String| {
        Err(RunError::Initial {
            units: units.clone(),
            reason,
        })
    };
    if units.len() != own.len() {
        return refuse(format!(
            "there are {} roles, give each its number",
            own.len()
        ));
    }
    let roles = || world.roles().iter().zip(&units);
    if let Some((role, _)) = roles().find(|(role, units)| role.units.clamp(**units) != **units) {
        return refuse(format!(
            "role {:?} has {} to {}",
            role.name,
            role.units.min(),
            role.units.max()
        ));
    }
    let gpus: u64 = roles()
        .map(|(role, units)| u64::from(role.gpus_per_unit) * u64::from(*units))
        .sum();
    if let Some(there) = world.cluster_gpus.filter(|there| u64::from(*there) < gpus) {
        return refuse(format!("they hold {gpus} GPUs, the cluster has {there}"));
    }
    Ok(units)
}
