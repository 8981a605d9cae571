//! What is to come, in order.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::time::Duration;

/// What happens at an instant. At one instant the earlier variant goes first; arrivals come between [`Action::Apply`] and [`Action::Scrape`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    /// A unit's engine reaches a step's end that matters.
    Wake(usize),
    /// A unit's engine answers from now on.
    Ready(usize),
    /// A leaving unit's time is up.
    GraceOver(usize),
    /// The fault of this index begins.
    Fault(usize),
    /// GPUs may be free again.
    Relief,
    /// Replicas are written.
    Apply(Vec<u32>),
    /// Everything is scraped.
    Scrape,
    /// The policy decides.
    Decide,
}

/// Class of arrivals, which are read from the schedule and never queued here.
pub(crate) const ARRIVAL: u8 = 6;

impl Action {
    const fn class(&self) -> u8 {
        match self {
            Self::Wake(_) => 0,
            Self::Ready(_) => 1,
            Self::GraceOver(_) => 2,
            Self::Fault(_) => 3,
            Self::Relief => 4,
            Self::Apply(_) => 5,
            Self::Scrape => ARRIVAL + 1,
            Self::Decide => ARRIVAL + 2,
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Entry {
    at: Duration,
    class: u8,
    number: u64,
    action: Action,
}

impl Entry {
    fn key(&self) -> (Duration, u8, u64) {
        (self.at, self.class, self.number)
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Actions by (time, class, number).
#[derive(Debug, Default)]
pub(crate) struct Agenda {
    entries: BinaryHeap<Reverse<Entry>>,
    number: u64,
}

impl Agenda {
    pub(crate) fn add(&mut self, at: Duration, action: Action) {
        self.number += 1;
        self.entries.push(Reverse(Entry {
            at,
            class: action.class(),
            number: self.number,
            action,
        }));
    }

    /// Time and class of the next action.
    pub(crate) fn next(&self) -> Option<(Duration, u8)> {
        self.entries
            .peek()
            .map(|Reverse(entry)| (entry.at, entry.class))
    }

    pub(crate) fn take(&mut self) -> Option<(Duration, Action)> {
        self.entries
            .pop()
            .map(|Reverse(entry)| (entry.at, entry.action))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn actions_come_by_time_then_class_then_number() {
        let mut agenda = Agenda::default();
        let second = Duration::from_secs;
        agenda.add(second(2), Action::Wake(0));
        agenda.add(second(1), Action::Decide);
        agenda.add(second(1), Action::Ready(1));
        agenda.add(second(1), Action::Wake(7));
        agenda.add(second(1), Action::Wake(3));
        let order: Vec<Action> =
            std::iter::from_fn(|| agenda.take().map(|(_, action)| action)).collect();
        assert_eq!(
            order,
            [
                Action::Wake(7),
                Action::Wake(3),
                Action::Ready(1),
                Action::Decide,
                Action::Wake(0)
            ]
        );
    }
}
