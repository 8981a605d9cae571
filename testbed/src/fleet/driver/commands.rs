//! Commands, carried out.

use super::super::actor::{Actor, Input, Stage};
use super::super::command::{Command, CommandError};
use super::{Driver, Envelope, stage_name};

impl Driver {
    pub(super) fn obey(&mut self, Envelope { command, reply }: Envelope) {
        let result = match command {
            Command::AddNodes { count } => return self.add_nodes(count, reply),
            Command::ReviveNode { node } => return self.revive_node(node, reply),
            Command::RemoveNode { node } => return self.remove_node(node, reply),
            Command::KillNode { node, fenced } => self.kill_node(&node, fenced),
            Command::CrashPod {
                pod,
                exit_code,
                stay_down,
            } => {
                let crash = Input::Crash {
                    exit_code,
                    stay_down,
                };
                self.step_if(&pod, "crash-pod", "a running pod", crash, Actor::is_running)
            }
            Command::RecoverPod { pod } => {
                let is_kept_down = |actor: &Actor| {
                    actor.stage
                        == Stage::Down {
                            until_recovered: true,
                        }
                };
                self.step_if(
                    &pod,
                    "recover-pod",
                    "a pod that is kept down",
                    Input::Recover,
                    is_kept_down,
                )
            }
            Command::SlowStarts { factor } => self.slow_starts(factor),
            Command::FreezeMetrics { pod, frozen } => self.freeze_metrics(pod.as_deref(), frozen),
            Command::Status => Ok(()),
        };
        self.answer(reply, result);
    }

    fn step_if(
        &mut self,
        id: &str,
        what: &'static str,
        needs: &'static str,
        input: Input,
        is_possible: impl Fn(&Actor) -> bool,
    ) -> Result<(), CommandError> {
        let uid = self.uid_of(id)?;
        if let Some(pod) = self.pods.get(&uid)
            && !is_possible(&pod.actor)
        {
            let state = stage_name(pod.actor.stage).to_owned();
            return Err(CommandError::NotNow {
                subject: id.to_owned(),
                state,
                what,
                needs,
            });
        }
        self.step(&uid, input);
        Ok(())
    }

    fn slow_starts(&mut self, factor: f64) -> Result<(), CommandError> {
        if !factor.is_finite() || factor < 0.0 {
            let rule = "a number of at least 0";
            return Err(CommandError::BadValue {
                field: "factor",
                value: factor.to_string(),
                rule,
            });
        }
        self.slow_starts = factor;
        Ok(())
    }

    fn freeze_metrics(&mut self, id: Option<&str>, frozen: bool) -> Result<(), CommandError> {
        if let Some(id) = id {
            let uid = self.uid_of(id)?;
            if let Some(pod) = self.pods.get(&uid)
                && !self.engines.is_open(id)
            {
                let kind = if pod.actor.script.engine.is_some() {
                    "an engine"
                } else {
                    "no engine"
                };
                return Err(CommandError::NotNow {
                    subject: id.to_owned(),
                    state: format!("{kind}, {}", stage_name(pod.actor.stage)),
                    what: "freeze-metrics",
                    needs: "a simulated engine that runs",
                });
            }
        }
        self.engines.freeze(id, frozen);
        Ok(())
    }

    fn uid_of(&self, id: &str) -> Result<String, CommandError> {
        self.by_id
            .get(id)
            .cloned()
            .ok_or_else(|| CommandError::NoSuchPod(id.to_owned()))
    }
}
