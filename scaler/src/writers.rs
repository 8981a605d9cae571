//! Who writes the replicas: we, or someone else, too.

use std::collections::BTreeMap;
use std::time::Duration;

use coppice_scaler_plan::StepObject;
use jiff::Timestamp;

use crate::observe::fleet::since;
use crate::views::Version;

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
    /// What we wrote last, until we see a state that is not older than it.
    written: Option<(u32, Option<Version>)>,
    foreign: Vec<Timestamp>,
}

fn key(object: StepObject) -> Object {
    match object {
        StepObject::Sets => None,
        StepObject::Role { role, set } => Some((role, set)),
    }
}

impl Writers {
    /// Takes in the value that an object has now, and in which version. `writing`: whether we are the one who writes it; otherwise every change is
    /// as it should be.
    ///
    /// A state that is older than our last write tells nothing. Any other one must have the value that we wrote, or, when we wrote nothing, the value
    /// it had; so a change that was undone before we looked again is noticed, too.
    pub(crate) fn observe(
        &mut self,
        object: StepObject,
        (value, version): (u32, Option<Version>),
        writing: bool,
        now: Timestamp,
    ) {
        let seen = self.objects.entry(key(object)).or_insert_with(|| Seen {
            value,
            ..Seen::default()
        });
        seen.foreign.retain(|at| since(Some(*at), now) < MEMORY);
        let expected = match seen.written {
            None => seen.value,
            Some((written, at)) => {
                let is_older = match (version, at) {
                    (Some(version), Some(at)) => version < at,
                    _ => value != written,
                };
                if is_older {
                    return;
                }
                written
            }
        };
        seen.written = None;
        seen.value = value;
        if value != expected && writing {
            seen.foreign.push(now);
        }
    }

    /// Takes in that we wrote `value`, which made `version` of the object.
    pub(crate) fn wrote(&mut self, object: StepObject, value: u32, version: Option<Version>) {
        self.objects.entry(key(object)).or_default().written = Some((value, version));
    }

    /// Forgets objects that are gone.
    pub(crate) fn keep(&mut self, exists: impl Fn(Option<(usize, u32)>) -> bool) {
        self.objects.retain(|object, _| exists(*object));
    }

    /// Whether a write of ours has not been seen yet.
    pub(crate) fn waits(&self) -> bool {
        self.objects.values().any(|seen| seen.written.is_some())
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

    fn state(value: u32, version: u128) -> (u32, Option<Version>) {
        (value, Some(Version(version)))
    }

    #[test]
    fn our_own_writes_are_no_conflict_however_late_they_are_seen() {
        let mut writers = Writers::default();
        writers.observe(DECODE, state(1, 1), true, at(0));
        for round in 1..20_u32 {
            let (value, version) = (round * 10, u128::from(round) * 10);
            writers.wrote(DECODE, value, Some(Version(version)));
            writers.wrote(DECODE, value + 1, Some(Version(version + 1)));
            let second = at(round.into());
            writers.observe(DECODE, state(value - 9, version - 1), true, second);
            writers.observe(DECODE, state(value, version), true, second);
            writers.observe(DECODE, state(value + 1, version + 1), true, second);
            writers.observe(DECODE, state(value + 1, version + 5), true, second);
        }
        assert!(!writers.conflict(Some(1)));
    }

    #[test]
    fn one_edit_is_taken_over_and_two_are_a_conflict_for_ten_minutes() {
        let mut writers = Writers::default();
        writers.observe(DECODE, state(1, 1), true, at(0));
        writers.observe(DECODE, state(7, 2), true, at(10));
        assert!(!writers.conflict(Some(1)));
        writers.wrote(DECODE, 3, Some(Version(3)));
        writers.observe(DECODE, state(3, 3), true, at(15));
        writers.observe(DECODE, state(7, 4), true, at(20));
        assert!(writers.conflict(Some(1)) && !writers.conflict(Some(0)) && !writers.conflict(None));
        writers.observe(DECODE, state(7, 4), true, at(619));
        assert!(
            !writers.conflict(Some(1)),
            "the first of the two is forgotten"
        );
    }

    #[test]
    fn a_rival_that_undoes_our_write_before_we_look_again_is_noticed() {
        let mut writers = Writers::default();
        writers.observe(DECODE, state(2, 1), true, at(0));
        for second in 1..3 {
            writers.wrote(DECODE, 3, Some(Version(10 * second)));
            writers.observe(DECODE, state(2, 10 * second + 1), true, at(5));
        }
        assert!(writers.conflict(Some(1)));
    }

    #[test]
    fn without_versions_nobody_is_accused_of_what_may_be_our_own_delay() {
        let mut writers = Writers::default();
        writers.observe(DECODE, (2, None), true, at(0));
        for _ in 0..3 {
            writers.wrote(DECODE, 3, None);
            writers.observe(DECODE, (2, None), true, at(5));
        }
        assert!(!writers.conflict(Some(1)));
        writers.observe(DECODE, (3, None), true, at(6));
        writers.observe(DECODE, (2, None), true, at(7));
        writers.observe(DECODE, (4, None), true, at(8));
        assert!(writers.conflict(Some(1)));
    }

    #[test]
    fn where_others_are_meant_to_write_nothing_is_a_conflict() {
        let mut writers = Writers::default();
        for value in 0..9 {
            writers.observe(
                StepObject::Sets,
                state(value, value.into()),
                false,
                at(value.into()),
            );
        }
        assert!(!writers.conflict(None));
    }
}
