//! One unit: an engine with its life.

use std::time::Duration;

use coppice_engine::{Engine, RequestId};

/// One unit, from creation to release.
#[derive(Debug)]
pub(crate) struct Unit {
    pub(crate) role: usize,
    pub(crate) created: Duration,
    /// When it was bound to GPUs.
    pub(crate) bound: Option<Duration>,
    /// How long its engine takes to load.
    pub(crate) load: Duration,
    /// When its engine first answered.
    pub(crate) ready: Option<Duration>,
    /// Since when it takes no new requests.
    pub(crate) leaving: Option<Duration>,
    pub(crate) gone: Option<Duration>,
    /// It did not leave, it died.
    pub(crate) died: bool,
    /// Requests that it has been given.
    pub(crate) given: u64,
    /// Requests that it has, kept KV counted.
    pub(crate) in_flight: u32,
    /// Prompt tokens of those that have no first token.
    pub(crate) prompt_tokens: u64,
    /// When its engine is to be woken next.
    pub(crate) wake: Option<Duration>,
    /// From its readiness until it is gone.
    pub(crate) engine: Option<Box<Engine>>,
    /// The request behind each of the engine's ids, by the id's index, which the engine gives to another request once it has forgotten the first.
    requests: Vec<Option<(RequestId, u32)>>,
}

impl Unit {
    pub(crate) fn new(role: usize, created: Duration, load: Duration) -> Self {
        Self {
            role,
            created,
            bound: None,
            load,
            ready: None,
            leaving: None,
            gone: None,
            died: false,
            given: 0,
            in_flight: 0,
            prompt_tokens: 0,
            wake: None,
            engine: None,
            requests: Vec::new(),
        }
    }

    pub(crate) fn holds_gpus(&self) -> bool {
        self.bound.is_some() && self.gone.is_none()
    }

    pub(crate) fn remember(&mut self, id: RequestId, request: u32) {
        let slot = id.index();
        if self.requests.len() <= slot {
            self.requests.resize(slot + 1, None);
        }
        self.requests[slot] = Some((id, request));
        self.given += 1;
        self.in_flight += 1;
    }

    /// The request behind an id; `None` when it has left.
    pub(crate) fn request(&self, id: RequestId) -> Option<u32> {
        let (known, request) = (*self.requests.get(id.index())?)?;
        (known == id).then_some(request)
    }

    /// The engine has forgotten the id.
    pub(crate) fn forget(&mut self, id: RequestId) {
        if let Some(slot) = self.requests.get_mut(id.index())
            && slot.is_some_and(|(known, _)| known == id)
        {
            *slot = None;
        }
    }

    /// The requests that it has.
    pub(crate) fn held(&self) -> Vec<u32> {
        let held = self.requests.iter().flatten();
        held.map(|(_, request)| *request).collect()
    }
}
