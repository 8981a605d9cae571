//! The sub-command's arguments and entry point.

use std::process::ExitCode;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Runs the sub-command; the exit code is the process's.
///
/// # Errors
/// What kept it from running, with its causes.
#[expect(clippy::unused_async, reason = "awaited by main")]
pub async fn run(_args: Args) -> anyhow::Result<ExitCode> {
    Ok(ExitCode::SUCCESS)
}
