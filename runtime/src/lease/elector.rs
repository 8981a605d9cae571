//! The loop around a [`Candidate`]: reads, writes, waits, and runs the leader's work.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Api, PostParams};
use kube::{Client, Error};
use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::candidate::{Candidate, Step};
use super::{RETRY_JITTER, Settings};
use crate::telemetry::chain;

/// The right to act as the leader, for as long as it lasts. Clones share it.
///
/// Ask [`Tenure::is_current`] right before each write: it compares instants, so it is true also when this process had been
/// stopped for a while and no timer has fired yet.
#[derive(Debug, Clone)]
pub struct Tenure {
    end: Arc<Mutex<Option<Instant>>>,
    ended: CancellationToken,
    is_unlimited: bool,
}

impl Tenure {
    fn new(is_unlimited: bool) -> Self {
        Self {
            end: Arc::default(),
            ended: CancellationToken::new(),
            is_unlimited,
        }
    }

    /// A tenure that lasts until shutdown, where no election is held: a single process, or tests.
    #[must_use]
    pub fn unlimited() -> Self {
        Self::new(true)
    }

    /// Whether this process leads now.
    #[must_use]
    pub fn is_current(&self) -> bool {
        if self.ended.is_cancelled() {
            return false;
        }
        self.is_unlimited || self.end.lock().is_some_and(|end| Instant::now() < end)
    }

    /// Waits until the tenure ends, by loss or because the program drains. Stop writing then.
    pub async fn ended(&self) {
        self.ended.cancelled().await;
    }
}

/// Why [`Elector::run`] came back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// Draining began before this candidate led, or its work ended in order. The lease is given back.
    InOrder,
    /// The lease was lost while leading. The process should exit, so that nothing of its old tenure remains.
    Lost,
}

/// What the election tells the metrics endpoint.
#[derive(Debug, Clone)]
pub struct LeaseMetrics {
    leader: Gauge,
    failures: Counter,
}

impl LeaseMetrics {
    /// Registers `lease_leader` (1 while this process leads) and `lease_failures_total` (tries that got no answer or a refusal).
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            leader: Gauge::default(),
            failures: Counter::default(),
        };
        registry.register(
            "lease_leader",
            "1 while this process holds the leader lease, else 0",
            metrics.leader.clone(),
        );
        registry.register(
            "lease_failures",
            "Tries to acquire or renew the lease that failed",
            metrics.failures.clone(),
        );
        metrics
    }
}

/// A candidate in one election.
#[derive(Debug)]
pub struct Elector {
    leases: Api<Lease>,
    settings: Settings,
    candidate: Candidate,
    metrics: LeaseMetrics,
}

impl Elector {
    /// A candidate for the lease that `settings` names.
    #[must_use]
    pub fn new(client: Client, settings: Settings, metrics: LeaseMetrics) -> Self {
        let leases = Api::namespaced(client, &settings.namespace);
        let candidate = Candidate::new(&settings);
        Self {
            leases,
            settings,
            candidate,
            metrics,
        }
    }

    /// Campaigns, then runs `work` once as the leader, and keeps renewing while it runs.
    ///
    /// Flow: wait for the lease → `work(tenure)` → when `draining` is cancelled or the lease is lost, the tenure ends; `work` must
    /// stop writing and return → give the lease back. Work that does not return within the time between renew deadline and lease
    /// duration after a loss is dropped, because another leader may start then. While draining, the lease is renewed until
    /// `work` returns.
    ///
    /// With `is_required: false` the work runs at once, without any Lease.
    pub async fn run<W, F>(mut self, draining: CancellationToken, work: W) -> Ended
    where
        W: FnOnce(Tenure) -> F,
        F: Future<Output = ()>,
    {
        let tenure = Tenure::new(!self.settings.is_required);
        if !self.settings.is_required {
            self.metrics.leader.set(1);
            let stop = async {
                draining.cancelled().await;
                tenure.ended.cancel();
                std::future::pending::<()>().await;
            };
            tokio::select! {
                () = work(tenure.clone()) => {}
                () = stop => {}
            }
            return Ended::InOrder;
        }
        if !self.campaign(&draining).await {
            self.release().await;
            return Ended::InOrder;
        }
        *tenure.end.lock() = self.candidate.tenure_end();
        self.metrics.leader.set(1);
        let ended = self.lead(&tenure, &draining, work(tenure.clone())).await;
        self.metrics.leader.set(0);
        match ended {
            Ended::InOrder => self.release().await,
            Ended::Lost => warn!(lease = %self.settings.name, "lost the leader lease"),
        }
        ended
    }

    /// Tries until this candidate leads (true) or draining begins (false).
    async fn campaign(&mut self, draining: &CancellationToken) -> bool {
        info!(lease = %self.settings.name, namespace = %self.settings.namespace, identity = %self.settings.identity, "waiting for the leader lease");
        loop {
            tokio::select! {
                biased;
                () = draining.cancelled() => return false,
                () = self.attempt() => {}
            }
            if self.candidate.is_leader(Instant::now()) {
                info!(lease = %self.settings.name, identity = %self.settings.identity, "leading");
                return true;
            }
            let pause = self
                .settings
                .timing
                .retry_period()
                .mul_f64(1.0 + RETRY_JITTER * rand::random::<f64>());
            tokio::select! {
                biased;
                () = draining.cancelled() => return false,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Renews while `work` runs.
    async fn lead(
        &mut self,
        tenure: &Tenure,
        draining: &CancellationToken,
        work: impl Future<Output = ()>,
    ) -> Ended {
        let timing = self.settings.timing;
        let mut work = std::pin::pin!(work);
        let watch = async {
            draining.cancelled().await;
            tenure.ended.cancel();
        };
        let mut watch = std::pin::pin!(futures::FutureExt::fuse(watch));
        while let Some(end) = self
            .candidate
            .tenure_end()
            .filter(|end| Instant::now() < *end)
        {
            *tenure.end.lock() = Some(end);
            let renewal = async {
                tokio::time::sleep(timing.retry_period()).await;
                self.attempt().await;
            };
            tokio::select! {
                () = &mut work => return Ended::InOrder,
                () = &mut watch => {}
                () = renewal => {}
                () = tokio::time::sleep_until(end.into()) => break,
            }
        }
        *tenure.end.lock() = None;
        self.candidate.resign();
        tenure.ended.cancel();
        let rest = timing
            .lease_duration()
            .saturating_sub(timing.renew_deadline());
        if tokio::time::timeout(rest, work).await.is_err() {
            warn!(lease = %self.settings.name, "work of the old tenure was cut off");
        }
        Ended::Lost
    }

    /// One try to acquire or renew; its outcome is in the candidate.
    async fn attempt(&mut self) {
        // A hung request must leave time for another one within the deadline.
        let limit = self.settings.timing.renew_deadline() / 2;
        let outcome = match tokio::time::timeout(limit, self.read_and_write()).await {
            Ok(outcome) => outcome,
            Err(_) => {
                warn!(lease = %self.settings.name, ?limit, "the API server did not answer about the lease");
                Err(None)
            }
        };
        if let Err(error) = outcome {
            self.candidate.doubt();
            self.metrics.failures.inc();
            if let Some(error) = error {
                warn!(lease = %self.settings.name, error = %chain(&error), "cannot acquire or renew the lease");
            }
        }
    }

    /// Errors: `None` where the outcome was a timeout, reported already.
    async fn read_and_write(&mut self) -> Result<(), Option<Error>> {
        if self.candidate.needs_read(Instant::now()) {
            let lease = self.leases.get_opt(&self.settings.name).await?;
            self.candidate.observe(lease, Instant::now());
        }
        let sent_at = Instant::now();
        let written = match self.candidate.step(sent_at, Timestamp::now()) {
            Step::Wait { holder, .. } => {
                debug!(lease = %self.settings.name, %holder, "another one leads");
                return Ok(());
            }
            Step::Create(lease) => self.leases.create(&PostParams::default(), &lease).await,
            Step::Replace(lease) => {
                self.leases
                    .replace(&self.settings.name, &PostParams::default(), &lease)
                    .await
            }
        };
        match written {
            Ok(lease) => self.candidate.accepted(lease, sent_at),
            Err(Error::Api(status)) if status.code == 409 => {
                debug!(lease = %self.settings.name, "the lease changed in between");
                self.candidate.doubt();
            }
            Err(error) => return Err(Some(error)),
        }
        Ok(())
    }

    /// Gives the lease back when this candidate holds it; after an error others wait for its end.
    async fn release(&mut self) {
        self.candidate.resign();
        match tokio::time::timeout(RELEASE_LIMIT, self.write_release()).await {
            Ok(Ok(true)) => info!(lease = %self.settings.name, "gave the leader lease back"),
            Ok(Ok(false)) => {}
            Ok(Err(error)) => {
                warn!(lease = %self.settings.name, error = %chain(&error), "cannot give the lease back")
            }
            Err(_) => warn!(lease = %self.settings.name, "cannot give the lease back in time"),
        }
    }

    /// Whether there was something to give back. Reads the record again when a renewal was cut off and has changed it after all.
    async fn write_release(&mut self) -> Result<bool, Error> {
        loop {
            let Some(lease) = self.candidate.release(Timestamp::now()) else {
                return Ok(false);
            };
            match self
                .leases
                .replace(&self.settings.name, &PostParams::default(), &lease)
                .await
            {
                Ok(_) => return Ok(true),
                Err(Error::Api(status)) if status.code == 409 => {
                    let lease = self.leases.get_opt(&self.settings.name).await?;
                    self.candidate.observe(lease, Instant::now());
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// Giving back is a courtesy; it must not hold up the end of the process.
const RELEASE_LIMIT: Duration = Duration::from_secs(2);
