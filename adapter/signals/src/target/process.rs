//! Gauges that outlive their process.
//!
//! In Prometheus' multiprocess mode a gauge may name its process, and the series of a dead one stays until its folder is
//! emptied. A dead process changes nothing any more; a newer one shows that there was a restart. So a process counts as
//! dead when a newer one has come and nothing of it has changed since.

use std::cmp::Ordering;

/// A series that names no process, or one too many.
pub(super) const NONE: u8 = u8::MAX;
/// How many processes are told apart; series of further ones always count.
const TOLD_APART: usize = 64;

/// The processes that series name.
#[derive(Debug, Default)]
pub(super) struct Processes {
    known: Vec<Process>,
}

#[derive(Debug)]
struct Process {
    id: Box<str>,
    /// Commit at which it was seen first.
    born: u64,
    /// Commit at which something of it changed last.
    changed: Option<u64>,
}

impl Processes {
    /// The index of a process, which is remembered if it is new.
    pub(super) fn index(&mut self, id: &str, commit: u64) -> u8 {
        let known = self.known.iter().position(|process| *process.id == *id);
        let index = known.unwrap_or_else(|| {
            if self.known.len() < TOLD_APART {
                self.known.push(Process {
                    id: id.into(),
                    born: commit,
                    changed: None,
                });
                self.known.len() - 1
            } else {
                usize::from(NONE)
            }
        });
        u8::try_from(index).unwrap_or(NONE)
    }

    /// Whether there are several, so that some may be dead.
    pub(super) fn are_several(&self) -> bool {
        self.known.len() > 1
    }

    /// Notes that a series of a process has another value than at the last commit.
    pub(super) fn changed(&mut self, index: u8, commit: u64) {
        if let Some(process) = self.known.get_mut(usize::from(index)) {
            process.changed = Some(commit);
        }
    }

    /// The processes that are alive, as bits.
    ///
    /// Those that changed since the newest was born; while none did, the newest itself: of several seen at once, the one
    /// with the greatest id.
    pub(super) fn alive(&self) -> u64 {
        let Some(newest) = self.known.iter().map(|process| process.born).max() else {
            return u64::MAX;
        };
        let changed = self.bits(|process| process.changed.is_some_and(|changed| changed > newest));
        if changed != 0 {
            return changed;
        }
        let youngest = self
            .known
            .iter()
            .filter(|process| process.born == newest)
            .max_by(|one, other| by_number(&one.id, &other.id));
        self.bits(|process| youngest.is_some_and(|youngest| std::ptr::eq(youngest, process)))
    }

    fn bits(&self, holds: impl Fn(&Process) -> bool) -> u64 {
        self.known
            .iter()
            .enumerate()
            .filter(|(_, process)| holds(process))
            .fold(0, |bits, (index, _)| bits | 1 << index)
    }
}

/// Numbers without leading zeros, in order.
fn by_number(one: &str, other: &str) -> Ordering {
    one.len().cmp(&other.len()).then_with(|| one.cmp(other))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn processes(ids: &[(&str, u64)]) -> Processes {
        let mut processes = Processes::default();
        for (id, born) in ids {
            processes.index(id, *born);
        }
        processes
    }

    #[test]
    fn the_process_that_changes_is_alive() {
        let mut two = processes(&[("30", 0), ("7", 0)]);
        assert_eq!(two.alive(), 0b01, "of two seen at once the greatest id");
        two.changed(1, 1);
        assert_eq!(two.alive(), 0b10, "the other one changed");
        two.changed(0, 2);
        assert_eq!(two.alive(), 0b11, "both did");
    }

    #[test]
    fn a_newer_process_takes_the_place_of_one_that_changes_no_more() {
        let mut two = processes(&[("30", 0)]);
        two.changed(0, 5);
        assert_eq!(two.alive(), 0b1);
        two.index("31", 6);
        assert_eq!(two.alive(), 0b10);
        two.changed(1, 7);
        assert_eq!(two.alive(), 0b10);
    }

    #[test]
    fn processes_beyond_those_told_apart_have_no_index() {
        let mut many = Processes::default();
        for id in 0..TOLD_APART {
            assert_eq!(usize::from(many.index(&id.to_string(), 0)), id);
        }
        assert_eq!(many.index("64", 0), NONE);
        assert_eq!(many.index("3", 9), 3);
    }
}
