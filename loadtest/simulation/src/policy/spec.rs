//! Policies by name.

use std::fmt;
use std::str::FromStr;

use super::aibrix::DEFAULT_TARGET;
use super::aibrix::{Apa, Kpa};
use super::coordinated::{Kthena, Rbg};
use super::coppice::{Coppice, CoppiceError};
use super::disaggregated::{HeteroScale, TokenScale};
use super::dynamo::{Dynamo, Modes, Predictor};
use super::fixed::Fixed;
use super::hpa::{Hpa, Source};
use super::slo_aware::SloAware;
use super::token_aware::{DEFAULT_THETA, TokenAware};
use super::wva::{Version, Wva};
use crate::scaler::Scaler;
use crate::world::World;

/// Policies that size one pool of units, our law first, each with its usual knob.
pub const OF_ONE_POOL: &[&str] = &[
    "coppice",
    "hpa-queue",
    "hpa-kv",
    "hpa-load",
    "token-aware",
    "slo-aware",
    "wva1",
    "wva2",
    "dynamo",
    "dynamo-load",
    "dynamo-throughput",
    "apa",
    "kpa",
];
/// The same for prefill and decode.
pub const OF_PREFILL_AND_DECODE: &[&str] = &[
    "coppice",
    "hpa-queue",
    "hpa-kv",
    "hpa-load",
    "token-aware",
    "slo-aware",
    "dynamo",
    "dynamo-load",
    "dynamo-throughput",
    "kthena",
    "rbg",
    "heteroscale",
    "tokenscale",
];

/// A policy and its main knob, as people write it.
///
/// | text | policy | knob |
/// |---|---|---|
/// | `coppice`, `coppice:0.99` | our law | share of the requests to meet the objectives (0.95) |
/// | `static:4`, `static:2+3` | a fixed fleet, by role | |
/// | `hpa-queue:5` | HPA on waiting requests | target of a unit (5) |
/// | `hpa-kv:0.8` | HPA on KV use | target of a unit (0.8) |
/// | `hpa-load:0.8` | HPA on offered load | share of a unit's capacity (0.8) |
/// | `token-aware:1.5` | llm-d through KEDA | θ in seconds (1.5) |
/// | `slo-aware` | llm-d through KEDA | |
/// | `wva1`, `wva2` | llm-d's variant autoscaler | |
/// | `dynamo`, `dynamo-load`, `dynamo-throughput`, `dynamo-kalman` | Dynamo's planner: both modes, one of them, or throughput with its Kalman predictor | |
/// | `apa:0.5`, `kpa:0.5` | AIBrix | KV use of a unit (0.5) |
/// | `kthena:0.8`, `rbg:0.8` | prefill and decode kept in a band, or growing in step | share of a unit's capacity (0.8) |
/// | `heteroscale`, `tokenscale` | papers, prefill and decode only | |
#[derive(Debug, Clone, PartialEq)]
pub enum Spec {
    /// Our law.
    Coppice {
        /// Share of the requests to meet the objectives, above 0.5 and below 1.
        share: f64,
    },
    /// A fixed fleet.
    Static {
        /// Units by role.
        units: Vec<u32>,
    },
    /// An HPA.
    Hpa(Source),
    /// llm-d's token-aware rule.
    TokenAware {
        /// Seconds of prefill work a unit.
        theta: f64,
    },
    /// llm-d's SLO-aware rule.
    SloAware,
    /// llm-d's variant autoscaler.
    Wva(Version),
    /// Dynamo's planner.
    Dynamo(Modes, Predictor),
    /// AIBrix's application-specific autoscaler.
    Apa {
        /// KV use of a unit.
        target: f64,
    },
    /// AIBrix's Knative-like autoscaler.
    Kpa {
        /// KV use of a unit.
        target: f64,
    },
    /// Kthena's autoscaler.
    Kthena {
        /// Share of a unit's capacity.
        share: f64,
    },
    /// RBG's coordination over an HPA.
    Rbg {
        /// Share of a unit's capacity.
        share: f64,
    },
    /// HeteroScale.
    HeteroScale,
    /// TokenScale.
    TokenScale,
}

/// A policy that cannot be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// No policy has this name.
    #[error(
        "policy {name:?} is not known: there are coppice, static, hpa-queue, hpa-kv, hpa-load, token-aware, slo-aware, wva1, wva2, dynamo, dynamo-load, dynamo-throughput, dynamo-kalman, apa, kpa, kthena, rbg, heteroscale, tokenscale"
    )]
    Unknown {
        /// What was written.
        name: String,
    },
    /// The knob is not what the policy takes.
    #[error("policy {name}: {value:?} is not valid: {need}")]
    Knob {
        /// Policy.
        name: String,
        /// What was written behind the colon.
        value: String,
        /// What to write.
        need: &'static str,
    },
    /// The rule does not say what to do in this world.
    #[error("policy {name} is for {what}, and the scenario is not that: leave the policy out")]
    NotFor {
        /// Policy.
        name: String,
        /// What it is for.
        what: &'static str,
    },
    /// Our law cannot be set up.
    #[error(transparent)]
    Coppice(#[from] CoppiceError),
}

impl Spec {
    /// The policy, set up for a world.
    ///
    /// # Errors
    /// When the rule is not for such a world, or a fixed fleet has not one number for each role.
    pub fn build(&self, world: &World) -> Result<Box<dyn Scaler + Send>, SpecError> {
        let only = |holds: bool, what: &'static str| {
            if holds {
                Ok(())
            } else {
                Err(SpecError::NotFor {
                    name: self.to_string(),
                    what,
                })
            }
        };
        let pool = || only(!world.is_disaggregated(), "one pool");
        let split = || only(world.is_disaggregated(), "prefill and decode");
        Ok(match self {
            Self::Coppice { share } => Box::new(Coppice::new(world, *share)?),
            Self::Static { units } => {
                only(
                    units.len() == world.roles().len(),
                    "as many roles as it gives numbers",
                )?;
                Box::new(Fixed::new(units.clone()))
            }
            Self::Hpa(source) => Box::new(Hpa::new(world, *source)),
            Self::TokenAware { theta } => Box::new(TokenAware::new(world, *theta)),
            Self::SloAware => Box::new(SloAware::new(world)),
            Self::Wva(version) => {
                pool()?;
                Box::new(Wva::new(world, *version))
            }
            Self::Dynamo(modes, predictor) => Box::new(Dynamo::new(world, *modes, *predictor)),
            Self::Apa { target } => {
                pool()?;
                Box::new(Apa::new(*target))
            }
            Self::Kpa { target } => {
                pool()?;
                Box::new(Kpa::new(*target))
            }
            Self::Kthena { share } => {
                split()?;
                Box::new(Kthena::new(world, *share))
            }
            Self::Rbg { share } => {
                split()?;
                Box::new(Rbg::new(world, *share))
            }
            Self::HeteroScale => {
                split()?;
                Box::new(HeteroScale::new(world))
            }
            Self::TokenScale => {
                split()?;
                Box::new(TokenScale::new(world))
            }
        })
    }
}

/// Reads a knob, or takes its default.
struct Knob<'a> {
    name: &'a str,
    value: Option<&'a str>,
}

impl Knob<'_> {
    fn refuse(&self, need: &'static str) -> SpecError {
        SpecError::Knob {
            name: self.name.to_owned(),
            value: self.value.unwrap_or("").to_owned(),
            need,
        }
    }

    fn number(
        &self,
        default: f64,
        least: f64,
        most: f64,
        need: &'static str,
    ) -> Result<f64, SpecError> {
        let Some(text) = self.value else {
            return Ok(default);
        };
        let number: f64 = text.parse().map_err(|_| self.refuse(need))?;
        if number.is_finite() && number >= least && number <= most {
            Ok(number)
        } else {
            Err(self.refuse(need))
        }
    }

    fn none(&self) -> Result<(), SpecError> {
        match self.value {
            None => Ok(()),
            Some(_) => Err(self.refuse("it has no knob: write the name alone")),
        }
    }

    fn units(&self) -> Result<Vec<u32>, SpecError> {
        const NEED: &str = "write a number for each role, such as 4 or 2+3";
        let text = self.value.ok_or_else(|| self.refuse(NEED))?;
        let numbers = text.split('+').map(|number| number.trim().parse());
        numbers
            .collect::<Result<_, _>>()
            .map_err(|_| self.refuse(NEED))
    }
}

impl FromStr for Spec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let (name, value) = match text.split_once(':') {
            Some((name, value)) => (name, Some(value)),
            None => (text, None),
        };
        let knob = Knob { name, value };
        let share = "write a share above 0 and up to 1, such as 0.8";
        let plain = |spec: Self| knob.none().map(|()| spec);
        match name {
            "coppice" => {
                let need = "write a share from 0.5 to 0.99, such as 0.95";
                let share = knob.number(0.95, 0.5, 0.99, need)?;
                Ok(Self::Coppice { share })
            }
            "static" => knob.units().map(|units| Self::Static { units }),
            "hpa-queue" => {
                let need = "write waiting requests a unit, from 0.1 to 10000";
                let target = knob.number(5.0, 0.1, 10_000.0, need)?;
                Ok(Self::Hpa(Source::Queue { target }))
            }
            "hpa-kv" => {
                let target = knob.number(0.8, 0.001, 1.0, share)?;
                Ok(Self::Hpa(Source::KvUsage { target }))
            }
            "hpa-load" => {
                let share = knob.number(0.8, 0.001, 1.0, share)?;
                Ok(Self::Hpa(Source::Throughput { share }))
            }
            "token-aware" => {
                let need = "write seconds from 0.01 to 600";
                let theta = knob.number(DEFAULT_THETA, 0.01, 600.0, need)?;
                Ok(Self::TokenAware { theta })
            }
            "slo-aware" => plain(Self::SloAware),
            "wva1" => plain(Self::Wva(Version::V1)),
            "wva2" => plain(Self::Wva(Version::V2)),
            "dynamo" => plain(Self::Dynamo(Modes::Both, Predictor::Constant)),
            "dynamo-load" => plain(Self::Dynamo(Modes::Load, Predictor::Constant)),
            "dynamo-throughput" => plain(Self::Dynamo(Modes::Throughput, Predictor::Constant)),
            "dynamo-kalman" => plain(Self::Dynamo(Modes::Throughput, Predictor::Kalman)),
            "apa" => {
                let target = knob.number(DEFAULT_TARGET, 0.001, 1.0, share)?;
                Ok(Self::Apa { target })
            }
            "kpa" => {
                let target = knob.number(DEFAULT_TARGET, 0.001, 1.0, share)?;
                Ok(Self::Kpa { target })
            }
            "kthena" => {
                let share = knob.number(0.8, 0.001, 1.0, share)?;
                Ok(Self::Kthena { share })
            }
            "rbg" => {
                let share = knob.number(0.8, 0.001, 1.0, share)?;
                Ok(Self::Rbg { share })
            }
            "heteroscale" => plain(Self::HeteroScale),
            "tokenscale" => plain(Self::TokenScale),
            _ => Err(SpecError::Unknown {
                name: name.to_owned(),
            }),
        }
    }
}

impl fmt::Display for Spec {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Coppice { share } => write!(formatter, "coppice:{share}"),
            Self::Static { units } => {
                let units: Vec<String> = units.iter().map(u32::to_string).collect();
                write!(formatter, "static:{}", units.join("+"))
            }
            Self::Hpa(Source::Queue { target }) => write!(formatter, "hpa-queue:{target}"),
            Self::Hpa(Source::KvUsage { target }) => write!(formatter, "hpa-kv:{target}"),
            Self::Hpa(Source::Throughput { share }) => write!(formatter, "hpa-load:{share}"),
            Self::TokenAware { theta } => write!(formatter, "token-aware:{theta}"),
            Self::SloAware => formatter.write_str("slo-aware"),
            Self::Wva(Version::V1) => formatter.write_str("wva1"),
            Self::Wva(Version::V2) => formatter.write_str("wva2"),
            Self::Dynamo(Modes::Both, _) => formatter.write_str("dynamo"),
            Self::Dynamo(Modes::Load, _) => formatter.write_str("dynamo-load"),
            Self::Dynamo(Modes::Throughput, Predictor::Constant) => {
                formatter.write_str("dynamo-throughput")
            }
            Self::Dynamo(Modes::Throughput, Predictor::Kalman) => {
                formatter.write_str("dynamo-kalman")
            }
            Self::Apa { target } => write!(formatter, "apa:{target}"),
            Self::Kpa { target } => write!(formatter, "kpa:{target}"),
            Self::Kthena { share } => write!(formatter, "kthena:{share}"),
            Self::Rbg { share } => write!(formatter, "rbg:{share}"),
            Self::HeteroScale => formatter.write_str("heteroscale"),
            Self::TokenScale => formatter.write_str("tokenscale"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::testing::{disaggregated, pool};

    #[test]
    fn every_policy_is_read_written_and_built() {
        for text in [
            "coppice:0.95",
            "static:4",
            "static:2+3",
            "hpa-queue:5",
            "hpa-kv:0.8",
            "hpa-load:0.8",
            "token-aware:1.5",
            "slo-aware",
            "wva1",
            "wva2",
            "dynamo",
            "dynamo-load",
            "dynamo-throughput",
            "dynamo-kalman",
            "apa:0.5",
            "kpa:0.5",
            "kthena:0.8",
            "rbg:0.8",
            "heteroscale",
            "tokenscale",
        ] {
            let spec: Spec = text.parse().unwrap();
            assert_eq!(spec.to_string(), text);
            let built = [pool(), disaggregated()].map(|world| spec.build(&world).is_ok());
            assert!(built[0] || built[1], "{text} is for nobody");
        }
    }

    #[test]
    fn nonsense_names_policy_value_and_what_to_write() {
        let refusal = |text: &str| text.parse::<Spec>().unwrap_err().to_string();
        assert!(refusal("hpa").starts_with("policy \"hpa\" is not known: there are coppice"));
        assert_eq!(
            refusal("coppice:1.5"),
            "policy coppice: \"1.5\" is not valid: write a share from 0.5 to 0.99, such as 0.95"
        );
        assert!(refusal("static").contains("a number for each role"));
        assert!(refusal("wva1:3").contains("no knob"));
        let wva: Spec = "wva1".parse().unwrap();
        assert_eq!(
            wva.build(&disaggregated()).unwrap_err().to_string(),
            "policy wva1 is for one pool, and the scenario is not that: leave the policy out"
        );
    }
}
