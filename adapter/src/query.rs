//! Answering metric requests from memory.

use std::time::{Duration, Instant};

use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::response::{IntoResponse, Response};
use coppice_signals::{Answer, InvalidQuery, Missing, Query, Selector, Signals};
use jiff::Timestamp;

use crate::authz::Allowed;
use crate::metrics::RequestMetrics;
use crate::negotiate::{self, MetricForm};
use crate::quantity::{Clamped, quantity};
use crate::route::{GROUP, MetricPath};
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
    /// Counts.
    pub metrics: RequestMetrics,
}

/// A value ready to be sent.
#[derive(Debug, Clone, PartialEq)]
struct Found {
    item: ExternalMetricValue,
    warnings: Vec<String>,
}

impl Sources {
    /// Answers with the value, as a list object or as a Table.
    ///
    /// # Errors
    /// 400 for a bad selector, 404 for an unknown metric or one that nothing exposes, 406, 503 when there is no value to be trusted.
    pub(crate) fn value(
        &self,
        request: &Allowed<MetricRequest>,
        headers: &HeaderMap,
    ) -> Result<Response, Refusal> {
        let form = negotiate::metric_form(headers).ok_or_else(Refusal::not_acceptable)?;
        let request = request.get();
        let found = self
            .find(request)
            .map_err(|refusal| refusal.about(GROUP, request.path.name.clone()))?;
        let list = ExternalMetricValueList::new(vec![found.item]);
        let body = match form {
            MetricForm::Json => json_text(&list),
            MetricForm::Table => list
                .table(&request.path.namespace, Timestamp::now())
                .to_string(),
        };
        let mut response = ([(CONTENT_TYPE, "application/json")], body).into_response();
        for warning in found.warnings.iter().take(MAX_WARNINGS) {
            if let Some(value) = warning_header(warning) {
                response
                    .headers_mut()
                    .append(HeaderName::from_static("warning"), value);
            }
        }
        Ok(response)
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
        if is_wanted(request) {
            return Err(Refusal::not_found(format!(
                "{} comes from the scaler's record; print it with `coppice-scaler explain NAMESPACE/NAME`",
                wanted::METRIC
            )));
        }
        let query = self.query(request)?;
        let now = self.signals.now();
        let (answer, missing) = match self.signals.query(&query, now) {
            Ok(answer) => (Some(explained(&answer, now)), None),
            Err(missing) => (None, Some(missing.to_string())),
        };
        let endpoints = self.signals.query_each(&query, now).unwrap_or_default();
        let explanation = Explanation {
            metric: query.metric.to_string(),
            namespace: request.path.namespace.clone(),
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
        Ok((
            [(CONTENT_TYPE, "application/json")],
            json_text(&explanation),
        )
            .into_response())
    }

    fn find(&self, request: &MetricRequest) -> Result<Found, Refusal> {
        if is_wanted(request) {
            let selector: Selector = request
                .selector
                .parse()
                .map_err(InvalidQuery::from)
                .map_err(|error| invalid(&error))?;
            let now = Timestamp::now();
            let wanted =
                self.wanted
                    .find(&request.path.namespace, &selector, Instant::now(), now)?;
            return sendable(
                request,
                f64::from(wanted.replicas),
                now,
                None,
                wanted.labels,
                Vec::new(),
            );
        }
        let query = self.query(request)?;
        let now = self.signals.now();
        match self.signals.query(&query, now) {
            Ok(Answer {
                value,
                timestamp,
                window,
                labels,
                warnings,
                ..
            }) => {
                self.metrics.value(age(timestamp, now));
                sendable(request, value, timestamp, window, labels, warnings)
            }
            Err(missing) => {
                self.metrics.missing(&missing);
                Err(self.refuse(&request.path, &missing))
            }
        }
    }

    fn query(&self, request: &MetricRequest) -> Result<Query, Refusal> {
        let MetricPath { namespace, name } = &request.path;
        if namespace == "*" {
            return Err(Refusal::not_found(
                "namespace \"*\" does not exist; metrics are served per namespace, name one",
            ));
        }
        Query::parse(name, Some(namespace), &request.selector).map_err(|error| invalid(&error))
    }

    fn refuse(&self, path: &MetricPath, missing: &Missing) -> Refusal {
        let text = format!("{}: {missing}", path.name.to_ascii_lowercase());
        match missing {
            Missing::NoEndpoints { .. } if !self.signals.is_discovered() => {
                Refusal::unavailable(format!(
                    "{}: pods are still being listed",
                    path.name.to_ascii_lowercase()
                ))
            }
            Missing::NoEndpoints { .. } | Missing::NotExposed { .. } => Refusal::not_found(text),
            Missing::QuorumNotMet { .. }
            | Missing::NoObservations { .. }
            | Missing::JustAdded { .. }
            | Missing::TooManySeries { .. } => Refusal::unavailable(text),
        }
    }
}

fn is_wanted(request: &MetricRequest) -> bool {
    request.path.name.eq_ignore_ascii_case(wanted::METRIC)
}

fn invalid(error: &InvalidQuery) -> Refusal {
    match error {
        InvalidQuery::Metric(error) => Refusal::not_found(error.to_string()),
        InvalidQuery::Selector(error) => Refusal::bad_request(error.to_string()),
    }
}

fn sendable(
    request: &MetricRequest,
    value: f64,
    timestamp: Timestamp,
    window: Option<Duration>,
    labels: std::collections::BTreeMap<String, String>,
    mut warnings: Vec<String>,
) -> Result<Found, Refusal> {
    let name = &request.path.name;
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
    let item = ExternalMetricValue {
        metric_name: name.clone(),
        metric_labels: labels,
        timestamp,
        window: window.map(|window| i64::try_from(window.as_secs().max(1)).unwrap_or(i64::MAX)),
        value: quantity.text,
    };
    Ok(Found { item, warnings })
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

fn age(at: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(at)).unwrap_or(Duration::ZERO)
}

fn json_text(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).expect("strings and numbers")
}

const MAX_WARNINGS: usize = 4;
const MAX_WARNING_BYTES: usize = 256;

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
        let request = MetricRequest {
            path: MetricPath {
                namespace: "a".into(),
                name: "m".into(),
            },
            selector: String::new(),
        };
        let send = |value| {
            sendable(
                &request,
                value,
                Timestamp::UNIX_EPOCH,
                None,
                Default::default(),
                Vec::new(),
            )
        };
        assert_eq!(send(f64::NAN).unwrap_err().code(), 503);
        let found = send(-1.0).unwrap();
        assert_eq!((found.item.value.as_str(), found.warnings.len()), ("0", 1));
        assert_eq!(send(2.5).unwrap().item.value, "2500m");
    }
}
