//! A changed template reaches pods safely: one unit at a time, never mixed without saying so.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use coppice_operator_api::{PodClique, PodCliqueSet, labels};
use coppice_testbed::fleet::Fleet;
use coppice_testbed::{Profile, wait};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::support::{QUIET, Workload, World, get, is_ready, label, node, nodes, open_nodes};

/// Changes the template of cliques, by their position, at a path below their pod spec.
async fn change(world: &World, cliques: &[usize], path: &str, value: &Value) -> Result<()> {
    let patch: Vec<Value> = cliques
        .iter()
        .map(|position| {
            let path = format!("/spec/template/cliques/{position}/spec/podSpec/{path}");
            json!({"op": "add", "path": path, "value": value})
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

pub(crate) async fn set_image(world: &World, cliques: &[usize], version: u32) -> Result<()> {
    let image = json!(format!("registry.example/app:{version}"));
    change(world, cliques, "containers/0/image", &image).await
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

/// Uids of the pods of cliques whose name ends so.
fn uids(pods: &[Pod], clique: &str) -> BTreeSet<String> {
    let is_of = |pod: &&Pod| label(pod, labels::CLIQUE).ends_with(clique);
    crate::support::uids(pods.iter().filter(is_of))
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

/// What is scaled, in all set replicas.
#[derive(Clone, Copy, Debug)]
enum Scale {
    Sets(i32),
    Groups(i32),
    A(i32),
}

async fn scale(world: &World, to: Scale) -> Result<()> {
    let replicas = world
        .api::<PodCliqueSet>()
        .get("workload")
        .await?
        .spec
        .replicas;
    match to {
        Scale::Sets(count) => world.scale_set("workload", count).await?,
        Scale::Groups(count) => {
            for replica in 0..replicas {
                world
                    .scale_group(&format!("workload-{replica}-sg-x"), count)
                    .await?;
            }
        }
        Scale::A(count) => {
            for replica in 0..replicas {
                world
                    .scale_clique(&format!("workload-{replica}-pc-a"), count)
                    .await?;
            }
        }
    }
    Ok(())
}

/// A change of all templates while something is scaled.
struct Update {
    id: &'static str,
    /// Scaled, and settled, before anything else; pods then.
    settled: Option<(Scale, usize)>,
    /// Scaled at once before the change, or at once after it.
    first: Option<Scale>,
    then: Option<Scale>,
    /// Pods in the end.
    pods: usize,
    /// Pods that were made altogether, if nothing is made twice.
    made: Option<usize>,
}

impl Update {
    const NEW: Self = Self {
        id: "",
        settled: None,
        first: None,
        then: None,
        pods: 20,
        made: None,
    };

    async fn run(self) -> Result<()> {
        let world = World::new(Profile::Native, self.id, &[]).await?;
        let _nodes = nodes(world.cluster, self.id, 31).await?;
        let workload = Workload {
            replicas: 2,
            ..Workload::ONE
        };
        world.apply(&workload.yaml(self.id)).await?;
        world.expect_pods(20, 0).await?;
        world.expect_available("workload", 2).await?;
        if let Some((to, pods)) = self.settled {
            scale(&world, to).await?;
            world.expect_pods(pods, 0).await?;
        }
        if let Some(to) = self.first {
            scale(&world, to).await?;
        }
        set_image(&world, &[0, 1, 2], 2).await?;
        if let Some(to) = self.then {
            scale(&world, to).await?;
        }
        world
            .until("the update to end", || async {
                let set = world.api::<PodCliqueSet>().get("workload").await?;
                let status = set.status.unwrap_or_default();
                let progress = status.update_progress.unwrap_or_default();
                let is_over = progress.update_ended_at.is_some()
                    && status.updated_replicas == set.spec.replicas
                    && status.observed_generation == set.metadata.generation;
                ensure!(is_over, "{progress:?}");
                anyhow::Ok(())
            })
            .await?;
        world.expect_pods(self.pods, 0).await?;
        let images = images(&world.active().await?);
        let new = BTreeSet::from(["registry.example/app:2".to_owned()]);
        ensure!(images.values().all(|images| *images == new), "{images:?}");
        if let Some(expected) = self.made {
            let (_, text) = get(&format!("http://{}/metrics", world.admin)).await?;
            let made = text
                .lines()
                .find_map(|line| line.split_once("operator_pods_created_total "));
            let made: usize = made.context("no such metric")?.1.trim().parse()?;
            ensure!(
                made == expected,
                "{made} pods were made, {expected} are needed"
            );
        }
        Ok(())
    }
}

macro_rules! updates {
    ($($id:ident: { $($field:ident: $value:expr),* $(,)? };)+) => {
        $(#[tokio::test(flavor = "multi_thread")]
        async fn $id() -> Result<()> {
            Update { id: stringify!($id), $($field: $value,)* ..Update::NEW }.run().await
        })+
    };
}

updates! {
    ru11: { then: Some(Scale::Sets(3)), pods: 30, made: Some(50) };
    ru14: { then: Some(Scale::Groups(3)), pods: 28, made: Some(48) };
    ru15: { first: Some(Scale::Groups(3)), pods: 28 };
    ru16: { settled: Some((Scale::Groups(3), 28)), then: Some(Scale::Groups(2)) };
    ru17: { settled: Some((Scale::Groups(3), 28)), first: Some(Scale::Groups(2)) };
    // Pods that are added to a replica whose turn has not come are like its others, and are updated with them.
    ru18: { then: Some(Scale::A(4)), pods: 24 };
    ru19: { first: Some(Scale::A(4)), pods: 24 };
    ru20: { settled: Some((Scale::A(3), 22)), then: Some(Scale::A(2)) };
    ru21: { settled: Some((Scale::A(3), 22)), first: Some(Scale::A(2)) };
}

/// RU8: a member's change takes one group replica at a time, whole; the standalone clique stays.
#[tokio::test(flavor = "multi_thread")]
async fn ru8() -> Result<()> {
    let world = World::new(Profile::Native, "ru8", &[]).await?;
    let _nodes = nodes(world.cluster, "ru8", 10).await?;
    world.apply(&Workload::ONE.yaml("ru8")).await?;
    world.expect_pods(10, 0).await?;
    world.expect_available("workload", 1).await?;
    let before = world.active().await?;
    set_image(&world, &[1], 2).await?;
    update_ends(&world).await?;
    let after = world.active().await?;
    assert_eq!(uids(&before, "pc-a"), uids(&after, "pc-a"));
    for clique in ["pc-b", "pc-c"] {
        assert!(
            uids(&before, clique).is_disjoint(&uids(&after, clique)),
            "{clique}"
        );
    }
    Ok(())
}

/// RU10: where the first new pod finds no node, no second old one goes.
#[tokio::test(flavor = "multi_thread")]
async fn ru10() -> Result<()> {
    let world = World::new(Profile::Native, "ru10", &[]).await?;
    let _nodes = nodes(world.cluster, "ru10", 10).await?;
    world.apply(&Workload::ONE.yaml("ru10")).await?;
    world.expect_pods(10, 0).await?;
    world.expect_available("workload", 1).await?;
    let before = world.active().await?;
    open_nodes(&world.client, "ru10", 0).await?;
    set_image(&world, &[0], 2).await?;
    world.expect_pods_for_good(9, 1).await?;
    let old = uids(&before, "pc-a");
    let left = old
        .intersection(&uids(&world.active().await?, "pc-a"))
        .count();
    assert_eq!((old.len(), left), (2, 1));
    open_nodes(&world.client, "ru10", 10).await?;
    update_ends(&world).await?;
    world.expect_pods(10, 0).await
}

/// RU12: the replica that is being updated is scaled away.
#[tokio::test(flavor = "multi_thread")]
async fn ru12() -> Result<()> {
    let world = World::new(Profile::Native, "ru12", &[]).await?;
    let _nodes = nodes(world.cluster, "ru12", 20).await?;
    let workload = Workload {
        replicas: 2,
        ..Workload::ONE
    };
    world.apply(&workload.yaml("ru12")).await?;
    world.expect_pods(20, 0).await?;
    world.expect_available("workload", 2).await?;
    set_image(&world, &[0, 1, 2], 2).await?;
    world
        .until("replica 1 to be updated", || async {
            let set = world.api::<PodCliqueSet>().get("workload").await?;
            let progress = set
                .status
                .unwrap_or_default()
                .update_progress
                .unwrap_or_default();
            let updating = progress.currently_updating.unwrap_or_default();
            ensure!(
                updating.iter().any(|of| of.replica_index == 1),
                "{updating:?}"
            );
            anyhow::Ok(())
        })
        .await?;
    world.scale_set("workload", 1).await?;
    update_ends(&world).await?;
    world.expect_pods(10, 0).await
}

async fn on_delete(pool: &str, replicas: u32) -> Result<(World, Fleet)> {
    let world = World::new(Profile::Native, pool, &[]).await?;
    let count = usize::try_from(replicas)? * 10;
    let nodes = nodes(world.cluster, pool, count + 1).await?;
    let workload = Workload {
        replicas,
        a: (2, 1),
        ..Workload::ONE
    };
    world.apply(&workload.yaml(pool)).await?;
    strategy(&world, "OnDelete").await?;
    world.expect_pods(count, 0).await?;
    world
        .expect_available("workload", i32::try_from(replicas)?)
        .await?;
    Ok((world, nodes))
}

async fn strategy(world: &World, name: &str) -> Result<()> {
    let patch = json!({"spec": {"updateStrategy": {"type": name}}});
    let sets = world.api::<PodCliqueSet>();
    sets.patch("workload", &PatchParams::default(), &Patch::Merge(&patch))
        .await?;
    Ok(())
}

/// Somebody deletes a pod of a clique: what comes in its place is new, the others stay old.
async fn one_is_made_anew(world: &World, clique: &str, of: i32) -> Result<()> {
    let pods = world.active().await?;
    let mut pods = pods.iter();
    let victim = pods.find(|pod| label(pod, labels::CLIQUE) == clique);
    world
        .delete_pod(victim.context("no pod to delete")?)
        .await?;
    world
        .until("one new pod", || async {
            let status = world.api::<PodClique>().get(clique).await?.status;
            let status = status.unwrap_or_default();
            ensure!(
                (status.updated_replicas, status.ready_replicas) == (1, of),
                "{status:?}"
            );
            anyhow::Ok(())
        })
        .await
}

/// OD1, OD2, OD5 and OD6: nothing is deleted; what is created anyway is new.
#[tokio::test(flavor = "multi_thread")]
async fn on_delete_leaves_pods_alone() -> Result<()> {
    let (world, _nodes) = on_delete("ondelete", 1).await?;
    let before = world.active().await?;
    set_image(&world, &[0, 1, 2], 2).await?;
    stays(&world, &before).await?;
    one_is_made_anew(&world, "workload-0-pc-a", 2).await?;
    one_is_made_anew(&world, "workload-0-sg-x-0-pc-b", 1).await?;
    one_is_made_anew(&world, "workload-0-sg-x-1-pc-c", 3).await
}

/// OD7: in no set replica.
#[tokio::test(flavor = "multi_thread")]
async fn od7() -> Result<()> {
    let (world, _nodes) = on_delete("od7", 2).await?;
    let before = world.active().await?;
    set_image(&world, &[0], 2).await?;
    stays(&world, &before).await
}

/// OD8: a pod that is deleted comes back under the new affinity, elsewhere.
#[tokio::test(flavor = "multi_thread")]
async fn od8() -> Result<()> {
    let (world, _nodes) = on_delete("od8", 1).await?;
    let before = world.active().await?;
    let victim = before
        .iter()
        .find(|pod| label(pod, labels::CLIQUE) == "workload-0-pc-a")
        .context("a pod of pc-a")?;
    let host = node(victim).context("a node")?;
    let elsewhere = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "NotIn", "values": [host]}]}]}}});
    change(&world, &[0], "affinity", &elsewhere).await?;
    stays(&world, &before).await?;
    world.delete_pod(victim).await?;
    world
        .until("another pod elsewhere", || async {
            let pods = world.active().await?;
            let is_there = |pod: &&Pod| node(pod) == Some(host);
            ensure!(
                pods.len() == 10
                    && pods.iter().all(is_ready)
                    && !pods.iter().any(|pod| is_there(&pod)),
                "{} pods",
                pods.len()
            );
            anyhow::Ok(())
        })
        .await?;
    let (mut rest, after) = (uids(&before, ""), uids(&world.active().await?, ""));
    rest.retain(|uid| Some(uid) != victim.metadata.uid.as_ref());
    assert!(rest.is_subset(&after), "others were touched");
    Ok(())
}

/// OD3: scale-in takes the old pod and leaves the new one.
#[tokio::test(flavor = "multi_thread")]
async fn od3() -> Result<()> {
    let (world, _nodes) = on_delete("od3", 1).await?;
    set_image(&world, &[0], 2).await?;
    counts_as_ended(&world).await?;
    one_is_made_anew(&world, "workload-0-pc-a", 2).await?;
    world.scale_clique("workload-0-pc-a", 1).await?;
    world.expect_pods(9, 0).await?;
    let images = images(&world.active().await?);
    assert_eq!(
        images["a"],
        BTreeSet::from(["registry.example/app:2".to_owned()]),
        "{images:?}"
    );
    Ok(())
}

/// OD4, OD9: nothing goes by itself, until the strategy says so, and then only what is old.
#[tokio::test(flavor = "multi_thread")]
async fn od9() -> Result<()> {
    let (world, _nodes) = on_delete("od9", 1).await?;
    let before = world.active().await?;
    set_image(&world, &[2], 2).await?;
    stays(&world, &before).await?;
    strategy(&world, "RollingRecreate").await?;
    update_ends(&world).await?;
    let after = world.active().await?;
    assert_eq!(uids(&before, "pc-a"), uids(&after, "pc-a"));
    assert!(uids(&before, "pc-c").is_disjoint(&uids(&after, "pc-c")));
    strategy(&world, "OnDelete").await?;
    set_image(&world, &[0, 1, 2], 3).await?;
    stays(&world, &after).await
}

/// The update counts as ended: the operator has seen it, and cliques have the new template.
async fn counts_as_ended(world: &World) -> Result<()> {
    world
        .until("the update to count as ended", || async {
            let set = world.api::<PodCliqueSet>().get("workload").await?;
            let status = set.status.unwrap_or_default();
            ensure!(
                status.observed_generation == set.metadata.generation,
                "{status:?}"
            );
            let progress = status.update_progress.unwrap_or_default();
            ensure!(progress.update_ended_at.is_some(), "{progress:?}");
            anyhow::Ok(())
        })
        .await
}

/// The update counts as ended, and no pod went.
async fn stays(world: &World, before: &[Pod]) -> Result<()> {
    counts_as_ended(world).await?;
    wait::holds(QUIET, "the pods to stay", || async {
        let now = world.active().await?;
        ensure!(uids(&now, "") == uids(before, ""), "{} pods", now.len());
        anyhow::Ok(())
    })
    .await?;
    Ok(())
}
