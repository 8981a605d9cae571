//! Writes of one pass over a set replica.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use coppice_operator_api::error_code::ErrorCode;
use coppice_operator_api::event::EventReason;
use coppice_operator_api::{PodClique, PodCliqueScalingGroup, PodCliqueSpec, labels, names};
use coppice_operator_plan::gang::gang_of;
use coppice_operator_plan::ids::{CliqueId, PodIndex, PodUid};
use coppice_operator_plan::replica::{CliquePlan, GroupPlan, Plan};
use coppice_operator_plan::sharing::Owner;
use futures::StreamExt;
use futures::future::join_all;
use futures::stream::FuturesUnordered;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::core::v1::{ObjectReference, Pod, Service};
use k8s_openapi::api::scheduling::v1alpha3::{CompositePodGroup, PodGroup};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Resource;
use serde_json::Value;
use tracing::debug;

use super::fetch::Fetched;
use crate::apply::WriteError;
use crate::backends::{Placement, PlacementObject, PodPlace};
use crate::build;
use crate::build::pod::Mould;
use crate::controller::Context;
use crate::controller::claims::{self, Wanted};
use crate::controller::domains;
use crate::controller::ensure::{self, Site, Stored, inputs};
use crate::controller::errors::{Errors, code_of};
use crate::index::key::Kind;
use crate::index::record::{CliqueRecord, GroupRecord, PodRecord};
use crate::index::view::{
    AutoscalerView, CliqueView, CompositeView, GroupView, PodGroupView, PodView, ServiceView,
};

fn spec_of(object: &Value) -> Option<&Value> {
    object.get("spec")
}

fn site(fetched: &Fetched) -> Site<'_> {
    Site {
        set: &fetched.set.key,
        replica: Some(fetched.replica),
    }
}

/// Scaling groups, then everything that may need them as owner, side by side.
pub(super) async fn objects(cx: &Context, fetched: &Fetched, planned: &Plan, errors: &mut Errors) {
    let groups = join_all(
        planned
            .groups
            .iter()
            .map(|group| ensure_group(cx, fetched, group)),
    )
    .await;
    for done in groups {
        errors.check(ErrorCode::SyncScalingGroup, None, done);
    }
    let group_uids = group_uids(cx, fetched);
    let cliques = planned.cliques.iter().map(|clique| async {
        let done = ensure_clique(cx, fetched, clique, &group_uids).await;
        (fetched.scope().clique(&clique.id), done)
    });
    let (cliques, service, autoscalers) = tokio::join!(
        join_all(cliques),
        ensure_service(cx, fetched),
        join_all(
            build::autoscaler::autoscalers(fetched.scope())
                .into_iter()
                .map(|hpa| ensure_autoscaler(cx, fetched, hpa))
        )
    );
    for (name, done) in cliques {
        errors.check(ErrorCode::CreateOrUpdatePodClique, Some(&name), done);
    }
    errors.check(ErrorCode::SyncService, None, service);
    // An autoscaler that the server refuses must not keep pods from being made.
    for done in autoscalers {
        errors.check(ErrorCode::SyncHpa, None, done);
    }
}

/// Claims, when their owners are there, and ComputeDomains. Pods come later.
pub(super) async fn claims(cx: &Context, fetched: &Fetched, planned: &Plan, errors: &mut Errors) {
    let Some((_, entry, _)) = cx.index.replica(&fetched.set.key, fetched.replica) else {
        return;
    };
    let (set, scope) = (&fetched.set, fetched.scope());
    let wanted = set
        .sharing
        .of_replica(fetched.replica, planned, &fetched.observed);
    let wanted = wanted.into_iter().map(|id| {
        let owner = match &id.owner {
            Owner::Set => Some(set.owner()),
            Owner::Group(group) => {
                let name = scope.group(group);
                let record = entry.shelf.groups.get(&*name);
                record
                    .filter(|record| !record.version.terminating)
                    .map(|record| group_owner(name, &record.version.uid))
            }
            Owner::Clique(clique) => {
                let name = scope.clique(clique);
                let record = entry.shelf.cliques.get(&*name);
                record
                    .filter(|record| !record.version.terminating)
                    .map(|record| clique_owner(&name, record))
            }
        };
        Wanted { id, owner }
    });
    let wanted: Vec<Wanted> = wanted.collect();
    claims::sync(
        cx,
        set,
        Some(fetched.replica),
        &entry.shelf,
        &wanted,
        errors,
    )
    .await;
    domains::sync(cx, scope, &entry.shelf, errors).await;
}

/// Uids of the scaling groups, by their objects' names, own writes included.
fn group_uids(cx: &Context, fetched: &Fetched) -> BTreeMap<Arc<str>, Arc<str>> {
    let Some((_, entry, _)) = cx.index.replica(&fetched.set.key, fetched.replica) else {
        return BTreeMap::new();
    };
    let groups = entry.shelf.groups.into_iter();
    groups
        .map(|(name, record)| (name, record.version.uid))
        .collect()
}

async fn ensure_group(
    cx: &Context,
    fetched: &Fetched,
    group: &GroupPlan,
) -> Result<(), WriteError> {
    let name = fetched.scope().group(&group.name);
    let record = fetched.entry.shelf.groups.get(&*name);
    if record.is_some_and(|record| record.version.terminating) {
        return Ok(());
    }
    let stored = record.map(
        |GroupRecord {
             version,
             spec,
             verified,
             ..
         }| Stored {
            version,
            content: spec,
            verified: *verified,
        },
    );
    let of = (
        fetched.set.generation(),
        &fetched.set.object.metadata.annotations,
        &name,
    );
    let build =
        || build::group::group(fetched.scope(), group).expect("the plan comes from this template");
    ensure::object::<PodCliqueScalingGroup, GroupView>(
        cx,
        site(fetched),
        stored,
        inputs(of),
        spec_of,
        build,
    )
    .await
}

async fn ensure_clique(
    cx: &Context,
    fetched: &Fetched,
    clique: &CliquePlan,
    groups: &BTreeMap<Arc<str>, Arc<str>>,
) -> Result<(), WriteError> {
    let scope = fetched.scope();
    let name = scope.clique(&clique.id);
    let record = fetched.entry.shelf.cliques.get(&*name);
    if clique.keep_template || record.is_some_and(|record| record.version.terminating) {
        return Ok(());
    }
    let owner = match clique.id.group() {
        None => fetched.set.owner(),
        Some((group, _)) => {
            let group = scope.group(group);
            // Its scaling group could not be made; that error is noted already.
            let Some(uid) = groups.get(&*group) else {
                return Ok(());
            };
            group_owner(group, uid)
        }
    };
    let stored = record.map(
        |CliqueRecord {
             version,
             spec,
             verified,
             ..
         }| Stored {
            version,
            content: spec,
            verified: *verified,
        },
    );
    let of = (
        fetched.set.generation(),
        &clique.id,
        &clique.parents,
        &owner.uid,
        fetched.set.domains.of_clique(clique.id.template()),
    );
    let build = || {
        build::clique::clique(scope, clique, owner.clone())
            .expect("the plan comes from this template")
    };
    ensure::object::<PodClique, CliqueView>(cx, site(fetched), stored, inputs(of), spec_of, build)
        .await
}

async fn ensure_service(cx: &Context, fetched: &Fetched) -> Result<(), WriteError> {
    let scope = fetched.scope();
    let name = names::headless_service(fetched.set.key.name(), fetched.replica);
    let stored = Stored::plain(&fetched.entry.shelf, Kind::Service, &name);
    let of = (fetched.set.generation(), &fetched.set.object.metadata.uid);
    ensure::object::<Service, ServiceView>(cx, site(fetched), stored, inputs(of), spec_of, || {
        build::service::service(scope)
    })
    .await
}

async fn ensure_autoscaler(
    cx: &Context,
    fetched: &Fetched,
    hpa: HorizontalPodAutoscaler,
) -> Result<(), WriteError> {
    let name = hpa.metadata.name.clone().unwrap_or_default();
    let stored = Stored::plain(&fetched.entry.shelf, Kind::Autoscaler, &name);
    let of = (fetched.set.generation(), &fetched.set.object.metadata.uid);
    ensure::object::<HorizontalPodAutoscaler, AutoscalerView>(
        cx,
        site(fetched),
        stored,
        inputs(of),
        spec_of,
        || hpa,
    )
    .await
}

/// Everything that is there and should not be.
pub(super) async fn removals(cx: &Context, fetched: &Fetched, planned: &Plan, errors: &mut Errors) {
    let scope = fetched.scope();
    let namespace = fetched.set.key.namespace();
    let shelf = &fetched.entry.shelf;
    let mut cliques: Vec<(Arc<str>, Arc<str>)> = fetched.stray_cliques.clone();
    for id in &planned.remove_cliques {
        if let Some((name, record)) = shelf.cliques.get_key_value(&*scope.clique(id)) {
            cliques.push((Arc::clone(name), Arc::clone(&record.version.uid)));
        }
    }
    cliques.retain(|(name, _)| {
        shelf
            .cliques
            .get(name)
            .is_some_and(|record| !record.version.terminating)
    });
    let removed = join_all(
        cliques
            .iter()
            .map(|(name, uid)| remove_clique(cx, fetched, name, uid)),
    )
    .await;
    let mut count = 0;
    for ((name, _), done) in cliques.iter().zip(removed) {
        count += usize::from(errors.check(ErrorCode::SyncPodClique, Some(name), done));
    }
    cx.events.normal(
        &about(fetched),
        EventReason::PodCliqueDeleteSuccessful,
        count,
        "PodCliques removed",
    );

    let mut groups: Vec<(Arc<str>, Arc<str>)> = fetched.stray_groups.clone();
    for name in &planned.remove_groups {
        if let Some((name, record)) = shelf.groups.get_key_value(&*scope.group(name)) {
            groups.push((Arc::clone(name), Arc::clone(&record.version.uid)));
        }
    }
    for (name, uid) in groups {
        let done = cx
            .writer
            .delete::<PodCliqueScalingGroup>(Kind::Group, namespace, &name, &uid)
            .await;
        errors.check(ErrorCode::SyncScalingGroup, None, done);
    }
    remove_autoscalers(cx, fetched, errors).await;
}

/// The pods at once and by their label, then the object; the garbage collector finds nothing left to do.
async fn remove_clique(
    cx: &Context,
    fetched: &Fetched,
    name: &str,
    uid: &str,
) -> Result<(), WriteError> {
    let namespace = fetched.set.key.namespace();
    let pods: Vec<(Arc<str>, PodUid)> = fetched
        .entry
        .shelf
        .pods
        .iter()
        .filter(|(_, pod)| *pod.clique == *name && !pod.pod.terminating)
        .map(|(name, pod)| (Arc::clone(name), pod.pod.uid.clone()))
        .collect();
    if !pods.is_empty() {
        let selector = labels::clique_selector(fetched.set.key.name(), name);
        cx.writer
            .delete_collection::<Pod>(Kind::Pod, namespace, &selector)
            .await?;
        cx.index.doom(namespace, &pods);
    }
    cx.writer
        .delete::<PodClique>(Kind::Clique, namespace, name, uid)
        .await
}

async fn remove_autoscalers(cx: &Context, fetched: &Fetched, errors: &mut Errors) {
    let wanted: BTreeSet<String> = build::autoscaler::autoscalers(fetched.scope())
        .into_iter()
        .filter_map(|hpa| hpa.metadata.name)
        .collect();
    for ((kind, name), record) in &fetched.entry.shelf.plain {
        if *kind == Kind::Autoscaler && !wanted.contains(&**name) && !record.version.terminating {
            let namespace = fetched.set.key.namespace();
            let uid = &record.version.uid;
            let done = cx
                .writer
                .delete::<HorizontalPodAutoscaler>(*kind, namespace, name, uid)
                .await;
            errors.check(ErrorCode::SyncHpa, None, done);
        }
    }
}

/// Deletes, then creates pods.
pub(super) async fn pods(
    cx: &Context,
    fetched: &Fetched,
    planned: &Plan,
    placement: &Placement,
    errors: &mut Errors,
) {
    delete_pods(cx, fetched, planned, placement, errors).await;
    create_pods(cx, fetched, planned, placement, errors).await;
}

async fn delete_pods(
    cx: &Context,
    fetched: &Fetched,
    planned: &Plan,
    placement: &Placement,
    errors: &mut Errors,
) {
    let namespace = fetched.set.key.namespace();
    let shelf = &fetched.entry.shelf;
    let by_uid: BTreeMap<&PodUid, (&Arc<str>, &PodRecord)> = shelf
        .pods
        .iter()
        .map(|(name, record)| (&record.pod.uid, (name, record)))
        .collect();
    let mut victims: Vec<(&PodUid, &'static str)> = planned
        .delete
        .iter()
        .map(|removal| (&removal.pod, removal.because.as_str()))
        .collect();
    victims.extend(placement.restart.iter().map(|uid| (uid, "Regroup")));
    victims.extend(fetched.stray_pods.iter().map(|(_, uid)| (uid, "NoClique")));
    let mut seen = BTreeSet::new();
    victims.retain(|(uid, _)| seen.insert(*uid));
    let deletions = victims.into_iter().filter_map(|(uid, because)| {
        let &(name, record) = by_uid.get(uid)?;
        Some(async move {
            let version = record.resource;
            let done = cx
                .writer
                .delete_unchanged_pod(namespace, name, uid, version)
                .await;
            if done.is_ok() {
                cx.index.doom(namespace, &[(Arc::clone(name), uid.clone())]);
                cx.metrics.pod_deleted(because);
            }
            (&record.clique, done)
        })
    });
    let mut count = 0;
    for (clique, done) in join_all(deletions).await {
        count += usize::from(errors.check(ErrorCode::DeletePod, Some(clique), done));
    }
    cx.events.normal(
        &about(fetched),
        EventReason::PodDeleteSuccessful,
        count,
        "pods deleted",
    );
}

async fn create_pods(
    cx: &Context,
    fetched: &Fetched,
    planned: &Plan,
    placement: &Placement,
    errors: &mut Errors,
) {
    if planned.create.is_empty() {
        return;
    }
    // The cliques as they are now: their uids and, where they were admitted, the new template.
    let Some((_, entry, _)) = cx.index.replica(&fetched.set.key, fetched.replica) else {
        return;
    };
    let moulds: Vec<(Mould, &CliqueId, &Vec<PodIndex>)> = planned
        .create
        .iter()
        .filter_map(|(id, indexes)| {
            let name = fetched.scope().clique(id);
            // A clique that could not be made has its own error.
            let record = entry
                .shelf
                .cliques
                .get(&*name)
                .filter(|record| !record.version.terminating)?;
            Some((mould(cx, fetched, planned, id, name, record)?, id, indexes))
        })
        .collect();
    let sharing = &fetched.set.sharing;
    let ready = cx.index.ready_claims(&fetched.set.key, fetched.replica);
    let mut creations = FuturesUnordered::new();
    for (mould, id, indexes) in &moulds {
        let taken: BTreeSet<&Arc<str>> = entry.shelf.pods.keys().collect();
        for index in *indexes {
            let claims = sharing.of_pod(fetched.replica, id, *index);
            let claims: Vec<String> = claims
                .iter()
                .map(|claim| build::claim::name(&fetched.set, Some(fetched.replica), claim))
                .collect();
            // Whoever makes the claim, or cannot, has this looked at again.
            if let Some(missing) = claims.iter().find(|claim| !ready.contains(&***claim)) {
                debug!(
                    clique = mould.clique,
                    index,
                    claim = missing,
                    "a pod waits for its claim"
                );
                continue;
            }
            let uid = Arc::from(mould.uid.as_str());
            let mut attempt = entry.attempts.get(&(uid, *index)).copied().unwrap_or(0);
            let mut name = mould.pod_name(*index, attempt);
            while taken.iter().any(|taken| ***taken == *name) {
                attempt += 1;
                name = mould.pod_name(*index, attempt);
            }
            let mut pod = mould.pod(*index, name, &claims);
            let lane = placement.lanes.get(&((*id).clone(), *index)).copied();
            let gang = gang_of(&fetched.set.template, id);
            let of = PodPlace {
                scope: fetched.scope(),
                observed: &fetched.observed,
                clique: id,
                gang: &gang,
                lane,
            };
            cx.backend.prepare_pod(&mut pod, of);
            creations.push(async move {
                (
                    mould.clique.as_str(),
                    ensure::created::<Pod, PodView>(cx, &pod).await,
                )
            });
        }
    }
    let mut count = 0;
    while let Some((clique, done)) = creations.next().await {
        if errors.check(ErrorCode::CreatePod, Some(clique), done) {
            count += 1;
            cx.metrics.pod_created();
        }
    }
    drop(creations);
    cx.events.normal(
        &about(fetched),
        EventReason::PodCreateSuccessful,
        count,
        "pods created",
    );
}

fn mould(
    cx: &Context,
    fetched: &Fetched,
    planned: &Plan,
    id: &CliqueId,
    clique: String,
    record: &CliqueRecord,
) -> Option<Mould> {
    let scope = fetched.scope();
    let spec: PodCliqueSpec = serde_json::from_str(&record.spec).ok()?;
    let plan = planned.cliques.iter().find(|clique| clique.id == *id)?;
    let parents = plan.parents.iter().map(|parent| {
        let template = scope.set.template.clique(parent.template());
        (
            scope.clique(parent),
            template.map_or(1, |template| template.min_available.get()),
        )
    });
    Some(Mould {
        namespace: scope.set.key.namespace().to_owned(),
        set: scope.set.key.name().to_owned(),
        replica: scope.replica,
        clique,
        uid: record.version.uid.to_string(),
        labels: record.meta.labels.clone().unwrap_or_default(),
        annotations: record.meta.annotations.clone().unwrap_or_default(),
        spec,
        parents: parents.collect(),
        cluster_domain: cx.pods.cluster_domain.clone(),
        init_image: cx.pods.init_image.clone(),
    })
}

/// Objects that tell the scheduler about gangs: parents, then children, then what nobody needs any more.
pub(super) async fn placement(
    cx: &Context,
    fetched: &Fetched,
    placement: Placement,
    errors: &mut Errors,
) {
    let (composites, groups): (Vec<_>, Vec<_>) = placement
        .objects
        .into_iter()
        .partition(|object| matches!(object, PlacementObject::Composite(_)));
    for wave in [composites, groups] {
        let Some((_, entry, _)) = cx.index.replica(&fetched.set.key, fetched.replica) else {
            return;
        };
        let writes = wave.into_iter().map(|object| {
            let owner = match &object {
                PlacementObject::Composite(_) => None,
                PlacementObject::Group(_, clique) => entry
                    .shelf
                    .cliques
                    .get(&**clique)
                    .map(|record| clique_owner(clique, record)),
            };
            create_placement(cx, object, owner)
        });
        for done in join_all(writes).await {
            errors.check(ErrorCode::CreateOrPatchPodGang, None, done);
        }
    }
    let namespace = fetched.set.key.namespace();
    for (kind, name, uid) in placement.remove {
        let done = match kind {
            Kind::CompositePodGroup => {
                cx.writer
                    .delete::<CompositePodGroup>(kind, namespace, &name, &uid)
                    .await
            }
            _ => {
                cx.writer
                    .delete::<PodGroup>(kind, namespace, &name, &uid)
                    .await
            }
        };
        errors.check(code_of(kind), None, done);
    }
}

fn group_owner(name: String, uid: &str) -> OwnerReference {
    OwnerReference {
        api_version: PodCliqueScalingGroup::api_version(&()).into_owned(),
        kind: PodCliqueScalingGroup::kind(&()).into_owned(),
        name,
        uid: uid.to_owned(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

fn clique_owner(name: &str, record: &CliqueRecord) -> OwnerReference {
    OwnerReference {
        api_version: PodClique::api_version(&()).into_owned(),
        kind: PodClique::kind(&()).into_owned(),
        name: name.to_owned(),
        uid: record.version.uid.to_string(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

async fn create_placement(
    cx: &Context,
    object: PlacementObject,
    owner: Option<OwnerReference>,
) -> Result<(), WriteError> {
    match (object, owner) {
        (PlacementObject::Composite(composite), _) => {
            ensure::created::<_, CompositeView>(cx, &*composite).await
        }
        (PlacementObject::Group(mut group, _), Some(owner)) => {
            group.metadata.owner_references = Some(vec![owner]);
            ensure::created::<_, PodGroupView>(cx, &*group).await
        }
        // Its PodClique is not there; that error is noted already.
        (PlacementObject::Group(..), None) => Ok(()),
    }
}

/// The set, for events: one line there says what happened to many pods.
fn about(fetched: &Fetched) -> ObjectReference {
    fetched.set.object.object_ref(&())
}
