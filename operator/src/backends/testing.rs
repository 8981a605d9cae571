//! Sets, gangs and pods for the tests of backends that have objects of their own.

use std::collections::BTreeMap;
use std::sync::Arc;

use coppice_operator_api::PodGang;
use coppice_operator_plan::gang::{Scale, compose};
use coppice_operator_plan::ids::{CliqueId, CliqueName, GangId, GroupName};
use coppice_operator_plan::observed::Replica;
use coppice_operator_plan::topology::Level;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

use super::{GangBackend, PodPlace};
use crate::build;
use crate::build::scope::Scope;
use crate::validated::Validated;
use crate::validated::fixtures::{MN, set};

/// The worked example of the API reference: a zone for the set, a rack for each replica of its group, preferably a host.
pub(crate) fn fabric() -> Validated {
    let yaml = MN
        .replacen("labels: {team: a}", "labels: {kai.scheduler/queue: research}", 1)
        .replacen(
            "  template:\n",
            "  template:\n    priorityClassName: high\n    topologyConstraint: {topologyName: fabric, pack: {required: zone}}\n",
            1,
        )
        .replacen(
            "      cliqueNames: [pleader, pworker]\n",
            "      cliqueNames: [pleader, pworker]\n      topologyConstraint: {pack: {required: rack, preferred: host}}\n",
            1,
        );
    let levels: Vec<Level> = [
        ("zone", "topology.kubernetes.io/zone"),
        ("rack", "example.com/rack"),
        ("host", "kubernetes.io/hostname"),
    ]
    .map(|(domain, key)| (Arc::from(domain), Arc::from(key)))
    .into();
    set(&yaml).resolved(Some(&levels))
}

/// The same without constraints, and with a queue of the Volcano scheduler.
pub(crate) fn plain() -> Validated {
    let queue = "labels: {team: a}, annotations: {scheduling.grove.io/volcano-queue: research}";
    set(&MN.replacen("labels: {team: a}", queue, 1))
}

/// The set's gangs as the backend has them: the base gang and one for each further replica of the group. One pod each is
/// there of `frontend` and of the leader.
pub(crate) fn gangs_of(backend: &dyn GangBackend, set: &Validated) -> Vec<PodGang> {
    let scope = Scope { set, replica: 0 };
    let pods: BTreeMap<String, Vec<String>> = ["mn-0-frontend", "mn-0-prefill-1-pleader"]
        .map(|clique| (clique.to_owned(), vec![format!("{clique}-a1b2c")]))
        .into();
    let gangs = compose(&set.template, &Scale::default());
    gangs
        .iter()
        .map(|gang| {
            let mut object = build::gang::gang(scope, gang, &pods, backend.scheduler());
            backend.complete_gang(set, &mut object);
            object
        })
        .collect()
}

/// Those of the worked example.
pub(crate) fn gangs(backend: &dyn GangBackend) -> Vec<PodGang> {
    gangs_of(backend, &fabric())
}

/// A PodGang as owner.
pub(crate) fn owner(gang: &PodGang) -> OwnerReference {
    OwnerReference {
        api_version: "scheduler.grove.io/v1alpha1".to_owned(),
        kind: "PodGang".to_owned(),
        name: gang.metadata.name.clone().unwrap_or_default(),
        uid: "gang-uid".to_owned(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// A pod of a scaled gang, with a gate of its own, as the backend prepares it.
pub(crate) fn pod(backend: &dyn GangBackend) -> Pod {
    let set = fabric();
    let mut pod: Pod = serde_json::from_value(serde_json::json!({
        "metadata": {"name": "mn-0-prefill-1-pworker-a1b2c", "labels": {"grove.io/podgang": "mn-0-prefill-0"}},
        "spec": {"schedulingGates": [{"name": "mine"}], "containers": [{"name": "main"}]},
    }))
    .expect("a pod");
    let group = GroupName::new("prefill").expect("a name");
    let clique = CliqueId::Member {
        group: group.clone(),
        replica: 1,
        clique: CliqueName::new("pworker").expect("a name"),
    };
    let of = PodPlace {
        scope: Scope {
            set: &set,
            replica: 0,
        },
        observed: &Replica::default(),
        clique: &clique,
        gang: &GangId::Scaled { group, replica: 1 },
        lane: None,
    };
    backend.prepare_pod(&mut pod, of);
    pod
}
