//! `coppice_wanted_replicas`: the record while the scaler's lease is fresh, an error when it is not.

use anyhow::ensure;
use coppice_testbed::wait;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;

use crate::world::{BASE, LIMIT, SYSTEM, World, refusal};

#[tokio::test(flavor = "multi_thread")]
async fn the_record_is_served_while_the_scaler_is_alive() -> anyhow::Result<()> {
    let world = World::start().await?;
    let adapter = world.adapter().await?;
    // Installed only now: an adapter in a cluster without the scaler works, and takes up policies when they come.
    for crd in coppice_scaler_api::crds() {
        coppice_testbed::apply(&world.client, &serde_json::to_string(&crd)?, SYSTEM).await?;
    }
    let namespace = world.cluster.namespace("wanted").await?;
    let path = format!(
        "{BASE}/namespaces/{namespace}/coppice_wanted_replicas?labelSelector=policy%3Dqwen3%2Crole%3Ddecode"
    );
    wait::until(LIMIT, "that there is no such policy", || async {
        let (code, message) = refusal(world.raw(&path).await)?;
        ensure!(code == 404, "{code} {message}");
        Ok::<_, anyhow::Error>(())
    })
    .await?;

    let policy = json!({
        "apiVersion": "autoscaling.coppice.dev/v1alpha1", "kind": "ScalingPolicy", "metadata": {"name": "qwen3"},
        "spec": {
            "target": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "qwen3"},
            "roles": [{"name": "decode", "stage": "Decode", "min": 1, "max": 8, "signal": {"queueDepth": {"waitingPerUnit": "4"}}}],
        },
    });
    coppice_testbed::apply(&world.client, &policy.to_string(), &namespace).await?;
    let policies: Api<coppice_scaler_api::ScalingPolicy> =
        Api::namespaced(world.client.clone(), &namespace);
    let status = json!({"status": {
        "decision": {"at": Timestamp::now().to_string(), "summary": "decode 2 to 5", "sentence": "Decode grows.", "servedFraction": "1"},
        "roles": [{"name": "decode", "current": 2, "ready": 2, "wanted": 5, "because": "Load"}],
    }});
    policies
        .patch_status("qwen3", &PatchParams::default(), &Patch::Merge(status))
        .await?;
    wait::until(LIMIT, "an error that names the missing lease", || async {
        let (code, message) = refusal(world.raw(&path).await)?;
        ensure!(
            code == 503 && message.contains("no lease was found"),
            "{code} {message}"
        );
        Ok::<_, anyhow::Error>(())
    })
    .await?;

    let leases: Api<Lease> = Api::namespaced(world.client.clone(), SYSTEM);
    let renewed = || k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime(Timestamp::now());
    let mut lease = Lease::default();
    lease.metadata.name = Some("coppice-scaler".to_owned());
    let spec = lease.spec.get_or_insert_default();
    spec.holder_identity = Some("scaler-0".to_owned());
    spec.lease_duration_seconds = Some(3);
    spec.renew_time = Some(renewed());
    let mut lease = leases.create(&PostParams::default(), &lease).await?;
    wait::until(LIMIT, "the record", || async {
        let list = world.raw(&path).await?;
        ensure!(list["items"][0]["value"] == "5", "{list}");
        ensure!(
            list["items"][0]["metricLabels"] == json!({"policy": "qwen3", "role": "decode"}),
            "{list}"
        );
        Ok::<_, anyhow::Error>(())
    })
    .await?;

    // The scaler dies: nobody renews. Then it comes back.
    wait::until(LIMIT, "an error once the lease has run out", || async {
        let (code, message) = refusal(world.raw(&path).await)?;
        ensure!(
            code == 503 && message.contains("not renewed in time"),
            "{code} {message}"
        );
        Ok::<_, anyhow::Error>(())
    })
    .await?;
    lease.spec.get_or_insert_default().renew_time = Some(renewed());
    leases
        .replace("coppice-scaler", &PostParams::default(), &lease)
        .await?;
    wait::until(LIMIT, "the record again", || async {
        let list = world.raw(&path).await?;
        ensure!(list["items"][0]["value"] == "5", "{list}");
        Ok::<_, anyhow::Error>(())
    })
    .await?;
    adapter.stop().await
}
