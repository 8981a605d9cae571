//! Gangs by scheduling gates: pods are held until the whole gang fits.
//!
//! Every pod is made with the gate `grove.io/podgang-pending-creation`. Beside the passes one task of the leader watches
//! nodes, all pods of the cluster and PodGangs; when a gang is complete it looks for nodes for its whole floor, and one
//! patch for each pod takes the gate away and pins the pod to its node. kube-scheduler still binds. A gang that is not
//! bound in time is released: its pods are deleted, made anew behind gates, and planned without the nodes that failed.
//!
//! Rooms: `view` and `needs` read objects; `ledger` knows who has which room; `gangs` finds what waits and what did not
//! come about; `lift` makes the patch; `engine` is the task; `reasons` is what statuses say.

mod engine;
mod gangs;
mod ledger;
mod lift;
mod needs;
mod reasons;
#[cfg(test)]
mod tests;
mod view;

use std::sync::Arc;
use std::time::Duration;

use coppice_operator_plan::gang::Gang;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::scheduling::v1alpha3::Workload;

use self::engine::Engine;
use self::reasons::Reasons;
use super::{Companion, GangBackend, Placement, PodPlace, ReplicaView, hold};
use crate::index::key::SetKey;
use crate::validated::Validated;

/// Flags of the backend.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct GatedArgs {
    /// Backend `gated`: seconds that kube-scheduler has to bind a gang before it is taken back and planned anew
    #[arg(long, env = "COPPICE_GANG_BIND_TIMEOUT", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..), value_name = "SECONDS")]
    gang_bind_timeout: u32,
    /// Backend `gated`: seconds after which a gang that fits nowhere keeps the nodes it needs least of for itself
    #[arg(long, env = "COPPICE_GANG_PATIENCE", default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..), value_name = "SECONDS")]
    gang_patience: u32,
}

impl GatedArgs {
    fn bind_timeout(&self) -> Duration {
        Duration::from_secs(self.gang_bind_timeout.into())
    }

    fn patience(&self) -> Duration {
        Duration::from_secs(self.gang_patience.into())
    }
}

/// The backend `gated`.
#[derive(Debug)]
pub(crate) struct Gated {
    args: GatedArgs,
    reasons: Arc<Reasons>,
}

impl Gated {
    pub(crate) fn new(args: GatedArgs) -> Self {
        Self {
            args,
            reasons: Arc::default(),
        }
    }
}

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

    fn prepare_pod(&self, pod: &mut Pod, _: PodPlace<'_>) {
        hold(pod.spec.get_or_insert_default());
    }

    fn refusal(&self, view: ReplicaView<'_>, gang: &Gang) -> Option<String> {
        let namespace = Arc::from(view.scope.set.key.namespace());
        self.reasons
            .of(&(namespace, Arc::from(view.scope.gang(&gang.id))))
    }

    fn look_at(&self, _: &SetKey, _: u32) {}

    fn accompany(&self, companion: Companion) -> BoxFuture<'static, ()> {
        let engine = Engine::new(
            companion,
            Arc::clone(&self.reasons),
            self.args.bind_timeout(),
            self.args.patience(),
        );
        Box::pin(engine.run())
    }
}
