//! The Grafana dashboard of the scaler names only what the scaler exports. Tests only.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::metrics::tests::{exported, own, text};

/// Functions and aggregations that our queries use; another one is more likely a slip of the pen.
const FUNCTIONS: [&str; 10] = [
    "avg",
    "clamp_max",
    "count",
    "histogram_quantile",
    "increase",
    "max",
    "min",
    "rate",
    "sum",
    "topk",
];
const GROUPINGS: [&str; 6] = [
    "by",
    "group_left",
    "group_right",
    "ignoring",
    "on",
    "without",
];
const OPERATORS: [&str; 5] = ["and", "bool", "offset", "or", "unless"];

/// What a query names.
#[derive(Debug, Default, PartialEq)]
struct Named {
    /// Metrics, each with the labels of its matchers.
    metrics: Vec<(String, Vec<String>)>,
    /// Labels of groupings.
    groups: Vec<String>,
}

/// Reads the names out of a PromQL query. Not a parser of all PromQL: what it does not know it refuses.
struct Reader<'a> {
    rest: &'a str,
    query: &'a str,
}

impl<'a> Reader<'a> {
    fn read(query: &'a str) -> Result<Named, String> {
        let mut reader = Self { rest: query, query };
        let (mut named, mut open) = (Named::default(), 0_i32);
        while let Some(next) = reader.peek() {
            match next {
                '(' => open += 1,
                ')' => open -= 1,
                '"' => {
                    reader.until('"')?;
                    continue;
                }
                '[' => {
                    reader.until(']')?;
                    continue;
                }
                '$' => {
                    reader.skip(1);
                    reader.word();
                    continue;
                }
                _ if next.is_ascii_digit() => {
                    reader.take(|next| next.is_ascii_alphanumeric() || next == '.');
                    continue;
                }
                _ if is_start(next) => {
                    reader.name(&mut named)?;
                    continue;
                }
                _ if next.is_whitespace() || "+-*/%^,<>=!".contains(next) => {}
                _ => return Err(format!("`{next}` is not expected in `{query}`")),
            }
            if open < 0 {
                break;
            }
            reader.skip(next.len_utf8());
        }
        if open == 0 {
            Ok(named)
        } else {
            Err(format!("the brackets of `{query}` do not match"))
        }
    }

    fn name(&mut self, named: &mut Named) -> Result<(), String> {
        let word = self.word();
        self.blank();
        if GROUPINGS.contains(&word) {
            if self.peek() == Some('(') {
                let inside = self.until(')')?;
                named
                    .groups
                    .extend(inside.split(',').map(|label| label.trim().to_owned()));
            }
        } else if FUNCTIONS.contains(&word) {
            // Its arguments are read as they come.
        } else if self.peek() == Some('(') {
            return Err(format!("`{word}` in `{}` is no known function", self.query));
        } else if !OPERATORS.contains(&word) {
            let labels = if self.peek() == Some('{') {
                self.matchers()?
            } else {
                Vec::new()
            };
            named.metrics.push((word.to_owned(), labels));
        }
        Ok(())
    }

    /// The labels of `{label="value", …}`.
    fn matchers(&mut self) -> Result<Vec<String>, String> {
        self.skip(1);
        let mut labels = Vec::new();
        loop {
            self.take(|next| next.is_whitespace() || next == ',');
            match self.peek() {
                Some('}') => {
                    self.skip(1);
                    return Ok(labels);
                }
                Some(next) if is_start(next) => {
                    labels.push(self.word().to_owned());
                    self.take(|next| "=!~ ".contains(next));
                    self.until('"')?;
                }
                _ => return Err(format!("a matcher of `{}` does not end", self.query)),
            }
        }
    }

    fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    fn skip(&mut self, bytes: usize) {
        self.rest = &self.rest[bytes..];
    }

    fn take(&mut self, wanted: impl Fn(char) -> bool) -> &'a str {
        let end = self
            .rest
            .find(|next| !wanted(next))
            .unwrap_or(self.rest.len());
        let (taken, rest) = self.rest.split_at(end);
        self.rest = rest;
        taken
    }

    fn blank(&mut self) {
        self.take(char::is_whitespace);
    }

    fn word(&mut self) -> &'a str {
        self.take(|next| is_start(next) || next.is_ascii_digit())
    }

    /// What is between the character here and `end`.
    fn until(&mut self, end: char) -> Result<&'a str, String> {
        let inside = self.rest.get(1..).unwrap_or_default();
        let (inside, rest) = inside
            .split_once(end)
            .ok_or_else(|| format!("`{end}` is missing in `{}`", self.query))?;
        self.rest = rest;
        Ok(inside)
    }
}

fn is_start(next: char) -> bool {
    next.is_ascii_alphabetic() || next == '_' || next == ':'
}

/// Labels by series name, as a scrape of the program sees them.
fn series() -> BTreeMap<String, BTreeSet<String>> {
    let (registry, _) = exported();
    let mut series: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for line in text(&registry)
        .lines()
        .filter(|line| !line.starts_with('#'))
    {
        let (labelled, _) = line.rsplit_once(' ').unwrap();
        let named = Reader::read(labelled).unwrap();
        let [(name, labels)] = &named.metrics[..] else {
            panic!("{line}")
        };
        series
            .entry(name.clone())
            .or_default()
            .extend(labels.iter().cloned());
    }
    series
}

/// What is wrong with a query, if anything.
fn check(query: &str, series: &BTreeMap<String, BTreeSet<String>>) -> Result<Named, String> {
    let named = Reader::read(query)?;
    if named.metrics.is_empty() {
        return Err(format!("`{query}` names no metric"));
    }
    let mut known = BTreeSet::new();
    for (metric, labels) in &named.metrics {
        let exported = series
            .get(metric)
            .ok_or_else(|| format!("`{metric}` of `{query}` is not exported"))?;
        for label in labels {
            if !exported.contains(label) {
                return Err(format!("`{metric}` of `{query}` has no label `{label}`"));
            }
        }
        known.extend(exported);
    }
    match named.groups.iter().find(|label| !known.contains(label)) {
        Some(label) => Err(format!("nothing in `{query}` has the label `{label}`")),
        None => Ok(named),
    }
}

fn dashboard() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../dashboards/scaler.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// Every query of the panels.
fn queries(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                match field {
                    Value::String(query) if name == "expr" => found.push(query.clone()),
                    _ => queries(field, found),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| queries(item, found)),
        _ => {}
    }
}

#[test]
fn every_query_names_what_the_scaler_exports() {
    let (series, mut found) = (series(), Vec::new());
    queries(&dashboard()["panels"], &mut found);
    assert!(found.len() > 20, "only {} queries", found.len());
    for query in &found {
        check(query, &series).unwrap_or_else(|wrong| panic!("{wrong}"));
    }
    let list = &dashboard()["templating"]["list"];
    for variable in list.as_array().unwrap() {
        let Some(query) = variable["query"]
            .as_str()
            .filter(|_| variable["type"] == "query")
        else {
            continue;
        };
        // label_values(metric{matchers}, label)
        let inside = query
            .strip_prefix("label_values(")
            .and_then(|rest| rest.strip_suffix(')'))
            .unwrap_or_else(|| panic!("`{query}` is not label_values(…)"));
        let (metric, label) = inside.rsplit_once(',').unwrap();
        let grouped = format!("max by ({}) ({metric})", label.trim());
        check(&grouped, &series).unwrap_or_else(|wrong| panic!("{wrong}"));
    }
}

#[test]
fn every_metric_of_the_scaler_is_on_it() {
    let mut found = Vec::new();
    queries(&dashboard()["panels"], &mut found);
    let shown: BTreeSet<String> = found
        .iter()
        .flat_map(|query| Reader::read(query).unwrap().metrics)
        .map(|(name, _)| name)
        .collect();
    let (registry, _) = own();
    let text = text(&registry);
    let families = text.lines().filter_map(|line| {
        line.strip_prefix("# TYPE ")
            .and_then(|line| line.split_once(' '))
            .map(|(name, _)| name)
    });
    for family in families {
        assert!(
            shown.iter().any(|name| name.starts_with(family)),
            "{family} is on no panel"
        );
    }
}

#[test]
fn queries_are_read_as_prometheus_reads_them() {
    let series = series();
    for good in [
        "scaler_policies",
        "max by (role, limit) (scaler_limited{namespace=~\"$namespace\", role!=\"x, } )\"}) > 0",
        "histogram_quantile(0.99, sum by (le) (rate(scaler_decide_duration_seconds_bucket[$__rate_interval])))",
        "sum(rate(scaler_writes_total{outcome=\"refused\"}[5m] offset 1h)) / 2 or scaler_policies",
    ] {
        check(good, &series).unwrap_or_else(|wrong| panic!("{wrong}"));
    }
    for (bad, why) in [
        ("scaler_polices", "`scaler_polices` of"),
        ("scaler_writes", "is not exported"),
        (
            "sum by (rol) (scaler_desired_replicas)",
            "has the label `rol`",
        ),
        ("scaler_desired_replicas{rol=\"a\"}", "has no label `rol`"),
        ("sum(scaler_policies", "brackets"),
        ("rat(scaler_writes_total[5m])", "no known function"),
        ("1 + 1", "names no metric"),
        ("scaler_policies{a=\"b\"", "does not end"),
        ("scaler_policies # a", "not expected"),
    ] {
        let wrong = check(bad, &series).unwrap_err();
        assert!(wrong.contains(why), "`{bad}`: `{wrong}`");
    }
}
