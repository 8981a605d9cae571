//! `steady`: the whole system with the samples, and how much it writes while nothing happens.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use coppice_testbed::audit::{AuditLog, Mark, Write, count};
use coppice_testbed::fleet::{Fleet, FleetSettings};
use coppice_testbed::{Profile, wait};

use super::demo::{Places, Programs, Watcher};
use super::{duration, say};

#[derive(Debug, Args)]
pub(crate) struct Steady {
    /// Which gang scheduling APIs the cluster serves.
    #[arg(long, default_value_t = Profile::Native)]
    profile: Profile,
    /// How long writes are counted.
    #[arg(long = "for", value_parser = duration, default_value = "5m")]
    period: Duration,
    /// Where the samples lie.
    #[arg(long, default_value = "samples")]
    samples: PathBuf,
    /// The folder in which every control plane has its own.
    #[arg(long, env = "COPPICE_TESTBED_DIR", default_value_os_t = coppice_testbed::default_root())]
    dir: PathBuf,
}

/// How long everything may take to come up, and then to come to rest.
const PATIENCE: Duration = Duration::from_secs(300);
/// At rest is who has written nothing for so long.
const REST: Duration = Duration::from_secs(20);
/// Prefix of the names under which our programs write.
const USERS: &str = "coppice-";

impl Steady {
    pub(crate) async fn run(self) -> anyhow::Result<ExitCode> {
        let places = Places::new("steady".to_owned(), self.dir.clone(), self.samples.clone());
        let mut programs = Programs::start_control_plane(&places, self.profile).await?;
        let outcome = self.watch(&places, &mut programs).await;
        programs.stop()?;
        outcome
    }

    async fn watch(&self, places: &Places, programs: &mut Programs) -> anyhow::Result<ExitCode> {
        let fleet = Fleet::start_on(
            coppice_testbed::fleet::as_fleet(programs.config()),
            FleetSettings::new(32),
        )
        .await?;
        programs.start_coppice(places).await?;
        programs.apply_samples(places).await?;
        let watcher = Watcher::new(&programs.client()?, places.namespace());
        wait::until(PATIENCE, "the first instances of both models", || async {
            let look = watcher.look().await.map_err(|e| format!("{e:#}"))?;
            look.everything_wanted_serves()
        })
        .await?;
        let log = AuditLog::new(programs.instance().audit_log());
        say("everything serves; waiting until nobody writes");
        let limit = Instant::now() + PATIENCE;
        while !ours(&log, REST).await?.is_empty() {
            anyhow::ensure!(
                Instant::now() < limit,
                "it did not come to rest within {PATIENCE:?}"
            );
        }
        say(&format!("counting writes for {:?}", self.period));
        let writes = ours(&log, self.period).await?;
        for ((user, verb, resource), count) in &count(&writes) {
            say(&format!("{count:>6}  {user}  {verb} {resource}"));
        }
        drop(fleet);
        say(&format!(
            "{} writes by operator, adapter and scaler in {:?}, besides leases",
            writes.len(),
            self.period
        ));
        Ok(if writes.is_empty() {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }
}

/// What our programs change from now on, besides Leases.
async fn ours(log: &AuditLog, period: Duration) -> anyhow::Result<Vec<Write>> {
    let mark: Mark = log.mark().context("cannot read the audit log")?;
    tokio::time::sleep(period).await;
    let mut writes = log.since(mark).context("cannot read the audit log")?;
    writes.retain(|write| write.user.starts_with(USERS) && !write.is_lease());
    Ok(writes)
}
