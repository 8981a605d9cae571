//! What there is: sets, units in them, and the GPUs they hold.

use std::time::Duration;

/// What there is of one serving system. Roles are in the policy's order everywhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fleet {
    /// What is known of each role.
    pub roles: Vec<RoleFleet>,
    /// Replicas that the set asks for. 1 for a plain target.
    pub desired_sets: u32,
    /// The set replicas that exist, by index: those asked for whose objects are there, and those still going away.
    pub sets: Vec<SetFleet>,
    /// GPUs of one set beside the units of its roles. `None`: unknown.
    pub gpus_beside_roles: Option<u32>,
    /// A rollout is under way.
    pub rollout: bool,
}

/// What is known of a role, whatever the set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoleFleet {
    /// GPUs of one unit. `None`: unknown.
    pub gpus_per_unit: Option<u32>,
    /// Units below which a gang cannot run: a role has none, or at least this many, in each set. At least 1.
    pub quorum: u32,
    /// Units with which a new set starts.
    pub initial: u32,
    /// Time since the creation of each unit that is not ready.
    pub starting: Vec<Duration>,
    /// Someone else writes the role's replicas.
    pub conflict: bool,
}

/// One set replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetFleet {
    /// Index.
    pub index: u32,
    /// The roles' units in it.
    pub roles: Vec<RoleInSet>,
    /// GPUs of live pods that belong to no role.
    pub other_gpus: u32,
    /// GPUs of terminating pods that belong to no role.
    pub other_terminating_gpus: u32,
}

/// The units of one role in one set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RoleInSet {
    /// Units that the object asks for. `None`: the object does not exist (yet).
    pub desired: Option<u32>,
    /// Units that are ready, every pod of them.
    pub ready: u32,
    /// Units with a pod that cannot be scheduled.
    pub unschedulable: u32,
    /// For how long the oldest of these could not be.
    pub unschedulable_for: Duration,
    /// GPUs of live pods.
    pub gpus: u32,
    /// GPUs of terminating pods.
    pub terminating_gpus: u32,
}

impl Fleet {
    /// Units of a role that all objects together ask for; a set whose objects are not there yet counts with what it will start with.
    #[must_use]
    pub fn current(&self, role: usize) -> u32 {
        self.desired_indices()
            .map(|index| self.desired_in(index, role))
            .sum()
    }

    /// Ready units of a role in the sets that are asked for.
    #[must_use]
    pub fn ready(&self, role: usize) -> u32 {
        self.wanted_sets().map(|set| set.roles[role].ready).sum()
    }

    /// Units of a role that cannot be scheduled, and for how long the oldest could not.
    pub(crate) fn unschedulable(&self, role: usize) -> (u32, Duration) {
        let units = self
            .wanted_sets()
            .map(|set| set.roles[role].unschedulable)
            .sum();
        let longest = self
            .wanted_sets()
            .map(|set| set.roles[role].unschedulable_for)
            .max()
            .unwrap_or_default();
        (units, longest)
    }

    /// Units that role `role` asks for in set `index`.
    pub(crate) fn desired_in(&self, index: u32, role: usize) -> u32 {
        let object = self.set(index).and_then(|set| set.roles[role].desired);
        object.unwrap_or(self.roles[role].initial)
    }

    /// Set `index`, if it exists.
    pub(crate) fn set(&self, index: u32) -> Option<&SetFleet> {
        self.sets.iter().find(|set| set.index == index)
    }

    /// Indices that the set asks for.
    pub(crate) fn desired_indices(&self) -> std::ops::Range<u32> {
        0..self.desired_sets
    }

    /// The existing sets that are asked for.
    fn wanted_sets(&self) -> impl Iterator<Item = &SetFleet> {
        self.sets.iter().filter(|set| set.index < self.desired_sets)
    }

    /// GPUs that are held or asked for now: of every set, terminating pods, and the larger of what lives and what is asked for. `None`: unknown.
    #[must_use]
    pub fn holdings(&self) -> Option<Holdings> {
        let mut held = Holdings::none(self.roles.len());
        for set in &self.sets {
            let asked = set.index < self.desired_sets;
            let beside = if asked { self.gpus_beside_roles? } else { 0 };
            held.beside +=
                u64::from(set.other_terminating_gpus) + u64::from(set.other_gpus.max(beside));
            for (index, (units, role)) in set.roles.iter().zip(&self.roles).enumerate() {
                let desired = if asked {
                    units.desired.unwrap_or(role.initial)
                } else {
                    0
                };
                let gpus = if desired == 0 {
                    0
                } else {
                    u64::from(role.gpus_per_unit?) * u64::from(desired)
                };
                held.roles[index] +=
                    u64::from(units.terminating_gpus) + gpus.max(u64::from(units.gpus));
            }
        }
        let absent = self
            .desired_indices()
            .filter(|index| self.set(*index).is_none())
            .count();
        if absent > 0 {
            let absent = u64::try_from(absent).ok()?;
            held.beside += absent * u64::from(self.gpus_beside_roles?);
            for (held, role) in held.roles.iter_mut().zip(&self.roles) {
                *held += absent * u64::from(role.gpus_per_unit?) * u64::from(role.initial);
            }
        }
        Some(held)
    }

    /// The sum of [`Fleet::holdings`].
    pub(crate) fn committed_gpus(&self) -> Option<u64> {
        self.holdings().map(|held| held.total())
    }

    /// Whether the GPUs of every unit and of a whole set are known.
    pub(crate) fn knows_gpus(&self) -> bool {
        self.gpus_beside_roles.is_some()
            && self.roles.iter().all(|role| role.gpus_per_unit.is_some())
    }
}

/// GPUs by role.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holdings {
    /// Of each role, in the policy's order.
    pub roles: Vec<u64>,
    /// Of pods that belong to no role.
    pub beside: u64,
}

impl Holdings {
    fn none(roles: usize) -> Self {
        Self {
            roles: vec![0; roles],
            beside: 0,
        }
    }

    /// All of them.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.beside + self.roles.iter().sum::<u64>()
    }
}
