//! Scenario files: what is simulated, and under which load.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use coppice_engine::{Profile, ProfileError, Settings};
use coppice_scaler_plan::{Bounds, Stage};
use coppice_simulation::{
    Faults, Lengths, Objectives, Request, Role, Routing, StartUp, Timing, World, WorldError,
};
use serde::Deserialize;

use super::builtin;
use super::fault::WrittenFault;
use crate::drive::objective::TtftLimit;
use crate::schedule::seed::Fnv;
use crate::schedule::span::Span;
use crate::schedule::spec::{Scenario as Load, SpecError, StreamSpec};
use crate::schedule::{NotValid, Planned, Prefix, Schedule};

/// A scenario as it is written (TOML).
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Written {
    /// Name in tables.
    pub(super) name: String,
    /// What it is for, in a sentence.
    #[serde(default)]
    pub(super) about: String,
    /// Profile of every role that names none.
    profile: String,
    /// Largest batch; the profile's when not given.
    max_num_seqs: Option<u32>,
    /// Tokens of a step; the profile's when not given.
    max_num_batched_tokens: Option<u32>,
    /// Whether engines find what a prefix cache without limits would hold.
    #[serde(default)]
    prefix_cache: bool,
    #[serde(default = "least_loaded")]
    routing: RoutingText,
    cluster_gpus: Option<u32>,
    budget_gpus: Option<u32>,
    #[serde(rename = "role")]
    roles: Vec<WrittenRole>,
    objectives: WrittenObjectives,
    #[serde(default)]
    timing: WrittenTiming,
    /// Lengths that policies with thresholds are set up with; those of the first ten minutes when not given.
    typical: Option<WrittenLengths>,
    #[serde(rename = "stream")]
    streams: Vec<StreamSpec>,
    /// What goes wrong.
    #[serde(default, rename = "fault")]
    faults: Vec<WrittenFault>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct WrittenRole {
    name: String,
    stage: WrittenStage,
    profile: Option<String>,
    gpus: Option<u32>,
    min: u32,
    max: u32,
    initial: u32,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum WrittenStage {
    Aggregated,
    Prefill,
    Decode,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenObjectives {
    ttft: TtftLimit,
    itl: Span,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenLengths {
    input: f64,
    output: f64,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
struct WrittenTiming {
    scheduling: Span,
    node: Span,
    start_up: Span,
    /// Standard deviation of the logarithm; 0 for none.
    start_up_spread: f64,
    scrape_interval: Span,
    scrape_delay: Span,
    actuation: Span,
    grace: Span,
    follow: Span,
}

impl Default for WrittenTiming {
    fn default() -> Self {
        Self {
            scheduling: Span::seconds(1),
            node: Span::seconds(0),
            start_up: Span::seconds(120),
            start_up_spread: 0.2,
            scrape_interval: Span::seconds(5),
            scrape_delay: Span::seconds(1),
            actuation: Span::seconds(1),
            grace: Span::seconds(600),
            follow: Span::seconds(600),
        }
    }
}

/// `least-loaded`, `round-robin`, `random` or `central:COUNT`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
struct RoutingText(Routing);

const fn least_loaded() -> RoutingText {
    RoutingText(Routing::LeastLoaded)
}

impl FromStr for RoutingText {
    type Err = NotValid;

    fn from_str(text: &str) -> Result<Self, NotValid> {
        const HINT: &str = "write least-loaded, round-robin, random, or central:32 for one queue with 32 requests a unit";
        let refuse = || NotValid::new("a routing", text, HINT);
        Ok(Self(match text {
            "least-loaded" => Routing::LeastLoaded,
            "round-robin" => Routing::RoundRobin,
            "random" => Routing::Random,
            _ => {
                let per_unit = text.strip_prefix("central:").ok_or_else(refuse)?;
                let per_unit = per_unit.parse().map_err(|_| refuse())?;
                Routing::Central { per_unit }
            }
        }))
    }
}

impl TryFrom<String> for RoutingText {
    type Error = NotValid;

    fn try_from(text: String) -> Result<Self, NotValid> {
        text.parse()
    }
}

/// A scenario that cannot be simulated.
#[derive(Debug, thiserror::Error)]
pub(super) enum ScenarioError {
    /// The file could not be read.
    #[error("reading the scenario {path}")]
    Read {
        path: String,
        #[source]
        source: std::io::Error,
    },
    /// It is not what it should be.
    #[error("the scenario {name} is not valid: {reason}")]
    Parse { name: String, reason: String },
    /// A profile is not known.
    #[error("the scenario {name}")]
    Profile {
        name: String,
        #[source]
        source: ProfileError,
    },
    /// The world is not possible.
    #[error("the scenario {name}")]
    World {
        name: String,
        #[source]
        source: WorldError,
    },
    /// The load is not possible.
    #[error("the scenario {name}")]
    Load {
        name: String,
        #[source]
        source: SpecError,
    },
}

/// What the command line changes of a scenario.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Overrides {
    pub(super) start_up: Option<Duration>,
    pub(super) rate_scale: Option<f64>,
    pub(super) duration: Option<Duration>,
}

/// A scenario that was read.
#[derive(Debug, Clone)]
pub(super) struct Scenario {
    pub(super) written: Written,
    overrides: Overrides,
    /// Changes when the scenario does.
    pub(super) digest: String,
}

/// One seed of a scenario, ready to run.
#[derive(Debug, Clone)]
pub(super) struct Instance {
    pub(super) world: World,
    pub(super) faults: Faults,
    pub(super) requests: Vec<Request>,
    pub(super) duration: Duration,
    pub(super) schedule_digest: String,
}

impl Scenario {
    /// Reads a file.
    pub(super) fn read(path: &Path, overrides: Overrides) -> Result<Self, ScenarioError> {
        let shown = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|source| ScenarioError::Read {
            path: shown.clone(),
            source,
        })?;
        Self::parse(&shown, &text, overrides)
    }

    /// Reads a text; `name` serves errors.
    pub(super) fn parse(
        name: &str,
        text: &str,
        overrides: Overrides,
    ) -> Result<Self, ScenarioError> {
        let (mut written, base) = written(text).map_err(|reason| ScenarioError::Parse {
            name: name.to_owned(),
            reason,
        })?;
        let mut hash = Fnv::new();
        hash.bytes(base.as_bytes());
        hash.bytes(text.as_bytes());
        hash.bytes(format!("{overrides:?}").as_bytes());
        if let Some(start_up) = overrides.start_up {
            written.timing.start_up = Span(start_up);
        }
        for stream in &mut written.streams {
            if let Some(duration) = overrides.duration {
                stream.duration = Some(Span(duration));
            }
            if let Some(scale) = overrides.rate_scale {
                match &mut stream.rate {
                    Some(rate) => *rate = rate.times(scale),
                    None => {
                        stream.rate_scale = Some(stream.rate_scale.unwrap_or(1.0) * scale);
                    }
                }
            }
        }
        Ok(Self {
            written,
            overrides,
            digest: format!("{:016x}", hash.finish()),
        })
    }

    /// Name in tables; with what the command line changed.
    pub(super) fn name(&self) -> String {
        let mut name = self.written.name.clone();
        let Overrides {
            start_up,
            rate_scale,
            duration,
        } = self.overrides;
        let changes = [
            start_up.map(|time| format!("start-up {}", Span(time))),
            rate_scale.map(|scale| format!("x{scale}")),
            duration.map(|time| format!("for {}", Span(time))),
        ];
        for change in changes.into_iter().flatten() {
            name.push_str(", ");
            name.push_str(&change);
        }
        name
    }

    /// Whether prefill and decode are apart.
    pub(super) fn is_disaggregated(&self) -> bool {
        self.written.roles.len() == 2
    }

    /// The scenario with the draws of a seed.
    pub(super) fn instance(&self, seed: u64) -> Result<Instance, ScenarioError> {
        let load = Load {
            seed,
            streams: self.written.streams.clone(),
        };
        let schedule = load.schedule().map_err(|source| ScenarioError::Load {
            name: self.name(),
            source,
        })?;
        let requests = requests(&schedule, self.written.prefix_cache);
        Ok(Instance {
            world: self.world(&requests)?,
            faults: self.faults(schedule.duration())?,
            duration: schedule.duration(),
            schedule_digest: format!("{:016x}", schedule.digest()),
            requests,
        })
    }

    fn faults(&self, duration: Duration) -> Result<Faults, ScenarioError> {
        let faults = || self.written.faults.iter().copied().map(WrittenFault::fault);
        if let Some(late) = faults().position(|fault| fault.at >= duration) {
            return Err(ScenarioError::Parse {
                name: self.name(),
                reason: format!(
                    "fault {} begins when the run is over, at {}: let it begin earlier, or make the streams longer",
                    late + 1,
                    Span(duration)
                ),
            });
        }
        Faults::new(faults().collect()).map_err(|source| ScenarioError::World {
            name: self.name(),
            source,
        })
    }

    fn world(&self, requests: &[Request]) -> Result<World, ScenarioError> {
        let written = &self.written;
        let roles = written
            .roles
            .iter()
            .map(|role| self.role(role))
            .collect::<Result<_, _>>()?;
        let objectives = Objectives {
            ttft: written.objectives.ttft.base,
            ttft_per_input_token: written.objectives.ttft.per_input_token,
            itl: written.objectives.itl.0,
        };
        let typical = written.typical.map_or_else(
            || first_lengths(requests),
            |WrittenLengths { input, output }| Lengths { input, output },
        );
        World::new(
            roles,
            written.routing.0,
            written.timing.resolve(),
            objectives,
            typical,
        )
        .and_then(|world| world.with_cluster_gpus(written.cluster_gpus))
        .map(|world| world.with_budget_gpus(written.budget_gpus))
        .map_err(|source| ScenarioError::World {
            name: self.name(),
            source,
        })
    }

    fn role(&self, role: &WrittenRole) -> Result<Role, ScenarioError> {
        let written = &self.written;
        let name = role.profile.as_ref().unwrap_or(&written.profile);
        let profile = Profile::named(name).map_err(|source| ScenarioError::Profile {
            name: self.name(),
            source,
        })?;
        let own = Settings::of(&profile);
        let engine = Settings {
            max_num_seqs: written.max_num_seqs.unwrap_or(own.max_num_seqs).max(1),
            max_num_batched_tokens: written
                .max_num_batched_tokens
                .unwrap_or(own.max_num_batched_tokens)
                .max(1),
            ..own
        };
        let units = Bounds::new(role.min, role.max).ok_or_else(|| ScenarioError::Parse {
            name: self.name(),
            reason: format!(
                "role {:?}: min {} is above max {}: lower min or raise max",
                role.name, role.min, role.max
            ),
        })?;
        Ok(Role {
            name: role.name.clone(),
            stage: match role.stage {
                WrittenStage::Aggregated => Stage::Aggregated,
                WrittenStage::Prefill => Stage::Prefill,
                WrittenStage::Decode => Stage::Decode,
            },
            engine,
            gpus_per_unit: role.gpus.unwrap_or(profile.gpus_per_replica),
            profile,
            units,
            initial: role.initial,
        })
    }
}

/// Key of the built-in scenario that a file changes.
const LIKE: &str = "like";

/// A scenario's text, read, and the text of the built-in one that it is like: what it says itself goes in place of the other's top-level keys.
fn written(text: &str) -> Result<(Written, &'static str), String> {
    let reason = |error: toml::de::Error| error.to_string().trim_end().to_owned();
    let mut own: toml::Table = toml::from_str(text).map_err(reason)?;
    let Some(like) = own.remove(LIKE) else {
        // From the text, so that errors name the line.
        return Ok((toml::from_str(text).map_err(reason)?, ""));
    };
    let base = like.as_str().and_then(builtin::find).ok_or_else(|| {
        let known: Vec<&str> = builtin::names().collect();
        format!(
            "like is {like}: give the name of a built-in scenario, {}",
            known.join(", ")
        )
    })?;
    let mut whole: toml::Table = toml::from_str(base).map_err(reason)?;
    if whole.contains_key(LIKE) {
        return Err(format!(
            "like is {like}, which is itself like another one: name that one"
        ));
    }
    whole.extend(own);
    Ok((whole.try_into().map_err(reason)?, base))
}

impl WrittenTiming {
    fn resolve(self) -> Timing {
        let load = if self.start_up_spread > 0.0 {
            StartUp::Lognormal {
                median: self.start_up.0,
                sigma: self.start_up_spread,
            }
        } else {
            StartUp::Fixed(self.start_up.0)
        };
        Timing {
            scheduling: self.scheduling.0,
            node: self.node.0,
            load,
            scrape_interval: self.scrape_interval.0,
            scrape_delay: self.scrape_delay.0,
            actuation: self.actuation.0,
            grace: self.grace.0,
            follow: self.follow.0,
        }
    }
}

/// Mean lengths of the first ten minutes: what a trial before the run would have measured.
fn first_lengths(requests: &[Request]) -> Lengths {
    let first = || {
        requests
            .iter()
            .take_while(|request| request.at < Duration::from_secs(600))
    };
    let count = (first().count() as f64).max(1.0);
    let mean = |length: fn(&Request) -> u32| {
        let sum: u64 = first().map(|request| u64::from(length(request))).sum();
        (sum as f64 / count).max(1.0)
    };
    Lengths {
        input: mean(|request| request.input_tokens),
        output: mean(|request| request.output_tokens),
    }
}

/// The schedule's requests; with `prefix_cache`, each with what a cache without limits would hold of its prompt when it comes.
fn requests(schedule: &Schedule, prefix_cache: bool) -> Vec<Request> {
    let mut cache = PrefixCache::default();
    schedule
        .requests()
        .iter()
        .map(|planned| Request {
            at: planned.at,
            input_tokens: planned.input_tokens,
            output_tokens: planned.output_tokens,
            cached_tokens: if prefix_cache { cache.hit(planned) } else { 0 },
        })
        .collect()
}

/// Every prompt that has come, for all units together: an upper bound of what a router that knows caches finds.
#[derive(Debug, Default)]
struct PrefixCache {
    /// Longest prefix of each group that has come.
    groups: BTreeMap<(u16, u64), u32>,
    /// Rows of blocks that have come: the hash of a row is that of all blocks up to its end.
    rows: BTreeSet<(u16, u64)>,
}

impl PrefixCache {
    fn hit(&mut self, planned: &Planned) -> u32 {
        match &planned.prefix {
            Prefix::None => 0,
            Prefix::Shared { group, tokens } => {
                let longest = self.groups.entry((planned.stream, *group)).or_insert(0);
                let hit = (*longest).min(*tokens);
                *longest = (*longest).max(*tokens);
                hit
            }
            Prefix::Blocks(blocks) => {
                let mut hash = Fnv::new();
                let (mut hit, mut whole) = (0_u32, true);
                for block in blocks {
                    hash.bytes(&block.to_le_bytes());
                    let new = self.rows.insert((planned.stream, hash.finish()));
                    whole &= !new;
                    if whole {
                        hit = hit.saturating_add(Prefix::BLOCK_TOKENS);
                    }
                }
                hit.min(planned.input_tokens)
            }
        }
    }
}
