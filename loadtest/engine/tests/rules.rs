//! The scheduler's rules, one by one.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::float_cmp,
    reason = "helpers of tests fail by panicking"
)]

mod common;

use std::time::Duration;

use common::{Arrival, milliseconds, profile, replay, replay_with_events, seconds};
use coppice_engine::{
    Detail, Engine, EventKind, FinishReason, Profile, Request, Settings, SubmitError, Transfer,
};

/// 10 ms a step and 1 ms a prompt token, nothing else.
fn plain() -> Profile {
    profile(10.0, 0.0, 0.0, 1.0)
}

fn engine(change: impl FnOnce(&mut Settings)) -> Engine {
    let mut settings = Settings::of(&plain());
    change(&mut settings);
    Engine::new(&plain(), settings)
}

fn at(milliseconds: u64, request: Request) -> Arrival {
    Arrival {
        at: Duration::from_millis(milliseconds),
        request,
    }
}

#[test]
fn a_lone_request_takes_its_prefill_and_its_steps() {
    let outcomes = replay(&mut engine(|_| {}), &[at(5, Request::new(90, 11))]);
    assert_eq!(outcomes[0].first_token, milliseconds(5 + 10 + 90));
    assert_eq!(outcomes[0].finished, milliseconds(5 + 10 + 90 + 10 * 10));
}

#[test]
fn the_front_end_delays_a_request_once() {
    let mut profile = plain();
    profile.fixed_ttft_ms = 14.0;
    let mut engine = Engine::new(&profile, Settings::of(&profile));
    let outcomes = replay(&mut engine, &[at(0, Request::new(90, 2))]);
    assert_eq!(outcomes[0].first_token, milliseconds(14 + 100));
    assert_eq!(outcomes[0].finished, milliseconds(14 + 110));
}

#[test]
fn a_long_prompt_is_worked_off_in_chunks() {
    let mut engine = engine(|settings| settings.max_num_batched_tokens = 100);
    let outcomes = replay(&mut engine, &[at(0, Request::new(250, 1))]);
    // 100, 100 and 50 tokens
    assert_eq!(outcomes[0].first_token, milliseconds(110 + 110 + 60));
    assert_eq!(engine.statistics().step_tokens.count(), 3);
}

#[test]
fn decoding_sequences_come_before_chunks_in_the_budget() {
    let mut engine = engine(|settings| settings.max_num_batched_tokens = 100);
    let outcomes = replay(
        &mut engine,
        &[at(0, Request::new(10, 50)), at(1, Request::new(198, 1))],
    );
    assert_eq!(outcomes[0].first_token, milliseconds(20));
    // From 20 ms on: 99 tokens beside one decoding sequence, twice.
    assert_eq!(outcomes[1].first_token, milliseconds(20 + 109 + 109));
}

#[test]
fn an_arrival_joins_at_the_next_step() {
    let outcomes = replay(
        &mut engine(|_| {}),
        &[at(0, Request::new(10, 100)), at(55, Request::new(10, 1))],
    );
    // Steps end at 20, 30, …, 60; the newcomer's takes 20 ms.
    assert_eq!(outcomes[1].first_token, milliseconds(80));
}

#[test]
fn no_more_sequences_run_than_allowed() {
    let mut engine = engine(|settings| settings.max_num_seqs = 2);
    let request = Request::new(10, 10);
    let outcomes = replay(
        &mut engine,
        &[at(0, request), at(0, request), at(0, request)],
    );
    assert_eq!(outcomes[1].first_token, outcomes[0].first_token);
    assert_eq!(
        outcomes[2].first_token,
        outcomes[0].finished + milliseconds(20)
    );
}

#[test]
fn the_sequence_admitted_last_makes_room_and_starts_over() {
    // 4 blocks. Two prompts of 17 take 2 blocks each; the first needs a third at 33 tokens.
    let mut engine = engine(|settings| settings.kv_capacity_tokens = 64);
    let arrivals = [at(0, Request::new(17, 20)), at(0, Request::new(17, 30))];
    let (outcomes, events) = replay_with_events(&mut engine, &arrivals, &[]);
    let preempted: Vec<_> = events
        .iter()
        .filter(|event| event.kind == EventKind::Preempted)
        .collect();
    assert_eq!(preempted.len(), 1);
    // Both make their first token at 44 ms and 16 tokens, 33 in all, by 194 ms: then the block is missing.
    assert_eq!(preempted[0].at, milliseconds(44 + 15 * 10));
    // The first makes its other 4 alone; then the second computes its 33 tokens again and makes 14 more.
    assert_eq!(outcomes[0].finished, milliseconds(194 + 40));
    assert_eq!(outcomes[1].finished, milliseconds(234 + 43 + 13 * 10));
    assert_eq!(engine.statistics().generation_tokens, 50);
    assert_eq!(engine.statistics().preemptions_of_request.sum(), 1.0);
    assert_eq!(engine.load().used_blocks, 0);
}

#[test]
fn a_step_that_threw_one_out_admits_nobody() {
    let mut engine = engine(|settings| settings.kv_capacity_tokens = 64);
    let arrivals = [
        at(0, Request::new(17, 20)),
        at(0, Request::new(17, 30)),
        at(0, Request::new(10, 5)),
    ];
    let (_, events) = replay_with_events(&mut engine, &arrivals, &[]);
    let preempted = events
        .iter()
        .find(|event| event.kind == EventKind::Preempted)
        .unwrap();
    // The third would fit the block that is left, but waits behind the one thrown out.
    let third = events
        .iter()
        .rev()
        .find(|event| event.kind == EventKind::FirstToken)
        .unwrap();
    assert!(
        third.at > preempted.at + milliseconds(40),
        "{third:?} {preempted:?}"
    );
}

#[test]
fn cached_tokens_are_not_computed_and_count_in_blocks() {
    let request = |cached_tokens| Request {
        cached_tokens,
        ..Request::new(100, 1)
    };
    let first_token = |cached| {
        let mut engine = engine(|_| {});
        let outcome = replay(&mut engine, &[at(0, request(cached))])[0];
        (
            outcome.first_token,
            engine.statistics().prompt_tokens_cached,
        )
    };
    assert_eq!(first_token(0), (milliseconds(110), 0));
    // Whole blocks only: 80 of 90.
    assert_eq!(first_token(90), (milliseconds(10 + 20), 80));
    // The last token is always computed: 96 of 100.
    assert_eq!(first_token(100), (milliseconds(10 + 4), 96));
}

#[test]
fn kept_kv_holds_its_blocks_until_released() {
    let mut engine = engine(|settings| settings.kv_capacity_tokens = 160);
    let request = Request {
        keeps_kv: true,
        ..Request::new(100, 1)
    };
    let id = engine.submit(Duration::ZERO, request).unwrap();
    engine.advance(seconds(1.0));
    assert!(engine.is_empty() && engine.load().kept == 1);
    assert_eq!(engine.load().used_blocks, 7);
    // 80 tokens do not fit beside them.
    engine.submit(seconds(1.0), Request::new(80, 1)).unwrap();
    engine.advance(seconds(2.0));
    assert_eq!(engine.load().waiting_for_capacity, 1);
    assert!(engine.release(id) && !engine.release(id));
    assert_eq!(engine.next_event_at(), Some(seconds(2.0)));
    let events = engine.advance(seconds(3.0));
    assert_eq!(events[0].at, seconds(2.0) + milliseconds(90));
}

#[test]
fn kept_kv_that_nobody_fetches_expires() {
    let mut engine = engine(|settings| settings.kept_kv_expires_after = seconds(2.0));
    let request = Request {
        keeps_kv: true,
        ..Request::new(90, 1)
    };
    let id = engine.submit(Duration::ZERO, request).unwrap();
    let events = engine.advance(seconds(5.0));
    let expired = events.last().unwrap();
    assert_eq!(
        (expired.kind, expired.request, expired.at),
        (EventKind::Expired, id, milliseconds(2100))
    );
    assert_eq!(
        (engine.load().used_blocks, engine.statistics().kv_expired),
        (0, 1)
    );
    assert!(!engine.release(id));
}

fn slow_transfer(settings: &mut Settings) {
    // 1 ms of set-up and 1 ms a token.
    settings.transfer = Transfer {
        set_up: milliseconds(1),
        bytes_per_token: 1000,
        bytes_per_second: 1e6,
    };
}

#[test]
fn a_fetched_prompt_costs_its_transfer_and_one_step() {
    let mut engine = engine(slow_transfer);
    let request = Request {
        remote_tokens: 100,
        ..Request::new(100, 3)
    };
    let (outcomes, events) = replay_with_events(&mut engine, &[at(0, request)], &[]);
    assert_eq!(events[0].kind, EventKind::Fetched);
    assert_eq!(events[0].at, milliseconds(101));
    assert_eq!(outcomes[0].first_token, milliseconds(101 + 10));
    assert_eq!(outcomes[0].finished, milliseconds(101 + 30));
    let statistics = engine.statistics();
    assert_eq!(
        (
            statistics.prompt_tokens_computed,
            statistics.prompt_tokens_fetched
        ),
        (1, 99)
    );
}

#[test]
fn a_transfer_begins_only_with_blocks_for_the_prompt() {
    let mut engine = engine(|settings| {
        slow_transfer(settings);
        settings.kv_capacity_tokens = 160;
    });
    let request = Request {
        remote_tokens: 90,
        ..Request::new(90, 2)
    };
    engine.submit(Duration::ZERO, request).unwrap();
    engine.submit(Duration::ZERO, request).unwrap();
    engine.advance(milliseconds(50));
    let load = engine.load();
    assert_eq!(
        (load.fetching, load.waiting_to_fetch, load.used_blocks),
        (1, 1, 6)
    );
    assert_eq!((load.waiting_for_capacity, load.waiting()), (1, 2));
    // 91 ms of transfer, 20 of steps; only then the second begins.
    let mut events = Vec::new();
    while let Some(next) = engine.next_event_at() {
        engine.advance_into(next, &mut events);
    }
    let ends: Vec<_> = events
        .iter()
        .filter(|event| matches!(event.kind, EventKind::Finished(_)))
        .map(|event| event.at)
        .collect();
    assert_eq!(ends, [milliseconds(111), milliseconds(222)]);
}

#[test]
fn a_transfer_goes_on_beside_the_steps_of_others() {
    let mut engine = engine(slow_transfer);
    let remote = Request {
        remote_tokens: 44,
        ..Request::new(44, 1)
    };
    let outcomes = replay(&mut engine, &[at(0, Request::new(10, 100)), at(0, remote)]);
    // 45 ms of transfer end in the step from 40 to 50 ms; the next one computes the last token.
    assert_eq!(outcomes[1].first_token, milliseconds(60));
    assert_eq!(outcomes[0].finished, milliseconds(20 + 99 * 10));
}

#[test]
fn an_aborted_request_leaves_at_once_and_the_others_go_on() {
    let mut engine = engine(|settings| settings.detail = Detail::Tokens);
    let first = engine
        .submit(Duration::ZERO, Request::new(10, 100))
        .unwrap();
    let second = engine
        .submit(Duration::ZERO, Request::new(10, 100))
        .unwrap();
    engine.advance(milliseconds(95));
    assert!(engine.abort(milliseconds(95), first));
    assert!(
        !engine.abort(milliseconds(95), first),
        "it is not here any more"
    );
    assert_eq!(engine.load().running, 1);
    let events = engine.advance(seconds(10.0));
    assert!(events.iter().all(|event| event.request == second));
    let end = events.last().unwrap();
    // Both prompts at once take 30 ms, then 99 steps.
    assert_eq!(
        (end.kind, end.at),
        (
            EventKind::Finished(FinishReason::Length),
            milliseconds(30 + 990)
        )
    );
    assert_eq!(engine.statistics().finished.abort, 1);
    assert_eq!(engine.load().used_blocks, 0);
}

#[test]
fn abort_frees_the_blocks_wherever_the_request_is() {
    let mut engine = engine(|settings| {
        slow_transfer(settings);
        settings.max_num_seqs = 1;
        settings.max_num_batched_tokens = 64;
    });
    let running = engine
        .submit(Duration::ZERO, Request::new(200, 10))
        .unwrap();
    let waiting = engine.submit(Duration::ZERO, Request::new(10, 10)).unwrap();
    engine.advance(milliseconds(5));
    let arriving = engine
        .submit(milliseconds(5), Request::new(10, 10))
        .unwrap();
    for id in [arriving, waiting, running] {
        assert!(engine.abort(milliseconds(6), id));
    }
    engine.advance(milliseconds(200));
    let fetching = engine
        .submit(
            milliseconds(200),
            Request {
                remote_tokens: 50,
                ..Request::new(50, 5)
            },
        )
        .unwrap();
    engine.advance(milliseconds(210));
    assert_eq!(engine.load().fetching, 1);
    assert!(engine.abort(milliseconds(210), fetching));
    let kept = engine
        .submit(
            milliseconds(210),
            Request {
                keeps_kv: true,
                ..Request::new(30, 1)
            },
        )
        .unwrap();
    engine.advance(milliseconds(400));
    assert_eq!(engine.load().kept, 1);
    assert!(engine.abort(milliseconds(400), kept));
    assert_eq!(engine.load().used_blocks, 0);
    assert!(engine.is_empty());
    assert_eq!(
        engine.statistics().finished.abort,
        4,
        "giving up kept KV is no aborted request"
    );
}

#[test]
fn a_draining_engine_finishes_what_it_has() {
    let mut engine = engine(|_| {});
    engine.submit(Duration::ZERO, Request::new(10, 10)).unwrap();
    engine.drain();
    assert_eq!(
        engine.submit(Duration::ZERO, Request::new(10, 10)),
        Err(SubmitError::Draining)
    );
    assert!(!engine.is_empty());
    engine.advance(seconds(1.0));
    assert!(engine.is_empty() && engine.statistics().finished.length == 1);
}

#[test]
fn what_can_never_run_is_refused() {
    let mut engine = engine(|settings| settings.kv_capacity_tokens = 170);
    // 10 blocks are 160 tokens.
    assert_eq!(engine.context_limit(), 160);
    assert!(engine.submit(Duration::ZERO, Request::new(150, 10)).is_ok());
    let error = engine
        .submit(Duration::ZERO, Request::new(150, 11))
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "prompt of 150 and output of 11 tokens exceed the context of 160"
    );
    let error = engine
        .submit(Duration::ZERO, Request::new(0, 1))
        .unwrap_err();
    assert_eq!(
        error,
        SubmitError::Empty {
            field: "prompt_tokens"
        }
    );
}

#[test]
fn every_token_is_reported_when_asked_for() {
    let mut engine = engine(|settings| settings.detail = Detail::Tokens);
    let (outcomes, events) = replay_with_events(&mut engine, &[at(0, Request::new(10, 6))], &[]);
    let ends: Vec<_> = events.iter().map(|event| (event.kind, event.at)).collect();
    let mut expected = vec![(EventKind::FirstToken, milliseconds(20))];
    expected.extend((3..8).map(|step| (EventKind::Token, milliseconds(step * 10))));
    expected.push((EventKind::Finished(FinishReason::Length), milliseconds(70)));
    assert_eq!(ends, expected);
    assert_eq!(outcomes[0].finished, milliseconds(70));
}

#[test]
fn noise_changes_times_but_not_the_same_seed() {
    let run = |noise, seed| {
        let mut engine = engine(|settings| {
            settings.noise = noise;
            settings.seed = seed;
        });
        replay(&mut engine, &[at(0, Request::new(90, 100))])[0].finished
    };
    assert_eq!(run(0.1, 1), run(0.1, 1));
    assert_ne!(run(0.1, 1), run(0.1, 2));
    assert_ne!(run(0.1, 1), run(0.0, 1));
}
