//! What the scaler tells its metrics endpoint.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use coppice_scaler_api::{LimitedBy, RoleStatus, ScalingPolicyStatus};
use coppice_scaler_plan::{Decision, Quantity};
use jiff::Timestamp;
use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use crate::observe::fleet::since;
use crate::watch::Key;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DecisionLabels {
    direction: &'static str,
    because: String,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
struct RoleLabels {
    namespace: String,
    policy: String,
    role: String,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
struct ReasonLabels {
    namespace: String,
    policy: String,
    role: String,
    because: String,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
struct LimitLabels {
    namespace: String,
    policy: String,
    role: String,
    limit: String,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
struct PolicyLabels {
    namespace: String,
    policy: String,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
struct SetLimitLabels {
    namespace: String,
    policy: String,
    limit: String,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
struct ConditionLabels {
    namespace: String,
    policy: String,
    condition: String,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
struct BudgetLabels {
    budget: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WriteLabels {
    object: &'static str,
    outcome: &'static str,
}

/// A gauge whose series belong to policies. Those of one policy are replaced together, so that a role, a limit or a reason that is gone is not shown
/// any more: it is absent, not zero.
#[derive(Debug)]
struct PerPolicy<L> {
    family: Family<L, Gauge<f64, AtomicU64>>,
    shown: Arc<Mutex<BTreeMap<Key, BTreeSet<L>>>>,
}

impl<L> Clone for PerPolicy<L> {
    fn clone(&self) -> Self {
        Self {
            family: self.family.clone(),
            shown: Arc::clone(&self.shown),
        }
    }
}

impl<L> PerPolicy<L>
where
    L: EncodeLabelSet + Clone + Ord + Hash + std::fmt::Debug + Send + Sync + 'static,
{
    fn register(registry: &mut Registry, name: &str, help: &str) -> Self {
        let gauge = Self {
            family: Family::default(),
            shown: Arc::default(),
        };
        registry.register(name, help, gauge.family.clone());
        gauge
    }

    fn show(&self, policy: &Key, series: impl IntoIterator<Item = (L, f64)>) {
        let mut now = BTreeSet::new();
        for (labels, value) in series {
            self.family.get_or_create(&labels).set(value);
            now.insert(labels);
        }
        let mut shown = self.shown.lock();
        let before = if now.is_empty() {
            shown.remove(policy)
        } else {
            shown.insert(policy.clone(), now.clone())
        };
        for gone in before.unwrap_or_default().difference(&now) {
            self.family.remove(gone);
        }
    }
}

/// Everything that is counted.
#[derive(Debug, Clone)]
pub(crate) struct Metrics {
    decisions: Family<DecisionLabels, Counter>,
    desired: PerPolicy<RoleLabels>,
    current: PerPolicy<RoleLabels>,
    ready: PerPolicy<RoleLabels>,
    demand: PerPolicy<RoleLabels>,
    signal_age: PerPolicy<RoleLabels>,
    reason: PerPolicy<ReasonLabels>,
    limited: PerPolicy<LimitLabels>,
    desired_sets: PerPolicy<PolicyLabels>,
    current_sets: PerPolicy<PolicyLabels>,
    sets_limited: PerPolicy<SetLimitLabels>,
    served_fraction: PerPolicy<PolicyLabels>,
    gpus_wanted: PerPolicy<PolicyLabels>,
    gpus_committed: PerPolicy<PolicyLabels>,
    gpus_limit: PerPolicy<PolicyLabels>,
    condition: PerPolicy<ConditionLabels>,
    budget_limit: PerPolicy<BudgetLabels>,
    budget_granted: PerPolicy<BudgetLabels>,
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
            desired: PerPolicy::register(
                registry,
                "desired_replicas",
                "Units wanted of a role, over all sets",
            ),
            current: PerPolicy::register(
                registry,
                "current_replicas",
                "Units that a role's objects ask for, over all sets",
            ),
            ready: PerPolicy::register(
                registry,
                "ready_replicas",
                "Units of a role that are ready, over all sets",
            ),
            demand: PerPolicy::register(
                registry,
                "demand_replicas",
                "Units that the load of a role needs before any limit; absent while it is not measured",
            ),
            signal_age: PerPolicy::register(
                registry,
                "signal_age_seconds",
                "Age of the oldest signal that a role's size follows from; absent while none was measured",
            ),
            reason: PerPolicy::register(
                registry,
                "reason",
                "1 for the reason that determines the units of a role now",
            ),
            limited: PerPolicy::register(
                registry,
                "limited",
                "1 for each limit that keeps a role from more or from less now",
            ),
            desired_sets: PerPolicy::register(
                registry,
                "desired_set_replicas",
                "Set replicas wanted",
            ),
            current_sets: PerPolicy::register(
                registry,
                "current_set_replicas",
                "Set replicas that the set asks for",
            ),
            sets_limited: PerPolicy::register(
                registry,
                "sets_limited",
                "1 for each limit that keeps the set replicas from more or from less now",
            ),
            served_fraction: PerPolicy::register(
                registry,
                "served_fraction",
                "Share of the demand that the wanted units serve, 0 to 1",
            ),
            gpus_wanted: PerPolicy::register(
                registry,
                "wanted_gpus",
                "GPUs of the wanted units and sets, under a budget",
            ),
            gpus_committed: PerPolicy::register(
                registry,
                "committed_gpus",
                "GPUs held or asked for while the decision is carried out, terminating ones included",
            ),
            gpus_limit: PerPolicy::register(
                registry,
                "limit_gpus",
                "GPUs that the policy's units may hold together",
            ),
            condition: PerPolicy::register(
                registry,
                "condition",
                "1 for a condition of a policy that is True, 0 for one that is False",
            ),
            budget_limit: PerPolicy::register(registry, "budget_limit_gpus", "GPUs of a GpuBudget"),
            budget_granted: PerPolicy::register(
                registry,
                "budget_granted_gpus",
                "GPUs of a GpuBudget that are granted to policies",
            ),
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
        for object in ["scale", "status", "budget"] {
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

    /// Shows a decision and counts it.
    pub(crate) fn decided(
        &self,
        key: &Key,
        status: &ScalingPolicyStatus,
        decision: &Decision,
        took: Duration,
        now: Timestamp,
    ) {
        self.decide.observe(took.as_secs_f64());
        for role in &status.roles {
            let direction = match role.wanted.cmp(&role.current) {
                std::cmp::Ordering::Greater => "up",
                std::cmp::Ordering::Less => "down",
                std::cmp::Ordering::Equal => "hold",
            };
            let because = format!("{:?}", role.because);
            self.decisions
                .get_or_create(&DecisionLabels { direction, because })
                .inc();
        }
        self.show_roles(key, status, decision, now);
        self.show_sets(key, status);
        let own = policy_labels(key);
        let served = status.decision.as_ref();
        self.served_fraction.show(
            key,
            served.map(|decision| (own.clone(), decision.served_fraction.as_f64())),
        );
        let gpus = |pick: fn(&coppice_scaler_plan::GpuUse) -> u64| {
            let own = own.clone();
            decision
                .gpus
                .as_ref()
                .map(|gpus| (own, whole_gpus(pick(gpus))))
        };
        self.gpus_wanted.show(key, gpus(|gpus| gpus.wanted));
        self.gpus_committed
            .show(key, gpus(|gpus| gpus.committed.total()));
        self.gpus_limit.show(key, gpus(|gpus| gpus.limit));
        self.show_conditions(key, status);
    }

    fn show_roles(
        &self,
        key: &Key,
        status: &ScalingPolicyStatus,
        decision: &Decision,
        now: Timestamp,
    ) {
        let each = |pick: fn(&RoleStatus) -> u32| {
            let roles = status.roles.iter();
            roles.map(move |role| (role_labels(key, &role.name), f64::from(pick(role))))
        };
        self.desired.show(key, each(|role| role.wanted));
        self.current.show(key, each(|role| role.current));
        self.ready.show(key, each(|role| role.ready));
        let demand = |role: &RoleStatus| {
            let name = Quantity::Demand.name();
            let signal = role.signals.iter().find(|signal| signal.name == name)?;
            Some((role_labels(key, &role.name), signal.value.as_f64()))
        };
        self.demand
            .show(key, status.roles.iter().filter_map(demand));
        let ages = status.roles.iter().zip(&decision.roles);
        let ages = ages.filter_map(|(role, decided)| {
            let measured_at = decided.measured_at?;
            let age = since(Some(measured_at), now).as_secs_f64();
            Some((role_labels(key, &role.name), age))
        });
        self.signal_age.show(key, ages);
        let reasons = status.roles.iter().map(|role| {
            let labels = ReasonLabels {
                namespace: key.0.clone(),
                policy: key.1.clone(),
                role: role.name.clone(),
                because: format!("{:?}", role.because),
            };
            (labels, 1.0)
        });
        self.reason.show(key, reasons);
        let limits = status.roles.iter().flat_map(|role| {
            role.limited_by.iter().map(|limit| {
                let labels = LimitLabels {
                    namespace: key.0.clone(),
                    policy: key.1.clone(),
                    role: role.name.clone(),
                    limit: limit_name(*limit),
                };
                (labels, 1.0)
            })
        });
        self.limited.show(key, limits);
    }

    fn show_sets(&self, key: &Key, status: &ScalingPolicyStatus) {
        let sets = status.sets.as_ref();
        let own = |value: u32| (policy_labels(key), f64::from(value));
        self.desired_sets
            .show(key, sets.map(|sets| own(sets.wanted)));
        self.current_sets
            .show(key, sets.map(|sets| own(sets.current)));
        let limits = sets.into_iter().flat_map(|sets| &sets.limited_by);
        let limits = limits.map(|limit| {
            let labels = SetLimitLabels {
                namespace: key.0.clone(),
                policy: key.1.clone(),
                limit: limit_name(*limit),
            };
            (labels, 1.0)
        });
        self.sets_limited.show(key, limits);
    }

    fn show_conditions(&self, key: &Key, status: &ScalingPolicyStatus) {
        let conditions = status.conditions.iter().map(|condition| {
            let labels = ConditionLabels {
                namespace: key.0.clone(),
                policy: key.1.clone(),
                condition: condition.type_.clone(),
            };
            (labels, if condition.status == "True" { 1.0 } else { 0.0 })
        });
        self.condition.show(key, conditions);
    }

    /// Shows that a policy cannot be followed: its conditions, and no units, which nobody decides about now.
    pub(crate) fn not_followed(&self, key: &Key, status: &ScalingPolicyStatus) {
        self.forget(key);
        self.show_conditions(key, status);
    }

    /// Forgets a policy and its roles.
    pub(crate) fn forget(&self, key: &Key) {
        let Self {
            decisions: _,
            desired,
            current,
            ready,
            demand,
            signal_age,
            reason,
            limited,
            desired_sets,
            current_sets,
            sets_limited,
            served_fraction,
            gpus_wanted,
            gpus_committed,
            gpus_limit,
            condition,
            budget_limit: _,
            budget_granted: _,
            writes: _,
            decide: _,
            pass: _,
            policies: _,
        } = self;
        for of_roles in [desired, current, ready, demand, signal_age] {
            of_roles.show(key, None);
        }
        for of_policies in [
            desired_sets,
            current_sets,
            served_fraction,
            gpus_wanted,
            gpus_committed,
            gpus_limit,
        ] {
            of_policies.show(key, None);
        }
        reason.show(key, None);
        limited.show(key, None);
        sets_limited.show(key, None);
        condition.show(key, None);
    }

    /// Shows every GpuBudget: its name, its GPUs, and those that are granted.
    pub(crate) fn budgets(&self, budgets: &[(String, u32, u64)]) {
        // They belong to no policy: all of them are replaced together.
        let all = (String::new(), String::new());
        let labels = |budget: &String| BudgetLabels {
            budget: budget.clone(),
        };
        let limits = budgets.iter();
        self.budget_limit.show(
            &all,
            limits.map(|(name, limit, _)| (labels(name), f64::from(*limit))),
        );
        let granted = budgets.iter();
        self.budget_granted.show(
            &all,
            granted.map(|(name, _, granted)| (labels(name), whole_gpus(*granted))),
        );
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

fn role_labels((namespace, policy): &Key, role: &str) -> RoleLabels {
    RoleLabels {
        namespace: namespace.clone(),
        policy: policy.clone(),
        role: role.to_owned(),
    }
}

fn policy_labels((namespace, policy): &Key) -> PolicyLabels {
    PolicyLabels {
        namespace: namespace.clone(),
        policy: policy.clone(),
    }
}

fn limit_name(limit: LimitedBy) -> String {
    format!("{limit:?}")
}

fn whole_gpus(gpus: u64) -> f64 {
    u32::try_from(gpus).map_or(f64::INFINITY, f64::from)
}

#[cfg(test)]
pub(crate) mod tests {
    use coppice_scaler_api::ScalingPolicy;
    use coppice_scaler_plan::{Age, Because, GpuUse, Holdings, Limit, RoleDecision, SetsDecision};
    use prometheus_client::encoding::text::encode;
    use serde_json::json;

    use super::*;
    use crate::translate;

    fn key() -> Key {
        ("serving".to_owned(), "qwen3".to_owned())
    }

    fn policy() -> ScalingPolicy {
        let role = |name: &str| json!({"name": name, "stage": "Prefill", "max": 8, "signal": {"queueDepth": {"waitingPerUnit": 4}}});
        serde_json::from_value(json!({
            "apiVersion": "autoscaling.coppice.dev/v1alpha1", "kind": "ScalingPolicy", "metadata": {"name": "qwen3", "namespace": "serving"},
            "spec": {
                "target": {"apiVersion": "grove.io/v1alpha1", "kind": "PodCliqueSet", "name": "qwen3"},
                "roles": [role("prefill"), role("decode")],
            },
        }))
        .unwrap()
    }

    fn decision(roles: usize) -> Decision {
        let role = RoleDecision {
            current: 2,
            ready: 2,
            wanted: 4,
            shares: Vec::new(),
            recommended: 4,
            because: Because::Budget,
            limited_by: [Limit::Budget].into(),
            age: Age::Fresh,
            measured_at: Some(Timestamp::from_second(97).unwrap()),
            values: vec![(Quantity::Demand, 5.5)],
        };
        Decision {
            roles: vec![role; roles],
            sets: SetsDecision {
                current: 1,
                wanted: 2,
                recommended: 2,
                limited_by: [Limit::SetsMax].into(),
            },
            served_fraction: 0.5,
            gpus: Some(GpuUse {
                wanted: 48,
                committed: Holdings {
                    roles: vec![24, 32],
                    beside: 0,
                },
                limit: 64,
            }),
            problems: Vec::new(),
            recheck_after: Duration::from_secs(5),
        }
    }

    /// A registry as the program's, after one decision about two roles.
    pub(crate) fn exported() -> (Registry, Metrics) {
        let (mut registry, metrics) = own();
        let prefixed = registry.sub_registry_with_prefix("scaler");
        drop(coppice_signals::Metrics::register(prefixed));
        coppice_runtime::lease::LeaseMetrics::register(prefixed);
        (registry, metrics)
    }

    /// What this crate adds to it.
    pub(crate) fn own() -> (Registry, Metrics) {
        let mut registry = Registry::default();
        let metrics = Metrics::register(registry.sub_registry_with_prefix("scaler"));
        show(&metrics, 2);
        (registry, metrics)
    }

    fn show(metrics: &Metrics, roles: usize) {
        let mut spec = policy().spec;
        spec.roles.truncate(roles);
        let now = Timestamp::from_second(100).unwrap();
        let decision = decision(roles);
        let mut status = translate::record(&spec, true, &decision, now);
        let facts = crate::conditions::Facts {
            spec: &spec,
            generation: Some(1),
            trouble: None,
            decision: Some(&decision),
            traffic_trouble: None,
            standing: &crate::pool::Standing::Alone,
        };
        status.conditions = crate::conditions::conditions(&facts, &[], now);
        metrics.decided(&key(), &status, &decision, Duration::from_micros(80), now);
        metrics.budgets(&[("h200-pool".to_owned(), 64, 56)]);
    }

    pub(crate) fn text(registry: &Registry) -> String {
        let mut text = String::new();
        encode(&mut text, registry).unwrap();
        text
    }

    #[test]
    fn a_decision_is_shown_with_its_reason_limits_and_age() {
        let (registry, _) = exported();
        let text = text(&registry);
        let of = |role: &str| format!("{{namespace=\"serving\",policy=\"qwen3\",role=\"{role}\"");
        for line in [
            format!("scaler_desired_replicas{}}} 4.0", of("prefill")),
            format!("scaler_demand_replicas{}}} 5.5", of("decode")),
            format!("scaler_signal_age_seconds{}}} 3.0", of("decode")),
            format!("scaler_reason{},because=\"Budget\"}} 1.0", of("decode")),
            format!("scaler_limited{},limit=\"Budget\"}} 1.0", of("prefill")),
            "scaler_committed_gpus{namespace=\"serving\",policy=\"qwen3\"} 56.0".to_owned(),
            "scaler_budget_granted_gpus{budget=\"h200-pool\"} 56.0".to_owned(),
            "scaler_condition{namespace=\"serving\",policy=\"qwen3\",condition=\"Ready\"} 1.0"
                .to_owned(),
        ] {
            assert!(text.contains(&line), "`{line}` is not in\n{text}");
        }
    }

    #[test]
    fn what_is_gone_is_absent_and_not_zero() {
        let (registry, metrics) = exported();
        show(&metrics, 1);
        let fewer = text(&registry);
        assert!(fewer.contains("role=\"prefill\"") && !fewer.contains("role=\"decode\""));
        let trouble = ScalingPolicyStatus::default();
        metrics.not_followed(&key(), &trouble);
        metrics.forget(&key());
        let nothing = text(&registry);
        assert!(!nothing.contains("policy=\"qwen3\""), "{nothing}");
    }
}
