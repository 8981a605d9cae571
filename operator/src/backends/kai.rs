//! Gangs by the KAI scheduler: one PodGroup of its own for each PodGang.
//!
//! Needs KAI 0.15 or later, which leaves pods alone that say so; earlier ones group them a second time. Pods are held by a
//! gate until their PodGang, and with it the PodGroup, is complete; the KAI scheduler does the rest.

use std::collections::BTreeMap;

use coppice_operator_api::gang::SchedTopologyConstraint;
use coppice_operator_api::labels::{self, annotations};
use coppice_operator_api::pod_clique_set::PodCliqueTemplateSpec;
use coppice_operator_api::{PodCliqueSet, PodGang};
use coppice_operator_plan::gang::Gang;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::scheduling::v1alpha3::Workload;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::CustomResource;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    Companion, GangBackend, GangObject, Placement, PodPlace, ReplicaView, Unmappable, gate,
};
use crate::admission::field::FieldError;
use crate::index::key::{Kind, SetKey};
use crate::validated::Validated;

/// Name by which pods choose the scheduler.
pub(crate) const SCHEDULER: &str = "kai-scheduler";

/// What is written of the scheduler's PodGroup.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[kube(
    group = "scheduling.run.ai",
    version = "v2alpha2",
    kind = "PodGroup",
    plural = "podgroups",
    root = "KaiPodGroup",
    namespaced,
    schema = "disabled",
    doc = "Pods that the KAI scheduler places together."
)]
pub(crate) struct KaiPodGroupSpec {
    min_member: i32,
    queue: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    priority_class_name: Option<String>,
    sub_groups: Vec<SubGroup>,
    #[serde(skip_serializing_if = "Option::is_none")]
    topology_constraint: Option<Constraint>,
}

/// A part of the gang: pods of one PodClique, or several such parts.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
struct SubGroup {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    min_member: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    min_sub_group: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    topology_constraint: Option<Constraint>,
}

/// Where the pods of a part have to be: keys of node labels, and the object that lists them.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
struct Constraint {
    topology: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    required_topology_level: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    preferred_topology_level: Option<String>,
}

/// The backend `kai`.
#[derive(Debug)]
pub(crate) struct Kai;

impl GangBackend for Kai {
    fn name(&self) -> &'static str {
        "kai"
    }

    fn scheduler(&self) -> &'static str {
        SCHEDULER
    }

    fn has_groups(&self) -> bool {
        false
    }

    fn gang_kind(&self) -> Option<Kind> {
        Some(Kind::KaiPodGroup)
    }

    fn workload(&self, _: &Validated) -> Option<Workload> {
        None
    }

    fn place(&self, _: ReplicaView<'_>) -> Placement {
        Placement::default()
    }

    fn prepare_pod(&self, pod: &mut Pod, of: PodPlace<'_>) {
        gate(pod, SCHEDULER);
        let gang = of.scope.gang(of.gang);
        let put = |map: &mut Option<BTreeMap<String, String>>, key: &str, value: String| {
            map.get_or_insert_default().insert(key.to_owned(), value);
        };
        let meta = &mut pod.metadata;
        let skip = annotations::KAI_SKIP_GROUPER;
        put(&mut meta.annotations, skip, "true".to_owned());
        put(&mut meta.annotations, annotations::KAI_POD_GROUP, gang);
        let clique = of.scope.clique(of.clique);
        put(&mut meta.labels, labels::KAI_SUBGROUP, clique);
    }

    fn complete_gang(&self, _: &Validated, gang: &mut PodGang) {
        let annotations = gang.metadata.annotations.get_or_insert_default();
        annotations.insert(annotations::KAI_SKIP_GROUPER.to_owned(), "true".to_owned());
    }

    fn gang_object(
        &self,
        set: &Validated,
        gang: &PodGang,
        owner: OwnerReference,
        held: Option<&Value>,
    ) -> Result<Option<GangObject>, Unmappable> {
        pod_group(set, gang, owner, held).map(|group| Some(GangObject::Kai(Box::new(group))))
    }

    fn refusal(&self, _: ReplicaView<'_>, _: &Gang) -> Option<String> {
        None
    }

    fn look_at(&self, _: &SetKey, _: u32) {}

    fn accompany(&self, companion: Companion) -> BoxFuture<'static, ()> {
        Box::pin(async move { companion.draining.cancelled().await })
    }
}

/// The PodGroup of a PodGang. `held` is the spec of the one that is there: its queue never changes, and what the scheduler or
/// people have set beside is not touched.
fn pod_group(
    set: &Validated,
    gang: &PodGang,
    owner: OwnerReference,
    held: Option<&Value>,
) -> Result<KaiPodGroup, Unmappable> {
    let held = held.and_then(|spec| spec.get("queue")?.as_str());
    let queue = match held {
        Some(queue) => queue.to_owned(),
        None => queue(&set.object).map_err(|error| Unmappable(error.to_string()))?,
    };
    let meta = &gang.metadata;
    let annotation = |key: &str| meta.annotations.as_ref()?.get(key);
    let topology = annotation(annotations::TOPOLOGY_NAME)
        .or_else(|| annotation("kai.scheduler/topology"))
        .map(String::as_str);
    let spec = &gang.spec;
    let mut sub_groups = Vec::new();
    let parts = spec.topology_constraint_group_configs.iter().flatten();
    let parts: Vec<_> = parts
        .filter(|part| !part.pod_group_names.is_empty())
        .collect();
    for part in &parts {
        sub_groups.push(SubGroup {
            name: part.name.clone(),
            min_sub_group: i32::try_from(part.pod_group_names.len()).ok(),
            topology_constraint: constraint(part.topology_constraint.as_ref(), topology)?,
            ..SubGroup::default()
        });
    }
    for group in &spec.pod_groups {
        let part = parts
            .iter()
            .find(|part| part.pod_group_names.contains(&group.name));
        sub_groups.push(SubGroup {
            name: group.name.clone(),
            min_member: Some(group.min_replicas),
            parent: part.map(|part| part.name.clone()),
            topology_constraint: constraint(group.topology_constraint.as_ref(), topology)?,
            ..SubGroup::default()
        });
    }
    let mut labels = meta.labels.clone().unwrap_or_default();
    if let Some(label) = labels.get_mut(annotations::KAI_QUEUE) {
        label.clone_from(&queue);
    }
    Ok(KaiPodGroup {
        metadata: ObjectMeta {
            annotations: meta.annotations.clone(),
            labels: Some(labels),
            name: meta.name.clone(),
            namespace: meta.namespace.clone(),
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        spec: KaiPodGroupSpec {
            min_member: super::floor(gang),
            queue,
            priority_class_name: spec.priority_class_name.clone(),
            sub_groups,
            topology_constraint: constraint(spec.topology_constraint.as_ref(), topology)?,
        },
    })
}

fn constraint(
    of: Option<&SchedTopologyConstraint>,
    topology: Option<&str>,
) -> Result<Option<Constraint>, Unmappable> {
    let Some(pack) = of.and_then(|constraint| constraint.pack_constraint.as_ref()) else {
        return Ok(None);
    };
    let topology = topology.ok_or_else(|| {
        Unmappable(format!(
            "a topology constraint needs the annotation {}: name a topology",
            annotations::TOPOLOGY_NAME
        ))
    })?;
    Ok(Some(Constraint {
        topology: topology.to_owned(),
        required_topology_level: pack.required.clone(),
        preferred_topology_level: pack.preferred.clone(),
    }))
}

/// The queue of a set: what it says itself, and else what its cliques agree on.
///
/// # Errors
/// Nobody names one, or two are named.
pub(crate) fn queue(set: &PodCliqueSet) -> Result<String, FieldError> {
    const KEY: &str = annotations::KAI_QUEUE;
    type Map = Option<BTreeMap<String, String>>;
    let value = |labels: &Map, annotations: &Map| {
        let all = [labels, annotations].into_iter().flatten();
        let mut all = all.filter_map(|map| map.get(KEY).filter(|value| !value.is_empty()));
        all.next().cloned()
    };
    let meta = &set.metadata;
    let of_set = value(&meta.labels, &meta.annotations);
    let of_clique = |clique: &PodCliqueTemplateSpec| value(&clique.labels, &clique.annotations);
    let mut chosen = of_set;
    for (position, clique) in set.spec.template.cliques.iter().enumerate() {
        let Some(own) = of_clique(clique) else {
            continue;
        };
        match &chosen {
            Some(queue) if *queue != own => {
                let field = format!("spec.template.cliques[{position}].labels.{KEY}");
                let rule =
                    format!("must be {queue}, as around it or beside it: a gang has one queue");
                return Err(FieldError::invalid(field, own, rule));
            }
            Some(_) => {}
            None => chosen = Some(own),
        }
    }
    chosen.ok_or_else(|| {
        let rule = "the KAI scheduler takes no pods without a queue: write the label on the set or on its cliques";
        FieldError::required(format!("metadata.labels.{KEY}"), rule)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::backends::testing::{fabric, gangs, owner, pod};

    fn object(gang: &PodGang, held: Option<&Value>) -> Result<KaiPodGroup, Unmappable> {
        pod_group(&fabric(), gang, owner(gang), held)
    }

    #[test]
    fn a_base_gang_has_parts_and_a_scaled_one_has_none() {
        let gangs = gangs(&Kai);
        let objects: Vec<KaiPodGroup> = gangs
            .iter()
            .map(|gang| object(gang, None).unwrap())
            .collect();
        insta::assert_yaml_snapshot!("kai_base", objects[0]);
        insta::assert_yaml_snapshot!("kai_scaled", objects[1]);
    }

    #[test]
    fn pods_name_their_group_and_their_part_of_it() {
        insta::assert_yaml_snapshot!("kai_pod", pod(&Kai));
    }

    #[test]
    fn the_queue_of_a_group_that_is_there_stays() {
        let gang = &gangs(&Kai)[0];
        let held = json!({"queue": "earlier", "markUnschedulable": true});
        let group = object(gang, Some(&held)).unwrap();
        assert_eq!(group.spec.queue, "earlier");
        assert_eq!(
            group.metadata.labels.unwrap()["kai.scheduler/queue"],
            "earlier"
        );
    }

    #[test]
    fn a_constraint_without_a_topology_cannot_be_told() {
        let mut gang = gangs(&Kai).remove(0);
        let annotations = gang.metadata.annotations.as_mut().unwrap();
        annotations.remove("grove.io/topology-name");
        assert!(object(&gang, None).is_err());
        let annotations = gang.metadata.annotations.as_mut().unwrap();
        annotations.insert("kai.scheduler/topology".to_owned(), "theirs".to_owned());
        let group = object(&gang, None).unwrap();
        assert_eq!(group.spec.topology_constraint.unwrap().topology, "theirs");
    }

    #[test]
    fn a_queue_is_the_sets_or_what_all_cliques_agree_on() {
        let set = |own: Value, cliques: [Value; 2]| -> PodCliqueSet {
            let cliques: Vec<Value> = cliques
                .iter()
                .enumerate()
                .map(|(n, labels)| json!({"name": format!("c{n}"), "labels": labels, "spec": {"podSpec": {"containers": []}}}))
                .collect();
            serde_json::from_value(json!({
                "apiVersion": "grove.io/v1alpha1", "kind": "PodCliqueSet", "metadata": {"name": "s", "annotations": own},
                "spec": {"template": {"cliques": cliques}},
            }))
            .unwrap()
        };
        let named = |queue: &str| json!({"kai.scheduler/queue": queue});
        let none = || json!({});
        let of = |set: &PodCliqueSet| queue(set).map_err(|error| error.to_string());
        assert_eq!(of(&set(named("a"), [none(), named("a")])).unwrap(), "a");
        assert_eq!(of(&set(none(), [none(), named("b")])).unwrap(), "b");
        let other = of(&set(named("a"), [none(), named("b")])).unwrap_err();
        assert!(other.starts_with(
            "spec.template.cliques[1].labels.kai.scheduler/queue: Invalid value: \"b\": must be a"
        ));
        assert!(of(&set(none(), [named("a"), named("b")])).is_err());
        assert!(
            of(&set(none(), [none(), none()]))
                .unwrap_err()
                .contains("Required value")
        );
    }
}
