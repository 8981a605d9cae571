//! Whether mappings can work: names, limits, units.

use std::collections::BTreeSet;
use std::fmt;

use super::{Aggregation, InvalidMapping, LabelCondition, Mapping, SignalMapping, Unit};
use crate::engines::{ENGINES, Kind};

/// How many mappings there may be.
pub(in crate::engines) const MAPPINGS: usize = 32;
/// How many names or prefixes a mapping may be recognised by.
pub(in crate::engines) const RECOGNISED_BY: usize = 2;
/// How many labels a signal may ask for.
const LABELS: usize = 8;
/// Bytes of a name or value.
const TEXT: usize = 256;
/// The shortest prefix that may stand for a server.
const PREFIX: usize = 3;

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
///
/// # Errors
/// The first field that cannot work.
pub fn validate(mappings: &[Mapping]) -> Result<(), InvalidMapping> {
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engines::{Signal, Tier};

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
}
