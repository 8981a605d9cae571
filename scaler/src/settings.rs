//! Flags of the program, each with a twin in the environment.

use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use coppice_runtime::admin::AdminArgs;
use coppice_runtime::client::KubeArgs;
use coppice_runtime::lease::LeaseArgs;
use coppice_runtime::settings::positive_duration;
use coppice_runtime::telemetry::LogArgs;

/// Sizes the roles of LLM serving systems together: pods, scaling groups and whole sets
#[derive(Debug, Parser)]
#[command(name = "coppice-scaler", version)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) log: LogArgs,
    #[command(flatten)]
    pub(crate) kube: KubeArgs,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Observe, decide, and carry decisions out
    Run(Box<RunArgs>),
    /// Print the CustomResourceDefinitions; apply them with `kubectl apply --server-side`
    Crds,
    /// Print ServiceAccount, roles, bindings and Deployment for a cluster
    Manifests(ManifestArgs),
    /// Print a policy's last decision and what it came from
    Explain(ExplainArgs),
}

/// Flags of `run`.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) admin: AdminArgs,
    #[command(flatten)]
    pub(crate) lease: LeaseArgs,
    #[command(flatten)]
    pub(crate) scrape: ScrapeArgs,
    /// Time between two decisions
    #[arg(long, env = "COPPICE_INTERVAL", default_value = "5s", value_parser = positive_duration, value_name = "DURATION")]
    pub(crate) interval: Duration,
    /// Namespace whose policies are followed; without it all namespaces
    #[arg(long, env = "COPPICE_NAMESPACE", value_name = "NAMESPACE")]
    pub(crate) namespace: Option<String>,
    /// Extended resource that counts as a GPU under `budget.gpus`
    #[arg(
        long,
        env = "COPPICE_GPU_RESOURCE",
        default_value = "nvidia.com/gpu",
        value_name = "RESOURCE"
    )]
    pub(crate) gpu_resource: String,
}

/// Flags about scraping.
#[derive(Debug, Args)]
pub(crate) struct ScrapeArgs {
    /// Time between two scrapes of one endpoint
    #[arg(long, env = "COPPICE_SCRAPE_INTERVAL", default_value = "5s", value_parser = positive_duration, value_name = "DURATION")]
    pub(crate) scrape_interval: Duration,
    /// Time for one scrape
    #[arg(long, env = "COPPICE_SCRAPE_TIMEOUT", default_value = "5s", value_parser = positive_duration, value_name = "DURATION")]
    pub(crate) scrape_timeout: Duration,
    /// Look-back of rates; short, because a rate over a minute sees a step of the load a minute late
    #[arg(long, env = "COPPICE_WINDOW", default_value = "15s", value_parser = positive_duration, value_name = "DURATION")]
    pub(crate) window: Duration,
    /// Share of the ready endpoints that must have a fresh value, 0 to 1
    #[arg(
        long,
        env = "COPPICE_QUORUM",
        default_value_t = 0.8,
        value_name = "SHARE"
    )]
    pub(crate) quorum: f64,
}

/// Flags of `manifests`.
#[derive(Debug, Args)]
pub(crate) struct ManifestArgs {
    /// Namespace the scaler runs in
    #[arg(long, default_value = "coppice-system", value_name = "NAMESPACE")]
    pub(crate) install_namespace: String,
    /// Namespace it works in, with rights there and nowhere else; without it the whole cluster
    #[arg(long, value_name = "NAMESPACE")]
    pub(crate) namespace: Option<String>,
    /// The scaler's image
    #[arg(long, default_value = DEFAULT_IMAGE, value_name = "IMAGE")]
    pub(crate) image: String,
    /// Copies: one leads, the others stand by with warm memories
    #[arg(long, default_value_t = 2, value_name = "COUNT")]
    pub(crate) replicas: u16,
}

/// The image released with this version.
const DEFAULT_IMAGE: &str = concat!(
    "ghcr.io/coppice-dev/coppice-scaler:v",
    env!("CARGO_PKG_VERSION")
);

/// Flags of `explain`.
#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    /// The policy: NAMESPACE/NAME, or NAME in the namespace of the kubeconfig's context
    pub(crate) policy: String,
}

impl ScrapeArgs {
    /// Settings of the collector.
    pub(crate) fn settings(&self) -> coppice_signals::Settings {
        coppice_signals::Settings {
            interval: self.scrape_interval,
            deadline: self.scrape_timeout,
            window: self.window,
            quorum: self.quorum,
            ..coppice_signals::Settings::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_flags_are_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn defaults_make_a_collector_that_works() {
        let parsed = Arguments::try_parse_from(["coppice-scaler", "run"]).unwrap();
        let Command::Run(run) = parsed.command else {
            panic!("run")
        };
        run.scrape.settings().validate().unwrap();
    }
}
