//! What kind of cluster to start: which gang scheduling APIs it serves.

use std::fmt;
use std::str::FromStr;

/// Which of the scheduler's workload APIs the cluster serves.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Profile {
    /// `Workload`, `PodGroup` and `CompositePodGroup` with topology constraints (`scheduling.k8s.io/v1alpha3`, `v1beta1`).
    Native,
    /// `Workload` and `PodGroup` (`scheduling.k8s.io/v1beta1`), no groups of groups: a cluster with beta features only.
    NativeFlat,
    /// A cluster as it comes: no gang scheduling.
    Plain,
}

impl Profile {
    /// Every profile, in the order of the documentation.
    pub const ALL: [Self; 3] = [Self::Native, Self::NativeFlat, Self::Plain];

    /// The name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::NativeFlat => "native-flat",
            Self::Plain => "plain",
        }
    }

    /// Feature gates to switch on in kube-apiserver, kube-controller-manager and kube-scheduler alike.
    pub(crate) fn feature_gates(self) -> &'static [&'static str] {
        match self {
            Self::Native => &[
                "GenericWorkload",
                "TopologyAwareWorkloadScheduling",
                "CompositePodGroup",
            ],
            Self::NativeFlat => &["GenericWorkload"],
            Self::Plain => &[],
        }
    }

    /// API versions that kube-apiserver serves beyond its defaults.
    pub(crate) fn api_versions(self) -> &'static [&'static str] {
        match self {
            Self::Native => &["scheduling.k8s.io/v1alpha3", "scheduling.k8s.io/v1beta1"],
            Self::NativeFlat => &["scheduling.k8s.io/v1beta1"],
            Self::Plain => &[],
        }
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A profile name that does not exist.
#[derive(Debug, thiserror::Error)]
#[error("unknown profile {0:?}; use native, native-flat or plain")]
pub struct UnknownProfile(String);

impl FromStr for Profile {
    type Err = UnknownProfile;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|profile| profile.name() == name)
            .ok_or_else(|| UnknownProfile(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back() {
        for profile in Profile::ALL {
            assert_eq!(profile.name().parse::<Profile>().unwrap(), profile);
        }
        let error = "gated".parse::<Profile>().unwrap_err().to_string();
        assert!(
            error.contains("gated") && error.contains("native-flat"),
            "{error}"
        );
    }
}
