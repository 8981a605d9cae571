//! The value of a rule: each input over its endpoints, then the expression over the inputs.

use std::collections::BTreeMap;
use std::time::Duration;

use coppice_signals::{Answer, Missing, Selection};
use jiff::Timestamp;

use super::{Rule, WhenEmpty};
use crate::quantity::quantity;
use crate::query::{self, MetricRequest, Sources, Value, age, sendable};
use crate::status::Refusal;
use crate::wire::{ExplainedAnswer, Explanation};

/// A rule's value with what it rests on.
#[derive(Debug, Clone, PartialEq)]
struct Computed {
    value: f64,
    timestamp: Timestamp,
    window: Option<Duration>,
    contributing: usize,
    live: usize,
    labels: BTreeMap<String, String>,
    warnings: Vec<String>,
    /// How it came about, in words.
    text: String,
}

/// Why a rule has no value.
#[derive(Debug, Clone, PartialEq)]
enum Absent {
    /// An input has none.
    Input(String, Missing),
    /// The inputs have values, of which the expression makes no number; in words.
    NotFinite(String),
}

impl Sources {
    /// The value of a rule over everything that it and the request select.
    ///
    /// # Errors
    /// As [`Sources::measure`].
    pub(crate) fn measure_rule(
        &self,
        rule: &Rule,
        request: &MetricRequest,
    ) -> Result<Value, Refusal> {
        let selection = selection(rule, request)?;
        let now = self.signals.now();
        match self.compute(rule, &selection, now) {
            Ok(computed) => {
                self.metrics.value(age(computed.timestamp, now));
                sendable(
                    &rule.name,
                    computed.value,
                    computed.timestamp,
                    computed.window,
                    computed.labels,
                    computed.warnings,
                )
            }
            Err(Absent::Input(input, missing)) => {
                self.metrics.missing(&missing);
                let refusal = self.refuse(&rule.name, &missing);
                Err(match rule.expression.only_input() {
                    Some(_) => refusal,
                    None => refusal.with(&format!(" (reading {input})")),
                })
            }
            Err(Absent::NotFinite(text)) => {
                Err(Refusal::unavailable(format!("{}: {text}", rule.name)))
            }
        }
    }

    /// How the value of a rule comes about, input by input.
    ///
    /// # Errors
    /// As [`Sources::measure_rule`], but a missing value is part of the answer.
    pub(crate) fn explain_rule(
        &self,
        rule: &Rule,
        request: &MetricRequest,
    ) -> Result<Explanation, Refusal> {
        let selection = selection(rule, request)?;
        let now = self.signals.now();
        let (answer, missing) = match self.compute(rule, &selection, now) {
            Ok(computed) => (Some(explained(computed, now)), None),
            Err(Absent::Input(input, missing)) => (None, Some(format!("{input}: {missing}"))),
            Err(Absent::NotFinite(text)) => (None, Some(text)),
        };
        Ok(Explanation {
            metric: rule.name.clone(),
            namespace: request.path.namespace.clone(),
            selector: selection.selector.to_string(),
            answer,
            missing,
            endpoints: Vec::new(),
        })
    }

    fn compute(
        &self,
        rule: &Rule,
        selection: &Selection,
        now: Timestamp,
    ) -> Result<Computed, Absent> {
        // All are read before any is judged, so that a series asked for the first time is collected from now on.
        let read: Vec<_> = rule
            .expression
            .inputs()
            .iter()
            .map(|input| self.signals.read(selection, input, &rule.overrides, now))
            .collect();
        combine(rule, read, self.signals.is_discovered(), now)
    }
}

fn selection(rule: &Rule, request: &MetricRequest) -> Result<Selection, Refusal> {
    let namespace = &request.path.namespace;
    query::check_namespace(namespace)?;
    let asked = query::selector(&request.selector)?;
    Ok(Selection {
        namespace: Some(namespace.clone()),
        selector: query::both(&rule.selector, &asked),
    })
}

/// Computes the expression of what its inputs say. `is_discovered`: all pods are known.
fn combine(
    rule: &Rule,
    read: Vec<Result<Answer, Missing>>,
    is_discovered: bool,
    now: Timestamp,
) -> Result<Computed, Absent> {
    let is_alone = rule.expression.only_input().is_some();
    let mut values = Vec::with_capacity(read.len());
    let mut parts = Vec::with_capacity(read.len());
    let mut computed = Computed {
        value: 0.0,
        timestamp: now,
        window: None,
        contributing: usize::MAX,
        live: 0,
        labels: BTreeMap::new(),
        warnings: Vec::new(),
        text: String::new(),
    };
    let mut has_answer = false;
    for (input, outcome) in rule.expression.inputs().iter().zip(read) {
        match outcome {
            Ok(answer) => {
                parts.push(format!(
                    "{input} = {} ({}, {} of {} endpoints)",
                    answer.value, answer.rule, answer.contributing, answer.live
                ));
                values.push(answer.value);
                computed.timestamp = computed.timestamp.min(answer.timestamp);
                computed.window = computed.window.max(answer.window);
                computed.contributing = computed.contributing.min(answer.contributing);
                computed.live = computed.live.max(answer.live);
                if has_answer {
                    let labels = &mut computed.labels;
                    labels.retain(|key, value| answer.labels.get(key) == Some(value));
                } else {
                    computed.labels = answer.labels;
                }
                let warnings = answer.warnings.into_iter();
                computed
                    .warnings
                    .extend(warnings.map(|warning| match is_alone {
                        true => warning,
                        false => format!("{input}: {warning}"),
                    }));
                has_answer = true;
            }
            Err(missing) if is_zero(rule, &missing, is_discovered) => {
                parts.push(format!("{input} = 0, taken so by whenEmpty: {missing}"));
                values.push(0.0);
            }
            Err(missing) => return Err(Absent::Input(input.to_string(), missing)),
        }
    }
    let parts = parts.join(", ");
    if !has_answer {
        computed.contributing = 0;
        computed.text = format!("{}, where {parts}", rule.expression);
        return Ok(computed);
    }
    let scale = rule.unit.map_or(1.0, coppice_signals::engines::Unit::scale);
    computed.value = rule.expression.value(&values) / scale;
    if !computed.value.is_finite() {
        return Err(Absent::NotFinite(format!(
            "{} is no finite number, where {parts}",
            rule.expression
        )));
    }
    computed.text = format!("{}, where {parts}", rule.expression);
    Ok(computed)
}

/// Whether an input without a value counts as 0. Only nothing is zero: what could not be measured is not.
fn is_zero(rule: &Rule, missing: &Missing, is_discovered: bool) -> bool {
    rule.when_empty == WhenEmpty::Zero
        && match missing {
            Missing::NoEndpoints { .. } => is_discovered,
            Missing::NoObservations { .. } => true,
            Missing::QuorumNotMet { .. }
            | Missing::NotExposed { .. }
            | Missing::JustAdded { .. }
            | Missing::TooManySeries { .. } => false,
        }
}

fn explained(computed: Computed, now: Timestamp) -> ExplainedAnswer {
    ExplainedAnswer {
        value: computed.value,
        quantity: quantity(computed.value).map_or_else(String::new, |quantity| quantity.text),
        age_seconds: age(computed.timestamp, now).as_secs_f64(),
        window_seconds: computed.window.map(|window| window.as_secs_f64()),
        rule: computed.text,
        contributing: computed.contributing,
        live: computed.live,
        labels: computed.labels,
        warnings: computed.warnings,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{TestPod, list_pods, sources};
    use crate::route::MetricPath;
    use crate::rules::{Bounds, file};

    const BOUNDS: Bounds = Bounds {
        window: Duration::from_secs(60),
    };

    /// Sources with these rules, each of one line.
    fn with_rules(rules: &[&str]) -> Sources {
        let sources = sources();
        let text: String = rules.iter().map(|rule| format!("- {{{rule}}}\n")).collect();
        let set = file::read(format!("rules:\n{text}").as_bytes(), BOUNDS);
        sources.rules.replace(set.unwrap());
        sources
    }

    fn pods(sources: &Sources, waiting: &[Option<u32>]) -> coppice_signals::WatchId {
        let names = ["a", "b", "c", "d"];
        let pods: Vec<_> = names
            .into_iter()
            .zip(waiting)
            .map(|(name, waiting)| TestPod {
                name,
                labels: if name == "a" {
                    &[("tier", "one")]
                } else {
                    &[("tier", "two")]
                },
                waiting: *waiting,
            })
            .collect();
        list_pods(sources, &pods)
    }

    fn request(name: &str, selector: &str) -> MetricRequest {
        MetricRequest {
            path: MetricPath {
                namespace: "serving".into(),
                name: name.into(),
            },
            selector: selector.into(),
        }
    }

    fn sent(sources: &Sources, name: &str, selector: &str) -> String {
        match sources.measure(&request(name, selector)) {
            Ok(value) => value.quantity.text,
            Err(refusal) => format!("{} {}", refusal.code().as_u16(), refusal.message()),
        }
    }

    #[tokio::test]
    async fn a_rule_is_asked_for_as_any_metric_and_selects_with_the_request() {
        let sources = with_rules(&[
            "name: load, expression: waiting + 2 * running",
            "name: worst, expression: waiting, aggregation: max",
            "name: of_two, expression: waiting, selector: tier=two",
            "name: percent, expression: 'waiting / running', unit: percent",
        ]);
        let _watch = pods(&sources, &[Some(1), Some(2), Some(6)]);
        for (name, selector, expected) in [
            ("load", "", "15"),
            ("LOAD", "", "15"),
            ("load", "tier=one", "3"),
            ("worst", "", "6"),
            ("of_two", "", "8"),
            ("percent", "", "300"),
        ] {
            assert_eq!(
                sent(&sources, name, selector),
                expected,
                "{name} {selector}"
            );
        }
        let none = sent(&sources, "of_two", "tier=one");
        assert!(none.starts_with("404 of_two: no ready endpoint"), "{none}");
        let bad = sent(&sources, "load", "a b");
        assert!(bad.starts_with("400 "), "{bad}");
        let value = sources.measure(&request("load", "")).unwrap();
        assert_eq!(value.labels["namespace"], "serving");
        assert_eq!(value.labels["model"], "Qwen/Qwen3");
    }

    #[tokio::test]
    async fn what_is_missing_is_an_error_that_names_the_input_and_never_zero() {
        let sources = with_rules(&[
            "name: strict, expression: waiting, quorum: 1, whenEmpty: zero",
            "name: loose, expression: waiting, quorum: 0.5",
            "name: both, expression: waiting + preemptions, quorum: 0.5",
            "name: divided, expression: running / (waiting - waiting), quorum: 0.5",
            "name: raw, expression: 'series(our_queue)'",
        ]);
        let _watch = pods(&sources, &[Some(1), Some(3), Some(2), None]);
        let strict = sent(&sources, "strict", "");
        assert!(
            strict.starts_with("503 strict: 3 of 4 endpoints"),
            "{strict}"
        );
        assert_eq!(sent(&sources, "loose", ""), "8", "scaled up to four");
        let both = sent(&sources, "both", "");
        assert!(
            !both.starts_with('0') && both.ends_with(" (reading preemptions)"),
            "{both}"
        );
        let divided = sent(&sources, "divided", "");
        assert!(
            divided.starts_with(
                "503 divided: running / (waiting - waiting) is no finite number, where running = "
            ),
            "{divided}"
        );
        let raw = sent(&sources, "raw", "");
        assert!(raw.contains("is collected from now on"), "{raw}");
        let explanation = sources
            .explain_rule(
                &sources.rules.find("strict").unwrap(),
                &request("strict", ""),
            )
            .unwrap();
        assert_eq!(explanation.answer, None);
        assert!(
            explanation
                .missing
                .unwrap()
                .starts_with("waiting: 3 of 4 endpoints")
        );
    }

    #[tokio::test]
    async fn nothing_is_zero_only_where_the_rule_says_so_and_all_pods_are_known() {
        let sources = with_rules(&[
            "name: zero, expression: waiting, whenEmpty: zero",
            "name: share, expression: waiting / running, whenEmpty: zero",
            "name: error, expression: waiting",
        ]);
        let unknown = sent(&sources, "zero", "");
        assert!(
            unknown.starts_with("503 zero: pods are still being listed"),
            "{unknown}"
        );
        let _watch = pods(&sources, &[]);
        assert_eq!(sent(&sources, "zero", ""), "0");
        assert_eq!(sent(&sources, "share", ""), "0");
        let error = sent(&sources, "error", "");
        assert!(error.starts_with("404 error: no ready endpoint"), "{error}");
        let explanation = sources
            .explain_rule(&sources.rules.find("zero").unwrap(), &request("zero", ""))
            .unwrap();
        let rule = explanation.answer.unwrap().rule;
        assert!(
            rule.starts_with("waiting, where waiting = 0, taken so by whenEmpty"),
            "{rule}"
        );
    }
}
