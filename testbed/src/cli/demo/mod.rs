//! `demo`: the whole system on one machine, under a production trace, judged at the end.
//!
//! A control plane, a fleet of nodes with GPUs, operator, adapter and scaler; a disaggregated model under a ScalingPolicy and
//! a second one under a plain HPA; a real trace, sped up; a node that dies on the way. Every second the cluster is looked at
//! ([`watch`]) and the looks become a time line ([`record`]) and a verdict ([`checks`]).

mod checks;
mod load;
mod record;
mod system;
mod watch;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use coppice_testbed::fleet::{Fleet, FleetSettings, Startup};
use coppice_testbed::{Profile, wait};
use jiff::Timestamp;

use self::load::Load;
use self::record::Record;
pub(crate) use self::system::{Places, Programs};
use self::watch::Look;
pub(crate) use self::watch::Watcher;
use super::{complain, duration, say};

/// Arguments of `demo`.
#[derive(Debug, Args)]
pub(crate) struct Demo {
    /// The control plane's name.
    #[arg(long, default_value = "demo")]
    name: String,
    /// The folder in which every control plane has its own.
    #[arg(long, env = "COPPICE_TESTBED_DIR", default_value_os_t = coppice_testbed::default_root())]
    dir: PathBuf,
    /// Where the samples lie.
    #[arg(long, default_value = "samples")]
    samples: PathBuf,
    /// Folder of the report and everything it is made of.
    #[arg(long, default_value = "target/demo")]
    output: PathBuf,
    /// Nodes of 8 GPUs.
    #[arg(long, default_value_t = 32)]
    nodes: usize,
    /// Median time from a pod's start until it serves.
    #[arg(long, value_parser = duration, default_value = "8s")]
    startup: Duration,
    /// How long the load lasts.
    #[arg(long, value_parser = duration, default_value = "300s")]
    load: Duration,
    /// Speed of the trace: 10 turns an hour into six minutes with ten times the rate.
    #[arg(long, default_value_t = 10.0)]
    time_scale: f64,
    /// Leave everything running at the end; `coppice-testbed down --name demo` ends it.
    #[arg(long)]
    keep: bool,
}

/// How long the system may take to come up, and to become whole again after the load.
const PATIENCE: Duration = Duration::from_secs(180);
/// The node dies after this share of the load.
const NODE_DIES_AT: f64 = 0.55;

impl Demo {
    pub(crate) async fn run(self) -> anyhow::Result<ExitCode> {
        let begun = Instant::now();
        std::fs::create_dir_all(&self.output)
            .with_context(|| format!("cannot create {}", self.output.display()))?;
        let places = Places::new(self.name.clone(), self.dir.clone(), self.samples.clone());
        self.narrate(
            begun,
            "starting etcd, kube-apiserver, kube-controller-manager and kube-scheduler",
        );
        let mut programs = Programs::start_control_plane(&places, Profile::Native).await?;
        let outcome = self.show(begun, &places, &mut programs).await;
        if self.keep {
            programs.detach()?;
            complain(&format!(
                "left running; end it with `coppice-testbed down --name {}`",
                self.name
            ));
        } else {
            self.narrate(begun, "stopping everything");
            programs.stop()?;
        }
        outcome
    }

    fn narrate(&self, begun: Instant, text: &str) {
        say(&format!("{:>4.0} s  {text}", begun.elapsed().as_secs_f64()));
    }

    async fn show(
        &self,
        begun: Instant,
        places: &Places,
        programs: &mut Programs,
    ) -> anyhow::Result<ExitCode> {
        self.narrate(
            begun,
            &format!("adding {} nodes of 8 GPUs, in racks of four", self.nodes),
        );
        let settings = FleetSettings {
            startup: Startup {
                median: self.startup,
                spread: 0.2,
                seed: 1,
            },
            ..FleetSettings::new(self.nodes)
        };
        let fleet = Fleet::start_on(
            coppice_testbed::fleet::as_fleet(programs.config()),
            settings,
        )
        .await?;

        self.narrate(begun, "starting the operator, the adapter and the scaler");
        programs.start_coppice(places).await?;
        self.narrate(
            begun,
            &format!("the scaler explains itself at {}", programs.scaler_page()),
        );

        self.narrate(begun, "applying samples/disaggregated.yaml with samples/slo-policy.yaml, and samples/hpa.yaml");
        programs.apply_samples(places).await?;
        let client = programs.client()?;
        let watcher = watch::Watcher::new(&client, &places.namespace);
        wait::until(PATIENCE, "the first instances of both models", || async {
            let look = watcher.look().await.map_err(|e| format!("{e:#}"))?;
            look.everything_wanted_serves()
        })
        .await
        .with_context(|| {
            format!(
                "the system did not come up; its logs are in {}",
                programs.instance().logs().display()
            )
        })?;
        self.narrate(begun, "both models serve; kubectl shows them:");
        say(&programs.kubectl(&["get", "pcs,pclq,pcsg,pg"])?);

        self.narrate(begun, "replaying a production trace (Azure 2023, conversation), sped up; the table has a line every 10 s");
        let record = self
            .drive(begun, places, programs, &fleet, &watcher)
            .await?;
        let (record, load) = record;
        self.narrate(begun, "the load has ended; judging");
        let verdict = checks::judge(&record, &load);
        let report = self.write(places, &record, &load, &verdict)?;
        say("");
        for check in &verdict {
            say(&format!(
                "  {}  {}: {}",
                if check.passed { "ok    " } else { "FAILED" },
                check.name,
                check.detail
            ));
        }
        say("");
        say(&programs.explain(places)?);
        say(&format!("\nThe report: {}", report.display()));
        let passed = verdict.iter().all(|check| check.passed);
        say(if passed {
            "The demo passed."
        } else {
            "The demo FAILED."
        });
        drop(fleet);
        Ok(if passed {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }

    /// Drives the load and looks at the cluster every second meanwhile.
    async fn drive(
        &self,
        begun: Instant,
        places: &Places,
        programs: &Programs,
        fleet: &Fleet,
        watcher: &watch::Watcher,
    ) -> anyhow::Result<(Record, Load)> {
        let driving = Load::start(places, programs, &self.output, self.load, self.time_scale)?;
        let mut record = Record::new(Timestamp::now(), system::GPU_BUDGET);
        say(&Look::heading());
        let (mut node_died, mut next_line) = (false, 0.0);
        let mut ticks = tokio::time::interval(Duration::from_secs(1));
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let at = record.seconds(Timestamp::now());
            // One look that fails is a gap in the time line, and is counted.
            match watcher.look().await {
                Ok(look) => {
                    if at >= next_line {
                        say(&look.line(begun.elapsed(), driving.latest().as_deref()));
                        next_line = at + 10.0;
                    }
                    if !node_died && at >= self.load.as_secs_f64() * NODE_DIES_AT {
                        node_died = true;
                        if let Some(node) = look.busiest_node() {
                            fleet.kill_node(&node).await?;
                            let pods = look.pods_on(&node);
                            let plural = if pods == 1 { "" } else { "s" };
                            let detail = format!("{node} with {pods} pod{plural}");
                            self.narrate(begun, &format!("killing node {detail}"));
                            record.event(at, "node killed", &detail);
                            record.node_died(at, &node);
                        }
                    }
                    record.add(at, look);
                }
                Err(error) => record.gap(at, &format!("{error:#}")),
            }
            if driving.has_ended() && at >= self.load.as_secs_f64() {
                break;
            }
        }
        let load = driving.finish().await?;
        // What the node's death broke has to be whole again.
        wait::until(PATIENCE, "every gang whole", || async {
            let look = watcher.look().await.map_err(|e| format!("{e:#}"))?;
            look.every_gang_whole()
        })
        .await
        .map(|()| record.all_whole_at_the_end())
        .unwrap_or_else(|error| {
            record.event(
                record.seconds(Timestamp::now()),
                "gangs not whole",
                &error.last,
            )
        });
        Ok((record, load))
    }

    fn write(
        &self,
        places: &Places,
        record: &Record,
        load: &Load,
        verdict: &[checks::Check],
    ) -> anyhow::Result<PathBuf> {
        let timeline = self.output.join("timeline.json");
        let verdicts = self.output.join("checks.json");
        write_json(&timeline, &record.timeline())?;
        write_json(&verdicts, &serde_json::to_value(verdict)?)?;
        let page = self.output.join("report.html");
        let mut command = std::process::Command::new(places.program("coppice-loadtest"));
        command
            .arg("report")
            .args(load.files())
            .arg("--timeline")
            .arg(&timeline)
            .arg("--checks")
            .arg(&verdicts);
        command
            .arg("--title")
            .arg("Coppice: a disaggregated model follows a production trace")
            .arg("--output")
            .arg(&page);
        let output = command
            .output()
            .context("cannot run coppice-loadtest report")?;
        anyhow::ensure!(
            output.status.success(),
            "coppice-loadtest report failed: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
        Ok(page)
    }
}

fn write_json(path: &Path, value: &serde_json::Value) -> anyhow::Result<()> {
    std::fs::write(path, format!("{value:#}\n"))
        .with_context(|| format!("cannot write {}", path.display()))
}
