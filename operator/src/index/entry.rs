//! What is filed, and what one version of a record means after another.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use coppice_operator_api::PodCliqueSet;
use coppice_operator_plan::status::summary::Summary;
use coppice_operator_plan::termination::{Episodes, Scope};
use jiff::{SignedDuration, Timestamp};

use super::key::Kind;
use super::record::{
    CliqueRecord, GangRecord, GroupRecord, PlacementRecord, PlainRecord, PodRecord,
};
use crate::validated::{Invalid, Validated};

/// What may be filed.
#[derive(Clone, Debug)]
pub(crate) enum Record {
    Clique(CliqueRecord),
    Group(GroupRecord),
    Gang(GangRecord),
    Pod(PodRecord),
    Plain(PlainRecord),
    Placement(PlacementRecord),
}

/// Objects of one set replica, or of a set as a whole, by name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shelf {
    pub(crate) cliques: BTreeMap<Arc<str>, CliqueRecord>,
    pub(crate) groups: BTreeMap<Arc<str>, GroupRecord>,
    pub(crate) gangs: BTreeMap<Arc<str>, GangRecord>,
    pub(crate) pods: BTreeMap<Arc<str>, PodRecord>,
    pub(crate) plain: BTreeMap<(Kind, Arc<str>), PlainRecord>,
    pub(crate) placements: BTreeMap<(Kind, Arc<str>), PlacementRecord>,
}

impl Shelf {
    pub(crate) fn is_empty(&self) -> bool {
        self.cliques.is_empty()
            && self.groups.is_empty()
            && self.gangs.is_empty()
            && self.pods.is_empty()
            && self.plain.is_empty()
            && self.placements.is_empty()
    }

    /// Kinds of which there is an object that is not on its way out.
    pub(super) fn live_kinds(&self) -> BTreeSet<Kind> {
        let mut kinds = BTreeSet::new();
        let mut add = |kind: Kind, is_live: bool| {
            if is_live {
                kinds.insert(kind);
            }
        };
        add(
            Kind::Clique,
            self.cliques
                .values()
                .any(|record| !record.version.terminating),
        );
        add(
            Kind::Group,
            self.groups
                .values()
                .any(|record| !record.version.terminating),
        );
        add(
            Kind::Gang,
            self.gangs
                .values()
                .any(|record| !record.version.terminating),
        );
        add(
            Kind::Pod,
            self.pods.values().any(|record| !record.pod.terminating),
        );
        for ((kind, _), record) in &self.plain {
            add(*kind, !record.version.terminating);
        }
        for ((kind, _), record) in &self.placements {
            add(*kind, !record.version.terminating);
        }
        kinds
    }

    pub(super) fn take(&mut self, kind: Kind, name: &str) -> Option<Record> {
        match kind {
            Kind::Clique => self.cliques.remove(name).map(Record::Clique),
            Kind::Group => self.groups.remove(name).map(Record::Group),
            Kind::Gang => self.gangs.remove(name).map(Record::Gang),
            Kind::Pod => self.pods.remove(name).map(Record::Pod),
            Kind::PodGroup | Kind::CompositePodGroup => self
                .placements
                .remove(&(kind, Arc::from(name)))
                .map(Record::Placement),
            Kind::Set | Kind::ClaimTemplate => None,
            Kind::Service
            | Kind::Autoscaler
            | Kind::ServiceAccount
            | Kind::Role
            | Kind::RoleBinding
            | Kind::Workload
            | Kind::Claim
            | Kind::ComputeDomain
            | Kind::KaiPodGroup
            | Kind::VolcanoPodGroup => self
                .plain
                .remove(&(kind, Arc::from(name)))
                .map(Record::Plain),
        }
    }

    pub(super) fn file(&mut self, kind: Kind, name: Arc<str>, record: Record) {
        match record {
            Record::Clique(record) => drop(self.cliques.insert(name, record)),
            Record::Group(record) => drop(self.groups.insert(name, record)),
            Record::Gang(record) => drop(self.gangs.insert(name, record)),
            Record::Pod(record) => drop(self.pods.insert(name, record)),
            Record::Plain(record) => drop(self.plain.insert((kind, name), record)),
            Record::Placement(record) => drop(self.placements.insert((kind, name), record)),
        }
    }
}

/// A set replica: its objects, and what is remembered about it in memory only.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReplicaEntry {
    pub(crate) shelf: Shelf,
    /// What the set was told last.
    pub(crate) summary: Option<Summary>,
    /// How many pods each index of a clique has had, by PodClique uid; makes the names of new ones.
    pub(crate) attempts: BTreeMap<(Arc<str>, u32), u32>,
    /// Cliques whose pods end by themselves, by name.
    pub(crate) endings: BTreeMap<Arc<str>, Endings>,
    /// PodCliques that were taken down and have not come back, by name: uid, and `spec.replicas`.
    pub(crate) taken_down: BTreeMap<Arc<str>, (Arc<str>, u32)>,
    /// What was taken down before because it lost its minimum. A restart forgets it; then nothing waits longer than the
    /// set asks for.
    pub(crate) episodes: BTreeMap<Scope, Episodes>,
}

/// Pods of a clique that ended by themselves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Endings {
    /// In a row.
    pub(crate) count: u32,
    /// The last one.
    pub(crate) last: Timestamp,
}

impl Endings {
    /// Until when replacements wait: the first is made at once, then 1 s, 2 s, … up to a minute.
    pub(crate) fn hold_until(self) -> Option<Timestamp> {
        if self.count < 2 {
            return None;
        }
        let seconds = 1_i64 << (self.count - 2).min(6);
        self.last
            .checked_add(SignedDuration::from_secs(seconds.min(60)))
            .ok()
    }
}

/// A set: the object, its objects, its replicas.
#[derive(Clone, Debug, Default)]
pub(crate) struct SetEntry {
    pub(crate) set: Option<SetRecord>,
    pub(crate) shelf: Shelf,
    pub(crate) replicas: BTreeMap<u32, ReplicaEntry>,
    /// The replica whose turn it is to change, as the set's last pass decided.
    pub(crate) updating: Option<u32>,
    /// The set's status was compared with what its replicas said, all of them, since this process started.
    pub(crate) reported: bool,
    /// The edition of the set that its replicas have heard of.
    pub(crate) announced: Option<(String, i64)>,
}

/// The PodCliqueSet object.
#[derive(Clone, Debug)]
pub(crate) struct SetRecord {
    pub(crate) object: Arc<PodCliqueSet>,
    pub(crate) resource: u64,
    pub(crate) validated: Result<Arc<Validated>, Invalid>,
}

/// Whether planning could decide differently.
pub(super) fn is_news(before: &Record, after: &Record) -> bool {
    match (before, after) {
        (Record::Pod(before), Record::Pod(after)) => {
            before.pod != after.pod || before.owner != after.owner
        }
        // The operator's own status writes come back here; they change nothing.
        (Record::Clique(before), Record::Clique(after)) => {
            before.version.generation != after.version.generation
                || before.version.terminating != after.version.terminating
                || before.meta.labels != after.meta.labels
                || before.meta.annotations != after.meta.annotations
                || before.status != after.status
        }
        (Record::Group(before), Record::Group(after)) => {
            before.version.generation != after.version.generation
                || before.version.terminating != after.version.terminating
                || before.status != after.status
        }
        // Only this is ever looked at; the status of a claim that many pods share changes with each of them.
        (Record::Plain(before), Record::Plain(after)) => {
            before.version.terminating != after.version.terminating
                || before.version.owner != after.version.owner
                || before.version.applied != after.version.applied
                || before.content != after.content
        }
        (Record::Placement(before), Record::Placement(after)) => {
            before.placed != after.placed
                || before.refusal != after.refusal
                || before.version.terminating != after.version.terminating
        }
        _ => true,
    }
}

pub(super) fn was_scaled(before: &Record, after: &Record) -> bool {
    match (before, after) {
        (Record::Clique(before), Record::Clique(after)) => before.replicas != after.replicas,
        (Record::Group(before), Record::Group(after)) => before.replicas != after.replicas,
        _ => false,
    }
}

/// What was found out about a version holds for the next one while the content is the same.
pub(super) fn carry_over(before: Option<Record>, after: &mut Record) {
    match (before, after) {
        (Some(Record::Clique(before)), Record::Clique(after))
            if before.version.generation == after.version.generation
                && before.meta.labels == after.meta.labels
                && before.meta.annotations == after.meta.annotations =>
        {
            after.verified = before.verified;
            // One text for many versions.
            after.spec = before.spec;
        }
        (Some(Record::Group(before)), Record::Group(after))
            if before.version.generation == after.version.generation =>
        {
            after.verified = before.verified;
        }
        _ => {}
    }
}
