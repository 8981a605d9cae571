//! What the operator tells its metrics endpoint.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WriteLabels {
    verb: &'static str,
    kind: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ControllerLabel {
    controller: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ErrorLabels {
    controller: &'static str,
    category: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LevelLabel {
    level: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabel {
    outcome: &'static str,
}

/// Everything that is counted.
#[derive(Debug)]
pub(crate) struct Metrics {
    writes: Family<WriteLabels, Counter>,
    reconciles: Family<ControllerLabel, Histogram>,
    errors: Family<ErrorLabels, Counter>,
    pods_created: Counter,
    pods_deleted: Family<ReasonLabel, Counter>,
    gangs_scheduled: Histogram,
    gang_placements: Family<OutcomeLabel, Counter>,
    gangs_planned: Histogram,
    gangs_unplaced: Gauge,
    gangs_terminated: Family<LevelLabel, Counter>,
    ready: Gauge,
    running: Gauge,
    waiting: Gauge,
    in_flight: Gauge,
    limit: Gauge<f64, std::sync::atomic::AtomicU64>,
    sets: Gauge,
    pods: Gauge,
}

impl Metrics {
    /// Registers all metrics.
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            writes: Family::default(),
            reconciles: Family::new_with_constructor(|| Histogram::new(SECONDS)),
            errors: Family::default(),
            pods_created: Counter::default(),
            pods_deleted: Family::default(),
            gangs_scheduled: Histogram::new(LONG_SECONDS),
            gang_placements: Family::default(),
            gangs_planned: Histogram::new(SECONDS),
            gangs_unplaced: Gauge::default(),
            gangs_terminated: Family::default(),
            ready: Gauge::default(),
            running: Gauge::default(),
            waiting: Gauge::default(),
            in_flight: Gauge::default(),
            limit: Gauge::default(),
            sets: Gauge::default(),
            pods: Gauge::default(),
        };
        let mut add = Adder(registry);
        add.metric(
            "operator_writes",
            "Requests to the API server by verb, kind and outcome",
            &metrics.writes,
        );
        let text = "Time of one pass over a unit of work, writes included";
        add.metric(
            "operator_reconcile_duration_seconds",
            text,
            &metrics.reconciles,
        );
        let text = "Passes that failed, by the category of their first error";
        add.metric("operator_reconcile_errors", text, &metrics.errors);
        add.metric(
            "operator_pods_created",
            "Pods created",
            &metrics.pods_created,
        );
        add.metric(
            "operator_pods_deleted",
            "Pods deleted, by reason",
            &metrics.pods_deleted,
        );
        let text = "Time from a PodGang's creation until its floor was seen bound";
        add.metric(
            "operator_gang_scheduling_duration_seconds",
            text,
            &metrics.gangs_scheduled,
        );
        let text = "Placements of gangs by backend `gated`: placed, released (not bound in time), failed (not patched)";
        add.metric("operator_gang_placements", text, &metrics.gang_placements);
        add.metric(
            "operator_gang_planning_duration_seconds",
            "Time to plan all gangs that wait",
            &metrics.gangs_planned,
        );
        add.metric(
            "operator_gangs_unplaced",
            "Gangs that waited for room when planned last",
            &metrics.gangs_unplaced,
        );
        let text = "Gangs taken down because they had lost their minimum for too long: whole set replicas, or replicas of a scaling group";
        add.metric(
            "operator_gang_terminations",
            text,
            &metrics.gangs_terminated,
        );
        add.metric(
            "operator_queue_ready",
            "Units of work that could be looked at now",
            &metrics.ready,
        );
        add.metric(
            "operator_queue_running",
            "Units of work that are looked at now",
            &metrics.running,
        );
        add.metric(
            "operator_queue_waiting",
            "Units of work with a timer",
            &metrics.waiting,
        );
        add.metric(
            "operator_writes_in_flight",
            "Requests on their way",
            &metrics.in_flight,
        );
        add.metric(
            "operator_writes_limit",
            "Requests allowed on their way; follows the answers",
            &metrics.limit,
        );
        add.metric("operator_sets", "PodCliqueSets in the index", &metrics.sets);
        add.metric("operator_pods", "Pods in the index", &metrics.pods);
        for outcome in ["placed", "released", "failed"] {
            drop(
                metrics
                    .gang_placements
                    .get_or_create(&OutcomeLabel { outcome }),
            );
        }
        for level in ["set", "group"] {
            drop(
                metrics
                    .gangs_terminated
                    .get_or_create(&LevelLabel { level }),
            );
        }
        for controller in ["set", "replica"] {
            drop(
                metrics
                    .reconciles
                    .get_or_create(&ControllerLabel { controller }),
            );
        }
        metrics
    }

    pub(crate) fn write(&self, verb: &'static str, kind: &'static str, outcome: &'static str) {
        self.writes
            .get_or_create(&WriteLabels {
                verb,
                kind,
                outcome,
            })
            .inc();
    }

    pub(crate) fn gang_terminated(&self, level: &'static str) {
        self.gangs_terminated
            .get_or_create(&LevelLabel { level })
            .inc();
    }

    pub(crate) fn reconciled(&self, controller: &'static str, took: Duration) {
        self.reconciles
            .get_or_create(&ControllerLabel { controller })
            .observe(took.as_secs_f64());
    }

    pub(crate) fn failed(&self, controller: &'static str, category: &'static str) {
        self.errors
            .get_or_create(&ErrorLabels {
                controller,
                category,
            })
            .inc();
    }

    pub(crate) fn pod_created(&self) {
        self.pods_created.inc();
    }

    pub(crate) fn pod_deleted(&self, reason: &'static str) {
        self.pods_deleted
            .get_or_create(&ReasonLabel { reason })
            .inc();
    }

    pub(crate) fn gang_scheduled(&self, took: Duration) {
        self.gangs_scheduled.observe(took.as_secs_f64());
    }

    pub(crate) fn gang_placement(&self, outcome: &'static str) {
        self.gang_placements
            .get_or_create(&OutcomeLabel { outcome })
            .inc();
    }

    /// One look at all gangs that wait, and how many of them found no room.
    pub(crate) fn gangs_planned(&self, took: Duration, unplaced: usize) {
        self.gangs_planned.observe(took.as_secs_f64());
        self.gangs_unplaced
            .set(i64::try_from(unplaced).unwrap_or(i64::MAX));
    }

    /// Takes a reading of what has a size.
    pub(crate) fn sizes(
        &self,
        depth: crate::queue::Depth,
        (limit, in_flight): (f64, u32),
        (sets, pods): (usize, usize),
    ) {
        let number = |value: usize| i64::try_from(value).unwrap_or(i64::MAX);
        self.ready.set(number(depth.ready));
        self.running.set(number(depth.running));
        self.waiting.set(number(depth.waiting));
        self.limit.set(limit);
        self.in_flight.set(i64::from(in_flight));
        self.sets.set(number(sets));
        self.pods.set(number(pods));
    }
}

const SECONDS: [f64; 12] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0,
];
const LONG_SECONDS: [f64; 12] = [
    0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0,
];

struct Adder<'a>(&'a mut Registry);

impl Adder<'_> {
    fn metric<M: prometheus_client::registry::Metric + Clone>(
        &mut self,
        name: &str,
        help: &str,
        metric: &M,
    ) {
        self.0.register(name, help, metric.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_can_be_printed() {
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry);
        metrics.write("create", "Pod", "Ok");
        metrics.failed("set", "Conflict");
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        assert!(
            text.contains(r#"operator_writes_total{verb="create",kind="Pod",outcome="Ok"} 1"#),
            "{text}"
        );
        assert!(
            text.contains(r#"operator_reconcile_duration_seconds_count{controller="replica"} 0"#),
            "{text}"
        );
    }
}
