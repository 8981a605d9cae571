//! What a pod says about itself.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

pub(crate) fn node(pod: &Pod) -> Option<&str> {
    pod.spec
        .as_ref()?
        .node_name
        .as_deref()
        .filter(|name| !name.is_empty())
}

/// A pod in a line: where it is, and what it waits for.
pub(super) fn describe(pod: &Pod) -> String {
    let conditions = pod
        .status
        .iter()
        .filter_map(|status| status.conditions.as_ref())
        .flatten();
    let conditions: Vec<String> = conditions
        .map(|condition| {
            let words = [&condition.reason, &condition.message]
                .map(|text| text.as_deref().unwrap_or_default());
            format!(
                "{}={} {}",
                condition.type_,
                condition.status,
                words.join(" ")
            )
        })
        .collect();
    let meta = &pod.metadata;
    format!(
        "{} on {} is {}, created {:?}, deleted {:?}, {}",
        pod.name_any(),
        node(pod).unwrap_or("no node"),
        phase(pod),
        meta.creation_timestamp.as_ref().map(|time| time.0),
        meta.deletion_timestamp.as_ref().map(|time| time.0),
        conditions.join("; "),
    )
}

pub(crate) fn phase(pod: &Pod) -> &str {
    pod.status
        .as_ref()
        .and_then(|status| status.phase.as_deref())
        .unwrap_or_default()
}

pub(crate) fn label<'a>(pod: &'a Pod, key: &str) -> &'a str {
    pod.metadata
        .labels
        .as_ref()
        .and_then(|labels| labels.get(key))
        .map_or("", String::as_str)
}

pub(crate) fn uids<'a>(pods: impl IntoIterator<Item = &'a Pod>) -> BTreeSet<String> {
    pods.into_iter().filter_map(ResourceExt::uid).collect()
}

pub(crate) fn is_ready(pod: &Pod) -> bool {
    condition_time(pod, "Ready").is_some()
}

/// When a condition of a pod became true.
pub(crate) fn condition_time(pod: &Pod, kind: &str) -> Option<k8s_openapi::jiff::Timestamp> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let condition = conditions
        .iter()
        .find(|condition| condition.type_ == kind && condition.status == "True")?;
    condition.last_transition_time.as_ref().map(|time| time.0)
}
