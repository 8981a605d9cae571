//! The real HPA on metrics of objects: pods, with its own rules for those that are silent, and a scaling group.

use anyhow::ensure;
use coppice_testbed::wait;
use serde_json::{Value, json};

use crate::hpa::{GROUPS, Scaled, objects};
use crate::world::{CUSTOM, Engine, LIMIT, World};

#[tokio::test(flavor = "multi_thread")]
async fn the_hpa_scales_on_pods_and_on_what_they_belong_to() -> anyhow::Result<()> {
    let world = World::start().await?;
    let adapter = world.adapter().await?;
    let target = json!({"type": "AverageValue", "averageValue": "5"});
    let metric = json!({"name": "coppice_requests_waiting"});

    let pods = json!({"type": "Pods", "pods": {"metric": metric, "target": target}});
    let (scaled, engines) = start(&world, "pods", &pods, "FailedGetPodsMetric").await?;
    let operator = scaled.follow();
    scaled
        .reaches(4, "10 waiting at each of 2 pods, at 5 each")
        .await?;
    // One of two is silent. The HPA takes it for one that is at its target: (3 + 5) / 2 is 0.8 of it. As a zero it would be 0.3.
    engines[1].freeze(true);
    let namespace = &scaled.namespace;
    let path = format!("{CUSTOM}/namespaces/{namespace}/pods/*/coppice_requests_waiting");
    wait::until(LIMIT, "the silent pod to be left out", || async {
        let list = world.raw(&path).await?;
        ensure!(
            list["items"]
                .as_array()
                .is_some_and(|items| items.len() == 1),
            "{list}"
        );
        Ok::<_, anyhow::Error>(())
    })
    .await?;
    engines[0].set_waiting(3);
    scaled
        .reaches(2, "3 waiting at one pod, the other is silent")
        .await?;
    engines[0].freeze(true);
    let message = scaled.cannot_measure().await?;
    ensure!(
        message.contains("coppice_requests_waiting") && message.contains("none of 2 pods"),
        "{message}"
    );
    scaled.holds(2).await?;
    assert_eq!(*operator.wanted.lock(), [1, 4, 2]);

    let group = json!({"apiVersion": "grove.io/v1alpha1", "kind": "PodCliqueScalingGroup", "name": "engines"});
    let object = json!({"type": "Object", "object": {"describedObject": group, "metric": metric, "target": target}});
    let (scaled, engines) = start(&world, "object", &object, "FailedGetObjectMetric").await?;
    let operator = scaled.follow();
    scaled
        .reaches(4, "20 waiting at the group, at 5 each")
        .await?;
    // In this order there is no other number in between.
    engines[0].set_waiting(0);
    engines[1].set_waiting(7);
    scaled.reaches(2, "7 waiting at the group").await?;
    assert_eq!(*operator.wanted.lock(), [1, 4, 2]);
    adapter.stop().await
}

/// Two engines with ten requests waiting at each, and a scaling group with an HPA on this metric.
async fn start(
    world: &World,
    prefix: &str,
    metric: &Value,
    failure: &'static str,
) -> anyhow::Result<(Scaled, [Engine; 2])> {
    let namespace = world.cluster.namespace(prefix).await?;
    let engines = [Engine::start(10).await?, Engine::start(10).await?];
    for (engine, name) in engines.iter().zip(["one", "two"]) {
        engine.pod(&world.client, &namespace, name).await?;
    }
    let manifests = format!("{GROUPS}\n---\n{}", objects(metric));
    coppice_testbed::apply(&world.client, &manifests, &namespace).await?;
    Ok((Scaled::new(&world.client, &namespace, failure), engines))
}
