//! Admission by a real API server: what is wrong is refused before it is stored, what is missing is stated, what gangs were placed by stays,
//! and registering leaves nothing to write.

use std::net::{Ipv4Addr, TcpListener};
use std::process::Stdio;

use anyhow::{Context as _, Result, ensure};
use coppice_operator_api::{PodClique, PodCliqueSet};
use coppice_testbed::{Profile, wait};
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams,
};
use kube::core::Status;
use kube::{Api, Client, Resource, ResourceExt};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

use crate::support::{LIMIT, QUIET, World};

/// A manifest as somebody in a hurry writes it.
fn short() -> Value {
    // Nodes of other tests come and go; pods that found one would make the operator write at any time.
    let pods = json!({"nodeSelector": {"pool": "nowhere"}, "containers": [{"name": "main", "image": "registry.example/app:1"}]});
    json!({
        "apiVersion": "grove.io/v1alpha1", "kind": "PodCliqueSet", "metadata": {"name": "svc"},
        "spec": {"replicas": 1, "template": {
            "cliqueStartupType": "CliqueStartupTypeExplicit",
            "cliques": [
                {"name": "front", "spec": {"roleName": "front", "replicas": 2, "autoScalingConfig": {"maxReplicas": 4}, "podSpec": pods}},
                {"name": "lead", "spec": {"roleName": "lead", "startsAfter": ["front"], "podSpec": pods}},
                {"name": "work", "spec": {"roleName": "work", "replicas": 0, "startsAfter": ["lead"], "podSpec": pods}},
            ],
            "podCliqueScalingGroups": [{"name": "pre", "cliqueNames": ["lead", "work"], "replicas": 2, "scaleConfig": {"maxReplicas": 5}}],
        }},
    })
}

/// Sets as a client without our types writes them.
fn raw(client: &Client, namespace: &str) -> Api<DynamicObject> {
    Api::namespaced_with(
        client.clone(),
        namespace,
        &ApiResource::erase::<PodCliqueSet>(&()),
    )
}

async fn create(
    api: &Api<DynamicObject>,
    set: &Value,
    dry_run: bool,
) -> kube::Result<DynamicObject> {
    let object = serde_json::from_value(set.clone()).unwrap();
    let params = PostParams {
        dry_run,
        field_manager: None,
    };
    api.create(&params, &object).await
}

/// The refusal of the API server.
pub(crate) fn refusal<T: std::fmt::Debug>(answer: kube::Result<T>) -> Result<Status> {
    match answer {
        Err(kube::Error::Api(status)) => Ok(*status),
        other => anyhow::bail!("not refused: {other:?}"),
    }
}

/// Field and message of every cause.
fn causes(status: &Status) -> Vec<(String, String)> {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    causes
        .map(|cause| (cause.field.clone(), cause.message.clone()))
        .collect()
}

/// Lets every user of the test cluster keep a certificate in that Secret of namespace `default`, which is the operator's own there.
async fn allow_secret(client: &Client, name: &str) -> Result<()> {
    let rules = json!([
        {"apiGroups": [""], "resources": ["secrets"], "verbs": ["create"]},
        {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get", "update"], "resourceNames": [name]},
    ]);
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": name}, "rules": rules});
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:authenticated"}],
    });
    coppice_testbed::apply(client, &format!("{role}\n---\n{binding}"), "default").await?;
    Ok(())
}

/// A free port, which stays the operator's over restarts.
fn free_port() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    Ok(listener.local_addr()?.port())
}

/// An operator with webhooks by URL, and their certificate in a Secret. Returns when the API server asks it.
async fn world(secret: &str) -> Result<World> {
    world_with(secret, &[]).await
}

/// The same with more arguments.
pub(crate) async fn world_with(secret: &str, more: &[&str]) -> Result<World> {
    let cluster = crate::support::cluster(Profile::Native).await?;
    allow_secret(&cluster.client(), secret).await?;
    let port = free_port()?;
    let arguments = [
        "--webhook-url-host=127.0.0.1".to_owned(),
        format!("--webhook-address=127.0.0.1:{port}"),
        format!("--tls-secret={secret}"),
    ];
    let arguments = arguments.iter().map(String::as_str);
    let arguments: Vec<&str> = arguments.chain(more.iter().copied()).collect();
    let world = World::new(Profile::Native, secret, &arguments).await?;
    in_effect(&world).await?;
    Ok(world)
}

/// Both webhooks answer. The API server learns of a configuration by a watch of its own.
async fn in_effect(world: &World) -> Result<()> {
    let sets = raw(&world.client, &world.namespace);
    let mut good = short();
    good["metadata"]["name"] = json!("probe");
    let mut wrong = good.clone();
    wrong["spec"]["template"]["cliques"][1]["spec"]["startsAfter"] = json!(["gone"]);
    wait::until(LIMIT, "the webhooks to be asked", || async {
        let accepted = create(&sets, &good, true).await?;
        ensure!(
            accepted.data["spec"]["template"]["terminationDelay"] == "4h0m0s",
            "no default yet"
        );
        let status = refusal(create(&sets, &wrong, true).await)?;
        ensure!(
            status.message.contains("pcs.validating.webhooks.grove.io"),
            "{}",
            status.message
        );
        anyhow::Ok(())
    })
    .await?;
    Ok(())
}

/// What a person sees who creates it with kubectl.
async fn kubectl_create(world: &World, set: &Value) -> Result<String> {
    let mut kubectl = tokio::process::Command::new(coppice_testbed::control_plane_program()?)
        .args([
            "kubectl",
            "create",
            "--filename=-",
            "--namespace",
            &world.namespace,
        ])
        .arg("--kubeconfig")
        .arg(world.cluster.kubeconfig())
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot start kubectl")?;
    let mut stdin = kubectl.stdin.take().context("no stdin")?;
    stdin.write_all(set.to_string().as_bytes()).await?;
    drop(stdin);
    let output = kubectl.wait_with_output().await?;
    ensure!(!output.status.success(), "kubectl created it");
    Ok(String::from_utf8_lossy(&output.stderr).into_owned())
}

/// One step of a JSON patch, to an object at that path of the API.
async fn edit(client: &Client, object: &str, field: &str, value: Value) -> kube::Result<Value> {
    let step = json!([{"op": "add", "path": field, "value": value}]);
    let request = http::Request::patch(object)
        .header("Content-Type", "application/json-patch+json")
        .body(step.to_string().into_bytes())
        .unwrap();
    client.request(request).await
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_manifests_are_refused_whole_and_defaults_arrive() -> Result<()> {
    let world = world("admission").await?;
    let sets = raw(&world.client, &world.namespace);

    let mut wrong = short();
    wrong["metadata"]["name"] = json!("my.svc");
    let template = &mut wrong["spec"]["template"];
    template["cliques"][0]["spec"]["minAvailable"] = json!(3);
    template["cliques"][0]["spec"]["startsAfter"] = json!(["work"]);
    template["cliques"][2]["spec"]["roleName"] = json!("lead");
    template["podCliqueScalingGroups"][0]["cliqueNames"] = json!(["lead", "work", "gone"]);
    let status = refusal(create(&sets, &wrong, false).await)?;
    assert_eq!((status.code, status.reason.as_str()), (422, "Invalid"));
    assert!(
        status.message.starts_with(
            "admission webhook \"pcs.validating.webhooks.grove.io\" denied the request: PodCliqueSet.grove.io \"my.svc\" is invalid: \
             [metadata.name: Invalid value: \"my.svc\": may only hold lowercase letters, digits and '-', "
        ),
        "{}",
        status.message
    );
    let causes = causes(&status);
    let fields: Vec<&str> = causes.iter().map(|(field, _)| field.as_str()).collect();
    assert_eq!(
        fields,
        [
            "metadata.name",
            "spec.template.cliques[0].spec.minAvailable",
            "spec.template.podCliqueScalingGroups[0].cliqueNames[2]",
            "spec.template.cliques[1].spec.startsAfter[0]",
            "spec.template.cliques[2].spec.roleName",
            "spec.template.cliques[0].spec.autoScalingConfig.minReplicas",
        ]
    );
    assert!(
        causes[3]
            .1
            .contains("(front after work after lead after front)"),
        "{causes:?}"
    );
    let shown = kubectl_create(&world, &wrong).await?;
    let line = "* spec.template.cliques[2].spec.roleName: Duplicate value: \"lead\": is the role of clique lead already";
    assert!(
        shown.contains("The PodCliqueSet \"my.svc\" is invalid") && shown.contains(line),
        "{shown}"
    );
    assert!(
        sets.list(&ListParams::default()).await?.items.is_empty(),
        "nothing is stored"
    );
    assert!(
        world.names::<PodClique>().await?.is_empty(),
        "nothing is half-created"
    );

    // Only the namespaces of this operator ask it.
    let elsewhere = raw(&world.client, &world.cluster.namespace("elsewhere").await?);
    let mut foreign = wrong.clone();
    foreign["spec"]["replicas"] = json!(0);
    create(&elsewhere, &foreign, false)
        .await
        .context("another namespace")?;

    create(&sets, &short(), false).await?;
    let stored = world.api::<PodCliqueSet>().get("svc").await?;
    let spec = serde_json::to_value(&stored.spec)?;
    let template = &spec["template"];
    assert_eq!(template["terminationDelay"], "4h0m0s");
    assert_eq!(
        template["headlessServiceConfig"],
        json!({"publishNotReadyAddresses": true})
    );
    let cliques = template["cliques"].as_array().context("cliques")?;
    let counts: Vec<Value> = cliques
        .iter()
        .map(|clique| {
            json!([
                clique["spec"]["replicas"],
                clique["spec"]["minAvailable"],
                clique["spec"]["podSpec"]["restartPolicy"]
            ])
        })
        .collect();
    assert_eq!(
        counts,
        [
            json!([2, 2, "Always"]),
            json!([1, 1, "Always"]),
            json!([1, 1, "Always"])
        ]
    );
    assert_eq!(cliques[0]["spec"]["autoScalingConfig"]["minReplicas"], 2);
    assert_eq!(
        template["podCliqueScalingGroups"][0]["scaleConfig"]["minReplicas"],
        2
    );

    what_gangs_were_placed_by_stays(&world, &sets).await?;

    // What was added to an applied manifest is not taken away by applying it again.
    world.apply(&short().to_string()).await?;
    let generation = sets.get("svc").await?.metadata.generation;
    world.apply(&short().to_string()).await?;
    assert_eq!(sets.get("svc").await?.metadata.generation, generation);
    Ok(())
}

async fn what_gangs_were_placed_by_stays(world: &World, sets: &Api<DynamicObject>) -> Result<()> {
    let before = sets.get("svc").await?;
    let url = format!("{}/svc", sets.resource_url());
    let change = |field: String, value: Value| {
        let (client, url) = (&world.client, &url);
        async move { edit(client, url, &field, value).await }
    };
    let template = "/spec/template";
    for (path, value, field) in [
        (
            "/cliqueStartupType",
            json!("CliqueStartupTypeAnyOrder"),
            "spec.template.cliqueStartupType",
        ),
        (
            "/cliques/1/spec/roleName",
            json!("boss"),
            "spec.template.cliques[1].spec.roleName",
        ),
        (
            "/cliques/0/spec/minAvailable",
            json!(1),
            "spec.template.cliques[0].spec.minAvailable",
        ),
        (
            "/podCliqueScalingGroups/0/cliqueNames",
            json!(["lead"]),
            "spec.template.podCliqueScalingGroups[0].cliqueNames",
        ),
        (
            "/cliques/-",
            json!({"name": "new", "spec": {"roleName": "new", "podSpec": {"containers": []}}}),
            "spec.template.cliques[3].name",
        ),
    ] {
        let status = refusal(change(format!("{template}{path}"), value).await)?;
        assert_eq!(status.code, 422, "{}", status.message);
        assert!(
            causes(&status).iter().any(|(refused, _)| refused == field),
            "{}",
            status.message
        );
        assert!(
            status
                .message
                .contains("create another PodCliqueSet for that"),
            "{}",
            status.message
        );
    }
    let after = sets.get("svc").await?;
    assert_eq!(
        before.metadata.generation, after.metadata.generation,
        "nothing was stored"
    );

    // Replicas, images, and the number of a clique without its minimum.
    change("/spec/replicas".to_owned(), json!(2)).await?;
    let image = format!("{template}/cliques/0/spec/podSpec/containers/0/image");
    change(image, json!("registry.example/app:2")).await?;
    let mut again = short();
    again["spec"]["template"]["cliques"][0]["spec"]["replicas"] = json!(3);
    let replaced = wait::until(
        LIMIT,
        "a replace between two writes of the status",
        || async {
            let mut again = again.clone();
            again["metadata"]["resourceVersion"] = json!(sets.get("svc").await?.resource_version());
            let object = serde_json::from_value(again)?;
            anyhow::Ok(sets.replace("svc", &PostParams::default(), &object).await?)
        },
    )
    .await?;
    let front = &replaced.data["spec"]["template"]["cliques"][0]["spec"];
    assert_eq!(
        (&front["replicas"], &front["minAvailable"]),
        (&json!(3), &json!(2))
    );
    world.scale_set("svc", 0).await?;
    sets.delete("svc", &DeleteParams::default()).await?;
    wait::until(LIMIT, "the set to go", || async {
        ensure!(sets.get_opt("svc").await?.is_none(), "it is still there");
        anyhow::Ok(())
    })
    .await?;
    Ok(())
}

/// What registration consists of, each by its version.
async fn registered(world: &World, secret: &str) -> Result<[Option<String>; 3]> {
    let namespace = &world.namespace;
    let mutating: Api<MutatingWebhookConfiguration> = Api::all(world.client.clone());
    let validating: Api<ValidatingWebhookConfiguration> = Api::all(world.client.clone());
    let secrets: Api<Secret> = Api::namespaced(world.client.clone(), "default");
    Ok([
        mutating
            .get(&format!("podcliqueset-defaulting-webhook-{namespace}"))
            .await?
            .resource_version(),
        validating
            .get(&format!("podcliqueset-validating-webhook-{namespace}"))
            .await?
            .resource_version(),
        secrets.get(secret).await?.resource_version(),
    ])
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_writes_nothing_and_an_operator_that_is_away_holds_up_nothing_else() -> Result<()>
{
    let mut world = world("admission-again").await?;
    let sets = raw(&world.client, &world.namespace);
    create(&sets, &short(), false).await?;
    wait::until(LIMIT, "the finalizer", || async {
        let set = sets.get("svc").await?;
        ensure!(!set.finalizers().is_empty(), "none yet");
        anyhow::Ok(())
    })
    .await?;
    world.settle(QUIET).await?;

    let before = registered(&world, "admission-again").await?;
    let audit = world.cluster.audit();
    let mark = audit.mark()?;
    world.kill_operator()?;
    world.start_operator().await?;
    in_effect(&world).await?;
    world.settle(QUIET).await?;
    let user = format!("operator-{}", world.namespace);
    let writes: Vec<String> = audit
        .since(mark)?
        .iter()
        .filter(|write| write.user == user && !write.is_lease())
        .map(ToString::to_string)
        .collect();
    ensure!(writes.is_empty(), "a restart wrote {writes:?}");
    assert_eq!(registered(&world, "admission-again").await?, before);

    // What somebody softens is mended.
    let validating: Api<ValidatingWebhookConfiguration> = Api::all(world.client.clone());
    let name = format!("podcliqueset-validating-webhook-{}", world.namespace);
    let url = format!(
        "{}/{name}",
        ValidatingWebhookConfiguration::url_path(&(), None)
    );
    edit(
        &world.client,
        &url,
        "/webhooks/0/failurePolicy",
        json!("Ignore"),
    )
    .await?;
    wait::until(LIMIT, "the policy to come back", || async {
        let webhooks = validating.get(&name).await?.webhooks.unwrap_or_default();
        let policy = webhooks[0].failure_policy.clone();
        ensure!(policy.as_deref() == Some("Fail"), "{policy:?}");
        anyhow::Ok(())
    })
    .await?;

    world.kill_operator()?;
    let mut other = short();
    other["metadata"]["name"] = json!("other");
    let status = refusal(create(&sets, &other, false).await)?;
    assert!(
        status.message.contains("failed calling webhook"),
        "{}",
        status.message
    );
    let maps: Api<ConfigMap> = Api::namespaced(world.client.clone(), &world.namespace);
    let map = serde_json::from_value(json!({"metadata": {"name": "unrelated"}}))?;
    maps.create(&PostParams::default(), &map)
        .await
        .context("an unrelated object")?;
    world
        .scale_set("svc", 2)
        .await
        .context("/scale while nobody answers")?;
    sets.delete("svc", &DeleteParams::default()).await?;
    let freed = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    sets.patch("svc", &PatchParams::default(), &freed)
        .await
        .context("the end of a set while nobody answers")?;
    assert!(sets.get_opt("svc").await?.is_none());
    Ok(())
}

/// In a cluster: through a Service, with a certificate that all replicas share, so that any of them can be asked.
#[tokio::test(flavor = "multi_thread")]
async fn behind_a_service_a_replica_that_does_not_lead_answers_too() -> Result<()> {
    let name = "admission-service";
    let cluster = crate::support::cluster(Profile::Native).await?;
    allow_secret(&cluster.client(), name).await?;
    // The API server runs on the host, where a Service of pods leads nowhere; one that names a host is asked for the same certificate.
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": {"type": "ExternalName", "externalName": "localhost"}});
    coppice_testbed::apply(&cluster.client(), &service.to_string(), "default").await?;
    let port = free_port()?;
    let flags = [
        format!("--webhook-service={name}"),
        format!("--webhook-service-port={port}"),
        format!("--webhook-address=127.0.0.1:{port}"),
        format!("--tls-secret={name}"),
    ];
    let flags = flags.each_ref().map(String::as_str);
    let mut world = World::new(Profile::Native, name, &flags).await?;
    in_effect(&world).await?;

    world.kill_operator()?;
    let identity = coppice_testbed::Identity {
        user: format!("operator-{}", world.namespace),
        groups: Vec::new(),
    };
    // It has no rights on a Lease, so it will never lead.
    let mut follower = tokio::process::Command::new(env!("CARGO_BIN_EXE_coppice-operator"))
        .args([
            "run",
            "--leader-elect=true",
            "--admin-address=127.0.0.1:0",
            "--namespace",
            &world.namespace,
        ])
        .arg("--kubeconfig")
        .arg(cluster.kubeconfig_as(&identity)?)
        .args(flags)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .context("cannot start a follower")?;
    in_effect(&world).await?;
    follower.kill().await?;
    Ok(())
}

/// A certificate runs out in months; one that is gone has to be replaced in the same way, with another authority on top.
#[tokio::test(flavor = "multi_thread")]
async fn another_certificate_is_told_to_the_api_server() -> Result<()> {
    let name = "admission-renewed";
    let world = world(name).await?;
    let [mutating, validating, _] = registered(&world, name).await?;
    let secrets: Api<Secret> = Api::namespaced(world.client.clone(), "default");
    secrets.delete(name, &DeleteParams::default()).await?;
    wait::until(LIMIT, "another authority", || async {
        let [mutating_now, validating_now, _] = registered(&world, name).await?;
        ensure!(
            mutating_now != mutating && validating_now != validating,
            "still the old one"
        );
        anyhow::Ok(())
    })
    .await?;
    in_effect(&world).await
}
