//! What an expression reads: a signal or a metric over all selected endpoints, brought together as the question says.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::answer::{Evaluated, Evaluation, signal_of};
use crate::engines::{Kind, Signal, Unit, UnknownName, mapping};
use crate::evaluate::Combine;
use crate::histogram::WindowHistogram;
use crate::metric::Metric;
use crate::query::{Answer, Missing, Rule};
use crate::reading::{Absent, Models, Read, What};
use crate::target::Target;

/// Something that can be read.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Input {
    /// A signal of whatever servers have it; of a counter, its increase per second.
    Signal(Signal),
    /// A metric as it is served.
    Metric(Metric),
}

/// How the values of several endpoints become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Aggregate {
    /// Sum, scaled up for endpoints without a value.
    Sum,
    /// Mean; of observations, over all of them together.
    Mean,
    /// Greatest.
    Max,
    /// Least.
    Min,
}

/// What one question sets in place of the collector's [`Settings`](crate::Settings); `None` leaves it as it is.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Overrides {
    /// How endpoints' values become one; `None`: as is usual for the input.
    pub aggregate: Option<Aggregate>,
    /// Look-back of rates and quantiles; at most [`Settings::window`](crate::Settings::window).
    pub window: Option<Duration>,
    /// Age at which a sample stops counting.
    pub stale_after: Option<Duration>,
    /// Share of the live endpoints that must have a value, `0.0..=1.0`.
    pub quorum: Option<f64>,
}

impl Input {
    /// How it can be aggregated, the usual way first; empty for a metric that has one way of its own.
    #[must_use]
    pub const fn aggregates(&self) -> &'static [Aggregate] {
        use Aggregate::{Max, Mean, Min, Sum};
        match self {
            Self::Metric(Metric::Series(_) | Metric::SeriesRate(_)) => &[Sum, Mean, Max, Min],
            Self::Metric(_) => &[],
            Self::Signal(signal) => match signal.kind() {
                Kind::Gauge | Kind::Counter => &[Sum, Mean, Max, Min],
                Kind::Ratio | Kind::Histogram | Kind::Mean => &[Mean, Max, Min],
            },
        }
    }

    /// The units that its value can be given in, its own first; empty for a scraped series, of which nothing is known.
    #[must_use]
    pub fn units(&self) -> &'static [Unit] {
        match self {
            Self::Metric(Metric::PrefixCacheHitRatio) => Unit::of(Signal::KvCacheUsage),
            Self::Metric(metric) => signal_of(metric).map_or(&[], Unit::of),
            Self::Signal(signal) => Unit::of(*signal),
        }
    }

    /// Whether it is measured over a window.
    #[must_use]
    pub const fn is_windowed(&self) -> bool {
        match self {
            Self::Metric(metric) => metric.is_windowed(),
            Self::Signal(signal) => !matches!(signal.kind(), Kind::Gauge | Kind::Ratio),
        }
    }
}

impl Aggregate {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Sum, Self::Mean, Self::Max, Self::Min];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Mean => "mean",
            Self::Max => "max",
            Self::Min => "min",
        }
    }
}

impl fmt::Display for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Signal(signal) => signal.fmt(f),
            Self::Metric(Metric::Series(name)) => write!(f, "series({name})"),
            Self::Metric(Metric::SeriesRate(name)) => write!(f, "rate({name})"),
            Self::Metric(metric) => metric.fmt(f),
        }
    }
}

impl fmt::Display for Aggregate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Aggregate {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        let found = Self::ALL.into_iter().find(|each| each.name() == name);
        found.ok_or_else(|| mapping::unknown("aggregation", name, &Self::ALL.map(Self::name)))
    }
}

impl Evaluation<'_> {
    /// The answer for an input; `raw` is the id of its series, if it is one by its own name.
    pub(crate) fn input(
        &self,
        input: &Input,
        raw: Option<u32>,
        aggregate: Option<Aggregate>,
    ) -> Result<Answer, Missing> {
        let aggregate = aggregate.or_else(|| input.aggregates().first().copied());
        let evaluated = match (input, aggregate) {
            (Input::Signal(signal), Some(aggregate)) => {
                self.aggregated(What::Signal(*signal), signal.kind(), aggregate)
            }
            (Input::Metric(Metric::Series(_)), Some(aggregate)) => {
                self.aggregated(What::Raw(raw.unwrap_or(u32::MAX)), Kind::Gauge, aggregate)
            }
            (Input::Metric(Metric::SeriesRate(_)), Some(aggregate)) => {
                self.aggregated(What::Raw(raw.unwrap_or(u32::MAX)), Kind::Counter, aggregate)
            }
            (Input::Metric(metric), _) => self.metric(metric, raw),
            (Input::Signal(signal), None) => {
                self.aggregated(What::Signal(*signal), signal.kind(), Aggregate::Mean)
            }
        }?;
        Ok(self.finish(evaluated, input.is_windowed()))
    }

    fn aggregated(
        &self,
        what: What,
        kind: Kind,
        aggregate: Aggregate,
    ) -> Result<Evaluated, Missing> {
        match (kind, aggregate) {
            (Kind::Gauge | Kind::Ratio, Aggregate::Sum) => self.gauge_sum(what),
            (Kind::Counter, Aggregate::Sum) => self.rate(what),
            (Kind::Ratio, Aggregate::Mean) => self.gauge_mean(what),
            (Kind::Ratio, Aggregate::Max) => self.gauge_max(what),
            (Kind::Histogram | Kind::Mean, Aggregate::Sum | Aggregate::Mean) => {
                self.mean_of_observations(what)
            }
            (_, Aggregate::Mean) => self.each(what, kind, Rule::Mean, mean),
            (_, Aggregate::Max) => self.each(what, kind, Rule::Max, |values| {
                values.iter().copied().reduce(f64::max)
            }),
            (_, Aggregate::Min) => self.each(what, kind, Rule::Min, |values| {
                values.iter().copied().reduce(f64::min)
            }),
        }
    }

    fn mean_of_observations(&self, what: What) -> Result<Evaluated, Missing> {
        let (histogram, _, basis) = self.histogram(what)?;
        let value = histogram
            .mean()
            .ok_or_else(|| self.no_observations(basis.span))?;
        Ok(Evaluated {
            value,
            rule: Rule::Mean,
            basis,
        })
    }

    /// Joins one value of each endpoint. An endpoint that observed nothing takes no part.
    fn each(
        &self,
        what: What,
        kind: Kind,
        rule: Rule,
        join: impl Fn(&[f64]) -> Option<f64>,
    ) -> Result<Evaluated, Missing> {
        let gathered = self.gather(Self::whose(what), Combine::Share, |target, models| {
            self.one(what, kind, target, models)
        })?;
        let known: Vec<f64> = gathered.values.iter().flatten().copied().collect();
        let value = join(&known).ok_or_else(|| self.no_observations(gathered.span))?;
        Ok(Evaluated {
            value,
            rule,
            basis: gathered.without_values(),
        })
    }

    /// The value of one endpoint; `None` where nothing was observed.
    fn one(
        &self,
        what: What,
        kind: Kind,
        target: &Target,
        models: Models,
    ) -> Result<Read<Option<f64>>, Absent> {
        match kind {
            Kind::Gauge | Kind::Ratio => {
                let read = target.gauge(what, models)?;
                let parts = read.value;
                let shares = if kind == Kind::Ratio {
                    parts.series.max(1)
                } else {
                    1
                };
                Ok(Read {
                    value: Some(parts.sum / f64::from(shares)),
                    span: read.span,
                    at_finish: read.at_finish,
                })
            }
            Kind::Counter => {
                let read = target.rate(what, models, self.window)?;
                Ok(Read {
                    value: Some(read.value),
                    span: read.span,
                    at_finish: read.at_finish,
                })
            }
            Kind::Histogram | Kind::Mean => {
                let mut observed = WindowHistogram::default();
                let read = target.add_histogram(what, models, self.window, &mut observed)?;
                Ok(Read {
                    value: observed.mean(),
                    span: read.span,
                    at_finish: read.at_finish,
                })
            }
        }
    }
}

fn mean(values: &[f64]) -> Option<f64> {
    #[expect(clippy::cast_precision_loss, reason = "a number of endpoints")]
    let count = values.len() as f64;
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / count)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use prometheus_client::registry::Registry;

    use super::*;
    use crate::discover::StaticTarget;
    use crate::{Metrics, Selection, Settings, Signals};

    /// Three llama.cpp servers with 1, 2 and 6 requests deferred.
    fn collector() -> Signals {
        let mut registry = Registry::default();
        let signals = Signals::new(Settings::default(), Metrics::register(&mut registry)).unwrap();
        let targets = (0..3).map(|index| StaticTarget {
            namespace: "serving".to_owned(),
            name: format!("server-{index}"),
            address: format!("127.0.0.1:{}", 1024 + index),
            path: "/metrics".to_owned(),
            labels: BTreeMap::from([("index".to_owned(), index.to_string())]),
        });
        signals.set_static_targets("test", targets.collect());
        for (index, waiting) in [1, 2, 6].into_iter().enumerate() {
            let only = Selection {
                namespace: None,
                selector: format!("index={index}").parse().unwrap(),
            };
            let body =
                format!("llamacpp:requests_processing 2\nllamacpp:requests_deferred {waiting}\n");
            signals
                .ingest(&only, body.as_bytes(), signals.now())
                .unwrap();
        }
        signals
    }

    fn waiting(signals: &Signals, overrides: &Overrides) -> Result<Answer, Missing> {
        signals.read(
            &Selection::default(),
            &Input::Signal(Signal::Waiting),
            overrides,
            signals.now(),
        )
    }

    #[tokio::test]
    async fn each_aggregation_joins_the_endpoints_in_its_own_way() {
        let signals = collector();
        for (aggregate, expected) in [
            (None, 9.0),
            (Some(Aggregate::Sum), 9.0),
            (Some(Aggregate::Mean), 3.0),
            (Some(Aggregate::Max), 6.0),
            (Some(Aggregate::Min), 1.0),
        ] {
            let overrides = Overrides {
                aggregate,
                ..Overrides::default()
            };
            let answer = waiting(&signals, &overrides).unwrap();
            assert!((answer.value - expected).abs() < 1e-9, "{aggregate:?}");
            assert_eq!((answer.contributing, answer.live), (3, 3));
        }
    }

    #[tokio::test]
    async fn a_quorum_and_an_age_of_the_question_s_own_hold_for_it_alone() {
        let signals = collector();
        let later = signals.now() + jiff::SignedDuration::from_secs(20);
        let read = |overrides: &Overrides| {
            let input = Input::Signal(Signal::Waiting);
            signals.read(&Selection::default(), &input, overrides, later)
        };
        assert!(read(&Overrides::default()).is_ok());
        let strict = Overrides {
            stale_after: Some(Duration::from_secs(10)),
            ..Overrides::default()
        };
        assert_eq!(read(&strict).unwrap_err().category(), "QuorumNotMet");
        let patient = Overrides {
            stale_after: Some(Duration::from_secs(60)),
            ..Overrides::default()
        };
        assert!(read(&patient).is_ok());
    }

    #[test]
    fn what_has_no_sum_offers_none_and_units_come_from_the_signal() {
        let ratio = Input::Signal(Signal::KvCacheUsage);
        assert_eq!(ratio.aggregates()[0], Aggregate::Mean);
        assert!(!ratio.aggregates().contains(&Aggregate::Sum));
        assert_eq!(ratio.units(), [Unit::Share, Unit::Percent]);
        let series = Input::Metric(Metric::Series("a:b".to_owned()));
        assert!(series.units().is_empty());
        assert_eq!(series.to_string(), "series(a:b)");
        for aggregate in Aggregate::ALL {
            assert_eq!(aggregate.name().parse(), Ok(aggregate));
        }
    }
}
