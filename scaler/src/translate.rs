//! From a decision to the record in a policy's status.

use coppice_scaler_api as api;
use coppice_scaler_plan as plan;
use jiff::Timestamp;

/// The part of the status that a decision fills: decision, roles, sets. Conditions, generation and history are added by others.
pub(crate) fn record(
    spec: &api::ScalingPolicySpec,
    is_set: bool,
    decision: &plan::Decision,
    now: Timestamp,
) -> api::ScalingPolicyStatus {
    let roles = spec
        .roles
        .iter()
        .zip(&decision.roles)
        .map(|(role, decided)| role_status(role, is_set, decided));
    let sets = is_set.then(|| api::SetsStatus {
        current: decision.sets.current,
        wanted: decision.sets.wanted,
        limited_by: decision
            .sets
            .limited_by
            .iter()
            .map(|limit| limited_by(*limit))
            .collect(),
    });
    let gpus = decision.gpus.as_ref().map(|gpus| api::GpuStatus {
        wanted: whole(gpus.wanted),
        limit: whole(gpus.limit),
    });
    let mut status = api::ScalingPolicyStatus {
        roles: roles.collect(),
        sets,
        ..api::ScalingPolicyStatus::default()
    };
    status.decision = Some(api::DecisionStatus {
        at: now,
        summary: String::new(),
        sentence: String::new(),
        served_fraction: api::Decimal::rounded(decision.served_fraction, 3).unwrap_or_default(),
        gpus,
    });
    let (summary, sentence) = (api::summary(&status), api::sentence(&status));
    if let Some(decision) = &mut status.decision {
        (decision.summary, decision.sentence) = (summary, sentence);
    }
    status
}

fn role_status(role: &api::Role, is_set: bool, decided: &plan::RoleDecision) -> api::RoleStatus {
    let share = |share: &plan::Share| api::SetShare {
        set: share.set,
        current: share.current.unwrap_or(0),
        wanted: share.wanted,
    };
    let signal = |(quantity, value): &(plan::Quantity, f64)| {
        let value = significant(*value)?;
        Some(api::SignalValue {
            name: quantity.name().to_owned(),
            value,
            unit: quantity.unit().to_owned(),
        })
    };
    api::RoleStatus {
        name: role.name.clone(),
        kind: role.scales.as_ref().map(|scales| scales.kind),
        current: decided.current,
        ready: decided.ready,
        wanted: decided.wanted,
        because: because(decided.because),
        limited_by: decided
            .limited_by
            .iter()
            .map(|limit| limited_by(*limit))
            .collect(),
        per_set: if is_set {
            decided.shares.iter().map(share).collect()
        } else {
            Vec::new()
        },
        signals: decided.values.iter().filter_map(signal).collect(),
    }
}

/// The value to three significant digits, six behind the point at most.
fn significant(value: f64) -> Option<api::Decimal> {
    let digits = (0..=6)
        .find(|digits| value.abs() * 10_f64.powi(*digits) >= 100.0)
        .unwrap_or(6);
    api::Decimal::rounded(value, digits.unsigned_abs())
}

fn whole(gpus: u64) -> u32 {
    u32::try_from(gpus).unwrap_or(u32::MAX)
}

pub(crate) fn because(because: plan::Because) -> api::Because {
    match because {
        plan::Because::Load => api::Because::Load,
        plan::Because::Minimum => api::Because::Minimum,
        plan::Because::Ratio => api::Because::Ratio,
        plan::Because::Tolerance => api::Because::Tolerance,
        plan::Because::Stabilization => api::Because::Stabilization,
        plan::Because::Budget => api::Because::Budget,
        plan::Because::Maximum => api::Because::Maximum,
        plan::Because::Rate => api::Because::Rate,
        plan::Because::Held => api::Because::Held,
        plan::Because::Starting => api::Because::Starting,
        plan::Because::MetricsStale => api::Because::MetricsStale,
        plan::Because::MetricsLost => api::Because::MetricsLost,
        plan::Because::Fallback => api::Because::Fallback,
        plan::Because::Idle => api::Because::Idle,
        plan::Because::Wake => api::Because::Wake,
        plan::Because::Paused => api::Because::Paused,
        plan::Because::Conflict => api::Because::Conflict,
    }
}

fn limited_by(limit: plan::Limit) -> api::LimitedBy {
    match limit {
        plan::Limit::Min => api::LimitedBy::Min,
        plan::Limit::Max => api::LimitedBy::Max,
        plan::Limit::SetsMin => api::LimitedBy::SetsMin,
        plan::Limit::SetsMax => api::LimitedBy::SetsMax,
        plan::Limit::Budget => api::LimitedBy::Budget,
        plan::Limit::UnknownGpus => api::LimitedBy::UnknownGpus,
        plan::Limit::Ratio => api::LimitedBy::Ratio,
        plan::Limit::ScaleUpRate => api::LimitedBy::ScaleUpRate,
        plan::Limit::ScaleDownRate => api::LimitedBy::ScaleDownRate,
        plan::Limit::StabilizationWindow => api::LimitedBy::StabilizationWindow,
        plan::Limit::Tolerance => api::LimitedBy::Tolerance,
        plan::Limit::StaleMetrics => api::LimitedBy::StaleMetrics,
        plan::Limit::Restart => api::LimitedBy::Restart,
        plan::Limit::Unschedulable => api::LimitedBy::Unschedulable,
        plan::Limit::Rollout => api::LimitedBy::Rollout,
        plan::Limit::Forecast => api::LimitedBy::Forecast,
        plan::Limit::Quorum => api::LimitedBy::Quorum,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_keep_three_significant_digits() {
        for (value, text) in [
            (12_345.678, "12346"),
            (123.4, "123"),
            (12.345, "12.3"),
            (0.012_345, "0.0123"),
            (0.0, "0"),
            (1e-9, "0"),
        ] {
            assert_eq!(significant(value).unwrap().to_string(), text);
        }
        assert_eq!(significant(f64::NAN), None);
    }
}
