//! What is kept of each object.

use std::collections::BTreeMap;

use coppice_operator_api::{PodClique, PodCliqueScalingGroup, PodCliqueSet, labels};
use coppice_signals::PodFacts;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::gpus;

/// A pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PodView {
    /// What the collector needs.
    pub(crate) facts: PodFacts,
    pub(crate) created: Option<Timestamp>,
    pub(crate) scheduled: Option<Timestamp>,
    /// Since when it is ready.
    pub(crate) ready: Option<Timestamp>,
    /// Since when it cannot be scheduled, or waits behind a scheduling gate.
    pub(crate) unschedulable: Option<Timestamp>,
    /// It is being deleted and its containers may still hold devices.
    pub(crate) terminating: bool,
    /// It has ended and holds nothing.
    pub(crate) ended: bool,
    /// GPUs. `None`: unknown.
    pub(crate) gpus: Option<u32>,
}

impl PodView {
    /// The view of a pod; GPUs are counted by `resource`.
    pub(crate) fn new(pod: Pod, resource: &str) -> Self {
        let gpus = pod
            .spec
            .as_ref()
            .and_then(|spec| gpus::of_pod(spec, resource));
        let created = pod.metadata.creation_timestamp.as_ref().map(|time| time.0);
        let terminating = pod.metadata.deletion_timestamp.is_some();
        let status = pod.status.as_ref();
        let ended = matches!(
            status.and_then(|status| status.phase.as_deref()),
            Some("Succeeded" | "Failed")
        );
        let conditions = status
            .and_then(|status| status.conditions.clone())
            .unwrap_or_default();
        let since = |type_: &str, wanted: &str| {
            let matching =
                |condition: &&PodCondition| condition.type_ == type_ && condition.status == wanted;
            conditions.iter().find(matching).map(|condition| {
                condition
                    .last_transition_time
                    .as_ref()
                    .map_or(created, |time| Some(time.0))
            })
        };
        Self {
            created,
            scheduled: since("PodScheduled", "True").flatten(),
            ready: since("Ready", "True")
                .map(|since| since.or(created).unwrap_or(Timestamp::UNIX_EPOCH)),
            unschedulable: since("PodScheduled", "False")
                .map(|since| since.or(created).unwrap_or(Timestamp::UNIX_EPOCH)),
            terminating,
            ended,
            gpus,
            facts: PodFacts::from(pod),
        }
    }

    pub(crate) fn label(&self, key: &str) -> Option<&str> {
        self.facts.labels.get(key).map(String::as_str)
    }

    fn index(&self, key: &str) -> Option<u32> {
        self.label(key)?.parse().ok()
    }

    /// Index of the set replica it belongs to.
    pub(crate) fn set_index(&self) -> Option<u32> {
        self.index(labels::SET_REPLICA_INDEX)
    }

    /// Index of the scaling-group replica it belongs to.
    pub(crate) fn group_index(&self) -> Option<u32> {
        self.index(labels::GROUP_REPLICA_INDEX)
    }

    /// Whether it works: ready and not going away.
    pub(crate) fn is_ready(&self) -> bool {
        self.ready.is_some() && !self.terminating && !self.ended
    }
}

/// A PodCliqueSet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SetView {
    pub(crate) replicas: u32,
    pub(crate) cliques: BTreeMap<String, CliqueTemplate>,
    pub(crate) groups: BTreeMap<String, GroupTemplate>,
    pub(crate) rollout: bool,
    pub(crate) uid: String,
    pub(crate) version: Option<Version>,
}

/// A clique of a PodCliqueSet's template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CliqueTemplate {
    pub(crate) replicas: u32,
    pub(crate) min_available: u32,
    /// GPUs of one pod. `None`: unknown.
    pub(crate) gpus: Option<u32>,
}

/// A scaling group of a PodCliqueSet's template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GroupTemplate {
    pub(crate) cliques: Vec<String>,
    pub(crate) replicas: u32,
    pub(crate) min_available: u32,
}

impl SetView {
    /// The view of a set; GPUs are counted by `resource`.
    pub(crate) fn new(set: PodCliqueSet, resource: &str) -> Self {
        let template = set.spec.template;
        let groups = template.scaling_groups().iter().map(|group| {
            let view = GroupTemplate {
                cliques: group.clique_names.clone(),
                replicas: unsigned(group.template_replicas()),
                min_available: unsigned(group.effective_min_available()),
            };
            (group.name.clone(), view)
        });
        let cliques = template.cliques.iter().map(|clique| {
            let view = CliqueTemplate {
                replicas: unsigned(clique.spec.template_replicas()),
                min_available: unsigned(clique.spec.effective_min_available()),
                gpus: gpus::of_pod(&clique.spec.pod_spec, resource),
            };
            (clique.name.clone(), view)
        });
        let progress = set
            .status
            .as_ref()
            .and_then(|status| status.update_progress.as_ref());
        Self {
            version: Version::of(&set.metadata),
            replicas: unsigned(set.spec.replicas),
            cliques: cliques.collect(),
            groups: groups.collect(),
            rollout: progress.is_some_and(|progress| {
                progress.update_started_at.is_some() && progress.update_ended_at.is_none()
            }),
            uid: set.metadata.uid.unwrap_or_default(),
        }
    }

    /// GPUs of one replica of a group. `None`: unknown.
    pub(crate) fn group_gpus(&self, group: &GroupTemplate) -> Option<u32> {
        group
            .cliques
            .iter()
            .map(|clique| self.clique_gpus(clique))
            .sum()
    }

    /// GPUs of a clique with its template's pods. `None`: unknown.
    pub(crate) fn clique_gpus(&self, clique: &str) -> Option<u32> {
        let clique = self.cliques.get(clique)?;
        Some(clique.gpus? * clique.replicas)
    }

    /// Names of the cliques that are in no group.
    pub(crate) fn standalone(&self) -> impl Iterator<Item = &String> {
        self.cliques.keys().filter(|name| {
            !self
                .groups
                .values()
                .any(|group| group.cliques.contains(name))
        })
    }
}

/// Something with replicas: a PodClique or a PodCliqueScalingGroup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ScaledView {
    pub(crate) replicas: u32,
    pub(crate) version: Option<Version>,
}

impl ScaledView {
    /// The view of a clique; `None` while it is being deleted.
    pub(crate) fn of_clique(clique: &PodClique) -> Option<Self> {
        clique.metadata.deletion_timestamp.is_none().then(|| Self {
            replicas: unsigned(clique.spec.replicas),
            version: Version::of(&clique.metadata),
        })
    }

    /// The view of a scaling group; `None` while it is being deleted.
    pub(crate) fn of_group(group: &PodCliqueScalingGroup) -> Option<Self> {
        group.metadata.deletion_timestamp.is_none().then(|| Self {
            replicas: unsigned(group.spec.replicas),
            version: Version::of(&group.metadata),
        })
    }
}

/// Which of two states of one object is the later one. Kubernetes promises that resource versions of one kind can be compared as numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version(pub(crate) u128);

impl Version {
    /// `None`: the server gives none that can be compared.
    pub(crate) fn of(metadata: &ObjectMeta) -> Option<Self> {
        metadata.resource_version.as_deref()?.parse().ok().map(Self)
    }
}

/// A number of replicas that the API holds as a signed one and never lets be below zero.
pub(crate) fn unsigned(replicas: i32) -> u32 {
    u32::try_from(replicas).unwrap_or(0)
}
