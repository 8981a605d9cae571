//! A changed template reaches pods safely: one unit at a time, never mixed without saying so.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, ensure};
use coppice_operator_api::{PodCliqueSet, labels};
use coppice_testbed::Profile;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::support::{Workload, World, is_ready, label, nodes};

pub(crate) async fn set_image(world: &World, cliques: &[usize], version: u32) -> Result<()> {
    let patch: Vec<serde_json::Value> = cliques
        .iter()
        .map(|position| {
            let path = format!("/spec/template/cliques/{position}/spec/podSpec/containers/0/image");
            json!({"op": "replace", "path": path, "value": format!("registry.example/app:{version}")})
        })
        .collect();
    let patch: json_patch::Patch = serde_json::from_value(json!(patch))?;
    world
        .api::<PodCliqueSet>()
        .patch(
            "workload",
            &PatchParams::default(),
            &Patch::<()>::Json(patch),
        )
        .await?;
    Ok(())
}

/// Components of which more than one unit is down.
pub(crate) async fn overdrawn(world: &World) -> Result<Vec<String>> {
    let mut down: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for pod in world.active().await?.iter().filter(|pod| !is_ready(pod)) {
        let (component, unit) = match label(pod, labels::SCALING_GROUP) {
            "" => (
                label(pod, labels::CLIQUE).to_owned(),
                label(pod, labels::POD_INDEX).to_owned(),
            ),
            group => (
                group.to_owned(),
                label(pod, labels::GROUP_REPLICA_INDEX).to_owned(),
            ),
        };
        down.entry(component).or_default().insert(unit);
    }
    down.retain(|_, units| units.len() > 1);
    Ok(down
        .into_iter()
        .map(|(component, units)| format!("{component}: {units:?}"))
        .collect())
}

/// Waits until the update of the set has ended, and checks at every look that no component has more than one unit down.
pub(crate) async fn update_ends(world: &World) -> Result<()> {
    let sets = world.api::<PodCliqueSet>();
    let violations: parking_lot::Mutex<Vec<String>> = parking_lot::Mutex::default();
    let done = world
        .until("the update to end", || async {
            let seen = overdrawn(world).await?;
            violations.lock().extend(seen);
            let status = sets.get("workload").await?.status.unwrap_or_default();
            let progress = status.update_progress.unwrap_or_default();
            ensure!(
                progress.update_ended_at.is_some() && status.updated_replicas == status.replicas,
                "{progress:?}"
            );
            anyhow::Ok(())
        })
        .await;
    let violations = violations.into_inner();
    ensure!(
        violations.is_empty(),
        "several units were down at once: {violations:?}"
    );
    done
}

pub(crate) fn images(
    pods: &[k8s_openapi::api::core::v1::Pod],
) -> BTreeMap<String, BTreeSet<String>> {
    let mut images: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for pod in pods {
        let clique = label(pod, labels::CLIQUE)
            .rsplit('-')
            .next()
            .unwrap_or_default()
            .to_owned();
        let image = pod.spec.as_ref().unwrap().containers[0]
            .image
            .clone()
            .unwrap();
        images.entry(clique).or_default().insert(image);
    }
    images
}

/// RU7, RU9 and the second change in the middle (X4).
#[tokio::test(flavor = "multi_thread")]
async fn a_changed_template_rolls_one_unit_at_a_time() -> Result<()> {
    let world = World::new(Profile::Native, "roll", &[]).await?;
    let _nodes = nodes(world.cluster, "roll", 20).await?;
    world
        .apply(
            &Workload {
                replicas: 2,
                ..Workload::ONE
            }
            .yaml("roll"),
        )
        .await?;
    world.expect_pods(20, 0).await?;
    world.expect_available("workload", 2).await?;
    let uids = |pods: &[k8s_openapi::api::core::v1::Pod], of: &str| -> BTreeSet<String> {
        let chosen = pods
            .iter()
            .filter(|pod| label(pod, labels::CLIQUE).ends_with(of));
        chosen.filter_map(ResourceExt::uid).collect()
    };
    let before = world.active().await?;
    set_image(&world, &[0], 2).await?;
    update_ends(&world).await?;
    let after = world.active().await?;
    assert!(uids(&before, "pc-a").is_disjoint(&uids(&after, "pc-a")));
    assert_eq!(
        uids(&before, "pc-c"),
        uids(&after, "pc-c"),
        "other cliques are left alone"
    );

    set_image(&world, &[0, 1, 2], 3).await?;
    world
        .until("the update to begin", || async {
            let images = images(&world.active().await?);
            ensure!(
                images
                    .values()
                    .any(|images| images.contains("registry.example/app:3")),
                "{images:?}"
            );
            anyhow::Ok(())
        })
        .await?;
    set_image(&world, &[0, 1, 2], 4).await?;
    update_ends(&world).await?;
    world.expect_pods(20, 0).await?;
    let images = images(&world.active().await?);
    assert!(
        images
            .values()
            .all(|images| *images == BTreeSet::from(["registry.example/app:4".to_owned()])),
        "{images:?}"
    );
    Ok(())
}

/// OD1 and OD2: nothing is deleted; what is created anyway is new.
#[tokio::test(flavor = "multi_thread")]
async fn on_delete_leaves_pods_alone() -> Result<()> {
    let world = World::new(Profile::Native, "ondelete", &[]).await?;
    let _nodes = nodes(world.cluster, "ondelete", 10).await?;
    let yaml = Workload::ONE.yaml("ondelete").replace(
        "spec:\n  replicas: 1",
        "spec:\n  updateStrategy: {type: OnDelete}\n  replicas: 1",
    );
    world.apply(&yaml).await?;
    world.expect_pods(10, 0).await?;
    world.expect_available("workload", 1).await?;
    let before: BTreeSet<String> = world
        .active()
        .await?
        .iter()
        .filter_map(ResourceExt::uid)
        .collect();
    set_image(&world, &[0, 1, 2], 2).await?;
    world.settle(crate::support::QUIET).await?;
    let after: BTreeSet<String> = world
        .active()
        .await?
        .iter()
        .filter_map(ResourceExt::uid)
        .collect();
    assert_eq!(before, after);
    let victim = world
        .active()
        .await?
        .into_iter()
        .find(|pod| label(pod, labels::CLIQUE).ends_with("pc-a"))
        .unwrap();
    world
        .api::<k8s_openapi::api::core::v1::Pod>()
        .delete(&victim.name_any(), &kube::api::DeleteParams::default())
        .await?;
    world
        .until("one new pod of two", || async {
            let clique = world
                .api::<coppice_operator_api::PodClique>()
                .get("workload-0-pc-a")
                .await?;
            let status = clique.status.unwrap_or_default();
            ensure!(
                (status.updated_replicas, status.ready_replicas) == (1, 2),
                "{status:?}"
            );
            anyhow::Ok(())
        })
        .await?;
    Ok(())
}
