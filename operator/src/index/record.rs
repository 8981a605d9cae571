//! What the index remembers of an object.

use std::sync::Arc;

use coppice_operator_api::{
    PodCliqueScalingGroupStatus, PodCliqueStatus, PodGangSpec, PodGangStatus, labels, names,
};
use coppice_operator_plan::hash::TemplateHash;
use coppice_operator_plan::ids::PodUid;
use coppice_operator_plan::observed::{Lane, Phase, Pod};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::de::DeserializeOwned;
use tracing::warn;

use super::view::{CliqueView, CompositeView, GangView, GroupView, PodGroupView, PodView, Raw};
use crate::build::{FLOOR_GROUPS_ANNOTATION, LANE_ANNOTATION};

/// Identity and version of an object.
#[derive(Clone, Debug)]
pub(crate) struct Version {
    /// The server's identity.
    pub(crate) uid: Arc<str>,
    /// Orders the versions of one object; 0 when the server's text is no number.
    pub(crate) resource: u64,
    /// `metadata.generation`.
    pub(crate) generation: i64,
    /// `deletionTimestamp` is set.
    pub(crate) terminating: bool,
    /// Uid of the controlling owner.
    pub(crate) owner: Option<Arc<str>>,
    /// What was written into it last, see [`crate::apply::fingerprint`].
    pub(crate) applied: Option<Box<str>>,
}

impl Version {
    pub(crate) fn of(meta: &ObjectMeta) -> Self {
        let controller = meta
            .owner_references
            .iter()
            .flatten()
            .find(|owner| owner.controller == Some(true));
        Self {
            uid: Arc::from(meta.uid.as_deref().unwrap_or_default()),
            resource: resource_version(meta),
            generation: meta.generation.unwrap_or_default(),
            terminating: meta.deletion_timestamp.is_some(),
            owner: controller.map(|owner| Arc::from(owner.uid.as_str())),
            applied: annotation(meta, crate::apply::FINGERPRINT).map(Into::into),
        }
    }
}

/// The resource version as a number. The API promises that versions of one resource can be compared so.
pub(crate) fn resource_version(meta: &ObjectMeta) -> u64 {
    meta.resource_version
        .as_deref()
        .and_then(|text| text.parse().ok())
        .unwrap_or_default()
}

/// A label of an object.
pub(crate) fn label<'a>(meta: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    meta.labels.as_ref()?.get(key).map(String::as_str)
}

fn annotation<'a>(meta: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    meta.annotations.as_ref()?.get(key).map(String::as_str)
}

/// Reads a part of an object; what cannot be read counts as absent.
fn read<T: DeserializeOwned>(raw: &Raw, meta: &ObjectMeta, part: &'static str) -> Option<T> {
    let raw = raw.as_ref()?;
    match serde_json::from_str(raw.get()) {
        Ok(value) => Some(value),
        Err(error) => {
            let (namespace, name) = (meta.namespace.as_deref(), meta.name.as_deref());
            warn!(namespace, name, part, %error, "an object cannot be read");
            None
        }
    }
}

/// `replicas` of a spec; 0 where it has none, or an impossible number.
fn replicas_of(spec: &Raw, meta: &ObjectMeta) -> u32 {
    #[derive(serde::Deserialize)]
    struct Replicas {
        #[serde(default)]
        replicas: i64,
    }
    let replicas = read::<Replicas>(spec, meta, "spec").map_or(0, |spec| spec.replicas);
    u32::try_from(replicas).unwrap_or(0)
}

/// A PodClique.
#[derive(Clone, Debug)]
pub(crate) struct CliqueRecord {
    pub(crate) version: Version,
    /// Labels and annotations, which its pods inherit.
    pub(crate) meta: Arc<ObjectMeta>,
    /// `spec`, as text.
    pub(crate) spec: Arc<str>,
    pub(crate) replicas: u32,
    pub(crate) hash: TemplateHash,
    pub(crate) group: Option<Arc<str>>,
    pub(crate) group_replica: Option<u32>,
    pub(crate) status: Arc<PodCliqueStatus>,
    /// Desired state it was last found to have, see [`super::Index::verified`].
    pub(crate) verified: Option<u64>,
}

impl CliqueRecord {
    pub(crate) fn of(view: CliqueView) -> Self {
        let meta = view.metadata;
        Self {
            version: Version::of(&meta),
            spec: Arc::from(view.spec.as_ref().map_or("{}", |raw| raw.get())),
            replicas: replicas_of(&view.spec, &meta),
            hash: TemplateHash::recorded(label(&meta, labels::TEMPLATE_HASH).unwrap_or_default()),
            group: label(&meta, labels::SCALING_GROUP).map(Into::into),
            group_replica: label(&meta, labels::GROUP_REPLICA_INDEX)
                .and_then(|text| text.parse().ok()),
            status: Arc::new(read(&view.status, &meta, "status").unwrap_or_default()),
            meta: Arc::new(meta),
            verified: None,
        }
    }
}

/// A PodCliqueScalingGroup.
#[derive(Clone, Debug)]
pub(crate) struct GroupRecord {
    pub(crate) version: Version,
    pub(crate) spec: Arc<str>,
    pub(crate) replicas: u32,
    pub(crate) status: Arc<PodCliqueScalingGroupStatus>,
    pub(crate) verified: Option<u64>,
}

impl GroupRecord {
    pub(crate) fn of(view: GroupView) -> Self {
        let meta = view.metadata;
        Self {
            version: Version::of(&meta),
            spec: Arc::from(view.spec.as_ref().map_or("{}", |raw| raw.get())),
            replicas: replicas_of(&view.spec, &meta),
            status: Arc::new(read(&view.status, &meta, "status").unwrap_or_default()),
            verified: None,
        }
    }
}

/// A PodGang.
#[derive(Clone, Debug)]
pub(crate) struct GangRecord {
    pub(crate) version: Version,
    pub(crate) created: Timestamp,
    pub(crate) spec: Arc<PodGangSpec>,
    pub(crate) status: Arc<PodGangStatus>,
}

impl GangRecord {
    pub(crate) fn of(view: &GangView) -> Self {
        let meta = &view.metadata;
        Self {
            version: Version::of(meta),
            created: meta
                .creation_timestamp
                .as_ref()
                .map_or(Timestamp::UNIX_EPOCH, |time| time.0),
            spec: Arc::new(read(&view.spec, meta, "spec").unwrap_or_default()),
            status: Arc::new(read(&view.status, meta, "status").unwrap_or_default()),
        }
    }
}

/// A pod.
#[derive(Clone, Debug)]
pub(crate) struct PodRecord {
    pub(crate) resource: u64,
    pub(crate) owner: Option<Arc<str>>,
    /// Name of its PodClique.
    pub(crate) clique: Arc<str>,
    /// What planning sees of it.
    pub(crate) pod: Pod,
}

impl PodRecord {
    pub(crate) fn of(view: &PodView) -> Self {
        let meta = &view.metadata;
        let condition = |kind: &str| {
            view.status
                .conditions
                .iter()
                .find(|condition| &*condition.kind == kind)
        };
        let is_true =
            |kind: &str| condition(kind).is_some_and(|condition| &*condition.status == "True");
        let containers = &view.status.container_statuses;
        let all = containers
            .iter()
            .chain(&view.status.init_container_statuses);
        let crashed = |container: &super::view::ContainerView| {
            container
                .last_state
                .terminated
                .as_ref()
                .is_some_and(|end| end.exit_code != 0)
        };
        let scheduled = view
            .spec
            .node_name
            .as_deref()
            .is_some_and(|node| !node.is_empty());
        let controller = meta
            .owner_references
            .iter()
            .flatten()
            .find(|owner| owner.controller == Some(true));
        let created = meta
            .creation_timestamp
            .as_ref()
            .map_or(Timestamp::UNIX_EPOCH, |time| time.0);
        Self {
            resource: resource_version(meta),
            owner: controller.map(|owner| Arc::from(owner.uid.as_str())),
            clique: Arc::from(label(meta, labels::CLIQUE).unwrap_or_default()),
            pod: Pod {
                uid: PodUid::new(meta.uid.as_deref().unwrap_or_default()),
                index: label(meta, labels::POD_INDEX).and_then(|text| text.parse().ok()),
                phase: match &*view.status.phase {
                    "Running" => Phase::Running,
                    "Succeeded" => Phase::Succeeded,
                    "Failed" => Phase::Failed,
                    "Unknown" => Phase::Unknown,
                    _ => Phase::Pending,
                },
                terminating: meta.deletion_timestamp.is_some(),
                scheduled,
                gated: view
                    .spec
                    .scheduling_gates
                    .iter()
                    .any(|gate| &*gate.name == names::SCHEDULING_GATE),
                ready: is_true("Ready"),
                started_unready: containers
                    .iter()
                    .any(|container| container.started == Some(true) && !container.ready),
                crashed: all.into_iter().any(crashed),
                hash: TemplateHash::recorded(
                    label(meta, labels::TEMPLATE_HASH).unwrap_or_default(),
                ),
                created,
                lane: annotation(meta, LANE_ANNOTATION).and_then(read_lane),
            },
        }
    }
}

/// A lane as an annotation writes it: the round, and `+` behind it for a pod that follows the floor.
pub(crate) fn write_lane(lane: Lane) -> String {
    format!("{}{}", lane.round, if lane.floor { "" } else { "+" })
}

fn read_lane(text: &str) -> Option<Lane> {
    let (round, floor) = match text.strip_suffix('+') {
        Some(round) => (round, false),
        None => (text, true),
    };
    Some(Lane {
        round: round.parse().ok()?,
        floor,
    })
}

/// An object of which only existence, and perhaps its content, matter.
#[derive(Clone, Debug)]
pub(crate) struct PlainRecord {
    pub(crate) version: Version,
    /// Its content, as text.
    pub(crate) content: Box<str>,
    pub(crate) verified: Option<u64>,
}

impl PlainRecord {
    pub(crate) fn of(meta: &ObjectMeta, content: Option<&Raw>) -> Self {
        let content = content
            .and_then(Option::as_ref)
            .map_or("{}", |raw| raw.get());
        Self {
            version: Version::of(meta),
            content: content.into(),
            verified: None,
        }
    }
}

/// A PodGroup or CompositePodGroup of the scheduler.
#[derive(Clone, Debug)]
pub(crate) struct PlacementRecord {
    pub(crate) version: Version,
    /// Pods, or groups of pods, that must be placed together.
    pub(crate) min: u32,
    /// It has a parent.
    pub(crate) parented: bool,
    /// The scheduler reported it placed.
    pub(crate) placed: bool,
    /// Why it is not, in the scheduler's words.
    pub(crate) refusal: Option<Box<str>>,
    /// Name of the PodClique, or of the PodGang, it stands for.
    pub(crate) subject: Arc<str>,
    /// Which placement of it.
    pub(crate) lane: Option<Lane>,
}

impl PlacementRecord {
    pub(crate) fn of_group(view: &PodGroupView) -> Self {
        let (placed, refusal) = verdict(&view.status.conditions, "PodGroupInitiallyScheduled");
        Self {
            version: Version::of(&view.metadata),
            min: view.spec.scheduling_policy.gang.min_count,
            parented: view.spec.parent_composite_pod_group_name.is_some(),
            placed,
            refusal,
            subject: Arc::from(label(&view.metadata, labels::CLIQUE).unwrap_or_default()),
            lane: annotation(&view.metadata, LANE_ANNOTATION).and_then(read_lane),
        }
    }

    pub(crate) fn of_composite(view: &CompositeView) -> Self {
        let (placed, refusal) = verdict(
            &view.status.conditions,
            "CompositePodGroupInitiallyScheduled",
        );
        Self {
            version: Version::of(&view.metadata),
            // With parts in between, its children are fewer than the groups below it.
            min: annotation(&view.metadata, FLOOR_GROUPS_ANNOTATION)
                .and_then(|text| text.parse().ok())
                .unwrap_or(view.spec.scheduling_policy.gang.min_group_count),
            parented: view.spec.parent_composite_pod_group_name.is_some(),
            placed,
            refusal,
            subject: Arc::from(label(&view.metadata, labels::GANG).unwrap_or_default()),
            lane: annotation(&view.metadata, LANE_ANNOTATION).and_then(read_lane),
        }
    }
}

fn verdict(
    conditions: &[k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition],
    kind: &str,
) -> (bool, Option<Box<str>>) {
    let Some(condition) = conditions.iter().find(|condition| condition.type_ == kind) else {
        return (false, None);
    };
    match condition.status.as_str() {
        "True" => (true, None),
        _ => (false, Some(condition.message.as_str().into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_survive_being_written_down() {
        for lane in [
            Lane {
                round: 0,
                floor: true,
            },
            Lane {
                round: 12,
                floor: false,
            },
        ] {
            assert_eq!(read_lane(&write_lane(lane)), Some(lane));
        }
        assert_eq!(read_lane("x+"), None);
    }

    fn pod(spec: &str, status: &str) -> PodRecord {
        let text =
            format!(r#"{{"metadata":{{"name":"p","uid":"u"}},"spec":{spec},"status":{status}}}"#);
        PodRecord::of(&serde_json::from_str(&text).unwrap())
    }

    #[test]
    fn readiness_and_failures_are_read_from_container_states() {
        let starting = pod(
            r#"{"nodeName":"n"}"#,
            r#"{"phase":"Running","containerStatuses":[{"ready":false,"started":true}]}"#,
        );
        assert!(starting.pod.scheduled && starting.pod.started_unready && !starting.pod.crashed);
        let crashed = pod(
            "{}",
            r#"{"initContainerStatuses":[{"lastState":{"terminated":{"exitCode":1}}}]}"#,
        );
        assert!(crashed.pod.crashed && !crashed.pod.scheduled);
        let gated = pod(
            r#"{"schedulingGates":[{"name":"grove.io/podgang-pending-creation"}]}"#,
            "{}",
        );
        assert!(gated.pod.gated);
    }
}
