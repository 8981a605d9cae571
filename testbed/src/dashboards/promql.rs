//! Just enough of PromQL to know which series a query reads, by which labels.
//!
//! What it cannot make out is an error: a query that is misread could pass with a name that nobody exports.

use std::collections::BTreeSet;

/// What a query reads.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Query {
    /// In the order of the query.
    pub selectors: Vec<Selector>,
    /// Labels by which is grouped or joined.
    pub grouping: BTreeSet<String>,
}

/// One series selector.
#[derive(Debug, PartialEq, Eq)]
pub struct Selector {
    /// The metric's name.
    pub name: String,
    /// Labels in its matchers.
    pub labels: BTreeSet<String>,
}

/// Words that take labels in parentheses.
const LABEL_LISTS: [&str; 6] = [
    "by",
    "without",
    "on",
    "ignoring",
    "group_left",
    "group_right",
];
/// Operators and modifiers that are words.
const WORDS: [&str; 7] = ["and", "or", "unless", "bool", "offset", "inf", "nan"];
/// Aggregations and functions that dashboards may use.
const FUNCTIONS: [&str; 18] = [
    "avg",
    "clamp_max",
    "clamp_min",
    "count",
    "delta",
    "histogram_quantile",
    "increase",
    "irate",
    "max",
    "max_over_time",
    "min",
    "quantile",
    "rate",
    "scalar",
    "sum",
    "time",
    "topk",
    "vector",
];

/// Reads a query.
///
/// # Errors
///
/// What cannot be made out, and where.
pub fn read(text: &str) -> Result<Query, String> {
    let mut query = Query::default();
    let mut open = 0_usize;
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        if first.is_ascii_alphabetic() || matches!(first, '_' | ':') {
            let end = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
            let (word, after) = rest.split_at(end);
            rest = read_word(word, after.trim_start(), &mut query)?;
        } else if first.is_ascii_digit() || first == '.' {
            rest = rest.trim_start_matches(|c: char| c.is_ascii_alphanumeric() || c == '.');
        } else if matches!(first, '"' | '\'' | '`') {
            rest = &rest[string(rest)?..];
        } else if first == '[' {
            rest = behind(rest, ']')?;
        } else if first == '{' {
            return Err(format!("a selector without a name at {rest:?}"));
        } else {
            match first {
                '(' => open += 1,
                ')' => open = open.checked_sub(1).ok_or("a ) without its (")?,
                '+' | '-' | '*' | '/' | '%' | '^' | ',' | '=' | '!' | '<' | '>' => {}
                other => return Err(format!("{other:?} at {rest:?}")),
            }
            rest = &rest[1..];
        }
        rest = rest.trim_start();
    }
    if open > 0 {
        return Err("a ( without its )".to_owned());
    }
    Ok(query)
}

const fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | ':')
}

/// Takes in a word; returns what follows it and what belongs to it.
fn read_word<'a>(word: &str, after: &'a str, query: &mut Query) -> Result<&'a str, String> {
    let lower = word.to_ascii_lowercase();
    if LABEL_LISTS.contains(&lower.as_str()) {
        let inner = after
            .strip_prefix('(')
            .ok_or_else(|| format!("{word} without labels"))?;
        let (labels, rest) = inner
            .split_once(')')
            .ok_or_else(|| format!("{word} without an end"))?;
        let labels = labels
            .split(',')
            .map(str::trim)
            .filter(|label| !label.is_empty());
        query.grouping.extend(labels.map(str::to_owned));
        return Ok(rest);
    }
    if WORDS.contains(&lower.as_str()) {
        return Ok(after);
    }
    let is_grouped = ["by", "without"].iter().any(|list| {
        after
            .strip_prefix(list)
            .is_some_and(|rest| rest.trim_start().starts_with('('))
    });
    if after.starts_with('(') || is_grouped {
        return if FUNCTIONS.contains(&lower.as_str()) {
            Ok(after)
        } else {
            Err(format!("the function {word} is not known"))
        };
    }
    let (labels, rest) = matchers(after)?;
    query.selectors.push(Selector {
        name: word.to_owned(),
        labels,
    });
    Ok(rest)
}

/// The labels of a selector's matchers, where there are any, and what follows them.
fn matchers(text: &str) -> Result<(BTreeSet<String>, &str), String> {
    let mut labels = BTreeSet::new();
    let Some(mut rest) = text.strip_prefix('{') else {
        return Ok((labels, text));
    };
    loop {
        rest = rest.trim_start_matches(|c: char| c.is_whitespace() || c == ',');
        if let Some(behind) = rest.strip_prefix('}') {
            return Ok((labels, behind));
        }
        let end = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        let (label, after) = rest.split_at(end);
        let operator = ["=~", "!~", "!=", "="]
            .into_iter()
            .find(|operator| after.trim_start().starts_with(operator));
        let (Some(operator), false) = (operator, label.is_empty()) else {
            return Err(format!("a matcher was expected at {rest:?}"));
        };
        let value = after.trim_start()[operator.len()..].trim_start();
        labels.insert(label.to_owned());
        rest = &value[string(value)?..];
    }
}

/// The length of the string that the text begins with.
fn string(text: &str) -> Result<usize, String> {
    let quote = text
        .chars()
        .next()
        .filter(|c| matches!(c, '"' | '\'' | '`'));
    let quote = quote.ok_or_else(|| format!("a string was expected at {text:?}"))?;
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' if quote != '`' => escaped = true,
            c if c == quote => return Ok(at + 1),
            _ => {}
        }
    }
    Err(format!("a string without an end at {text:?}"))
}

fn behind(text: &str, end: char) -> Result<&str, String> {
    text.split_once(end)
        .map(|(_, rest)| rest)
        .ok_or_else(|| format!("no {end} after {text:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selector(name: &str, labels: &[&str]) -> Selector {
        Selector {
            name: name.to_owned(),
            labels: labels.iter().map(|label| (*label).to_owned()).collect(),
        }
    }

    #[test]
    fn names_matchers_and_groups_are_found() {
        let text = r#"histogram_quantile(0.99, sum by (le, model_name) (rate(vllm:ttft_seconds_bucket{namespace=~"$ns", model_name!="a}b\""}[$__rate_interval])))
            / on (pod) group_left(node) max without(engine) (up) > bool 1e3 or time() - last{} offset 5m"#;
        let query = read(text).unwrap();
        assert_eq!(
            query.selectors,
            [
                selector("vllm:ttft_seconds_bucket", &["namespace", "model_name"]),
                selector("up", &[]),
                selector("last", &[]),
            ]
        );
        let grouping: Vec<_> = query.grouping.iter().map(String::as_str).collect();
        assert_eq!(grouping, ["engine", "le", "model_name", "node", "pod"]);
    }

    #[test]
    fn what_cannot_be_made_out_is_an_error() {
        for text in [
            "sum(rate(a[5m])",
            "a)",
            "{__name__=\"a\"}",
            "rat(a[5m])",
            "a{b}",
            "a{b=c}",
            "a{b=\"c}",
            "a[5m",
            "sum by (a",
            "a @ b",
        ] {
            assert!(read(text).is_err(), "{text}: {:?}", read(text));
        }
    }
}
