//! NVIDIA's ComputeDomains, and pods that are in one.
//!
//! For each domain the driver makes a claim template of the same name; pods refer to that.

use coppice_operator_api::labels::{self, Component};
use coppice_operator_api::names;
use k8s_openapi::api::core::v1::{Container, PodResourceClaim, PodSpec, ResourceClaim};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::CustomResource;
use kube_quantity::ParsedQuantity;
use serde::{Deserialize, Serialize};

use super::scope::Scope;

/// What is written of a ComputeDomain.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[kube(
    group = "resource.nvidia.com",
    version = "v1beta1",
    kind = "ComputeDomain",
    plural = "computedomains",
    namespaced,
    schema = "disabled",
    doc = "Nodes whose GPUs share memory over NVLink, for the pods that use its claim template."
)]
pub(crate) struct ComputeDomainSpec {
    /// 0: as many nodes as its pods come to.
    num_nodes: i32,
    channel: Channel,
}

#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
struct Channel {
    resource_claim_template: Template,
}

#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
struct Template {
    name: String,
}

/// Name of the pod's claim for it, as upstream has it.
pub(crate) const CLAIM: &str = "mnnvl-claim";
/// Resource that a container with a GPU asks for.
const GPU: &str = "nvidia.com/gpu";

/// The domain of an MNNVL group in a set replica.
pub(crate) fn compute_domain(scope: Scope<'_>, group: &str) -> ComputeDomain {
    let name = names::compute_domain(scope.set.key.name(), scope.replica, group);
    let mut labels = scope.labels(&name, Component::ComputeDomain);
    labels.insert(labels::MNNVL_GROUP.to_owned(), group.to_owned());
    ComputeDomain {
        metadata: ObjectMeta {
            // So that it does not go away unnoticed; nothing waits for it.
            finalizers: Some(vec![names::COMPUTE_DOMAIN_FINALIZER.to_owned()]),
            labels: Some(labels),
            name: Some(name.clone()),
            namespace: Some(scope.set.key.namespace().to_owned()),
            owner_references: Some(vec![scope.set.owner()]),
            ..ObjectMeta::default()
        },
        spec: ComputeDomainSpec {
            num_nodes: 0,
            channel: Channel {
                resource_claim_template: Template { name },
            },
        },
    }
}

/// Whether a container of the pod asks for a GPU. Claims are not looked at.
pub(crate) fn has_gpus(pods: &PodSpec) -> bool {
    let init = pods.init_containers.iter().flatten();
    pods.containers.iter().chain(init).any(asks_for_gpu)
}

fn asks_for_gpu(container: &Container) -> bool {
    let resources = container.resources.iter();
    let mut asked = resources.flat_map(|resources| {
        let limits = resources.limits.iter();
        limits
            .chain(&resources.requests)
            .filter_map(|of| of.get(GPU))
    });
    let zero = ParsedQuantity::default();
    asked.any(|quantity| ParsedQuantity::try_from(quantity).is_ok_and(|quantity| quantity > zero))
}

/// Puts the pod into a domain: containers with GPUs use a claim from the domain's template.
pub(crate) fn join(pods: &mut PodSpec, domain: String) {
    pods.resource_claims
        .get_or_insert_default()
        .push(PodResourceClaim {
            name: CLAIM.to_owned(),
            resource_claim_template_name: Some(domain),
            ..PodResourceClaim::default()
        });
    let init = pods.init_containers.iter_mut().flatten();
    for container in pods.containers.iter_mut().chain(init) {
        if asks_for_gpu(container) {
            let resources = container.resources.get_or_insert_default();
            resources
                .claims
                .get_or_insert_default()
                .push(ResourceClaim {
                    name: CLAIM.to_owned(),
                    request: None,
                });
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::validated::fixtures::{MN, set};

    #[test]
    fn a_domain_is_upstreams() {
        let set = set(MN);
        let scope = Scope {
            set: &set,
            replica: 1,
        };
        let object = serde_json::to_value(compute_domain(scope, "train")).unwrap();
        assert_eq!(object["apiVersion"], "resource.nvidia.com/v1beta1");
        assert_eq!(
            object["spec"],
            json!({"numNodes": 0, "channel": {"resourceClaimTemplate": {"name": "mn-1-train"}}})
        );
        let meta = &object["metadata"];
        assert_eq!(
            meta["finalizers"],
            json!(["grove.io/computedomain-finalizer"])
        );
        assert_eq!(
            meta["labels"],
            json!({
                "app.kubernetes.io/managed-by": "grove-operator", "app.kubernetes.io/part-of": "mn", "app.kubernetes.io/name": "mn-1-train",
                "app.kubernetes.io/component": "pcs-computedomain", "grove.io/podcliqueset-replica-index": "1", "grove.io/mnnvl-group": "train",
            })
        );
        assert_eq!(
            (&meta["name"], &meta["ownerReferences"][0]["kind"]),
            (&json!("mn-1-train"), &json!("PodCliqueSet"))
        );
    }

    #[test]
    fn only_containers_with_gpus_get_the_claim() {
        let mut pods: PodSpec = serde_json::from_value(json!({
            "initContainers": [{"name": "probe", "resources": {"requests": {"nvidia.com/gpu": "1"}}}],
            "containers": [
                {"name": "gpu", "resources": {"limits": {"nvidia.com/gpu": "8"}}},
                {"name": "none", "resources": {"limits": {"nvidia.com/gpu": "0"}}},
                {"name": "cpu"},
            ],
        }))
        .unwrap();
        assert!(has_gpus(&pods));
        join(&mut pods, "mn-0-train".to_owned());
        let pods = serde_json::to_value(&pods).unwrap();
        assert_eq!(
            pods["resourceClaims"],
            json!([{"name": "mnnvl-claim", "resourceClaimTemplateName": "mn-0-train"}])
        );
        let claims = json!([{"name": "mnnvl-claim"}]);
        assert_eq!(pods["initContainers"][0]["resources"]["claims"], claims);
        assert_eq!(pods["containers"][0]["resources"]["claims"], claims);
        for other in [1, 2] {
            assert!(pods["containers"][other]["resources"]["claims"].is_null());
        }
        let idle: PodSpec = serde_json::from_value(
            json!({"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "0"}}}]}),
        )
        .unwrap();
        assert!(!has_gpus(&idle));
    }
}
