//! The fleet of one policy, from views.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use coppice_operator_api::{labels, names};
use coppice_scaler_api::{Role, ScaledKind, Scales};
use coppice_scaler_plan::{Fleet, RoleFleet, RoleInSet, SetFleet};
use jiff::Timestamp;

use crate::target::{PlainTarget, child, is_of_role};
use crate::views::{PodView, ScaledView, SetView, Version};
use crate::watch::Key;

/// What there is of one PodCliqueSet.
#[derive(Debug)]
pub(crate) struct World<'a> {
    pub(crate) namespace: &'a str,
    pub(crate) set_name: &'a str,
    pub(crate) set: &'a SetView,
    pub(crate) cliques: &'a BTreeMap<Key, Arc<ScaledView>>,
    pub(crate) groups: &'a BTreeMap<Key, Arc<ScaledView>>,
    /// Pods of the set.
    pub(crate) pods: &'a [Arc<PodView>],
}

/// The fleet of a PodCliqueSet whose roles are `roles`; every role names a template (see `target::check_roles`). `conflicts` says, by role, whether
/// someone else writes it.
pub(crate) fn of_set(
    world: &World<'_>,
    roles: &[Role],
    conflicts: &[bool],
    now: Timestamp,
) -> Fleet {
    let scales: Vec<&Scales> = roles
        .iter()
        .filter_map(|role| role.scales.as_ref())
        .collect();
    let living = || world.pods.iter().filter(|pod| !pod.ended);
    let mut indices: BTreeSet<u32> = living().filter_map(|pod| pod.set_index()).collect();
    indices.extend((0..world.set.replicas).filter(|index| {
        scales
            .iter()
            .any(|scales| world.desired(*index, scales).is_some())
    }));
    let sets = indices
        .into_iter()
        .map(|index| set_fleet(world, roles, &scales, index, now))
        .collect();
    let role_fleets = roles
        .iter()
        .zip(&scales)
        .enumerate()
        .map(|(index, (role, scales))| RoleFleet {
            gpus_per_unit: role.gpus_per_unit.or_else(|| world.unit_gpus(scales)),
            quorum: world.template(scales).1,
            initial: world.template(scales).0,
            starting: starting(world, scales, now),
            conflict: conflicts.get(index).copied().unwrap_or(false),
        });
    Fleet {
        roles: role_fleets.collect(),
        desired_sets: world.set.replicas,
        sets,
        gpus_beside_roles: world.gpus_beside(&scales),
        rollout: world.set.rollout,
    }
}

/// The fleet of one object with `/scale`: one set that is never changed, a pod is a unit.
pub(crate) fn of_plain(
    target: &PlainTarget,
    role: &Role,
    pods: &[Arc<PodView>],
    conflict: bool,
    now: Timestamp,
) -> Fleet {
    let living: Vec<&PodView> = pods
        .iter()
        .map(AsRef::as_ref)
        .filter(|pod| !pod.ended)
        .collect();
    let gpus_per_unit = role
        .gpus_per_unit
        .or_else(|| living.iter().map(|pod| pod.gpus).max().flatten());
    let gpus = |terminating: bool| -> u32 {
        let pods = living.iter().filter(|pod| pod.terminating == terminating);
        pods.map(|pod| role.gpus_per_unit.or(pod.gpus).unwrap_or(0))
            .sum()
    };
    let (unschedulable, unschedulable_for) = stuck(
        living
            .iter()
            .copied()
            .map(|pod| (pod, pod.facts.uid.clone())),
        now,
    );
    let units = RoleInSet {
        desired: Some(target.replicas),
        ready: count(living.iter().filter(|pod| pod.is_ready())),
        unschedulable,
        unschedulable_for,
        gpus: gpus(false),
        terminating_gpus: gpus(true),
    };
    let starting = living
        .iter()
        .filter(|pod| !pod.terminating && pod.ready.is_none())
        .map(|pod| since(pod.created, now));
    Fleet {
        roles: vec![RoleFleet {
            gpus_per_unit,
            quorum: 1,
            initial: 1,
            starting: starting.collect(),
            conflict,
        }],
        desired_sets: 1,
        sets: vec![SetFleet {
            index: 0,
            roles: vec![units],
            other_gpus: 0,
            other_terminating_gpus: 0,
        }],
        gpus_beside_roles: Some(0),
        rollout: false,
    }
}

impl World<'_> {
    /// Units that a role's object asks for; `None` when there is no object.
    fn desired(&self, index: u32, scales: &Scales) -> Option<u32> {
        self.object(index, scales).map(|object| object.replicas)
    }

    /// Version of a role's object, if there is one.
    pub(crate) fn version(&self, index: u32, scales: &Scales) -> Option<Version> {
        self.object(index, scales)?.version
    }

    fn object(&self, index: u32, scales: &Scales) -> Option<&ScaledView> {
        let key = (
            self.namespace.to_owned(),
            child(self.set_name, index, scales),
        );
        let objects = match scales.kind {
            ScaledKind::PodClique => self.cliques,
            ScaledKind::PodCliqueScalingGroup => self.groups,
        };
        objects.get(&key).map(AsRef::as_ref)
    }

    /// Units with which a role starts in a new set, and the least a gang can run with.
    fn template(&self, scales: &Scales) -> (u32, u32) {
        let template = match scales.kind {
            ScaledKind::PodClique => self
                .set
                .cliques
                .get(&scales.name)
                .map(|clique| (clique.replicas, clique.min_available)),
            ScaledKind::PodCliqueScalingGroup => self
                .set
                .groups
                .get(&scales.name)
                .map(|group| (group.replicas, group.min_available)),
        };
        template.unwrap_or((1, 1))
    }

    fn unit_gpus(&self, scales: &Scales) -> Option<u32> {
        match scales.kind {
            ScaledKind::PodClique => self.set.cliques.get(&scales.name)?.gpus,
            ScaledKind::PodCliqueScalingGroup => {
                self.set.group_gpus(self.set.groups.get(&scales.name)?)
            }
        }
    }

    /// GPUs of one set beside its roles' units.
    fn gpus_beside(&self, roles: &[&Scales]) -> Option<u32> {
        let is_role = |kind: ScaledKind, name: &str| {
            roles
                .iter()
                .any(|scales| scales.kind == kind && scales.name == name)
        };
        let mut total = 0;
        for name in self
            .set
            .standalone()
            .filter(|name| !is_role(ScaledKind::PodClique, name))
        {
            total += self.set.clique_gpus(name)?;
        }
        for (name, group) in &self.set.groups {
            if !is_role(ScaledKind::PodCliqueScalingGroup, name) {
                total += self.set.group_gpus(group)? * group.replicas;
            }
        }
        Some(total)
    }

    /// Whether every clique of a unit has its minimum ready.
    fn is_unit_ready(&self, scales: &Scales, index: u32, unit: &str, pods: &[&PodView]) -> bool {
        match scales.kind {
            ScaledKind::PodClique => pods.iter().any(|pod| pod.is_ready()),
            ScaledKind::PodCliqueScalingGroup => {
                let Some(group) = self.set.groups.get(&scales.name) else {
                    return false;
                };
                let Ok(replica) = unit.parse() else {
                    return false;
                };
                let name = names::scaling_group(self.set_name, index, &scales.name);
                group.cliques.iter().all(|clique| {
                    let member = names::member_clique(&name, replica, clique);
                    let ready = pods
                        .iter()
                        .filter(|pod| pod.is_ready() && pod.label(labels::CLIQUE) == Some(&member));
                    self.set
                        .cliques
                        .get(clique)
                        .is_some_and(|template| count(ready) >= template.min_available)
                })
            }
        }
    }
}

/// Which unit of its role a pod belongs to: itself, or the replica of the scaling group.
fn unit_of(pod: &PodView, scales: &Scales) -> String {
    match scales.kind {
        ScaledKind::PodClique => pod.facts.uid.clone(),
        ScaledKind::PodCliqueScalingGroup => pod
            .label(labels::GROUP_REPLICA_INDEX)
            .unwrap_or_default()
            .to_owned(),
    }
}

fn set_fleet(
    world: &World<'_>,
    roles: &[Role],
    scales: &[&Scales],
    index: u32,
    now: Timestamp,
) -> SetFleet {
    let pods: Vec<&PodView> = world
        .pods
        .iter()
        .map(AsRef::as_ref)
        .filter(|pod: &&PodView| !pod.ended && pod.set_index() == Some(index))
        .collect();
    let in_roles = roles.iter().zip(scales).map(|(role, scales)| {
        let own: Vec<&PodView> = pods
            .iter()
            .copied()
            .filter(|pod| is_of_role(pod, world.set_name, scales))
            .collect();
        let desired = world
            .desired(index, scales)
            .filter(|_| index < world.set.replicas);
        units(world, role, scales, index, &own, desired, now)
    });
    let others: Vec<&PodView> = pods
        .iter()
        .copied()
        .filter(|pod| {
            !scales
                .iter()
                .any(|scales| is_of_role(pod, world.set_name, scales))
        })
        .collect();
    let gpus = |terminating: bool| {
        others
            .iter()
            .filter(|pod| pod.terminating == terminating)
            .filter_map(|pod| pod.gpus)
            .sum()
    };
    SetFleet {
        index,
        roles: in_roles.collect(),
        other_gpus: gpus(false),
        other_terminating_gpus: gpus(true),
    }
}

fn units<'w>(
    world: &World<'_>,
    role: &Role,
    scales: &Scales,
    index: u32,
    pods: &[&'w PodView],
    desired: Option<u32>,
    now: Timestamp,
) -> RoleInSet {
    let (going, living): (Vec<&PodView>, Vec<&PodView>) =
        pods.iter().copied().partition(|pod| pod.terminating);
    let by_unit = |pods: Vec<&'w PodView>| {
        let mut units: BTreeMap<String, Vec<&PodView>> = BTreeMap::new();
        for pod in pods {
            units.entry(unit_of(pod, scales)).or_default().push(pod);
        }
        units
    };
    let unit_gpus = |pods: &Vec<&PodView>| {
        role.gpus_per_unit
            .unwrap_or_else(|| pods.iter().filter_map(|pod| pod.gpus).sum())
    };
    let (living_units, going_units) = (by_unit(living.clone()), by_unit(going));
    let ready = count(
        living_units
            .iter()
            .filter(|(unit, pods)| world.is_unit_ready(scales, index, unit, pods)),
    );
    let (gpus, terminating_gpus) = (
        living_units.values().map(unit_gpus).sum(),
        going_units.values().map(unit_gpus).sum(),
    );
    let (unschedulable, unschedulable_for) =
        stuck(living.iter().map(|pod| (*pod, unit_of(pod, scales))), now);
    RoleInSet {
        desired,
        ready,
        unschedulable,
        unschedulable_for,
        gpus,
        terminating_gpus,
    }
}

/// Units with a pod that cannot be scheduled, and for how long the oldest could not.
fn stuck<'a>(pods: impl Iterator<Item = (&'a PodView, String)>, now: Timestamp) -> (u32, Duration) {
    let mut units = BTreeSet::new();
    let mut longest = Duration::ZERO;
    for (pod, unit) in pods {
        if let Some(since_then) = pod.unschedulable.filter(|_| !pod.terminating) {
            units.insert(unit);
            longest = longest.max(since(Some(since_then), now));
        }
    }
    (count(units.iter()), longest)
}

/// Time since the creation of each unit of the role that is not ready.
fn starting(world: &World<'_>, scales: &Scales, now: Timestamp) -> Vec<Duration> {
    let mut units: BTreeMap<(u32, String), Vec<&PodView>> = BTreeMap::new();
    for pod in world
        .pods
        .iter()
        .filter(|pod| !pod.ended && !pod.terminating && is_of_role(pod, world.set_name, scales))
    {
        let Some(index) = pod.set_index().filter(|index| *index < world.set.replicas) else {
            continue;
        };
        units
            .entry((index, unit_of(pod, scales)))
            .or_default()
            .push(pod);
    }
    let not_ready = units
        .into_iter()
        .filter(|((index, unit), pods)| !world.is_unit_ready(scales, *index, unit, pods));
    not_ready
        .map(|(_, pods)| {
            pods.iter()
                .map(|pod| since(pod.created, now))
                .max()
                .unwrap_or_default()
        })
        .collect()
}

/// Time since `then`; nothing when that is unknown or ahead.
pub(crate) fn since(then: Option<Timestamp>, now: Timestamp) -> Duration {
    then.and_then(|then| Duration::try_from(now.duration_since(then)).ok())
        .unwrap_or_default()
}

fn count<T>(items: impl Iterator<Item = T>) -> u32 {
    u32::try_from(items.count()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::{Value, json};

    fn set() -> SetView {
        let clique = |name: &str, replicas: u32, gpus: u32| {
            let containers = json!([{"name": "engine", "resources": {"limits": {"nvidia.com/gpu": gpus.to_string()}}}]);
            json!({"name": name, "spec": {"roleName": name, "replicas": replicas, "minAvailable": replicas, "podSpec": {"containers": containers}}})
        };
        let set = serde_json::from_value(json!({
            "apiVersion": "grove.io/v1alpha1", "kind": "PodCliqueSet", "metadata": {"name": "mn", "uid": "u"},
            "spec": {"replicas": 2, "template": {
                "cliques": [clique("router", 1, 1), clique("leader", 1, 8), clique("worker", 3, 8), clique("frontend", 2, 0)],
                "podCliqueScalingGroups": [{"name": "prefill", "cliqueNames": ["leader", "worker"], "replicas": 2, "minAvailable": 2}],
            }},
        }))
        .unwrap();
        SetView::new(set, "nvidia.com/gpu")
    }

    /// A pod of a clique: `where_` is the set, and the group with its replica for a member of one.
    fn pod(name: &str, clique: &str, set: u32, group: Option<u32>, state: &str) -> Arc<PodView> {
        let full = group.map_or_else(
            || format!("mn-{set}-{clique}"),
            |replica| format!("mn-{set}-prefill-{replica}-{clique}"),
        );
        let mut labels = json!({
            "app.kubernetes.io/managed-by": "grove-operator", "app.kubernetes.io/part-of": "mn",
            "grove.io/podcliqueset-replica-index": set.to_string(), "grove.io/podclique": full,
        });
        if let Some(replica) = group {
            labels["grove.io/podcliquescalinggroup"] = json!(format!("mn-{set}-prefill"));
            labels["grove.io/podcliquescalinggroup-replica-index"] = json!(replica.to_string());
        }
        let condition = |type_: &str, status: &str| json!({"type": type_, "status": status, "lastTransitionTime": "2026-01-01T00:00:30Z"});
        let conditions = match state {
            "ready" => json!([
                condition("PodScheduled", "True"),
                condition("Ready", "True")
            ]),
            "stuck" => json!([condition("PodScheduled", "False")]),
            _ => json!([condition("PodScheduled", "True")]),
        };
        let gpus = if clique == "frontend" {
            "0"
        } else if clique == "router" {
            "1"
        } else {
            "8"
        };
        let mut object = json!({
            "metadata": {"name": name, "namespace": "ml", "uid": name, "labels": labels, "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"containers": [{"name": "engine", "resources": {"limits": {"nvidia.com/gpu": gpus}}}]},
            "status": {"phase": "Running", "conditions": conditions},
        });
        if state == "going" {
            object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:40Z");
        }
        let pod: Pod = serde_json::from_value(object).unwrap();
        Arc::new(PodView::new(pod, "nvidia.com/gpu"))
    }

    fn roles(value: Value) -> Vec<Role> {
        serde_json::from_value(value).unwrap()
    }

    fn prefill() -> Vec<Role> {
        let signal = json!({"queueDepth": {"waitingPerUnit": 4}});
        roles(json!([
            {"name": "prefill", "stage": "Prefill", "scales": {"kind": "PodCliqueScalingGroup", "name": "prefill"}, "max": 8, "signal": signal},
            {"name": "front", "stage": "Other", "scales": {"kind": "PodClique", "name": "frontend"}, "max": 8, "signal": signal},
        ]))
    }

    fn now() -> Timestamp {
        "2026-01-01T00:02:00Z".parse().unwrap()
    }

    fn objects(names: &[(&str, u32)]) -> BTreeMap<Key, Arc<ScaledView>> {
        names
            .iter()
            .map(|(name, replicas)| {
                (
                    ("ml".to_owned(), (*name).to_owned()),
                    Arc::new(ScaledView {
                        replicas: *replicas,
                        version: None,
                    }),
                )
            })
            .collect()
    }

    fn observed(pods: &[Arc<PodView>], cliques: &[(&str, u32)], groups: &[(&str, u32)]) -> Fleet {
        let (set, cliques, groups) = (set(), objects(cliques), objects(groups));
        let world = World {
            namespace: "ml",
            set_name: "mn",
            set: &set,
            cliques: &cliques,
            groups: &groups,
            pods,
        };
        of_set(&world, &prefill(), &[], now())
    }

    #[test]
    fn templates_say_gpus_quorum_and_first_size() {
        let fleet = observed(&[], &[], &[]);
        let prefill = &fleet.roles[0];
        assert_eq!(
            (prefill.gpus_per_unit, prefill.quorum, prefill.initial),
            (Some(32), 2, 2)
        );
        let front = &fleet.roles[1];
        assert_eq!(
            (front.gpus_per_unit, front.quorum, front.initial),
            (Some(0), 2, 2)
        );
        assert_eq!(
            (fleet.desired_sets, fleet.gpus_beside_roles),
            (2, Some(1)),
            "the router belongs to no role"
        );
        assert_eq!(fleet.sets, []);
        assert_eq!(
            fleet.current(0),
            4,
            "sets whose objects are yet to come count with their first size"
        );
    }

    #[test]
    fn a_unit_is_ready_when_each_of_its_cliques_has_its_minimum() {
        let member = |name: &str, clique: &str, replica: u32, state: &str| {
            pod(name, clique, 0, Some(replica), state)
        };
        let mut pods = vec![
            member("l0", "leader", 0, "ready"),
            member("l1", "leader", 1, "ready"),
        ];
        pods.extend(["a", "b", "c"].map(|name| member(name, "worker", 0, "ready")));
        pods.extend([
            member("d", "worker", 1, "ready"),
            member("e", "worker", 1, "starting"),
            member("f", "worker", 1, "stuck"),
        ]);
        pods.push(pod("r", "router", 0, None, "ready"));
        let fleet = observed(&pods, &[("mn-0-frontend", 2)], &[("mn-0-prefill", 2)]);
        let units = fleet.sets[0].roles[0];
        assert_eq!(
            (
                units.desired,
                units.ready,
                units.gpus,
                units.terminating_gpus
            ),
            (Some(2), 1, 64, 0)
        );
        assert_eq!(
            (units.unschedulable, units.unschedulable_for),
            (1, Duration::from_secs(90))
        );
        assert_eq!(fleet.roles[0].starting, [Duration::from_secs(120)]);
        assert_eq!(
            (fleet.sets[0].other_gpus, fleet.sets[0].roles[1].desired),
            (1, Some(2))
        );
        assert_eq!(
            fleet.sets.len(),
            1,
            "set 1 has neither objects nor pods yet"
        );
    }

    #[test]
    fn what_is_going_away_still_holds_its_gpus() {
        let pods = [
            pod("l0", "leader", 0, Some(0), "going"),
            pod("x", "leader", 3, Some(0), "going"),
            pod("r", "router", 3, None, "going"),
        ];
        let fleet = observed(&pods, &[], &[("mn-0-prefill", 2)]);
        assert_eq!(
            (
                fleet.sets[0].roles[0].gpus,
                fleet.sets[0].roles[0].terminating_gpus
            ),
            (0, 8)
        );
        let removed = &fleet.sets[1];
        assert_eq!(
            (
                removed.index,
                removed.roles[0].desired,
                removed.roles[0].terminating_gpus
            ),
            (3, None, 8)
        );
        assert_eq!(removed.other_terminating_gpus, 1);
    }

    #[test]
    fn a_number_of_gpus_in_the_policy_wins() {
        let (set, none) = (set(), BTreeMap::new());
        let pods = [
            pod("l0", "leader", 0, Some(0), "ready"),
            pod("l1", "leader", 0, Some(1), "ready"),
        ];
        let world = World {
            namespace: "ml",
            set_name: "mn",
            set: &set,
            cliques: &none,
            groups: &none,
            pods: &pods,
        };
        let mut roles = prefill();
        roles[0].gpus_per_unit = Some(5);
        let fleet = of_set(&world, &roles, &[], now());
        assert_eq!(
            (fleet.roles[0].gpus_per_unit, fleet.sets[0].roles[0].gpus),
            (Some(5), 10)
        );
    }

    #[test]
    fn a_plain_target_is_one_set_of_pods() {
        let target = PlainTarget {
            name: "chat".to_owned(),
            resource: kube::api::ApiResource::erase::<k8s_openapi::api::apps::v1::Deployment>(&()),
            replicas: 3,
            version: None,
            selector: None,
        };
        let pods = [
            pod("a", "leader", 0, None, "ready"),
            pod("b", "leader", 0, None, "stuck"),
            pod("c", "leader", 0, None, "going"),
        ];
        let fleet = of_plain(&target, &prefill()[0], &pods, false, now());
        let units = fleet.sets[0].roles[0];
        assert_eq!(
            (
                units.desired,
                units.ready,
                units.gpus,
                units.terminating_gpus,
                units.unschedulable
            ),
            (Some(3), 1, 16, 8, 1)
        );
        assert_eq!(
            (
                fleet.desired_sets,
                fleet.roles[0].gpus_per_unit,
                fleet.roles[0].quorum
            ),
            (1, Some(8), 1)
        );
    }
}
