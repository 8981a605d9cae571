//! PodCliqueScalingGroup objects.

use coppice_operator_api::labels::{self, Component};
use coppice_operator_api::{PodCliqueScalingGroup, PodCliqueScalingGroupSpec};
use coppice_operator_plan::replica::GroupPlan;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::scope::Scope;

/// The scaling group of a plan, owned by the set. Nothing when the template does not have it.
pub(crate) fn group(scope: Scope<'_>, plan: &GroupPlan) -> Option<PodCliqueScalingGroup> {
    let template = scope.set.group(&plan.name)?;
    let name = scope.group(&plan.name);
    let mut annotations = template.annotations.clone().unwrap_or_default();
    // What the set says about MNNVL holds for a group that says nothing.
    let of_set = scope.set.object.metadata.annotations.as_ref();
    if let Some(mnnvl) =
        of_set.and_then(|annotations| annotations.get(labels::annotations::MNNVL_GROUP))
    {
        annotations
            .entry(labels::annotations::MNNVL_GROUP.to_owned())
            .or_insert_with(|| mnnvl.clone());
    }
    Some(PodCliqueScalingGroup {
        metadata: ObjectMeta {
            annotations: (!annotations.is_empty()).then_some(annotations),
            labels: Some(scope.labels(&name, Component::ScalingGroup)),
            name: Some(name),
            namespace: Some(scope.set.key.namespace().to_owned()),
            owner_references: Some(vec![scope.set.owner()]),
            ..ObjectMeta::default()
        },
        spec: PodCliqueScalingGroupSpec {
            replicas: i32::try_from(plan.replicas).unwrap_or(i32::MAX),
            min_available: Some(template.effective_min_available()),
            clique_names: template.clique_names.clone(),
        },
        status: None,
    })
}
