//! What each gang waits for, and which placements did not come about.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use coppice_operator_api::PodGangPhase;
use coppice_operator_api::gang::SchedTopologyConstraint;
use coppice_operator_api::names::SCHEDULING_GATE;
use coppice_operator_plan::placement::{Gang, Group, Part, PodNeeds, Topology, Waiting};
use jiff::{SignedDuration, Timestamp};

use super::ledger::{GangRecord, Key, Ledger, Member, PodRecord};

/// Gangs with pods that are not placed.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// Those that may be placed, with their keys.
    pub(super) waiting: Vec<Waiting>,
    pub(super) keys: Vec<Key>,
    /// Those that may not, and why.
    pub(super) held: Vec<(Key, String)>,
}

/// Pods that were let go and have to come back behind their gates, which a pod cannot: they are deleted, and the ones
/// made in their place have gates.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Release {
    pub(super) gang: Key,
    /// Names and uids.
    pub(super) pods: Vec<(Key, Box<str>)>,
    /// Nodes on which kube-scheduler did not bind a pod.
    pub(super) refused: BTreeSet<String>,
}

/// Nodes that a gang must not be planned on, until when.
pub(super) type Avoid = BTreeMap<Key, BTreeMap<String, Timestamp>>;

impl Ledger {
    /// Gangs in need of nodes, as of the last [`settle`](Self::settle). `avoid` has nodes that refused a gang lately.
    pub(super) fn queue(&self, avoid: &Avoid) -> Queue {
        let mut queue = Queue::default();
        for key in &self.open {
            let Some(record) = self.gangs.get(key) else {
                continue;
            };
            let open: Vec<(&Key, &PodRecord)> = self.open_pods(key).collect();
            // Others let their pods go first: room that is held for a pod which may not start yet is lost to everybody.
            let (free, theirs): (Vec<_>, Vec<_>) = open
                .iter()
                .copied()
                .partition(|(_, pod)| foreign_gate(pod).is_none());
            let Some(groups) = self.groups(key, record, &free) else {
                continue;
            };
            let is_complete = groups
                .iter()
                .all(|group| group.pods.len() as u64 >= u64::from(group.floor));
            let why = self.hold(key, record, &open).or_else(|| {
                let (name, pod) = theirs.first().filter(|_| !is_complete || free.is_empty())?;
                Some(format!(
                    "waits for the scheduling gate {} of pod {}",
                    foreign_gate(pod)?,
                    name.1
                ))
            });
            if let Some(why) = why {
                queue.held.push((key.clone(), why));
                continue;
            }
            let refused = avoid
                .get(key)
                .into_iter()
                .flat_map(BTreeMap::keys)
                .cloned()
                .collect();
            let (topology, parts) = self.packing(key, record, &groups);
            queue.waiting.push(Waiting {
                gang: Gang {
                    name: format!("{}/{}", key.0, key.1),
                    groups,
                    topology,
                    parts,
                    avoid: refused,
                },
                priority: open.iter().map(|(_, pod)| pod.priority).max().unwrap_or(0),
                since: record.created,
            });
            queue.keys.push(key.clone());
        }
        queue
    }

    /// Pods behind their gates.
    fn open_pods<'a>(&'a self, gang: &Key) -> impl Iterator<Item = (&'a Key, &'a PodRecord)> {
        self.member_pods(gang)
            .filter(|(key, pod)| pod.is_active() && pod.gate.is_some() && !self.is_in_flight(key))
    }

    fn member_pods<'a>(&'a self, gang: &Key) -> impl Iterator<Item = (&'a Key, &'a PodRecord)> {
        self.members
            .get(gang)
            .into_iter()
            .flatten()
            .filter_map(|key| self.pods.get_key_value(key))
    }

    /// Why a gang may not be placed now.
    fn hold(&self, key: &Key, record: &GangRecord, open: &[(&Key, &PodRecord)]) -> Option<String> {
        let base = open
            .iter()
            .find_map(|(_, pod)| pod.member.as_ref()?.base.as_ref());
        if let Some(base) =
            base.filter(|base| !self.is_floor_bound(&(Arc::clone(&key.0), Arc::clone(base))))
        {
            return Some(format!("waits until gang {base} is bound to nodes"));
        }
        let mut seen = BTreeSet::new();
        let configs = record.spec.topology_constraint_group_configs.iter();
        let mut groups = configs
            .filter(|config| config.topology_constraint.is_some())
            .flat_map(|config| config.pod_group_names.iter().collect::<BTreeSet<_>>());
        let twice = groups.find(|group| !seen.insert(*group))?;
        Some(format!(
            "spec.topologyConstraintGroupConfigs of the PodGang names {twice} in two entries, whose domains may exclude each \
             other: leave it in one"
        ))
    }

    /// Whether every group of the gang has its minimum bound.
    pub(super) fn is_floor_bound(&self, gang: &Key) -> bool {
        let Some(record) = self.gangs.get(gang) else {
            return false;
        };
        let mut bound: BTreeMap<&str, u32> = BTreeMap::new();
        for (_, pod) in self
            .member_pods(gang)
            .filter(|(_, pod)| pod.is_active() && pod.node.is_some())
        {
            if let Some(member) = &pod.member {
                *bound.entry(&member.clique).or_default() += 1;
            }
        }
        let groups = &record.spec.groups;
        groups
            .iter()
            .all(|group| bound.get(&*group.name).copied().unwrap_or(0) >= group.floor())
    }

    /// The gang's open pods for the planner: those that are missing of each minimum, or, once these are bound, the rest.
    ///
    /// Nothing while the floor is on its way. Pods above it wait that long because gangs that wait for this one become
    /// ready to be placed at the same moment, and floors come first.
    fn groups(
        &self,
        key: &Key,
        record: &GangRecord,
        open: &[(&Key, &PodRecord)],
    ) -> Option<Vec<Group>> {
        let mut groups: Vec<Group> = Vec::new();
        let mut is_placed = true;
        for of in &record.spec.groups {
            let is_of = |pod: &PodRecord| {
                pod.member
                    .as_ref()
                    .is_some_and(|member| *member.clique == *of.name)
            };
            let placed = self.placed_pods(key).filter(|(_, pod)| is_of(pod)).count();
            let mut missing = of
                .floor()
                .saturating_sub(u32::try_from(placed).unwrap_or(u32::MAX));
            is_placed &= missing == 0;
            let mut pods: Vec<&(&Key, &PodRecord)> =
                open.iter().filter(|(_, pod)| is_of(pod)).collect();
            pods.sort_by_key(|(name, pod)| {
                (
                    pod.member.as_ref().map_or(u32::MAX, |member| member.index),
                    *name,
                )
            });
            let first = groups.len();
            for (name, pod) in pods {
                let existing = groups[first..]
                    .iter()
                    .position(|group| group.needs == *pod.needs);
                let position = existing.map_or(groups.len(), |position| first + position);
                if existing.is_none() {
                    groups.push(group(of.name.to_string(), PodNeeds::clone(&pod.needs)));
                }
                groups[position].pods.push(name.1.to_string());
                if missing > 0 {
                    groups[position].floor += 1;
                    missing -= 1;
                }
            }
            // Pods that do not exist yet: the planner says so.
            if missing > 0 {
                if groups.len() == first {
                    groups.push(group(of.name.to_string(), PodNeeds::default()));
                }
                groups[first].floor += missing;
            }
        }
        if is_placed {
            return self.is_floor_bound(key).then_some(groups);
        }
        for group in &mut groups {
            group.pods.truncate(group.floor as usize);
        }
        groups.retain(|group| group.floor > 0);
        Some(groups)
    }

    /// The domain that the pods of all these groups share, and inside it those of some of them, outer ones first.
    fn packing(
        &self,
        key: &Key,
        record: &GangRecord,
        groups: &[Group],
    ) -> (Option<Topology>, Vec<Part>) {
        let mut parts = Vec::new();
        for (cliques, constraint) in levels(record) {
            let is_of = |position: &usize| cliques.contains(&*groups[*position].name);
            let members: BTreeSet<usize> = (0..groups.len()).filter(is_of).collect();
            if members.is_empty() {
                continue;
            }
            parts.extend(labels_of(constraint).map(|(label, required)| Part {
                groups: members.clone(),
                topology: Topology {
                    key: label.clone(),
                    within: self.domain_of(key, &cliques, label).map(str::to_owned),
                    required,
                },
            }));
        }
        let is_of_all = parts
            .first()
            .is_some_and(|outermost| outermost.groups.len() == groups.len());
        let topology = is_of_all.then(|| parts.remove(0).topology);
        (topology, parts)
    }

    /// The domain in which pods of these cliques are: of several, the one with the most of them.
    fn domain_of(&self, gang: &Key, cliques: &BTreeSet<&str>, label: &str) -> Option<&str> {
        let mut pods: BTreeMap<&str, usize> = BTreeMap::new();
        for (key, pod) in self.member_pods(gang).filter(|(_, pod)| pod.is_active()) {
            let is_of = |member: &Member| cliques.contains(&*member.clique);
            if pod.member.as_ref().is_some_and(is_of)
                && let Some(node) = self.node_of(key, pod)
                && let Some(domain) = self.node_label(node, label)
            {
                *pods.entry(domain).or_default() += 1;
            }
        }
        let most = pods
            .into_iter()
            .max_by_key(|(domain, pods)| (*pods, Reverse(*domain)));
        most.map(|(domain, _)| domain)
    }

    /// Pods of the gang are about to be let go: the first, or some more.
    pub(super) fn begin(&mut self, gang: &Key) {
        if !self.has_placed_pods(gang)
            && let Some(record) = self.gangs.get_mut(gang)
        {
            record.is_coming_together = true;
        }
    }

    /// Draws conclusions about the gangs that something is new about, so that a pass looks at no others.
    pub(super) fn settle(&mut self) {
        for key in std::mem::take(&mut self.touched) {
            let is_whole = self.is_floor_bound(&key);
            let (has_placed, has_open) = (
                self.has_placed_pods(&key),
                self.open_pods(&key).next().is_some(),
            );
            let is_unbound = self
                .member_pods(&key)
                .any(|(_, pod)| pod.is_active() && pod.pin.is_some() && pod.node.is_none());
            let is_pending = match self.gangs.get_mut(&key) {
                Some(record) => {
                    record.was_whole = is_whole || record.was_whole && has_placed;
                    record.is_coming_together &= !is_whole && has_placed;
                    has_placed && (is_unbound || !is_whole)
                }
                None => false,
            };
            set(&mut self.open, &key, has_open);
            set(&mut self.pending, &key, is_pending);
        }
    }

    fn placed_pods<'a>(&'a self, gang: &Key) -> impl Iterator<Item = (&'a Key, &'a PodRecord)> {
        self.member_pods(gang)
            .filter(|(key, pod)| pod.is_active() && self.node_of(key, pod).is_some())
    }

    fn has_placed_pods(&self, gang: &Key) -> bool {
        self.placed_pods(gang).next().is_some()
    }

    /// Placements that have not come about within `limit`, and when the next one is due.
    ///
    /// A gang that never was whole comes back as a whole, so that its room is free for others. Of one that runs only the
    /// pods that were placed together with the stuck one come back.
    pub(super) fn overdue(
        &self,
        now: Timestamp,
        limit: SignedDuration,
    ) -> (Vec<Release>, Option<Timestamp>) {
        let (mut releases, mut next) = (Vec::new(), None);
        for key in &self.pending {
            let Some(record) = self.gangs.get(key) else {
                continue;
            };
            let placed: Vec<(&Key, &PodRecord)> = self
                .member_pods(key)
                .filter(|(_, pod)| pod.is_active() && pod.pin.is_some())
                .collect();
            // Of gangs that an earlier leader placed, what runs tells that they were whole once.
            let ran = !record.is_coming_together
                && (record.was_whole
                    || matches!(record.phase, PodGangPhase::Starting | PodGangPhase::Running)
                    || placed.iter().any(|(_, pod)| pod.is_ready));
            let is_bound = self.is_floor_bound(key);
            // In a gang that never came together, a bound pod waits for the others just as an unbound one does.
            let is_pending = |pod: &PodRecord| pod.node.is_none() || !ran && !is_bound;
            let (mut stuck, mut instants) = (Vec::new(), BTreeSet::new());
            for (name, pod) in placed.iter().filter(|(_, pod)| is_pending(pod)) {
                let Some(pin) = &pod.pin else { continue };
                match pin.at.checked_add(limit) {
                    Ok(due) if due <= now => {
                        instants.insert(pin.at);
                        stuck.push((*name, *pod));
                    }
                    Ok(due) => next = Some(next.map_or(due, |next: Timestamp| next.min(due))),
                    Err(_) => {}
                }
            }
            if stuck.is_empty() {
                continue;
            }
            let unbound = stuck.iter().filter(|(_, pod)| pod.node.is_none());
            let refused = unbound
                .filter_map(|(_, pod)| Some(pod.pin.as_ref()?.node.to_string()))
                .collect();
            let comes_back = |pod: &PodRecord| {
                let is_together = pod
                    .pin
                    .as_ref()
                    .is_some_and(|pin| instants.contains(&pin.at));
                if is_bound {
                    pod.node.is_none() && is_together
                } else if ran {
                    is_together && !pod.is_ready
                } else {
                    true
                }
            };
            let pods = placed
                .iter()
                .filter(|(_, pod)| comes_back(pod))
                .map(|(key, pod)| ((*key).clone(), pod.uid.clone()));
            releases.push(Release {
                gang: key.clone(),
                pods: pods.collect(),
                refused,
            });
        }
        (releases, next)
    }
}

/// Cliques and how they are packed: all of the gang, those of each replica of a scaling group, each by itself.
fn levels(record: &GangRecord) -> Vec<(BTreeSet<&str>, &SchedTopologyConstraint)> {
    let spec = &record.spec;
    let all = || spec.groups.iter().map(|group| &*group.name);
    let configs = spec.topology_constraint_group_configs.iter();
    let of_configs = configs.filter_map(|config| {
        let cliques = config.pod_group_names.iter().map(|name| &**name);
        Some((cliques.collect(), config.topology_constraint.as_ref()?))
    });
    let of_cliques = spec.groups.iter().filter_map(|group| {
        let constraint = group.topology_constraint.as_ref()?;
        Some((BTreeSet::from([&*group.name]), constraint))
    });
    let of_gang = spec.topology_constraint.iter();
    let of_gang = of_gang.map(|constraint| (all().collect(), constraint));
    of_gang.chain(of_configs).chain(of_cliques).collect()
}

/// The labels of a constraint, and whether each is required. What is preferred beside something required is closer.
fn labels_of(constraint: &SchedTopologyConstraint) -> impl Iterator<Item = (&String, bool)> {
    let pack = constraint.pack_constraint.iter();
    pack.flat_map(|pack| {
        let preferred = pack.preferred.iter();
        let closer = preferred.filter(move |label| pack.required.as_ref() != Some(*label));
        let required = pack.required.iter().map(|label| (label, true));
        required.chain(closer.map(|label| (label, false)))
    })
}

fn set(keys: &mut BTreeSet<Key>, key: &Key, is_in: bool) {
    if !is_in {
        keys.remove(key);
    } else if !keys.contains(key) {
        keys.insert(key.clone());
    }
}

/// A gate that is not the operator's.
fn foreign_gate(pod: &PodRecord) -> Option<&str> {
    pod.gate
        .as_ref()?
        .gates
        .iter()
        .map(|gate| &**gate)
        .find(|gate| *gate != SCHEDULING_GATE)
}

fn group(name: String, needs: PodNeeds) -> Group {
    Group {
        name,
        needs,
        pods: Vec::new(),
        floor: 0,
    }
}
