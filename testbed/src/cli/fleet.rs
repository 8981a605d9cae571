//! `fleet`: playing nodes and pods until interrupted; and the fleet beside `up`.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use coppice_testbed::fleet::{
    Fleet, FleetSettings, FleetState, NodeShape, Startup, Topology, lease_period,
};
use coppice_testbed::{Instance, Started, client_config, fleet as testbed_fleet, wait};
use kube::Client;
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

use super::{Which, complain, duration};

/// What the fleet looks like. The same flags serve `fleet` and `up`.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Fleet")]
pub(crate) struct FleetArguments {
    /// How many nodes.
    #[arg(long, default_value_t = 0)]
    pub(crate) nodes: usize,
    /// GPUs of a node.
    #[arg(long, default_value_t = 8)]
    gpus: u32,
    /// The resource name of a GPU.
    #[arg(long, default_value = "nvidia.com/gpu")]
    gpu_resource: String,
    /// CPU of a node, a quantity.
    #[arg(long, default_value = "192")]
    cpu: String,
    /// Memory of a node, a quantity.
    #[arg(long, default_value = "2Ti")]
    memory: String,
    /// How many pods a node takes.
    #[arg(long, default_value_t = 250)]
    pods_per_node: u32,
    /// Nodes in a rack.
    #[arg(long, default_value_t = 4)]
    nodes_per_rack: usize,
    /// Racks in a block.
    #[arg(long, default_value_t = 4)]
    racks_per_block: usize,
    /// Blocks in a zone.
    #[arg(long, default_value_t = 4)]
    blocks_per_zone: usize,
    /// Label keys that carry the rack, separated by commas.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "topology.kubernetes.io/rack"
    )]
    rack_key: Vec<String>,
    /// Label keys that carry the block, separated by commas.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "topology.kubernetes.io/block"
    )]
    block_key: Vec<String>,
    /// Label keys that carry the zone, separated by commas.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "topology.kubernetes.io/zone"
    )]
    zone_key: Vec<String>,
    /// A further label of every node; repeatable.
    #[arg(long, value_name = "KEY=VALUE", value_parser = label)]
    node_label: Vec<(String, String)>,
    /// What node names begin with.
    #[arg(long, default_value = "node-")]
    node_prefix: String,
    /// Median time from a pod's start to ready; a pod's annotation testbed.coppice.dev/startup overrides it.
    #[arg(long, value_parser = duration, default_value = "0s")]
    startup: Duration,
    /// Spread of that time: the standard deviation of its logarithm; 0.25 puts two thirds within a quarter.
    #[arg(long, default_value_t = 0.0)]
    startup_spread: f64,
    /// Same seed, same start-up delays.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// How often a node renews its Lease [default: 2s, longer with more than 100 nodes].
    #[arg(long, value_parser = duration)]
    lease_period: Option<Duration>,
    /// The program coppice-loadtest [default: the one beside this program].
    #[arg(long, env = "COPPICE_LOADTEST")]
    engine_program: Option<PathBuf>,
}

fn label(text: &str) -> Result<(String, String), String> {
    let (key, value) = text
        .split_once('=')
        .ok_or_else(|| format!("{text:?} is not KEY=VALUE"))?;
    Ok((key.to_owned(), value.to_owned()))
}

impl FleetArguments {
    pub(crate) fn lease_period(&self) -> Duration {
        self.lease_period
            .unwrap_or_else(|| lease_period(self.nodes))
    }

    fn settings(&self, control: SocketAddr) -> FleetSettings {
        FleetSettings {
            shape: NodeShape {
                cpu: self.cpu.clone(),
                memory: self.memory.clone(),
                pods: self.pods_per_node,
                gpus: self.gpus,
                gpu_resource: self.gpu_resource.clone(),
            },
            topology: Topology {
                nodes_per_rack: self.nodes_per_rack,
                racks_per_block: self.racks_per_block,
                blocks_per_zone: self.blocks_per_zone,
                rack_keys: self.rack_key.clone(),
                block_keys: self.block_key.clone(),
                zone_keys: self.zone_key.clone(),
            },
            name_prefix: self.node_prefix.clone(),
            labels: self.node_label.iter().cloned().collect::<BTreeMap<_, _>>(),
            startup: Startup {
                median: self.startup,
                spread: self.startup_spread,
                seed: self.seed,
            },
            lease_period: self.lease_period,
            engine_program: self.engine_program.clone(),
            control: Some(control),
            ..FleetSettings::new(self.nodes)
        }
    }

    /// The command line of a fleet beside the control plane `which`, with the same looks.
    pub(crate) fn for_instance(&self, which: &Which) -> Vec<String> {
        let Self {
            nodes,
            gpus,
            gpu_resource,
            cpu,
            memory,
            pods_per_node,
            nodes_per_rack,
            racks_per_block,
            blocks_per_zone,
            rack_key,
            block_key,
            zone_key,
            node_label,
            node_prefix,
            startup,
            startup_spread,
            seed,
            lease_period,
            engine_program,
        } = self;
        let mut arguments = vec![
            "fleet".to_owned(),
            format!("--name={}", which.name),
            format!("--dir={}", which.dir.display()),
            "--keep-nodes".to_owned(),
            format!("--nodes={nodes}"),
            format!("--gpus={gpus}"),
            format!("--gpu-resource={gpu_resource}"),
            format!("--cpu={cpu}"),
            format!("--memory={memory}"),
            format!("--pods-per-node={pods_per_node}"),
            format!("--nodes-per-rack={nodes_per_rack}"),
            format!("--racks-per-block={racks_per_block}"),
            format!("--blocks-per-zone={blocks_per_zone}"),
            format!("--rack-key={}", rack_key.join(",")),
            format!("--block-key={}", block_key.join(",")),
            format!("--zone-key={}", zone_key.join(",")),
            format!("--node-prefix={node_prefix}"),
            format!("--startup={}ms", startup.as_millis()),
            format!("--startup-spread={startup_spread}"),
            format!("--seed={seed}"),
        ];
        arguments.extend(
            node_label
                .iter()
                .map(|(key, value)| format!("--node-label={key}={value}")),
        );
        arguments
            .extend(lease_period.map(|period| format!("--lease-period={}ms", period.as_millis())));
        arguments.extend(
            engine_program
                .as_ref()
                .map(|program| format!("--engine-program={}", program.display())),
        );
        arguments
    }
}

#[derive(Debug, Args)]
pub(crate) struct Run {
    #[command(flatten)]
    which: Which,
    /// Play on the cluster of this kubeconfig instead of a control plane started by `up`.
    #[arg(long, env = "COPPICE_KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
    /// Where the control endpoint for `fleet-ctl` listens; port 0 takes a free one.
    #[arg(long, default_value = "127.0.0.1:0")]
    control: SocketAddr,
    /// Leave the nodes in the cluster at the end, as if the power had failed.
    #[arg(long)]
    keep_nodes: bool,
    #[command(flatten)]
    fleet: FleetArguments,
}

impl Run {
    pub(crate) async fn run(self) -> anyhow::Result<ExitCode> {
        tracing_subscriber::fmt()
            .with_writer(std::io::stderr)
            .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
            .with_env_filter(
                tracing_subscriber::EnvFilter::try_from_default_env()
                    .unwrap_or_else(|_| "info".into()),
            )
            .init();
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let settings = self.fleet.settings(self.control);
        let instance = if self.kubeconfig.is_none() {
            Some(self.which.instance()?)
        } else {
            None
        };
        let path = instance
            .as_ref()
            .map(Instance::kubeconfig)
            .or(self.kubeconfig)
            .context("no cluster given")?;
        let config = client_config(&path)
            .await
            .with_context(|| format!("cannot use kubeconfig {}", path.display()))?;
        let config = if instance.is_some() {
            testbed_fleet::as_fleet(config)
        } else {
            config
        };
        let fleet = Fleet::start_on(config, settings).await?;
        if let Some(address) = fleet.control_address() {
            complain(&format!(
                "{} nodes are up; control endpoint http://{address}",
                self.fleet.nodes
            ));
            if let Some(instance) = &instance {
                let path = address_file(instance);
                std::fs::write(&path, json!({"address": address}).to_string())
                    .with_context(|| format!("cannot write {}", path.display()))?;
            }
        }
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        if self.keep_nodes {
            drop(fleet);
        } else {
            complain("removing the fleet's nodes and pods");
            fleet.clean_up().await;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Where a fleet beside a control plane writes the address of its control endpoint.
pub(crate) fn address_file(instance: &Instance) -> PathBuf {
    instance.folder.join("fleet.json")
}

/// Waits until the fleet beside a fresh control plane has its nodes up.
pub(crate) async fn await_nodes(started: &Started, fleet: &FleetArguments) -> anyhow::Result<()> {
    let client = Client::try_from(started.config.clone())?;
    let path = address_file(&started.instance);
    let waited = wait::until(Duration::from_secs(180), "the fleet", || async {
        if let Some(status) = started.exit_of("fleet") {
            return Ok(Some(status));
        }
        anyhow::ensure!(path.exists(), "its control endpoint is not up");
        Ok(None)
    })
    .await;
    let log = started.instance.logs().join("fleet.log");
    match waited {
        Ok(None) => {}
        Ok(Some(status)) => {
            let text = std::fs::read_to_string(&log).unwrap_or_default();
            bail!(
                "the fleet ended during the start ({status}); {}:\n{}",
                log.display(),
                text.trim()
            );
        }
        Err(error) => return Err(error).with_context(|| format!("see {}", log.display())),
    }
    Ok(testbed_fleet::await_schedulable(&client, fleet.nodes, Duration::from_secs(60)).await?)
}

/// The state of the fleet beside an instance, if one answers.
pub(crate) async fn state(instance: &Instance) -> Option<FleetState> {
    let address = super::control::read_address(instance).ok()?;
    super::control::get_state(address).await.ok()
}
