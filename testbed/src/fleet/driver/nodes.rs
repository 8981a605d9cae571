//! Nodes of the fleet: they come, die, come back and go. Requests about them run beside the loop, which serves pods
//! meanwhile.

use std::net::Ipv4Addr;
use std::time::Duration;

use futures::{StreamExt, stream};
use tokio::sync::oneshot;
use tracing::{info, warn};

use super::super::actor::Input;
use super::super::command::{CommandError, FleetState};
use super::super::node;
use super::Driver;

/// A node that the fleet plays, or played: a name is not given twice.
#[derive(Debug)]
pub(super) struct NodeEntry {
    pub(super) address: Ipv4Addr,
    pub(super) is_alive: bool,
    /// Whether the site removes pods that were evicted from it while it is dead.
    pub(super) fenced: bool,
}

/// Where the answer to a command goes.
pub(super) type Reply = oneshot::Sender<Result<FleetState, CommandError>>;

/// A request about nodes that was answered.
#[derive(Debug)]
pub(super) struct Errand {
    reply: Reply,
    result: Result<(), CommandError>,
    /// The node that is back if it succeeded.
    revived: Option<String>,
}

impl Driver {
    /// Registers `count` nodes behind the present ones.
    pub(super) fn add_nodes(&mut self, count: usize, reply: Reply) {
        let first = self.nodes.len();
        let mut fresh = Vec::with_capacity(count);
        for index in first..first + count {
            let Some(address) = self.addresses.take() else {
                return self.answer(
                    reply,
                    Err(CommandError::Refused(
                        "no address of 127.64.0.0/10 is free".to_owned(),
                    )),
                );
            };
            let name = node::name(&self.settings.name_prefix, index);
            self.nodes.insert(
                name,
                NodeEntry {
                    address,
                    is_alive: true,
                    fenced: true,
                },
            );
            fresh.push((index, address));
        }
        let heartbeats = self.heartbeats.clone();
        self.errands.spawn(async move {
            let result = heartbeats
                .register(fresh)
                .await
                .map_err(|e| CommandError::Refused(e.to_string()));
            Errand {
                reply,
                result,
                revived: None,
            }
        });
    }

    fn switch_off(&mut self, name: &str, fenced: bool) -> Result<(), CommandError> {
        let node = self
            .nodes
            .get_mut(name)
            .ok_or_else(|| CommandError::NoSuchNode(name.to_owned()))?;
        node.is_alive = false;
        node.fenced = fenced;
        self.heartbeats.stop(name);
        Ok(())
    }

    pub(super) fn kill_node(&mut self, name: &str, fenced: bool) -> Result<(), CommandError> {
        self.switch_off(name, fenced)?;
        info!(node = name, fenced, "node killed");
        for uid in self.pods_on(name) {
            self.step(&uid, Input::NodeDied);
        }
        Ok(())
    }

    pub(super) fn revive_node(&mut self, name: String, reply: Reply) {
        let address = match self.nodes.get(&name) {
            None => return self.answer(reply, Err(CommandError::NoSuchNode(name))),
            Some(node) if node.is_alive => return self.answer(reply, Ok(())),
            Some(node) => node.address,
        };
        let heartbeats = self.heartbeats.clone();
        self.errands.spawn(async move {
            let result = heartbeats
                .revive(&name, address)
                .await
                .map_err(|e| CommandError::Refused(e.to_string()));
            Errand {
                reply,
                result,
                revived: Some(name),
            }
        });
    }

    pub(super) fn remove_node(&mut self, name: String, reply: Reply) {
        if let Err(error) = self.abandon(&name) {
            return self.answer(reply, Err(error));
        }
        let heartbeats = self.heartbeats.clone();
        self.errands.spawn(async move {
            let result = heartbeats
                .unregister(&name)
                .await
                .map_err(|e| CommandError::Refused(e.to_string()));
            Errand {
                reply,
                result,
                revived: None,
            }
        });
    }

    /// The node is off for good; its pods are removed.
    fn abandon(&mut self, name: &str) -> Result<(), CommandError> {
        self.switch_off(name, true)?;
        info!(node = name, "node removed");
        for uid in self.pods_on(name) {
            self.step(
                &uid,
                Input::Deleted {
                    grace: Duration::ZERO,
                },
            );
        }
        Ok(())
    }

    pub(super) async fn remove_all_nodes(&mut self) {
        let names: Vec<_> = self.nodes.keys().cloned().collect();
        for name in &names {
            // Every name is known.
            self.abandon(name).ok();
        }
        let heartbeats = &self.heartbeats;
        let mut removals = stream::iter(&names)
            .map(|name| async move { (name, heartbeats.unregister(name).await) })
            .buffer_unordered(16);
        while let Some((name, result)) = removals.next().await {
            if let Err(error) = result {
                warn!(node = %name, %error, "cannot remove the node");
            }
        }
    }

    /// Answers who asked, and lets a node that is back take up its pods again.
    pub(super) fn finish(&mut self, errand: Errand) {
        let Errand {
            reply,
            result,
            revived,
        } = errand;
        if result.is_ok()
            && let Some(name) = revived
            && let Some(node) = self.nodes.get_mut(&name)
        {
            node.is_alive = true;
            info!(node = %name, "node revived");
            for uid in self.pods_on(&name) {
                self.step(&uid, Input::NodeBack);
                self.enter_gate(&uid);
            }
        }
        self.answer(reply, result);
    }

    pub(super) fn answer(&self, reply: Reply, result: Result<(), CommandError>) {
        // Who asked may have gone.
        drop(reply.send(result.map(|()| self.state())));
    }

    fn pods_on(&self, node: &str) -> Vec<String> {
        self.by_node
            .get(node)
            .into_iter()
            .flatten()
            .cloned()
            .collect()
    }
}
