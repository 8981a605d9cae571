//! All waiting of the fleet in one place: thousands of pods, one sleeping task.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use tokio::time::{Instant, sleep_until};

/// Keys that become due at an instant, earliest first. A key may be set several times; who takes it decides which one
/// counts.
#[derive(Debug)]
pub(super) struct Timers<K> {
    heap: BinaryHeap<Reverse<(Instant, u64, Opaque<K>)>>,
    sequence: u64,
}

/// A key takes no part in the order; the sequence number before it decides.
#[derive(Debug)]
struct Opaque<K>(K);

impl<K> PartialEq for Opaque<K> {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}
impl<K> Eq for Opaque<K> {}
impl<K> PartialOrd for Opaque<K> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl<K> Ord for Opaque<K> {
    fn cmp(&self, _: &Self) -> std::cmp::Ordering {
        std::cmp::Ordering::Equal
    }
}

impl<K> Timers<K> {
    pub(super) fn new() -> Self {
        Self {
            heap: BinaryHeap::new(),
            sequence: 0,
        }
    }

    pub(super) fn set(&mut self, at: Instant, key: K) {
        self.sequence += 1;
        self.heap.push(Reverse((at, self.sequence, Opaque(key))));
    }

    /// Waits for the earliest key; for ever while there is none. Nothing is lost when the wait is given up.
    pub(super) async fn next(&mut self) -> K {
        loop {
            match self.heap.peek() {
                None => std::future::pending().await,
                Some(Reverse((at, _, _))) if *at > Instant::now() => sleep_until(*at).await,
                Some(_) => {
                    if let Some(Reverse((_, _, Opaque(key)))) = self.heap.pop() {
                        return key;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn keys_come_in_the_order_of_their_instants() {
        let begin = Instant::now();
        let mut timers = Timers::new();
        for (second, key) in [(3, "c"), (1, "a"), (1, "b")] {
            timers.set(begin + Duration::from_secs(second), key);
        }
        assert!(
            tokio::time::timeout(Duration::from_millis(500), timers.next())
                .await
                .is_err()
        );
        for (second, key) in [(1, "a"), (1, "b"), (3, "c")] {
            assert_eq!(timers.next().await, key);
            assert_eq!((Instant::now() - begin).as_secs(), second);
        }
        assert!(
            tokio::time::timeout(Duration::from_secs(60), timers.next())
                .await
                .is_err()
        );
    }
}
