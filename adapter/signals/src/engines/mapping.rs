//! Servers that users describe: which of their series is which signal.
//!
//! A [`Mapping`] comes before what is built in: where both know a server, its signals are taken and the built-in ones fill the
//! rest. It is checked as a whole before anything of it holds; [`InvalidMapping`] names field, value and what would do.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use super::model::{Engine, Fold, LabelTest, Mark, Reading, Role, Rule, Sign, Source, Term, Tier};
use super::signal::{Kind, Signal};
use super::{ENGINES, PLAIN};

/// How many mappings there may be.
pub(super) const MAPPINGS: usize = 32;
/// How many names or prefixes a mapping may be recognised by.
pub(super) const RECOGNISED_BY: usize = 2;
/// How many labels a signal may ask for.
const LABELS: usize = 8;
/// Bytes of a name or value.
const TEXT: usize = 256;
/// The shortest prefix that may stand for a server.
const PREFIX: usize = 3;

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
    const fn scale(self) -> f64 {
        match self {
            Self::Count | Self::Share | Self::Seconds => 1.0,
            Self::Percent => 1e-2,
            Self::Milliseconds => 1e-3,
            Self::Microseconds => 1e-6,
        }
    }

    /// Those in which a signal may be counted.
    const fn of(signal: Signal) -> &'static [Self] {
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

fn unknown(what: &'static str, name: &str, known: &[&str]) -> UnknownName {
    UnknownName {
        what,
        name: name.chars().take(100).collect(),
        known: known.join(", "),
    }
}

/// Collects where in a mapping something is wrong.
struct At<'a> {
    mapping: &'a str,
}

impl At<'_> {
    fn check(
        &self,
        holds: bool,
        field: impl fmt::Display,
        value: impl fmt::Display,
        need: impl fmt::Display,
    ) -> Result<(), InvalidMapping> {
        if holds {
            return Ok(());
        }
        let cut = |text: String| text.chars().take(100).collect();
        Err(InvalidMapping {
            mapping: cut(self.mapping.to_owned()),
            field: field.to_string(),
            value: cut(value.to_string()),
            need: need.to_string(),
        })
    }
}

fn is_series_name(name: &str) -> bool {
    name.len() <= TEXT
        && name.starts_with(|c: char| c.is_ascii_alphabetic() || matches!(c, '_' | ':'))
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | ':'))
}

fn is_label_name(name: &str) -> bool {
    is_series_name(name) && !name.contains(':')
}

fn is_server_name(name: &str) -> bool {
    name.len() <= 63
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && name
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.'))
}

/// Checks mappings, each for itself and all together.
pub(crate) fn validate(mappings: &[Mapping]) -> Result<(), InvalidMapping> {
    let mut names = BTreeSet::new();
    for mapping in mappings {
        let at = At {
            mapping: &mapping.name,
        };
        at.check(
            mappings.len() <= MAPPINGS,
            "mappings",
            mappings.len(),
            format_args!("use at most {MAPPINGS}"),
        )?;
        at.check(
            names.insert(&mapping.name),
            "name",
            &mapping.name,
            "use each name once",
        )?;
        mapping.validate()?;
    }
    Ok(())
}

impl Mapping {
    /// Checks that it can work.
    ///
    /// # Errors
    /// The first field that cannot.
    pub fn validate(&self) -> Result<(), InvalidMapping> {
        let at = At {
            mapping: &self.name,
        };
        at.check(
            is_server_name(&self.name),
            "name",
            &self.name,
            "use up to 63 lower-case letters, digits, - and ., a letter first",
        )?;
        let is_built_in =
            self.name == "unknown" || ENGINES.iter().any(|engine| engine.name == self.name);
        at.check(
            !is_built_in,
            "name",
            &self.name,
            "this name is built in, use another one",
        )?;
        self.validate_recognition(&at)?;
        if let Some(label) = &self.model_label {
            at.check(
                is_label_name(label),
                "model_label",
                label,
                "use the name of a label",
            )?;
        }
        if let Some(series) = &self.start_time {
            at.check(
                is_series_name(series),
                "start_time",
                series,
                "use the name of a series",
            )?;
        }
        at.check(
            !self.signals.is_empty(),
            "signals",
            "",
            "map at least one signal",
        )?;
        let mut signals = BTreeSet::new();
        for (index, mapped) in self.signals.iter().enumerate() {
            at.check(
                signals.insert(mapped.signal),
                format_args!("signals[{index}].signal"),
                mapped.signal,
                "map each signal once",
            )?;
            mapped.validate(&at, index)?;
        }
        Ok(())
    }

    fn validate_recognition(&self, at: &At<'_>) -> Result<(), InvalidMapping> {
        at.check(
            (1..=RECOGNISED_BY).contains(&self.recognised_by.len()),
            "recognised_by",
            self.recognised_by.join(", "),
            format_args!(
                "name 1 to {RECOGNISED_BY} series, or beginnings of series with * at the end"
            ),
        )?;
        for (index, text) in self.recognised_by.iter().enumerate() {
            let name = text.strip_suffix('*').unwrap_or(text);
            at.check(
                is_series_name(name),
                format_args!("recognised_by[{index}]"),
                text,
                "use the name of a series, or the beginning of one with * at the end",
            )?;
            at.check(
                name.len() >= PREFIX || !text.ends_with('*'),
                format_args!("recognised_by[{index}]"),
                text,
                format_args!(
                    "use at least {PREFIX} characters before *, so that it is this server's alone"
                ),
            )?;
        }
        Ok(())
    }
}

impl SignalMapping {
    fn validate(&self, at: &At<'_>, index: usize) -> Result<(), InvalidMapping> {
        let kind = self.signal.kind();
        let field = |name: &str| format!("signals[{index}].{name}");
        at.check(
            is_series_name(&self.series),
            field("series"),
            &self.series,
            "use the name of a series: letters, digits, _ and :",
        )?;
        let is_histogram = matches!(kind, Kind::Histogram | Kind::Mean);
        let has_part = ["_bucket", "_sum", "_count"]
            .iter()
            .any(|part| self.series.ends_with(part));
        at.check(
            !(is_histogram && has_part),
            field("series"),
            &self.series,
            "name the histogram without _bucket, _sum and _count",
        )?;
        at.check(
            self.aggregation == Aggregation::Sum || matches!(kind, Kind::Gauge | Kind::Ratio),
            field("aggregation"),
            self.aggregation,
            format_args!(
                "{} is made of what grew since the last scrape, which is added up: use sum",
                self.signal
            ),
        )?;
        let units = Unit::of(self.signal);
        at.check(
            units.contains(&self.unit),
            field("unit"),
            self.unit,
            format_args!(
                "{} needs {}",
                self.signal,
                units
                    .iter()
                    .map(|unit| unit.name())
                    .collect::<Vec<_>>()
                    .join(" or ")
            ),
        )?;
        at.check(
            self.labels.len() <= LABELS,
            field("labels"),
            self.labels.len(),
            format_args!("use at most {LABELS} labels"),
        )?;
        for (label, condition) in &self.labels {
            at.check(
                is_label_name(label),
                field("labels"),
                label,
                "use the name of a label",
            )?;
            condition.validate(at, &field(&format!("labels.{label}")))?;
        }
        Ok(())
    }

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
    fn validate(&self, at: &At<'_>, field: &str) -> Result<(), InvalidMapping> {
        let values = match self {
            Self::Is(value) => std::slice::from_ref(value),
            Self::OneOf(values) | Self::NoneOf(values) => values,
        };
        at.check(
            (1..=LABELS).contains(&values.len()),
            field,
            values.join(", "),
            format_args!("use 1 to {LABELS} values"),
        )?;
        for value in values {
            at.check(
                value.len() <= TEXT,
                field,
                value,
                format_args!("use at most {TEXT} bytes"),
            )?;
        }
        Ok(())
    }

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

    fn mapping() -> Mapping {
        Mapping {
            name: "acme".to_owned(),
            tier: Tier::Engine,
            recognised_by: vec!["acme_*".to_owned()],
            model_label: None,
            start_time: None,
            signals: vec![SignalMapping {
                signal: Signal::QueueTime,
                series: "acme_wait".to_owned(),
                labels: vec![("kind".to_owned(), LabelCondition::Is("chat".to_owned()))],
                aggregation: Aggregation::Sum,
                unit: Unit::Milliseconds,
                at_finish: false,
            }],
        }
    }

    #[test]
    fn a_mapping_that_cannot_work_is_refused_with_field_value_and_next_step() {
        type Change = fn(&mut Mapping);
        assert_eq!(validate(&[mapping()]), Ok(()));
        let cases: [(Change, &str); 15] = [
            (
                |m| m.name = "Acme".to_owned(),
                "mapping Acme: name is \"Acme\": use up to 63 lower-case letters, digits, - and ., a letter first",
            ),
            (
                |m| m.name = "vllm".to_owned(),
                "mapping vllm: name is \"vllm\": this name is built in, use another one",
            ),
            (
                |m| m.recognised_by.clear(),
                "mapping acme: recognised_by is \"\": name 1 to 2 series, or beginnings of series with * at the end",
            ),
            (
                |m| m.recognised_by = vec!["a*".to_owned()],
                "mapping acme: recognised_by[0] is \"a*\": use at least 3 characters before *, so that it is this server's alone",
            ),
            (
                |m| m.recognised_by = vec!["acme-up".to_owned()],
                "mapping acme: recognised_by[0] is \"acme-up\": use the name of a series, or the beginning of one with * at the end",
            ),
            (
                |m| m.model_label = Some("a:b".to_owned()),
                "mapping acme: model_label is \"a:b\": use the name of a label",
            ),
            (
                |m| m.start_time = Some(String::new()),
                "mapping acme: start_time is \"\": use the name of a series",
            ),
            (
                |m| m.signals.clear(),
                "mapping acme: signals is \"\": map at least one signal",
            ),
            (
                |m| m.signals.push(m.signals[0].clone()),
                "mapping acme: signals[1].signal is \"queue_time\": map each signal once",
            ),
            (
                |m| m.signals[0].series = "acme wait".to_owned(),
                "mapping acme: signals[0].series is \"acme wait\": use the name of a series: letters, digits, _ and :",
            ),
            (
                |m| m.signals[0].series = "acme_wait_bucket".to_owned(),
                "mapping acme: signals[0].series is \"acme_wait_bucket\": name the histogram without _bucket, _sum and _count",
            ),
            (
                |m| m.signals[0].aggregation = Aggregation::Max,
                "mapping acme: signals[0].aggregation is \"max\": queue_time is made of what grew since the last scrape, which is added up: use sum",
            ),
            (
                |m| m.signals[0].unit = Unit::Percent,
                "mapping acme: signals[0].unit is \"percent\": queue_time needs seconds or milliseconds or microseconds",
            ),
            (
                |m| m.signals[0].labels[0].0 = "1st".to_owned(),
                "mapping acme: signals[0].labels is \"1st\": use the name of a label",
            ),
            (
                |m| m.signals[0].labels[0].1 = LabelCondition::OneOf(Vec::new()),
                "mapping acme: signals[0].labels.kind is \"\": use 1 to 8 values",
            ),
        ];
        for (change, expected) in cases {
            let mut changed = mapping();
            change(&mut changed);
            assert_eq!(
                validate(&[changed]).unwrap_err().to_string(),
                expected,
                "{expected}"
            );
        }
        let twice = validate(&[mapping(), mapping()]).unwrap_err().to_string();
        assert_eq!(twice, "mapping acme: name is \"acme\": use each name once");
        let many = validate(&vec![mapping(); 33]).unwrap_err().to_string();
        assert_eq!(many, "mapping acme: mappings is \"33\": use at most 32");
    }

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
