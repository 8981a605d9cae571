//! One look at the cluster: how many units there are, where gangs stand, what the GPUs do.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::Context;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::core::GroupVersionKind;
use kube::{Api, Client, ResourceExt};
use serde_json::Value;

const MANAGED: &str = "app.kubernetes.io/managed-by=grove-operator";
const PART_OF: &str = "app.kubernetes.io/part-of";
const GANG: &str = "grove.io/podgang";
const CLIQUE: &str = "grove.io/podclique";
const GPU: &str = "nvidia.com/gpu";

/// The model that the policy scales.
pub(super) const POLICY_MODEL: &str = "qwen3";
/// The model that the HPA scales.
pub(super) const HPA_MODEL: &str = "chat";
/// Roles of the policy, by the name of their scaling group.
pub(super) const ROLES: [&str; 2] = ["prefill", "decode"];

/// Looks at the cluster.
#[derive(Debug)]
pub(crate) struct Watcher {
    pods: Api<Pod>,
    sets: Api<DynamicObject>,
    groups: Api<DynamicObject>,
    gangs: Api<DynamicObject>,
    policies: Api<DynamicObject>,
}

/// Units of something scaled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Units {
    pub(super) wanted: u32,
    pub(super) current: u32,
    pub(super) ready: u32,
}

/// How far a gang has got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Placement {
    /// No pod of it is bound.
    Waiting,
    /// Some of its floor is bound.
    Partial,
    /// At least the minimum of every member is bound.
    Whole,
    /// It is on its way out.
    Leaving,
}

/// The cluster at one instant.
#[derive(Debug, Clone, Default)]
pub(crate) struct Look {
    /// By role, and `sets`.
    pub(super) roles: BTreeMap<String, Units>,
    /// The model under the HPA.
    pub(super) hpa: Units,
    /// GPUs of all pods of the policy's model, those on their way out too.
    pub(super) gpus: u32,
    /// By name.
    pub(super) gangs: BTreeMap<String, Placement>,
    /// Pods of the policy's model by node.
    pub(super) nodes: BTreeMap<String, usize>,
}

impl Watcher {
    pub(crate) fn new(client: &Client, namespace: &str) -> Self {
        let api = |group: &str, version: &str, kind: &str, plural: &str| {
            let resource = ApiResource::from_gvk_with_plural(
                &GroupVersionKind::gvk(group, version, kind),
                plural,
            );
            Api::<DynamicObject>::namespaced_with(client.clone(), namespace, &resource)
        };
        Self {
            sets: api("grove.io", "v1alpha1", "PodCliqueSet", "podcliquesets"),
            groups: api(
                "grove.io",
                "v1alpha1",
                "PodCliqueScalingGroup",
                "podcliquescalinggroups",
            ),
            gangs: api("scheduler.grove.io", "v1alpha1", "PodGang", "podgangs"),
            policies: api(
                "autoscaling.coppice.dev",
                "v1alpha1",
                "ScalingPolicy",
                "scalingpolicies",
            ),
            pods: Api::namespaced(client.clone(), namespace),
        }
    }

    /// Reads everything once.
    pub(crate) async fn look(&self) -> anyhow::Result<Look> {
        let all = ListParams::default();
        let managed = ListParams::default().labels(MANAGED);
        // Gangs before pods: a gang that is seen has at least the pods that it had then.
        let gangs = self.gangs.list(&all).await.context("listing gangs")?;
        let (pods, groups, sets, policies) = tokio::try_join!(
            self.pods.list(&managed),
            self.groups.list(&all),
            self.sets.list(&all),
            self.policies.list(&all),
        )
        .context("listing the workloads")?;
        let mut look = Look::default();
        look.count_pods(&pods.items);
        for gang in &gangs.items {
            look.gangs
                .insert(gang.name_any(), placement(gang, &pods.items));
        }
        look.count_units(&groups.items, &sets.items, &policies.items);
        Ok(look)
    }
}

fn number(value: &Value) -> u32 {
    value
        .as_u64()
        .and_then(|number| u32::try_from(number).ok())
        .unwrap_or_default()
}

fn label<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    pod.metadata.labels.as_ref()?.get(key).map(String::as_str)
}

fn node(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}

/// GPUs that a pod asks for.
fn gpus(pod: &Pod) -> u32 {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let limits =
        containers.filter_map(|container| container.resources.as_ref()?.limits.as_ref()?.get(GPU));
    limits
        .filter_map(|quantity| quantity.0.parse::<u32>().ok())
        .sum()
}

fn is_leaving(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

/// Where a gang stands, from the pods that carry its label.
fn placement(gang: &DynamicObject, pods: &[Pod]) -> Placement {
    let members: Vec<&Pod> = pods
        .iter()
        .filter(|pod| label(pod, GANG) == Some(gang.name_any().as_str()))
        .collect();
    if gang.metadata.deletion_timestamp.is_some() || members.iter().any(|pod| is_leaving(pod)) {
        return Placement::Leaving;
    }
    let groups = gang.data["spec"]["podgroups"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    let bound = |clique: &Value| {
        let count = members
            .iter()
            .filter(|pod| label(pod, CLIQUE) == clique.as_str() && node(pod).is_some())
            .count();
        u32::try_from(count).unwrap_or(u32::MAX)
    };
    if groups
        .iter()
        .all(|group| bound(&group["name"]) >= number(&group["minReplicas"]))
    {
        Placement::Whole
    } else if members.iter().any(|pod| node(pod).is_some()) {
        Placement::Partial
    } else {
        Placement::Waiting
    }
}

impl Look {
    fn count_pods(&mut self, pods: &[Pod]) {
        for pod in pods {
            if label(pod, PART_OF) == Some(POLICY_MODEL) {
                self.gpus += gpus(pod);
                if let Some(node) = node(pod) {
                    *self.nodes.entry(node.to_owned()).or_default() += 1;
                }
            }
        }
    }

    fn count_units(
        &mut self,
        groups: &[DynamicObject],
        sets: &[DynamicObject],
        policies: &[DynamicObject],
    ) {
        for group in groups {
            let name = group.name_any();
            let units = if group
                .labels()
                .get(PART_OF)
                .is_some_and(|set| set == HPA_MODEL)
            {
                &mut self.hpa
            } else if let Some(role) = ROLES
                .iter()
                .find(|role| name.ends_with(&format!("-{role}")))
            {
                self.roles.entry((*role).to_owned()).or_default()
            } else {
                continue;
            };
            units.current += number(&group.data["spec"]["replicas"]);
            units.ready += number(&group.data["status"]["availableReplicas"]);
        }
        // The HPA writes what it wants into the object itself.
        self.hpa.wanted = self.hpa.current;
        for set in sets.iter().filter(|set| set.name_any() == POLICY_MODEL) {
            let units = self.roles.entry("sets".to_owned()).or_default();
            units.current = number(&set.data["spec"]["replicas"]);
            units.ready = number(&set.data["status"]["availableReplicas"]);
            units.wanted = units.current;
        }
        for policy in policies
            .iter()
            .filter(|policy| policy.name_any() == POLICY_MODEL)
        {
            let status = &policy.data["status"];
            for role in status["roles"]
                .as_array()
                .map(Vec::as_slice)
                .unwrap_or_default()
            {
                let Some(name) = role["name"].as_str() else {
                    continue;
                };
                self.roles.entry(name.to_owned()).or_default().wanted = number(&role["wanted"]);
            }
            if status["sets"].is_object() {
                self.roles.entry("sets".to_owned()).or_default().wanted =
                    number(&status["sets"]["wanted"]);
            }
        }
    }

    /// Both models serve with as many instances as are wanted at first, or what is missing.
    pub(crate) fn everything_wanted_serves(&self) -> Result<(), String> {
        let missing: Vec<String> = ROLES
            .iter()
            .map(|role| (*role, self.roles.get(*role).copied().unwrap_or_default()))
            .chain([(HPA_MODEL, self.hpa)])
            .filter(|(_, units)| units.wanted == 0 || units.ready < units.wanted)
            .map(|(name, units)| format!("{name} {} of {}", units.ready, units.wanted))
            .collect();
        if missing.is_empty() {
            Ok(())
        } else {
            Err(format!("ready: {}", missing.join(", ")))
        }
    }

    /// No gang is partly placed or waits, or which do.
    pub(super) fn every_gang_whole(&self) -> Result<(), String> {
        let broken: Vec<&str> = self
            .gangs
            .iter()
            .filter(|(_, placement)| !matches!(placement, Placement::Whole))
            .map(|(name, _)| name.as_str())
            .collect();
        if broken.is_empty() {
            Ok(())
        } else {
            Err(format!("not whole: {}", broken.join(", ")))
        }
    }

    /// How many gangs are placed so.
    pub(super) fn gangs_that_are(&self, placement: Placement) -> usize {
        self.gangs.values().filter(|one| **one == placement).count()
    }

    /// The node with most pods of the policy's model.
    pub(super) fn busiest_node(&self) -> Option<String> {
        self.nodes
            .iter()
            .max_by_key(|(name, pods)| (**pods, std::cmp::Reverse((*name).clone())))
            .map(|(name, _)| name.clone())
    }

    /// Pods of the policy's model on a node.
    pub(super) fn pods_on(&self, node: &str) -> usize {
        self.nodes.get(node).copied().unwrap_or_default()
    }

    /// Headings of [`Self::line`].
    pub(super) fn heading() -> String {
        "        prefill      decode       sets   chat   GPUs     gangs\n   time  want/ready  want/ready  want   ready  of 192   whole part wait   load".to_owned()
    }

    /// One line of the table.
    pub(super) fn line(&self, elapsed: Duration, load: Option<&str>) -> String {
        let units = |name: &str| self.roles.get(name).copied().unwrap_or_default();
        let (prefill, decode) = (units("prefill"), units("decode"));
        // The driver's own line begins with its own clock.
        let load = load
            .and_then(|line| line.split_once(" s  "))
            .map_or("", |(_, rest)| rest);
        format!(
            "{:>5.0} s  {:>4} / {:<4}  {:>4} / {:<4}  {:>3}    {:>3}    {:>4}    {:>4} {:>4} {:>4}   {load}",
            elapsed.as_secs_f64(),
            prefill.wanted,
            prefill.ready,
            decode.wanted,
            decode.ready,
            units("sets").wanted,
            self.hpa.ready,
            self.gpus,
            self.gangs_that_are(Placement::Whole),
            self.gangs_that_are(Placement::Partial),
            self.gangs_that_are(Placement::Waiting),
        )
    }

    /// Names of the gangs that are partly placed.
    pub(super) fn partial(&self) -> BTreeSet<&str> {
        self.gangs
            .iter()
            .filter(|(_, placement)| **placement == Placement::Partial)
            .map(|(name, _)| name.as_str())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn gang(members: &Value) -> DynamicObject {
        serde_json::from_value(json!({
            "apiVersion": "scheduler.grove.io/v1alpha1", "kind": "PodGang", "metadata": {"name": "g"}, "spec": {"podgroups": members},
        }))
        .unwrap()
    }

    fn pod(clique: &str, node: Option<&str>, leaving: bool) -> Pod {
        let deleted = if leaving {
            json!("2026-01-01T00:00:00Z")
        } else {
            Value::Null
        };
        serde_json::from_value(json!({
            "metadata": {"name": "p", "labels": {GANG: "g", CLIQUE: clique, PART_OF: POLICY_MODEL}, "deletionTimestamp": deleted},
            "spec": {"nodeName": node, "containers": [{"name": "c", "resources": {"limits": {GPU: "8"}}}]},
        }))
        .unwrap()
    }

    #[test]
    fn a_gang_is_whole_when_every_member_has_its_minimum_bound() {
        let gang = gang(&json!([{"name": "a", "minReplicas": 1}, {"name": "b", "minReplicas": 2}]));
        let placed = |pods: &[Pod]| placement(&gang, pods);
        assert_eq!(placed(&[]), Placement::Waiting);
        assert_eq!(
            placed(&[pod("a", None, false), pod("b", None, false)]),
            Placement::Waiting
        );
        let partly = [
            pod("a", Some("n"), false),
            pod("b", Some("n"), false),
            pod("b", None, false),
        ];
        assert_eq!(placed(&partly), Placement::Partial);
        let whole = [
            pod("a", Some("n"), false),
            pod("b", Some("n"), false),
            pod("b", Some("m"), false),
        ];
        assert_eq!(placed(&whole), Placement::Whole);
        let leaving = [pod("a", Some("n"), true), pod("b", Some("n"), false)];
        assert_eq!(placed(&leaving), Placement::Leaving);
    }

    #[test]
    fn gpus_count_for_pods_on_their_way_out_too() {
        let mut look = Look::default();
        look.count_pods(&[
            pod("a", Some("n"), false),
            pod("a", Some("n"), true),
            pod("a", None, false),
        ]);
        assert_eq!(
            (look.gpus, look.pods_on("n"), look.busiest_node().as_deref()),
            (24, 2, Some("n"))
        );
    }
}
