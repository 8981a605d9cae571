//! What the index calls things.

use std::fmt;
use std::sync::Arc;

/// A PodCliqueSet: namespace and name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SetKey(Arc<(Box<str>, Box<str>)>);

impl SetKey {
    pub(crate) fn new(namespace: &str, name: &str) -> Self {
        Self(Arc::new((namespace.into(), name.into())))
    }

    pub(crate) fn namespace(&self) -> &str {
        &self.0.0
    }

    pub(crate) fn name(&self) -> &str {
        &self.0.1
    }
}

impl fmt::Display for SetKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace(), self.name())
    }
}

impl fmt::Debug for SetKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Kinds of objects the operator writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Kind {
    Set,
    Clique,
    Group,
    Gang,
    Pod,
    Service,
    Autoscaler,
    ServiceAccount,
    Role,
    RoleBinding,
    PodGroup,
    CompositePodGroup,
    Workload,
    Claim,
    /// Read, never written.
    ClaimTemplate,
    ComputeDomain,
    KaiPodGroup,
    VolcanoPodGroup,
}

impl Kind {
    /// The kind on the wire, for messages and metric labels.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Set => "PodCliqueSet",
            Self::Clique => "PodClique",
            Self::Group => "PodCliqueScalingGroup",
            Self::Gang => "PodGang",
            Self::Pod => "Pod",
            Self::Service => "Service",
            Self::Autoscaler => "HorizontalPodAutoscaler",
            Self::ServiceAccount => "ServiceAccount",
            Self::Role => "Role",
            Self::RoleBinding => "RoleBinding",
            Self::PodGroup => "PodGroup",
            Self::CompositePodGroup => "CompositePodGroup",
            Self::Workload => "Workload",
            Self::Claim => "ResourceClaim",
            Self::ClaimTemplate => "ResourceClaimTemplate",
            Self::ComputeDomain => "ComputeDomain",
            Self::KaiPodGroup => "PodGroup of scheduling.run.ai",
            Self::VolcanoPodGroup => "PodGroup of scheduling.volcano.sh",
        }
    }
}

/// A piece of work: everything that is decided together.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Unit {
    /// A PodCliqueSet: which replicas exist and may change, what belongs to the set as a whole, its status.
    Set(SetKey),
    /// Everything inside one set replica.
    Replica(SetKey, u32),
}

impl Unit {
    /// Word for metric labels.
    pub(crate) fn controller(&self) -> &'static str {
        match self {
            Self::Set(_) => "set",
            Self::Replica(..) => "replica",
        }
    }
}

impl fmt::Debug for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Set(set) => write!(f, "{set}"),
            Self::Replica(set, replica) => write!(f, "{set}[{replica}]"),
        }
    }
}
