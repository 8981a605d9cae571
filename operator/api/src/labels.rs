//! Label and annotation keys, component values, and the label selectors that go into statuses.

use std::collections::BTreeMap;

/// Marks every object that the operator manages; see [`OPERATOR`].
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Name of the set an object belongs to, on every managed object.
pub const PART_OF: &str = "app.kubernetes.io/part-of";
/// The object's name; on pods that of their PodClique.
pub const NAME: &str = "app.kubernetes.io/name";
/// What the object is for: a [`Component`].
pub const COMPONENT: &str = "app.kubernetes.io/component";
/// Index of the set replica.
pub const SET_REPLICA_INDEX: &str = "grove.io/podcliqueset-replica-index";
/// Name of the PodClique, on its pods and claims.
pub const CLIQUE: &str = "grove.io/podclique";
/// Index of a pod in its clique.
pub const POD_INDEX: &str = "grove.io/podclique-pod-index";
/// Name of the PodGang, on PodCliques and pods.
pub const GANG: &str = "grove.io/podgang";
/// Name of the base gang, on PodCliques and pods of a scaled gang only.
pub const BASE_GANG: &str = "grove.io/base-podgang";
/// Name of the PodCliqueScalingGroup, on its members.
pub const SCALING_GROUP: &str = "grove.io/podcliquescalinggroup";
/// Index of the scaling-group replica, on its members.
pub const GROUP_REPLICA_INDEX: &str = "grove.io/podcliquescalinggroup-replica-index";
/// Hash of the template, on PodCliques and pods.
pub const TEMPLATE_HASH: &str = "grove.io/pod-template-hash";
/// Name of the scheduling backend, on PodGangs.
pub const SCHEDULER_NAME: &str = "grove.io/scheduler-name";
/// MNNVL group: a label of ComputeDomains, and an annotation by which users choose it.
pub const MNNVL_GROUP: &str = "grove.io/mnnvl-group";
/// Name of the PodClique on pods, for the KAI scheduler.
pub const KAI_SUBGROUP: &str = "kai.scheduler/subgroup-name";

/// Value of [`MANAGED_BY`].
pub const OPERATOR: &str = "grove-operator";
/// Prefix of keys that belong to the operator.
pub const PREFIX: &str = "grove.io/";

/// Keys of annotations.
pub mod annotations {
    /// On a set, by its user: `true` lets everybody edit its children.
    pub const DISABLE_PROTECTION: &str = "grove.io/disable-managed-resource-protection";
    /// On a set, by its user: a change of the value makes the operator look at the set again.
    pub const RECONCILE_TRIGGER: &str = "grove.io/reconcile-trigger";
    /// On a PodGang: name of the ClusterTopologyBinding that its constraints were translated by.
    pub const TOPOLOGY_NAME: &str = "grove.io/topology-name";
    /// On a set, scaling group or clique, by its user: see [`MNNVL_GROUP`](super::MNNVL_GROUP).
    pub const MNNVL_GROUP: &str = super::MNNVL_GROUP;
    /// On a set or clique, by its user: queue of the Volcano scheduler.
    pub const VOLCANO_QUEUE: &str = "scheduling.grove.io/volcano-queue";
    /// On a set or clique, by its user, as label or annotation: queue of the KAI scheduler.
    pub const KAI_QUEUE: &str = "kai.scheduler/queue";
    /// On pods and PodGangs: keeps the KAI scheduler from grouping them itself.
    pub const KAI_SKIP_GROUPER: &str = "kai.scheduler/skip-podgrouper";
    /// On pods: the KAI scheduler's name for their group.
    pub const KAI_POD_GROUP: &str = "pod-group-name";
    /// On pods: the Volcano scheduler's name for their group.
    pub const VOLCANO_GROUP: &str = "scheduling.volcano.sh/group-name";
    /// On pods: the older name of [`VOLCANO_GROUP`].
    pub const SCHEDULING_GROUP: &str = "scheduling.k8s.io/group-name";
}

/// Value of [`MNNVL_GROUP`] that turns the feature off for one child.
pub const MNNVL_NONE: &str = "none";

/// What a managed object is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Component {
    /// Headless service of a set replica.
    HeadlessService,
    /// Role of the init containers.
    PodRole,
    /// RoleBinding of the init containers.
    PodRoleBinding,
    /// Service account of the init containers.
    PodServiceAccount,
    /// Token Secret of the init containers; upstream only.
    PodTokenSecret,
    /// PodCliqueScalingGroup.
    ScalingGroup,
    /// HorizontalPodAutoscaler.
    Autoscaler,
    /// PodGang, and objects that stand for it.
    Gang,
    /// PodClique outside of scaling groups, and its pods.
    StandaloneClique,
    /// PodClique in a scaling group, and its pods.
    MemberClique,
    /// ResourceClaim.
    ResourceClaim,
    /// ComputeDomain.
    ComputeDomain,
}

impl Component {
    /// The value on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::HeadlessService => "pcs-headless-service",
            Self::PodRole => "pod-role",
            Self::PodRoleBinding => "pod-role-binding",
            Self::PodServiceAccount => "pod-service-account",
            Self::PodTokenSecret => "pod-sa-token-secret",
            Self::ScalingGroup => "pcs-podcliquescalinggroup",
            Self::Autoscaler => "pcs-hpa",
            Self::Gang => "podgang",
            Self::StandaloneClique => "pcs-podclique",
            Self::MemberClique => "pcsg-podclique",
            Self::ResourceClaim => "resource-claim",
            Self::ComputeDomain => "pcs-computedomain",
        }
    }
}

/// Labels of every object that belongs to `set`.
pub fn of_set(set: &str) -> BTreeMap<String, String> {
    BTreeMap::from([
        (MANAGED_BY.to_owned(), OPERATOR.to_owned()),
        (PART_OF.to_owned(), set.to_owned()),
    ])
}

/// Label selector of everything the operator manages, as text.
pub fn managed_selector() -> String {
    format!("{MANAGED_BY}={OPERATOR}")
}

/// Label selector of all pods of a set, as text with sorted keys.
pub fn set_selector(set: &str) -> String {
    format!("{MANAGED_BY}={OPERATOR},{PART_OF}={set}")
}

/// Label selector of the pods of one set replica.
pub fn set_replica_selector(set: &str, i: u32) -> String {
    format!("{},{SET_REPLICA_INDEX}={i}", set_selector(set))
}

/// Label selector of the pods of one PodClique.
pub fn clique_selector(set: &str, pclq: &str) -> String {
    format!("{},{CLIQUE}={pclq}", set_selector(set))
}

/// Label selector of the pods of one PodCliqueScalingGroup.
pub fn group_selector(set: &str, pcsg: &str) -> String {
    format!("{},{SCALING_GROUP}={pcsg}", set_selector(set))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_are_upstreams() {
        let set = "app.kubernetes.io/managed-by=grove-operator,app.kubernetes.io/part-of=mn";
        assert_eq!(set_selector("mn"), set);
        assert_eq!(
            clique_selector("mn", "mn-0-frontend"),
            format!("{set},grove.io/podclique=mn-0-frontend")
        );
        assert_eq!(
            group_selector("mn", "mn-0-prefill"),
            format!("{set},grove.io/podcliquescalinggroup=mn-0-prefill")
        );
    }
}
