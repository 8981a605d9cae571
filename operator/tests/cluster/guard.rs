//! Answers of admission that depend on the cluster: who asks, and which ClusterTopologyBindings there are.

use anyhow::{Result, ensure};
use coppice_operator_api::{ClusterTopologyBinding, PodClique, PodCliqueSet};
use coppice_testbed::wait;
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::admission::{refusal, world_with};
use crate::support::{QUIET, Workload, nodes};

/// Whoever is not the operator may scale, delete pods, and edit the set; and everything when the set says so.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_operator_manages_is_changed_by_nobody_else() -> Result<()> {
    let world = world_with("guarded", &["--authorizer=true"]).await?;
    let _nodes = nodes(world.cluster, "guarded", 10).await?;
    world.apply(&Workload::TWO.yaml("guarded")).await?;
    world.expect_available("workload", 1).await?;
    world.expect_pods(10, 0).await?;
    let services = world.api::<Service>();
    let touch = json!({"metadata": {"labels": {"mine": "yes"}}});
    let parameters = PatchParams::default();
    // The API server learns of a configuration by a watch of its own.
    world
        .until("the authorizer to be asked", || async {
            let answer = services
                .patch("workload-0", &parameters, &Patch::Merge(&touch))
                .await;
            let status = refusal(answer)?;
            ensure!(
                status.code == 403 && status.message.contains("may not update services"),
                "{status:?}"
            );
            anyhow::Ok(())
        })
        .await?;
    let cliques = world.api::<PodClique>();
    let removal = cliques
        .delete("workload-0-pc-a", &DeleteParams::default())
        .await;
    let status = refusal(removal)?;
    ensure!(
        status.message.contains("may not delete podcliques"),
        "{status:?}"
    );

    world.scale_clique("workload-0-pc-a", 1).await?;
    world.expect_pods(9, 0).await?;
    let pods = world.active().await?;
    world
        .api::<Pod>()
        .delete(&pods[0].name_any(), &DeleteParams::default())
        .await?;
    world
        .until("another pod", || async {
            let now = world.active().await?;
            ensure!(now.len() == 9, "{}", now.len());
            ensure!(
                now.iter().all(|pod| pod.uid() != pods[0].uid()),
                "the old one"
            );
            anyhow::Ok(())
        })
        .await?;

    let open = json!({"metadata": {"annotations": {"grove.io/disable-managed-resource-protection": "true"}}});
    world
        .api::<PodCliqueSet>()
        .patch("workload", &parameters, &Patch::Merge(&open))
        .await?;
    world
        .until("everybody to be let", || async {
            services
                .patch("workload-0", &parameters, &Patch::Merge(&touch))
                .await?;
            anyhow::Ok(())
        })
        .await
}

/// A constraint is checked against its binding as it is at that moment, not as a watch has told of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_constraint_needs_its_binding_and_levels_in_order() -> Result<()> {
    let world = world_with("bound", &[]).await?;
    let bindings: Api<ClusterTopologyBinding> = Api::all(world.client.clone());
    let set = |name: &str, outer: &str, inner: &str| {
        json!({
            "apiVersion": "grove.io/v1alpha1", "kind": "PodCliqueSet", "metadata": {"name": name},
            "spec": {"replicas": 0, "template": {
                "topologyConstraint": {"topologyName": "bound", "pack": {"required": outer}},
                "cliques": [{"name": "a", "topologyConstraint": {"pack": {"required": inner}},
                    "spec": {"roleName": "a", "replicas": 1, "podSpec": {"containers": [{"name": "main", "image": "registry.example/app:1"}]}}}],
            }},
        })
        .to_string()
    };
    let why = async |manifest: String, why: &str| {
        let error = match world.apply(&manifest).await {
            Ok(()) => anyhow::bail!("accepted"),
            Err(error) => format!("{error:#}"),
        };
        ensure!(error.contains(why), "{error}");
        anyhow::Ok(())
    };
    why(
        set("s", "block", "rack"),
        "there is no ClusterTopologyBinding of that name",
    )
    .await?;
    let binding = json!({
        "apiVersion": "grove.io/v1alpha1", "kind": "ClusterTopologyBinding", "metadata": {"name": "bound"},
        "spec": {"levels": [{"domain": "block", "key": "example.com/block"}, {"domain": "rack", "key": "example.com/rack"}]},
    });
    bindings
        .patch(
            "bound",
            &PatchParams::apply("tests").force(),
            &Patch::Apply(&binding),
        )
        .await?;
    world.apply(&set("s", "block", "rack")).await?;
    why(
        set("t", "row", "rack"),
        "is no level of ClusterTopologyBinding bound",
    )
    .await?;
    why(set("t", "rack", "block"), "is narrower than block").await?;
    bindings.delete("bound", &DeleteParams::default()).await?;
    // What is stored may go on without it.
    world.scale_set("s", 1).await?;
    wait::until(QUIET, "an edit of the stored set", || async {
        let patch = json!({"spec": {"template": {"terminationDelay": "2h0m0s"}}});
        world
            .api::<PodCliqueSet>()
            .patch("s", &PatchParams::default(), &Patch::Merge(&patch))
            .await
    })
    .await?;
    Ok(())
}
