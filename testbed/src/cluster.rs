//! A control plane for tests: it lives as long as the value, and never longer than the process.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::core::v1::{Namespace, Pod, ServiceAccount};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, Client, Config};

use crate::audit::AuditLog;
use crate::components::Component;
use crate::instance::{Instance, InstanceError, Liveness};
use crate::kubeconfig::Identity;
use crate::profile::Profile;
use crate::settings::Settings;
use crate::start::{StartError, Started, start};
use crate::wait;

/// A control plane of this process. Dropping it ends every process of it; so does the end of this process, by whatever
/// way. Its logs stay in its folder for a day.
#[derive(Debug)]
pub struct Cluster {
    started: Started,
    kubeconfig: PathBuf,
    start_limit: Duration,
}

/// A namespace could not be made usable.
#[derive(Debug, thiserror::Error)]
pub enum NamespaceError {
    /// The server refused it.
    #[error("cannot create a namespace named {prefix}…: {reason}")]
    Create {
        /// The prefix that was asked for.
        prefix: String,
        /// The server's words.
        reason: String,
    },
    /// Its default service account did not appear, so that pods would be refused.
    #[error("a new namespace did not become usable")]
    NotUsable(#[source] wait::WaitError),
}

impl Cluster {
    /// Starts a control plane with the default [`Settings`] of `profile`.
    ///
    /// # Errors
    ///
    /// See [`StartError`].
    pub async fn start(profile: Profile) -> Result<Self, StartError> {
        Self::start_with(Settings::new(profile)).await
    }

    /// Starts a control plane.
    ///
    /// # Errors
    ///
    /// See [`StartError`].
    pub async fn start_with(settings: Settings) -> Result<Self, StartError> {
        sweep(&settings.root);
        let name = format!(
            "{PREFIX}{}-{:08x}",
            std::process::id(),
            rand::random::<u32>()
        );
        let started = start(&settings, &name).await?;
        // Everything but the logs, which tell why a test failed.
        for part in [
            "etcd",
            "pki",
            "kubeconfigs",
            "kubeconfig",
            "instance.json",
            "scheduler.json",
            "audit-policy.json",
        ] {
            started
                .supervisor
                .remove_at_end(&started.instance.folder.join(part))?;
        }
        Ok(Self {
            kubeconfig: started.instance.kubeconfig(),
            started,
            start_limit: settings.start_limit,
        })
    }

    /// A client with all rights, bound to the calling runtime.
    #[must_use]
    pub fn client(&self) -> Client {
        Self::connect(self.config())
    }

    /// A client that the server treats as `user`, with `groups`.
    #[must_use]
    pub fn client_as(&self, user: &str, groups: &[&str]) -> Client {
        let mut config = self.config();
        config.auth_info.impersonate = Some(user.to_owned());
        config.auth_info.impersonate_groups =
            (!groups.is_empty()).then(|| groups.iter().map(ToString::to_string).collect());
        Self::connect(config)
    }

    fn connect(config: Config) -> Client {
        Client::try_from(config).expect("the same settings made a client during the start")
    }

    /// Connection settings with all rights.
    #[must_use]
    pub fn config(&self) -> Config {
        self.started.config.clone()
    }

    /// The administrator's kubeconfig, for programs under test.
    #[must_use]
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// A kubeconfig whose bearer is treated as `identity`.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn kubeconfig_as(&self, identity: &Identity) -> Result<PathBuf, InstanceError> {
        self.started.instance.kubeconfig_as(identity)
    }

    /// What is written about this control plane: ports, processes, logs.
    #[must_use]
    pub fn instance(&self) -> &Instance {
        &self.started.instance
    }

    /// The audit log of this control plane.
    #[must_use]
    pub fn audit(&self) -> AuditLog {
        AuditLog::new(self.started.instance.audit_log())
    }

    /// Creates a namespace that no other test has, named `prefix` and a random suffix, and waits until pods can be
    /// created in it.
    ///
    /// # Errors
    ///
    /// The server refuses it, or its service account does not come.
    pub async fn namespace(&self, prefix: &str) -> Result<String, NamespaceError> {
        namespace(&self.client(), prefix).await
    }

    /// Takes the pods and autoscalers out of a namespace that nobody needs any more. What a test leaves would go on costing
    /// a shared control plane: a pod that cannot be placed is tried again for ever. Blocks for as long as that takes, at
    /// most some seconds; a failure is no harm.
    pub fn abandon(&self, namespace: &str) {
        let (config, namespace) = (self.config(), namespace.to_owned());
        let work = move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            let Ok(runtime) = runtime else { return };
            let limit = Duration::from_secs(10);
            let clear = async { tokio::time::timeout(limit, clear(config, namespace)).await };
            drop(runtime.block_on(clear));
        };
        // The caller may be inside a runtime already, where nothing may block on another.
        drop(std::thread::spawn(work).join());
    }

    /// Ends one program of the control plane, as a crash would.
    ///
    /// # Errors
    ///
    /// It did not run.
    pub fn stop_component(&self, component: Component) -> Result<(), StartError> {
        Ok(self
            .started
            .supervisor
            .stop(component.name(), Duration::ZERO)?)
    }

    /// Starts a program that was stopped, with the same arguments and data, and waits until it is healthy.
    ///
    /// # Errors
    ///
    /// It does not come up.
    pub async fn start_component(&self, component: Component) -> Result<(), StartError> {
        self.started
            .supervisor
            .start(&self.started.jobs[&component])?;
        self.started
            .ready(component, self.start_limit)
            .await
            .map(drop)
    }
}

/// Creates a namespace of its own for one test on any cluster; see [`Cluster::namespace`].
pub(crate) async fn namespace(client: &Client, prefix: &str) -> Result<String, NamespaceError> {
    let mut wanted = Namespace::default();
    wanted.metadata.generate_name = Some(format!("{prefix}-"));
    let created = Api::<Namespace>::all(client.clone())
        .create(&PostParams::default(), &wanted)
        .await;
    let name = created
        .map_err(|e| NamespaceError::Create {
            prefix: prefix.to_owned(),
            reason: e.to_string(),
        })?
        .metadata
        .name
        .unwrap_or_default();
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), &name);
    wait::until(
        Duration::from_secs(60),
        "the default service account",
        || accounts.get("default"),
    )
    .await
    .map_err(NamespaceError::NotUsable)?;
    Ok(name)
}

async fn clear(config: Config, namespace: String) {
    let Ok(client) = Client::try_from(config) else {
        return;
    };
    let everything = ListParams::default();
    let autoscalers: Api<HorizontalPodAutoscaler> = Api::namespaced(client.clone(), &namespace);
    let at_once = DeleteParams::default().grace_period(0);
    // Without autoscalers first, these would ask for the pods again.
    drop(autoscalers.delete_collection(&at_once, &everything).await);
    let pods: Api<Pod> = Api::namespaced(client, &namespace);
    drop(pods.delete_collection(&at_once, &everything).await);
}

const PREFIX: &str = "test-";

/// Removes what tests of yesterday left: logs, and data where even the supervisor was killed.
fn sweep(root: &Path) {
    let day = Duration::from_secs(24 * 60 * 60);
    for entry in std::fs::read_dir(root).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str().filter(|name| name.starts_with(PREFIX)) else {
            continue;
        };
        let is_old = entry
            .metadata()
            .and_then(|data| data.modified())
            .is_ok_and(|time| {
                SystemTime::now()
                    .duration_since(time)
                    .is_ok_and(|age| age > day)
            });
        let is_dead = Instance::load(root, name)
            .map_or(true, |instance| instance.liveness() == Liveness::Dead);
        if is_old && is_dead {
            // Another test binary may be sweeping too.
            drop(std::fs::remove_dir_all(entry.path()));
        }
    }
}
