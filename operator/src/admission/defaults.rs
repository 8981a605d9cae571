//! What a PodCliqueSet says without its author having written it.
//!
//! Works on the JSON of the object, because it runs before the schema is checked: whatever is not of the expected shape is
//! left as it is, for the schema to name. Defaults are stated on the object, so that readers need not know them, and nothing
//! that is written is ever changed but `replicas: 0` of a clique, which upstream takes for 1.
//!
//! The schema itself gives `spec.replicas`, the start-up type, the update strategy's type and a scaling group's `replicas`
//! and `minAvailable`; the API server gives the namespace. Those are not repeated here.

use coppice_operator_api::defaults;
use serde_json::{Map, Value, json};

/// Completes the object. `old` is what is stored, on an update.
///
/// A clique's `minAvailable` cannot change, so where an update leaves it out, the stored set says what it is; else an edit of
/// `replicas` by somebody who never wrote `minAvailable` would be refused.
pub(crate) fn complete(set: &mut Value, old: Option<&Value>) {
    let Some(template) = template_mut(set) else {
        return;
    };
    let entries = |list: &str| old.and_then(|old| list_of(old, list));
    let old_cliques = entries("cliques");
    for clique in list_mut(template, "cliques") {
        let before = old_cliques.and_then(|cliques| named_like(cliques, clique));
        complete_clique(clique, before);
    }
    for group in list_mut(template, "podCliqueScalingGroups") {
        // Also when the schema has not given its own default yet.
        let replicas = group.get("replicas").and_then(Value::as_i64).unwrap_or(1);
        give_minimum(group, "scaleConfig", replicas);
    }
    give(
        template,
        "terminationDelay",
        json!(defaults::TERMINATION_DELAY),
    );
    let addresses = json!({"publishNotReadyAddresses": defaults::PUBLISH_NOT_READY_ADDRESSES});
    give(template, "headlessServiceConfig", addresses);
}

fn complete_clique(clique: &mut Map<String, Value>, old: Option<&Value>) {
    let Some(spec) = clique.get_mut("spec").and_then(Value::as_object_mut) else {
        return;
    };
    if let Some(pods) = spec.get_mut("podSpec").and_then(Value::as_object_mut) {
        complete_pod_spec(pods);
    }
    if matches!(spec.get("replicas"), None | Some(Value::Null)) || spec["replicas"] == 0 {
        spec.insert("replicas".to_owned(), json!(1));
    }
    let Some(replicas) = spec.get("replicas").and_then(Value::as_i64) else {
        return;
    };
    let minimum = old
        .and_then(|clique| clique.get("spec"))
        .and_then(stored_minimum);
    give(spec, "minAvailable", json!(minimum.unwrap_or(replicas)));
    give_minimum(spec, "autoScalingConfig", replicas);
}

/// The minimum that a stored clique has, said or not.
fn stored_minimum(spec: &Value) -> Option<i64> {
    let said = spec.get("minAvailable").and_then(Value::as_i64);
    said.or_else(|| Some(spec.get("replicas")?.as_i64()?.max(1)))
}

/// Completes a pod spec. The digest of a template is taken after this, so that stating a default rolls nothing.
pub(crate) fn complete_pod_spec(pods: &mut Map<String, Value>) {
    if pods.get("restartPolicy").is_some_and(|policy| policy == "") {
        pods.remove("restartPolicy");
    }
    give(pods, "restartPolicy", json!(defaults::RESTART_POLICY));
    let grace = json!(defaults::TERMINATION_GRACE_PERIOD_SECONDS);
    give(pods, "terminationGracePeriodSeconds", grace);
}

/// Fewest replicas of an autoscaler: what the template asks for.
fn give_minimum(parent: &mut Map<String, Value>, config: &str, replicas: i64) {
    if let Some(config) = parent.get_mut(config).and_then(Value::as_object_mut) {
        give(config, "minReplicas", json!(replicas));
    }
}

/// Sets a field that is absent.
fn give(map: &mut Map<String, Value>, field: &str, value: Value) {
    if matches!(map.get(field), None | Some(Value::Null)) {
        map.insert(field.to_owned(), value);
    }
}

fn template_mut(set: &mut Value) -> Option<&mut Map<String, Value>> {
    set.get_mut("spec")?.get_mut("template")?.as_object_mut()
}

fn list_of<'a>(set: &'a Value, list: &str) -> Option<&'a [Value]> {
    let list = set.get("spec")?.get("template")?.get(list)?.as_array()?;
    Some(list)
}

fn list_mut<'a>(
    template: &'a mut Map<String, Value>,
    list: &str,
) -> impl Iterator<Item = &'a mut Map<String, Value>> {
    let list = template.get_mut(list).and_then(Value::as_array_mut);
    list.into_iter().flatten().filter_map(Value::as_object_mut)
}

fn named_like<'a>(entries: &'a [Value], like: &Map<String, Value>) -> Option<&'a Value> {
    let name = like.get("name")?;
    entries.iter().find(|entry| entry.get("name") == Some(name))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn completed(mut set: Value, old: Option<&Value>) -> Value {
        complete(&mut set, old);
        set
    }

    fn set(template: &Value) -> Value {
        json!({"spec": {"template": template}})
    }

    #[test]
    fn everything_that_is_left_out_is_stated() {
        let before = set(&json!({
            "cliques": [
                {"name": "a", "spec": {"replicas": 3, "podSpec": {"containers": []}, "autoScalingConfig": {"maxReplicas": 5}}},
                {"name": "b", "spec": {"podSpec": {"restartPolicy": ""}}},
            ],
            "podCliqueScalingGroups": [
                {"name": "g", "cliqueNames": ["b"], "replicas": 2, "scaleConfig": {"maxReplicas": 4}},
                {"name": "h", "cliqueNames": [], "scaleConfig": {"maxReplicas": 4}},
            ],
        }));
        let after = set(&json!({
            "terminationDelay": "4h0m0s",
            "headlessServiceConfig": {"publishNotReadyAddresses": true},
            "cliques": [
                {"name": "a", "spec": {"replicas": 3, "minAvailable": 3,
                    "podSpec": {"containers": [], "restartPolicy": "Always", "terminationGracePeriodSeconds": 30},
                    "autoScalingConfig": {"minReplicas": 3, "maxReplicas": 5}}},
                {"name": "b", "spec": {"replicas": 1, "minAvailable": 1,
                    "podSpec": {"restartPolicy": "Always", "terminationGracePeriodSeconds": 30}}},
            ],
            "podCliqueScalingGroups": [
                {"name": "g", "cliqueNames": ["b"], "replicas": 2, "scaleConfig": {"minReplicas": 2, "maxReplicas": 4}},
                {"name": "h", "cliqueNames": [], "scaleConfig": {"minReplicas": 1, "maxReplicas": 4}},
            ],
        }));
        assert_eq!(completed(before, None), after);
    }

    /// Upstream takes the minimum before it turns 0 into 1, and then refuses its own default.
    #[test]
    fn no_replicas_count_as_one_before_the_minimum_is_taken_from_them() {
        let before =
            set(&json!({"cliques": [{"name": "a", "spec": {"replicas": 0, "podSpec": {}}}]}));
        let spec = &completed(before, None)["spec"]["template"]["cliques"][0]["spec"];
        assert_eq!(
            (&spec["replicas"], &spec["minAvailable"]),
            (&json!(1), &json!(1))
        );
    }

    #[test]
    fn what_is_written_stays() {
        let written = set(&json!({
            "terminationDelay": "90s",
            "headlessServiceConfig": {"publishNotReadyAddresses": false},
            "cliques": [{"name": "a", "spec": {"replicas": 3, "minAvailable": 1,
                "podSpec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0},
                "autoScalingConfig": {"minReplicas": 0, "maxReplicas": 5}}}],
        }));
        assert_eq!(completed(written.clone(), None), written);
    }

    #[test]
    fn an_update_that_leaves_the_minimum_out_keeps_the_stored_one() {
        let clique = |spec: Value| set(&json!({"cliques": [{"name": "a", "spec": spec}]}));
        let minimum = |old: Value| {
            let new = clique(json!({"replicas": 5, "podSpec": {}}));
            completed(new, Some(&clique(old)))["spec"]["template"]["cliques"][0]["spec"]
                ["minAvailable"]
                .clone()
        };
        assert_eq!(minimum(json!({"replicas": 2, "minAvailable": 1})), 1);
        assert_eq!(minimum(json!({"replicas": 2})), 2);
        assert_eq!(minimum(json!({"replicas": 0})), 1);
    }

    #[test]
    fn what_has_the_wrong_shape_is_left_to_the_schema() {
        for odd in [
            json!(null),
            json!({"spec": null}),
            json!({"spec": {"template": []}}),
            json!({"spec": {"template": {"cliques": 7, "terminationDelay": 1, "headlessServiceConfig": {}}}}),
            set(
                &json!({"cliques": ["x", {"spec": 3}, {"spec": {"replicas": "2", "podSpec": [], "autoScalingConfig": 1}}],
                "podCliqueScalingGroups": [[], {"scaleConfig": []}], "terminationDelay": 1, "headlessServiceConfig": 2}),
            ),
        ] {
            assert_eq!(completed(odd.clone(), None), odd);
        }
    }

    fn maybe(value: impl Strategy<Value = Value>) -> impl Strategy<Value = Value> {
        prop_oneof![1 => Just(Value::Null), 2 => value]
    }

    fn clique() -> impl Strategy<Value = Value> {
        let number = || maybe((-1..4i64).prop_map(|n| json!(n)));
        let policy = maybe(prop_oneof![Just(json!("")), Just(json!("Never"))]);
        let scaling = maybe(number().prop_map(|min| json!({"minReplicas": min, "maxReplicas": 5})));
        ("[ab]", number(), number(), policy, number(), scaling).prop_map(
            |(name, replicas, min, policy, grace, scaling)| {
                json!({"name": name, "spec": {"replicas": replicas, "minAvailable": min, "autoScalingConfig": scaling,
                    "podSpec": {"restartPolicy": policy, "terminationGracePeriodSeconds": grace}}})
            },
        )
    }

    fn any_set() -> impl Strategy<Value = Value> {
        let scaling = maybe(Just(json!({"maxReplicas": 5})));
        let group = scaling.prop_map(|scaling| json!({"name": "g", "scaleConfig": scaling}));
        let cliques = prop::collection::vec(clique(), 0..4);
        let delay = maybe(Just(json!("1s")));
        (cliques, prop::collection::vec(group, 0..2), delay).prop_map(|(cliques, groups, delay)| {
            set(&json!({"cliques": cliques, "podCliqueScalingGroups": groups, "terminationDelay": delay}))
        })
    }

    proptest! {
        #[test]
        fn a_completed_set_completes_to_itself(new in any_set(), old in any_set()) {
            for old in [None, Some(&old)] {
                let once = completed(new.clone(), old);
                prop_assert_eq!(completed(once.clone(), old), once);
            }
        }
    }
}
