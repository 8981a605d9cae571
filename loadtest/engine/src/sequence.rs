//! A request inside the engine.

use std::ops::{Index, IndexMut};
use std::time::Duration;

use crate::request::{Request, RequestId};

/// Where a request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Between the socket and the scheduler.
    Arriving,
    /// In the queue.
    Waiting,
    /// Its blocks are reserved and its KV is on the way.
    Fetching,
    /// Its KV is here; it joins the next step.
    Fetched,
    /// In the batch.
    Running,
    /// Ended, its KV kept for another engine.
    Kept,
}

/// A request and how far it is.
#[derive(Debug, Clone)]
pub(crate) struct Sequence {
    pub(crate) id: RequestId,
    pub(crate) request: Request,
    pub(crate) phase: Phase,
    /// When the client's request was read.
    pub(crate) submitted: Duration,
    /// When it reached the scheduler.
    pub(crate) queued: Duration,
    /// When it first joined a batch.
    pub(crate) admitted: Option<Duration>,
    pub(crate) first_token: Option<Duration>,
    /// The end of the step that made its latest token.
    pub(crate) last_token: Duration,
    /// Tokens whose KV is here.
    pub(crate) computed: u32,
    /// Tokens made.
    pub(crate) generated: u32,
    /// Blocks it holds.
    pub(crate) blocks: u64,
    pub(crate) preemptions: u32,
    /// Prompt tokens that its latest admission found in the prefix cache.
    pub(crate) taken_from_cache: u32,
    /// Prompt tokens that came from another engine.
    pub(crate) taken_from_remote: u32,
}

impl Sequence {
    /// Prompt and everything made so far.
    pub(crate) fn total(&self) -> u32 {
        self.request.prompt_tokens + self.generated
    }

    /// Tokens to compute before the next one appears, `1..`. Just 1 is a decode step's work, whatever it belongs to.
    pub(crate) fn to_compute(&self) -> u32 {
        self.total() - self.computed
    }

    /// Tokens still to make.
    pub(crate) fn remaining(&self) -> u32 {
        self.request.output_tokens - self.generated
    }
}

/// Index of a living sequence.
pub(crate) type Key = u32;

/// The living sequences, addressed by a dense index; an index is reused, a [`RequestId`] is not.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sequences {
    slots: Vec<Slot>,
    free: Vec<Key>,
}

#[derive(Debug, Clone)]
struct Slot {
    generation: u32,
    sequence: Option<Sequence>,
}

impl Sequences {
    pub(crate) fn insert(&mut self, make: impl FnOnce(RequestId) -> Sequence) -> RequestId {
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                self.slots.push(Slot {
                    generation: 0,
                    sequence: None,
                });
                u32::try_from(self.slots.len() - 1).expect("fewer than 2^32 requests live at once")
            }
        };
        let slot = &mut self.slots[index as usize];
        let id = RequestId {
            index,
            generation: slot.generation,
        };
        slot.sequence = Some(make(id));
        id
    }

    /// The key of a request that is still here.
    pub(crate) fn key(&self, id: RequestId) -> Option<Key> {
        let slot = self.slots.get(id.index())?;
        (slot.generation == id.generation && slot.sequence.is_some()).then_some(id.index)
    }

    pub(crate) fn remove(&mut self, key: Key) -> Sequence {
        let slot = &mut self.slots[key as usize];
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(key);
        slot.sequence.take().expect(LIVING)
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

const LIVING: &str = "the engine keeps keys of living sequences only";

impl Index<Key> for Sequences {
    type Output = Sequence;

    fn index(&self, key: Key) -> &Sequence {
        self.slots[key as usize].sequence.as_ref().expect(LIVING)
    }
}

impl IndexMut<Key> for Sequences {
    fn index_mut(&mut self, key: Key) -> &mut Sequence {
        self.slots[key as usize].sequence.as_mut().expect(LIVING)
    }
}
