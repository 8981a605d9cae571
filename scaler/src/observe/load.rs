//! One observation of a policy's load, from what the collector has.

use std::time::Duration;

use coppice_scaler_api::{Exposition, MetricSource, Role, ScalingPolicySpec, SignalKind};
use coppice_scaler_plan::{Observation, Offered, RoleObservation};
use coppice_signals::observe::Reading;
use coppice_signals::{Metric, Query, RoleSignals, Selection, Signals};
use jiff::Timestamp;

use super::endpoints::Endpoints;

/// What one look at the collector brought, and what a person should know about it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Look {
    pub(crate) observation: Observation,
    /// Why the gateway's load is not known; `None` when it is, or none is named.
    pub(crate) traffic_trouble: Option<String>,
}

/// Looks at the endpoints of a policy. A value older than two scrapes is left out: it counts from when it was fresh.
pub(crate) fn look(
    signals: &Signals,
    spec: &ScalingPolicySpec,
    endpoints: &Endpoints,
    now: Timestamp,
) -> Look {
    let at = signals.now();
    let fresh = signals.settings().interval * 2;
    let mut traffic_trouble = None;
    let offered = endpoints.traffic.as_ref().and_then(|selection| {
        match offered(signals, spec, selection, at, fresh) {
            Ok(offered) => Some(offered),
            Err(trouble) => {
                traffic_trouble = Some(trouble);
                None
            }
        }
    });
    let roles = spec
        .roles
        .iter()
        .zip(&endpoints.roles)
        .map(|(role, selection)| {
            let observed = selection.as_ref().map(|selection| {
                of_role(
                    signals,
                    role,
                    selection,
                    endpoints.traffic.as_ref(),
                    at,
                    fresh,
                )
            });
            (role.name.clone(), observed.unwrap_or_default())
        });
    Look {
        observation: Observation {
            at: now,
            offered,
            roles: roles.collect(),
        },
        traffic_trouble,
    }
}

fn offered(
    signals: &Signals,
    spec: &ScalingPolicySpec,
    selection: &Selection,
    at: Timestamp,
    fresh: Duration,
) -> Result<Offered, String> {
    check_kind(signals, spec, selection, at)?;
    let observed = signals.observe(selection, at);
    let requests = [
        &observed.offered_requests_per_second,
        &observed.received_requests_per_second,
        &observed.estimated_requests_per_second,
    ];
    let input = [
        &observed.offered_input_tokens_per_second,
        &observed.input_tokens_per_second,
    ];
    let first = |readings: &[&Reading]| readings.iter().find_map(|reading| value(reading, fresh));
    let offered = Offered {
        requests_per_second: first(&requests),
        input_tokens_per_second: first(&input),
        mean_output_tokens: value(&observed.mean_output_tokens, fresh),
        waiting: value(&observed.waiting, fresh),
    };
    match (
        &offered.requests_per_second,
        &observed.offered_requests_per_second,
    ) {
        (None, Err(missing)) => Err(missing.to_string()),
        _ => Ok(offered),
    }
}

/// Whether the endpoints expose what the policy says.
fn check_kind(
    signals: &Signals,
    spec: &ScalingPolicySpec,
    selection: &Selection,
    at: Timestamp,
) -> Result<(), String> {
    let wanted = match spec.traffic.as_ref().map(|traffic| traffic.engine) {
        None | Some(Exposition::Auto) => return Ok(()),
        Some(Exposition::DynamoFrontend) => "dynamo-frontend",
        Some(Exposition::Vllm) => "vllm",
        Some(Exposition::SGLang) => "sglang",
        Some(Exposition::LlamaCpp) => "llama.cpp",
    };
    let endpoints = signals.endpoints(selection, at);
    let other = endpoints.iter().find(|endpoint| {
        endpoint
            .server
            .as_ref()
            .is_some_and(|server| same_kind(server) != same_kind(wanted))
    });
    match other {
        None => Ok(()),
        Some(endpoint) => Err(format!(
            "{} exposes {}, but traffic.engine asks for {wanted}: set it to Auto or correct traffic.endpoints",
            endpoint.name,
            endpoint.server.as_deref().unwrap_or("nothing known"),
        )),
    }
}

fn same_kind(name: &str) -> String {
    name.chars()
        .filter(char::is_ascii_alphanumeric)
        .collect::<String>()
        .to_ascii_lowercase()
}

fn of_role(
    signals: &Signals,
    role: &Role,
    selection: &Selection,
    traffic: Option<&Selection>,
    at: Timestamp,
    fresh: Duration,
) -> RoleObservation {
    let observed = signals.observe(selection, at);
    let RoleSignals { endpoints, .. } = &observed;
    let live = u32::try_from(endpoints.live).unwrap_or(u32::MAX);
    let metric = match role.signal.kind() {
        Ok(SignalKind::Metric(metric)) => {
            let selection = match metric.from {
                MetricSource::Role => Some(selection),
                MetricSource::Traffic => traffic,
            };
            selection.and_then(|selection| named(signals, &metric.name, selection, at, fresh))
        }
        _ => None,
    };
    RoleObservation {
        endpoints: live,
        answered: u32::try_from(endpoints.fresh).unwrap_or(u32::MAX),
        input_tokens_per_second: value(&observed.input_tokens_per_second, fresh),
        output_tokens_per_second: value(&observed.output_tokens_per_second, fresh),
        finished_per_second: value(&observed.finished_per_second, fresh),
        waiting: value(&observed.waiting, fresh),
        running: value(&observed.running, fresh),
        kv_usage: value(&observed.kv_cache_usage, fresh).map(|mean| mean * f64::from(live)),
        metric,
    }
}

/// A series or one of our metrics by name, while it is fresh.
fn named(
    signals: &Signals,
    name: &str,
    selection: &Selection,
    at: Timestamp,
    fresh: Duration,
) -> Option<f64> {
    let query = Query {
        metric: Metric::parse(name).ok()?,
        selection: selection.clone(),
        window: None,
    };
    let answer = signals.query(&query, at).ok()?;
    let age = Duration::try_from(at.duration_since(answer.timestamp)).unwrap_or_default();
    (age <= fresh).then_some(answer.value)
}

fn value(reading: &Reading, fresh: Duration) -> Option<f64> {
    reading
        .as_ref()
        .ok()
        .filter(|measured| measured.age <= fresh)
        .map(|measured| measured.value)
}
