//! What the definitions accept and refuse, and that the committed copy is the one this code prints.

#![expect(clippy::unwrap_used, reason = "fixtures fail loudly")]

use coppice_scaler_api::{ScalingPolicy, crds};
use kube::core::cel::Validator;
use serde_json::{Value, json};

/// The policy of the documentation, complete.
fn full() -> Value {
    json!({
        "apiVersion": "autoscaling.coppice.dev/v1alpha1",
        "kind": "ScalingPolicy",
        "metadata": {"name": "qwen3", "namespace": "serving"},
        "spec": {
            "target": {"apiVersion": "grove.io/v1alpha1", "kind": "PodCliqueSet", "name": "qwen3"},
            "mode": "Auto",
            "actuation": "Scale",
            "objectives": {
                "ttft": {"percentile": 95, "target": "1s", "perInputToken": "500us"},
                "itl": {"percentile": 95, "target": "50ms"},
            },
            "traffic": {"endpoints": {"selector": {"matchLabels": {"app": "gateway"}}, "port": "http", "path": "/metrics"}, "engine": "Auto"},
            "roles": [
                {
                    "name": "prefill", "stage": "Prefill",
                    "scales": {"kind": "PodCliqueScalingGroup", "name": "prefill"},
                    "endpoints": {"podClique": "pworker", "port": "http", "path": "/metrics"},
                    "min": 1, "max": 16,
                    "signal": {"slo": {}},
                    "profile": {"configMap": {"name": "qwen3-h200", "key": "profile.json"}},
                },
                {
                    "name": "decode", "stage": "Decode",
                    "scales": {"kind": "PodCliqueScalingGroup", "name": "decode"},
                    "min": 1, "max": 32,
                    "signal": {"tokenThroughput": {"outputTokensPerSecond": 2500}},
                },
            ],
            "sets": {"min": 1, "max": 4},
            "ratio": {"numerator": "prefill", "denominator": "decode", "min": "0.25", "max": "2"},
            "budget": {"name": "h200-pool"},
            "startup": {"assume": "120s"},
            "behavior": {
                "scaleUp": {"policies": [{"type": "Percent", "value": 100, "periodSeconds": 15}], "selectPolicy": "Max"},
                "scaleDown": {"stabilizationWindowSeconds": 300, "tolerance": "0.1"},
            },
            "onMetricsLost": {"hold": "5m", "then": "Hold"},
        },
    })
}

fn schema(kind: &str) -> Value {
    let crd = crds()
        .into_iter()
        .find(|crd| crd.spec.names.kind == kind)
        .unwrap();
    serde_json::to_value(
        crd.spec.versions[0]
            .schema
            .as_ref()
            .unwrap()
            .open_api_v3_schema
            .as_ref()
            .unwrap(),
    )
    .unwrap()
}

/// The messages with which the rules refuse `object`.
fn refusals(kind: &str, object: &Value) -> Vec<String> {
    match Validator::new().validate_with_defaults(&schema(kind), object, None) {
        Ok(()) => Vec::new(),
        Err(errors) => errors.into_vec().iter().map(ToString::to_string).collect(),
    }
}

#[test]
fn the_complete_policy_is_accepted_and_survives_a_round_trip() {
    assert_eq!(refusals("ScalingPolicy", &full()), Vec::<String>::new());
    let policy: ScalingPolicy = serde_json::from_value(full()).unwrap();
    let again: ScalingPolicy =
        serde_json::from_value(serde_json::to_value(&policy).unwrap()).unwrap();
    assert_eq!(policy, again);
}

#[test]
fn the_smallest_policy_is_accepted_and_gets_its_defaults() {
    let smallest = json!({
        "apiVersion": "autoscaling.coppice.dev/v1alpha1", "kind": "ScalingPolicy", "metadata": {"name": "chat"},
        "spec": {
            "target": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "chat"},
            "roles": [{"name": "server", "stage": "Aggregated", "max": 8, "signal": {"queueDepth": {"waitingPerUnit": 4}}}],
        },
    });
    assert_eq!(refusals("ScalingPolicy", &smallest), Vec::<String>::new());
    let policy: ScalingPolicy = serde_json::from_value(smallest).unwrap();
    let value = serde_json::to_value(&policy.spec).unwrap();
    assert_eq!(value["mode"], "Auto");
    assert_eq!(value["roles"][0]["min"], 1);
    assert_eq!(value["startup"]["assume"], "2m");
    assert_eq!(
        value["onMetricsLost"],
        json!({"hold": "5m", "then": "Hold"})
    );
}

/// Values by JSON pointer; `None` takes the field away.
type Changes = Vec<(&'static str, Option<Value>)>;

/// Sets the value at a JSON pointer (creating the last field), or removes it.
fn with(mut object: Value, changes: &[(&str, Option<Value>)]) -> Value {
    for (pointer, value) in changes {
        let (parent, field) = pointer.rsplit_once('/').unwrap();
        let parent = object.pointer_mut(parent).unwrap().as_object_mut().unwrap();
        match value {
            Some(value) => parent.insert(field.to_owned(), value.clone()),
            None => parent.remove(field),
        };
    }
    object
}

#[test]
fn every_rule_refuses_its_counter_example_naming_field_value_and_next_step() {
    let cases: Vec<(&str, Changes, &[&str])> = vec![
        (
            "min above max",
            vec![("/spec/roles/0/min", Some(json!(17)))],
            &["\"prefill\"", "min above its max", "lower min or raise max"],
        ),
        (
            "two signals",
            vec![("/spec/roles/1/signal/slo", Some(json!({})))],
            &["signal", "more than one of", "keep exactly one"],
        ),
        (
            "no signal",
            vec![("/spec/roles/1/signal", Some(json!({})))],
            &["signal", "none of", "add exactly one"],
        ),
        (
            "two throughputs",
            vec![(
                "/spec/roles/1/signal/tokenThroughput/inputTokensPerSecond",
                Some(json!(1)),
            )],
            &["tokenThroughput", "both", "remove one"],
        ),
        (
            "no throughput",
            vec![("/spec/roles/1/signal/tokenThroughput", Some(json!({})))],
            &["tokenThroughput", "neither", "add the one"],
        ),
        (
            "an unknown unit",
            vec![("/spec/startup/assume", Some(json!("120x")))],
            &["120x", "not a duration", "such as 500us, 120s or 5m"],
        ),
        (
            "a unit is missing",
            vec![("/spec/objectives/itl/target", Some(json!("50")))],
            &["\"50\"", "not a duration"],
        ),
        (
            "no time at all",
            vec![("/spec/startup/assume", Some(json!("0s")))],
            &["assume 0s", "not above 0"],
        ),
        (
            "two roles, one group",
            vec![("/spec/roles/1/scales/name", Some(json!("prefill")))],
            &["more than one role scales prefill", "keep one role"],
        ),
        (
            "nothing scaled",
            vec![("/spec/roles/1/scales", None)],
            &["\"decode\" has no scales", "name the PodClique"],
        ),
        (
            "sets of a deployment",
            vec![("/spec/target/kind", Some(json!("Deployment")))],
            &[
                "kind Deployment",
                "exactly one role",
                "target a PodCliqueSet",
            ],
        ),
        (
            "ratio of a stranger",
            vec![("/spec/ratio/denominator", Some(json!("draft")))],
            &["ratio", "\"draft\" is not one of roles", "use the name"],
        ),
        (
            "ratio with itself",
            vec![("/spec/ratio/denominator", Some(json!("prefill")))],
            &["numerator and denominator", "name two roles"],
        ),
        (
            "ratio upside down",
            vec![("/spec/ratio/min", Some(json!("2.5")))],
            &["ratio: min 2.5 is above max 2", "lower min or raise max"],
        ),
        (
            "sets upside down",
            vec![("/spec/sets/min", Some(json!(5)))],
            &["sets: min is above max", "lower min or raise max"],
        ),
        (
            "two budgets",
            vec![("/spec/budget/gpus", Some(json!(64)))],
            &["budget", "both", "remove one"],
        ),
        (
            "no budget",
            vec![("/spec/budget", Some(json!({})))],
            &["budget", "neither", "add the name"],
        ),
        (
            "class without pool",
            vec![("/spec/budget", Some(json!({"gpus": 8, "class": "batch"})))],
            &["class \"batch\"", "name the GpuBudget"],
        ),
        (
            "fallback without numbers",
            vec![("/spec/onMetricsLost/then", Some(json!("Fallback")))],
            &["onMetricsLost", "replicas are missing", "give the units"],
        ),
        (
            "numbers without fallback",
            vec![("/spec/onMetricsLost/replicas", Some(json!({"decode": 2})))],
            &["then is Hold", "set then to Fallback"],
        ),
        (
            "fallback of a stranger",
            vec![(
                "/spec/onMetricsLost",
                Some(json!({"hold": "5m", "then": "Fallback", "replicas": {"draft": 2}})),
            )],
            &["onMetricsLost.replicas: a key is not one of roles"],
        ),
        (
            "slo without objective",
            vec![("/spec/objectives/ttft", None)],
            &["slo lacks its objective", "objectives.ttft"],
        ),
        (
            "slo without a stage",
            vec![("/spec/roles/0/stage", Some(json!("Other")))],
            &["Other takes another signal"],
        ),
        (
            "nobody to wake it",
            vec![
                ("/spec/traffic", None),
                ("/spec/roles/1/min", Some(json!(0))),
            ],
            &["\"decode\" has min 0", "set min to 1 or add traffic"],
        ),
        (
            "metric of no traffic",
            vec![
                ("/spec/traffic", None),
                (
                    "/spec/roles/1/signal",
                    Some(json!({"metric": {"name": "a:b", "from": "Traffic", "targetPerUnit": 1}})),
                ),
            ],
            &["\"decode\"", "add traffic or read from Role"],
        ),
        (
            "two gateways",
            vec![(
                "/spec/traffic/endpoints/address",
                Some(json!("127.0.0.1:80")),
            )],
            &["both selector and address", "remove one"],
        ),
        (
            "no gateway",
            vec![("/spec/traffic/endpoints/selector", None)],
            &["neither selector nor address", "host:port"],
        ),
        (
            "an address with a scheme",
            vec![(
                "/spec/traffic/endpoints",
                Some(json!({"address": "http://gw:80"})),
            )],
            &["\"http://gw:80\"", "not host:port", "127.0.0.1:8080"],
        ),
        (
            "a leader of a clique",
            vec![("/spec/roles/0/scales/kind", Some(json!("PodClique")))],
            &["endpoints.podClique", "remove podClique"],
        ),
    ];
    for (name, changes, fragments) in cases {
        let refusals = refusals("ScalingPolicy", &with(full(), &changes)).join("\n");
        for fragment in fragments {
            assert!(
                refusals.contains(fragment),
                "{name}: `{fragment}` is not in `{refusals}`"
            );
        }
    }
}

/// Duplicates are refused by the server, which needs no rule for it.
#[test]
fn roles_and_classes_are_lists_keyed_by_name() {
    for (kind, list) in [("ScalingPolicy", "roles"), ("GpuBudget", "classes")] {
        let schema = schema(kind);
        let list = &schema["properties"]["spec"]["properties"][list];
        assert_eq!(list["x-kubernetes-list-type"], "map", "{kind}: {list}");
        assert_eq!(list["x-kubernetes-list-map-keys"], json!(["name"]));
    }
}

#[test]
fn the_committed_definitions_are_the_printed_ones() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/crds.yaml");
    let committed: Vec<Value> =
        serde_saphyr::from_multiple(&std::fs::read_to_string(path).unwrap_or_default()).unwrap();
    let printed: Vec<Value> = crds()
        .iter()
        .map(|crd| serde_json::to_value(crd).unwrap())
        .collect();
    assert!(
        committed == printed,
        "scaler/api/crds.yaml is out of date: run `cargo run -p coppice-scaler -- crds > scaler/api/crds.yaml`"
    );
}
