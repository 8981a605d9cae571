//! Leader election on the real API server: two and three candidates, a graceful end, a crash, a broken connection, wrong clocks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use coppice_runtime::lease::{Elector, Ended, LeaseMetrics, Settings, Tenure, Timing};
use coppice_testbed::{Profile, shared, wait};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{ObjectMeta, PostParams};
use kube::client::ClientBuilder;
use kube::{Api, Client, Config};
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

const LEASE_DURATION: Duration = Duration::from_secs(3);
const RENEW_DEADLINE: Duration = Duration::from_secs(2);
const RETRY: Duration = Duration::from_millis(200);
const LIMIT: Duration = Duration::from_secs(60);

/// A client whose requests hang once it is cut off, as behind a broken network.
#[derive(Clone)]
struct Cut<S> {
    inner: S,
    is_cut: Arc<AtomicBool>,
}

impl<S, R> tower::Service<R> for Cut<S>
where
    S: tower::Service<R>,
    S::Future: Send + 'static,
    S::Response: Send + 'static,
    S::Error: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = futures::future::BoxFuture<'static, Result<S::Response, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: R) -> Self::Future {
        if self.is_cut.load(Ordering::SeqCst) {
            return Box::pin(std::future::pending());
        }
        let (answer, is_cut) = (self.inner.call(request), Arc::clone(&self.is_cut));
        Box::pin(async move {
            let answer = answer.await;
            if is_cut.load(Ordering::SeqCst) {
                std::future::pending::<()>().await;
            }
            answer
        })
    }
}

fn client(config: Config, is_cut: &Arc<AtomicBool>) -> anyhow::Result<Client> {
    let is_cut = Arc::clone(is_cut);
    let layer = tower::layer::layer_fn(move |inner| Cut {
        inner,
        is_cut: Arc::clone(&is_cut),
    });
    Ok(ClientBuilder::try_from(config)?.with_layer(&layer).build())
}

/// One process, as a task.
struct Candidate {
    name: &'static str,
    draining: CancellationToken,
    is_cut: Arc<AtomicBool>,
    tenure: Arc<Mutex<Option<Tenure>>>,
    task: JoinHandle<Ended>,
}

impl Candidate {
    fn start(config: Config, namespace: &str, name: &'static str) -> anyhow::Result<Self> {
        let settings = Settings {
            is_required: true,
            namespace: namespace.to_owned(),
            name: "leader".to_owned(),
            identity: name.to_owned(),
            timing: Timing::new(LEASE_DURATION, RENEW_DEADLINE, RETRY)?,
        };
        let is_cut = Arc::new(AtomicBool::new(false));
        let metrics = LeaseMetrics::register(&mut Registry::default());
        let elector = Elector::new(client(config, &is_cut)?, settings, metrics);
        let draining = CancellationToken::new();
        let tenure: Arc<Mutex<Option<Tenure>>> = Arc::default();
        let held = Arc::clone(&tenure);
        let task = tokio::spawn(elector.run(draining.clone(), |tenure| async move {
            *held.lock() = Some(tenure.clone());
            tenure.ended().await;
        }));
        Ok(Self {
            name,
            draining,
            is_cut,
            tenure,
            task,
        })
    }

    fn leads(&self) -> bool {
        self.tenure.lock().as_ref().is_some_and(Tenure::is_current)
    }
}

/// Looks every few milliseconds whether more than one leads, until it is told to stop.
fn watch_for_two(candidates: &[Candidate]) -> (Arc<AtomicBool>, JoinHandle<usize>) {
    let tenures: Vec<_> = candidates
        .iter()
        .map(|candidate| Arc::clone(&candidate.tenure))
        .collect();
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let watcher = tokio::spawn(async move {
        let mut most = 0;
        while !stopped.load(Ordering::SeqCst) {
            let leaders = tenures
                .iter()
                .filter(|tenure| tenure.lock().as_ref().is_some_and(Tenure::is_current))
                .count();
            most = most.max(leaders);
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        most
    });
    (stop, watcher)
}

async fn leader<'a>(candidates: &'a [Candidate], but: &[&str]) -> anyhow::Result<&'a Candidate> {
    let found = wait::until(LIMIT, "a leader", || async {
        candidates
            .iter()
            .find(|candidate| candidate.leads() && !but.contains(&candidate.name))
            .ok_or_else(|| anyhow::anyhow!("nobody leads"))
    });
    Ok(found.await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn two_candidates_hand_over_when_the_leader_drains() -> anyhow::Result<()> {
    coppice_runtime::crypto::install();
    let cluster = shared(Profile::Plain).await?;
    let namespace = cluster.namespace("lease-two").await?;
    let mut candidates = Vec::new();
    for name in ["a", "b"] {
        candidates.push(Candidate::start(cluster.config(), &namespace, name)?);
    }
    let (stop, watcher) = watch_for_two(&candidates);
    let first = leader(&candidates, &[]).await?;
    let asked = Instant::now();
    first.draining.cancel();
    let second = leader(&candidates, &[first.name]).await?;
    ensure!(
        asked.elapsed() < LEASE_DURATION,
        "a lease given back is free at once, not after {:?}",
        asked.elapsed()
    );

    let leases: Api<Lease> = Api::namespaced(cluster.client(), &namespace);
    let spec = leases.get("leader").await?.spec.context("a record")?;
    assert_eq!(spec.holder_identity.as_deref(), Some(second.name));
    assert_eq!(spec.lease_transitions, Some(1));
    second.draining.cancel();
    stop.store(true, Ordering::SeqCst);
    assert_eq!(watcher.await?, 1, "exactly one led at a time");
    for candidate in candidates {
        assert_eq!(candidate.task.await?, Ended::InOrder);
    }
    let holder = leases
        .get("leader")
        .await?
        .spec
        .and_then(|spec| spec.holder_identity);
    assert_eq!(
        holder.as_deref().unwrap_or_default(),
        "",
        "the last one gave it back"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn three_candidates_survive_a_crash_and_a_cut_connection_without_two_leaders()
-> anyhow::Result<()> {
    coppice_runtime::crypto::install();
    let cluster = shared(Profile::Plain).await?;
    let namespace = cluster.namespace("lease-three").await?;
    let mut candidates = Vec::new();
    for name in ["a", "b", "c"] {
        candidates.push(Candidate::start(cluster.config(), &namespace, name)?);
    }
    let (stop, watcher) = watch_for_two(&candidates);

    // Cut off, the leader must end its tenure by itself, before another begins.
    let first = leader(&candidates, &[]).await?;
    first.is_cut.store(true, Ordering::SeqCst);
    let cut = Instant::now();
    wait::until(LIMIT, "the end of the tenure", || async {
        ensure!(!first.leads(), "{} still leads", first.name);
        Ok::<_, anyhow::Error>(())
    })
    .await?;
    ensure!(
        cut.elapsed() <= RENEW_DEADLINE + Duration::from_millis(500),
        "ended only after {:?}",
        cut.elapsed()
    );
    let second = leader(&candidates, &[first.name]).await?;

    // A crash: nothing is given back.
    second.task.abort();
    let third = leader(&candidates, &[first.name, second.name]).await?;
    stop.store(true, Ordering::SeqCst);
    assert_eq!(watcher.await?, 1, "exactly one led at a time");
    third.draining.cancel();
    let (first, third) = (first.name, third.name);
    for candidate in candidates {
        let ended = candidate.task.await;
        if candidate.name == first {
            assert_eq!(ended?, Ended::Lost);
        } else if candidate.name == third {
            assert_eq!(ended?, Ended::InOrder);
        } else {
            assert!(
                ended.is_err_and(|error| error.is_cancelled()),
                "the crashed one"
            );
        }
    }
    Ok(())
}

/// A holder whose wall clock is an hour off, as another program or another library may write it.
struct Foreign {
    leases: Api<Lease>,
    offset: SignedDuration,
}

impl Foreign {
    const NAME: &str = "foreign";

    fn spec(&self) -> LeaseSpec {
        LeaseSpec {
            holder_identity: Some(Self::NAME.to_owned()),
            lease_duration_seconds: Some(3),
            renew_time: Some(MicroTime(Timestamp::now() + self.offset)),
            ..LeaseSpec::default()
        }
    }

    async fn acquire(&self) -> anyhow::Result<()> {
        let lease = Lease {
            metadata: ObjectMeta {
                name: Some("leader".to_owned()),
                ..ObjectMeta::default()
            },
            spec: Some(self.spec()),
        };
        self.leases.create(&PostParams::default(), &lease).await?;
        Ok(())
    }

    async fn renew(&self) -> anyhow::Result<()> {
        let mut lease = self.leases.get("leader").await?;
        ensure!(
            lease
                .spec
                .as_ref()
                .and_then(|spec| spec.holder_identity.as_deref())
                == Some(Self::NAME),
            "the lease was taken: {:?}",
            lease.spec
        );
        lease.spec = Some(self.spec());
        self.leases
            .replace("leader", &PostParams::default(), &lease)
            .await?;
        Ok(())
    }
}

/// What a record says about time is never compared with a local clock: a holder that renews keeps the lease, whatever it writes, and
/// one that stops loses it, and not too early.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_with_a_wrong_clock_keeps_the_lease_while_it_renews() -> anyhow::Result<()> {
    coppice_runtime::crypto::install();
    let cluster = shared(Profile::Plain).await?;
    let with_offset = async |hours: i64| -> anyhow::Result<()> {
        let namespace = cluster.namespace("lease-clock").await?;
        let foreign = Foreign {
            leases: Api::namespaced(cluster.client(), &namespace),
            offset: SignedDuration::from_hours(hours),
        };
        foreign.acquire().await?;
        let candidates = [Candidate::start(cluster.config(), &namespace, "a")?];
        let last = Mutex::new(Instant::now());
        wait::holds(LEASE_DURATION * 2, "the other one's tenure", || async {
            let sent = Instant::now();
            foreign.renew().await?;
            *last.lock() = sent;
            ensure!(!candidates[0].leads(), "two lead");
            Ok::<_, anyhow::Error>(())
        })
        .await?;
        let last = *last.lock();
        let successor = leader(&candidates, &[]).await?;
        let after = last.elapsed();
        ensure!(
            after >= LEASE_DURATION,
            "taken over after {after:?} already"
        );
        ensure!(
            after < LEASE_DURATION * 2,
            "taken over only after {after:?}"
        );
        successor.draining.cancel();
        for candidate in candidates {
            assert_eq!(candidate.task.await?, Ended::InOrder);
        }
        Ok(())
    };
    let (behind, ahead) = tokio::join!(with_offset(-1), with_offset(1));
    behind.context("an hour behind")?;
    ahead.context("an hour ahead")
}
