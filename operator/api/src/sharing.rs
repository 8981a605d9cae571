//! Resource claims that pods of a set, of a scaling group or of a clique share.

use k8s_openapi::api::resource::v1::ResourceClaimTemplateSpec;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A claim template that the set carries itself, to be named in `resourceSharing`.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ResourceClaimTemplateConfig {
    /// Name by which `resourceSharing` entries refer to this template; unique in the set.
    pub name: String,
    /// The claim to create, as in a ResourceClaimTemplate of resource.k8s.io/v1.
    pub template_spec: ResourceClaimTemplateSpec,
}

/// How many claims a sharing entry stands for.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum SharingScope {
    /// One claim for all replicas of the level.
    #[default]
    AllReplicas,
    /// One claim for each replica of the level.
    PerReplica,
}

/// A claim shared by the pods of one clique.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ResourceSharingSpec {
    /// Name of a template in `resourceClaimTemplates`, else of a ResourceClaimTemplate object.
    pub name: String,
    /// Namespace of the ResourceClaimTemplate object; must be absent for a template of the set itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// One claim for all replicas of the level, or one for each.
    pub scope: SharingScope,
}

/// A claim shared by pods of a whole set.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PcsResourceSharingSpec {
    /// Name of a template in `resourceClaimTemplates`, else of a ResourceClaimTemplate object.
    pub name: String,
    /// Namespace of the ResourceClaimTemplate object; must be absent for a template of the set itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// One claim for all replicas of the level, or one for each.
    pub scope: SharingScope,
    /// Which children get the claim; absent means all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filter: Option<PcsSharingFilter>,
}

/// A claim shared by pods of a scaling group.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PcsgResourceSharingSpec {
    /// Name of a template in `resourceClaimTemplates`, else of a ResourceClaimTemplate object.
    pub name: String,
    /// Namespace of the ResourceClaimTemplate object; must be absent for a template of the set itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// One claim for all replicas of the level, or one for each.
    pub scope: SharingScope,
    /// Which member cliques get the claim; absent means all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filter: Option<PcsgSharingFilter>,
}

/// Children of a set that get a shared claim: a pod matches when one of the lists names its clique or its group.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct PcsSharingFilter {
    /// Clique names of the template.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub child_clique_names: Option<Vec<String>>,
    /// Scaling-group names of the template.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub child_scaling_group_names: Option<Vec<String>>,
}

/// Members of a scaling group that get a shared claim.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct PcsgSharingFilter {
    /// Clique names of the template.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub child_clique_names: Option<Vec<String>>,
}
