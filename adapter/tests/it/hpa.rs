//! The real HPA on the adapter's metrics: it scales a PodCliqueScalingGroup with the load, and holds whenever there is nothing to be
//! trusted.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use coppice_testbed::wait;
use futures::StreamExt;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use parking_lot::Mutex;
use serde_json::json;
use tokio_util::task::AbortOnDropHandle;

use crate::world::{Engine, LIMIT, World};

/// The definition of what is scaled, as it is installed in a cluster.
pub(crate) const GROUPS: &str =
    include_str!("../../../operator/api/crds/grove.io_podcliquescalinggroups.yaml");

/// Several looks of the HPA controller, which looks every two seconds here.
const HOLD: Duration = Duration::from_secs(9);

#[tokio::test(flavor = "multi_thread")]
async fn the_hpa_follows_the_queue_and_holds_when_it_cannot_be_measured() -> anyhow::Result<()> {
    let world = World::start().await?;
    let adapter = world.adapter().await?;
    let namespace = world.cluster.namespace("hpa").await?;
    let engine = Engine::start(37).await?;
    engine.pod(&world.client, &namespace, "engine").await?;
    coppice_testbed::apply(
        &world.client,
        &format!("{GROUPS}\n---\n{}", objects(&external())),
        &namespace,
    )
    .await?;
    let scaled = Scaled::new(&world.client, &namespace, "FailedGetExternalMetric");
    let operator = scaled.follow();

    scaled.reaches(8, "37 waiting at 5 each").await?;
    engine.set_waiting(14);
    scaled.reaches(3, "14 waiting at 5 each").await?;

    // Frozen: the engine is there and does not answer. What it would say is zero.
    engine.freeze(true);
    engine.set_waiting(0);
    let message = scaled.cannot_measure().await?;
    ensure!(
        message.contains("coppice_requests_waiting") && message.contains("endpoints have a value"),
        "{message}"
    );
    scaled.holds(3).await?;
    engine.set_waiting(21);
    engine.freeze(false);
    scaled.reaches(5, "21 waiting at 5 each").await?;

    // The adapter is gone altogether.
    adapter.stop().await?;
    engine.set_waiting(0);
    scaled.cannot_measure().await?;
    scaled.holds(5).await?;

    // It comes back and has seen nothing yet: that is no zero either.
    engine.set_waiting(25);
    let adapter = world.adapter().await?;
    scaled.can_measure().await?;
    scaled.holds(5).await?;

    // A zero that was measured is believed.
    engine.set_waiting(0);
    scaled.reaches(1, "nothing waiting").await?;
    // Never anything else in between: no detour by the minimum when nothing could be measured.
    assert_eq!(*operator.wanted.lock(), [1, 8, 3, 5, 1]);
    adapter.stop().await
}

/// A stand-in for the operator.
pub(crate) struct Followed {
    /// Every number of replicas that was wanted, in order.
    pub(crate) wanted: Arc<Mutex<Vec<i64>>>,
    _task: AbortOnDropHandle<()>,
}

/// A scaling group and its HPA.
pub(crate) struct Scaled {
    pub(crate) namespace: String,
    groups: Api<DynamicObject>,
    autoscalers: Api<HorizontalPodAutoscaler>,
    /// The HPA's reason when there is no metric.
    failure: &'static str,
}

impl Scaled {
    pub(crate) fn new(client: &Client, namespace: &str, failure: &'static str) -> Self {
        let kind = GroupVersionKind::gvk("grove.io", "v1alpha1", "PodCliqueScalingGroup");
        let resource = ApiResource::from_gvk(&kind);
        Self {
            namespace: namespace.to_owned(),
            groups: Api::namespaced_with(client.clone(), namespace, &resource),
            autoscalers: Api::namespaced(client.clone(), namespace),
            failure,
        }
    }

    /// Reports what is wanted as done, as an operator would, and writes down every change.
    pub(crate) fn follow(&self) -> Followed {
        let groups = self.groups.clone();
        let wanted: Arc<Mutex<Vec<i64>>> = Arc::default();
        let seen = Arc::clone(&wanted);
        let task = tokio::spawn(async move {
            let changes = watcher(groups.clone(), watcher::Config::default()).default_backoff();
            let mut changes = std::pin::pin!(changes.touched_objects());
            while let Some(change) = changes.next().await {
                let Some(replicas) = change
                    .ok()
                    .and_then(|group| group.data["spec"]["replicas"].as_i64())
                else {
                    continue;
                };
                if seen.lock().last() == Some(&replicas) {
                    continue;
                }
                seen.lock().push(replicas);
                let status = json!({"status": {
                    "replicas": replicas, "scheduledReplicas": replicas, "availableReplicas": replicas,
                    "updatedReplicas": replicas, "selector": "app=engine",
                }});
                groups
                    .patch_status("engines", &PatchParams::default(), &Patch::Merge(status))
                    .await
                    .expect("the status is taken");
            }
        });
        Followed {
            wanted,
            _task: AbortOnDropHandle::new(task),
        }
    }

    async fn replicas(&self) -> anyhow::Result<i64> {
        let group = self.groups.get("engines").await?;
        group.data["spec"]["replicas"].as_i64().context("replicas")
    }

    pub(crate) async fn reaches(&self, replicas: i64, why: &str) -> anyhow::Result<()> {
        wait::until(LIMIT, &format!("{replicas} replicas: {why}"), || async {
            let seen = self.replicas().await?;
            ensure!(
                seen == replicas,
                "{seen} replicas, {:?}",
                self.conditions().await
            );
            Ok::<_, anyhow::Error>(())
        })
        .await?;
        Ok(())
    }

    pub(crate) async fn holds(&self, replicas: i64) -> anyhow::Result<()> {
        wait::holds(HOLD, &format!("{replicas} replicas"), || async {
            let seen = self.replicas().await?;
            ensure!(seen == replicas, "{seen} replicas");
            Ok::<_, anyhow::Error>(())
        })
        .await?;
        Ok(())
    }

    /// Waits until the HPA says that it has no metric; returns its message.
    pub(crate) async fn cannot_measure(&self) -> anyhow::Result<String> {
        self.active_because(self.failure).await
    }

    /// Waits until the HPA says that it has a metric.
    async fn can_measure(&self) -> anyhow::Result<()> {
        self.active_because("ValidMetricFound").await.map(drop)
    }

    /// Waits until the condition `ScalingActive` has this reason; returns its message.
    async fn active_because(&self, reason: &str) -> anyhow::Result<String> {
        let what = format!("ScalingActive by {reason}");
        let message = wait::until(LIMIT, &what, || async {
            let conditions = self.conditions().await?;
            let active = conditions
                .iter()
                .find(|(type_, ..)| type_ == "ScalingActive")
                .context("ScalingActive")?;
            ensure!(active.1 == reason, "{active:?}");
            Ok::<_, anyhow::Error>(active.2.clone())
        });
        Ok(message.await?)
    }

    /// Type, reason and message of each condition.
    async fn conditions(&self) -> anyhow::Result<Vec<(String, String, String)>> {
        let status = self
            .autoscalers
            .get("engines")
            .await?
            .status
            .unwrap_or_default();
        let conditions = status.conditions.unwrap_or_default().into_iter();
        Ok(conditions
            .map(|condition| {
                (
                    condition.type_,
                    condition.reason.unwrap_or_default(),
                    condition.message.unwrap_or_default(),
                )
            })
            .collect())
    }
}

/// The queue of the engines as an external metric.
fn external() -> serde_json::Value {
    json!({"type": "External", "external": {
        "metric": {"name": "coppice_requests_waiting", "selector": {"matchLabels": {"app": "engine"}}},
        "target": {"type": "AverageValue", "averageValue": "5"},
    }})
}

/// A scaling group and its HPA on this metric. What is scaled does not have to be what is measured.
pub(crate) fn objects(metric: &serde_json::Value) -> String {
    let group = json!({
        "apiVersion": "grove.io/v1alpha1", "kind": "PodCliqueScalingGroup", "metadata": {"name": "engines"},
        "spec": {"replicas": 1, "minAvailable": 1, "cliqueNames": ["server"]},
    });
    let no_wait = json!({"stabilizationWindowSeconds": 0, "policies": [{"type": "Pods", "value": 100, "periodSeconds": 1}]});
    let autoscaler = json!({
        "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "engines"},
        "spec": {
            "scaleTargetRef": {"apiVersion": "grove.io/v1alpha1", "kind": "PodCliqueScalingGroup", "name": "engines"},
            "minReplicas": 1, "maxReplicas": 20, "behavior": {"scaleUp": no_wait, "scaleDown": no_wait},
            "metrics": [metric],
        },
    });
    format!("{group}\n---\n{autoscaler}\n")
}
