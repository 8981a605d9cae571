//! What units really work off, against what their profile says.
//!
//! A profile comes from a benchmark of other lengths, another version, another day. Units with a queue in front of them do all they can: what they work
//! off then is their capacity. Units without one do what is asked: that is a lower bound. So the estimate sinks only while requests wait, and rises
//! whenever more was worked off than it says possible.

use std::collections::VecDeque;
use std::time::Duration;

use jiff::Timestamp;

use crate::observation::RoleObservation;
use crate::reading::elapsed;

/// The estimate is never below this: beyond it the profile is of another engine.
const LEAST: f64 = 0.25;
/// Requests in front of a unit from which it counts as saturated.
const SATURATED: f64 = 4.0;
/// Nothing is learned for this long after a unit has become ready: it has not taken its part yet, and what waits waits for the others.
const SETTLED: Duration = Duration::from_secs(120);
/// Nothing is learned before units have been watched for this long.
const WATCHED: Duration = Duration::from_secs(30);
/// Numbers of ready units that are kept.
const KEPT: usize = 256;
/// Weight of a new sample.
const WEIGHT: f64 = 0.05;

/// The estimate, with the numbers of units that were ready lately.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Efficiency {
    /// `None`: nothing was learned, the profile stands.
    pub(crate) share: Option<f64>,
    ready: VecDeque<(Timestamp, u32)>,
}

impl Efficiency {
    /// An estimate from before a restart.
    pub(crate) fn restored(share: f64) -> Self {
        Self {
            share: (share.is_finite() && share < 1.0).then_some(share.max(LEAST)),
            ready: VecDeque::new(),
        }
    }

    /// Takes in what a role's units were seen to do, where `rate` is what one unit works off at most by its profile, in input tokens per second.
    pub(crate) fn learn(&mut self, observed: &RoleObservation, rate: f64, at: Timestamp) {
        let ready = observed.endpoints;
        let settled = self.settled(ready, at) && observed.answered >= ready && ready > 0;
        let (Some(worked_off), true) = (observed.input_tokens_per_second, settled) else {
            return;
        };
        let units = f64::from(ready);
        let seen = worked_off / units / rate;
        let saturated = observed
            .waiting
            .is_some_and(|waiting| waiting >= SATURATED * units);
        let known = self.share.unwrap_or(1.0);
        let next = if saturated {
            known + WEIGHT * (seen - known)
        } else {
            known.max(seen)
        };
        self.share = (next < 1.0).then_some(next.max(LEAST));
    }

    /// Whether the same units have been ready for long enough: nobody has come, or has come so lately.
    fn settled(&mut self, ready: u32, at: Timestamp) -> bool {
        self.ready.push_back((at, ready));
        while self.ready.len() > KEPT
            || self
                .ready
                .front()
                .is_some_and(|(first, _)| elapsed(*first, at) > SETTLED)
        {
            self.ready.pop_front();
        }
        let watched = self.ready.front();
        watched.is_some_and(|(first, _)| elapsed(*first, at) >= WATCHED)
            && self.ready.iter().all(|(_, before)| *before >= ready)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// Four units that a profile says work off 1,000 tokens/s each.
    fn seen(tokens: f64, waiting: f64) -> RoleObservation {
        RoleObservation {
            endpoints: 4,
            answered: 4,
            input_tokens_per_second: Some(tokens),
            waiting: Some(waiting),
            ..RoleObservation::default()
        }
    }

    fn after(
        mut efficiency: Efficiency,
        seconds: std::ops::Range<i64>,
        observed: &RoleObservation,
    ) -> Efficiency {
        for second in seconds.step_by(5) {
            efficiency.learn(observed, 1_000.0, at(second));
        }
        efficiency
    }

    #[test]
    fn what_saturated_units_work_off_is_their_capacity() {
        let slow = after(Efficiency::default(), 0..600, &seen(2_000.0, 100.0));
        assert!(
            slow.share.is_some_and(|share| (share - 0.5).abs() < 0.01),
            "{slow:?}"
        );
        let idle = after(slow.clone(), 600..1_200, &seen(400.0, 0.0));
        assert_eq!(
            idle.share, slow.share,
            "no load says nothing about capacity"
        );
        let busy = after(slow.clone(), 600..1_200, &seen(3_200.0, 0.0));
        assert!(
            busy.share.is_some_and(|share| (share - 0.8).abs() < 1e-9),
            "{busy:?}"
        );
        let well = after(slow, 600..1_200, &seen(4_400.0, 0.0));
        assert_eq!(well.share, None, "the profile stands");
    }

    #[test]
    fn units_that_have_just_become_ready_and_answers_of_some_say_nothing() {
        let early = after(Efficiency::default(), 0..30, &seen(2_000.0, 100.0));
        assert_eq!(early.share, None);
        let partial = RoleObservation {
            answered: 3,
            ..seen(2_000.0, 100.0)
        };
        assert_eq!(after(Efficiency::default(), 0..600, &partial).share, None);
        let nothing = RoleObservation {
            input_tokens_per_second: None,
            ..seen(0.0, 100.0)
        };
        assert_eq!(after(Efficiency::default(), 0..600, &nothing).share, None);
    }

    #[test]
    fn nothing_is_learned_while_newcomers_take_over() {
        let slow = after(Efficiency::default(), 0..600, &seen(2_000.0, 100.0));
        let mut grown = slow.clone();
        for second in (600..700).step_by(5) {
            let eight = RoleObservation {
                endpoints: 8,
                answered: 8,
                ..seen(2_400.0, 100.0)
            };
            grown.learn(&eight, 1_000.0, at(second));
        }
        assert_eq!(grown.share, slow.share);
    }

    #[test]
    fn the_estimate_is_bounded() {
        let stuck = after(Efficiency::default(), 0..3_600, &seen(0.0, 1_000.0));
        assert_eq!(stuck.share, Some(LEAST));
        assert_eq!(Efficiency::restored(f64::NAN).share, None);
        assert_eq!(Efficiency::restored(0.01).share, Some(LEAST));
    }
}
