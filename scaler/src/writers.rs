//! Who writes the replicas: we, or someone else, too.

use std::collections::BTreeMap;
use std::time::Duration;

use coppice_scaler_plan::StepObject;
use jiff::Timestamp;

use crate::observe::fleet::since;

/// Foreign changes of one object within [`MEMORY`] that make a conflict. One is a person's edit: the new number is simply where we go on from.
const CONFLICT: usize = 2;
/// How long a foreign change is remembered.
const MEMORY: Duration = Duration::from_secs(600);

/// What was last seen of and written to each object.
#[derive(Debug, Clone, Default)]
pub(crate) struct Writers {
    objects: BTreeMap<Object, Seen>,
}

/// A role in a set, or the sets themselves.
type Object = Option<(usize, u32)>;

#[derive(Debug, Clone, Default)]
struct Seen {
    value: u32,
    /// Values that we wrote and that may still be on their way to us.
    written: Vec<u32>,
    foreign: Vec<Timestamp>,
}

fn key(object: StepObject) -> Object {
    match object {
        StepObject::Sets => None,
        StepObject::Role { role, set } => Some((role, set)),
    }
}

impl Writers {
    /// Takes in the value that an object has now. `writing`: whether we are the one who writes it; otherwise every change is as it should be.
    pub(crate) fn observe(
        &mut self,
        object: StepObject,
        value: u32,
        writing: bool,
        now: Timestamp,
    ) {
        let seen = self.objects.entry(key(object)).or_insert_with(|| Seen {
            value,
            ..Seen::default()
        });
        seen.foreign.retain(|at| since(Some(*at), now) < MEMORY);
        if seen.value == value {
            return;
        }
        seen.value = value;
        match seen.written.iter().rposition(|written| *written == value) {
            Some(position) => drop(seen.written.drain(..=position)),
            None if writing => seen.foreign.push(now),
            None => {}
        }
    }

    /// Takes in that we wrote `value`.
    pub(crate) fn wrote(&mut self, object: StepObject, value: u32) {
        let seen = self.objects.entry(key(object)).or_default();
        seen.written.push(value);
        if seen.written.len() > 8 {
            seen.written.remove(0);
        }
    }

    /// Forgets objects that are gone.
    pub(crate) fn keep(&mut self, exists: impl Fn(Option<(usize, u32)>) -> bool) {
        self.objects.retain(|object, _| exists(*object));
    }

    /// Whether someone else writes a role's replicas in any set, or the sets.
    pub(crate) fn conflict(&self, role: Option<usize>) -> bool {
        let objects = self
            .objects
            .iter()
            .filter(|(object, _)| object.map(|(role, _)| role) == role);
        objects
            .into_iter()
            .any(|(_, seen)| seen.foreign.len() >= CONFLICT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DECODE: StepObject = StepObject::Role { role: 1, set: 0 };

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn our_own_writes_are_no_conflict_however_late_they_are_seen() {
        let mut writers = Writers::default();
        writers.observe(DECODE, 1, true, at(0));
        for value in 2..20 {
            writers.wrote(DECODE, value);
            writers.wrote(DECODE, value + 100);
            writers.observe(DECODE, value, true, at(value.into()));
            writers.observe(DECODE, value + 100, true, at(value.into()));
        }
        assert!(!writers.conflict(Some(1)));
    }

    #[test]
    fn one_edit_is_taken_over_and_two_are_a_conflict_for_ten_minutes() {
        let mut writers = Writers::default();
        writers.observe(DECODE, 1, true, at(0));
        writers.observe(DECODE, 7, true, at(10));
        assert!(!writers.conflict(Some(1)));
        writers.wrote(DECODE, 3);
        writers.observe(DECODE, 3, true, at(15));
        writers.observe(DECODE, 7, true, at(20));
        assert!(writers.conflict(Some(1)) && !writers.conflict(Some(0)) && !writers.conflict(None));
        writers.observe(DECODE, 7, true, at(619));
        assert!(
            !writers.conflict(Some(1)),
            "the first of the two is forgotten"
        );
    }

    #[test]
    fn where_others_are_meant_to_write_nothing_is_a_conflict() {
        let mut writers = Writers::default();
        for value in 0..9 {
            writers.observe(StepObject::Sets, value, false, at(value.into()));
        }
        assert!(!writers.conflict(None));
    }
}
