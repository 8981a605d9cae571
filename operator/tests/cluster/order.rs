//! Start order, kept by the init container's rule, which the fleet plays.

use anyhow::{Result, ensure};
use coppice_operator_api::{init_container, labels};
use coppice_testbed::Profile;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;

use crate::support::{Workload, World, condition_time, label, nodes};

/// When pods of a clique of base replicas became ready, earliest and latest.
fn ready_span(pods: &[Pod], clique: &str) -> (Timestamp, Timestamp) {
    let times: Vec<Timestamp> = pods
        .iter()
        .filter(|pod| label(pod, labels::CLIQUE).ends_with(clique))
        .map(|pod| condition_time(pod, "Ready").unwrap())
        .collect();
    (*times.iter().min().unwrap(), *times.iter().max().unwrap())
}

/// SO1: every `pc-a` is ready before any `pc-b`, every `pc-b` before any `pc-c`; all are bound long before.
#[tokio::test(flavor = "multi_thread")]
async fn cliques_start_in_order_and_are_placed_at_once() -> Result<()> {
    let world = World::new(Profile::Native, "so1", &[]).await?;
    let _nodes = nodes(world.cluster, "so1", 10).await?;
    let yaml = Workload {
        startup: "CliqueStartupTypeInOrder",
        ..Workload::ONE
    }
    .yaml("so1");
    // Times of conditions have seconds; every clique takes longer than that to start.
    let yaml = yaml.replace(
        "      spec: {roleName",
        "      annotations: {testbed.coppice.dev/startup: 2500ms}\n      spec: {roleName",
    );
    world.apply(&yaml).await?;
    world.expect_pods(10, 0).await?;
    let pods = world.active().await?;
    let (a, b, c) = (
        ready_span(&pods, "pc-a"),
        ready_span(&pods, "pc-b"),
        ready_span(&pods, "pc-c"),
    );
    ensure!(a.1 <= b.0 && b.1 <= c.0 && a.0 < c.0, "{a:?} {b:?} {c:?}");
    let bound = pods
        .iter()
        .map(|pod| condition_time(pod, "PodScheduled").unwrap())
        .max()
        .unwrap();
    ensure!(
        bound <= a.0,
        "scheduling was delayed: {bound} after {}",
        a.0
    );

    let gate = |clique: &str| {
        let pod = pods
            .iter()
            .find(|pod| label(pod, labels::CLIQUE) == clique)
            .unwrap();
        let containers = pod
            .spec
            .as_ref()
            .unwrap()
            .init_containers
            .clone()
            .unwrap_or_default();
        containers
            .into_iter()
            .find(|container| container.name == init_container::NAME)
    };
    assert_eq!(gate("workload-0-pc-a"), None);
    let arguments = gate("workload-0-sg-x-1-pc-c").unwrap().args.unwrap();
    assert_eq!(
        arguments,
        [
            "--podcliques=workload-0-sg-x-0-pc-b:1",
            "--podcliques=workload-0-sg-x-1-pc-b:1"
        ]
    );
    Ok(())
}
