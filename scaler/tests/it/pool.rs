//! Policies that share a GpuBudget: classes, the ledger, and the limit at every instant.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use coppice_scaler_api::{GpuBudget, GpuBudgetStatus, ScalingPolicyStatus};
use coppice_testbed::wait;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::{Value, json};

use crate::gateway::Gateway;
use crate::support::{LIMIT, MostHeld, World};

/// GPUs of a pod.
const UNIT: u32 = 2;
/// GPUs of the pool.
const POOL: u32 = 12;

fn deployment(namespace: &str, name: &str) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {
                    "terminationGracePeriodSeconds": 1,
                    "nodeSelector": {"pool": namespace},
                    "containers": [{"name": "engine", "image": "registry.example/engine:1", "resources": {"limits": {"nvidia.com/gpu": UNIT}}}],
                },
            },
        },
    })
}

/// A policy that wants one pod for every waiting request.
fn policy(gateway: &Gateway, name: &str, pool: &str, class: &str) -> Value {
    json!({
        "apiVersion": "autoscaling.coppice.dev/v1alpha1", "kind": "ScalingPolicy", "metadata": {"name": name},
        "spec": {
            "target": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
            "traffic": {"endpoints": {"address": gateway.address}},
            "roles": [{
                "name": "server", "stage": "Aggregated", "max": 8,
                "signal": {"metric": {"name": "dynamo_frontend_queued_requests", "from": "Traffic", "targetPerUnit": 1}},
            }],
            "budget": {"name": pool, "class": class},
            "startup": {"assume": "2s"},
            "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0, "policies": [{"type": "Percent", "value": 100, "periodSeconds": 1}]}},
        },
    })
}

fn pool(name: &str) -> Value {
    json!({
        "apiVersion": "autoscaling.coppice.dev/v1alpha1", "kind": "GpuBudget", "metadata": {"name": name},
        "spec": {"limit": POOL, "classes": [{"name": "production", "priority": 100}, {"name": "batch", "priority": 10}]},
    })
}

/// Looks at the GPUs that pods, or what the Deployments ask for, or what the ledger says hold.
fn watch(world: &World, pool: &str) -> MostHeld {
    let (deployments, pods) = (world.api::<Deployment>(), world.api::<Pod>());
    let budgets: Api<GpuBudget> = Api::all(world.client.clone());
    let pool = pool.to_owned();
    MostHeld::watch(move || {
        let (deployments, pods, budgets) = (deployments.clone(), pods.clone(), budgets.clone());
        let pool = pool.clone();
        async move { held(&deployments, &pods, &budgets, &pool).await }
    })
}

async fn held(
    deployments: &Api<Deployment>,
    pods: &Api<Pod>,
    budgets: &Api<GpuBudget>,
    pool: &str,
) -> Result<u32> {
    let all = ListParams::default();
    // Asked for first: what is asked for after the pods were listed is not a pod that exists.
    let asked: i32 = deployments
        .list(&all)
        .await?
        .iter()
        .filter_map(|deployment| deployment.spec.replicas)
        .sum();
    let existing = pods.list(&all).await?.items.len();
    let granted = ledger(budgets, pool).await?.granted;
    let units = u32::try_from(existing)?.max(u32::try_from(asked)?);
    Ok((UNIT * units).max(granted))
}

async fn ledger(budgets: &Api<GpuBudget>, pool: &str) -> Result<GpuBudgetStatus> {
    Ok(budgets.get_status(pool).await?.status.unwrap_or_default())
}

async fn replicas(world: &World, batch: i32, production: i32) -> Result<()> {
    let what = format!("{batch} batch and {production} production replicas");
    let api = world.api::<Deployment>();
    wait::until(LIMIT, &what, || async {
        let mut now = Vec::new();
        for name in ["batch", "production"] {
            let deployment = api.get(name).await?;
            now.push((
                deployment.spec.replicas.unwrap_or(0),
                deployment
                    .status
                    .and_then(|status| status.ready_replicas)
                    .unwrap_or(0),
            ));
        }
        ensure!(
            now == [(batch, batch), (production, production)],
            "asked for and ready: {now:?}"
        );
        anyhow::Ok(())
    })
    .await?;
    Ok(())
}

fn budget_condition(
    reason: &'static str,
    text: &'static str,
) -> impl Fn(&ScalingPolicyStatus) -> bool {
    move |status| {
        status.conditions.iter().any(|each| {
            each.type_ == "BudgetLimited" && each.reason == reason && each.message.contains(text)
        })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_policies_share_a_pool_by_class_and_never_hold_more_than_it_has() -> Result<()> {
    let mut world = World::with_fleet("pool", 2).await?;
    let name = world.namespace.clone();
    let budgets: Api<GpuBudget> = Api::all(world.client.clone());
    let (batch, production) = (
        Gateway::start(1_000.0, 200.0),
        Gateway::start(1_000.0, 200.0),
    );
    batch.hold(8.0);
    production.hold(1.0);
    for policy_name in ["batch", "production"] {
        world.apply(&deployment(&name, policy_name)).await?;
    }
    let pods = world.api::<Pod>();
    wait::until(LIMIT, "a pod of each", || async {
        let pods = pods.list(&ListParams::default()).await?;
        ensure!(pods.items.len() == 2, "{}", pods.items.len());
        anyhow::Ok(())
    })
    .await?;

    // The pool does not exist: nothing grows, and the policy says so.
    world
        .apply(&policy(&batch, "batch", &name, "batch"))
        .await?;
    world
        .until(
            "batch",
            "the missing pool",
            budget_condition(
                "BudgetUnavailable",
                "does not exist, so nothing grows: create it",
            ),
        )
        .await?;
    let watch = watch(&world, &name);
    world.apply(&pool(&name)).await?;
    world
        .apply(&policy(&production, "production", &name, "production"))
        .await?;

    // Batch fills what production does not need.
    replicas(&world, 5, 1).await?;
    let full = ledger(&budgets, &name).await?;
    ensure!(full.granted == POOL && full.grants.len() == 2, "{full:?}");
    world
        .until(
            "batch",
            "the limit",
            budget_condition("BudgetExhausted", "10 of its 12 GPUs for this policy"),
        )
        .await?;

    // Production needs more: batch gives way at once, also through a crash.
    production.hold(4.0);
    let api = world.api::<Deployment>();
    wait::until(LIMIT, "batch to give way", || async {
        let replicas = api.get("batch").await?.spec.replicas;
        ensure!(
            replicas.is_some_and(|replicas| replicas < 5),
            "{replicas:?}"
        );
        anyhow::Ok(())
    })
    .await?;
    world.kill_scaler();
    world.start_scaler().await?;
    replicas(&world, 2, 4).await?;

    // A grant that someone else holds, whose policy this scaler does not follow, is room that is not there.
    let foreign = json!({"policy": "elsewhere/other", "role": "server", "units": 2, "gpus": 4, "at": "2026-01-01T00:00:00Z"});
    production.hold(1.0);
    batch.hold(2.0);
    wait::until(LIMIT, "the foreign grant in the ledger", || async {
        let now = ledger(&budgets, &name).await?;
        let mut grants = serde_json::to_value(&now.grants)?;
        let list = grants.as_array_mut().context("a list")?;
        ensure!(now.granted + 4 <= POOL, "no room yet: {}", now.granted);
        list.push(foreign.clone());
        let object = budgets.get(&name).await?;
        let patch = json!({
            "metadata": {"resourceVersion": object.metadata.resource_version},
            "status": {"granted": now.granted + 4, "grants": list},
        });
        budgets
            .patch_status(&name, &PatchParams::default(), &Patch::Merge(&patch))
            .await?;
        anyhow::Ok(())
    })
    .await?;
    batch.hold(8.0);
    replicas(&world, 3, 1).await?;
    wait::until(LIMIT, "the ledger to follow", || async {
        let now = ledger(&budgets, &name).await?;
        ensure!(now.granted == POOL && now.grants.len() == 3, "{now:?}");
        anyhow::Ok(())
    })
    .await?;
    world.settle(Duration::from_secs(6)).await?;
    let most = watch.end()?;
    ensure!(most <= POOL, "{most} GPUs of {POOL} at some instant");
    ensure!(most == POOL, "the pool was never full: {most}");
    budgets.delete(&name, &Default::default()).await?;
    Ok(())
}
