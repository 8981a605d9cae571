//! All or nothing, by the stock scheduler.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, ensure};
use coppice_operator_api::labels;
use coppice_testbed::{Profile, wait};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::DeleteParams;

use crate::support::{Workload, World, label, node, nodes, open_nodes};

/// GS1 and GS2: nothing starts on nine nodes, all ten pods on ten; a new group replica is a gang of its own.
#[tokio::test(flavor = "multi_thread")]
async fn a_gang_that_lacks_one_node_waits_as_a_whole() -> Result<()> {
    lacks_one_node(Profile::Native, "gs1").await
}

pub(crate) async fn lacks_one_node(profile: Profile, pool: &str) -> Result<()> {
    let world = World::new(profile, pool, &[]).await?;
    let _nodes = nodes(world.cluster, pool, 14).await?;
    open_nodes(&world.client, pool, 9).await?;
    world.apply(&Workload::ONE.yaml(pool)).await?;
    world.expect_pods_for_good(0, 10).await?;
    open_nodes(&world.client, pool, 10).await?;
    world.expect_pods(10, 0).await?;
    world.expect_available("workload", 1).await?;

    world.scale_group("workload-0-sg-x", 3).await?;
    world.expect_pods_for_good(10, 4).await?;
    open_nodes(&world.client, pool, 13).await?;
    world.expect_pods_for_good(10, 4).await?;
    open_nodes(&world.client, pool, 14).await?;
    world.expect_pods(14, 0).await
}

/// GS5 and GS8: the floor first, then the scaled gang and what is above the floor.
#[tokio::test(flavor = "multi_thread")]
async fn the_floor_is_placed_before_anything_else() -> Result<()> {
    floor_first(Profile::Native, "gs5").await
}

pub(crate) async fn floor_first(profile: Profile, pool: &str) -> Result<()> {
    let world = World::new(profile, pool, &[]).await?;
    let _nodes = nodes(world.cluster, pool, 14).await?;
    open_nodes(&world.client, pool, 2).await?;
    world.apply(&Workload::TWO.yaml(pool)).await?;
    world.expect_pods_for_good(0, 10).await?;
    // While everything waits the group grows; the base gang is still the first to be placed.
    world.scale_group("workload-0-sg-x", 3).await?;
    world.expect_pods_for_good(0, 14).await?;
    open_nodes(&world.client, pool, 3).await?;
    world.expect_pods_for_good(3, 11).await?;
    let bound = world.active().await?;
    let mut cliques: Vec<&str> = bound
        .iter()
        .filter(|pod| node(pod).is_some())
        .map(|pod| label(pod, labels::CLIQUE))
        .collect();
    cliques.sort_unstable();
    assert_eq!(
        cliques,
        [
            "workload-0-pc-a",
            "workload-0-sg-x-0-pc-b",
            "workload-0-sg-x-0-pc-c"
        ]
    );
    open_nodes(&world.client, pool, 14).await?;
    world.expect_pods(14, 0).await
}

/// A gang that runs and loses pods gets them back: one by one, and what it needs together together.
#[tokio::test(flavor = "multi_thread")]
async fn a_running_gang_is_repaired() -> Result<()> {
    repair(Profile::Native, "repair").await
}

pub(crate) async fn repair(profile: Profile, pool: &str) -> Result<()> {
    let world = World::new(profile, pool, &[]).await?;
    let _nodes = nodes(world.cluster, pool, 10).await?;
    world.apply(&Workload::ONE.yaml(pool)).await?;
    world.expect_pods(10, 0).await?;
    let pods = world.api::<Pod>();
    let before: BTreeMap<String, String> = world
        .active()
        .await?
        .iter()
        .map(|pod| (pod.name_any(), pod.uid().unwrap()))
        .collect();

    // The only pb-b of a replica, then two of the three pc-c at once.
    let pick = |active: &[Pod], clique: &str, count: usize| -> Vec<String> {
        let of_clique = active
            .iter()
            .filter(|pod| label(pod, labels::CLIQUE) == clique);
        of_clique.map(ResourceExt::name_any).take(count).collect()
    };
    for (clique, count) in [("workload-0-sg-x-0-pc-b", 1), ("workload-0-sg-x-1-pc-c", 2)] {
        for name in pick(&world.active().await?, clique, count) {
            pods.delete(&name, &DeleteParams::default()).await?;
        }
        world.expect_pods(10, 0).await?;
    }
    let after = world.active().await?;
    let kept = after
        .iter()
        .filter(|pod| before.contains_key(&pod.name_any()))
        .count();
    assert_eq!(kept, 7, "nobody else was touched");
    Ok(())
}

/// Idle components leave the gang; what wakes is placed by itself (X7).
#[tokio::test(flavor = "multi_thread")]
async fn a_component_goes_idle_and_wakes_without_disturbing_the_rest() -> Result<()> {
    idle_and_wake(Profile::Native, "idle").await
}

pub(crate) async fn idle_and_wake(profile: Profile, pool: &str) -> Result<()> {
    let world = World::new(profile, pool, &[]).await?;
    let _nodes = nodes(world.cluster, pool, 10).await?;
    world.apply(&Workload::ONE.yaml(pool)).await?;
    world.expect_pods(10, 0).await?;
    let steady: Vec<String> = world
        .active()
        .await?
        .iter()
        .filter(|pod| !label(pod, labels::CLIQUE).ends_with("pc-a"))
        .map(ResourceExt::name_any)
        .collect();
    world.scale_clique("workload-0-pc-a", 0).await?;
    world.expect_pods(8, 0).await?;
    world.scale_group("workload-0-sg-x", 3).await?;
    // A replica of four pods does not fit on the two nodes that are free: whole or absent, also next to an idle clique.
    world.expect_pods_for_good(8, 4).await?;
    world.scale_group("workload-0-sg-x", 2).await?;
    world.expect_pods(8, 0).await?;
    // 1 lies below the minimum of 2: waking runs the minimum.
    world.scale_clique("workload-0-pc-a", 1).await?;
    world.expect_pods(10, 0).await?;
    let now: Vec<String> = world
        .active()
        .await?
        .iter()
        .map(ResourceExt::name_any)
        .collect();
    assert!(
        steady.iter().all(|name| now.contains(name)),
        "the rest was not touched"
    );
    world
        .until("the effective number in the status", || async {
            let clique = world
                .api::<coppice_operator_api::PodClique>()
                .get("workload-0-pc-a")
                .await?;
            let effective = clique.status.unwrap_or_default().effective_replicas;
            ensure!(
                clique.spec.replicas == 1 && effective == Some(2),
                "{effective:?}"
            );
            anyhow::Ok(())
        })
        .await?;
    Ok(())
}

/// Names at the limit, where the server cuts generated names (#810).
#[tokio::test(flavor = "multi_thread")]
async fn the_longest_names_work() -> Result<()> {
    let world = World::new(Profile::Native, "long", &[]).await?;
    let _nodes = nodes(world.cluster, "long", 2).await?;
    let clique = "c".repeat(44);
    let yaml = format!(
        r#"
apiVersion: grove.io/v1alpha1
kind: PodCliqueSet
metadata: {{name: longish-name-1}}
spec:
  replicas: 1
  template:
    cliques:
    - name: {clique}
      spec: {{roleName: w, replicas: 2, podSpec: {{nodeSelector: {{pool: long}}, containers: [{{name: main, image: "registry.example/app:1"}}]}}}}
"#
    );
    world.apply(&yaml).await?;
    world.expect_available("longish-name-1", 1).await?;
    let names: Vec<String> = world
        .active()
        .await?
        .iter()
        .map(ResourceExt::name_any)
        .collect();
    assert!(names.iter().all(|name| name.len() <= 63), "{names:?}");
    wait::holds(Duration::from_secs(1), "two pods", || async {
        ensure!(world.active().await?.len() == 2);
        anyhow::Ok(())
    })
    .await?;
    Ok(())
}
