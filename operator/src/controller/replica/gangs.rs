//! PodGang objects: written once, when all their pods exist, and again when their members change.

use std::collections::BTreeMap;
use std::sync::Arc;

use coppice_operator_api::PodGang;
use coppice_operator_api::error_code::ErrorCode;
use coppice_operator_plan::gang::Gang;
use coppice_operator_plan::ids::CliqueId;
use coppice_operator_plan::replica::Plan;
use coppice_operator_plan::status::gang::{GangStatus, status};
use coppice_operator_plan::topology::Standing;
use futures::future::join_all;

use super::fetch::Fetched;
use crate::apply::{WriteError, fingerprint};
use crate::build;
use crate::controller::Context;
use crate::controller::ensure::check_owner;
use crate::controller::errors::Errors;
use crate::index::key::Kind;
use crate::index::view::GangView;

/// Writes gangs that are complete and differ, removes those that should not exist.
pub(super) async fn sync(cx: &Context, fetched: &Fetched, planned: &Plan, errors: &mut Errors) {
    let pods = pod_names(fetched);
    let effective = effective(planned);
    let writes = planned.gangs.iter().map(|gang| {
        let counts = status(gang, &fetched.observed, &effective);
        write(cx, fetched, gang, counts, &pods)
    });
    for done in join_all(writes).await {
        errors.check(ErrorCode::CreateOrPatchPodGang, None, done);
    }
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
) -> Result<(), WriteError> {
    if !counts.is_complete {
        return Ok(());
    }
    let mut object = build::gang::gang(fetched.scope(), gang, pods, cx.backend.scheduler());
    let name: Arc<str> = Arc::from(object.metadata.name.as_deref().unwrap_or_default());
    let record = fetched.entry.shelf.gangs.get(&name);
    if let (Some(record), Standing::NoBinding(binding)) = (record, &fetched.set.topology.standing) {
        build::gang::keep_topology(&mut object, &record.spec, binding);
    }
    let digest = fingerprint(&mut object);
    if let Some(record) = record {
        if record.version.terminating
            || record.version.applied.as_deref() == Some(&*digest) && *record.spec == object.spec
        {
            return Ok(());
        }
        check_owner(Kind::Gang, &object.metadata, &record.version)?;
    }
    let answer: GangView = cx
        .writer
        .apply(Kind::Gang, &object, record.is_some())
        .await?;
    cx.index.absorb(answer);
    Ok(())
}
