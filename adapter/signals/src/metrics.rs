//! The collector's own metrics.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

/// Metrics of one collector. Register them under the prefix of the binary: `adapter`, `scaler`.
#[derive(Debug, Clone)]
pub struct Metrics {
    pub(crate) scrape_duration: Histogram,
    pub(crate) scrapes: Family<Outcome, Counter>,
    pub(crate) body_bytes: Counter,
    pub(crate) samples: Counter,
    pub(crate) faults: Family<Fault, Counter>,
    pub(crate) restarts: Counter,
    pub(crate) endpoints: Family<EndpointState, Gauge>,
    pub(crate) series: Gauge,
    pub(crate) stale_series: Gauge,
    pub(crate) limits: Family<Limit, Counter>,
}

/// How a scrape ended: `ok`, or the kind of failure.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct Outcome {
    outcome: &'static str,
}

/// What was wrong in a body that was read.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct Fault {
    kind: &'static str,
}

/// Whether endpoints count.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct EndpointState {
    state: &'static str,
}

/// A limit that was reached.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct Limit {
    limit: &'static str,
}

/// Kinds of faults, in the order in which they are counted.
const FAULTS: [&str; 4] = [
    "malformed_line",
    "duplicate_series",
    "implausible_value",
    "inconsistent_histogram",
];
/// States of endpoints.
const STATES: [&str; 4] = ["fresh", "stale", "never_scraped", "not_ready"];

impl Metrics {
    /// Registers the metrics.
    #[must_use]
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            scrape_duration: Histogram::new([
                0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0,
            ]),
            scrapes: Family::default(),
            body_bytes: Counter::default(),
            samples: Counter::default(),
            faults: Family::default(),
            restarts: Counter::default(),
            endpoints: Family::default(),
            series: Gauge::default(),
            stale_series: Gauge::default(),
            limits: Family::default(),
        };
        registry.register_with_unit(
            "scrape_duration",
            "Time from the start of a scrape to its last byte",
            Unit::Seconds,
            metrics.scrape_duration.clone(),
        );
        registry.register("scrapes", "Scrapes by outcome", metrics.scrapes.clone());
        registry.register(
            "scraped_body_bytes",
            "Bytes of bodies read, inflated",
            metrics.body_bytes.clone(),
        );
        registry.register("scraped_samples", "Samples kept", metrics.samples.clone());
        registry.register(
            "scrape_faults",
            "Faults in bodies that were read, by kind",
            metrics.faults.clone(),
        );
        registry.register(
            "target_restarts",
            "Restarts of scraped processes",
            metrics.restarts.clone(),
        );
        registry.register("endpoints", "Endpoints by state", metrics.endpoints.clone());
        registry.register("series", "Series remembered", metrics.series.clone());
        registry.register(
            "stale_series",
            "Series remembered whose samples are too old to count",
            metrics.stale_series.clone(),
        );
        registry.register(
            "limits_reached",
            "Times that a limit was reached, by limit",
            metrics.limits.clone(),
        );
        drop(metrics.scrapes.get_or_create(&Outcome { outcome: "ok" }));
        for kind in FAULTS {
            drop(metrics.faults.get_or_create(&Fault { kind }));
        }
        for state in STATES {
            drop(metrics.endpoints.get_or_create(&EndpointState { state }));
        }
        metrics
    }

    pub(crate) fn count_scrape(&self, outcome: &'static str, seconds: f64) {
        self.scrapes.get_or_create(&Outcome { outcome }).inc();
        self.scrape_duration.observe(seconds);
    }

    /// Counts faults in the order malformed, duplicate, implausible, inconsistent.
    pub(crate) fn count_faults(&self, counts: [u64; 4]) {
        for (kind, count) in FAULTS.into_iter().zip(counts) {
            if count > 0 {
                self.faults.get_or_create(&Fault { kind }).inc_by(count);
            }
        }
    }

    pub(crate) fn count_limit(&self, limit: &'static str) {
        self.limits.get_or_create(&Limit { limit }).inc();
    }

    /// Sets the number of endpoints in the order fresh, stale, never scraped, not ready.
    pub(crate) fn set_endpoints(&self, counts: [usize; 4]) {
        for (state, count) in STATES.into_iter().zip(counts) {
            self.endpoints
                .get_or_create(&EndpointState { state })
                .set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }
}
