//! Counts and judgements about what is there. Pods on their way out, and those that ended, count nowhere.

pub mod clique;
pub mod gang;
pub mod group;
pub mod summary;

use jiff::Timestamp;

use crate::hash::TemplateHash;
use crate::template::Strategy;

/// Yes, no, or not to be said now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Truth {
    /// It is so.
    True,
    /// It is not.
    False,
    /// It is not judged now.
    Unknown,
}

impl From<bool> for Truth {
    fn from(is: bool) -> Self {
        if is { Self::True } else { Self::False }
    }
}

/// A judgement: what a condition says, without its times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict<R> {
    /// Whether it is so.
    pub is: Truth,
    /// Why, for programs.
    pub reason: R,
    /// Why, for people.
    pub message: String,
}

/// An update, running or ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// When it began.
    pub started: Timestamp,
    /// When everything that is wanted was ready in the new template; absent while it runs.
    pub ended: Option<Timestamp>,
    /// The set's digest it goes to.
    pub set_hash: TemplateHash,
    /// The clique's digest it goes to; the set's for groups and sets.
    pub template_hash: TemplateHash,
}

impl Progress {
    /// It has not ended.
    #[must_use]
    pub fn runs(&self) -> bool {
        self.ended.is_none()
    }
}

/// What one look tells about an update; of a clique, a group, or a set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Look<'a> {
    /// The set's digest.
    pub(crate) set_hash: &'a TemplateHash,
    /// What pods are to have in the end: the clique's digest, or the set's.
    pub(crate) target: &'a TemplateHash,
    /// Something left the target, or has yet to reach it, that is not a first start.
    pub(crate) begins: bool,
    /// Something has an old template.
    pub(crate) has_old: bool,
    /// Everything that is wanted has the target, and is up.
    pub(crate) is_done: bool,
    /// How changes reach pods. Under `OnDelete` nobody waits for pods to change.
    pub(crate) strategy: Strategy,
    /// The present.
    pub(crate) now: Timestamp,
}

/// The update after a look. A fixed point: nothing more may happen afterwards, so a second look at the same must say the
/// same, and what is over already when it is first seen ends in that look.
pub(crate) fn progress(before: Option<&Progress>, look: Look<'_>) -> Option<Progress> {
    let on_delete = look.strategy == Strategy::OnDelete;
    let ended = (look.is_done || on_delete).then_some(look.now);
    match before {
        // One that ended under `OnDelete` with old pods left begins anew when the strategy changes.
        Some(known)
            if known.template_hash == *look.target
                && (known.runs() || !look.has_old || on_delete) =>
        {
            Some(Progress {
                ended: known.ended.or(ended),
                // The same template, maybe reached through another change of the set.
                set_hash: look.set_hash.clone(),
                ..known.clone()
            })
        }
        // Where an update to another template runs, going back is one too, or that would never end.
        earlier if !look.begins && !earlier.is_some_and(Progress::runs) => earlier.cloned(),
        Some(_) | None => Some(Progress {
            started: look.now,
            ended,
            set_hash: look.set_hash.clone(),
            template_hash: look.target.clone(),
        }),
    }
}
