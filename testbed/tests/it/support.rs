//! What several tests need.

use std::time::Duration;

use anyhow::{Context, ensure};
use coppice_testbed::fleet::{Fleet, FleetSettings};
use coppice_testbed::{Cluster, Profile, shared, wait};
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use tokio::sync::OnceCell;

/// Two cores may be shared with a compiler.
pub(crate) const LONG: Duration = Duration::from_secs(120);

/// A plain control plane with three nodes, shared by all tests that leave nodes alone.
pub(crate) async fn plain() -> anyhow::Result<(&'static Cluster, &'static Fleet)> {
    static FLEET: OnceCell<Fleet> = OnceCell::const_new();
    let cluster = shared(Profile::Plain).await?;
    let fleet = FLEET
        .get_or_try_init(|| Fleet::start(cluster, FleetSettings::new(3)))
        .await?;
    Ok((cluster, fleet))
}

/// A pod's manifest with these further lines in its metadata and spec.
pub(crate) fn pod_yaml(name: &str, metadata: &str, spec: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, {metadata}}}\n\
         spec: {{containers: [{{name: main, image: example/app}}], {spec}}}\n"
    )
}

/// The state of one condition of a pod.
pub(crate) fn condition<'a>(pod: &'a Pod, kind: &str) -> &'a str {
    let conditions = pod
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    conditions
        .into_iter()
        .flatten()
        .find(|c| c.type_ == kind)
        .map_or("absent", |c| c.status.as_str())
}

/// Waits until a pod is ready and returns it.
pub(crate) async fn ready(pods: &Api<Pod>, name: &str) -> anyhow::Result<Pod> {
    let pod = wait::until(LONG, "the pod to be ready", || async {
        let pod = pods.get(name).await?;
        ensure!(condition(&pod, "Ready") == "True", "{:?}", pod.status);
        Ok(pod)
    });
    Ok(pod.await?)
}

/// Waits until a pod does not exist any more.
pub(crate) async fn gone(pods: &Api<Pod>, name: &str) -> anyhow::Result<()> {
    let gone = wait::until(LONG, "the pod to be gone", || async {
        let pod = pods.get_opt(name).await?;
        ensure!(pod.is_none(), "{:?}", pod.map(|pod| pod.metadata));
        Ok(())
    });
    Ok(gone.await?)
}

/// Names of the nodes that the namespace's pods are bound to, one entry a bound pod.
pub(crate) async fn bound(pods: &Api<Pod>) -> anyhow::Result<Vec<String>> {
    let pods = pods
        .list(&ListParams::default())
        .await
        .context("list pods")?
        .items;
    Ok(pods
        .into_iter()
        .filter_map(|pod| pod.spec?.node_name)
        .collect())
}

/// Names of all pods of the namespace.
pub(crate) async fn names(pods: &Api<Pod>) -> anyhow::Result<Vec<String>> {
    Ok(pods
        .list(&ListParams::default())
        .await?
        .items
        .iter()
        .map(ResourceExt::name_any)
        .collect())
}
