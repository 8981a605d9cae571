//! The start-order gate: which pods wait for which PodCliques, and when they may go on.
//!
//! The rule itself is `coppice_operator_plan::start`; the init container `coppice-init` applies the same one in a real
//! cluster. PodCliques are watched from the first pod on that has a gate.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::pin::Pin;

use coppice_operator_plan::start::{self, Readiness, StartRules};
use futures::{Stream, StreamExt};
use kube::api::{ApiResource, Object};
use kube::core::GroupVersionKind;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, ResourceExt};
use serde::Deserialize;
use tracing::debug;

/// The part of a PodClique that the gate needs.
type SlimClique = Object<Nothing, SlimStatus>;

#[derive(Debug, Clone, Deserialize)]
pub(super) struct Nothing {}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct SlimStatus {
    ready_replicas: u32,
}

/// A PodClique's namespace and name.
type CliqueKey = (String, String);

/// What a watch of all PodCliques brings.
type Cliques = Pin<Box<dyn Stream<Item = watcher::Result<Event<SlimClique>>> + Send>>;

/// Who waits for what.
pub(super) struct Gate {
    client: Client,
    cliques: Option<Cliques>,
    /// By namespace.
    ready: HashMap<String, Readiness>,
    /// Every clique that `ready` has.
    known: HashSet<CliqueKey>,
    /// Cliques of the list that is being received; what is not in it at its end is gone.
    listed: Option<HashSet<CliqueKey>>,
    waiting: HashMap<String, Waiting>,
    /// Pod UIDs by clique.
    by_clique: HashMap<CliqueKey, BTreeSet<String>>,
}

#[derive(Debug)]
struct Waiting {
    namespace: String,
    rules: StartRules,
}

impl std::fmt::Debug for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gate")
            .field("ready", &self.ready)
            .field("waiting", &self.waiting)
            .finish_non_exhaustive()
    }
}

impl Gate {
    pub(super) fn new(client: Client) -> Self {
        Self {
            client,
            cliques: None,
            ready: HashMap::new(),
            known: HashSet::new(),
            listed: None,
            waiting: HashMap::new(),
            by_clique: HashMap::new(),
        }
    }

    /// Whether the pod may go on now; if not it waits, and [`Gate::next`] names it when it may.
    ///
    /// # Errors
    ///
    /// The arguments cannot be read; the pod waits for ever, as its init container would fail for ever.
    pub(super) fn enter(
        &mut self,
        uid: &str,
        namespace: &str,
        arguments: &[String],
    ) -> Result<bool, String> {
        let rules = StartRules::from_arguments(arguments.iter().map(String::as_str))
            .map_err(|e| e.to_string())?;
        self.watch();
        let waiting = Waiting {
            namespace: namespace.to_owned(),
            rules,
        };
        if self.is_open(&waiting) {
            return Ok(true);
        }
        for clique in waiting.rules.cliques() {
            let key = (namespace.to_owned(), clique.to_owned());
            self.by_clique
                .entry(key)
                .or_default()
                .insert(uid.to_owned());
        }
        self.waiting.insert(uid.to_owned(), waiting);
        Ok(false)
    }

    /// The pod waits no more.
    pub(super) fn leave(&mut self, uid: &str) {
        let Some(waiting) = self.waiting.remove(uid) else {
            return;
        };
        for clique in waiting.rules.cliques() {
            let key = (waiting.namespace.clone(), clique.to_owned());
            if let Some(pods) = self.by_clique.get_mut(&key) {
                pods.remove(uid);
                if pods.is_empty() {
                    self.by_clique.remove(&key);
                }
            }
        }
    }

    /// Waits for pods that may go on. For ever while nothing is watched. Nothing is lost when the wait is given up.
    pub(super) async fn next(&mut self) -> Vec<String> {
        loop {
            let Some(cliques) = &mut self.cliques else {
                return std::future::pending().await;
            };
            match cliques.next().await {
                Some(Ok(event)) => {
                    let open = self.take_in(event);
                    if !open.is_empty() {
                        return open;
                    }
                }
                // Most often the definition is not there yet; the watch tries again by itself, ever more slowly.
                Some(Err(error)) => debug!(%error, "cannot watch PodCliques"),
                None => self.cliques = None,
            }
        }
    }

    fn watch(&mut self) {
        if self.cliques.is_none() {
            let kind = ApiResource::from_gvk_with_plural(
                &GroupVersionKind::gvk("grove.io", "v1alpha1", "PodClique"),
                "podcliques",
            );
            let api: Api<SlimClique> = Api::all_with(self.client.clone(), &kind);
            self.cliques = Some(
                watcher(api, watcher::Config::default())
                    .default_backoff()
                    .boxed(),
            );
        }
    }

    /// Takes an event in and returns the pods that may go on because of it.
    fn take_in(&mut self, event: Event<SlimClique>) -> Vec<String> {
        match event {
            Event::Init => {
                self.listed = Some(HashSet::new());
                vec![]
            }
            Event::InitApply(clique) | Event::Apply(clique) => {
                let key = (clique.namespace().unwrap_or_default(), clique.name_any());
                if let Some(listed) = &mut self.listed {
                    listed.insert(key.clone());
                }
                self.known.insert(key.clone());
                self.note(&key, Some(clique.status.unwrap_or_default().ready_replicas));
                self.opened_by(&key)
            }
            Event::InitDone => {
                let listed = self.listed.take().unwrap_or_default();
                let gone: Vec<_> = self.known.difference(&listed).cloned().collect();
                for key in gone {
                    self.forget(&key);
                }
                vec![]
            }
            Event::Delete(clique) => {
                self.forget(&(clique.namespace().unwrap_or_default(), clique.name_any()));
                vec![]
            }
        }
    }

    fn forget(&mut self, key: &CliqueKey) {
        self.known.remove(key);
        self.note(key, None);
    }

    fn note(&mut self, (namespace, name): &CliqueKey, ready: Option<u32>) {
        self.ready
            .entry(namespace.clone())
            .or_default()
            .note(name, ready);
    }

    fn opened_by(&mut self, key: &CliqueKey) -> Vec<String> {
        let open: Vec<_> = self
            .by_clique
            .get(key)
            .into_iter()
            .flatten()
            .filter(|uid| {
                self.waiting
                    .get(*uid)
                    .is_some_and(|waiting| self.is_open(waiting))
            })
            .cloned()
            .collect();
        for uid in &open {
            self.leave(uid);
        }
        open
    }

    fn is_open(&self, waiting: &Waiting) -> bool {
        let nothing = Readiness::default();
        let readiness = self.ready.get(&waiting.namespace).unwrap_or(&nothing);
        start::gate(&waiting.rules, readiness) == start::Gate::Start
    }
}
