//! Watches of the cluster, each kept as small views by namespace and name.

use std::collections::BTreeMap;
use std::sync::Arc;

use coppice_runtime::telemetry::chain;
use futures::{Stream, StreamExt};
use kube::core::DeserializeGuard;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Resource, ResourceExt};
use parking_lot::RwLock;
use serde::de::DeserializeOwned;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tracing::warn;

/// Namespace and name.
pub(crate) type Key = (String, String);

/// What one watch has seen. Clones share it.
#[derive(Debug)]
pub(crate) struct Cache<V> {
    state: Arc<RwLock<State<V>>>,
}

#[derive(Debug)]
struct State<V> {
    /// `None` until the first list is complete.
    views: Option<BTreeMap<Key, Arc<V>>>,
    /// Why there is no list yet.
    trouble: Option<String>,
}

impl<V> Clone for Cache<V> {
    fn clone(&self) -> Self {
        Self {
            state: Arc::clone(&self.state),
        }
    }
}

impl<V: Send + Sync + 'static> Cache<V> {
    /// Watches objects until `stop`, keeping `view` of each; `None` leaves an object out. `changed` is told of each change.
    pub(crate) fn watch<K>(
        api: Api<DeserializeGuard<K>>,
        view: impl Fn(K) -> Option<V> + Send + 'static,
        changed: Arc<Notify>,
        stop: CancellationToken,
    ) -> Self
    where
        K: Resource + Clone + std::fmt::Debug + DeserializeOwned + Send + 'static,
        K::DynamicType: Default,
    {
        let cache = Self {
            state: Arc::new(RwLock::new(State {
                views: None,
                trouble: None,
            })),
        };
        let events = watcher(api, watcher::Config::default())
            .default_backoff()
            .take_until(stop.cancelled_owned());
        tokio::spawn(cache.clone().follow(events, view, changed));
        cache
    }

    async fn follow<K>(
        self,
        events: impl Stream<Item = watcher::Result<watcher::Event<DeserializeGuard<K>>>>,
        view: impl Fn(K) -> Option<V>,
        changed: Arc<Notify>,
    ) where
        K: Resource + Clone + std::fmt::Debug + DeserializeOwned,
        K::DynamicType: Default,
    {
        let mut events = std::pin::pin!(events);
        let mut listing = BTreeMap::new();
        while let Some(event) = events.next().await {
            match event {
                Ok(watcher::Event::Init) => listing.clear(),
                Ok(watcher::Event::InitApply(object)) => {
                    if let (key, Some(view)) = read(object, &view) {
                        listing.insert(key, Arc::new(view));
                    }
                }
                Ok(watcher::Event::InitDone) => {
                    *self.state.write() = State {
                        views: Some(std::mem::take(&mut listing)),
                        trouble: None,
                    };
                }
                Ok(watcher::Event::Apply(object)) => {
                    let (key, view) = read(object, &view);
                    if let Some(views) = &mut self.state.write().views {
                        match view {
                            Some(view) => drop(views.insert(key, Arc::new(view))),
                            None => drop(views.remove(&key)),
                        }
                    }
                }
                Ok(watcher::Event::Delete(object)) => {
                    if let Some(views) = &mut self.state.write().views {
                        views.remove(&key_of(&object));
                    }
                }
                Err(error) => self.note(&error, std::any::type_name::<K>()),
            }
            changed.notify_one();
        }
    }

    fn note(&self, error: &watcher::Error, kind: &str) {
        let text = chain(error).to_string();
        let mut state = self.state.write();
        if state.trouble.as_ref() != Some(&text) {
            let kind = kind.rsplit("::").next().unwrap_or(kind);
            warn!(kind, error = %text, "cannot watch, trying again");
            state.trouble = Some(text);
        }
    }

    /// All views by namespace and name; `None` until the first list is complete.
    pub(crate) fn all(&self) -> Option<BTreeMap<Key, Arc<V>>> {
        self.state.read().views.clone()
    }

    /// Whether the first list is complete.
    pub(crate) fn is_listed(&self) -> bool {
        self.state.read().views.is_some()
    }

    /// The last trouble while there is no list.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.state.read().trouble.clone()
    }
}

fn key_of<K: Resource>(object: &DeserializeGuard<K>) -> Key
where
    K::DynamicType: Default,
{
    (object.namespace().unwrap_or_default(), object.name_any())
}

fn read<K, V>(object: DeserializeGuard<K>, view: impl Fn(K) -> Option<V>) -> (Key, Option<V>)
where
    K: Resource,
    K::DynamicType: Default,
{
    let key = key_of(&object);
    match object.0 {
        Ok(object) => (key, view(object)),
        Err(error) => {
            warn!(namespace = %key.0, name = %key.1, %error, "object cannot be read, left out");
            (key, None)
        }
    }
}
