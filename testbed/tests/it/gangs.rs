//! Profile `native`: the stock scheduler places a gang of gangs whole or not at all.

use std::time::Duration;

use anyhow::ensure;
use coppice_testbed::fleet::{Fleet, FleetSettings, NodeShape};
use coppice_testbed::{Cluster, Profile, apply, wait};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;

use crate::support::{LONG, bound};

/// Two PodGroups of two pods each under one CompositePodGroup; every pod takes a whole node.
fn gang() -> String {
    let mut yaml = "
apiVersion: scheduling.k8s.io/v1alpha3
kind: Workload
metadata: {name: w}
spec:
  compositePodGroupTemplates:
  - name: gang
    schedulingPolicy: {gang: {minGroupCount: 2}}
    podGroupTemplates: [{name: part, schedulingPolicy: {gang: {minCount: 2}}}]
---
apiVersion: scheduling.k8s.io/v1alpha3
kind: CompositePodGroup
metadata: {name: g}
spec:
  workloadRef: {workloadName: w, templateName: gang}
  schedulingPolicy: {gang: {minGroupCount: 2}}
"
    .to_owned();
    for part in ["leader", "worker"] {
        yaml.push_str(&format!(
            "---
apiVersion: scheduling.k8s.io/v1alpha3
kind: PodGroup
metadata: {{name: g-{part}}}
spec:
  workloadRef: {{workloadName: w, templateName: part}}
  parentCompositePodGroupName: g
  schedulingPolicy: {{gang: {{minCount: 2}}}}
"
        ));
        for index in 0..2 {
            yaml.push_str(&format!(
                "---
apiVersion: v1
kind: Pod
metadata: {{name: g-{part}-{index}}}
spec:
  schedulingGroup: {{podGroupName: g-{part}}}
  containers: [{{name: main, image: app, resources: {{limits: {{nvidia.com/gpu: 8}}}}}}]
"
            ));
        }
    }
    yaml
}

#[tokio::test]
async fn a_gang_of_gangs_pends_on_three_nodes_and_binds_on_four() -> anyhow::Result<()> {
    let cluster = Cluster::start(Profile::Native).await?;
    let settings = FleetSettings {
        shape: NodeShape {
            gpus: 8,
            ..NodeShape::default()
        },
        ..FleetSettings::new(3)
    };
    let fleet = Fleet::start(&cluster, settings).await?;
    let namespace = cluster.namespace("gang").await?;
    let pods: Api<Pod> = Api::namespaced(cluster.client(), &namespace);
    apply(&cluster.client(), &gang(), &namespace).await?;

    let verdict = |pod: &Pod| {
        let conditions = pod
            .status
            .as_ref()
            .and_then(|status| status.conditions.clone())
            .unwrap_or_default();
        conditions
            .iter()
            .any(|c| c.type_ == "PodScheduled" && c.reason.as_deref() == Some("Unschedulable"))
    };
    wait::until(LONG, "the scheduler's refusal", || async {
        let pods = pods.list(&Default::default()).await?.items;
        ensure!(
            pods.len() == 4 && pods.iter().any(verdict),
            "{:?}",
            pods.first().map(|pod| &pod.status)
        );
        Ok(())
    })
    .await?;
    wait::holds(
        Duration::from_secs(5),
        "the gang wholly pending",
        || async {
            let bound = bound(&pods).await?;
            ensure!(bound.is_empty(), "bound to {bound:?}");
            Ok(())
        },
    )
    .await?;

    fleet.add_nodes(1).await?;
    wait::until(LONG, "the whole gang ready", || async {
        let pods = pods.list(&Default::default()).await?.items;
        let ready = pods
            .iter()
            .filter(|pod| crate::support::condition(pod, "Ready") == "True")
            .count();
        ensure!(ready == 4, "{ready} pods ready");
        Ok(())
    })
    .await?;
    Ok(())
}
