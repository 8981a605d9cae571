//! What the adapter measures about itself.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

/// Counts of the secure endpoint.
#[derive(Debug, Clone)]
pub(crate) struct RequestMetrics {
    requests: Family<RequestLabels, Counter>,
    duration: Family<KindLabels, Histogram>,
    in_flight: Gauge,
    certificate_expiry: Gauge,
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
    /// Everything else, and what was refused before it was understood.
    Other,
}

impl Kind {
    fn label(self) -> &'static str {
        match self {
            Self::Value => "value",
            Self::Explanation => "explanation",
            Self::Discovery => "discovery",
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
            "serving_certificate_expiry_timestamp_seconds",
            "When the serving certificate expires, seconds since 1970",
            metrics.certificate_expiry.clone(),
        );
        for kind in [Kind::Value, Kind::Explanation, Kind::Discovery, Kind::Other] {
            drop(metrics.requests.get_or_create(&RequestLabels {
                kind: kind.label(),
                code: 200,
            }));
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
