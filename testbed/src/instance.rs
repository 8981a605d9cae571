//! The record of a running control plane, in its folder: how others find it, use it and end it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::components::Ports;
use crate::kubeconfig::{self, Identity};
use crate::process::{self, ProcessId};
use crate::profile::Profile;

/// A control plane that was started, maybe by another process, and what is written about it.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Instance {
    /// Its name, the last part of its folder.
    pub name: String,
    /// Where everything about it lies.
    pub folder: PathBuf,
    /// Which workload APIs it serves.
    pub profile: Profile,
    /// The server's version, as in `v1.37.2`.
    pub kube_version: String,
    /// The API server's address.
    pub server: String,
    /// All ports.
    pub ports: Ports,
    /// The process that owns the others.
    pub supervisor: ProcessId,
    /// The supervised processes, in their order of start.
    pub processes: Vec<ProcessRecord>,
}

/// One supervised process.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessRecord {
    /// For instance `kube-scheduler`; its log is `logs/<name>.log`.
    pub name: String,
    /// The process.
    #[serde(flatten)]
    pub process: ProcessId,
}

/// How much of an instance runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Liveness {
    /// Everything.
    Running,
    /// The supervisor, but not these.
    Degraded {
        /// Names of the processes that ended.
        ended: Vec<String>,
    },
    /// Nothing owns it any more.
    Dead,
}

/// A recorded instance cannot be found, read or ended.
#[derive(Debug, thiserror::Error)]
pub enum InstanceError {
    /// There is no record.
    #[error("no testbed named {name:?} in {}; start one with `coppice-testbed up --name {name}`", root.display())]
    Absent {
        /// The name that was asked for.
        name: String,
        /// Where it was looked for.
        root: PathBuf,
    },
    /// The record cannot be used.
    #[error("cannot {doing} {}", path.display())]
    Io {
        /// What was being done.
        doing: &'static str,
        /// To which file.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// Some processes do not end.
    #[error("processes {pids:?} of testbed {name:?} do not end; look at them with `ps`")]
    Stuck {
        /// The instance.
        name: String,
        /// The kernel's numbers.
        pids: Vec<i32>,
    },
}

const RECORD: &str = "instance.json";

impl Instance {
    /// Reads the record of `name` below `root`.
    ///
    /// # Errors
    ///
    /// There is none, or it cannot be read.
    pub fn load(root: &Path, name: &str) -> Result<Self, InstanceError> {
        let path = root.join(name).join(RECORD);
        match fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text).map_err(|e| InstanceError::Io {
                doing: "read",
                path,
                source: io::Error::from(e),
            }),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Err(InstanceError::Absent {
                name: name.to_owned(),
                root: root.to_owned(),
            }),
            Err(source) => Err(InstanceError::Io {
                doing: "read",
                path,
                source,
            }),
        }
    }

    /// All instances recorded below `root`, by name. Unreadable ones are left out.
    #[must_use]
    pub fn all(root: &Path) -> Vec<Self> {
        let mut names: Vec<String> = fs::read_dir(root)
            .into_iter()
            .flatten()
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .collect();
        names.sort();
        names
            .iter()
            .filter_map(|name| Self::load(root, name).ok())
            .collect()
    }

    pub(crate) fn save(&self) -> io::Result<()> {
        // Written beside and renamed, so that a reader never sees half of it.
        let path = self.folder.join(RECORD);
        let fresh = path.with_extension("new");
        fs::write(&fresh, serde_json::to_vec_pretty(self)?)?;
        fs::rename(fresh, path)
    }

    /// The administrator's kubeconfig.
    #[must_use]
    pub fn kubeconfig(&self) -> PathBuf {
        self.folder.join("kubeconfig")
    }

    /// The folder of the programs' logs, `<program>.log` each.
    #[must_use]
    pub fn logs(&self) -> PathBuf {
        self.folder.join("logs")
    }

    /// The audit log, if the instance was started with one.
    #[must_use]
    pub fn audit_log(&self) -> PathBuf {
        audit_log(&self.folder)
    }

    /// A kubeconfig whose bearer is treated as `identity`; the file is made when it is not there.
    ///
    /// # Errors
    ///
    /// A file cannot be read or written.
    pub fn kubeconfig_as(&self, identity: &Identity) -> Result<PathBuf, InstanceError> {
        let path = self.folder.join("kubeconfigs").join(file_name(identity));
        let failed = |source| InstanceError::Io {
            doing: "write",
            path: path.clone(),
            source,
        };
        let admin = fs::read(self.kubeconfig()).map_err(failed)?;
        let admin = serde_json::from_slice(&admin).map_err(|e| failed(e.into()))?;
        kubeconfig::write(&path, &kubeconfig::with_identity(admin, identity)).map_err(failed)?;
        Ok(path)
    }

    /// Whether its processes still run.
    #[must_use]
    pub fn liveness(&self) -> Liveness {
        if !self.supervisor.is_alive() {
            return Liveness::Dead;
        }
        let ended: Vec<_> = self
            .processes
            .iter()
            .filter(|p| !p.process.is_alive())
            .map(|record| record.name.clone())
            .collect();
        if ended.is_empty() {
            Liveness::Running
        } else {
            Liveness::Degraded { ended }
        }
    }

    /// Ends exactly the recorded processes, then removes everything but the logs. Ending what already ended is fine.
    ///
    /// # Errors
    ///
    /// A process does not end, or the folder cannot be cleaned.
    pub fn stop(&self) -> Result<(), InstanceError> {
        // The supervisor ends its children in order; 30 s is more than any of them has for an orderly end.
        self.supervisor.signal(Signal::SIGTERM);
        let mut all: Vec<_> = self.processes.iter().map(|record| record.process).collect();
        all.push(self.supervisor);
        if !process::await_end(&all, Duration::from_secs(30)) {
            for process in &all {
                process.signal_group(Signal::SIGKILL);
            }
            if !process::await_end(&all, Duration::from_secs(10)) {
                let pids = all
                    .iter()
                    .filter(|process| process.is_alive())
                    .map(|process| process.pid)
                    .collect();
                return Err(InstanceError::Stuck {
                    name: self.name.clone(),
                    pids,
                });
            }
        }
        clean(&self.folder).map_err(|source| InstanceError::Io {
            doing: "clean",
            path: self.folder.clone(),
            source,
        })
    }
}

pub(crate) fn audit_log(folder: &Path) -> PathBuf {
    folder.join("logs/audit.log")
}

/// Removes everything in an instance's folder but its logs. A folder that is not there is clean.
pub(crate) fn clean(folder: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(folder) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        if entry.file_name() == "logs" {
            continue;
        }
        if entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())?
        } else {
            fs::remove_file(entry.path())?
        }
    }
    Ok(())
}

/// A file name for an identity: readable, and different for different identities.
fn file_name(identity: &Identity) -> String {
    let mut name = String::new();
    for part in std::iter::once(&identity.user).chain(&identity.groups) {
        if !name.is_empty() {
            name.push('+');
        }
        for byte in part.bytes() {
            match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' => {
                    name.push(char::from(byte))
                }
                _ => name.push_str(&format!("%{byte:02x}")),
            }
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_have_files_of_their_own() {
        let user = |user: &str, groups: &[&str]| {
            file_name(&Identity {
                user: user.to_owned(),
                groups: groups.iter().map(ToString::to_string).collect(),
            })
        };
        assert_eq!(
            user("system:serviceaccount:a:b", &[]),
            "system%3aserviceaccount%3aa%3ab"
        );
        assert_ne!(user("a", &["b"]), user("a+b", &[]));
        assert!(!user("../x", &[]).contains('/'));
    }

    #[test]
    fn a_record_reads_back_and_a_missing_one_names_the_next_step() {
        let root = tempfile::tempdir().unwrap();
        let me = ProcessId::of(std::process::id()).unwrap();
        let folder = root.path().join("demo");
        fs::create_dir_all(folder.join("logs")).unwrap();
        let instance = Instance {
            name: "demo".to_owned(),
            folder: folder.clone(),
            profile: Profile::NativeFlat,
            kube_version: "v1.37.2".to_owned(),
            server: "https://127.0.0.1:3".to_owned(),
            ports: Ports {
                etcd: 1,
                etcd_peer: 2,
                api_server: 3,
                controller_manager: 4,
                scheduler: 5,
            },
            supervisor: me,
            processes: vec![ProcessRecord {
                name: "etcd".to_owned(),
                process: ProcessId { started: 0, ..me },
            }],
        };
        instance.save().unwrap();
        let read = Instance::load(root.path(), "demo").unwrap();
        assert_eq!(
            read.liveness(),
            Liveness::Degraded {
                ended: vec!["etcd".to_owned()]
            }
        );
        assert_eq!(Instance::all(root.path()).len(), 1);

        let error = Instance::load(root.path(), "other")
            .unwrap_err()
            .to_string();
        assert!(error.contains("up --name other"), "{error}");

        clean(&folder).unwrap();
        assert!(folder.join("logs").exists() && !folder.join(RECORD).exists());
    }
}
