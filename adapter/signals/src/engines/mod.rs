//! Inference servers: how to recognise each, and which of its series make up which signal.
//!
//! Each server is one file with one [`Engine`]: names only, no code. Adding one means a file, a line in [`ENGINES`] and
//! bodies with expected values in `testdata/`. The names, since when they exist and what they count are each server's own;
//! prefer counters that move with each step to those that move when a request ends.

mod dynamo;
mod llamacpp;
mod recognise;
mod sglang;
mod signal;
mod vllm;

pub use recognise::{Recognition, recognise};
pub use signal::Signal;

/// Every server, in the order in which they are looked for. Wrappers come before what they wrap.
pub static ENGINES: [&Engine; 5] = [
    &dynamo::FRONTEND,
    &dynamo::WORKER,
    &vllm::ENGINE,
    &sglang::ENGINE,
    &llamacpp::ENGINE,
];

/// What is known about one kind of server.
#[derive(Debug)]
pub struct Engine {
    /// Its name in answers and messages, lower case.
    pub name: &'static str,
    /// What it stands for.
    pub tier: Tier,
    /// A body with any name that starts with one of these is this server's, or holds its series.
    pub prefixes: &'static [&'static str],
    /// The label that names the model, on most of its series.
    pub model_label: Option<&'static str>,
    /// The label that tells the role, with what its values mean.
    pub role_label: Option<RoleLabel>,
    /// A gauge with the process' start time; it moves when the process restarts.
    pub start_time: Option<&'static str>,
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
    /// Alternatives; the first whose leading series is in the body holds.
    pub sources: &'static [Source],
}

/// Series that make up a signal together.
#[derive(Debug)]
pub struct Source {
    /// Terms to be summed. The first one decides whether the source is there.
    pub terms: &'static [Term],
    /// Moves only when a request ends.
    pub at_finish: bool,
    /// The series appears with its first event; until then its absence means zero, if others have it.
    pub late: bool,
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
    /// Subtracted instead of added.
    pub negative: bool,
    /// The source is whole without it.
    pub optional: bool,
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
    /// Observations since the process began. The factor turns them into the signal's unit.
    Histogram {
        /// Multiplies sums and bounds.
        scale: f64,
        /// Whether buckets are kept, for quantiles; otherwise sum and count alone, for means.
        buckets: bool,
    },
    /// A number that stands in labels: the product of the first list whose labels are all numbers.
    Labels(&'static [&'static [&'static str]]),
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
    const fn new(name: &'static str, reading: Reading) -> Self {
        Self {
            name,
            labels: &[],
            reading,
            negative: false,
            optional: false,
        }
    }

    const fn only(mut self, labels: &'static [(&'static str, LabelTest)]) -> Self {
        self.labels = labels;
        self
    }

    const fn minus(mut self) -> Self {
        self.negative = true;
        self
    }

    const fn optional(mut self) -> Self {
        self.optional = true;
        self
    }
}

impl Source {
    const fn of(terms: &'static [Term]) -> Self {
        Self {
            terms,
            at_finish: false,
            late: false,
        }
    }

    const fn at_finish(mut self) -> Self {
        self.at_finish = true;
        self
    }

    const fn late(mut self) -> Self {
        self.late = true;
        self
    }
}

const fn rule(signal: Signal, sources: &'static [Source]) -> Rule {
    Rule { signal, sources }
}

const fn gauge(name: &'static str) -> Term {
    Term::new(name, Reading::Gauge)
}

const fn ratio(name: &'static str) -> Term {
    Term::new(name, Reading::Ratio)
}

const fn counter(name: &'static str) -> Term {
    Term::new(name, Reading::Counter)
}

/// A histogram in the signal's unit, with its buckets.
const fn histogram(name: &'static str) -> Term {
    Term::new(
        name,
        Reading::Histogram {
            scale: 1.0,
            buckets: true,
        },
    )
}

/// A histogram of which only the mean is wanted.
const fn mean(name: &'static str, scale: f64) -> Term {
    Term::new(
        name,
        Reading::Histogram {
            scale,
            buckets: false,
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_engine_is_well_formed() {
        let names: BTreeSet<_> = ENGINES.iter().map(|engine| engine.name).collect();
        assert_eq!(names.len(), ENGINES.len(), "names are unique");
        for engine in ENGINES {
            let mut signals = BTreeSet::new();
            assert!(!engine.prefixes.is_empty(), "{}", engine.name);
            for rule in engine.rules {
                assert!(
                    signals.insert(rule.signal),
                    "{}: two rules for {:?}",
                    engine.name,
                    rule.signal
                );
                assert!(
                    !rule.sources.is_empty(),
                    "{}: {:?}",
                    engine.name,
                    rule.signal
                );
                for source in rule.sources {
                    let [first, ..] = source.terms else {
                        panic!("{}: {:?} has no terms", engine.name, rule.signal)
                    };
                    assert!(
                        !first.optional && !first.negative,
                        "{}: {:?} starts with {first:?}",
                        engine.name,
                        rule.signal
                    );
                    let kind = |term: &Term| std::mem::discriminant(&term.reading);
                    assert!(
                        source.terms.iter().all(|term| kind(term) == kind(first)),
                        "{}: {:?}",
                        engine.name,
                        rule.signal
                    );
                }
            }
        }
    }

    #[test]
    fn an_absent_label_reads_as_empty() {
        assert!(LabelTest::OneOf(&["", "0"]).holds(""));
        assert!(!LabelTest::Is("0").holds(""));
        assert!(LabelTest::NoneOf(&["x"]).holds(""));
    }
}
