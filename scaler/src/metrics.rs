//! What the scaler tells its metrics endpoint.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use coppice_scaler_api::{Because, ScalingPolicyStatus};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use crate::watch::Key;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DecisionLabels {
    direction: &'static str,
    because: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RoleLabels {
    namespace: String,
    policy: String,
    role: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PolicyLabels {
    namespace: String,
    policy: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WriteLabels {
    object: &'static str,
    outcome: &'static str,
}

/// Everything that is counted.
#[derive(Debug, Clone)]
pub(crate) struct Metrics {
    decisions: Family<DecisionLabels, Counter>,
    desired: Family<RoleLabels, Gauge>,
    current: Family<RoleLabels, Gauge>,
    ready: Family<RoleLabels, Gauge>,
    demand: Family<RoleLabels, Gauge<f64, AtomicU64>>,
    desired_sets: Family<PolicyLabels, Gauge>,
    served_fraction: Family<PolicyLabels, Gauge<f64, AtomicU64>>,
    writes: Family<WriteLabels, Counter>,
    decide: Histogram,
    pass: Histogram,
    policies: Gauge,
}

impl Metrics {
    /// Registers under the prefix of the registry, `scaler`.
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            decisions: Family::default(),
            desired: Family::default(),
            current: Family::default(),
            ready: Family::default(),
            demand: Family::default(),
            desired_sets: Family::default(),
            served_fraction: Family::default(),
            writes: Family::default(),
            decide: Histogram::new(exponential_buckets(0.000_01, 4.0, 8)),
            pass: Histogram::new(exponential_buckets(0.000_25, 4.0, 8)),
            policies: Gauge::default(),
        };
        registry.register(
            "decisions",
            "Decisions about a role, by direction and reason",
            metrics.decisions.clone(),
        );
        registry.register(
            "desired_replicas",
            "Units wanted of a role, over all sets",
            metrics.desired.clone(),
        );
        registry.register(
            "current_replicas",
            "Units that a role's objects ask for, over all sets",
            metrics.current.clone(),
        );
        registry.register(
            "ready_replicas",
            "Units of a role that are ready, over all sets",
            metrics.ready.clone(),
        );
        registry.register(
            "demand_replicas",
            "Units that the load of a role needs before any limit",
            metrics.demand.clone(),
        );
        registry.register(
            "desired_set_replicas",
            "Set replicas wanted",
            metrics.desired_sets.clone(),
        );
        registry.register(
            "served_fraction",
            "Share of the demand that the wanted units serve, 0 to 1",
            metrics.served_fraction.clone(),
        );
        registry.register(
            "writes",
            "Writes of replicas and status, by outcome",
            metrics.writes.clone(),
        );
        registry.register(
            "decide_duration_seconds",
            "Time of one decision",
            metrics.decide.clone(),
        );
        registry.register(
            "pass_duration_seconds",
            "Time of one pass over all policies, writes included",
            metrics.pass.clone(),
        );
        registry.register(
            "policies",
            "Policies that are followed",
            metrics.policies.clone(),
        );
        for object in ["scale", "status"] {
            for outcome in ["done", "outdated", "refused"] {
                drop(
                    metrics
                        .writes
                        .get_or_create(&WriteLabels { object, outcome }),
                );
            }
        }
        metrics
    }

    pub(crate) fn decided(
        &self,
        (namespace, policy): &Key,
        status: &ScalingPolicyStatus,
        took: Duration,
    ) {
        self.decide.observe(took.as_secs_f64());
        for role in &status.roles {
            let direction = match role.wanted.cmp(&role.current) {
                std::cmp::Ordering::Greater => "up",
                std::cmp::Ordering::Less => "down",
                std::cmp::Ordering::Equal => "hold",
            };
            self.decisions
                .get_or_create(&DecisionLabels {
                    direction,
                    because: name(role.because),
                })
                .inc();
            let labels = role_labels(namespace, policy, &role.name);
            self.desired.get_or_create(&labels).set(role.wanted.into());
            self.current.get_or_create(&labels).set(role.current.into());
            self.ready.get_or_create(&labels).set(role.ready.into());
            let demand = role
                .signals
                .iter()
                .find(|signal| signal.name == coppice_scaler_plan::Quantity::Demand.name());
            match demand {
                Some(demand) => drop(
                    self.demand
                        .get_or_create(&labels)
                        .set(demand.value.as_f64()),
                ),
                None => drop(self.demand.remove(&labels)),
            }
        }
        let labels = PolicyLabels {
            namespace: namespace.clone(),
            policy: policy.clone(),
        };
        if let Some(sets) = &status.sets {
            self.desired_sets
                .get_or_create(&labels)
                .set(sets.wanted.into());
        }
        if let Some(decision) = &status.decision {
            self.served_fraction
                .get_or_create(&labels)
                .set(decision.served_fraction.as_f64());
        }
    }

    /// Forgets a policy and its roles.
    pub(crate) fn forget(&self, (namespace, policy): &Key, roles: impl Iterator<Item = String>) {
        for role in roles {
            let labels = role_labels(namespace, policy, &role);
            for family in [&self.desired, &self.current, &self.ready] {
                family.remove(&labels);
            }
            self.demand.remove(&labels);
        }
        let labels = PolicyLabels {
            namespace: namespace.clone(),
            policy: policy.clone(),
        };
        self.desired_sets.remove(&labels);
        self.served_fraction.remove(&labels);
    }

    pub(crate) fn wrote(&self, object: &'static str, outcome: &'static str) {
        self.writes
            .get_or_create(&WriteLabels { object, outcome })
            .inc();
    }

    pub(crate) fn passed(&self, policies: usize, took: Duration) {
        self.policies
            .set(i64::try_from(policies).unwrap_or(i64::MAX));
        self.pass.observe(took.as_secs_f64());
    }
}

fn role_labels(namespace: &str, policy: &str, role: &str) -> RoleLabels {
    RoleLabels {
        namespace: namespace.to_owned(),
        policy: policy.to_owned(),
        role: role.to_owned(),
    }
}

fn name(because: Because) -> String {
    format!("{because:?}")
}
