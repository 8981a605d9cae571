//! Taking things away: replicas above the number, and the whole set.
//!
//! Deletion is active. Pods go first, by label and many at a time; then the objects around them. The garbage collector,
//! which would take minutes, finds nothing left to do. The set's finalizer goes when nothing is left.

use std::collections::BTreeSet;

use coppice_operator_api::error_code::ErrorCode;
use coppice_operator_api::event::EventReason;
use coppice_operator_api::{PodClique, PodCliqueScalingGroup, PodGang, labels};
use futures::StreamExt;
use futures::stream;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::core::v1::{Pod, Service, ServiceAccount};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use k8s_openapi::api::resource::v1::ResourceClaim;
use k8s_openapi::api::scheduling::v1alpha3::{CompositePodGroup, PodGroup, Workload};
use kube::Resource;

use super::apply;
use crate::apply::{WriteError, Writer};
use crate::backends::kai::KaiPodGroup;
use crate::backends::volcano::VolcanoPodGroup;
use crate::controller::Context;
use crate::controller::domains;
use crate::controller::errors::{Errors, code_of};
use crate::index::entry::SetRecord;
use crate::index::key::{Kind, SetKey};

/// Replicas in one request. The server deletes one request's objects one after the other, so several requests side by side
/// are quicker than a single one.
const PER_REQUEST: usize = 32;
/// Requests side by side.
const SIDE_BY_SIDE: usize = 8;

/// Removes everything of these replicas.
pub(super) async fn replicas(cx: &Context, key: &SetKey, replicas: &[u32], errors: &mut Errors) {
    if replicas.is_empty() {
        return;
    }
    let doomed: BTreeSet<u32> = replicas.iter().copied().collect();
    remove(
        cx,
        key,
        |replica| replica.is_some_and(|replica| doomed.contains(&replica)),
        errors,
    )
    .await;
}

/// Removes everything of the set and, when nothing is left, lets the set go.
pub(super) async fn whole_set(cx: &Context, key: &SetKey, record: &SetRecord, errors: &mut Errors) {
    remove(cx, key, |_| true, errors).await;
    if errors.is_empty() && cx.index.is_empty(key) {
        let done = apply::release(cx, record).await;
        errors.check(ErrorCode::DeleteSetReplica, None, done);
    }
}

async fn remove(
    cx: &Context,
    key: &SetKey,
    chosen: impl Fn(Option<u32>) -> bool,
    errors: &mut Errors,
) {
    let live = cx.index.live(key, &chosen);
    if let Some(replicas) = live.get(&Kind::Pod) {
        let removed = in_chunks(cx, key, Kind::Pod, replicas, errors).await;
        if let Some(set) = cx.index.set(key).and_then(|entry| entry.set) {
            let about = set.object.object_ref(&());
            cx.events.normal(
                &about,
                EventReason::PodDeleteSuccessful,
                removed,
                "pods deleted with their replicas",
            );
        }
    }
    // Whatever would make new ones or point at old ones.
    for kind in [
        Kind::Clique,
        Kind::Group,
        Kind::Gang,
        Kind::Autoscaler,
        Kind::Service,
        Kind::PodGroup,
        Kind::CompositePodGroup,
        Kind::Workload,
        Kind::Claim,
        Kind::KaiPodGroup,
        Kind::VolcanoPodGroup,
        Kind::RoleBinding,
        Kind::Role,
        Kind::ServiceAccount,
    ] {
        if let Some(replicas) = live.get(&kind) {
            in_chunks(cx, key, kind, replicas, errors).await;
        }
    }
    remove_domains(cx, key, &chosen, errors).await;
}

/// ComputeDomains are let go one by one, because of their finalizer; also those that are on their way out already.
async fn remove_domains(
    cx: &Context,
    key: &SetKey,
    chosen: impl Fn(Option<u32>) -> bool,
    errors: &mut Errors,
) {
    let objects = cx.index.plain_objects(key, Kind::ComputeDomain, chosen);
    let removals = stream::iter(objects).map(|(name, uid)| async move {
        domains::remove(&cx.writer, key.namespace(), &name, &uid).await
    });
    let mut removals = removals.buffer_unordered(SIDE_BY_SIDE);
    while let Some(done) = removals.next().await {
        errors.check(code_of(Kind::ComputeDomain), None, done);
    }
}

/// Returns how many pods were in the requests that the server took.
async fn in_chunks(
    cx: &Context,
    key: &SetKey,
    kind: Kind,
    replicas: &BTreeSet<Option<u32>>,
    errors: &mut Errors,
) -> usize {
    let numbered: Vec<u32> = replicas.iter().copied().flatten().collect();
    let mut requests: Vec<(String, Vec<u32>)> = numbered
        .chunks(PER_REQUEST)
        .map(|chunk| (replica_selector(key, chunk), chunk.to_vec()))
        .collect();
    if replicas.contains(&None) {
        requests.push((
            format!(
                "{},!{}",
                labels::set_selector(key.name()),
                labels::SET_REPLICA_INDEX
            ),
            Vec::new(),
        ));
    }
    let answers = stream::iter(requests).map(|(selector, chunk)| async move {
        let pods = if kind == Kind::Pod {
            cx.index.live_pods(key, |replica| chunk.contains(&replica))
        } else {
            Vec::new()
        };
        let done = delete_collection(&cx.writer, kind, key.namespace(), &selector).await;
        if done.is_ok() {
            cx.index.doom(key.namespace(), &pods);
            for _ in &pods {
                cx.metrics.pod_deleted("ScaleIn");
            }
        }
        (pods.len(), done)
    });
    let mut answers = answers.buffer_unordered(SIDE_BY_SIDE);
    let mut removed = 0;
    while let Some((pods, done)) = answers.next().await {
        if errors.check(code_of(kind), None, done) {
            removed += pods;
        }
    }
    removed
}

fn replica_selector(key: &SetKey, replicas: &[u32]) -> String {
    let list: Vec<String> = replicas.iter().map(u32::to_string).collect();
    format!(
        "{},{} in ({})",
        labels::set_selector(key.name()),
        labels::SET_REPLICA_INDEX,
        list.join(",")
    )
}

async fn delete_collection(
    writer: &Writer,
    kind: Kind,
    namespace: &str,
    selector: &str,
) -> Result<(), WriteError> {
    match kind {
        // Sets are never deleted by us, templates not written, and domains have a way of their own.
        Kind::Set | Kind::ClaimTemplate | Kind::ComputeDomain => Ok(()),
        Kind::KaiPodGroup => {
            writer
                .delete_collection::<KaiPodGroup>(kind, namespace, selector)
                .await
        }
        Kind::VolcanoPodGroup => {
            writer
                .delete_collection::<VolcanoPodGroup>(kind, namespace, selector)
                .await
        }
        Kind::Claim => {
            writer
                .delete_collection::<ResourceClaim>(kind, namespace, selector)
                .await
        }
        Kind::Pod => {
            writer
                .delete_collection::<Pod>(kind, namespace, selector)
                .await
        }
        Kind::Clique => {
            writer
                .delete_collection::<PodClique>(kind, namespace, selector)
                .await
        }
        Kind::Group => {
            writer
                .delete_collection::<PodCliqueScalingGroup>(kind, namespace, selector)
                .await
        }
        Kind::Gang => {
            writer
                .delete_collection::<PodGang>(kind, namespace, selector)
                .await
        }
        Kind::Service => {
            writer
                .delete_collection::<Service>(kind, namespace, selector)
                .await
        }
        Kind::Autoscaler => {
            writer
                .delete_collection::<HorizontalPodAutoscaler>(kind, namespace, selector)
                .await
        }
        Kind::ServiceAccount => {
            writer
                .delete_collection::<ServiceAccount>(kind, namespace, selector)
                .await
        }
        Kind::Role => {
            writer
                .delete_collection::<Role>(kind, namespace, selector)
                .await
        }
        Kind::RoleBinding => {
            writer
                .delete_collection::<RoleBinding>(kind, namespace, selector)
                .await
        }
        Kind::PodGroup => {
            writer
                .delete_collection::<PodGroup>(kind, namespace, selector)
                .await
        }
        Kind::CompositePodGroup => {
            writer
                .delete_collection::<CompositePodGroup>(kind, namespace, selector)
                .await
        }
        Kind::Workload => {
            writer
                .delete_collection::<Workload>(kind, namespace, selector)
                .await
        }
    }
}
