//! What can be chosen about a control plane.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use crate::components::Component;
use crate::home;
use crate::profile::Profile;

/// Everything that distinguishes one control plane from another. Start from [`Settings::new`] and change fields.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Which workload APIs are served.
    pub profile: Profile,
    /// The folder of all instances.
    pub root: PathBuf,
    /// Write an audit log of all changes (metadata only) to `logs/audit.log`; see [`crate::audit`].
    pub audit: bool,
    /// How long a node may be silent before it counts as unreachable (kube-controller-manager's
    /// `--node-monitor-grace-period`; 50 s in a real cluster). The fleet renews leases at least three times in it.
    pub node_grace: Duration,
    /// How long pods stay bound to a node that is not ready or unreachable before they are evicted (the default
    /// toleration that kube-apiserver gives every pod; 300 s in a real cluster). Whole seconds.
    pub eviction_delay: Duration,
    /// How often the HorizontalPodAutoscaler controller looks (15 s in a real cluster).
    pub hpa_sync: Duration,
    /// How long the start may take before it fails with the log of the program that is not ready.
    pub start_limit: Duration,
    /// Further arguments for the programs, behind our own, so that the last word is theirs.
    pub extra_arguments: BTreeMap<Component, Vec<String>>,
}

impl Settings {
    /// The testbed's defaults: an audit log, nodes lost after 10 s, pods evicted 3 s later, HPA every 2 s.
    #[must_use]
    pub fn new(profile: Profile) -> Self {
        Self {
            profile,
            root: home::default_root(),
            audit: true,
            node_grace: Duration::from_secs(10),
            eviction_delay: Duration::from_secs(3),
            hpa_sync: Duration::from_secs(2),
            start_limit: Duration::from_secs(180),
            extra_arguments: BTreeMap::new(),
        }
    }
}
