//! Replays arrivals through an engine.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::time::Duration;

use coppice_engine::{Engine, Event, EventKind, Profile, Request, RequestId};

/// A request and when it comes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arrival {
    pub(crate) at: Duration,
    pub(crate) request: Request,
}

/// What became of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Outcome {
    pub(crate) arrived: Duration,
    pub(crate) first_token: Duration,
    pub(crate) finished: Duration,
}

impl Outcome {
    pub(crate) fn ttft(&self) -> f64 {
        (self.first_token - self.arrived).as_secs_f64()
    }

    pub(crate) fn e2e(&self) -> f64 {
        (self.finished - self.arrived).as_secs_f64()
    }

    pub(crate) fn tpot(&self, output_tokens: u32) -> Option<f64> {
        let gaps = f64::from(output_tokens) - 1.0;
        (gaps > 0.0).then(|| (self.finished - self.first_token).as_secs_f64() / gaps)
    }
}

/// Drives the engine through its own events until every arrival has ended; answers outcomes in order of arrival.
pub(crate) fn replay(engine: &mut Engine, arrivals: &[Arrival]) -> Vec<Outcome> {
    let (outcomes, _) = replay_with_events(engine, arrivals, &[]);
    outcomes
}

/// The same with every event, advancing the engine at `extra` times too.
pub(crate) fn replay_with_events(
    engine: &mut Engine,
    arrivals: &[Arrival],
    extra: &[Duration],
) -> (Vec<Outcome>, Vec<Event>) {
    let mut ids: Vec<RequestId> = Vec::new();
    let mut events = Vec::new();
    let mut next_arrival = arrivals.iter().peekable();
    let mut next_extra = extra.iter().peekable();
    loop {
        let arrival = next_arrival.peek().map(|arrival| arrival.at);
        let own = engine.next_event_at();
        let look = next_extra.peek().copied().copied();
        let Some(at) = [arrival, own].into_iter().flatten().min() else {
            break;
        };
        let at = look.map_or(at, |look| look.min(at));
        if look == Some(at) {
            next_extra.next();
        }
        engine.advance_into(at, &mut events);
        while let Some(arrival) = next_arrival.next_if(|arrival| arrival.at == at) {
            ids.push(engine.submit(at, arrival.request).unwrap());
        }
    }
    let outcomes = ids
        .iter()
        .zip(arrivals)
        .map(|(id, arrival)| {
            let find = |wanted: fn(&EventKind) -> bool| {
                let mut matching = events
                    .iter()
                    .filter(|event| event.request == *id && wanted(&event.kind));
                let found = matching
                    .next()
                    .unwrap_or_else(|| panic!("request {id:?} has no such event"))
                    .at;
                assert!(
                    matching.next().is_none(),
                    "request {id:?} has the event twice"
                );
                found
            };
            Outcome {
                arrived: arrival.at,
                first_token: find(|kind| matches!(kind, EventKind::FirstToken)),
                finished: find(|kind| matches!(kind, EventKind::Finished(_))),
            }
        })
        .collect();
    (outcomes, events)
}

/// A profile with nothing but these terms, in milliseconds.
pub(crate) fn profile(t0: f64, per_seq: f64, per_kv: f64, per_prefill: f64) -> Profile {
    let text = format!(
        r#"{{"id": "test", "step": {{"t0_ms": {t0}, "per_seq_ms": {per_seq}, "per_kv_token_ms": {per_kv},
            "per_prefill_token_ms": {per_prefill}}},
            "kv_capacity_tokens": 1600000, "max_num_seqs": 256, "max_num_batched_tokens": 2048}}"#
    );
    Profile::from_json(&text).unwrap()
}

pub(crate) fn seconds(value: f64) -> Duration {
    Duration::from_secs_f64(value)
}

pub(crate) fn milliseconds(value: u64) -> Duration {
    Duration::from_millis(value)
}

/// The q-quantile of unsorted values, by linear interpolation between ranks.
pub(crate) fn quantile(values: &[f64], q: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let position = q * (sorted.len() - 1) as f64;
    let below = (0..sorted.len())
        .rev()
        .find(|rank| *rank as f64 <= position)
        .unwrap();
    let above = (below + 1).min(sorted.len() - 1);
    sorted[below] + (sorted[above] - sorted[below]) * (position - below as f64)
}

pub(crate) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}
