//! `convert`: rules from a configuration of prometheus-adapter.
//!
//! What can be said as a rule of ours is; what cannot is a comment that says why and what to do instead. The result is read back before
//! it is printed, so that it can always be used.

mod query;

use std::time::Duration;

use anyhow::{Context, bail};
use coppice_signals::engines::{ENGINES, Reading as EngineReading, Role};
use coppice_signals::{Aggregate, Input, Latency, Metric, Percentile, Selector, Signal};
use serde::Deserialize;
use serde_saphyr::Spanned;

use crate::rules::{self, Bounds};
use crate::settings::ConvertArgs;
use query::{Matcher, Reading, Understood, understand};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Configuration {
    rules: Option<Vec<Spanned<SourceRule>>>,
    external_rules: Option<Vec<Spanned<SourceRule>>>,
    resource_rules: Option<serde_json::Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SourceRule {
    #[serde(default)]
    series_query: String,
    #[serde(default)]
    name: Name,
    #[serde(default)]
    metrics_query: String,
    #[serde(default)]
    resources: Resources,
}

#[derive(Deserialize, Default)]
struct Name {
    #[serde(default)]
    matches: String,
    #[serde(default, rename = "as")]
    target: String,
}

#[derive(Deserialize, Default)]
struct Resources {
    namespaced: Option<bool>,
}

/// A rule of ours, with what a reader should know.
#[derive(Debug, Clone, PartialEq)]
struct Converted {
    name: String,
    expression: String,
    selector: Option<String>,
    aggregation: Option<Aggregate>,
    window: Option<Duration>,
    notes: Vec<String>,
}

/// Why there is no rule of ours, and what to do.
type Instead = String;

/// Reads the configuration and renders our rules.
///
/// # Errors
/// The file cannot be read or is no configuration.
pub(crate) fn convert(args: &ConvertArgs) -> anyhow::Result<String> {
    let text = std::fs::read_to_string(&args.file)
        .with_context(|| format!("cannot read {}", args.file.display()))?;
    render(&text, args.window).with_context(|| args.file.display().to_string())
}

fn render(text: &str, longest: Duration) -> anyhow::Result<String> {
    let configuration: Configuration = serde_saphyr::from_str(text)
        .map_err(|error| anyhow::anyhow!("{}", error.without_snippet()))?;
    let Configuration {
        rules,
        external_rules,
        resource_rules,
    } = configuration;
    if rules.is_none() && external_rules.is_none() && resource_rules.is_none() {
        bail!(
            "it has no rules, externalRules or resourceRules: give the content of prometheus-adapter's config.yaml, not the ConfigMap around it"
        );
    }
    let mut output = String::from("rules:\n");
    let mut names = std::collections::BTreeSet::new();
    for (kind, list) in [("rules", rules), ("externalRules", external_rules)] {
        for (index, source) in list.unwrap_or_default().iter().enumerate() {
            let place = format!("{kind}[{index}] in line {}", source.referenced.line());
            let outcome = rule(&source.value, kind == "rules", longest).and_then(|converted| {
                match names.insert(converted.name.clone()) {
                    true => Ok(converted),
                    false => Err(format!(
                        "there is a rule {} already: give one of them another name",
                        converted.name
                    )),
                }
            });
            match outcome {
                Ok(converted) => output.push_str(&converted.render(&place)),
                Err(instead) => {
                    let series = &source.value.series_query;
                    output.push_str(&comment(&format!(
                        "{place} ({series}) is not converted: {instead}"
                    )));
                }
            }
        }
    }
    if names.is_empty() {
        output = output.replacen("rules:\n", "rules: []\n", 1);
    }
    if resource_rules.is_some() {
        output.push_str(&comment(
            "resourceRules are not converted: CPU and memory come from metrics-server",
        ));
    }
    let bounds = Bounds { window: longest };
    rules::read(output.as_bytes(), bounds).with_context(|| {
        format!("the result cannot be used, which is a mistake of ours:\n{output}")
    })?;
    Ok(output)
}

fn comment(text: &str) -> String {
    text.lines().map(|line| format!("# {line}\n")).collect()
}

impl Converted {
    fn render(&self, place: &str) -> String {
        let Self {
            name,
            expression,
            selector,
            aggregation,
            window,
            notes,
        } = self;
        let mut text = comment(place);
        for note in notes {
            text.push_str(&comment(note));
        }
        text.push_str(&format!("- name: {name}\n  expression: {expression}\n"));
        if let Some(selector) = selector {
            // JSON's texts are YAML's.
            let quoted = serde_json::Value::from(selector.as_str());
            text.push_str(&format!("  selector: {quoted}\n"));
        }
        if let Some(aggregation) = aggregation {
            text.push_str(&format!("  aggregation: {aggregation}\n"));
        }
        if let Some(window) = window {
            text.push_str(&format!("  window: {}s\n", window.as_secs()));
        }
        text
    }
}

fn rule(source: &SourceRule, is_of_objects: bool, longest: Duration) -> Result<Converted, Instead> {
    let listed = understand(&source.series_query)
        .map_err(|what| format!("its seriesQuery is {what}: write a rule for each series"))?;
    let query = understand(&source.metrics_query).map_err(|what| {
        format!("{what} in its metricsQuery is not understood: write the expression by hand")
    })?;
    let series = match (&query.series, &listed.series) {
        (Some(series), _) | (None, Some(series)) => series.clone(),
        (None, None) => return Err("it names no series: write a rule for each".to_owned()),
    };
    if query.grouped && query.aggregate != Some(Aggregate::Sum) {
        return Err(
            "it answers several values, one for each label, which an HPA adds up: decide which one you want, and select it"
                .to_owned(),
        );
    }
    let mut notes = Vec::new();
    if query.grouped {
        notes.push(
            "It was one value for each label, which an HPA adds up: this is their sum.".to_owned(),
        );
    }
    let selector = selector(&listed.matchers, &query.matchers)?;
    let asked = listed.series.as_deref().unwrap_or(&series);
    let name = rename(&source.name, asked, &mut notes)?;
    if source.resources.namespaced == Some(false) {
        notes.push(
            "It was served for every namespace (namespaced: false); here an HPA reads pods of its own namespace."
                .to_owned(),
        );
    }
    if is_of_objects {
        notes.push(format!(
            "It was a metric of objects: ask for this as type External, or for {} as type Pods.",
            own_name(&series, query.reading)
        ));
    }
    let window = window(query.reading, longest, &mut notes);
    let (expression, aggregation) = expression(&query, &series)?;
    Ok(Converted {
        name,
        expression,
        selector,
        aggregation,
        window,
        notes,
    })
}

/// The name under which a series is served without any rule.
fn own_name(series: &str, reading: Reading) -> String {
    match reading {
        Reading::Value | Reading::Quantile(..) => series.to_owned(),
        Reading::Rate(_) | Reading::Increase(_) => format!("{series}:rate"),
    }
}

/// The look-back, if it is not the adapter's own or can't be had.
fn window(reading: Reading, longest: Duration, notes: &mut Vec<String>) -> Option<Duration> {
    let (Reading::Rate(window) | Reading::Increase(window) | Reading::Quantile(_, window)) =
        reading
    else {
        return None;
    };
    if window > longest {
        let (asked, most) = (window.as_secs(), longest.as_secs());
        notes.push(format!(
            "It looked back {asked} s, this looks back {most} s: start the adapter with --window={asked}s, and convert again with it."
        ));
        return None;
    }
    (window < longest && window.as_secs() > 0).then_some(window)
}

/// What our expression is, and the aggregation if it is not the usual one.
fn expression(query: &Understood, series: &str) -> Result<(String, Option<Aggregate>), Instead> {
    if let Reading::Quantile(share, _) = query.reading {
        return quantile(series, share).map(|metric| (metric, None));
    }
    let wanted = query.aggregate.unwrap_or(Aggregate::Sum);
    let signal = signal(series, query.reading)
        .filter(|signal| Input::Signal(*signal).aggregates().contains(&wanted));
    let input = match (signal, query.reading) {
        (Some(signal), _) => Input::Signal(signal),
        (None, Reading::Value | Reading::Quantile(..)) => Input::Metric(of(series, false)?),
        (None, Reading::Rate(_) | Reading::Increase(_)) => Input::Metric(of(series, true)?),
    };
    let usual = input.aggregates().first().copied();
    let expression = match query.reading {
        Reading::Increase(window) => format!("{input} * {}", window.as_secs_f64()),
        Reading::Value | Reading::Rate(_) | Reading::Quantile(..) => input.to_string(),
    };
    Ok((expression, (usual != Some(wanted)).then_some(wanted)))
}

fn of(series: &str, is_rate: bool) -> Result<Metric, Instead> {
    match Metric::parse(series) {
        Ok(Metric::Series(name)) if is_rate => Ok(Metric::SeriesRate(name)),
        Ok(metric @ Metric::Series(_)) => Ok(metric),
        _ => Err(format!("{series} cannot be the name of a scraped series")),
    }
}

/// The signal that a series alone makes up in some engine. It has the same value there, and one in other engines, too.
fn signal(series: &str, reading: Reading) -> Option<Signal> {
    let mut rules = ENGINES.iter().flat_map(|engine| engine.rules);
    let found = rules.find(|rule| {
        rule.sources.iter().any(|source| match source.terms {
            [term] => {
                let is_same = match reading {
                    Reading::Value => {
                        matches!(term.reading, EngineReading::Gauge | EngineReading::Ratio)
                    }
                    Reading::Rate(_) | Reading::Increase(_) => {
                        matches!(term.reading, EngineReading::Counter)
                    }
                    Reading::Quantile(..) => {
                        matches!(term.reading, EngineReading::Histogram { buckets: true })
                    }
                };
                is_same
                    && term.name == series
                    && term.labels.is_empty()
                    && term.role == Role::Add
                    && term.scale.to_bits() == 1.0_f64.to_bits()
            }
            _ => false,
        })
    });
    found.map(|rule| rule.signal)
}

fn quantile(series: &str, share: f64) -> Result<String, Instead> {
    let series = series.strip_suffix("_bucket").unwrap_or(series);
    let signal = signal(series, Reading::Quantile(share, Duration::ZERO));
    let latency = Latency::ALL
        .into_iter()
        .find(|latency| Some(latency.signal()) == signal);
    let percentile = Percentile::ALL
        .into_iter()
        .find(|percentile| (percentile.share() - share).abs() < 1e-9);
    match (latency, percentile) {
        (Some(latency), Some(percentile)) => Ok(Metric::Latency(latency, percentile).to_string()),
        (Some(_), None) => Err(format!(
            "the quantile {share} is not served: use 0.5, 0.9, 0.95 or 0.99"
        )),
        (None, _) => Err(format!(
            "quantiles of {series} are not served: describe the server under engines with one of ttft, itl, end_to_end and queue_time, and use coppice_…_seconds_p95"
        )),
    }
}

/// Labels that say only that a series has an object.
const PLACES: [&str; 6] = [
    "namespace",
    "pod",
    "kubernetes_namespace",
    "kubernetes_pod_name",
    "container",
    "service",
];

/// What the matchers select, as far as our selector can.
fn selector(listed: &[Matcher], queried: &[Matcher]) -> Result<Option<String>, Instead> {
    let mut parts = Vec::new();
    for matcher in listed.iter().chain(queried) {
        let Matcher {
            label,
            operator,
            value,
        } = matcher;
        let is_presence = operator == "!=" && value.is_empty();
        let is_pause = label == "container" && operator == "!=" && value == "POD";
        if is_presence || is_pause {
            continue;
        }
        if matches!(label.as_str(), "model_name" | "model")
            && matches!(operator.as_str(), "=" | "!=")
        {
            let part = format!("model{operator}{value}");
            let part = match part.parse::<Selector>() {
                Ok(_) => part,
                Err(_) => format!("model_id{operator}{}", coppice_signals::model_id(value)),
            };
            if !parts.contains(&part) {
                parts.push(part);
            }
            continue;
        }
        if PLACES.contains(&label.as_str()) {
            return Err(format!(
                "it selects {label}{operator}{value:?}: ask in that namespace, or select pods by their labels"
            ));
        }
        return Err(format!(
            "it selects {label}{operator}{value:?}, and series are not selected by their own labels here: give the series a signal under engines, with these labels"
        ));
    }
    Ok((!parts.is_empty()).then(|| parts.join(",")))
}

/// The name that the metric had.
fn rename(name: &Name, series: &str, notes: &mut Vec<String>) -> Result<String, Instead> {
    let Name { matches, target } = name;
    let renamed = if matches.is_empty() && target.is_empty() {
        series.to_owned()
    } else {
        let captured = captured(matches, series)?;
        let default = if captured.is_some() { "$1" } else { "$0" };
        let target = if target.is_empty() { default } else { target };
        let first = captured.as_deref().unwrap_or(series);
        target
            .replace("${1}", first)
            .replace("$1", first)
            .replace("${0}", series)
            .replace("$0", series)
    };
    if renamed.contains('$') {
        return Err(format!(
            "its name {target:?} is not understood: write the rule by hand"
        ));
    }
    let ours: String = renamed
        .chars()
        .map(|c| match c.to_ascii_lowercase() {
            c @ ('a'..='z' | '0'..='9' | '_') => c,
            _ => '_',
        })
        .collect();
    let ours =
        match ours.starts_with("coppice_") || !ours.starts_with(|c: char| c.is_ascii_lowercase()) {
            true => format!("m_{ours}"),
            false => ours,
        };
    if !renamed.eq_ignore_ascii_case(&ours) {
        notes.push(format!(
            "Its name was {renamed}, which no rule can have: change it in the HPA."
        ));
    }
    Ok(ours)
}

/// What `(.*)` stands for in a pattern of fixed text around it; `None` in a pattern without it.
fn captured(pattern: &str, series: &str) -> Result<Option<String>, Instead> {
    if pattern.is_empty() || pattern == ".*" {
        return Ok(None);
    }
    let unknown = || {
        format!(
            "its name.matches {pattern:?} is more than text around (.*): write the rule by hand"
        )
    };
    let is_text = |text: &str| {
        text.chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | ':'))
    };
    let (begin, rest) = match pattern.strip_prefix('^') {
        Some(rest) => (true, rest),
        None => (false, pattern),
    };
    let (end, rest) = match rest.strip_suffix('$') {
        Some(rest) => (true, rest),
        None => (false, rest),
    };
    let other = || format!("its name.matches {pattern:?} does not match {series}");
    let Some((before, after)) = rest.split_once("(.*)").or_else(|| rest.split_once("(.+)")) else {
        if !is_text(rest) {
            return Err(unknown());
        }
        return if series.contains(rest) {
            Ok(None)
        } else {
            Err(other())
        };
    };
    if !is_text(before) || !is_text(after) {
        return Err(unknown());
    }
    let start = series.find(before).filter(|at| !begin || *at == 0);
    let start = start.ok_or_else(other)? + before.len();
    let tail = series.get(start..).unwrap_or_default();
    let stop = match end || after.is_empty() {
        true => tail.strip_suffix(after).map(str::len),
        false => tail.rfind(after),
    };
    let found = tail.get(..stop.ok_or_else(other)?).unwrap_or_default();
    Ok(Some(found.to_owned()))
}

#[cfg(test)]
mod tests;
