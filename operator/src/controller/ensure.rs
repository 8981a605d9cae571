//! Makes an object be as it should, and writes nothing when it is.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::{NamespaceResourceScope, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::Context;
use crate::apply::{WriteError, fingerprint};
use crate::canonical;
use crate::index::entry::Shelf;
use crate::index::key::{Kind, SetKey};
use crate::index::record::{PlainRecord, Version};
use crate::index::watch::Filed;

/// An object as it is, as far as comparison goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stored<'a> {
    /// Identity, version, and what was written last.
    pub(crate) version: &'a Version,
    /// Its content as text: the spec, or what else the object has of that kind.
    pub(crate) content: &'a str,
    /// Inputs it was found to agree with.
    pub(crate) verified: Option<u64>,
}

impl<'a> Stored<'a> {
    /// What is known of an object that has no record type of its own.
    pub(crate) fn plain(shelf: &'a Shelf, kind: Kind, name: &str) -> Option<Self> {
        let PlainRecord {
            version,
            content,
            verified,
        } = shelf.plain.get(&(kind, Arc::from(name)))?;
        Some(Self {
            version,
            content,
            verified: *verified,
        })
    }
}

/// Where an object belongs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Site<'a> {
    pub(crate) set: &'a SetKey,
    pub(crate) replica: Option<u32>,
}

/// Digest of everything an object is rendered from. Within one process it spares rendering and comparing; across processes
/// nothing depends on it.
pub(crate) fn inputs(of: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

/// Brings an object of kind `K`, read back as `V`, to what `build` renders.
///
/// `content` picks out of the rendered JSON what [`Stored::content`] holds. Nothing is done when the object was already
/// found to agree with the same `inputs`; nothing is written when it carries the digest of the rendered content and still
/// holds all of it. Otherwise it is applied: with force if it is ours, without if no object was known, so that somebody
/// else's is left alone.
pub(crate) async fn object<K, V>(
    cx: &Context,
    site: Site<'_>,
    stored: Option<Stored<'_>>,
    inputs: u64,
    content: fn(&Value) -> Option<&Value>,
    build: impl FnOnce() -> K,
) -> Result<(), WriteError>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Serialize + Clone,
    V: Filed,
{
    if stored.is_some_and(|stored| stored.verified == Some(inputs)) {
        return Ok(());
    }
    let mut object = build();
    let digest = fingerprint(&mut object);
    let name = object.meta().name.clone().unwrap_or_default();
    if let Some(stored) = stored {
        check_owner(V::KIND, object.meta(), stored.version)?;
        let wanted = serde_json::to_value(&object).expect("Kubernetes objects are plain data");
        let found: Value = serde_json::from_str(stored.content).unwrap_or_default();
        let holds = content(&wanted).is_none_or(|wanted| canonical::holds(&found, wanted));
        if stored.version.applied.as_deref() == Some(&*digest) && holds {
            cx.index
                .verified(site.set, site.replica, V::KIND, &name, inputs);
            return Ok(());
        }
        // Whatever was scaled or edited since it was read must not be undone.
        object.meta_mut().resource_version = Some(stored.version.resource.to_string());
    }
    let answer: V = cx.writer.apply(V::KIND, &object, stored.is_some()).await?;
    cx.index.absorb(answer);
    cx.index
        .verified(site.set, site.replica, V::KIND, &name, inputs);
    Ok(())
}

/// An object of the right name that belongs to somebody else must not be touched.
pub(crate) fn check_owner(
    kind: Kind,
    wanted: &ObjectMeta,
    found: &Version,
) -> Result<(), WriteError> {
    let owner = wanted
        .owner_references
        .iter()
        .flatten()
        .find(|owner| owner.controller == Some(true));
    match (owner, &found.owner) {
        (Some(wanted_owner), Some(found)) if wanted_owner.uid != **found => {
            Err(WriteError::Taken {
                kind: kind.as_str(),
                name: wanted.name.clone().unwrap_or_default(),
                owner: format!("the object with uid {found}"),
            })
        }
        _ => Ok(()),
    }
}

/// Creates an object that never changes, unless it is there.
pub(crate) async fn created<K, V>(cx: &Context, object: &K) -> Result<(), WriteError>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Serialize,
    V: Filed + Resource<Scope = NamespaceResourceScope> + DeserializeOwned,
{
    match cx.writer.create::<K, V>(V::KIND, object).await {
        Ok(answer) => {
            cx.index.absorb(answer);
            Ok(())
        }
        Err(WriteError::Exists { .. }) => adopt::<V>(cx, object.meta()).await,
        Err(other) => Err(other),
    }
}

/// Takes note of an object that exists although the index did not have it: an answer was lost, or it is somebody else's.
pub(crate) async fn adopt<V>(cx: &Context, wanted: &ObjectMeta) -> Result<(), WriteError>
where
    V: Filed + Resource<Scope = NamespaceResourceScope> + DeserializeOwned,
{
    let namespace = wanted.namespace.as_deref().unwrap_or_default();
    let name = wanted.name.as_deref().unwrap_or_default();
    let found: V = cx.writer.get(V::KIND, namespace, name).await?;
    let version = Version::of(found.meta());
    check_owner(V::KIND, wanted, &version)?;
    if version.owner.is_none() && wanted.owner_references.is_some() {
        let (kind, name) = (V::KIND.as_str(), name.to_owned());
        return Err(WriteError::Taken {
            kind,
            name,
            owner: "nobody".to_owned(),
        });
    }
    cx.index.absorb(found);
    Ok(())
}
