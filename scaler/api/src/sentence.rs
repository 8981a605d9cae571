//! A decision record as one English sentence. Everything that shows a decision to a person shows this.

use crate::status::{Because, LimitedBy, RoleStatus, ScalingPolicyStatus};

/// The decision of `status` as one sentence, for example: `Scale prefill from 2 to 4 and decode from 3 to 6 because the load needs it; the GPU
/// budget (64 of 64) allows no more.`
#[must_use]
pub fn sentence(status: &ScalingPolicyStatus) -> String {
    let (moving, staying): (Vec<&RoleStatus>, Vec<&RoleStatus>) = status
        .roles
        .iter()
        .partition(|role| role.wanted != role.current);
    let mut parts = Vec::new();
    for (because, roles) in by_reason(&moving) {
        let moves: Vec<String> = roles
            .iter()
            .map(|role| format!("{} from {} to {}", role.name, role.current, role.wanted))
            .collect();
        parts.push(format!(
            "scale {} because {}",
            listed(&moves),
            because_words(because)
        ));
    }
    if let Some(sets) = status
        .sets
        .as_ref()
        .filter(|sets| sets.wanted != sets.current)
    {
        parts.push(format!(
            "{} set replicas from {} to {}",
            if sets.wanted > sets.current {
                "add"
            } else {
                "remove"
            },
            sets.current,
            sets.wanted
        ));
    }
    for (because, roles) in by_reason(&staying) {
        let keeps: Vec<String> = roles
            .iter()
            .map(|role| format!("{} at {}", role.name, role.wanted))
            .collect();
        parts.push(format!(
            "keep {} because {}",
            listed(&keeps),
            because_words(because)
        ));
    }
    let mut text = if parts.is_empty() {
        "nothing to size".to_owned()
    } else {
        listed(&parts)
    };
    let limits = limits(status);
    if !limits.is_empty() {
        text = format!("{text}; limited by {}", listed(&limits));
    }
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| {
        format!("{}{}.", first.to_uppercase(), letters.as_str())
    })
}

/// Current and wanted units of each role in a few words: `prefill 2→4, decode 6, sets 1`.
#[must_use]
pub fn summary(status: &ScalingPolicyStatus) -> String {
    let change = |name: &str, current: u32, wanted: u32| {
        if current == wanted {
            format!("{name} {current}")
        } else {
            format!("{name} {current}\u{2192}{wanted}")
        }
    };
    let roles = status
        .roles
        .iter()
        .map(|role| change(&role.name, role.current, role.wanted));
    let sets = status
        .sets
        .iter()
        .map(|sets| change("sets", sets.current, sets.wanted));
    roles.chain(sets).collect::<Vec<_>>().join(", ")
}

/// Roles grouped by reason, both in the order in which they first appear.
fn by_reason<'a>(roles: &[&'a RoleStatus]) -> Vec<(Because, Vec<&'a RoleStatus>)> {
    let mut groups: Vec<(Because, Vec<&RoleStatus>)> = Vec::new();
    for &role in roles {
        match groups
            .iter_mut()
            .find(|(because, _)| *because == role.because)
        {
            Some((_, members)) => members.push(role),
            None => groups.push((role.because, vec![role])),
        }
    }
    groups
}

/// `a`, `a and b`, `a, b and c`.
fn listed(items: &[String]) -> String {
    match items {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

fn because_words(because: Because) -> &'static str {
    match because {
        Because::Load => "the load needs it",
        Because::Minimum => "that is the minimum",
        Because::Ratio => "the ratio band asks for it",
        Because::Tolerance => "the change would be within tolerance",
        Because::Stabilization => "the load needed it within the stabilization window",
        Because::Budget => "the GPU budget has room for no more",
        Because::Maximum => "that is the maximum",
        Because::Rate => "the rate limit allows this much for now",
        Because::Held => "nothing may be removed for now",
        Because::Starting => "nothing has been measured yet",
        Because::MetricsStale => "the metrics are stale",
        Because::MetricsLost => "the metrics are lost",
        Because::Fallback => "the metrics are lost and the policy names a fallback",
        Because::Idle => "no request came for long enough",
        Because::Wake => "a request is waiting",
        Because::Paused => "the policy is paused",
        Because::Conflict => "someone else writes the same replicas",
    }
}

/// The limits of all roles and of the sets, each once.
fn limits(status: &ScalingPolicyStatus) -> Vec<String> {
    let of_roles = status.roles.iter().flat_map(|role| &role.limited_by);
    let mut limits: Vec<LimitedBy> = of_roles
        .chain(status.sets.iter().flat_map(|sets| &sets.limited_by))
        .copied()
        .collect();
    limits.sort_unstable();
    limits.dedup();
    limits
        .into_iter()
        .map(|limit| limit_words(limit, status))
        .collect()
}

fn limit_words(limit: LimitedBy, status: &ScalingPolicyStatus) -> String {
    let words = match limit {
        LimitedBy::Min => "the minimum",
        LimitedBy::Max => "the maximum",
        LimitedBy::SetsMin => "the least number of sets",
        LimitedBy::SetsMax => "the largest number of sets",
        LimitedBy::Budget => {
            let gpus = status.decision.as_ref().and_then(|decision| decision.gpus);
            return gpus.map_or_else(
                || "the GPU budget".to_owned(),
                |gpus| format!("the GPU budget ({} of {} GPUs)", gpus.wanted, gpus.limit),
            );
        }
        LimitedBy::UnknownGpus => "the unknown number of GPUs of a unit",
        LimitedBy::Ratio => "the ratio band",
        LimitedBy::ScaleUpRate => "the scale-up rate",
        LimitedBy::ScaleDownRate => "the scale-down rate",
        LimitedBy::StabilizationWindow => "the stabilization window",
        LimitedBy::Tolerance => "the tolerance",
        LimitedBy::StaleMetrics => "stale metrics",
        LimitedBy::Restart => "the scaler's recent start",
        LimitedBy::Unschedulable => "pods that cannot be scheduled",
        LimitedBy::Rollout => "a rollout",
        LimitedBy::Forecast => "the load that is expected",
        LimitedBy::Quorum => "the gang's minimum",
    };
    words.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::{DecisionStatus, GpuStatus, SetsStatus};
    use crate::{Decimal, sentence};

    fn role(
        name: &str,
        current: u32,
        wanted: u32,
        because: Because,
        limited_by: &[LimitedBy],
    ) -> RoleStatus {
        RoleStatus {
            name: name.to_owned(),
            kind: None,
            current,
            ready: current,
            wanted,
            because,
            limited_by: limited_by.to_vec(),
            per_set: Vec::new(),
            signals: Vec::new(),
        }
    }

    #[test]
    fn a_joint_step_reads_as_one_sentence() {
        let status = ScalingPolicyStatus {
            decision: Some(DecisionStatus {
                at: jiff::Timestamp::UNIX_EPOCH,
                summary: String::new(),
                sentence: String::new(),
                served_fraction: Decimal::whole(1),
                gpus: Some(GpuStatus {
                    wanted: 64,
                    limit: 64,
                }),
            }),
            roles: vec![
                role("prefill", 2, 4, Because::Load, &[LimitedBy::Budget]),
                role("decode", 3, 6, Because::Load, &[LimitedBy::Budget]),
            ],
            sets: Some(SetsStatus {
                current: 1,
                wanted: 2,
                limited_by: Vec::new(),
            }),
            ..ScalingPolicyStatus::default()
        };
        assert_eq!(
            sentence(&status),
            "Scale prefill from 2 to 4 and decode from 3 to 6 because the load needs it and add set replicas from 1 to 2; limited by the GPU budget (64 of 64 GPUs)."
        );
        assert_eq!(
            summary(&status),
            "prefill 2\u{2192}4, decode 3\u{2192}6, sets 1\u{2192}2"
        );
    }

    #[test]
    fn what_stays_says_why() {
        let status = ScalingPolicyStatus {
            roles: vec![
                role(
                    "prefill",
                    4,
                    4,
                    Because::Stabilization,
                    &[LimitedBy::StabilizationWindow],
                ),
                role(
                    "decode",
                    6,
                    6,
                    Because::MetricsStale,
                    &[LimitedBy::StaleMetrics],
                ),
            ],
            ..ScalingPolicyStatus::default()
        };
        assert_eq!(
            sentence(&status),
            "Keep prefill at 4 because the load needed it within the stabilization window and keep decode at 6 because the metrics are stale; \
             limited by the stabilization window and stale metrics."
        );
    }
}
