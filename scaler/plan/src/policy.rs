//! What a policy asks for, in types that cannot be wrong.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::capacity::Profile;

/// One serving system: its roles and the limits of all of them. See [`Policy::new`].
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    roles: Vec<RolePolicy>,
    limits: Limits,
}

/// What a policy says about all roles together.
#[derive(Debug, Clone, PartialEq)]
pub struct Limits {
    /// Replicas of the whole set. `None`: they are never changed.
    pub sets: Option<Bounds>,
    /// Band for the ratio of two roles' units.
    pub ratio: Option<RatioBand>,
    /// GPUs that all units together may hold.
    pub budget: Budget,
    /// Time from the creation of a unit to its readiness, until it has been measured.
    pub startup: Duration,
    /// Rules for adding units.
    pub up: Rules,
    /// Rules for removing units.
    pub down: Rules,
    /// How long signals may be missing before [`WhenLost::replicas`] apply.
    pub lost: WhenLost,
    /// Hold what is there.
    pub paused: bool,
    /// Whether offered load is observed at a gateway. When it is expected but missing, nothing is removed.
    pub traffic: bool,
    /// Time between two scrapes. A signal is fresh while it is not older than two of them.
    pub scrape_interval: Duration,
    /// Time between two decisions.
    pub interval: Duration,
}

/// What a policy says about one role.
#[derive(Debug, Clone, PartialEq)]
pub struct RolePolicy {
    /// Name, unique in the policy.
    pub name: String,
    /// What the role does to a request.
    pub stage: Stage,
    /// Units in each set.
    pub units: Bounds,
    /// How the number of units follows from the load.
    pub sizing: Sizing,
}

/// What a role does to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Works off prompts and hands the KV cache over.
    Prefill,
    /// Makes tokens from a KV cache that it was handed.
    Decode,
    /// Both.
    Aggregated,
    /// Encodes other media before the prompt is worked off.
    Encode,
    /// Anything else.
    Other,
}

impl Stage {
    /// Whether output tokens are made here.
    pub(crate) const fn makes_tokens(self) -> bool {
        matches!(self, Self::Decode | Self::Aggregated)
    }

    /// Whether a request's prompt is worked off here.
    pub(crate) const fn takes_prompts(self) -> bool {
        matches!(self, Self::Prefill | Self::Aggregated)
    }
}

/// How the number of units follows from the load.
#[derive(Debug, Clone, PartialEq)]
pub enum Sizing {
    /// units = ⌈what there is ÷ what one unit carries⌉.
    PerUnit {
        /// What there is.
        source: Source,
        /// What one unit carries, in the unit of the source.
        target: Positive,
    },
    /// The least number of units that meets the latency objective at the load forecast for the time a unit started now becomes ready.
    Slo(Box<SloSizing>),
}

/// What [`Sizing::PerUnit`] divides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// Offered input tokens per second.
    InputTokens,
    /// Offered output tokens per second.
    OutputTokens,
    /// Requests that wait for the role.
    Waiting,
    /// Σ of the KV-cache use (0 to 1) of the role's engines.
    KvUsage,
    /// A series that the policy names.
    Metric,
}

impl Source {
    /// Whether it is a flow, which a smaller share of the load lowers in proportion; otherwise a stock.
    pub(crate) const fn is_flow(self) -> bool {
        matches!(self, Self::InputTokens | Self::OutputTokens)
    }
}

/// What sizing by objective needs.
#[derive(Debug, Clone, PartialEq)]
pub struct SloSizing {
    /// Time to first token. Needed by every stage that takes prompts.
    pub ttft: Option<Objective>,
    /// Inter-token latency. Needed by every stage that makes tokens.
    pub itl: Option<Objective>,
    /// What one unit can do.
    pub profile: Profile,
}

/// A latency that a share of the requests must meet.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Objective {
    /// Share of the requests, above 0 and below 1.
    pub share: f64,
    /// Time allowed whatever the prompt's length.
    pub target: Duration,
    /// Time allowed on top for each input token.
    pub per_input_token: Duration,
}

/// A number above zero.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct Positive(f64);

impl Positive {
    /// `value`, if it is finite and above zero.
    #[must_use]
    pub fn new(value: f64) -> Option<Self> {
        (value.is_finite() && value > 0.0).then_some(Self(value))
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> f64 {
        self.0
    }
}

/// A least and a most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    min: u32,
    max: u32,
}

impl Bounds {
    /// `min` to `max`, if that is not empty.
    #[must_use]
    pub const fn new(min: u32, max: u32) -> Option<Self> {
        if min <= max {
            Some(Self { min, max })
        } else {
            None
        }
    }

    /// The least.
    #[must_use]
    pub const fn min(self) -> u32 {
        self.min
    }

    /// The most.
    #[must_use]
    pub const fn max(self) -> u32 {
        self.max
    }

    /// The nearest number inside.
    #[must_use]
    pub const fn clamp(self, value: u32) -> u32 {
        if value < self.min {
            self.min
        } else if value > self.max {
            self.max
        } else {
            value
        }
    }
}

/// `min ≤ units of numerator ÷ units of denominator ≤ max`, with a dead band of a tenth on both sides.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RatioBand {
    /// Index of the role above the line.
    pub numerator: usize,
    /// Index of the role below the line.
    pub denominator: usize,
    /// Smallest ratio, at least 0.
    pub min: f64,
    /// Largest ratio, above 0.
    pub max: f64,
}

/// GPUs that all units together may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Budget {
    /// As many as there are.
    Unlimited,
    /// This many.
    Gpus(u32),
    /// There is a limit and it is not known: nothing grows.
    Unknown,
}

/// How fast units may be added, or removed.
#[derive(Debug, Clone, PartialEq)]
pub struct Rules {
    /// Over which time earlier demands count: the smallest of them going up, the largest going down.
    pub window: Duration,
    /// Share of the current units by which the demand must differ before anything moves.
    pub tolerance: f64,
    /// Limits of the change.
    pub limits: Vec<ChangeRule>,
    /// Which limit counts when they differ.
    pub pick: Pick,
}

impl Rules {
    /// Adding when the policy says nothing: at once, the larger of 100 % and 4 units per 15 s.
    #[must_use]
    pub fn default_up() -> Self {
        let period = Duration::from_secs(15);
        let limits = vec![
            ChangeRule {
                limit: ChangeLimit::Percent(100),
                period,
            },
            ChangeRule {
                limit: ChangeLimit::Units(4),
                period,
            },
        ];
        Self {
            window: Duration::ZERO,
            tolerance: 0.0,
            limits,
            pick: Pick::Largest,
        }
    }

    /// Removing when the policy says nothing: what was not needed for 300 s, the larger of 10 % and 1 unit per 60 s, differences above a tenth.
    #[must_use]
    pub fn default_down() -> Self {
        let period = Duration::from_secs(60);
        let limits = vec![
            ChangeRule {
                limit: ChangeLimit::Percent(10),
                period,
            },
            ChangeRule {
                limit: ChangeLimit::Units(1),
                period,
            },
        ];
        Self {
            window: Duration::from_secs(300),
            tolerance: 0.1,
            limits,
            pick: Pick::Largest,
        }
    }
}

/// One limit of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChangeRule {
    /// How much.
    pub limit: ChangeLimit,
    /// In which time.
    pub period: Duration,
}

/// How much may change in a period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeLimit {
    /// This many units.
    Units(u32),
    /// This share, in percent, of the units at the start of the period.
    Percent(u32),
}

/// Which of several limits counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pick {
    /// The one that permits the largest change.
    Largest,
    /// The one that permits the smallest change.
    Smallest,
    /// None: no change in this direction.
    Disabled,
}

/// What happens when signals are lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WhenLost {
    /// For this long the last decision is held.
    pub hold: Duration,
    /// Afterwards these units (of all sets together) apply, by role in the order of the policy; `None` holds on. Empty: all hold on.
    pub replicas: Vec<Option<u32>>,
}

/// A policy that cannot be followed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// There is nothing to size.
    #[error("roles is empty: add a role")]
    NoRole,
    /// Two roles share a name.
    #[error("roles: name \"{0}\" is used by more than one role: give each role its own name")]
    DuplicateRole(String),
    /// The ratio names no two roles.
    #[error("ratio: numerator and denominator must be two different roles")]
    RatioRoles,
    /// The ratio's bounds are no band.
    #[error("ratio: min and max must be finite, min not above max, and max above 0")]
    RatioBounds,
    /// A role sized by objective lacks it.
    #[error(
        "roles: role \"{role}\" has signal slo but no objective {objective}: add it to objectives or take another signal"
    )]
    Objective {
        /// Name of the role.
        role: String,
        /// `ttft` or `itl`.
        objective: &'static str,
    },
    /// A role sized by objective has a stage without a capacity model.
    #[error(
        "roles: role \"{0}\" has signal slo and stage Other: give it the stage it has, or take another signal"
    )]
    StageWithoutModel(String),
    /// A tolerance is no share.
    #[error("behavior: tolerance {0} is outside 0..1: write a share of the current units")]
    Tolerance(String),
}

impl Policy {
    /// A policy with these roles and limits.
    ///
    /// # Errors
    /// When there is no role, two share a name, the ratio does not name two of them or is no band, a tolerance is no share, or a role sized by
    /// objective has none.
    pub fn new(roles: Vec<RolePolicy>, limits: Limits) -> Result<Self, PolicyError> {
        if roles.is_empty() {
            return Err(PolicyError::NoRole);
        }
        let mut names = BTreeSet::new();
        for role in &roles {
            if !names.insert(role.name.as_str()) {
                return Err(PolicyError::DuplicateRole(role.name.clone()));
            }
            check_objectives(role)?;
        }
        if let Some(RatioBand {
            numerator,
            denominator,
            min,
            max,
        }) = limits.ratio
        {
            if numerator == denominator || numerator >= roles.len() || denominator >= roles.len() {
                return Err(PolicyError::RatioRoles);
            }
            if !(min.is_finite() && max.is_finite() && 0.0 <= min && min <= max && max > 0.0) {
                return Err(PolicyError::RatioBounds);
            }
        }
        for rules in [&limits.up, &limits.down] {
            if !(0.0..=1.0).contains(&rules.tolerance) {
                return Err(PolicyError::Tolerance(rules.tolerance.to_string()));
            }
        }
        Ok(Self { roles, limits })
    }

    /// The roles, in the policy's order.
    #[must_use]
    pub fn roles(&self) -> &[RolePolicy] {
        &self.roles
    }

    /// What holds for all roles together.
    #[must_use]
    pub const fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The same policy under another budget.
    #[must_use]
    pub fn with_budget(&self, budget: Budget) -> Self {
        Self {
            roles: self.roles.clone(),
            limits: Limits {
                budget,
                ..self.limits.clone()
            },
        }
    }
}

fn check_objectives(role: &RolePolicy) -> Result<(), PolicyError> {
    let Sizing::Slo(slo) = &role.sizing else {
        return Ok(());
    };
    let missing = |objective| {
        Err(PolicyError::Objective {
            role: role.name.clone(),
            objective,
        })
    };
    match role.stage {
        Stage::Other => Err(PolicyError::StageWithoutModel(role.name.clone())),
        Stage::Prefill | Stage::Aggregated | Stage::Encode if slo.ttft.is_none() => missing("ttft"),
        Stage::Decode | Stage::Aggregated if slo.itl.is_none() => missing("itl"),
        Stage::Prefill | Stage::Aggregated | Stage::Encode | Stage::Decode => Ok(()),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn limits() -> Limits {
        Limits {
            sets: None,
            ratio: None,
            budget: Budget::Unlimited,
            startup: Duration::from_secs(120),
            up: Rules::default_up(),
            down: Rules::default_down(),
            lost: WhenLost {
                hold: Duration::from_secs(300),
                replicas: Vec::new(),
            },
            paused: false,
            traffic: true,
            scrape_interval: Duration::from_secs(5),
            interval: Duration::from_secs(5),
        }
    }

    fn role(name: &str) -> RolePolicy {
        let sizing = Sizing::PerUnit {
            source: Source::Waiting,
            target: Positive::new(4.0).unwrap(),
        };
        RolePolicy {
            name: name.to_owned(),
            stage: Stage::Aggregated,
            units: Bounds::new(1, 10).unwrap(),
            sizing,
        }
    }

    pub(crate) fn one_role() -> Policy {
        Policy::new(vec![role("server")], limits()).unwrap()
    }

    #[test]
    fn what_cannot_be_followed_is_refused_by_name() {
        assert_eq!(Policy::new(Vec::new(), limits()), Err(PolicyError::NoRole));
        assert_eq!(
            Policy::new(vec![role("a"), role("a")], limits()),
            Err(PolicyError::DuplicateRole("a".to_owned()))
        );
        let ratio = |numerator, denominator, min, max| {
            Some(RatioBand {
                numerator,
                denominator,
                min,
                max,
            })
        };
        let with = |ratio| Policy::new(vec![role("a"), role("b")], Limits { ratio, ..limits() });
        assert_eq!(with(ratio(0, 0, 0.5, 2.0)), Err(PolicyError::RatioRoles));
        assert_eq!(with(ratio(0, 2, 0.5, 2.0)), Err(PolicyError::RatioRoles));
        assert_eq!(with(ratio(0, 1, 2.0, 0.5)), Err(PolicyError::RatioBounds));
        assert_eq!(
            with(ratio(0, 1, f64::NAN, 0.5)),
            Err(PolicyError::RatioBounds)
        );
        assert!(with(ratio(0, 1, 0.5, 2.0)).is_ok());
        let loose = Rules {
            tolerance: 10.0,
            ..Rules::default_down()
        };
        assert_eq!(
            Policy::new(
                vec![role("a")],
                Limits {
                    down: loose,
                    ..limits()
                }
            ),
            Err(PolicyError::Tolerance("10".to_owned()))
        );
        let slo = SloSizing {
            ttft: None,
            itl: None,
            profile: crate::capacity::tests::h200(),
        };
        let by_objective = RolePolicy {
            sizing: Sizing::Slo(Box::new(slo)),
            ..role("a")
        };
        let refused = Policy::new(vec![by_objective], limits()).unwrap_err();
        assert_eq!(
            refused,
            PolicyError::Objective {
                role: "a".to_owned(),
                objective: "ttft"
            }
        );
    }
}
