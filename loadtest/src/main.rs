//! `coppice-loadtest`: see the library's documentation for what its parts do.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use coppice_loadtest::{drive, gateway, report, serve, simulate};
use coppice_runtime::telemetry::{self, LogArgs};

/// Load tests and simulated engines for LLM inference.
#[derive(Debug, Parser)]
#[command(name = "coppice-loadtest", version)]
struct Cli {
    #[command(flatten)]
    logs: LogArgs,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve one simulated engine (OpenAI API, vLLM's metrics), or many with --hosted
    Engine(serve::command::Args),
    /// Route OpenAI requests to the engines that are ready
    Gateway(gateway::command::Args),
    /// Send a schedule of requests, open loop, and measure
    Drive(Box<drive::command::Args>),
    /// Ask what scaling policies would have done, on a virtual clock
    Simulate(Box<simulate::command::Args>),
    /// Render a recorded run as text or HTML
    Report(report::command::Args),
}

#[tokio::main]
async fn main() -> ExitCode {
    let Cli { logs, command } = Cli::parse();
    match run(logs, command).await {
        Ok(code) => code,
        Err(error) => telemetry::exit_code(Err(error)),
    }
}

async fn run(logs: LogArgs, command: Command) -> anyhow::Result<ExitCode> {
    telemetry::init(&logs)?;
    match command {
        Command::Engine(args) => serve::command::run(args).await,
        Command::Gateway(args) => gateway::command::run(args).await,
        Command::Drive(args) => drive::command::run(*args).await,
        Command::Simulate(args) => simulate::command::run(*args).await,
        Command::Report(args) => report::command::run(args).await,
    }
}
