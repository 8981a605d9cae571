//! What was found out a moment ago: which endpoints a selection takes in, and answers to the same question.
//!
//! Many autoscalers ask the same, and samples are seconds apart: an answer holds for [`ANSWER_HOLDS`] at most. Those who ask the same
//! at the same time wait for the one that finds out. Whatever changes an endpoint empties all of it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;

use crate::endpoint::Endpoint;
use crate::query::{Answer, Missing, Query, Selection};

/// How long an answer is given again to the same question.
const ANSWER_HOLDS: Duration = Duration::from_millis(200);
/// Selections and answers kept at most, each.
const KEPT: usize = 1024;

/// Selections and answers of the present version of the index.
#[derive(Debug, Default)]
pub(crate) struct Recent {
    version: u64,
    selections: HashMap<Selection, Arc<[Arc<Endpoint>]>>,
    answers: HashMap<Query, Given>,
    /// Held by whoever is finding out an answer.
    turns: HashMap<Query, Arc<Mutex<()>>>,
}

/// An answer that was given.
#[derive(Debug)]
struct Given {
    at: Timestamp,
    answer: Result<Answer, Missing>,
    /// Somebody is finding out the next one.
    renewing: bool,
}

impl Recent {
    /// The live endpoints whose namespace and labels a selection matches, if known at this version.
    pub(crate) fn selection(
        &mut self,
        version: u64,
        selection: &Selection,
    ) -> Option<Arc<[Arc<Endpoint>]>> {
        if !self.follow(version) {
            return None;
        }
        self.selections.get(selection).map(Arc::clone)
    }

    /// Remembers what a selection takes in.
    pub(crate) fn remember_selection(
        &mut self,
        version: u64,
        selection: &Selection,
        endpoints: &Arc<[Arc<Endpoint>]>,
    ) {
        if !self.follow(version) {
            return;
        }
        if self.selections.len() >= KEPT {
            self.selections.clear();
        }
        self.selections
            .insert(selection.clone(), Arc::clone(endpoints));
    }

    /// The answer to the same question, given a moment before `now`.
    ///
    /// Where it is too old, one asker gets none and has to find out the next one; others get the old one meanwhile.
    pub(crate) fn answer(
        &mut self,
        version: u64,
        query: &Query,
        now: Timestamp,
    ) -> Option<Result<Answer, Missing>> {
        if !self.follow(version) {
            return None;
        }
        let given = self.answers.get_mut(query)?;
        let age = Duration::try_from(now.duration_since(given.at)).ok()?;
        let holds = if given.renewing {
            ANSWER_HOLDS * 2
        } else {
            ANSWER_HOLDS
        };
        given.renewing |= age >= ANSWER_HOLDS;
        (age < holds).then(|| given.answer.clone())
    }

    /// The turn to find out an answer: lock it, then look at [`Self::found_meanwhile`] before finding out.
    pub(crate) fn turn(&mut self, query: &Query) -> Arc<Mutex<()>> {
        if self.turns.len() >= KEPT {
            self.turns.clear();
        }
        Arc::clone(self.turns.entry(query.clone()).or_default())
    }

    /// The answer that somebody else has found out while one waited for one's turn.
    ///
    /// Others may have begun a little later than `now`, so an answer may also be a little younger than the question.
    pub(crate) fn found_meanwhile(
        &mut self,
        version: u64,
        query: &Query,
        now: Timestamp,
    ) -> Option<Result<Answer, Missing>> {
        if !self.follow(version) {
            return None;
        }
        let given = self.answers.get(query)?;
        let apart = now.duration_since(given.at).unsigned_abs();
        (apart < ANSWER_HOLDS).then(|| given.answer.clone())
    }

    /// Remembers an answer, and ends the turn.
    pub(crate) fn remember_answer(
        &mut self,
        version: u64,
        query: &Query,
        now: Timestamp,
        answer: &Result<Answer, Missing>,
    ) {
        self.turns.remove(query);
        if !self.follow(version) {
            return;
        }
        if self.answers.len() >= KEPT {
            self.answers.clear();
        }
        let given = Given {
            at: now,
            answer: answer.clone(),
            renewing: false,
        };
        self.answers.insert(query.clone(), given);
    }

    /// Forgets what was found out before this version of the index. `false`: a later one is known already.
    fn follow(&mut self, version: u64) -> bool {
        if self.version < version {
            self.version = version;
            self.selections.clear();
            self.answers.clear();
        }
        self.version == version
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_hold_for_a_moment_and_for_one_version() {
        let mut recent = Recent::default();
        let query = Query::parse("coppice_requests_waiting", None, "").unwrap();
        let at = |millis: i64| Timestamp::from_millisecond(1_000_000 + millis).unwrap();
        let answer = Err(Missing::NoEndpoints {
            selection: String::new(),
        });
        recent.remember_answer(1, &query, at(0), &answer);
        assert_eq!(recent.answer(1, &query, at(199)), Some(answer));
        assert_eq!(
            recent.answer(1, &query, at(200)),
            None,
            "the first to ask finds out"
        );
        assert!(
            recent.answer(1, &query, at(399)).is_some(),
            "others get the old one meanwhile"
        );
        assert_eq!(recent.answer(1, &query, at(400)), None, "but not for long");
        assert_eq!(recent.answer(1, &query, at(-1)), None);
        assert!(
            recent.found_meanwhile(1, &query, at(-1)).is_some(),
            "whoever waited takes an answer that began a little later"
        );
        assert_eq!(
            recent.found_meanwhile(1, &query, at(200)),
            None,
            "but not one that is too old"
        );
        assert_eq!(recent.answer(2, &query, at(0)), None);
        assert_eq!(
            recent.answer(1, &query, at(0)),
            None,
            "forgotten with its version"
        );
    }
}
