//! PodGang objects: written once, when all their pods exist, and again when their members change.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use coppice_operator_api::PodGang;
use coppice_operator_api::error_code::ErrorCode;
use coppice_operator_api::event::EventReason;
use coppice_operator_plan::gang::Gang;
use coppice_operator_plan::ids::CliqueId;
use coppice_operator_plan::replica::Plan;
use coppice_operator_plan::status::gang::{GangStatus, status};
use coppice_operator_plan::topology::Standing;
use futures::future::join_all;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Resource;
use serde::Serialize;
use serde_json::Value;

use super::fetch::Fetched;
use crate::apply::{WriteError, fingerprint};
use crate::backends::GangObject;
use crate::backends::kai::KaiPodGroup;
use crate::backends::volcano::VolcanoPodGroup;
use crate::build;
use crate::canonical;
use crate::controller::Context;
use crate::controller::ensure::{self, Site, Stored, check_owner, inputs};
use crate::controller::errors::Errors;
use crate::index::key::Kind;
use crate::index::view::{GangView, KaiGroupView, PodView, VolcanoGroupView};

/// Writes gangs that are complete and differ, removes those that should not exist.
pub(super) async fn sync(cx: &Context, fetched: &Fetched, planned: &Plan, errors: &mut Errors) {
    let pods = pod_names(fetched);
    let effective = effective(planned);
    let (pods, effective) = (&pods, &effective);
    let writes = planned.gangs.iter().map(|gang| async move {
        let counts = status(gang, &fetched.observed, effective);
        let done = write(cx, fetched, gang, counts, pods).await;
        (gang, done)
    });
    let mut placed = Vec::new();
    for (gang, done) in join_all(writes).await {
        match done {
            Ok(true) => placed.push(gang),
            Ok(false) => {}
            Err(error) => errors.note(ErrorCode::CreateOrPatchPodGang, None, error),
        }
    }
    release(cx, fetched, planned, &placed, errors).await;
    let wanted: Vec<String> = planned
        .gangs
        .iter()
        .map(|gang| fetched.scope().gang(&gang.id))
        .collect();
    let extra = fetched.entry.shelf.gangs.iter().filter(|(name, record)| {
        !record.version.terminating && !wanted.iter().any(|wanted| **wanted == ***name)
    });
    let removals = extra.map(|(name, record)| {
        cx.writer.delete::<PodGang>(
            Kind::Gang,
            fetched.set.key.namespace(),
            name,
            &record.version.uid,
        )
    });
    for done in join_all(removals).await {
        errors.check(ErrorCode::CreateOrPatchPodGang, None, done);
    }
}

/// Pods each clique should have.
pub(super) fn effective(planned: &Plan) -> BTreeMap<CliqueId, u32> {
    planned
        .cliques
        .iter()
        .map(|clique| (clique.id.clone(), clique.effective))
        .collect()
}

/// Names of active pods by PodClique.
fn pod_names(fetched: &Fetched) -> BTreeMap<String, Vec<String>> {
    let mut names: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, record) in &fetched.entry.shelf.pods {
        if record.pod.is_active() {
            names
                .entry(record.clique.to_string())
                .or_default()
                .push(name.to_string());
        }
    }
    names
}

async fn write(
    cx: &Context,
    fetched: &Fetched,
    gang: &Gang,
    counts: GangStatus,
    pods: &BTreeMap<String, Vec<String>>,
) -> Result<bool, WriteError> {
    if !counts.is_complete {
        return Ok(false);
    }
    let mut object = build::gang::gang(fetched.scope(), gang, pods, cx.backend.scheduler());
    let name: Arc<str> = Arc::from(object.metadata.name.as_deref().unwrap_or_default());
    let record = fetched.entry.shelf.gangs.get(&name);
    if let (Some(record), Standing::NoBinding(binding)) = (record, &fetched.set.topology.standing) {
        build::gang::keep_topology(&mut object, &record.spec, binding);
    }
    cx.backend.complete_gang(&fetched.set, &mut object);
    let plain = object.clone();
    let digest = fingerprint(&mut object);
    if let Some(record) = record {
        if record.version.terminating {
            return Ok(false);
        }
        if record.version.applied.as_deref() == Some(&*digest) && *record.spec == object.spec {
            return schedulers_own(cx, fetched, &plain, &record.version.uid).await;
        }
        check_owner(Kind::Gang, &object.metadata, &record.version)?;
    }
    let answer: GangView = cx
        .writer
        .apply(Kind::Gang, &object, record.is_some())
        .await?;
    let uid = answer.metadata.uid.clone().unwrap_or_default();
    cx.index.absorb(answer);
    schedulers_own(cx, fetched, &plain, &uid).await
}

/// The object that the scheduler itself has for the gang. Tells whether there is one, and it is as it should be.
async fn schedulers_own(
    cx: &Context,
    fetched: &Fetched,
    gang: &PodGang,
    uid: &str,
) -> Result<bool, WriteError> {
    let Some(kind) = cx.backend.gang_kind() else {
        return Ok(false);
    };
    let name = gang.metadata.name.clone().unwrap_or_default();
    let owner = OwnerReference {
        api_version: PodGang::api_version(&()).into_owned(),
        kind: PodGang::kind(&()).into_owned(),
        name: name.clone(),
        uid: uid.to_owned(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    };
    let stored = Stored::plain(&fetched.entry.shelf, kind, &name);
    // It goes with a gang that was there before; the next one comes when it is gone.
    if stored.is_some_and(|stored| {
        stored.version.terminating || stored.version.owner.as_deref() != Some(uid)
    }) {
        return Ok(false);
    }
    let held: Option<Value> = stored.and_then(|stored| serde_json::from_str(stored.content).ok());
    let object = match cx
        .backend
        .gang_object(&fetched.set, gang, owner, held.as_ref())
    {
        Ok(Some(object)) => object,
        Ok(None) => return Ok(stored.is_some()),
        Err(error) => {
            let about = ObjectReference {
                uid: Some(uid.to_owned()),
                ..gang.object_ref(&())
            };
            let reason = EventReason::KaiBackendMappingFailed;
            cx.events.warning(&about, reason, &error.to_string());
            return Err(WriteError::Lacking {
                kind: kind.as_str(),
                name,
                lack: error.to_string(),
            });
        }
    };
    let site = Site {
        set: &fetched.set.key,
        replica: Some(fetched.replica),
    };
    let spec: fn(&Value) -> Option<&Value> = |object| object.get("spec");
    match object {
        GangObject::Kai(object) => {
            let inputs = inputs(canonical_text(&*object));
            ensure::object::<KaiPodGroup, KaiGroupView>(cx, site, stored, inputs, spec, || *object)
                .await?;
        }
        GangObject::Volcano(object) => {
            let inputs = inputs(canonical_text(&*object));
            ensure::object::<VolcanoPodGroup, VolcanoGroupView>(
                cx,
                site,
                stored,
                inputs,
                spec,
                || *object,
            )
            .await?;
        }
    }
    Ok(true)
}

fn canonical_text(object: &impl Serialize) -> String {
    canonical::text(&serde_json::to_value(object).unwrap_or_default())
}

/// Lets pods go whose gang the scheduler knows: all of a base gang, and of a scaled gang when the base gang's floor is bound.
async fn release(
    cx: &Context,
    fetched: &Fetched,
    planned: &Plan,
    placed: &[&Gang],
    errors: &mut Errors,
) {
    let view = super::view(fetched, planned);
    let free = placed.iter().filter(|gang| view.may_place(&gang.id));
    let cliques: BTreeSet<String> = free
        .flat_map(|gang| &gang.members)
        .map(|member| fetched.scope().clique(&member.clique))
        .collect();
    let held = fetched.entry.shelf.pods.iter().filter(|(_, record)| {
        record.pod.gated && !record.pod.terminating && cliques.contains(&*record.clique)
    });
    let namespace = fetched.set.key.namespace();
    let lifts = held.map(|(name, record)| async move {
        let done = cx
            .writer
            .lift_gate::<PodView>(namespace, name, &record.pod.uid)
            .await;
        let done = done.map(|pod| cx.index.absorb(pod));
        (&record.clique, done)
    });
    for (clique, done) in join_all(lifts).await {
        errors.check(ErrorCode::RemovePodSchedulingGate, Some(clique), done);
    }
}
