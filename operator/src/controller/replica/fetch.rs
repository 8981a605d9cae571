//! What is there in one set replica, in the planner's terms.

use std::collections::BTreeMap;
use std::sync::Arc;

use coppice_operator_plan::gang;
use coppice_operator_plan::ids::{CliqueId, PodUid};
use coppice_operator_plan::observed::{Clique, Group, Replica};
use coppice_operator_plan::replica;

use crate::build::scope::Scope;
use crate::index::Index;
use crate::index::entry::ReplicaEntry;
use crate::index::key::SetKey;
use crate::validated::Validated;

/// A snapshot of one set replica that should exist.
#[derive(Debug)]
pub(crate) struct Fetched {
    /// The set it belongs to.
    pub(crate) set: Arc<Validated>,
    /// Which replica.
    pub(crate) replica: u32,
    /// Its objects.
    pub(crate) entry: ReplicaEntry,
    /// It is this replica's turn to take over a changed template.
    pub(crate) may_update: bool,
    /// What the planner sees.
    pub(crate) observed: Replica,
    /// Pods whose PodClique is not there (any more).
    pub(crate) stray_pods: Vec<(Arc<str>, PodUid)>,
    /// PodCliques that no clique of the template can be: name and uid.
    pub(crate) stray_cliques: Vec<(Arc<str>, Arc<str>)>,
    /// Scaling groups that no group of the template can be: name and uid.
    pub(crate) stray_groups: Vec<(Arc<str>, Arc<str>)>,
}

impl Fetched {
    /// Names inside the replica.
    pub(crate) fn scope(&self) -> Scope<'_> {
        Scope {
            set: &self.set,
            replica: self.replica,
        }
    }
}

/// The replica, or nothing when it should not exist, or nobody can say what it should be.
pub(crate) fn fetch(index: &Index, key: &SetKey, replica: u32) -> Option<Fetched> {
    let (record, entry, may_update) = index.replica(key, replica)?;
    let set = record.validated.ok()?;
    if record.object.metadata.deletion_timestamp.is_some() || replica >= set.replicas {
        return None;
    }
    let mut fetched = Fetched {
        set,
        replica,
        entry,
        may_update,
        observed: Replica::default(),
        stray_pods: Vec::new(),
        stray_cliques: Vec::new(),
        stray_groups: Vec::new(),
    };
    read_groups(&mut fetched);
    let ids = read_cliques(&mut fetched);
    read_pods(&mut fetched, &ids);
    read_taken_down(&mut fetched);
    Some(fetched)
}

fn read_groups(fetched: &mut Fetched) {
    let set_uid = fetched.set.object.metadata.uid.clone().unwrap_or_default();
    for (name, record) in &fetched.entry.shelf.groups {
        let is_ours = record.version.owner.as_deref() == Some(&*set_uid);
        match fetched.scope().group_name(name).filter(|_| is_ours) {
            Some(group) => {
                let found = Group {
                    replicas: record.replicas,
                    terminating: record.version.terminating,
                };
                fetched.observed.groups.insert(group, found);
            }
            None => fetched
                .stray_groups
                .push((Arc::clone(name), Arc::clone(&record.version.uid))),
        }
    }
}

/// Returns the clique of each PodClique name that counts.
fn read_cliques(fetched: &mut Fetched) -> BTreeMap<Arc<str>, CliqueId> {
    let set_uid: Arc<str> = Arc::from(
        fetched
            .set
            .object
            .metadata
            .uid
            .as_deref()
            .unwrap_or_default(),
    );
    let mut ids = BTreeMap::new();
    for (name, record) in &fetched.entry.shelf.cliques {
        let owner = match &record.group {
            None => Some(&set_uid),
            Some(group) => fetched
                .entry
                .shelf
                .groups
                .get(group)
                .map(|group| &group.version.uid),
        };
        let is_ours = owner.is_some() && record.version.owner.as_ref() == owner;
        let id = fetched
            .scope()
            .clique_id(name, record.group.as_deref(), record.group_replica);
        let Some(id) = id.filter(|_| is_ours) else {
            fetched
                .stray_cliques
                .push((Arc::clone(name), Arc::clone(&record.version.uid)));
            continue;
        };
        let endings = fetched.entry.endings.get(name);
        let clique = Clique {
            replicas: record.replicas,
            hash: record.hash.clone(),
            terminating: record.version.terminating,
            hold_until: endings.and_then(|endings| endings.hold_until()),
            pods: Vec::new(),
        };
        fetched.observed.cliques.insert(id.clone(), clique);
        ids.insert(Arc::clone(name), id);
    }
    ids
}

fn read_taken_down(fetched: &mut Fetched) {
    if fetched.entry.taken_down.is_empty() {
        return;
    }
    let template = &fetched.set.template;
    let scale = replica::scale(&fetched.observed);
    for id in gang::cliques(template, &scale) {
        if let Some((_, replicas)) = fetched.entry.taken_down.get(&*fetched.scope().clique(&id)) {
            fetched.observed.taken_down.insert(id, *replicas);
        }
    }
}

fn read_pods(fetched: &mut Fetched, ids: &BTreeMap<Arc<str>, CliqueId>) {
    for (name, record) in &fetched.entry.shelf.pods {
        let id = ids.get(&record.clique);
        let owner = fetched
            .entry
            .shelf
            .cliques
            .get(&record.clique)
            .map(|clique| &clique.version.uid);
        let clique = id.and_then(|id| fetched.observed.cliques.get_mut(id));
        match clique.filter(|_| owner.is_some() && record.owner.as_ref() == owner) {
            Some(clique) => clique.pods.push(record.pod.clone()),
            None if !record.pod.terminating => fetched
                .stray_pods
                .push((Arc::clone(name), record.pod.uid.clone())),
            None => {}
        }
    }
}
