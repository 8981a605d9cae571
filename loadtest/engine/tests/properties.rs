//! What holds for every run, and an independent engine that walks every step.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    reason = "helpers of tests fail by panicking"
)]

mod common;

use std::time::Duration;

use common::{Arrival, profile, replay_with_events, seconds};
use coppice_engine::{
    Chunk, Detail, Engine, EventKind, FinishReason, Profile, Request, Settings, StepModel, Transfer,
};
use proptest::prelude::*;

#[derive(Debug, Clone)]
struct Run {
    settings: Settings,
    arrivals: Vec<Arrival>,
    looks: Vec<Duration>,
}

fn model() -> Profile {
    profile(7.0, 0.13, 1.7e-3, 0.021)
}

prop_compose! {
    /// Small KV caches, so that preemption, waiting and refusal to admit all happen.
    fn runs()(
        max_num_seqs in 1..12_u32,
        budget in 16..200_u32,
        blocks in 12..60_u64,
        reserve_full_prompt in any::<bool>(),
        requests in prop::collection::vec((0..3_000_000_u64, 1..150_u32, 1..40_u32, 0..100_u32, 0..4_u32), 1..40),
        looks in prop::collection::vec(0..6_000_000_u64, 0..60),
    ) -> Run {
        let mut at = Duration::ZERO;
        let arrivals = requests.into_iter().map(|(gap, prompt, output, cached, kind)| {
            at += Duration::from_micros(gap / 20);
            let request = Request {
                cached_tokens: if kind == 1 { cached } else { 0 },
                remote_tokens: if kind == 2 { prompt } else { 0 },
                ..Request::new(prompt, output)
            };
            Arrival { at, request }
        }).collect();
        let mut looks: Vec<_> = looks.into_iter().map(Duration::from_micros).collect();
        looks.sort();
        let settings = Settings {
            max_num_seqs,
            max_num_batched_tokens: budget,
            kv_capacity_tokens: blocks * 16,
            reserve_full_prompt,
            transfer: Transfer {
                set_up: Duration::from_millis(3),
                bytes_per_token: 1000,
                bytes_per_second: 2e6,
            },
            ..Settings::of(&model())
        };
        Run { settings, arrivals, looks }
    }
}

fn engine(run: &Run, detail: Detail) -> Engine {
    Engine::new(
        &model(),
        Settings {
            detail,
            ..run.settings.clone()
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn jumping_equals_stepping(run in runs()) {
        let mut jumping = engine(&run, Detail::Milestones);
        let (jumped, milestones) = replay_with_events(&mut jumping, &run.arrivals, &[]);
        let mut stepping = engine(&run, Detail::Tokens);
        let (stepped, tokens) = replay_with_events(&mut stepping, &run.arrivals, &run.looks);
        prop_assert_eq!(&jumped, &stepped);
        let without_tokens: Vec<_> = tokens.iter().filter(|event| event.kind != EventKind::Token).copied().collect();
        prop_assert_eq!(milestones, without_tokens);

        let (left, right) = (jumping.statistics(), stepping.statistics());
        prop_assert_eq!(left.generation_tokens, right.generation_tokens);
        prop_assert_eq!(left.preemptions, right.preemptions);
        for (left, right) in [
            (&left.inter_token_latency, &right.inter_token_latency),
            (&left.step_tokens, &right.step_tokens),
            (&left.end_to_end, &right.end_to_end),
            (&left.queue_time, &right.queue_time),
        ] {
            prop_assert!(left.cumulative().eq(right.cumulative()), "{left:?} {right:?}");
            prop_assert!((left.sum() - right.sum()).abs() <= 1e-6 * left.sum().max(1.0));
        }
    }

    #[test]
    fn nothing_is_lost_and_nothing_is_made_up(run in runs()) {
        let mut engine = engine(&run, Detail::Tokens);
        let mut made = 0;
        let mut upcoming = run.arrivals.iter().peekable();
        let mut last = Duration::ZERO;
        while let Some(now) = [upcoming.peek().map(|arrival| arrival.at), engine.next_event_at()].into_iter().flatten().min() {
            for event in engine.advance(now) {
                prop_assert!(event.at <= now);
                if matches!(event.kind, EventKind::FirstToken | EventKind::Token) {
                    prop_assert!(event.at >= last, "tokens appear in order of time");
                    last = event.at;
                    made += 1;
                }
            }
            while let Some(arrival) = upcoming.next_if(|arrival| arrival.at == now) {
                engine.submit(now, arrival.request).unwrap();
            }
            let load = engine.load();
            prop_assert!(load.used_blocks <= load.total_blocks);
            prop_assert!(load.running <= run.settings.max_num_seqs);
        }
        let asked: u64 = run.arrivals.iter().map(|arrival| u64::from(arrival.request.output_tokens)).sum();
        let prompts: u64 = run.arrivals.iter().map(|arrival| u64::from(arrival.request.prompt_tokens)).sum();
        let statistics = engine.statistics();
        prop_assert_eq!(made, asked);
        prop_assert_eq!(statistics.generation_tokens, asked);
        prop_assert_eq!(statistics.prompt_tokens, prompts);
        prop_assert_eq!(
            statistics.prompt_tokens_computed + statistics.prompt_tokens_cached + statistics.prompt_tokens_fetched,
            prompts
        );
        let requests = run.arrivals.len() as u64;
        prop_assert_eq!(statistics.finished.length, requests);
        prop_assert_eq!(statistics.time_to_first_token.count(), requests);
        prop_assert_eq!(statistics.inter_token_latency.count(), asked - requests);
        prop_assert!(statistics.step_tokens.sum() >= (statistics.prompt_tokens_computed + asked) as f64);
        prop_assert_eq!(engine.load().used_blocks, 0);
        prop_assert!(engine.is_empty());
    }

    #[test]
    fn aborts_at_any_time_leave_no_trace(run in runs(), doomed in prop::collection::vec(any::<bool>(), 40)) {
        let mut engine = engine(&run, Detail::Milestones);
        let mut ids = Vec::new();
        let mut looks = run.looks.iter().copied().peekable();
        let mut upcoming = run.arrivals.iter().peekable();
        let mut ended = 0;
        loop {
            let own = [upcoming.peek().map(|arrival| arrival.at), engine.next_event_at()].into_iter().flatten().min();
            let Some(now) = own.or_else(|| looks.peek().copied()) else { break };
            let now = looks.next_if(|look| *look <= now).unwrap_or(now);
            let events = engine.advance(now);
            ended += events.iter().filter(|event| matches!(event.kind, EventKind::Finished(FinishReason::Length))).count();
            if let Some(position) = ids.iter().position(|(_, doomed)| *doomed) {
                let (id, _) = ids.swap_remove(position);
                engine.abort(now, id);
            }
            while let Some(arrival) = upcoming.next_if(|arrival| arrival.at <= now) {
                ids.push((engine.submit(now, arrival.request).unwrap(), doomed[ids.len()]));
            }
        }
        let finished = engine.statistics().finished;
        prop_assert_eq!(finished.length, ended as u64);
        prop_assert_eq!(finished.total(), run.arrivals.len() as u64);
        prop_assert_eq!(engine.load().used_blocks, 0);
    }

    #[test]
    fn an_engine_that_walks_every_step_agrees(run in runs()) {
        let local: Vec<Arrival> = run.arrivals.iter().map(|arrival| {
            Arrival { request: Request { remote_tokens: 0, cached_tokens: 0, ..arrival.request }, ..*arrival }
        }).collect();
        let run = Run { arrivals: local, ..run };
        let (outcomes, _) = replay_with_events(&mut engine(&run, Detail::Milestones), &run.arrivals, &[]);
        for (outcome, (first, last)) in outcomes.iter().zip(walk(&run)) {
            prop_assert!((outcome.first_token.as_secs_f64() - first).abs() < 1e-5, "{outcome:?} {first} {last}");
            prop_assert!((outcome.finished.as_secs_f64() - last).abs() < 1e-5, "{outcome:?} {first} {last}");
        }
    }
}

#[derive(Clone, Copy)]
struct Walker {
    at: f64,
    prompt: u32,
    output: u32,
    computed: u32,
    made: u32,
    first: f64,
    last: f64,
}

impl Walker {
    fn total(&self) -> u32 {
        self.prompt + self.made
    }

    fn blocks(&self) -> u64 {
        u64::from(self.computed.div_ceil(16))
    }
}

/// The scheduler as plainly as it can be written: lists, no lazy counting, one step after another.
fn walk(run: &Run) -> Vec<(f64, f64)> {
    let step = StepModel::new(&model());
    let capacity = run.settings.kv_capacity_tokens / 16;
    let mut all: Vec<Walker> = run
        .arrivals
        .iter()
        .map(|arrival| Walker {
            at: arrival.at.as_secs_f64(),
            prompt: arrival.request.prompt_tokens,
            output: arrival.request.output_tokens,
            computed: 0,
            made: 0,
            first: 0.0,
            last: 0.0,
        })
        .collect();
    let mut now = 0.0;
    let mut arrived = 0;
    let mut waiting: Vec<usize> = Vec::new();
    let mut running: Vec<usize> = Vec::new();
    let mut planned: Vec<(usize, u32)> = Vec::new();
    while arrived < all.len() || !waiting.is_empty() || !running.is_empty() {
        let is_idle = running.is_empty() && waiting.is_empty();
        if is_idle {
            now = f64::max(now, all[arrived].at);
        }
        // What is due at a time happens before a request that comes at that time, so a step that begins then is without it;
        // an idle engine begins with it. Sums of floating point are off by far less than the 50 ns of which every time of this
        // model is a multiple.
        let seen = if is_idle { now + 1e-8 } else { now - 1e-8 };
        while arrived < all.len() && all[arrived].at <= seen {
            waiting.push(arrived);
            arrived += 1;
        }
        planned.clear();
        let mut budget = run.settings.max_num_batched_tokens;
        let mut threw_out = false;
        let mut index = 0;
        'running: while index < running.len() && budget > 0 {
            let request = running[index];
            let tokens = (all[request].total() - all[request].computed).min(budget);
            loop {
                let others: u64 = running
                    .iter()
                    .filter(|other| **other != request)
                    .map(|other| all[*other].blocks())
                    .sum();
                let grown: u64 = planned
                    .iter()
                    .map(|(other, tokens)| {
                        u64::from((all[*other].computed + tokens).div_ceil(16))
                            - all[*other].blocks()
                    })
                    .sum();
                let own = u64::from((all[request].computed + tokens).div_ceil(16));
                if others + grown + own <= capacity {
                    break;
                }
                let victim = running.pop().unwrap();
                all[victim].computed = 0;
                waiting.insert(0, victim);
                threw_out = true;
                if victim == request {
                    break 'running;
                }
            }
            planned.push((request, tokens));
            budget -= tokens;
            index += 1;
        }
        while (!threw_out || planned.is_empty())
            && budget > 0
            && !waiting.is_empty()
            && running.len() < run.settings.max_num_seqs as usize
        {
            let request = waiting[0];
            let tokens = all[request].total().min(budget);
            let held: u64 = running.iter().map(|other| all[*other].blocks()).sum();
            let grown: u64 = planned
                .iter()
                .map(|(other, tokens)| {
                    u64::from((all[*other].computed + tokens).div_ceil(16)) - all[*other].blocks()
                })
                .sum();
            let asked = if run.settings.reserve_full_prompt {
                all[request].total()
            } else {
                tokens
            };
            if held + grown + u64::from(asked.div_ceil(16)) > capacity {
                break;
            }
            waiting.remove(0);
            running.push(request);
            planned.push((request, tokens));
            budget -= tokens;
        }
        let whole =
            |(request, _): &&(usize, u32)| all[*request].total() - all[*request].computed == 1;
        let decoding: Vec<_> = planned.iter().filter(whole).collect();
        let chunks: Vec<Chunk> = planned
            .iter()
            .filter(|planned| !whole(planned))
            .map(|(request, tokens)| Chunk {
                tokens: *tokens,
                behind: all[*request].computed,
            })
            .collect();
        let kv = decoding
            .iter()
            .map(|(request, _)| u64::from(all[*request].total()))
            .sum();
        let batch = decoding.len() as u32;
        now += if chunks.is_empty() {
            step.decode(batch, kv).first
        } else {
            step.mixed(batch, kv, &chunks)
        };
        for (request, tokens) in &planned {
            let walker = &mut all[*request];
            walker.computed += tokens;
            if walker.computed == walker.total() {
                walker.made += 1;
                if walker.made == 1 {
                    walker.first = now;
                }
                walker.last = now;
            }
        }
        running.retain(|request| all[*request].made < all[*request].output);
    }
    all.iter()
        .map(|walker| (walker.first, walker.last))
        .collect()
}

#[test]
fn the_same_calls_give_the_same_events() {
    let run = || {
        let profile = Profile::named("llama-3.1-8b-bf16_rtx4090_tp1").unwrap();
        let settings = Settings {
            noise: 0.05,
            seed: 9,
            ..Settings::of(&profile)
        };
        let mut engine = Engine::new(&profile, settings);
        let arrivals: Vec<Arrival> = (0..200_u32)
            .map(|index| Arrival {
                at: seconds(f64::from(index) * 0.05),
                request: Request::new(100 + index * 17 % 3000, 1 + index * 7 % 300),
            })
            .collect();
        replay_with_events(&mut engine, &arrivals, &[]).1
    };
    assert_eq!(run(), run());
}
