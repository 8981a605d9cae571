//! `fleet-ctl`: commanding a running fleet over its control endpoint.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use clap::{Args, Subcommand, ValueEnum};
use coppice_testbed::Instance;
use coppice_testbed::fleet::{Command, FleetState};
use http::{Method, Request};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;

use super::{Which, fleet, say};

#[derive(Debug, Args)]
pub(crate) struct Control {
    #[command(flatten)]
    which: Which,
    /// The fleet's control endpoint [default: that of the fleet beside the control plane --name].
    #[arg(long)]
    address: Option<SocketAddr>,
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Stop nodes as a power failure would.
    KillNode {
        /// The nodes.
        #[arg(required = true)]
        nodes: Vec<String>,
        /// Leave evicted pods Terminating; by default the fleet removes them as a site that fences dead nodes does.
        #[arg(long)]
        unfenced: bool,
    },
    /// Start killed nodes again.
    ReviveNode {
        /// The nodes.
        #[arg(required = true)]
        nodes: Vec<String>,
    },
    /// Take nodes away for good.
    RemoveNode {
        /// The nodes.
        #[arg(required = true)]
        nodes: Vec<String>,
    },
    /// Register more nodes.
    AddNodes {
        /// How many.
        count: usize,
    },
    /// End all containers of a pod.
    CrashPod {
        /// NAMESPACE/POD.
        pod: String,
        /// Their exit code.
        #[arg(long, default_value_t = 1)]
        exit_code: i32,
        /// Do not restart them until recover-pod.
        #[arg(long)]
        stay_down: bool,
    },
    /// Restart a pod that was kept down.
    RecoverPod {
        /// NAMESPACE/POD.
        pod: String,
    },
    /// Multiply all start-up delays from now on; 1 is normal.
    SlowStarts {
        /// At least 0.
        factor: f64,
    },
    /// Let the metrics of engines stand still, or move again.
    FreezeMetrics {
        /// on: stand still.
        state: Switch,
        /// NAMESPACE/POD; without it all engines, future ones included.
        pod: Option<String>,
    },
    /// Print what the fleet is doing.
    Status,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Switch {
    On,
    Off,
}

impl Action {
    fn commands(self) -> Vec<Command> {
        let each = |nodes: Vec<String>, command: fn(String) -> Command| {
            nodes.into_iter().map(command).collect()
        };
        match self {
            Self::KillNode { nodes, unfenced } => nodes
                .into_iter()
                .map(|node| Command::KillNode {
                    node,
                    fenced: !unfenced,
                })
                .collect(),
            Self::ReviveNode { nodes } => each(nodes, |node| Command::ReviveNode { node }),
            Self::RemoveNode { nodes } => each(nodes, |node| Command::RemoveNode { node }),
            Self::AddNodes { count } => vec![Command::AddNodes { count }],
            Self::CrashPod {
                pod,
                exit_code,
                stay_down,
            } => vec![Command::CrashPod {
                pod,
                exit_code,
                stay_down,
            }],
            Self::RecoverPod { pod } => vec![Command::RecoverPod { pod }],
            Self::SlowStarts { factor } => vec![Command::SlowStarts { factor }],
            Self::FreezeMetrics { state, pod } => {
                vec![Command::FreezeMetrics {
                    pod,
                    frozen: state == Switch::On,
                }]
            }
            Self::Status => vec![Command::Status],
        }
    }
}

impl Control {
    pub(crate) async fn run(self) -> anyhow::Result<ExitCode> {
        let address = match self.address {
            Some(address) => address,
            None => read_address(&self.which.instance()?)?,
        };
        let mut state = None;
        for command in self.action.commands() {
            let body = serde_json::to_vec(&command)?;
            state = Some(request(address, Method::POST, "/command", body).await?);
        }
        if let Some(state) = state {
            say(&state.to_string());
        }
        Ok(ExitCode::SUCCESS)
    }
}

pub(crate) fn read_address(instance: &Instance) -> anyhow::Result<SocketAddr> {
    let path = fleet::address_file(instance);
    let text = std::fs::read(&path).with_context(|| {
        format!(
            "testbed {:?} has no fleet ({}); start one with `coppice-testbed up --nodes` or `coppice-testbed fleet`",
            instance.name,
            path.display()
        )
    })?;
    let value: Value = serde_json::from_slice(&text)?;
    value["address"]
        .as_str()
        .context("no address in it")?
        .parse()
        .context("its address")
}

pub(crate) async fn get_state(address: SocketAddr) -> anyhow::Result<FleetState> {
    request(address, Method::GET, "/state", Vec::new()).await
}

async fn request(
    address: SocketAddr,
    method: Method,
    path: &str,
    body: Vec<u8>,
) -> anyhow::Result<FleetState> {
    let request = Request::builder()
        .method(method)
        .uri(format!("http://{address}{path}"))
        .header("content-type", "application/json")
        .body(Full::new(Bytes::from(body)))?;
    let client = Client::builder(TokioExecutor::new()).build_http();
    let no_answer = || format!("no answer from the fleet at {address}; does it still run?");
    let answer = tokio::time::timeout(Duration::from_secs(120), client.request(request))
        .await
        .with_context(no_answer)?
        .with_context(no_answer)?;
    let status = answer.status();
    let body = answer.into_body().collect().await?.to_bytes();
    if status.is_success() {
        return Ok(serde_json::from_slice(&body)?);
    }
    let value: Value = serde_json::from_slice(&body).unwrap_or_default();
    match value["error"].as_str() {
        Some(error) => bail!("{error}"),
        None => bail!(
            "the fleet answers {status}: {}",
            String::from_utf8_lossy(&body)
        ),
    }
}
