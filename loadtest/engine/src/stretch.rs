//! Consecutive steps of a batch that does not change.

use std::time::Duration;

use crate::blocks::Growth;
use crate::histogram::floor_to_u64;
use crate::sequence::Sequence;
use crate::step::Progression;

/// Steps of an unchanging batch without prompt chunks.
///
/// The end of step j follows from the start by one formula, so it is the same whether the steps before it were walked or
/// jumped over.
#[derive(Debug, Clone)]
pub(crate) struct Stretch {
    start: Duration,
    progression: Progression,
    /// Its members, by the gap to their first token in it.
    pub(crate) gaps: Gaps,
    /// The step after which something has to be decided anew, `1..`.
    pub(crate) limit: u64,
    /// Steps that have ended.
    pub(crate) done: u64,
    /// Steps that the sequences themselves know of.
    pub(crate) settled: u64,
    /// Need for blocks beyond the first step's.
    growth: Growth,
    /// Blocks of that need that have been taken from the pool.
    taken: u64,
}

impl Stretch {
    pub(crate) fn new(
        start: Duration,
        progression: Progression,
        gaps: Gaps,
        limit: u64,
        growth: Growth,
    ) -> Self {
        Self {
            start,
            progression,
            gaps,
            limit,
            done: 0,
            settled: 0,
            growth,
            taken: 0,
        }
    }

    /// How many sequences are in the steps: the first so many running ones.
    pub(crate) fn members(&self) -> usize {
        self.gaps.members()
    }

    pub(crate) fn start(&self) -> Duration {
        self.start
    }

    pub(crate) fn progression(&self) -> Progression {
        self.progression
    }

    /// When step `step` ends; step 0 ends at the start.
    pub(crate) fn end_of(&self, step: u64) -> Duration {
        self.start + nanoseconds(self.progression.total(step))
    }

    /// How many steps, at most the limit, have ended by `time`.
    pub(crate) fn steps_by(&self, time: Duration) -> u64 {
        let Some(elapsed) = time.checked_sub(self.start) else {
            return 0;
        };
        let Progression { first, increment } = self.progression;
        let elapsed = elapsed.as_secs_f64();
        // total(j) = increment/2·j² + (first − increment/2)·j
        let linear = first - increment / 2.0;
        let estimate = if increment > 0.0 {
            ((linear * linear + 2.0 * increment * elapsed).sqrt() - linear) / increment
        } else {
            elapsed / first
        };
        let mut steps = floor_to_u64(estimate).min(self.limit);
        while steps < self.limit && self.end_of(steps + 1) <= time {
            steps += 1;
        }
        while steps > 0 && self.end_of(steps) > time {
            steps -= 1;
        }
        steps
    }

    /// The step, beyond those done, at whose end a request that turned up at `trigger` can join.
    pub(crate) fn stop_for(&self, trigger: Option<Duration>) -> u64 {
        let Some(trigger) = trigger else {
            return self.limit;
        };
        let before = trigger
            .checked_sub(Duration::from_nanos(1))
            .map_or(0, |just_before| self.steps_by(just_before));
        (before + 1).max(self.done + 1).min(self.limit)
    }

    /// Ends the stretch with the step in progress; its members' blocks for that step have been taken.
    pub(crate) fn end_with_this_step(&mut self) {
        self.limit = self.limit.min(self.done + 1);
        self.growth = Growth::default();
        self.taken = 0;
    }

    /// Blocks in use in the step in progress that have not been taken from the pool.
    pub(crate) fn blocks_to_take(&self) -> u64 {
        self.growth.blocks_by((self.done + 1).min(self.limit)) - self.taken
    }

    pub(crate) fn took(&mut self, blocks: u64) {
        self.taken += blocks;
    }
}

/// The members of a stretch, by what its first step means for their gaps between tokens.
#[derive(Debug, Clone, Default)]
pub(crate) struct Gaps {
    /// They made a token in the step before.
    pub(crate) regular: usize,
    /// They make their first token.
    pub(crate) first: usize,
    /// They made their latest token earlier, at these times.
    pub(crate) late: Vec<Duration>,
}

impl Gaps {
    pub(crate) fn add(&mut self, sequence: &Sequence, start: Duration) {
        if sequence.generated == 0 {
            self.first += 1;
        } else if sequence.last_token == start {
            self.regular += 1;
        } else {
            self.late.push(sequence.last_token);
        }
    }

    /// Takes out a member that leaves after `done` steps; after the first step all are alike.
    pub(crate) fn remove(&mut self, sequence: &Sequence, start: Duration, done: u64) {
        if done > 0 {
            *self = Self {
                regular: self.members() - 1,
                first: 0,
                late: Vec::new(),
            };
        } else if sequence.generated == 0 {
            self.first -= 1;
        } else if sequence.last_token == start {
            self.regular -= 1;
        } else if let Some(position) = self
            .late
            .iter()
            .position(|time| *time == sequence.last_token)
        {
            self.late.swap_remove(position);
        }
    }

    pub(crate) fn members(&self) -> usize {
        self.regular + self.first + self.late.len()
    }
}

/// A time in whole nanoseconds.
pub(crate) fn nanoseconds(seconds: f64) -> Duration {
    Duration::from_nanos(floor_to_u64(seconds * 1e9 + 0.5))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn stretch(start: Duration, progression: Progression) -> Stretch {
        Stretch::new(
            start,
            progression,
            Gaps::default(),
            1_000_000_000,
            Growth::default(),
        )
    }

    proptest! {
        #[test]
        fn steps_by_a_time_are_those_that_have_ended(
            first in 1e-6..0.1_f64,
            increment in prop_oneof![Just(0.0), 1e-9..1e-4_f64],
            elapsed in 0..100_000_000_000_u64,
        ) {
            let start = Duration::from_secs(5);
            let progression = Progression { first, increment };
            let stretch = stretch(start, progression);
            let time = start + Duration::from_nanos(elapsed);
            let steps = stretch.steps_by(time);
            prop_assert!(stretch.end_of(steps) <= time && stretch.end_of(steps + 1) > time);
        }

        #[test]
        fn an_arrival_joins_at_the_first_end_not_before_it(
            first in 1e-5..0.1_f64,
            increment in 0.0..1e-4_f64,
            after in 0..10_000_000_000_u64,
        ) {
            let progression = Progression { first, increment };
            let stretch = stretch(Duration::from_secs(1), progression);
            let trigger = Duration::from_secs(1) + Duration::from_nanos(after);
            let stop = stretch.stop_for(Some(trigger));
            prop_assert!(stretch.end_of(stop) >= trigger);
            prop_assert!(stop == 1 || stretch.end_of(stop - 1) < trigger);
        }
    }
}
