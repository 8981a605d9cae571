//! The control plane as the library starts it.

use anyhow::ensure;
use coppice_testbed::audit::count;
use coppice_testbed::{Cluster, Component, Identity, Liveness, Profile, apply, shared, wait};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client, Discovery};

use crate::support::LONG;

async fn kinds(client: &Client, group: &str) -> anyhow::Result<Vec<String>> {
    let discovery = Discovery::new(client.clone())
        .filter(&[group])
        .run_aggregated()
        .await?;
    let mut kinds: Vec<_> = discovery
        .groups()
        .flat_map(|group| {
            group
                .versions()
                .flat_map(|version| group.versioned_resources(version))
                .collect::<Vec<_>>()
        })
        .map(|(resource, _)| format!("{}/{}", resource.version, resource.kind))
        .collect();
    kinds.sort();
    Ok(kinds)
}

#[tokio::test]
async fn profiles_serve_the_workload_apis_they_promise() -> anyhow::Result<()> {
    let plain = shared(Profile::Plain).await?;
    ensure!(
        plain.instance().kube_version == "v1.37.2",
        "{}",
        plain.instance().kube_version
    );
    assert_eq!(
        kinds(&plain.client(), "scheduling.k8s.io").await?,
        ["v1/PriorityClass"]
    );

    let flat = Cluster::start(Profile::NativeFlat).await?;
    assert_eq!(
        kinds(&flat.client(), "scheduling.k8s.io").await?,
        ["v1/PriorityClass", "v1beta1/PodGroup", "v1beta1/Workload"]
    );

    let native = shared(Profile::Native).await?;
    let kinds = kinds(&native.client(), "scheduling.k8s.io").await?;
    for kind in [
        "v1alpha3/CompositePodGroup",
        "v1alpha3/PodGroup",
        "v1alpha3/Workload",
        "v1beta1/PodGroup",
    ] {
        ensure!(
            kinds.iter().any(|served| served == kind),
            "{kind} is not among {kinds:?}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn the_audit_log_counts_changes_by_user_and_rights_are_the_users() -> anyhow::Result<()> {
    let cluster = shared(Profile::Plain).await?;
    let namespace = cluster.namespace("audit").await?;
    let operator = Identity::service_account(&namespace, "operator");
    let maps = |client: Client| Api::<ConfigMap>::namespaced(client, &namespace);
    let mark = cluster.audit().mark()?;

    let wanted = |name: &str| ConfigMap {
        metadata: kube::api::ObjectMeta {
            name: Some(name.to_owned()),
            ..Default::default()
        },
        ..Default::default()
    };
    let refused = maps(cluster.client_as(&operator.user, &[]))
        .create(&PostParams::default(), &wanted("a"))
        .await;
    ensure!(
        matches!(&refused, Err(kube::Error::Api(status)) if status.code == 403),
        "{refused:?}"
    );

    let rights = format!(
        "apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nmetadata: {{name: maps}}\n\
         rules: [{{apiGroups: [''], resources: [configmaps], verbs: ['*']}}]\n---\n\
         apiVersion: rbac.authorization.k8s.io/v1\nkind: RoleBinding\nmetadata: {{name: maps}}\n\
         roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: Role, name: maps}}\n\
         subjects: [{{kind: ServiceAccount, name: operator, namespace: {namespace}}}]\n"
    );
    apply(&cluster.client(), &rights, &namespace).await?;
    let config = coppice_testbed::client_config(&cluster.kubeconfig_as(&operator)?).await?;
    let allowed = maps(Client::try_from(config)?);
    wait::until(LONG, "the rights to be known", || async {
        allowed
            .create(&PostParams::default(), &wanted("b"))
            .await
            .map(drop)
    })
    .await?;
    allowed.list(&Default::default()).await?;
    allowed.delete("b", &DeleteParams::default()).await?;

    let mut writes = cluster.audit().since(mark)?;
    writes.retain(|write| {
        write.namespace == namespace && write.user == operator.user && write.code < 400
    });
    let counts: Vec<_> = count(&writes)
        .into_iter()
        .map(|((_, verb, resource), n)| (verb, resource, n))
        .collect();
    assert_eq!(
        counts,
        [("create", "configmaps", 1), ("delete", "configmaps", 1)],
        "reads are not changes"
    );
    Ok(())
}

#[tokio::test]
async fn a_definition_and_its_objects_apply_from_one_text() -> anyhow::Result<()> {
    let cluster = shared(Profile::Plain).await?;
    let namespace = cluster.namespace("apply").await?;
    let yaml = "
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: trees.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {kind: Tree, plural: trees, singular: tree}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {height: {type: integer, maximum: 100}}}}}}
---
apiVersion: example.com/v1
kind: Tree
metadata: {name: hazel}
spec: {height: 5}
";
    for _ in 0..2 {
        let applied = apply(&cluster.client(), yaml, &namespace).await?;
        assert_eq!(
            applied[1].metadata.namespace.as_deref(),
            Some(namespace.as_str())
        );
    }
    let high =
        "apiVersion: example.com/v1\nkind: Tree\nmetadata: {name: fir}\nspec: {height: 500}\n";
    let error = apply(&cluster.client(), high, &namespace)
        .await
        .unwrap_err()
        .to_string();
    ensure!(
        error.starts_with("Tree fir is refused") && error.contains("spec.height"),
        "{error}"
    );
    Ok(())
}

#[tokio::test]
async fn a_stopped_program_starts_again_with_its_data() -> anyhow::Result<()> {
    let cluster = Cluster::start(Profile::Plain).await?;
    let namespace = cluster.namespace("restart").await?;
    cluster.stop_component(Component::ApiServer)?;
    let Liveness::Degraded { ended } = cluster.instance().liveness() else {
        anyhow::bail!("nothing ended")
    };
    assert_eq!(ended, ["kube-apiserver"]);
    cluster.start_component(Component::ApiServer).await?;
    apply(
        &cluster.client(),
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n",
        &namespace,
    )
    .await?;
    Ok(())
}

#[tokio::test]
async fn a_program_that_ends_during_the_start_is_named_with_its_words() -> anyhow::Result<()> {
    let mut settings = coppice_testbed::Settings::new(Profile::Plain);
    settings
        .extra_arguments
        .insert(Component::Scheduler, vec!["--no-such-flag".to_owned()]);
    let error = Cluster::start_with(settings).await.unwrap_err().to_string();
    ensure!(
        error.starts_with("kube-scheduler ended during the start")
            && error.contains("no-such-flag"),
        "{error}"
    );
    Ok(())
}
