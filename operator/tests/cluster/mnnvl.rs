//! Multi-node NVLink: ComputeDomains for the groups that annotations name, and claims for pods that are in them. The driver that
//! turns a domain into nodes is not there; where a test needs what it makes, it plays the driver. Ids are upstream's scenarios.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use coppice_operator_api::condition::{self, ConditionType};
use coppice_operator_api::{PodClique, PodCliqueSet, labels};
use coppice_testbed::{Cluster, Profile, wait};
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceClaimTemplate};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams,
};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::admission;
use crate::sharing::{devices, request};
use crate::support::{LIMIT, QUIET, World, nodes};

const GROUP: &str = "grove.io/mnnvl-group";
const FINALIZER: &str = "grove.io/computedomain-finalizer";

fn domain_resource() -> ApiResource {
    let kind = GroupVersionKind::gvk("resource.nvidia.com", "v1beta1", "ComputeDomain");
    ApiResource::from_gvk_with_plural(&kind, "computedomains")
}

fn domains(world: &World) -> Api<DynamicObject> {
    Api::namespaced_with(world.client.clone(), &world.namespace, &domain_resource())
}

/// The driver's definition, as far as the operator depends on it: a spec that nobody can change.
async fn install(cluster: &Cluster) -> Result<()> {
    let name =
        json!({"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}});
    let channel = json!({"type": "object", "properties": {"resourceClaimTemplate": name}});
    let spec = json!({
        "type": "object", "required": ["numNodes"],
        "properties": {"numNodes": {"type": "integer"}, "channel": channel},
        "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "a ComputeDomain cannot be changed"}],
    });
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "computedomains.resource.nvidia.com"},
        "spec": {
            "group": "resource.nvidia.com", "scope": "Namespaced",
            "names": {"kind": "ComputeDomain", "plural": "computedomains", "singular": "computedomain", "listKind": "ComputeDomainList"},
            "versions": [{"name": "v1beta1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                "type": "object", "properties": {"spec": spec}}}}],
        },
    });
    let api: Api<CustomResourceDefinition> = Api::all(cluster.client());
    api.patch(
        "computedomains.resource.nvidia.com",
        &PatchParams::apply("tests").force(),
        &Patch::Apply(&definition),
    )
    .await?;
    let objects: Api<DynamicObject> = Api::all_with(cluster.client(), &domain_resource());
    wait::until(LIMIT, "ComputeDomains to be served", || async {
        objects.list(&ListParams::default()).await
    })
    .await?;
    Ok(())
}

async fn world(pool: &str) -> Result<World> {
    install(crate::support::cluster(Profile::Native).await?).await?;
    World::new(Profile::Native, pool, &["--auto-mnnvl=true"]).await
}

/// Pods with one container that has a GPU and one that has none, or two that have none.
fn pods(pool: &str, gpu: bool) -> Value {
    let main = if gpu {
        json!({"limits": {"nvidia.com/gpu": 1}})
    } else {
        json!({})
    };
    json!({
        "nodeSelector": {"pool": pool},
        "containers": [
            {"name": "main", "image": "registry.example/app:1", "resources": main},
            {"name": "side", "image": "registry.example/app:1"},
        ],
    })
}

fn clique(pool: &str, name: &str, gpu: bool, group: Option<&str>) -> Value {
    json!({
        "name": name, "annotations": annotations(group),
        "spec": {"roleName": name, "replicas": 1, "minAvailable": 1, "podSpec": pods(pool, gpu)},
    })
}

fn annotations(group: Option<&str>) -> Value {
    match group {
        Some(group) => json!({GROUP: group}),
        None => json!({}),
    }
}

fn set(group: Option<&str>, replicas: u32, cliques: &[Value], groups: &Value) -> Value {
    json!({
        "apiVersion": "grove.io/v1alpha1", "kind": "PodCliqueSet",
        "metadata": {"name": "workload", "annotations": annotations(group)},
        "spec": {"replicas": replicas, "template": {"cliques": cliques, "podCliqueScalingGroups": groups}},
    })
}

/// Waits for domains of exactly these names, none of them on its way out.
async fn expect_domains(world: &World, expected: &[&str]) -> Result<Vec<DynamicObject>> {
    let what = format!("the domains {expected:?}");
    let expected: BTreeSet<String> = expected.iter().map(|&name| name.to_owned()).collect();
    world
        .until(&what, || async {
            let found = domains(world).list(&ListParams::default()).await?.items;
            let names: BTreeSet<String> = found.iter().map(ResourceExt::name_any).collect();
            ensure!(names == expected, "{names:?}");
            ensure!(
                found
                    .iter()
                    .all(|domain| domain.metadata.deletion_timestamp.is_none()),
                "some are going"
            );
            anyhow::Ok(found)
        })
        .await
}

/// The claim template that each PodClique's pods use, and the containers that do.
async fn joined(world: &World) -> Result<BTreeMap<String, (String, Vec<String>)>> {
    let cliques = world
        .api::<PodClique>()
        .list(&ListParams::default())
        .await?;
    let mut found = BTreeMap::new();
    for clique in cliques {
        let spec = &clique.spec.pod_spec;
        let claims = spec.resource_claims.iter().flatten();
        let template = claims
            .filter(|claim| claim.name == "mnnvl-claim")
            .find_map(|claim| claim.resource_claim_template_name.clone());
        let users = spec.containers.iter().filter(|container| {
            let claims = container.resources.iter();
            let mut claims = claims.flat_map(|resources| resources.claims.iter().flatten());
            claims.any(|claim| claim.name == "mnnvl-claim")
        });
        let users: Vec<String> = users.map(|container| container.name.clone()).collect();
        if let Some(template) = template {
            found.insert(clique.name_any(), (template, users));
        } else {
            ensure!(users.is_empty(), "{users:?} use a claim that is not there");
        }
    }
    Ok(found)
}

/// Waits for the PodCliques, and expects these to be in domains: name and claim template.
async fn expect_joined(world: &World, cliques: usize, expected: &[(&str, &str)]) -> Result<()> {
    world
        .until("the PodCliques", || async {
            let found = world.names::<PodClique>().await?;
            ensure!(found.len() == cliques, "{found:?}");
            anyhow::Ok(())
        })
        .await?;
    let expected: BTreeMap<String, (String, Vec<String>)> = expected
        .iter()
        .map(|(clique, template)| {
            let users = vec!["main".to_owned()];
            ((*clique).to_owned(), ((*template).to_owned(), users))
        })
        .collect();
    assert_eq!(joined(world).await?, expected);
    Ok(())
}

async fn delete_set(world: &World) -> Result<()> {
    world
        .api::<PodCliqueSet>()
        .delete("workload", &DeleteParams::default())
        .await?;
    world
        .until("the set to go", || async {
            let found = world.api::<PodCliqueSet>().get_opt("workload").await?;
            ensure!(found.is_none(), "it is there");
            anyhow::Ok(())
        })
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn mn1_mn2_mn3_domains_follow_the_set_replicas_and_its_end() -> Result<()> {
    let world = world("mn2").await?;
    let cliques = [clique("mn2", "gpu", true, None)];
    world
        .apply(&set(None, 1, &cliques, &json!([])).to_string())
        .await?;
    expect_joined(&world, 1, &[]).await?;
    world.settle(QUIET).await?;
    expect_domains(&world, &[]).await?;
    delete_set(&world).await?;

    world
        .apply(&set(Some("default"), 1, &cliques, &json!([])).to_string())
        .await?;
    expect_domains(&world, &["workload-0-default"]).await?;
    expect_joined(&world, 1, &[("workload-0-gpu", "workload-0-default")]).await?;
    world.scale_set("workload", 3).await?;
    let three = [
        "workload-0-default",
        "workload-1-default",
        "workload-2-default",
    ];
    expect_domains(&world, &three).await?;
    world.scale_set("workload", 1).await?;
    expect_domains(&world, &three[..1]).await?;
    world.scale_set("workload", 2).await?;
    expect_domains(&world, &three[..2]).await?;
    world.settle(QUIET).await?;
    delete_set(&world).await?;
    expect_domains(&world, &[]).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn mn4_mn7_nobody_is_in_a_domain_without_gpus_or_against_its_will() -> Result<()> {
    let world = world("mn4").await?;
    let cliques = [clique("mn4", "gpu", true, None)];
    world
        .apply(&set(Some("none"), 1, &cliques, &json!([])).to_string())
        .await?;
    expect_joined(&world, 1, &[]).await?;
    world.settle(QUIET).await?;
    expect_domains(&world, &[]).await?;
    delete_set(&world).await?;

    let cliques = [
        clique("mn4", "gpu", true, Some("default")),
        clique("mn4", "cpu", false, Some("other")),
    ];
    world
        .apply(&set(None, 1, &cliques, &json!([])).to_string())
        .await?;
    expect_domains(&world, &["workload-0-default"]).await?;
    expect_joined(&world, 2, &[("workload-0-gpu", "workload-0-default")]).await
}

/// MN8: what each level says for itself and for what is in it; a domain that is lost; and pods that run when the driver has
/// done its part.
#[tokio::test(flavor = "multi_thread")]
async fn mn8_every_level_has_its_say_and_a_lost_domain_comes_back() -> Result<()> {
    let world = world("mn8").await?;
    let _nodes = nodes(world.cluster, "mn8", 8).await?;
    let group = |name: &str, members: &[&str], group: Option<&str>| json!({"name": name, "cliqueNames": members, "annotations": annotations(group)});
    let cliques = [
        clique("mn8", "plain", true, None),
        clique("mn8", "solo", true, Some("solo")),
        clique("mn8", "out", true, Some("none")),
        clique("mn8", "trainer", true, None),
        clique("mn8", "batcher", true, Some("batch")),
        clique("mn8", "server", true, None),
        clique("mn8", "reader", false, None),
        clique("mn8", "idle", true, None),
    ];
    let groups = json!([
        group("train", &["trainer", "batcher"], Some("train")),
        group("infer", &["server", "reader"], Some("infer")),
        group("off", &["idle"], Some("none")),
    ]);
    world
        .apply(&set(Some("default"), 1, &cliques, &groups).to_string())
        .await?;
    let of = |replica: u32| {
        ["default", "train", "infer", "batch", "solo"]
            .map(|group| format!("workload-{replica}-{group}"))
    };
    let names = |replicas: u32| -> Vec<String> { (0..replicas).flat_map(of).collect() };
    let expect = async |replicas: u32| {
        let names = names(replicas);
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        expect_domains(&world, &names).await
    };
    let found = expect(1).await?;
    let set_uid = world.api::<PodCliqueSet>().get("workload").await?.uid();
    for domain in &found {
        let name = domain.name_any();
        let (labels, owners) = (domain.labels(), domain.owner_references());
        assert_eq!(
            domain.data["spec"],
            json!({"numNodes": 0, "channel": {"resourceClaimTemplate": {"name": name}}})
        );
        assert_eq!(format!("workload-0-{}", labels[GROUP]), name);
        assert_eq!(
            (
                labels[labels::SET_REPLICA_INDEX].as_str(),
                labels[labels::COMPONENT].as_str()
            ),
            ("0", "pcs-computedomain")
        );
        assert_eq!(domain.finalizers(), [FINALIZER]);
        assert_eq!(Some(&owners[0].uid), set_uid.as_ref());
    }
    expect_joined(
        &world,
        8,
        &[
            ("workload-0-plain", "workload-0-default"),
            ("workload-0-solo", "workload-0-solo"),
            ("workload-0-train-0-trainer", "workload-0-train"),
            ("workload-0-train-0-batcher", "workload-0-batch"),
            ("workload-0-infer-0-server", "workload-0-infer"),
        ],
    )
    .await?;

    // The driver makes the templates; then the scheduler finds devices, and the pods run.
    devices(&world, "mn8", 8).await?;
    for name in names(1) {
        let template = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": name},
            "spec": {"spec": request("mn8")},
        });
        world
            .api::<ResourceClaimTemplate>()
            .patch(
                &name,
                &PatchParams::apply("driver").force(),
                &Patch::Apply(&template),
            )
            .await?;
    }
    world.expect_pods(8, 0).await?;
    let claims = world.api::<ResourceClaim>();
    let claims = claims.list(&ListParams::default()).await?.items;
    assert_eq!(claims.len(), 5, "one for each pod in a domain");

    let lost = "workload-0-train";
    let before = domains(&world).get(lost).await?.uid();
    domains(&world)
        .delete(lost, &DeleteParams::default())
        .await?;
    world
        .until("another domain", || async {
            let now = domains(&world).get(lost).await?;
            ensure!(
                now.uid() != before && now.metadata.deletion_timestamp.is_none(),
                "the old one"
            );
            anyhow::Ok(())
        })
        .await?;
    expect(1).await?;
    world.scale_set("workload", 4).await?;
    expect(4).await?;
    world.scale_set("workload", 2).await?;
    expect(2).await?;
    world.settle(QUIET).await?;
    delete_set(&world).await?;
    expect_domains(&world, &[]).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn mn5_mn6_mn9_groups_are_checked_before_they_are_stored() -> Result<()> {
    let cliques = [clique("mn5", "gpu", true, None)];
    let with = |group: Option<&str>| set(group, 1, &cliques, &json!([])).to_string();
    let on = admission::world_with("mn5", &["--auto-mnnvl=true"]).await?;
    install(on.cluster).await?;
    let refused = async |world: &World, group: Option<&str>, why: &str| {
        let error = world.apply(&with(group)).await.err().context("accepted")?;
        let error = format!("{error:#}");
        ensure!(error.contains(why), "{error}");
        anyhow::Ok(())
    };
    refused(&on, Some("not.a.label"), "may only hold lowercase letters").await?;
    on.apply(&with(Some("default"))).await?;
    refused(&on, Some("other"), "field is immutable and was").await?;
    on.apply(&with(Some("default"))).await?;

    let off = admission::world_with("mn9", &[]).await?;
    refused(&off, Some("default"), "MNNVL is switched off").await?;
    off.apply(&with(None)).await?;
    expect_joined(&off, 1, &[]).await?;
    off.settle(QUIET).await?;
    expect_domains(&off, &[]).await?;
    Ok(())
}

async fn expect_degraded(world: &World, status: &str, why: &str) -> Result<()> {
    let what = format!("Degraded {status}: {why}");
    world
        .until(&what, || async {
            let set = world.api::<PodCliqueSet>().get("workload").await?;
            let conditions = set.status.unwrap_or_default().conditions;
            let conditions = conditions.unwrap_or_default();
            let found = condition::find(&conditions, ConditionType::Degraded);
            let found = found.context("no condition")?;
            ensure!(
                found.status == status && found.message.contains(why),
                "{found:?}"
            );
            anyhow::Ok(())
        })
        .await
}

/// MN10 and MN11, on a cluster of its own kind, because definitions are the cluster's. Upstream's operator ends where the
/// definition is missing; this one goes on, and the sets that need it say so.
#[tokio::test(flavor = "multi_thread")]
async fn mn10_mn11_without_the_driver_everything_else_works_and_it_may_come_later() -> Result<()> {
    let pool = "mn10";
    let off = World::new(Profile::Plain, "mn11", &[]).await?;
    let _nodes = nodes(off.cluster, pool, 2).await?;
    let cliques = [clique(pool, "gpu", true, None)];
    let with = |group: Option<&str>| set(group, 1, &cliques, &json!([])).to_string();
    off.apply(&with(None)).await?;
    off.expect_available("workload", 1).await?;
    expect_degraded(&off, "False", "").await?;
    delete_set(&off).await?;
    // Where admission did not stop it, its pods wait rather than run without what they ask for.
    off.apply(&with(Some("default"))).await?;
    expect_degraded(&off, "True", "start the operator with --auto-mnnvl").await?;
    off.expect_pods_for_good(0, 1).await?;
    delete_set(&off).await?;

    let on = World::new(Profile::Plain, pool, &["--auto-mnnvl=true"]).await?;
    on.apply(&with(None)).await?;
    on.expect_available("workload", 1).await?;
    delete_set(&on).await?;
    on.apply(&with(Some("default"))).await?;
    expect_degraded(&on, "True", "install NVIDIA's DRA driver").await?;
    install(on.cluster).await?;
    expect_domains(&on, &["workload-0-default"]).await?;
    expect_degraded(&on, "False", "").await?;
    delete_set(&on).await?;
    expect_domains(&on, &[]).await?;
    Ok(())
}
