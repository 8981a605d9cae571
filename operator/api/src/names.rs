//! Names of everything the operator creates.
//!
//! Membership is read from labels and owner references, never from names: several of them can look alike.
//! In the functions below `set`, `clique` and `group` are names in the manifest, `i` is the index of a set replica,
//! `k` that of a scaling-group replica, and `pclq` and `pcsg` are names of objects made here.

use crate::{GROUP, SCHEDULER_GROUP};

/// Name of a PodClique that belongs to no scaling group.
pub fn standalone_clique(set: &str, i: u32, clique: &str) -> String {
    format!("{set}-{i}-{clique}")
}

/// Name of a PodCliqueScalingGroup.
pub fn scaling_group(set: &str, i: u32, group: &str) -> String {
    format!("{set}-{i}-{group}")
}

/// Name of replica `k` of scaling group `pcsg`, as it appears in a base gang's topology groups.
pub fn group_replica(pcsg: &str, k: u32) -> String {
    format!("{pcsg}-{k}")
}

/// Name of a PodClique in replica `k` of scaling group `pcsg`.
pub fn member_clique(pcsg: &str, k: u32, clique: &str) -> String {
    format!("{pcsg}-{k}-{clique}")
}

/// Name of the gang that every set replica has: its standalone cliques and the minimum of each scaling group.
pub fn base_gang(set: &str, i: u32) -> String {
    format!("{set}-{i}")
}

/// Name of the gang that replica `k` of scaling group `pcsg` makes up on its own, or nothing when the replica belongs
/// to the base gang (`k < min_available`).
///
/// The number in the name counts from the minimum, not from 0: with a minimum of 1, replica 1 is gang `…-0`.
pub fn scaled_gang(pcsg: &str, k: u32, min_available: u32) -> Option<String> {
    let number = k.checked_sub(min_available)?;
    Some(format!("{pcsg}-{number}"))
}

/// Prefix of pod names; the server adds five random characters.
pub fn pod_generate_name(pclq: &str) -> String {
    format!("{pclq}-")
}

/// Host name of the pod with index `pod_index` in its clique.
pub fn pod_hostname(pclq: &str, pod_index: u32) -> String {
    format!("{pclq}-{pod_index}")
}

/// Name of the headless service of a set replica, and subdomain of its pods.
pub fn headless_service(set: &str, i: u32) -> String {
    format!("{set}-{i}")
}

/// DNS name of the headless service.
pub fn service_address(set: &str, i: u32, namespace: &str, cluster_domain: &str) -> String {
    format!(
        "{}.{namespace}.svc.{cluster_domain}",
        headless_service(set, i)
    )
}

/// Name of the HorizontalPodAutoscaler of a PodClique or PodCliqueScalingGroup: that of its target.
pub fn autoscaler(target: &str) -> String {
    target.to_owned()
}

/// Name of the service account of the init containers of a set. Pods themselves keep the account of their template.
pub fn service_account(set: &str) -> String {
    set.to_owned()
}

/// Name of the Role, and of the RoleBinding, of that account.
pub fn role(set: &str) -> String {
    format!("grove.io:pcs:{set}")
}

/// The value for a label that holds an object's name: colons, which a label refuses, become hyphens.
pub fn as_label_value(name: &str) -> String {
    name.replace(':', "-")
}

/// Name of the token Secret that upstream makes for the init containers of a set. The operator makes none.
pub fn upstream_token_secret(set: &str) -> String {
    format!("{set}-ic-sat")
}

/// Name of the token Secret of older upstream releases.
pub fn legacy_token_secret(set: &str) -> String {
    format!("{set}-initc-sa-token-secret")
}

/// Name of the claim that all replicas of `owner` share (a set's name, or an object's name below it).
pub fn shared_claim(owner: &str, template: &str) -> String {
    format!("{owner}-all-{template}")
}

/// Name of the claim of one replica of `owner`.
pub fn replica_claim(owner: &str, index: u32, template: &str) -> String {
    format!("{owner}-{index}-{template}")
}

/// Name of the ComputeDomain of an MNNVL group in a set replica, and of the claim template made from it.
pub fn compute_domain(set: &str, i: u32, mnnvl_group: &str) -> String {
    format!("{set}-{i}-{mnnvl_group}")
}

/// Finalizer of a PodCliqueSet.
pub const SET_FINALIZER: &str = "grove.io/podcliqueset.grove.io";
/// Finalizer that upstream puts on a PodClique.
pub const CLIQUE_FINALIZER: &str = "grove.io/podclique.grove.io";
/// Finalizer that upstream puts on a PodCliqueScalingGroup.
pub const GROUP_FINALIZER: &str = "grove.io/podcliquescalinggroup.grove.io";
/// Finalizer of a ComputeDomain.
pub const COMPUTE_DOMAIN_FINALIZER: &str = "grove.io/computedomain-finalizer";

/// Scheduling gate that holds a pod until its gang may be placed.
pub const SCHEDULING_GATE: &str = "grove.io/podgang-pending-creation";

/// Names of the five CustomResourceDefinitions.
pub fn custom_resource_definitions() -> [String; 5] {
    [
        format!("podcliquesets.{GROUP}"),
        format!("podcliques.{GROUP}"),
        format!("podcliquescalinggroups.{GROUP}"),
        format!("clustertopologybindings.{GROUP}"),
        format!("podgangs.{SCHEDULER_GROUP}"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The worked example of a service `mn` with a standalone clique and a group of minimum 1.
    #[test]
    fn names_are_upstreams() {
        assert_eq!(standalone_clique("mn", 0, "frontend"), "mn-0-frontend");
        let pcsg = scaling_group("mn", 0, "prefill");
        assert_eq!(pcsg, "mn-0-prefill");
        assert_eq!(group_replica(&pcsg, 2), "mn-0-prefill-2");
        let pclq = member_clique(&pcsg, 1, "pworker");
        assert_eq!(pclq, "mn-0-prefill-1-pworker");
        assert_eq!(base_gang("mn", 0), "mn-0");
        assert_eq!(pod_hostname(&pclq, 2), "mn-0-prefill-1-pworker-2");
        assert_eq!(pod_generate_name(&pclq), "mn-0-prefill-1-pworker-");
        assert_eq!(headless_service("mn", 0), "mn-0");
        assert_eq!(
            service_address("mn", 0, "ml", "cluster.local"),
            "mn-0.ml.svc.cluster.local"
        );
        assert_eq!(autoscaler(&pcsg), "mn-0-prefill");
        assert_eq!(role("mn"), "grove.io:pcs:mn");
        assert_eq!(as_label_value(&role("mn")), "grove.io-pcs-mn");
        assert_eq!(upstream_token_secret("mn"), "mn-ic-sat");
        assert_eq!(legacy_token_secret("mn"), "mn-initc-sa-token-secret");
        assert_eq!(replica_claim(&pcsg, 2, "gpu"), "mn-0-prefill-2-gpu");
        assert_eq!(shared_claim("mn", "gpu"), "mn-all-gpu");
        assert_eq!(compute_domain("mn", 1, "train"), "mn-1-train");
    }

    #[test]
    fn a_scaled_gang_counts_from_the_minimum() {
        assert_eq!(scaled_gang("mn-0-prefill", 0, 1), None);
        assert_eq!(scaled_gang("mn-0-prefill", 1, 1).unwrap(), "mn-0-prefill-0");
        assert_eq!(scaled_gang("mn-0-prefill", 2, 1).unwrap(), "mn-0-prefill-1");
        assert_eq!(scaled_gang("mn-0-prefill", 2, 3), None);
    }
}
