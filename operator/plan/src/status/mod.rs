//! Counts and judgements about what is there. Pods on their way out, and those that ended, count nowhere.

pub mod clique;
pub mod gang;
pub mod group;
pub mod summary;

use jiff::Timestamp;

use crate::hash::TemplateHash;

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
