//! Gangs by scheduling gates: pods are held until the whole gang fits.

use coppice_operator_api::names;
use coppice_operator_plan::gang::Gang;
use coppice_operator_plan::observed::Lane;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{Pod, PodSchedulingGate};
use k8s_openapi::api::scheduling::v1alpha3::Workload;

use super::{Companion, GangBackend, Placement, ReplicaView};
use crate::index::key::SetKey;
use crate::validated::Validated;

/// The backend `gated`.
#[derive(Debug, Default)]
pub(crate) struct Gated;

impl GangBackend for Gated {
    fn name(&self) -> &'static str {
        "gated"
    }

    fn has_groups(&self) -> bool {
        false
    }

    fn workload(&self, _: &Validated) -> Option<Workload> {
        None
    }

    fn place(&self, _: ReplicaView<'_>) -> Placement {
        Placement::default()
    }

    fn prepare_pod(&self, pod: &mut Pod, _: &str, _: Option<Lane>) {
        if let Some(spec) = &mut pod.spec {
            let gate = PodSchedulingGate { name: names::SCHEDULING_GATE.to_owned() };
            spec.scheduling_gates.get_or_insert_default().push(gate);
        }
    }

    fn refusal(&self, _: ReplicaView<'_>, _: &Gang) -> Option<String> {
        None
    }

    fn look_at(&self, _: &SetKey, _: u32) {}

    fn accompany(&self, companion: Companion) -> BoxFuture<'static, ()> {
        Box::pin(async move { companion.draining.cancelled().await })
    }
}
