//! Reasons of Events.

/// Reason of an Event, with the words upstream uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EventReason {
    /// Pods were created.
    PodCreateSuccessful,
    /// A pod could not be created.
    PodCreateFailed,
    /// Pods were deleted.
    PodDeleteSuccessful,
    /// A pod could not be deleted.
    PodDeleteFailed,
    /// A member clique was created.
    PodCliqueCreateSuccessful,
    /// A member clique could not be created.
    PodCliqueCreateFailed,
    /// A clique was created or changed.
    PodCliqueCreateOrUpdateSuccessful,
    /// A clique could not be created or changed.
    PodCliqueCreateOrUpdateFailed,
    /// A clique was removed.
    PodCliqueDeleteSuccessful,
    /// A clique could not be removed.
    PodCliqueDeleteFailed,
    /// A clique or group that had pods on nodes has none left.
    AllScheduledReplicasLost,
    /// A scaling group was created.
    ScalingGroupCreateSuccessful,
    /// A scaling group could not be written.
    ScalingGroupCreateOrUpdateFailed,
    /// A scaling group was removed.
    ScalingGroupDeleteSuccessful,
    /// A scaling group could not be removed.
    ScalingGroupDeleteFailed,
    /// A replica of a scaling group was removed.
    ScalingGroupReplicaDeleteSuccessful,
    /// A replica of a scaling group could not be removed.
    ScalingGroupReplicaDeleteFailed,
    /// A set replica was taken down as a whole.
    SetReplicaDeleteSuccessful,
    /// A set replica could not be taken down.
    SetReplicaDeleteFailed,
    /// A gang was written.
    PodGangCreateOrUpdateSuccessful,
    /// A gang could not be written.
    PodGangCreateOrUpdateFailed,
    /// A gang was removed.
    PodGangDeleteSuccessful,
    /// A gang could not be removed.
    PodGangDeleteFailed,
    /// A ComputeDomain was created.
    ComputeDomainCreateSuccessful,
    /// A ComputeDomain could not be created.
    ComputeDomainCreateFailed,
    /// A ComputeDomain was removed.
    ComputeDomainDeleteSuccessful,
    /// A ComputeDomain could not be removed.
    ComputeDomainDeleteFailed,
    /// A scheduler's topology equals the binding.
    TopologyInSync,
    /// A scheduler's topology differs from the binding.
    TopologyDriftDetected,
    /// A gang cannot be expressed for the KAI scheduler.
    KaiBackendMappingFailed,
    /// The Volcano scheduler lacks what gangs need.
    VolcanoCapabilityUnavailable,
}

impl EventReason {
    /// The reason on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::PodCreateSuccessful => "PodCreateSuccessful",
            Self::PodCreateFailed => "PodCreateFailed",
            Self::PodDeleteSuccessful => "PodDeleteSuccessful",
            Self::PodDeleteFailed => "PodDeleteFailed",
            Self::PodCliqueCreateSuccessful => "PodCliqueCreateSuccessful",
            Self::PodCliqueCreateFailed => "PodCliqueCreateFailed",
            Self::PodCliqueCreateOrUpdateSuccessful => "PodCliqueCreateOrUpdateSuccessful",
            Self::PodCliqueCreateOrUpdateFailed => "PodCliqueCreateOrUpdateFailed",
            Self::PodCliqueDeleteSuccessful => "PodCliqueDeleteSuccessful",
            Self::PodCliqueDeleteFailed => "PodCliqueDeleteFailed",
            Self::AllScheduledReplicasLost => "AllScheduledReplicasLost",
            Self::ScalingGroupCreateSuccessful => "PodCliqueScalingGroupCreateSuccessful",
            Self::ScalingGroupCreateOrUpdateFailed => "PodCliqueScalingGroupCreateOrUpdateFailed",
            Self::ScalingGroupDeleteSuccessful => "PodCliqueScalingGroupDeleteSuccessful",
            Self::ScalingGroupDeleteFailed => "PodCliqueScalingGroupDeleteFailed",
            Self::ScalingGroupReplicaDeleteSuccessful => {
                "PodCliqueScalingGroupReplicaDeleteSuccessful"
            }
            Self::ScalingGroupReplicaDeleteFailed => "PodCliqueScalingGroupReplicaDeleteFailed",
            Self::SetReplicaDeleteSuccessful => "PodCliqueSetReplicaDeleteSuccessful",
            Self::SetReplicaDeleteFailed => "PodCliqueSetReplicaDeleteFailed",
            Self::PodGangCreateOrUpdateSuccessful => "PodGangCreateOrUpdateSuccessful",
            Self::PodGangCreateOrUpdateFailed => "PodGangCreateOrUpdateFailed",
            Self::PodGangDeleteSuccessful => "PodGangDeleteSuccessful",
            Self::PodGangDeleteFailed => "PodGangDeleteFailed",
            Self::ComputeDomainCreateSuccessful => "ComputeDomainCreateSuccessful",
            Self::ComputeDomainCreateFailed => "ComputeDomainCreateFailed",
            Self::ComputeDomainDeleteSuccessful => "ComputeDomainDeleteSuccessful",
            Self::ComputeDomainDeleteFailed => "ComputeDomainDeleteFailed",
            Self::TopologyInSync => "TopologyInSync",
            Self::TopologyDriftDetected => "TopologyDriftDetected",
            Self::KaiBackendMappingFailed => "KAIBackendMappingFailed",
            Self::VolcanoCapabilityUnavailable => "VolcanoCapabilityUnavailable",
        }
    }
}
