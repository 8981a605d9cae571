//! `custom.metrics.k8s.io`: the same metrics, of objects.
//!
//! Of pods, each has its own value; of what pods belong to (a PodClique, a scaling group, a set, a namespace) the value is the one that
//! the external API gives for these pods. Which pods belong to an object is read from the labels of the watched pods: an object without
//! ready pods is no different from one that does not exist.
//!
//! A pod without a trusted value is left out of a list. The HPA fills the gap against the direction that it would scale in: the target
//! on the way down, nothing on the way up. A number made up here would defeat that. When no pod has a value, that is an error.

mod subject;
pub(crate) mod wire;

use axum::http::HeaderMap;
use axum::response::Response;
use coppice_signals::{EndpointAnswer, Measured, Missing, Query, Selector};
use jiff::{SignedDuration, Timestamp};

use crate::authz::Allowed;
use crate::groups;
use crate::negotiate;
use crate::query::{Sources, age, both, is_wanted, json_response, query, selector, sendable};
use crate::route::ObjectPath;
use crate::status::Refusal;
use crate::wanted;

pub(crate) use subject::{LISTED, NAMESPACES};

use subject::Measure;
use wire::{Item, MetricIdentifier};

/// One request for a metric of objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ObjectRequest {
    /// Which metric of which objects.
    pub path: ObjectPath,
    /// The `labelSelector` parameter: which objects. Empty selects all.
    pub objects: String,
    /// The `metricLabelSelector` parameter: which series of theirs. Empty selects all.
    pub series: String,
}

impl Sources {
    /// Answers with a list of values, one for each object.
    ///
    /// # Errors
    /// 400 for a bad selector, 404 for an unknown metric or resource, or one that nothing exposes, 406, 503 when no object has a value
    /// to be trusted.
    pub(crate) fn of_objects(
        &self,
        request: &Allowed<ObjectRequest>,
        headers: &HeaderMap,
    ) -> Result<Response, Refusal> {
        if !negotiate::accepts_json(headers) {
            return Err(Refusal::not_acceptable());
        }
        let ObjectRequest {
            path,
            objects,
            series,
        } = request.get();
        let series = selector(series)?;
        let (items, warnings) = self
            .items(path, objects, &series)
            .map_err(|refusal| refusal.about(groups::CUSTOM, path.metric.clone()))?;
        let metric = MetricIdentifier {
            name: &path.metric,
            selector: &series,
        };
        let body = wire::list(path.api, &metric, &items).to_string();
        Ok(json_response(body, &warnings))
    }

    fn items(
        &self,
        path: &ObjectPath,
        objects: &str,
        series: &Selector,
    ) -> Result<(Vec<Item>, Vec<String>), Refusal> {
        let ObjectPath {
            api: _,
            namespace,
            subject,
            metric,
        } = path;
        if is_wanted(metric) {
            return Err(Refusal::not_found(format!(
                "{} is no metric of objects: use it as an External metric ({}), by policy and role",
                wanted::METRIC,
                groups::EXTERNAL,
            )));
        }
        if self.rules.find(metric).is_some() {
            return Err(Refusal::not_found(format!(
                "{metric} is a rule and no metric of objects: use it as an External metric ({})",
                groups::EXTERNAL,
            )));
        }
        let measure = Measure::of(namespace, subject)?;
        if !objects.is_empty() && !matches!(measure, Measure::EachPod) {
            return Err(Refusal::bad_request(format!(
                "labelSelector {objects:?} goes with the name *: leave it out, or select series of the object by metricLabelSelector"
            )));
        }
        let mut query = query(namespace, metric, objects)?;
        narrow(&mut query, series);
        match measure {
            Measure::EachPod => {
                let (answers, now) = self.measure_each(metric, &query)?;
                self.each_pod(metric, &query, answers, now)
            }
            Measure::OnePod(name) => {
                let (mut answers, now) = self.measure_each(metric, &query)?;
                answers.retain(|answer| answer.pod == name);
                if answers.is_empty() && self.signals.is_discovered() {
                    return Err(Refusal::not_found(format!(
                        "{metric}: no ready pod {namespace}/{name} with a place to scrape"
                    )));
                }
                self.each_pod(metric, &query, answers, now)
            }
            Measure::Together { pods, described } => {
                narrow(&mut query, &pods);
                let value = self.measure_query(metric, &query)?;
                let warnings = value.warnings.clone();
                Ok((vec![Item { described, value }], warnings))
            }
        }
    }

    /// The values of those pods that have one.
    fn each_pod(
        &self,
        metric: &str,
        query: &Query,
        answers: Vec<EndpointAnswer>,
        now: Timestamp,
    ) -> Result<(Vec<Item>, Vec<String>), Refusal> {
        let asked = answers.len();
        let window = query
            .metric
            .is_windowed()
            .then_some(self.signals.settings().window);
        let (mut items, mut without) = (Vec::with_capacity(asked), Vec::new());
        for EndpointAnswer {
            namespace,
            pod,
            value,
            timestamp: _,
        } in answers
        {
            match value {
                Ok(Measured { value, age, .. }) => {
                    let taken = now - SignedDuration::try_from(age).unwrap_or_default();
                    let value =
                        sendable(metric, value, taken, window, Default::default(), Vec::new())?;
                    let described = subject::pod(&namespace, &pod);
                    items.push(Item { described, value });
                }
                Err(missing) => without.push((pod, missing)),
            }
        }
        let Some(oldest) = items.iter().map(|item| item.value.timestamp).min() else {
            return Err(self.nothing(metric, query, without));
        };
        self.metrics.value(age(oldest, now));
        let mut warnings = Vec::new();
        if !without.is_empty() {
            warnings.push(format!(
                "{} of {asked} pods have no value and are left out",
                without.len()
            ));
            let named = without.iter().take(MAX_NAMED);
            warnings.extend(named.map(|(pod, missing)| format!("{pod}: {missing}")));
        }
        Ok((items, warnings))
    }

    /// No pod has a value: an error that says why of one of them.
    fn nothing(&self, metric: &str, query: &Query, without: Vec<(String, Missing)>) -> Refusal {
        let pods = without.len();
        // A reason that may pass goes before one that will not.
        let lasting = |missing: &Missing| {
            matches!(
                missing,
                Missing::NotExposed { .. } | Missing::NoEndpoints { .. }
            )
        };
        let telling = without
            .into_iter()
            .min_by_key(|(_, missing)| lasting(missing));
        let missing = telling.map_or_else(
            || Missing::NoEndpoints {
                selection: query.selection.to_string(),
            },
            |(_, missing)| missing,
        );
        self.metrics.missing(&missing);
        let refusal = self.refuse(metric, &missing);
        if pods > 1 {
            return refusal.with(&format!(" (none of {pods} pods has a value)"));
        }
        refusal
    }
}

/// Pods without a value that a warning names.
const MAX_NAMED: usize = 3;

/// Takes in only what this selector matches, too.
fn narrow(query: &mut Query, also: &Selector) {
    if also.is_everything() {
        return;
    }
    query.selection.selector = both(&query.selection.selector, also);
}

#[cfg(test)]
mod tests;
