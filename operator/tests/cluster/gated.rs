//! All or nothing by scheduling gates, on a cluster that knows no gangs.

use anyhow::{Context, Result, ensure};
use coppice_operator_api::names::SCHEDULING_GATE;
use coppice_operator_api::{PodGang, labels};
use coppice_testbed::Profile;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::support::{
    Workload, World, get, is_ready, label, more_nodes, node, nodes, open_nodes, uids,
};
use crate::{contention, gangs};

#[tokio::test(flavor = "multi_thread")]
async fn gated_a_gang_that_lacks_one_node_waits_as_a_whole() -> Result<()> {
    gangs::lacks_one_node(Profile::Plain, "gated-gs1").await
}

#[tokio::test(flavor = "multi_thread")]
async fn gated_the_floor_is_placed_before_anything_else() -> Result<()> {
    gangs::floor_first(Profile::Plain, "gated-gs5").await
}

#[tokio::test(flavor = "multi_thread")]
async fn gated_a_running_gang_is_repaired() -> Result<()> {
    gangs::repair(Profile::Plain, "gated-repair").await
}

#[tokio::test(flavor = "multi_thread")]
async fn gated_a_component_goes_idle_and_wakes_without_disturbing_the_rest() -> Result<()> {
    gangs::idle_and_wake(Profile::Plain, "gated-idle").await
}

#[tokio::test(flavor = "multi_thread")]
async fn gated_a_hundred_gangs_compete_for_room_for_sixty() -> Result<()> {
    contention::compete(Profile::Plain, "gated-room").await
}

/// GS7: room for two more pods goes to the floor of the second group replica, not to pods above the floor of the first
/// gang. A node with both rooms, because of two that come one after the other the first fits no floor.
#[tokio::test(flavor = "multi_thread")]
async fn gated_floors_come_before_pods_above_a_floor() -> Result<()> {
    let world = World::new(Profile::Plain, "gated-gs7", &[]).await?;
    let _nodes = nodes(world.cluster, "gated-gs7", 3).await?;
    world.apply(&Workload::TWO.yaml("gated-gs7")).await?;
    world.expect_pods_for_good(3, 7).await?;
    // The scaled gang waits too, or there is nothing to come first.
    world
        .until("the scaled gang to wait for room", || async {
            let gang = world.api::<PodGang>().get("workload-0-sg-x-0").await?;
            let conditions = gang
                .status
                .unwrap_or_default()
                .conditions
                .unwrap_or_default();
            let waits = conditions
                .iter()
                .any(|condition| condition.reason == "Unschedulable");
            ensure!(waits, "{conditions:?}");
            anyhow::Ok(())
        })
        .await?;
    let _two = more_nodes(world.cluster, "gated-gs7", "two", 1, 2).await?;
    world.expect_pods_for_good(5, 5).await?;
    let active = world.active().await?;
    let mut cliques: Vec<&str> = active
        .iter()
        .filter(|pod| node(pod).is_some())
        .map(|pod| label(pod, labels::CLIQUE))
        .collect();
    cliques.sort_unstable();
    let of = |replica: u32, clique: &str| format!("workload-0-sg-x-{replica}-{clique}");
    assert_eq!(
        cliques,
        [
            "workload-0-pc-a",
            &of(0, "pc-b"),
            &of(0, "pc-c"),
            &of(1, "pc-b"),
            &of(1, "pc-c")
        ]
    );
    let _rest = more_nodes(world.cluster, "gated-gs7", "rest", 5, 1).await?;
    world.expect_pods(10, 0).await
}

/// A set of one clique with `pods` pods, which all are needed.
fn one_clique(name: &str, pool: &str, pods: u32, rest: &str) -> String {
    format!(
        r#"
apiVersion: grove.io/v1alpha1
kind: PodCliqueSet
metadata: {{name: {name}}}
spec:
  replicas: 1
  template:
    cliques:
    - name: w
      spec: {{roleName: w, replicas: {pods}, podSpec: {{nodeSelector: {{pool: {pool}}}, containers: [{{name: main, image: "registry.example/app:1", resources: {{limits: {{nvidia.com/gpu: 1}}}}{rest}}}]}}}}
"#
    )
}

/// Why the gang waits, by its status.
async fn why(world: &World, gang: &str) -> Result<String> {
    let status = world
        .api::<PodGang>()
        .get(gang)
        .await?
        .status
        .context("a status")?;
    let scheduled = status
        .conditions
        .into_iter()
        .flatten()
        .find(|condition| condition.type_ == "Scheduled");
    let scheduled = scheduled.context("no condition Scheduled")?;
    Ok(format!(
        "{} {}: {}",
        scheduled.status, scheduled.reason, scheduled.message
    ))
}

#[tokio::test(flavor = "multi_thread")]
async fn gated_pods_wait_behind_the_gate_and_the_gang_says_why() -> Result<()> {
    let world = World::new(Profile::Plain, "gated-why", &[]).await?;
    let _nodes = nodes(world.cluster, "gated-why", 3).await?;
    open_nodes(&world.client, "gated-why", 2).await?;
    world.apply(&one_clique("s", "gated-why", 3, "")).await?;
    world
        .until("a reason", || async {
            let why = why(&world, "s-0").await?;
            ensure!(
                why.starts_with("False Unschedulable: ")
                    && why.contains("2 of 3 pods of s-0-w fit"),
                "{why}"
            );
            // Nodes of other tests are named too.
            ensure!(why.contains(" cordoned"), "{why}");
            anyhow::Ok(())
        })
        .await?;
    for pod in world.active().await? {
        let gates = pod
            .spec
            .and_then(|spec| spec.scheduling_gates)
            .unwrap_or_default();
        ensure!(
            gates.iter().any(|gate| gate.name == SCHEDULING_GATE),
            "{gates:?}"
        );
    }
    open_nodes(&world.client, "gated-why", 3).await?;
    world.expect_pods(3, 0).await?;
    world
        .until("the gang to be scheduled", || async {
            let why = why(&world, "s-0").await?;
            ensure!(why.starts_with("True PodGangScheduled"), "{why}");
            anyhow::Ok(())
        })
        .await?;
    Ok(())
}

/// A pod of somebody else takes a node's only GPU: no gang is planned there, until it is gone.
#[tokio::test(flavor = "multi_thread")]
async fn gated_room_that_others_use_is_not_planned() -> Result<()> {
    let world = World::new(Profile::Plain, "gated-others", &[]).await?;
    let _nodes = nodes(world.cluster, "gated-others", 2).await?;
    let other = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "other"},
        "spec": {"nodeSelector": {"pool": "gated-others"}, "terminationGracePeriodSeconds": 0, "containers": [
            {"name": "main", "image": "registry.example/app:1", "resources": {"limits": {"nvidia.com/gpu": "1"}}},
        ]},
    });
    let pods = world.api::<Pod>();
    pods.create(&PostParams::default(), &serde_json::from_value(other)?)
        .await?;
    world
        .until("the other pod to run", || async {
            ensure!(is_ready(&pods.get("other").await?));
            anyhow::Ok(())
        })
        .await?;
    world.apply(&one_clique("s", "gated-others", 2, "")).await?;
    world.expect_pods_for_good(0, 2).await?;
    pods.delete("other", &DeleteParams::default()).await?;
    world.expect_pods(2, 0).await
}

/// The planner does not weigh host ports, kube-scheduler does: the gang comes back whole and is placed elsewhere.
#[tokio::test(flavor = "multi_thread")]
async fn gated_a_gang_that_is_not_bound_in_time_is_placed_anew() -> Result<()> {
    let world = World::new(Profile::Plain, "gated-anew", &["--gang-bind-timeout=3"]).await?;
    let _nodes = nodes(world.cluster, "gated-anew", 3).await?;
    let all: Api<Node> = Api::all(world.client.clone());
    let found = all
        .list(&kube::api::ListParams::default().labels("pool=gated-anew"))
        .await?;
    let mut names: Vec<String> = found.iter().map(ResourceExt::name_any).collect();
    names.sort();
    let first = names.first().context("nodes")?.clone();
    let other = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "other"},
        "spec": {"nodeName": first, "containers": [
            {"name": "main", "image": "registry.example/app:1", "ports": [{"containerPort": 80, "hostPort": 80}]},
        ]},
    });
    world
        .api::<Pod>()
        .create(&PostParams::default(), &serde_json::from_value(other)?)
        .await?;
    world
        .apply(&one_clique(
            "s",
            "gated-anew",
            2,
            ", ports: [{containerPort: 80, hostPort: 80}]",
        ))
        .await?;
    world
        .until("both pods on the nodes without the other pod", || async {
            let active: Vec<Pod> = world
                .active()
                .await?
                .into_iter()
                .filter(|pod| pod.name_any() != "other")
                .collect();
            let mut on: Vec<&str> = active
                .iter()
                .filter(|pod| is_ready(pod))
                .filter_map(node)
                .collect();
            on.sort_unstable();
            ensure!(on == [names[1].as_str(), names[2].as_str()], "{on:?}");
            anyhow::Ok(())
        })
        .await?;
    let (_, metrics) = get(&format!("http://{}/metrics", world.admin)).await?;
    ensure!(
        metrics.contains(r#"operator_gang_placements_total{outcome="released"} 1"#),
        "{metrics}"
    );
    ensure!(
        metrics.contains(r#"operator_pods_deleted_total{reason="Unbound"} 2"#),
        "the gang came back as a whole: {metrics}"
    );
    Ok(())
}

/// Nothing that matters is kept in memory only.
#[tokio::test(flavor = "multi_thread")]
async fn gated_a_new_leader_goes_on_where_the_old_one_ended() -> Result<()> {
    let mut world = World::new(Profile::Plain, "gated-leader", &[]).await?;
    let _nodes = nodes(world.cluster, "gated-leader", 14).await?;
    open_nodes(&world.client, "gated-leader", 10).await?;
    world.apply(&Workload::ONE.yaml("gated-leader")).await?;
    world.expect_pods(10, 0).await?;
    let before = uids(&world.active().await?);
    world.scale_group("workload-0-sg-x", 3).await?;
    world.expect_pods_for_good(10, 4).await?;
    world.kill_operator()?;
    open_nodes(&world.client, "gated-leader", 14).await?;
    world.start_operator().await?;
    world.expect_pods(14, 0).await?;
    let after = uids(&world.active().await?);
    ensure!(before.is_subset(&after), "pods that ran were replaced");
    Ok(())
}

/// A gang takes no room before those who hold its pods for other reasons have let them go.
#[tokio::test(flavor = "multi_thread")]
async fn gated_gates_of_others_come_first() -> Result<()> {
    let world = World::new(Profile::Plain, "gated-foreign", &[]).await?;
    let _nodes = nodes(world.cluster, "gated-foreign", 1).await?;
    let held = "schedulingGates: [{name: example.com/quota}], nodeSelector:";
    world
        .apply(&one_clique("s", "gated-foreign", 1, "").replace("nodeSelector:", held))
        .await?;
    world
        .until("the reason", || async {
            let why = why(&world, "s-0").await?;
            ensure!(
                why.contains("waits for the scheduling gate example.com/quota of pod s-0-w"),
                "{why}"
            );
            anyhow::Ok(())
        })
        .await?;
    world.expect_pods_for_good(0, 1).await?;
    let pod = world.active().await?.pop().context("a pod")?;
    let lifted = json!({"spec": {"schedulingGates": [{"name": SCHEDULING_GATE}]}});
    world
        .api::<Pod>()
        .patch(
            &pod.name_any(),
            &PatchParams::default(),
            &Patch::Merge(lifted),
        )
        .await?;
    world.expect_pods(1, 0).await
}
