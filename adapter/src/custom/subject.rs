//! What can be measured, and which pods make it up.
//!
//! Objects are not watched. That a pod belongs to one is what its labels say, which the operator writes; so an answer never waits for
//! another watch, and needs no right to read the objects.

use coppice_signals::Selector;

use super::wire::ObjectReference;
use crate::route::Subject;
use crate::status::Refusal;

/// How a value comes about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Measure {
    /// A value for each pod.
    EachPod,
    /// The value of this pod.
    OnePod(String),
    /// One value for all pods of an object.
    Together {
        /// Selects its pods.
        pods: Selector,
        /// The object.
        described: ObjectReference,
    },
}

/// A kind of object whose pods carry its name in a label.
struct Owner {
    resource: &'static str,
    kind: &'static str,
    label: &'static str,
}

/// As in `grove.io/v1alpha1`.
const GROVE: &str = "grove.io/v1alpha1";
const OWNERS: [Owner; 3] = [
    Owner {
        resource: "podcliques.grove.io",
        kind: "PodClique",
        label: "grove.io/podclique",
    },
    Owner {
        resource: "podcliquescalinggroups.grove.io",
        kind: "PodCliqueScalingGroup",
        label: "grove.io/podcliquescalinggroup",
    },
    Owner {
        resource: "podcliquesets.grove.io",
        kind: "PodCliqueSet",
        label: "app.kubernetes.io/part-of",
    },
];
/// The label that tells pods of Grove's objects from others that use the common label `app.kubernetes.io/part-of`.
const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "grove-operator");

const PODS: &str = "pods";
/// Where discovery lists metrics of namespaces.
pub(crate) const NAMESPACES: &str = "namespaces";

/// Resources in namespaces that metrics are listed for.
pub(crate) const LISTED: [&str; 4] = [
    PODS,
    OWNERS[0].resource,
    OWNERS[1].resource,
    OWNERS[2].resource,
];

impl Measure {
    /// How the metric of a subject comes about.
    ///
    /// # Errors
    /// 404 for a resource that cannot be measured.
    pub(super) fn of(namespace: &str, subject: &Subject) -> Result<Self, Refusal> {
        let (resource, name) = match subject {
            Subject::Namespace => {
                let described = ObjectReference {
                    api_version: "v1",
                    kind: "Namespace",
                    namespace: None,
                    name: namespace.to_owned(),
                };
                return Ok(Self::Together {
                    pods: Selector::everything(),
                    described,
                });
            }
            Subject::Objects { resource, name } => (resource.as_str(), name),
        };
        if resource == PODS {
            return Ok(match name {
                None => Self::EachPod,
                Some(name) => Self::OnePod(name.clone()),
            });
        }
        let Some(Owner { kind, label, .. }) =
            OWNERS.iter().find(|owner| owner.resource == resource)
        else {
            return Err(Refusal::not_found(format!(
                "resource {resource:?} is not measured: use one of {}, or the namespace itself (metrics/METRIC)",
                LISTED.join(", ")
            )));
        };
        let Some(name) = name else {
            return Err(Refusal::not_found(format!(
                "{resource} are measured one by one: put a name in place of *, or ask for {PODS}"
            )));
        };
        let (key, value) = MANAGED_BY;
        let pods = Selector::everything()
            .and_equals(key, value)
            .and_equals(*label, name);
        let described = ObjectReference {
            api_version: GROVE,
            kind,
            namespace: Some(namespace.to_owned()),
            name: name.clone(),
        };
        Ok(Self::Together { pods, described })
    }
}

/// A pod, as it is named in an answer.
pub(super) fn pod(namespace: &str, name: &str) -> ObjectReference {
    ObjectReference {
        api_version: "v1",
        kind: "Pod",
        namespace: Some(namespace.to_owned()),
        name: name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use coppice_operator_api::{GROUP, VERSION, labels};
    use kube::CustomResourceExt;

    use super::*;

    /// The labels are the operator's, under its names; this crate may not depend on its API, so the two are held together here.
    #[test]
    fn pods_are_found_by_the_labels_that_the_operator_writes() {
        assert_eq!(GROVE, format!("{GROUP}/{VERSION}"));
        assert_eq!(MANAGED_BY, (labels::MANAGED_BY, labels::OPERATOR));
        let theirs = [
            (
                coppice_operator_api::PodClique::api_resource(),
                labels::CLIQUE,
            ),
            (
                coppice_operator_api::PodCliqueScalingGroup::api_resource(),
                labels::SCALING_GROUP,
            ),
            (
                coppice_operator_api::PodCliqueSet::api_resource(),
                labels::PART_OF,
            ),
        ];
        for (owner, (resource, label)) in OWNERS.iter().zip(theirs) {
            assert_eq!(
                (owner.resource, owner.kind, owner.label),
                (
                    format!("{}.{}", resource.plural, resource.group).as_str(),
                    resource.kind.as_str(),
                    label
                )
            );
        }
    }

    #[test]
    fn what_cannot_be_measured_is_refused_with_what_can() {
        let of = |resource: &str, name: Option<&str>| {
            let subject = Subject::Objects {
                resource: resource.to_owned(),
                name: name.map(str::to_owned),
            };
            Measure::of("serving", &subject)
        };
        for (resource, name, part) in [
            ("services", Some("frontend"), "podcliques.grove.io"),
            ("podcliques", Some("a"), "podcliques.grove.io"),
            ("podcliquesets.grove.io", None, "in place of *"),
        ] {
            let refusal = of(resource, name).unwrap_err();
            assert_eq!(refusal.code(), 404);
            assert!(refusal.message().contains(part), "{refusal:?}");
        }
    }
}
