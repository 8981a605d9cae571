//! Claims that pods share: made before the pods that name them, taken away with what they are for.
//!
//! A claim is made once; the server lets nobody change it. One that is there keeps its content, whatever became of the
//! template that it was made from.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use coppice_operator_api::error_code::ErrorCode;
use coppice_operator_plan::sharing::{ClaimId, Owner};
use futures::future::join_all;
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceClaimSpec, ResourceClaimTemplate};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

use super::Context;
use super::ensure;
use super::errors::Errors;
use crate::apply::WriteError;
use crate::build;
use crate::index::entry::Shelf;
use crate::index::key::Kind;
use crate::index::view::ClaimView;
use crate::validated::{ClaimSource, Validated};

/// A claim that should be there.
#[derive(Debug)]
pub(crate) struct Wanted {
    /// Which.
    pub(crate) id: ClaimId,
    /// Its owner; nothing while that is not there, or on its way out.
    pub(crate) owner: Option<OwnerReference>,
}

/// What is about to be done.
enum Step<'a> {
    Create(&'a ClaimId, OwnerReference),
    Delete(Arc<str>, Arc<str>),
}

/// Makes the wanted claims of a set, or of one of its replicas, and takes all others there away. Tells how many were made.
pub(crate) async fn sync(
    cx: &Context,
    set: &Validated,
    replica: Option<u32>,
    shelf: &Shelf,
    wanted: &[Wanted],
    errors: &mut Errors,
) -> usize {
    if !cx.index.is_served(Kind::Claim) {
        return 0;
    }
    let steps = steps(set, replica, shelf, wanted);
    let templates = templates(cx, set, &steps).await;
    let namespace = set.key.namespace();
    let writes = steps.iter().map(|step| async {
        match step {
            Step::Create(id, owner) => {
                let done = create(cx, set, replica, id, owner, &templates).await;
                (code(&id.owner), about(id, owner), done.is_ok(), done)
            }
            Step::Delete(name, uid) => {
                let done = cx
                    .writer
                    .delete::<ResourceClaim>(Kind::Claim, namespace, name, uid)
                    .await;
                (ErrorCode::SyncSetResourceClaim, None, false, done)
            }
        }
    });
    let mut made = 0;
    for (code, clique, is_new, done) in join_all(writes).await {
        errors.check(code, clique, done);
        made += usize::from(is_new);
    }
    made
}

fn steps<'a>(
    set: &Validated,
    replica: Option<u32>,
    shelf: &Shelf,
    wanted: &'a [Wanted],
) -> Vec<Step<'a>> {
    let found = |name: &str| shelf.plain.get(&(Kind::Claim, Arc::from(name)));
    let mut steps = Vec::new();
    let mut names = BTreeSet::new();
    for Wanted { id, owner } in wanted {
        let name = build::claim::name(set, replica, id);
        if let Some(owner) = owner {
            match found(&name) {
                None => steps.push(Step::Create(id, owner.clone())),
                Some(record) if record.version.terminating => {}
                // Of an earlier owner of that name; it goes, and comes back.
                Some(record) if record.version.owner.as_deref() != Some(&*owner.uid) => {
                    let uid = Arc::clone(&record.version.uid);
                    steps.push(Step::Delete(Arc::from(&*name), uid));
                }
                Some(_) => {}
            }
        }
        names.insert(name);
    }
    for ((kind, name), record) in &shelf.plain {
        if *kind == Kind::Claim && !record.version.terminating && !names.contains(&**name) {
            let uid = Arc::clone(&record.version.uid);
            steps.push(Step::Delete(Arc::clone(name), uid));
        }
    }
    steps
}

type Templates = BTreeMap<(String, String), Result<ResourceClaimSpec, String>>;

/// ResourceClaimTemplates that new claims are made from, each read once.
async fn templates(cx: &Context, set: &Validated, steps: &[Step<'_>]) -> Templates {
    let mut templates = Templates::new();
    for step in steps {
        let Step::Create(id, _) = step else { continue };
        let ClaimSource::Object { namespace, name } = set.claim_source(id) else {
            continue;
        };
        let key = (namespace.to_owned(), name.to_owned());
        if templates.contains_key(&key) {
            continue;
        }
        let read = cx
            .writer
            .get::<ResourceClaimTemplate>(Kind::ClaimTemplate, namespace, name)
            .await;
        let spec = match read {
            Ok(template) => Ok(template.spec.and_then(|of| of.spec).unwrap_or_default()),
            Err(WriteError::Missing { .. }) => Err(format!(
                "ResourceClaimTemplate {namespace}/{name} does not exist: create it, or name one of spec.template.resourceClaimTemplates in resourceSharing"
            )),
            Err(error) => Err(format!(
                "ResourceClaimTemplate {namespace}/{name} cannot be read: {}",
                coppice_runtime::telemetry::chain(&error)
            )),
        };
        templates.insert(key, spec);
    }
    templates
}

async fn create(
    cx: &Context,
    set: &Validated,
    replica: Option<u32>,
    id: &ClaimId,
    owner: &OwnerReference,
    templates: &Templates,
) -> Result<(), WriteError> {
    let spec = match set.claim_source(id) {
        ClaimSource::Set(spec) => Ok(spec.clone()),
        ClaimSource::Object { namespace, name } => {
            let read = templates.get(&(namespace.to_owned(), name.to_owned()));
            read.cloned()
                .unwrap_or_else(|| Err("its template was not read".to_owned()))
        }
    };
    let spec = spec.map_err(|lack| WriteError::Lacking {
        kind: Kind::Claim.as_str(),
        name: build::claim::name(set, replica, id),
        lack,
    })?;
    let claim = build::claim::claim(set, replica, id, owner.clone(), spec);
    ensure::created::<ResourceClaim, ClaimView>(cx, &claim).await
}

fn code(owner: &Owner) -> ErrorCode {
    match owner {
        Owner::Set => ErrorCode::SyncSetResourceClaim,
        Owner::Group(_) => ErrorCode::SyncGroupResourceClaim,
        Owner::Clique(_) => ErrorCode::SyncCliqueResourceClaim,
    }
}

/// The PodClique that an error is about.
fn about<'a>(id: &ClaimId, owner: &'a OwnerReference) -> Option<&'a str> {
    matches!(id.owner, Owner::Clique(_)).then_some(owner.name.as_str())
}

/// That the cluster does not serve what the set asks for.
pub(crate) fn not_served(set: &Validated) -> WriteError {
    WriteError::Lacking {
        kind: Kind::Claim.as_str(),
        name: format!("of {}", set.key.name()),
        lack: "resourceSharing needs resourceclaims of resource.k8s.io/v1, which this API server does not serve or the operator may not \
               read; no pods are made: upgrade to Kubernetes 1.34 or later, or grant the right"
            .to_owned(),
    }
}
