//! What the collector is asked: which endpoints a selection takes in, and what they say together.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::{Inner, Signals};
use crate::answer::Evaluation;
use crate::endpoint::{Endpoint, Selected};
use crate::engines::{Kind, Signal};
use crate::evaluate::servers;
use crate::input::{Input, Overrides};
use crate::metric::Metric;
use crate::observe::{EndpointCounts, MeasuredHistogram, RoleSignals};
use crate::query::{Answer, EndpointAnswer, EndpointStatus, Measured, Missing, Query, Selection};
use crate::reading::What;

impl Signals {
    /// Answers a query over all selected endpoints together, from memory.
    ///
    /// The same question within a fifth of a second gets the same answer; asked several times at once, it is answered once.
    ///
    /// A series asked for by its own name is collected from the first question on ([`Missing::JustAdded`]).
    ///
    /// # Errors
    /// Why there is no value. Hold, or apply the rule's own policy; it is not zero.
    pub fn query(&self, query: &Query, now: Timestamp) -> Result<Answer, Missing> {
        let version = self.inner.index.read().version();
        if let Some(answer) = self.inner.recent.lock().answer(version, query, now) {
            return answer;
        }
        let raw = self.inner.raw_id(&query.metric, now)?;
        let turn = self.inner.recent.lock().turn(query);
        let _turn = turn.lock();
        let found = self
            .inner
            .recent
            .lock()
            .found_meanwhile(version, query, now);
        if let Some(answer) = found {
            return answer;
        }
        self.inner.metrics.evaluations.inc();
        let selected = self.inner.select(&query.selection, now);
        let selection = query.selection.to_string();
        let evaluation =
            self.inner
                .evaluation(&selected, query.window, now, (&query.selection, &selection));
        let answer = evaluation.answer(&query.metric, raw);
        self.inner
            .recent
            .lock()
            .remember_answer(version, query, now, &answer);
        answer
    }

    /// Answers a query for each selected live pod, sorted by namespace and name. The list may be empty.
    ///
    /// # Errors
    /// As [`Self::query`], for reasons that concern all endpoints.
    pub fn query_each(
        &self,
        query: &Query,
        now: Timestamp,
    ) -> Result<Vec<EndpointAnswer>, Missing> {
        let raw = self.inner.raw_id(&query.metric, now)?;
        let selected = self.inner.select(&query.selection, now);
        let selection = query.selection.to_string();
        let same_pod = |one: &Selected, other: &Selected| {
            (&one.endpoint.key.namespace, &one.endpoint.key.name)
                == (&other.endpoint.key.namespace, &other.endpoint.key.name)
        };
        let answers = selected.chunk_by(same_pod).map(|pod| {
            let evaluation =
                self.inner
                    .evaluation(pod, query.window, now, (&query.selection, &selection));
            let answer = evaluation.answer(&query.metric, raw);
            let key = &pod[0].endpoint.key;
            EndpointAnswer {
                namespace: key.namespace.clone(),
                pod: key.name.clone(),
                timestamp: pod.iter().filter_map(|each| each.last).min(),
                value: answer.map(|answer| Measured {
                    value: answer.value,
                    age: Duration::try_from(now.duration_since(answer.timestamp))
                        .unwrap_or_default(),
                    endpoints: answer.contributing,
                    scaled_up: answer.rule == crate::query::Rule::SumScaledUp,
                    at_finish: answer.at_finish,
                }),
            }
        });
        Ok(answers.collect())
    }

    /// Everything known about the selected endpoints.
    #[must_use]
    pub fn observe(&self, selection: &Selection, now: Timestamp) -> RoleSignals {
        let selected = self.inner.select(selection, now);
        let text = selection.to_string();
        let counts = self.inner.count(selection, &selected);
        RoleSignals::observe(
            &self
                .inner
                .evaluation(&selected, None, now, (selection, &text)),
            counts,
        )
    }

    /// One signal over all selected endpoints as one value: gauges and rates are sums, shares and observations means.
    ///
    /// Engines speak where engines and a gateway are selected together, but for what only a gateway has.
    ///
    /// # Errors
    /// Why there is no value. It is not zero.
    pub fn signal(
        &self,
        selection: &Selection,
        signal: Signal,
        now: Timestamp,
    ) -> Result<Measured, Missing> {
        let selected = self.inner.select(selection, now);
        let text = selection.to_string();
        self.inner
            .evaluation(&selected, None, now, (selection, &text))
            .signal(signal)
    }

    /// Reads an input over all selected endpoints together.
    ///
    /// # Errors
    /// Why there is no value. It is not zero.
    pub fn read(
        &self,
        selection: &Selection,
        input: &Input,
        overrides: &Overrides,
        now: Timestamp,
    ) -> Result<Answer, Missing> {
        let Overrides {
            aggregate,
            window,
            stale_after,
            quorum,
        } = *overrides;
        let raw = match input {
            Input::Metric(metric) if (aggregate, stale_after, quorum) == (None, None, None) => {
                let query = Query {
                    metric: metric.clone(),
                    selection: selection.clone(),
                    window,
                };
                return self.query(&query, now);
            }
            Input::Metric(metric) => self.inner.raw_id(metric, now)?,
            Input::Signal(_) => None,
        };
        let stale_after = stale_after.unwrap_or_else(|| self.inner.settings.stale_after());
        let selected = self.inner.select_within(selection, stale_after, now);
        let text = selection.to_string();
        let mut evaluation = self
            .inner
            .evaluation(&selected, window, now, (selection, &text));
        evaluation.quorum = quorum.unwrap_or(evaluation.quorum);
        evaluation.input(input, raw, aggregate)
    }

    /// The observations of one signal within the window, of all selected endpoints together.
    ///
    /// # Errors
    /// Why there are none: as [`Self::signal`], and for a signal that is not measured in observations.
    pub fn observations(
        &self,
        selection: &Selection,
        signal: Signal,
        now: Timestamp,
    ) -> Result<MeasuredHistogram, Missing> {
        let selected = self.inner.select(selection, now);
        if !matches!(signal.kind(), Kind::Histogram | Kind::Mean) {
            return Err(Missing::NotExposed {
                servers: servers(&selected),
            });
        }
        let text = selection.to_string();
        self.inner
            .evaluation(&selected, None, now, (selection, &text))
            .measured_histogram(What::Signal(signal))
    }

    /// The endpoints a selection takes in, live or not, with what is known about each: for people.
    #[must_use]
    pub fn endpoints(&self, selection: &Selection, now: Timestamp) -> Vec<EndpointStatus> {
        let index = self.inner.index.read();
        let stale_after = self.inner.settings.stale_after();
        let endpoints = index.endpoints(selection.namespace.as_deref());
        endpoints
            .filter_map(|endpoint| Some(endpoint.select(selection, stale_after, now)?.status()))
            .collect()
    }
}

impl Inner {
    /// The live endpoints that a selection takes in, by namespace and name.
    pub(super) fn select(&self, selection: &Selection, now: Timestamp) -> Vec<Selected> {
        self.select_within(selection, self.settings.stale_after(), now)
    }

    /// As [`Self::select`], with another age at which samples stop counting.
    fn select_within(
        &self,
        selection: &Selection,
        stale_after: Duration,
        now: Timestamp,
    ) -> Vec<Selected> {
        let endpoints = self.matching(selection);
        let mut selected = Vec::with_capacity(endpoints.len());
        selected.extend(
            endpoints
                .iter()
                .filter_map(|endpoint| endpoint.look(selection, stale_after, now)),
        );
        selected
    }

    /// The live endpoints whose namespace and labels a selection matches.
    fn matching(&self, selection: &Selection) -> Arc<[Arc<Endpoint>]> {
        let index = self.index.read();
        let version = index.version();
        if let Some(known) = self.recent.lock().selection(version, selection) {
            return known;
        }
        let endpoints = index.endpoints(selection.namespace.as_deref());
        let matching: Arc<[_]> = endpoints
            .filter(|endpoint| endpoint.live && endpoint.labels_match(selection))
            .map(Arc::clone)
            .collect();
        self.recent
            .lock()
            .remember_selection(version, selection, &matching);
        matching
    }

    fn count(&self, selection: &Selection, selected: &[Selected]) -> EndpointCounts {
        let index = self.index.read();
        let all = index.endpoints(selection.namespace.as_deref());
        let not_live = all
            .filter(|endpoint| !endpoint.live && endpoint.labels_match(selection))
            .count();
        let fresh = selected
            .iter()
            .filter(|each| each.problem.is_none())
            .count();
        let never_scraped = selected.iter().filter(|each| each.last.is_none()).count();
        EndpointCounts {
            total: selected.len() + not_live,
            live: selected.len(),
            fresh,
            stale: selected.len() - fresh - never_scraped,
            never_scraped,
        }
    }

    fn evaluation<'a>(
        &self,
        selected: &'a [Selected],
        window: Option<Duration>,
        now: Timestamp,
        (selection, text): (&Selection, &'a str),
    ) -> Evaluation<'a> {
        let longest = self.settings.window;
        Evaluation {
            selected,
            quorum: self.settings.quorum,
            window: window.map_or(longest, |window| window.min(longest)),
            now,
            one_namespace: selection.namespace.is_some(),
            selection: text,
        }
    }

    /// The id of a series asked for by its own name; it is collected from now on.
    fn raw_id(&self, metric: &Metric, now: Timestamp) -> Result<Option<u32>, Missing> {
        let (Metric::Series(name) | Metric::SeriesRate(name)) = metric else {
            return Ok(None);
        };
        let mut names = self.catalogue.lock();
        let known = names.catalogue.raw(name);
        let limit = self.settings.limits.raw_names;
        if known.is_none() && names.catalogue.raw_count() >= limit {
            drop(names);
            self.metrics.count_limit("limits.raw_names");
            return Err(Missing::TooManySeries {
                name: name.clone(),
                limit,
            });
        }
        names.asked.insert(name.clone(), now);
        if known.is_none() {
            names.catalogue.add_raw(name);
            return Err(Missing::JustAdded { name: name.clone() });
        }
        Ok(known)
    }
}
