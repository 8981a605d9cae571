//! The API server's own verdict on policies.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use coppice_scaler_api::{GpuBudget, ScalingPolicy};
use kube::api::{DynamicObject, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::support::cluster;

/// A change that makes a good spec a bad one, and what the refusal must say.
type Case = (fn(&mut Value), &'static [&'static str]);

fn policy(change: impl FnOnce(&mut Value)) -> Value {
    let mut object = json!({
        "apiVersion": "autoscaling.coppice.dev/v1alpha1",
        "kind": "ScalingPolicy",
        "metadata": {"name": "qwen3"},
        "spec": {
            "target": {"apiVersion": "grove.io/v1alpha1", "kind": "PodCliqueSet", "name": "qwen3"},
            "objectives": {"ttft": {"target": "1s", "perInputToken": "500us"}, "itl": {"target": "50ms"}},
            "traffic": {"endpoints": {"address": "127.0.0.1:8080"}},
            "roles": [
                {"name": "prefill", "stage": "Prefill", "scales": {"kind": "PodCliqueScalingGroup", "name": "prefill"}, "max": 16,
                 "signal": {"tokenThroughput": {"inputTokensPerSecond": 10000}}},
                {"name": "decode", "stage": "Decode", "scales": {"kind": "PodCliqueScalingGroup", "name": "decode"}, "max": 32,
                 "signal": {"tokenThroughput": {"outputTokensPerSecond": "2500.5"}}},
            ],
            "sets": {"min": 1, "max": 4},
            "ratio": {"numerator": "prefill", "denominator": "decode", "min": "0.25", "max": 2},
            "budget": {"gpus": 64},
        },
    });
    change(&mut object);
    object
}

async fn try_create(
    client: &Client,
    namespace: &str,
    object: &Value,
) -> Result<ScalingPolicy, String> {
    let dynamic: DynamicObject = serde_json::from_value(object.clone()).unwrap();
    let resource = kube::api::ApiResource::erase::<ScalingPolicy>(&());
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
    let parameters = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    match api.create(&parameters, &dynamic).await {
        Ok(created) => Ok(serde_json::from_value(serde_json::to_value(created).unwrap()).unwrap()),
        Err(kube::Error::Api(status)) => Err(status.message.clone()),
        Err(other) => panic!("{other}"),
    }
}

#[tokio::test]
async fn every_sample_is_accepted() -> Result<()> {
    let cluster = cluster().await?;
    let namespace = cluster.namespace("samples").await?;
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../samples");
    let mut kinds = BTreeSet::new();
    for path in coppice_testbed::manifests_below(&folder)? {
        let text = std::fs::read_to_string(&path)?;
        let objects = coppice_testbed::parse_yaml(&text)?;
        // KEDA is another project's, and its definitions are not here.
        let ours = objects.iter().filter(|object| {
            let types = object.types.as_ref();
            types.is_some_and(|types| !types.api_version.starts_with("keda.sh/"))
        });
        let ours: Vec<String> = ours.map(serde_json::to_string).collect::<Result<_, _>>()?;
        let applied = coppice_testbed::apply(&cluster.client(), &ours.join("\n---\n"), &namespace)
            .await
            .with_context(|| path.display().to_string())?;
        kinds.extend(
            applied
                .into_iter()
                .filter_map(|object| object.types)
                .map(|types| types.kind),
        );
    }
    for kind in [
        "PodCliqueSet",
        "ClusterTopologyBinding",
        "ScalingPolicy",
        "GpuBudget",
        "ConfigMap",
    ] {
        ensure!(kinds.contains(kind), "no sample of {kind}: {kinds:?}");
    }
    Ok(())
}

#[tokio::test]
async fn the_server_accepts_good_policies_and_fills_in_defaults() -> Result<()> {
    let cluster = cluster().await?;
    let namespace = cluster.namespace("schema").await?;
    let created = try_create(&cluster.client(), &namespace, &policy(|_| {}))
        .await
        .map_err(anyhow::Error::msg)?;
    ensure!(
        created.spec.roles.iter().all(|role| role.min == 1),
        "{created:?}"
    );
    ensure!(created.spec.objectives.unwrap().ttft.unwrap().percentile == 95);
    for change in [
        |spec: &mut Value| spec["roles"][0]["signal"] = json!({"slo": {}}),
        |spec: &mut Value| spec["roles"][0]["signal"] = json!({"kvCacheUsage": {"target": "0.8"}}),
        |spec: &mut Value| {
            spec["roles"][0]["signal"] =
                json!({"metric": {"name": "vllm:num_requests_waiting", "targetPerUnit": 4}})
        },
        |spec: &mut Value| spec["roles"][0]["min"] = json!(0),
        |spec: &mut Value| spec["budget"] = json!({"name": "h200-pool", "class": "batch"}),
        |spec: &mut Value| {
            spec["onMetricsLost"] =
                json!({"hold": "2m", "then": "Fallback", "replicas": {"decode": 4}})
        },
        |spec: &mut Value| {
            spec["traffic"] = json!({"endpoints": {"selector": {"matchLabels": {"app": "gateway"}}, "port": "http"}})
        },
        |spec: &mut Value| {
            spec["behavior"] = json!({"scaleDown": {"stabilizationWindowSeconds": 60, "tolerance": "0.2", "selectPolicy": "Min",
                "policies": [{"type": "Pods", "value": 1, "periodSeconds": 30}]}});
        },
    ] {
        let object = policy(|object| change(&mut object["spec"]));
        try_create(&cluster.client(), &namespace, &object)
            .await
            .map_err(|error| anyhow::anyhow!("{error}: {object}"))?;
    }
    Ok(())
}

#[tokio::test]
async fn the_server_refuses_what_cannot_work_and_says_what_to_do() -> Result<()> {
    let cluster = cluster().await?;
    let namespace = cluster.namespace("schema").await?;
    let cases: [Case; 32] = [
        (
            |spec| spec["roles"][0]["min"] = json!(17),
            &[
                "spec.roles[0].min",
                "\"prefill\" has a min above its max",
                "lower min or raise max",
            ],
        ),
        (
            |spec| spec["roles"][1]["signal"]["slo"] = json!({}),
            &["signal: more than one of", "keep exactly one"],
        ),
        (
            |spec| spec["roles"][1]["signal"] = json!({}),
            &["signal: none of", "add exactly one"],
        ),
        (
            |spec| spec["roles"][1]["signal"] = json!({"latency": {}}),
            &["signal"],
        ),
        (
            |spec| spec["roles"][1]["stage"] = json!("Decoding"),
            &["stage", "Decoding", "\"Decode\""],
        ),
        (
            |spec| spec["roles"][1]["name"] = json!("prefill"),
            &["spec.roles[1]", "Duplicate value", "prefill"],
        ),
        (
            |spec| spec["roles"][1]["name"] = json!("De code"),
            &["roles[1].name", "De code"],
        ),
        (
            |spec| spec["roles"] = json!([]),
            &["spec.roles", "at least 1"],
        ),
        (
            |spec| spec["startup"] = json!({"assume": "120x"}),
            &["assume", "120x", "such as 500us, 120s or 5m"],
        ),
        (
            |spec| spec["startup"] = json!({"assume": "0s"}),
            &["assume 0s is not above 0"],
        ),
        (
            |spec| spec["objectives"]["itl"]["percentile"] = json!(100),
            &["percentile", "less than or equal to 99"],
        ),
        (
            |spec| spec["ratio"]["min"] = json!("a quarter"),
            &["ratio.min", "a quarter", "should match", "[0-9]"],
        ),
        (
            |spec| spec["roles"][0]["signal"]["tokenThroughput"]["inputTokensPerSecond"] = json!(0),
            &["inputTokensPerSecond", "greater than or equal to 1"],
        ),
        (
            |spec| {
                spec["roles"][0]["signal"]["tokenThroughput"]["inputTokensPerSecond"] = json!("0.0")
            },
            &["inputTokensPerSecond", "0.0", "should match"],
        ),
        (
            |spec| spec["roles"][0]["signal"] = json!({"kvCacheUsage": {"target": 80}}),
            &["kvCacheUsage.target", "less than or equal to 1"],
        ),
        (
            |spec| spec["roles"][0]["signal"] = json!({"kvCacheUsage": {"target": "1.5"}}),
            &["kvCacheUsage.target", "1.5", "should match"],
        ),
        (
            |spec| spec["behavior"] = json!({"scaleDown": {"tolerance": 10}}),
            &["scaleDown.tolerance", "less than or equal to 1"],
        ),
        (
            |spec| spec["ratio"]["min"] = json!("2.5"),
            &["spec.ratio.min", "ratio: min 2.5 is above max 2"],
        ),
        (
            |spec| spec["ratio"]["max"] = json!(0),
            &["spec.ratio.max", "greater than or equal to 1"],
        ),
        (
            |spec| spec["ratio"]["max"] = json!("0.0"),
            &["spec.ratio.max", "should match"],
        ),
        (
            |spec| {
                let twin = spec["roles"][0]["scales"].clone();
                spec["roles"][1]["scales"] = twin;
            },
            &["more than one role scales prefill", "keep one role"],
        ),
        (
            |spec| spec["ratio"]["denominator"] = json!("draft"),
            &["ratio: role \"draft\" is not one of roles"],
        ),
        (
            |spec| spec["budget"]["name"] = json!("pool"),
            &["budget: both name and gpus are set"],
        ),
        (
            |spec| spec["budget"] = json!({}),
            &["budget: neither name nor gpus is set"],
        ),
        (
            |spec| spec["sets"]["min"] = json!(5),
            &["spec.sets.min", "min is above max: lower min or raise max"],
        ),
        (
            |spec| spec["target"]["kind"] = json!("Deployment"),
            &["kind Deployment", "exactly one role"],
        ),
        (
            |spec| spec["roles"][0]["scales"] = Value::Null,
            &["\"prefill\" has no scales"],
        ),
        (
            |spec| spec["onMetricsLost"] = json!({"then": "Fallback"}),
            &["replicas are missing"],
        ),
        (
            |spec| spec["onMetricsLost"] = json!({"then": "Fallback", "replicas": {"draft": 1}}),
            &["spec.onMetricsLost.replicas", "a key is not one of roles"],
        ),
        (
            |spec| spec["traffic"]["endpoints"] = json!({"address": "http://gw"}),
            &["\"http://gw\" is not host:port"],
        ),
        (
            |spec| {
                spec["objectives"] = Value::Null;
                spec["roles"][0]["signal"] = json!({"slo": {}});
            },
            &["slo lacks its objective"],
        ),
        (
            |spec| {
                spec["traffic"] = Value::Null;
                spec["roles"][1]["min"] = json!(0);
            },
            &["\"decode\" has min 0", "add traffic"],
        ),
    ];
    for (change, fragments) in cases {
        let object = policy(|object| change(&mut object["spec"]));
        let Err(refusal) = try_create(&cluster.client(), &namespace, &object).await else {
            panic!("accepted: {object}")
        };
        for fragment in fragments {
            ensure!(
                refusal.contains(fragment),
                "`{fragment}` is not in `{refusal}`"
            );
        }
    }
    Ok(())
}

#[tokio::test]
async fn budgets_are_accepted_and_bad_ones_refused() -> Result<()> {
    let cluster = cluster().await?;
    let api: Api<GpuBudget> = Api::all(cluster.client());
    let parameters = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let budget = |classes: Value| -> GpuBudget {
        serde_json::from_value(json!({"metadata": {"name": "pool"}, "spec": {"resource": "nvidia.com/gpu", "limit": 64, "classes": classes}})).unwrap()
    };
    api.create(
        &parameters,
        &budget(
            json!([{"name": "production", "priority": 100}, {"name": "batch", "priority": 10}]),
        ),
    )
    .await?;
    let refusal = api
        .create(
            &parameters,
            &budget(json!([{"name": "batch", "priority": 100}, {"name": "batch", "priority": 10}])),
        )
        .await;
    let Err(kube::Error::Api(refusal)) = refusal else {
        panic!("two classes of one name: {refusal:?}")
    };
    ensure!(
        refusal.message.contains("spec.classes[1]: Duplicate value"),
        "{}",
        refusal.message
    );
    Ok(())
}
