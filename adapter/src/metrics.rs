//! What the adapter measures about itself.
//!
//! Whatever is counted by a known set of labels begins at zero, so that a rate over it has a first value.

use std::time::Duration;

use coppice_signals::Missing;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use crate::rules::RuleMetrics;

/// Everything that the program measures about itself, in one registry.
#[derive(Debug)]
pub(crate) struct Measured {
    /// Exposed by the administrative endpoint.
    pub registry: Registry,
    /// Of the secure endpoint.
    pub requests: RequestMetrics,
    /// Of the rules file.
    pub rules: RuleMetrics,
    /// Of the collector.
    pub signals: coppice_signals::Metrics,
}

impl Measured {
    /// Registers everything.
    pub(crate) fn new() -> Self {
        let mut registry = Registry::default();
        let own = registry.sub_registry_with_prefix("adapter");
        let requests = RequestMetrics::register(own);
        let rules = RuleMetrics::register(own);
        let signals = coppice_signals::Metrics::register(own);
        Self {
            registry,
            requests,
            rules,
            signals,
        }
    }
}

/// Counts of the secure endpoint and of KEDA's port.
#[derive(Debug, Clone)]
pub(crate) struct RequestMetrics {
    requests: Family<RequestLabels, Counter>,
    duration: Family<KindLabels, Histogram>,
    in_flight: Gauge,
    missing: Family<ReasonLabels, Counter>,
    age: Histogram,
    certificate_expiry: Gauge,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabels {
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    kind: &'static str,
    code: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabels {
    kind: &'static str,
}

/// Kinds of requests. Names of metrics are no label: callers choose them freely.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A metric's value.
    Value,
    /// How a value came about.
    Explanation,
    /// Groups, versions, resources.
    Discovery,
    /// A call of KEDA's.
    Keda,
    /// Everything else, and what was refused before it was understood.
    Other,
}

impl Kind {
    fn label(self) -> &'static str {
        match self {
            Self::Value => "value",
            Self::Explanation => "explanation",
            Self::Discovery => "discovery",
            Self::Keda => "keda",
            Self::Other => "other",
        }
    }
}

impl RequestMetrics {
    /// Registers under the prefix of the registry, `adapter`.
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            requests: Family::default(),
            duration: Family::new_with_constructor(|| {
                Histogram::new(exponential_buckets(0.000_25, 4.0, 8))
            }),
            in_flight: Gauge::default(),
            missing: Family::default(),
            age: Histogram::new([0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0]),
            certificate_expiry: Gauge::default(),
        };
        registry.register(
            "requests",
            "Requests answered, by kind and code",
            metrics.requests.clone(),
        );
        registry.register(
            "request_duration_seconds",
            "Time to answer a request, reviews included",
            metrics.duration.clone(),
        );
        registry.register(
            "requests_in_flight",
            "Requests being answered",
            metrics.in_flight.clone(),
        );
        registry.register(
            "values_missing",
            "Requests for a metric that has no value to be trusted, by reason",
            metrics.missing.clone(),
        );
        registry.register(
            "value_age_seconds",
            "Age of the oldest sample in each value answered",
            metrics.age.clone(),
        );
        registry.register(
            "serving_certificate_expiry_timestamp_seconds",
            "When the serving certificate expires, seconds since 1970",
            metrics.certificate_expiry.clone(),
        );
        for kind in [
            Kind::Value,
            Kind::Explanation,
            Kind::Discovery,
            Kind::Keda,
            Kind::Other,
        ] {
            let kind = kind.label();
            drop(
                metrics
                    .requests
                    .get_or_create(&RequestLabels { kind, code: 200 }),
            );
            drop(metrics.duration.get_or_create(&KindLabels { kind }));
        }
        for reason in Missing::CATEGORIES {
            drop(metrics.missing.get_or_create(&ReasonLabels { reason }));
        }
        metrics
    }

    /// A request begins; it ends when the guard is dropped.
    pub(crate) fn begin(&self) -> InFlight {
        self.in_flight.inc();
        InFlight(self.in_flight.clone())
    }

    /// A request has been answered.
    pub(crate) fn answered(&self, kind: Kind, code: u16, took: Duration) {
        self.requests
            .get_or_create(&RequestLabels {
                kind: kind.label(),
                code,
            })
            .inc();
        self.duration
            .get_or_create(&KindLabels { kind: kind.label() })
            .observe(took.as_secs_f64());
    }

    /// A value was answered whose oldest sample is of this age.
    pub(crate) fn value(&self, age: Duration) {
        self.age.observe(age.as_secs_f64());
    }

    /// A metric had no value.
    pub(crate) fn missing(&self, missing: &Missing) {
        let reason = missing.category();
        self.missing.get_or_create(&ReasonLabels { reason }).inc();
    }

    /// The serving certificate in use.
    pub(crate) fn certificate(&self, not_after: jiff::Timestamp) {
        self.certificate_expiry.set(not_after.as_second());
    }
}

/// Counts one request in flight while it lives.
#[derive(Debug)]
pub(crate) struct InFlight(Gauge);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.dec();
    }
}
