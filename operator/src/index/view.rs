//! Objects as they come from a watch or an answer, with only the fields the operator reads.
//!
//! A pod of 8 kB leaves some 300 bytes behind. `managedFields`, most of every object, are skipped by the parser and never
//! allocated. Fields are read leniently: the server has validated them, and what cannot be read counts as absent rather
//! than stopping the watch.

use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::core::v1::{Pod, Service, ServiceAccount};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use k8s_openapi::api::resource::v1::ResourceClaim;
use k8s_openapi::api::scheduling::v1alpha3::{CompositePodGroup, PodGroup, Workload};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, OwnerReference, Time};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use std::collections::BTreeMap;

use coppice_operator_api::{PodClique, PodCliqueScalingGroup, PodGang};

use crate::backends::kai::KaiPodGroup;
use crate::backends::volcano::VolcanoPodGroup;
use crate::build::compute_domain::ComputeDomain;

/// Declares a view of a Kubernetes kind: its metadata, and the named fields.
macro_rules! view {
    ($(#[$doc:meta])* $view:ident of $kind:ty { $($(#[$attribute:meta])* $field:ident: $type:ty),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, serde::Deserialize)]
        #[serde(rename_all = "camelCase")]
        pub(crate) struct $view {
            #[serde(deserialize_with = "crate::index::view::slim_metadata")]
            pub(crate) metadata: k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta,
            $($(#[$attribute])* #[serde(default)] pub(crate) $field: $type,)*
        }

        impl kube::Resource for $view {
            type DynamicType = ();
            type Scope = <$kind as kube::Resource>::Scope;

            fn kind(_: &()) -> std::borrow::Cow<'_, str> {
                <$kind as kube::Resource>::kind(&())
            }

            fn group(_: &()) -> std::borrow::Cow<'_, str> {
                <$kind as kube::Resource>::group(&())
            }

            fn version(_: &()) -> std::borrow::Cow<'_, str> {
                <$kind as kube::Resource>::version(&())
            }

            fn plural(_: &()) -> std::borrow::Cow<'_, str> {
                <$kind as kube::Resource>::plural(&())
            }

            fn meta(&self) -> &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
                &self.metadata
            }

            fn meta_mut(&mut self) -> &mut k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
                &mut self.metadata
            }
        }
    };
}

pub(crate) use view;

/// A part of an object as text, to be read when it is needed.
pub(crate) type Raw = Option<Box<RawValue>>;

view! {
    /// A PodClique.
    CliqueView of PodClique { spec: Raw, status: Raw }
}
view! {
    /// A PodCliqueScalingGroup.
    GroupView of PodCliqueScalingGroup { spec: Raw, status: Raw }
}
view! {
    /// A PodGang.
    GangView of PodGang { spec: Raw, status: Raw }
}
view! {
    /// A Service.
    ServiceView of Service { spec: Raw }
}
view! {
    /// A HorizontalPodAutoscaler.
    AutoscalerView of HorizontalPodAutoscaler { spec: Raw }
}
view! {
    /// A ServiceAccount.
    AccountView of ServiceAccount {}
}
view! {
    /// A Role.
    RoleView of Role { rules: Raw }
}
view! {
    /// A RoleBinding.
    BindingView of RoleBinding { subjects: Raw }
}
view! {
    /// A PodGroup.
    PodGroupView of PodGroup { spec: PodGroupSpecView, status: GroupStatusView }
}
view! {
    /// A CompositePodGroup.
    CompositeView of CompositePodGroup { spec: CompositeSpecView, status: GroupStatusView }
}
view! {
    /// A Workload.
    WorkloadView of Workload {}
}
view! {
    /// A ResourceClaim.
    ClaimView of ResourceClaim {}
}
view! {
    /// A ComputeDomain.
    DomainView of ComputeDomain { spec: Raw }
}
view! {
    /// A PodGroup of the KAI scheduler.
    KaiGroupView of KaiPodGroup { spec: Raw }
}
view! {
    /// A PodGroup of the Volcano scheduler.
    VolcanoGroupView of VolcanoPodGroup { spec: Raw }
}
view! {
    /// A pod.
    PodView of Pod { spec: PodSpecView, status: PodStatusView }
}

/// What is read of a PodGroup's spec.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PodGroupSpecView {
    pub(crate) parent_composite_pod_group_name: Option<Box<str>>,
    pub(crate) scheduling_policy: PolicyView,
}

/// What is read of a CompositePodGroup's spec.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct CompositeSpecView {
    pub(crate) parent_composite_pod_group_name: Option<Box<str>>,
    pub(crate) scheduling_policy: PolicyView,
}

/// What is read of a group's policy.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PolicyView {
    pub(crate) gang: GangPolicyView,
}

/// What is read of a gang policy.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct GangPolicyView {
    pub(crate) min_count: u32,
    pub(crate) min_group_count: u32,
}

/// What is read of a group's status.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct GroupStatusView {
    pub(crate) conditions: Vec<Condition>,
}

/// What is read of a pod's spec.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PodSpecView {
    pub(crate) node_name: Option<Box<str>>,
    pub(crate) scheduling_gates: Vec<GateView>,
    pub(crate) scheduling_group: Option<SchedulingGroupView>,
}

/// A scheduling gate.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct GateView {
    pub(crate) name: Box<str>,
}

/// The group a pod is scheduled with.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct SchedulingGroupView {
    pub(crate) pod_group_name: Option<Box<str>>,
}

/// What is read of a pod's status.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PodStatusView {
    pub(crate) phase: Box<str>,
    pub(crate) conditions: Vec<PodConditionView>,
    pub(crate) container_statuses: Vec<ContainerView>,
    pub(crate) init_container_statuses: Vec<ContainerView>,
}

/// A condition of a pod.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct PodConditionView {
    #[serde(rename = "type")]
    pub(crate) kind: Box<str>,
    pub(crate) status: Box<str>,
}

/// The state of a container.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ContainerView {
    pub(crate) ready: bool,
    pub(crate) started: Option<bool>,
    pub(crate) last_state: LastStateView,
}

/// How a container ended last.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct LastStateView {
    pub(crate) terminated: Option<TerminatedView>,
}

/// The end of a container.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct TerminatedView {
    pub(crate) exit_code: i32,
}

/// Metadata without `managedFields`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SlimMetadata {
    #[serde(default)]
    annotations: Option<BTreeMap<String, String>>,
    #[serde(default)]
    creation_timestamp: Option<Time>,
    #[serde(default)]
    deletion_timestamp: Option<Time>,
    #[serde(default)]
    finalizers: Option<Vec<String>>,
    #[serde(default)]
    generation: Option<i64>,
    #[serde(default)]
    labels: Option<BTreeMap<String, String>>,
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    namespace: Option<String>,
    #[serde(default)]
    owner_references: Option<Vec<OwnerReference>>,
    #[serde(default)]
    resource_version: Option<String>,
    #[serde(default)]
    uid: Option<String>,
}

pub(crate) fn slim_metadata<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<ObjectMeta, D::Error> {
    let slim = SlimMetadata::deserialize(deserializer)?;
    Ok(ObjectMeta {
        annotations: slim.annotations,
        creation_timestamp: slim.creation_timestamp,
        deletion_timestamp: slim.deletion_timestamp,
        finalizers: slim.finalizers,
        generation: slim.generation,
        labels: slim.labels,
        name: slim.name,
        namespace: slim.namespace,
        owner_references: slim.owner_references,
        resource_version: slim.resource_version,
        uid: slim.uid,
        ..ObjectMeta::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::core::WatchEvent;

    #[test]
    fn a_view_is_read_from_a_watch_event_without_managed_fields() {
        let line = r#"{"type":"ADDED","object":{"apiVersion":"grove.io/v1alpha1","kind":"PodClique",
            "metadata":{"name":"a-0-b","namespace":"n","resourceVersion":"7","managedFields":[{"manager":"x","fieldsV1":{"f:spec":{}}}]},
            "spec":{"replicas":2},"status":{"readyReplicas":1}}}"#;
        let event: WatchEvent<CliqueView> = serde_json::from_str(line).unwrap();
        let WatchEvent::Added(clique) = event else {
            panic!("{event:?}")
        };
        assert_eq!(clique.metadata.managed_fields, None);
        assert_eq!(clique.spec.unwrap().get(), r#"{"replicas":2}"#);
    }

    #[test]
    fn a_list_of_views_is_read() {
        let text = r#"{"apiVersion":"v1","kind":"PodList","metadata":{"resourceVersion":"9"},"items":[
            {"metadata":{"name":"p"},"spec":{"nodeName":"n1"},"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}}]}"#;
        let list: kube::core::ObjectList<PodView> = serde_json::from_str(text).unwrap();
        assert_eq!(list.items[0].spec.node_name.as_deref(), Some("n1"));
    }
}
