//! The sub-command's arguments and entry point.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};

use super::timeline::Timeline;
use super::{Check, Report, html, text};
use crate::drive::summary::{FORMAT, RunSummary};

/// Arguments of `coppice-loadtest report`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Results of `coppice-loadtest drive --output`; several are shown in one report, on one time axis.
    #[arg(required = true, value_name = "RUN.json")]
    runs: Vec<PathBuf>,
    /// What the fleet did meanwhile (JSON): {"start": "2026-11-30T17:00:00Z", "points": [{"t": 0.0, "series": "qwen3/prefill/wanted",
    /// "value": 2}], "events": [{"t": 120.0, "title": "node killed", "detail": "node-07"}]}. Series are SYSTEM/ROLE/wanted,
    /// …/current, …/ready (a role may be "sets"), gpus/used, gpus/budget, gangs/whole, gangs/partial, gangs/waiting.
    #[arg(long, value_name = "FILE")]
    timeline: Option<PathBuf>,
    /// Verdict made elsewhere (JSON): [{"name": "gangs stayed whole", "passed": true, "detail": "0 partial in 600 samples"}].
    #[arg(long, value_name = "FILE")]
    checks: Option<PathBuf>,
    /// Headline.
    #[arg(long, default_value = "Load test")]
    title: String,
    /// Write a web page here; without it the report is printed as text.
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Runs the sub-command; the exit code is the process's.
///
/// # Errors
/// What kept it from running, with its causes.
#[expect(
    clippy::unused_async,
    reason = "awaited by main like the other sub-commands"
)]
pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let report = Report {
        title: args.title,
        runs: args
            .runs
            .iter()
            .map(|path| read_run(path))
            .collect::<anyhow::Result<_>>()?,
        timeline: args.timeline.as_deref().map(Timeline::read).transpose()?,
        checks: args
            .checks
            .as_deref()
            .map(read_checks)
            .transpose()?
            .unwrap_or_default(),
    };
    match &args.output {
        None => print(&text::render(&report)),
        Some(path) => {
            std::fs::write(path, html::render(&report))
                .with_context(|| format!("writing {}", path.display()))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

#[expect(clippy::print_stdout, reason = "the program's output")]
fn print(text: &str) {
    print!("{text}");
}

fn read_run(path: &Path) -> anyhow::Result<RunSummary> {
    let shown = path.display();
    let text = std::fs::read_to_string(path).with_context(|| format!("reading the run {shown}"))?;
    let run: RunSummary = serde_json::from_str(&text)
        .with_context(|| format!("{shown} is not a result of coppice-loadtest drive --output"))?;
    if run.format != FORMAT {
        bail!(
            "{shown} has the format {:?}, and this program reads {FORMAT:?}: use the version that wrote it",
            run.format
        );
    }
    Ok(run)
}

fn read_checks(path: &Path) -> anyhow::Result<Vec<Check>> {
    let shown = path.display();
    let text =
        std::fs::read_to_string(path).with_context(|| format!("reading the checks {shown}"))?;
    serde_json::from_str(&text)
        .with_context(|| format!("{shown} is not a list of {{name, passed, detail}}"))
}
