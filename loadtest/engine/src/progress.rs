//! Ends of steps: tokens appear, sequences finish.

use std::time::Duration;

use crate::blocks::blocks_of;
use crate::engine::{Engine, Mixed, Scheduled, Work};
use crate::event::{Event, EventKind};
use crate::sequence::{Key, Phase};
use crate::settings::Detail;
use crate::stretch::Stretch;

impl Engine {
    /// Takes a sequence out of the step in progress, which goes on without it.
    pub(crate) fn leave_batch(&mut self, key: Key) {
        let mut work = std::mem::replace(&mut self.work, Work::Idle);
        match &mut work {
            Work::Idle => {}
            Work::Mixed(step) => step.batch.retain(|scheduled| scheduled.key != key),
            Work::Decode(stretch) => {
                self.settle(stretch, 1);
                let position = self.running.iter().position(|other| *other == key);
                if position.is_some_and(|position| position < stretch.members()) {
                    let start = stretch.start();
                    stretch
                        .gaps
                        .remove(&self.sequences[key], start, stretch.done);
                }
                stretch.end_with_this_step();
            }
        }
        self.running.retain(|other| *other != key);
        self.work = work;
    }

    pub(crate) fn complete_mixed(&mut self, step: &Mixed, events: &mut Vec<Event>) {
        let at = step.end;
        let mut tokens_of_step = 0_u64;
        let mut ended = false;
        for Scheduled { key, tokens } in &step.batch {
            let sequence = &mut self.sequences[*key];
            let decoding = sequence.to_compute() == 1 && sequence.generated > 0;
            sequence.computed += tokens;
            if !decoding {
                tokens_of_step += u64::from(*tokens);
            }
            if sequence.computed < sequence.total() {
                continue;
            }
            tokens_of_step += 1;
            if sequence.generated > 0 {
                let gap = (at - sequence.last_token).as_secs_f64();
                self.statistics.inter_token_latency.observe(gap);
            }
            self.statistics.generation_tokens += 1;
            sequence.generated += 1;
            ended |= sequence.remaining() == 0;
            self.report_token(*key, at, events);
        }
        self.statistics.step_tokens.observe(tokens_of_step as f64);
        if ended {
            self.finish_ended(at, events);
        }
    }

    /// Notes the token that was just counted.
    fn report_token(&mut self, key: Key, at: Duration, events: &mut Vec<Event>) {
        let sequence = &mut self.sequences[key];
        sequence.last_token = at;
        let kind = if sequence.first_token.is_none() {
            sequence.first_token = Some(at);
            self.statistics.first_token(sequence, at);
            EventKind::FirstToken
        } else {
            EventKind::Token
        };
        if kind == EventKind::FirstToken || self.settings.detail == Detail::Tokens {
            events.push(Event {
                at,
                request: sequence.id,
                kind,
            });
        }
    }

    /// Counts the steps of a stretch up to `reached`, and reports their tokens where every token is asked for.
    ///
    /// Step `stop`, the last one, is reported by [`Engine::end_stretch`]: it may bring first tokens.
    pub(crate) fn complete_steps(
        &mut self,
        stretch: &mut Stretch,
        reached: u64,
        stop: u64,
        events: &mut Vec<Event>,
    ) {
        if reached <= stretch.done {
            return;
        }
        let from = stretch.done + 1;
        let members = stretch.members() as u64;
        let progression = stretch.progression();
        let statistics = &mut self.statistics;
        statistics.generation_tokens += members * (reached - stretch.done);
        if from == 1 {
            for last_token in &stretch.gaps.late {
                let gap = stretch.end_of(1) - *last_token;
                statistics.inter_token_latency.observe(gap.as_secs_f64());
            }
            statistics
                .inter_token_latency
                .observe_times(progression.first, stretch.gaps.regular as u64);
            statistics
                .step_tokens
                .observe((members + stretch.gaps.first as u64) as f64);
        }
        let further = from.max(2);
        if further <= reached {
            let steps = reached - further + 1;
            let first = progression.step(further);
            statistics.inter_token_latency.observe_progression(
                first,
                progression.increment,
                steps,
                members,
            );
            statistics.step_tokens.observe_times(members as f64, steps);
        }
        if self.settings.detail == Detail::Tokens {
            for step in from..=reached.min(stop - 1) {
                let at = stretch.end_of(step);
                for key in &self.running[..stretch.members()] {
                    let request = self.sequences[*key].id;
                    events.push(Event {
                        at,
                        request,
                        kind: EventKind::Token,
                    });
                }
            }
        }
        stretch.done = reached;
    }

    /// Brings the members up to the steps done, with the blocks they need `ahead` steps on.
    fn settle(&mut self, stretch: &mut Stretch, ahead: u32) {
        let steps = u32::try_from(stretch.done - stretch.settled)
            .expect("a stretch ends with its shortest sequence");
        let at = stretch.end_of(stretch.done);
        let mut taken = 0;
        for key in &self.running[..stretch.members()] {
            let sequence = &mut self.sequences[*key];
            sequence.computed += steps;
            sequence.generated += steps;
            if steps > 0 {
                sequence.last_token = at;
            }
            let blocks = blocks_of(sequence.computed + ahead).max(sequence.blocks);
            taken += blocks - sequence.blocks;
            sequence.blocks = blocks;
        }
        let fits = self.pool.take(taken);
        debug_assert!(fits, "a stretch ends before its blocks do");
        stretch.took(taken);
        stretch.settled = stretch.done;
    }

    pub(crate) fn end_stretch(&mut self, stretch: &mut Stretch, events: &mut Vec<Event>) {
        self.settle(stretch, 0);
        let at = stretch.end_of(stretch.done);
        // Only a stretch of one step brings first tokens.
        if self.settings.detail == Detail::Tokens || stretch.gaps.first > 0 {
            for index in 0..stretch.members() {
                self.report_token(self.running[index], at, events);
            }
        }
        if self.running[..stretch.members()]
            .iter()
            .any(|key| self.sequences[*key].remaining() == 0)
        {
            self.finish_ended(at, events);
        }
    }

    /// Takes the sequences that have made all their tokens out of the batch.
    fn finish_ended(&mut self, at: Duration, events: &mut Vec<Event>) {
        let mut running = std::mem::take(&mut self.running);
        running.retain(|key| {
            if self.sequences[*key].remaining() > 0 {
                return true;
            }
            self.finish(*key, at, events);
            false
        });
        self.running = running;
    }

    fn finish(&mut self, key: Key, at: Duration, events: &mut Vec<Event>) {
        let sequence = &mut self.sequences[key];
        let reason = sequence.request.ends_with;
        self.statistics.finished(sequence, reason, at);
        events.push(Event {
            at,
            request: sequence.id,
            kind: EventKind::Finished(reason),
        });
        if sequence.request.keeps_kv {
            sequence.phase = Phase::Kept;
            self.queue
                .kept
                .push_back((at + self.settings.kept_kv_expires_after, key));
        } else {
            let sequence = self.sequences.remove(key);
            self.pool.give_back(sequence.blocks);
        }
    }
}
