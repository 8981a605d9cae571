//! Kubernetes Events about policies, on real transitions only.

use coppice_scaler_api::{ConditionType, Reason, ScalingPolicy, ScalingPolicyStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::Resource;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use tracing::debug;

use crate::actuate::MANAGER;

/// Sends events. Clones share what has been sent.
#[derive(Clone)]
pub(crate) struct Events {
    recorder: Recorder,
}

impl std::fmt::Debug for Events {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Events").finish_non_exhaustive()
    }
}

/// One thing to tell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Note {
    pub(crate) warning: bool,
    pub(crate) reason: String,
    pub(crate) text: String,
}

impl Events {
    pub(crate) fn new(client: kube::Client) -> Self {
        let reporter = Reporter {
            controller: MANAGER.to_owned(),
            instance: None,
        };
        Self {
            recorder: Recorder::new(client, reporter),
        }
    }

    /// Tells `note` about `policy`. An event is a courtesy: one that is refused is dropped.
    pub(crate) async fn tell(&self, policy: &ScalingPolicy, note: Note) {
        let event = Event {
            type_: if note.warning {
                EventType::Warning
            } else {
                EventType::Normal
            },
            reason: note.reason,
            note: Some(note.text.chars().take(1_000).collect()),
            action: "Scale".to_owned(),
            secondary: None,
        };
        if let Err(error) = self.recorder.publish(&event, &policy.object_ref(&())).await {
            debug!(%error, "event was refused");
        }
    }
}

/// What to tell about a decision that was carried out.
pub(crate) fn of_scaling(status: &ScalingPolicyStatus, grew: bool, shrank: bool) -> Note {
    let reason = match (grew, shrank) {
        (true, true) => Reason::Rescaled,
        (false, true) => Reason::ScaledDown,
        (true | false, false) => Reason::ScaledUp,
    };
    let text = status
        .decision
        .as_ref()
        .map(|decision| decision.sentence.clone())
        .unwrap_or_default();
    Note {
        warning: false,
        reason: reason.as_str().to_owned(),
        text,
    }
}

/// What to tell about conditions that turned bad between two statuses.
pub(crate) fn of_conditions(before: &[Condition], after: &[Condition]) -> Vec<Note> {
    let was = |condition: &Condition| {
        before
            .iter()
            .any(|before| before.type_ == condition.type_ && before.reason == condition.reason)
    };
    let starting = |condition: &Condition| condition.reason == Reason::Starting.as_str();
    let turned = after
        .iter()
        .filter(|condition| is_bad(condition) && !was(condition) && !starting(condition));
    turned
        .map(|condition| Note {
            warning: true,
            reason: condition.reason.clone(),
            text: condition.message.clone(),
        })
        .collect()
}

/// Whether a condition is not as it should be.
pub(crate) fn is_bad(condition: &Condition) -> bool {
    let good = [
        ConditionType::Ready,
        ConditionType::MetricsAvailable,
        ConditionType::ObjectivesFeasible,
    ];
    let is_good_when_true = good.iter().any(|type_| type_.as_str() == condition.type_);
    (condition.status == "True") != is_good_when_true
}
