//! The API groups that the adapter can serve, and which of them it does.
//!
//! A group and version belongs to one server in a cluster. Where somebody else (KEDA, a cloud's adapter) owns one of the groups, the other
//! can still be served.

/// A group in one version, as an APIService registers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Api {
    /// `external.metrics.k8s.io/v1beta1`: a value for a selector.
    External,
    /// `custom.metrics.k8s.io/v1beta2`: values of objects.
    CustomV1Beta2,
    /// `custom.metrics.k8s.io/v1beta1`: the same for older clients.
    CustomV1Beta1,
}

/// Group of metrics that belong to no object.
pub(crate) const EXTERNAL: &str = "external.metrics.k8s.io";
/// Group of metrics of objects.
pub(crate) const CUSTOM: &str = "custom.metrics.k8s.io";

impl Api {
    /// All of them; of one group the preferred version first.
    pub(crate) const ALL: [Self; 3] = [Self::External, Self::CustomV1Beta2, Self::CustomV1Beta1];

    /// The group.
    pub(crate) const fn group(self) -> &'static str {
        match self {
            Self::External => EXTERNAL,
            Self::CustomV1Beta2 | Self::CustomV1Beta1 => CUSTOM,
        }
    }

    /// The version.
    pub(crate) const fn version(self) -> &'static str {
        match self {
            Self::External | Self::CustomV1Beta1 => "v1beta1",
            Self::CustomV1Beta2 => "v1beta2",
        }
    }

    /// Both, as `apiVersion` fields have them.
    pub(crate) fn group_version(self) -> String {
        format!("{}/{}", self.group(), self.version())
    }

    /// The path below which its resources are.
    pub(crate) fn path(self) -> String {
        format!("/apis/{}", self.group_version())
    }

    /// Name of its APIService, as the API server wants it.
    pub(crate) fn service_name(self) -> String {
        format!("{}.{}", self.version(), self.group())
    }

    /// The greatest one of a group is the version that the HPA uses.
    pub(crate) const fn version_priority(self) -> i32 {
        match self {
            Self::External | Self::CustomV1Beta1 => 100,
            Self::CustomV1Beta2 => 200,
        }
    }

    /// The kind that its metrics are answered with.
    pub(crate) const fn list_kind(self) -> &'static str {
        match self {
            Self::External => "ExternalMetricValueList",
            Self::CustomV1Beta2 | Self::CustomV1Beta1 => "MetricValueList",
        }
    }

    /// The one of this group and version.
    pub(crate) fn of(group: &str, version: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|api| api.group() == group && api.version() == version)
    }
}

/// The group of this name, if it is one that can be served.
pub(crate) fn known_group(name: &str) -> Option<&'static str> {
    [EXTERNAL, CUSTOM].into_iter().find(|group| *group == name)
}

/// Which groups are served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Groups {
    /// external.metrics.k8s.io alone.
    External,
    /// custom.metrics.k8s.io alone: beside KEDA, which owns the other one.
    Custom,
    /// Both.
    Both,
}

impl Groups {
    /// The groups and versions that are served, of each group the preferred version first.
    pub(crate) fn apis(self) -> impl Iterator<Item = Api> {
        Api::ALL.into_iter().filter(move |api| self.serves(*api))
    }

    /// Whether this one is served.
    pub(crate) const fn serves(self, api: Api) -> bool {
        match (self, api) {
            (Self::Both, _)
            | (Self::External, Api::External)
            | (Self::Custom, Api::CustomV1Beta2 | Api::CustomV1Beta1) => true,
            (Self::External, Api::CustomV1Beta2 | Api::CustomV1Beta1)
            | (Self::Custom, Api::External) => false,
        }
    }

    /// The groups, each once.
    pub(crate) fn names(self) -> Vec<&'static str> {
        let mut names: Vec<_> = self.apis().map(Api::group).collect();
        names.dedup();
        names
    }

    /// The flag's value.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::External => "external",
            Self::Custom => "custom",
            Self::Both => "both",
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;

    #[test]
    fn a_setting_serves_its_groups_in_all_their_versions() {
        let served = |groups: Groups| groups.apis().map(Api::service_name).collect::<Vec<_>>();
        assert_eq!(
            served(Groups::External),
            ["v1beta1.external.metrics.k8s.io"]
        );
        assert_eq!(
            served(Groups::Custom),
            [
                "v1beta2.custom.metrics.k8s.io",
                "v1beta1.custom.metrics.k8s.io"
            ]
        );
        assert_eq!(served(Groups::Both).len(), 3);
        assert_eq!(Groups::Both.names(), [EXTERNAL, CUSTOM]);
        for groups in [Groups::External, Groups::Custom, Groups::Both] {
            assert_eq!(Groups::from_str(groups.as_str(), false), Ok(groups));
        }
    }

    #[test]
    fn the_newer_version_is_the_one_that_is_preferred() {
        let custom: Vec<_> = Groups::Custom.apis().map(Api::version_priority).collect();
        assert!(custom[0] > custom[1], "{custom:?}");
    }
}
