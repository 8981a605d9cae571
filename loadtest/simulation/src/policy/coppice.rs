//! Our own law: `decide` of the scaler's library, unchanged, fed as the scaler feeds it.

use std::collections::BTreeMap;
use std::time::Duration;

use coppice_scaler_plan::{
    Budget, Decision, Fleet, History, Limits, Objective, Observation, Offered, Policy, PolicyError,
    ProfileError, RoleFleet, RoleInSet, RoleObservation, RolePolicy, Rules, SetFleet, Sizing,
    SloSizing, Stage, WhenLost, decide,
};
use jiff::Timestamp;

use crate::known::law_profile;
use crate::scaler::Scaler;
use crate::sight::{RoleSight, Sight};
use crate::world::{Role, World};

/// Time between two decisions, as the scaler's default.
const INTERVAL: Duration = Duration::from_secs(5);
/// Look-back of rates, as the scaler's default.
const WINDOW: Duration = Duration::from_secs(15);
/// Hold time when signals are lost, as the policy's default.
const HOLD: Duration = Duration::from_secs(300);
/// The second that a run's zero stands for.
const ORIGIN: i64 = 1_800_000_000;

/// The scaling law with its defaults, every role sized by objective.
#[derive(Debug)]
pub struct Coppice {
    policy: Policy,
    history: History,
    /// Units that were not ready when last seen, and whether they ever could not be scheduled.
    starting: BTreeMap<usize, bool>,
    last: Option<Decision>,
}

/// A world that the law cannot be set up for.
#[derive(Debug, thiserror::Error)]
pub enum CoppiceError {
    /// The engine's profile has no form that the law takes.
    #[error("role {role:?}: its profile is not usable for sizing")]
    Profile {
        /// Name of the role.
        role: String,
        /// Why.
        #[source]
        source: ProfileError,
    },
    /// The policy cannot be followed.
    #[error(transparent)]
    Policy(#[from] PolicyError),
}

impl Coppice {
    /// The law for a world; `share` of the requests is to meet the objectives, above 0 and below 1.
    ///
    /// # Errors
    /// [`CoppiceError`]: a profile that describes no engine, or a policy without roles.
    pub fn new(world: &World, share: f64) -> Result<Self, CoppiceError> {
        let roles = world
            .roles()
            .iter()
            .map(|role| role_policy(world, role, share))
            .collect::<Result<Vec<_>, _>>()?;
        let limits = Limits {
            sets: None,
            ratio: None,
            budget: world.budget_gpus.map_or(Budget::Unlimited, Budget::Gpus),
            startup: world.typical_startup(),
            up: Rules::default_up(),
            down: Rules::default_down(),
            lost: WhenLost {
                hold: HOLD,
                replicas: Vec::new(),
            },
            paused: false,
            traffic: true,
            scrape_interval: world.timing.scrape_interval,
            interval: INTERVAL,
        };
        Ok(Self {
            policy: Policy::new(roles, limits)?,
            history: History::new(at(Duration::ZERO)),
            starting: BTreeMap::new(),
            last: None,
        })
    }

    /// The last decision with its reasons.
    #[must_use]
    pub fn last(&self) -> Option<&Decision> {
        self.last.as_ref()
    }

    fn note_starts(&mut self, sight: &Sight<'_>) {
        let before = std::mem::take(&mut self.starting);
        for (role, seen) in self.policy.roles().iter().zip(&sight.roles) {
            for unit in seen.units.iter().filter(|unit| !unit.leaving) {
                let was_stuck = before.get(&unit.unit).copied();
                match (unit.ready, was_stuck) {
                    (None, stuck) => {
                        let stuck = stuck.unwrap_or(false) || unit.bound.is_none();
                        self.starting.insert(unit.unit, stuck);
                    }
                    (Some(ready), Some(stuck)) => {
                        let from = if stuck {
                            unit.bound
                        } else {
                            Some(unit.created)
                        };
                        if let Some(took) = from.and_then(|from| ready.checked_sub(from)) {
                            self.history.started_up(&role.name, took);
                        }
                    }
                    (Some(_), None) => {}
                }
            }
        }
    }
}

impl Scaler for Coppice {
    fn period(&self) -> Duration {
        INTERVAL
    }

    fn decide(&mut self, sight: &Sight<'_>) -> Vec<u32> {
        let now = at(sight.now);
        self.note_starts(sight);
        let fleet = fleet(sight);
        self.history.observe(&self.policy, &observation(sight));
        self.history.observe_fleet(&self.policy, &fleet, now);
        let decision = decide(&self.policy, &self.history, &fleet, now);
        self.history.record(&self.policy, &decision, now);
        let wanted = decision.roles.iter().map(|role| role.wanted).collect();
        self.last = Some(decision);
        wanted
    }
}

fn at(time: Duration) -> Timestamp {
    Timestamp::from_second(ORIGIN)
        .ok()
        .and_then(|origin| origin.checked_add(time).ok())
        .unwrap_or(Timestamp::MAX)
}

fn role_policy(world: &World, role: &Role, share: f64) -> Result<RolePolicy, CoppiceError> {
    let objectives = &world.objectives;
    let hand_over = if role.stage == Stage::Aggregated {
        0.0
    } else {
        let tokens = coppice_scaler_plan::ceil_units(world.typical.input);
        role.engine.transfer.time(tokens).as_secs_f64()
    };
    let profile =
        law_profile(&role.profile, hand_over).map_err(|source| CoppiceError::Profile {
            role: role.name.clone(),
            source,
        })?;
    Ok(RolePolicy {
        name: role.name.clone(),
        stage: role.stage,
        units: role.units,
        sizing: Sizing::Slo(Box::new(SloSizing {
            ttft: Some(Objective {
                share,
                target: objectives.ttft,
                per_input_token: objectives.ttft_per_input_token,
            }),
            itl: Some(Objective {
                share,
                target: objectives.itl,
                per_input_token: Duration::ZERO,
            }),
            profile,
        })),
    })
}

fn observation(sight: &Sight<'_>) -> Observation {
    let fresh = sight.fresh();
    let offered = fresh.map(|scrape| Offered {
        requests_per_second: sight.gateway_rate(WINDOW, |gateway| gateway.arrived),
        input_tokens_per_second: sight.gateway_rate(WINDOW, |gateway| gateway.arrived_input_tokens),
        mean_output_tokens: sight.mean_output(WINDOW),
        waiting: Some(f64::from(scrape.gateway.held)),
    });
    let roles = sight.world.roles().iter().enumerate().map(|(index, role)| {
        let endpoints = sight.roles[index].ready();
        let answered = fresh.map_or(0, |scrape| {
            let units = scrape.units.iter().filter(|unit| unit.role == index);
            u32::try_from(units.count()).unwrap_or(u32::MAX)
        });
        // Nothing of nobody is not zero.
        let sum = |gauge: fn(&crate::scrape::UnitScrape) -> f64| {
            sight.sum(index, gauge).filter(|_| answered > 0)
        };
        let observed = RoleObservation {
            endpoints,
            answered: answered.min(endpoints),
            input_tokens_per_second: sight.rate(index, WINDOW, |unit| unit.prompt_tokens),
            output_tokens_per_second: sight.rate(index, WINDOW, |unit| unit.generation_tokens),
            finished_per_second: sight.rate(index, WINDOW, |unit| unit.finished),
            waiting: sum(|unit| f64::from(unit.waiting)),
            running: sum(|unit| f64::from(unit.running)),
            kv_usage: sum(|unit| unit.kv_usage),
            metric: None,
        };
        (role.name.clone(), observed)
    });
    Observation {
        at: at(sight.now),
        offered,
        roles: roles.collect(),
    }
}

fn fleet(sight: &Sight<'_>) -> Fleet {
    let roles = sight.world.roles();
    let in_set = roles.iter().zip(&sight.roles).map(|(role, seen)| {
        let unbound = || {
            seen.units
                .iter()
                .filter(|unit| !unit.leaving && unit.bound.is_none())
        };
        let longest = unbound()
            .map(|unit| sight.now.saturating_sub(unit.created))
            .max();
        let leaving = seen.units.iter().filter(|unit| unit.leaving).count();
        RoleInSet {
            desired: Some(seen.desired),
            ready: seen.ready(),
            unschedulable: count(unbound().count()),
            unschedulable_for: longest.unwrap_or_default(),
            gpus: seen.staying() * role.gpus_per_unit,
            terminating_gpus: count(leaving) * role.gpus_per_unit,
        }
    });
    let role_fleets = roles
        .iter()
        .zip(&sight.roles)
        .map(|(role, seen)| RoleFleet {
            gpus_per_unit: Some(role.gpus_per_unit),
            quorum: 1,
            initial: 1,
            starting: starting(seen, sight.now),
            conflict: false,
        });
    Fleet {
        roles: role_fleets.collect(),
        desired_sets: 1,
        sets: vec![SetFleet {
            index: 0,
            roles: in_set.collect(),
            other_gpus: 0,
            other_terminating_gpus: 0,
        }],
        gpus_beside_roles: Some(0),
        rollout: false,
    }
}

fn starting(seen: &RoleSight, now: Duration) -> Vec<Duration> {
    let units = seen
        .units
        .iter()
        .filter(|unit| !unit.leaving && unit.ready.is_none());
    units.map(|unit| now.saturating_sub(unit.created)).collect()
}

fn count(items: usize) -> u32 {
    u32::try_from(items).unwrap_or(u32::MAX)
}
