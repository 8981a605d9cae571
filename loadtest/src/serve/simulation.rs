//! The step model in real time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use coppice_engine::{Engine, EventKind, Request, RequestId, SubmitError};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::arguments::EngineConfig;
use super::handover::{KvSource, Neighbours};
use super::outbox::Outbox;

/// An engine whose time is the clock's.
///
/// Requests come from any task; [`Simulation::run`], on one task, wakes at the end of each step and hands out its tokens.
#[derive(Debug)]
pub(crate) struct Simulation {
    origin: Instant,
    inner: Mutex<Inner>,
    /// The time of the next event has moved forward.
    sooner: Notify,
    /// The last request has ended.
    emptied: Notify,
    neighbours: Neighbours,
    /// Prefill engines that could not be told that their KV was fetched.
    failed_notifications: Arc<AtomicU64>,
}

#[derive(Debug)]
struct Inner {
    engine: Engine,
    /// Readers of living requests, by [`RequestId::index`].
    readers: Vec<Option<Reader>>,
    /// Readers that have something to be told.
    touched: Vec<usize>,
    events: Vec<coppice_engine::Event>,
    /// Finished requests whose KV is kept, by the name their answer carried.
    kept: BTreeMap<String, RequestId>,
    /// When the task wakes by itself.
    wakes_at: Option<Duration>,
}

#[derive(Debug)]
struct Reader {
    outbox: Arc<Outbox>,
    /// Name under which its KV can be released.
    kept_as: Option<String>,
    source: Option<KvSource>,
    /// Tokens it has not been told of.
    tokens: u32,
}

/// A request on its way; dropping it before its end aborts it.
#[derive(Debug)]
pub(crate) struct Ticket {
    simulation: Arc<Simulation>,
    id: RequestId,
    pub(crate) outbox: Arc<Outbox>,
    ended: bool,
}

/// What a request is, beyond its lengths.
#[derive(Debug, Default)]
pub(crate) struct Handover {
    /// Name under which a decode engine will ask for the KV.
    pub(crate) keep_as: Option<String>,
    /// Where the KV comes from.
    pub(crate) source: Option<KvSource>,
}

impl Simulation {
    pub(crate) fn new(config: &EngineConfig, neighbours: Neighbours) -> Arc<Self> {
        Arc::new(Self {
            origin: Instant::now(),
            inner: Mutex::new(Inner {
                engine: Engine::new(&config.profile, config.settings.clone()),
                readers: Vec::new(),
                touched: Vec::new(),
                events: Vec::new(),
                kept: BTreeMap::new(),
                wakes_at: None,
            }),
            sooner: Notify::new(),
            emptied: Notify::new(),
            neighbours,
            failed_notifications: Arc::default(),
        })
    }

    /// Takes a request.
    pub(crate) fn submit(
        self: &Arc<Self>,
        request: Request,
        handover: Handover,
    ) -> Result<Ticket, SubmitError> {
        let mut inner = self.caught_up();
        let id = inner.engine.submit(self.origin.elapsed(), request)?;
        let outbox = Arc::new(Outbox::default());
        if inner.readers.len() <= id.index() {
            inner.readers.resize_with(id.index() + 1, || None);
        }
        inner.readers[id.index()] = Some(Reader {
            outbox: Arc::clone(&outbox),
            kept_as: handover.keep_as,
            source: handover.source,
            tokens: 0,
        });
        self.wake_if_sooner(&inner);
        Ok(Ticket {
            simulation: Arc::clone(self),
            id,
            outbox,
            ended: false,
        })
    }

    /// Forgets the KV kept under a name; false when there is none.
    pub(crate) fn release(&self, name: &str) -> bool {
        let mut inner = self.caught_up();
        let Some(id) = inner.kept.remove(name) else {
            return false;
        };
        let released = inner.engine.release(id);
        self.announce_if_empty(&inner);
        self.wake_if_sooner(&inner);
        released
    }

    /// Refuses new requests from now on.
    pub(crate) fn drain(&self) {
        self.inner.lock().engine.drain();
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.inner.lock().engine.is_draining()
    }

    /// Until no request is here and no KV waits to be fetched.
    pub(crate) async fn empty(&self) {
        loop {
            let emptied = self.emptied.notified();
            if is_idle(&self.caught_up().engine) {
                return;
            }
            emptied.await;
        }
    }

    /// Looks at the engine as it is now.
    pub(crate) fn look<T>(&self, look: impl FnOnce(&Engine) -> T) -> T {
        look(&self.caught_up().engine)
    }

    /// Prefill engines that could not be told that their KV was fetched.
    pub(crate) fn failed_notifications(&self) -> u64 {
        self.failed_notifications.load(Ordering::Relaxed)
    }

    /// Hands out tokens as their steps end; never returns.
    pub(crate) async fn run(self: Arc<Self>) {
        loop {
            let sooner = self.sooner.notified();
            let next = {
                let mut inner = self.caught_up();
                inner.wakes_at = inner.engine.next_event_at();
                inner.wakes_at
            };
            match next {
                None => sooner.await,
                Some(at) => tokio::select! {
                    () = tokio::time::sleep_until(self.origin + at) => {}
                    () = sooner => {}
                },
            }
        }
    }

    /// The engine, advanced to now, with everything that happened handed out.
    fn caught_up(&self) -> MutexGuard<'_, Inner> {
        let mut inner = self.inner.lock();
        let mut events = std::mem::take(&mut inner.events);
        inner
            .engine
            .advance_into(self.origin.elapsed(), &mut events);
        for event in events.drain(..) {
            if let Some(source) = inner.note(event) {
                self.release_at(source);
            }
        }
        inner.events = events;
        inner.tell_readers();
        self.announce_if_empty(&inner);
        inner
    }

    fn announce_if_empty(&self, inner: &Inner) {
        if inner.engine.is_draining() && is_idle(&inner.engine) {
            self.emptied.notify_waiters();
        }
    }

    fn wake_if_sooner(&self, inner: &Inner) {
        let next = inner.engine.next_event_at();
        if next.is_some_and(|next| inner.wakes_at.is_none_or(|planned| next < planned)) {
            self.sooner.notify_one();
        }
    }

    fn abort(&self, id: RequestId) {
        let mut inner = self.caught_up();
        let now = self.origin.elapsed();
        let reader = inner.readers.get_mut(id.index()).and_then(Option::take);
        inner.engine.abort(now, id);
        self.announce_if_empty(&inner);
        self.wake_if_sooner(&inner);
        drop(inner);
        if let Some(source) = reader.and_then(|reader| reader.source) {
            self.release_at(source);
        }
    }

    fn release_at(&self, source: KvSource) {
        self.neighbours.release(source, &self.failed_notifications);
    }
}

fn is_idle(engine: &Engine) -> bool {
    engine.is_empty() && engine.load().kept == 0
}

impl Inner {
    /// Notes an event; answers where KV that has just been fetched came from.
    fn note(&mut self, event: coppice_engine::Event) -> Option<KvSource> {
        let index = event.request.index();
        match event.kind {
            EventKind::FirstToken | EventKind::Token => {
                if let Some(reader) = &mut self.readers[index] {
                    if reader.tokens == 0 {
                        self.touched.push(index);
                    }
                    reader.tokens += 1;
                }
            }
            EventKind::Finished(reason) => {
                // Told at once, last token and end together: the index may belong to another request soon.
                if let Some(reader) = self.readers[index].take() {
                    reader.outbox.add(reader.tokens, Some(reason));
                    if let Some(name) = reader.kept_as {
                        self.kept.insert(name, event.request);
                    }
                }
            }
            EventKind::Fetched => {
                return self.readers[index]
                    .as_mut()
                    .and_then(|reader| reader.source.take());
            }
            EventKind::Expired => self.kept.retain(|_, id| *id != event.request),
            EventKind::Preempted => {}
        }
        None
    }

    fn tell_readers(&mut self) {
        for index in self.touched.drain(..) {
            if let Some(reader) = self.readers[index]
                .as_mut()
                .filter(|reader| reader.tokens > 0)
            {
                reader.outbox.add(std::mem::take(&mut reader.tokens), None);
            }
        }
    }
}

impl Ticket {
    /// The request has ended by itself: dropping the ticket aborts nothing.
    pub(crate) fn ended(&mut self) {
        self.ended = true;
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.ended {
            self.simulation.abort(self.id);
        }
    }
}
