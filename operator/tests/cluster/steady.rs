//! Nothing is written when nothing is to be done, and a restart is nothing to be done.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, ensure};
use coppice_operator_api::{PodClique, PodCliqueSet, PodGang};
use coppice_testbed::Profile;
use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;

use crate::support::{LIMIT, QUIET, Workload, World, nodes};

async fn versions(world: &World) -> Result<BTreeMap<String, String>> {
    let mut versions = BTreeMap::new();
    for set in world
        .api::<PodCliqueSet>()
        .list(&kube::api::ListParams::default())
        .await?
    {
        versions.insert(
            format!("set {}", set.name_any()),
            set.resource_version().unwrap(),
        );
    }
    for clique in world
        .api::<PodClique>()
        .list(&kube::api::ListParams::default())
        .await?
    {
        versions.insert(
            format!("clique {}", clique.name_any()),
            clique.resource_version().unwrap(),
        );
    }
    for gang in world
        .api::<PodGang>()
        .list(&kube::api::ListParams::default())
        .await?
    {
        versions.insert(
            format!("gang {}", gang.name_any()),
            gang.resource_version().unwrap(),
        );
    }
    for pod in world.pods().await? {
        versions.insert(
            format!("pod {}", pod.name_any()),
            pod.resource_version().unwrap(),
        );
    }
    Ok(versions)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_settled_set_causes_no_writes_and_a_restarted_operator_none_either() -> Result<()> {
    let mut world = World::new(Profile::Native, "steady", &[]).await?;
    let _nodes = nodes(world.cluster, "steady", 20).await?;
    let yaml = Workload {
        startup: "CliqueStartupTypeInOrder",
        replicas: 2,
        ..Workload::TWO
    }
    .yaml("steady");
    world.apply(&yaml).await?;
    world.expect_available("workload", 2).await?;
    world.expect_pods(20, 0).await?;
    world.settle(QUIET).await?;

    let audit = world.cluster.audit();
    let user = format!("operator-{}", world.namespace);
    let ours = |mark| -> Result<Vec<String>> {
        let writes = audit.since(mark)?;
        let ours = writes
            .iter()
            .filter(|write| write.user == user && !write.is_lease());
        Ok(ours.map(ToString::to_string).collect())
    };
    let before = versions(&world).await?;
    let mark = audit.mark()?;
    let patch = json!({"metadata": {"annotations": {"grove.io/reconcile-trigger": "now"}}});
    world
        .api::<PodCliqueSet>()
        .patch("workload", &PatchParams::default(), &Patch::Merge(&patch))
        .await?;
    tokio::time::timeout(LIMIT, world.settle(QUIET)).await??;
    ensure!(ours(mark)?.is_empty(), "{:?}", ours(mark)?);

    world.kill_operator()?;
    let mark = audit.mark()?;
    world.start_operator().await?;
    world.settle(Duration::from_secs(5)).await?;
    ensure!(ours(mark)?.is_empty(), "a restart wrote {:?}", ours(mark)?);
    let mut after = versions(&world).await?;
    // The touch itself.
    after.insert("set workload".to_owned(), before["set workload"].clone());
    assert_eq!(before, after);

    // What somebody takes away comes back without any other event (X9).
    world
        .api::<Service>()
        .delete("workload-1", &DeleteParams::default())
        .await?;
    world
        .api::<PodGang>()
        .delete("workload-0", &DeleteParams::default())
        .await?;
    world
        .until("service and gang to come back", || async {
            ensure!(world.names::<Service>().await?.len() == 2, "service");
            ensure!(
                world
                    .names::<PodGang>()
                    .await?
                    .contains(&"workload-0".to_owned()),
                "gang"
            );
            anyhow::Ok(())
        })
        .await?;
    Ok(())
}
