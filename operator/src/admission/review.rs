//! From an admission request to its answer, without I/O.
//!
//! Nothing is asked of an object that is being deleted, or of an update that changes neither the spec nor what the rules see of the
//! metadata: a set whose spec has become invalid must still be able to lose its finalizer. And an update is not refused for what was
//! already wrong in the stored object, so that a rule that is new in this version locks nobody out of their own sets.

use std::collections::BTreeSet;

use coppice_operator_api::{GROUP, PodCliqueSet, VERSION, labels};
use kube::api::DynamicObject;
use kube::core::Status;
use kube::core::admission::{AdmissionRequest, AdmissionResponse, Operation};
use kube::core::response::{StatusCause, StatusDetails, StatusSummary};

use super::field::{FieldError, joined};
use super::rules::Around;
use super::{defaults, rules};
use crate::backends::volcano;

/// Most errors that one answer names.
const MOST_CAUSES: usize = 50;
/// Most warnings of one answer, and most characters of each; the API server keeps no more.
const MOST_WARNINGS: usize = 10;
const LONGEST_WARNING: usize = 256;

pub(crate) type Request = AdmissionRequest<DynamicObject>;

/// Completes a PodCliqueSet: the answer carries a JSON patch where something is missing.
pub(crate) fn complete(request: &Request) -> AdmissionResponse {
    let allowed = AdmissionResponse::from(request);
    let object = match subject(request) {
        Ok(Some(object)) => object,
        Ok(None) => return allowed,
        Err(status) => return refuse(allowed, *status),
    };
    let mut completed = object.data.clone();
    defaults::complete(
        &mut completed,
        request.old_object.as_ref().map(|old| &old.data),
    );
    let patch = json_patch::diff(&object.data, &completed);
    if patch.0.is_empty() {
        return allowed;
    }
    match allowed.clone().with_patch(patch) {
        Ok(patched) => patched,
        Err(error) => refuse(allowed, failure(500, "InternalError", error.to_string())),
    }
}

/// Checks a PodCliqueSet: the answer names everything that is wrong with it.
pub(crate) fn validate(request: &Request, around: &Around) -> AdmissionResponse {
    let mut answer = AdmissionResponse::from(request);
    let object = match subject(request) {
        Ok(Some(object)) => object,
        Ok(None) => return answer,
        Err(status) => return refuse(answer, *status),
    };
    let parsed = parse(object).and_then(|new| {
        let old = request.old_object.as_ref().map(parse).transpose()?;
        Ok((new, old))
    });
    let (new, old) = match parsed {
        Ok(parsed) => parsed,
        Err(status) => return refuse(answer, *status),
    };
    let errors = errors(&new, old.as_ref(), around);
    let mut warnings = rules::warnings(&new, around);
    if request.operation == Operation::Create && new.spec.replicas == 0 {
        warnings
            .push("spec.replicas is 0, so nothing is created until the set is scaled".to_owned());
    }
    warnings.truncate(MOST_WARNINGS);
    for warning in &mut warnings {
        warning.truncate(warning.floor_char_boundary(LONGEST_WARNING));
    }
    answer.warnings = (!warnings.is_empty()).then_some(warnings);
    if errors.is_empty() {
        return answer;
    }
    let name = new.metadata.name.as_deref().unwrap_or_default();
    refuse(answer, invalid(name, &errors))
}

/// The ClusterTopologyBinding that has to be known to answer; nothing where the answer does not depend on one.
pub(crate) fn binding(request: &Request) -> Option<String> {
    let set = parse(subject(request).ok()??).ok()?;
    rules::topology::binding_name(&set).map(str::to_owned)
}

/// The Queue of the Volcano scheduler that the set comes to.
pub(crate) fn volcano_queue(request: &Request) -> Option<String> {
    let set = parse(subject(request).ok()??).ok()?;
    volcano::queue(&set).ok()
}

fn errors(new: &PodCliqueSet, old: Option<&PodCliqueSet>, around: &Around) -> Vec<FieldError> {
    let mut errors = rules::check(new, around);
    match old {
        None => errors.extend(rules::check_new(new, around)),
        Some(old) => {
            let known: BTreeSet<String> = rules::check(old, around)
                .iter()
                .map(ToString::to_string)
                .collect();
            errors.retain(|error| !known.contains(&error.to_string()));
            errors.extend(rules::check_queue(old, new, around));
            // One whose constraints named no binding, and do now, is new as far as that goes.
            if rules::topology::binding_name(old) != rules::topology::binding_name(new) {
                errors.extend(rules::check_topology(new, around));
            }
            // No gang was ever placed by a set that cannot be planned, so there is nothing to keep, and much to mend.
            if rules::plannable(old).is_empty() {
                errors.extend(rules::update::check(old, new));
            }
        }
    }
    errors
}

/// The object to look at; nothing where there is nothing to say.
fn subject(request: &Request) -> Result<Option<&DynamicObject>, Box<Status>> {
    let asked = &request.resource;
    if (
        asked.group.as_str(),
        asked.version.as_str(),
        asked.resource.as_str(),
    ) != (GROUP, VERSION, "podcliquesets")
    {
        let message = format!(
            "this webhook looks at podcliquesets of {GROUP}/{VERSION}, and was asked about {} of {}/{}: mend its configuration",
            asked.resource, asked.group, asked.version
        );
        return Err(Box::new(failure(400, "BadRequest", message)));
    }
    let is_write = matches!(request.operation, Operation::Create | Operation::Update);
    if !is_write
        || request
            .sub_resource
            .as_deref()
            .is_some_and(|name| !name.is_empty())
    {
        return Ok(None);
    }
    let Some(object) = &request.object else {
        let message = "the request carries no object".to_owned();
        return Err(Box::new(failure(400, "BadRequest", message)));
    };
    if object.metadata.deletion_timestamp.is_some() {
        return Ok(None);
    }
    let is_as_before = request.old_object.as_ref().is_some_and(|old| {
        old.data.get("spec") == object.data.get("spec")
            && seen_metadata(old) == seen_metadata(object)
    });
    Ok((!is_as_before).then_some(object))
}

/// What the rules for updates see of the metadata.
fn seen_metadata(object: &DynamicObject) -> [Option<&String>; 4] {
    use labels::annotations::{KAI_QUEUE, MNNVL_GROUP, VOLCANO_QUEUE};
    let annotation = |key| object.metadata.annotations.as_ref()?.get(key);
    let label = |key| object.metadata.labels.as_ref()?.get(key);
    [
        annotation(MNNVL_GROUP),
        annotation(VOLCANO_QUEUE),
        annotation(KAI_QUEUE),
        label(KAI_QUEUE),
    ]
}

/// The schema has been checked before, so what fails here are values that it cannot describe.
fn parse(object: &DynamicObject) -> Result<PodCliqueSet, Box<Status>> {
    object.clone().try_parse().map_err(|error| {
        let message = format!("cannot be read as a PodCliqueSet: {error}");
        Box::new(failure(400, "BadRequest", message))
    })
}

pub(super) fn refuse(mut answer: AdmissionResponse, status: Status) -> AdmissionResponse {
    answer.allowed = false;
    answer.result = status;
    answer
}

/// 422 as from the API server's own validation, with a cause for each field, so that clients show them as they show those.
///
/// Upstream answers 403 with the same text and no causes.
fn invalid(name: &str, errors: &[FieldError]) -> Status {
    let message = format!(
        "PodCliqueSet.{GROUP} {name:?} is invalid: {}",
        joined(errors, MOST_CAUSES)
    );
    let causes = errors.iter().take(MOST_CAUSES).map(|error| StatusCause {
        reason: error.kind.reason().to_owned(),
        message: error.body(),
        field: error.field.clone(),
    });
    let mut status = failure(422, "Invalid", message);
    status.details = Some(StatusDetails {
        name: name.to_owned(),
        group: GROUP.to_owned(),
        kind: "PodCliqueSet".to_owned(),
        uid: String::new(),
        causes: causes.collect(),
        retry_after_seconds: 0,
    });
    status
}

pub(super) fn failure(code: u16, reason: &str, message: String) -> Status {
    Status {
        status: Some(StatusSummary::Failure),
        code,
        message,
        metadata: None,
        reason: reason.to_owned(),
        details: None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::admission::rules::topology::Binding;

    fn validate(request: &Request) -> AdmissionResponse {
        super::validate(request, &Around::default())
    }

    fn request(operation: &str, object: &Value, old: &Value) -> Request {
        let review = json!({
            "uid": "u", "operation": operation, "userInfo": {}, "object": object, "oldObject": old,
            "kind": {"group": "grove.io", "version": "v1alpha1", "kind": "PodCliqueSet"},
            "resource": {"group": "grove.io", "version": "v1alpha1", "resource": "podcliquesets"},
        });
        serde_json::from_value(review).unwrap()
    }

    fn set(spec: &Value) -> Value {
        json!({"apiVersion": "grove.io/v1alpha1", "kind": "PodCliqueSet", "metadata": {"name": "s", "namespace": "ns"}, "spec": spec})
    }

    fn spec(minimum: i32) -> Value {
        json!({"replicas": 1, "template": {"cliques": [
            {"name": "a", "spec": {"replicas": 2, "minAvailable": minimum, "podSpec": {"containers": [{"name": "c"}]}}}]}})
    }

    fn created(spec: &Value) -> AdmissionResponse {
        validate(&request("CREATE", &set(spec), &Value::Null))
    }

    fn updated(old: &Value, new: &Value) -> AdmissionResponse {
        validate(&request("UPDATE", new, old))
    }

    #[test]
    fn a_refusal_is_a_status_with_a_cause_for_each_field() {
        let mut wrong = spec(3);
        wrong["replicas"] = json!(-1);
        let answer = created(&wrong);
        assert!(!answer.allowed);
        assert_eq!(
            (answer.result.code, answer.result.reason.as_str()),
            (422, "Invalid")
        );
        assert_eq!(
            answer.result.message,
            "PodCliqueSet.grove.io \"s\" is invalid: [spec.replicas: Invalid value: -1: must be 0 or more, \
             spec.template.cliques[0].spec.minAvailable: Invalid value: 3: must be at most replicas, which is 2: lower it, or raise \
             replicas]"
        );
        let details = answer.result.details.unwrap();
        assert_eq!(
            (details.kind.as_str(), details.name.as_str()),
            ("PodCliqueSet", "s")
        );
        let cause = &details.causes[0];
        assert_eq!(
            (
                cause.field.as_str(),
                cause.reason.as_str(),
                cause.message.as_str()
            ),
            (
                "spec.replicas",
                "FieldValueInvalid",
                "Invalid value: -1: must be 0 or more"
            )
        );
        assert_eq!(details.causes.len(), 2);
    }

    #[test]
    fn many_errors_are_counted_where_they_are_not_shown() {
        let cliques: Vec<Value> = (0..70)
            .map(|n| json!({"name": format!("c{n}"), "spec": {"roleName": "same", "podSpec": {"containers": []}}}))
            .collect();
        let answer = created(&json!({"replicas": 1, "template": {"cliques": cliques}}));
        assert_eq!(answer.result.details.unwrap().causes.len(), MOST_CAUSES);
        assert!(
            answer.result.message.ends_with(", and 19 more]"),
            "{}",
            answer.result.message
        );
    }

    #[test]
    fn a_set_that_is_going_or_whose_spec_stays_is_let_through() {
        let wrong = set(&spec(9));
        let mut labelled = wrong.clone();
        labelled["metadata"]["finalizers"] = json!(["x"]);
        assert!(updated(&wrong, &labelled).allowed);
        let mut going = set(&spec(8));
        going["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        assert!(updated(&wrong, &going).allowed);
        assert!(complete(&request("UPDATE", &going, &wrong)).patch.is_none());
        let plain = set(&spec(1));
        let mut grouped = plain.clone();
        grouped["metadata"]["annotations"] = json!({"grove.io/mnnvl-group": "g"});
        let answer = updated(&plain, &grouped);
        assert!(
            !answer.allowed && answer.result.message.contains("cannot be added"),
            "{}",
            answer.result.message
        );
    }

    #[test]
    fn what_was_wrong_before_locks_nobody_out() {
        let old = set(&spec(9));
        assert!(updated(&old, &set(&spec(1))).allowed, "mended");
        assert!(!updated(&set(&spec(2)), &set(&spec(1))).allowed, "changed");
        let mut scaled = old.clone();
        scaled["spec"]["replicas"] = json!(4);
        assert!(updated(&old, &scaled).allowed);
        scaled["spec"]["replicas"] = json!(-4);
        let details = updated(&old, &scaled).result.details.unwrap();
        assert_eq!(details.causes.len(), 1);
    }

    #[test]
    fn defaults_come_as_a_patch_and_only_where_something_is_missing() {
        let answer = complete(&request("CREATE", &set(&spec(1)), &Value::Null));
        let patch: json_patch::Patch = serde_json::from_slice(&answer.patch.unwrap()).unwrap();
        let mut object = set(&spec(1));
        json_patch::patch(&mut object, &patch).unwrap();
        assert_eq!(object["spec"]["template"]["terminationDelay"], "4h0m0s");
        assert_eq!(
            object["spec"]["template"]["cliques"][0]["spec"]["podSpec"]["restartPolicy"],
            "Always"
        );
        assert!(
            patch
                .0
                .iter()
                .all(|step| matches!(step, json_patch::PatchOperation::Add(_)))
        );
        assert!(
            complete(&request("CREATE", &object, &Value::Null))
                .patch
                .is_none()
        );
    }

    #[test]
    fn other_resources_and_shapes_are_refused_and_other_verbs_let_through() {
        let mut other = request("CREATE", &set(&spec(1)), &Value::Null);
        other.resource.resource = "podcliques".to_owned();
        let answer = validate(&other);
        assert_eq!((answer.allowed, answer.result.code), (false, 400));
        assert!(
            answer
                .result
                .message
                .contains("was asked about podcliques of grove.io/v1alpha1")
        );
        assert_eq!(
            created(&json!({"template": {"cliques": "x"}})).result.code,
            400
        );
        assert_eq!(
            validate(&request("CREATE", &Value::Null, &Value::Null))
                .result
                .code,
            400
        );
        assert!(validate(&request("DELETE", &Value::Null, &set(&spec(9)))).allowed);
        let mut scale = request("UPDATE", &set(&spec(9)), &set(&spec(8)));
        scale.sub_resource = Some("scale".to_owned());
        assert!(validate(&scale).allowed);
    }

    #[test]
    fn a_binding_is_asked_for_when_it_is_named_and_looked_at_when_it_is_new() {
        let constrained = |constraint: Value| {
            let mut spec = spec(1);
            spec["template"]["topologyConstraint"] = constraint;
            set(&spec)
        };
        let named = constrained(json!({"topologyName": "t", "packDomain": "rack"}));
        let unnamed = constrained(json!({"packDomain": "rack"}));
        let create = request("CREATE", &named, &Value::Null);
        assert_eq!(binding(&create).as_deref(), Some("t"));
        assert_eq!(binding(&request("CREATE", &unnamed, &Value::Null)), None);
        let absent = Around {
            binding: Binding::Absent,
            ..Around::default()
        };
        assert!(!super::validate(&create, &absent).allowed);
        // Named at last: new as far as that goes. Named before: what runs may go on.
        let mended = request("UPDATE", &named, &unnamed);
        assert!(!super::validate(&mended, &absent).allowed);
        assert!(validate(&mended).allowed);
        let mut scaled = named.clone();
        scaled["spec"]["replicas"] = json!(4);
        let scaled = request("UPDATE", &scaled, &named);
        assert!(super::validate(&scaled, &absent).allowed);
    }

    #[test]
    fn what_has_no_effect_is_said() {
        let mut idle = spec(1);
        idle["replicas"] = json!(0);
        idle["template"]["cliques"][0]["spec"]["startsAfter"] = json!(["x"]);
        let answer = created(&idle);
        assert!(answer.allowed);
        assert_eq!(
            answer.warnings.unwrap(),
            [
                "spec.template.cliques[0].spec.startsAfter has no effect unless cliqueStartupType is CliqueStartupTypeExplicit",
                "spec.replicas is 0, so nothing is created until the set is scaled",
            ]
        );
    }
}
