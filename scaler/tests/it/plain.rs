//! One object with `/scale`: a Deployment.

use std::time::Duration;

use anyhow::{Result, ensure};
use coppice_scaler_api::Because;
use coppice_testbed::wait;
use k8s_openapi::api::apps::v1::Deployment;
use serde_json::{Value, json};

use crate::gateway::Gateway;
use crate::support::{LIMIT, World, get, wanted};

fn deployment() -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "chat"},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"app": "chat"}},
            "template": {
                "metadata": {"labels": {"app": "chat"}},
                "spec": {"nodeSelector": {"pool": "nowhere"}, "containers": [{"name": "engine", "image": "registry.example/engine:1"}]},
            },
        },
    })
}

fn policy(gateway: &Gateway, change: impl FnOnce(&mut Value)) -> Value {
    let mut object = json!({
        "apiVersion": "autoscaling.coppice.dev/v1alpha1", "kind": "ScalingPolicy", "metadata": {"name": "chat"},
        "spec": {
            "target": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "chat"},
            "traffic": {"endpoints": {"address": gateway.address}},
            "roles": [{
                "name": "server", "stage": "Aggregated", "max": 8,
                "signal": {"metric": {"name": "dynamo_frontend_queued_requests", "from": "Traffic", "targetPerUnit": 4}},
            }],
            "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0, "policies": [{"type": "Percent", "value": 100, "periodSeconds": 1}]}},
            "onMetricsLost": {"hold": "6s", "then": "Fallback", "replicas": {"server": 2}},
        },
    });
    change(&mut object["spec"]);
    object
}

async fn replicas(world: &World) -> Result<i32> {
    Ok(world
        .api::<Deployment>()
        .get("chat")
        .await?
        .spec
        .replicas
        .unwrap_or(0))
}

async fn reaches(world: &World, expected: i32) -> Result<()> {
    let what = format!("{expected} replicas");
    wait::until(LIMIT, &what, || async {
        let now = replicas(world).await?;
        ensure!(now == expected, "{now}");
        anyhow::Ok(())
    })
    .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deployment_follows_a_series_of_the_gateway_holds_without_it_and_falls_back() -> Result<()>
{
    let world = World::new("plain").await?;
    let gateway = Gateway::start(1_000.0, 200.0);
    gateway.hold(12.0);
    world.apply(&deployment()).await?;
    world.apply(&policy(&gateway, |_| {})).await?;
    reaches(&world, 3).await?;
    gateway.hold(0.0);
    reaches(&world, 1).await?;
    gateway.hold(16.0);
    reaches(&world, 4).await?;
    gateway.answer_scrapes(false);
    let held = world
        .until("chat", "what is held", |status| {
            status.roles[0].because == Because::Fallback
        })
        .await?;
    ensure!(wanted(&held) == [2], "{held:?}");
    reaches(&world, 2).await?;
    gateway.answer_scrapes(true);
    reaches(&world, 4).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn advice_and_metrics_are_published_and_change_nothing() -> Result<()> {
    let world = World::new("advise").await?;
    let gateway = Gateway::start(1_000.0, 200.0);
    gateway.hold(12.0);
    world.apply(&deployment()).await?;
    world
        .apply(&policy(&gateway, |spec| spec["mode"] = json!("Advise")))
        .await?;
    let advised = world
        .until("chat", "advice", |status| wanted(status) == [3])
        .await?;
    ensure!(advised.roles[0].current == 1);
    world
        .apply(&policy(&gateway, |spec| {
            spec["actuation"] = json!("Metric")
        }))
        .await?;
    world
        .until("chat", "the second generation", |status| {
            status.observed_generation == Some(2)
        })
        .await?;
    gateway.hold(20.0);
    world
        .until("chat", "another number", |status| wanted(status) == [5])
        .await?;
    wait::holds(Duration::from_secs(3), "one replica", || async {
        let now = replicas(&world).await?;
        ensure!(now == 1, "{now}");
        anyhow::Ok(())
    })
    .await?;
    let page = get(&world.admin, "/api/policies").await?;
    ensure!(
        page.contains("\"name\":\"chat\"") && page.contains("\"wanted\":5"),
        "{page}"
    );
    let metrics = get(&world.admin, "/metrics").await?;
    ensure!(
        metrics.contains("scaler_desired_replicas{namespace="),
        "{metrics}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_that_cannot_be_followed_says_why_and_writes_nothing() -> Result<()> {
    let world = World::new("trouble").await?;
    let gateway = Gateway::start(1_000.0, 200.0);
    world.apply(&policy(&gateway, |_| {})).await?;
    let ready = |reason: &'static str, text: &'static str| {
        move |status: &coppice_scaler_api::ScalingPolicyStatus| {
            let ready = status
                .conditions
                .iter()
                .find(|condition| condition.type_ == "Ready");
            ready.is_some_and(|ready| {
                ready.status == "False" && ready.reason == reason && ready.message.contains(text)
            })
        }
    };
    world
        .until(
            "chat",
            "no target",
            ready("TargetNotFound", "Deployment \"chat\" does not exist"),
        )
        .await?;
    world.apply(&deployment()).await?;
    world
        .until("chat", "ready", |status| {
            status
                .conditions
                .iter()
                .any(|each| each.type_ == "Ready" && each.status == "True")
        })
        .await?;
    world.settle(Duration::from_secs(5)).await?;
    ensure!(replicas(&world).await? == 1);
    Ok(())
}
