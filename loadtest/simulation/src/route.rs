//! Which unit a request goes to.

use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use crate::fleet::Fleet;
use crate::world::Routing;

/// The gateway's choice of a unit. It knows what it sent where and which units are ready, nothing else.
#[derive(Debug)]
pub(crate) struct Router {
    routing: Routing,
    random: ChaCha8Rng,
    /// Next turn, by role.
    turns: Vec<usize>,
}

impl Router {
    pub(crate) fn new(routing: Routing, roles: usize, random: ChaCha8Rng) -> Self {
        Self {
            routing,
            random,
            turns: vec![0; roles],
        }
    }

    /// A unit of `role` for one more request; `None` while no one takes it.
    pub(crate) fn choose(&mut self, fleet: &Fleet, role: usize) -> Option<usize> {
        let serving = &fleet.serving[role];
        if serving.is_empty() {
            return None;
        }
        let fewest = || {
            let units = serving.iter().copied();
            units.min_by_key(|unit| (fleet.units[*unit].in_flight, *unit))
        };
        match self.routing {
            Routing::Random => Some(serving[self.random.random_range(0..serving.len())]),
            Routing::RoundRobin => {
                let turn = self.turns[role];
                self.turns[role] = turn.wrapping_add(1);
                Some(serving[turn % serving.len()])
            }
            Routing::LeastLoaded => fewest(),
            Routing::Central { per_unit } => {
                fewest().filter(|unit| fleet.units[*unit].in_flight < per_unit)
            }
        }
    }
}
