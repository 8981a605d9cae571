//! The operator: gangs of pods for LLM inference, described by Grove's PodCliqueSet.
//!
//! Data flows one way. Watches keep the [`index`]; a change marks a unit in the [`queue`]; a [`controller`] makes a pass over
//! it: fetch, validate, plan (in `coppice-operator-plan`), [`build`], [`apply`], report. [`backends`] know how a cluster places
//! gangs. [`admission`] stands before all that: it completes and checks what is about to be stored.

mod admission;
mod apply;
mod backends;
mod build;
mod canonical;
mod configuration;
mod controller;
mod events;
mod index;
mod manifests;
mod metrics;
mod queue;
mod run;
mod settings;
mod validated;

use std::process::ExitCode;

use clap::Parser;
use coppice_runtime::{crypto, telemetry};

use crate::settings::{Arguments, Command};

#[tokio::main]
async fn main() -> ExitCode {
    let given = std::env::args_os().collect();
    let environment = |name: &str| std::env::var_os(name);
    let outcome =
        match configuration::expand(given, environment, |path| std::fs::read_to_string(path)) {
            Ok((arguments, notes)) => start(Arguments::parse_from(arguments), &notes).await,
            Err(error) => Err(error),
        };
    telemetry::exit_code(outcome)
}

async fn start(arguments: Arguments, notes: &[String]) -> anyhow::Result<()> {
    telemetry::init(&arguments.log)?;
    for note in notes {
        tracing::warn!("{note}");
    }
    crypto::install();
    match arguments.command {
        Command::Run(args) => run::run(*args, arguments.kube).await,
        Command::Crds => {
            print(&manifests::crds());
            Ok(())
        }
        Command::Manifests(args) => {
            print(&manifests::render(&args)?);
            Ok(())
        }
    }
}

#[expect(clippy::print_stdout, reason = "the output of a command")]
fn print(text: &str) {
    println!("{}", text.trim_end());
}
