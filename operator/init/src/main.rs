//! `coppice-init`: holds a pod until the cliques it starts after have their minimum ready.
//!
//! It runs as the last init container of a pod, when the pod already has its node: start order never delays placement.
//! It watches the PodClique *objects* that its arguments name, never pods, and asks the rule in
//! [`coppice_operator_plan::start`]. It writes nothing. Exit codes: 0 all are ready, 1 it cannot work, 2 its arguments
//! are wrong, 143 it was told to stop.

mod settings;
mod wait;

use clap::Parser as _;
use settings::{Arguments, Settings};
use std::process::ExitCode;
use tokio::signal::unix::{SignalKind, signal};
use tracing::{error, info};

/// What the shell reports for a process that SIGTERM ended. As process 1 of a container it has to be handled.
const TERMINATED: u8 = 143;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Err(error) = settings::start_logging(&arguments) {
        return failed(&error, 2);
    }
    let settings = match Settings::resolve(arguments) {
        Ok(settings) => settings,
        Err(error) => return failed(&error, error.exit_code()),
    };
    drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
    let mut terminate = match signal(SignalKind::terminate()) {
        Ok(terminate) => terminate,
        Err(error) => return failed(&error, 1),
    };
    tokio::select! {
        outcome = wait::until_ready(&settings) => match outcome {
            Ok(()) => {
                info!("all cliques before this one are ready, starting");
                ExitCode::SUCCESS
            }
            Err(error) => failed(&error, 1),
        },
        _ = terminate.recv() => {
            info!("told to stop");
            ExitCode::from(TERMINATED)
        }
    }
}

fn failed(error: &(dyn std::error::Error + 'static), code: u8) -> ExitCode {
    error!(error = %wait::chain(error), "cannot hold this pod until it may start");
    ExitCode::from(code)
}
