//! The middle of a pass: all policies are decided together, because some share a pool of GPUs.
//!
//! Pools are shared first; then each policy is decided under what it may hold; then the grants are written down. A policy whose grant was refused is
//! decided again without room to grow.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use coppice_scaler_api::{Mode, ScalingPolicy};
use coppice_scaler_plan::{self as plan, Decision, decide, violations};
use jiff::Timestamp;
use kube::Client;
use tracing::{debug, error, warn};

use crate::consider::Trouble;
use crate::memory::Memory;
use crate::metrics::Metrics;
use crate::pool::{Member, Pools, Refused, Standing};
use crate::prepare::Prepared;
use crate::watch::Key;

/// One policy on its way through a pass.
#[derive(Debug)]
pub(crate) struct Work {
    pub(crate) key: Key,
    pub(crate) policy: Arc<ScalingPolicy>,
    pub(crate) memory: Memory,
    /// What there is to decide on.
    pub(crate) prepared: Result<Prepared, Trouble>,
    /// What was decided. `None`: not yet, or it cannot be followed.
    pub(crate) decided: Option<Decided>,
}

/// What was decided about a policy.
#[derive(Debug)]
pub(crate) struct Decided {
    pub(crate) decision: Decision,
    pub(crate) standing: Standing,
    pub(crate) took: Duration,
}

/// What the ledgers are written with.
#[derive(Clone, Copy)]
pub(crate) struct Ledgers<'a> {
    pub(crate) client: &'a Client,
    pub(crate) metrics: &'a Metrics,
}

/// Decides for all policies. Grants are written when this process leads, `ledgers` being given then.
pub(crate) async fn decide_all(
    work: &mut [Work],
    pools: &Pools,
    ledgers: Option<Ledgers<'_>>,
    now: Timestamp,
) {
    let standings = {
        let members: Vec<Member<'_>> = work.iter().filter_map(Work::member).collect();
        pools.standings(&members, now)
    };
    let able = work.iter_mut().filter(|each| each.prepared.is_ok());
    for (each, standing) in able.zip(standings) {
        each.decide(standing, now);
    }
    if let Some(ledgers) = ledgers {
        for (index, standing) in grant(work, pools, ledgers, now).await {
            work[index].decide(standing, now);
        }
    }
    for each in work {
        each.remember(now);
    }
}

impl Work {
    fn member(&self) -> Option<Member<'_>> {
        let prepared = self.prepared.as_ref().ok()?;
        Some(Member {
            key: &self.key,
            spec: &self.policy.spec,
            plan: &prepared.plan,
            history: &self.memory.history,
            fleet: &prepared.fleet,
        })
    }

    fn decide(&mut self, standing: Standing, now: Timestamp) {
        let Ok(prepared) = &self.prepared else { return };
        let begun = Instant::now();
        let own = prepared.plan.limits().budget;
        let policy = prepared.plan.with_budget(standing.budget(own));
        let decision = decide(&policy, &self.memory.history, &prepared.fleet, now);
        let took = begun.elapsed();
        for violation in violations(&policy, &prepared.fleet, &decision) {
            error!(
                namespace = self.key.0,
                name = self.key.1,
                ?violation,
                "a decision breaks a rule; please report this"
            );
        }
        self.decided = Some(Decided {
            decision,
            standing,
            took,
        });
    }

    fn remember(&mut self, now: Timestamp) {
        let (Ok(prepared), Some(decided)) = (&self.prepared, &self.decided) else {
            return;
        };
        self.memory
            .history
            .record(&prepared.plan, &decided.decision, now);
        debug!(namespace = self.key.0, name = self.key.1, decision = ?decided.decision, "decided");
    }

    /// What the policy holds of its pool by this decision. One that writes nothing holds what it has.
    fn held(&self) -> Option<plan::Holdings> {
        let (Ok(prepared), Some(decided)) = (&self.prepared, &self.decided) else {
            return None;
        };
        match self.policy.spec.mode {
            Mode::Auto => Some(decided.decision.gpus.as_ref()?.committed.clone()),
            Mode::Advise | Mode::Paused => prepared.fleet.holdings(),
        }
    }
}

/// Writes the ledgers of all pools that change. Gives the policies whose growth was not granted, with how they stand now.
async fn grant(
    work: &[Work],
    pools: &Pools,
    ledgers: Ledgers<'_>,
    now: Timestamp,
) -> Vec<(usize, Standing)> {
    let mut by_pool: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (index, each) in work.iter().enumerate() {
        if let Some(Standing::Member { pool, .. }) =
            each.decided.as_ref().map(|decided| &decided.standing)
        {
            by_pool.entry(pool).or_default().push(index);
        }
    }
    let mut refused = Vec::new();
    for pool in pools.known() {
        let indices = by_pool.remove(pool).unwrap_or_default();
        let held: Vec<Option<plan::Holdings>> =
            indices.iter().map(|index| work[*index].held()).collect();
        let decided: Vec<_> = indices
            .iter()
            .zip(&held)
            .filter_map(|(index, held)| {
                let each = &work[*index];
                Some((each.member()?, held.as_ref(), !each.memory.writers.waits()))
            })
            .collect();
        let Some(grants) = pools.ledger(pool, &decided, now) else {
            continue;
        };
        let written = pools.write(ledgers.client, pool, &grants).await;
        let outcome = match &written {
            Ok(()) => "done",
            Err(Refused::Outdated) => "outdated",
            Err(Refused::ByServer(message)) => {
                warn!(pool, error = message, "grants could not be written");
                "refused"
            }
        };
        ledgers.metrics.wrote("budget", outcome);
        let Err(why) = written else { continue };
        for index in indices {
            let Some(decided) = &work[index].decided else {
                continue;
            };
            let standing = match &why {
                Refused::Outdated => decided.standing.without_growth(),
                Refused::ByServer(message) => Standing::Unavailable(message.clone()),
            };
            refused.push((index, standing));
        }
    }
    refused
}
