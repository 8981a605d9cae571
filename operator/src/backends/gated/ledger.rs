//! Who has which room: nodes, every pod of the cluster, and the gangs.
//!
//! A pod has room from the moment its placement is decided, not from when it is bound: a patch on its way, and a pod
//! that was let go and that kube-scheduler has not bound yet, count on the node they are meant for. So two plans never
//! share room, and a new leader sees the same.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use coppice_operator_api::PodGangPhase;
use coppice_operator_api::labels;
use coppice_operator_api::names::SCHEDULING_GATE;
use coppice_operator_plan::placement::{Node, NodeShape, PodNeeds, Resources, Snapshot};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::NodeSelector;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::lift::{PLACED_AT, pinned_node};
use super::needs::{amounts, pod_needs, requests, taint};
use super::view::{GangSpecView, GangView, NodeView, PodView};
use crate::index::record::{label, resource_version};

/// Namespace and name.
pub(super) type Key = (Arc<str>, Arc<str>);

/// The key of an object.
pub(super) fn key(meta: &ObjectMeta) -> Key {
    let text = |text: &Option<String>| Arc::from(text.as_deref().unwrap_or_default());
    (text(&meta.namespace), text(&meta.name))
}

/// Everything that placement knows about the cluster.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    nodes: BTreeMap<Arc<str>, NodeRecord>,
    pub(super) pods: BTreeMap<Key, PodRecord>,
    pub(super) gangs: BTreeMap<Key, GangRecord>,
    /// Pods by gang.
    pub(super) members: BTreeMap<Key, BTreeSet<Key>>,
    usage: BTreeMap<Arc<str>, Usage>,
    /// Pods whose patch is on its way, and the nodes they go to.
    in_flight: BTreeMap<Key, Pin>,
    /// Gangs about which something is new; see [`Ledger::settle`].
    pub(super) touched: BTreeSet<Key>,
    /// Gangs with pods behind their gates.
    pub(super) open: BTreeSet<Key>,
    /// Gangs with pods that were let go and are not bound, or that have not come together.
    pub(super) pending: BTreeSet<Key>,
    /// Equal needs are kept once: the pods of a clique have the same.
    pool: BTreeSet<Arc<PodNeeds>>,
}

#[derive(Debug)]
struct NodeRecord {
    resource: u64,
    shape: NodeShape,
    allocatable: Resources,
    slots: u32,
    /// The shape with its ceiling, until something changes.
    ready: Option<Arc<NodeShape>>,
}

/// What pods take of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Usage {
    all: Resources,
    pods: u32,
    /// The part of pods that belong to no gang.
    fixed: Resources,
    fixed_pods: u32,
}

/// A pod that was let go to a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pin {
    pub(super) node: Arc<str>,
    pub(super) at: Timestamp,
}

/// A pod.
#[derive(Clone, Debug)]
pub(super) struct PodRecord {
    pub(super) uid: Box<str>,
    resource: u64,
    pub(super) needs: Arc<PodNeeds>,
    pub(super) member: Option<Member>,
    /// The node it is bound to.
    pub(super) node: Option<Arc<str>>,
    pub(super) pin: Option<Pin>,
    pub(super) gate: Option<Gate>,
    pub(super) priority: i32,
    pub(super) is_terminating: bool,
    pub(super) is_finished: bool,
    pub(super) is_ready: bool,
}

/// A pod's place in its gang.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) gang: Key,
    pub(super) clique: Arc<str>,
    pub(super) index: u32,
    /// The gang that has to be placed before.
    pub(super) base: Option<Arc<str>>,
}

/// What has to be known of a gated pod to let it go.
#[derive(Clone, Debug)]
pub(super) struct Gate {
    pub(super) gates: Vec<Box<str>>,
    pub(super) affinity: Option<Box<NodeSelector>>,
}

/// A gang.
#[derive(Clone, Debug)]
pub(super) struct GangRecord {
    resource: u64,
    pub(super) spec: GangSpecView,
    pub(super) created: Timestamp,
    pub(super) phase: PodGangPhase,
    /// Its floor was seen bound.
    pub(super) was_whole: bool,
    /// This process let its first pods go, and has not seen the floor bound since.
    pub(super) is_coming_together: bool,
}

impl PodRecord {
    fn read(view: &PodView) -> Self {
        let PodView {
            metadata,
            spec,
            status,
        } = view;
        let is_ours = label(metadata, labels::MANAGED_BY) == Some(labels::OPERATOR);
        let gates: Vec<Box<str>> = spec
            .scheduling_gates
            .iter()
            .map(|gate| gate.name.clone())
            .collect();
        let is_gated = is_ours
            && spec.node_name.is_none()
            && gates.iter().any(|gate| **gate == *SCHEDULING_GATE);
        let affinity = spec.affinity.node_affinity.required.as_ref();
        let at = metadata
            .annotations
            .as_ref()
            .and_then(|all| all.get(PLACED_AT))
            .and_then(|at| at.parse().ok());
        let pin = |at| {
            Some(Pin {
                node: Arc::from(pinned_node(affinity)?),
                at,
            })
        };
        Self {
            uid: metadata.uid.as_deref().unwrap_or_default().into(),
            resource: resource_version(metadata),
            needs: Arc::new(if is_gated {
                pod_needs(spec)
            } else {
                PodNeeds {
                    requests: requests(spec),
                    ..PodNeeds::default()
                }
            }),
            member: if is_ours { member(metadata) } else { None },
            node: spec.node_name.as_deref().map(Arc::from),
            pin: if is_gated { None } else { at.and_then(pin) },
            gate: is_gated.then(|| Gate {
                gates,
                affinity: affinity.cloned().map(Box::new),
            }),
            priority: spec.priority,
            is_terminating: metadata.deletion_timestamp.is_some(),
            is_finished: matches!(&*status.phase, "Succeeded" | "Failed"),
            is_ready: status
                .conditions
                .iter()
                .any(|condition| &*condition.kind == "Ready" && &*condition.status == "True"),
        }
    }

    /// Whether it counts for its gang.
    pub(super) fn is_active(&self) -> bool {
        !self.is_terminating && !self.is_finished
    }
}

fn member(metadata: &ObjectMeta) -> Option<Member> {
    let namespace = metadata.namespace.as_deref().unwrap_or_default();
    Some(Member {
        gang: (
            Arc::from(namespace),
            Arc::from(label(metadata, labels::GANG)?),
        ),
        clique: Arc::from(label(metadata, labels::CLIQUE)?),
        index: label(metadata, labels::POD_INDEX)
            .and_then(|index| index.parse().ok())
            .unwrap_or(u32::MAX),
        base: label(metadata, labels::BASE_GANG).map(Arc::from),
    })
}

impl Ledger {
    /// Takes in a node and says whether placement may come out differently.
    pub(super) fn put_node(&mut self, view: &NodeView) -> bool {
        let NodeView {
            metadata,
            spec,
            status,
        } = view;
        let name: Arc<str> = Arc::from(metadata.name.as_deref().unwrap_or_default());
        let resource = resource_version(metadata);
        let allocatable = amounts(&status.allocatable);
        let shape = NodeShape {
            name: name.to_string(),
            labels: metadata.labels.clone().unwrap_or_default(),
            taints: spec.taints.iter().filter_map(taint).collect(),
            // A node that is going takes nobody in.
            unschedulable: spec.unschedulable || metadata.deletion_timestamp.is_some(),
            ..NodeShape::default()
        };
        let slots = u32::try_from(allocatable.milli("pods") / 1000).unwrap_or(0);
        let is_news = match self.nodes.get(&name) {
            Some(before) if before.resource > resource => return false,
            Some(before) => before.shape != shape || before.allocatable != allocatable,
            None => true,
        };
        if is_news {
            self.nodes.insert(
                name,
                NodeRecord {
                    resource,
                    shape,
                    allocatable,
                    slots,
                    ready: None,
                },
            );
        } else if let Some(record) = self.nodes.get_mut(&name) {
            record.resource = resource;
        }
        is_news
    }

    /// A node is gone.
    pub(super) fn remove_node(&mut self, name: &str) -> bool {
        self.nodes.remove(name).is_some()
    }

    /// Forgets nodes that a complete list does not have.
    pub(super) fn keep_nodes(&mut self, seen: &BTreeSet<Arc<str>>) {
        self.nodes.retain(|name, _| seen.contains(name));
    }

    /// Takes in a pod and says whether placement may come out differently.
    pub(super) fn put_pod(&mut self, view: &PodView) -> bool {
        let key = key(&view.metadata);
        let mut record = PodRecord::read(view);
        if self
            .pods
            .get(&key)
            .is_some_and(|before| before.uid == record.uid && before.resource > record.resource)
        {
            return false;
        }
        record.needs = self.pooled(record.needs);
        let before = self.take_pod(&key);
        let is_news = before.as_ref().is_none_or(|before| {
            before.uid != record.uid
                || before.node != record.node
                || before.pin != record.pin
                || before.gate.is_some() != record.gate.is_some()
                || before.needs != record.needs
                || before.is_active() != record.is_active()
                || before.is_finished != record.is_finished
                || before.is_ready != record.is_ready
        });
        // The patch has arrived, or another pod has the name.
        if record.gate.is_none() || before.is_some_and(|before| before.uid != record.uid) {
            self.in_flight.remove(&key);
        }
        self.enter_pod(key, record);
        is_news
    }

    /// A pod is gone.
    pub(super) fn remove_pod(&mut self, key: &Key) -> bool {
        let gone = self.take_pod(key);
        self.in_flight.remove(key);
        gone.is_some()
    }

    /// Forgets pods that a complete list does not have.
    pub(super) fn keep_pods(&mut self, seen: &BTreeSet<Key>) {
        let gone: Vec<Key> = self
            .pods
            .keys()
            .filter(|key| !seen.contains(*key))
            .cloned()
            .collect();
        for key in gone {
            self.remove_pod(&key);
        }
    }

    /// Takes in a gang and says whether placement may come out differently.
    pub(super) fn put_gang(&mut self, view: GangView) -> bool {
        let key = key(&view.metadata);
        let resource = resource_version(&view.metadata);
        let before = self.gangs.get(&key);
        if before.is_some_and(|before| before.resource > resource) {
            return false;
        }
        let GangView {
            metadata,
            spec,
            status,
        } = view;
        let record = GangRecord {
            resource,
            spec,
            created: metadata
                .creation_timestamp
                .map_or(Timestamp::UNIX_EPOCH, |time| time.0),
            phase: status.phase,
            was_whole: before.is_some_and(|before| before.was_whole),
            is_coming_together: before.is_some_and(|before| before.is_coming_together),
        };
        let is_news = before.is_none_or(|before| {
            before.created != record.created
                || before.phase != record.phase
                || before.spec.groups != record.spec.groups
                || before.spec.topology_constraint != record.spec.topology_constraint
                || before.spec.topology_constraint_group_configs
                    != record.spec.topology_constraint_group_configs
        });
        self.touched.insert(key.clone());
        self.gangs.insert(key, record);
        is_news
    }

    /// A gang is gone.
    pub(super) fn remove_gang(&mut self, key: &Key) -> bool {
        self.touched.insert(key.clone());
        self.gangs.remove(key).is_some()
    }

    /// Forgets gangs of a namespace, or of all, that a complete list of it does not have.
    pub(super) fn keep_gangs(&mut self, namespace: Option<&str>, seen: &BTreeSet<Key>) {
        self.gangs.retain(|key, _| {
            namespace.is_some_and(|namespace| *key.0 != *namespace) || seen.contains(key)
        });
    }

    /// Gives a pod the room it was planned for, before it is patched.
    pub(super) fn promise(&mut self, pod: &Key, pin: Pin) {
        let Some(record) = self.take_pod(pod) else {
            return;
        };
        self.in_flight.insert(pod.clone(), pin);
        self.enter_pod(pod.clone(), record);
    }

    /// Takes a promise back: the patch failed.
    pub(super) fn withdraw(&mut self, pod: &Key, uid: &str) {
        if self.pods.get(pod).is_none_or(|record| &*record.uid != uid) {
            return;
        }
        if let Some(record) = self.take_pod(pod) {
            self.in_flight.remove(pod);
            self.enter_pod(pod.clone(), record);
        }
    }

    /// The deletion of a pod was asked for, or was refused.
    pub(super) fn expect_end(&mut self, pod: &Key, uid: &str, is_terminating: bool) {
        if let Some(record) = self.pods.get_mut(pod).filter(|record| &*record.uid == uid) {
            record.is_terminating = is_terminating;
            self.touched
                .extend(record.member.as_ref().map(|member| member.gang.clone()));
        }
    }

    /// Whether the pod's patch is on its way.
    pub(super) fn is_in_flight(&self, pod: &Key) -> bool {
        self.in_flight.contains_key(pod)
    }

    /// The node that a pod has, or is meant for.
    pub(super) fn node_of<'a>(&'a self, key: &Key, record: &'a PodRecord) -> Option<&'a Arc<str>> {
        let pin = || {
            record
                .pin
                .as_ref()
                .or_else(|| self.in_flight.get(key))
                .map(|pin| &pin.node)
        };
        record.node.as_ref().or_else(pin)
    }

    /// Value of a node's label.
    pub(super) fn node_label(&self, node: &str, key: &str) -> Option<&str> {
        self.nodes
            .get(node)?
            .shape
            .labels
            .get(key)
            .map(String::as_str)
    }

    /// The nodes and the room on them.
    pub(super) fn snapshot(&mut self) -> Snapshot {
        let usage = &self.usage;
        let nodes = self.nodes.iter_mut().map(|(name, record)| {
            let usage = usage.get(name);
            let shape = record.ready.get_or_insert_with(|| {
                let (mut ceiling, mut slots) = (record.allocatable.clone(), record.slots);
                if let Some(Usage {
                    fixed, fixed_pods, ..
                }) = usage
                {
                    ceiling.subtract(fixed);
                    slots = slots.saturating_sub(*fixed_pods);
                }
                Arc::new(NodeShape {
                    ceiling,
                    slot_ceiling: slots,
                    ..record.shape.clone()
                })
            });
            let (mut free, mut free_slots) = (record.allocatable.clone(), record.slots);
            if let Some(Usage { all, pods, .. }) = usage {
                free.subtract(all);
                free_slots = free_slots.saturating_sub(*pods);
            }
            Node {
                shape: Arc::clone(shape),
                free,
                free_slots,
                withheld: false,
            }
        });
        Snapshot::new(nodes.collect())
    }

    fn pooled(&mut self, needs: Arc<PodNeeds>) -> Arc<PodNeeds> {
        if let Some(known) = self.pool.get(&needs) {
            return Arc::clone(known);
        }
        self.pool.insert(Arc::clone(&needs));
        needs
    }

    fn enter_pod(&mut self, key: Key, record: PodRecord) {
        // A pod's first event may be its last for a long time: it has to be looked at without a second one.
        if let Some(Member { gang, .. }) = &record.member {
            self.touched.insert(gang.clone());
            let pods = self.members.entry(gang.clone()).or_default();
            pods.insert(key.clone());
        }
        self.account(&key, &record, true);
        self.pods.insert(key, record);
    }

    fn take_pod(&mut self, key: &Key) -> Option<PodRecord> {
        let record = self.pods.remove(key)?;
        self.account(key, &record, false);
        if let Some(Member { gang, .. }) = &record.member
            && let Some(pods) = self.members.get_mut(gang)
        {
            self.touched.insert(gang.clone());
            pods.remove(key);
            if pods.is_empty() {
                self.members.remove(gang);
            }
        }
        // One is the record's own, one the pool's.
        if Arc::strong_count(&record.needs) <= 2 {
            self.pool.remove(&record.needs);
        }
        Some(record)
    }

    /// Adds what a pod takes to its node's usage, or takes it away.
    fn account(&mut self, key: &Key, record: &PodRecord, enters: bool) {
        let Some(node) = self.node_of(key, record).cloned() else {
            return;
        };
        // A pod that is being deleted has its room until it is gone.
        if record.is_finished {
            return;
        }
        let usage = self.usage.entry(Arc::clone(&node)).or_default();
        let change = |resources: &mut Resources, pods: &mut u32| {
            if enters {
                resources.add(&record.needs.requests);
                *pods += 1;
            } else {
                resources.subtract(&record.needs.requests);
                *pods = pods.saturating_sub(1);
            }
        };
        change(&mut usage.all, &mut usage.pods);
        if record.member.is_none() {
            change(&mut usage.fixed, &mut usage.fixed_pods);
            if let Some(node) = self.nodes.get_mut(&node) {
                node.ready = None;
            }
        }
        if self.usage.get(&node).is_some_and(|usage| usage.pods == 0) {
            self.usage.remove(&node);
        }
    }

    /// Whether the usage of every node is the sum over its pods.
    #[cfg(test)]
    pub(super) fn is_balanced(&self) -> bool {
        let mut sums: BTreeMap<Arc<str>, Usage> = BTreeMap::new();
        for (key, record) in self.pods.iter().filter(|(_, record)| !record.is_finished) {
            let Some(node) = self.node_of(key, record) else {
                continue;
            };
            let usage = sums.entry(Arc::clone(node)).or_default();
            usage.all.add(&record.needs.requests);
            usage.pods += 1;
            if record.member.is_none() {
                usage.fixed.add(&record.needs.requests);
                usage.fixed_pods += 1;
            }
        }
        let nonzero = |resources: &Resources| -> Resources {
            resources
                .iter()
                .filter(|(_, milli)| *milli != 0)
                .map(|(name, milli)| (name.clone(), milli))
                .collect()
        };
        let plain = |usage: &Usage| {
            (
                nonzero(&usage.all),
                usage.pods,
                nonzero(&usage.fixed),
                usage.fixed_pods,
            )
        };
        let as_kept: BTreeMap<_, _> = self
            .usage
            .iter()
            .map(|(node, usage)| (node, plain(usage)))
            .collect();
        let as_summed: BTreeMap<_, _> = sums
            .iter()
            .map(|(node, usage)| (node, plain(usage)))
            .collect();
        as_kept == as_summed
    }
}
