//! PodClique objects.

use std::collections::BTreeMap;

use coppice_operator_api::labels::{self, Component, annotations};
use coppice_operator_api::{PodClique, PodCliqueSpec, env, names};
use coppice_operator_plan::gang;
use coppice_operator_plan::ids::{CliqueId, GangId};
use coppice_operator_plan::order;
use coppice_operator_plan::replica::CliquePlan;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use super::scope::Scope;
use super::{compute_domain, variables};

/// The PodClique of a plan, owned by `owner`: the set, or the scaling group for a member.
///
/// Nothing when the template does not have the clique; a plan never asks for that.
pub(crate) fn clique(
    scope: Scope<'_>,
    plan: &CliquePlan,
    owner: OwnerReference,
) -> Option<PodClique> {
    let template = scope.set.clique(plan.id.template())?;
    let planned = scope.set.template.clique(plan.id.template())?;
    let name = scope.clique(&plan.id);
    let mut spec = PodCliqueSpec {
        role_name: template
            .spec
            .role_name
            .clone()
            .or_else(|| Some(String::new())),
        pod_spec: template.spec.pod_spec.clone(),
        replicas: i32::try_from(plan.replicas).unwrap_or(i32::MAX),
        min_available: i32::try_from(planned.min_available.get()).ok(),
        starts_after: None,
        auto_scaling_config: template.spec.auto_scaling_config.clone(),
    };
    if !plan.parents.is_empty() {
        spec.starts_after = Some(
            plan.parents
                .iter()
                .map(|parent| scope.clique(parent))
                .collect(),
        );
    }
    if let Some((group, _)) = plan.id.group() {
        variables::prepend(&mut spec.pod_spec, &group_variables(scope, group));
    }
    if let Some(group) = scope.set.domains.of_clique(plan.id.template()) {
        let domain = names::compute_domain(scope.set.key.name(), scope.replica, group);
        compute_domain::join(&mut spec.pod_spec, domain);
    }
    Some(PodClique {
        metadata: ObjectMeta {
            annotations: clique_annotations(template.annotations.as_ref()),
            labels: Some(clique_labels(
                scope,
                &plan.id,
                planned.hash.as_str(),
                template.labels.as_ref(),
            )),
            name: Some(name),
            namespace: Some(scope.set.key.namespace().to_owned()),
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        spec,
        status: None,
    })
}

fn group_variables(
    scope: Scope<'_>,
    group: &coppice_operator_plan::ids::GroupName,
) -> Vec<k8s_openapi::api::core::v1::EnvVar> {
    let template = &scope.set.template;
    let pods: u32 = template
        .group(group)
        .into_iter()
        .flat_map(|group| template.members(group))
        .map(|clique| clique.replicas)
        .sum();
    vec![
        variables::from_label(env::GROUP_NAME, labels::SCALING_GROUP),
        variables::literal(env::GROUP_TEMPLATE_PODS, pods.to_string()),
        variables::from_label(env::GROUP_REPLICA_INDEX, labels::GROUP_REPLICA_INDEX),
    ]
}

fn clique_annotations(
    template: Option<&BTreeMap<String, String>>,
) -> Option<BTreeMap<String, String>> {
    let mut kept = template?.clone();
    kept.remove(annotations::TOPOLOGY_NAME);
    Some(kept)
}

fn clique_labels(
    scope: Scope<'_>,
    id: &CliqueId,
    hash: &str,
    template: Option<&BTreeMap<String, String>>,
) -> BTreeMap<String, String> {
    let name = scope.clique(id);
    let gang = gang::gang_of(&scope.set.template, id);
    let component = if id.group().is_some() {
        Component::MemberClique
    } else {
        Component::StandaloneClique
    };
    let mut labels = template.cloned().unwrap_or_default();
    labels.extend(scope.labels(&name, component));
    let mut put = |key: &str, value: String| labels.insert(key.to_owned(), value);
    put(labels::GANG, scope.gang(&gang));
    put(labels::TEMPLATE_HASH, hash.to_owned());
    if let Some((group, replica)) = id.group() {
        put(labels::SCALING_GROUP, scope.group(group));
        put(labels::GROUP_REPLICA_INDEX, replica.to_string());
    }
    if gang != GangId::Base {
        put(labels::BASE_GANG, scope.base_gang());
    }
    debug_assert_eq!(
        gang == GangId::Base,
        order::in_base(&scope.set.template, id)
    );
    labels
}
