//! The work queue: which unit is looked at next.
//!
//! A unit is in work at most once at a time. Marks that come while it is in work make it run again afterwards; any number
//! of marks before it runs is one run. Waiting has exact timers, there is no polling. Failures back off exponentially per
//! unit with jitter; a conflict is tried again at once, as soon as the watch has told of the other version.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::index::key::Unit;

/// Pauses after the first, second, … failure in a row.
const FIRST_BACK_OFF: Duration = Duration::from_millis(100);
const LONGEST_BACK_OFF: Duration = Duration::from_secs(60);
/// Time for the watch to bring the version that was missed.
const AFTER_CONFLICT: Duration = Duration::from_millis(10);

/// How a pass over a unit ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Nothing more to do until something changes, or until then.
    Done(Option<Duration>),
    /// Another writer was faster; look again as soon as its version can be here.
    Conflict,
    /// Something failed; look again after a pause that grows with each failure in a row.
    Failed,
}

/// The queue. Shared by everybody who marks and by the workers.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    entries: HashMap<Unit, Entry>,
    ready: VecDeque<Unit>,
    timers: BTreeSet<(Instant, Unit)>,
    running: usize,
    /// Seeds the jitter; deterministic, so that tests with paused time repeat.
    draws: u64,
}

#[derive(Debug, Default)]
struct Entry {
    queued: bool,
    running: bool,
    again: bool,
    due: Option<Instant>,
    failures: u32,
}

/// Sizes for the metrics endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Depth {
    /// Units that could be looked at now.
    pub(crate) ready: usize,
    /// Units in work.
    pub(crate) running: usize,
    /// Units with a timer.
    pub(crate) waiting: usize,
}

impl Queue {
    /// Looks at the unit as soon as a worker is free. The pause after a failure is kept: what failed would fail again.
    pub(crate) fn mark(&self, unit: &Unit) {
        let mut state = self.state.lock();
        let pauses = state
            .entries
            .get(unit)
            .is_some_and(|entry| entry.failures > 0 && entry.due.is_some());
        if !pauses && state.enqueue(unit) {
            drop(state);
            self.changed.notify_one();
        }
    }

    /// Looks at the unit even while it pauses after a failure: somebody edited what it is made from.
    pub(crate) fn mark_edited(&self, unit: &Unit) {
        let mut state = self.state.lock();
        if let Some(entry) = state.entries.get_mut(unit) {
            entry.failures = 0;
        }
        if state.enqueue(unit) {
            drop(state);
            self.changed.notify_one();
        }
    }

    /// Looks at the unit when `delay` has passed, or earlier if it is marked before. The earliest timer counts.
    pub(crate) fn mark_after(&self, unit: &Unit, delay: Duration) {
        let mut state = self.state.lock();
        if state.schedule(unit, Instant::now() + delay) {
            drop(state);
            self.changed.notify_one();
        }
    }

    /// The next unit; waits until there is one. Give it back with [`Queue::done`].
    pub(crate) async fn next(&self) -> Unit {
        loop {
            let changed = self.changed.notified();
            let wake = {
                let mut state = self.state.lock();
                state.promote(Instant::now());
                if let Some(unit) = state.take() {
                    if !state.ready.is_empty() {
                        self.changed.notify_one();
                    }
                    return unit;
                }
                state.timers.first().map(|(due, _)| *due)
            };
            match wake {
                Some(due) => {
                    tokio::select! {
                        () = changed => {}
                        () = tokio::time::sleep_until(due) => {}
                    }
                }
                None => changed.await,
            }
        }
    }

    /// Ends the pass over a unit.
    pub(crate) fn done(&self, unit: &Unit, outcome: Outcome) {
        let mut state = self.state.lock();
        state.finish(unit, outcome, Instant::now());
        drop(state);
        self.changed.notify_one();
    }

    /// How much there is to do.
    pub(crate) fn depth(&self) -> Depth {
        let state = self.state.lock();
        Depth {
            ready: state.ready.len(),
            running: state.running,
            waiting: state.timers.len(),
        }
    }
}

impl State {
    fn enqueue(&mut self, unit: &Unit) -> bool {
        let entry = self.entries.entry(unit.clone()).or_default();
        if entry.running {
            entry.again = true;
            return false;
        }
        if entry.queued {
            return false;
        }
        entry.queued = true;
        if let Some(due) = entry.due.take() {
            self.timers.remove(&(due, unit.clone()));
        }
        self.ready.push_back(unit.clone());
        true
    }

    fn schedule(&mut self, unit: &Unit, due: Instant) -> bool {
        let entry = self.entries.entry(unit.clone()).or_default();
        if entry.queued || entry.due.is_some_and(|earlier| earlier <= due) {
            return false;
        }
        if let Some(later) = entry.due.replace(due) {
            self.timers.remove(&(later, unit.clone()));
        }
        self.timers.insert((due, unit.clone()));
        true
    }

    fn promote(&mut self, now: Instant) {
        while let Some((due, unit)) = self.timers.first().cloned() {
            if due > now {
                return;
            }
            self.timers.pop_first();
            if let Some(entry) = self.entries.get_mut(&unit) {
                entry.due = None;
            }
            self.enqueue(&unit);
        }
    }

    fn take(&mut self) -> Option<Unit> {
        let unit = self.ready.pop_front()?;
        let entry = self.entries.get_mut(&unit)?;
        entry.queued = false;
        entry.running = true;
        self.running += 1;
        Some(unit)
    }

    fn finish(&mut self, unit: &Unit, outcome: Outcome, now: Instant) {
        let Some(entry) = self.entries.get_mut(unit) else {
            return;
        };
        if !std::mem::take(&mut entry.running) {
            return;
        }
        self.running -= 1;
        let again = std::mem::take(&mut entry.again);
        match outcome {
            Outcome::Done(wake) => {
                entry.failures = 0;
                if again {
                    self.enqueue(unit);
                } else if let Some(wake) = wake {
                    self.schedule(unit, now + wake);
                }
            }
            Outcome::Conflict => {
                self.schedule(unit, now + AFTER_CONFLICT);
            }
            Outcome::Failed => {
                entry.failures = entry.failures.saturating_add(1);
                let pause = back_off(entry.failures, self.draws);
                self.draws = self.draws.wrapping_add(1);
                self.schedule(unit, now + pause);
            }
        }
        self.drop_idle(unit);
    }

    fn drop_idle(&mut self, unit: &Unit) {
        if let Some(entry) = self.entries.get(unit)
            && !entry.queued
            && !entry.running
            && entry.due.is_none()
            && entry.failures == 0
        {
            self.entries.remove(unit);
        }
    }
}

/// Doubles from 100 ms to a minute, then takes away up to a quarter so that units that failed together part.
fn back_off(failures: u32, draw: u64) -> Duration {
    let doubled = FIRST_BACK_OFF.saturating_mul(1 << failures.saturating_sub(1).min(12));
    let pause = doubled.min(LONGEST_BACK_OFF);
    let mut mixed = draw.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^= mixed >> 29;
    let quarter = pause / 4;
    pause - quarter.mul_f64(f64::from(u8::try_from(mixed % 256).unwrap_or_default()) / 255.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::key::SetKey;

    fn unit(name: &str) -> Unit {
        Unit::Set(SetKey::new("ns", name))
    }

    #[tokio::test(start_paused = true)]
    async fn many_marks_are_one_run_and_marks_in_work_are_one_more() {
        let queue = Queue::default();
        queue.mark(&unit("a"));
        queue.mark(&unit("a"));
        assert_eq!(queue.next().await, unit("a"));
        queue.mark(&unit("a"));
        queue.mark(&unit("a"));
        assert_eq!(
            queue.depth(),
            Depth {
                ready: 0,
                running: 1,
                waiting: 0
            }
        );
        queue.done(&unit("a"), Outcome::Done(None));
        assert_eq!(queue.next().await, unit("a"));
        queue.done(&unit("a"), Outcome::Done(None));
        assert_eq!(queue.depth(), Depth::default());
    }

    #[tokio::test(start_paused = true)]
    async fn the_earliest_timer_counts_and_is_exact() {
        let queue = Queue::default();
        let start = Instant::now();
        queue.mark_after(&unit("a"), Duration::from_secs(30));
        queue.mark_after(&unit("a"), Duration::from_secs(5));
        queue.mark_after(&unit("a"), Duration::from_secs(50));
        assert_eq!(queue.next().await, unit("a"));
        assert_eq!(start.elapsed(), Duration::from_secs(5));
        queue.done(&unit("a"), Outcome::Done(Some(Duration::from_secs(7))));
        assert_eq!(queue.next().await, unit("a"));
        assert_eq!(start.elapsed(), Duration::from_secs(12));
    }

    #[tokio::test(start_paused = true)]
    async fn failures_back_off_and_success_forgets_them() {
        let queue = Queue::default();
        queue.mark(&unit("a"));
        let mut pauses = Vec::new();
        for _ in 0..14 {
            queue.next().await;
            let start = Instant::now();
            queue.done(&unit("a"), Outcome::Failed);
            queue.mark(&unit("a"));
            queue.next().await;
            pauses.push(start.elapsed());
            queue.done(&unit("a"), Outcome::Failed);
        }
        assert!(pauses[0] >= Duration::from_millis(75) && pauses[0] <= Duration::from_millis(101));
        assert!(pauses[13] >= Duration::from_secs(45) && pauses[13] <= Duration::from_secs(60));
        // An edit is looked at without delay.
        queue.mark_edited(&unit("a"));
        let start = Instant::now();
        queue.next().await;
        assert_eq!(start.elapsed(), Duration::ZERO);
        queue.done(&unit("a"), Outcome::Done(None));
        assert_eq!(queue.depth(), Depth::default());
    }

    #[tokio::test(start_paused = true)]
    async fn several_workers_share_the_units() {
        let queue = std::sync::Arc::new(Queue::default());
        let workers: Vec<_> = (0..3)
            .map(|_| {
                let queue = std::sync::Arc::clone(&queue);
                tokio::spawn(async move {
                    let unit = queue.next().await;
                    queue.done(&unit, Outcome::Done(None));
                    unit
                })
            })
            .collect();
        tokio::task::yield_now().await;
        for name in ["a", "b", "c"] {
            queue.mark(&unit(name));
        }
        let mut seen = Vec::new();
        for worker in workers {
            seen.push(worker.await.unwrap());
        }
        seen.sort();
        assert_eq!(seen, [unit("a"), unit("b"), unit("c")]);
    }
}
