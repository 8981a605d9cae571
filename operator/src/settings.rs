//! What the operator can be told: flags, each with a twin in the environment.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use coppice_operator_api::defaults;
use coppice_runtime::admin::AdminArgs;
use coppice_runtime::client::KubeArgs;
use coppice_runtime::lease::LeaseArgs;
use coppice_runtime::telemetry::LogArgs;

use crate::admission::settings::AdmissionArgs;
use crate::backends::discovery::Choice;
use crate::backends::gated::GatedArgs;
use crate::manifests::ManifestArgs;

/// Runs LLM inference on Kubernetes as gangs of pods: Grove's API, with or without a gang scheduler
#[derive(Debug, Parser)]
#[command(name = "coppice-operator", version)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) kube: KubeArgs,
    #[command(flatten)]
    pub(crate) log: LogArgs,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the operator
    Run(Box<RunArgs>),
    /// Print the CustomResourceDefinitions; apply them with `kubectl apply --server-side`
    Crds,
    /// Print ServiceAccount, roles, bindings, Deployment and Service for a cluster
    Manifests(ManifestArgs),
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// Grove's OperatorConfiguration (YAML or JSON), for a cluster that changes operators; flags and environment come before it
    #[arg(long, env = "COPPICE_CONFIG", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) admin: AdminArgs,
    #[command(flatten)]
    pub(crate) lease: LeaseArgs,
    /// Name of the lease; operators that must not work at the same time have the same one
    #[arg(
        long,
        env = "COPPICE_LEASE_NAME",
        default_value = "coppice-operator",
        value_name = "NAME"
    )]
    pub(crate) lease_name: String,
    /// How gangs are placed: `auto` takes `native` where the API server serves CompositePodGroups, else `gated`
    #[arg(
        long,
        env = "COPPICE_GANG_BACKEND",
        default_value = "auto",
        value_name = "BACKEND"
    )]
    pub(crate) gang_backend: Choice,
    #[command(flatten)]
    pub(crate) gated: GatedArgs,
    #[command(flatten)]
    pub(crate) admission: AdmissionArgs,
    /// Work only in these namespaces; without it in all
    #[arg(
        long = "namespace",
        env = "COPPICE_NAMESPACES",
        value_delimiter = ',',
        value_name = "NAMESPACE"
    )]
    pub(crate) namespaces: Vec<String>,
    /// Image of the init container that keeps the start order
    #[arg(long, env = "COPPICE_INIT_IMAGE", default_value = DEFAULT_INIT_IMAGE, value_name = "IMAGE")]
    pub(crate) init_image: String,
    /// Domain that names inside the cluster end with
    #[arg(long, env = "COPPICE_CLUSTER_DOMAIN", default_value = defaults::CLUSTER_DOMAIN, value_name = "DOMAIN")]
    pub(crate) cluster_domain: String,
    /// Make a ComputeDomain for each MNNVL group that an annotation grove.io/mnnvl-group names, for NVIDIA's DRA driver; without
    /// it, sets that ask for one are refused
    #[arg(long, env = "COPPICE_AUTO_MNNVL", default_value_t = false, action = clap::ArgAction::Set, value_name = "BOOL")]
    pub(crate) auto_mnnvl: bool,
    /// Set replicas and sets looked at side by side
    #[arg(long, env = "COPPICE_WORKERS", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..), value_name = "COUNT")]
    pub(crate) workers: u16,
    /// Most requests to the API server on their way at a time; fewer when it answers that it has too much to do
    #[arg(long, env = "COPPICE_MAX_WRITES", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..), value_name = "COUNT")]
    pub(crate) max_writes: u16,
}

/// The image released with this version.
pub(crate) const DEFAULT_INIT_IMAGE: &str = concat!(
    "ghcr.io/coppice-dev/coppice-init:v",
    env!("CARGO_PKG_VERSION")
);
