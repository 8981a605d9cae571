//! Gang backends: how pods come to be placed all or none.
//!
//! A backend is asked in a fixed order during a pass over one set replica, always with the plan at hand:
//! [`GangBackend::place`] says which placement each new pod belongs to and which objects the scheduler needs,
//! [`GangBackend::prepare_pod`] writes that into a pod, [`GangBackend::refusal`] reads back why a gang waits. What has to
//! go on beside the passes, such as placing pods itself, runs in [`GangBackend::accompany`].
//!
//! Membership for status, start order and termination is read from labels, never from a backend's objects.

pub(crate) mod discovery;
pub(crate) mod gated;
pub(crate) mod kai;
pub(crate) mod native;
#[cfg(test)]
pub(crate) mod testing;
pub(crate) mod volcano;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::Arc;

use coppice_operator_api::{PodGang, names};
use coppice_operator_plan::gang::Gang;
use coppice_operator_plan::ids::{CliqueId, GangId, PodIndex, PodUid};
use coppice_operator_plan::observed::{Lane, Replica};
use coppice_operator_plan::replica::Plan;
use coppice_operator_plan::status::gang::is_floor_scheduled;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{Pod, PodSchedulingGate, PodSpec};
use k8s_openapi::api::scheduling::v1alpha3::{CompositePodGroup, PodGroup, Workload};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::apply::Writer;
use crate::build::scope::Scope;
use crate::index::Index;
use crate::index::entry::Shelf;
use crate::index::key::{Kind, SetKey};
use crate::metrics::Metrics;
use crate::validated::Validated;

/// One set replica, as a backend sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReplicaView<'a> {
    /// Names inside the replica.
    pub(crate) scope: Scope<'a>,
    /// What should be, and what changes now.
    pub(crate) plan: &'a Plan,
    /// What is there.
    pub(crate) observed: &'a Replica,
    /// The objects themselves, by name.
    pub(crate) shelf: &'a Shelf,
}

impl ReplicaView<'_> {
    /// Whether a gang may be placed now: a scaled gang waits until the base gang's floor is bound.
    pub(crate) fn may_place(&self, gang: &GangId) -> bool {
        let base = || self.plan.gangs.iter().find(|gang| gang.id == GangId::Base);
        *gang == GangId::Base || base().is_none_or(|base| is_floor_scheduled(base, self.observed))
    }
}

/// What a backend wants for one set replica.
#[derive(Clone, Debug, Default)]
pub(crate) struct Placement {
    /// The placement of each pod about to be created; absent: nothing has to be said about it.
    pub(crate) lanes: BTreeMap<(CliqueId, PodIndex), Lane>,
    /// Pods that cannot come to be placed as they are; they are deleted, and made again by the next pass.
    pub(crate) restart: BTreeSet<PodUid>,
    /// Objects that should exist, parents first; they never change.
    pub(crate) objects: Vec<PlacementObject>,
    /// Objects nobody needs any more: kind, name and uid.
    pub(crate) remove: Vec<(Kind, Arc<str>, Arc<str>)>,
}

/// What a pod is about to be placed with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PodPlace<'a> {
    /// Names inside its set replica.
    pub(crate) scope: Scope<'a>,
    /// What is there of it.
    pub(crate) observed: &'a Replica,
    /// Its clique.
    pub(crate) clique: &'a CliqueId,
    /// Its gang.
    pub(crate) gang: &'a GangId,
    /// Its placement.
    pub(crate) lane: Option<Lane>,
}

/// An object that tells the scheduler about a gang.
#[derive(Clone, Debug)]
pub(crate) enum PlacementObject {
    /// Pods that are placed together. Owned by their PodClique, whose name this is.
    Group(Box<PodGroup>, String),
    /// Groups that are placed together.
    Composite(Box<CompositePodGroup>),
}

/// A scheduler's own object for a gang.
#[derive(Clone, Debug)]
pub(crate) enum GangObject {
    /// For the KAI scheduler.
    Kai(Box<kai::KaiPodGroup>),
    /// For the Volcano scheduler.
    Volcano(Box<volcano::VolcanoPodGroup>),
}

/// Why a gang cannot be told to a scheduler.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Unmappable(pub(crate) String);

/// Pods of a gang's floor.
fn floor(gang: &PodGang) -> i32 {
    gang.spec
        .pod_groups
        .iter()
        .fold(0, |sum: i32, group| sum.saturating_add(group.min_replicas))
}

/// Sends a pod to a scheduler, behind a gate; those of the template stay.
fn gate(pod: &mut Pod, scheduler: &str) {
    let spec = pod.spec.get_or_insert_default();
    spec.scheduler_name = Some(scheduler.to_owned());
    hold(spec);
}

/// Puts the operator's gate on a pod.
fn hold(spec: &mut PodSpec) {
    let gate = PodSchedulingGate {
        name: names::SCHEDULING_GATE.to_owned(),
    };
    let gates = spec.scheduling_gates.get_or_insert_default();
    if !gates.contains(&gate) {
        gates.push(gate);
    }
}

/// What a backend's own task works with. It writes only through `writer`, which refuses when the tenure is over.
#[derive(Clone)]
pub(crate) struct Companion {
    /// The model; complete.
    pub(crate) index: Arc<Index>,
    /// Writes.
    pub(crate) writer: Writer,
    /// Reads and watches of the backend's own.
    pub(crate) client: kube::Client,
    /// Namespaces that the operator works in; empty means all.
    pub(crate) namespaces: Arc<[String]>,
    /// Counts.
    pub(crate) metrics: Arc<Metrics>,
    /// Cancelled when it has to end.
    pub(crate) draining: CancellationToken,
}

/// How pods come to be placed all or none.
pub(crate) trait GangBackend: Debug + Send + Sync {
    /// Name of the backend, as settings and logs have it.
    fn name(&self) -> &'static str;

    /// Value of the label `grove.io/scheduler-name` on PodGangs.
    fn scheduler(&self) -> &'static str {
        coppice_operator_api::defaults::SCHEDULER_NAME
    }

    /// Kind of the object that the scheduler itself has for each PodGang, where it has one. Its pods wait behind a gate until
    /// that object is there.
    fn gang_kind(&self) -> Option<Kind> {
        None
    }

    /// Adds to a PodGang what the scheduler wants to find there.
    fn complete_gang(&self, _set: &Validated, _gang: &mut PodGang) {}

    /// The scheduler's own object for a PodGang that is there; nothing: it stays as it is. `held` is the spec of the one that
    /// is there.
    ///
    /// # Errors
    /// The gang cannot be told to the scheduler.
    fn gang_object(
        &self,
        _set: &Validated,
        _gang: &PodGang,
        _owner: OwnerReference,
        _held: Option<&Value>,
    ) -> Result<Option<GangObject>, Unmappable> {
        Ok(None)
    }

    /// Whether the index must watch PodGroups, CompositePodGroups and Workloads.
    fn has_groups(&self) -> bool;

    /// The Workload that a set needs before its gangs.
    fn workload(&self, set: &Validated) -> Option<Workload>;

    /// What one set replica needs now. Pure.
    fn place(&self, view: ReplicaView<'_>) -> Placement;

    /// Writes a pod's placement into it.
    fn prepare_pod(&self, pod: &mut Pod, of: PodPlace<'_>);

    /// Why the scheduler does not place a gang, in words for people.
    fn refusal(&self, view: ReplicaView<'_>, gang: &Gang) -> Option<String>;

    /// A pass over this set replica is over. Must not block.
    fn look_at(&self, set: &SetKey, replica: u32);

    /// What goes on beside the passes while this process leads.
    fn accompany(&self, companion: Companion) -> BoxFuture<'static, ()>;
}
