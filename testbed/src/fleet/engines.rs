//! Simulated engines, served by one child process `coppice-loadtest engine --hosted` for the whole fleet.
//!
//! We speak JSON lines with it over its standard input and output. It ends when we close its input, so it never outlives
//! this process. It is started with the first engine, and again when it ended.

use std::collections::HashSet;
use std::env;
use std::net::SocketAddrV4;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use tracing::{info, warn};

/// The program that serves engines.
const PROGRAM: &str = "coppice-loadtest";
/// Names it when set.
const PROGRAM_VARIABLE: &str = "COPPICE_LOADTEST";

/// What the child process tells us. `id` is `NAMESPACE/POD`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(tag = "event", rename_all = "camelCase")]
pub(super) enum EngineEvent {
    /// It answers requests.
    Listening {
        /// Which engine.
        id: String,
    },
    /// It finished its requests.
    Drained {
        /// Which engine.
        id: String,
    },
    /// It could not start, or ended.
    Failed {
        /// Which engine; absent when the child could not tell.
        #[serde(default)]
        id: String,
        /// Why.
        error: String,
    },
    /// The child process ended, and all engines with it.
    #[serde(skip)]
    AllEnded(String),
}

/// The child process and the way to it.
#[derive(Debug)]
pub(super) struct Engines {
    program: Option<PathBuf>,
    child: Option<Running>,
    events: mpsc::UnboundedSender<EngineEvent>,
    /// Engines that were started and did not end yet, as far as we were told.
    open: HashSet<String>,
    /// All metrics stand still.
    frozen: bool,
}

#[derive(Debug)]
struct Running {
    child: Child,
    requests: mpsc::UnboundedSender<Value>,
}

impl Engines {
    /// No process is started yet. Events come out of the second value.
    pub(super) fn new(program: Option<PathBuf>) -> (Self, mpsc::UnboundedReceiver<EngineEvent>) {
        let (events, receiver) = mpsc::unbounded_channel();
        (
            Self {
                program,
                child: None,
                events,
                open: HashSet::new(),
                frozen: false,
            },
            receiver,
        )
    }

    /// Serves an engine at `address`. Failing is an event, too.
    pub(super) fn start(&mut self, id: &str, address: SocketAddrV4, arguments: &[String]) {
        if self.child.is_none()
            && let Err(error) = self.spawn()
        {
            self.open.insert(id.to_owned());
            self.emit(EngineEvent::Failed {
                id: id.to_owned(),
                error,
            });
            return;
        }
        self.open.insert(id.to_owned());
        self.send(
            json!({"op": "start", "id": id, "address": address.to_string(), "args": arguments}),
        );
    }

    /// Whether the engine was started and did not end.
    pub(super) fn is_open(&self, id: &str) -> bool {
        self.open.contains(id)
    }

    /// Lets an engine finish its requests, within `grace`.
    pub(super) fn drain(&mut self, id: &str, grace: Duration) {
        if self.is_open(id) {
            self.send(json!({"op": "drain", "id": id, "graceSeconds": grace.as_secs_f64()}));
        }
    }

    /// Ends an engine at once, if it did not end yet.
    pub(super) fn stop(&mut self, id: &str) {
        if self.open.remove(id) {
            self.send(json!({"op": "stop", "id": id}));
        }
    }

    /// Takes note of what an event says. Whether it is about an engine that is open: one that was stopped in the
    /// meantime has nothing to tell any more.
    pub(super) fn note(&mut self, event: &EngineEvent) -> bool {
        match event {
            EngineEvent::Listening { id } => self.open.contains(id),
            EngineEvent::Drained { id } | EngineEvent::Failed { id, .. } => self.open.remove(id),
            EngineEvent::AllEnded(_) => {
                self.open.clear();
                self.child = None;
                true
            }
        }
    }

    /// Lets the metrics of one engine, or of all present and future ones, stand still, or move again.
    pub(super) fn freeze(&mut self, id: Option<&str>, frozen: bool) {
        if id.is_none() {
            self.frozen = frozen;
        }
        self.send(json!({"op": "freezeMetrics", "id": id, "frozen": frozen}));
    }

    /// Closes the child's input and waits for its end.
    pub(super) async fn end(&mut self) {
        if let Some(Running {
            mut child,
            requests,
        }) = self.child.take()
        {
            drop(requests);
            if tokio::time::timeout(Duration::from_secs(5), child.wait())
                .await
                .is_err()
            {
                warn!("the engine process does not end; killing it");
                // It may have ended by now; then there is nothing to kill.
                drop(child.kill().await);
            }
        }
    }

    fn send(&mut self, request: Value) {
        if let Some(running) = &self.child {
            // A closed channel means that the child ended, which is an event of its own.
            drop(running.requests.send(request));
        }
    }

    fn emit(&self, event: EngineEvent) {
        // The receiver lives as long as the fleet.
        drop(self.events.send(event));
    }

    fn spawn(&mut self) -> Result<(), String> {
        let program = self.find()?;
        let mut child = Command::new(&program)
            .args(["engine", "--hosted", "--log-level=warn"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|e| format!("cannot start {}: {e}", program.display()))?;
        let (Some(mut input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(format!(
                "{} has no standard input or output",
                program.display()
            ));
        };
        info!(program = %program.display(), "serving engines");
        let (requests, mut queue) = mpsc::unbounded_channel::<Value>();
        tokio::spawn(async move {
            while let Some(request) = queue.recv().await {
                if input
                    .write_all(format!("{request}\n").as_bytes())
                    .await
                    .is_err()
                {
                    return;
                }
            }
        });
        let events = self.events.clone();
        tokio::spawn(async move {
            let mut lines = BufReader::new(output).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                match serde_json::from_str(&line) {
                    Ok(event) => drop(events.send(event)),
                    Err(error) => {
                        warn!(%line, %error, "the engine process says something else than events")
                    }
                }
            }
            drop(events.send(EngineEvent::AllEnded("the engine process ended".to_owned())));
        });
        self.child = Some(Running { child, requests });
        if self.frozen {
            self.send(json!({"op": "freezeMetrics", "id": null, "frozen": true}));
        }
        Ok(())
    }

    /// The setting, the environment, or a file beside this executable (test programs lie one folder deeper).
    fn find(&self) -> Result<PathBuf, String> {
        if let Some(program) = self
            .program
            .clone()
            .or_else(|| env::var_os(PROGRAM_VARIABLE).map(PathBuf::from))
        {
            return Ok(program);
        }
        let own =
            env::current_exe().map_err(|e| format!("cannot find this program's own file: {e}"))?;
        own.ancestors().skip(1).take(2).map(|folder| folder.join(PROGRAM)).find(|path| path.is_file()).ok_or_else(|| {
            format!(
                "no {PROGRAM} beside {}; build it with `cargo build -p {PROGRAM}`, or name it with --engine-program or \
                 {PROGRAM_VARIABLE}",
                own.display()
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    async fn next(events: &mut mpsc::UnboundedReceiver<EngineEvent>) -> EngineEvent {
        tokio::time::timeout(Duration::from_secs(10), events.recv())
            .await
            .unwrap()
            .unwrap()
    }

    /// A stand-in that answers every start by `listening` for a/b, and ends at "stop".
    fn stand_in(folder: &std::path::Path) -> PathBuf {
        let program = folder.join("engine");
        let script = "#!/bin/sh\n[ \"$1 $2\" = 'engine --hosted' ] || exit 1\nwhile read -r line; do case $line in\n\
                      *'\"op\":\"start\"'*) echo '{\"event\":\"listening\",\"id\":\"a/b\"}';;\n\
                      *'\"op\":\"drain\"'*) echo '{\"event\":\"drained\",\"id\":\"a/b\"}';;\n\
                      *'\"op\":\"stop\"'*) exit 0;;\nesac; done\n";
        std::fs::write(&program, script).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        program
    }

    #[tokio::test]
    async fn engines_are_served_by_one_child_that_is_started_again_when_it_ended() {
        let folder = tempfile::tempdir().unwrap();
        let (mut engines, mut events) = Engines::new(Some(stand_in(folder.path())));
        let address = "127.64.0.1:8000".parse().unwrap();
        let id = || "a/b".to_owned();
        engines.stop("a/b");
        engines.start("a/b", address, &[]);
        assert_eq!(
            next(&mut events).await,
            EngineEvent::Listening { id: id() },
            "nothing was stopped"
        );
        engines.drain("a/b", Duration::from_secs(1));
        let drained = next(&mut events).await;
        assert_eq!(drained, EngineEvent::Drained { id: id() });
        assert!(engines.note(&drained) && !engines.note(&drained) && !engines.is_open("a/b"));

        engines.start("a/b", address, &[]);
        assert_eq!(next(&mut events).await, EngineEvent::Listening { id: id() });
        engines.stop("a/b");
        let ended = next(&mut events).await;
        assert!(matches!(ended, EngineEvent::AllEnded(_)));
        engines.note(&ended);
        engines.start("a/b", address, &[]);
        assert_eq!(next(&mut events).await, EngineEvent::Listening { id: id() });
        engines.end().await;
    }

    #[tokio::test]
    async fn a_missing_program_fails_the_engine_and_names_the_way_out() {
        let (mut engines, mut events) =
            Engines::new(Some(PathBuf::from("/nonexistent/coppice-loadtest")));
        engines.start("a/b", "127.64.0.1:8000".parse().unwrap(), &[]);
        let EngineEvent::Failed { id, error } = next(&mut events).await else {
            panic!()
        };
        assert_eq!(id, "a/b");
        assert!(error.contains("/nonexistent/coppice-loadtest"), "{error}");
    }
}
