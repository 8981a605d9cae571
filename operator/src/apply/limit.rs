//! How many writes are on their way at the same time.
//!
//! Additive increase, multiplicative decrease, as TCP does: each answered write raises the limit a little, an answer that
//! says "too much" (429, 5xx, a timeout) lowers it by a third, at most once per round trip. So the operator goes as fast as
//! the API server lets it, without a rate somebody has to guess.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Below this the operator would not get anything done.
const SMALLEST: f64 = 2.0;
/// Refusals within this time of each other are one.
const ONE_DECREASE_PER: Duration = Duration::from_millis(250);

/// What an answer says about the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// It was taken or refused for reasons of its own.
    Fine,
    /// The server had too much to do.
    TooMuch,
}

/// The limit.
#[derive(Debug)]
pub(crate) struct Limit {
    state: Mutex<State>,
    freed: Notify,
    largest: f64,
}

#[derive(Debug)]
struct State {
    limit: f64,
    in_flight: u32,
    lowered: Option<Instant>,
}

/// The right to one write; gives its place back when dropped.
#[derive(Debug)]
pub(crate) struct Turn<'a> {
    limit: &'a Limit,
}

impl Limit {
    /// At most `largest` writes at a time, beginning with half of it.
    pub(crate) fn new(largest: u32) -> Self {
        let largest = f64::from(largest).max(SMALLEST);
        let state = State {
            limit: (largest / 2.0).max(SMALLEST),
            in_flight: 0,
            lowered: None,
        };
        Self {
            state: Mutex::new(state),
            freed: Notify::new(),
            largest,
        }
    }

    /// Waits for a place.
    pub(crate) async fn turn(&self) -> Turn<'_> {
        loop {
            let freed = self.freed.notified();
            {
                let mut state = self.state.lock();
                if f64::from(state.in_flight) < state.limit {
                    state.in_flight += 1;
                    if f64::from(state.in_flight) < state.limit {
                        self.freed.notify_one();
                    }
                    return Turn { limit: self };
                }
            }
            freed.await;
        }
    }

    /// Learns from an answer.
    pub(crate) fn learn(&self, answer: Answer) {
        let mut state = self.state.lock();
        match answer {
            Answer::Fine => state.limit = (state.limit + 1.0 / state.limit).min(self.largest),
            Answer::TooMuch => {
                let now = Instant::now();
                if state
                    .lowered
                    .is_some_and(|lowered| now.duration_since(lowered) < ONE_DECREASE_PER)
                {
                    return;
                }
                state.lowered = Some(now);
                state.limit = (state.limit / 1.5).max(SMALLEST);
            }
        }
    }

    /// The limit, and the writes on their way.
    pub(crate) fn gauge(&self) -> (f64, u32) {
        let state = self.state.lock();
        (state.limit, state.in_flight)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.limit.state.lock().in_flight -= 1;
        self.limit.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[tokio::test(start_paused = true)]
    async fn no_more_than_the_limit_are_on_their_way() {
        let limit = Arc::new(Limit::new(4));
        let first = limit.turn().await;
        let _second = limit.turn().await;
        let waiting = tokio::spawn({
            let limit = Arc::clone(&limit);
            async move { drop(limit.turn().await) }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        assert_eq!(limit.gauge(), (2.0, 2));
        drop(first);
        waiting.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn the_limit_follows_the_answers() {
        let limit = Limit::new(40);
        for _ in 0..10_000 {
            limit.learn(Answer::Fine);
        }
        assert!((limit.gauge().0 - 40.0).abs() < f64::EPSILON);
        for _ in 0..50 {
            limit.learn(Answer::TooMuch);
        }
        assert!(
            (26.0..27.0).contains(&limit.gauge().0),
            "refusals of one moment are one"
        );
        for _ in 0..20 {
            tokio::time::advance(Duration::from_secs(1)).await;
            limit.learn(Answer::TooMuch);
        }
        assert!((limit.gauge().0 - SMALLEST).abs() < f64::EPSILON);
    }
}
