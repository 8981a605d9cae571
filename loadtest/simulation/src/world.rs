//! What is simulated: roles, engines, delays, objectives, requests.

use std::time::Duration;

use coppice_engine::{Profile, Settings};
use coppice_scaler_plan::{Bounds, Stage};
use rand_chacha::ChaCha8Rng;

/// Makes the random stream of one thing in one run, of (seed, what is drawn, for whom).
///
/// The caller brings it, so that schedules and simulations draw by the same rule.
pub type Streams = fn(u64, &str, u64) -> ChaCha8Rng;

/// A serving system and what surrounds it.
#[derive(Debug, Clone)]
pub struct World {
    roles: Vec<Role>,
    /// How requests find a unit.
    pub routing: Routing,
    /// Delays.
    pub timing: Timing,
    /// What a good request keeps.
    pub objectives: Objectives,
    /// GPUs that nodes have; units beyond wait. `None`: as many as are asked for.
    pub cluster_gpus: Option<u32>,
    /// GPUs that the policy may hold. `None`: as many as it likes.
    pub budget_gpus: Option<u32>,
    /// Lengths that whoever set the policies up had measured before; policies with per-unit thresholds take them from here.
    pub typical: Lengths,
}

/// One role's engines.
#[derive(Debug, Clone)]
pub struct Role {
    /// Name.
    pub name: String,
    /// What it does to a request: [`Stage::Aggregated`], or [`Stage::Prefill`] and [`Stage::Decode`].
    pub stage: Stage,
    /// What one unit is.
    pub profile: Profile,
    /// Limits of its engine.
    pub engine: Settings,
    /// GPUs that a unit holds.
    pub gpus_per_unit: u32,
    /// Units that any policy may ask for.
    pub units: Bounds,
    /// Units that are ready when the run begins.
    pub initial: u32,
}

/// How requests find a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Routing {
    /// Any ready unit.
    Random,
    /// Ready units in turn.
    RoundRobin,
    /// The ready unit with the fewest requests; among equals the oldest.
    LeastLoaded,
    /// One queue at the gateway: a unit is given a request only while it has fewer than this many.
    Central {
        /// Most requests that a unit has, `1..`.
        per_unit: u32,
    },
}

/// Delays of the surroundings.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Timing {
    /// From the creation of a unit to its being bound, where GPUs are free.
    pub scheduling: Duration,
    /// Until its node is there, counted from its being bound.
    pub node: Duration,
    /// From then until its engine answers.
    pub load: StartUp,
    /// Between two scrapes of an engine or of the gateway, above 0.
    pub scrape_interval: Duration,
    /// From a scrape until a policy sees it.
    pub scrape_delay: Duration,
    /// From a decision until replicas change.
    pub actuation: Duration,
    /// The longest that a leaving unit may take to end what it has; then its requests are aborted.
    pub grace: Duration,
    /// How long the run goes on behind the last planned request, so that requests may end.
    pub follow: Duration,
}

/// How long an engine takes to load; drawn for each unit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum StartUp {
    /// Always this long.
    Fixed(Duration),
    /// Lognormal.
    Lognormal {
        /// Half of the units take no longer.
        median: Duration,
        /// Standard deviation of the logarithm.
        sigma: f64,
    },
}

impl StartUp {
    /// What people say when asked how long it takes.
    #[must_use]
    pub const fn typical(&self) -> Duration {
        match self {
            Self::Fixed(time) => *time,
            Self::Lognormal { median, .. } => *median,
        }
    }
}

/// What a good request keeps; a request that is refused, aborted or not ended keeps nothing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Objectives {
    /// Most time from the planned instant to the first token.
    pub ttft: Duration,
    /// On top of it for each prompt token.
    pub ttft_per_input_token: Duration,
    /// Most mean time between the tokens of a request.
    pub itl: Duration,
}

impl Objectives {
    /// The limit on the time to first token of a prompt.
    #[must_use]
    pub fn ttft_of(&self, input_tokens: u32) -> Duration {
        self.ttft
            .saturating_add(self.ttft_per_input_token.saturating_mul(input_tokens))
    }
}

/// Mean lengths of requests.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Lengths {
    /// Prompt tokens.
    pub input: f64,
    /// Output tokens.
    pub output: f64,
}

/// One request of the schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// When it comes, from the run's start.
    pub at: Duration,
    /// Prompt tokens, `1..`.
    pub input_tokens: u32,
    /// Tokens to make, `1..`.
    pub output_tokens: u32,
    /// Leading prompt tokens that the prefix cache of whichever unit it comes to holds.
    pub cached_tokens: u32,
}

/// A world that cannot be simulated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WorldError {
    /// Not one aggregated role, and not prefill and decode.
    #[error(
        "roles have the stages {stages}: give one role of stage aggregated, or first prefill and then decode"
    )]
    Stages {
        /// What was given.
        stages: String,
    },
    /// Units from the start outside of the bounds.
    #[error("role {role:?}: initial is {initial}, outside of {min} to {max}")]
    Initial {
        /// Name of the role.
        role: String,
        /// Units asked for.
        initial: u32,
        /// Least.
        min: u32,
        /// Most.
        max: u32,
    },
    /// A time that must be above zero.
    #[error("{field} is 0: give a time above 0")]
    Zero {
        /// Name.
        field: &'static str,
    },
    /// A spread of start-up times that is none.
    #[error("load.sigma is {sigma}: give a number from 0 to 3")]
    Sigma {
        /// Value.
        sigma: String,
    },
    /// The initial units do not fit into the cluster.
    #[error(
        "the initial units hold {asked} GPUs, the cluster has {there}: lower initial or raise cluster-gpus"
    )]
    Gpus {
        /// GPUs of the initial units.
        asked: u64,
        /// GPUs there are.
        there: u32,
    },
    /// A fault that cannot be.
    #[error("fault {number}: {field} is {value}: {hint}")]
    Fault {
        /// Position from 1.
        number: usize,
        /// Which of its fields.
        field: &'static str,
        /// Value.
        value: String,
        /// What to do.
        hint: &'static str,
    },
    /// More faults than a run takes.
    #[error("there are {count} faults, a run takes at most {most}: leave some out")]
    Faults {
        /// How many there are.
        count: usize,
        /// The most.
        most: usize,
    },
    /// A central queue that lets nothing through.
    #[error(
        "routing: a central queue with 0 requests for each unit serves nothing: give at least 1"
    )]
    Central,
}

impl World {
    /// A system of these roles.
    ///
    /// # Errors
    /// [`WorldError`] names the field.
    pub fn new(
        roles: Vec<Role>,
        routing: Routing,
        timing: Timing,
        objectives: Objectives,
        typical: Lengths,
    ) -> Result<Self, WorldError> {
        let stages: Vec<Stage> = roles.iter().map(|role| role.stage).collect();
        if !matches!(
            stages[..],
            [Stage::Aggregated] | [Stage::Prefill, Stage::Decode]
        ) {
            return Err(WorldError::Stages {
                stages: format!("{stages:?}"),
            });
        }
        for role in &roles {
            check_initial(role)?;
        }
        let times = [
            ("scrape-interval", timing.scrape_interval),
            ("objectives.ttft", objectives.ttft),
            ("objectives.itl", objectives.itl),
        ];
        if let Some((field, _)) = times.into_iter().find(|(_, time)| time.is_zero()) {
            return Err(WorldError::Zero { field });
        }
        if let StartUp::Lognormal { sigma, .. } = timing.load
            && !(0.0..=3.0).contains(&sigma)
        {
            return Err(WorldError::Sigma {
                sigma: sigma.to_string(),
            });
        }
        if routing == (Routing::Central { per_unit: 0 }) {
            return Err(WorldError::Central);
        }
        Ok(Self {
            roles,
            routing,
            timing,
            objectives,
            cluster_gpus: None,
            budget_gpus: None,
            typical,
        })
    }

    /// With this many GPUs in the cluster.
    ///
    /// # Errors
    /// When the initial units hold more.
    pub fn with_cluster_gpus(self, gpus: Option<u32>) -> Result<Self, WorldError> {
        let asked = self
            .roles
            .iter()
            .map(|role| u64::from(role.initial) * u64::from(role.gpus_per_unit))
            .sum();
        if let Some(there) = gpus.filter(|there| u64::from(*there) < asked) {
            return Err(WorldError::Gpus { asked, there });
        }
        Ok(Self {
            cluster_gpus: gpus,
            ..self
        })
    }

    /// With this many GPUs for the policy.
    #[must_use]
    pub fn with_budget_gpus(self, gpus: Option<u32>) -> Self {
        Self {
            budget_gpus: gpus,
            ..self
        }
    }

    /// The roles: one, or prefill and decode.
    #[must_use]
    pub fn roles(&self) -> &[Role] {
        &self.roles
    }

    /// Whether prompts are worked off apart from decoding.
    #[must_use]
    pub fn is_disaggregated(&self) -> bool {
        self.roles.len() == 2
    }

    /// From the creation of a unit to its readiness, as people say it.
    #[must_use]
    pub fn typical_startup(&self) -> Duration {
        self.timing.scheduling + self.timing.node + self.timing.load.typical()
    }
}

fn check_initial(role: &Role) -> Result<(), WorldError> {
    if role.units.clamp(role.initial) == role.initial {
        return Ok(());
    }
    Err(WorldError::Initial {
        role: role.name.clone(),
        initial: role.initial,
        min: role.units.min(),
        max: role.units.max(),
    })
}
