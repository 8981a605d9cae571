//! What a pod template may not hold, because the operator or the gang's placement says it.

use coppice_operator_api::init_container;
use k8s_openapi::api::core::v1::{Container, PodSpec};

use crate::admission::field::FieldError;
use crate::build::compute_domain;

pub(super) fn check(path: &str, pods: &PodSpec, errors: &mut Vec<FieldError>) {
    if pods.topology_spread_constraints.is_some() {
        let rule = "must be absent: a gang is placed together; topologyConstraint of the clique says how close";
        errors.push(FieldError::forbidden(
            format!("{path}.topologySpreadConstraints"),
            rule,
        ));
    }
    if let Some(node) = pods.node_name.as_deref().filter(|name| !name.is_empty()) {
        let rule = "must be absent: the gang's placement chooses nodes; nodeSelector or affinity narrows the choice";
        errors.push(FieldError::invalid(format!("{path}.nodeName"), node, rule));
    }
    let init = pods.init_containers.as_deref().unwrap_or_default();
    for (list, containers) in [
        ("containers", pods.containers.as_slice()),
        ("initContainers", init),
    ] {
        for (position, container) in containers.iter().enumerate() {
            let path = format!("{path}.{list}[{position}]");
            if container.name == init_container::NAME {
                let rule = "is the name of the container that the operator adds for the start order: choose another";
                errors.push(FieldError::invalid(
                    format!("{path}.name"),
                    &container.name,
                    rule,
                ));
            }
            variables(&path, container, errors);
        }
    }
    for (position, claim) in pods.resource_claims.iter().flatten().enumerate() {
        if claim.name == compute_domain::CLAIM {
            let rule = "is the name of the claim that the operator adds for an MNNVL group: choose another";
            errors.push(FieldError::invalid(
                format!("{path}.resourceClaims[{position}].name"),
                &claim.name,
                rule,
            ));
        }
    }
    let reserved = [
        init_container::POD_INFO_VOLUME,
        init_container::TOKEN_VOLUME,
    ];
    for (position, volume) in pods.volumes.iter().flatten().enumerate() {
        if reserved.contains(&volume.name.as_str()) {
            let rule = "is the name of a volume that the operator adds for the start order: choose another";
            errors.push(FieldError::invalid(
                format!("{path}.volumes[{position}].name"),
                &volume.name,
                rule,
            ));
        }
    }
}

/// Names of environment variables, by the rule of the servers that we run on: printable ASCII without `=`.
fn variables(path: &str, container: &Container, errors: &mut Vec<FieldError>) {
    for (position, variable) in container.env.iter().flatten().enumerate() {
        let name = variable.name.as_str();
        let is_legal = |byte: u8| (b' '..=b'~').contains(&byte) && byte != b'=';
        if name.is_empty() || !name.bytes().all(is_legal) {
            let rule = "must be printable ASCII characters other than '=', and at least one";
            errors.push(FieldError::invalid(
                format!("{path}.env[{position}].name"),
                name,
                rule,
            ));
        }
    }
}
