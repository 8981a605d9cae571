//! Nodes as the planner sees them.

use super::needs::PodNeeds;
use super::resources::Resources;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// What a node is, apart from how full it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeShape {
    /// Name of the node.
    pub name: String,
    /// Labels of the node.
    pub labels: BTreeMap<String, String>,
    /// Taints of the node.
    pub taints: Vec<Taint>,
    /// The node is cordoned.
    pub unschedulable: bool,
    /// What is left of the node for gangs when all of them are gone: its allocatable resources without those of pods
    /// that no gang owns.
    pub ceiling: Resources,
    /// Likewise in pods.
    pub slot_ceiling: u32,
}

/// A node and the room on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// What the node is.
    pub shape: Arc<NodeShape>,
    /// Resources that no pod has or is promised.
    pub free: Resources,
    /// Pods that may still be added.
    pub free_slots: u32,
    /// Nobody may use the room: a gang that has waited long claims the node.
    pub withheld: bool,
}

impl Node {
    /// A node without any gang on it.
    #[must_use]
    pub fn empty(shape: Arc<NodeShape>) -> Self {
        Self {
            free: shape.ceiling.clone(),
            free_slots: shape.slot_ceiling,
            withheld: false,
            shape,
        }
    }
}

/// All nodes at one moment, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    nodes: Vec<Node>,
}

impl Snapshot {
    /// Of two nodes with one name the first stays.
    #[must_use]
    pub fn new(mut nodes: Vec<Node>) -> Self {
        nodes.sort_by(|a, b| a.shape.name.cmp(&b.shape.name));
        nodes.dedup_by(|b, a| a.shape.name == b.shape.name);
        Self { nodes }
    }

    /// The nodes in the order of their names.
    #[must_use]
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The node with a name.
    #[must_use]
    pub fn node(&self, name: &str) -> Option<&Node> {
        self.position(name).map(|position| &self.nodes[position])
    }

    /// Takes room for one pod and says whether the node exists.
    pub fn occupy(&mut self, node: &str, needs: &PodNeeds) -> bool {
        let Some(position) = self.position(node) else {
            return false;
        };
        let node = &mut self.nodes[position];
        node.free.subtract(&needs.requests);
        node.free_slots = node.free_slots.saturating_sub(1);
        true
    }

    /// Keeps everybody off a node.
    pub fn withhold(&mut self, node: &str) {
        if let Some(position) = self.position(node) {
            self.nodes[position].withheld = true;
        }
    }

    /// The same nodes without any gang on them.
    #[must_use]
    pub fn emptied(&self) -> Self {
        Self {
            nodes: self
                .nodes
                .iter()
                .map(|node| Node::empty(Arc::clone(&node.shape)))
                .collect(),
        }
    }

    fn position(&self, name: &str) -> Option<usize> {
        self.nodes
            .binary_search_by(|node| node.shape.name.as_str().cmp(name))
            .ok()
    }
}

/// What keeps pods off a node unless they tolerate it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Taint {
    /// Key of the taint.
    pub key: String,
    /// Value of the taint, often empty.
    pub value: String,
    /// How strongly it keeps pods off.
    pub effect: Effect,
}

/// How strongly a taint keeps pods off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effect {
    /// No new pods.
    NoSchedule,
    /// Nodes without the taint are better.
    PreferNoSchedule,
    /// No new pods, and running ones go.
    NoExecute,
}

impl fmt::Display for Taint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, value, effect } = self;
        let effect = match effect {
            Effect::NoSchedule => "NoSchedule",
            Effect::PreferNoSchedule => "PreferNoSchedule",
            Effect::NoExecute => "NoExecute",
        };
        if value.is_empty() {
            write!(f, "{key}:{effect}")
        } else {
            write!(f, "{key}={value}:{effect}")
        }
    }
}
