//! Wall time that never jumps.

use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

/// Wall time at its creation plus monotonic time since. A wall clock that is set back would turn rates negative.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    base: Timestamp,
    start: Instant,
}

impl Clock {
    pub(crate) fn start() -> Self {
        Self {
            base: Timestamp::now(),
            start: Instant::now(),
        }
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.at(Instant::now())
    }

    /// The timestamp of an instant.
    pub(crate) fn at(&self, instant: Instant) -> Timestamp {
        self.base
            .checked_add(instant.saturating_duration_since(self.start))
            .unwrap_or(Timestamp::MAX)
    }

    /// The next instant that is `phase` after a whole number of `interval`s since the start, and at least `least` from now.
    pub(crate) fn next(&self, interval: Duration, phase: Duration, least: Duration) -> Instant {
        let elapsed = self.start.elapsed() + least;
        self.start + elapsed + until_tick(elapsed, interval, phase)
    }
}

/// Time from `elapsed` until it is `phase` after a whole number of `interval`s; more than zero, at most one interval.
fn until_tick(elapsed: Duration, interval: Duration, phase: Duration) -> Duration {
    let interval_nanos = interval.as_nanos().max(1);
    let since_phase = (elapsed + interval).saturating_sub(phase).as_nanos();
    let wait = interval_nanos - since_phase % interval_nanos;
    Duration::from_nanos(u64::try_from(wait).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_repeat_every_interval_at_their_phase() {
        let second = Duration::from_secs;
        let until = |elapsed| until_tick(elapsed, second(5), second(2));
        assert_eq!(until(second(0)), second(2));
        assert_eq!(until(second(2)), second(5));
        assert_eq!(until(second(3)), second(4));
        assert_eq!(
            until(Duration::from_millis(6900)),
            Duration::from_millis(100)
        );
        assert_eq!(until(second(5 * 1000)), second(2));
    }

    #[test]
    fn the_clock_does_not_go_back() {
        let clock = Clock::start();
        let earlier = clock.now();
        assert!(clock.now() >= earlier);
        assert!(
            clock.next(
                Duration::from_secs(5),
                Duration::ZERO,
                Duration::from_secs(1)
            ) > Instant::now()
        );
    }
}
