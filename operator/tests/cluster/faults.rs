//! What goes wrong around a roll-out: the operator is killed again and again, the API server goes away. It ends in the same
//! state, and no more goes down on the way than an update may take.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Result, ensure};
use coppice_operator_api::PodCliqueSet;
use coppice_testbed::{Component, Profile, wait};

use crate::rollout::{images, overdrawn, set_image};
use crate::support::{LIMIT, Workload, World, nodes};

async fn running(profile: Profile, pool: &str) -> Result<(World, coppice_testbed::fleet::Fleet)> {
    let world = World::new(profile, pool, &[]).await?;
    let nodes = nodes(world.cluster, pool, 20).await?;
    let workload = Workload {
        replicas: 2,
        ..Workload::ONE
    };
    world.apply(&workload.yaml(pool)).await?;
    world.expect_pods(20, 0).await?;
    world.expect_available("workload", 2).await?;
    Ok((world, nodes))
}

async fn is_updated(world: &World) -> Result<bool> {
    let set = world.api::<PodCliqueSet>().get("workload").await?;
    let status = set.status.unwrap_or_default();
    let progress = status.update_progress.unwrap_or_default();
    Ok(status.observed_generation == set.metadata.generation
        && progress.update_ended_at.is_some()
        && status.updated_replicas == 2)
}

/// The operator dies after its first write, the next one after its second, and so on, until one lives to the end.
#[tokio::test(flavor = "multi_thread")]
async fn an_operator_that_dies_after_every_number_of_writes_ends_in_the_same_state() -> Result<()> {
    let (mut world, _nodes) = running(Profile::Native, "killed").await?;
    world.settle(Duration::from_secs(1)).await?;
    world.kill_operator()?;
    set_image(&world, &[0, 1, 2], 2).await?;
    let mut several: BTreeSet<String> = BTreeSet::new();
    for writes in 1.. {
        let died = world
            .live_for(writes, async |world| is_updated(world).await)
            .await?;
        several.extend(overdrawn(&world).await?);
        if !died {
            ensure!(writes > 8, "the update took {writes} lives only");
            break;
        }
    }
    ensure!(
        several.is_empty(),
        "several units were down at once: {several:?}"
    );
    ends_as_it_should(&world).await
}

/// The API server is stopped in the middle and comes back.
#[tokio::test(flavor = "multi_thread")]
async fn an_api_server_that_goes_away_delays_an_update_and_no_more() -> Result<()> {
    // A cluster that no other test of this binary uses.
    let (world, _nodes) = running(Profile::NativeFlat, "outage").await?;
    set_image(&world, &[0, 1, 2], 2).await?;
    for _ in 0..3 {
        world
            .until("the update to go on", || async {
                let images = images(&world.active().await?);
                ensure!(images.values().any(|images| images.len() > 1), "{images:?}");
                anyhow::Ok(())
            })
            .await?;
        world.cluster.stop_component(Component::ApiServer)?;
        world.cluster.start_component(Component::ApiServer).await?;
        if is_updated(&world).await? {
            break;
        }
    }
    wait::until(LIMIT, "the update to end", || async {
        ensure!(is_updated(&world).await?, "not yet");
        anyhow::Ok(())
    })
    .await?;
    ends_as_it_should(&world).await
}

async fn ends_as_it_should(world: &World) -> Result<()> {
    world.expect_pods(20, 0).await?;
    world.expect_available("workload", 2).await?;
    let images = images(&world.active().await?);
    let new = BTreeSet::from(["registry.example/app:2".to_owned()]);
    ensure!(images.values().all(|images| *images == new), "{images:?}");
    ensure!(world.pods().await?.len() == 20, "something is left");
    Ok(())
}
