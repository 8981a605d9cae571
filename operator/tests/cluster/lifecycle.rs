//! From a manifest to running pods, through every way of scaling, to nothing.

use anyhow::{Result, ensure};
use coppice_operator_api::condition::{self, ConditionStatus, ConditionType};
use coppice_operator_api::{
    PodClique, PodCliqueScalingGroup, PodCliqueSet, PodGang, PodGangPhase, labels, names,
};
use coppice_testbed::Profile;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::core::v1::{Pod, Service, ServiceAccount};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use k8s_openapi::api::scheduling::v1alpha3::{
    CompositePodGroup, PodGroup, Workload as NativeWorkload,
};
use kube::ResourceExt;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;

use crate::support::{World, label, nodes};

/// The worked example, two set replicas of it.
const MN: &str = r#"
apiVersion: grove.io/v1alpha1
kind: PodCliqueSet
metadata: {name: mn, labels: {team: a}}
spec:
  replicas: 2
  template:
    cliques:
    - name: frontend
      spec: {roleName: frontend, replicas: 2, autoScalingConfig: {minReplicas: 2, maxReplicas: 5}, podSpec: {nodeSelector: {pool: mn}, containers: [{name: main, image: "registry.example/fe:1"}]}}
    - name: pleader
      spec: {roleName: pleader, replicas: 1, podSpec: {nodeSelector: {pool: mn}, containers: [{name: main, image: "registry.example/p:1"}]}}
    - name: pworker
      spec: {roleName: pworker, replicas: 3, podSpec: {nodeSelector: {pool: mn}, containers: [{name: main, image: "registry.example/p:1"}]}}
    podCliqueScalingGroups:
    - {name: prefill, cliqueNames: [pleader, pworker], replicas: 3, minAvailable: 1, scaleConfig: {minReplicas: 1, maxReplicas: 6}}
"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_set_comes_up_is_scaled_on_all_three_levels_and_goes_without_a_trace() -> Result<()> {
    let world = World::new(Profile::Native, "life", &[]).await?;
    let _nodes = nodes(world.cluster, "mn", 4).await?;
    world.apply(MN).await?;
    world.expect_available("mn", 2).await?;
    // What is above the minimum may come after that.
    world.expect_pods(28, 0).await?;
    names_are_upstreams(&world).await?;
    pods_are_complete(&world).await?;
    statuses_are_complete(&world).await?;
    scale(&world).await?;
    leave_no_trace(&world).await
}

async fn names_are_upstreams(world: &World) -> Result<()> {
    let member = |i: u32, k: u32, clique: &str| format!("mn-{i}-prefill-{k}-{clique}");
    let mut cliques: Vec<String> = (0..2)
        .flat_map(|i| {
            let members =
                (0..3).flat_map(move |k| [member(i, k, "pleader"), member(i, k, "pworker")]);
            members.chain([format!("mn-{i}-frontend")])
        })
        .collect();
    cliques.sort();
    assert_eq!(world.names::<PodClique>().await?, cliques);
    assert_eq!(
        world.names::<PodCliqueScalingGroup>().await?,
        ["mn-0-prefill", "mn-1-prefill"]
    );
    let gangs = [
        "mn-0",
        "mn-0-prefill-0",
        "mn-0-prefill-1",
        "mn-1",
        "mn-1-prefill-0",
        "mn-1-prefill-1",
    ];
    assert_eq!(world.names::<PodGang>().await?, gangs);
    assert_eq!(world.names::<Service>().await?, ["mn-0", "mn-1"]);
    let hpas = [
        "mn-0-frontend",
        "mn-0-prefill",
        "mn-1-frontend",
        "mn-1-prefill",
    ];
    assert_eq!(world.names::<HorizontalPodAutoscaler>().await?, hpas);
    assert_eq!(world.names::<ServiceAccount>().await?, ["mn"]);

    let base = world.api::<PodGang>().get("mn-0").await?;
    let groups: Vec<(&str, i32)> = base
        .spec
        .pod_groups
        .iter()
        .map(|group| (group.name.as_str(), group.min_replicas))
        .collect();
    assert_eq!(
        groups,
        [
            ("mn-0-frontend", 2),
            ("mn-0-prefill-0-pleader", 1),
            ("mn-0-prefill-0-pworker", 3)
        ]
    );
    for group in &base.spec.pod_groups {
        assert_eq!(
            group.pod_references.len(),
            usize::try_from(group.min_replicas)?
        );
        assert!(group.pod_references.is_sorted());
    }
    let scaled = world.api::<PodGang>().get("mn-0-prefill-1").await?;
    let groups: Vec<&str> = scaled
        .spec
        .pod_groups
        .iter()
        .map(|group| group.name.as_str())
        .collect();
    assert_eq!(groups, ["mn-0-prefill-2-pleader", "mn-0-prefill-2-pworker"]);
    assert_eq!(scaled.labels()["team"], "a");
    Ok(())
}

async fn pods_are_complete(world: &World) -> Result<()> {
    let pods = world.active().await?;
    assert_eq!(pods.len(), 2 * (2 + 3 * 4));
    let worker = pods
        .iter()
        .find(|pod| {
            label(pod, labels::CLIQUE) == "mn-1-prefill-2-pworker"
                && label(pod, labels::POD_INDEX) == "1"
        })
        .unwrap();
    let spec = worker.spec.as_ref().unwrap();
    assert_eq!(spec.hostname.as_deref(), Some("mn-1-prefill-2-pworker-1"));
    assert_eq!(spec.subdomain.as_deref(), Some("mn-1"));
    assert!(worker.name_any().starts_with("mn-1-prefill-2-pworker-"));
    assert_eq!(worker.name_any().len(), "mn-1-prefill-2-pworker-".len() + 5);
    assert_eq!(label(worker, labels::GANG), "mn-1-prefill-1");
    assert_eq!(label(worker, labels::BASE_GANG), "mn-1");
    assert_eq!(label(worker, labels::SCALING_GROUP), "mn-1-prefill");
    assert_eq!(label(worker, labels::GROUP_REPLICA_INDEX), "2");
    let variables: Vec<&str> = spec.containers[0]
        .env
        .iter()
        .flatten()
        .map(|variable| variable.name.as_str())
        .collect();
    let expected = [
        "GROVE_PCS_NAME",
        "GROVE_PCS_INDEX",
        "GROVE_PCLQ_NAME",
        "GROVE_HEADLESS_SERVICE",
        "GROVE_PCLQ_POD_INDEX",
        "GROVE_PCSG_NAME",
        "GROVE_PCSG_TEMPLATE_NUM_PODS",
        "GROVE_PCSG_INDEX",
    ];
    assert_eq!(variables, expected);
    assert_eq!(spec.scheduling_gates, None, "native gangs need no gates");
    Ok(())
}

async fn statuses_are_complete(world: &World) -> Result<()> {
    let cliques = world.api::<PodClique>();
    let status = world
        .until("the clique's status", || async {
            let status = cliques
                .get("mn-0-frontend")
                .await?
                .status
                .unwrap_or_default();
            ensure!(
                (
                    status.replicas,
                    status.ready_replicas,
                    status.scheduled_replicas,
                    status.updated_replicas
                ) == (2, 2, 2, 2)
            );
            anyhow::Ok(status)
        })
        .await?;
    let selector = "app.kubernetes.io/managed-by=grove-operator,app.kubernetes.io/part-of=mn,grove.io/podclique=mn-0-frontend";
    assert_eq!(status.hpa_pod_selector.as_deref(), Some(selector));
    let conditions = status.conditions.unwrap();
    assert!(condition::is(
        &conditions,
        ConditionType::PodCliqueScheduled,
        ConditionStatus::True
    ));
    assert!(condition::is(
        &conditions,
        ConditionType::MinAvailableBreached,
        ConditionStatus::False
    ));
    assert!(condition::is(
        &conditions,
        ConditionType::HealthyStateObserved,
        ConditionStatus::True
    ));
    assert!(status.current_pod_template_hash.is_some() && status.update_progress.is_none());

    let groups = world.api::<PodCliqueScalingGroup>();
    world
        .until("the group's status", || async {
            let status = groups.get("mn-0-prefill").await?.status.unwrap_or_default();
            let counts = (
                status.replicas,
                status.scheduled_replicas,
                status.available_replicas,
                status.updated_replicas,
            );
            ensure!(counts == (3, 3, 3, 3), "{counts:?}");
            anyhow::Ok(())
        })
        .await?;
    let gangs = world.api::<PodGang>();
    for name in world.names::<PodGang>().await? {
        world
            .until("the gang to run", || async {
                let status = gangs.get(&name).await?.status.unwrap_or_default();
                ensure!(status.phase == PodGangPhase::Running, "{:?}", status.phase);
                let conditions = status.conditions.unwrap_or_default();
                for kind in [
                    ConditionType::Initialized,
                    ConditionType::Scheduled,
                    ConditionType::Ready,
                ] {
                    ensure!(
                        condition::is(&conditions, kind, ConditionStatus::True),
                        "{kind:?}"
                    );
                }
                anyhow::Ok(())
            })
            .await?;
    }
    let set = world.expect_available("mn", 2).await?;
    let status = set.status.unwrap();
    assert_eq!((status.replicas, status.updated_replicas), (2, 2));
    assert!(status.last_errors.is_none() && status.update_progress.is_none());
    Ok(())
}

async fn scale(world: &World) -> Result<()> {
    world.scale_clique("mn-0-frontend", 4).await?;
    world.expect_pods(30, 0).await?;
    world.scale_clique("mn-0-frontend", 2).await?;
    world.expect_pods(28, 0).await?;
    world.scale_group("mn-1-prefill", 5).await?;
    world.expect_pods(36, 0).await?;
    assert!(
        world
            .names::<PodGang>()
            .await?
            .contains(&"mn-1-prefill-3".to_owned())
    );
    world.scale_group("mn-1-prefill", 1).await?;
    world.expect_pods(20, 0).await?;
    world.scale_set("mn", 3).await?;
    world.expect_pods(34, 0).await?;
    // A change of the template's numbers does not touch what was scaled.
    let patch = json!({"spec": {"replicas": 2}, "metadata": {"annotations": {"grove.io/reconcile-trigger": "1"}}});
    world
        .api::<PodCliqueSet>()
        .patch("mn", &PatchParams::default(), &Patch::Merge(&patch))
        .await?;
    world.expect_pods(20, 0).await?;
    world
        .until("the third replica's objects to go", || async {
            let services = world.names::<Service>().await?;
            ensure!(services == ["mn-0", "mn-1"], "{services:?}");
            let gangs = world.names::<PodGang>().await?;
            ensure!(
                gangs == ["mn-0", "mn-0-prefill-0", "mn-0-prefill-1", "mn-1"],
                "{gangs:?}"
            );
            anyhow::Ok(())
        })
        .await?;
    assert_eq!(
        world
            .api::<PodCliqueScalingGroup>()
            .get("mn-1-prefill")
            .await?
            .spec
            .replicas,
        1
    );
    Ok(())
}

async fn leave_no_trace(world: &World) -> Result<()> {
    let sets = world.api::<PodCliqueSet>();
    let found = sets.get("mn").await?;
    assert_eq!(found.finalizers(), [names::SET_FINALIZER]);
    sets.delete("mn", &DeleteParams::default()).await?;
    world
        .until("the set to go", || async {
            ensure!(sets.get_opt("mn").await?.is_none(), "it is still there");
            anyhow::Ok(())
        })
        .await?;
    // The set goes last, so nothing has to be waited for any more.
    assert!(
        world.pods().await?.is_empty(),
        "pods are gone before their set is"
    );
    assert!(world.names::<PodClique>().await?.is_empty());
    assert!(world.names::<PodCliqueScalingGroup>().await?.is_empty());
    assert!(world.names::<PodGang>().await?.is_empty());
    assert!(world.names::<Service>().await?.is_empty());
    assert!(world.names::<HorizontalPodAutoscaler>().await?.is_empty());
    assert!(world.names::<ServiceAccount>().await?.is_empty());
    assert!(world.names::<Role>().await?.is_empty());
    assert!(world.names::<RoleBinding>().await?.is_empty());
    assert!(world.names::<PodGroup>().await?.is_empty());
    assert!(world.names::<CompositePodGroup>().await?.is_empty());
    assert!(world.names::<NativeWorkload>().await?.is_empty());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_is_deleted_or_evicted_comes_back_at_its_index_also_across_a_restart()
-> Result<()> {
    let mut world = World::new(Profile::Native, "replace", &[]).await?;
    let _nodes = nodes(world.cluster, "rep", 2).await?;
    let yaml = r#"
apiVersion: grove.io/v1alpha1
kind: PodCliqueSet
metadata: {name: s}
spec:
  replicas: 1
  template:
    cliques:
    - name: w
      annotations: {testbed.coppice.dev/shutdown: 20s}
      spec: {roleName: w, replicas: 3, podSpec: {nodeSelector: {pool: rep}, terminationGracePeriodSeconds: 25, containers: [{name: main, image: "registry.example/app:1"}]}}
"#;
    world.apply(yaml).await?;
    world.expect_available("s", 1).await?;
    let pods = world.api::<Pod>();
    let victim = world
        .active()
        .await?
        .into_iter()
        .find(|pod| label(pod, labels::POD_INDEX) == "1")
        .unwrap();

    // The old one takes its time; the operator is gone meanwhile.
    world.kill_operator()?;
    pods.delete(&victim.name_any(), &DeleteParams::default())
        .await?;
    world.start_operator().await?;
    world
        .until("a replacement while the old pod terminates", || async {
            let all = world.pods().await?;
            ensure!(
                all.iter().any(|pod| pod.uid() == victim.uid()),
                "the old pod is gone already"
            );
            let again = all
                .iter()
                .find(|pod| label(pod, labels::POD_INDEX) == "1" && pod.uid() != victim.uid());
            ensure!(again.is_some(), "no replacement");
            anyhow::Ok(())
        })
        .await?;
    world.expect_pods(3, 0).await?;

    // Evicted: the phase is Failed and stays so.
    let victim = world
        .active()
        .await?
        .into_iter()
        .find(|pod| label(pod, labels::POD_INDEX) == "2")
        .unwrap();
    let patch = json!({"status": {"phase": "Failed", "reason": "Evicted"}});
    pods.patch_status(
        &victim.name_any(),
        &PatchParams::default(),
        &Patch::Merge(&patch),
    )
    .await?;
    world
        .until("the evicted pod to be replaced", || async {
            let active = world.active().await?;
            let again = active
                .iter()
                .find(|pod| label(pod, labels::POD_INDEX) == "2" && pod.uid() != victim.uid());
            ensure!(again.is_some(), "no replacement");
            anyhow::Ok(())
        })
        .await?;
    world.expect_pods(3, 0).await?;
    let mut indexes: Vec<String> = world
        .active()
        .await?
        .iter()
        .map(|pod| label(pod, labels::POD_INDEX).to_owned())
        .collect();
    indexes.sort();
    assert_eq!(indexes, ["0", "1", "2"]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_set_that_cannot_be_planned_says_so_and_one_of_the_same_name_can_follow_at_once()
-> Result<()> {
    let world = World::new(Profile::Native, "again", &[]).await?;
    let _nodes = nodes(world.cluster, "again", 2).await?;
    let yaml = |name: &str, replicas: i32| {
        format!(
            r#"
apiVersion: grove.io/v1alpha1
kind: PodCliqueSet
metadata: {{name: s}}
spec:
  replicas: {replicas}
  template:
    cliques:
    - name: {name}
      spec: {{roleName: w, replicas: 2, podSpec: {{nodeSelector: {{pool: again}}, containers: [{{name: main, image: "registry.example/app:1"}}]}}}}
"#
        )
    };
    world.apply(&yaml("w.x", 1)).await?;
    let sets = world.api::<PodCliqueSet>();
    let condition = world
        .until("the condition", || async {
            let set = sets.get("s").await?;
            let conditions = set
                .status
                .and_then(|status| status.conditions)
                .unwrap_or_default();
            let degraded = condition::find(&conditions, ConditionType::Degraded).cloned();
            degraded.ok_or_else(|| anyhow::anyhow!("{conditions:?}"))
        })
        .await?;
    assert_eq!(condition.reason, "InvalidSpec");
    assert!(
        condition
            .message
            .starts_with("spec.template.cliques[0].name: Invalid value: \"w.x\": may only hold"),
        "{}",
        condition.message
    );
    assert!(
        world.names::<PodClique>().await?.is_empty(),
        "nothing half-created"
    );

    for _ in 0..2 {
        sets.delete("s", &DeleteParams::default()).await?;
        world
            .until("the set to go", || async {
                ensure!(sets.get_opt("s").await?.is_none(), "it is still there");
                anyhow::Ok(())
            })
            .await?;
        world.apply(&yaml("w", 2)).await?;
        world.expect_available("s", 2).await?;
        world.expect_pods(4, 0).await?;
    }
    Ok(())
}
