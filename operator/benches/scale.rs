//! How fast the operator is against a real control plane: upstream's scale test, and what a small set feels like.
//!
//! `cargo bench -p coppice-operator --bench scale -- [--backend native|gated] [--replicas 500] [--runs 3] [--out FILE]`, or `make
//! bench-operator`. Prints a table and writes rows as JSON. Numbers depend on the machine; the control plane, the scheduler and the make-believe nodes share it.

#[path = "../tests/cluster/support/mod.rs"]
#[expect(dead_code, reason = "the tests use the rest")]
mod support;

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use coppice_operator_api::PodCliqueSet;
use coppice_testbed::figures::{Figures, Peer, Row};
use coppice_testbed::fleet::{Fleet, FleetSettings};
use coppice_testbed::{Profile, audit, wait};
use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::DeleteParams;
use kube::runtime::watcher::{Config, Event, watcher};
use parking_lot::Mutex;

use crate::support::World;

#[derive(Debug, Parser)]
struct Arguments {
    /// Gang backend to measure
    #[arg(long, default_value = "native", value_parser = ["native", "gated"])]
    backend: String,
    /// Set replicas of the large set, two pods each
    #[arg(long, default_value_t = 500)]
    replicas: i32,
    /// How often all of it is done, on the same control plane
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Small sets to time, one after the other
    #[arg(long, default_value_t = 5)]
    small: u32,
    /// Write the rows here
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Passed by cargo
    #[arg(long, hide = true)]
    bench: bool,
}

#[tokio::main]
async fn main() -> ExitCode {
    coppice_runtime::telemetry::exit_code(run(Arguments::parse()).await)
}

async fn run(arguments: Arguments) -> Result<()> {
    let profile = if arguments.backend == "native" {
        Profile::Native
    } else {
        Profile::Plain
    };
    let backend = format!("--gang-backend={}", arguments.backend);
    let world = World::new(profile, "bench", &[&backend]).await?;
    let mut settings = FleetSettings::new(100);
    settings.shape.cpu = "64".to_owned();
    let fleet = Fleet::start(world.cluster, settings).await?;
    let pods = Arc::new(Pods::default());
    tokio::spawn(Arc::clone(&pods).keep(world.api()));
    let mut rows = Rows {
        backend: arguments.backend.clone(),
        is_upstreams: arguments.replicas == 500,
        rows: Vec::new(),
    };
    small(&world, &pods, arguments.small, &mut rows).await?;
    for _ in 0..arguments.runs {
        large(&world, &pods, arguments.replicas, &mut rows).await?;
    }
    fleet.clean_up().await;
    let figures = Figures::new(rows.rows);
    print(&figures);
    if let Some(path) = arguments.out {
        let failed = || format!("cannot write {}", path.display());
        figures.save(&path).with_context(failed)?;
    }
    Ok(())
}

/// Rows in the order in which they were first added.
struct Rows {
    backend: String,
    /// Whether the large set is upstream's. Marks and upstream's figures are for that size.
    is_upstreams: bool,
    rows: Vec<Row>,
}

impl Rows {
    /// Adds a run to the row of that name.
    fn add(&mut self, name: &str, unit: &str, run: f64, mark: Option<f64>, peer: Option<f64>) {
        let name = format!("operator, {}: {name}", self.backend);
        let mut runs = vec![run];
        let known = self.rows.iter().position(|row| row.name == name);
        if let Some(known) = known {
            runs.splice(0..0, self.rows[known].runs.iter().copied());
        }
        let mut row = Row::lower(name, unit, runs, mark.filter(|_| self.is_upstreams));
        row.peer = peer.filter(|_| self.is_upstreams).map(|value| Peer {
            name: "Grove fcc3b3bb".to_owned(),
            value,
        });
        match known {
            Some(known) => self.rows[known] = row,
            None => self.rows.push(row),
        }
    }
}

/// What is known of the pods of the namespace, kept by a watch.
#[derive(Debug, Default)]
struct Pods {
    known: Mutex<HashMap<String, Known>>,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    ready: bool,
}

impl Pods {
    async fn keep(self: Arc<Self>, api: kube::Api<Pod>) {
        let mut events = std::pin::pin!(watcher(api, Config::default()));
        while let Some(event) = events.next().await {
            match event {
                Ok(Event::Apply(pod) | Event::InitApply(pod)) => {
                    let ready = support::is_ready(&pod);
                    self.known.lock().insert(pod.name_any(), Known { ready });
                }
                Ok(Event::Delete(pod)) => {
                    self.known.lock().remove(&pod.name_any());
                }
                Ok(Event::Init | Event::InitDone) | Err(_) => {}
            }
        }
    }

    fn count(&self) -> (usize, usize) {
        let known = self.known.lock();
        (known.len(), known.values().filter(|pod| pod.ready).count())
    }

    /// Seconds from `start` until `is` holds for the number of pods and of ready ones.
    async fn reach(
        &self,
        start: Instant,
        what: &str,
        is: impl Fn(usize, usize) -> bool,
    ) -> Result<f64> {
        wait::until(Duration::from_secs(300), what, || async {
            let (all, ready) = self.count();
            ensure!(is(all, ready), "{all} pods, {ready} ready");
            anyhow::Ok(())
        })
        .await?;
        Ok(start.elapsed().as_secs_f64())
    }
}

fn manifest(name: &str, replicas: i32) -> String {
    format!(
        r#"
apiVersion: grove.io/v1alpha1
kind: PodCliqueSet
metadata: {{name: {name}}}
spec:
  replicas: {replicas}
  template:
    cliques:
    - name: w
      spec: {{roleName: w, replicas: 2, podSpec: {{containers: [{{name: main, image: "registry.example/app:1", resources: {{requests: {{cpu: 10m}}}}}}]}}}}
"#
    )
}

async fn small(world: &World, pods: &Pods, times: u32, rows: &mut Rows) -> Result<()> {
    for number in 0..times {
        let name = format!("small-{number}");
        let start = Instant::now();
        world.apply(&manifest(&name, 1)).await?;
        let first = pods.reach(start, "the first pod", |all, _| all > 0).await?;
        let ready = pods
            .reach(start, "two ready pods", |_, ready| ready == 2)
            .await?;
        rows.add("small set, first pod", "s", first, Some(0.3), Some(5.4));
        rows.add("small set, ready", "s", ready, Some(1.0), Some(5.5));
        world
            .api::<PodCliqueSet>()
            .delete(&name, &DeleteParams::default())
            .await?;
        pods.reach(start, "no pods", |all, _| all == 0).await?;
    }
    Ok(())
}

async fn large(world: &World, pods: &Pods, replicas: i32, rows: &mut Rows) -> Result<()> {
    let count = |replicas: i32| usize::try_from(replicas * 2).unwrap_or_default();
    let (whole, half) = (count(replicas), count(replicas / 2));
    let native = rows.backend == "native";
    let sets = world.api::<PodCliqueSet>();
    let audit = world.cluster.audit();
    let user = format!("operator-{}", world.namespace);
    let (before, _) = world.usage()?;

    let mark = audit.mark()?;
    let start = Instant::now();
    world.apply(&manifest("large", replicas)).await?;
    let created = pods.reach(start, "all pods", |all, _| all == whole).await?;
    let ready = pods
        .reach(start, "all pods ready", |_, ready| ready == whole)
        .await?;
    let to_running = writes(&audit, mark, &user)?;
    rows.add(
        &format!("{whole} pods created"),
        "s",
        created,
        Some(4.0),
        Some(36.0),
    );
    let goal = if native { 16.0 } else { 10.0 };
    rows.add(
        &format!("{whole} pods ready"),
        "s",
        ready,
        Some(goal),
        Some(76.6),
    );
    world.expect_available("large", replicas).await?;
    world.settle(Duration::from_secs(3)).await?;
    let settled = writes(&audit, mark, &user)?;
    let per_pod = |writes: usize| {
        f64::from(u32::try_from(writes).unwrap_or(u32::MAX)) / f64::from(replicas * 2)
    };
    let goal = if native { 1.5 } else { 2.2 };
    rows.add(
        "own writes per pod until the last is ready",
        "writes",
        per_pod(to_running),
        Some(goal),
        None,
    );
    rows.add(
        "own writes per pod until settled",
        "writes",
        per_pod(settled),
        None,
        Some(11.6),
    );
    let (_, resident) = world.usage()?;
    let megabytes =
        |bytes: u64| f64::from(u32::try_from(bytes / 1000).unwrap_or(u32::MAX)) / 1000.0;
    rows.add(
        &format!("resident with {whole} pods"),
        "MB",
        megabytes(resident),
        Some(40.0),
        Some(78.0),
    );

    let mark = audit.mark()?;
    let patch =
        serde_json::json!({"metadata": {"annotations": {"grove.io/reconcile-trigger": "1"}}});
    let patch = kube::api::Patch::Merge(&patch);
    sets.patch("large", &kube::api::PatchParams::default(), &patch)
        .await?;
    world.settle(Duration::from_secs(10)).await?;
    let touched = f64::from(u32::try_from(writes(&audit, mark, &user)?).unwrap_or(u32::MAX));
    rows.add(
        "own writes after a touch",
        "writes",
        touched,
        Some(0.0),
        Some(1.0),
    );

    let start = Instant::now();
    world.scale_set("large", replicas / 2).await?;
    let gone = pods
        .reach(start, "half of the pods", |all, _| all == half)
        .await?;
    rows.add(
        &format!("{whole} to {half} pods, gone"),
        "s",
        gone,
        Some(3.0),
        Some(10.0),
    );
    world.settle(Duration::from_secs(2)).await?;

    let start = Instant::now();
    world.scale_set("large", replicas).await?;
    let created = pods.reach(start, "all pods", |all, _| all == whole).await?;
    let ready = pods
        .reach(start, "all pods ready", |_, ready| ready == whole)
        .await?;
    rows.add(
        &format!("{half} to {whole} pods, created"),
        "s",
        created,
        Some(3.0),
        Some(16.3),
    );
    rows.add(
        &format!("{half} to {whole} pods, ready"),
        "s",
        ready,
        Some(8.0),
        Some(39.9),
    );
    world.settle(Duration::from_secs(2)).await?;

    let start = Instant::now();
    world.scale_set("large", 0).await?;
    let gone = pods.reach(start, "no pods", |all, _| all == 0).await?;
    rows.add(
        &format!("{whole} to 0 pods, gone"),
        "s",
        gone,
        Some(6.0),
        Some(25.4),
    );
    sets.delete("large", &DeleteParams::default()).await?;
    wait::until(Duration::from_secs(120), "the set to go", || async {
        ensure!(sets.get_opt("large").await?.is_none());
        anyhow::Ok(())
    })
    .await?;
    let (after, _) = world.usage()?;
    rows.add(
        "processor time of the operator for all of it",
        "s",
        after - before,
        Some(12.0),
        Some(36.0),
    );
    Ok(())
}

fn writes(audit: &audit::AuditLog, mark: audit::Mark, user: &str) -> Result<usize> {
    let writes = audit.since(mark)?;
    Ok(writes
        .iter()
        .filter(|write| write.user == user && !write.is_lease())
        .count())
}

#[expect(clippy::print_stdout, reason = "the output of a command")]
fn print(figures: &Figures) {
    for row in &figures.rows {
        println!("{}", row.line());
    }
}
