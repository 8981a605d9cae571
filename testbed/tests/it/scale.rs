//! A thousand pods on two cores.

use std::time::Instant;

use anyhow::ensure;
use coppice_testbed::fleet::{Fleet, FleetSettings};
use coppice_testbed::{Cluster, Profile, wait};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams};

use crate::support::{LONG, condition, names};

const PODS: usize = 1000;

#[tokio::test]
async fn a_thousand_pods_run_and_go() -> anyhow::Result<()> {
    let cluster = Cluster::start(Profile::Plain).await?;
    let fleet = Fleet::start(&cluster, FleetSettings::new(40)).await?;
    let namespace = cluster.namespace("scale").await?;
    let pods: Api<Pod> = Api::namespaced(cluster.client(), &namespace);
    let pod: Pod = serde_json::from_value(serde_json::json!({
        "metadata": {"generateName": "pod-"},
        "spec": {"containers": [{"name": "main", "image": "app"}]},
    }))?;
    let parameters = PostParams::default();
    let begin = Instant::now();
    stream::iter(0..PODS)
        .map(|_| pods.create(&parameters, &pod))
        .buffer_unordered(16)
        .try_for_each(|_| async { Ok(()) })
        .await?;
    let created = begin.elapsed();
    let list = ListParams::default().match_any();
    wait::until(3 * LONG, "all pods ready", || async {
        let pods = pods.list(&list).await?.items;
        let ready = pods
            .iter()
            .filter(|pod| condition(pod, "Ready") == "True")
            .count();
        ensure!(ready == PODS, "{ready} of {} ready", pods.len());
        Ok(())
    })
    .await?;
    let ready = begin.elapsed();
    let state = fleet.state().await?;
    let begin = Instant::now();
    pods.delete_collection(&DeleteParams::default(), &ListParams::default())
        .await?;
    wait::until(3 * LONG, "all pods gone", || async {
        let names = names(&pods).await?;
        ensure!(names.is_empty(), "{} pods", names.len());
        Ok(())
    })
    .await?;
    println!(
        "{PODS} pods: created after {:.1} s, ready after {:.1} s, deleted and gone in {:.1} s; the fleet wrote {} times and was at \
         most {:.2} s behind",
        created.as_secs_f64(),
        ready.as_secs_f64(),
        begin.elapsed().as_secs_f64(),
        state.writes,
        state.behind_seconds_max,
    );
    ensure!(state.writes >= u64::try_from(PODS)?, "{state}");
    ensure!(
        state.writes < 2 * u64::try_from(PODS)?,
        "about one write a pod: {state}"
    );
    Ok(())
}
