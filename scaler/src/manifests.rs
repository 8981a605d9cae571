//! `crds` and `manifests`: what a cluster needs before the scaler runs, as YAML.

use anyhow::Context;
use coppice_scaler_api::{LEASE_NAME, crds as definitions};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::rbac::v1::{
    ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, Subject,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Serialize;
use serde_json::json;

use crate::settings::ManifestArgs;

/// Name of everything that belongs to the scaler.
const NAME: &str = "coppice-scaler";

/// The CustomResourceDefinitions.
///
/// # Errors
/// One cannot be written as YAML, which would be a bug.
pub(crate) fn crds() -> anyhow::Result<String> {
    let documents = definitions()
        .iter()
        .map(document)
        .collect::<anyhow::Result<Vec<_>>>()?;
    Ok(documents.join("---\n"))
}

/// All other objects, one document behind the other.
///
/// # Errors
/// An object cannot be written as YAML, which would be a bug.
pub(crate) fn render(args: &ManifestArgs) -> anyhow::Result<String> {
    let mut documents = vec![document(&ServiceAccount {
        metadata: metadata(NAME, Some(&args.install_namespace)),
        ..ServiceAccount::default()
    })?];
    match &args.namespace {
        None => {
            let mut all = rules();
            all.extend(budget_rules());
            documents.extend(clusterwide(args, NAME, all)?);
        }
        Some(namespace) => {
            documents.extend(namespaced(args, NAME, namespace, rules())?);
            // GpuBudgets have no namespace. The name holds the one of the installation, so that several can stand side by side.
            let name = format!("{NAME}-budgets-{}", args.install_namespace);
            documents.extend(clusterwide(args, &name, budget_rules())?);
        }
    }
    let lease = vec![
        PolicyRule {
            resource_names: Some(vec![LEASE_NAME.to_owned()]),
            ..rule(
                "coordination.k8s.io",
                &["leases"],
                &["get", "update", "patch"],
            )
        },
        rule("coordination.k8s.io", &["leases"], &["create"]),
    ];
    documents.extend(namespaced(
        args,
        "coppice-scaler-lease",
        &args.install_namespace,
        lease,
    )?);
    documents.push(document(&deployment(args)?)?);
    Ok(documents.join("---\n"))
}

fn document(object: &impl Serialize) -> anyhow::Result<String> {
    serde_saphyr::to_string(object).context("cannot write YAML")
}

fn metadata(name: &str, namespace: Option<&str>) -> ObjectMeta {
    let labels = [
        ("app.kubernetes.io/name", NAME),
        ("app.kubernetes.io/part-of", "coppice"),
    ];
    ObjectMeta {
        name: Some(name.to_owned()),
        namespace: namespace.map(str::to_owned),
        labels: Some(
            labels
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into(),
        ),
        ..ObjectMeta::default()
    }
}

fn reference(kind: &str, name: &str) -> RoleRef {
    RoleRef {
        api_group: Some("rbac.authorization.k8s.io".to_owned()),
        kind: kind.to_owned(),
        name: name.to_owned(),
    }
}

fn subject(args: &ManifestArgs) -> Subject {
    Subject {
        kind: "ServiceAccount".to_owned(),
        name: NAME.to_owned(),
        namespace: Some(args.install_namespace.clone()),
        api_group: None,
    }
}

fn clusterwide(
    args: &ManifestArgs,
    name: &str,
    rules: Vec<PolicyRule>,
) -> anyhow::Result<[String; 2]> {
    let role = ClusterRole {
        metadata: metadata(name, None),
        rules: Some(rules),
        aggregation_rule: None,
    };
    let binding = ClusterRoleBinding {
        metadata: metadata(name, None),
        role_ref: reference("ClusterRole", name),
        subjects: Some(vec![subject(args)]),
    };
    Ok([document(&role)?, document(&binding)?])
}

fn namespaced(
    args: &ManifestArgs,
    name: &str,
    namespace: &str,
    rules: Vec<PolicyRule>,
) -> anyhow::Result<[String; 2]> {
    let role = Role {
        metadata: metadata(name, Some(namespace)),
        rules: Some(rules),
    };
    let binding = RoleBinding {
        metadata: metadata(name, Some(namespace)),
        role_ref: reference("Role", name),
        subjects: Some(vec![subject(args)]),
    };
    Ok([document(&role)?, document(&binding)?])
}

fn rule(group: &str, resources: &[&str], verbs: &[&str]) -> PolicyRule {
    let owned = |list: &[&str]| list.iter().map(|&text| text.to_owned()).collect::<Vec<_>>();
    PolicyRule {
        api_groups: Some(vec![group.to_owned()]),
        resources: Some(owned(resources)),
        verbs: owned(verbs),
        ..PolicyRule::default()
    }
}

/// Rights in the namespaces whose policies are followed. A policy that targets another kind than these needs rights on its `/scale`, too.
fn rules() -> Vec<PolicyRule> {
    vec![
        rule(
            "autoscaling.coppice.dev",
            &["scalingpolicies"],
            &["get", "list", "watch"],
        ),
        rule(
            "autoscaling.coppice.dev",
            &["scalingpolicies/status"],
            &["get", "patch"],
        ),
        rule(
            "grove.io",
            &["podcliquesets", "podcliques", "podcliquescalinggroups"],
            &["get", "list", "watch"],
        ),
        rule(
            "grove.io",
            &[
                "podcliquesets/scale",
                "podcliques/scale",
                "podcliquescalinggroups/scale",
            ],
            &["get", "patch"],
        ),
        rule(
            "apps",
            &["deployments/scale", "statefulsets/scale"],
            &["get", "patch"],
        ),
        rule(
            "leaderworkerset.x-k8s.io",
            &["leaderworkersets/scale"],
            &["get", "patch"],
        ),
        rule("", &["pods"], &["get", "list", "watch"]),
        rule("", &["configmaps"], &["get"]),
        rule("events.k8s.io", &["events"], &["create", "patch"]),
    ]
}

/// Rights on the pools that policies share.
fn budget_rules() -> Vec<PolicyRule> {
    vec![
        rule(
            "autoscaling.coppice.dev",
            &["gpubudgets"],
            &["get", "list", "watch"],
        ),
        rule(
            "autoscaling.coppice.dev",
            &["gpubudgets/status"],
            &["get", "patch"],
        ),
    ]
}

fn deployment(args: &ManifestArgs) -> anyhow::Result<Deployment> {
    let labels = json!({"app.kubernetes.io/name": NAME});
    let mut arguments = vec!["run".to_owned()];
    arguments.extend(
        args.namespace
            .iter()
            .map(|namespace| format!("--namespace={namespace}")),
    );
    let container = json!({
        "name": "scaler",
        "image": args.image,
        "args": arguments,
        "ports": [{"name": "metrics", "containerPort": 8080}],
        "livenessProbe": {"httpGet": {"path": "/livez", "port": "metrics"}},
        "readinessProbe": {"httpGet": {"path": "/readyz", "port": "metrics"}},
        "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"memory": "512Mi"}},
        "securityContext": {"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"]}},
    });
    let object = json!({
        "metadata": metadata(NAME, Some(&args.install_namespace)),
        "spec": {
            "replicas": args.replicas,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "serviceAccountName": NAME,
                    "securityContext": {"runAsNonRoot": true, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
                    "containers": [container],
                },
            },
        },
    });
    serde_json::from_value(object).context("the Deployment is not one")
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::settings::{Arguments, Command};

    fn documents(arguments: &[&str]) -> Vec<serde_json::Value> {
        let parsed = Arguments::parse_from(["coppice-scaler", "manifests"].iter().chain(arguments));
        let Command::Manifests(args) = parsed.command else {
            panic!("manifests")
        };
        serde_saphyr::from_multiple(&render(&args).unwrap()).unwrap()
    }

    fn kinds(documents: &[serde_json::Value]) -> Vec<&str> {
        documents
            .iter()
            .filter_map(|document| document["kind"].as_str())
            .collect()
    }

    #[test]
    fn the_objects_are_complete_and_in_order() {
        let all = documents(&[]);
        assert_eq!(
            kinds(&all),
            [
                "ServiceAccount",
                "ClusterRole",
                "ClusterRoleBinding",
                "Role",
                "RoleBinding",
                "Deployment"
            ]
        );
        let one = documents(&["--namespace=serving"]);
        assert_eq!(
            kinds(&one),
            [
                "ServiceAccount",
                "Role",
                "RoleBinding",
                "ClusterRole",
                "ClusterRoleBinding",
                "Role",
                "RoleBinding",
                "Deployment"
            ]
        );
        assert_eq!(one[1]["metadata"]["namespace"], "serving");
        assert_eq!(
            one[7]["spec"]["template"]["spec"]["containers"][0]["args"],
            json!(["run", "--namespace=serving"])
        );
    }

    #[test]
    fn no_right_is_wider_than_what_is_done() {
        let all = documents(&[]);
        let text = serde_json::to_string(&all).unwrap();
        for wide in ["\"*\"", "\"delete\"", "secrets"] {
            assert!(!text.contains(wide), "{wide}");
        }
    }

    #[test]
    fn definitions_are_two_documents() {
        let documents: Vec<serde_json::Value> =
            serde_saphyr::from_multiple(&crds().unwrap()).unwrap();
        let names: Vec<&str> = documents
            .iter()
            .filter_map(|document| document["metadata"]["name"].as_str())
            .collect();
        assert_eq!(
            names,
            [
                "scalingpolicies.autoscaling.coppice.dev",
                "gpubudgets.autoscaling.coppice.dev"
            ]
        );
    }
}
