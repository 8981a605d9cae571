//! A bounded cache of answers that are asked for over the network.
//!
//! Guarantees: identical questions that are asked at the same time are asked once; errors are not kept; an answer is never used beyond the
//! time it was given for. A question goes on when its first asker has gone away, so that the others still get their answer.

use std::collections::HashMap;
use std::future::Future;
use std::hash::Hash;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use parking_lot::Mutex;

/// How long an answer may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Keep {
    /// Without a second thought; zero: not at all.
    pub fresh: Duration,
    /// After that, while it is being asked for again; zero: not at all.
    pub stretch: Duration,
}

/// A question that got no answer. The text is for the log.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct NoAnswer(pub Arc<str>);

type Pending<V> = Shared<BoxFuture<'static, Result<V, NoAnswer>>>;

enum Slot<V> {
    Known {
        value: V,
        fresh_until: Instant,
        usable_until: Instant,
        is_refreshing: bool,
    },
    Asking(Pending<V>),
}

/// See the module. Clones share it.
pub(crate) struct Cache<K, V> {
    slots: Arc<Mutex<HashMap<K, Slot<V>>>>,
    capacity: usize,
}

impl<K, V> Clone for Cache<K, V> {
    fn clone(&self) -> Self {
        Self {
            slots: Arc::clone(&self.slots),
            capacity: self.capacity,
        }
    }
}

impl<K, V> std::fmt::Debug for Cache<K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cache")
            .field("capacity", &self.capacity)
            .finish_non_exhaustive()
    }
}

impl<K, V> Cache<K, V>
where
    K: Clone + Eq + Hash + Send + 'static,
    V: Clone + Send + Sync + 'static,
{
    /// An empty cache of at most `capacity` answers.
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            slots: Arc::default(),
            capacity,
        }
    }

    /// The answer for a key: the kept one, the one that is under way, or a new one from `ask`.
    ///
    /// # Errors
    /// What `ask` returned, to everyone who waited for it.
    pub(crate) async fn get<F>(
        &self,
        key: K,
        now: Instant,
        ask: impl FnOnce() -> F,
    ) -> Result<V, NoAnswer>
    where
        F: Future<Output = Result<(V, Keep), NoAnswer>> + Send + 'static,
    {
        let pending = {
            let mut slots = self.slots.lock();
            match slots.get_mut(&key) {
                Some(Slot::Known {
                    value,
                    fresh_until,
                    usable_until,
                    is_refreshing,
                }) if now < *usable_until => {
                    let value = value.clone();
                    if now >= *fresh_until && !*is_refreshing {
                        *is_refreshing = true;
                        tokio::spawn(self.clone().settle(key, ask()));
                    }
                    return Ok(value);
                }
                Some(Slot::Asking(pending)) => pending.clone(),
                Some(Slot::Known { .. }) | None => {
                    self.make_room(&mut slots, now);
                    let task = tokio::spawn(self.clone().settle(key.clone(), ask()));
                    let pending = async move {
                        task.await
                            .unwrap_or_else(|_| Err(NoAnswer(Arc::from("the review was cut off"))))
                    };
                    let pending = pending.boxed().shared();
                    // The task needs the lock to settle, so it cannot be over before this.
                    slots.insert(key, Slot::Asking(pending.clone()));
                    pending
                }
            }
        };
        pending.await
    }

    async fn settle<F>(self, key: K, answer: F) -> Result<V, NoAnswer>
    where
        F: Future<Output = Result<(V, Keep), NoAnswer>> + Send + 'static,
    {
        let answer = answer.await;
        let mut slots = self.slots.lock();
        match answer {
            Ok((value, keep)) => {
                let fresh_until = Instant::now() + keep.fresh;
                let known = Slot::Known {
                    value: value.clone(),
                    fresh_until,
                    usable_until: fresh_until + keep.stretch,
                    is_refreshing: false,
                };
                slots.insert(key, known);
                Ok(value)
            }
            Err(error) => {
                match slots.get_mut(&key) {
                    // A failed renewal leaves the old answer to its end, and may be tried again.
                    Some(Slot::Known { is_refreshing, .. }) => *is_refreshing = false,
                    _ => drop(slots.remove(&key)),
                }
                Err(error)
            }
        }
    }

    fn make_room(&self, slots: &mut HashMap<K, Slot<V>>, now: Instant) {
        if slots.len() < self.capacity {
            return;
        }
        slots.retain(|_, slot| match slot {
            Slot::Known { usable_until, .. } => now < *usable_until,
            Slot::Asking(_) => true,
        });
        if slots.len() >= self.capacity {
            let victim = slots
                .iter()
                .find(|(_, slot)| matches!(slot, Slot::Known { .. }))
                .map(|(key, _)| key.clone());
            if let Some(victim) = victim {
                slots.remove(&victim);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    async fn answer(asked: Arc<AtomicUsize>, keep: Keep) -> Result<(usize, Keep), NoAnswer> {
        tokio::task::yield_now().await;
        Ok((asked.fetch_add(1, Ordering::SeqCst), keep))
    }

    #[tokio::test]
    async fn identical_questions_are_asked_once() {
        let cache: Cache<&str, usize> = Cache::new(10);
        let asked = Arc::new(AtomicUsize::new(0));
        let keep = Keep {
            fresh: SECOND,
            stretch: Duration::ZERO,
        };
        let now = Instant::now();
        let askers = (0..20).map(|_| cache.get("a", now, || answer(Arc::clone(&asked), keep)));
        let answers = futures::future::join_all(askers).await;
        assert!(answers.into_iter().all(|answer| answer == Ok(0)));
        assert_eq!(
            cache
                .get("a", now, || answer(Arc::clone(&asked), keep))
                .await,
            Ok(0)
        );
        assert_eq!(
            cache
                .get("b", now, || answer(Arc::clone(&asked), keep))
                .await,
            Ok(1)
        );
    }

    #[tokio::test]
    async fn an_old_answer_is_used_only_while_it_is_stretched_and_renewed() {
        let cache: Cache<&str, usize> = Cache::new(10);
        let asked = Arc::new(AtomicUsize::new(0));
        let keep = Keep {
            fresh: 10 * SECOND,
            stretch: 10 * SECOND,
        };
        let start = Instant::now();
        assert_eq!(
            cache
                .get("a", start, || answer(Arc::clone(&asked), keep))
                .await,
            Ok(0)
        );
        let failing = || async { Err(NoAnswer(Arc::from("down"))) };
        assert_eq!(
            cache.get("a", start + 15 * SECOND, failing).await,
            Ok(0),
            "stretched while the reviewer is down"
        );
        assert_eq!(
            cache.get("a", start + 21 * SECOND, failing).await,
            Err(NoAnswer(Arc::from("down")))
        );
        assert_eq!(
            cache
                .get("a", start + 21 * SECOND, || answer(
                    Arc::clone(&asked),
                    keep
                ))
                .await,
            Ok(1)
        );
    }

    #[tokio::test]
    async fn errors_are_not_kept() {
        let cache: Cache<&str, usize> = Cache::new(10);
        let now = Instant::now();
        assert!(
            cache
                .get("a", now, || async { Err(NoAnswer(Arc::from("down"))) })
                .await
                .is_err()
        );
        let keep = Keep {
            fresh: SECOND,
            stretch: Duration::ZERO,
        };
        assert_eq!(
            cache.get("a", now, || async move { Ok((7, keep)) }).await,
            Ok(7)
        );
    }

    #[tokio::test]
    async fn the_number_of_answers_is_bounded() {
        let cache: Cache<usize, usize> = Cache::new(8);
        let keep = Keep {
            fresh: 100 * SECOND,
            stretch: Duration::ZERO,
        };
        for key in 0..100 {
            cache
                .get(key, Instant::now(), || async move { Ok((key, keep)) })
                .await
                .unwrap();
        }
        assert!(cache.slots.lock().len() <= 8);
    }
}
