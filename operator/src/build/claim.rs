//! ResourceClaims, and pods that use them.

use std::collections::BTreeSet;

use coppice_operator_api::labels::{self, Component};
use coppice_operator_api::names;
use coppice_operator_plan::ids::ReplicaIndex;
use coppice_operator_plan::sharing::{ClaimId, Owner};
use k8s_openapi::api::core::v1::{PodResourceClaim, PodSpec, ResourceClaim as Reference};
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceClaimSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use super::scope::Scope;
use crate::validated::Validated;

/// Name of a claim. `replica` is the set replica; the set's own claims for all of them need none.
pub(crate) fn name(set: &Validated, replica: Option<ReplicaIndex>, claim: &ClaimId) -> String {
    let owner = match (&claim.owner, replica) {
        (Owner::Group(group), Some(replica)) => Scope { set, replica }.group(group),
        (Owner::Clique(clique), Some(replica)) => Scope { set, replica }.clique(clique),
        (Owner::Set, _) | (_, None) => set.key.name().to_owned(),
    };
    match claim.of {
        Some(number) => names::replica_claim(&owner, number, &claim.template),
        None => names::shared_claim(&owner, &claim.template),
    }
}

/// The claim, as its template says it.
///
/// Everything that belongs to a set replica carries its index, also where upstream leaves it out: by that label it is found
/// and taken away with the replica.
pub(crate) fn claim(
    set: &Validated,
    replica: Option<ReplicaIndex>,
    claim: &ClaimId,
    owner: OwnerReference,
    spec: ResourceClaimSpec,
) -> ResourceClaim {
    let mut labels = labels::of_set(set.key.name());
    let mut put = |key: &str, value: String| labels.insert(key.to_owned(), value);
    put(
        labels::COMPONENT,
        Component::ResourceClaim.as_str().to_owned(),
    );
    if let Some(replica) = replica {
        put(labels::SET_REPLICA_INDEX, replica.to_string());
    }
    match &claim.owner {
        Owner::Set => {}
        Owner::Group(_) => {
            put(labels::SCALING_GROUP, owner.name.clone());
            if let Some(number) = claim.of {
                put(labels::GROUP_REPLICA_INDEX, number.to_string());
            }
        }
        Owner::Clique(_) => {
            put(labels::CLIQUE, owner.name.clone());
            if let Some(index) = claim.of {
                put(labels::POD_INDEX, index.to_string());
            }
        }
    }
    ResourceClaim {
        metadata: ObjectMeta {
            labels: Some(labels),
            name: Some(name(set, replica, claim)),
            namespace: Some(set.key.namespace().to_owned()),
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        spec: Some(spec),
        status: None,
    }
}

/// Lets the pod, and all its containers, use these claims.
pub(crate) fn use_claims(spec: &mut PodSpec, claims: &[String]) {
    let mut named: BTreeSet<String> = spec
        .resource_claims
        .iter()
        .flatten()
        .map(|claim| claim.name.clone())
        .collect();
    for claim in claims {
        // What two levels call the same is the same object.
        if !named.insert(claim.clone()) {
            continue;
        }
        let reference = PodResourceClaim {
            name: claim.clone(),
            resource_claim_name: Some(claim.clone()),
            ..PodResourceClaim::default()
        };
        spec.resource_claims.get_or_insert_default().push(reference);
        let init = spec.init_containers.iter_mut().flatten();
        for container in spec.containers.iter_mut().chain(init) {
            let resources = container.resources.get_or_insert_default();
            resources.claims.get_or_insert_default().push(Reference {
                name: claim.clone(),
                request: None,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use coppice_operator_plan::ids::{CliqueId, CliqueName, GroupName};
    use serde_json::json;

    use super::*;
    use crate::validated::fixtures::{MN, set};

    fn id(owner: Owner, of: Option<u32>) -> ClaimId {
        ClaimId {
            owner,
            of,
            template: Arc::from("gpu"),
        }
    }

    fn owner(name: &str) -> OwnerReference {
        OwnerReference {
            name: name.to_owned(),
            ..OwnerReference::default()
        }
    }

    #[test]
    fn names_and_labels_are_upstreams_with_the_set_replica_beside_them() {
        let set = set(MN);
        let group = Owner::Group(GroupName::new("prefill").unwrap());
        let frontend = CliqueId::Standalone(CliqueName::new("frontend").unwrap());
        let frontend = Owner::Clique(frontend);
        let named = |replica, id: &ClaimId| name(&set, replica, id);
        assert_eq!(named(None, &id(Owner::Set, None)), "mn-all-gpu");
        assert_eq!(named(Some(1), &id(Owner::Set, Some(1))), "mn-1-gpu");
        assert_eq!(
            named(Some(0), &id(group.clone(), None)),
            "mn-0-prefill-all-gpu"
        );
        assert_eq!(
            named(Some(0), &id(frontend.clone(), Some(2))),
            "mn-0-frontend-2-gpu"
        );
        let labels = |id: &ClaimId, owned: &str| {
            let object = claim(
                &set,
                Some(0),
                id,
                owner(owned),
                ResourceClaimSpec::default(),
            );
            serde_json::to_value(object.metadata.labels).unwrap()
        };
        let common = |more: serde_json::Value| {
            let mut all = json!({
                "app.kubernetes.io/managed-by": "grove-operator", "app.kubernetes.io/part-of": "mn",
                "app.kubernetes.io/component": "resource-claim", "grove.io/podcliqueset-replica-index": "0",
            });
            all.as_object_mut()
                .unwrap()
                .extend(more.as_object().unwrap().clone());
            all
        };
        assert_eq!(
            labels(&id(group, Some(2)), "mn-0-prefill"),
            common(
                json!({"grove.io/podcliquescalinggroup": "mn-0-prefill", "grove.io/podcliquescalinggroup-replica-index": "2"})
            )
        );
        assert_eq!(
            labels(&id(frontend, Some(2)), "mn-0-frontend"),
            common(
                json!({"grove.io/podclique": "mn-0-frontend", "grove.io/podclique-pod-index": "2"})
            )
        );
        assert_eq!(labels(&id(Owner::Set, Some(0)), "mn"), common(json!({})));
    }

    #[test]
    fn every_container_uses_every_claim_once_beside_those_of_the_template() {
        let mut spec: PodSpec = serde_json::from_value(json!({
            "resourceClaims": [{"name": "mine", "resourceClaimTemplateName": "t"}],
            "initContainers": [{"name": "i"}],
            "containers": [{"name": "c", "resources": {"limits": {"cpu": "1"}, "claims": [{"name": "mine"}]}}],
        }))
        .unwrap();
        use_claims(&mut spec, &["a".to_owned(), "b".to_owned(), "a".to_owned()]);
        assert_eq!(
            serde_json::to_value(&spec).unwrap(),
            json!({
                "resourceClaims": [
                    {"name": "mine", "resourceClaimTemplateName": "t"},
                    {"name": "a", "resourceClaimName": "a"}, {"name": "b", "resourceClaimName": "b"},
                ],
                "initContainers": [{"name": "i", "resources": {"claims": [{"name": "a"}, {"name": "b"}]}}],
                "containers": [{"name": "c", "resources": {"limits": {"cpu": "1"}, "claims": [{"name": "mine"}, {"name": "a"}, {"name": "b"}]}}],
            })
        );
    }
}
