//! Servers that users describe: which of their series is which signal.
//!
//! A [`Mapping`] comes before what is built in: where both know a server, its signals are taken and the built-in ones fill the
//! rest. It is checked as a whole before anything of it holds; [`InvalidMapping`] names field, value and what would do.

mod validate;

use std::fmt;
use std::str::FromStr;

use super::PLAIN;
use super::model::{Engine, Fold, LabelTest, Mark, Reading, Role, Rule, Sign, Source, Term, Tier};
use super::signal::{Kind, Signal};

pub use validate::validate;
#[cfg(test)]
pub(super) use validate::{MAPPINGS, RECOGNISED_BY};

/// A server of one's own: how to recognise it, and what its series mean.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapping {
    /// Its name in answers and messages: lower-case letters, digits, `-` and `.`; none that is built in.
    pub name: String,
    /// What it stands for.
    pub tier: Tier,
    /// Series names, or with `*` at the end beginnings of names, any of which is its own: one or two.
    pub recognised_by: Vec<String>,
    /// The label that names the model, if not `model_name` or `model`.
    pub model_label: Option<String>,
    /// A gauge with the process' start time as Unix time, if it has one.
    pub start_time: Option<String>,
    /// Its signals.
    pub signals: Vec<SignalMapping>,
}

/// Which series is a signal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignalMapping {
    /// The signal.
    pub signal: Signal,
    /// The series; of a histogram without `_bucket`, `_sum` and `_count`.
    pub series: String,
    /// What its labels must be.
    pub labels: Vec<(String, LabelCondition)>,
    /// How several series of one endpoint and model become one.
    pub aggregation: Aggregation,
    /// What the series counts in.
    pub unit: Unit,
    /// It moves only when a request ends.
    pub at_finish: bool,
}

/// What a label must be; an absent one is the empty text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LabelCondition {
    /// Exactly this.
    Is(String),
    /// One of these.
    OneOf(Vec<String>),
    /// None of these.
    NoneOf(Vec<String>),
}

/// How several series become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Aggregation {
    /// Sum; of shares, mean and greatest are kept apart.
    Sum,
    /// Greatest: each series says the same of the whole.
    Max,
    /// Mean.
    Mean,
}

/// What a series counts in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Unit {
    /// Requests, tokens, engines, adapters: whatever the signal counts.
    Count,
    /// A share, 0–1.
    Share,
    /// A share, 0–100.
    Percent,
    /// Seconds.
    Seconds,
    /// Thousandths of a second.
    Milliseconds,
    /// Millionths of a second.
    Microseconds,
}

/// A mapping that cannot work: where, its value, and what would do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("mapping {mapping}: {field} is {value:?}: {need}")]
pub struct InvalidMapping {
    /// The mapping's name.
    pub mapping: String,
    /// The field, as a path.
    pub field: String,
    /// Its value as text.
    pub value: String,
    /// What it has to be.
    pub need: String,
}

/// A text that is not one of a few.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} {name:?} is not known: use one of {known}")]
pub struct UnknownName {
    /// What it should name.
    pub what: &'static str,
    /// The text as given.
    pub name: String,
    /// Those that are known.
    pub known: String,
}

impl Aggregation {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Sum, Self::Max, Self::Mean];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Max => "max",
            Self::Mean => "mean",
        }
    }
}

impl Unit {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Count,
        Self::Share,
        Self::Percent,
        Self::Seconds,
        Self::Milliseconds,
        Self::Microseconds,
    ];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Count => "count",
            Self::Share => "share",
            Self::Percent => "percent",
            Self::Seconds => "seconds",
            Self::Milliseconds => "milliseconds",
            Self::Microseconds => "microseconds",
        }
    }

    /// What turns it into the unit of the signals.
    #[must_use]
    pub const fn scale(self) -> f64 {
        match self {
            Self::Count | Self::Share | Self::Seconds => 1.0,
            Self::Percent => 1e-2,
            Self::Milliseconds => 1e-3,
            Self::Microseconds => 1e-6,
        }
    }

    /// Those in which a signal may be counted.
    pub(crate) const fn of(signal: Signal) -> &'static [Self] {
        match signal.kind() {
            Kind::Ratio => &[Self::Share, Self::Percent],
            _ if signal.is_time() => &[Self::Seconds, Self::Milliseconds, Self::Microseconds],
            Kind::Gauge | Kind::Counter | Kind::Histogram | Kind::Mean => &[Self::Count],
        }
    }
}

impl fmt::Display for Aggregation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Aggregation {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        let found = Self::ALL.into_iter().find(|each| each.name() == name);
        found.ok_or_else(|| unknown("aggregation", name, &Self::ALL.map(Self::name)))
    }
}

impl FromStr for Unit {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        let found = Self::ALL.into_iter().find(|each| each.name() == name);
        found.ok_or_else(|| unknown("unit", name, &Self::ALL.map(Self::name)))
    }
}

pub(crate) fn unknown(what: &'static str, name: &str, known: &[&str]) -> UnknownName {
    UnknownName {
        what,
        name: name.chars().take(100).collect(),
        known: known.join(", "),
    }
}

impl SignalMapping {
    fn term(&self) -> Term {
        let labels: Vec<_> = self
            .labels
            .iter()
            .map(|(label, condition)| (leak(label), condition.test()))
            .collect();
        Term {
            name: leak(&self.series),
            labels: Box::leak(labels.into()),
            reading: match self.signal.kind() {
                Kind::Gauge => Reading::Gauge,
                Kind::Ratio => Reading::Ratio,
                Kind::Counter => Reading::Counter,
                Kind::Histogram => Reading::Histogram { buckets: true },
                Kind::Mean => Reading::Histogram { buckets: false },
            },
            scale: self.unit.scale(),
            fold: match self.aggregation {
                Aggregation::Sum => Fold::Sum,
                Aggregation::Max => Fold::Max,
                Aggregation::Mean => Fold::Mean,
            },
            role: Role::Add,
            optional: false,
        }
    }
}

impl LabelCondition {
    fn test(&self) -> LabelTest {
        let all = |values: &[String]| -> &'static [&'static str] {
            Box::leak(values.iter().map(|value| leak(value)).collect())
        };
        match self {
            Self::Is(value) => LabelTest::Is(leak(value)),
            Self::OneOf(values) => LabelTest::OneOf(all(values)),
            Self::NoneOf(values) => LabelTest::NoneOf(all(values)),
        }
    }
}

fn leak(text: &str) -> &'static str {
    Box::leak(text.into())
}

/// The engine that a mapping describes; it stays until the process ends.
pub(super) fn engine(mapping: &Mapping) -> Engine {
    let marks: Vec<_> = mapping
        .recognised_by
        .iter()
        .map(|text| {
            Mark::new(text.strip_suffix('*').map_or_else(
                || Sign::Name(leak(text)),
                |prefix| Sign::Prefix(leak(prefix)),
            ))
        })
        .collect();
    let rules: Vec<_> = mapping
        .signals
        .iter()
        .map(|mapped| {
            let source = Source {
                terms: Box::leak(Box::new([mapped.term()])),
                at_finish: mapped.at_finish,
                ..Source::of(&[])
            };
            Rule {
                signal: mapped.signal,
                sources: Box::leak(Box::new([source])),
            }
        })
        .collect();
    Engine {
        name: leak(&mapping.name),
        tier: mapping.tier,
        marks: Box::leak(marks.into()),
        model_label: mapping.model_label.as_deref().map(leak),
        start_time: mapping.start_time.as_deref().map(leak),
        rules: Box::leak(rules.into()),
        ..PLAIN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_units_and_aggregations_are_read_or_refused() {
        for unit in Unit::ALL {
            assert_eq!(unit.name().parse(), Ok(unit));
        }
        for aggregation in Aggregation::ALL {
            assert_eq!(aggregation.name().parse(), Ok(aggregation));
        }
        assert_eq!(
            "minutes".parse::<Unit>().unwrap_err().to_string(),
            "unit \"minutes\" is not known: use one of count, share, percent, seconds, milliseconds, microseconds"
        );
        assert_eq!(
            "avg".parse::<Aggregation>().unwrap_err().to_string(),
            "aggregation \"avg\" is not known: use one of sum, max, mean"
        );
    }
}
