//! A real Kubernetes control plane and a make-believe data centre on one machine, without containers or root rights.
//!
//! [`Cluster`] starts etcd, kube-apiserver, kube-controller-manager and kube-scheduler (the binary that `make
//! controlplane` builds) under a folder of its own, with its own certificate authority and free ports; several run side
//! by side. [`fleet::Fleet`] plays the kubelets: nodes with GPUs, pods that start, become ready, fail, drain and go.
//!
//! In tests:
//!
//! ```no_run
//! # async fn example() -> anyhow::Result<()> {
//! use coppice_testbed::{Profile, shared, wait};
//! use k8s_openapi::api::core::v1::Node;
//! use kube::Api;
//! use std::time::Duration;
//!
//! let cluster = shared(Profile::Native).await?; // one per test binary, gone with the process
//! let namespace = cluster.namespace("scale-out").await?;
//! coppice_testbed::apply(&cluster.client(), "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}", &namespace).await?;
//! let nodes: Api<Node> = Api::all(cluster.client());
//! wait::until(Duration::from_secs(30), "four nodes", || async {
//!     let count = nodes.list(&Default::default()).await?.items.len();
//!     anyhow::ensure!(count == 4, "{count} nodes");
//!     Ok(())
//! })
//! .await?;
//! # Ok(()) }
//! ```
//!
//! Nothing here knows what Coppice's programs do with the cluster: the testbed depends on none of them, and they meet
//! it only through a kubeconfig.

mod apply;
pub mod audit;
mod cluster;
mod components;
pub mod dashboards;
pub mod figures;
pub mod fleet;
mod home;
mod instance;
mod kubeconfig;
mod pki;
mod ports;
mod process;
mod profile;
mod settings;
mod shared;
mod start;
mod supervisor;
pub mod wait;

pub use apply::{ApplyError, apply, manifests_below, parse_yaml};
pub use cluster::{Cluster, NamespaceError};
pub use components::{Component, Ports};
pub use home::{ControlPlaneMissing, control_plane_program, default_root};
pub use instance::{Instance, InstanceError, Liveness, ProcessRecord};
pub use kubeconfig::{Identity, client_config};
pub use pki::PkiError;
pub use process::ProcessId;
pub use profile::{Profile, UnknownProfile};
pub use settings::Settings;
pub use shared::shared;
pub use start::{ExtraProcess, StartError, Started, start};
pub use supervisor::{Supervisor, SupervisorError};
