//! A make-believe data centre: plays the kubelets of any number of nodes.
//!
//! A pod that is bound to one of its nodes gets an address that is really reachable on this machine, waits for the
//! cliques before it (`grove-initc`), takes its start-up delay, is served by a simulated engine if it is one, becomes
//! ready, drains when it is deleted, and goes. Nodes die and come back, pods crash, starts slow down and metrics freeze by
//! command. What a pod can ask for stands in `script.rs`; the life of a pod in `actor.rs`.
//!
//! The fleet knows nothing of Coppice's programs but the start-order rule, and works on any cluster that lets it write
//! nodes and pods.

mod actor;
mod addresses;
mod command;
mod control;
mod driver;
mod engines;
mod gate;
mod heartbeat;
mod node;
mod script;
mod settings;
mod startup;
mod status;
mod timers;
mod writes;

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::api::ListParams;
use kube::{Api, Client, Config, ResourceExt};
use tokio::sync::{mpsc, oneshot};

use self::addresses::Addresses;
pub use self::command::{Command, CommandError, FleetState};
use self::driver::{Driver, Envelope};
use self::engines::Engines;
use self::heartbeat::Heartbeats;
pub use self::heartbeat::RegisterError;
pub use self::script::{SHUTDOWN, STARTUP};
pub use self::settings::{Farewell, FleetSettings, NodeShape, Startup, Topology, lease_period};
use crate::cluster::Cluster;
use crate::wait::{self, WaitError};

/// A fleet could not start.
#[derive(Debug, thiserror::Error)]
pub enum FleetError {
    /// No client for the cluster.
    #[error("cannot connect to the cluster: {0}")]
    Client(String),
    /// No addresses for pods.
    #[error("cannot reserve pod addresses")]
    Addresses(#[source] std::io::Error),
    /// The control endpoint cannot listen.
    #[error("cannot serve the control endpoint on {address}")]
    Control {
        /// Where it should listen.
        address: SocketAddr,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The fleet's thread.
    #[error("cannot start the fleet's thread")]
    Thread(#[source] std::io::Error),
    /// The first nodes cannot be registered.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// Nodes do not become schedulable.
    #[error(
        "nodes were registered but pods cannot be scheduled to them; does kube-controller-manager run?"
    )]
    NotSchedulable(#[source] WaitError),
}

/// A running fleet, on a thread of its own, so that it outlives the runtime that started it. Dropping the value ends it:
/// engines stop, and nodes and pods stay or go as [`FleetSettings::farewell`] says.
#[derive(Debug)]
pub struct Fleet {
    commands: mpsc::UnboundedSender<Envelope>,
    farewell: Option<oneshot::Sender<Farewell>>,
    at_end: Farewell,
    control: Option<SocketAddr>,
    config: Config,
    thread: Option<JoinHandle<()>>,
}

impl Fleet {
    /// Starts a fleet on a testbed's control plane; returns when pods can be scheduled to its nodes. In the audit log it
    /// is the user `coppice-testbed-fleet`.
    ///
    /// # Errors
    ///
    /// See [`FleetError`].
    pub async fn start(cluster: &Cluster, settings: FleetSettings) -> Result<Self, FleetError> {
        Self::start_on(as_fleet(cluster.config()), settings).await
    }

    /// Starts a fleet on any cluster, with the rights of `config`: it creates, patches and deletes nodes, their leases,
    /// pods and pods' statuses, and watches PodCliques.
    ///
    /// # Errors
    ///
    /// See [`FleetError`].
    pub async fn start_on(config: Config, settings: FleetSettings) -> Result<Self, FleetError> {
        let addresses = Addresses::claim().map_err(FleetError::Addresses)?;
        let (commands, receiver) = mpsc::unbounded_channel();
        let (farewell, farewell_receiver) = oneshot::channel();
        let (ready, is_ready) = oneshot::channel();
        let (nodes, at_end) = (settings.nodes, settings.farewell);
        let world = World {
            config: config.clone(),
            settings,
            addresses,
            commands: commands.clone(),
        };
        let thread = std::thread::Builder::new()
            .name("testbed-fleet".to_owned())
            .spawn(move || world.run(receiver, farewell_receiver, ready))
            .map_err(FleetError::Thread)?;
        let control = is_ready.await.map_err(|_| CommandError::Ended)??;
        let fleet = Self {
            commands,
            farewell: Some(farewell),
            at_end,
            control,
            config,
            thread: Some(thread),
        };
        if nodes > 0 {
            fleet.add_nodes(nodes).await?;
        }
        Ok(fleet)
    }

    /// Where the control endpoint listens, if it does.
    #[must_use]
    pub fn control_address(&self) -> Option<SocketAddr> {
        self.control
    }

    /// Carries out any command; the methods below are its handier forms.
    ///
    /// # Errors
    ///
    /// See [`CommandError`].
    pub async fn command(&self, command: Command) -> Result<FleetState, CommandError> {
        control::ask(&self.commands, command).await
    }

    /// Registers `count` more nodes and waits until pods can be scheduled to all living nodes.
    ///
    /// # Errors
    ///
    /// The API server refuses them, or they do not become schedulable.
    pub async fn add_nodes(&self, count: usize) -> Result<(), FleetError> {
        self.command(Command::AddNodes { count }).await?;
        self.await_schedulable(Duration::from_secs(120)).await
    }

    /// Waits until no living node of the fleet is tainted as not ready any more.
    ///
    /// # Errors
    ///
    /// `limit` passed.
    pub async fn await_schedulable(&self, limit: Duration) -> Result<(), FleetError> {
        let state = self.state().await?;
        let client =
            Client::try_from(self.config.clone()).map_err(|e| FleetError::Client(e.to_string()))?;
        await_schedulable(&client, state.nodes - state.dead_nodes.len(), limit)
            .await
            .map_err(FleetError::NotSchedulable)
    }

    /// Stops a node, as a power failure would; evicted pods are removed as a fencing site does it. See
    /// [`Command::KillNode`].
    ///
    /// # Errors
    ///
    /// There is no such node.
    pub async fn kill_node(&self, node: &str) -> Result<(), CommandError> {
        self.command(Command::KillNode {
            node: node.to_owned(),
            fenced: true,
        })
        .await
        .map(drop)
    }

    /// Starts a killed node again.
    ///
    /// # Errors
    ///
    /// There is no such node, or the API server refuses it.
    pub async fn revive_node(&self, node: &str) -> Result<(), CommandError> {
        self.command(Command::ReviveNode {
            node: node.to_owned(),
        })
        .await
        .map(drop)
    }

    /// Takes a node away for good.
    ///
    /// # Errors
    ///
    /// There is no such node, or the API server refuses it.
    pub async fn remove_node(&self, node: &str) -> Result<(), CommandError> {
        self.command(Command::RemoveNode {
            node: node.to_owned(),
        })
        .await
        .map(drop)
    }

    /// Ends all containers of a pod with exit code 1; its restart policy decides what follows.
    ///
    /// # Errors
    ///
    /// The fleet does not play the pod, or it does not run.
    pub async fn crash_pod(&self, namespace: &str, name: &str) -> Result<(), CommandError> {
        let pod = format!("{namespace}/{name}");
        self.command(Command::CrashPod {
            pod,
            exit_code: 1,
            stay_down: false,
        })
        .await
        .map(drop)
    }

    /// Multiplies all start-up delays from now on.
    ///
    /// # Errors
    ///
    /// The factor is negative or not a number.
    pub async fn slow_starts(&self, factor: f64) -> Result<(), CommandError> {
        self.command(Command::SlowStarts { factor }).await.map(drop)
    }

    /// Lets the metrics of one engine (namespace and name), or of all, stand still or move again.
    ///
    /// # Errors
    ///
    /// The fleet does not play the pod, or it is no engine.
    pub async fn freeze_metrics(
        &self,
        pod: Option<(&str, &str)>,
        frozen: bool,
    ) -> Result<(), CommandError> {
        let pod = pod.map(|(namespace, name)| format!("{namespace}/{name}"));
        self.command(Command::FreezeMetrics { pod, frozen })
            .await
            .map(drop)
    }

    /// What the fleet is doing.
    ///
    /// # Errors
    ///
    /// It has ended.
    pub async fn state(&self) -> Result<FleetState, CommandError> {
        self.command(Command::Status).await
    }

    /// Ends the fleet and takes its nodes and their pods out of the cluster.
    pub async fn clean_up(mut self) {
        self.say_goodbye(Farewell::CleanUp);
        if let Some(thread) = self.thread.take() {
            // The thread ends when it has said goodbye; a panic on it is in its output already.
            drop(tokio::task::spawn_blocking(move || thread.join()).await);
        }
    }

    fn say_goodbye(&mut self, farewell: Farewell) {
        if let Some(sender) = self.farewell.take() {
            // A thread that ended needs no goodbye.
            sender.send(farewell).ok();
        }
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.say_goodbye(self.at_end);
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

/// Waits until `count` nodes of fleets are ready and untainted.
///
/// # Errors
///
/// `limit` passed.
pub async fn await_schedulable(
    client: &Client,
    count: usize,
    limit: Duration,
) -> Result<(), WaitError> {
    let nodes: Api<Node> = Api::all(client.clone());
    let ours = ListParams::default().labels(node::FLEET_LABEL);
    wait::until(limit, &format!("{count} schedulable nodes"), || async {
        let nodes = nodes.list(&ours).await.map_err(|e| e.to_string())?.items;
        let held: Vec<_> = nodes
            .iter()
            .filter(|node| !is_schedulable(node))
            .map(ResourceExt::name_any)
            .collect();
        let schedulable = nodes.len() - held.len();
        if schedulable >= count {
            return Ok(());
        }
        Err(format!(
            "{schedulable} of {} nodes are schedulable, not {:?}",
            nodes.len(),
            held.first()
        ))
    })
    .await
}

fn is_schedulable(node: &Node) -> bool {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    let conditions = node
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    let is_ready = conditions
        .into_iter()
        .flatten()
        .any(|c| c.type_ == "Ready" && c.status == "True");
    is_ready
        && !taints
            .into_iter()
            .flatten()
            .any(|taint| taint.key.starts_with("node.kubernetes.io/"))
}

/// The same administrator as the user `coppice-testbed-fleet`, so that the audit log tells the fleet's writes apart.
#[must_use]
pub fn as_fleet(mut config: Config) -> Config {
    config.auth_info.impersonate = Some("coppice-testbed-fleet".to_owned());
    config.auth_info.impersonate_groups = Some(vec!["system:masters".to_owned()]);
    config
}

/// What the fleet's thread needs to begin.
struct World {
    config: Config,
    settings: FleetSettings,
    addresses: Addresses,
    commands: mpsc::UnboundedSender<Envelope>,
}

type Ready = oneshot::Sender<Result<Option<SocketAddr>, FleetError>>;

impl World {
    /// The thread: a runtime of its own, the loop, heartbeats beside it.
    fn run(
        self,
        commands: mpsc::UnboundedReceiver<Envelope>,
        farewell: oneshot::Receiver<Farewell>,
        ready: Ready,
    ) {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("testbed-fleet")
            .enable_all()
            .build();
        match runtime {
            Ok(runtime) => runtime.block_on(self.live(commands, farewell, ready)),
            // Nobody waits if the starter gave up.
            Err(error) => drop(ready.send(Err(FleetError::Thread(error)))),
        }
    }

    async fn live(
        self,
        commands: mpsc::UnboundedReceiver<Envelope>,
        farewell: oneshot::Receiver<Farewell>,
        ready: Ready,
    ) {
        let (driver, client, events, control) = match self.prepare().await {
            Ok(prepared) => prepared,
            Err(error) => return drop(ready.send(Err(error))),
        };
        drop(ready.send(Ok(control)));
        driver.run(client, commands, events, farewell).await;
    }

    async fn prepare(
        self,
    ) -> Result<
        (
            Driver,
            Client,
            mpsc::UnboundedReceiver<engines::EngineEvent>,
            Option<SocketAddr>,
        ),
        FleetError,
    > {
        let Self {
            config,
            settings,
            addresses,
            commands,
        } = self;
        let connect =
            || Client::try_from(config.clone()).map_err(|e| FleetError::Client(e.to_string()));
        let control = match settings.control {
            None => None,
            Some(address) => Some(
                control::serve(address, commands)
                    .await
                    .map_err(|source| FleetError::Control { address, source })?,
            ),
        };
        let settings = Arc::new(settings);
        // Heartbeats have a connection of their own and never wait behind pods.
        let heartbeats = Heartbeats::new(connect()?, Arc::clone(&settings));
        let period = settings
            .lease_period
            .unwrap_or_else(|| lease_period(settings.nodes));
        tokio::spawn(heartbeats.clone().run(period));
        let (engines, events) = Engines::new(settings.engine_program.clone());
        let client = connect()?;
        Ok((
            Driver::new(client.clone(), settings, heartbeats, addresses, engines),
            client,
            events,
            control,
        ))
    }
}
