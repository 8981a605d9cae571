//! The definitions on a real API server: accepted, defaulting, refusing, scaling, printing.

use anyhow::{Context as _, Result, ensure};
use coppice_operator_api::crd::{crds, to_yaml};
use coppice_operator_api::{
    ClusterTopologyBinding, PodClique, PodCliqueScalingGroup, PodCliqueSet, PodGang,
};
use coppice_testbed::{Cluster, Profile, apply, manifests_below, shared, wait};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use kube::core::Status;
use kube::{Api, Client, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A control plane that knows our kinds, and a namespace of one's own.
async fn cluster(prefix: &str) -> Result<(&'static Cluster, Client, String)> {
    let cluster = shared(Profile::Plain).await?;
    let client = cluster.client();
    for definition in crds() {
        apply(&client, &to_yaml(&definition), "").await?;
    }
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    for definition in crds() {
        wait::until(
            Duration::from_secs(20),
            "an established definition",
            || async {
                let conditions = definitions
                    .get(&definition.name_any())
                    .await?
                    .status
                    .and_then(|status| status.conditions);
                let conditions = conditions.unwrap_or_default();
                let is = |kind: &str| {
                    conditions
                        .iter()
                        .any(|condition| condition.type_ == kind && condition.status == "True")
                };
                ensure!(!is("NonStructuralSchema"), "not structural: {conditions:?}");
                ensure!(is("Established"), "not established: {conditions:?}");
                Ok(())
            },
        )
        .await?;
    }
    let namespace = cluster.namespace(prefix).await?;
    Ok((cluster, client, namespace))
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[tokio::test]
async fn workloads_and_samples_are_accepted() -> Result<()> {
    let (_, client, namespace) = cluster("workloads").await?;
    let mut files = manifests_below(&repository().join("operator/testdata/workloads"))?;
    ensure!(files.len() >= 10, "the workloads are missing");
    files.extend(manifests_below(&repository().join("samples"))?);
    for file in files {
        let text = std::fs::read_to_string(&file)?;
        for object in
            coppice_testbed::parse_yaml(&text).with_context(|| file.display().to_string())?
        {
            let types = object.types.clone().unwrap_or_default();
            if !types.api_version.contains("grove.io/") {
                continue;
            }
            let written = serde_json::to_string(&object)?;
            let accepted = apply(&client, &written, &namespace)
                .await
                .with_context(|| file.display().to_string())?;
            if types.kind != "PodCliqueSet" {
                continue;
            }
            let read: PodCliqueSet = serde_json::from_value(serde_json::to_value(&accepted[0])?)?;
            ensure!(!read.spec.template.cliques.is_empty(), "{}", file.display());
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_full_manifest_comes_back_as_it_was() -> Result<()> {
    let (_, client, namespace) = cluster("full").await?;
    let mut written: Value = serde_saphyr::from_str(include_str!("full.yaml"))?;
    written["metadata"] = json!({"name": "mn"});
    // Refused in new objects; the other test shows that it is.
    written["spec"]["template"]["podCliqueScalingGroups"][0]["topologyConstraint"] =
        json!({"pack": {"required": "rack"}});
    let status = written
        .as_object_mut()
        .and_then(|object| object.remove("status"))
        .context("a status")?;
    let sets: Api<PodCliqueSet> = Api::namespaced(client, &namespace);
    sets.create(
        &PostParams::default(),
        &serde_json::from_value(written.clone())?,
    )
    .await?;
    sets.patch_status(
        "mn",
        &PatchParams::default(),
        &Patch::Merge(json!({"status": status})),
    )
    .await?;
    let read = serde_json::to_value(sets.get("mn").await?)?;
    assert_eq!(read["spec"], written["spec"]);
    assert_eq!(read["status"], status);
    Ok(())
}

/// Puts `value` at a path of dots; numbers are positions in lists. `null` takes the field away.
fn put(object: &mut Value, path: &str, value: Value) {
    let (parent, name) = path.rsplit_once('.').unwrap_or(("", path));
    let mut at = object;
    for step in parent.split('.').filter(|step| !step.is_empty()) {
        at = match step.parse::<usize>() {
            Ok(position) => &mut at[position],
            Err(_) => &mut at[step],
        };
    }
    match (name.parse::<usize>(), value) {
        (Ok(position), value) => at[position] = value,
        (Err(_), Value::Null) => drop(at.as_object_mut().and_then(|map| map.remove(name))),
        (Err(_), value) => at[name] = value,
    }
}

/// Asks the server to accept `base` with one change, without keeping it, and returns the refusal.
async fn refusal<K>(api: &Api<K>, base: &Value, path: &str, value: Value) -> Result<String>
where
    K: Clone + Serialize + DeserializeOwned + std::fmt::Debug + kube::Resource,
{
    let mut object = base.clone();
    put(&mut object, path, value.clone());
    // The types of this crate would refuse some of these themselves; the server has to.
    let dynamic: DynamicObject = serde_json::from_value(object)?;
    let params = PostParams {
        dry_run: true,
        field_manager: None,
    };
    let request = kube::core::Request::new(api.resource_url())
        .create(&params, serde_json::to_vec(&dynamic)?)?;
    let answer: kube::Result<Value> = api.clone().into_client().request(request).await;
    match answer {
        Ok(_) => anyhow::bail!("{path} = {value} is accepted"),
        Err(kube::Error::Api(status)) => {
            let Status { code, message, .. } = *status;
            ensure!(code == 422, "{path} = {value}: {code} {message}");
            Ok(message)
        }
        Err(error) => Err(error.into()),
    }
}

/// Each counter-example, and what the refusal must say.
async fn refuses<K>(api: &Api<K>, base: Value, examples: &[(&str, Value, &[&str])]) -> Result<()>
where
    K: Clone + Serialize + DeserializeOwned + std::fmt::Debug + kube::Resource,
{
    let params = PostParams {
        dry_run: true,
        field_manager: None,
    };
    api.create(&params, &serde_json::from_value(base.clone())?)
        .await
        .context("the base must be accepted")?;
    for (path, value, fragments) in examples {
        let message = refusal(api, &base, path, value.clone()).await?;
        for fragment in *fragments {
            ensure!(
                message.contains(fragment),
                "{path} = {value}: {fragment:?} is not in {message:?}"
            );
        }
    }
    Ok(())
}

fn pods() -> Value {
    json!({"containers": [{"name": "main", "image": "registry.example/e:1", "ports": [{"containerPort": 80}]}]})
}

#[tokio::test]
async fn a_set_that_breaks_a_rule_is_refused() -> Result<()> {
    let (_, client, namespace) = cluster("set-rules").await?;
    let sets: Api<PodCliqueSet> = Api::namespaced(client, &namespace);
    let base = json!({
        "apiVersion": "grove.io/v1alpha1", "kind": "PodCliqueSet", "metadata": {"name": "a"},
        "spec": {"replicas": 1, "updateStrategy": {"type": "OnDelete"}, "template": {
            "terminationDelay": "90s",
            "topologyConstraint": {"topologyName": "t", "pack": {"required": "zone"}},
            "resourceClaimTemplates": [{"name": "r", "templateSpec": {"spec": {}}}],
            "resourceSharing": [{"name": "r", "scope": "PerReplica"}],
            "cliques": [
                {"name": "w", "topologyConstraint": {"pack": {"preferred": "rack"}}, "spec": {
                    "replicas": 2, "minAvailable": 1, "podSpec": pods(), "autoScalingConfig": {"minReplicas": 1, "maxReplicas": 3}}},
                {"name": "x", "spec": {"podSpec": pods()}},
            ],
            "podCliqueScalingGroups": [{"name": "g", "cliqueNames": ["x"], "topologyConstraint": {"pack": {"required": "rack"}}}],
        }},
    });
    let constraint = "spec.template.topologyConstraint";
    let examples: &[(&str, Value, &[&str])] = &[
        (
            "spec.replicas",
            json!(-1),
            &["spec.replicas", "greater than or equal to 0"],
        ),
        (
            "spec.template",
            Value::Null,
            &["spec.template", "Required value"],
        ),
        (
            "spec.updateStrategy.type",
            json!("Never"),
            &["spec.updateStrategy.type", "RollingRecreate", "OnDelete"],
        ),
        (
            "spec.template.cliques",
            json!([]),
            &["spec.template.cliques", "at least 1"],
        ),
        (
            "spec.template.cliques",
            Value::Null,
            &["spec.template.cliques", "Required value"],
        ),
        (
            "spec.template.cliques.1.name",
            json!("w"),
            &["spec.template.cliques[1]", "Duplicate"],
        ),
        (
            "spec.template.cliqueStartupType",
            json!("InOrder"),
            &["CliqueStartupTypeInOrder"],
        ),
        (
            "spec.template.terminationDelay",
            json!("4d"),
            &["spec.template.terminationDelay"],
        ),
        (
            "spec.template.terminationDelay",
            json!("0s"),
            &["spec.template.terminationDelay", "longer than 0s"],
        ),
        (
            "spec.template.terminationDelay",
            json!("-1h"),
            &["spec.template.terminationDelay", "longer than 0s"],
        ),
        (
            "spec.template.resourceSharing.0.scope",
            json!("Some"),
            &["AllReplicas", "PerReplica"],
        ),
        (
            "spec.template.resourceClaimTemplates.0.name",
            Value::Null,
            &["resourceClaimTemplates[0].name", "Required"],
        ),
        (
            "spec.template.topologyConstraint",
            json!({"topologyName": "t"}),
            &[".pack", "say where to pack"],
        ),
        (
            "spec.template.topologyConstraint",
            json!({"pack": {}}),
            &[".pack", "set required, preferred or both"],
        ),
        (
            "spec.template.topologyConstraint.pack.required",
            json!("Zone"),
            &["pack.required", "should match"],
        ),
        (
            "spec.template.topologyConstraint.pack.required",
            json!(""),
            &["pack.required"],
        ),
        (
            "spec.template.topologyConstraint.pack.preferred",
            json!("z".repeat(64)),
            &["pack.preferred", "63"],
        ),
        (
            constraint,
            json!({"packDomain": "zone", "pack": {"required": "zone"}}),
            &["remove packDomain"],
        ),
        (
            constraint,
            json!({"packDomain": "zone"}),
            &[constraint, "Forbidden", "write pack.required"],
        ),
        (
            "spec.template.cliques.0.topologyConstraint",
            json!({"packDomain": "rack"}),
            &["spec.template.cliques", "Forbidden"],
        ),
        (
            "spec.template.podCliqueScalingGroups.0.topologyConstraint",
            json!({"packDomain": "rack"}),
            &["spec.template.podCliqueScalingGroups", "Forbidden"],
        ),
        (
            "spec.template.cliques.0.spec.replicas",
            json!(-1),
            &["cliques[0].spec.replicas", "greater than or equal to 0"],
        ),
        (
            "spec.template.cliques.0.spec.minAvailable",
            json!(0),
            &["cliques[0].spec.minAvailable", "greater than or equal to 1"],
        ),
        (
            "spec.template.cliques.0.spec.podSpec",
            Value::Null,
            &["cliques[0].spec.podSpec", "Required"],
        ),
        (
            "spec.template.cliques.0.spec.podSpec.containers",
            Value::Null,
            &["podSpec.containers", "Required"],
        ),
        (
            "spec.template.cliques.0.spec.podSpec.containers.0.name",
            Value::Null,
            &["containers[0].name"],
        ),
        (
            "spec.template.cliques.0.spec.autoScalingConfig.maxReplicas",
            json!(0),
            &["maxReplicas"],
        ),
        (
            "spec.template.cliques.0.spec.autoScalingConfig.minReplicas",
            json!(4),
            &[
                "autoScalingConfig.maxReplicas",
                "maxReplicas must be at least minReplicas",
            ],
        ),
        (
            "spec.template.podCliqueScalingGroups.0.cliqueNames",
            json!([]),
            &["cliqueNames", "at least 1"],
        ),
        (
            "spec.template.podCliqueScalingGroups.0.replicas",
            json!(0),
            &["podCliqueScalingGroups[0].replicas"],
        ),
        (
            "spec.template.podCliqueScalingGroups.0.minAvailable",
            json!(0),
            &["podCliqueScalingGroups[0].minAvailable"],
        ),
        (
            "spec.template.podCliqueScalingGroups.0.scaleConfig",
            json!({"minReplicas": 1}),
            &["scaleConfig.maxReplicas", "Required"],
        ),
    ];
    refuses(&sets, base, examples).await
}

#[tokio::test]
async fn a_deprecated_field_does_not_lock_an_object_that_has_it() -> Result<()> {
    let (_, client, namespace) = cluster("deprecated").await?;
    let sets: Api<PodCliqueSet> = Api::namespaced(client, &namespace);
    let template = json!({"cliques": [{"name": "w", "spec": {"podSpec": pods()}}]});
    let set = json!({"apiVersion": "grove.io/v1alpha1", "kind": "PodCliqueSet", "metadata": {"name": "a"}, "spec": {"template": template}});
    sets.create(&PostParams::default(), &serde_json::from_value(set)?)
        .await?;
    let old = json!({"spec": {"template": {"topologyConstraint": {"topologyName": "t", "packDomain": "rack"}}}});
    sets.patch("a", &PatchParams::default(), &Patch::Merge(old))
        .await?;
    let scaled = sets
        .patch(
            "a",
            &PatchParams::default(),
            &Patch::Merge(json!({"spec": {"replicas": 2}})),
        )
        .await?;
    let constraint = scaled
        .spec
        .template
        .topology_constraint
        .context("a constraint")?;
    assert_eq!(
        (scaled.spec.replicas, constraint.required_domain()),
        (2, Some("rack"))
    );
    Ok(())
}

fn clique() -> Value {
    json!({
        "apiVersion": "grove.io/v1alpha1", "kind": "PodClique", "metadata": {"name": "a"},
        "spec": {"replicas": 3, "minAvailable": 2, "podSpec": pods()},
    })
}

fn group() -> Value {
    json!({
        "apiVersion": "grove.io/v1alpha1", "kind": "PodCliqueScalingGroup", "metadata": {"name": "a"},
        "spec": {"replicas": 3, "minAvailable": 2, "cliqueNames": ["w"]},
    })
}

#[tokio::test]
async fn other_objects_that_break_a_rule_are_refused() -> Result<()> {
    let (_, client, namespace) = cluster("rules").await?;
    let below = "replicas must be 0 or at least minAvailable";
    let cliques: Api<PodClique> = Api::namespaced(client.clone(), &namespace);
    let examples: &[(&str, Value, &[&str])] = &[
        ("spec.replicas", json!(1), &["spec.replicas", below]),
        ("spec.replicas", json!(-1), &["spec.replicas"]),
        ("spec.minAvailable", json!(0), &["spec.minAvailable"]),
        ("spec", Value::Null, &["spec", "Required"]),
    ];
    refuses(&cliques, clique(), examples).await?;

    let groups: Api<PodCliqueScalingGroup> = Api::namespaced(client.clone(), &namespace);
    let examples: &[(&str, Value, &[&str])] = &[
        ("spec.replicas", json!(1), &["spec.replicas", below]),
        ("spec.replicas", json!(-1), &["spec.replicas"]),
        ("spec.minAvailable", json!(0), &["spec.minAvailable"]),
        ("spec.cliqueNames", json!([]), &["spec.cliqueNames"]),
        (
            "spec.cliqueNames",
            Value::Null,
            &["spec.cliqueNames", "Required"],
        ),
    ];
    refuses(&groups, group(), examples).await?;

    let topologies: Api<ClusterTopologyBinding> = Api::all(client.clone());
    let base = json!({
        "apiVersion": "grove.io/v1alpha1", "kind": "ClusterTopologyBinding", "metadata": {"name": namespace},
        "spec": {
            "levels": [{"domain": "rack", "key": "topology.kubernetes.io/rack"}],
            "schedulerTopologyBindings": [{"schedulerName": "kai-scheduler", "topologyReference": "t"}],
        },
    });
    let long_prefix = format!("{}.example.com/rack", "a".repeat(60));
    let mut long = base.clone();
    put(&mut long, "spec.levels.0.key", json!(long_prefix));
    topologies
        .create(
            &PostParams {
                dry_run: true,
                field_manager: None,
            },
            &serde_json::from_value(long)?,
        )
        .await?;
    let examples: &[(&str, Value, &[&str])] = &[
        ("spec.levels", json!([]), &["spec.levels", "at least 1"]),
        (
            "spec.levels.0.domain",
            json!("9rack"),
            &["levels[0].domain", "should match"],
        ),
        (
            "spec.levels.0.domain",
            Value::Null,
            &["levels[0].domain", "Required"],
        ),
        (
            "spec.levels.0.key",
            json!("a b"),
            &["levels[0].key", "should match"],
        ),
        (
            "spec.levels.0.key",
            json!(format!("x/{}", "k".repeat(64))),
            &["levels[0].key", "should match"],
        ),
        ("spec.levels.0.key", json!(""), &["levels[0].key"]),
        (
            "spec.schedulerTopologyBindings.0.topologyReference",
            Value::Null,
            &["topologyReference", "Required"],
        ),
    ];
    refuses(&topologies, base, examples).await?;

    let gangs: Api<PodGang> = Api::namespaced(client, &namespace);
    let base = json!({
        "apiVersion": "scheduler.grove.io/v1alpha1", "kind": "PodGang", "metadata": {"name": "a"},
        "spec": {"podgroups": [{"name": "g", "minReplicas": 1, "podReferences": []}]},
    });
    let examples: &[(&str, Value, &[&str])] = &[
        (
            "spec.podgroups",
            Value::Null,
            &["spec.podgroups", "Required"],
        ),
        (
            "spec.podgroups.0.minReplicas",
            Value::Null,
            &["podgroups[0].minReplicas", "Required"],
        ),
        (
            "spec.podgroups.0.podReferences",
            json!([{"name": "p"}]),
            &["podReferences[0].namespace", "Required"],
        ),
    ];
    refuses(&gangs, base, examples).await
}

/// Scales an object through `/scale` and returns the replicas that its spec then has.
async fn scale<K>(api: &Api<K>, replicas: i32) -> Result<i32, String>
where
    K: Clone + DeserializeOwned + std::fmt::Debug + kube::Resource,
{
    let patch = Patch::Merge(json!({"spec": {"replicas": replicas}}));
    match api.patch_scale("a", &PatchParams::default(), &patch).await {
        Ok(scale) => Ok(scale.spec.and_then(|spec| spec.replicas).unwrap_or(0)),
        Err(kube::Error::Api(status)) => Err(status.message),
        Err(error) => Err(error.to_string()),
    }
}

#[tokio::test]
async fn scale_works_on_three_kinds_and_keeps_the_floor() -> Result<()> {
    let (_, client, namespace) = cluster("scale").await?;
    let sets: Api<PodCliqueSet> = Api::namespaced(client.clone(), &namespace);
    let template = json!({"cliques": [{"name": "w", "spec": {"podSpec": pods()}}]});
    let set = json!({"apiVersion": "grove.io/v1alpha1", "kind": "PodCliqueSet", "metadata": {"name": "a"}, "spec": {"template": template}});
    let created = sets
        .create(&PostParams::default(), &serde_json::from_value(set)?)
        .await?;
    assert_eq!(created.spec.replicas, 0, "left out it is 0");
    assert_eq!(scale(&sets, 3).await, Ok(3));
    let status = json!({"status": {"replicas": 2, "availableReplicas": 1, "updatedReplicas": 0, "hpaPodSelector": "a=b"}});
    sets.patch_status("a", &PatchParams::default(), &Patch::Merge(status))
        .await?;
    let seen = sets
        .get_scale("a")
        .await?
        .status
        .context("a scale status")?;
    assert_eq!((seen.replicas, seen.selector.as_deref()), (2, Some("a=b")));

    let cliques: Api<PodClique> = Api::namespaced(client.clone(), &namespace);
    cliques
        .create(&PostParams::default(), &serde_json::from_value(clique())?)
        .await?;
    let status = json!({"status": {
        "replicas": 3, "readyReplicas": 2, "updatedReplicas": 0, "scheduleGatedReplicas": 0, "scheduledReplicas": 2, "hpaPodSelector": "c=d",
    }});
    cliques
        .patch_status("a", &PatchParams::default(), &Patch::Merge(status))
        .await?;
    let seen = cliques
        .get_scale("a")
        .await?
        .status
        .context("a scale status")?;
    assert_eq!((seen.replicas, seen.selector.as_deref()), (3, Some("c=d")));
    keeps_the_floor(&cliques).await?;

    let groups: Api<PodCliqueScalingGroup> = Api::namespaced(client, &namespace);
    groups
        .create(&PostParams::default(), &serde_json::from_value(group())?)
        .await?;
    let status = json!({"status": {"replicas": 3, "scheduledReplicas": 0, "availableReplicas": 0, "updatedReplicas": 0, "selector": "e=f"}});
    groups
        .patch_status("a", &PatchParams::default(), &Patch::Merge(status))
        .await?;
    let seen = groups
        .get_scale("a")
        .await?
        .status
        .context("a scale status")?;
    assert_eq!((seen.replicas, seen.selector.as_deref()), (3, Some("e=f")));
    keeps_the_floor(&groups).await
}

/// An object `a` with three replicas and a minimum of two.
async fn keeps_the_floor<K>(api: &Api<K>) -> Result<()>
where
    K: Clone + DeserializeOwned + std::fmt::Debug + kube::Resource,
{
    assert_eq!(scale(api, 2).await, Ok(2));
    let refusal = scale(api, 1).await.expect_err("below the minimum");
    ensure!(refusal.contains("spec.replicas"), "{refusal}");
    assert_eq!(scale(api, 0).await, Ok(0));
    assert_eq!(scale(api, 1).await, Ok(1), "waking from zero");
    api.patch(
        "a",
        &PatchParams::default(),
        &Patch::<Value>::Merge(json!({"metadata": {"labels": {"x": "y"}}})),
    )
    .await?;
    assert_eq!(scale(api, 1).await, Ok(1), "what lies below may stay there");
    assert_eq!(scale(api, 4).await, Ok(4));
    Ok(())
}

/// Columns with their cells of the first row; a column that only `-o wide` shows has a star.
async fn columns(client: &Client, path: &str) -> Result<Vec<String>> {
    let request = http::Request::get(path)
        .header("Accept", "application/json;as=Table;g=meta.k8s.io;v=v1")
        .body(Vec::new())?;
    let table: Value = client.request(request).await?;
    let cells = table["rows"][0]["cells"].as_array().context("a row")?;
    let columns = table["columnDefinitions"]
        .as_array()
        .context("columns")?
        .iter()
        .zip(cells);
    Ok(columns
        .map(|(column, cell)| {
            let star = if column["priority"] == 0 { "" } else { "*" };
            let cell = if column["name"] == "Age" {
                &Value::Null
            } else {
                cell
            };
            format!(
                "{}{star}={cell}",
                column["name"].as_str().unwrap_or_default()
            )
        })
        .collect())
}

#[tokio::test]
async fn kubectl_get_shows_upstreams_columns() -> Result<()> {
    let (_, client, namespace) = cluster("columns").await?;
    let breached = json!([{
        "type": "MinAvailableBreached", "status": "True", "reason": "InsufficientReadyPods", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }]);
    let sets: Api<PodCliqueSet> = Api::namespaced(client.clone(), &namespace);
    let template = json!({"cliques": [{"name": "w", "spec": {"podSpec": pods()}}]});
    let set = json!({"apiVersion": "grove.io/v1alpha1", "kind": "PodCliqueSet", "metadata": {"name": "a"}, "spec": {"replicas": 5, "template": template}});
    sets.create(&PostParams::default(), &serde_json::from_value(set)?)
        .await?;
    let status = json!({"status": {"availableReplicas": 4, "updatedReplicas": 3, "updateProgress": {
        "updatedPodCliquesCount": 1, "totalPodCliquesCount": 2, "updatedPodCliqueScalingGroupsCount": 6, "totalPodCliqueScalingGroupsCount": 7,
    }}});
    sets.patch_status("a", &PatchParams::default(), &Patch::Merge(status))
        .await?;
    let shown = columns(
        &client,
        &format!("/apis/grove.io/v1alpha1/namespaces/{namespace}/podcliquesets"),
    )
    .await?;
    assert_eq!(
        shown,
        [
            "Name=\"a\"",
            "Replicas=5",
            "Available=4",
            "Updated=3",
            "PCLQs-Updated=1",
            "PCLQs-Total=2",
            "PCSGs-Updated=6",
            "PCSGs-Total=7",
            "Age=null"
        ]
    );

    let cliques: Api<PodClique> = Api::namespaced(client.clone(), &namespace);
    cliques
        .create(&PostParams::default(), &serde_json::from_value(clique())?)
        .await?;
    let status = json!({"status": {
        "readyReplicas": 4, "scheduledReplicas": 5, "updatedReplicas": 6, "scheduleGatedReplicas": 7, "conditions": breached,
    }});
    cliques
        .patch_status("a", &PatchParams::default(), &Patch::Merge(status))
        .await?;
    let shown = columns(
        &client,
        &format!("/apis/grove.io/v1alpha1/namespaces/{namespace}/podcliques"),
    )
    .await?;
    assert_eq!(
        shown,
        [
            "Name=\"a\"",
            "MinAvail=2",
            "Replicas=3",
            "Ready=4",
            "Scheduled=5",
            "Updated=6",
            "Gated*=7",
            "MinBreached*=\"True\"",
            "Age=null"
        ]
    );

    let groups: Api<PodCliqueScalingGroup> = Api::namespaced(client.clone(), &namespace);
    groups
        .create(&PostParams::default(), &serde_json::from_value(group())?)
        .await?;
    let status = json!({"status": {
        "availableReplicas": 4, "scheduledReplicas": 5, "updatedReplicas": 6, "conditions": breached,
        "updateProgress": {"updateStartedAt": "2026-01-01T00:00:00Z", "podCliqueSetGenerationHash": "h", "updatedPodCliquesCount": 8, "totalPodCliquesCount": 9},
    }});
    groups
        .patch_status("a", &PatchParams::default(), &Patch::Merge(status))
        .await?;
    let shown = columns(
        &client,
        &format!("/apis/grove.io/v1alpha1/namespaces/{namespace}/podcliquescalinggroups"),
    )
    .await?;
    assert_eq!(
        shown,
        [
            "Name=\"a\"",
            "MinAvail=2",
            "Replicas=3",
            "Available=4",
            "Scheduled=5",
            "Updated=6",
            "PCLQs-Updated=8",
            "PCLQs-Total=9",
            "MinBreached*=\"True\"",
            "Age=null"
        ]
    );

    let gangs: Api<PodGang> = Api::namespaced(client.clone(), &namespace);
    let gang = json!({"apiVersion": "scheduler.grove.io/v1alpha1", "kind": "PodGang", "metadata": {"name": "a"}, "spec": {"podgroups": []}});
    gangs
        .create(&PostParams::default(), &serde_json::from_value(gang)?)
        .await?;
    gangs
        .patch_status(
            "a",
            &PatchParams::default(),
            &Patch::Merge(json!({"status": {"phase": "Running"}})),
        )
        .await?;
    let shown = columns(
        &client,
        &format!("/apis/scheduler.grove.io/v1alpha1/namespaces/{namespace}/podgangs"),
    )
    .await?;
    assert_eq!(shown, ["Name=\"a\"", "Phase=\"Running\"", "Age=null"]);

    let topologies: Api<ClusterTopologyBinding> = Api::all(client.clone());
    let levels = json!([{"domain": "rack", "key": "a/rack"}, {"domain": "host", "key": "a/host"}]);
    let topology = json!({"apiVersion": "grove.io/v1alpha1", "kind": "ClusterTopologyBinding", "metadata": {"name": namespace}, "spec": {"levels": levels}});
    topologies
        .create(&PostParams::default(), &serde_json::from_value(topology)?)
        .await?;
    let shown = columns(
        &client,
        &format!("/apis/grove.io/v1alpha1/clustertopologybindings/{namespace}"),
    )
    .await?;
    assert_eq!(shown[0], format!("Name=\"{namespace}\""));
    ensure!(shown[1].starts_with("Domains=\"rack"), "{shown:?}");
    Ok(())
}

#[tokio::test]
async fn two_writers_share_lists_that_have_keys() -> Result<()> {
    let (_, client, namespace) = cluster("writers").await?;
    let gangs: Api<PodGang> = Api::namespaced(client, &namespace);
    let gang = json!({"apiVersion": "scheduler.grove.io/v1alpha1", "kind": "PodGang", "metadata": {"name": "a"}, "spec": {"podgroups": []}});
    gangs
        .create(&PostParams::default(), &serde_json::from_value(gang)?)
        .await?;
    for (manager, kind) in [("operator", "Initialized"), ("scheduler", "Scheduled")] {
        let condition = json!({"type": kind, "status": "True", "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let status = json!({
            "apiVersion": "scheduler.grove.io/v1alpha1", "kind": "PodGang", "status": {"phase": "Pending", "conditions": [condition]},
        });
        gangs
            .patch_status(
                "a",
                &PatchParams::apply(manager).force(),
                &Patch::Apply(status),
            )
            .await?;
    }
    let status = gangs.get("a").await?.status.context("a status")?;
    let kinds: Vec<String> = status
        .conditions
        .into_iter()
        .flatten()
        .map(|condition| condition.type_)
        .collect();
    assert_eq!(kinds, ["Initialized", "Scheduled"]);
    Ok(())
}

/// A field that the embedded pod does not have is refused by kubectl instead of being dropped without a word.
#[tokio::test]
async fn an_unknown_field_of_a_pod_is_reported() -> Result<()> {
    let (_, client, namespace) = cluster("unknown").await?;
    let mut set = json!({
        "apiVersion": "grove.io/v1alpha1", "kind": "PodCliqueSet", "metadata": {"name": "a"},
        "spec": {"template": {"cliques": [{"name": "w", "spec": {"podSpec": pods()}}]}},
    });
    put(
        &mut set,
        "spec.template.cliques.0.spec.podSpec.containers.0.imagePulPolicy",
        json!("Always"),
    );
    let path = format!(
        "/apis/grove.io/v1alpha1/namespaces/{namespace}/podcliquesets?fieldValidation=Strict"
    );
    let request = http::Request::post(path)
        .header("Content-Type", "application/json")
        .body(serde_json::to_vec(&set)?)?;
    let refusal = client
        .request::<Value>(request)
        .await
        .expect_err("a misspelt field")
        .to_string();
    ensure!(
        refusal.contains("containers[0].imagePulPolicy"),
        "{refusal}"
    );
    Ok(())
}
