//! Carries a decision out: patches `/scale`, what shrinks first, each only while the value is still the one that was read.

use coppice_runtime::lease::Tenure;
use coppice_scaler_api::Role;
use coppice_scaler_plan::{Step, StepObject};
use kube::Client;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use tracing::{debug, info, warn};

use crate::target::{self, Target};
use crate::views::Version;

/// Field manager of everything that the scaler writes.
pub(crate) const MANAGER: &str = "coppice-scaler";

/// What became of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The value was written; the object's version with it.
    Done(Option<Version>),
    /// The value was no longer the one that was read, or the object is gone: the next pass looks again.
    Outdated,
    /// The API server refused; its message.
    Refused(String),
}

impl Outcome {
    /// Name in metrics.
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Done(_) => "done",
            Self::Outdated => "outdated",
            Self::Refused(_) => "refused",
        }
    }
}

/// Writes the steps in their order, while this process leads. Steps after the end of the tenure are left out.
pub(crate) async fn carry_out(
    client: &Client,
    namespace: &str,
    target: &Target,
    roles: &[Role],
    steps: &[Step],
    tenure: &Tenure,
) -> Vec<(Step, Outcome)> {
    let mut outcomes = Vec::new();
    for step in steps {
        if !tenure.is_current() {
            debug!(
                namespace,
                "not the leader any more, leaving the rest to the next one"
            );
            break;
        }
        let Some((api, name)) = target::object(client, namespace, target, roles, step.object)
        else {
            continue;
        };
        let outcome = match api
            .patch_scale(
                &name,
                &PatchParams {
                    field_manager: Some(MANAGER.to_owned()),
                    ..PatchParams::default()
                },
                &patch(*step),
            )
            .await
        {
            Ok(scale) => {
                info!(namespace, name, from = step.from, to = step.to, "scaled");
                Outcome::Done(Version::of(&scale.metadata))
            }
            Err(kube::Error::Api(status))
                if matches!(status.code, 404 | 409) || is_failed_test(&status.message) =>
            {
                debug!(
                    namespace,
                    name,
                    from = step.from,
                    to = step.to,
                    "replicas changed before they could be written"
                );
                Outcome::Outdated
            }
            Err(error) => {
                let message = target::message(&error);
                warn!(namespace, name, from = step.from, to = step.to, error = %message, "replicas could not be written");
                Outcome::Refused(format!("{}: {message}", what(step.object, roles)))
            }
        };
        outcomes.push((*step, outcome));
    }
    outcomes
}

fn what(object: StepObject, roles: &[Role]) -> String {
    match object {
        StepObject::Sets => "sets".to_owned(),
        StepObject::Role { role, set } => {
            let name = roles
                .get(role)
                .map_or_else(String::new, |role| role.name.clone());
            format!("role \"{name}\" in set {set}")
        }
    }
}

/// The API server answers a failed test with 422 and this in its message.
fn is_failed_test(message: &str) -> bool {
    message.contains("the server rejected our request due to an error in our request")
        || message.contains("testing path")
}

/// A patch that fails unless the value is still `step.from`. A scale leaves a zero out, so zero is an empty spec.
fn patch(step: Step) -> Patch<()> {
    let test = if step.from == 0 {
        json!({"op": "test", "path": "/spec", "value": {}})
    } else {
        json!({"op": "test", "path": "/spec/replicas", "value": step.from})
    };
    let operations = json!([test, {"op": "add", "path": "/spec/replicas", "value": step.to}]);
    Patch::Json(serde_json::from_value(operations).expect("a literal"))
}
