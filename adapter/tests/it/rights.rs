//! Least privilege, on the real API server: with the rights that `manifests` prints the adapter is refused nothing, and each of these
//! rights is one that it uses.

use std::collections::BTreeSet;

use anyhow::{Context, ensure};
use coppice_testbed::{Identity, wait};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Secret, Service};
use k8s_openapi::api::rbac::v1::{
    ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, Subject,
};
use kube::Api;
use kube::api::{DeleteParams, DynamicObject, PostParams};
use serde::de::DeserializeOwned;

use crate::recorder::{Deed, Recorder};
use crate::world::{Adapter, BASE, Engine, LIMIT, OUTSIDE, SYSTEM, World, manifests, outside};

const ACCOUNT: &str = "coppice-adapter";

#[tokio::test(flavor = "multi_thread")]
async fn an_adapter_in_pods_has_the_rights_that_it_uses_and_no_others() -> anyhow::Result<()> {
    let printed = manifests(&["--apis=both"]).await?;
    let world = World::start_with(&printed).await?;
    let flags = pod_flags(&printed)?;
    let used = use_everything(&world, &flags, async || {
        // The Secret was created by the first run; now it holds something else, and the next run must replace that.
        let secrets: Api<Secret> = Api::namespaced(world.client.clone(), SYSTEM);
        let mut secret = secrets.get("coppice-adapter-tls").await?;
        let nonsense = ("tls.crt".to_owned(), ByteString(b"nonsense".to_vec()));
        secret.data.get_or_insert_default().extend([nonsense]);
        secrets
            .replace("coppice-adapter-tls", &PostParams::default(), &secret)
            .await?;
        Ok(())
    })
    .await?;
    compare(&world, &printed, &used).await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_adapter_outside_has_the_rights_that_it_uses_and_no_others() -> anyhow::Result<()> {
    let printed = manifests(&OUTSIDE).await?;
    let world = World::start_with(&printed).await?;
    let services: Api<Service> = Api::namespaced(world.client.clone(), SYSTEM);
    services.delete(ACCOUNT, &DeleteParams::default()).await?;
    let used = use_everything(&world, &outside(), async || Ok(())).await?;
    compare(&world, &printed, &used).await
}

/// The flags that the Deployment passes to its pods, less the address, which is chosen by the test.
fn pod_flags(printed: &str) -> anyhow::Result<Vec<String>> {
    let documents = coppice_testbed::parse_yaml(printed)?;
    let deployment = documents
        .iter()
        .find(|document| kind(document) == "Deployment")
        .context("a Deployment")?;
    let arguments = &deployment.data["spec"]["template"]["spec"]["containers"][0]["args"];
    let arguments: Vec<String> = serde_json::from_value(arguments.clone())?;
    let chosen_here = ["--bind-address", "--shutdown-delay"];
    let flags = arguments.into_iter().skip_while(|flag| flag == "serve");
    Ok(flags
        .filter(|flag| !chosen_here.iter().any(|chosen| flag.starts_with(chosen)))
        .collect())
}

/// Lets the adapter do everything that it ever does, twice, with `between` in between; returns what that was.
async fn use_everything(
    world: &World,
    flags: &[String],
    between: impl AsyncFnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<BTreeSet<Deed>> {
    let policies = serde_json::json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "scalingpolicies.autoscaling.coppice.dev"},
        "spec": {
            "group": "autoscaling.coppice.dev", "scope": "Namespaced",
            "names": {"kind": "ScalingPolicy", "plural": "scalingpolicies", "singular": "scalingpolicy"},
            "versions": [{
                "name": "v1alpha1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
            }],
        },
    });
    coppice_testbed::apply(&world.client, &policies.to_string(), SYSTEM).await?;
    let identity = Identity::service_account(SYSTEM, ACCOUNT);
    let groups: Vec<&str> = identity.groups.iter().map(String::as_str).collect();
    let client = world.cluster.client_as(&identity.user, &groups);
    let folder = tempfile::tempdir()?;
    let recorder = Recorder::start(client, folder.path(), SYSTEM).await?;
    let namespace = world.cluster.namespace("rights").await?;
    let engine = Engine::start(7).await?;
    engine.pod(&world.client, &namespace, "engine").await?;
    let token = world.token(&namespace, "viewer").await?;
    coppice_testbed::apply(&world.client, &viewer(&namespace), &namespace).await?;

    answers(world, &recorder, flags, &namespace, &token).await?;
    between().await?;
    answers(world, &recorder, flags, &namespace, &token).await?;
    let refused = recorder.refused();
    ensure!(refused.is_empty(), "the API server refused {refused:#?}");
    Ok(recorder.done())
}

fn viewer(namespace: &str) -> String {
    serde_json::json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "viewer"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "coppice-metrics-viewer"},
        "subjects": [{"kind": "ServiceAccount", "name": "viewer", "namespace": namespace}],
    })
    .to_string()
}

/// Starts the adapter, asks it for a value with a token, and ends it, when all that it watches is being watched.
async fn answers(
    world: &World,
    recorder: &Recorder,
    flags: &[String],
    namespace: &str,
    token: &str,
) -> anyhow::Result<()> {
    let adapter = Adapter::start(flags, &recorder.kubeconfig).await?;
    let url = format!(
        "https://localhost:{}{BASE}/namespaces/{namespace}/coppice_requests_waiting",
        adapter.address.port()
    );
    wait::until(LIMIT, "a value for the token's bearer", || async {
        // The bundle is that of the run before until this one has registered itself.
        let http = world.direct(&adapter).await?;
        let response = http.get(&url).bearer_auth(token).send().await?;
        let (code, body) = (response.status(), response.text().await?);
        ensure!(
            code == 200 && body.contains("\"value\":\"7\""),
            "{code} {body}"
        );
        Ok::<_, anyhow::Error>(())
    })
    .await?;
    let watched = [
        "pods",
        "scalingpolicies",
        "leases",
        "apiservices",
        "configmaps",
    ];
    wait::until(LIMIT, "every watch", || async {
        let (done, refused) = (recorder.done(), recorder.refused());
        ensure!(refused.is_empty(), "the API server refused {refused:#?}");
        let registered: BTreeSet<_> = done
            .iter()
            .filter(|deed| deed.resource == "apiservices" && deed.verb == "watch")
            .map(|deed| &deed.name)
            .collect();
        ensure!(registered.len() == 3, "registered {registered:?}");
        for resource in watched {
            ensure!(
                done.iter()
                    .any(|deed| deed.resource == resource && deed.verb == "watch"),
                "{resource} are not watched, of {done:#?}"
            );
        }
        Ok::<_, anyhow::Error>(())
    })
    .await?;
    adapter.stop().await
}

/// Every rule that the adapter is bound to, used: each verb of ours, and something of each built-in role.
async fn compare(world: &World, printed: &str, used: &BTreeSet<Deed>) -> anyhow::Result<()> {
    let mut unused = Vec::new();
    for bound in bound(world, printed).await? {
        for rule in &bound.rules {
            let verbs: Vec<&String> = rule.verbs.iter().collect();
            let is_used = |verb: &String| used.iter().any(|deed| covers(&bound, rule, verb, deed));
            if bound.is_ours {
                let idle = verbs.iter().filter(|verb| !is_used(verb));
                unused.extend(
                    idle.map(|verb| format!("{}: {verb} {:?}", bound.role, rule.resources)),
                );
            } else if !verbs.iter().any(|verb| is_used(verb)) {
                unused.push(format!("{}: {:?}", bound.role, rule.resources));
            }
        }
    }
    ensure!(
        unused.is_empty(),
        "rights that are never used: {unused:#?}\nused: {used:#?}"
    );
    Ok(())
}

/// A role that the adapter has.
struct Bound {
    role: String,
    /// `None`: everywhere.
    namespace: Option<String>,
    rules: Vec<PolicyRule>,
    is_ours: bool,
}

fn covers(bound: &Bound, rule: &PolicyRule, verb: &str, deed: &Deed) -> bool {
    let has =
        |list: &Option<Vec<String>>, item: &str| list.iter().flatten().any(|each| each == item);
    deed.verb == verb
        && has(&rule.api_groups, &deed.group)
        && has(&rule.resources, &deed.resource)
        && (rule.resource_names.is_none() || has(&rule.resource_names, &deed.name))
        && bound
            .namespace
            .as_ref()
            .is_none_or(|namespace| *namespace == deed.namespace)
}

async fn bound(world: &World, printed: &str) -> anyhow::Result<Vec<Bound>> {
    let documents = coppice_testbed::parse_yaml(printed)?;
    let is_adapter = |subjects: &Option<Vec<Subject>>| {
        subjects
            .iter()
            .flatten()
            .any(|subject| subject.name == ACCOUNT && subject.namespace.as_deref() == Some(SYSTEM))
    };
    let is_printed = |wanted: &str, name: &str| {
        documents.iter().any(|document| {
            kind(document) == wanted && document.metadata.name.as_deref() == Some(name)
        })
    };
    let mut found = Vec::new();
    for binding in all::<ClusterRoleBinding>(&documents, "ClusterRoleBinding")? {
        if is_adapter(&binding.subjects) {
            let role = binding.role_ref.name;
            let roles: Api<ClusterRole> = Api::all(world.client.clone());
            found.push(Bound {
                rules: roles.get(&role).await?.rules.unwrap_or_default(),
                namespace: None,
                is_ours: is_printed("ClusterRole", &role),
                role,
            });
        }
    }
    for binding in all::<RoleBinding>(&documents, "RoleBinding")? {
        if is_adapter(&binding.subjects) {
            let role = binding.role_ref.name;
            let namespace = binding.metadata.namespace.context("a namespace")?;
            let roles: Api<Role> = Api::namespaced(world.client.clone(), &namespace);
            found.push(Bound {
                rules: roles.get(&role).await?.rules.unwrap_or_default(),
                namespace: Some(namespace),
                is_ours: is_printed("Role", &role),
                role,
            });
        }
    }
    ensure!(found.len() >= 4, "only {} bindings", found.len());
    Ok(found)
}

fn kind(document: &DynamicObject) -> &str {
    document
        .types
        .as_ref()
        .map_or("", |types| types.kind.as_str())
}

fn all<T: DeserializeOwned>(documents: &[DynamicObject], wanted: &str) -> anyhow::Result<Vec<T>> {
    let objects = documents.iter().filter(|document| kind(document) == wanted);
    objects
        .map(|object| Ok(serde_json::from_value(serde_json::to_value(object)?)?))
        .collect()
}
