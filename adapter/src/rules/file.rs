//! From a file's text to rules that can work.
//!
//! Every mistake is told with its line, field, value and what would do; a list of them rather than the first, so that a file is mended
//! in one go.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use coppice_runtime::settings::positive_duration;
use coppice_signals::engines::{LabelCondition, Tier, Unit, validate_mappings};
use coppice_signals::{Aggregate, Mapping, Overrides, Selector, SignalMapping};
use serde::Deserialize;
use serde_saphyr::Spanned;

use super::{
    Bounds, Expression, MAX_FILE_BYTES, MAX_NAME_BYTES, MAX_RULES, Rule, RuleSet, WhenEmpty,
};

/// Staleness that a rule may ask for.
const STALENESS: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(3600)];
/// The shortest look-back.
const MIN_WINDOW: Duration = Duration::from_secs(1);
/// Mistakes that are told at a time.
const MAX_TOLD: usize = 20;
/// Characters of a value that are repeated.
const MAX_SHOWN: usize = 100;

/// Mistakes in a file, in its order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Invalid(Vec<Mistake>);

/// One mistake.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Mistake {
    /// From 1; 0 where the whole file is meant.
    line: u64,
    text: String,
}

impl std::error::Error for Invalid {}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, Mistake { line, text }) in self.0.iter().take(MAX_TOLD).enumerate() {
            f.write_str(if index > 0 { "\n" } else { "" })?;
            if *line > 0 {
                write!(f, "line {line}: ")?;
            }
            f.write_str(text)?;
        }
        match self.0.len().saturating_sub(MAX_TOLD) {
            0 => Ok(()),
            more => write!(f, "\nand {more} more"),
        }
    }
}

impl Invalid {
    /// A file that is wrong as a whole.
    pub(super) fn whole(text: impl Into<String>) -> Self {
        Self(vec![Mistake {
            line: 0,
            text: text.into(),
        }])
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct FileText {
    #[serde(default)]
    rules: Vec<Spanned<RuleText>>,
    #[serde(default)]
    engines: Vec<Spanned<EngineText>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct RuleText {
    name: Spanned<String>,
    expression: Spanned<String>,
    selector: Option<Spanned<String>>,
    aggregation: Option<Spanned<String>>,
    window: Option<Spanned<String>>,
    staleness: Option<Spanned<String>>,
    quorum: Option<Spanned<f64>>,
    unit: Option<Spanned<String>>,
    when_empty: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct EngineText {
    name: Spanned<String>,
    tier: Option<Spanned<String>>,
    recognised_by: Vec<String>,
    model_label: Option<String>,
    start_time: Option<String>,
    signals: Vec<Spanned<SignalText>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct SignalText {
    signal: Spanned<String>,
    series: String,
    #[serde(default)]
    labels: BTreeMap<String, LabelText>,
    aggregation: Option<Spanned<String>>,
    unit: Option<Spanned<String>>,
    #[serde(default)]
    at_finish: bool,
}

/// Exactly one of these.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct LabelText {
    is: Option<String>,
    one_of: Option<Vec<String>>,
    none_of: Option<Vec<String>>,
}

/// Reads a file's content, of limited size.
///
/// # Errors
/// It cannot be read, or is too large.
pub(super) fn content(path: &Path) -> Result<Vec<u8>, Invalid> {
    let cannot = |error: std::io::Error| Invalid::whole(format!("it cannot be read: {error}"));
    let file = std::fs::File::open(path).map_err(cannot)?;
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(cannot)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(Invalid::whole(format!(
            "it is larger than {MAX_FILE_BYTES} bytes: use fewer rules"
        )));
    }
    Ok(bytes)
}

/// Reads rules.
///
/// # Errors
/// What is wrong with them, in the order of the lines.
pub(crate) fn read(content: &[u8], bounds: Bounds) -> Result<RuleSet, Invalid> {
    let text = std::str::from_utf8(content)
        .map_err(|_| Invalid::whole("it is no UTF-8 text: save it as UTF-8"))?;
    let file: FileText = serde_saphyr::from_str(text).map_err(|error| {
        Invalid(vec![Mistake {
            line: error.location().map_or(0, |location| location.line()),
            text: first_line(&error.without_snippet().to_string()),
        }])
    })?;
    let mut reader = Reader {
        bounds,
        mistakes: Vec::new(),
    };
    let set = reader.file(&file);
    reader.mistakes.sort_by_key(|mistake| mistake.line);
    match reader.mistakes.is_empty() {
        true => Ok(set),
        false => Err(Invalid(reader.mistakes)),
    }
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}

struct Reader {
    bounds: Bounds,
    mistakes: Vec<Mistake>,
}

impl Reader {
    fn wrong(&mut self, line: u64, field: &str, value: &dyn fmt::Display, need: &str) {
        let value: String = value.to_string().chars().take(MAX_SHOWN).collect();
        self.mistakes.push(Mistake {
            line,
            text: format!("{field} is {value:?}: {need}"),
        });
    }

    /// Reads a field, if it is there; a mistake in it is kept.
    fn field<T>(
        &mut self,
        at: &str,
        text: Option<&Spanned<String>>,
        read: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<T> {
        let text = text?;
        match read(&text.value) {
            Ok(value) => Some(value),
            Err(need) => {
                self.wrong(line(text), at, &text.value, &need);
                None
            }
        }
    }

    fn file(&mut self, file: &FileText) -> RuleSet {
        let FileText { rules, engines } = file;
        let mut read = BTreeMap::new();
        if let Some(over) = rules.get(MAX_RULES) {
            let need = format!("use at most {MAX_RULES}");
            self.wrong(line(over), "rules", &rules.len(), &need);
        }
        for (index, text) in rules.iter().take(MAX_RULES).enumerate() {
            let at = format!("rules[{index}]");
            let Some(rule) = self.rule(&at, &text.value) else {
                continue;
            };
            if read.contains_key(&rule.name) {
                let name = &text.value.name;
                let field = format!("{at}.name");
                self.wrong(line(name), &field, &rule.name, "use each name once");
            } else {
                read.insert(rule.name.clone(), Arc::new(rule));
            }
        }
        RuleSet {
            rules: read,
            mappings: self.mappings(engines),
        }
    }

    fn rule(&mut self, at: &str, text: &RuleText) -> Option<Rule> {
        let RuleText {
            name: name_text,
            expression,
            selector,
            aggregation,
            window,
            staleness,
            quorum,
            unit,
            when_empty,
        } = text;
        let field = |name: &str| format!("{at}.{name}");
        let bounds = self.bounds;
        let name = self.field(&field("name"), Some(name_text), name);
        let expression = self.field(&field("expression"), Some(expression), |text| {
            Expression::parse(text).map_err(|error| error.to_string())
        });
        let selector = self.field(&field("selector"), selector.as_ref(), |text| {
            text.parse::<Selector>().map_err(|error| error.to_string())
        });
        let aggregate = self.field(&field("aggregation"), aggregation.as_ref(), |text| {
            let aggregate = text
                .parse::<Aggregate>()
                .map_err(|_| format!("use one of {}", names(&Aggregate::ALL)))?;
            aggregates(expression.as_ref(), aggregate)
        });
        let window = self.field(&field("window"), window.as_ref(), |text| {
            look_back(text, expression.as_ref(), bounds)
        });
        let stale_after = self.field(&field("staleness"), staleness.as_ref(), |text| {
            within(text, STALENESS)
        });
        let unit = self.field(&field("unit"), unit.as_ref(), |text| {
            let unit = text
                .parse::<Unit>()
                .map_err(|_| format!("use one of {}", names(&Unit::ALL)))?;
            units(expression.as_ref(), unit)
        });
        let when_empty = self.field(
            &field("whenEmpty"),
            when_empty.as_ref(),
            |text| match text {
                "error" => Ok(WhenEmpty::Error),
                "zero" => Ok(WhenEmpty::Zero),
                _ => Err("use error or zero".to_owned()),
            },
        );
        if let Some(quorum) = quorum
            && !(0.0..=1.0).contains(&quorum.value)
        {
            let need = "use a share between 0 and 1";
            self.wrong(line(quorum), &field("quorum"), &quorum.value, need);
        }
        Some(Rule {
            name: name?,
            expression: expression?,
            selector: selector.unwrap_or_default(),
            overrides: Overrides {
                aggregate,
                window,
                stale_after,
                quorum: quorum.as_ref().map(|quorum| quorum.value),
            },
            unit,
            when_empty: when_empty.unwrap_or_default(),
        })
    }

    fn mappings(&mut self, engines: &[Spanned<EngineText>]) -> Vec<Mapping> {
        let before = self.mistakes.len();
        let mappings: Vec<_> = engines
            .iter()
            .enumerate()
            .filter_map(|(index, text)| self.mapping(&format!("engines[{index}]"), &text.value))
            .collect();
        if self.mistakes.len() > before {
            return mappings;
        }
        if let Err(invalid) = validate_mappings(&mappings) {
            // A name that stands twice is wrong where it stands last.
            let place = mappings
                .iter()
                .rposition(|mapping| mapping.name.starts_with(&invalid.mapping))
                .unwrap_or(0);
            let engine = engines.get(place);
            let signal = engine.and_then(|engine| {
                let index = invalid.field.strip_prefix("signals[")?.split(']').next()?;
                engine.value.signals.get(index.parse::<usize>().ok()?)
            });
            let line = signal
                .map(line)
                .or_else(|| engine.map(line))
                .unwrap_or_default();
            let field = format!("engines[{place}].{}", invalid.field);
            self.wrong(line, &field, &invalid.value, &invalid.need);
        }
        mappings
    }

    fn mapping(&mut self, at: &str, text: &EngineText) -> Option<Mapping> {
        let EngineText {
            name,
            tier,
            recognised_by,
            model_label,
            start_time,
            signals,
        } = text;
        let tier = self.field(&format!("{at}.tier"), tier.as_ref(), |text| match text {
            "engine" => Ok(Tier::Engine),
            "worker" => Ok(Tier::Worker),
            "frontend" => Ok(Tier::Frontend),
            _ => Err("use engine, worker or frontend".to_owned()),
        });
        let signals = signals
            .iter()
            .enumerate()
            .filter_map(|(index, text)| self.signal(&format!("{at}.signals[{index}]"), text))
            .collect();
        Some(Mapping {
            name: name.value.clone(),
            tier: tier.unwrap_or(Tier::Engine),
            recognised_by: recognised_by.clone(),
            model_label: model_label.clone(),
            start_time: start_time.clone(),
            signals,
        })
    }

    fn signal(&mut self, at: &str, text: &Spanned<SignalText>) -> Option<SignalMapping> {
        let begin = line(text);
        let SignalText {
            signal,
            series,
            labels: label_texts,
            aggregation,
            unit,
            at_finish,
        } = &text.value;
        let signal = self.field(&format!("{at}.signal"), Some(signal), |text| {
            text.parse::<coppice_signals::Signal>()
                .map_err(|error| error.to_string())
        });
        let aggregation = self.field(&format!("{at}.aggregation"), aggregation.as_ref(), |text| {
            text.parse::<coppice_signals::engines::Aggregation>()
                .map_err(|error| told(&error))
        });
        let unit = self.field(&format!("{at}.unit"), unit.as_ref(), |text| {
            text.parse::<Unit>().map_err(|error| told(&error))
        });
        let mut labels = Vec::new();
        for (label, condition) in label_texts {
            match condition.read() {
                Some(condition) => labels.push((label.clone(), condition)),
                None => self.wrong(
                    begin,
                    &format!("{at}.labels"),
                    label,
                    "give it exactly one of is, oneOf and noneOf",
                ),
            }
        }
        let signal = signal?;
        Some(SignalMapping {
            signal,
            series: series.clone(),
            labels,
            aggregation: aggregation.unwrap_or(coppice_signals::engines::Aggregation::Sum),
            // The unit that the signal itself has.
            unit: unit
                .or_else(|| {
                    coppice_signals::Input::Signal(signal)
                        .units()
                        .first()
                        .copied()
                })
                .unwrap_or(Unit::Count),
            at_finish: *at_finish,
        })
    }
}

impl LabelText {
    fn read(&self) -> Option<LabelCondition> {
        match (&self.is, &self.one_of, &self.none_of) {
            (Some(value), None, None) => Some(LabelCondition::Is(value.clone())),
            (None, Some(values), None) => Some(LabelCondition::OneOf(values.clone())),
            (None, None, Some(values)) => Some(LabelCondition::NoneOf(values.clone())),
            _ => None,
        }
    }
}

fn line<T>(text: &Spanned<T>) -> u64 {
    text.referenced.line()
}

fn told(error: &coppice_signals::engines::UnknownName) -> String {
    format!("use one of {}", error.known)
}

fn names(all: &[impl fmt::Display]) -> String {
    let names: Vec<_> = all.iter().map(ToString::to_string).collect();
    names.join(", ")
}

fn name(text: &str) -> Result<String, String> {
    let is_name = text.len() <= MAX_NAME_BYTES
        && text.starts_with(|c: char| c.is_ascii_lowercase())
        && text
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    if !is_name {
        return Err(format!(
            "use up to {MAX_NAME_BYTES} lower-case letters, digits and _, a letter first"
        ));
    }
    if text.starts_with("coppice_") {
        return Err("names with coppice_ are built in, use another one".to_owned());
    }
    Ok(text.to_owned())
}

/// Whether an expression can be aggregated so; one that cannot be read is told about elsewhere.
fn aggregates(expression: Option<&Expression>, aggregate: Aggregate) -> Result<Aggregate, String> {
    let inputs = expression.map_or(&[][..], Expression::inputs);
    for input in inputs {
        let possible = input.aggregates();
        if possible.is_empty() {
            return Err(format!(
                "{input} is aggregated in its own way: leave aggregation out, or read a signal"
            ));
        }
        if !possible.contains(&aggregate) {
            return Err(format!("{input} needs one of {}", names(possible)));
        }
    }
    Ok(aggregate)
}

/// Whether the value can be given in a unit. Of what is computed of several inputs, or scraped, nothing is known.
fn units(expression: Option<&Expression>, unit: Unit) -> Result<Unit, String> {
    let possible = expression
        .and_then(Expression::only_input)
        .map_or(&[][..], coppice_signals::Input::units);
    match possible.is_empty() || possible.contains(&unit) {
        true => Ok(unit),
        false => Err(format!("the expression is in one of {}", names(possible))),
    }
}

fn within(text: &str, [least, most]: [Duration; 2]) -> Result<Duration, String> {
    let need = || {
        let (least, most) = (least.as_secs(), most.as_secs());
        format!("use a duration between {least}s and {most}s, such as 30s")
    };
    let found = positive_duration(text).map_err(|_| need())?;
    match (least..=most).contains(&found) {
        true => Ok(found),
        false => Err(need()),
    }
}

fn look_back(
    text: &str,
    expression: Option<&Expression>,
    bounds: Bounds,
) -> Result<Duration, String> {
    let window = within(text, [MIN_WINDOW, bounds.window])
        .map_err(|need| format!("{need}; the adapter looks back --window at most"))?;
    let mut inputs = expression.map_or(&[][..], Expression::inputs).iter();
    if expression.is_some() && !inputs.any(coppice_signals::Input::is_windowed) {
        return Err(
            "the expression reads nothing over a window: leave it out, or read a rate or a latency"
                .to_owned(),
        );
    }
    Ok(window)
}

#[cfg(test)]
mod tests;
