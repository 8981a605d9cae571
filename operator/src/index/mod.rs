//! One in-memory model of everything the operator manages, fed by watches and by the answers to its own writes.
//!
//! Objects are filed by the labels that tell their set and set replica. An older version never replaces a newer one, so an
//! answer to a write counts from the moment it arrives and a watch that lags behind cannot undo it: nothing is created
//! twice. A change that planning can see marks the unit it belongs to; anything else does not.

pub(crate) mod entry;
pub(crate) mod key;
pub(crate) mod record;
pub(crate) mod view;
pub(crate) mod watch;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use coppice_operator_api::{PodCliqueSet, labels};
use coppice_operator_plan::ids::PodUid;
use coppice_operator_plan::status::summary::Summary;
use coppice_operator_plan::termination::{Episodes, Scope};
use coppice_operator_plan::topology::Level;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use parking_lot::Mutex;

use self::entry::{
    Endings, Record, ReplicaEntry, SetEntry, SetRecord, Shelf, carry_over, is_news, was_scaled,
};
use self::key::{Kind, SetKey, Unit};
use self::record::{CliqueRecord, PodRecord, Version, label, resource_version};
use crate::queue::Queue;
use crate::validated::Validated;

/// How long the set waits after news from a replica, so that one status write covers many.
const GATHER: Duration = Duration::from_millis(100);
/// Pods that end by themselves within this time of each other end "again".
const FORGIVE_AFTER: SignedDuration = SignedDuration::from_secs(600);

/// Where an object is filed.
#[derive(Clone, Debug)]
struct Place {
    set: SetKey,
    replica: Option<u32>,
    uid: Arc<str>,
    resource: u64,
    touched: u64,
}

type Name = (Kind, Arc<str>, Arc<str>);

/// Objects by kind, and the replicas that have some; `None` stands for the set as a whole.
pub(crate) type Live = BTreeMap<Kind, BTreeSet<Option<u32>>>;

#[derive(Debug, Default)]
struct Inner {
    sets: BTreeMap<SetKey, SetEntry>,
    /// Levels of ClusterTopologyBindings, by name.
    bindings: BTreeMap<Arc<str>, Arc<[Level]>>,
    /// Kinds that the server does not serve, or that may not be read.
    absent: BTreeSet<Kind>,
    places: HashMap<Name, Place>,
    /// Pods whose deletion the server has accepted: whatever an older event says, they are on their way out.
    doomed: HashSet<PodUid>,
    clock: u64,
    pods: usize,
}

/// Where a change came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// A watch: whoever plans has to know.
    Watch,
    /// The answer to a write of the pass that is running: it knows.
    Answer,
}

/// The model. Cheap to share; every call takes the lock briefly.
#[derive(Debug)]
pub(crate) struct Index {
    inner: Mutex<Inner>,
    queue: Arc<Queue>,
}

impl Index {
    pub(crate) fn new(queue: Arc<Queue>) -> Self {
        Self {
            inner: Mutex::default(),
            queue,
        }
    }

    /// Takes in a PodCliqueSet from the answer to a write.
    pub(crate) fn absorb_set(&self, object: PodCliqueSet) {
        self.put_set(object, Source::Answer);
    }

    /// Takes in a PodCliqueSet.
    pub(crate) fn put_set(&self, object: PodCliqueSet, source: Source) {
        let meta = &object.metadata;
        let (Some(namespace), Some(name)) = (&meta.namespace, &meta.name) else {
            return;
        };
        let key = SetKey::new(namespace, name);
        let resource = resource_version(meta);
        let mut inner = self.inner.lock();
        let Inner { sets, bindings, .. } = &mut *inner;
        let entry = sets.entry(key.clone()).or_default();
        let mut is_edit = true;
        if let Some(before) = &entry.set {
            if before.object.metadata.uid == meta.uid && before.resource >= resource {
                return;
            }
            is_edit = before.object.metadata.generation != meta.generation
                || before.object.metadata.uid != meta.uid;
        }
        let object = Arc::new(object);
        let validated = match &entry.set {
            // Only the status or metadata changed: the old digests hold, the new object counts.
            Some(SetRecord {
                validated: Ok(validated),
                ..
            }) if !is_edit => Ok(Arc::new(validated.with_object(Arc::clone(&object)))),
            Some(_) | None => Validated::new(Arc::clone(&object)).map(|set| {
                let levels = set.binding().and_then(|name| bindings.get(name)).cloned();
                Arc::new(set.resolved(levels.as_deref()))
            }),
        };
        entry.set = Some(SetRecord {
            object,
            resource,
            validated,
        });
        drop(inner);
        let unit = Unit::Set(key);
        match (source, is_edit) {
            // Also where the answer to a status write shows an edit that no watch has told of yet.
            (_, true) => self.queue.mark_edited(&unit),
            (Source::Watch, false) => self.queue.mark(&unit),
            (Source::Answer, false) => {}
        }
    }

    /// Takes in the levels of a ClusterTopologyBinding; `None`: it is gone.
    pub(crate) fn put_binding(&self, name: &Arc<str>, levels: Option<&Arc<[Level]>>) {
        let mut inner = self.inner.lock();
        let Inner { sets, bindings, .. } = &mut *inner;
        let before = match levels {
            Some(levels) => bindings.insert(Arc::clone(name), Arc::clone(levels)),
            None => bindings.remove(name),
        };
        if before.as_ref() == levels {
            return;
        }
        let mut concerned = Vec::new();
        for (key, entry) in sets.iter_mut() {
            if let Some(SetRecord {
                validated: Ok(validated),
                ..
            }) = &mut entry.set
                && validated.binding() == Some(name)
            {
                let set = Validated::clone(validated).resolved(levels.map(AsRef::as_ref));
                *validated = Arc::new(set);
                concerned.push(Unit::Set(key.clone()));
                let replicas = entry.replicas.keys();
                concerned.extend(replicas.map(|index| Unit::Replica(key.clone(), *index)));
            }
        }
        drop(inner);
        for unit in concerned {
            self.queue.mark_edited(&unit);
        }
    }

    /// ClusterTopologyBindings that are known, for a list to tell which are gone.
    pub(crate) fn bindings(&self) -> Vec<Arc<str>> {
        self.inner.lock().bindings.keys().cloned().collect()
    }

    /// Levels of a ClusterTopologyBinding.
    pub(crate) fn levels(&self, binding: &str) -> Option<Arc<[Level]>> {
        self.inner.lock().bindings.get(binding).cloned()
    }

    /// A kind that not every cluster has is there, or is not. Whoever waited for it looks again.
    pub(crate) fn set_served(&self, kind: Kind, is_served: bool) {
        let mut inner = self.inner.lock();
        let is_news = if is_served {
            inner.absent.remove(&kind)
        } else {
            inner.absent.insert(kind)
        };
        drop(inner);
        if is_news {
            for unit in self.units() {
                self.queue.mark_edited(&unit);
            }
        }
    }

    /// Whether objects of the kind can be read and written.
    pub(crate) fn is_served(&self, kind: Kind) -> bool {
        !self.inner.lock().absent.contains(&kind)
    }

    /// Names of the claims that pods of a set replica can use: those of the set and of the replica that are not on their way
    /// out and belong to what is there now.
    pub(crate) fn ready_claims(&self, key: &SetKey, replica: u32) -> BTreeSet<Arc<str>> {
        let inner = self.inner.lock();
        let Some(entry) = inner.sets.get(key) else {
            return BTreeSet::new();
        };
        let of_replica = entry.replicas.get(&replica).map(|entry| &entry.shelf);
        let set = entry.set.as_ref();
        let set = set.and_then(|set| set.object.metadata.uid.as_deref());
        let groups = of_replica
            .into_iter()
            .flat_map(|shelf| shelf.groups.values());
        let cliques = of_replica
            .into_iter()
            .flat_map(|shelf| shelf.cliques.values());
        let owners: BTreeSet<&str> = groups
            .map(|group| &*group.version.uid)
            .chain(cliques.map(|clique| &*clique.version.uid))
            .chain(set)
            .collect();
        let shelves = of_replica.into_iter().chain([&entry.shelf]);
        let plain = shelves.flat_map(|shelf| &shelf.plain);
        let is_ready = |version: &Version| {
            let owner = version.owner.as_deref();
            !version.terminating && owner.is_some_and(|owner| owners.contains(owner))
        };
        plain
            .filter(|((kind, _), record)| *kind == Kind::Claim && is_ready(&record.version))
            .map(|((_, name), _)| Arc::clone(name))
            .collect()
    }

    /// Name and uid of all objects of a kind without a record type of its own, in these replicas of the set.
    pub(crate) fn plain_objects(
        &self,
        key: &SetKey,
        kind: Kind,
        replicas: impl Fn(Option<u32>) -> bool,
    ) -> Vec<(Arc<str>, Arc<str>)> {
        let inner = self.inner.lock();
        let Some(entry) = inner.sets.get(key) else {
            return Vec::new();
        };
        let below = entry.replicas.iter();
        let below = below.map(|(index, entry)| (Some(*index), &entry.shelf));
        let chosen = std::iter::once((None, &entry.shelf))
            .chain(below)
            .filter(|(replica, _)| replicas(*replica));
        chosen
            .flat_map(|(_, shelf)| &shelf.plain)
            .filter(|((of_kind, _), _)| *of_kind == kind)
            .map(|((_, name), record)| (Arc::clone(name), Arc::clone(&record.version.uid)))
            .collect()
    }

    /// A PodCliqueSet is gone.
    pub(crate) fn remove_set(&self, meta: &ObjectMeta) {
        let (Some(namespace), Some(name)) = (&meta.namespace, &meta.name) else {
            return;
        };
        let key = SetKey::new(namespace, name);
        let mut inner = self.inner.lock();
        let Some(entry) = inner.sets.get_mut(&key) else {
            return;
        };
        if entry
            .set
            .as_ref()
            .is_some_and(|set| set.object.metadata.uid != meta.uid)
        {
            return;
        }
        entry.set = None;
        inner.tidy(&key);
        drop(inner);
        self.queue.mark(&Unit::Set(key));
    }

    /// Takes in an object below a set. Objects without the operator's labels are not ours and are ignored.
    pub(crate) fn put(&self, kind: Kind, meta: &ObjectMeta, mut record: Record, source: Source) {
        let Some((set, replica)) = place_of(meta) else {
            return;
        };
        let (Some(namespace), Some(name)) = (&meta.namespace, &meta.name) else {
            return;
        };
        let (namespace, name): (Arc<str>, Arc<str>) =
            (Arc::from(namespace.as_str()), Arc::from(name.as_str()));
        let uid: Arc<str> = Arc::from(meta.uid.as_deref().unwrap_or_default());
        let resource = resource_version(meta);
        let mut inner = self.inner.lock();
        let key = (kind, namespace, Arc::clone(&name));
        if let Some(place) = inner.places.get(&key)
            && place.resource >= resource
        {
            return;
        }
        inner.clock += 1;
        let touched = inner.clock;
        let place = Place {
            set: set.clone(),
            replica,
            uid,
            resource,
            touched,
        };
        let earlier = inner.places.insert(key, place);
        let before = earlier
            .as_ref()
            .and_then(|place| inner.shelf(&place.set, place.replica)?.take(kind, &name));
        let moved = earlier
            .as_ref()
            .is_some_and(|place| place.set != set || place.replica != replica);
        if let Record::Clique(clique) = &record {
            inner.note_clique(&set, replica, &name, clique);
        }
        if let Record::Pod(pod) = &mut record {
            pod.pod.terminating |= inner.doomed.contains(&pod.pod.uid);
            inner.note_pod(&set, replica, before.as_ref(), pod);
        }
        let news = match source {
            Source::Watch => {
                moved
                    || before
                        .as_ref()
                        .is_none_or(|before| is_news(before, &record))
            }
            // The pass that wrote knows what it wrote, but not that somebody scaled meanwhile.
            Source::Answer => before
                .as_ref()
                .is_some_and(|before| was_scaled(before, &record)),
        };
        carry_over(before, &mut record);
        inner.shelf_or_new(&set, replica).file(kind, name, record);
        if let Some(place) = earlier.filter(|_| moved) {
            inner.tidy(&place.set);
            self.queue.mark(&unit(place.set, place.replica));
        }
        drop(inner);
        if news {
            self.queue.mark(&unit(set, replica));
        }
    }

    /// An object below a set is gone.
    pub(crate) fn remove(&self, kind: Kind, meta: &ObjectMeta) {
        let (Some(namespace), Some(name)) = (&meta.namespace, &meta.name) else {
            return;
        };
        self.remove_named(kind, namespace, name, meta.uid.as_deref());
    }

    fn remove_named(&self, kind: Kind, namespace: &str, name: &str, uid: Option<&str>) {
        let key = (kind, Arc::from(namespace), Arc::from(name));
        let mut inner = self.inner.lock();
        let Some(place) = inner.places.get(&key) else {
            return;
        };
        if uid.is_some_and(|uid| uid != &*place.uid) {
            return;
        }
        let (set, replica) = (place.set.clone(), place.replica);
        inner.places.remove(&key);
        let record = inner
            .shelf(&set, replica)
            .and_then(|shelf| shelf.take(kind, name));
        match &record {
            Some(Record::Pod(pod)) => inner.forget_pod(&set, replica, pod),
            Some(Record::Clique(clique)) => inner.forget_clique(&set, replica, name, clique),
            Some(_) | None => {}
        }
        // A set that goes, or takes replicas away, waits for the last of their objects.
        let is_awaited = replica.is_some_and(|replica| inner.is_leaving(&set, replica));
        inner.tidy(&set);
        drop(inner);
        self.queue.mark(&unit(set.clone(), replica));
        if is_awaited {
            self.queue.mark_after(&Unit::Set(set), GATHER);
        }
    }

    /// Looks again at the unit of an object, because something is known about it that the object does not tell.
    pub(crate) fn look_again(&self, kind: Kind, namespace: &str, name: &str) {
        let inner = self.inner.lock();
        let place = inner
            .places
            .get(&(kind, Arc::from(namespace), Arc::from(name)));
        let Some(unit) = place.map(|place| unit(place.set.clone(), place.replica)) else {
            return;
        };
        drop(inner);
        self.queue.mark(&unit);
    }

    /// The server has accepted the deletion of these pods.
    pub(crate) fn doom(&self, namespace: &str, pods: &[(Arc<str>, PodUid)]) {
        let mut inner = self.inner.lock();
        for (name, uid) in pods {
            let key = (Kind::Pod, Arc::from(namespace), Arc::clone(name));
            let Some(place) = inner.places.get(&key) else {
                continue;
            };
            if &*place.uid != uid.as_str() {
                continue;
            }
            let (set, replica) = (place.set.clone(), place.replica);
            inner.doomed.insert(uid.clone());
            if let Some(pod) = inner
                .shelf(&set, replica)
                .and_then(|shelf| shelf.pods.get_mut(name))
            {
                pod.pod.terminating = true;
            }
        }
    }

    /// The server has accepted the deletion of these PodCliques (uid and `spec.replicas` by name), which are to come back
    /// as they were scaled.
    pub(crate) fn take_down(
        &self,
        set: &SetKey,
        replica: u32,
        scope: Scope,
        episodes: Episodes,
        cliques: &BTreeMap<Arc<str>, (Arc<str>, u32)>,
    ) {
        let mut inner = self.inner.lock();
        let Some(entry) = inner.replica_mut(set, Some(replica)) else {
            return;
        };
        entry.episodes.insert(scope, episodes);
        for (name, was) in cliques {
            // The watch may have told already that it is gone.
            if let Some(record) = entry.shelf.cliques.get_mut(name)
                && record.version.uid == was.0
            {
                record.version.terminating = true;
            }
            entry.taken_down.insert(Arc::clone(name), was.clone());
        }
    }

    /// Notes that an object was found to have the desired content with that fingerprint, so that it is not compared again
    /// before it changes.
    pub(crate) fn verified(
        &self,
        set: &SetKey,
        replica: Option<u32>,
        kind: Kind,
        name: &str,
        wanted: u64,
    ) {
        let mut inner = self.inner.lock();
        let Some(shelf) = inner.shelf(set, replica) else {
            return;
        };
        let slot = match kind {
            Kind::Clique => shelf
                .cliques
                .get_mut(name)
                .map(|record| &mut record.verified),
            Kind::Group => shelf
                .groups
                .get_mut(name)
                .map(|record| &mut record.verified),
            _ => shelf
                .plain
                .get_mut(&(kind, Arc::from(name)))
                .map(|record| &mut record.verified),
        };
        if let Some(slot) = slot {
            *slot = Some(wanted);
        }
    }

    /// The set's decision about which replica may change. Tells whether it is another one than before.
    pub(crate) fn set_updating(&self, set: &SetKey, updating: Option<u32>) -> bool {
        let mut inner = self.inner.lock();
        let Some(entry) = inner.sets.get_mut(set) else {
            return false;
        };
        std::mem::replace(&mut entry.updating, updating) != updating
    }

    /// The set's status can be judged from now on.
    pub(crate) fn set_reported(&self, set: &SetKey) {
        if let Some(entry) = self.inner.lock().sets.get_mut(set) {
            entry.reported = true;
        }
    }

    /// What the set should know about one of its replicas.
    pub(crate) fn report(&self, set: &SetKey, replica: u32, summary: Summary) {
        let mut inner = self.inner.lock();
        let Some(entry) = inner.sets.get_mut(set) else {
            return;
        };
        let slot = &mut entry.replicas.entry(replica).or_default().summary;
        if slot.as_ref() == Some(&summary) {
            return;
        }
        *slot = Some(summary);
        drop(inner);
        self.queue.mark_after(&Unit::Set(set.clone()), GATHER);
    }

    /// The set itself.
    pub(crate) fn set_object(&self, key: &SetKey) -> Option<Arc<PodCliqueSet>> {
        let inner = self.inner.lock();
        let record = inner.sets.get(key)?.set.as_ref()?;
        Some(Arc::clone(&record.object))
    }

    /// A copy of the set's entry without its replicas' objects.
    pub(crate) fn set(&self, key: &SetKey) -> Option<SetEntry> {
        let inner = self.inner.lock();
        let entry = inner.sets.get(key)?;
        let replicas = entry.replicas.iter().map(|(index, replica)| {
            (
                *index,
                ReplicaEntry {
                    summary: replica.summary.clone(),
                    ..ReplicaEntry::default()
                },
            )
        });
        Some(SetEntry {
            set: entry.set.clone(),
            shelf: entry.shelf.clone(),
            replicas: replicas.collect(),
            updating: entry.updating,
            reported: entry.reported,
            announced: None,
        })
    }

    /// A copy of one replica, with the set it belongs to and whether it is its turn to change.
    pub(crate) fn replica(
        &self,
        key: &SetKey,
        replica: u32,
    ) -> Option<(SetRecord, ReplicaEntry, bool)> {
        let inner = self.inner.lock();
        let entry = inner.sets.get(key)?;
        let set = entry.set.clone()?;
        let found = entry.replicas.get(&replica).cloned().unwrap_or_default();
        Some((set, found, entry.updating == Some(replica)))
    }

    /// Objects of the set that are not on their way out: their kinds, and the chosen replicas that have some. `None` stands
    /// for what belongs to the set as a whole.
    pub(crate) fn live(&self, key: &SetKey, chosen: impl Fn(Option<u32>) -> bool) -> Live {
        let inner = self.inner.lock();
        let mut live = Live::new();
        let Some(entry) = inner.sets.get(key) else {
            return live;
        };
        let replicas = entry
            .replicas
            .iter()
            .map(|(index, replica)| (Some(*index), &replica.shelf));
        for (replica, shelf) in std::iter::once((None, &entry.shelf)).chain(replicas) {
            if chosen(replica) {
                for kind in shelf.live_kinds() {
                    live.entry(kind).or_default().insert(replica);
                }
            }
        }
        live
    }

    /// Whether nothing below the set is left.
    pub(crate) fn is_empty(&self, key: &SetKey) -> bool {
        let inner = self.inner.lock();
        inner.sets.get(key).is_none_or(|entry| {
            entry.shelf.is_empty()
                && entry
                    .replicas
                    .values()
                    .all(|replica| replica.shelf.is_empty())
        })
    }

    /// Whether this edition of the set (uid and generation) was announced to its replicas before; it is now.
    pub(crate) fn announced(&self, key: &SetKey, edition: (String, i64)) -> bool {
        let mut inner = self.inner.lock();
        let Some(entry) = inner.sets.get_mut(key) else {
            return true;
        };
        let edition = Some(edition);
        let was = entry.announced == edition;
        entry.announced = edition;
        was
    }

    /// Names and uids of all pods of these replicas of the set that are not on their way out.
    pub(crate) fn live_pods(
        &self,
        key: &SetKey,
        replicas: impl Fn(u32) -> bool,
    ) -> Vec<(Arc<str>, PodUid)> {
        let inner = self.inner.lock();
        let Some(entry) = inner.sets.get(key) else {
            return Vec::new();
        };
        let chosen = entry.replicas.iter().filter(|(index, _)| replicas(**index));
        let pods = chosen.flat_map(|(_, replica)| &replica.shelf.pods);
        let live = pods.filter(|(_, pod)| !pod.pod.terminating);
        live.map(|(name, pod)| (Arc::clone(name), pod.pod.uid.clone()))
            .collect()
    }

    /// Every unit there is; marked when this process becomes the leader.
    pub(crate) fn units(&self) -> Vec<Unit> {
        let inner = self.inner.lock();
        let mut units = Vec::new();
        for (key, entry) in &inner.sets {
            units.push(Unit::Set(key.clone()));
            units.extend(
                entry
                    .replicas
                    .keys()
                    .map(|index| Unit::Replica(key.clone(), *index)),
            );
        }
        units
    }

    /// Number of sets and of pods, for the metrics endpoint.
    pub(crate) fn sizes(&self) -> (usize, usize) {
        let inner = self.inner.lock();
        (inner.sets.len(), inner.pods)
    }

    /// Begins a new list of a kind. Everything of it that is not seen, and was not touched meanwhile, is gone.
    pub(crate) fn begin_list(&self) -> u64 {
        self.inner.lock().clock
    }

    /// Ends a list that began at `since` and had `seen` of the kind in `namespaces` (all, if `None`).
    pub(crate) fn end_list(
        &self,
        kind: Kind,
        since: u64,
        seen: &HashSet<Arc<str>>,
        namespace: Option<&str>,
    ) {
        let inner = self.inner.lock();
        let gone: Vec<(Arc<str>, Arc<str>, Arc<str>)> = inner
            .places
            .iter()
            .filter(|((of_kind, in_namespace, _), place)| {
                *of_kind == kind
                    && namespace.is_none_or(|namespace| namespace == &**in_namespace)
                    && place.touched <= since
                    && !seen.contains(&place.uid)
            })
            .map(|((_, namespace, name), place)| {
                (
                    Arc::clone(namespace),
                    Arc::clone(name),
                    Arc::clone(&place.uid),
                )
            })
            .collect();
        drop(inner);
        for (namespace, name, uid) in gone {
            self.remove_named(kind, &namespace, &name, Some(&uid));
        }
    }

    /// Sets that are known, to be compared with a new list of them.
    pub(crate) fn known_sets(&self, namespace: Option<&str>) -> Vec<Arc<PodCliqueSet>> {
        let inner = self.inner.lock();
        let known = inner
            .sets
            .values()
            .filter_map(|entry| Some(Arc::clone(&entry.set.as_ref()?.object)));
        known
            .filter(|set| namespace.is_none() || set.metadata.namespace.as_deref() == namespace)
            .collect()
    }
}

impl Inner {
    fn shelf(&mut self, set: &SetKey, replica: Option<u32>) -> Option<&mut Shelf> {
        let entry = self.sets.get_mut(set)?;
        match replica {
            None => Some(&mut entry.shelf),
            Some(replica) => Some(&mut entry.replicas.get_mut(&replica)?.shelf),
        }
    }

    fn shelf_or_new(&mut self, set: &SetKey, replica: Option<u32>) -> &mut Shelf {
        let entry = self.sets.entry(set.clone()).or_default();
        match replica {
            None => &mut entry.shelf,
            Some(replica) => &mut entry.replicas.entry(replica).or_default().shelf,
        }
    }

    fn replica_mut(&mut self, set: &SetKey, replica: Option<u32>) -> Option<&mut ReplicaEntry> {
        self.sets.get_mut(set)?.replicas.get_mut(&replica?)
    }

    /// Counts pods, and those that end by themselves.
    fn note_pod(
        &mut self,
        set: &SetKey,
        replica: Option<u32>,
        before: Option<&Record>,
        pod: &PodRecord,
    ) {
        let had_ended = match before {
            Some(Record::Pod(before)) => before.pod.is_finished(),
            _ => {
                self.pods += 1;
                false
            }
        };
        if had_ended || !pod.pod.is_finished() || pod.pod.terminating {
            return;
        }
        let Some(replica) = replica else { return };
        let entry = self
            .sets
            .entry(set.clone())
            .or_default()
            .replicas
            .entry(replica)
            .or_default();
        let now = Timestamp::now();
        let endings = entry
            .endings
            .entry(Arc::clone(&pod.clique))
            .or_insert(Endings {
                count: 0,
                last: now,
            });
        if now.duration_since(endings.last) > FORGIVE_AFTER {
            endings.count = 0;
        }
        endings.count += 1;
        endings.last = now;
    }

    /// A PodClique that was taken down is back when there is another one of its name.
    fn note_clique(
        &mut self,
        set: &SetKey,
        replica: Option<u32>,
        name: &str,
        clique: &CliqueRecord,
    ) {
        if let Some(entry) = self.replica_mut(set, replica)
            && let Some((uid, _)) = entry.taken_down.get(name)
            && *uid != clique.version.uid
        {
            entry.taken_down.remove(name);
        }
    }

    fn forget_pod(&mut self, set: &SetKey, replica: Option<u32>, pod: &PodRecord) {
        self.pods = self.pods.saturating_sub(1);
        self.doomed.remove(&pod.pod.uid);
        let (Some(index), Some(owner)) = (pod.pod.index, &pod.owner) else {
            return;
        };
        if let Some(entry) = self.replica_mut(set, replica) {
            *entry
                .attempts
                .entry((Arc::clone(owner), index))
                .or_default() += 1;
        }
    }

    fn forget_clique(
        &mut self,
        set: &SetKey,
        replica: Option<u32>,
        name: &str,
        clique: &CliqueRecord,
    ) {
        if let Some(entry) = self.replica_mut(set, replica) {
            entry
                .attempts
                .retain(|(owner, _), _| *owner != clique.version.uid);
            entry.endings.remove(name);
        }
    }

    /// Whether the replica should not exist.
    fn is_leaving(&self, set: &SetKey, replica: u32) -> bool {
        let record = self.sets.get(set).and_then(|entry| entry.set.as_ref());
        record.is_some_and(|record| {
            record.object.metadata.deletion_timestamp.is_some()
                || record
                    .validated
                    .as_ref()
                    .is_ok_and(|set| replica >= set.replicas)
        })
    }

    /// Drops entries that nothing is filed under.
    fn tidy(&mut self, key: &SetKey) {
        let Some(entry) = self.sets.get_mut(key) else {
            return;
        };
        let wanted = match &entry.set {
            Some(SetRecord {
                validated: Ok(set), ..
            }) => set.replicas,
            Some(_) => u32::MAX,
            None => 0,
        };
        entry
            .replicas
            .retain(|index, replica| *index < wanted || !replica.shelf.is_empty());
        if entry.set.is_none() && entry.shelf.is_empty() && entry.replicas.is_empty() {
            self.sets.remove(key);
        }
    }
}

fn place_of(meta: &ObjectMeta) -> Option<(SetKey, Option<u32>)> {
    if label(meta, labels::MANAGED_BY) != Some(labels::OPERATOR) {
        return None;
    }
    let set = SetKey::new(meta.namespace.as_deref()?, label(meta, labels::PART_OF)?);
    Some((
        set,
        label(meta, labels::SET_REPLICA_INDEX).and_then(|text| text.parse().ok()),
    ))
}

fn unit(set: SetKey, replica: Option<u32>) -> Unit {
    match replica {
        Some(replica) => Unit::Replica(set, replica),
        None => Unit::Set(set),
    }
}
