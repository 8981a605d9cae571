//! Nodes of a test's own.

use std::collections::BTreeMap;

use anyhow::Result;
use coppice_testbed::Cluster;
use coppice_testbed::fleet::{Farewell, Fleet, FleetSettings};
use k8s_openapi::api::core::v1::Node;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;

/// Nodes that only pods of this label value go to, one small pod on each: "one node holds one pod".
pub(crate) async fn nodes(cluster: &Cluster, pool: &str, count: usize) -> Result<Fleet> {
    more_nodes(cluster, pool, "", count, 1).await
}

/// Further nodes of a pool, with room for `pods` small pods each.
pub(crate) async fn more_nodes(
    cluster: &Cluster,
    pool: &str,
    name: &str,
    count: usize,
    pods: u32,
) -> Result<Fleet> {
    let mut settings = FleetSettings::new(count);
    settings.name_prefix = format!("{pool}-{name}");
    settings.labels = BTreeMap::from([("pool".to_owned(), pool.to_owned())]);
    settings.shape.gpus = pods;
    settings.farewell = Farewell::CleanUp;
    Ok(Fleet::start(cluster, settings).await?)
}

/// Makes all nodes of a pool but the first `open` unschedulable.
pub(crate) async fn open_nodes(client: &Client, pool: &str, open: usize) -> Result<()> {
    let api: Api<Node> = Api::all(client.clone());
    let mut found = api
        .list(&ListParams::default().labels(&format!("pool={pool}")))
        .await?
        .items;
    found.sort_by_key(ResourceExt::name_any);
    for (position, node) in found.iter().enumerate() {
        let is_closed = node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true);
        if is_closed != (position >= open) {
            cordon(client, &node.name_any(), position >= open).await?;
        }
    }
    Ok(())
}

/// Makes a node unschedulable, or schedulable again.
pub(crate) async fn cordon(client: &Client, node: &str, unschedulable: bool) -> Result<()> {
    let patch = json!({"spec": {"unschedulable": unschedulable}});
    Api::<Node>::all(client.clone())
        .patch(node, &PatchParams::default(), &Patch::Merge(&patch))
        .await?;
    Ok(())
}
