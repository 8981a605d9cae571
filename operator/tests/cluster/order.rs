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

/// What has to be ready before what, inside each replica of the group; `pc-a` stands for all of them.
struct Order {
    id: &'static str,
    workload: Workload,
    /// `startsAfter`, where the order is explicit.
    after: &'static [(&'static str, &'static str)],
    /// Parent and child.
    pairs: &'static [(&'static str, &'static str)],
    /// A parent's minimum is all its pods, not one.
    all: bool,
}

impl Order {
    async fn hold(self) -> Result<()> {
        let world = World::new(Profile::Native, self.id, &[]).await?;
        let _nodes = nodes(world.cluster, self.id, 10).await?;
        let mut yaml = self.workload.yaml(self.id).replace(
            "      spec: {roleName",
            "      annotations: {testbed.coppice.dev/startup: 2500ms}\n      spec: {roleName",
        );
        for (clique, parent) in self.after {
            let spec = format!("spec: {{roleName: {clique}, ");
            ensure!(yaml.contains(&spec), "{spec} in {yaml}");
            yaml = yaml.replace(&spec, &format!("{spec}startsAfter: [{parent}], "));
        }
        world.apply(&yaml).await?;
        world.expect_pods(10, 0).await?;
        let pods = world.active().await?;
        for (parent, child) in self.pairs {
            for replica in ["0", "1"] {
                // A scaled gang does not wait for the base gang's cliques.
                let is_scaled = self.workload.x.1 == 1 && replica == "1";
                if *parent == "pc-a" && is_scaled {
                    continue;
                }
                let of = |clique: &str| {
                    let chosen = pods.iter().filter(|pod| {
                        label(pod, labels::CLIQUE).ends_with(clique)
                            && (clique == "pc-a"
                                || label(pod, labels::GROUP_REPLICA_INDEX) == replica)
                    });
                    chosen.cloned().collect::<Vec<Pod>>()
                };
                let (first, last) = ready_span(&of(parent), parent);
                let needed = if self.all { last } else { first };
                let (child_first, child_last) = ready_span(&of(child), child);
                ensure!(
                    needed <= child_first && first < child_last,
                    "{parent} {first}..{last}, {child} from {child_first} in replica {replica}"
                );
            }
        }
        Ok(())
    }
}

/// SO2: in order, with a minimum of one.
#[tokio::test(flavor = "multi_thread")]
async fn so2() -> Result<()> {
    let workload = Workload {
        startup: "CliqueStartupTypeInOrder",
        ..Workload::TWO
    };
    Order {
        id: "so2",
        workload,
        after: &[],
        pairs: &[("pc-a", "pc-b"), ("pc-a", "pc-c"), ("pc-b", "pc-c")],
        all: false,
    }
    .hold()
    .await
}

/// SO3: an explicit order that is not the list's.
#[tokio::test(flavor = "multi_thread")]
async fn so3() -> Result<()> {
    let workload = Workload {
        startup: "CliqueStartupTypeExplicit",
        ..Workload::ONE
    };
    Order {
        id: "so3",
        workload,
        after: &[("pc-c", "pc-a"), ("pc-b", "pc-c")],
        pairs: &[("pc-a", "pc-c"), ("pc-c", "pc-b")],
        all: true,
    }
    .hold()
    .await
}

/// SO4: an explicit order with a minimum of one.
#[tokio::test(flavor = "multi_thread")]
async fn so4() -> Result<()> {
    let workload = Workload {
        startup: "CliqueStartupTypeExplicit",
        ..Workload::TWO
    };
    Order {
        id: "so4",
        workload,
        after: &[("pc-b", "pc-a"), ("pc-c", "pc-b")],
        pairs: &[("pc-a", "pc-b"), ("pc-b", "pc-c")],
        all: false,
    }
    .hold()
    .await
}
