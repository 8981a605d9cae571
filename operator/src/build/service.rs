//! The headless Service of a set replica.

use coppice_operator_api::labels::{self, Component};
use coppice_operator_api::names;
use k8s_openapi::api::core::v1::{Service, ServiceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::scope::Scope;

/// The Service that gives the replica's pods their names.
pub(crate) fn service(scope: Scope<'_>) -> Service {
    let name = names::headless_service(scope.set.key.name(), scope.replica);
    let mut selector = labels::of_set(scope.set.key.name());
    selector.insert(
        labels::SET_REPLICA_INDEX.to_owned(),
        scope.replica.to_string(),
    );
    Service {
        metadata: ObjectMeta {
            labels: Some(scope.labels(&name, Component::HeadlessService)),
            name: Some(name),
            namespace: Some(scope.set.key.namespace().to_owned()),
            owner_references: Some(vec![scope.set.owner()]),
            ..ObjectMeta::default()
        },
        spec: Some(ServiceSpec {
            cluster_ip: Some("None".to_owned()),
            publish_not_ready_addresses: Some(
                scope
                    .set
                    .object
                    .spec
                    .template
                    .publishes_not_ready_addresses(),
            ),
            selector: Some(selector),
            ..ServiceSpec::default()
        }),
        status: None,
    }
}
