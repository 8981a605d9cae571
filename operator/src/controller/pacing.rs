//! When statuses are written: a burst of changes is one write.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::index::key::Unit;
use crate::queue::Queue;

/// A status is written this long after the first change that it does not show, so that what follows at once is in it too.
const GATHER: Duration = Duration::from_millis(100);
/// With many units to look at, statuses can wait: pods come first.
const PER_WAITING_UNIT: Duration = Duration::from_millis(2);
/// They never wait longer than this.
const LONGEST: Duration = Duration::from_secs(1);

/// Since when each unit's status has been out of date.
#[derive(Debug, Default)]
pub(crate) struct Pacing {
    behind: Mutex<HashMap<Unit, Instant>>,
}

/// Whether a status is to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    /// Now.
    Write,
    /// In a while; look again then.
    Wait(Duration),
}

impl Pacing {
    /// A unit's status differs from what was written.
    pub(crate) fn behind(&self, unit: &Unit, queue: &Queue) -> Pace {
        let waiting = u32::try_from(queue.depth().ready).unwrap_or(u32::MAX);
        let delay = (GATHER + PER_WAITING_UNIT.saturating_mul(waiting)).min(LONGEST);
        let mut behind = self.behind.lock();
        let since = *behind.entry(unit.clone()).or_insert_with(Instant::now);
        let passed = since.elapsed();
        if passed >= delay {
            behind.remove(unit);
            return Pace::Write;
        }
        Pace::Wait(delay - passed)
    }

    /// A unit's status is as written.
    pub(crate) fn level(&self, unit: &Unit) {
        self.behind.lock().remove(unit);
    }
}
