//! The process that starts the programs for us and ends them when we are gone, however we went.
//!
//! It is `controlplane supervise`. We hold its standard input: when this process ends (return, panic, abort, SIGKILL)
//! the kernel closes the pipe, the supervisor reads end of file and ends everything it started. Rust cannot promise that
//! alone: destructors of statics never run, and none run after a signal.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use serde_json::{Value, json};

use crate::process::ProcessId;

/// What to run.
#[derive(Debug, Clone)]
pub(crate) struct Job {
    pub(crate) name: String,
    pub(crate) program: PathBuf,
    pub(crate) arguments: Vec<String>,
    pub(crate) environment: BTreeMap<String, String>,
    /// Standard output and standard error are appended here.
    pub(crate) log: PathBuf,
    /// Time between SIGTERM and SIGKILL; zero for SIGKILL at once.
    pub(crate) grace: Duration,
}

/// The supervisor could not be started, or cannot do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum SupervisorError {
    /// It did not start.
    #[error("cannot start the supervisor {}", program.display())]
    Spawn {
        /// The control-plane binary.
        program: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// It no longer reads what we write.
    #[error("the supervisor does not answer; see {}", log.display())]
    Gone {
        /// Its log.
        log: PathBuf,
    },
    /// It refused.
    #[error("the supervisor cannot run {name}: {reason}")]
    Refused {
        /// The program's name.
        name: String,
        /// Its words.
        reason: String,
    },
}

/// A running supervisor and what is known of its children.
#[derive(Debug)]
pub struct Supervisor {
    process: ProcessId,
    input: Mutex<Option<ChildStdin>>,
    state: Arc<State>,
    log: PathBuf,
    /// Reaps the supervisor itself.
    child: Mutex<Child>,
    is_detached: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    children: Mutex<BTreeMap<String, Known>>,
    changed: Condvar,
}

#[derive(Debug, Clone)]
enum Known {
    Started(ProcessId),
    Exited(String),
    Refused(String),
    SupervisorGone,
}

impl Supervisor {
    pub(crate) fn spawn(program: &Path, log: &Path) -> Result<Self, SupervisorError> {
        let failed = |source| SupervisorError::Spawn {
            program: program.to_owned(),
            source,
        };
        let errors = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(log)
            .map_err(failed)?;
        let mut child = Command::new(program)
            .arg("supervise")
            // Collecting garbage took a seventh of the API server's time, with gigabytes of memory free.
            .env(
                "GOGC",
                std::env::var_os("GOGC").unwrap_or_else(|| "300".into()),
            )
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(errors)
            .spawn()
            .map_err(failed)?;
        let gone = || failed(io::Error::other("it ended at once"));
        let process = ProcessId::of(child.id()).ok_or_else(gone)?;
        let input = child.stdin.take();
        let output = child.stdout.take().ok_or_else(gone)?;
        let state = Arc::new(State::default());
        let reader = Arc::clone(&state);
        std::thread::Builder::new()
            .name("testbed-supervisor".to_owned())
            .spawn(move || reader.follow(BufReader::new(output)))
            .map_err(failed)?;
        Ok(Self {
            process,
            input: Mutex::new(input),
            state,
            log: log.to_owned(),
            child: Mutex::new(child),
            is_detached: AtomicBool::new(false),
        })
    }

    /// The supervisor's own process.
    #[must_use]
    pub fn process(&self) -> ProcessId {
        self.process
    }

    /// Starts a program and returns its process.
    pub(crate) fn start(&self, job: &Job) -> Result<ProcessId, SupervisorError> {
        self.state.children.lock().remove(&job.name);
        self.send(&json!({
            "op": "start",
            "name": job.name,
            "program": job.program,
            "args": job.arguments,
            "env": job.environment,
            "log": job.log,
            "graceSeconds": job.grace.as_secs_f64(),
        }))?;
        match self.state.wait_for(&job.name, |_| true) {
            Known::Started(process) => Ok(process),
            Known::Exited(reason) | Known::Refused(reason) => Err(SupervisorError::Refused {
                name: job.name.clone(),
                reason,
            }),
            Known::SupervisorGone => Err(SupervisorError::Gone {
                log: self.log.clone(),
            }),
        }
    }

    /// Ends one program: SIGTERM, after `grace` SIGKILL (at zero SIGKILL at once). Returns when it is gone.
    pub(crate) fn stop(&self, name: &str, grace: Duration) -> Result<(), SupervisorError> {
        self.send(&json!({"op": "stop", "name": name, "graceSeconds": grace.as_secs_f64()}))?;
        match self
            .state
            .wait_for(name, |known| !matches!(known, Known::Started(_)))
        {
            Known::Started(_) | Known::Exited(_) => Ok(()),
            Known::Refused(reason) => Err(SupervisorError::Refused {
                name: name.to_owned(),
                reason,
            }),
            Known::SupervisorGone => Err(SupervisorError::Gone {
                log: self.log.clone(),
            }),
        }
    }

    /// How a program ended, if it did.
    pub(crate) fn exit_of(&self, name: &str) -> Option<String> {
        match self.state.children.lock().get(name) {
            Some(Known::Exited(status)) => Some(status.clone()),
            Some(Known::SupervisorGone) => Some("the supervisor ended".to_owned()),
            Some(Known::Started(_) | Known::Refused(_)) | None => None,
        }
    }

    /// Removes `path` and all below it when the supervisor ends.
    pub(crate) fn remove_at_end(&self, path: &Path) -> Result<(), SupervisorError> {
        self.send(&json!({"op": "remove", "path": path}))
    }

    /// Lets the supervisor and its children outlive this process; [`crate::Instance::stop`] ends them.
    pub(crate) fn detach(&self) -> Result<(), SupervisorError> {
        self.send(&json!({"op": "detach"}))?;
        self.is_detached.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn send(&self, request: &Value) -> Result<(), SupervisorError> {
        let mut input = self.input.lock();
        let written = input
            .as_mut()
            .ok_or_else(|| io::Error::from(io::ErrorKind::BrokenPipe))
            .and_then(|input| {
                input.write_all(format!("{request}\n").as_bytes())?;
                input.flush()
            });
        written.map_err(|_| SupervisorError::Gone {
            log: self.log.clone(),
        })
    }
}

/// Unless detached: closes the pipe and waits until the supervisor and all its children are gone.
impl Drop for Supervisor {
    fn drop(&mut self) {
        drop(self.input.get_mut().take());
        if !self.is_detached.load(Ordering::Relaxed) {
            // Reaping fails only if somebody else did it.
            self.child.get_mut().wait().ok();
        }
    }
}

impl State {
    /// Reads events until the supervisor ends.
    fn follow(&self, events: impl BufRead) {
        for line in events.lines().map_while(Result::ok) {
            let Ok(event) = serde_json::from_str::<Value>(&line) else {
                continue;
            };
            let name = event["name"].as_str().unwrap_or_default().to_owned();
            let text = |key: &str| event[key].as_str().unwrap_or_default().to_owned();
            let known = match event["event"].as_str() {
                Some("started") => event["pid"]
                    .as_u64()
                    .and_then(|pid| u32::try_from(pid).ok())
                    .and_then(ProcessId::of)
                    .map_or_else(
                        || Known::Exited("it ended at once".to_owned()),
                        Known::Started,
                    ),
                Some("exited") => Known::Exited(text("status")),
                _ => Known::Refused(text("error")),
            };
            self.children.lock().insert(name, known);
            self.changed.notify_all();
        }
        let mut children = self.children.lock();
        for known in children.values_mut() {
            *known = Known::SupervisorGone;
        }
        // For those who wait for a name that has not been seen yet.
        children.insert(String::new(), Known::SupervisorGone);
        self.changed.notify_all();
    }

    fn wait_for(&self, name: &str, enough: impl Fn(&Known) -> bool) -> Known {
        let mut children = self.children.lock();
        loop {
            if let Some(known) = children.get(name).filter(|known| enough(known)) {
                return known.clone();
            }
            if children.contains_key("") {
                return Known::SupervisorGone;
            }
            self.changed.wait(&mut children);
        }
    }
}
