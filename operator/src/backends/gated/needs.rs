//! What a pod needs of its node, read from its spec.

use coppice_operator_plan::placement::quantity::parse_milli;
use coppice_operator_plan::placement::{
    Effect, NodeTerm, Operator, PodNeeds, Requirement, Resources, Taint, Toleration,
};
use k8s_openapi::api::core::v1::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm};

use super::view::{ContainerView, PodSpecView, Quantities};

/// Everything the planner weighs. Amounts that cannot be read count as nothing: the server has validated them.
pub(super) fn pod_needs(spec: &PodSpecView) -> PodNeeds {
    let terms = |selector: &NodeSelector| selector.node_selector_terms.iter().map(term).collect();
    PodNeeds {
        requests: requests(spec),
        tolerations: spec.tolerations.iter().filter_map(toleration).collect(),
        node_selector: spec.node_selector.clone(),
        node_affinity: spec.affinity.node_affinity.required.as_ref().map(terms),
    }
}

/// What the pod occupies, by the scheduler's rule: containers and sidecars run together; an init container runs with
/// the sidecars before it, and the largest of these moments counts. Amounts at the pod's own level replace that for the
/// resources they name.
pub(super) fn requests(spec: &PodSpecView) -> Resources {
    let mut running = Resources::default();
    for container in &spec.containers {
        running.add(&amounts(&container.resources.requests));
    }
    let (mut sidecars, mut starting) = (Resources::default(), Resources::default());
    for container in &spec.init_containers {
        let mut moment = amounts(&container.resources.requests);
        moment.add(&sidecars);
        if is_sidecar(container) {
            sidecars.clone_from(&moment);
        }
        starting.raise_to(&moment);
    }
    running.add(&sidecars);
    running.raise_to(&starting);
    for (name, milli) in amounts(&spec.resources.requests).iter() {
        running.set(name.clone(), milli);
    }
    running.add(&amounts(&spec.overhead));
    running
}

fn is_sidecar(container: &ContainerView) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

/// Amounts in thousandths.
pub(super) fn amounts(quantities: &Quantities) -> Resources {
    quantities
        .iter()
        .filter_map(|(name, quantity)| Some((name.as_str(), parse_milli(&quantity.0).ok()?)))
        .collect()
}

/// A node's taint in the planner's words; an effect that this version does not know keeps nothing off.
pub(super) fn taint(taint: &k8s_openapi::api::core::v1::Taint) -> Option<Taint> {
    let effect = effect(&taint.effect)?;
    Some(Taint {
        key: taint.key.clone(),
        value: taint.value.clone().unwrap_or_default(),
        effect,
    })
}

fn effect(word: &str) -> Option<Effect> {
    match word {
        "NoSchedule" => Some(Effect::NoSchedule),
        "PreferNoSchedule" => Some(Effect::PreferNoSchedule),
        "NoExecute" => Some(Effect::NoExecute),
        _ => None,
    }
}

/// A toleration in the planner's words; one that compares in a way this version does not know tolerates nothing.
fn toleration(toleration: &k8s_openapi::api::core::v1::Toleration) -> Option<Toleration> {
    let value = match toleration.operator.as_deref() {
        Some("Exists") => None,
        None | Some("" | "Equal") => Some(toleration.value.clone().unwrap_or_default()),
        Some(_) => return None,
    };
    let effect = match toleration.effect.as_deref() {
        None | Some("") => None,
        Some(word) => Some(effect(word)?),
    };
    Some(Toleration {
        key: toleration.key.clone().filter(|key| !key.is_empty()),
        value,
        effect,
    })
}

fn term(term: &NodeSelectorTerm) -> NodeTerm {
    let all = |requirements: &Option<Vec<NodeSelectorRequirement>>| {
        requirements.iter().flatten().map(requirement).collect()
    };
    NodeTerm {
        labels: all(&term.match_expressions),
        names: all(&term.match_fields),
    }
}

fn requirement(requirement: &NodeSelectorRequirement) -> Requirement {
    let values = || requirement.values.clone().unwrap_or_default();
    let number = |operator: fn(i64) -> Operator| match values().first().map(|value| value.parse()) {
        Some(Ok(number)) => operator(number),
        Some(Err(_)) | None => Operator::Unknown,
    };
    let operator = match requirement.operator.as_str() {
        "In" => Operator::In(values()),
        "NotIn" => Operator::NotIn(values()),
        "Exists" => Operator::Exists,
        "DoesNotExist" => Operator::DoesNotExist,
        "Gt" => number(Operator::Gt),
        "Lt" => number(Operator::Lt),
        _ => Operator::Unknown,
    };
    Requirement {
        key: requirement.key.clone(),
        operator,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn spec(spec: Value) -> PodSpecView {
        serde_json::from_value(spec).unwrap()
    }

    fn container(cpu: &str, memory: &str) -> Value {
        json!({"name": "c", "resources": {"requests": {"cpu": cpu, "memory": memory}}})
    }

    fn sidecar(cpu: &str, memory: &str) -> Value {
        let mut container = container(cpu, memory);
        container["restartPolicy"] = json!("Always");
        container
    }

    fn needed(of: Value) -> (i64, i64) {
        let requests = requests(&spec(of));
        (requests.milli("cpu"), requests.milli("memory") / 1000)
    }

    #[test]
    fn containers_run_together_and_init_containers_one_after_the_other() {
        assert_eq!(
            needed(json!({"containers": [container("1", "10"), container("500m", "5")]})),
            (1500, 15)
        );
        let init = json!([container("2", "1"), container("1", "30")]);
        assert_eq!(
            needed(json!({"containers": [container("1", "10")], "initContainers": init})),
            (2000, 30)
        );
    }

    #[test]
    fn a_sidecar_runs_beside_everything_that_starts_after_it() {
        let init = json!([container("4", "1"), sidecar("1", "1"), container("3", "1")]);
        assert_eq!(
            needed(json!({"containers": [container("1", "10")], "initContainers": init})),
            (4000, 11)
        );
        let init = json!([
            container("4", "1"),
            sidecar("1", "1"),
            sidecar("1", "1"),
            container("3", "1")
        ]);
        assert_eq!(
            needed(json!({"containers": [container("1", "10")], "initContainers": init})),
            (5000, 12)
        );
    }

    #[test]
    fn amounts_of_the_pod_replace_those_of_containers_and_overhead_comes_on_top() {
        let of = json!({
            "containers": [container("1", "10")], "resources": {"requests": {"cpu": "3"}}, "overhead": {"cpu": "250m"},
        });
        assert_eq!(needed(of), (3250, 10));
    }

    #[test]
    fn tolerations_and_affinity_are_translated() {
        let needs = pod_needs(&spec(json!({
            "tolerations": [
                {"operator": "Exists"}, {"key": "a", "value": "b", "effect": "NoSchedule"}, {"key": "c", "operator": "Gt", "value": "1"},
            ],
            "nodeSelector": {"pool": "x"},
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                {"matchExpressions": [{"key": "gpus", "operator": "Gt", "values": ["3"]}, {"key": "z", "operator": "Exists"}]},
                {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]},
            ]}}},
        })));
        let anything = Toleration::default();
        let equal = Toleration {
            key: Some("a".to_owned()),
            value: Some("b".to_owned()),
            effect: Some(Effect::NoSchedule),
        };
        assert_eq!(needs.tolerations, [anything, equal]);
        let label = |key: &str, operator| Requirement {
            key: key.to_owned(),
            operator,
        };
        assert_eq!(
            needs.node_affinity.unwrap(),
            [
                NodeTerm {
                    labels: vec![label("gpus", Operator::Gt(3)), label("z", Operator::Exists)],
                    names: vec![]
                },
                NodeTerm {
                    labels: vec![],
                    names: vec![label("metadata.name", Operator::In(vec!["n1".to_owned()]))]
                },
            ]
        );
    }
}
