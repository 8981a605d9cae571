//! Who may change what the operator manages: the operator, whoever is exempt, and everybody where a set's author says so.
//!
//! A courtesy against mistakes, not a wall: it can be switched off on every set, and subresources (`/scale`, `/status`, binding)
//! and the deletion of pods pass by it.

use std::collections::BTreeSet;

use coppice_operator_api::labels;
use kube::api::DynamicObject;
use kube::core::admission::{AdmissionResponse, Operation};

use super::review::{Request, failure, refuse};

/// Users who may.
#[derive(Clone, Debug, Default)]
pub(crate) struct Guard {
    /// The operator's own name.
    pub(crate) own: String,
    /// Names of others, in full.
    pub(crate) exempt: BTreeSet<String>,
}

/// What a set says about its objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protection {
    /// They are protected.
    On,
    /// Its author lets everybody.
    Off,
    /// There is no such set.
    NoSet,
}

/// Decides about a write to a managed object. `protection` is what the set of that namespace and name says.
pub(crate) fn decide(
    request: &Request,
    guard: &Guard,
    protection: impl FnOnce(&str, &str) -> Protection,
) -> AdmissionResponse {
    let mut allowed = AdmissionResponse::from(request);
    let object = match request.operation {
        Operation::Connect => return allowed,
        Operation::Create => request.object.as_ref(),
        Operation::Update | Operation::Delete => request.old_object.as_ref(),
    };
    let Some(object) = object else {
        let message = "the request carries no object".to_owned();
        return refuse(allowed, failure(400, "BadRequest", message));
    };
    let namespace = request.namespace.as_deref().unwrap_or_default();
    let warn = |why: String| Some(vec![format!("this object is not protected: {why}")]);
    let Some(set) = part_of(object) else {
        allowed.warnings = warn(format!("it lacks the label {}", labels::PART_OF));
        return allowed;
    };
    match protection(namespace, set) {
        Protection::On => {}
        Protection::Off => return allowed,
        Protection::NoSet => {
            allowed.warnings = warn(format!("there is no PodCliqueSet {set}"));
            return allowed;
        }
    }
    let user = request.user_info.username.as_deref().unwrap_or_default();
    let is_pod = request.resource.group.is_empty() && request.resource.resource == "pods";
    if user == guard.own
        || guard.exempt.contains(user)
        || request.operation == Operation::Delete && is_pod
    {
        return allowed;
    }
    let verb = match request.operation {
        Operation::Create => "create",
        Operation::Update => "update",
        Operation::Delete => "delete",
        Operation::Connect => "connect to",
    };
    let message = format!(
        "user {user} may not {verb} {} {namespace}/{}: the operator manages it for PodCliqueSet {set}. Change the set instead, or let \
         everybody change its objects with its annotation {}: \"true\"",
        request.resource.resource,
        request.name,
        labels::annotations::DISABLE_PROTECTION
    );
    refuse(allowed, failure(403, "Forbidden", message))
}

fn part_of(object: &DynamicObject) -> Option<&str> {
    let labels = object.metadata.labels.as_ref()?;
    let set = labels.get(labels::PART_OF)?;
    (!set.is_empty()).then_some(set)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn guard() -> Guard {
        Guard {
            own: "system:serviceaccount:coppice-system:coppice-operator".to_owned(),
            exempt: ["system:kube-controller-manager".to_owned()].into(),
        }
    }

    fn object(labels: &Value) -> Value {
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s-0", "namespace": "ns", "labels": labels}})
    }

    fn request(operation: &str, resource: &str, user: &str, labels: &Value) -> Request {
        let there = object(labels);
        let (new, old) = match operation {
            "CREATE" => (there, Value::Null),
            // What is written must not decide: somebody could take the label off.
            "UPDATE" => (object(&json!({})), there),
            _ => (Value::Null, there),
        };
        let review = json!({
            "uid": "u", "operation": operation, "userInfo": {"username": user}, "object": new, "oldObject": old,
            "name": "s-0", "namespace": "ns", "kind": {"group": "", "version": "v1", "kind": "x"},
            "resource": {"group": "", "version": "v1", "resource": resource},
        });
        serde_json::from_value(review).unwrap()
    }

    fn decided(
        operation: &str,
        resource: &str,
        user: &str,
        protection: Protection,
    ) -> AdmissionResponse {
        let labels = json!({"app.kubernetes.io/part-of": "s"});
        let request = request(operation, resource, user, &labels);
        decide(&request, &guard(), |namespace, set| {
            assert_eq!((namespace, set), ("ns", "s"));
            protection
        })
    }

    #[test]
    fn strangers_may_not_change_what_is_managed_and_are_told_what_to_do() {
        for operation in ["CREATE", "UPDATE", "DELETE"] {
            let answer = decided(operation, "services", "eve", Protection::On);
            assert!(!answer.allowed, "{operation}");
            assert_eq!(answer.result.code, 403);
            let message = answer.result.message;
            let verb = operation.to_lowercase();
            assert!(
                message.starts_with(&format!("user eve may not {verb} services ns/s-0:"))
                    && message.contains("grove.io/disable-managed-resource-protection"),
                "{message}"
            );
        }
    }

    #[test]
    fn the_operator_whoever_is_exempt_and_everybody_of_an_open_set_may() {
        let own = guard().own;
        for user in [own.as_str(), "system:kube-controller-manager"] {
            for operation in ["CREATE", "UPDATE", "DELETE"] {
                assert!(decided(operation, "services", user, Protection::On).allowed);
            }
        }
        assert!(decided("UPDATE", "services", "eve", Protection::Off).allowed);
    }

    #[test]
    fn pods_may_be_deleted_by_everybody_and_changed_by_nobody() {
        assert!(decided("DELETE", "pods", "eve", Protection::On).allowed);
        assert!(!decided("UPDATE", "pods", "eve", Protection::On).allowed);
    }

    #[test]
    fn what_belongs_to_no_set_is_let_through_with_a_warning() {
        let answer = decided("UPDATE", "services", "eve", Protection::NoSet);
        assert!(answer.allowed);
        let warnings = answer.warnings.unwrap();
        assert!(warnings[0].contains("no PodCliqueSet s"), "{warnings:?}");
        let request = request("DELETE", "services", "eve", &json!({}));
        let answer = decide(&request, &guard(), |_, _| panic!("no set to ask about"));
        assert!(answer.allowed && answer.warnings.is_some());
    }

    #[test]
    fn a_request_without_an_object_is_no_request() {
        let mut broken = request("DELETE", "services", "eve", &json!({}));
        broken.old_object = None;
        let answer = decide(&broken, &guard(), |_, _| Protection::On);
        assert_eq!((answer.allowed, answer.result.code), (false, 400));
    }
}
