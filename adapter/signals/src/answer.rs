//! From a query to its answer.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use crate::endpoint::Selected;
use crate::engines::{Kind, Signal};
use crate::evaluate::{Combine, Gathered, Whose, gather, servers};
use crate::histogram::WindowHistogram;
use crate::metric::Metric;
use crate::observe::MeasuredHistogram;
use crate::query::{Answer, Measured, Missing, Rule, model_id};
use crate::reading::{Absent, Models, Read, What};
use crate::target::Target;

/// What all evaluations of one request share.
#[derive(Debug)]
pub(crate) struct Evaluation<'a> {
    pub(crate) selected: &'a [Selected],
    pub(crate) quorum: f64,
    pub(crate) window: Duration,
    pub(crate) now: Timestamp,
    /// Whether one namespace is asked about.
    pub(crate) one_namespace: bool,
    /// The selection as text, for messages.
    pub(crate) selection: &'a str,
}

/// A value before it is put into an answer.
#[derive(Debug)]
pub(crate) struct Evaluated {
    pub(crate) value: f64,
    pub(crate) rule: Rule,
    pub(crate) basis: Gathered<()>,
}

/// The signal that a metric of our own is read from; `None` for those made of several, and for raw series.
pub(crate) const fn signal_of(metric: &Metric) -> Option<Signal> {
    Some(match metric {
        Metric::RequestsWaiting => Signal::Waiting,
        Metric::RequestsRunning => Signal::Running,
        Metric::OfferedRequestsPerSecond => Signal::OfferedRequests,
        Metric::OfferedInputTokensPerSecond => Signal::OfferedInputTokens,
        Metric::InputTokensPerSecond => Signal::InputTokens,
        Metric::OutputTokensPerSecond => Signal::OutputTokens,
        Metric::KvCacheUsage | Metric::KvCacheUsageMax => Signal::KvCacheUsage,
        Metric::Latency(latency, _) => latency.signal(),
        Metric::PreemptionsPerSecond => Signal::Preemptions,
        Metric::RequestsFinishedPerSecond => Signal::Finished,
        Metric::PrefixCacheHitRatio | Metric::Series(_) | Metric::SeriesRate(_) => return None,
    })
}

impl Evaluation<'_> {
    /// Evaluates a metric; `raw` is the id of its series, if it is one by its own name.
    pub(crate) fn metric(&self, metric: &Metric, raw: Option<u32>) -> Result<Evaluated, Missing> {
        let what =
            signal_of(metric).map_or_else(|| What::Raw(raw.unwrap_or(u32::MAX)), What::Signal);
        match metric {
            Metric::RequestsWaiting | Metric::RequestsRunning | Metric::Series(_) => {
                self.gauge_sum(what)
            }
            Metric::KvCacheUsage => self.gauge_mean(what),
            Metric::KvCacheUsageMax => self.gauge_max(what),
            Metric::OfferedRequestsPerSecond
            | Metric::OfferedInputTokensPerSecond
            | Metric::InputTokensPerSecond
            | Metric::OutputTokensPerSecond
            | Metric::PreemptionsPerSecond
            | Metric::RequestsFinishedPerSecond
            | Metric::SeriesRate(_) => self.rate(what),
            Metric::PrefixCacheHitRatio => self.ratio(Signal::PrefixHits, Signal::PrefixQueries),
            Metric::Latency(_, percentile) => {
                let (histogram, has_buckets, basis) = self.histogram(what)?;
                if !has_buckets {
                    // A mean is known, a quantile is not and never will be.
                    return Err(Missing::NotExposed {
                        servers: servers(self.selected),
                    });
                }
                let value = histogram
                    .quantile(percentile.share())
                    .ok_or_else(|| self.no_observations(basis.span))?;
                Ok(Evaluated {
                    value,
                    rule: Rule::Quantile,
                    basis,
                })
            }
        }
    }

    pub(crate) const fn whose(what: What) -> Whose {
        match what {
            What::Signal(signal) if signal.is_of_frontends() => Whose::Frontends,
            What::Signal(_) => Whose::Engines,
            What::Raw(_) => Whose::Everyone,
        }
    }

    pub(crate) const fn no_observations(&self, span: Duration) -> Missing {
        Missing::NoObservations {
            window: if span.is_zero() { self.window } else { span },
        }
    }

    /// What each selected endpoint has to say, if enough of them do.
    pub(crate) fn gather<V>(
        &self,
        whose: Whose,
        combine: Combine,
        read: impl Fn(&Target, Models) -> Result<Read<V>, Absent>,
    ) -> Result<Gathered<V>, Missing> {
        gather(
            self.selected,
            whose,
            combine,
            self.quorum,
            self.selection,
            read,
        )
    }

    pub(crate) fn gauge_sum(&self, what: What) -> Result<Evaluated, Missing> {
        let gathered = self.gather(Self::whose(what), Combine::Sum, |target, models| {
            target.gauge(what, models)
        })?;
        Ok(sum(gathered, |gauge| gauge.sum))
    }

    pub(crate) fn gauge_mean(&self, what: What) -> Result<Evaluated, Missing> {
        let gathered = self.gather(Self::whose(what), Combine::Share, |target, models| {
            target.gauge(what, models)
        })?;
        let total: f64 = gathered.values.iter().map(|gauge| gauge.sum).sum();
        let series: u32 = gathered.values.iter().map(|gauge| gauge.series).sum();
        Ok(Evaluated {
            value: total / f64::from(series.max(1)),
            rule: Rule::Mean,
            basis: gathered.without_values(),
        })
    }

    pub(crate) fn gauge_max(&self, what: What) -> Result<Evaluated, Missing> {
        let gathered = self.gather(Self::whose(what), Combine::Share, |target, models| {
            target.gauge(what, models)
        })?;
        let value = gathered
            .values
            .iter()
            .map(|gauge| gauge.max)
            .fold(f64::NEG_INFINITY, f64::max);
        Ok(Evaluated {
            value,
            rule: Rule::Max,
            basis: gathered.without_values(),
        })
    }

    pub(crate) fn rate(&self, what: What) -> Result<Evaluated, Missing> {
        let gathered = self.gather(Self::whose(what), Combine::Sum, |target, models| {
            target.rate(what, models, self.window)
        })?;
        Ok(sum(gathered, |rate| *rate))
    }

    /// Arrivals as engines show them: finished per second plus growth of running and waiting.
    pub(crate) fn estimated_arrivals(&self) -> Result<Evaluated, Missing> {
        let gathered = self.gather(Whose::Engines, Combine::Sum, |target, models| {
            let finished = target.rate(What::Signal(Signal::Finished), models, self.window);
            let finished = match finished {
                Err(Absent::NotYet) => None,
                other => Some(other?),
            };
            let running = target.slope(What::Signal(Signal::Running), models, self.window)?;
            let waiting = target.slope(What::Signal(Signal::Waiting), models, self.window)?;
            let value =
                finished.map_or(0.0, |finished| finished.value) + running.value + waiting.value;
            Ok(Read {
                value,
                span: running.span,
                at_finish: false,
            })
        })?;
        let mut evaluated = sum(gathered, |arrivals| *arrivals);
        evaluated.value = evaluated.value.max(0.0);
        Ok(evaluated)
    }

    pub(crate) fn ratio(&self, part: Signal, whole: Signal) -> Result<Evaluated, Missing> {
        let gathered = self.gather(Whose::Engines, Combine::Share, |target, models| {
            let whole = target.rate(What::Signal(whole), models, self.window)?;
            let part = match target.rate(What::Signal(part), models, self.window) {
                Err(Absent::NotYet) => 0.0,
                other => other?.value,
            };
            Ok(Read {
                value: (part, whole.value),
                span: whole.span,
                at_finish: whole.at_finish,
            })
        })?;
        let part: f64 = gathered.values.iter().map(|(part, _)| part).sum();
        let whole: f64 = gathered.values.iter().map(|(_, whole)| whole).sum();
        if whole <= 0.0 {
            return Err(self.no_observations(gathered.span));
        }
        Ok(Evaluated {
            value: (part / whole).clamp(0.0, 1.0),
            rule: Rule::Ratio,
            basis: gathered.without_values(),
        })
    }

    /// All observations together, at least one, and whether any server has buckets of them.
    pub(crate) fn histogram(
        &self,
        what: What,
    ) -> Result<(WindowHistogram, bool, Gathered<()>), Missing> {
        let merged = RefCell::new(WindowHistogram::default());
        let gathered = self.gather(Self::whose(what), Combine::Share, |target, models| {
            target.add_histogram(what, models, self.window, &mut merged.borrow_mut())
        })?;
        let merged = merged.into_inner();
        if merged.count() <= 0.0 {
            return Err(self.no_observations(gathered.span));
        }
        let has_buckets = gathered.values.contains(&true);
        Ok((merged, has_buckets, gathered.without_values()))
    }

    /// Age of the oldest contributing sample.
    pub(crate) fn age<V>(&self, basis: &Gathered<V>) -> Duration {
        Duration::try_from(self.now.duration_since(basis.oldest)).unwrap_or_default()
    }

    /// An evaluated value as a measured one.
    pub(crate) fn measured(&self, evaluated: &Evaluated) -> Measured {
        Measured {
            value: evaluated.value,
            age: self.age(&evaluated.basis),
            endpoints: evaluated.basis.contributors.len(),
            scaled_up: evaluated.rule == Rule::SumScaledUp,
            at_finish: evaluated.basis.at_finish,
        }
    }

    /// The mean of the observations.
    pub(crate) fn mean(&self, what: What) -> Result<Measured, Missing> {
        let measured = self.measured_histogram(what)?;
        Ok(Measured {
            value: measured.histogram.mean().unwrap_or(0.0),
            age: measured.age,
            endpoints: measured.endpoints,
            scaled_up: false,
            at_finish: measured.at_finish,
        })
    }

    /// A signal as one value: a sum, a mean of shares, a rate, a mean of observations.
    pub(crate) fn signal(&self, signal: Signal) -> Result<Measured, Missing> {
        let what = What::Signal(signal);
        let evaluated = match signal.kind() {
            Kind::Gauge => self.gauge_sum(what),
            Kind::Ratio => self.gauge_mean(what),
            Kind::Counter => self.rate(what),
            Kind::Histogram | Kind::Mean => return self.mean(what),
        };
        evaluated.map(|evaluated| self.measured(&evaluated))
    }

    /// Observations with what they rest on.
    pub(crate) fn measured_histogram(&self, what: What) -> Result<MeasuredHistogram, Missing> {
        let (histogram, _, basis) = self.histogram(what)?;
        Ok(MeasuredHistogram {
            histogram,
            age: self.age(&basis),
            endpoints: basis.contributors.len(),
            at_finish: basis.at_finish,
        })
    }

    /// The answer to a query.
    pub(crate) fn answer(&self, metric: &Metric, raw: Option<u32>) -> Result<Answer, Missing> {
        let evaluated = self.metric(metric, raw)?;
        Ok(self.finish(evaluated, metric.is_windowed()))
    }

    /// An evaluated value as an answer.
    pub(crate) fn finish(&self, evaluated: Evaluated, is_windowed: bool) -> Answer {
        let Evaluated { value, rule, basis } = evaluated;
        let mut warnings = Vec::new();
        let without = basis.live - basis.contributors.len().min(basis.live);
        if rule == Rule::SumScaledUp {
            warnings.push(format!(
                "scaled up by {:.2}: {without} of {} endpoints have no value",
                basis.scale, basis.live
            ));
        } else if !basis.problems.is_empty() {
            warnings.push(format!(
                "{without} of {} endpoints have no value and are left out",
                basis.live
            ));
        }
        warnings.extend(
            basis
                .problems
                .iter()
                .take(3)
                .map(|problem| match problem.endpoints {
                    1 => format!("{}: {}", problem.example, problem.why),
                    more => format!("{more} like {}: {}", problem.example, problem.why),
                }),
        );
        if basis.not_exposed > 0 {
            warnings.push(format!(
                "{} endpoints do not expose it and are left out",
                basis.not_exposed
            ));
        }
        if basis.at_finish {
            warnings.push("counted when requests end: comes in lumps".to_owned());
        }
        Answer {
            value,
            timestamp: basis.oldest,
            window: is_windowed.then_some(basis.span),
            contributing: basis.contributors.len(),
            live: basis.live,
            labels: self.labels(&basis),
            rule,
            at_finish: basis.at_finish,
            warnings,
        }
    }

    /// Labels on which all contributors agree.
    fn labels(&self, basis: &Gathered<()>) -> BTreeMap<String, String> {
        let mut contributors = basis
            .contributors
            .iter()
            .map(|index| &self.selected[*index]);
        let mut labels = BTreeMap::new();
        let Some(first) = contributors.next() else {
            return labels;
        };
        let (mut namespace, mut role, mut model) =
            (true, first.role().is_some(), first.model.is_some());
        for each in contributors {
            namespace = namespace
                && (self.one_namespace
                    || each.endpoint.key.namespace == first.endpoint.key.namespace);
            role &= each.role() == first.role();
            model &= each.model == first.model;
        }
        if namespace {
            labels.insert("namespace".to_owned(), first.endpoint.key.namespace.clone());
        }
        if let Some(agreed) = first.role().filter(|_| role) {
            labels.insert("role".to_owned(), agreed.to_owned());
        }
        if model {
            let state = first.endpoint.tracked.state.lock();
            if let Some(model) = state.target.models_among(first.models).next() {
                labels.insert("model_id".to_owned(), model_id(model));
                labels.insert("model".to_owned(), model.to_owned());
            }
        }
        labels
    }
}

/// The sum of the parts, made up for the missing ones.
fn sum<V>(gathered: Gathered<V>, part: impl Fn(&V) -> f64) -> Evaluated {
    let total: f64 = gathered.values.iter().map(part).sum();
    let rule = if gathered.scale > 1.0 {
        Rule::SumScaledUp
    } else {
        Rule::Sum
    };
    Evaluated {
        value: total * gathered.scale,
        rule,
        basis: gathered.without_values(),
    }
}

impl<V> Gathered<V> {
    pub(crate) fn without_values(self) -> Gathered<()> {
        let Self {
            values: _,
            scale,
            live,
            oldest,
            span,
            at_finish,
            not_exposed,
            contributors,
            problems,
        } = self;
        Gathered {
            values: Vec::new(),
            scale,
            live,
            oldest,
            span,
            at_finish,
            not_exposed,
            contributors,
            problems,
        }
    }
}
