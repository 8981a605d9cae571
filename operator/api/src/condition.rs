//! Condition types and reasons, and how a list of conditions is changed.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// Type of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ConditionType {
    /// PodClique and PodCliqueScalingGroup: fewer pods or replicas than the minimum.
    MinAvailableBreached,
    /// PodClique: the minimum is bound to nodes.
    PodCliqueScheduled,
    /// PodCliqueScalingGroup: its set replica was taken down and is being started anew.
    GangTerminationInProgress,
    /// PodClique and PodCliqueScalingGroup: it was healthy once. Set once and kept, so that a breach can be told from
    /// a first start.
    HealthyStateObserved,
    /// PodCliqueSet: a constraint names a level that the topology lacks.
    TopologyLevelsUnavailable,
    /// ClusterTopologyBinding: a scheduler's topology differs from it.
    SchedulerTopologyDrift,
    /// PodGang: all its pods exist.
    Initialized,
    /// PodGang: the floor is bound to nodes.
    Scheduled,
    /// PodGang: the floor is ready.
    Ready,
    /// PodGang: declared by upstream, written by nobody.
    Unhealthy,
    /// PodGang: declared by upstream, written by nobody.
    DisruptionTarget,
    /// PodCliqueSet: every replica that is wanted is available.
    Available,
    /// PodCliqueSet: something is being created, updated or removed.
    Progressing,
    /// PodCliqueSet, PodClique: something keeps it from getting where it should be.
    Degraded,
}

impl ConditionType {
    /// The type on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::MinAvailableBreached => "MinAvailableBreached",
            Self::PodCliqueScheduled => "PodCliqueScheduled",
            Self::GangTerminationInProgress => "GangTerminationInProgress",
            Self::HealthyStateObserved => "HealthyStateObserved",
            Self::TopologyLevelsUnavailable => "TopologyLevelsUnavailable",
            Self::SchedulerTopologyDrift => "SchedulerTopologyDrift",
            Self::Initialized => "Initialized",
            Self::Scheduled => "Scheduled",
            Self::Ready => "Ready",
            Self::Unhealthy => "Unhealthy",
            Self::DisruptionTarget => "DisruptionTarget",
            Self::Available => "Available",
            Self::Progressing => "Progressing",
            Self::Degraded => "Degraded",
        }
    }
}

/// Reason of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// A rolling update is in progress, so nothing is said about a breach.
    UpdateInProgress,
    /// Fewer pods bound than the minimum.
    ScheduledReplicasBelowMinAvailable,
    /// Bound pods that fail or do not become ready leave fewer than the minimum.
    InsufficientReadyPods,
    /// Enough pods are ready, or on the way.
    SufficientReadyPods,
    /// The minimum is bound.
    SufficientScheduledPods,
    /// The minimum is not bound.
    InsufficientScheduledPods,
    /// Fewer healthy replicas than the minimum.
    InsufficientAvailableScalingGroupReplicas,
    /// Enough healthy replicas.
    SufficientAvailableScalingGroupReplicas,
    /// The set replica was taken down.
    GangTerminationActive,
    /// The minimum has been ready once.
    MinAvailableReached,
    /// All domains that the constraints name exist.
    AllClusterTopologyLevelsAvailable,
    /// A domain that a constraint names does not exist.
    ClusterTopologyLevelsUnavailable,
    /// The ClusterTopologyBinding does not exist.
    ClusterTopologyNotFound,
    /// No constraint names a ClusterTopologyBinding.
    TopologyNameMissing,
    /// The operator is configured to ignore topology.
    TopologyAwareSchedulingDisabled,
    /// The scheduler's topology equals the binding.
    InSync,
    /// The scheduler's topology differs from the binding.
    Drift,
    /// The scheduler is not enabled, or knows no topology.
    TopologyNotFound,
    /// Pods of the gang are missing.
    PodGangPodsCreationPending,
    /// All pods of the gang exist.
    PodGangPodsCreated,
    /// The floor of the gang is bound.
    PodGangScheduled,
    /// Pods of the gang's floor are not bound.
    PodGangPodsNotScheduled,
    /// The gang fits on no nodes.
    Unschedulable,
    /// The floor of the gang is ready.
    PodGangReady,
    /// Pods of the gang's floor are not ready.
    PodGangPodsNotReady,
    /// All replicas that are wanted are available.
    AllReplicasAvailable,
    /// Some replicas that are wanted are not available.
    ReplicasUnavailable,
    /// No replicas are wanted.
    ScaledToZero,
    /// Everything is as it should be.
    UpToDate,
    /// Replicas are being created or removed.
    Scaling,
    /// A part of the desired state could not be written.
    ApplyFailed,
    /// The object asks for something that cannot be done.
    InvalidSpec,
    /// Pods of this template are refused by the API server.
    PodTemplateInvalid,
    /// A child of the same name belongs to somebody else.
    NameConflict,
}

impl Reason {
    /// The reason on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::UpdateInProgress => "UpdateInProgress",
            Self::ScheduledReplicasBelowMinAvailable => "ScheduledReplicasBelowMinAvailable",
            Self::InsufficientReadyPods => "InsufficientReadyPods",
            Self::SufficientReadyPods => "SufficientReadyPods",
            Self::SufficientScheduledPods => "SufficientScheduledPods",
            Self::InsufficientScheduledPods => "InsufficientScheduledPods",
            Self::InsufficientAvailableScalingGroupReplicas => {
                "InsufficientAvailablePodCliqueScalingGroupReplicas"
            }
            Self::SufficientAvailableScalingGroupReplicas => {
                "SufficientAvailablePodCliqueScalingGroupReplicas"
            }
            Self::GangTerminationActive => "GangTerminationActive",
            Self::MinAvailableReached => "MinAvailableReached",
            Self::AllClusterTopologyLevelsAvailable => "AllClusterTopologyLevelsAvailable",
            Self::ClusterTopologyLevelsUnavailable => "ClusterTopologyLevelsUnavailable",
            Self::ClusterTopologyNotFound => "ClusterTopologyNotFound",
            Self::TopologyNameMissing => "TopologyNameMissing",
            Self::TopologyAwareSchedulingDisabled => "TopologyAwareSchedulingDisabled",
            Self::InSync => "InSync",
            Self::Drift => "Drift",
            Self::TopologyNotFound => "TopologyNotFound",
            Self::PodGangPodsCreationPending => "PodGangPodsCreationPending",
            Self::PodGangPodsCreated => "PodGangPodsCreated",
            Self::PodGangScheduled => "PodGangScheduled",
            Self::PodGangPodsNotScheduled => "PodGangPodsNotScheduled",
            Self::Unschedulable => "Unschedulable",
            Self::PodGangReady => "PodGangReady",
            Self::PodGangPodsNotReady => "PodGangPodsNotReady",
            Self::AllReplicasAvailable => "AllReplicasAvailable",
            Self::ReplicasUnavailable => "ReplicasUnavailable",
            Self::ScaledToZero => "ScaledToZero",
            Self::UpToDate => "UpToDate",
            Self::Scaling => "Scaling",
            Self::ApplyFailed => "ApplyFailed",
            Self::InvalidSpec => "InvalidSpec",
            Self::PodTemplateInvalid => "PodTemplateInvalid",
            Self::NameConflict => "NameConflict",
        }
    }
}

/// Whether what a condition says is the case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ConditionStatus {
    /// It is.
    True,
    /// It is not.
    False,
    /// It cannot be told.
    Unknown,
}

impl ConditionStatus {
    /// The word on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

impl From<bool> for ConditionStatus {
    fn from(is: bool) -> Self {
        if is { Self::True } else { Self::False }
    }
}

/// A condition as it should be, without the time of its transition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observed {
    /// What it is about.
    pub kind: ConditionType,
    /// Whether it is the case.
    pub status: ConditionStatus,
    /// Why, for programs.
    pub reason: Reason,
    /// Why, for people.
    pub message: String,
}

/// The condition of a type in a list.
pub fn find(conditions: &[Condition], kind: ConditionType) -> Option<&Condition> {
    conditions
        .iter()
        .find(|condition| condition.type_ == kind.as_str())
}

/// Whether the condition of a type is in a list with that status.
pub fn is(conditions: &[Condition], kind: ConditionType, status: ConditionStatus) -> bool {
    find(conditions, kind).is_some_and(|condition| condition.status == status.as_str())
}

/// Puts an observation into a list and says whether the list is different now.
///
/// `lastTransitionTime` becomes `now` only when the status differs from before, so that a changed reason or message
/// does not restart a delay that counts from it. Conditions of other types are left alone.
pub fn set(
    conditions: &mut Vec<Condition>,
    observed: Observed,
    observed_generation: Option<i64>,
    now: Time,
) -> bool {
    let Observed {
        kind,
        status,
        reason,
        message,
    } = observed;
    let existing = conditions
        .iter_mut()
        .find(|condition| condition.type_ == kind.as_str());
    let Some(existing) = existing else {
        conditions.push(Condition {
            type_: kind.as_str().to_owned(),
            status: status.as_str().to_owned(),
            reason: reason.as_str().to_owned(),
            message,
            observed_generation,
            last_transition_time: now,
        });
        return true;
    };
    let before = existing.clone();
    if existing.status != status.as_str() {
        existing.status = status.as_str().to_owned();
        existing.last_transition_time = now;
    }
    existing.reason = reason.as_str().to_owned();
    existing.message = message;
    existing.observed_generation = observed_generation;
    *existing != before
}

/// Takes the condition of a type out of a list and says whether it was there.
pub fn remove(conditions: &mut Vec<Condition>, kind: ConditionType) -> bool {
    let before = conditions.len();
    conditions.retain(|condition| condition.type_ != kind.as_str());
    conditions.len() != before
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Time {
        Time(k8s_openapi::jiff::Timestamp::from_second(second).unwrap())
    }

    fn breached(status: ConditionStatus, reason: Reason) -> Observed {
        Observed {
            kind: ConditionType::MinAvailableBreached,
            status,
            reason,
            message: "2 of 3".to_owned(),
        }
    }

    #[test]
    fn the_transition_time_moves_with_the_status_only() {
        let mut conditions = Vec::new();
        assert!(set(
            &mut conditions,
            breached(ConditionStatus::True, Reason::InsufficientReadyPods),
            None,
            at(1)
        ));
        assert!(!set(
            &mut conditions,
            breached(ConditionStatus::True, Reason::InsufficientReadyPods),
            None,
            at(2)
        ));
        let reason = Reason::ScheduledReplicasBelowMinAvailable;
        assert!(set(
            &mut conditions,
            breached(ConditionStatus::True, reason),
            None,
            at(3)
        ));
        assert_eq!(conditions[0].last_transition_time, at(1));
        assert!(set(
            &mut conditions,
            breached(ConditionStatus::False, Reason::SufficientReadyPods),
            None,
            at(4)
        ));
        assert_eq!(conditions[0].last_transition_time, at(4));
        assert!(is(
            &conditions,
            ConditionType::MinAvailableBreached,
            ConditionStatus::False
        ));
    }

    #[test]
    fn other_conditions_stay() {
        let mut conditions = Vec::new();
        set(
            &mut conditions,
            breached(ConditionStatus::True, Reason::InsufficientReadyPods),
            None,
            at(1),
        );
        let foreign = Condition {
            type_: "FromTheScheduler".to_owned(),
            ..conditions[0].clone()
        };
        conditions.push(foreign.clone());
        set(
            &mut conditions,
            breached(ConditionStatus::False, Reason::SufficientReadyPods),
            Some(2),
            at(2),
        );
        assert_eq!(conditions.len(), 2);
        assert_eq!(conditions[1], foreign);
        assert!(remove(&mut conditions, ConditionType::MinAvailableBreached));
        assert!(!remove(
            &mut conditions,
            ConditionType::MinAvailableBreached
        ));
        assert_eq!(conditions, [foreign]);
    }
}
