//! What goes into the next step.

use std::time::Duration;

use crate::BLOCK_TOKENS;
use crate::blocks::{Growth, blocks_of};
use crate::engine::{Engine, Mixed, Scheduled, Work};
use crate::event::{Event, EventKind};
use crate::noise::Noise;
use crate::sequence::{Key, Phase, Sequence};
use crate::step::{Chunk, Progression};
use crate::stretch::{Gaps, Stretch, nanoseconds};

/// A step being put together.
struct Draft {
    at: Duration,
    budget: u32,
    batch: Vec<Scheduled>,
    chunks: Vec<Chunk>,
    decoding: u32,
    kv_tokens: u64,
    gaps: Gaps,
    /// Steps until the first member has made all its tokens, or, where it has none yet, its first one.
    shortest: u32,
    growth: Growth,
    preempted: bool,
}

impl Draft {
    fn new(at: Duration, budget: u32, capacity: usize) -> Self {
        Self {
            at,
            budget,
            batch: Vec::with_capacity(capacity),
            chunks: Vec::new(),
            decoding: 0,
            kv_tokens: 0,
            gaps: Gaps::default(),
            shortest: u32::MAX,
            growth: Growth::default(),
            preempted: false,
        }
    }

    fn add(&mut self, key: Key, sequence: &Sequence, tokens: u32) {
        self.budget -= tokens;
        self.batch.push(Scheduled { key, tokens });
        if sequence.to_compute() > 1 {
            self.chunks.push(Chunk {
                tokens,
                behind: sequence.computed,
            });
            return;
        }
        let total = sequence.total();
        self.decoding += 1;
        self.kv_tokens += u64::from(total);
        self.gaps.add(sequence, self.at);
        self.shortest = self.shortest.min(if sequence.generated == 0 {
            1
        } else {
            sequence.remaining()
        });
        self.growth.add(total);
    }
}

impl Engine {
    /// Decides at a step boundary what runs next.
    pub(crate) fn schedule(&mut self, at: Duration, events: &mut Vec<Event>) {
        self.replan = false;
        self.take_what_is_due(at, events);
        let budget = self.settings.max_num_batched_tokens;
        let mut draft = Draft::new(at, budget, self.running.len() + 1);
        self.serve_running(&mut draft, events);
        // Where a lone sequence threw itself out, the step would be empty: it is the next one that admits.
        if !draft.preempted || draft.batch.is_empty() {
            self.admit(&mut draft);
        }
        self.work = self.begin(draft);
    }

    fn take_what_is_due(&mut self, at: Duration, events: &mut Vec<Event>) {
        for (when, key) in self.queue.move_due(at) {
            let sequence = &mut self.sequences[key];
            sequence.phase = Phase::Fetched;
            events.push(Event {
                at: when,
                request: sequence.id,
                kind: EventKind::Fetched,
            });
        }
        while let Some((when, key)) = self.queue.pop_expired(at) {
            let sequence = self.sequences.remove(key);
            self.pool.give_back(sequence.blocks);
            self.statistics.kv_expired += 1;
            events.push(Event {
                at: when,
                request: sequence.id,
                kind: EventKind::Expired,
            });
        }
    }

    /// Gives the running sequences their tokens in order of admission; where blocks are short, the last ones make room.
    fn serve_running(&mut self, draft: &mut Draft, events: &mut Vec<Event>) {
        let mut index = 0;
        while index < self.running.len() && draft.budget > 0 {
            let key = self.running[index];
            let tokens = self.sequences[key].to_compute().min(draft.budget);
            while !self.extend(key, tokens) {
                let victim = self
                    .running
                    .pop()
                    .expect("the sequence that asks is running");
                self.preempt(victim, draft.at, events);
                draft.preempted = true;
                if victim == key {
                    return;
                }
            }
            draft.add(key, &self.sequences[key], tokens);
            index += 1;
        }
    }

    /// Takes the blocks that `tokens` more tokens of a sequence need.
    fn extend(&mut self, key: Key, tokens: u32) -> bool {
        let sequence = &mut self.sequences[key];
        let needed = blocks_of(sequence.computed + tokens).max(sequence.blocks);
        let fits = self.pool.take(needed - sequence.blocks);
        if fits {
            sequence.blocks = needed;
        }
        fits
    }

    fn preempt(&mut self, key: Key, at: Duration, events: &mut Vec<Event>) {
        let sequence = &mut self.sequences[key];
        self.pool.give_back(sequence.blocks);
        sequence.blocks = 0;
        sequence.computed = 0;
        sequence.preemptions += 1;
        sequence.phase = Phase::Waiting;
        // What came from elsewhere is not fetched again: the prompt is computed here.
        sequence.request.remote_tokens = 0;
        self.statistics.preemptions += 1;
        self.queue.waiting.push_front(key);
        events.push(Event {
            at,
            request: sequence.id,
            kind: EventKind::Preempted,
        });
    }

    /// Admits in order of arrival, those whose KV has come first, until budget, sequences or blocks run out.
    fn admit(&mut self, draft: &mut Draft) {
        while draft.budget > 0 && self.running.len() < self.settings.max_num_seqs as usize {
            let fetched = self.queue.fetched.front().copied();
            let Some(key) = fetched.or_else(|| self.queue.waiting.front().copied()) else {
                return;
            };
            if fetched.is_none() && self.sequences[key].request.remote_tokens > 0 {
                if !self.start_fetching(key, draft.at) {
                    return;
                }
                continue;
            }
            if fetched.is_none() {
                self.look_up_prefix(key);
            }
            let whole = self.sequences[key].to_compute();
            let tokens = whole.min(draft.budget);
            let room = blocks_of(self.sequences[key].total());
            let refused = self.settings.reserve_full_prompt
                && room.saturating_sub(self.sequences[key].blocks) > self.pool.free();
            if refused || !self.extend(key, tokens) {
                if fetched.is_none() {
                    self.sequences[key].computed = 0;
                }
                return;
            }
            if fetched.is_some() {
                self.queue.fetched.pop_front();
            } else {
                self.queue.waiting.pop_front();
            }
            self.join(key, draft.at);
            draft.add(key, &self.sequences[key], tokens);
        }
    }

    fn join(&mut self, key: Key, at: Duration) {
        let sequence = &mut self.sequences[key];
        sequence.phase = Phase::Running;
        if sequence.admitted.is_none() {
            sequence.admitted = Some(at);
            let prompt = u64::from(sequence.request.prompt_tokens);
            self.statistics.prefix_cache_queries += prompt;
            self.statistics.prefix_cache_hits += u64::from(sequence.taken_from_cache);
        }
        self.running.push(key);
    }

    /// Skips what the prefix cache holds: whole blocks, and never the whole prompt.
    fn look_up_prefix(&mut self, key: Key) {
        let sequence = &mut self.sequences[key];
        let most = sequence.request.prompt_tokens - 1;
        let cached = sequence.request.cached_tokens.min(most);
        sequence.computed = cached - cached % BLOCK_TOKENS;
        if sequence.first_token.is_none() {
            sequence.taken_from_cache = sequence.computed;
            sequence.taken_from_remote = 0;
        }
    }

    /// Reserves blocks for the prompt at the queue's head and begins to fetch its KV.
    fn start_fetching(&mut self, key: Key, at: Duration) -> bool {
        self.look_up_prefix(key);
        let sequence = &mut self.sequences[key];
        let blocks = blocks_of(sequence.request.prompt_tokens);
        if !self.pool.take(blocks) {
            sequence.computed = 0;
            return false;
        }
        let cached = sequence.computed;
        let prompt = sequence.request.prompt_tokens;
        let asked = sequence
            .request
            .remote_tokens
            .min(prompt)
            .saturating_sub(cached);
        sequence.blocks = blocks;
        sequence.computed = (cached + asked).min(prompt - 1);
        sequence.taken_from_remote = sequence.computed - cached;
        sequence.phase = Phase::Fetching;
        let takes = self.settings.transfer.time(asked);
        let bytes = self.settings.transfer.bytes_per_token as f64 * f64::from(asked);
        self.statistics.transfer_time.observe(takes.as_secs_f64());
        self.statistics.transfer_bytes.observe(bytes);
        self.statistics.external_cache_queries += u64::from(prompt);
        self.statistics.external_cache_hits += u64::from(asked);
        self.queue.waiting.pop_front();
        self.queue.fetching.push((at + takes, key));
        true
    }

    /// Starts the drafted step: a stretch when no prompt chunk is in it.
    fn begin(&mut self, draft: Draft) -> Work {
        let Draft {
            at,
            batch,
            chunks,
            decoding,
            kv_tokens,
            gaps,
            shortest,
            growth,
            ..
        } = draft;
        if batch.is_empty() {
            return Work::Idle;
        }
        let factor = self.noise.as_mut().map(Noise::factor);
        if !chunks.is_empty() {
            let seconds = self.model.mixed(decoding, kv_tokens, &chunks) * factor.unwrap_or(1.0);
            return Work::Mixed(Mixed {
                end: at + nanoseconds(seconds),
                batch,
            });
        }
        let mut progression = self.model.decode(decoding, kv_tokens);
        if let Some(factor) = factor {
            progression = Progression {
                first: progression.first * factor,
                increment: 0.0,
            };
        }
        // After a step that admitted nobody because it threw one out, admission is tried again.
        let until_change = if factor.is_some() || draft.preempted {
            1
        } else {
            u64::from(shortest)
        };
        let limit = growth.last_step_within(self.pool.free(), until_change);
        Work::Decode(Stretch::new(at, progression, gaps, limit, growth))
    }
}
