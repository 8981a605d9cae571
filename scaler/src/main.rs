//! The scaler: sizes the roles of an LLM serving system together.
//!
//! Data flows one way, every few seconds: [`watch`] keeps what there is → [`observe`] makes a fleet and an observation of it → `decide` in
//! `coppice-scaler-plan` → [`actuate`] writes `/scale` → [`record`] writes the decision into the policy's status. [`run`] is the loop.

mod actuate;
mod conditions;
mod consider;
#[cfg(test)]
mod dashboard;
mod decide;
mod events;
mod explain;
mod gpus;
mod manifests;
mod memory;
mod metrics;
mod observe;
mod page;
mod policy;
mod pool;
mod prepare;
mod profile;
mod record;
mod run;
mod settings;
mod target;
mod translate;
mod views;
mod watch;
mod writers;

use std::process::ExitCode;

use clap::Parser;
use coppice_runtime::{crypto, telemetry};

use crate::settings::{Arguments, Command};

#[tokio::main]
async fn main() -> ExitCode {
    telemetry::exit_code(start(Arguments::parse()).await)
}

async fn start(arguments: Arguments) -> anyhow::Result<()> {
    telemetry::init(&arguments.log)?;
    crypto::install();
    match arguments.command {
        Command::Run(args) => run::run(*args, arguments.kube).await,
        Command::Crds => {
            print(&manifests::crds()?);
            Ok(())
        }
        Command::Manifests(args) => {
            print(&manifests::render(&args)?);
            Ok(())
        }
        Command::Explain(args) => {
            print(&explain::explain(&args, &arguments.kube).await?);
            Ok(())
        }
    }
}

#[expect(clippy::print_stdout, reason = "the output of a command")]
fn print(text: &str) {
    println!("{}", text.trim_end());
}
