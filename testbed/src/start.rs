//! Bringing a control plane up: files, processes, and waiting until it is usable.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;

use http::Request;
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::{Api, Client, Config};

use crate::components::{self, Component, Places, Ports};
use crate::home::{self, ControlPlaneMissing};
use crate::instance::{self, Instance, Liveness, ProcessRecord};
use crate::kubeconfig;
use crate::pki::{Pki, PkiError};
use crate::ports;
use crate::settings::Settings;
use crate::supervisor::{Job, Supervisor, SupervisorError};
use crate::wait;

/// A control plane that runs as long as this value's process, or, once detached, until it is stopped.
#[derive(Debug)]
pub struct Started {
    /// The record, as written in its folder.
    pub instance: Instance,
    /// Connection settings of the administrator.
    pub config: Config,
    pub(crate) supervisor: Supervisor,
    pub(crate) jobs: BTreeMap<Component, Job>,
}

/// A program to run beside the control plane, under the same supervisor.
#[derive(Debug, Clone)]
pub struct ExtraProcess {
    /// Its name, also that of its log file.
    pub name: String,
    /// The executable.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// Time between SIGTERM and SIGKILL.
    pub grace: Duration,
}

/// A control plane did not come up.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The binary is not built.
    #[error(transparent)]
    ControlPlaneMissing(#[from] ControlPlaneMissing),
    /// One of this name runs, or is being started.
    #[error(
        "testbed {name:?} is already running or starting; use it, end it with `coppice-testbed down --name {name}`, or choose another --name"
    )]
    AlreadyRunning {
        /// Its name.
        name: String,
    },
    /// A name that cannot be a folder.
    #[error("testbed name {name:?} is not usable; use 1 to 63 letters, digits, '-' and '_'")]
    BadName {
        /// The name.
        name: String,
    },
    /// Files of the instance.
    #[error("cannot prepare {}", path.display())]
    Files {
        /// Which.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// Certificates.
    #[error("cannot prepare certificates")]
    Pki(#[from] PkiError),
    /// The supervisor.
    #[error(transparent)]
    Supervisor(#[from] SupervisorError),
    /// A program ended instead of becoming ready.
    #[error("{name} ended during the start ({status}); the end of {}:\n{tail}", log.display())]
    Ended {
        /// The program.
        name: String,
        /// How it ended.
        status: String,
        /// Its log.
        log: PathBuf,
        /// The last lines of it.
        tail: String,
    },
    /// A program is not ready in time.
    #[error("{name} is not ready after {limit:?} ({last}); the end of {}:\n{tail}", log.display())]
    NotReady {
        /// The program.
        name: String,
        /// The time it had.
        limit: Duration,
        /// What it answered last.
        last: String,
        /// Its log.
        log: PathBuf,
        /// The last lines of it.
        tail: String,
    },
    /// A client cannot be made from the kubeconfig that we wrote.
    #[error("cannot make a client from the testbed's kubeconfig: {0}")]
    Client(String),
}

/// Starts a control plane named `name` and returns when it is usable: all programs healthy, the default namespace's
/// service account there.
///
/// # Errors
///
/// See [`StartError`]. Whatever was started by then is ended.
pub async fn start(settings: &Settings, name: &str) -> Result<Started, StartError> {
    let program = home::control_plane_program()?;
    check_name(name)?;
    let folder = settings.root.join(name);
    let already_running = || StartError::AlreadyRunning {
        name: name.to_owned(),
    };
    if Instance::load(&settings.root, name)
        .is_ok_and(|instance| instance.liveness() != Liveness::Dead)
    {
        return Err(already_running());
    }
    create(&folder.join("logs"))?;
    let lock_path = folder.join("logs/.lock");
    let lock = fs::File::create(&lock_path).map_err(|source| StartError::Files {
        path: lock_path,
        source,
    })?;
    lock.try_lock().map_err(|_| already_running())?;

    // Another program may take a port between our look and the bind; then everything starts over with other ports.
    let mut attempt = 1;
    loop {
        match start_once(settings, name, &folder, &program).await {
            Err(StartError::Ended { tail, .. })
                if attempt < 3 && tail.contains("address already in use") =>
            {
                attempt += 1
            }
            Err(error) => {
                // Everything that ran has ended by now. What happened is in the logs, which stay.
                instance::clean(&folder).map_err(|source| StartError::Files {
                    path: folder.clone(),
                    source,
                })?;
                return Err(error);
            }
            Ok(started) => return Ok(started),
        }
    }
}

async fn start_once(
    settings: &Settings,
    name: &str,
    folder: &Path,
    program: &Path,
) -> Result<Started, StartError> {
    // The provider is the same for everyone in this workspace; that another crate installed it first is no error.
    drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
    instance::clean(folder).map_err(|source| StartError::Files {
        path: folder.to_owned(),
        source,
    })?;
    let [etcd, etcd_peer, api_server, controller_manager, scheduler] =
        ports::free().map_err(|source| StartError::Files {
            path: folder.to_owned(),
            source,
        })?;
    let ports = Ports {
        etcd,
        etcd_peer,
        api_server,
        controller_manager,
        scheduler,
    };
    let server = format!("https://127.0.0.1:{api_server}");
    let places = prepare(folder, &server)?;
    let logs = folder.join("logs");
    let jobs: BTreeMap<_, _> = Component::ALL
        .into_iter()
        .map(|component| {
            let job = Job {
                name: component.name().to_owned(),
                program: program.to_owned(),
                arguments: components::arguments(component, settings, ports, &places),
                environment: BTreeMap::new(),
                log: logs.join(format!("{component}.log")),
                // The data are thrown away: nothing to say goodbye to.
                grace: Duration::ZERO,
            };
            (component, job)
        })
        .collect();
    let supervisor_log = logs.join("supervisor.log");
    for log in jobs.values().map(|job| &job.log).chain([&supervisor_log]) {
        remove_old(log)?;
    }

    let supervisor = Supervisor::spawn(program, &supervisor_log)?;
    let mut instance = Instance {
        name: name.to_owned(),
        folder: folder.to_owned(),
        profile: settings.profile,
        kube_version: String::new(),
        server,
        ports,
        supervisor: supervisor.process(),
        processes: Vec::new(),
    };
    let config = kubeconfig::client_config(&instance.kubeconfig())
        .await
        .map_err(|e| StartError::Client(e.to_string()))?;
    let started = Started {
        instance: instance.clone(),
        config,
        supervisor,
        jobs,
    };
    let mut run = |component: Component| -> Result<(), StartError> {
        let process = started.supervisor.start(&started.jobs[&component])?;
        instance.processes.push(ProcessRecord {
            name: component.name().to_owned(),
            process,
        });
        instance.save().map_err(|source| StartError::Files {
            path: folder.to_owned(),
            source,
        })
    };
    run(Component::Etcd)?;
    run(Component::ApiServer)?;
    let client = started
        .ready(Component::ApiServer, settings.start_limit)
        .await?;
    run(Component::ControllerManager)?;
    run(Component::Scheduler)?;
    started
        .ready(Component::ControllerManager, settings.start_limit)
        .await?;
    started
        .ready(Component::Scheduler, settings.start_limit)
        .await?;
    // Pods are refused in a namespace without it; it also shows that the controllers work.
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), "default");
    started
        .until(
            Component::ControllerManager,
            settings.start_limit,
            || async {
                accounts
                    .get("default")
                    .await
                    .map(drop)
                    .map_err(|e| format!("service account default/default: {e}"))
            },
        )
        .await?;
    let version = client
        .apiserver_version()
        .await
        .map_err(|e| StartError::Client(e.to_string()))?;
    instance.kube_version = version.git_version;
    instance.save().map_err(|source| StartError::Files {
        path: folder.to_owned(),
        source,
    })?;
    Ok(Started {
        instance,
        ..started
    })
}

impl Started {
    /// Runs one more program under the same supervisor and writes it into the record.
    ///
    /// # Errors
    ///
    /// It does not start, or the record cannot be written.
    pub fn run_beside(&mut self, extra: &ExtraProcess) -> Result<(), StartError> {
        let log = self.instance.logs().join(format!("{}.log", extra.name));
        remove_old(&log)?;
        let process = self.supervisor.start(&Job {
            name: extra.name.clone(),
            program: extra.program.clone(),
            arguments: extra.arguments.clone(),
            environment: BTreeMap::new(),
            log,
            grace: extra.grace,
        })?;
        self.instance.processes.push(ProcessRecord {
            name: extra.name.clone(),
            process,
        });
        self.instance.save().map_err(|source| StartError::Files {
            path: self.instance.folder.clone(),
            source,
        })
    }

    /// How a program that was started beside the control plane ended, if it did.
    #[must_use]
    pub fn exit_of(&self, name: &str) -> Option<String> {
        self.supervisor.exit_of(name)
    }

    /// Lets everything outlive this process, until [`Instance::stop`].
    ///
    /// # Errors
    ///
    /// The supervisor is gone.
    pub fn detach(&self) -> Result<(), StartError> {
        Ok(self.supervisor.detach()?)
    }

    /// Waits until the program's own health check says so. Returns a client for it.
    pub(crate) async fn ready(
        &self,
        component: Component,
        limit: Duration,
    ) -> Result<Client, StartError> {
        let (port, path) = match component {
            Component::Etcd | Component::ApiServer => (self.instance.ports.api_server, "/readyz"),
            Component::ControllerManager => (self.instance.ports.controller_manager, "/healthz"),
            Component::Scheduler => (self.instance.ports.scheduler, "/readyz"),
        };
        let mut config = self.config.clone();
        config.cluster_url = format!("https://127.0.0.1:{port}")
            .parse()
            .map_err(|e| StartError::Client(format!("{e}")))?;
        let client = Client::try_from(config).map_err(|e| StartError::Client(e.to_string()))?;
        self.until(component, limit, || async {
            let request = Request::get(path)
                .body(Vec::new())
                .map_err(|e| e.to_string())?;
            client
                .request_text(request)
                .await
                .map(drop)
                .map_err(|e| e.to_string())
        })
        .await?;
        Ok(client)
    }

    /// Waits for `check`; fails early when any program of the control plane ends.
    async fn until<F, Fut>(
        &self,
        component: Component,
        limit: Duration,
        mut check: F,
    ) -> Result<(), StartError>
    where
        F: FnMut() -> Fut,
        Fut: Future<Output = Result<(), String>>,
    {
        let ended = || {
            self.jobs
                .values()
                .find_map(|job| Some((job, self.supervisor.exit_of(&job.name)?)))
        };
        let waited = wait::until(limit, component.name(), || {
            let ended = ended();
            let look = check();
            async move { if ended.is_some() { Ok(()) } else { look.await } }
        })
        .await;
        if let Some((job, status)) = ended() {
            return Err(StartError::Ended {
                name: job.name.clone(),
                status,
                log: job.log.clone(),
                tail: tail(&job.log),
            });
        }
        waited.map_err(|e| {
            let log = self.jobs[&component].log.clone();
            StartError::NotReady {
                name: component.name().to_owned(),
                limit,
                last: e.last,
                tail: tail(&log),
                log,
            }
        })
    }
}

/// Writes key material, kubeconfigs and configuration files.
fn prepare(folder: &Path, server: &str) -> Result<Places, StartError> {
    let pki = Pki::create(&folder.join("pki"))?;
    let places = Places {
        etcd_data: folder.join("etcd"),
        audit_policy: folder.join("audit-policy.json"),
        audit_log: instance::audit_log(folder),
        scheduler_configuration: folder.join("scheduler.json"),
        controller_manager_kubeconfig: folder.join("kubeconfigs/kube-controller-manager"),
        scheduler_kubeconfig: folder.join("kubeconfigs/kube-scheduler"),
        pki,
    };
    let pki = &places.pki;
    let files = |path: &Path, written: io::Result<()>| {
        written.map_err(|source| StartError::Files {
            path: path.to_owned(),
            source,
        })
    };
    for (path, config) in [
        (
            &folder.join("kubeconfig"),
            &kubeconfig::build(server, pki, &pki.admin),
        ),
        (
            &places.controller_manager_kubeconfig,
            &kubeconfig::build(server, pki, &pki.controller_manager),
        ),
        (
            &places.scheduler_kubeconfig,
            &kubeconfig::build(server, pki, &pki.scheduler),
        ),
    ] {
        files(path, kubeconfig::write(path, config))?;
    }
    for (path, value) in [
        (&places.audit_policy, components::audit_policy()),
        (
            &places.scheduler_configuration,
            components::scheduler_configuration(&places.scheduler_kubeconfig),
        ),
    ] {
        files(path, fs::write(path, value.to_string()))?;
    }
    let audit = fs::File::create(&places.audit_log);
    files(&places.audit_log, audit.map(drop))?;
    Ok(places)
}

/// A log tells about this start, not about the last one.
fn remove_old(log: &Path) -> Result<(), StartError> {
    match fs::remove_file(log) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(StartError::Files {
            path: log.to_owned(),
            source,
        }),
        Ok(()) | Err(_) => Ok(()),
    }
}

fn check_name(name: &str) -> Result<(), StartError> {
    let usable = (1..=63).contains(&name.len())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_');
    if usable {
        Ok(())
    } else {
        Err(StartError::BadName {
            name: name.to_owned(),
        })
    }
}

fn create(folder: &Path) -> Result<(), StartError> {
    fs::create_dir_all(folder).map_err(|source| StartError::Files {
        path: folder.to_owned(),
        source,
    })
}

/// The last lines of a log, at most 4 kB.
fn tail(log: &Path) -> String {
    let read = || -> io::Result<String> {
        let mut file = fs::File::open(log)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(4096)))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    let text = read().unwrap_or_else(|e| format!("(cannot be read: {e})"));
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(15)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_inside_the_root() {
        for bad in ["", "..", "a/b", "a b", &"x".repeat(64)] {
            assert!(check_name(bad).is_err(), "{bad:?}");
        }
        check_name("demo-2_x").unwrap();
    }

    #[test]
    fn the_tail_is_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("x.log");
        let text: Vec<_> = (0..5000).map(|i| format!("line {i}")).collect();
        fs::write(&log, text.join("\n")).unwrap();
        let tail = tail(&log);
        assert!(
            tail.starts_with("line 4985\n") && tail.ends_with("line 4999"),
            "{tail}"
        );
    }
}
