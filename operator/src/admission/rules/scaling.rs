//! Minimums, and what the API server would say about the autoscalers that the operator makes.
//!
//! A HorizontalPodAutoscaler that the server refuses stops the whole set, so its rules are asked here, where somebody listens.

use std::collections::BTreeMap;

use coppice_operator_api::{AutoScalingConfig, PodCliqueSet};
use k8s_openapi::api::autoscaling::v2::{MetricSpec, MetricTarget};

use super::{clique_path, group_path};
use crate::admission::field::FieldError;

/// A minimum that the template itself does not reach could never be whole.
pub(super) fn minimum(path: &str, minimum: i32, replicas: i32, errors: &mut Vec<FieldError>) {
    if minimum > replicas {
        let rule =
            format!("must be at most replicas, which is {replicas}: lower it, or raise replicas");
        errors.push(FieldError::invalid(
            format!("{path}.minAvailable"),
            minimum,
            rule,
        ));
    }
}

/// The autoscalers of a set.
pub(super) fn check(set: &PodCliqueSet, errors: &mut Vec<FieldError>) {
    let template = &set.spec.template;
    let mut group_of = BTreeMap::new();
    for group in template.scaling_groups() {
        group_of.extend(
            group
                .clique_names
                .iter()
                .map(|member| (member, &group.name)),
        );
    }
    for (position, clique) in template.cliques.iter().enumerate() {
        let Some(config) = &clique.spec.auto_scaling_config else {
            continue;
        };
        let path = format!("{}.spec.autoScalingConfig", clique_path(position));
        if let Some(group) = group_of.get(&clique.name) {
            let rule = format!(
                "clique {} scales with scaling group {group}: take it out here, and write scaleConfig of the group",
                clique.name
            );
            errors.push(FieldError::forbidden(path, rule));
            continue;
        }
        let (replicas, minimum) = (
            clique.spec.template_replicas(),
            clique.spec.effective_min_available(),
        );
        autoscaler(&path, config, replicas, minimum, errors);
    }
    for (position, group) in template.scaling_groups().iter().enumerate() {
        if let Some(config) = &group.scale_config {
            let path = format!("{}.scaleConfig", group_path(position));
            let (replicas, minimum) = (group.template_replicas(), group.effective_min_available());
            autoscaler(&path, config, replicas, minimum, errors);
        }
    }
}

fn autoscaler(
    path: &str,
    config: &AutoScalingConfig,
    replicas: i32,
    minimum: i32,
    errors: &mut Vec<FieldError>,
) {
    let metrics = config.metrics.as_deref().unwrap_or_default();
    let lowest = config.min_replicas.unwrap_or(replicas);
    let field = format!("{path}.minReplicas");
    if lowest == 0 {
        // Other metrics come from the pods, of which there are none then.
        let can_wake = metrics
            .iter()
            .any(|metric| matches!(metric.type_.as_str(), "Object" | "External"));
        if !can_wake {
            let rule = "0 needs a metric of type Object or External, for nothing else can be measured without pods: add one, or \
                        raise minReplicas";
            errors.push(FieldError::invalid(field, lowest, rule));
        }
    } else if lowest < minimum {
        let rule = format!(
            "must be 0, or at least minAvailable, which is {minimum}: fewer are no whole gang"
        );
        errors.push(FieldError::invalid(field, lowest, rule));
    }
    if config.max_replicas < replicas {
        let rule =
            format!("must be at least replicas, which is {replicas}: raise it, or lower replicas");
        errors.push(FieldError::invalid(
            format!("{path}.maxReplicas"),
            config.max_replicas,
            rule,
        ));
    }
    for (position, entry) in metrics.iter().enumerate() {
        metric(&format!("{path}.metrics[{position}]"), entry, errors);
    }
}

/// The source that each type of metric reads.
fn metric(path: &str, metric: &MetricSpec, errors: &mut Vec<FieldError>) {
    let MetricSpec {
        container_resource,
        external,
        object,
        pods,
        resource,
        type_,
    } = metric;
    let sources = [
        (
            "ContainerResource",
            "containerResource",
            container_resource
                .as_ref()
                .map(|source| (&source.target, &source.name)),
        ),
        (
            "External",
            "external",
            external
                .as_ref()
                .map(|source| (&source.target, &source.metric.name)),
        ),
        (
            "Object",
            "object",
            object
                .as_ref()
                .map(|source| (&source.target, &source.metric.name)),
        ),
        (
            "Pods",
            "pods",
            pods.as_ref()
                .map(|source| (&source.target, &source.metric.name)),
        ),
        (
            "Resource",
            "resource",
            resource
                .as_ref()
                .map(|source| (&source.target, &source.name)),
        ),
    ];
    let Some((_, wanted, source)) = sources.iter().find(|(name, _, _)| name == type_) else {
        let rule = "must be ContainerResource, External, Object, Pods or Resource";
        errors.push(FieldError::invalid(format!("{path}.type"), type_, rule));
        return;
    };
    for (_, field, other) in &sources {
        if field != wanted && other.is_some() {
            let rule =
                format!("must be absent where type is {type_}: take it out, or change the type");
            errors.push(FieldError::forbidden(format!("{path}.{field}"), rule));
        }
    }
    let Some((target, name)) = source else {
        let rule = format!("says what a metric of type {type_} reads: write it");
        errors.push(FieldError::required(format!("{path}.{wanted}"), rule));
        return;
    };
    if name.is_empty() {
        let field = match type_.as_str() {
            "ContainerResource" | "Resource" => format!("{path}.{wanted}.name"),
            _ => format!("{path}.{wanted}.metric.name"),
        };
        errors.push(FieldError::required(
            field,
            "names what is measured: write it",
        ));
    }
    aim(&format!("{path}.{wanted}.target"), type_, target, errors);
}

/// What a metric is held to.
fn aim(path: &str, metric: &str, target: &MetricTarget, errors: &mut Vec<FieldError>) {
    let possible: &[&str] = match metric {
        "ContainerResource" | "Resource" => &["Utilization", "AverageValue"],
        "Pods" => &["AverageValue"],
        _ => &["Value", "AverageValue"],
    };
    let kind = target.type_.as_str();
    if !possible.contains(&kind) {
        let rule = format!(
            "must be {} for a metric of type {metric}",
            possible.join(" or ")
        );
        errors.push(FieldError::invalid(format!("{path}.type"), kind, rule));
        return;
    }
    let (field, is_there) = match kind {
        "Utilization" => (
            "averageUtilization",
            target.average_utilization.is_some_and(|share| share > 0),
        ),
        "Value" => ("value", target.value.is_some()),
        _ => ("averageValue", target.average_value.is_some()),
    };
    if !is_there {
        let rule = format!("must be set, to more than 0, where the target's type is {kind}");
        errors.push(FieldError::required(format!("{path}.{field}"), rule));
    }
}
