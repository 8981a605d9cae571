//! The endpoints there are, kept in step with pods, rules and static targets.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::discover::{PodFacts, ScrapeRule, StaticTarget};
use crate::endpoint::{Endpoint, EndpointKey, Tracked};

/// One watch on pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WatchId(u64);

/// Everything discovery knows.
#[derive(Debug)]
pub(crate) struct Index {
    rows: usize,
    limit: usize,
    pods: BTreeMap<(String, String), KnownPod>,
    /// Whether each watch has delivered its first list.
    watches: BTreeMap<WatchId, bool>,
    next_watch: u64,
    rules: BTreeMap<String, Vec<ScrapeRule>>,
    statics: BTreeMap<String, Vec<StaticTarget>>,
    endpoints: BTreeMap<EndpointKey, Arc<Endpoint>>,
    /// How many of these are not scraped, because there are too many.
    over_limit: usize,
    version: u64,
    /// Parent of all scrapers' stops.
    stop: CancellationToken,
}

#[derive(Debug)]
struct KnownPod {
    facts: PodFacts,
    watches: BTreeSet<WatchId>,
}

/// Endpoints that a change brought: they need a scraper.
pub(crate) type Added = Vec<Arc<Endpoint>>;

impl Index {
    /// An index whose endpoints keep `rows` rows each, `limit` of them at most.
    pub(crate) fn new(rows: usize, limit: usize) -> Self {
        Self {
            rows,
            limit,
            pods: BTreeMap::new(),
            watches: BTreeMap::new(),
            next_watch: 0,
            rules: BTreeMap::new(),
            statics: BTreeMap::new(),
            endpoints: BTreeMap::new(),
            over_limit: 0,
            version: 0,
            stop: CancellationToken::new(),
        }
    }

    /// Ends all scrapers.
    pub(crate) fn stop(&self) {
        self.stop.cancel();
    }

    pub(crate) fn begin_watch(&mut self) -> WatchId {
        let id = WatchId(self.next_watch);
        self.next_watch += 1;
        self.watches.insert(id, false);
        id
    }

    pub(crate) fn end_watch(&mut self, id: WatchId) {
        self.watches.remove(&id);
        let seen: Vec<_> = self
            .pods
            .iter()
            .filter(|(_, pod)| pod.watches.contains(&id))
            .map(|(key, _)| key.clone())
            .collect();
        for (namespace, name) in seen {
            self.delete_pod(id, &namespace, &name);
        }
    }

    /// Whether there is a watch, and each has delivered its first list.
    pub(crate) fn is_discovered(&self) -> bool {
        !self.watches.is_empty() && self.watches.values().all(|listed| *listed)
    }

    /// Replaces everything that one watch saw.
    pub(crate) fn replace_pods(&mut self, id: WatchId, pods: Vec<PodFacts>) -> Added {
        let listed: BTreeSet<_> = pods
            .iter()
            .map(|pod| (pod.namespace.clone(), pod.name.clone()))
            .collect();
        let gone: Vec<_> = self
            .pods
            .iter()
            .filter(|(key, pod)| pod.watches.contains(&id) && !listed.contains(*key))
            .map(|(key, _)| key.clone())
            .collect();
        for (namespace, name) in gone {
            self.delete_pod(id, &namespace, &name);
        }
        let added = pods
            .into_iter()
            .flat_map(|pod| self.apply_pod(id, pod))
            .collect();
        if let Some(listed) = self.watches.get_mut(&id) {
            *listed = true;
        }
        added
    }

    pub(crate) fn apply_pod(&mut self, id: WatchId, facts: PodFacts) -> Added {
        let key = (facts.namespace.clone(), facts.name.clone());
        match self.pods.get_mut(&key) {
            Some(known) => {
                known.watches.insert(id);
                if known.facts == facts {
                    return Vec::new();
                }
                known.facts = facts;
            }
            None => {
                self.pods.insert(
                    key.clone(),
                    KnownPod {
                        facts,
                        watches: BTreeSet::from([id]),
                    },
                );
            }
        }
        self.place_pod(&key)
    }

    pub(crate) fn delete_pod(&mut self, id: WatchId, namespace: &str, name: &str) {
        let key = (namespace.to_owned(), name.to_owned());
        let Some(known) = self.pods.get_mut(&key) else {
            return;
        };
        known.watches.remove(&id);
        if known.watches.is_empty() {
            self.pods.remove(&key);
            self.keep(namespace, name, &BTreeSet::new());
        }
    }

    /// Replaces one owner's rules, and looks at every pod again if that changes anything.
    pub(crate) fn set_rules(&mut self, owner: &str, rules: Vec<ScrapeRule>) -> Added {
        let before = self.rules.get(owner).map_or(&[][..], Vec::as_slice);
        if before == rules {
            return Vec::new();
        }
        if rules.is_empty() {
            self.rules.remove(owner);
        } else {
            self.rules.insert(owner.to_owned(), rules);
        }
        let keys: Vec<_> = self.pods.keys().cloned().collect();
        keys.iter().flat_map(|key| self.place_pod(key)).collect()
    }

    /// Replaces one owner's static targets.
    pub(crate) fn set_statics(&mut self, owner: &str, targets: Vec<StaticTarget>) -> Added {
        let before = self
            .statics
            .insert(owner.to_owned(), targets.clone())
            .unwrap_or_default();
        if targets.is_empty() {
            self.statics.remove(owner);
        }
        let all: BTreeSet<_> = self.statics.values().flatten().map(key_of_static).collect();
        for key in before
            .iter()
            .map(key_of_static)
            .filter(|key| !all.contains(key))
        {
            self.remove(&key);
        }
        targets
            .into_iter()
            .filter_map(|target| {
                let key = key_of_static(&target);
                self.put(key, Arc::new(target.labels), true)
            })
            .collect()
    }

    /// Makes a pod's endpoints those that it should have.
    fn place_pod(&mut self, key: &(String, String)) -> Added {
        let Some(known) = self.pods.get(key) else {
            return Vec::new();
        };
        let facts = &known.facts;
        let (labels, live) = (Arc::clone(&facts.labels), facts.is_live());
        let places = facts.places(self.rules.values().flatten());
        let wanted: BTreeSet<_> = places
            .into_iter()
            .filter_map(|place| {
                Some(EndpointKey {
                    namespace: key.0.clone(),
                    name: key.1.clone(),
                    uid: facts.uid.clone(),
                    address: SocketAddr::new(facts.address?, place.port).to_string(),
                    path: place.path,
                })
            })
            .collect();
        self.keep(&key.0, &key.1, &wanted);
        wanted
            .into_iter()
            .filter_map(|key| self.put(key, Arc::clone(&labels), live))
            .collect()
    }

    /// Removes the endpoints of a pod that are not among these.
    fn keep(&mut self, namespace: &str, name: &str, wanted: &BTreeSet<EndpointKey>) {
        let first = EndpointKey {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            uid: String::new(),
            address: String::new(),
            path: String::new(),
        };
        let is_static: BTreeSet<_> = self.statics.values().flatten().map(key_of_static).collect();
        let gone: Vec<_> = self
            .endpoints
            .range(first..)
            .map(|(key, _)| key)
            .take_while(|key| key.namespace == namespace && key.name == name)
            .filter(|key| !wanted.contains(key) && !is_static.contains(key))
            .cloned()
            .collect();
        for key in gone {
            self.remove(&key);
        }
    }

    fn remove(&mut self, key: &EndpointKey) {
        if let Some(endpoint) = self.endpoints.remove(key) {
            endpoint.tracked.stop.cancel();
            self.over_limit -= usize::from(endpoint.over_limit);
            self.version += 1;
        }
    }

    /// Adds or renews an endpoint; gives it back if it is new and to be scraped.
    fn put(
        &mut self,
        key: EndpointKey,
        labels: Arc<BTreeMap<String, String>>,
        live: bool,
    ) -> Option<Arc<Endpoint>> {
        let role = labels.get("role").cloned();
        if let Some(old) = self.endpoints.get(&key) {
            if old.live != live || old.labels != labels {
                if live && !old.live && old.tracked.state.lock().target.glance.last.is_none() {
                    old.tracked.hurry.notify_one();
                }
                let (over_limit, tracked) = (old.over_limit, Arc::clone(&old.tracked));
                let renewed = Endpoint {
                    key: key.clone(),
                    labels,
                    role,
                    live,
                    over_limit,
                    tracked,
                };
                self.endpoints.insert(key, Arc::new(renewed));
                self.version += 1;
            }
            return None;
        }
        let over_limit = self.endpoints.len() - self.over_limit >= self.limit;
        self.over_limit += usize::from(over_limit);
        let tracked = Arc::new(Tracked::new(self.rows, self.stop.child_token()));
        let endpoint = Arc::new(Endpoint {
            key: key.clone(),
            labels,
            role,
            live,
            over_limit,
            tracked,
        });
        self.endpoints.insert(key, Arc::clone(&endpoint));
        self.version += 1;
        (!over_limit).then_some(endpoint)
    }

    /// Endpoints that were over the limit and have come under it since: they need a scraper.
    pub(crate) fn take_promoted(&mut self) -> Added {
        let mut promoted = Vec::new();
        while self.over_limit > 0 && self.endpoints.len() - self.over_limit < self.limit {
            let Some((key, old)) = self
                .endpoints
                .iter()
                .find(|(_, endpoint)| endpoint.over_limit)
            else {
                break;
            };
            let Endpoint {
                key: _,
                labels,
                role,
                live,
                over_limit: _,
                tracked,
            } = &**old;
            let endpoint = Arc::new(Endpoint {
                key: key.clone(),
                labels: Arc::clone(labels),
                role: role.clone(),
                live: *live,
                over_limit: false,
                tracked: Arc::clone(tracked),
            });
            self.over_limit -= 1;
            self.version += 1;
            self.endpoints
                .insert(endpoint.key.clone(), Arc::clone(&endpoint));
            promoted.push(endpoint);
        }
        promoted
    }

    /// How many endpoints are not scraped, because there are too many.
    pub(crate) const fn over_limit(&self) -> usize {
        self.over_limit
    }

    /// Changes whenever an endpoint comes, goes or changes.
    pub(crate) const fn version(&self) -> u64 {
        self.version
    }

    /// Makes cached selections and answers outdated.
    pub(crate) fn touch(&mut self) {
        self.version += 1;
    }

    /// All endpoints, or those of one namespace, by namespace and name.
    pub(crate) fn endpoints(
        &self,
        namespace: Option<&str>,
    ) -> impl Iterator<Item = &Arc<Endpoint>> {
        let first = EndpointKey {
            namespace: namespace.unwrap_or_default().to_owned(),
            name: String::new(),
            uid: String::new(),
            address: String::new(),
            path: String::new(),
        };
        let namespace = namespace.map(str::to_owned);
        self.endpoints
            .range(first..)
            .take_while(move |(key, _)| {
                namespace
                    .as_ref()
                    .is_none_or(|namespace| key.namespace == *namespace)
            })
            .map(|(_, endpoint)| endpoint)
    }

    pub(crate) fn len(&self) -> usize {
        self.endpoints.len()
    }
}

fn key_of_static(target: &StaticTarget) -> EndpointKey {
    EndpointKey {
        namespace: target.namespace.clone(),
        name: target.name.clone(),
        uid: String::new(),
        address: target.address.clone(),
        path: target.path.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::query::Selection;

    fn pod(name: &str, uid: &str) -> PodFacts {
        PodFacts {
            uid: uid.to_owned(),
            ..PodFacts::ready("serving", name, [10, 0, 0, 1].into(), 8000)
        }
    }

    fn names(index: &Index, namespace: Option<&str>) -> Vec<String> {
        index
            .endpoints(namespace)
            .map(|endpoint| format!("{}@{}", endpoint.key.name, endpoint.key.address))
            .collect()
    }

    #[test]
    fn a_list_replaces_what_its_watch_saw_and_nothing_else() {
        let mut index = Index::new(4, 10);
        let (one, two) = (index.begin_watch(), index.begin_watch());
        assert!(!index.is_discovered());
        assert_eq!(
            index
                .replace_pods(one, vec![pod("a", "1"), pod("b", "1")])
                .len(),
            2
        );
        assert!(!index.is_discovered(), "the other watch has not listed yet");
        assert_eq!(
            index
                .replace_pods(two, vec![pod("b", "1"), pod("c", "1")])
                .len(),
            1
        );
        assert!(index.is_discovered());
        index.replace_pods(one, Vec::new());
        assert_eq!(
            names(&index, Some("serving")),
            ["b@10.0.0.1:8000", "c@10.0.0.1:8000"]
        );
        index.end_watch(two);
        assert_eq!(names(&index, None), Vec::<String>::new());
    }

    #[test]
    fn a_pod_that_goes_ends_its_scraper_and_one_made_anew_starts_afresh() {
        let mut index = Index::new(4, 10);
        let watch = index.begin_watch();
        let first = index.apply_pod(watch, pod("a", "1")).remove(0);
        assert!(
            index
                .apply_pod(
                    watch,
                    PodFacts {
                        ready: false,
                        ..pod("a", "1")
                    }
                )
                .is_empty(),
            "same endpoint, not live"
        );
        assert!(!index.endpoints(None).next().unwrap().live);
        assert!(!first.tracked.stop.is_cancelled());
        let second = index.apply_pod(watch, pod("a", "2")).remove(0);
        assert!(first.tracked.stop.is_cancelled());
        assert!(
            index
                .apply_pod(
                    watch,
                    PodFacts {
                        ending: true,
                        ..pod("a", "2")
                    }
                )
                .is_empty()
        );
        assert!(
            second.tracked.stop.is_cancelled(),
            "gone as soon as it ends, not when it is deleted"
        );
        assert_eq!(index.len(), 0);
    }

    #[test]
    fn rules_and_static_targets_add_and_remove_endpoints() {
        let mut index = Index::new(4, 10);
        let watch = index.begin_watch();
        index.apply_pod(watch, pod("a", "1"));
        let rule = ScrapeRule {
            selection: Selection::default(),
            port: Some(crate::discover::Port::Number(9)),
            path: None,
        };
        assert_eq!(index.set_rules("policy", vec![rule.clone()]).len(), 1);
        assert!(index.set_rules("policy", vec![rule]).is_empty());
        assert_eq!(names(&index, None), ["a@10.0.0.1:9"]);
        let target = StaticTarget {
            namespace: "serving".to_owned(),
            name: "gateway".to_owned(),
            address: "gateway:8080".to_owned(),
            path: "/metrics".to_owned(),
            labels: BTreeMap::new(),
        };
        assert_eq!(index.set_statics("policy", vec![target]).len(), 1);
        assert_eq!(
            names(&index, Some("serving")),
            ["a@10.0.0.1:9", "gateway@gateway:8080"]
        );
        assert_eq!(names(&index, Some("other")), Vec::<String>::new());
        index.set_rules("policy", Vec::new());
        index.set_statics("policy", Vec::new());
        assert_eq!(names(&index, None), ["a@10.0.0.1:8000"]);
    }

    #[test]
    fn endpoints_over_the_limit_are_known_but_not_scraped() {
        let mut index = Index::new(4, 1);
        let watch = index.begin_watch();
        assert_eq!(
            index
                .replace_pods(watch, vec![pod("a", "1"), pod("b", "1")])
                .len(),
            1
        );
        assert_eq!(
            index
                .endpoints(None)
                .filter(|endpoint| endpoint.over_limit)
                .count(),
            1
        );
        index.delete_pod(watch, "serving", "a");
        let promoted = index.take_promoted();
        assert_eq!(promoted.len(), 1);
        assert_eq!(
            (promoted[0].key.name.as_str(), promoted[0].over_limit),
            ("b", false)
        );
        assert!(index.take_promoted().is_empty());
    }
}
