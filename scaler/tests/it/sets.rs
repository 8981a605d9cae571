//! A disaggregated serving system on the real operator: both roles, groups and sets, the budget, restarts, and quiet.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use coppice_operator_api::{PodClique, PodCliqueScalingGroup, PodCliqueSet};
use coppice_scaler_api::{ScalingPolicy, ScalingPolicyStatus};
use coppice_testbed::wait;
use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::ListParams;
use kube::runtime::{WatchStreamExt, watcher};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::gateway::Gateway;
use crate::support::{LIMIT, MostHeld, World, brief, wanted};

/// Time between two decisions of the scaler under test.
const INTERVAL: Duration = Duration::from_secs(2);
/// Time until a step of the load can be seen: one scrape, and the way of a record through the API server to us.
const SEEN_WITHIN: Duration = Duration::from_secs(1);
/// The policy's stabilization window for removing units.
const WINDOW: Duration = Duration::from_secs(8);
/// GPUs of a unit of either role.
const UNIT: u32 = 2;
/// GPUs of all units together.
const BUDGET: u32 = 20;

fn set(namespace: &str) -> Value {
    let clique = |name: &str| {
        json!({"name": name, "spec": {"roleName": name, "replicas": 1, "minAvailable": 1, "podSpec": {
            "terminationGracePeriodSeconds": 1,
            "nodeSelector": {"pool": namespace},
            "containers": [{"name": "engine", "image": "registry.example/engine:1", "resources": {"limits": {"nvidia.com/gpu": UNIT}}}],
        }}})
    };
    json!({
        "apiVersion": "grove.io/v1alpha1", "kind": "PodCliqueSet", "metadata": {"name": "qwen3"},
        "spec": {"replicas": 1, "template": {
            "cliques": [clique("pworker"), clique("dworker")],
            "podCliqueScalingGroups": [
                {"name": "prefill", "cliqueNames": ["pworker"], "replicas": 1, "minAvailable": 1},
                {"name": "decode", "cliqueNames": ["dworker"], "replicas": 1, "minAvailable": 1},
            ],
        }},
    })
}

fn policy(gateway: &Gateway) -> Value {
    let role = |name: &str, stage: &str, signal: Value| json!({"name": name, "stage": stage, "scales": {"kind": "PodCliqueScalingGroup", "name": name}, "min": 1, "max": 3, "signal": {"tokenThroughput": signal}});
    json!({
        "apiVersion": "autoscaling.coppice.dev/v1alpha1", "kind": "ScalingPolicy", "metadata": {"name": "qwen3"},
        "spec": {
            "target": {"apiVersion": "grove.io/v1alpha1", "kind": "PodCliqueSet", "name": "qwen3"},
            "traffic": {"endpoints": {"address": gateway.address}},
            "roles": [
                role("prefill", "Prefill", json!({"inputTokensPerSecond": 10_000})),
                role("decode", "Decode", json!({"outputTokensPerSecond": 2_000})),
            ],
            "sets": {"min": 1, "max": 2},
            "budget": {"gpus": BUDGET},
            "startup": {"assume": "2s"},
            "behavior": {"scaleDown": {"stabilizationWindowSeconds": WINDOW.as_secs(), "policies": [{"type": "Percent", "value": 100, "periodSeconds": 2}]}},
        },
    })
}

/// Looks at the GPUs that pods and what objects ask for hold.
fn watch(world: &World) -> MostHeld {
    let (pods, groups, sets) = (
        world.api::<Pod>(),
        world.api::<PodCliqueScalingGroup>(),
        world.api::<PodCliqueSet>(),
    );
    MostHeld::watch(move || {
        let (pods, groups, sets) = (pods.clone(), groups.clone(), sets.clone());
        async move { held(&pods, &groups, &sets).await }
    })
}

/// GPUs of pods that exist, terminating ones included, and of units that are asked for and do not exist yet.
async fn held(
    pods: &Api<Pod>,
    groups: &Api<PodCliqueScalingGroup>,
    sets: &Api<PodCliqueSet>,
) -> Result<u32> {
    let all = ListParams::default();
    // Asked for first: what is asked for after the pods were listed is not a unit that exists.
    let asked: i32 = groups
        .list(&all)
        .await?
        .iter()
        .map(|group| group.spec.replicas)
        .sum();
    let replicas: i32 = sets
        .list(&all)
        .await?
        .iter()
        .map(|set| set.spec.replicas)
        .sum();
    let pods = pods.list(&all).await?;
    let live = |pod: &&Pod| {
        !matches!(
            pod.status
                .as_ref()
                .and_then(|status| status.phase.as_deref()),
            Some("Succeeded" | "Failed")
        )
    };
    let existing = u32::try_from(pods.iter().filter(live).count())?;
    let asked = u32::try_from(asked)?.max(2 * u32::try_from(replicas)?);
    Ok(UNIT * existing.max(asked))
}

/// Every record of the policy, in order.
fn records(world: &World) -> mpsc::UnboundedReceiver<(Instant, ScalingPolicyStatus)> {
    let (sender, receiver) = mpsc::unbounded_channel();
    let api: Api<ScalingPolicy> = world.api();
    tokio::spawn(async move {
        let mut events = std::pin::pin!(
            watcher(api, watcher::Config::default())
                .default_backoff()
                .applied_objects()
        );
        while let Some(Ok(policy)) = events.next().await {
            if let Some(status) = policy.status
                && sender.send((Instant::now(), status)).is_err()
            {
                return;
            }
        }
    });
    receiver
}

async fn settled(world: &World, units: &[u32], sets: u32) -> Result<()> {
    let what = format!("{units:?} units, all ready, in {sets} sets");
    world
        .until("qwen3", &what, |status| {
            let is = |of: fn(&coppice_scaler_api::RoleStatus) -> u32| {
                status.roles.iter().map(of).eq(units.iter().copied())
            };
            let in_sets = status
                .sets
                .as_ref()
                .is_some_and(|each| (each.current, each.wanted) == (sets, sets));
            is(|role| role.wanted) && is(|role| role.current) && is(|role| role.ready) && in_sets
        })
        .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_serving_system_is_sized_as_one_within_its_budget_and_through_restarts() -> Result<()> {
    let mut world = World::with_operator("sets", 6).await?;
    let namespace = world.namespace.clone();
    let gateway = Gateway::start(1_000.0, 200.0);
    gateway.load(5.0);
    world.apply(&set(&namespace)).await?;
    world.apply(&policy(&gateway)).await?;
    settled(&world, &[1, 1], 1).await?;
    let budget = watch(&world);

    // A step: both roles rise in one record, within two intervals of two seconds each after it can be seen.
    let mut seen = records(&world);
    let stepped = Instant::now();
    gateway.load(25.0);
    let (at, first) = loop {
        let (at, status) = tokio::time::timeout(LIMIT, seen.recv())
            .await?
            .expect("the watch goes on");
        if wanted(&status) != [1, 1] {
            break (at, status);
        }
    };
    ensure!(
        first.roles.iter().all(|role| role.wanted > role.current),
        "both at once: {}",
        brief(&first)
    );
    let took = at.duration_since(stepped);
    ensure!(took < 2 * INTERVAL + SEEN_WITHIN, "it took {took:?}");
    settled(&world, &[3, 3], 1).await?;

    // More than the groups of one set may hold: another set, as far as the budget goes (10 units of 12).
    gateway.load(70.0);
    settled(&world, &[5, 5], 2).await?;
    let limited = world.status("qwen3").await?;
    ensure!(
        limited
            .decision
            .as_ref()
            .is_some_and(|decision| decision.gpus.is_some_and(|gpus| gpus.wanted == BUDGET)),
        "{}",
        brief(&limited)
    );

    // Steady: nothing is written; killed and started again: nothing is written either.
    world.settle(Duration::from_secs(10)).await?;
    let mark = world.mark()?;
    world.kill_scaler();
    world.start_scaler().await?;
    wait::holds(
        Duration::from_secs(15),
        "no write after a restart",
        || async {
            let writes = world.writes(mark)?;
            ensure!(writes.is_empty(), "{writes:?}");
            anyhow::Ok(())
        },
    )
    .await?;

    // Killed in the middle of a change: it is carried on, and nothing else is done on the way. Two units of a role and a tenth fit one set of three,
    // so a set goes, too; before that the first one takes over what the other one holds, one unit for as long as it needs to start.
    while seen.try_recv().is_ok() {}
    let lowered = Instant::now();
    gateway.load(15.0);
    world
        .until("qwen3", "the way down", |status| {
            wanted(status).iter().sum::<u32>() < 10
        })
        .await?;
    world.kill_scaler();
    world.start_scaler().await?;
    settled(&world, &[2, 2], 1).await?;
    let mut before = (5, 5, 2);
    while let Ok((at, status)) = seen.try_recv() {
        let units = wanted(&status);
        let sets = status.sets.as_ref().map_or(0, |sets| sets.wanted);
        let now = (units[0], units[1], sets);
        let follows = |now: u32, before: u32| 2 <= now && now <= before.max(3);
        ensure!(
            follows(now.0, before.0) && follows(now.1, before.1) && (1..=before.2).contains(&sets),
            "{before:?} and then {}",
            brief(&status)
        );
        // The window goes over decisions; the last one before the load fell may be an interval older.
        ensure!(
            now == before || at.duration_since(lowered) + INTERVAL >= WINDOW,
            "removed {:?} after the load fell: {}",
            at.duration_since(lowered),
            brief(&status)
        );
        before = now;
    }
    ensure!(before == (2, 2, 1), "the last record is {before:?}");

    // Back to the start, after the window.
    gateway.load(5.0);
    settled(&world, &[1, 1], 1).await?;
    let most = budget.end()?;
    ensure!(most <= BUDGET, "{most} GPUs of {BUDGET} at some instant");
    ensure!(most > BUDGET / 2, "the budget was never put to use: {most}");
    let cliques = world
        .api::<PodClique>()
        .list(&ListParams::default())
        .await?;
    ensure!(cliques.items.len() == 2, "one unit of each role is left");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_metrics_hold_and_another_writer_is_noticed() -> Result<()> {
    let world = World::with_operator("hold", 3).await?;
    let namespace = world.namespace.clone();
    let gateway = Gateway::start(1_000.0, 200.0);
    gateway.load(25.0);
    world.apply(&set(&namespace)).await?;
    world.apply(&policy(&gateway)).await?;
    settled(&world, &[3, 3], 1).await?;

    // No answer from the gateway: whatever happens there, nothing is removed.
    gateway.answer_scrapes(false);
    gateway.load(0.0);
    let is_metrics = |status: &ScalingPolicyStatus, value: &str| {
        status
            .conditions
            .iter()
            .any(|each| each.type_ == "MetricsAvailable" && each.status == value)
    };
    world
        .until("qwen3", "the loss to be told", |status| {
            is_metrics(status, "False")
        })
        .await?;
    ensure!(wanted(&world.status("qwen3").await?) == [3, 3]);
    gateway.load(25.0);
    gateway.answer_scrapes(true);
    world
        .until("qwen3", "the return to be told", |status| {
            is_metrics(status, "True")
        })
        .await?;
    ensure!(wanted(&world.status("qwen3").await?) == [3, 3]);

    // Someone else sets another number twice: we stop writing and say so.
    let groups: Api<PodCliqueScalingGroup> = world.api();
    let scale = async |replicas: i32| {
        let patch = json!({"spec": {"replicas": replicas}});
        groups
            .patch_scale(
                "qwen3-0-decode",
                &kube::api::PatchParams::default(),
                &kube::api::Patch::Merge(&patch),
            )
            .await
    };
    for _ in 0..2 {
        scale(2).await?;
        wait::until(LIMIT, "our number again, or a conflict", || async {
            let status = world.status("qwen3").await?;
            let conflict = status
                .conditions
                .iter()
                .any(|each| each.type_ == "TargetConflict" && each.status == "True");
            let replicas = groups.get("qwen3-0-decode").await?.spec.replicas;
            ensure!(conflict || replicas == 3, "{replicas}: {}", brief(&status));
            anyhow::Ok(())
        })
        .await?;
    }
    world
        .until("qwen3", "the conflict", |status| {
            status
                .conditions
                .iter()
                .any(|each| each.type_ == "TargetConflict" && each.status == "True")
        })
        .await?;
    wait::holds(Duration::from_secs(5), "the other one's number", || async {
        let replicas = groups.get("qwen3-0-decode").await?.spec.replicas;
        ensure!(replicas == 2, "{replicas}");
        anyhow::Ok(())
    })
    .await?;
    Ok(())
}
