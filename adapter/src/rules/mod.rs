//! Rules: metrics under names of users' own, and engines of their own, from a file.
//!
//! [`file`] reads a text into a [`RuleSet`] that can work, or says of each mistake where it stands and what would do. [`evaluate`] answers
//! from it, [`follow`] keeps the set of the moment current with the file. A file is taken as a whole or not at all.

mod check;
mod evaluate;
mod expression;
mod file;
mod follow;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use coppice_signals::engines::Unit;
use coppice_signals::{Mapping, Overrides, Selector};
use parking_lot::RwLock;

pub(crate) use check::check;
pub(crate) use expression::Expression;
pub(crate) use file::read;
pub(crate) use follow::{Follower, RuleMetrics};

/// Bytes of a file.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// Rules in a file.
const MAX_RULES: usize = 256;
/// Bytes of a name.
const MAX_NAME_BYTES: usize = 128;

/// A metric under a name of its own.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Rule {
    /// Its name.
    pub name: String,
    /// How it is computed.
    pub expression: Expression,
    /// Endpoints that count, beside what a request selects.
    pub selector: Selector,
    /// Aggregation, window, staleness and quorum, where they are not the adapter's.
    pub overrides: Overrides,
    /// What it is served in; `None`: what the expression computes in.
    pub unit: Option<Unit>,
    /// What it is when there is nothing to measure.
    pub when_empty: WhenEmpty,
}

/// What a metric is when there is nothing to measure: no ready endpoint, or no observation within the window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum WhenEmpty {
    /// Missing.
    #[default]
    Error,
    /// 0.
    Zero,
}

/// All rules and mappings of a file.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct RuleSet {
    /// By name.
    pub rules: BTreeMap<String, Arc<Rule>>,
    /// Engines of users' own.
    pub mappings: Vec<Mapping>,
}

/// The set of the moment; all clones are the same.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rules {
    current: Arc<RwLock<Arc<RuleSet>>>,
}

impl WhenEmpty {
    const fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Zero => "zero",
        }
    }
}

impl RuleSet {
    /// The names of its rules, sorted.
    pub(crate) fn names(&self) -> Vec<String> {
        self.rules.keys().cloned().collect()
    }
}

impl Rules {
    /// The rule of a name, in any case.
    pub(crate) fn find(&self, name: &str) -> Option<Arc<Rule>> {
        let set = self.current.read();
        if set.rules.is_empty() {
            return None;
        }
        set.rules.get(&name.to_ascii_lowercase()).cloned()
    }

    /// Replaces all rules at once.
    pub(crate) fn replace(&self, set: RuleSet) {
        *self.current.write() = Arc::new(set);
    }
}

/// What a file is judged by that does not stand in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// The adapter's own look-back, which no rule can exceed.
    pub window: Duration,
}
