//! `explain`: a policy's whole record, for people.

use std::fmt::Write as _;

use anyhow::Context;
use comfy_table::presets::UTF8_BORDERS_ONLY;
use comfy_table::{ContentArrangement, Table};
use coppice_runtime::client::{self, KubeArgs};
use coppice_scaler_api::{RoleStatus, ScalingPolicy};
use kube::Api;

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
    Ok(render(namespace, name, &policy))
}

/// The record as text.
pub(crate) fn render(namespace: &str, name: &str, policy: &ScalingPolicy) -> String {
    let mut text = format!(
        "Policy {namespace}/{name}: {} {}, mode {:?}",
        policy.spec.target.kind, policy.spec.target.name, policy.spec.mode
    );
    let Some(status) = &policy.status else {
        text.push_str(
            "\nNo decision yet: the scaler has not seen this policy, or is not running.\n",
        );
        return text;
    };
    let mut add = |line: std::fmt::Arguments<'_>| {
        text.push('\n');
        text.write_fmt(line).expect("a string takes all text");
    };
    if let Some(decision) = &status.decision {
        add(format_args!("{}", decision.sentence));
        add(format_args!(
            "Decided at {}, serving {} of the demand.",
            decision.at, decision.served_fraction
        ));
        if let Some(gpus) = decision.gpus {
            add(format_args!(
                "GPUs: {} wanted, {} allowed.",
                gpus.wanted, gpus.limit
            ));
        }
    }
    if status.observed_generation != policy.metadata.generation {
        add(format_args!(
            "The spec has changed since: this record answers generation {}.",
            status.observed_generation.unwrap_or(0)
        ));
    }
    if !status.roles.is_empty() {
        add(format_args!("\n{}", roles(&status.roles)));
    }
    if let Some(sets) = &status.sets {
        add(format_args!(
            "Sets: {} asked for, {} wanted{}.",
            sets.current,
            sets.wanted,
            limits(&sets.limited_by)
        ));
    }
    add(format_args!("\nConditions:"));
    for condition in &status.conditions {
        add(format_args!(
            "  {:<19} {:<6} {:<16} {} (since {})",
            condition.type_,
            condition.status,
            condition.reason,
            condition.message,
            condition.last_transition_time.0
        ));
    }
    text
}

fn roles(roles: &[RoleStatus]) -> String {
    let mut table = Table::new();
    table
        .load_style(UTF8_BORDERS_ONLY)
        .set_content_arrangement(ContentArrangement::Disabled);
    table.set_header([
        "role",
        "asked",
        "ready",
        "wanted",
        "by set",
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
