//! `explain`: a policy's whole record, for people.

use anyhow::Context;
use comfy_table::presets::UTF8_BORDERS_ONLY;
use comfy_table::{ContentArrangement, Table};
use coppice_runtime::client::{self, KubeArgs};
use coppice_scaler_api::{RoleStatus, ScalingPolicy};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::Api;

use crate::events;
use crate::observe::fleet::since;
use crate::settings::ExplainArgs;
use crate::target::message;

/// Reads the policy and renders its record.
pub(crate) async fn explain(args: &ExplainArgs, kube: &KubeArgs) -> anyhow::Result<String> {
    let client = client::connect(kube).await?;
    let default = client.default_namespace().to_owned();
    let (namespace, name) = args
        .policy
        .split_once('/')
        .unwrap_or((&default, &args.policy));
    let policies: Api<ScalingPolicy> = Api::namespaced(client, namespace);
    let policy = match policies.get_opt(name).await {
        Ok(policy) => {
            policy.with_context(|| format!("scalingpolicy {namespace}/{name} does not exist"))?
        }
        Err(error) => anyhow::bail!(
            "cannot read scalingpolicy {namespace}/{name}: {}",
            message(&error)
        ),
    };
    Ok(render(namespace, name, &policy, Timestamp::now()))
}

/// The record as text, as it stands at `now`.
pub(crate) fn render(
    namespace: &str,
    name: &str,
    policy: &ScalingPolicy,
    now: Timestamp,
) -> String {
    let spec = &policy.spec;
    let mut lines = vec![format!(
        "Policy {namespace}/{name} sizes {} {} (mode {:?}, actuation {:?}).",
        spec.target.kind, spec.target.name, spec.mode, spec.actuation
    )];
    let Some(status) = &policy.status else {
        lines.push(
            "No decision yet: the scaler has not seen this policy, or is not running.".to_owned(),
        );
        return lines.join("\n");
    };
    if let Some(decision) = &status.decision {
        lines.push(decision.sentence.clone());
        let served = 100.0 * decision.served_fraction.as_f64();
        let gpus = decision.gpus.map_or_else(String::new, |gpus| {
            format!(", with {} of {} GPUs", gpus.wanted, gpus.limit)
        });
        lines.push(format!(
            "Decided {} ({:.0}), serving {served:.0} % of the demand{gpus}.",
            ago(decision.at, now),
            decision.at,
        ));
    }
    if status.observed_generation != policy.metadata.generation {
        lines.push(format!(
            "The spec has changed since: this record answers generation {} of {}.",
            status.observed_generation.unwrap_or(0),
            policy.metadata.generation.unwrap_or(0)
        ));
    }
    if !status.roles.is_empty() {
        lines.push(String::new());
        lines.push(roles(&status.roles));
    }
    if let Some(sets) = &status.sets {
        lines.push(format!(
            "Set replicas: {} asked for, {} wanted{}.",
            sets.current,
            sets.wanted,
            limits(&sets.limited_by)
        ));
    }
    lines.push(String::new());
    lines.push("Conditions (! is not as it should be):".to_owned());
    lines.extend(
        status
            .conditions
            .iter()
            .map(|condition| line(condition, now)),
    );
    lines.join("\n")
}

fn line(condition: &Condition, now: Timestamp) -> String {
    let mark = if events::is_bad(condition) { '!' } else { ' ' };
    format!(
        "{mark} {:<18} {:<5}  {} ({}, {})",
        condition.type_,
        condition.status,
        condition.message,
        condition.reason,
        ago(condition.last_transition_time.0, now)
    )
}

/// How long ago `then` is, in the largest unit that keeps at least two of it.
fn ago(then: Timestamp, now: Timestamp) -> String {
    let seconds = since(Some(then), now).as_secs();
    match seconds {
        0..120 => format!("{seconds} s ago"),
        120..7_200 => format!("{} min ago", seconds / 60),
        7_200..172_800 => format!("{} h ago", seconds / 3_600),
        _ => format!("{} days ago", seconds / 86_400),
    }
}

fn roles(roles: &[RoleStatus]) -> String {
    let mut table = Table::new();
    table
        .load_style(UTF8_BORDERS_ONLY)
        .set_content_arrangement(ContentArrangement::Disabled);
    table.set_header([
        "role",
        "asked for",
        "ready",
        "wanted",
        "set: units",
        "because",
        "limited by",
        "signals",
    ]);
    for role in roles {
        let shares = role
            .per_set
            .iter()
            .map(|share| format!("{}: {}", share.set, share.wanted))
            .collect::<Vec<_>>()
            .join(", ");
        let signals = role.signals.iter().map(|signal| {
            format!("{} {} {}", signal.name, signal.value, signal.unit)
                .trim_end()
                .to_owned()
        });
        let limited_by = role
            .limited_by
            .iter()
            .map(|limit| format!("{limit:?}"))
            .collect::<Vec<_>>();
        table.add_row([
            role.name.clone(),
            role.current.to_string(),
            role.ready.to_string(),
            role.wanted.to_string(),
            shares,
            format!("{:?}", role.because),
            limited_by.join("\n"),
            signals.collect::<Vec<_>>().join("\n"),
        ]);
    }
    table.to_string()
}

fn limits(limits: &[coppice_scaler_api::LimitedBy]) -> String {
    if limits.is_empty() {
        return String::new();
    }
    format!(
        ", limited by {}",
        limits
            .iter()
            .map(|limit| format!("{limit:?}"))
            .collect::<Vec<_>>()
            .join(", ")
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_record_reads_as_a_report() {
        let condition = |type_: &str, status: &str, reason: &str, message: &str| json!({"type": type_, "status": status, "reason": reason, "message": message, "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let policy: ScalingPolicy = serde_json::from_value(json!({
            "apiVersion": "autoscaling.coppice.dev/v1alpha1", "kind": "ScalingPolicy", "metadata": {"name": "qwen3", "generation": 2},
            "spec": {
                "target": {"apiVersion": "grove.io/v1alpha1", "kind": "PodCliqueSet", "name": "qwen3"},
                "roles": [{"name": "prefill", "stage": "Prefill", "max": 8, "signal": {"queueDepth": {"waitingPerUnit": 4}}}],
            },
            "status": {
                "observedGeneration": 1,
                "decision": {"at": "2026-01-01T00:04:00Z", "summary": "", "sentence": "Scale prefill from 2 to 4.", "servedFraction": "0.667", "gpus": {"wanted": 48, "limit": 64}},
                "roles": [{
                    "name": "prefill", "current": 2, "ready": 1, "wanted": 4, "because": "Budget", "limitedBy": ["Max", "Budget"],
                    "perSet": [{"set": 0, "current": 1, "wanted": 3}, {"set": 1, "current": 1, "wanted": 1}],
                    "signals": [{"name": "waiting", "value": 15, "unit": "requests"}, {"name": "demand", "value": "3.75", "unit": "units"}],
                }],
                "sets": {"current": 1, "wanted": 2, "limitedBy": ["Budget"]},
                "conditions": [
                    condition("Ready", "True", "AsExpected", "the policy is followed"),
                    condition("BudgetLimited", "True", "BudgetExhausted", "the budget has room for no more"),
                ],
            },
        }))
        .unwrap();
        let now = "2026-01-01T00:05:30Z".parse().unwrap();
        let text = render("serving", "qwen3", &policy, now);
        for line in [
            "Policy serving/qwen3 sizes PodCliqueSet qwen3 (mode Auto, actuation Scale).",
            "Scale prefill from 2 to 4.",
            "Decided 90 s ago (2026-01-01T00:04:00Z), serving 67 % of the demand, with 48 of 64 GPUs.",
            "The spec has changed since: this record answers generation 1 of 2.",
            "Set replicas: 1 asked for, 2 wanted, limited by Budget.",
            "  Ready              True   the policy is followed (AsExpected, 5 min ago)",
            "! BudgetLimited      True   the budget has room for no more (BudgetExhausted, 5 min ago)",
        ] {
            assert!(
                text.lines().any(|have| have == line),
                "`{line}` is not in\n{text}"
            );
        }
        assert!(
            text.contains("0: 3, 1: 1") && text.contains("demand 3.75 units"),
            "{text}"
        );
    }

    #[test]
    fn no_decision_says_why_there_may_be_none() {
        let mut policy: ScalingPolicy = serde_json::from_value(json!({
            "apiVersion": "autoscaling.coppice.dev/v1alpha1", "kind": "ScalingPolicy", "metadata": {"name": "chat"},
            "spec": {"target": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "chat"}, "roles": []},
        }))
        .unwrap();
        policy.status = None;
        let text = render("serving", "chat", &policy, Timestamp::UNIX_EPOCH);
        assert!(
            text.contains("has not seen this policy, or is not running"),
            "{text}"
        );
    }
}
