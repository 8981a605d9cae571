//! HorizontalPodAutoscalers of cliques and scaling groups.

use coppice_operator_api::labels::Component;
use coppice_operator_api::{AutoScalingConfig, PodClique, PodCliqueScalingGroup, names};
use k8s_openapi::api::autoscaling::v2::{
    CrossVersionObjectReference, HorizontalPodAutoscaler, HorizontalPodAutoscalerSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;

use super::scope::Scope;

/// Every autoscaler that one set replica should have.
pub(crate) fn autoscalers(scope: Scope<'_>) -> Vec<HorizontalPodAutoscaler> {
    let template = &scope.set.template;
    let of_cliques = template.standalone().filter_map(|clique| {
        let config = scope.set.clique_autoscaling(&clique.name)?;
        let target =
            names::standalone_clique(scope.set.key.name(), scope.replica, clique.name.as_str());
        Some(autoscaler::<PodClique>(
            scope,
            target,
            config,
            clique.replicas,
        ))
    });
    let of_groups = template.groups().iter().filter_map(|group| {
        let config = scope.set.group(&group.name)?.scale_config.as_ref()?;
        let target = scope.group(&group.name);
        Some(autoscaler::<PodCliqueScalingGroup>(
            scope,
            target,
            config,
            group.replicas,
        ))
    });
    of_cliques.chain(of_groups).collect()
}

fn autoscaler<Target: Resource<DynamicType = ()>>(
    scope: Scope<'_>,
    target: String,
    config: &AutoScalingConfig,
    template_replicas: u32,
) -> HorizontalPodAutoscaler {
    let name = names::autoscaler(&target);
    HorizontalPodAutoscaler {
        metadata: ObjectMeta {
            labels: Some(scope.labels(&name, Component::Autoscaler)),
            name: Some(name),
            namespace: Some(scope.set.key.namespace().to_owned()),
            owner_references: Some(vec![scope.set.owner()]),
            ..ObjectMeta::default()
        },
        spec: HorizontalPodAutoscalerSpec {
            scale_target_ref: CrossVersionObjectReference {
                api_version: Some(Target::api_version(&()).into_owned()),
                kind: Target::kind(&()).into_owned(),
                name: target,
            },
            min_replicas: config
                .min_replicas
                .or_else(|| i32::try_from(template_replicas).ok()),
            max_replicas: config.max_replicas,
            metrics: config.metrics.clone(),
            behavior: None,
        },
        status: None,
    }
}
