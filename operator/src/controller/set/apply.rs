//! What belongs to a set as a whole.

use coppice_operator_api::error_code::ErrorCode;
use coppice_operator_api::{PodCliqueSet, names};
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use k8s_openapi::api::scheduling::v1alpha3::Workload;
use serde_json::{Value, json};

use crate::apply::WriteError;
use crate::build::rbac;
use crate::controller::Context;
use crate::controller::claims::{self, Wanted};
use crate::controller::domains;
use crate::controller::ensure::{self, Site, Stored, inputs};
use crate::controller::errors::{Errors, code_of};
use crate::index::entry::{SetEntry, SetRecord};
use crate::index::key::{Kind, Unit};
use crate::index::view::{AccountView, BindingView, RoleView, WorkloadView};
use crate::validated::Validated;

/// Puts the finalizer on the set, so that it stays until its pods are gone. Tells whether it is there.
pub(super) async fn hold(cx: &Context, record: &SetRecord, errors: &mut Errors) -> bool {
    let meta = &record.object.metadata;
    let finalizers = meta.finalizers.clone().unwrap_or_default();
    if finalizers
        .iter()
        .any(|finalizer| finalizer == names::SET_FINALIZER)
    {
        return true;
    }
    let all: Vec<&str> = finalizers
        .iter()
        .map(String::as_str)
        .chain([names::SET_FINALIZER])
        .collect();
    let done = change_finalizers(cx, record, &all).await;
    errors.check(code_of(Kind::Clique), None, done)
}

/// Takes the finalizer off.
pub(super) async fn release(cx: &Context, record: &SetRecord) -> Result<(), WriteError> {
    let finalizers = record
        .object
        .metadata
        .finalizers
        .clone()
        .unwrap_or_default();
    let rest: Vec<&str> = finalizers
        .iter()
        .map(String::as_str)
        .filter(|finalizer| *finalizer != names::SET_FINALIZER)
        .collect();
    if rest.len() == finalizers.len() {
        return Ok(());
    }
    match change_finalizers(cx, record, &rest).await {
        Err(WriteError::Missing { .. }) => Ok(()),
        other => other,
    }
}

async fn change_finalizers(
    cx: &Context,
    record: &SetRecord,
    finalizers: &[&str],
) -> Result<(), WriteError> {
    let meta = &record.object.metadata;
    let patch =
        json!({"metadata": {"resourceVersion": meta.resource_version, "finalizers": finalizers}});
    let (namespace, name) = (
        meta.namespace.as_deref().unwrap_or_default(),
        meta.name.as_deref().unwrap_or_default(),
    );
    let set: PodCliqueSet = cx
        .writer
        .merge::<PodCliqueSet, _>(Kind::Set, namespace, name, &patch)
        .await?;
    cx.index.absorb_set(set);
    Ok(())
}

/// Claims that all replicas share; these are told of new ones, because their pods wait for them. And what the set asks for
/// that the cluster does not have.
pub(super) async fn claims(cx: &Context, entry: &SetEntry, set: &Validated, errors: &mut Errors) {
    if !set.sharing.is_empty() && !cx.index.is_served(Kind::Claim) {
        let lack = claims::not_served(set);
        errors.note(ErrorCode::SyncSetResourceClaim, None, lack);
    }
    if let Some(lack) = domains::lack(cx, set) {
        errors.note(ErrorCode::SyncComputeDomain, None, lack);
    }
    let wanted = set.sharing.of_set().into_iter().map(|id| Wanted {
        id,
        owner: Some(set.owner()),
    });
    let wanted: Vec<Wanted> = wanted.collect();
    if claims::sync(cx, set, None, &entry.shelf, &wanted, errors).await > 0 {
        for index in 0..set.replicas {
            cx.queue.mark(&Unit::Replica(set.key.clone(), index));
        }
    }
}

/// Service account and, where cliques start in an order, the right to read PodCliques; the backend's Workload.
pub(super) async fn objects(cx: &Context, entry: &SetEntry, set: &Validated, errors: &mut Errors) {
    let workload = cx.backend.workload(set);
    let ordered = set.has_start_order();
    let (account, role, binding, workload) = tokio::join!(
        ensure_account(cx, entry, set),
        async {
            if ordered {
                ensure_role(cx, entry, set).await
            } else {
                Ok(())
            }
        },
        async {
            if ordered {
                ensure_binding(cx, entry, set).await
            } else {
                Ok(())
            }
        },
        ensure_workload(cx, entry, workload),
    );
    for (kind, done) in [
        (Kind::ServiceAccount, account),
        (Kind::Role, role),
        (Kind::RoleBinding, binding),
        (Kind::Workload, workload),
    ] {
        errors.check(code_of(kind), None, done);
    }
}

fn site(set: &Validated) -> Site<'_> {
    Site {
        set: &set.key,
        replica: None,
    }
}

/// An account has nothing to compare but its existence; somebody else's of the same name is not taken over.
async fn ensure_account(cx: &Context, entry: &SetEntry, set: &Validated) -> Result<(), WriteError> {
    let name = names::service_account(set.key.name());
    if Stored::plain(&entry.shelf, Kind::ServiceAccount, &name).is_some() {
        return Ok(());
    }
    ensure::created::<ServiceAccount, AccountView>(cx, &rbac::service_account(set)).await
}

async fn ensure_role(cx: &Context, entry: &SetEntry, set: &Validated) -> Result<(), WriteError> {
    let stored = Stored::plain(&entry.shelf, Kind::Role, &names::role(set.key.name()));
    let rules: fn(&Value) -> Option<&Value> = |role| role.get("rules");
    let inputs = inputs(&set.object.metadata.uid);
    ensure::object::<Role, RoleView>(cx, site(set), stored, inputs, rules, || rbac::role(set)).await
}

async fn ensure_binding(cx: &Context, entry: &SetEntry, set: &Validated) -> Result<(), WriteError> {
    let stored = Stored::plain(
        &entry.shelf,
        Kind::RoleBinding,
        &names::role(set.key.name()),
    );
    let subjects: fn(&Value) -> Option<&Value> = |binding| binding.get("subjects");
    let inputs = inputs((&set.object.metadata.uid, set.generation()));
    ensure::object::<RoleBinding, BindingView>(cx, site(set), stored, inputs, subjects, || {
        rbac::role_binding(set)
    })
    .await
}

async fn ensure_workload(
    cx: &Context,
    entry: &SetEntry,
    workload: Option<Workload>,
) -> Result<(), WriteError> {
    let Some(workload) = workload else {
        return Ok(());
    };
    let name = workload.metadata.name.clone().unwrap_or_default();
    if Stored::plain(&entry.shelf, Kind::Workload, &name).is_some() {
        return Ok(());
    }
    ensure::created::<Workload, WorkloadView>(cx, &workload).await
}
