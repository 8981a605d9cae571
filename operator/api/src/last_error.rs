//! The error list that upstream keeps in the status of its objects.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One error of the last pass over an object that did not finish.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct LastError {
    /// Stable code, `ERR_` followed by a verb and an object.
    pub code: String,
    /// What failed and why, for people.
    pub description: String,
    /// When the error was seen.
    pub observed_at: Time,
}
