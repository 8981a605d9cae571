//! Conditions of a policy.

use coppice_scaler_api::{ConditionType, Reason, ScalingPolicySpec};
use coppice_scaler_plan::{Age, Because, Decision, Limit, Problem};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use crate::pool::Standing;

/// What the conditions are made from.
#[derive(Debug)]
pub(crate) struct Facts<'a> {
    pub(crate) spec: &'a ScalingPolicySpec,
    pub(crate) generation: Option<i64>,
    /// Why the policy cannot be followed.
    pub(crate) trouble: Option<(Reason, String)>,
    pub(crate) decision: Option<&'a Decision>,
    /// Why the gateway's load is not known.
    pub(crate) traffic_trouble: Option<&'a str>,
    /// How the policy stands with the pool that its budget names.
    pub(crate) standing: &'a Standing,
}

struct State {
    holds: bool,
    reason: Reason,
    message: String,
}

impl State {
    fn new(holds: bool, reason: Reason, message: impl Into<String>) -> Self {
        Self {
            holds,
            reason,
            message: message.into(),
        }
    }
}

/// All conditions; `lastTransitionTime` is kept from `before` where the status is the same.
pub(crate) fn conditions(
    facts: &Facts<'_>,
    before: &[Condition],
    now: Timestamp,
) -> Vec<Condition> {
    let mut states = vec![(ConditionType::Ready, ready(facts))];
    if let Some(decision) = facts.decision {
        states.push((ConditionType::MetricsAvailable, metrics(facts, decision)));
        states.push((ConditionType::ScalingLimited, limited(facts, decision)));
        if facts.spec.budget.is_some() {
            states.push((ConditionType::BudgetLimited, budget(facts, decision)));
        }
        if facts
            .spec
            .roles
            .iter()
            .any(|role| role.signal.slo.is_some())
        {
            states.push((ConditionType::ObjectivesFeasible, feasible(facts, decision)));
        }
        states.push((ConditionType::TargetConflict, conflict(facts, decision)));
    }
    states
        .into_iter()
        .map(|(type_, state)| condition(type_, state, facts.generation, before, now))
        .collect()
}

fn condition(
    type_: ConditionType,
    state: State,
    generation: Option<i64>,
    before: &[Condition],
    now: Timestamp,
) -> Condition {
    let status = if state.holds { "True" } else { "False" };
    let same = before
        .iter()
        .find(|condition| condition.type_ == type_.as_str() && condition.status == status);
    Condition {
        type_: type_.as_str().to_owned(),
        status: status.to_owned(),
        reason: state.reason.as_str().to_owned(),
        message: state.message,
        observed_generation: generation,
        last_transition_time: same.map_or(Time(now), |condition| {
            condition.last_transition_time.clone()
        }),
    }
}

fn ready(facts: &Facts<'_>) -> State {
    match (&facts.trouble, facts.decision) {
        (Some((reason, message)), _) => State::new(false, *reason, message),
        (None, Some(decision)) => {
            let impossible = decision.problems.iter().find_map(|problem| match problem {
                Problem::QuorumAboveMaximum { role, quorum } => Some((role, quorum)),
                Problem::Infeasible { .. } | Problem::BudgetBelowMinimum { .. } => None,
            });
            match impossible {
                Some((role, quorum)) => State::new(
                    false,
                    Reason::InvalidPolicy,
                    format!(
                        "roles: {} needs {quorum} units (minAvailable) and has a lower max: raise max",
                        name(facts, *role)
                    ),
                ),
                None => State::new(true, Reason::AsExpected, "the policy is followed"),
            }
        }
        (None, None) => State::new(true, Reason::AsExpected, "the policy is followed"),
    }
}

fn metrics(facts: &Facts<'_>, decision: &Decision) -> State {
    let worst = decision
        .roles
        .iter()
        .enumerate()
        .max_by_key(|(_, role)| role.age);
    let Some((index, role)) = worst else {
        return State::new(true, Reason::AsExpected, "signals are fresh");
    };
    let role_name = name(facts, index);
    match (role.age, facts.traffic_trouble) {
        (Age::Fresh, None) => State::new(true, Reason::AsExpected, "signals are fresh"),
        (Age::Fresh, Some(trouble)) => State::new(
            false,
            Reason::TrafficUnknown,
            format!(
                "traffic: the offered load is inferred from the engines, so nothing is removed: {trouble}"
            ),
        ),
        (Age::Stale, _) => State::new(
            false,
            Reason::MetricsStale,
            format!("signals of {role_name} are stale: nothing is removed"),
        ),
        (Age::Held, _) => State::new(
            false,
            Reason::MetricsStale,
            format!("signals of {role_name} are old: it is held"),
        ),
        (Age::Starting, trouble) => {
            let detail = trouble
                .map(|trouble| format!(": {trouble}"))
                .unwrap_or_default();
            State::new(
                false,
                Reason::Starting,
                format!("signals of {role_name} have not been measured yet: it is held{detail}"),
            )
        }
        (Age::Lost, trouble) => {
            let detail = trouble
                .map(|trouble| format!(": {trouble}"))
                .unwrap_or_default();
            State::new(
                false,
                Reason::MetricsLost,
                format!("signals of {role_name} are lost{detail}; onMetricsLost says what follows"),
            )
        }
    }
}

fn limited(facts: &Facts<'_>, decision: &Decision) -> State {
    let limiting = |limit: Limit| {
        (0..decision.roles.len())
            .filter(|role| decision.roles[*role].limited_by.contains(&limit))
            .collect::<Vec<_>>()
    };
    let names = |roles: &[usize]| {
        roles
            .iter()
            .map(|role| name(facts, *role))
            .collect::<Vec<_>>()
            .join(", ")
    };
    let stuck = limiting(Limit::Unschedulable);
    if !stuck.is_empty() {
        return State::new(
            true,
            Reason::Unschedulable,
            format!(
                "pods of {} cannot be scheduled: nothing is added",
                names(&stuck)
            ),
        );
    }
    let unknown = limiting(Limit::UnknownGpus);
    if !unknown.is_empty() {
        let message = format!(
            "the GPUs of a unit of {} are not known: set gpusPerUnit",
            names(&unknown)
        );
        return State::new(true, Reason::GpusUnknown, message);
    }
    let at_budget = limiting(Limit::Budget);
    if !at_budget.is_empty() {
        return State::new(
            true,
            Reason::BudgetExhausted,
            format!(
                "the budget keeps {} from what the load needs",
                names(&at_budget)
            ),
        );
    }
    let at_maximum = limiting(Limit::Max);
    if !at_maximum.is_empty() {
        return State::new(
            true,
            Reason::AtMaximum,
            format!("{} would need more than max allows", names(&at_maximum)),
        );
    }
    State::new(
        false,
        Reason::WithinLimits,
        "no limit keeps a role from what the load needs",
    )
}

fn budget(facts: &Facts<'_>, decision: &Decision) -> State {
    if let Standing::Unavailable(why) = facts.standing {
        return State::new(true, Reason::BudgetUnavailable, why);
    }
    let below = decision.problems.iter().find_map(|problem| match problem {
        Problem::BudgetBelowMinimum { minimum, limit } => Some((minimum, limit)),
        Problem::Infeasible { .. } | Problem::QuorumAboveMaximum { .. } => None,
    });
    if let Some((minimum, limit)) = below {
        let message = match facts.standing {
            Standing::Member {
                pool, limit: all, ..
            } => format!(
                "GpuBudget \"{pool}\" has {limit} of its {all} GPUs for this policy, below the {minimum} GPUs of all minimums: raise its spec.limit, lower min, or take a class of higher priority"
            ),
            Standing::Alone | Standing::Unavailable(_) => format!(
                "budget.gpus {limit} is below the {minimum} GPUs of all minimums: raise budget.gpus or lower min"
            ),
        };
        return State::new(true, Reason::BudgetExhausted, message);
    }
    let cuts = |limits: &std::collections::BTreeSet<Limit>| limits.contains(&Limit::Budget);
    let bites =
        decision.roles.iter().any(|role| cuts(&role.limited_by)) || cuts(&decision.sets.limited_by);
    if bites {
        let message = match facts.standing {
            Standing::Member {
                pool,
                limit,
                allotted,
                ..
            } => format!(
                "GpuBudget \"{pool}\" has {allotted} of its {limit} GPUs for this policy now, and others hold or need the rest"
            ),
            Standing::Alone | Standing::Unavailable(_) => {
                "the budget has room for no more".to_owned()
            }
        };
        State::new(true, Reason::BudgetExhausted, message)
    } else {
        State::new(false, Reason::WithinLimits, "the budget has room")
    }
}

fn feasible(facts: &Facts<'_>, decision: &Decision) -> State {
    let infeasible = decision.problems.iter().find_map(|problem| match problem {
        Problem::Infeasible { role } => Some(*role),
        Problem::QuorumAboveMaximum { .. } | Problem::BudgetBelowMinimum { .. } => None,
    });
    match infeasible {
        None => State::new(true, Reason::AsExpected, "the objectives can be met"),
        Some(role) => State::new(
            false,
            Reason::Infeasible,
            format!(
                "no number of units of {} meets its objective; it is sized by utilisation: relax objectives, or correct the profile",
                name(facts, role)
            ),
        ),
    }
}

fn conflict(facts: &Facts<'_>, decision: &Decision) -> State {
    match decision
        .roles
        .iter()
        .position(|role| role.because == Because::Conflict)
    {
        None => State::new(false, Reason::AsExpected, "nobody else writes the replicas"),
        Some(role) => State::new(
            true,
            Reason::OtherWriter,
            format!(
                "someone else writes the replicas of {}, so they are held: remove the other autoscaler, or set actuation to Metric",
                name(facts, role)
            ),
        ),
    }
}

fn name(facts: &Facts<'_>, role: usize) -> String {
    facts
        .spec
        .roles
        .get(role)
        .map_or_else(|| role.to_string(), |role| format!("\"{}\"", role.name))
}
