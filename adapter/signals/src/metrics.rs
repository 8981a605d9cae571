//! The collector's own metrics.
//!
//! Whatever is counted by a known set of labels begins at zero, so that a rate over it has a first value.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use crate::engines::ENGINES;

/// Metrics of one collector. Register them under the prefix of the binary: `adapter`, `scaler`.
#[derive(Debug, Clone)]
pub struct Metrics {
    pub(crate) scrape_duration: Histogram,
    pub(crate) scrapes: Family<Outcome, Counter>,
    pub(crate) body_bytes: Counter,
    pub(crate) samples: Counter,
    pub(crate) faults: Family<Fault, Counter>,
    pub(crate) restarts: Counter,
    endpoints: Family<EndpointState, Gauge>,
    /// Names of servers in `endpoints`, whose counts fall to zero and never go away.
    servers: Arc<Mutex<BTreeSet<String>>>,
    /// Seconds.
    pub(crate) oldest_sample_age: Gauge<f64, AtomicU64>,
    /// Answers that were worked out.
    pub(crate) evaluations: Counter,
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

/// Whether endpoints of a kind of server count.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EndpointState {
    engine: String,
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
/// Place in [`STATES`]: ready, and its last sample counts.
pub(crate) const FRESH: usize = 0;
/// Ready, and its last sample is too old.
pub(crate) const STALE: usize = 1;
/// Ready, and there is no sample yet.
pub(crate) const NEVER_SCRAPED: usize = 2;
/// Not ready, or terminating.
pub(crate) const NOT_READY: usize = 3;

/// What servers are called of which nothing is known yet.
pub(crate) const UNRECOGNISED: &str = "unknown";

/// How scrapes end; `ok`, and the categories of what can go wrong.
const OUTCOMES: [&str; 15] = [
    "ok",
    "deadline",
    "connect",
    "transport",
    "malformed_address",
    "status",
    "content_type",
    "encoding",
    "too_large",
    "inflate",
    "refused",
    "truncated",
    "malformed",
    "incomplete",
    "limit",
];
/// Limits that can be reached.
const LIMITS: [&str; 5] = [
    "limits.body_bytes",
    "limits.models_per_target",
    "limits.raw_names",
    "limits.series_per_target",
    "limits.targets",
];

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
            servers: Arc::default(),
            oldest_sample_age: Gauge::default(),
            evaluations: Counter::default(),
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
        registry.register(
            "endpoints",
            "Endpoints by server and state",
            metrics.endpoints.clone(),
        );
        registry.register_with_unit(
            "oldest_sample_age",
            "Age of the last sample of the ready endpoint that was scraped least recently",
            Unit::Seconds,
            metrics.oldest_sample_age.clone(),
        );
        registry.register(
            "evaluations",
            "Answers worked out; the same question within a moment gets the same answer",
            metrics.evaluations.clone(),
        );
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
        for outcome in OUTCOMES {
            drop(metrics.scrapes.get_or_create(&Outcome { outcome }));
        }
        for kind in FAULTS {
            drop(metrics.faults.get_or_create(&Fault { kind }));
        }
        for limit in LIMITS {
            drop(metrics.limits.get_or_create(&Limit { limit }));
        }
        let known = ENGINES.iter().map(|engine| engine.name);
        let servers = known.chain(std::iter::once(UNRECOGNISED));
        metrics.set_endpoints(servers.map(|name| (name.to_owned(), [0; 4])));
        metrics
    }

    pub(crate) fn count_scrape(&self, outcome: &'static str, seconds: f64) {
        debug_assert!(OUTCOMES.contains(&outcome), "{outcome} begins at zero, too");
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
        debug_assert!(LIMITS.contains(&limit), "{limit} begins at zero, too");
        self.limits.get_or_create(&Limit { limit }).inc();
    }

    /// Sets the number of endpoints of each kind of server, by place in [`STATES`]. Kinds that are not named have none.
    pub(crate) fn set_endpoints(&self, counts: impl Iterator<Item = (String, [usize; 4])>) {
        let mut servers = self.servers.lock();
        let mut gone = servers.clone();
        for (engine, places) in counts {
            self.set_places(&engine, places);
            gone.remove(&engine);
            servers.insert(engine);
        }
        for engine in gone {
            self.set_places(&engine, [0; 4]);
        }
    }

    fn set_places(&self, engine: &str, places: [usize; 4]) {
        for (state, count) in STATES.into_iter().zip(places) {
            let label = EndpointState {
                engine: engine.to_owned(),
                state,
            };
            self.endpoints
                .get_or_create(&label)
                .set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }
}
