//! Status of one PodGang.

use std::collections::BTreeMap;

use crate::gang::Gang;
use crate::ids::CliqueId;
use crate::observed::{Replica, count};

/// How far a gang has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Its floor is not bound.
    Pending,
    /// Its floor is bound and not all ready.
    Starting,
    /// Its floor is ready.
    Running,
}

/// Status of one PodGang.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GangStatus {
    /// Every pod that is wanted exists.
    pub is_complete: bool,
    /// Pods of the floor that are bound, over all cliques.
    pub scheduled: u32,
    /// Pods of the floor that are ready, over all cliques.
    pub ready: u32,
    /// Pods of the floor.
    pub floor: u32,
}

impl GangStatus {
    /// The floor is bound.
    #[must_use]
    pub fn is_scheduled(&self) -> bool {
        self.scheduled >= self.floor
    }

    /// The floor is ready.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.is_scheduled() && self.ready >= self.floor
    }

    /// Derived from the counts, so it cannot disagree with them.
    #[must_use]
    pub fn phase(&self) -> Phase {
        match (self.is_scheduled(), self.is_ready()) {
            (false, _) => Phase::Pending,
            (true, false) => Phase::Starting,
            (true, true) => Phase::Running,
        }
    }
}

/// Counts. `effective` gives the number of pods each clique should have.
#[must_use]
pub fn status(gang: &Gang, replica: &Replica, effective: &BTreeMap<CliqueId, u32>) -> GangStatus {
    let mut status = GangStatus {
        is_complete: true,
        scheduled: 0,
        ready: 0,
        floor: 0,
    };
    for member in &gang.members {
        let wanted = effective.get(&member.clique).copied().unwrap_or(member.min);
        status.floor += member.min;
        let Some(clique) = replica.cliques.get(&member.clique) else {
            status.is_complete = false;
            continue;
        };
        status.is_complete &= count(clique.active()) >= wanted;
        status.scheduled += clique.scheduled().min(member.min);
        status.ready += clique.ready().min(member.min);
    }
    status
}

/// Whether the gang's floor is bound: what scaled gangs wait for.
#[must_use]
pub fn is_floor_scheduled(gang: &Gang, replica: &Replica) -> bool {
    gang.members.iter().all(|member| {
        let clique = replica.cliques.get(&member.clique);
        clique.is_some_and(|clique| clique.scheduled() >= member.min)
    })
}
