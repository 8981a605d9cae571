//! What one round of scrapes brought. A value that was not measured is absent; it is never zero instead.

use std::collections::BTreeMap;

use jiff::Timestamp;

/// One round of scrapes.
#[derive(Debug, Clone, PartialEq)]
pub struct Observation {
    /// When it was taken.
    pub at: Timestamp,
    /// What the gateway reported. `None`: no gateway is known, or none answered.
    pub offered: Option<Offered>,
    /// What each role's engines reported, by role.
    pub roles: BTreeMap<String, RoleObservation>,
}

/// Load as it is offered, counted at the gateway on arrival.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Offered {
    /// Requests per second.
    pub requests_per_second: Option<f64>,
    /// Input tokens per second.
    pub input_tokens_per_second: Option<f64>,
    /// Mean output tokens of the requests that ended within the window.
    pub mean_output_tokens: Option<f64>,
    /// Requests that the gateway holds because no engine takes them.
    pub waiting: Option<f64>,
}

/// What the engines of one role reported; sums are over the endpoints whose scrape was fresh.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct RoleObservation {
    /// Endpoints that ought to answer: ready pods of live units.
    pub endpoints: u32,
    /// Of these, the ones whose scrape was fresh.
    pub answered: u32,
    /// Prompt tokens worked off per second.
    pub input_tokens_per_second: Option<f64>,
    /// Output tokens made per second.
    pub output_tokens_per_second: Option<f64>,
    /// Requests finished per second.
    pub finished_per_second: Option<f64>,
    /// Requests that wait.
    pub waiting: Option<f64>,
    /// Requests in the batch.
    pub running: Option<f64>,
    /// Σ of the KV-cache use, each 0 to 1.
    pub kv_usage: Option<f64>,
    /// The series that the policy names for this role.
    pub metric: Option<f64>,
}
