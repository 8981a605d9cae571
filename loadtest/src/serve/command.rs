//! `coppice-loadtest engine`.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use coppice_runtime::shutdown::Shutdown;
use tokio::sync::watch;
use tracing::info;

use super::arguments::EngineArgs;
use super::handover::Neighbours;
use super::hosted;
use super::instance::{Control, run as run_engine};

/// Arguments of `coppice-loadtest engine`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    #[command(flatten)]
    engine: EngineArgs,
    /// Serve many engines, started and stopped by JSON lines on standard input; the other flags are then given there
    #[arg(long)]
    hosted: bool,
}

/// Added to the drain time before the process gives up on connections.
const MARGIN: Duration = Duration::from_secs(5);

/// Runs until a signal and the drain that follows, or the end of input.
///
/// # Errors
/// Wrong arguments, or an address that cannot be listened on.
pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let shutdown = Shutdown::install().context("listening for signals")?;
    if args.hosted {
        // A signal ends all engines at once: whoever hosts them decides about draining.
        if let Ok(outcome) = shutdown
            .guard(Duration::ZERO, hosted::run_on_standard_streams())
            .await
        {
            outcome?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let config = args.engine.resolve()?;
    let address = SocketAddr::new(args.engine.host, args.engine.port);
    let grace = config.drain + MARGIN;
    let (model, profile) = (config.model.clone(), config.profile.id.clone());
    let start_up_seconds = config.start_up.as_secs_f64();
    info!(model, profile, role = ?config.role, start_up_seconds, "starting");
    let (_, grace_wish) = watch::channel(None);
    let (_, frozen) = watch::channel(false);
    let control = Control {
        drain: shutdown.draining(),
        grace: grace_wish,
        frozen,
    };
    let engine = run_engine(config, address, Neighbours::default(), control, |_| {});
    shutdown.guard(grace, engine).await??;
    Ok(ExitCode::SUCCESS)
}
