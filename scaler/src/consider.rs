//! The last half of a pass over one policy: carry out → record.

use coppice_runtime::lease::Tenure;
use coppice_scaler_api::{Actuation, Mode, Reason, ScalingPolicy, ScalingPolicyStatus};
use coppice_scaler_plan::Decision;
use coppice_signals::Signals;
use jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;
use std::time::Duration;
use tracing::warn;

use crate::actuate::{self, MANAGER, Outcome};
use crate::conditions::{Facts, conditions};
use crate::decide::Work;
use crate::events::{self, Events};
use crate::memory::Memory;
use crate::metrics::Metrics;
use crate::page::Board;
use crate::policy::Pace;
use crate::pool::Standing;
use crate::target::{Target, message};
use crate::translate;
use crate::watch::Key;

/// What becomes of a pass over one policy.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Considered {
    /// When to look again at the latest.
    pub(crate) recheck_after: Duration,
}

/// Considers policies.
pub(crate) struct Considerer {
    pub(crate) client: Client,
    pub(crate) signals: Signals,
    pub(crate) metrics: Metrics,
    pub(crate) board: Board,
    pub(crate) events: Events,
    pub(crate) pace: Pace,
}

/// Why a policy cannot be followed now.
#[derive(Debug)]
pub(crate) struct Trouble {
    pub(crate) reason: Reason,
    pub(crate) message: String,
}

impl Considerer {
    /// The last half of a pass over one policy: carry out and record. Without a tenure nothing is written: this process stands by with a warm
    /// memory.
    pub(crate) async fn finish(
        &self,
        work: &mut Work,
        tenure: Option<&Tenure>,
        now: Timestamp,
    ) -> Considered {
        let status = self.status(work, now);
        let mut recheck_after = self.pace.interval;
        let mut refusal = None;
        let (key, policy) = (&work.key, &work.policy);
        match (&work.prepared, &work.decided) {
            (Ok(prepared), Some(decided)) => {
                recheck_after = decided.decision.recheck_after;
                self.metrics
                    .decided(key, &status, &decided.decision, decided.took, now);
                let writes =
                    policy.spec.mode == Mode::Auto && policy.spec.actuation == Actuation::Scale;
                if let Some(tenure) = tenure.filter(|_| writes) {
                    refusal = self
                        .actuate(
                            key,
                            policy,
                            &mut work.memory,
                            &prepared.target,
                            &decided.decision,
                            &status,
                            tenure,
                        )
                        .await;
                }
            }
            _ => self.metrics.not_followed(key, &status),
        }
        self.board.show(key, policy, &status, tenure.is_some(), now);
        if let Some(tenure) = tenure {
            self.record(key, policy, &mut work.memory, status, refusal, tenure, now)
                .await;
        }
        Considered { recheck_after }
    }

    /// Forgets a policy that is gone.
    pub(crate) fn forget(&self, key: &Key) {
        let owner = format!("{}/{}", key.0, key.1);
        self.signals.set_scrape_rules(&owner, Vec::new());
        self.signals.set_static_targets(&owner, Vec::new());
        self.metrics.forget(key);
    }

    /// The status that this pass leads to. A policy that cannot be followed keeps its last decision.
    fn status(&self, work: &Work, now: Timestamp) -> ScalingPolicyStatus {
        let (policy, memory) = (&work.policy, &work.memory);
        let before = memory.record.written().cloned().unwrap_or_default();
        let mut facts = Facts {
            spec: &policy.spec,
            generation: policy.metadata.generation,
            trouble: None,
            decision: None,
            traffic_trouble: None,
            standing: &Standing::Alone,
        };
        let mut status = before.clone();
        match (&work.prepared, &work.decided) {
            (Ok(prepared), Some(decided)) => {
                let is_set = matches!(prepared.target, Target::Set { .. });
                status = translate::record(&policy.spec, is_set, &decided.decision, now);
                facts.decision = Some(&decided.decision);
                facts.traffic_trouble = prepared.traffic_trouble.as_deref();
                facts.standing = &decided.standing;
            }
            (Err(Trouble { reason, message }), _) => {
                facts.trouble = Some((*reason, message.clone()));
            }
            (Ok(_), None) => {}
        }
        status.conditions = conditions(&facts, &before.conditions, now);
        status.observed_generation = policy.metadata.generation;
        status.history = serde_json::to_string(&memory.history.snapshot(now)).ok();
        status
    }

    /// Carries the decision out and tells what was done. Gives the first refusal.
    #[expect(
        clippy::too_many_arguments,
        reason = "a step of one pass; a struct for it would be made once and taken apart once"
    )]
    async fn actuate(
        &self,
        key: &Key,
        policy: &ScalingPolicy,
        memory: &mut Memory,
        target: &Target,
        decision: &Decision,
        status: &ScalingPolicyStatus,
        tenure: &Tenure,
    ) -> Option<String> {
        let steps = decision.steps();
        let outcomes = actuate::carry_out(
            &self.client,
            &key.0,
            target,
            &policy.spec.roles,
            &steps,
            tenure,
        )
        .await;
        let (mut grew, mut shrank, mut refusal) = (false, false, None);
        for (step, outcome) in outcomes {
            self.metrics.wrote("scale", outcome.name());
            match outcome {
                Outcome::Done(version) => {
                    memory.writers.wrote(step.object, step.to, version);
                    grew |= step.to > step.from;
                    shrank |= step.to < step.from;
                }
                Outcome::Outdated => {}
                Outcome::Refused(message) => refusal = refusal.or(Some(message)),
            }
        }
        if grew || shrank {
            self.events
                .tell(policy, events::of_scaling(status, grew, shrank))
                .await;
        }
        refusal
    }

    /// Writes the status when it is due, and tells what turned bad.
    #[expect(
        clippy::too_many_arguments,
        reason = "a step of one pass; a struct for it would be made once and taken apart once"
    )]
    async fn record(
        &self,
        key: &Key,
        policy: &ScalingPolicy,
        memory: &mut Memory,
        mut status: ScalingPolicyStatus,
        refusal: Option<String>,
        tenure: &Tenure,
        now: Timestamp,
    ) {
        if let Some(message) = refusal {
            let ready = status.conditions.iter_mut().find(|condition| {
                condition.type_ == coppice_scaler_api::ConditionType::Ready.as_str()
            });
            if let Some(ready) = ready {
                ready.status = "False".to_owned();
                ready.reason = Reason::WriteRefused.as_str().to_owned();
                ready.message = message;
            }
        }
        if !memory.record.is_due(&status, now) || !tenure.is_current() {
            return;
        }
        let policies: Api<ScalingPolicy> = Api::namespaced(self.client.clone(), &key.0);
        let patch = json!({
            "apiVersion": "autoscaling.coppice.dev/v1alpha1",
            "kind": "ScalingPolicy",
            "metadata": {"name": key.1, "uid": policy.metadata.uid},
            "status": status,
        });
        match policies
            .patch_status(
                &key.1,
                &PatchParams::apply(MANAGER).force(),
                &Patch::Apply(&patch),
            )
            .await
        {
            Ok(_) => {
                self.metrics.wrote("status", "done");
                let before = memory
                    .record
                    .written()
                    .map(|status| status.conditions.clone())
                    .unwrap_or_default();
                for note in events::of_conditions(&before, &status.conditions) {
                    self.events.tell(policy, note).await;
                }
                memory.record.wrote(status);
            }
            Err(kube::Error::Api(answer)) if matches!(answer.code, 404 | 409) => {
                self.metrics.wrote("status", "outdated")
            }
            Err(error) => {
                self.metrics.wrote("status", "refused");
                warn!(namespace = key.0, name = key.1, error = %message(&error), "status could not be written");
            }
        }
    }
}
