//! `up`, `down`, `status`, `env`, `kubeconfig`, `kubectl`.

use std::os::unix::process::CommandExt;
use std::process::{self, ExitCode};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use coppice_testbed::{
    Component, ExtraProcess, Identity, Instance, Liveness, Profile, Settings, Started,
    control_plane_program, start,
};

use super::demo::{Places, Programs};
use super::{Which, complain, duration, fleet, say};

#[derive(Debug, Args)]
pub(crate) struct Up {
    #[command(flatten)]
    which: Which,
    /// native: Workload, PodGroup and CompositePodGroup; native-flat: no CompositePodGroup; plain: no gang scheduling.
    #[arg(long, default_value_t = Profile::Native)]
    profile: Profile,
    /// Write no audit log.
    #[arg(long)]
    no_audit: bool,
    /// How long a node may be silent before it counts as unreachable.
    #[arg(long, value_parser = duration, default_value = "10s")]
    node_grace: Duration,
    /// How long pods stay bound to a lost node before they are evicted; whole seconds.
    #[arg(long, value_parser = duration, default_value = "3s")]
    eviction_delay: Duration,
    /// How often the HorizontalPodAutoscaler controller looks.
    #[arg(long, value_parser = duration, default_value = "2s")]
    hpa_sync: Duration,
    /// How long each program may take to become healthy.
    #[arg(long, value_parser = duration, default_value = "3m")]
    start_limit: Duration,
    /// A further argument for etcd; repeatable.
    #[arg(long, value_name = "ARGUMENT", allow_hyphen_values = true)]
    etcd_arg: Vec<String>,
    /// A further argument for kube-apiserver; repeatable.
    #[arg(long, value_name = "ARGUMENT", allow_hyphen_values = true)]
    api_server_arg: Vec<String>,
    /// A further argument for kube-controller-manager; repeatable.
    #[arg(long, value_name = "ARGUMENT", allow_hyphen_values = true)]
    controller_manager_arg: Vec<String>,
    /// A further argument for kube-scheduler; repeatable.
    #[arg(long, value_name = "ARGUMENT", allow_hyphen_values = true)]
    scheduler_arg: Vec<String>,
    /// Start the operator, the adapter, the scaler and a gateway too (programs beside this one), as `make up` does.
    #[arg(long)]
    with_coppice: bool,
    #[command(flatten)]
    fleet: fleet::FleetArguments,
}

impl Up {
    pub(crate) async fn run(self) -> anyhow::Result<ExitCode> {
        let Which { name, dir } = &self.which;
        if let Ok(instance) = Instance::load(dir, name)
            && instance.liveness() == Liveness::Running
            && instance.profile == self.profile
        {
            complain(&format!("testbed {name:?} is running already"));
            say(&instance.kubeconfig().display().to_string());
            return Ok(ExitCode::SUCCESS);
        }
        let begin = Instant::now();
        let mut started = start(&self.settings(), name).await?;
        if self.fleet.nodes > 0 {
            started.run_beside(&ExtraProcess {
                name: "fleet".to_owned(),
                program: std::env::current_exe().context("cannot find this program's own file")?,
                arguments: self.fleet.for_instance(&self.which),
                grace: Duration::from_secs(10),
            })?;
            fleet::await_nodes(&started, &self.fleet).await?;
        }
        let started = if self.with_coppice {
            self.start_coppice(started).await?
        } else {
            started
        };
        started.detach()?;
        complain(&format!(
            "testbed {name:?} ({}, profile {}) is up after {:.1} s; logs in {}",
            started.instance.kube_version,
            self.profile,
            begin.elapsed().as_secs_f64(),
            started.instance.logs().display(),
        ));
        say(&started.instance.kubeconfig().display().to_string());
        Ok(ExitCode::SUCCESS)
    }

    async fn start_coppice(&self, started: Started) -> anyhow::Result<Started> {
        let places = Places::new(
            self.which.name.clone(),
            self.which.dir.clone(),
            "samples".into(),
        );
        let mut programs = Programs::beside(started)?;
        programs.start_coppice(&places).await?;
        complain(&format!(
            "scaler: {}  gateway: {}",
            programs.scaler_page(),
            programs.gateway_url()
        ));
        Ok(programs.into_started())
    }

    fn settings(&self) -> Settings {
        let extra_arguments = [
            (Component::Etcd, self.etcd_arg.clone()),
            (Component::ApiServer, self.api_server_arg.clone()),
            (
                Component::ControllerManager,
                self.controller_manager_arg.clone(),
            ),
            (Component::Scheduler, self.scheduler_arg.clone()),
        ];
        Settings {
            profile: self.profile,
            root: self.which.dir.clone(),
            audit: !self.no_audit,
            // With many nodes leases are renewed less often; a node must not be lost for that.
            node_grace: self.node_grace.max(self.fleet.lease_period() * 4),
            eviction_delay: self.eviction_delay,
            hpa_sync: self.hpa_sync,
            start_limit: self.start_limit,
            extra_arguments: extra_arguments.into(),
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct Down {
    #[command(flatten)]
    which: Which,
    /// End every control plane in the folder, except those that belong to running tests.
    #[arg(long, conflicts_with = "name")]
    all: bool,
    /// Remove the logs too.
    #[arg(long)]
    purge: bool,
}

impl Down {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let instances = if self.all {
            Instance::all(&self.which.dir)
                .into_iter()
                .filter(|instance| {
                    !instance.name.starts_with("test-") || instance.liveness() == Liveness::Dead
                })
                .collect()
        } else {
            vec![self.which.instance()?]
        };
        if instances.is_empty() {
            complain(&format!("nothing to end in {}", self.which.dir.display()));
        }
        for instance in instances {
            instance.stop()?;
            if self.purge {
                std::fs::remove_dir_all(&instance.folder)
                    .with_context(|| format!("cannot remove {}", instance.folder.display()))?;
            }
            complain(&format!("testbed {:?} is down", instance.name));
        }
        Ok(ExitCode::SUCCESS)
    }
}

#[derive(Debug, Args)]
pub(crate) struct Status {
    /// The control plane's name; without it, all are listed.
    #[arg(long, env = "COPPICE_TESTBED_NAME")]
    name: Option<String>,
    /// The folder in which every control plane has its own.
    #[arg(long, env = "COPPICE_TESTBED_DIR", default_value_os_t = coppice_testbed::default_root())]
    dir: std::path::PathBuf,
    /// Print the records as JSON.
    #[arg(long)]
    json: bool,
}

impl Status {
    /// Exit code 0 when everything asked for runs, 1 otherwise.
    pub(crate) async fn run(self) -> anyhow::Result<ExitCode> {
        let instances = match &self.name {
            Some(name) => vec![Instance::load(&self.dir, name)?],
            None => Instance::all(&self.dir),
        };
        if self.json {
            say(&serde_json::to_string_pretty(&instances)?);
        } else {
            for instance in &instances {
                say(&describe(instance));
                if let Some(state) = fleet::state(instance).await {
                    say(&format!("  fleet: {state}"));
                }
            }
            if instances.is_empty() {
                say(&format!(
                    "no testbed in {}; start one with `coppice-testbed up`",
                    self.dir.display()
                ));
            }
        }
        let running =
            !instances.is_empty() && instances.iter().all(|i| i.liveness() == Liveness::Running);
        Ok(if running {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }
}

fn describe(instance: &Instance) -> String {
    let state = match instance.liveness() {
        Liveness::Running => "running".to_owned(),
        Liveness::Degraded { ended } => format!("degraded, ended: {}", ended.join(", ")),
        Liveness::Dead => "dead".to_owned(),
    };
    let processes: Vec<_> = instance
        .processes
        .iter()
        .map(|record| format!("{} {}", record.name, record.process.pid))
        .collect();
    format!(
        "{}: {state}\n  Kubernetes {}, profile {}, {}\n  kubeconfig: {}\n  logs: {}\n  processes: {}",
        instance.name,
        instance.kube_version,
        instance.profile,
        instance.server,
        instance.kubeconfig().display(),
        instance.logs().display(),
        processes.join(", "),
    )
}

/// Prints `export KUBECONFIG=…`.
pub(crate) fn env(which: &Which) -> anyhow::Result<ExitCode> {
    let instance = which.instance()?;
    let quote = |path: std::path::PathBuf| {
        format!("'{}'", path.display().to_string().replace('\'', r"'\''"))
    };
    say(&format!(
        "export KUBECONFIG={}",
        quote(instance.kubeconfig())
    ));
    Ok(ExitCode::SUCCESS)
}

#[derive(Debug, Args)]
pub(crate) struct KubeconfigArguments {
    #[command(flatten)]
    which: Which,
    /// Be treated as this user instead of the administrator.
    #[arg(long)]
    user: Option<String>,
    /// A group of the user; repeatable.
    #[arg(long, requires = "user")]
    group: Vec<String>,
    /// Be treated as this service account.
    #[arg(long, value_name = "NAMESPACE/NAME", conflicts_with = "user")]
    service_account: Option<String>,
}

impl KubeconfigArguments {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let instance = self.which.instance()?;
        let identity = match (self.user, self.service_account) {
            (Some(user), _) => Some(Identity {
                user,
                groups: self.group,
            }),
            (None, Some(account)) => {
                let (namespace, name) = account.split_once('/').with_context(|| {
                    format!("--service-account {account:?} is not NAMESPACE/NAME")
                })?;
                Some(Identity::service_account(namespace, name))
            }
            (None, None) => None,
        };
        let path = match identity {
            Some(identity) => instance.kubeconfig_as(&identity)?,
            None => instance.kubeconfig(),
        };
        say(&path.display().to_string());
        Ok(ExitCode::SUCCESS)
    }
}

#[derive(Debug, Args)]
pub(crate) struct Kubectl {
    #[command(flatten)]
    which: Which,
    /// kubectl's own arguments.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

impl Kubectl {
    /// Becomes kubectl; returns only if that fails.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let instance = self.which.instance()?;
        let program = control_plane_program()?;
        let error = process::Command::new(&program)
            .arg("kubectl")
            .args(self.arguments)
            .env("KUBECONFIG", instance.kubeconfig())
            .exec();
        Err(error).with_context(|| format!("cannot run {} kubectl", program.display()))
    }
}

/// Prints the version of the control-plane binary.
pub(crate) fn kube_version() -> anyhow::Result<ExitCode> {
    let program = control_plane_program()?;
    let output = process::Command::new(&program)
        .arg("version")
        .output()
        .with_context(|| format!("cannot run {}", program.display()))?;
    say(String::from_utf8_lossy(&output.stdout).trim());
    Ok(if output.status.success() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
