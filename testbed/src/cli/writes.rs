//! `writes`: who changes what, counted from the audit log.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use coppice_testbed::audit::{AuditLog, Mark, count};

use super::{Which, duration, say};

#[derive(Debug, Args)]
pub(crate) struct Writes {
    #[command(flatten)]
    which: Which,
    /// Count what happens from now on, for this long; without it, everything since the start.
    #[arg(long = "for", value_parser = duration)]
    period: Option<Duration>,
    /// Leave out Leases: leader election and node heartbeats.
    #[arg(long)]
    without_leases: bool,
    /// Only users whose name contains this.
    #[arg(long, default_value = "")]
    user: String,
}

impl Writes {
    pub(crate) async fn run(self) -> anyhow::Result<ExitCode> {
        let log = AuditLog::new(self.which.instance()?.audit_log());
        let no_log = "cannot read the audit log; was the testbed started with --no-audit?";
        let mark = match self.period {
            None => Mark::default(),
            Some(period) => {
                let mark = log.mark().context(no_log)?;
                tokio::time::sleep(period).await;
                mark
            }
        };
        let mut writes = log.since(mark).context(no_log)?;
        writes.retain(|write| {
            write.user.contains(&self.user) && !(self.without_leases && write.is_lease())
        });
        let counts = count(&writes);
        let mut totals = BTreeMap::<&str, usize>::new();
        for ((user, verb, resource), count) in &counts {
            say(&format!("{count:>8}  {user}  {verb} {resource}"));
            *totals.entry(user).or_default() += count;
        }
        for (user, total) in totals {
            say(&format!("{total:>8}  {user}  in all"));
        }
        say(&format!("{:>8}  writes", writes.len()));
        Ok(ExitCode::SUCCESS)
    }
}
