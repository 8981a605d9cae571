//! The life of pods on pretended nodes.

use std::time::Duration;

use anyhow::{Context, ensure};
use coppice_testbed::fleet::{Command, CommandError};
use coppice_testbed::{apply, wait};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use serde_json::json;

use crate::support::{LONG, condition, gone, plain, pod_yaml, ready};

fn container(pod: &Pod) -> Option<&ContainerStatus> {
    pod.status.as_ref()?.container_statuses.as_ref()?.first()
}

fn since(pod: &Pod, kind: &str) -> Option<Timestamp> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    Some(
        conditions
            .iter()
            .find(|c| c.type_ == kind)?
            .last_transition_time
            .as_ref()?
            .0,
    )
}

#[tokio::test]
async fn an_abandoned_namespace_keeps_no_pods() -> anyhow::Result<()> {
    let (cluster, _) = plain().await?;
    let namespace = cluster.namespace("left").await?;
    let pods: Api<Pod> = Api::namespaced(cluster.client(), &namespace);
    let nowhere = "nodeSelector: {pool: nowhere}";
    apply(&cluster.client(), &pod_yaml("runs", "", ""), &namespace).await?;
    apply(
        &cluster.client(),
        &pod_yaml("waits", "", nowhere),
        &namespace,
    )
    .await?;
    ready(&pods, "runs").await?;
    cluster.abandon(&namespace);
    ensure!(pods.list(&ListParams::default()).await?.items.is_empty());
    Ok(())
}

#[tokio::test]
async fn a_pod_runs_and_goes() -> anyhow::Result<()> {
    let (cluster, _) = plain().await?;
    let namespace = cluster.namespace("run").await?;
    let pods: Api<Pod> = Api::namespaced(cluster.client(), &namespace);
    apply(&cluster.client(), &pod_yaml("a", "", ""), &namespace).await?;
    let pod = ready(&pods, "a").await?;
    let status = pod.status.as_ref().context("status")?;
    assert_eq!(status.phase.as_deref(), Some("Running"));
    for kind in [
        "PodScheduled",
        "PodReadyToStartContainers",
        "Initialized",
        "ContainersReady",
    ] {
        assert_eq!(condition(&pod, kind), "True", "{kind}");
    }
    let address: std::net::Ipv4Addr = status.pod_ip.as_ref().context("podIP")?.parse()?;
    ensure!(
        address.octets()[0] == 127 && (64..128).contains(&address.octets()[1]),
        "{address}"
    );
    tokio::net::TcpListener::bind((address, 8000))
        .await
        .context("the address is really there")?;
    ensure!(
        container(&pod).is_some_and(|c| c.ready && c.restart_count == 0),
        "{status:?}"
    );

    pods.delete("a", &DeleteParams::default()).await?;
    gone(&pods, "a").await
}

#[tokio::test]
async fn a_start_up_delay_shows_as_running_but_not_ready() -> anyhow::Result<()> {
    let (cluster, _) = plain().await?;
    let namespace = cluster.namespace("delay").await?;
    let pods: Api<Pod> = Api::namespaced(cluster.client(), &namespace);
    let slow = pod_yaml("slow", "annotations: {testbed.coppice.dev/startup: 3s}", "");
    apply(&cluster.client(), &slow, &namespace).await?;
    let starting = wait::until(LONG, "the pod to start", || async {
        let pod = pods.get("slow").await?;
        ensure!(
            pod.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Running"),
            "{:?}",
            pod.status
        );
        Ok(pod)
    })
    .await?;
    assert_eq!(condition(&starting, "Ready"), "False");
    assert_eq!(container(&starting).and_then(|c| c.started), Some(false));
    let pod = ready(&pods, "slow").await?;
    let waited = since(&pod, "Ready")
        .context("Ready")?
        .duration_since(since(&pod, "Initialized").context("init")?);
    ensure!(
        waited.as_secs() >= 2,
        "ready {waited} after the init containers; times are in whole seconds"
    );
    Ok(())
}

#[tokio::test]
async fn crashed_pods_restart_stay_down_or_fail_as_told() -> anyhow::Result<()> {
    let (cluster, fleet) = plain().await?;
    let namespace = cluster.namespace("crash").await?;
    let pods: Api<Pod> = Api::namespaced(cluster.client(), &namespace);
    for (name, policy) in [("always", "Always"), ("never", "Never")] {
        apply(
            &cluster.client(),
            &pod_yaml(name, "", &format!("restartPolicy: {policy}")),
            &namespace,
        )
        .await?;
        ready(&pods, name).await?;
    }
    fleet.crash_pod(&namespace, "always").await?;
    let restarted = wait::until(LONG, "the restart", || async {
        let pod = pods.get("always").await?;
        ensure!(
            container(&pod).is_some_and(|c| c.restart_count == 1 && c.ready),
            "{:?}",
            pod.status
        );
        Ok(pod)
    })
    .await?;
    let last = container(&restarted)
        .and_then(|c| c.last_state.as_ref()?.terminated.as_ref())
        .context("lastState")?;
    assert_eq!(last.exit_code, 1);

    let always = format!("{namespace}/always");
    let down = Command::CrashPod {
        pod: always.clone(),
        exit_code: 9,
        stay_down: true,
    };
    fleet.command(down.clone()).await?;
    wait::until(LONG, "the back-off", || async {
        let pod = pods.get("always").await?;
        let reason =
            container(&pod).and_then(|c| c.state.as_ref()?.waiting.as_ref()?.reason.clone());
        ensure!(
            reason.as_deref() == Some("CrashLoopBackOff"),
            "{:?}",
            pod.status
        );
        Ok(())
    })
    .await?;
    let error = fleet.command(down).await.unwrap_err();
    ensure!(
        matches!(&error, CommandError::NotNow { state, .. } if state == "down"),
        "{error}"
    );
    fleet.command(Command::RecoverPod { pod: always }).await?;
    ready(&pods, "always").await?;

    fleet.crash_pod(&namespace, "never").await?;
    wait::until(LONG, "the failure", || async {
        let pod = pods.get("never").await?;
        ensure!(
            pod.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Failed"),
            "{:?}",
            pod.status
        );
        Ok(())
    })
    .await?;
    Ok(())
}

/// As much of a PodClique as the gate looks at.
const CLIQUES: &str = "
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: podcliques.grove.io}
spec:
  group: grove.io
  scope: Namespaced
  names: {kind: PodClique, plural: podcliques, singular: podclique}
  versions:
  - name: v1alpha1
    served: true
    storage: true
    subresources: {status: {}}
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
---
apiVersion: grove.io/v1alpha1
kind: PodClique
metadata: {name: set-0-router}
spec: {}
";

#[tokio::test]
async fn the_start_order_gate_holds_a_pod_until_its_clique_is_ready() -> anyhow::Result<()> {
    let (cluster, _) = plain().await?;
    let namespace = cluster.namespace("order").await?;
    let pods: Api<Pod> = Api::namespaced(cluster.client(), &namespace);
    let gated =
        "initContainers: [{name: grove-initc, image: init, args: ['--podcliques=set-0-router:2']}]";
    // The pod comes before the definition of PodClique, and is held all the same.
    apply(
        &cluster.client(),
        &pod_yaml("worker", "", gated),
        &namespace,
    )
    .await?;
    wait::until(LONG, "the init container to run", || async {
        let pod = pods.get("worker").await?;
        let states = pod
            .status
            .as_ref()
            .and_then(|s| s.init_container_statuses.as_ref()?.first()?.state.as_ref());
        ensure!(
            states.is_some_and(|state| state.running.is_some()),
            "{:?}",
            pod.status
        );
        Ok(())
    })
    .await?;

    let cliques = apply(&cluster.client(), CLIQUES, &namespace).await?;
    let kind = kube::api::ApiResource::from_gvk_with_plural(
        &kube::core::GroupVersionKind::gvk("grove.io", "v1alpha1", "PodClique"),
        "podcliques",
    );
    assert_eq!(cliques.len(), 2);
    let api: Api<kube::api::DynamicObject> =
        Api::namespaced_with(cluster.client(), &namespace, &kind);
    let set_ready = async |count: u32| {
        let patch = Patch::Merge(json!({"status": {"readyReplicas": count}}));
        api.patch_status("set-0-router", &PatchParams::default(), &patch)
            .await
            .map(drop)
    };
    set_ready(1).await?;
    wait::holds(Duration::from_secs(3), "the pod held", || async {
        let pod = pods.get("worker").await?;
        ensure!(
            condition(&pod, "Initialized") == "False",
            "{:?}",
            pod.status
        );
        Ok(())
    })
    .await?;
    set_ready(2).await?;
    ready(&pods, "worker").await?;
    // A gate is passed once: the clique's later fate does not matter.
    set_ready(0).await?;
    wait::holds(Duration::from_secs(2), "the pod ready", || async {
        let pod = pods.get("worker").await?;
        ensure!(condition(&pod, "Ready") == "True", "{:?}", pod.status);
        Ok(())
    })
    .await?;
    Ok(())
}

#[tokio::test]
async fn readiness_that_somebody_else_took_away_is_given_back() -> anyhow::Result<()> {
    let (cluster, _) = plain().await?;
    let namespace = cluster.namespace("marked").await?;
    let pods: Api<Pod> = Api::namespaced(cluster.client(), &namespace);
    apply(&cluster.client(), &pod_yaml("a", "", ""), &namespace).await?;
    ready(&pods, "a").await?;
    // What the node controller does when heartbeats are late.
    let marked = json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}});
    let marked = pods
        .patch_status("a", &PatchParams::default(), &Patch::Strategic(&marked))
        .await?;
    assert_eq!(condition(&marked, "Ready"), "False");
    ready(&pods, "a").await.map(drop)
}
