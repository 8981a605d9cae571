//! The patch that lets a pod go to its node.

use coppice_operator_api::names::SCHEDULING_GATE;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{NodeSelector, NodeSelectorRequirement};
use serde_json::{Value, json};

/// On pods: when the pod was let go, and with which others. Pods of one placement carry the same instant.
pub(super) const PLACED_AT: &str = "coppice.dev/placed-at";
/// Field of a node that affinity may compare.
const NODE_NAME: &str = "metadata.name";

/// Takes the operator's gate away, keeps those of others, and pins the pod to `node`.
///
/// Of a pod with gates the server lets required node affinity be narrowed, never replaced: each term gets the node's name
/// beside what it asks for. A name among the fields makes kube-scheduler look at that one node only.
pub(super) fn patch(
    uid: &str,
    gates: &[Box<str>],
    affinity: Option<&NodeSelector>,
    node: &str,
    at: Timestamp,
) -> Value {
    let gates: Vec<Value> = gates
        .iter()
        .filter(|name| ***name != *SCHEDULING_GATE)
        .map(|name| json!({"name": name}))
        .collect();
    let mut selector = affinity.cloned().unwrap_or_default();
    if selector.node_selector_terms.is_empty() {
        selector.node_selector_terms.push(Default::default());
    }
    for term in &mut selector.node_selector_terms {
        term.match_fields
            .get_or_insert_default()
            .push(NodeSelectorRequirement {
                key: NODE_NAME.to_owned(),
                operator: "In".to_owned(),
                values: Some(vec![node.to_owned()]),
            });
    }
    json!({
        // Another pod of the same name is not meant.
        "metadata": {"uid": uid, "annotations": {PLACED_AT: at.to_string()}},
        "spec": {
            "schedulingGates": gates,
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": selector}},
        },
    })
}

/// The node that a pod was pinned to by [`patch`].
pub(super) fn pinned_node(affinity: Option<&NodeSelector>) -> Option<&str> {
    let term = affinity?.node_selector_terms.first()?;
    let named = term
        .match_fields
        .iter()
        .flatten()
        .rfind(|field| field.key == NODE_NAME && field.operator == "In")?;
    match named.values.as_deref() {
        Some([node]) => Some(node),
        Some(_) | None => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selector(patch: &Value) -> NodeSelector {
        let path = "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution";
        serde_json::from_value(patch.pointer(path).unwrap().clone()).unwrap()
    }

    #[test]
    fn every_term_is_narrowed_and_foreign_gates_stay() {
        let asked: NodeSelector = serde_json::from_value(json!({"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "a", "operator": "Exists"}]}, {"matchExpressions": [{"key": "b", "operator": "Exists"}]},
        ]}))
        .unwrap();
        let gates = [Box::from("theirs"), Box::from(SCHEDULING_GATE)];
        let patch = patch("u", &gates, Some(&asked), "n7", Timestamp::UNIX_EPOCH);
        assert_eq!(
            patch["metadata"],
            json!({"uid": "u", "annotations": {PLACED_AT: "1970-01-01T00:00:00Z"}})
        );
        assert_eq!(
            patch["spec"]["schedulingGates"],
            json!([{"name": "theirs"}])
        );
        let narrowed = selector(&patch);
        assert_eq!(narrowed.node_selector_terms.len(), 2);
        for (term, before) in narrowed
            .node_selector_terms
            .iter()
            .zip(&asked.node_selector_terms)
        {
            assert_eq!(term.match_expressions, before.match_expressions);
            assert_eq!(
                term.match_fields.as_ref().unwrap()[0].values.as_deref(),
                Some(&["n7".to_owned()][..])
            );
        }
        assert_eq!(pinned_node(Some(&narrowed)), Some("n7"));
    }

    #[test]
    fn a_pod_without_affinity_gets_one_and_one_that_was_not_pinned_shows_none() {
        let patch = patch("u", &[], None, "n7", Timestamp::UNIX_EPOCH);
        assert_eq!(pinned_node(Some(&selector(&patch))), Some("n7"));
        assert_eq!(pinned_node(None), None);
        let two = json!({"nodeSelectorTerms": [{"matchFields": [{"key": NODE_NAME, "operator": "In", "values": ["a", "b"]}]}]});
        assert_eq!(
            pinned_node(Some(&serde_json::from_value(two).unwrap())),
            None
        );
    }
}
