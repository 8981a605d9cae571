//! The units of all roles and the GPUs they hold.

use std::time::Duration;

use coppice_engine::Engine;
use coppice_scaler_plan::ceil_units;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

use crate::unit::Unit;
use crate::world::World;

/// Every unit that ever was, and who of them lives and serves.
#[derive(Debug)]
pub(crate) struct Fleet {
    pub(crate) units: Vec<Unit>,
    /// Units that are not gone, leaving ones included, by role, oldest first.
    pub(crate) live: Vec<Vec<usize>>,
    /// Units that take requests, by role, in the order in which they became ready.
    pub(crate) serving: Vec<Vec<usize>>,
    /// Units asked for, by role.
    pub(crate) desired: Vec<u32>,
    /// Units created by role, those of the beginning left out: the number of a unit's draws.
    pub(crate) started: Vec<u64>,
    /// GPUs held now.
    used_gpus: u32,
}

impl Fleet {
    /// These units of each role, ready at time zero.
    pub(crate) fn new(world: &World, initial: &[u32]) -> Self {
        let roles = world.roles().len();
        let mut fleet = Self {
            units: Vec::new(),
            live: vec![Vec::new(); roles],
            serving: vec![Vec::new(); roles],
            desired: initial.to_vec(),
            started: vec![0; roles],
            used_gpus: 0,
        };
        for (role, count) in initial.iter().enumerate() {
            for _ in 0..*count {
                let unit = fleet.create(role, Duration::ZERO, Duration::ZERO);
                fleet.units[unit].bound = Some(Duration::ZERO);
                fleet.used_gpus += world.roles()[role].gpus_per_unit;
                fleet.make_ready(world, unit, Duration::ZERO);
            }
        }
        fleet
    }

    pub(crate) fn create(&mut self, role: usize, now: Duration, load: Duration) -> usize {
        let unit = self.units.len();
        self.units.push(Unit::new(role, now, load));
        self.live[role].push(unit);
        unit
    }

    /// Binds waiting units, oldest first, to the cluster's GPUs without the `missing` ones; one that does not fit is passed over. Answers who was bound.
    pub(crate) fn bind(&mut self, world: &World, missing: u32, now: Duration) -> Vec<usize> {
        let mut waiting: Vec<usize> = self
            .live
            .iter()
            .flatten()
            .copied()
            .filter(|unit| self.units[*unit].bound.is_none())
            .collect();
        waiting.sort_unstable();
        waiting.retain(|unit| {
            let gpus = world.roles()[self.units[*unit].role].gpus_per_unit;
            let fits = world
                .cluster_gpus
                .is_none_or(|there| self.used_gpus + gpus <= there.saturating_sub(missing));
            if fits {
                self.used_gpus += gpus;
                self.units[*unit].bound = Some(now);
            }
            fits
        });
        waiting
    }

    pub(crate) fn make_ready(&mut self, world: &World, unit: usize, now: Duration) {
        let role = self.units[unit].role;
        let described = &world.roles()[role];
        self.units[unit].ready = Some(now);
        self.units[unit].engine = Some(Box::new(Engine::new(
            &described.profile,
            described.engine.clone(),
        )));
        self.serving[role].push(unit);
    }

    /// Units that are not leaving.
    pub(crate) fn staying(&self, role: usize) -> u32 {
        let staying = self.live[role]
            .iter()
            .filter(|unit| self.units[**unit].leaving.is_none());
        u32::try_from(staying.count()).unwrap_or(u32::MAX)
    }

    /// Who goes first: units without GPUs, then those that are not ready, then the others; among equals the newest.
    pub(crate) fn victim(&self, role: usize) -> Option<usize> {
        let staying = self.live[role]
            .iter()
            .copied()
            .filter(|unit| self.units[*unit].leaving.is_none());
        staying.max_by_key(|unit| {
            let one = &self.units[*unit];
            (one.bound.is_none(), one.ready.is_none(), *unit)
        })
    }

    /// Who dies when `share` of the serving units of each role does, drawn.
    pub(crate) fn struck(&self, share: f64, random: &mut ChaCha8Rng) -> Vec<usize> {
        let of_role = self.serving.iter().map(|serving| {
            let count = ceil_units(serving.len() as f64 * share) as usize;
            let mut drawn = shuffled(serving, random);
            drawn.truncate(count);
            drawn
        });
        of_role.collect::<Vec<_>>().concat()
    }

    /// Units that stand on a node of so many GPUs, drawn from all that hold some until no other fits.
    pub(crate) fn on_node(&self, world: &World, gpus: u32, random: &mut ChaCha8Rng) -> Vec<usize> {
        let holding: Vec<usize> = self
            .live
            .iter()
            .flatten()
            .copied()
            .filter(|unit| self.units[*unit].holds_gpus())
            .collect();
        let mut left = gpus;
        let mut on_node = shuffled(&holding, random);
        on_node.retain(|unit| {
            let own = world.roles()[self.units[*unit].role].gpus_per_unit;
            let fits = own <= left;
            left -= if fits { own } else { 0 };
            fits
        });
        on_node
    }

    /// Takes a unit out of the router's sight.
    pub(crate) fn leave(&mut self, unit: usize, now: Duration) {
        self.units[unit].leaving = Some(now);
        let role = self.units[unit].role;
        self.serving[role].retain(|other| *other != unit);
    }

    /// Ends a unit and frees its GPUs.
    pub(crate) fn remove(&mut self, world: &World, unit: usize, now: Duration) {
        let role = self.units[unit].role;
        if self.units[unit].holds_gpus() {
            self.used_gpus -= world.roles()[role].gpus_per_unit;
        }
        let one = &mut self.units[unit];
        one.leaving.get_or_insert(now);
        one.gone = Some(now);
        one.engine = None;
        one.wake = None;
        self.live[role].retain(|other| *other != unit);
        self.serving[role].retain(|other| *other != unit);
    }
}

/// Units in a drawn order, which does not depend on the order in which they are given.
fn shuffled(units: &[usize], random: &mut ChaCha8Rng) -> Vec<usize> {
    let mut drawn = units.to_vec();
    drawn.sort_unstable();
    drawn.shuffle(random);
    drawn
}
