//! When the record in a policy's status is written: when it changes in substance.
//!
//! At once: units and sets (current, ready, wanted, and their spread), the spec's generation, and whether the policy is followed. After it has lasted
//! for half a minute: other conditions, reasons and limits, which a load at a boundary may turn over with every scrape. Never by themselves: measured
//! values, sentences, messages, times. So a steady system writes nothing.

use std::time::Duration;

use coppice_scaler_api::{
    Because, ConditionType, LimitedBy, ScaledKind, ScalingPolicyStatus, SetShare,
};
use jiff::Timestamp;

use crate::observe::fleet::since;

/// How long a reason, a limit or a condition must last to be written by itself.
const LASTS: Duration = Duration::from_secs(30);

/// What the status said last, and what is waiting to be said.
#[derive(Debug, Clone, Default)]
pub(crate) struct Record {
    written: Option<ScalingPolicyStatus>,
    waiting: Option<(Secondary, Timestamp)>,
}

type Units = (String, Option<ScaledKind>, u32, u32, u32, Vec<SetShare>);

#[derive(Debug, Clone, PartialEq)]
struct Primary {
    generation: Option<i64>,
    ready: Option<(String, String)>,
    roles: Vec<Units>,
    sets: Option<(u32, u32)>,
}

#[derive(Debug, Clone, PartialEq)]
struct Secondary {
    conditions: Vec<(String, String, String)>,
    roles: Vec<(Because, Vec<LimitedBy>)>,
    sets: Vec<LimitedBy>,
}

fn primary(status: &ScalingPolicyStatus) -> Primary {
    let ready = status
        .conditions
        .iter()
        .find(|condition| condition.type_ == ConditionType::Ready.as_str());
    let roles = status.roles.iter();
    Primary {
        generation: status.observed_generation,
        ready: ready.map(|condition| (condition.status.clone(), condition.reason.clone())),
        roles: roles
            .map(|role| {
                (
                    role.name.clone(),
                    role.kind,
                    role.current,
                    role.ready,
                    role.wanted,
                    role.per_set.clone(),
                )
            })
            .collect(),
        sets: status.sets.as_ref().map(|sets| (sets.current, sets.wanted)),
    }
}

fn secondary(status: &ScalingPolicyStatus) -> Secondary {
    let conditions = status.conditions.iter();
    Secondary {
        conditions: conditions
            .map(|each| (each.type_.clone(), each.status.clone(), each.reason.clone()))
            .collect(),
        roles: status
            .roles
            .iter()
            .map(|role| (role.because, role.limited_by.clone()))
            .collect(),
        sets: status
            .sets
            .as_ref()
            .map(|sets| sets.limited_by.clone())
            .unwrap_or_default(),
    }
}

impl Record {
    /// A record that goes on from what a status says.
    pub(crate) fn from_status(status: Option<&ScalingPolicyStatus>) -> Self {
        Self {
            written: status.cloned(),
            waiting: None,
        }
    }

    /// What was written last.
    pub(crate) fn written(&self) -> Option<&ScalingPolicyStatus> {
        self.written.as_ref()
    }

    /// Whether `status` is to be written now.
    pub(crate) fn is_due(&mut self, status: &ScalingPolicyStatus, now: Timestamp) -> bool {
        let Some(written) = &self.written else {
            return true;
        };
        if primary(written) != primary(status) {
            return true;
        }
        let said = secondary(status);
        if secondary(written) == said {
            self.waiting = None;
            return false;
        }
        match &self.waiting {
            Some((waiting, from)) if *waiting == said => since(Some(*from), now) >= LASTS,
            _ => {
                self.waiting = Some((said, now));
                false
            }
        }
    }

    /// Takes in that `status` was written.
    pub(crate) fn wrote(&mut self, status: ScalingPolicyStatus) {
        *self = Self {
            written: Some(status),
            waiting: None,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coppice_scaler_api::RoleStatus;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn status(wanted: u32, because: Because) -> ScalingPolicyStatus {
        let role = RoleStatus {
            name: "decode".to_owned(),
            kind: None,
            current: 2,
            ready: 2,
            wanted,
            because,
            limited_by: Vec::new(),
            per_set: Vec::new(),
            signals: Vec::new(),
        };
        ScalingPolicyStatus {
            roles: vec![role],
            ..ScalingPolicyStatus::default()
        }
    }

    #[test]
    fn units_are_written_at_once() {
        let mut record = Record::default();
        assert!(record.is_due(&status(2, Because::Load), at(0)));
        record.wrote(status(2, Because::Load));
        assert!(!record.is_due(&status(2, Because::Load), at(5)));
        assert!(record.is_due(&status(3, Because::Load), at(5)));
    }

    #[test]
    fn reasons_are_written_when_they_last_and_not_when_they_flap() {
        let mut record = Record::from_status(Some(&status(2, Because::Load)));
        for second in (0..300).step_by(5) {
            let because = if second % 10 == 0 {
                Because::Stabilization
            } else {
                Because::Load
            };
            assert!(!record.is_due(&status(2, because), at(second)), "{second}");
        }
        assert!(!record.is_due(&status(2, Because::Stabilization), at(300)));
        assert!(!record.is_due(&status(2, Because::Stabilization), at(329)));
        assert!(record.is_due(&status(2, Because::Stabilization), at(330)));
    }

    #[test]
    fn measured_values_are_no_reason_to_write() {
        let mut record = Record::from_status(Some(&status(2, Because::Load)));
        let mut measured = status(2, Because::Load);
        let value = coppice_scaler_api::SignalValue {
            name: "demand".to_owned(),
            value: coppice_scaler_api::Decimal::whole(1),
            unit: String::new(),
        };
        measured.roles[0].signals.push(value);
        measured.history = Some("{}".to_owned());
        assert!(!record.is_due(&measured, at(1_000)));
    }
}
