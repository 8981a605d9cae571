//! The engines that can be used, and how busy we keep them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::drive::target::BaseUrl;

/// How long an engine that could not be reached is passed over while there are others.
const SUSPECT_FOR: Duration = Duration::from_secs(5);

/// One engine.
#[derive(Debug)]
pub(crate) struct Backend {
    /// Name for logs and answers: the pod's, or its address.
    pub(crate) name: String,
    /// Where it listens.
    pub(crate) url: BaseUrl,
    requests: AtomicU32,
    prompt_tokens: AtomicU64,
    suspect_until: Mutex<Option<Instant>>,
}

/// What "least loaded" counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Weigh {
    /// Requests in flight.
    Requests,
    /// Prompt tokens in flight: prompts differ a thousandfold, and prefill is all about them.
    PromptTokens,
}

/// Engines of one model and role.
#[derive(Debug)]
pub(crate) struct Pool {
    weigh: Weigh,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    backends: Vec<Arc<Backend>>,
    /// Where the search starts, so that equals take turns.
    turn: usize,
}

/// A request's place on an engine, given back when dropped.
#[derive(Debug)]
pub(crate) struct Place {
    backend: Arc<Backend>,
    prompt_tokens: u32,
}

impl Pool {
    pub(crate) fn new(weigh: Weigh) -> Self {
        Self {
            weigh,
            inner: Mutex::default(),
        }
    }

    /// Sets the engines to these, by name. One that stays keeps its counts; requests on one that goes are not touched.
    pub(crate) fn set(&self, wanted: &BTreeMap<String, BaseUrl>) {
        let mut inner = self.inner.lock();
        inner
            .backends
            .retain(|backend| wanted.get(&backend.name) == Some(&backend.url));
        for (name, url) in wanted {
            if !inner.backends.iter().any(|backend| backend.name == *name) {
                inner
                    .backends
                    .push(Arc::new(Backend::new(name.clone(), url.clone())));
            }
        }
    }

    /// Whether there is an engine.
    pub(crate) fn is_empty(&self) -> bool {
        self.inner.lock().backends.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.inner.lock().backends.len()
    }

    /// Takes a place on the least loaded engine, those in `avoid` and suspect ones only when there is no other.
    pub(crate) fn take(&self, prompt_tokens: u32, avoid: &[Arc<Backend>]) -> Option<Place> {
        let mut inner = self.inner.lock();
        let count = inner.backends.len();
        if count == 0 {
            return None;
        }
        inner.turn = (inner.turn + 1) % count;
        let now = Instant::now();
        let cost = |backend: &Arc<Backend>| {
            let avoided = avoid.iter().any(|other| Arc::ptr_eq(other, backend));
            let load = match self.weigh {
                Weigh::Requests => u64::from(backend.requests.load(Ordering::Relaxed)),
                Weigh::PromptTokens => backend.prompt_tokens.load(Ordering::Relaxed),
            };
            (avoided || backend.is_suspect(now), load)
        };
        let turn = inner.turn;
        let backend = (0..count)
            .map(|offset| &inner.backends[(turn + offset) % count])
            .min_by_key(|backend| cost(backend))?;
        Some(Place::on(backend, prompt_tokens))
    }
}

impl Backend {
    fn new(name: String, url: BaseUrl) -> Self {
        Self {
            name,
            url,
            requests: AtomicU32::new(0),
            prompt_tokens: AtomicU64::new(0),
            suspect_until: Mutex::new(None),
        }
    }

    /// Passes the engine over for a while.
    pub(crate) fn suspect(&self) {
        *self.suspect_until.lock() = Some(Instant::now() + SUSPECT_FOR);
    }

    fn is_suspect(&self, now: Instant) -> bool {
        self.suspect_until.lock().is_some_and(|until| now < until)
    }
}

impl Place {
    fn on(backend: &Arc<Backend>, prompt_tokens: u32) -> Self {
        backend.requests.fetch_add(1, Ordering::Relaxed);
        backend
            .prompt_tokens
            .fetch_add(prompt_tokens.into(), Ordering::Relaxed);
        Self {
            backend: Arc::clone(backend),
            prompt_tokens,
        }
    }

    pub(crate) fn backend(&self) -> &Arc<Backend> {
        &self.backend
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.backend.requests.fetch_sub(1, Ordering::Relaxed);
        self.backend
            .prompt_tokens
            .fetch_sub(self.prompt_tokens.into(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(weigh: Weigh, names: &[&str]) -> Pool {
        let pool = Pool::new(weigh);
        pool.set(&wanted(names));
        pool
    }

    fn wanted(names: &[&str]) -> BTreeMap<String, BaseUrl> {
        names
            .iter()
            .map(|name| {
                (
                    (*name).to_owned(),
                    format!("http://{name}:8000").parse().unwrap(),
                )
            })
            .collect()
    }

    fn name(place: &Place) -> &str {
        &place.backend.name
    }

    #[test]
    fn requests_spread_evenly_and_come_back() {
        let pool = pool(Weigh::Requests, &["a", "b", "c"]);
        let places: Vec<_> = (0..9).map(|_| pool.take(1, &[]).unwrap()).collect();
        for backend in ["a", "b", "c"] {
            assert_eq!(
                places.iter().filter(|place| name(place) == backend).count(),
                3
            );
        }
        let mut places = places;
        places.retain(|place| name(place) != "b");
        let next: Vec<_> = (0..3).map(|_| pool.take(1, &[]).unwrap()).collect();
        assert!(next.iter().all(|place| name(place) == "b"));
    }

    #[test]
    fn prompts_are_weighed_where_they_are_the_work() {
        let pool = pool(Weigh::PromptTokens, &["a", "b"]);
        let long = pool.take(10_000, &[]).unwrap();
        let short: Vec<_> = (0..5).map(|_| pool.take(100, &[]).unwrap()).collect();
        assert!(short.iter().all(|place| name(place) != name(&long)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_suspect_is_the_last_choice_until_its_time_is_over() {
        let pool = pool(Weigh::Requests, &["a", "b"]);
        let first = pool.take(1, &[]).unwrap();
        let suspect = Arc::clone(first.backend());
        suspect.suspect();
        drop(first);
        let places: Vec<_> = (0..4).map(|_| pool.take(1, &[]).unwrap()).collect();
        assert!(
            places
                .iter()
                .all(|place| !Arc::ptr_eq(place.backend(), &suspect))
        );
        tokio::time::advance(SUSPECT_FOR).await;
        assert!(Arc::ptr_eq(pool.take(1, &[]).unwrap().backend(), &suspect));
    }

    #[test]
    fn engines_that_stay_keep_their_counts() {
        let pool = pool(Weigh::Requests, &["a"]);
        let on_a = pool.take(1, &[]).unwrap();
        pool.set(&wanted(&["a", "b"]));
        assert_eq!(name(&pool.take(1, &[]).unwrap()), "b");
        pool.set(&wanted(&["b"]));
        assert_eq!(pool.len(), 1);
        drop(on_a);
        pool.set(&BTreeMap::new());
        assert!(pool.is_empty() && pool.take(1, &[]).is_none());
    }

    #[test]
    fn an_avoided_engine_is_better_than_none() {
        let pool = pool(Weigh::Requests, &["a"]);
        let only = Arc::clone(pool.take(1, &[]).unwrap().backend());
        assert!(pool.take(1, &[only]).is_some());
    }
}
