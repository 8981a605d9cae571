//! What is there, inside one set replica, as the planner sees it.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::hash::TemplateHash;
use crate::ids::{CliqueId, GroupName, PodIndex, PodUid};

/// Everything of one set replica.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replica {
    /// Scaling-group objects.
    pub groups: BTreeMap<GroupName, Group>,
    /// PodClique objects with their pods.
    pub cliques: BTreeMap<CliqueId, Clique>,
    /// `spec.replicas` of PodCliques that were taken down to come back: somebody else's number, which must not be lost.
    pub taken_down: BTreeMap<CliqueId, u32>,
}

/// A scaling-group object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// `spec.replicas`: owned by whoever scales it, `0..`.
    pub replicas: u32,
    /// It is being deleted.
    pub terminating: bool,
}

/// A PodClique object and the pods it owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clique {
    /// `spec.replicas`: owned by whoever scales it, `0..`.
    pub replicas: u32,
    /// Digest of the template it holds, which its new pods are made from.
    pub hash: TemplateHash,
    /// It is being deleted: it gets no pods any more.
    pub terminating: bool,
    /// No replacement for pods that ended by themselves before this instant: they end again and again.
    pub hold_until: Option<Timestamp>,
    /// Every pod whose controller is this object.
    pub pods: Vec<Pod>,
}

/// One pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// The server's identity.
    pub uid: PodUid,
    /// Its index in the clique; absent when its label is missing or unreadable.
    pub index: Option<PodIndex>,
    /// `status.phase`.
    pub phase: Phase,
    /// `deletionTimestamp` is set.
    pub terminating: bool,
    /// It is bound to a node.
    pub scheduled: bool,
    /// It waits behind a scheduling gate.
    pub gated: bool,
    /// Condition `Ready` is true.
    pub ready: bool,
    /// A main container has started and is not ready.
    pub started_unready: bool,
    /// A container's last run ended with a non-zero exit code.
    pub crashed: bool,
    /// Digest of the template it was made from.
    pub hash: TemplateHash,
    /// When it was created; seconds resolution.
    pub created: Timestamp,
    /// What it has to be placed together with; absent when it is placed alone.
    pub lane: Option<Lane>,
}

/// Which placement a pod belongs to, see [`crate::rounds`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lane {
    /// The gang's placement it takes part in, counted from 0.
    pub round: u32,
    /// `true`: it is needed for the round's floor. `false`: it follows once the floor is placed.
    pub floor: bool,
}

/// A pod's phase. Ordered as scale-in prefers victims.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Not all containers have started.
    Pending,
    /// The node does not answer.
    Unknown,
    /// Started.
    Running,
    /// All containers ended well.
    Succeeded,
    /// Containers ended badly, or the pod was evicted.
    Failed,
}

impl Pod {
    /// Counts towards the clique: neither on its way out nor ended.
    #[must_use]
    pub fn is_active(&self) -> bool {
        !self.terminating && !self.is_finished()
    }

    /// Ended by itself; it will never run again.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        matches!(self.phase, Phase::Succeeded | Phase::Failed)
    }
}

impl Clique {
    /// Pods that count.
    pub fn active(&self) -> impl Iterator<Item = &Pod> {
        self.pods.iter().filter(|pod| pod.is_active())
    }

    /// Active pods that are bound to a node.
    #[must_use]
    pub fn scheduled(&self) -> u32 {
        count(self.active().filter(|pod| pod.scheduled))
    }

    /// Active pods that are ready.
    #[must_use]
    pub fn ready(&self) -> u32 {
        count(self.active().filter(|pod| pod.ready))
    }
}

/// Number of items; pods of one clique are far fewer than `u32::MAX`.
pub(crate) fn count<T>(items: impl Iterator<Item = T>) -> u32 {
    u32::try_from(items.count()).unwrap_or(u32::MAX)
}
