//! Gangs by the Volcano scheduler: one PodGroup of its own for each PodGang.
//!
//! Needs Volcano 1.14 or later, whose PodGroups have parts. It knows no topology of a ClusterTopologyBinding, so admission
//! refuses constraints. Pods are held by a gate until their PodGang, and with it the PodGroup, is complete.

use std::collections::BTreeMap;

use coppice_operator_api::labels::{self, annotations};
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
pub(crate) const SCHEDULER: &str = "volcano";
/// Queue of sets that name none.
const DEFAULT_QUEUE: &str = "default";

/// What is written of the scheduler's PodGroup.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[kube(
    group = "scheduling.volcano.sh",
    version = "v1beta1",
    kind = "PodGroup",
    plural = "podgroups",
    root = "VolcanoPodGroup",
    namespaced,
    schema = "disabled",
    doc = "Pods that the Volcano scheduler places together."
)]
pub(crate) struct VolcanoPodGroupSpec {
    min_member: i32,
    queue: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    priority_class_name: Option<String>,
    sub_group_policy: Vec<SubGroup>,
}

/// Pods of one PodClique.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
struct SubGroup {
    name: String,
    label_selector: Selector,
    match_label_keys: Vec<String>,
    sub_group_size: i32,
    min_sub_groups: i32,
}

#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
struct Selector {
    match_labels: BTreeMap<String, String>,
}

/// The backend `volcano`.
#[derive(Debug)]
pub(crate) struct Volcano;

impl GangBackend for Volcano {
    fn name(&self) -> &'static str {
        "volcano"
    }

    fn scheduler(&self) -> &'static str {
        SCHEDULER
    }

    fn has_groups(&self) -> bool {
        false
    }

    fn gang_kind(&self) -> Option<Kind> {
        Some(Kind::VolcanoPodGroup)
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
        let annotations = pod.metadata.annotations.get_or_insert_default();
        for key in [annotations::VOLCANO_GROUP, annotations::SCHEDULING_GROUP] {
            annotations.insert(key.to_owned(), gang.clone());
        }
    }

    /// Upstream takes over the set's queue alone, so that one on cliques is checked and not used.
    fn complete_gang(&self, set: &Validated, gang: &mut PodGang) {
        if let Ok(queue) = queue(&set.object) {
            let annotations = gang.metadata.annotations.get_or_insert_default();
            annotations.insert(annotations::VOLCANO_QUEUE.to_owned(), queue);
        }
    }

    fn gang_object(
        &self,
        set: &Validated,
        gang: &PodGang,
        owner: OwnerReference,
        held: Option<&Value>,
    ) -> Result<Option<GangObject>, Unmappable> {
        // A gang that is idle altogether keeps what it had.
        if super::floor(gang) == 0 && held.is_some() {
            return Ok(None);
        }
        pod_group(set, gang, owner).map(|group| Some(GangObject::Volcano(Box::new(group))))
    }

    fn refusal(&self, _: ReplicaView<'_>, _: &Gang) -> Option<String> {
        None
    }

    fn look_at(&self, _: &SetKey, _: u32) {}

    fn accompany(&self, companion: Companion) -> BoxFuture<'static, ()> {
        Box::pin(async move { companion.draining.cancelled().await })
    }
}

fn pod_group(
    set: &Validated,
    gang: &PodGang,
    owner: OwnerReference,
) -> Result<VolcanoPodGroup, Unmappable> {
    let queue = queue(&set.object).map_err(|error| Unmappable(error.to_string()))?;
    let parts = gang.spec.pod_groups.iter().map(|group| SubGroup {
        name: group.name.clone(),
        label_selector: Selector {
            match_labels: [(labels::CLIQUE.to_owned(), group.name.clone())].into(),
        },
        match_label_keys: vec![labels::CLIQUE.to_owned()],
        sub_group_size: group.min_replicas.max(1),
        min_sub_groups: 1,
    });
    let meta = &gang.metadata;
    Ok(VolcanoPodGroup {
        metadata: ObjectMeta {
            annotations: meta.annotations.clone(),
            labels: meta.labels.clone(),
            name: meta.name.clone(),
            namespace: meta.namespace.clone(),
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        spec: VolcanoPodGroupSpec {
            min_member: super::floor(gang).max(1),
            queue,
            priority_class_name: gang.spec.priority_class_name.clone(),
            sub_group_policy: parts.collect(),
        },
    })
}

/// The queue of a set: all its cliques have to come to the same one, each by its own annotation, or else the set's, or else
/// the default.
///
/// # Errors
/// They come to two, or one is no name.
pub(crate) fn queue(set: &PodCliqueSet) -> Result<String, FieldError> {
    const KEY: &str = annotations::VOLCANO_QUEUE;
    let value = |map: Option<&BTreeMap<String, String>>| map.and_then(|map| map.get(KEY)).cloned();
    let of_set = value(set.metadata.annotations.as_ref());
    let around = of_set.clone().unwrap_or_else(|| DEFAULT_QUEUE.to_owned());
    let check = |field: String, queue: String| match is_subdomain(&queue) {
        true => Ok(queue),
        false => {
            let rule =
                "must be the name of a Volcano Queue: lower-case letters, digits, '-' and '.'";
            Err(FieldError::invalid(field, queue, rule))
        }
    };
    let around = check(format!("metadata.annotations.{KEY}"), around)?;
    let mut chosen: Option<String> = None;
    for (position, clique) in set.spec.template.cliques.iter().enumerate() {
        let field = || format!("spec.template.cliques[{position}].annotations.{KEY}");
        let own = match value(clique.annotations.as_ref()) {
            Some(own) => check(field(), own)?,
            None => around.clone(),
        };
        match &chosen {
            Some(queue) if *queue != own => {
                let rule =
                    format!("must come to {queue}, as another clique's: a gang has one queue");
                return Err(FieldError::invalid(field(), own, rule));
            }
            Some(_) => {}
            None => chosen = Some(own),
        }
    }
    Ok(chosen.unwrap_or(around))
}

fn is_subdomain(name: &str) -> bool {
    let is_part = |part: &str| coppice_operator_plan::ids::CliqueName::new(part).is_ok();
    name.len() <= 253 && name.split('.').all(is_part)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::backends::testing::{gangs, owner, plain, pod};

    #[test]
    fn every_clique_is_a_part_of_its_gang() {
        let set = plain();
        let gangs = gangs_of(&set);
        let group = |gang: &PodGang| pod_group(&set, gang, owner(gang)).unwrap();
        insta::assert_yaml_snapshot!("volcano_base", group(&gangs[0]));
        insta::assert_yaml_snapshot!("volcano_scaled", group(&gangs[1]));
    }

    fn gangs_of(set: &Validated) -> Vec<PodGang> {
        crate::backends::testing::gangs_of(&Volcano, set)
    }

    #[test]
    fn pods_name_their_group_twice() {
        insta::assert_yaml_snapshot!("volcano_pod", pod(&Volcano));
    }

    #[test]
    fn an_idle_gang_keeps_its_group_and_a_new_one_asks_for_one_pod() {
        let set = plain();
        let mut gang = gangs(&Volcano).remove(0);
        for group in &mut gang.spec.pod_groups {
            group.min_replicas = 0;
        }
        let held = json!({"minMember": 3});
        let object = |held| {
            Volcano
                .gang_object(&set, &gang, owner(&gang), held)
                .unwrap()
        };
        assert!(object(Some(&held)).is_none());
        let Some(GangObject::Volcano(group)) = object(None) else {
            panic!("no group")
        };
        assert_eq!(group.spec.min_member, 1);
        let mut parts = group.spec.sub_group_policy.iter();
        assert!(parts.all(|part| part.sub_group_size == 1));
    }

    #[test]
    fn a_queue_is_one_for_all_cliques() {
        let set = |own: Option<&str>, cliques: [Option<&str>; 2]| -> PodCliqueSet {
            let annotations = |queue: Option<&str>| match queue {
                Some(queue) => json!({"scheduling.grove.io/volcano-queue": queue}),
                None => json!({}),
            };
            let cliques: Vec<Value> = cliques
                .iter()
                .enumerate()
                .map(|(n, queue)| json!({"name": format!("c{n}"), "annotations": annotations(*queue), "spec": {"podSpec": {"containers": []}}}))
                .collect();
            serde_json::from_value(json!({
                "apiVersion": "grove.io/v1alpha1", "kind": "PodCliqueSet", "metadata": {"name": "s", "annotations": annotations(own)},
                "spec": {"template": {"cliques": cliques}},
            }))
            .unwrap()
        };
        let of = |own, cliques| queue(&set(own, cliques)).map_err(|error| error.to_string());
        assert_eq!(of(None, [None, None]).unwrap(), "default");
        assert_eq!(of(Some("a"), [None, Some("a")]).unwrap(), "a");
        assert_eq!(of(None, [Some("b"), Some("b")]).unwrap(), "b");
        let two = of(Some("a"), [None, Some("b")]).unwrap_err();
        assert!(
            two.contains("cliques[1]") && two.contains("must come to a"),
            "{two}"
        );
        assert!(of(Some("A b"), [None, None]).is_err());
        assert!(of(None, [Some(""), None]).is_err());
    }
}
