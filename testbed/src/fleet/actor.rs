//! The life of one played pod as a state machine. Pure: it is told what happened and answers what to do.
//!
//!     scheduled ─▶ Held ─▶ Starting ─▶ Opening ─▶ Ready ─▶ Draining ─▶ gone
//!                  (gate)   (delay)    (engine)     │
//!                              ▲                    ▼ crash
//!                              └────────────── Down (backing off) or Ended (no restart)
//!
//! A pod whose node died is `Lost`: it does nothing until its node comes back or somebody deletes it.

use std::time::Duration;

use jiff::Timestamp;

use super::script::{Restart, Script};

/// What happened to a pod.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Input {
    /// All cliques that it starts after are ready.
    GateOpen,
    /// The time asked for by the last [`Effect::Wake`] has come.
    Woken,
    /// The engine answers requests.
    EngineListening,
    /// The engine finished its requests after a drain.
    EngineDrained,
    /// The engine could not start, or ended.
    EngineFailed(String),
    /// Somebody deleted the pod (again).
    Deleted { grace: Duration },
    /// A command: all containers end with this code; with `stay_down` they are not restarted until `Recover`.
    Crash { exit_code: i32, stay_down: bool },
    /// A command: start what was kept down.
    Recover,
    /// The node stopped.
    NodeDied,
    /// The node started again.
    NodeBack,
}

/// What to do about it, in this order.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Effect {
    /// The status changed and is worth writing.
    Publish,
    /// Give `Woken` after this time; it replaces an earlier wish.
    Wake(Duration),
    StartEngine,
    DrainEngine {
        grace: Duration,
    },
    StopEngine,
    /// Remove the pod object for good.
    Delete,
}

/// Where a pod is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// The gate is closed: an init container runs.
    Held,
    /// Containers run, the start-up delay runs.
    Starting,
    /// The engine was told to listen.
    Opening,
    /// Everything runs.
    Ready,
    /// Containers ended and wait to be restarted.
    Down { until_recovered: bool },
    /// Deleted, not yet gone.
    Draining,
    /// All containers ended for good.
    Ended { succeeded: bool },
    /// The node is dead.
    Lost,
    /// The object is being removed.
    Removed,
}

/// How the containers ended last.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Termination {
    pub(super) exit_code: i32,
    pub(super) message: String,
    pub(super) started_at: Timestamp,
    pub(super) finished_at: Timestamp,
}

/// Chosen by the fleet, not by the pod.
#[derive(Debug, Clone, Copy)]
pub(super) struct Conduct {
    /// The start-up delay if containers start now: that of start number [`Actor::starts`].
    pub(super) startup: Duration,
    /// Whether the site removes pods that a dead node cannot confirm to be gone.
    pub(super) fenced: bool,
    pub(super) now: Timestamp,
}

/// One pod in play.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Actor {
    pub(super) script: Script,
    pub(super) stage: Stage,
    pub(super) restarts: u32,
    pub(super) last: Option<Termination>,
    /// When the pod arrived here (`status.startTime`).
    pub(super) arrived: Timestamp,
    /// When the present containers started.
    pub(super) started: Timestamp,
    /// Starts so far, of all containers together.
    pub(super) starts: u32,
    /// The grace period of the deletion, once there is one.
    deletion: Option<Duration>,
    /// The node is dead.
    is_cut_off: bool,
}

/// Transitions that the next one follows within this time are not written: the server sees the second one.
const MERGED: Duration = Duration::from_millis(250);

/// A crashed container is not ready for at least this long, as with a kubelet, which looks once a second.
const SHORTEST_RESTART: Duration = Duration::from_secs(1);

impl Actor {
    /// A pod that was just scheduled. `gate_open`: it need not wait for other cliques.
    pub(super) fn arrive(script: Script, gate_open: bool, conduct: Conduct) -> (Self, Vec<Effect>) {
        let mut actor = Self::new(script, Stage::Held, conduct.now);
        let effects = if gate_open {
            actor.begin(conduct)
        } else {
            vec![Effect::Publish]
        };
        (actor, effects)
    }

    /// A pod that ran before this fleet did: it keeps what its status says.
    pub(super) fn adopt(
        script: Script,
        restarts: u32,
        since: Timestamp,
        now: Timestamp,
    ) -> (Self, Vec<Effect>) {
        let mut actor = Self::new(script, Stage::Ready, now);
        actor.restarts = restarts;
        actor.arrived = since;
        actor.started = since;
        let effects = if actor.script.engine.is_some() {
            actor.stage = Stage::Opening;
            vec![Effect::StartEngine]
        } else {
            vec![]
        };
        (actor, effects)
    }

    /// A pod that ended before this fleet came.
    pub(super) fn ended(script: Script, succeeded: bool, now: Timestamp) -> Self {
        Self::new(script, Stage::Ended { succeeded }, now)
    }

    fn new(script: Script, stage: Stage, now: Timestamp) -> Self {
        Self {
            script,
            stage,
            restarts: 0,
            last: None,
            arrived: now,
            started: now,
            starts: 0,
            deletion: None,
            is_cut_off: false,
        }
    }

    /// Tells the pod what happened.
    pub(super) fn step(&mut self, input: Input, conduct: Conduct) -> Vec<Effect> {
        match input {
            Input::GateOpen if self.stage == Stage::Held => self.begin(conduct),
            Input::Woken => self.woken(conduct),
            Input::EngineListening if self.stage == Stage::Opening => self.become_ready(),
            Input::EngineDrained if self.stage == Stage::Draining => self.remove(),
            Input::EngineFailed(error) if matches!(self.stage, Stage::Opening | Stage::Ready) => {
                // Restarted as a kubelet restarts a crashing container: at once, then after 10, 20, 40 … 300 s.
                let pause = match self.restarts {
                    0 => Duration::ZERO,
                    n => Duration::from_secs(10u64.saturating_mul(1 << (n - 1).min(5)).min(300)),
                };
                self.crash(1, error, Some(pause), conduct)
            }
            Input::EngineFailed(_) if self.stage == Stage::Draining => self.remove(),
            Input::Crash {
                exit_code,
                stay_down,
            } if self.is_running() => self.crash(
                exit_code,
                "crashed by command".to_owned(),
                (!stay_down).then_some(Duration::ZERO),
                conduct,
            ),
            Input::Recover
                if self.stage
                    == (Stage::Down {
                        until_recovered: true,
                    }) =>
            {
                self.begin(conduct)
            }
            Input::Deleted { grace } => self.delete(grace, conduct),
            Input::NodeDied if self.stage != Stage::Removed => self.lose(conduct),
            Input::NodeBack if self.stage != Stage::Removed => {
                self.is_cut_off = false;
                if self.deletion.is_some() {
                    return self.remove();
                }
                if self.stage != Stage::Lost {
                    return vec![];
                }
                // The machine was off: everything starts from the beginning, init containers too.
                self.stage = Stage::Held;
                vec![Effect::Publish]
            }
            Input::GateOpen
            | Input::EngineListening
            | Input::EngineDrained
            | Input::EngineFailed(_)
            | Input::Crash { .. }
            | Input::Recover
            | Input::NodeDied
            | Input::NodeBack => vec![],
        }
    }

    /// Whether containers run, ready or not.
    pub(super) fn is_running(&self) -> bool {
        matches!(self.stage, Stage::Starting | Stage::Opening | Stage::Ready)
    }

    /// Init containers are done: containers start, and the start-up delay begins.
    fn begin(&mut self, conduct: Conduct) -> Vec<Effect> {
        self.starts += 1;
        self.started = conduct.now;
        self.stage = Stage::Starting;
        let delay = conduct.startup;
        if delay.is_zero() {
            self.woken(conduct)
        } else if delay < MERGED {
            vec![Effect::Wake(delay)]
        } else {
            vec![Effect::Publish, Effect::Wake(delay)]
        }
    }

    fn woken(&mut self, conduct: Conduct) -> Vec<Effect> {
        match self.stage {
            Stage::Starting if self.script.engine.is_some() => {
                self.stage = Stage::Opening;
                vec![Effect::StartEngine]
            }
            Stage::Starting => self.become_ready(),
            Stage::Down {
                until_recovered: false,
            } => self.begin(conduct),
            Stage::Draining => self.remove(),
            Stage::Held
            | Stage::Opening
            | Stage::Ready
            | Stage::Down {
                until_recovered: true,
            }
            | Stage::Ended { .. }
            | Stage::Lost
            | Stage::Removed => vec![],
        }
    }

    fn become_ready(&mut self) -> Vec<Effect> {
        self.stage = Stage::Ready;
        vec![Effect::Publish]
    }

    /// All containers end. `pause`: time until they start again, `None` for not before `Recover`.
    fn crash(
        &mut self,
        exit_code: i32,
        message: String,
        pause: Option<Duration>,
        conduct: Conduct,
    ) -> Vec<Effect> {
        let mut effects = vec![];
        if self.script.engine.is_some() {
            effects.push(Effect::StopEngine);
        }
        self.last = Some(Termination {
            exit_code,
            message,
            started_at: self.started,
            finished_at: conduct.now,
        });
        let restarts = match self.script.restart {
            Restart::Always => true,
            Restart::OnFailure => exit_code != 0,
            Restart::Never => false,
        };
        if !restarts {
            self.stage = Stage::Ended {
                succeeded: exit_code == 0,
            };
            effects.push(Effect::Publish);
            return effects;
        }
        self.restarts += 1;
        match pause {
            Some(Duration::ZERO) => {
                let startup = conduct.startup.max(SHORTEST_RESTART);
                effects.extend(self.begin(Conduct { startup, ..conduct }));
            }
            Some(pause) => {
                self.stage = Stage::Down {
                    until_recovered: false,
                };
                effects.extend([Effect::Publish, Effect::Wake(pause)]);
            }
            None => {
                self.stage = Stage::Down {
                    until_recovered: true,
                };
                effects.push(Effect::Publish);
            }
        }
        effects
    }

    fn delete(&mut self, grace: Duration, conduct: Conduct) -> Vec<Effect> {
        let is_repeated = self.deletion.is_some_and(|earlier| earlier <= grace);
        self.deletion = Some(grace);
        if self.is_cut_off && !conduct.fenced {
            return vec![];
        }
        match self.stage {
            Stage::Removed => vec![],
            Stage::Draining if is_repeated => vec![],
            Stage::Draining if grace.is_zero() => self.remove(),
            Stage::Draining => vec![Effect::Wake(grace)],
            Stage::Ready if !grace.is_zero() => {
                let time = match self.script.engine {
                    Some(_) => grace,
                    None => self.script.shutdown.min(grace),
                };
                if time.is_zero() {
                    return self.remove();
                }
                self.stage = Stage::Draining;
                let mut effects = vec![Effect::Wake(time)];
                if self.script.engine.is_some() {
                    effects.push(Effect::DrainEngine { grace });
                }
                effects
            }
            Stage::Held
            | Stage::Starting
            | Stage::Opening
            | Stage::Ready
            | Stage::Down { .. }
            | Stage::Ended { .. }
            | Stage::Lost => self.remove(),
        }
    }

    fn remove(&mut self) -> Vec<Effect> {
        self.stage = Stage::Removed;
        if self.script.engine.is_some() {
            vec![Effect::StopEngine, Effect::Delete]
        } else {
            vec![Effect::Delete]
        }
    }

    fn lose(&mut self, conduct: Conduct) -> Vec<Effect> {
        self.is_cut_off = true;
        let mut effects = vec![];
        if self.is_running() || self.stage == Stage::Draining {
            self.restarts += 1;
            let message = "the node stopped".to_owned();
            self.last = Some(Termination {
                exit_code: 255,
                message,
                started_at: self.started,
                finished_at: conduct.now,
            });
            if self.script.engine.is_some() {
                effects.push(Effect::StopEngine);
            }
        }
        if !matches!(self.stage, Stage::Ended { .. }) {
            self.stage = Stage::Lost;
        }
        if self.deletion.is_some() && conduct.fenced {
            return self.remove();
        }
        effects
    }
}

#[cfg(test)]
mod tests;
