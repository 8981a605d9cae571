//! Upstream's gang-scheduling scenarios, by their ids: what is done, and how many pods run and wait after each
//! step.
//!
//! Nodes hold one pod each. Where room for a floor appears one node after the other, a pod above another floor may take the
//! first of these nodes; so the rows count pods and do not name them. That floors come first where the room appears at one
//! moment is in `gangs` and `gated`.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use coppice_testbed::Profile;
use coppice_testbed::fleet::Fleet;

use self::Step::{Group, Open, Pods, Room, Sets};
use crate::support::{Workload, World, more_nodes, node, nodes, open_nodes};

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
