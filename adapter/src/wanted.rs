//! `coppice_wanted_replicas`: what the scaler decided, as long as the scaler is alive.
//!
//! The record is the status of ScalingPolicies; the sign of life is the scaler's Lease. Without it the record is not answered: an old
//! decision is no decision.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use coppice_runtime::lease::Freshness;
use coppice_runtime::telemetry::chain;
use coppice_scaler_api::{LEASE_NAME, ScalingPolicy};
use coppice_signals::Selector;
use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::core::DeserializeGuard;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::status::Refusal;

/// The metric's name.
pub(crate) const METRIC: &str = "coppice_wanted_replicas";

/// Selector keys of the metric.
const POLICY: &str = "policy";
const ROLE: &str = "role";
const SET: &str = "set";

/// The records as last seen. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct WantedReplicas {
    state: Arc<Mutex<State>>,
    lease_namespace: Arc<str>,
}

#[derive(Debug, Default)]
struct State {
    /// By namespace and name. `None` until the first list is complete.
    policies: Option<BTreeMap<(String, String), Record>>,
    /// Of the list that is being read.
    listing: BTreeMap<(String, String), Record>,
    /// Why there is no list yet.
    trouble: Option<String>,
    freshness: Freshness,
}

/// What one policy's record says; `None` before the first decision.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Record(Option<Vec<RoleRecord>>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct RoleRecord {
    role: String,
    wanted: u32,
    per_set: Vec<(u32, u32)>,
}

/// A decision, found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// Replicas.
    pub replicas: u32,
    /// `policy`, `role`, and `set` where one set's share was asked for.
    pub labels: BTreeMap<String, String>,
}

impl WantedReplicas {
    /// Watches policies in `namespace` (all: `None`) and the scaler's Lease in `lease_namespace` until `stop`.
    pub(crate) fn watch(
        client: &Client,
        namespace: Option<&str>,
        lease_namespace: &str,
        stop: &CancellationToken,
    ) -> Self {
        let records = Self {
            state: Arc::default(),
            lease_namespace: Arc::from(lease_namespace),
        };
        let policies: Api<DeserializeGuard<ScalingPolicy>> = match namespace {
            Some(namespace) => Api::namespaced(client.clone(), namespace),
            None => Api::all(client.clone()),
        };
        tokio::spawn(records.clone().follow_policies(policies, stop.clone()));
        let leases = Api::namespaced(client.clone(), lease_namespace);
        tokio::spawn(records.clone().follow_lease(leases, stop.clone()));
        records
    }

    async fn follow_policies(
        self,
        policies: Api<DeserializeGuard<ScalingPolicy>>,
        stop: CancellationToken,
    ) {
        let events = watcher(policies, watcher::Config::default())
            .default_backoff()
            .take_until(stop.cancelled_owned());
        let mut events = std::pin::pin!(events);
        while let Some(event) = events.next().await {
            let mut state = self.state.lock();
            match event {
                Ok(watcher::Event::Init) => state.listing.clear(),
                Ok(watcher::Event::InitApply(policy)) => {
                    if let Some((key, record)) = read(policy) {
                        state.listing.insert(key, record);
                    }
                }
                Ok(watcher::Event::InitDone) => {
                    state.policies = Some(std::mem::take(&mut state.listing));
                    state.trouble = None;
                }
                Ok(watcher::Event::Apply(policy)) => {
                    if let (Some((key, record)), Some(policies)) =
                        (read(policy), &mut state.policies)
                    {
                        policies.insert(key, record);
                    }
                }
                Ok(watcher::Event::Delete(policy)) => {
                    let key = key(&policy);
                    if let Some(policies) = &mut state.policies {
                        policies.remove(&key);
                    }
                }
                Err(error) => {
                    let text = chain(&error).to_string();
                    if state.trouble.as_ref() != Some(&text) {
                        warn!(error = %text, "cannot watch scaling policies");
                        state.trouble = Some(text);
                    }
                }
            }
        }
    }

    async fn follow_lease(self, leases: Api<Lease>, stop: CancellationToken) {
        let config = watcher::Config::default().fields(&format!("metadata.name={LEASE_NAME}"));
        let events = watcher(leases, config)
            .default_backoff()
            .take_until(stop.cancelled_owned());
        let mut events = std::pin::pin!(events);
        let mut is_listed = false;
        while let Some(event) = events.next().await {
            let now = Instant::now();
            match event {
                Ok(watcher::Event::Init) => is_listed = false,
                Ok(watcher::Event::InitApply(lease) | watcher::Event::Apply(lease)) => {
                    is_listed = true;
                    self.state.lock().freshness.observe(Some(&lease), now);
                }
                Ok(watcher::Event::InitDone) if !is_listed => {
                    self.state.lock().freshness.observe(None, now)
                }
                Ok(watcher::Event::InitDone) => {}
                Ok(watcher::Event::Delete(_)) => self.state.lock().freshness.observe(None, now),
                // Without renewals the lease runs out by itself, which is right.
                Err(error) => warn!(error = %chain(&error), "cannot watch the scaler's lease"),
            }
        }
    }

    /// The one record that the selector picks in a namespace.
    ///
    /// Without `set` in the selector a role's total is meant, with it the share of a set.
    ///
    /// # Errors
    /// 404 when no record fits, 400 when several do (an autoscaler would add them up), 503 while the scaler is not alive or has not decided.
    pub(crate) fn find(
        &self,
        namespace: &str,
        selector: &Selector,
        now: Instant,
        wall: Timestamp,
    ) -> Result<Wanted, Refusal> {
        let state = self.state.lock();
        let Some(policies) = &state.policies else {
            let because = state
                .trouble
                .as_deref()
                .unwrap_or("the first list is not complete");
            return Err(Refusal::unavailable(format!(
                "scaling policies are not known yet: {because}"
            )));
        };
        let is_share = selector
            .requirements()
            .iter()
            .any(|requirement| requirement.key == SET);
        let mut found: Vec<Wanted> = Vec::new();
        let mut undecided: Option<&str> = None;
        for ((_, policy), record) in policies
            .iter()
            .filter(|((in_namespace, _), _)| in_namespace == namespace)
        {
            let Some(roles) = &record.0 else {
                if may_mean(selector, policy) {
                    undecided = Some(policy);
                }
                continue;
            };
            for role in roles {
                let total = (!is_share).then_some((None, role.wanted));
                let shares = role
                    .per_set
                    .iter()
                    .filter(|_| is_share)
                    .map(|(set, wanted)| (Some(*set), *wanted));
                for (set, replicas) in total.into_iter().chain(shares) {
                    let labels = labels(policy, &role.role, set);
                    if selector.matches(|key| labels.get(key).map(String::as_str)) {
                        found.push(Wanted { replicas, labels });
                    }
                }
            }
        }
        match (found.len(), undecided) {
            (1, _) => {}
            (0, Some(policy)) => {
                return Err(Refusal::unavailable(format!(
                    "the scaler has not decided about policy {namespace}/{policy} yet"
                )));
            }
            (0, None) => {
                return Err(Refusal::not_found(format!(
                    "no decision in namespace {namespace} matches the selector; use {POLICY}=, {ROLE}= and, for one set's share, {SET}="
                )));
            }
            (many, _) => {
                return Err(Refusal::bad_request(format!(
                    "the selector picks {many} decisions, which an autoscaler would add up; pick one by {POLICY}=, {ROLE}= and, for a share, {SET}="
                )));
            }
        }
        state.freshness.check(now, wall).map_err(|reason| {
            Refusal::unavailable(format!(
                "the scaler is not alive: {reason} (Lease {}/{LEASE_NAME})",
                self.lease_namespace
            ))
        })?;
        Ok(found.remove(0))
    }
}

/// Whether nothing that the selector says about policies excludes this one.
fn may_mean(selector: &Selector, policy: &str) -> bool {
    selector
        .requirements()
        .iter()
        .filter(|requirement| requirement.key == POLICY)
        .all(|requirement| requirement.test.holds(Some(policy)))
}

fn labels(policy: &str, role: &str, set: Option<u32>) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::from([
        (POLICY.to_owned(), policy.to_owned()),
        (ROLE.to_owned(), role.to_owned()),
    ]);
    if let Some(set) = set {
        labels.insert(SET.to_owned(), set.to_string());
    }
    labels
}

fn key(policy: &DeserializeGuard<ScalingPolicy>) -> (String, String) {
    let (namespace, name) = match &policy.0 {
        Ok(policy) => (policy.namespace(), policy.name_any()),
        Err(invalid) => (
            invalid.metadata.namespace.clone(),
            invalid.metadata.name.clone().unwrap_or_default(),
        ),
    };
    (namespace.unwrap_or_default(), name)
}

/// A policy that cannot be read counts as one without a decision.
fn read(policy: DeserializeGuard<ScalingPolicy>) -> Option<((String, String), Record)> {
    let key = key(&policy);
    let record = match policy.0 {
        Ok(policy) => Record(
            policy
                .status
                .filter(|status| status.decision.is_some())
                .map(|status| {
                    let role = |role: coppice_scaler_api::RoleStatus| RoleRecord {
                        role: role.name,
                        wanted: role.wanted,
                        per_set: role
                            .per_set
                            .iter()
                            .map(|share| (share.set, share.wanted))
                            .collect(),
                    };
                    status.roles.into_iter().map(role).collect()
                }),
        ),
        Err(error) => {
            warn!(namespace = %key.0, name = %key.1, %error, "a scaling policy cannot be read");
            Record(None)
        }
    };
    Some((key, record))
}

#[cfg(test)]
mod tests;
