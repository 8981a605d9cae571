//! A node dies: Kubernetes notices by itself, evicts, and the pods go; then the node comes back.

use std::time::Duration;

use anyhow::{Context, ensure};
use coppice_testbed::fleet::{Command, Fleet, FleetSettings};
use coppice_testbed::{Cluster, Profile, apply, wait};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;

use crate::support::{LONG, condition, gone, pod_yaml, ready};

fn on(node: &str) -> String {
    format!("nodeSelector: {{kubernetes.io/hostname: {node}}}, terminationGracePeriodSeconds: 30")
}

#[tokio::test]
async fn pods_of_a_dead_node_are_evicted_and_removed_and_the_node_returns() -> anyhow::Result<()> {
    let cluster = Cluster::start(Profile::Plain).await?;
    let fleet = Fleet::start(&cluster, FleetSettings::new(3)).await?;
    let namespace = cluster.namespace("death").await?;
    let pods: Api<Pod> = Api::namespaced(cluster.client(), &namespace);
    let nodes: Api<Node> = Api::all(cluster.client());
    for (name, node) in [
        ("fenced", "node-0000"),
        ("alive", "node-0001"),
        ("unfenced", "node-0002"),
    ] {
        apply(
            &cluster.client(),
            &pod_yaml(name, "", &on(node)),
            &namespace,
        )
        .await?;
        ready(&pods, name).await?;
    }

    fleet.kill_node("node-0000").await?;
    fleet
        .command(Command::KillNode {
            node: "node-0002".to_owned(),
            fenced: false,
        })
        .await?;
    gone(&pods, "fenced")
        .await
        .context("evicted from the dead node and removed by fencing")?;
    let dead = nodes.get("node-0000").await?;
    let taints = dead.spec.and_then(|spec| spec.taints).unwrap_or_default();
    ensure!(
        taints
            .iter()
            .any(|taint| taint.key == "node.kubernetes.io/unreachable"),
        "{taints:?}"
    );
    assert_eq!(condition(&ready(&pods, "alive").await?, "Ready"), "True");

    wait::until(
        LONG,
        "the eviction of the other dead node's pod",
        || async {
            let pod = pods.get("unfenced").await?;
            ensure!(
                pod.metadata.deletion_timestamp.is_some(),
                "{:?}",
                pod.metadata
            );
            Ok(())
        },
    )
    .await?;
    wait::holds(
        Duration::from_secs(3),
        "its pod Terminating, as nobody confirms its end",
        || async { pods.get("unfenced").await.map(drop) },
    )
    .await?;

    fleet.revive_node("node-0002").await?;
    fleet.revive_node("node-0000").await?;
    gone(&pods, "unfenced")
        .await
        .context("the returned node confirms the end")?;
    fleet.await_schedulable(LONG).await?;
    apply(
        &cluster.client(),
        &pod_yaml("again", "", &on("node-0000")),
        &namespace,
    )
    .await?;
    ready(&pods, "again").await?;

    fleet.remove_node("node-0000").await?;
    gone(&pods, "again").await?;
    ensure!(nodes.get_opt("node-0000").await?.is_none());
    Ok(())
}
