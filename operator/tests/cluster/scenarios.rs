//! Upstream's gang-scheduling and update scenarios, by their ids: what is done, and how many pods run and wait after each
//! step.
//!
//! Nodes hold one pod each. Where room for a floor appears one node after the other, a pod above another floor may take the
//! first of these nodes; so the rows count pods and do not name them. That floors come first where the room appears at one
//! moment is in `gangs` and `gated`.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use coppice_operator_api::{PodClique, PodCliqueSet, labels};
use coppice_testbed::fleet::Fleet;
use coppice_testbed::{Profile, wait};
use kube::ResourceExt;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;

use self::Step::{Group, Open, Pods, Room, Sets};
use crate::rollout::{images, set_image, update_ends};
use crate::support::{QUIET, Workload, World, get, label, more_nodes, node, nodes, open_nodes};

#[derive(Clone, Copy, Debug)]
enum Step {
    /// That many nodes are schedulable.
    Open(usize),
    /// There is room for that many pods more, at one moment: on a further node.
    Room(u32),
    /// The scaling group of a set replica gets that many replicas.
    Group(u32, i32),
    /// The set gets that many replicas.
    Sets(i32),
    /// That many pods run, that many wait, and it stays so.
    Pods(usize, usize),
}

/// All steps on one backend; the first `Open` comes before the workload.
async fn run(profile: Profile, id: &str, workload: Workload, steps: &[Step]) -> Result<()> {
    let pool = format!("{id}-{profile}");
    let count = steps.iter().filter_map(|step| match step {
        Open(count) => Some(*count),
        Room(_) | Group(..) | Sets(_) | Pods(..) => None,
    });
    let count = count.max().context("nodes")?;
    let world = World::new(profile, &pool, &[]).await?;
    let _nodes = nodes(world.cluster, &pool, count).await?;
    let (first, rest) = steps.split_first().context("steps")?;
    let mut more = Vec::new();
    more.extend(perform(&world, &pool, *first).await?);
    world.apply(&workload.yaml(&pool)).await?;
    for (number, step) in rest.iter().enumerate() {
        let place = || format!("{id}, step {} ({step:?})", number + 1);
        more.extend(perform(&world, &pool, *step).await.with_context(place)?);
    }
    if more.is_empty() {
        let pods = world.active().await?;
        let used: BTreeSet<&str> = pods.iter().filter_map(node).collect();
        ensure!(
            used.len() == pods.len(),
            "{} pods on {} nodes",
            pods.len(),
            used.len()
        );
    }
    Ok(())
}

async fn perform(world: &World, pool: &str, step: Step) -> Result<Option<Fleet>> {
    match step {
        Room(pods) => {
            let name = format!("room-{pods}");
            return Ok(Some(more_nodes(world.cluster, pool, &name, 1, pods).await?));
        }
        Open(count) => open_nodes(&world.client, pool, count).await,
        Group(replica, count) => {
            world
                .scale_group(&format!("workload-{replica}-sg-x"), count)
                .await
        }
        Sets(count) => world.scale_set("workload", count).await,
        Pods(ready, 0) => world.expect_pods(ready, 0).await,
        Pods(ready, pending) => world.expect_pods_for_good(ready, pending).await,
    }?;
    Ok(None)
}

/// A row is a test on `native`, and one on `gated`.
macro_rules! rows {
    ($($id:ident $workload:ident: $($step:expr),+;)+) => {
        $(mod $id {
            use super::*;

            const STEPS: &[Step] = &[$($step),+];

            #[tokio::test(flavor = "multi_thread")]
            async fn native() -> Result<()> {
                run(Profile::Native, stringify!($id), Workload::$workload, STEPS).await
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn gated() -> Result<()> {
                run(Profile::Plain, stringify!($id), Workload::$workload, STEPS).await
            }
        })+
    };
}

rows! {
    gs3 ONE: Open(9), Pods(0, 10), Open(10), Pods(10, 0), Sets(2), Pods(10, 10), Open(20), Pods(20, 0);
    gs4 ONE: Open(9), Pods(0, 10), Open(10), Pods(10, 0), Group(0, 3), Pods(10, 4), Open(14), Pods(14, 0), Sets(2),
        Pods(14, 10), Open(24), Pods(24, 0), Group(1, 3), Pods(24, 4), Open(28), Pods(28, 0);
    gs6 TWO: Open(2), Pods(0, 10), Open(3), Pods(3, 7), Open(10), Pods(10, 0), Group(0, 3), Pods(10, 4), Open(12),
        Pods(12, 2), Open(14), Pods(14, 0);
    gs7 TWO: Open(2), Pods(0, 10), Open(3), Pods(3, 7), Open(5), Pods(5, 5), Open(10), Pods(10, 0), Group(0, 3),
        Pods(10, 4), Open(12), Pods(12, 2), Open(14), Pods(14, 0);
    gs9 TWO: Open(2), Pods(0, 10), Open(3), Pods(3, 7), Open(10), Pods(10, 0), Sets(2), Pods(10, 10), Open(13),
        Pods(13, 7), Open(20), Pods(20, 0);
    gs10 TWO: Open(2), Pods(0, 10), Sets(2), Pods(0, 20), Open(6), Pods(6, 14), Open(10), Pods(10, 10), Open(20),
        Pods(20, 0);
    gs11 TWO: Open(2), Pods(0, 10), Open(3), Pods(3, 7), Open(10), Pods(10, 0), Group(0, 3), Pods(10, 4), Open(12),
        Pods(12, 2), Open(14), Pods(14, 0), Sets(2), Pods(14, 10), Open(17), Pods(17, 7), Open(24), Pods(24, 0),
        Group(1, 3), Pods(24, 4), Open(26), Pods(26, 2), Open(28), Pods(28, 0);
    gs12 TWO: Open(2), Pods(0, 10), Sets(2), Pods(0, 20), Group(0, 3), Group(1, 3), Pods(0, 28), Open(6), Pods(6, 22),
        Open(14), Pods(14, 14), Open(28), Pods(28, 0);
}

/// GS8: room for four pods at one moment goes to the floors of two group replicas. The stock scheduler takes pods in the
/// order of its queue, so this is a promise of `gated` alone.
#[tokio::test(flavor = "multi_thread")]
async fn gs8_gated() -> Result<()> {
    let steps = [
        Open(2),
        Pods(0, 10),
        Group(0, 3),
        Pods(0, 14),
        Room(1),
        Pods(3, 11),
        Room(4),
        Pods(7, 7),
        Room(7),
        Pods(14, 0),
    ];
    run(Profile::Plain, "gs8", Workload::TWO, &steps).await
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

fn uids(pods: &[k8s_openapi::api::core::v1::Pod], clique: &str) -> BTreeSet<String> {
    let chosen = pods
        .iter()
        .filter(|pod| label(pod, labels::CLIQUE).ends_with(clique));
    chosen.filter_map(ResourceExt::uid).collect()
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

async fn on_delete(pool: &str) -> Result<(World, coppice_testbed::fleet::Fleet)> {
    let world = World::new(Profile::Native, pool, &[]).await?;
    let nodes = nodes(world.cluster, pool, 11).await?;
    let workload = Workload {
        a: (2, 1),
        ..Workload::ONE
    };
    world.apply(&workload.yaml(pool)).await?;
    strategy(&world, "OnDelete").await?;
    world.expect_pods(10, 0).await?;
    world.expect_available("workload", 1).await?;
    Ok((world, nodes))
}

async fn strategy(world: &World, name: &str) -> Result<()> {
    let patch = json!({"spec": {"updateStrategy": {"type": name}}});
    let sets = world.api::<PodCliqueSet>();
    sets.patch("workload", &PatchParams::default(), &Patch::Merge(&patch))
        .await?;
    Ok(())
}

/// OD3: scale-in takes the old pod and leaves the new one.
#[tokio::test(flavor = "multi_thread")]
async fn od3() -> Result<()> {
    let (world, _nodes) = on_delete("od3").await?;
    set_image(&world, &[0], 2).await?;
    counts_as_ended(&world).await?;
    let pods = world.active().await?;
    let victim = pods
        .iter()
        .find(|pod| label(pod, labels::CLIQUE).ends_with("pc-a"));
    world
        .api::<k8s_openapi::api::core::v1::Pod>()
        .delete(
            &victim.context("a pod")?.name_any(),
            &DeleteParams::default(),
        )
        .await?;
    world
        .until("one new pod of two", || async {
            let clique = world.api::<PodClique>().get("workload-0-pc-a").await?;
            let status = clique.status.unwrap_or_default();
            ensure!(
                (status.updated_replicas, status.ready_replicas) == (1, 2),
                "{status:?}"
            );
            anyhow::Ok(())
        })
        .await?;
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

/// OD4 to OD7, OD9: nothing goes by itself, until the strategy says so, and then only what is old.
#[tokio::test(flavor = "multi_thread")]
async fn od9() -> Result<()> {
    let (world, _nodes) = on_delete("od9").await?;
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
async fn stays(world: &World, before: &[k8s_openapi::api::core::v1::Pod]) -> Result<()> {
    counts_as_ended(world).await?;
    wait::holds(QUIET, "the pods to stay", || async {
        let now = world.active().await?;
        ensure!(uids(&now, "") == uids(before, ""), "{} pods", now.len());
        anyhow::Ok(())
    })
    .await?;
    Ok(())
}
