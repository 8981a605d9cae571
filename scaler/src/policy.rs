//! From a ScalingPolicy as it is written to a policy that cannot be wrong.

use std::collections::BTreeMap;
use std::time::Duration;

use coppice_scaler_api as api;
use coppice_scaler_plan as plan;

/// A policy that cannot be followed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Invalid {
    /// A role sets no signal, or several.
    #[error("roles: role \"{role}\" sets {count} signals: keep exactly one")]
    Signals { role: String, count: usize },
    /// A number is out of its range.
    #[error("roles: role \"{role}\" has {field} {value}: {need}")]
    Number {
        role: String,
        field: &'static str,
        value: String,
        need: &'static str,
    },
    /// The sets' bounds are empty.
    #[error("sets: min {min} is above max {max}: lower min or raise max")]
    Sets { min: u32, max: u32 },
    /// A role named elsewhere does not exist.
    #[error("{field}: role \"{role}\" is not one of roles: use the name of a role")]
    UnknownRole { field: &'static str, role: String },
    /// A role sized by objective has no profile.
    #[error(
        "roles: role \"{role}\" has signal slo and no profile: add profile.configMap, or take another signal"
    )]
    NoProfile { role: String },
    /// What remains is not a policy.
    #[error(transparent)]
    Plan(#[from] plan::PolicyError),
}

/// How often things are looked at.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    pub(crate) interval: Duration,
    pub(crate) scrape_interval: Duration,
}

/// The policy that `spec` asks for, with the profiles of the roles that name one.
///
/// # Errors
/// [`Invalid`], naming field, value and next step. The schema refuses all of these; an object may be older than its rules.
pub(crate) fn validate(
    spec: &api::ScalingPolicySpec,
    profiles: &BTreeMap<String, plan::Profile>,
    pace: Pace,
) -> Result<plan::Policy, Invalid> {
    let roles = spec
        .roles
        .iter()
        .map(|role| role_policy(spec, role, profiles))
        .collect::<Result<Vec<_>, _>>()?;
    let index = |field: &'static str, name: &String| {
        let found = spec.roles.iter().position(|role| role.name == *name);
        found.ok_or_else(|| Invalid::UnknownRole {
            field,
            role: name.clone(),
        })
    };
    let ratio = match &spec.ratio {
        None => None,
        Some(band) => Some(plan::RatioBand {
            numerator: index("ratio", &band.numerator)?,
            denominator: index("ratio", &band.denominator)?,
            min: band.min.as_f64(),
            max: band.max.as_f64(),
        }),
    };
    let sets = match spec.sets {
        None => None,
        Some(api::SetLimits { min, max }) => {
            Some(plan::Bounds::new(min, max).ok_or(Invalid::Sets { min, max })?)
        }
    };
    let lost = &spec.on_metrics_lost;
    let replicas = lost
        .replicas
        .as_ref()
        .filter(|_| lost.then == api::AfterHold::Fallback);
    if let Some(name) =
        replicas.and_then(|replicas| replicas.keys().find(|name| index("", name).is_err()))
    {
        return Err(Invalid::UnknownRole {
            field: "onMetricsLost.replicas",
            role: name.clone(),
        });
    }
    let behavior = spec.behavior.clone().unwrap_or_default();
    let limits = plan::Limits {
        sets,
        ratio,
        budget: budget(spec.budget.as_ref()),
        startup: spec.startup.assume.into(),
        up: rules(behavior.scale_up.as_ref(), plan::Rules::default_up()),
        down: rules(behavior.scale_down.as_ref(), plan::Rules::default_down()),
        lost: plan::WhenLost {
            hold: lost.hold.into(),
            replicas: spec
                .roles
                .iter()
                .map(|role| replicas.and_then(|replicas| replicas.get(&role.name).copied()))
                .collect(),
        },
        paused: spec.mode == api::Mode::Paused,
        traffic: spec.traffic.is_some(),
        scrape_interval: pace.scrape_interval,
        interval: pace.interval,
    };
    Ok(plan::Policy::new(roles, limits)?)
}

/// What a policy that names a GpuBudget may hold depends on others (see `pool`): until that is known, nothing grows.
fn budget(budget: Option<&api::Budget>) -> plan::Budget {
    match budget {
        None => plan::Budget::Unlimited,
        Some(budget) => budget
            .gpus
            .map_or(plan::Budget::Unknown, plan::Budget::Gpus),
    }
}

fn role_policy(
    spec: &api::ScalingPolicySpec,
    role: &api::Role,
    profiles: &BTreeMap<String, plan::Profile>,
) -> Result<plan::RolePolicy, Invalid> {
    let number = |field: &'static str, value: String, need: &'static str| Invalid::Number {
        role: role.name.clone(),
        field,
        value,
        need,
    };
    let units = plan::Bounds::new(role.min, role.max).ok_or_else(|| {
        number(
            "min",
            format!("{} above max {}", role.min, role.max),
            "lower min or raise max",
        )
    })?;
    let positive = |field: &'static str, value: api::Decimal| {
        plan::Positive::new(value.as_f64())
            .ok_or_else(|| number(field, value.to_string(), "write a number above 0"))
    };
    let kind = role.signal.kind().map_err(|count| Invalid::Signals {
        role: role.name.clone(),
        count,
    })?;
    let per_unit = |source, target| plan::Sizing::PerUnit { source, target };
    let sizing = match kind {
        api::SignalKind::Slo(_) => {
            let profile = *profiles.get(&role.name).ok_or_else(|| Invalid::NoProfile {
                role: role.name.clone(),
            })?;
            let (ttft, itl) = objectives(spec.objectives);
            plan::Sizing::Slo(Box::new(plan::SloSizing { ttft, itl, profile }))
        }
        api::SignalKind::TokenThroughput(signal) => match (
            signal.input_tokens_per_second,
            signal.output_tokens_per_second,
        ) {
            (Some(input), None) => per_unit(
                plan::Source::InputTokens,
                positive("inputTokensPerSecond", input)?,
            ),
            (None, Some(output)) => per_unit(
                plan::Source::OutputTokens,
                positive("outputTokensPerSecond", output)?,
            ),
            (None, None) | (Some(_), Some(_)) => {
                return Err(number(
                    "tokenThroughput",
                    "neither or both fields".to_owned(),
                    "set exactly one",
                ));
            }
        },
        api::SignalKind::QueueDepth(signal) => per_unit(
            plan::Source::Waiting,
            positive("waitingPerUnit", signal.waiting_per_unit)?,
        ),
        api::SignalKind::KvCacheUsage(signal) => per_unit(
            plan::Source::KvUsage,
            positive("kvCacheUsage.target", signal.target)?,
        ),
        api::SignalKind::Metric(signal) => per_unit(
            plan::Source::Metric,
            positive("targetPerUnit", signal.target_per_unit)?,
        ),
    };
    let stage = match role.stage {
        api::Stage::Prefill => plan::Stage::Prefill,
        api::Stage::Decode => plan::Stage::Decode,
        api::Stage::Aggregated => plan::Stage::Aggregated,
        api::Stage::Encode => plan::Stage::Encode,
        api::Stage::Other => plan::Stage::Other,
    };
    Ok(plan::RolePolicy {
        name: role.name.clone(),
        stage,
        units,
        sizing,
    })
}

fn objectives(
    objectives: Option<api::Objectives>,
) -> (Option<plan::Objective>, Option<plan::Objective>) {
    let share = |percentile: u32| f64::from(percentile.clamp(50, 99)) / 100.0;
    let ttft = objectives
        .and_then(|objectives| objectives.ttft)
        .map(|ttft| plan::Objective {
            share: share(ttft.percentile),
            target: ttft.target.into(),
            per_input_token: ttft.per_input_token.unwrap_or_default().into(),
        });
    let itl = objectives
        .and_then(|objectives| objectives.itl)
        .map(|itl| plan::Objective {
            share: share(itl.percentile),
            target: itl.target.into(),
            per_input_token: Duration::ZERO,
        });
    (ttft, itl)
}

/// The rules of one direction; what is not said is the direction's default.
fn rules(written: Option<&api::ScalingRules>, default: plan::Rules) -> plan::Rules {
    let Some(written) = written else {
        return default;
    };
    let limit = |rule: &api::ScalingRule| plan::ChangeRule {
        limit: match rule.type_ {
            api::PolicyType::Pods => plan::ChangeLimit::Units(rule.value),
            api::PolicyType::Percent => plan::ChangeLimit::Percent(rule.value),
        },
        period: Duration::from_secs(rule.period_seconds.into()),
    };
    plan::Rules {
        window: written
            .stabilization_window_seconds
            .map_or(default.window, |seconds| {
                Duration::from_secs(seconds.into())
            }),
        tolerance: written
            .tolerance
            .map_or(default.tolerance, api::Decimal::as_f64),
        limits: written
            .policies
            .as_ref()
            .map_or(default.limits, |policies| {
                policies.iter().map(limit).collect()
            }),
        pick: match written.select_policy {
            api::SelectPolicy::Max => plan::Pick::Largest,
            api::SelectPolicy::Min => plan::Pick::Smallest,
            api::SelectPolicy::Disabled => plan::Pick::Disabled,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    const PACE: Pace = Pace {
        interval: Duration::from_secs(5),
        scrape_interval: Duration::from_secs(5),
    };

    fn spec(change: impl FnOnce(&mut Value)) -> api::ScalingPolicySpec {
        let mut value = json!({
            "target": {"apiVersion": "grove.io/v1alpha1", "kind": "PodCliqueSet", "name": "qwen3"},
            "traffic": {"endpoints": {"address": "127.0.0.1:8080"}},
            "roles": [
                {"name": "prefill", "stage": "Prefill", "scales": {"kind": "PodCliqueScalingGroup", "name": "prefill"}, "min": 1, "max": 16,
                 "signal": {"tokenThroughput": {"inputTokensPerSecond": 10000}}},
                {"name": "decode", "stage": "Decode", "scales": {"kind": "PodCliqueScalingGroup", "name": "decode"}, "min": 2, "max": 32,
                 "signal": {"tokenThroughput": {"outputTokensPerSecond": "2500.5"}}},
            ],
            "sets": {"min": 1, "max": 4},
            "ratio": {"numerator": "prefill", "denominator": "decode", "min": "0.25", "max": "2"},
            "budget": {"gpus": 64},
            "startup": {"assume": "90s"},
            "behavior": {"scaleDown": {"stabilizationWindowSeconds": 60, "policies": [{"type": "Pods", "value": 2, "periodSeconds": 30}]}},
            "onMetricsLost": {"hold": "2m", "then": "Fallback", "replicas": {"decode": 6}},
        });
        change(&mut value);
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn every_field_reaches_the_plan() {
        let policy = validate(&spec(|_| {}), &BTreeMap::new(), PACE).unwrap();
        let limits = policy.limits();
        assert_eq!(limits.sets, plan::Bounds::new(1, 4));
        assert_eq!(
            limits.ratio,
            Some(plan::RatioBand {
                numerator: 0,
                denominator: 1,
                min: 0.25,
                max: 2.0
            })
        );
        assert_eq!(limits.budget, plan::Budget::Gpus(64));
        assert_eq!(limits.startup, Duration::from_secs(90));
        assert_eq!(limits.up, plan::Rules::default_up());
        let rule = plan::ChangeRule {
            limit: plan::ChangeLimit::Units(2),
            period: Duration::from_secs(30),
        };
        let down = plan::Rules {
            window: Duration::from_secs(60),
            limits: vec![rule],
            ..plan::Rules::default_down()
        };
        assert_eq!(limits.down, down);
        assert_eq!(
            limits.lost,
            plan::WhenLost {
                hold: Duration::from_secs(120),
                replicas: vec![None, Some(6)]
            }
        );
        assert!(limits.traffic && !limits.paused);
        let decode = &policy.roles()[1];
        assert_eq!(
            (decode.stage, decode.units),
            (plan::Stage::Decode, plan::Bounds::new(2, 32).unwrap())
        );
        let target = plan::Positive::new(2_500.5).unwrap();
        assert_eq!(
            decode.sizing,
            plan::Sizing::PerUnit {
                source: plan::Source::OutputTokens,
                target
            }
        );
    }

    #[test]
    fn a_pool_that_is_not_granted_from_forbids_growth() {
        let pooled = spec(|spec| spec["budget"] = json!({"name": "h200-pool"}));
        assert_eq!(
            validate(&pooled, &BTreeMap::new(), PACE)
                .unwrap()
                .limits()
                .budget,
            plan::Budget::Unknown
        );
    }

    #[test]
    fn objects_older_than_their_rules_are_refused_by_name() {
        let refused = |change: fn(&mut Value)| {
            validate(&spec(change), &BTreeMap::new(), PACE)
                .unwrap_err()
                .to_string()
        };
        let two =
            refused(|spec| spec["roles"][0]["signal"]["queueDepth"] = json!({"waitingPerUnit": 4}));
        assert_eq!(
            two,
            "roles: role \"prefill\" sets 2 signals: keep exactly one"
        );
        let upside_down = refused(|spec| spec["roles"][0]["min"] = json!(17));
        assert_eq!(
            upside_down,
            "roles: role \"prefill\" has min 17 above max 16: lower min or raise max"
        );
        let stranger = refused(|spec| spec["ratio"]["numerator"] = json!("draft"));
        assert_eq!(
            stranger,
            "ratio: role \"draft\" is not one of roles: use the name of a role"
        );
        let zero = refused(|spec| {
            spec["roles"][0]["signal"]["tokenThroughput"]["inputTokensPerSecond"] = json!(0)
        });
        assert_eq!(
            zero,
            "roles: role \"prefill\" has inputTokensPerSecond 0: write a number above 0"
        );
        let bare = refused(|spec| spec["roles"][0]["signal"] = json!({"slo": {}}));
        assert!(bare.contains("no profile: add profile.configMap"), "{bare}");
    }
}
