//! What is known about a kind of server, as data.

use super::signal::{Kind, Signal};

/// What is known about one kind of server.
#[derive(Debug)]
pub struct Engine {
    /// Its name in answers and messages, lower case.
    pub name: &'static str,
    /// The versions whose series were read.
    pub versions: &'static str,
    /// Where it serves its series, and what has to be switched on for that.
    pub place: &'static str,
    /// What a reader of its numbers should know.
    pub note: &'static str,
    /// What it stands for.
    pub tier: Tier,
    /// A body with any of these is this server's, or holds its series.
    pub marks: &'static [Mark],
    /// Other beginnings of its series names.
    pub spellings: &'static [Spelling],
    /// The label that names the model, on most of its series.
    pub model_label: Option<&'static str>,
    /// What stands in that label where the server was not told a name.
    pub unnamed_model: Option<&'static str>,
    /// The label that tells the role, with what its values mean.
    pub role_label: Option<RoleLabel>,
    /// A gauge with the process' start time; it moves when the process restarts.
    pub start_time: Option<&'static str>,
    /// The label that tells processes apart whose gauges outlive them.
    pub process_label: Option<&'static str>,
    /// Every series appears with its first event, whatever its server.
    pub appears_late: bool,
    /// What its series mean.
    pub rules: &'static [Rule],
}

/// What an endpoint stands for. Signals of different tiers are never added: a frontend counts what its workers count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Tier {
    /// Runs a model.
    Engine,
    /// Runs a model behind a wrapper that has signals of its own, and may hold an engine's.
    Worker,
    /// Stands before others: a gateway, a router.
    Frontend,
}

/// What a kind of server is known by.
#[derive(Debug, Clone, Copy)]
pub struct Mark {
    /// This must be in the body,
    pub sign: Sign,
    /// and this too,
    pub with: Option<Sign>,
    /// and this must not.
    pub without: Option<Sign>,
}

/// Something to be found in a body. Help texts and most labels change too often to be one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sign {
    /// A series name that starts like this.
    Prefix(&'static str),
    /// This series name.
    Name(&'static str),
    /// This series name, with this label.
    Label(&'static str, &'static str),
}

/// Other beginnings that may stand for the one which the rules use.
#[derive(Debug, Clone, Copy)]
pub struct Spelling {
    /// How the rules spell it.
    pub rule: &'static str,
    /// How servers spell it too.
    pub others: &'static [&'static str],
}

/// A label that tells the role.
#[derive(Debug)]
pub struct RoleLabel {
    /// The label.
    pub label: &'static str,
    /// Its values, each with the role: `prefill`, `decode`, `aggregated`.
    pub roles: &'static [(&'static str, &'static str)],
}

/// How one signal is read from one server.
#[derive(Debug)]
pub struct Rule {
    /// The signal.
    pub signal: Signal,
    /// Alternatives; the first whose series are in the body holds.
    pub sources: &'static [Source],
}

/// Series that make up a signal together.
#[derive(Debug)]
pub struct Source {
    /// Terms to be put together from left to right; see [`Role`].
    pub terms: &'static [Term],
    /// The versions that have it; empty for all that were read.
    pub versions: &'static str,
    /// Moves only when a request ends.
    pub at_finish: bool,
    /// The series appears with its first event; until then its absence means zero, if others have it.
    pub late: bool,
    /// Holds only where a series passes its first term's tests; otherwise the name is enough.
    pub by_labels: bool,
}

/// One series name with the labels that select it.
#[derive(Debug)]
pub struct Term {
    /// The series name; of a histogram, without `_bucket`, `_sum` and `_count`.
    pub name: &'static str,
    /// Tests that all must hold.
    pub labels: &'static [(&'static str, LabelTest)],
    /// How its values are read.
    pub reading: Reading,
    /// Multiplies its values, to give the signal's unit.
    pub scale: f64,
    /// How several series of it become one.
    pub fold: Fold,
    /// What it does in its source.
    pub role: Role,
    /// The source is whole without it.
    pub optional: bool,
}

/// What a term does with what stands left of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Is added.
    Add,
    /// Is subtracted.
    Subtract,
    /// Multiplies the term that was added last; of several series the greatest.
    Factor,
    /// Divides the term that was added last; of several series their sum. Nothing is known where it is zero.
    Divisor,
    /// Divides the term that was added last by itself once for each of that term's series.
    DivisorOfEach,
}

/// How several series of one term and model become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fold {
    /// Their sum; of shares, mean and greatest are kept apart.
    Sum,
    /// The greatest: each says the same of the whole.
    Max,
    /// Their mean.
    Mean,
}

/// A test of a label's value; an absent label reads as the empty text.
#[derive(Debug, Clone, Copy)]
pub enum LabelTest {
    /// Exactly this.
    Is(&'static str),
    /// One of these.
    OneOf(&'static [&'static str]),
    /// None of these.
    NoneOf(&'static [&'static str]),
}

/// How the values of a series are read.
#[derive(Debug, Clone, Copy)]
pub enum Reading {
    /// A number of things, now.
    Gauge,
    /// A share, 0–1, now.
    Ratio,
    /// A number of things since the process began.
    Counter,
    /// Observations since the process began.
    Histogram {
        /// Whether buckets are kept, for quantiles; otherwise sum and count alone, for means.
        buckets: bool,
    },
    /// A sum of observations and, under another name, their number: a mean.
    Mean {
        /// The name of their number.
        count: &'static str,
    },
    /// A number that stands in labels: the product of the first list whose labels are all numbers.
    Labels(&'static [&'static [&'static str]]),
    /// A label of the series with the greatest value, which is a Unix time; the others are of the past.
    Newest {
        /// The label.
        label: &'static str,
        /// Whether it lists names, whose number is wanted; otherwise it is a number.
        names: bool,
    },
}

impl Mark {
    pub(super) const fn new(sign: Sign) -> Self {
        Self {
            sign,
            with: None,
            without: None,
        }
    }

    pub(super) const fn with(mut self, sign: Sign) -> Self {
        self.with = Some(sign);
        self
    }

    pub(super) const fn without(mut self, sign: Sign) -> Self {
        self.without = Some(sign);
        self
    }
}

/// A body with a name that starts like this.
pub(super) const fn prefix(prefix: &'static str) -> Mark {
    Mark::new(Sign::Prefix(prefix))
}

impl LabelTest {
    /// Whether it holds for this value.
    #[must_use]
    pub fn holds(self, value: &str) -> bool {
        match self {
            Self::Is(expected) => value == expected,
            Self::OneOf(values) => values.contains(&value),
            Self::NoneOf(values) => !values.contains(&value),
        }
    }
}

impl Term {
    pub(super) const fn new(name: &'static str, reading: Reading) -> Self {
        Self {
            name,
            labels: &[],
            reading,
            scale: 1.0,
            fold: Fold::Sum,
            role: Role::Add,
            optional: false,
        }
    }

    pub(super) const fn only(mut self, labels: &'static [(&'static str, LabelTest)]) -> Self {
        self.labels = labels;
        self
    }

    pub(super) const fn scaled(mut self, scale: f64) -> Self {
        self.scale = scale;
        self
    }

    pub(super) const fn minus(mut self) -> Self {
        self.role = Role::Subtract;
        self
    }

    pub(super) const fn times(mut self) -> Self {
        self.role = Role::Factor;
        self
    }

    pub(super) const fn over(mut self) -> Self {
        self.role = Role::Divisor;
        self
    }

    pub(super) const fn over_each(mut self) -> Self {
        self.role = Role::DivisorOfEach;
        self
    }

    pub(super) const fn optional(mut self) -> Self {
        self.optional = true;
        self
    }
}

impl Source {
    pub(super) const fn of(terms: &'static [Term]) -> Self {
        Self {
            terms,
            versions: "",
            at_finish: false,
            late: false,
            by_labels: false,
        }
    }

    pub(super) const fn at_finish(mut self) -> Self {
        self.at_finish = true;
        self
    }

    pub(super) const fn late(mut self) -> Self {
        self.late = true;
        self
    }

    pub(super) const fn by_labels(mut self) -> Self {
        self.by_labels = true;
        self
    }

    pub(super) const fn versions(mut self, versions: &'static str) -> Self {
        self.versions = versions;
        self
    }
}

impl Role {
    /// Whether it stands for a sum, so that its series may be added up over models and times.
    pub(crate) const fn is_sum(self) -> bool {
        matches!(self, Self::Add | Self::Subtract)
    }
}

impl Reading {
    /// The kinds of signal that may be read so.
    #[must_use]
    pub const fn gives(self, kind: Kind) -> bool {
        match self {
            Self::Gauge => matches!(kind, Kind::Gauge | Kind::Ratio),
            Self::Ratio => matches!(kind, Kind::Ratio),
            Self::Labels(_) | Self::Newest { .. } => matches!(kind, Kind::Gauge),
            Self::Counter => matches!(kind, Kind::Counter),
            Self::Histogram { buckets: true } => matches!(kind, Kind::Histogram),
            Self::Histogram { buckets: false } | Self::Mean { .. } => {
                matches!(kind, Kind::Histogram | Kind::Mean)
            }
        }
    }
}

pub(super) const fn rule(signal: Signal, sources: &'static [Source]) -> Rule {
    Rule { signal, sources }
}

pub(super) const fn gauge(name: &'static str) -> Term {
    Term::new(name, Reading::Gauge)
}

pub(super) const fn ratio(name: &'static str) -> Term {
    Term::new(name, Reading::Ratio)
}

pub(super) const fn counter(name: &'static str) -> Term {
    Term::new(name, Reading::Counter)
}

/// A histogram in the signal's unit, with its buckets.
pub(super) const fn histogram(name: &'static str) -> Term {
    Term::new(name, Reading::Histogram { buckets: true })
}

/// A histogram of which only the mean is wanted.
pub(super) const fn mean(name: &'static str) -> Term {
    Term::new(name, Reading::Histogram { buckets: false })
}

/// A counter over another one.
pub(super) const fn quotient(sum: &'static str, count: &'static str) -> Term {
    Term::new(sum, Reading::Mean { count })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_absent_label_reads_as_empty() {
        assert!(LabelTest::OneOf(&["", "0"]).holds(""));
        assert!(!LabelTest::Is("0").holds(""));
        assert!(LabelTest::NoneOf(&["x"]).holds(""));
    }
}
