//! The operator alone on a control plane of its own, as upstream's scale test goes: 500 replicas of one clique of two
//! pods made; shrunk to half and grown again; removed.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use coppice_testbed::audit::AuditLog;
use coppice_testbed::fleet::{Fleet, FleetSettings};
use coppice_testbed::{Instance, Profile, apply};
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::discovery::ApiResource;
use kube::{Api, Client};
use serde_json::json;

use super::super::demo::{Places, Programs};
use super::super::{duration, say};
use super::pods::Pods;
use super::{Figures, Row};

#[derive(Debug, Args)]
pub(super) struct Operator {
    /// Control planes to measure on: native has gang scheduling of its own, on plain the operator gates pods and places
    /// them itself.
    #[arg(long, value_delimiter = ',', default_values_t = [Profile::Native, Profile::Plain])]
    profile: Vec<Profile>,
    /// Replicas of the set, of two pods each.
    #[arg(long, default_value_t = 500)]
    replicas: usize,
    /// How often all is done, on the same control plane.
    #[arg(long, default_value_t = 3)]
    runs: usize,
    #[arg(long, default_value_t = 100)]
    nodes: usize,
    /// How long writes are counted while nothing happens; whole seconds.
    #[arg(long, value_parser = duration, default_value = "30s")]
    steady: Duration,
    /// Where the figures go.
    #[arg(
        long,
        value_name = "FILE",
        default_value = "target/bench/operator.json"
    )]
    output: PathBuf,
    /// The folder in which every control plane has its own.
    #[arg(long, env = "COPPICE_TESTBED_DIR", default_value_os_t = coppice_testbed::default_root())]
    dir: PathBuf,
}

const PODS: usize = 2;
const LIMIT: Duration = Duration::from_secs(300);
const NAMESPACE: &str = "default";
/// The name under which the operator writes.
const USER: &str = "coppice-operator";

impl Operator {
    pub(super) async fn run(self) -> anyhow::Result<ExitCode> {
        let mut rows = Vec::new();
        for profile in self.profile.clone() {
            rows.extend(self.measure(profile).await?);
        }
        let figures = Figures::new(rows);
        say("");
        figures.print();
        figures.save(&self.output)?;
        say(&format!("written to {}", self.output.display()));
        Ok(ExitCode::SUCCESS)
    }

    async fn measure(&self, profile: Profile) -> anyhow::Result<Vec<Row>> {
        let backend = match profile {
            Profile::Native | Profile::NativeFlat => "native",
            Profile::Plain => "gated",
        };
        let places = Places::new(
            format!("bench-{backend}"),
            self.dir.clone(),
            "samples".into(),
        );
        let mut programs = Programs::start_control_plane(&places, profile).await?;
        let outcome = self.measure_on(backend, &places, &mut programs).await;
        programs.stop()?;
        outcome
    }

    async fn measure_on(
        &self,
        backend: &str,
        places: &Places,
        programs: &mut Programs,
    ) -> anyhow::Result<Vec<Row>> {
        let fleet = Fleet::start_on(
            coppice_testbed::fleet::as_fleet(programs.config()),
            FleetSettings::new(self.nodes),
        )
        .await?;
        programs.start_operator(places).await?;
        let client = programs.client()?;
        let bench = Bench {
            pods: Pods::of(client.clone(), NAMESPACE),
            audit: AuditLog::new(programs.instance().audit_log()),
            process: programs.instance().clone(),
            client,
        };
        let mut runs = Vec::new();
        for run in 1..=self.runs {
            let figures = bench.once(self.replicas, self.steady).await?;
            say(&format!(
                "{backend}, run {run} of {}: {}",
                self.runs,
                figures.line()
            ));
            runs.push(figures);
        }
        drop(fleet);
        let half = self.replicas / 2;
        let is_full = self.replicas == 500;
        let row = |name: String, unit: &str, of: fn(&Once) -> f64, mark: f64| {
            let name = format!("operator, {backend}: {name}");
            Row::lower(
                name,
                unit,
                runs.iter().map(of).collect(),
                is_full.then_some(mark),
            )
        };
        let is_native = backend == "native";
        let all = self.replicas;
        Ok(vec![
            row(
                "small set, first pod".to_owned(),
                "s",
                |r| r.small_first,
                0.3,
            ),
            row("small set, ready".to_owned(), "s", |r| r.small_ready, 1.0),
            row(
                format!("{all} × {PODS} pods, created"),
                "s",
                |r| r.created,
                4.0,
            ),
            row(
                format!("{all} × {PODS} pods, ready"),
                "s",
                |r| r.ready,
                if is_native { 16.0 } else { 10.0 },
            ),
            row(
                "writes per pod until Running".to_owned(),
                "writes",
                |r| r.writes_per_pod,
                if is_native { 1.5 } else { 2.2 },
            ),
            row(
                "writes while nothing happens".to_owned(),
                "writes",
                |r| r.steady,
                0.0,
            ),
            row(
                format!("{all} → {half} replicas, pods gone"),
                "s",
                |r| r.shrunk,
                3.0,
            ),
            row(
                format!("{half} → {all} replicas, created"),
                "s",
                |r| r.regrown_created,
                3.0,
            ),
            row(
                format!("{half} → {all} replicas, ready"),
                "s",
                |r| r.regrown_ready,
                8.0,
            ),
            row(
                format!("{all} → 0 replicas, pods gone"),
                "s",
                |r| r.emptied,
                6.0,
            ),
            row(
                "processor time of all that".to_owned(),
                "s",
                |r| r.cpu,
                12.0,
            ),
            row(
                format!("memory at {} pods", all * PODS),
                "MB",
                |r| r.memory,
                40.0,
            ),
        ])
    }
}

/// What one pass through everything took.
#[derive(Debug, Clone, Copy)]
struct Once {
    small_first: f64,
    small_ready: f64,
    created: f64,
    ready: f64,
    writes_per_pod: f64,
    steady: f64,
    shrunk: f64,
    regrown_created: f64,
    regrown_ready: f64,
    emptied: f64,
    cpu: f64,
    memory: f64,
}

impl Once {
    fn line(&self) -> String {
        format!(
            "created {:.1} s, ready {:.1} s, half {:.1} s, back {:.1}/{:.1} s, none {:.1} s, {:.2} writes a pod, {:.0} in steady state, {:.1} s of processor, {:.0} MB",
            self.created,
            self.ready,
            self.shrunk,
            self.regrown_created,
            self.regrown_ready,
            self.emptied,
            self.writes_per_pod,
            self.steady,
            self.cpu,
            self.memory
        )
    }
}

struct Bench {
    client: Client,
    pods: Pods,
    audit: AuditLog,
    process: Instance,
}

impl Bench {
    async fn once(&self, replicas: usize, steady: Duration) -> anyhow::Result<Once> {
        let pods = &self.pods;
        let small = Instant::now();
        apply(&self.client, &set("small", 1), NAMESPACE).await?;
        let small_first = pods.until("first pod", small, LIMIT, |n| n.all > 0).await?;
        let small_ready = pods
            .until("small set ready", small, LIMIT, |n| n.ready == PODS)
            .await?;
        self.remove("small").await?;
        pods.until("small set gone", small, LIMIT, |n| n.all == 0)
            .await?;

        let (cpu, mark) = (self.cpu()?, self.audit.mark()?);
        let count = replicas * PODS;
        let begin = Instant::now();
        apply(&self.client, &set("large", replicas), NAMESPACE).await?;
        let created = pods
            .until("pods created", begin, LIMIT, |n| n.all == count)
            .await?;
        let ready = pods
            .until("pods ready", begin, LIMIT, |n| n.ready == count)
            .await?;
        let writes_per_pod = self.writes(mark)? as f64 / count as f64;
        self.settle().await?;
        let memory = self.memory()?;
        let mark = self.audit.mark()?;
        tokio::time::sleep(steady).await;
        let steady = self.writes(mark)? as f64;

        let half = replicas / 2;
        let begin = self.scale("large", half).await?;
        let shrunk = pods
            .until("half of the pods gone", begin, LIMIT, |n| {
                n.all == half * PODS
            })
            .await?;
        self.settle().await?;
        let begin = self.scale("large", replicas).await?;
        let regrown_created = pods
            .until("pods created again", begin, LIMIT, |n| n.all == count)
            .await?;
        let regrown_ready = pods
            .until("pods ready again", begin, LIMIT, |n| n.ready == count)
            .await?;
        self.settle().await?;
        let begin = self.scale("large", 0).await?;
        let emptied = pods
            .until("pods gone", begin, LIMIT, |n| n.all == 0)
            .await?;
        let cpu = self.cpu()? - cpu;
        self.remove("large").await?;
        self.settle().await?;
        Ok(Once {
            small_first,
            small_ready,
            created,
            ready,
            writes_per_pod,
            steady,
            shrunk,
            regrown_created,
            regrown_ready,
            emptied,
            cpu,
            memory,
        })
    }

    /// Waits until the operator has written nothing for two seconds.
    async fn settle(&self) -> anyhow::Result<()> {
        let limit = Instant::now() + LIMIT;
        loop {
            let mark = self.audit.mark()?;
            tokio::time::sleep(Duration::from_secs(2)).await;
            if self.writes(mark)? == 0 {
                return Ok(());
            }
            anyhow::ensure!(Instant::now() < limit, "the operator writes on and on");
        }
    }

    fn writes(&self, mark: coppice_testbed::audit::Mark) -> anyhow::Result<usize> {
        let writes = self
            .audit
            .since(mark)
            .context("cannot read the audit log")?;
        Ok(writes
            .iter()
            .filter(|write| write.user == USER && !write.is_lease())
            .count())
    }

    fn sets(&self) -> Api<DynamicObject> {
        let kind = GroupVersionKind::gvk("grove.io", "v1alpha1", "PodCliqueSet");
        let resource = ApiResource::from_gvk_with_plural(&kind, "podcliquesets");
        Api::namespaced_with(self.client.clone(), NAMESPACE, &resource)
    }

    async fn scale(&self, name: &str, replicas: usize) -> anyhow::Result<Instant> {
        let begin = Instant::now();
        let patch = json!({"spec": {"replicas": replicas}});
        self.sets()
            .patch_scale(name, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .with_context(|| format!("scaling {name}"))?;
        Ok(begin)
    }

    async fn remove(&self, name: &str) -> anyhow::Result<()> {
        self.sets().delete(name, &Default::default()).await?;
        coppice_testbed::wait::until(LIMIT, "the set gone", || async {
            match self.sets().get_opt(name).await {
                Ok(None) => Ok(()),
                Ok(Some(_)) => Err("it is still there".to_owned()),
                Err(error) => Err(error.to_string()),
            }
        })
        .await?;
        Ok(())
    }

    fn pid(&self) -> anyhow::Result<i32> {
        self.process
            .processes
            .iter()
            .find(|process| process.name == "operator")
            .map(|process| process.process.pid)
            .context("the operator is not among the processes")
    }

    /// Seconds of processor time that the operator has used.
    fn cpu(&self) -> anyhow::Result<f64> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid()?))?;
        // The name in parentheses may hold anything.
        let fields: Vec<&str> = stat
            .rsplit(')')
            .next()
            .unwrap_or_default()
            .split_whitespace()
            .collect();
        let ticks = |at: usize| -> anyhow::Result<f64> {
            Ok(fields.get(at).context("a short stat line")?.parse()?)
        };
        // User and system time are the 14th and 15th field; the name was the second.
        Ok((ticks(11)? + ticks(12)?) / TICKS_PER_SECOND)
    }

    /// Resident memory in MB.
    fn memory(&self) -> anyhow::Result<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid()?))?;
        let kilobytes: f64 = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))
            .and_then(|rest| rest.split_whitespace().next())
            .context("no VmRSS")?
            .parse()?;
        Ok(kilobytes * 1024.0 / 1e6)
    }
}

/// Linux reports processor time in hundredths of a second, whatever the kernel's own tick.
const TICKS_PER_SECOND: f64 = 100.0;

fn set(name: &str, replicas: usize) -> String {
    format!(
        "apiVersion: grove.io/v1alpha1
kind: PodCliqueSet
metadata: {{name: {name}}}
spec:
  replicas: {replicas}
  template:
    cliques:
      - name: worker
        spec:
          roleName: worker
          replicas: {PODS}
          podSpec:
            containers:
              - name: main
                image: registry.k8s.io/pause:3.10
                resources: {{requests: {{cpu: 10m, memory: 16Mi}}}}
"
    )
}
