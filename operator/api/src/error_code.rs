//! Codes in `status.lastErrors`.

/// What could not be done, as upstream writes it in `lastErrors[].code`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ErrorCode {
    /// Bring the PodCliques of an owner into line.
    SyncPodClique,
    /// Write a PodClique of a set.
    CreateOrUpdatePodClique,
    /// Create the PodCliques of a scaling group.
    CreatePodCliques,
    /// Create a pod.
    CreatePod,
    /// Make a pod from its template.
    BuildPodResource,
    /// Delete a pod.
    DeletePod,
    /// Lift a pod's scheduling gate.
    RemovePodSchedulingGate,
    /// Write a PodGang.
    CreateOrPatchPodGang,
    /// Bring the PodCliqueScalingGroups of a set into line.
    SyncScalingGroup,
    /// Bring the autoscalers of a set into line.
    SyncHpa,
    /// Bring the headless services of a set into line.
    SyncService,
    /// Write the service account of a set.
    SyncServiceAccount,
    /// Write the Role of a set.
    SyncRole,
    /// Write the RoleBinding of a set.
    SyncRoleBinding,
    /// Create a Secret.
    CreateSecret,
    /// A Secret of that name belongs to somebody else.
    SecretConflict,
    /// Bring the claims of a set into line.
    SyncSetResourceClaim,
    /// Bring the claims of a scaling group into line.
    SyncGroupResourceClaim,
    /// Bring the claims of a clique into line.
    SyncCliqueResourceClaim,
    /// Bring the ComputeDomains of a set into line.
    SyncComputeDomain,
    /// Delete a set replica.
    DeleteSetReplica,
    /// Read the levels of a topology.
    GetClusterTopologyLevels,
    /// The operator's environment lacks what the init container needs.
    InitContainerEnvironmentVariableMissing,
    /// A PodClique has no template.
    MissingPodCliqueTemplate,
}

impl ErrorCode {
    /// The code on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::SyncPodClique => "ERR_SYNC_PODCLIQUE",
            Self::CreateOrUpdatePodClique => "ERR_CREATE_OR_UPDATE_PODCLIQUE",
            Self::CreatePodCliques => "ERR_CREATE_PODCLIQUES",
            Self::CreatePod => "ERR_CREATE_POD",
            Self::BuildPodResource => "ERR_BUILD_POD_RESOURCE",
            Self::DeletePod => "ERR_DELETE_POD",
            Self::RemovePodSchedulingGate => "ERR_REMOVE_POD_SCHEDULING_GATE",
            Self::CreateOrPatchPodGang => "ERR_CREATE_OR_PATCH_PODGANG",
            Self::SyncScalingGroup => "ERR_SYNC_PODCLIQUESCALINGGROUP",
            Self::SyncHpa => "ERR_SYNC_HPA",
            Self::SyncService => "ERR_SYNC_PODCLIQUESET_SERVICE",
            Self::SyncServiceAccount => "ERR_SYNC_SERVICEACCOUNT",
            Self::SyncRole => "ERR_SYNC_ROLE",
            Self::SyncRoleBinding => "ERR_SYNC_ROLEBINDING",
            Self::CreateSecret => "ERR_CREATE_SECRET",
            Self::SecretConflict => "ERR_SECRET_CONFLICT",
            Self::SyncSetResourceClaim => "ERR_SYNC_PCS_RESOURCE_CLAIM",
            Self::SyncGroupResourceClaim => "ERR_SYNC_PCSG_RESOURCE_CLAIM",
            Self::SyncCliqueResourceClaim => "ERR_SYNC_PCLQ_RESOURCE_CLAIM",
            Self::SyncComputeDomain => "ERR_SYNC_COMPUTEDOMAIN",
            Self::DeleteSetReplica => "ERR_DELETE_PCS_REPLICA",
            Self::GetClusterTopologyLevels => "ERR_GET_CLUSTER_TOPOLOGY_LEVELS",
            Self::InitContainerEnvironmentVariableMissing => {
                "ERR_INITCONTAINER_ENVIRONMENT_VARIABLE_MISSING"
            }
            Self::MissingPodCliqueTemplate => "ERR_MISSING_PODCLIQUE_TEMPLATE",
        }
    }
}
