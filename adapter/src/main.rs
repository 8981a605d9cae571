//! The metrics adapter: signals of inference servers for autoscalers, as the aggregated APIs `external.metrics.k8s.io` and
//! `custom.metrics.k8s.io`, and over KEDA's protocol ([`keda`]).
//!
//! Data flows one way. Collecting: pods → `coppice-signals` (scrape, recognise, window). Answering:
//! [`api`] limits → [`authn`] who → [`authz`] may they → [`query`] value (of objects: [`custom`]) → [`wire`] object. Answers come from memory; nothing a scraped
//! server does can hold one up.

mod api;
mod authn;
mod authz;
mod cache;
mod convert;
mod custom;
#[cfg(test)]
mod dashboards;
mod discovery;
mod doctor;
#[cfg(test)]
mod fixtures;
mod get;
mod groups;
mod keda;
mod manifests;
mod metrics;
mod negotiate;
mod objects;
mod openapi;
mod parse;
mod quantity;
mod query;
mod register;
mod route;
mod rules;
mod serve;
mod settings;
mod status;
mod top;
mod wanted;
mod wire;
mod workload;

use std::process::ExitCode;

use clap::Parser;
use coppice_runtime::{crypto, telemetry};

use crate::settings::{Arguments, Command};

#[tokio::main]
async fn main() -> ExitCode {
    telemetry::exit_code(run(Arguments::parse()).await)
}

async fn run(arguments: Arguments) -> anyhow::Result<()> {
    telemetry::init(&arguments.log)?;
    crypto::install();
    match arguments.command {
        Command::Serve(args) => serve::serve(*args, arguments.kube).await,
        Command::Manifests(args) => {
            print(&manifests::render(&args)?);
            Ok(())
        }
        Command::Get(args) => {
            print(&get::get(&args, &arguments.kube).await?);
            Ok(())
        }
        Command::Doctor(args) => doctor::doctor(&args, &arguments.kube, print).await,
        Command::Top(args) => {
            print(&top::top(&args, &arguments.kube).await?);
            Ok(())
        }
        Command::Parse(args) => {
            print(&parse::parse(&args)?);
            Ok(())
        }
        Command::Check(args) => {
            print(&rules::check(&args)?);
            Ok(())
        }
        Command::Convert(args) => {
            print(&convert::convert(&args)?);
            Ok(())
        }
    }
}

#[expect(clippy::print_stdout, reason = "the output of a command")]
fn print(text: &str) {
    println!("{}", text.trim_end());
}
