//! Answering metric requests from memory.
//!
//! [`Sources::measure`] gives the one value of a name and a selector, whichever protocol asked; [`Sources::value`] sends it as
//! `external.metrics.k8s.io` does. Metrics of objects are in [`crate::custom`].

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::response::{IntoResponse, Response};
use coppice_signals::{
    Answer, EndpointAnswer, InvalidQuery, Missing, Query, Requirement, Selector, Signals,
};
use jiff::Timestamp;

use crate::authz::Allowed;
use crate::groups;
use crate::metrics::RequestMetrics;
use crate::negotiate::{self, MetricForm};
use crate::quantity::{Clamped, Quantity, quantity};
use crate::route::MetricPath;
use crate::rules::Rules;
use crate::status::Refusal;
use crate::wanted::{self, WantedReplicas};
use crate::wire::{
    ExplainedAnswer, ExplainedEndpoint, Explanation, ExternalMetricValue, ExternalMetricValueList,
};

/// One metric request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MetricRequest {
    /// Which metric.
    pub path: MetricPath,
    /// The `labelSelector` parameter; empty selects everything.
    pub selector: String,
}

/// What answers come from.
#[derive(Debug, Clone)]
pub(crate) struct Sources {
    /// Scraped signals.
    pub signals: Signals,
    /// The scaler's decisions.
    pub wanted: WantedReplicas,
    /// Metrics under names of users' own.
    pub rules: Rules,
    /// Counts.
    pub metrics: RequestMetrics,
}

/// A value, with what every protocol says about it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Value {
    /// The number, in the range that autoscalers can compute with.
    pub quantity: Quantity,
    /// When the oldest sample in it was taken.
    pub timestamp: Timestamp,
    /// Look-back of a rate or a quantile; `None` for a snapshot.
    pub window: Option<Duration>,
    /// What it is about.
    pub labels: BTreeMap<String, String>,
    /// What a careful reader should know.
    pub warnings: Vec<String>,
}

impl Sources {
    /// Answers with the value, as a list object or as a Table.
    ///
    /// # Errors
    /// As [`Sources::measure`], and 406.
    pub(crate) fn value(
        &self,
        request: &Allowed<MetricRequest>,
        headers: &HeaderMap,
    ) -> Result<Response, Refusal> {
        let form = negotiate::metric_form(headers).ok_or_else(Refusal::not_acceptable)?;
        let request = request.get();
        let name = &request.path.name;
        let value = self
            .measure(request)
            .map_err(|refusal| refusal.about(groups::EXTERNAL, name.clone()))?;
        let list = ExternalMetricValueList::new(vec![ExternalMetricValue {
            metric_name: name.clone(),
            metric_labels: value.labels,
            timestamp: value.timestamp,
            window: value.window.map(whole_seconds),
            value: value.quantity.text,
        }]);
        let body = match form {
            MetricForm::Json => json_text(&list),
            MetricForm::Table => list
                .table(&request.path.namespace, Timestamp::now())
                .to_string(),
        };
        Ok(json_response(body, &value.warnings))
    }

    /// Answers with how the value came about, endpoint by endpoint.
    ///
    /// # Errors
    /// As [`Sources::value`], but a missing value is part of the answer.
    pub(crate) fn explain(
        &self,
        request: &Allowed<MetricRequest>,
        headers: &HeaderMap,
    ) -> Result<Response, Refusal> {
        if !negotiate::accepts_json(headers) {
            return Err(Refusal::not_acceptable());
        }
        let request = request.get();
        if is_wanted(&request.path.name) {
            return Err(Refusal::not_found(format!(
                "{} comes from the scaler's record; print it with `coppice-scaler explain NAMESPACE/NAME`",
                wanted::METRIC
            )));
        }
        if let Some(rule) = self.rules.find(&request.path.name) {
            let explanation = self.explain_rule(&rule, request)?;
            return Ok(json_response(json_text(&explanation), &[]));
        }
        let MetricPath { namespace, name } = &request.path;
        let query = query(namespace, name, &request.selector)?;
        let now = self.signals.now();
        let (answer, missing) = match self.signals.query(&query, now) {
            Ok(answer) => (Some(explained(&answer, now)), None),
            Err(missing) => (None, Some(missing.to_string())),
        };
        let endpoints = self.signals.query_each(&query, now).unwrap_or_default();
        let explanation = Explanation {
            metric: query.metric.to_string(),
            namespace: namespace.clone(),
            selector: query.selection.selector.to_string(),
            answer,
            missing,
            endpoints: endpoints
                .into_iter()
                .map(|endpoint| ExplainedEndpoint {
                    pod: format!("{}/{}", endpoint.namespace, endpoint.pod),
                    age_seconds: endpoint.timestamp.map(|at| age(at, now).as_secs_f64()),
                    value: endpoint.value.as_ref().ok().map(|measured| measured.value),
                    missing: endpoint.value.err().map(|missing| missing.to_string()),
                })
                .collect(),
        };
        Ok(json_response(json_text(&explanation), &[]))
    }

    /// The value of a metric over everything that its selector picks in the namespace.
    ///
    /// # Errors
    /// 400 for a bad selector, 404 for an unknown metric or one that nothing exposes, 503 when there is no value to be trusted.
    pub(crate) fn measure(&self, request: &MetricRequest) -> Result<Value, Refusal> {
        let MetricPath { namespace, name } = &request.path;
        if let Some(rule) = self.rules.find(name) {
            return self.measure_rule(&rule, request);
        }
        if !is_wanted(name) {
            return self.measure_query(name, &query(namespace, name, &request.selector)?);
        }
        let selector = selector(&request.selector)?;
        let now = Timestamp::now();
        let wanted = self
            .wanted
            .find(namespace, &selector, Instant::now(), now)?;
        let replicas = f64::from(wanted.replicas);
        sendable(name, replicas, now, None, wanted.labels, Vec::new())
    }

    /// The one value that a query over scraped signals has. `name` is the metric as it was asked for.
    ///
    /// # Errors
    /// 404 when nothing exposes it, 503 when there is no value to be trusted.
    pub(crate) fn measure_query(&self, name: &str, query: &Query) -> Result<Value, Refusal> {
        let now = self.signals.now();
        match self.signals.query(query, now) {
            Ok(Answer {
                value,
                timestamp,
                window,
                labels,
                warnings,
                ..
            }) => {
                self.metrics.value(age(timestamp, now));
                sendable(name, value, timestamp, window, labels, warnings)
            }
            Err(missing) => {
                self.metrics.missing(&missing);
                Err(self.refuse(name, &missing))
            }
        }
    }

    /// What each ready pod that a query selects has to say, and when that is. `name` is the metric as it was asked for.
    ///
    /// # Errors
    /// As [`Sources::measure_query`], for reasons that concern all of them.
    pub(crate) fn measure_each(
        &self,
        name: &str,
        query: &Query,
    ) -> Result<(Vec<EndpointAnswer>, Timestamp), Refusal> {
        let now = self.signals.now();
        match self.signals.query_each(query, now) {
            Ok(answers) => Ok((answers, now)),
            Err(missing) => {
                self.metrics.missing(&missing);
                Err(self.refuse(name, &missing))
            }
        }
    }

    /// Why there is no value, as an answer.
    pub(crate) fn refuse(&self, name: &str, missing: &Missing) -> Refusal {
        let name = name.to_ascii_lowercase();
        match missing {
            Missing::NoEndpoints { .. } if !self.signals.is_discovered() => {
                Refusal::unavailable(format!("{name}: pods are still being listed"))
            }
            Missing::NoEndpoints { .. } | Missing::NotExposed { .. } => {
                Refusal::not_found(format!("{name}: {missing}"))
            }
            Missing::QuorumNotMet { .. }
            | Missing::NoObservations { .. }
            | Missing::JustAdded { .. }
            | Missing::TooManySeries { .. } => Refusal::unavailable(format!("{name}: {missing}")),
        }
    }
}

/// The query for a metric in one namespace.
///
/// # Errors
/// 400 for a bad selector, 404 for a metric that cannot be.
pub(crate) fn query(namespace: &str, name: &str, selector: &str) -> Result<Query, Refusal> {
    check_namespace(namespace)?;
    Query::parse(name, Some(namespace), selector).map_err(|error| invalid(&error))
}

/// Refuses what stands for all namespaces.
///
/// # Errors
/// 404: metrics are served per namespace.
pub(crate) fn check_namespace(namespace: &str) -> Result<(), Refusal> {
    if namespace == "*" {
        return Err(Refusal::not_found(
            "namespace \"*\" does not exist; metrics are served per namespace, name one",
        ));
    }
    Ok(())
}

/// Takes in only what both selectors match.
pub(crate) fn both(one: &Selector, other: &Selector) -> Selector {
    let all = one.requirements().iter().chain(other.requirements());
    all.cloned()
        .collect::<BTreeSet<Requirement>>()
        .into_iter()
        .collect()
}

/// A label selector from its text.
///
/// # Errors
/// 400 when it does not follow the grammar.
pub(crate) fn selector(text: &str) -> Result<Selector, Refusal> {
    text.parse()
        .map_err(|error| invalid(&InvalidQuery::Selector(error)))
}

/// Whether this is the metric that comes from the scaler's record.
pub(crate) fn is_wanted(name: &str) -> bool {
    name.eq_ignore_ascii_case(wanted::METRIC)
}

fn invalid(error: &InvalidQuery) -> Refusal {
    match error {
        InvalidQuery::Metric(error) => Refusal::not_found(error.to_string()),
        InvalidQuery::Selector(error) => Refusal::bad_request(error.to_string()),
    }
}

/// Brings a value into the range that can be sent.
///
/// # Errors
/// 503 when it is no finite number.
pub(crate) fn sendable(
    name: &str,
    value: f64,
    timestamp: Timestamp,
    window: Option<Duration>,
    labels: BTreeMap<String, String>,
    mut warnings: Vec<String>,
) -> Result<Value, Refusal> {
    let Some(quantity) = quantity(value) else {
        return Err(Refusal::unavailable(format!(
            "{name}: the value is no finite number"
        )));
    };
    match quantity.clamped {
        None => {}
        Some(Clamped::Negative) => warnings.push("the value is below zero, 0 is sent".to_owned()),
        Some(Clamped::TooLarge) => {
            warnings.push("the value is above 9e15, which is sent instead".to_owned())
        }
    }
    Ok(Value {
        quantity,
        timestamp,
        window,
        labels,
        warnings,
    })
}

fn explained(answer: &Answer, now: Timestamp) -> ExplainedAnswer {
    ExplainedAnswer {
        value: answer.value,
        quantity: quantity(answer.value).map_or_else(String::new, |quantity| quantity.text),
        age_seconds: age(answer.timestamp, now).as_secs_f64(),
        window_seconds: answer.window.map(|window| window.as_secs_f64()),
        rule: answer.rule.to_string(),
        contributing: answer.contributing,
        live: answer.live,
        labels: answer.labels.clone(),
        warnings: answer.warnings.clone(),
    }
}

/// A look-back as it is sent; one second at least, since 0 would say that there is none.
pub(crate) fn whole_seconds(window: Duration) -> i64 {
    i64::try_from(window.as_secs().max(1)).unwrap_or(i64::MAX)
}

/// How long ago something was.
pub(crate) fn age(at: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(at)).unwrap_or(Duration::ZERO)
}

fn json_text(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).expect("strings and numbers")
}

const MAX_WARNINGS: usize = 4;
const MAX_WARNING_BYTES: usize = 256;

/// A body of JSON with warnings in its headers.
pub(crate) fn json_response(body: String, warnings: &[String]) -> Response {
    let mut response = ([(CONTENT_TYPE, "application/json")], body).into_response();
    for warning in warnings.iter().take(MAX_WARNINGS) {
        if let Some(value) = warning_header(warning) {
            response
                .headers_mut()
                .append(HeaderName::from_static("warning"), value);
        }
    }
    response
}

/// `299 - "text"`, as kubectl prints it; `None` when the text cannot be in a header.
fn warning_header(text: &str) -> Option<HeaderValue> {
    let mut quoted = String::from("299 - \"");
    for c in text
        .chars()
        .filter(|c| !c.is_control())
        .take(MAX_WARNING_BYTES)
    {
        if matches!(c, '"' | '\\') {
            quoted.push('\\');
        }
        quoted.push(c);
    }
    quoted.push('"');
    HeaderValue::try_from(quoted).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_are_quoted() {
        assert_eq!(
            warning_header("2 of 5 \"targets\" missing\n").unwrap(),
            "299 - \"2 of 5 \\\"targets\\\" missing\""
        );
    }

    #[test]
    fn a_value_that_is_no_number_is_refused_and_one_out_of_range_warned_about() {
        let send = |value| {
            sendable(
                "m",
                value,
                Timestamp::UNIX_EPOCH,
                None,
                BTreeMap::new(),
                Vec::new(),
            )
        };
        assert_eq!(send(f64::NAN).unwrap_err().code(), 503);
        let found = send(-1.0).unwrap();
        assert_eq!(
            (found.quantity.text.as_str(), found.warnings.len()),
            ("0", 1)
        );
        assert_eq!(send(2.5).unwrap().quantity.text, "2500m");
    }
}
