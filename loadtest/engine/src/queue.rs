//! Requests that are not in the batch, and when time alone changes something for them.

use std::collections::VecDeque;
use std::time::Duration;

use crate::sequence::Key;

/// Requests outside the batch, by what they wait for.
#[derive(Debug, Clone, Default)]
pub(crate) struct Queue {
    /// On the way to the scheduler, with the time they reach it; ascending, the delay is the same for all.
    pub(crate) arriving: VecDeque<(Duration, Key)>,
    /// In the order they are admitted in.
    pub(crate) waiting: VecDeque<Key>,
    /// Waiting for KV from another engine, with the time it is complete.
    pub(crate) fetching: Vec<(Duration, Key)>,
    /// Their KV is complete; admitted before the waiting ones.
    pub(crate) fetched: VecDeque<Key>,
    /// Ended, their KV kept, with the time they expire; ascending, the delay is the same for all.
    pub(crate) kept: VecDeque<(Duration, Key)>,
}

impl Queue {
    /// When the next request arrives, has its KV, or expires.
    pub(crate) fn next_trigger(&self) -> Option<Duration> {
        let arrival = self.arriving.front().map(|(at, _)| *at);
        let fetch = self.fetching.iter().map(|(at, _)| *at).min();
        let expiry = self.kept.front().map(|(at, _)| *at);
        [arrival, fetch, expiry].into_iter().flatten().min()
    }

    /// Moves on what is due: arrivals to the queue's end, complete transfers to the fetched ones in order of completion.
    /// Answers the transfers that completed; each with its time.
    pub(crate) fn move_due(&mut self, now: Duration) -> Vec<(Duration, Key)> {
        while let Some((_, key)) = self.arriving.pop_front_if(|(at, _)| *at <= now) {
            self.waiting.push_back(key);
        }
        let mut complete: Vec<(Duration, Key)> =
            self.fetching.extract_if(.., |(at, _)| *at <= now).collect();
        complete.sort_by_key(|(at, _)| *at);
        self.fetched.extend(complete.iter().map(|(_, key)| *key));
        complete
    }

    /// The next kept one that has expired.
    pub(crate) fn pop_expired(&mut self, now: Duration) -> Option<(Duration, Key)> {
        self.kept.pop_front_if(|(at, _)| *at <= now)
    }

    /// Takes a request out, wherever it is.
    pub(crate) fn remove(&mut self, key: Key) {
        self.arriving.retain(|(_, other)| *other != key);
        self.waiting.retain(|other| *other != key);
        self.fetching.retain(|(_, other)| *other != key);
        self.fetched.retain(|other| *other != key);
        self.kept.retain(|(_, other)| *other != key);
    }
}
