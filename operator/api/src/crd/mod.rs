//! The CustomResourceDefinitions of the five kinds, ready to be applied.
//!
//! The types give fields, defaults, columns and rules; what a derive cannot say (keys of list maps, defaults inside
//! pod specs, bounds of conditions) is added here. Apply them server-side: they are larger than the annotation that a
//! client-side apply leaves behind.

mod schema;
mod tables;
mod yaml;

pub use yaml::{file_name, to_yaml};

pub(crate) use schema::{domain_schema, label_key_schema, phase_schema, required_domain_schema};

use crate::{ClusterTopologyBinding, PodClique, PodCliqueScalingGroup, PodCliqueSet, PodGang};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;

/// The five CustomResourceDefinitions, in the order in which they are printed.
pub fn crds() -> Vec<CustomResourceDefinition> {
    [
        PodCliqueSet::crd(),
        PodClique::crd(),
        PodCliqueScalingGroup::crd(),
        ClusterTopologyBinding::crd(),
        PodGang::crd(),
    ]
    .into_iter()
    .map(schema::finish)
    .collect()
}
