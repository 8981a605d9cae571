//! Registering nodes and keeping them alive: Node objects, their status, and Leases renewed in turn.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, stream};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::{MissedTickBehavior, interval};
use tracing::{debug, warn};

use super::node;
use super::settings::FleetSettings;

/// Leases of nodes live here, in every cluster.
const LEASES: &str = "kube-node-lease";
/// Registrations and renewals on their way at the same time.
const CONCURRENCY: usize = 16;

/// A node could not be registered.
#[derive(Debug, thiserror::Error)]
#[error("cannot register node {node}: {reason}")]
pub struct RegisterError {
    /// Its name.
    pub node: String,
    /// The server's words.
    pub reason: String,
}

/// What is sent for nodes, over a connection of its own so that heartbeats never wait behind pods.
#[derive(Debug, Clone)]
pub(super) struct Heartbeats {
    nodes: Api<Node>,
    leases: Api<Lease>,
    settings: Arc<FleetSettings>,
    /// Nodes that are alive, each with whether a renewal is on its way.
    beating: Arc<Mutex<BTreeMap<String, bool>>>,
}

impl Heartbeats {
    pub(super) fn new(client: Client, settings: Arc<FleetSettings>) -> Self {
        Self {
            nodes: Api::all(client.clone()),
            leases: Api::namespaced(client, LEASES),
            settings,
            beating: Arc::default(),
        }
    }

    /// Registers nodes (index and address each), marks them ready and lets them beat.
    pub(super) async fn register(
        &self,
        nodes: Vec<(usize, Ipv4Addr)>,
    ) -> Result<(), RegisterError> {
        let mut registered = stream::iter(nodes)
            .map(|(index, address)| async move {
                let name = node::name(&self.settings.name_prefix, index);
                self.register_one(&name, index, address)
                    .await
                    .map_err(|e| RegisterError {
                        node: name,
                        reason: e.to_string(),
                    })
            })
            .buffer_unordered(CONCURRENCY);
        while let Some(result) = registered.next().await {
            result?;
        }
        Ok(())
    }

    async fn register_one(&self, name: &str, index: usize, address: Ipv4Addr) -> kube::Result<()> {
        let object = node::object(&self.settings, index);
        let wanted: Node =
            serde_json::from_value(object.clone()).map_err(kube::Error::SerdeError)?;
        match self.nodes.create(&PostParams::default(), &wanted).await {
            // A node of an earlier fleet is taken over.
            Err(kube::Error::Api(status)) if status.code == 409 => {
                self.nodes
                    .patch(name, &PatchParams::default(), &Patch::Merge(&object))
                    .await?;
            }
            other => drop(other?),
        }
        self.revive(name, address).await
    }

    /// Reports the node as ready and lets it beat.
    pub(super) async fn revive(&self, name: &str, address: Ipv4Addr) -> kube::Result<()> {
        // The lease first: a ready node without one would be looked at by its status alone.
        self.renew(name).await?;
        self.beating.lock().insert(name.to_owned(), false);
        let status = node::ready_status(&self.settings.shape, name, address, Timestamp::now());
        let patch = json!({"status": status});
        self.nodes
            .patch_status(name, &PatchParams::default(), &Patch::Strategic(&patch))
            .await
            .map(drop)
    }

    /// The node beats no more.
    pub(super) fn stop(&self, name: &str) {
        self.beating.lock().remove(name);
    }

    /// Removes the Node object and its Lease.
    pub(super) async fn unregister(&self, name: &str) -> kube::Result<()> {
        self.stop(name);
        for result in [
            self.nodes
                .delete(name, &kube::api::DeleteParams::default())
                .await
                .map(drop),
            self.leases
                .delete(name, &kube::api::DeleteParams::default())
                .await
                .map(drop),
        ] {
            match result {
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                other => other?,
            }
        }
        Ok(())
    }

    /// Renews leases for ever, each node once a period, evenly spread over it.
    pub(super) async fn run(self, period: Duration) {
        const TICK: Duration = Duration::from_millis(100);
        let turns = usize::try_from(period.as_millis() / TICK.as_millis())
            .unwrap_or(usize::MAX)
            .max(1);
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        let limit = Arc::new(tokio::sync::Semaphore::new(CONCURRENCY));
        for turn in 0.. {
            ticks.tick().await;
            let due: Vec<_> = {
                let mut beating = self.beating.lock();
                let mut due = Vec::new();
                for (number, (name, is_on_its_way)) in beating.iter_mut().enumerate() {
                    if number % turns == turn % turns && !*is_on_its_way {
                        *is_on_its_way = true;
                        due.push(name.clone());
                    }
                }
                due
            };
            for name in due {
                let (beats, limit) = (self.clone(), Arc::clone(&limit));
                tokio::spawn(async move {
                    // Never closed.
                    let _permit = limit.acquire().await;
                    if let Err(error) = beats.renew(&name).await {
                        debug!(node = %name, %error, "a lease was not renewed; trying again in its next turn");
                    }
                    if let Some(is_on_its_way) = beats.beating.lock().get_mut(&name) {
                        *is_on_its_way = false;
                    }
                });
            }
        }
    }

    async fn renew(&self, name: &str) -> kube::Result<()> {
        let patch = json!({"spec": {"renewTime": micro_time(Timestamp::now())}});
        match self
            .leases
            .patch(name, &PatchParams::default(), &Patch::Merge(&patch))
            .await
        {
            Err(kube::Error::Api(status)) if status.code == 404 => self.create_lease(name).await,
            other => other.map(drop),
        }
    }

    async fn create_lease(&self, name: &str) -> kube::Result<()> {
        let lease: Value = json!({
            "metadata": {"name": name},
            "spec": {
                "holderIdentity": name,
                "leaseDurationSeconds": 40,
                "renewTime": micro_time(Timestamp::now()),
            },
        });
        let lease: Lease = serde_json::from_value(lease).map_err(kube::Error::SerdeError)?;
        match self.leases.create(&PostParams::default(), &lease).await {
            Err(kube::Error::Api(status)) if status.code == 409 => {
                warn!(
                    node = name,
                    "two fleets play this node; give one of them another --node-prefix"
                );
                Ok(())
            }
            other => other.map(drop),
        }
    }
}

/// RFC 3339 with six digits of a second, the form of Kubernetes' `MicroTime`.
fn micro_time(instant: Timestamp) -> String {
    format!("{instant:.6}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lease_times_have_six_digits() {
        let instant = Timestamp::from_microsecond(1_700_000_000_000_000).unwrap();
        assert_eq!(micro_time(instant), "2023-11-14T22:13:20.000000Z");
    }
}
