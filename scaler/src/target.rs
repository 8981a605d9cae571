//! What a policy scales: the replicas of a PodCliqueSet and of its children, or one object with `/scale`.

use std::sync::Arc;

use coppice_operator_api::{PodClique, PodCliqueScalingGroup, PodCliqueSet, labels, names};
use coppice_scaler_api::{Role, SET_KIND, ScaledKind, Scales, ScalingPolicySpec};
use coppice_scaler_plan::StepObject;
use coppice_signals::Selector;
use k8s_openapi::api::autoscaling::v1::Scale;
use kube::api::{ApiResource, DynamicObject};
use kube::core::GroupVersionKind;
use kube::{Api, Client, Resource};

use crate::views::{PodView, SetView, Version, unsigned};

/// What a policy scales, as it is now.
#[derive(Debug, Clone)]
pub(crate) enum Target {
    /// A PodCliqueSet.
    Set {
        /// Its name.
        name: String,
        /// What is known of it.
        view: Arc<SetView>,
    },
    /// One object with `/scale`.
    Plain(PlainTarget),
}

/// One object with `/scale`, as that was read.
#[derive(Debug, Clone)]
pub(crate) struct PlainTarget {
    pub(crate) name: String,
    pub(crate) resource: ApiResource,
    pub(crate) replicas: u32,
    pub(crate) version: Option<Version>,
    /// Selects its pods. `None`: it names none.
    pub(crate) selector: Option<Selector>,
}

/// Why there is no target.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoTarget {
    /// The object does not exist.
    #[error(
        "target: {kind} \"{name}\" does not exist in this namespace: create it, or correct target.name"
    )]
    NotFound { kind: String, name: String },
    /// A role names no template.
    #[error(
        "roles: role \"{role}\" scales {kind:?} \"{name}\", which is not a template of {set}: use the name of {need}"
    )]
    NoTemplate {
        role: String,
        kind: ScaledKind,
        name: String,
        set: String,
        need: &'static str,
    },
    /// A role names a clique that its group does not have.
    #[error(
        "roles: role \"{role}\" reads endpoints.podClique \"{clique}\", which is not in scaling group \"{group}\": use one of its cliques"
    )]
    NoClique {
        role: String,
        clique: String,
        group: String,
    },
    /// The kind has no `/scale`, is not served, or may not be read.
    #[error("target: cannot read /scale of {kind} \"{name}\": {message}")]
    NoScale {
        kind: String,
        name: String,
        message: String,
    },
    /// What there is is not known yet.
    #[error("target: {what} are not known yet: {message}")]
    Unknown { what: &'static str, message: String },
}

impl NoTarget {
    /// Whether an edit can mend it (else time will).
    pub(crate) const fn is_role(&self) -> bool {
        matches!(self, Self::NoTemplate { .. } | Self::NoClique { .. })
    }
}

/// Checks that every role names a template of the set.
///
/// # Errors
/// [`NoTarget::NoTemplate`] and [`NoTarget::NoClique`].
pub(crate) fn check_roles(spec: &ScalingPolicySpec, set: &SetView) -> Result<(), NoTarget> {
    for role in &spec.roles {
        let Some(Scales { kind, name }) = &role.scales else {
            continue;
        };
        let no_template = |need| NoTarget::NoTemplate {
            role: role.name.clone(),
            kind: *kind,
            name: name.clone(),
            set: spec.target.name.clone(),
            need,
        };
        match kind {
            ScaledKind::PodClique if !set.standalone().any(|clique| clique == name) => {
                return Err(no_template("a clique that is in no scaling group"));
            }
            ScaledKind::PodCliqueScalingGroup => {
                let group = set
                    .groups
                    .get(name)
                    .ok_or_else(|| no_template("a scaling group"))?;
                let clique = role
                    .endpoints
                    .as_ref()
                    .and_then(|endpoints| endpoints.pod_clique.as_ref());
                if let Some(clique) = clique.filter(|clique| !group.cliques.contains(clique)) {
                    return Err(NoTarget::NoClique {
                        role: role.name.clone(),
                        clique: clique.clone(),
                        group: name.clone(),
                    });
                }
            }
            ScaledKind::PodClique => {}
        }
    }
    Ok(())
}

/// Reads `/scale` of a plain target.
///
/// # Errors
/// [`NoTarget::NoScale`] and [`NoTarget::NotFound`].
pub(crate) async fn read_plain(
    client: &Client,
    namespace: &str,
    spec: &ScalingPolicySpec,
) -> Result<PlainTarget, NoTarget> {
    let target = &spec.target;
    let no_scale = |message: String| NoTarget::NoScale {
        kind: target.kind.clone(),
        name: target.name.clone(),
        message,
    };
    let (group, version) = target
        .api_version
        .split_once('/')
        .unwrap_or(("", &target.api_version));
    let kind = GroupVersionKind::gvk(group, version, &target.kind);
    let (resource, _) = kube::discovery::pinned_kind(client, &kind)
        .await
        .map_err(|error| no_scale(message(&error)))?;
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
    let Scale {
        metadata,
        spec,
        status,
    } = match api.get_scale(&target.name).await {
        Ok(scale) => scale,
        Err(kube::Error::Api(status)) if status.code == 404 => {
            return Err(NoTarget::NotFound {
                kind: target.kind.clone(),
                name: target.name.clone(),
            });
        }
        Err(error) => return Err(no_scale(message(&error))),
    };
    let text = status
        .and_then(|status| status.selector)
        .filter(|text| !text.is_empty());
    let selector = text
        .map(|text| text.parse().map_err(|error| no_scale(format!("{error}"))))
        .transpose()?;
    let replicas = unsigned(spec.and_then(|spec| spec.replicas).unwrap_or(0));
    Ok(PlainTarget {
        name: target.name.clone(),
        resource,
        replicas,
        version: Version::of(&metadata),
        selector,
    })
}

/// What a person reads of an error of the API server: its message.
pub(crate) fn message(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        other => other.to_string(),
    }
}

/// The API and the name of the object that a step writes.
pub(crate) fn object(
    client: &Client,
    namespace: &str,
    target: &Target,
    roles: &[Role],
    object: StepObject,
) -> Option<(Api<DynamicObject>, String)> {
    let of = |resource: &ApiResource| Api::namespaced_with(client.clone(), namespace, resource);
    match target {
        Target::Plain(plain) => Some((of(&plain.resource), plain.name.clone())),
        Target::Set { name, .. } => match object {
            StepObject::Sets => Some((of(&ApiResource::erase::<PodCliqueSet>(&())), name.clone())),
            StepObject::Role { role, set } => {
                let scales = roles.get(role)?.scales.as_ref()?;
                let resource = match scales.kind {
                    ScaledKind::PodClique => ApiResource::erase::<PodClique>(&()),
                    ScaledKind::PodCliqueScalingGroup => {
                        ApiResource::erase::<PodCliqueScalingGroup>(&())
                    }
                };
                Some((of(&resource), child(name, set, scales)))
            }
        },
    }
}

/// Name of a role's object in one set replica.
pub(crate) fn child(set: &str, index: u32, scales: &Scales) -> String {
    match scales.kind {
        ScaledKind::PodClique => names::standalone_clique(set, index, &scales.name),
        ScaledKind::PodCliqueScalingGroup => names::scaling_group(set, index, &scales.name),
    }
}

/// Whether `pod` belongs to the PodCliqueSet `set`.
pub(crate) fn is_of_set(pod: &PodView, set: &str) -> bool {
    pod.label(labels::MANAGED_BY) == Some(labels::OPERATOR)
        && pod.label(labels::PART_OF) == Some(set)
}

/// Whether `pod`, a pod of the set, belongs to a role.
pub(crate) fn is_of_role(pod: &PodView, set: &str, scales: &Scales) -> bool {
    let Some(index) = pod.set_index() else {
        return false;
    };
    let key = match scales.kind {
        ScaledKind::PodClique => labels::CLIQUE,
        ScaledKind::PodCliqueScalingGroup => labels::SCALING_GROUP,
    };
    pod.label(key) == Some(&child(set, index, scales))
}

/// Whether `pod`, a pod of the role, is one whose metrics count: of the clique that the policy names, or any.
pub(crate) fn is_endpoint(pod: &PodView, set: &str, role: &Role) -> bool {
    let clique = role
        .endpoints
        .as_ref()
        .and_then(|endpoints| endpoints.pod_clique.as_ref());
    let (Some(clique), Some(scales)) = (clique, &role.scales) else {
        return true;
    };
    let (Some(index), Some(replica)) = (pod.set_index(), pod.group_index()) else {
        return false;
    };
    let group = names::scaling_group(set, index, &scales.name);
    pod.label(labels::CLIQUE) == Some(&names::member_clique(&group, replica, clique))
}

/// Whether the policy's target is a PodCliqueSet.
pub(crate) fn is_set(spec: &ScalingPolicySpec) -> bool {
    spec.target.kind == SET_KIND
        && spec
            .target
            .api_version
            .starts_with(&format!("{}/", PodCliqueSet::group(&())))
}
