//! ComputeDomains of a set replica: one for each MNNVL group.

use std::collections::BTreeSet;
use std::sync::Arc;

use coppice_operator_api::error_code::ErrorCode;
use coppice_operator_api::event::EventReason;
use coppice_operator_api::names;
use futures::future::join_all;
use kube::Resource;
use serde_json::{Value, json};

use super::Context;
use super::ensure::{self, Site, Stored, inputs};
use super::errors::Errors;
use crate::apply::{WriteError, Writer};
use crate::build::compute_domain::{ComputeDomain, compute_domain};
use crate::build::scope::Scope;
use crate::index::entry::Shelf;
use crate::index::key::Kind;
use crate::index::view::DomainView;
use crate::validated::Validated;

/// Makes the domains that the replica's cliques are in, and takes all others away.
///
/// One that somebody deletes is let go at once and made anew: its driver has torn it down by then, and pods that come cannot
/// use it any more.
pub(crate) async fn sync(cx: &Context, scope: Scope<'_>, shelf: &Shelf, errors: &mut Errors) {
    if !cx.index.is_served(Kind::ComputeDomain) {
        return;
    }
    let set = scope.set;
    let groups = set.domains.groups();
    let wanted: BTreeSet<String> = groups
        .iter()
        .map(|group| names::compute_domain(set.key.name(), scope.replica, group))
        .collect();
    let found = shelf
        .plain
        .iter()
        .filter(|((kind, _), _)| *kind == Kind::ComputeDomain);
    let leaving =
        found.filter(|((_, name), record)| record.version.terminating || !wanted.contains(&**name));
    let leaving = leaving.map(|((_, name), record)| {
        remove(&cx.writer, set.key.namespace(), name, &record.version.uid)
    });
    let mut removed = 0;
    for done in join_all(leaving).await {
        removed += usize::from(errors.check(ErrorCode::SyncComputeDomain, None, done));
    }
    let about = set.object.object_ref(&());
    let reason = EventReason::ComputeDomainDeleteSuccessful;
    cx.events
        .normal(&about, reason, removed, "ComputeDomains removed");
    if !cx.auto_mnnvl {
        return;
    }
    let writes = groups.iter().filter_map(|group| {
        let name = names::compute_domain(set.key.name(), scope.replica, group);
        let stored = Stored::plain(shelf, Kind::ComputeDomain, &name);
        let is_new = stored.is_none();
        // While it goes, its name is taken.
        let is_leaving = stored.is_some_and(|stored| stored.version.terminating);
        (!is_leaving).then_some(async move { (is_new, ensure(cx, scope, group, stored).await) })
    });
    let mut made = 0;
    for (is_new, done) in join_all(writes).await {
        made += usize::from(errors.check(ErrorCode::SyncComputeDomain, None, done) && is_new);
    }
    let reason = EventReason::ComputeDomainCreateSuccessful;
    cx.events
        .normal(&about, reason, made, "ComputeDomains created");
}

async fn ensure(
    cx: &Context,
    scope: Scope<'_>,
    group: &str,
    stored: Option<Stored<'_>>,
) -> Result<(), WriteError> {
    let site = Site {
        set: &scope.set.key,
        replica: Some(scope.replica),
    };
    let spec: fn(&Value) -> Option<&Value> = |object| object.get("spec");
    let of = inputs((&scope.set.object.metadata.uid, scope.replica, group));
    ensure::object::<ComputeDomain, DomainView>(cx, site, stored, of, spec, || {
        compute_domain(scope, group)
    })
    .await
}

/// Takes our finalizer off a domain, and deletes it.
pub(crate) async fn remove(
    writer: &Writer,
    namespace: &str,
    name: &Arc<str>,
    uid: &str,
) -> Result<(), WriteError> {
    let kind = Kind::ComputeDomain;
    let found = match writer.get::<DomainView>(kind, namespace, name).await {
        Ok(found) => found.metadata,
        Err(WriteError::Missing { .. }) => return Ok(()),
        Err(error) => return Err(error),
    };
    if found.uid.as_deref() != Some(uid) {
        return Ok(());
    }
    let finalizers = found.finalizers.unwrap_or_default();
    let rest: Vec<&String> = finalizers
        .iter()
        .filter(|finalizer| *finalizer != names::COMPUTE_DOMAIN_FINALIZER)
        .collect();
    if rest.len() < finalizers.len() {
        let patch =
            json!({"metadata": {"resourceVersion": found.resource_version, "finalizers": rest}});
        match writer
            .merge::<ComputeDomain, DomainView>(kind, namespace, name, &patch)
            .await
        {
            Ok(_) => {}
            Err(WriteError::Missing { .. }) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
    if found.deletion_timestamp.is_some() {
        return Ok(());
    }
    writer
        .delete::<ComputeDomain>(kind, namespace, name, uid)
        .await
}

/// Why the domains that a set asks for cannot be made.
pub(crate) fn lack(cx: &Context, set: &Validated) -> Option<WriteError> {
    let group = set.domains.groups().into_iter().next()?;
    let lack = if !cx.auto_mnnvl {
        "MNNVL is switched off: start the operator with --auto-mnnvl, or take the annotation grove.io/mnnvl-group out of a new set"
    } else if !cx.index.is_served(Kind::ComputeDomain) {
        "computedomains of resource.nvidia.com/v1beta1 are not served, or the operator may not read them: install NVIDIA's DRA driver, or \
         grant the right"
    } else {
        return None;
    };
    Some(WriteError::Lacking {
        kind: Kind::ComputeDomain.as_str(),
        name: format!("of group {group}"),
        lack: format!("{lack}; its pods wait"),
    })
}
