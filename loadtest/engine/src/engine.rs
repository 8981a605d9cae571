//! The engine: time, requests in, events out.

use std::time::Duration;

use crate::BLOCK_TOKENS;
use crate::blocks::Pool;
use crate::event::Event;
use crate::noise::Noise;
use crate::profile::Profile;
use crate::queue::Queue;
use crate::request::{FinishReason, Request, RequestId, SubmitError};
use crate::sequence::{Key, Phase, Sequence, Sequences};
use crate::settings::{Detail, Settings};
use crate::statistics::Statistics;
use crate::step::StepModel;
use crate::stretch::{Stretch, nanoseconds};

/// One engine.
///
/// Flow: [`Engine::submit`] requests as they come; call [`Engine::advance`] at [`Engine::next_event_at`] or at any other time;
/// act on the events. Every time is a distance from one origin that the caller chooses, and time never goes back: an earlier
/// `now` counts as the latest one.
///
/// Same calls with the same times, same events; how often `advance` is called in between changes nothing.
#[derive(Debug, Clone)]
pub struct Engine {
    pub(crate) model: StepModel,
    pub(crate) settings: Settings,
    arrival_delay: Duration,
    pub(crate) noise: Option<Noise>,
    pub(crate) sequences: Sequences,
    pub(crate) queue: Queue,
    /// In order of admission.
    pub(crate) running: Vec<Key>,
    pub(crate) pool: Pool,
    pub(crate) work: Work,
    /// Something changed that the next boundary has to look at.
    pub(crate) replan: bool,
    pub(crate) statistics: Statistics,
    draining: bool,
    now: Duration,
}

/// What the engine is busy with.
#[derive(Debug, Clone)]
pub(crate) enum Work {
    Idle,
    Mixed(Mixed),
    Decode(Stretch),
}

/// A step with prompt chunks.
#[derive(Debug, Clone)]
pub(crate) struct Mixed {
    pub(crate) end: Duration,
    pub(crate) batch: Vec<Scheduled>,
}

/// A sequence's share of a step.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scheduled {
    pub(crate) key: Key,
    pub(crate) tokens: u32,
}

/// How full an engine is, at the time it was last advanced to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Load {
    /// Requests in the batch.
    pub running: u32,
    /// Requests that wait for room, preempted ones included.
    pub waiting_for_capacity: u32,
    /// Of those, the ones whose KV has yet to be fetched.
    pub waiting_to_fetch: u32,
    /// Requests whose KV is on the way.
    pub fetching: u32,
    /// Requests whose KV has come and that join the next step.
    pub fetched: u32,
    /// Requests whose KV is kept for another engine.
    pub kept: u32,
    /// Blocks in use.
    pub used_blocks: u64,
    /// Blocks there are.
    pub total_blocks: u64,
}

impl Load {
    /// Share of the KV cache in use, `0..=1`.
    #[must_use]
    pub fn kv_usage(&self) -> f64 {
        if self.total_blocks == 0 {
            0.0
        } else {
            self.used_blocks as f64 / self.total_blocks as f64
        }
    }

    /// All requests that wait: for room or for KV.
    #[must_use]
    pub fn waiting(&self) -> u32 {
        self.waiting_for_capacity + self.fetching + self.fetched
    }
}

impl Engine {
    /// An idle engine at time 0.
    #[must_use]
    pub fn new(profile: &Profile, settings: Settings) -> Self {
        Self {
            model: StepModel::new(profile),
            arrival_delay: nanoseconds(profile.fixed_ttft_ms / 1000.0),
            noise: Noise::new(settings.noise, settings.seed),
            sequences: Sequences::default(),
            queue: Queue::default(),
            running: Vec::new(),
            pool: Pool::new(settings.kv_capacity_tokens),
            work: Work::Idle,
            replan: false,
            statistics: Statistics::new(settings.max_model_len),
            draining: false,
            now: Duration::ZERO,
            settings,
        }
    }

    /// Limits and switches.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The most tokens that prompt and output of a request may have together.
    #[must_use]
    pub fn context_limit(&self) -> u32 {
        let capacity = self.pool.total() * u64::from(BLOCK_TOKENS);
        self.settings
            .max_model_len
            .min(u32::try_from(capacity).unwrap_or(u32::MAX))
    }

    /// Takes a request that was read at `now`.
    ///
    /// # Errors
    /// The request can never run here, or the engine drains.
    pub fn submit(&mut self, now: Duration, request: Request) -> Result<RequestId, SubmitError> {
        if self.draining {
            return Err(SubmitError::Draining);
        }
        if request.prompt_tokens == 0 {
            return Err(SubmitError::Empty {
                field: "prompt_tokens",
            });
        }
        if request.output_tokens == 0 {
            return Err(SubmitError::Empty {
                field: "output_tokens",
            });
        }
        let limit = self.context_limit();
        if request.prompt_tokens.saturating_add(request.output_tokens) > limit {
            return Err(SubmitError::TooLong {
                prompt_tokens: request.prompt_tokens,
                output_tokens: request.output_tokens,
                limit,
            });
        }
        let submitted = now.max(self.now);
        let queued = submitted + self.arrival_delay;
        let id = self.sequences.insert(|id| Sequence {
            id,
            request,
            phase: Phase::Arriving,
            submitted,
            queued,
            admitted: None,
            first_token: None,
            last_token: submitted,
            computed: 0,
            generated: 0,
            blocks: 0,
            preemptions: 0,
            taken_from_cache: 0,
            taken_from_remote: 0,
        });
        self.queue.arriving.push_back((queued, id.index));
        Ok(id)
    }

    /// When the next event is due, if anything is to come without a call.
    #[must_use]
    pub fn next_event_at(&self) -> Option<Duration> {
        match &self.work {
            Work::Idle if self.replan => Some(self.now),
            Work::Idle => self.queue.next_trigger(),
            Work::Mixed(step) => Some(step.end),
            Work::Decode(stretch) => Some(match self.settings.detail {
                Detail::Tokens => stretch.end_of(stretch.done + 1),
                Detail::Milestones => stretch.end_of(self.stop_of(stretch)),
            }),
        }
    }

    /// Lets time pass until `now`; answers what happened, in order.
    pub fn advance(&mut self, now: Duration) -> Vec<Event> {
        let mut events = Vec::new();
        self.advance_into(now, &mut events);
        events
    }

    /// Like [`Engine::advance`], adding to a list that the caller keeps.
    pub fn advance_into(&mut self, now: Duration, events: &mut Vec<Event>) {
        let now = now.max(self.now);
        loop {
            match std::mem::replace(&mut self.work, Work::Idle) {
                Work::Idle => {
                    let due = if self.replan {
                        Some(self.now)
                    } else {
                        self.queue.next_trigger()
                    };
                    match due {
                        Some(at) if at <= now => self.schedule(at, events),
                        Some(_) | None => break,
                    }
                }
                Work::Mixed(step) if step.end <= now => {
                    self.complete_mixed(&step, events);
                    self.schedule(step.end, events);
                }
                Work::Mixed(step) => {
                    self.work = Work::Mixed(step);
                    break;
                }
                Work::Decode(mut stretch) => {
                    let stop = self.stop_of(&stretch);
                    let reached = stretch.steps_by(now).min(stop);
                    self.complete_steps(&mut stretch, reached, stop, events);
                    if reached < stop {
                        self.work = Work::Decode(stretch);
                        break;
                    }
                    let end = stretch.end_of(reached);
                    self.end_stretch(&mut stretch, events);
                    self.schedule(end, events);
                }
            }
        }
        self.now = now;
    }

    /// Forgets a request, wherever it is; false when it is not here any more. No event follows.
    ///
    /// Advance to `now` first: what was due by then would happen without the request.
    pub fn abort(&mut self, now: Duration, id: RequestId) -> bool {
        let Some(key) = self.sequences.key(id) else {
            return false;
        };
        match self.sequences[key].phase {
            Phase::Kept => return self.release(id),
            Phase::Running => self.leave_batch(key),
            Phase::Arriving | Phase::Waiting | Phase::Fetching | Phase::Fetched => {
                self.queue.remove(key)
            }
        }
        let sequence = self.sequences.remove(key);
        self.pool.give_back(sequence.blocks);
        self.statistics
            .finished(&sequence, FinishReason::Abort, now.max(self.now));
        self.replan = true;
        true
    }

    /// Frees the KV that a finished request kept; false when there is none.
    pub fn release(&mut self, id: RequestId) -> bool {
        let kept = self
            .sequences
            .key(id)
            .filter(|key| self.sequences[*key].phase == Phase::Kept);
        let Some(key) = kept else {
            return false;
        };
        self.queue.remove(key);
        let sequence = self.sequences.remove(key);
        self.pool.give_back(sequence.blocks);
        self.replan = true;
        true
    }

    /// Takes no new requests from now on; those that are here go on.
    pub fn drain(&mut self) {
        self.draining = true;
    }

    /// Whether [`Engine::drain`] was called.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.draining
    }

    /// Whether no request is here, kept KV aside.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sequences.len() == self.queue.kept.len()
    }

    /// How full the engine is.
    #[must_use]
    pub fn load(&self) -> Load {
        let to_take = match &self.work {
            Work::Idle | Work::Mixed(_) => 0,
            Work::Decode(stretch) => stretch.blocks_to_take(),
        };
        let to_fetch = |key: &&Key| self.sequences[**key].request.remote_tokens > 0;
        Load {
            running: count(self.running.len()),
            waiting_for_capacity: count(self.queue.waiting.len()),
            waiting_to_fetch: count(self.queue.waiting.iter().filter(to_fetch).count()),
            fetching: count(self.queue.fetching.len()),
            fetched: count(self.queue.fetched.len()),
            kept: count(self.queue.kept.len()),
            used_blocks: self.pool.used() + to_take,
            total_blocks: self.pool.total(),
        }
    }

    /// What the engine has done so far.
    #[must_use]
    pub fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    /// The step after which the stretch ends, as far as known now.
    fn stop_of(&self, stretch: &Stretch) -> u64 {
        if self.replan {
            return stretch.limit.min(stretch.done + 1);
        }
        stretch.stop_for(self.queue.next_trigger())
    }
}

fn count(items: usize) -> u32 {
    u32::try_from(items).unwrap_or(u32::MAX)
}
