//! The part of PromQL that rules of prometheus-adapter are mostly made of: an aggregation of one series or of its rate, or a quantile.

use std::time::Duration;

use coppice_runtime::settings::positive_duration;
use coppice_signals::Aggregate;

/// A query that was understood.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Understood {
    /// How series become one; `None`: not said.
    pub aggregate: Option<Aggregate>,
    /// Whether values of one label after another are answered apart.
    pub grouped: bool,
    /// What is done with the series.
    pub reading: Reading,
    /// The series, where it is written out.
    pub series: Option<String>,
    /// Label matchers that are written out.
    pub matchers: Vec<Matcher>,
}

/// What is done with a series.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Reading {
    /// Nothing.
    Value,
    /// Increase per second.
    Rate(Duration),
    /// Increase.
    Increase(Duration),
    /// A quantile of its buckets' increases; the share as it is written.
    Quantile(f64, Duration),
}

/// A condition on a label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Matcher {
    pub label: String,
    /// `=`, `!=`, `=~` or `!~`.
    pub operator: String,
    pub value: String,
}

const SERIES: &str = "<<.Series>>";
const MATCHERS: &str = "<<.LabelMatchers>>";
const GROUP_BY: &str = "<<.GroupBy>>";

/// Understands a query.
///
/// # Errors
/// What in it was not understood.
pub(super) fn understand(query: &str) -> Result<Understood, String> {
    let query = query.trim();
    let Some((function, inner, after)) = call(query) else {
        return selection(query, Reading::Value);
    };
    if function == "histogram_quantile" {
        return quantile(inner, after);
    }
    let (function, before) = split_group(function)?;
    let aggregate = match function {
        "sum" => Aggregate::Sum,
        "avg" => Aggregate::Mean,
        "max" => Aggregate::Max,
        "min" => Aggregate::Min,
        _ if after.trim().is_empty() => return ranged(query),
        _ => return Err(format!("{query:?} is no single aggregation")),
    };
    let groups = match (before, after.trim()) {
        (groups, "") => groups,
        (None, after) => group(after)?,
        (Some(_), after) => return Err(format!("{after:?} after the aggregation")),
    };
    let understood = ranged(inner.trim())?;
    Ok(Understood {
        aggregate: Some(aggregate),
        grouped: groups.is_some_and(is_apart),
        ..understood
    })
}

/// `rate(…[2m])` and its like, or a series.
fn ranged(query: &str) -> Result<Understood, String> {
    let Some((function, inner, after)) = call(query) else {
        return selection(query, Reading::Value);
    };
    if !after.trim().is_empty() {
        return Err(format!("{:?} after {function}(…)", after.trim()));
    }
    let reading = match function.trim() {
        "rate" | "irate" => Reading::Rate,
        "increase" => Reading::Increase,
        other => return Err(format!("the function {other}")),
    };
    let (series, window) = inner
        .trim()
        .strip_suffix(']')
        .and_then(|inner| inner.rsplit_once('['))
        .ok_or_else(|| format!("{inner:?} without a window"))?;
    let window = positive_duration(window).map_err(|_| format!("the window {window:?}"))?;
    selection(series.trim(), reading(window))
}

fn quantile(inner: &str, after: &str) -> Result<Understood, String> {
    if !after.trim().is_empty() {
        return Err(format!("{:?} after histogram_quantile(…)", after.trim()));
    }
    let (share, rest) = inner
        .split_once(',')
        .ok_or("a histogram_quantile without a share")?;
    let share: f64 = share
        .trim()
        .parse()
        .map_err(|_| format!("the share {share:?}"))?;
    let understood = understand(rest)?;
    match (understood.aggregate, understood.reading) {
        (Some(Aggregate::Sum) | None, Reading::Rate(window) | Reading::Increase(window)) => {
            Ok(Understood {
                aggregate: None,
                reading: Reading::Quantile(share, window),
                ..understood
            })
        }
        _ => Err("a histogram_quantile of something else than sum(rate(…))".to_owned()),
    }
}

/// A series with matchers.
fn selection(text: &str, reading: Reading) -> Result<Understood, String> {
    let (name, matchers) = match text.split_once('{') {
        Some((name, rest)) => {
            let inner = rest
                .trim_end()
                .strip_suffix('}')
                .ok_or_else(|| format!("{text:?}"))?;
            (name.trim(), matchers(inner)?)
        }
        None => (text, Vec::new()),
    };
    let is_name = |name: &str| {
        !name.is_empty()
            && name
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | ':'))
    };
    let series = match name {
        SERIES => None,
        "" => {
            let named = matchers
                .iter()
                .find(|matcher| matcher.label == "__name__" && matcher.operator == "=");
            let named = named.ok_or_else(|| format!("{text:?}, which names no single series"))?;
            Some(named.value.clone())
        }
        name if is_name(name) => Some(name.to_owned()),
        other => return Err(format!("{other:?}")),
    };
    let matchers = matchers
        .into_iter()
        .filter(|matcher| !(matcher.label == "__name__" && matcher.operator == "="))
        .collect();
    Ok(Understood {
        aggregate: None,
        grouped: false,
        reading,
        series,
        matchers,
    })
}

/// `a="b",c!=""`, the template's matchers among them.
fn matchers(text: &str) -> Result<Vec<Matcher>, String> {
    let mut found = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix(MATCHERS) {
            rest = after.trim_start();
        } else {
            let (matcher, after) = matcher(rest).ok_or_else(|| format!("the matchers {text:?}"))?;
            found.push(matcher);
            rest = after;
        }
        rest = match rest.strip_prefix(',') {
            Some(after) => after.trim_start(),
            None if rest.is_empty() => rest,
            None => return Err(format!("the matchers {text:?}")),
        };
    }
    Ok(found)
}

fn matcher(text: &str) -> Option<(Matcher, &str)> {
    let end = text.find(['=', '!'])?;
    let (label, rest) = text.split_at_checked(end)?;
    let operator = ["=~", "!~", "!=", "="]
        .into_iter()
        .find(|operator| rest.starts_with(operator))?;
    let rest = rest.strip_prefix(operator)?.trim_start();
    let quote = rest.chars().next().filter(|c| matches!(c, '"' | '\''))?;
    let (value, after) = rest.get(1..)?.split_once(quote)?;
    let matcher = Matcher {
        label: label.trim().to_owned(),
        operator: operator.to_owned(),
        value: value.to_owned(),
    };
    Some((matcher, after.trim_start()))
}

/// `name(inner)after`, where the parenthesis that is opened first is the one that is closed.
fn call(text: &str) -> Option<(&str, &str, &str)> {
    let open = text.find('(')?;
    // A series' matchers may hold parentheses in their values.
    if text.find('{').is_some_and(|brace| brace < open) {
        return None;
    }
    // `sum by (a) (…)`: the group belongs to the name.
    let name = text.get(..open)?.trim();
    let is_group_first = name.ends_with(" by") || name.ends_with(" without");
    let close = open + closing(text.get(open..)?)?;
    if !is_group_first {
        return Some((name, text.get(open + 1..close)?, text.get(close + 1..)?));
    }
    let rest = text.get(close + 1..)?;
    let second = rest.find('(')?;
    if !rest.get(..second)?.trim().is_empty() {
        return None;
    }
    let end = second + closing(rest.get(second..)?)?;
    Some((
        text.get(..=close)?,
        rest.get(second + 1..end)?,
        rest.get(end + 1..)?,
    ))
}

/// Where the parenthesis that a text begins with is closed.
fn closing(text: &str) -> Option<usize> {
    let (mut depth, mut quote) = (0_usize, None);
    for (at, c) in text.char_indices() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(c),
            (None, '(') => depth += 1,
            (None, ')') => {
                depth -= 1;
                if depth == 0 {
                    return Some(at);
                }
            }
            (None, _) => {}
        }
    }
    None
}

/// Parts `sum by (a)` into `sum` and `a`.
fn split_group(function: &str) -> Result<(&str, Option<&str>), String> {
    let function = function.trim();
    match function.split_once(char::is_whitespace) {
        None => Ok((function, None)),
        Some((name, groups)) => Ok((name, group(groups.trim())?)),
    }
}

/// The labels of `by (a, b)`.
fn group(text: &str) -> Result<Option<&str>, String> {
    text.strip_prefix("by")
        .and_then(|rest| rest.trim().strip_prefix('(')?.strip_suffix(')'))
        .map(|labels| Some(labels.trim()))
        .ok_or_else(|| format!("{text:?}"))
}

/// Whether groups are told apart beyond the objects that are asked for and a histogram's buckets.
fn is_apart(groups: &str) -> bool {
    groups
        .split(',')
        .map(str::trim)
        .any(|label| !matches!(label, "" | GROUP_BY | "le" | "namespace"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTES: Duration = Duration::from_secs(120);

    fn brief(query: &str) -> (Option<Aggregate>, bool, Reading) {
        let understood = understand(query).unwrap_or_else(|error| panic!("{query}: {error}"));
        (understood.aggregate, understood.grouped, understood.reading)
    }

    #[test]
    fn common_forms_are_understood() {
        let rate = Reading::Rate(MINUTES);
        for (query, expected) in [
            (
                "<<.Series>>{<<.LabelMatchers>>}",
                (None, false, Reading::Value),
            ),
            (
                "sum(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>)",
                (Some(Aggregate::Sum), false, Reading::Value),
            ),
            (
                "sum(<<.Series>>{<<.LabelMatchers>>}) by (name)",
                (Some(Aggregate::Sum), true, Reading::Value),
            ),
            (
                "avg by (<<.GroupBy>>) (<<.Series>>{<<.LabelMatchers>>})",
                (Some(Aggregate::Mean), false, Reading::Value),
            ),
            (
                "max(<<.Series>>{<<.LabelMatchers>>})",
                (Some(Aggregate::Max), false, Reading::Value),
            ),
            (
                "sum(rate(<<.Series>>{<<.LabelMatchers>>}[2m])) by (<<.GroupBy>>)",
                (Some(Aggregate::Sum), false, rate),
            ),
            (
                "rate(vllm:generation_tokens_total[2m])",
                (None, false, rate),
            ),
            (
                "sum(increase(<<.Series>>{<<.LabelMatchers>>}[2m]))",
                (Some(Aggregate::Sum), false, Reading::Increase(MINUTES)),
            ),
            (
                "histogram_quantile(0.95, sum(rate(<<.Series>>{<<.LabelMatchers>>}[2m])) by (le, <<.GroupBy>>))",
                (None, false, Reading::Quantile(0.95, MINUTES)),
            ),
        ] {
            assert_eq!(brief(query), expected, "{query}");
        }
    }

    #[test]
    fn matchers_and_names_are_read_also_with_parentheses_in_them() {
        let query = "sum(a:b{<<.LabelMatchers>>,x=\"(\", y!=\"\"})";
        let understood = understand(query).unwrap();
        assert_eq!(understood.series.as_deref(), Some("a:b"));
        let matchers: Vec<_> = understood
            .matchers
            .iter()
            .map(|m| format!("{}{}{}", m.label, m.operator, m.value))
            .collect();
        assert_eq!(matchers, ["x=(", "y!="]);
        let by_name = understand("{__name__=\"queue_depth\",topic!=\"\"}").unwrap();
        assert_eq!(by_name.series.as_deref(), Some("queue_depth"));
        assert_eq!(by_name.matchers.len(), 1);
    }

    #[test]
    fn what_is_more_is_named() {
        for (query, part) in [
            ("sum(a) / sum(b)", "/ sum(b)"),
            ("count(a)", "count"),
            ("sum(a offset 5m)", "a offset 5m"),
            ("sum(rate(a{x=\"1\"}[soon]))", "soon"),
            ("sum without (pod) (a)", "without"),
            ("histogram_quantile(0.9, a)", "histogram_quantile"),
            ("sum(rate(a))", "without a window"),
            ("", "\"\""),
        ] {
            let error = understand(query).unwrap_err();
            assert!(error.contains(part), "{query}: {error}");
        }
    }
}
