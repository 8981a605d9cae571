//! `crds` and `manifests`: what a cluster needs before the operator runs, as YAML.

use anyhow::Context;
use clap::Args;
use coppice_operator_api::{GROUP, SCHEDULER_GROUP, crd};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Service, ServiceAccount};
use k8s_openapi::api::rbac::v1::{
    ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, Subject,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Serialize;
use serde_json::json;

use crate::admission::register;
use crate::admission::settings::PORT;
use crate::settings::DEFAULT_INIT_IMAGE;

/// Name of everything that belongs to the operator.
const NAME: &str = "coppice-operator";

/// What the printed objects depend on.
#[derive(Debug, Args)]
pub(crate) struct ManifestArgs {
    /// Namespace the operator runs in
    #[arg(long, default_value = "coppice-system", value_name = "NAMESPACE")]
    pub(crate) install_namespace: String,
    /// Namespaces it works in, with rights there and nowhere else; without it the whole cluster
    #[arg(long = "namespace", value_delimiter = ',', value_name = "NAMESPACE")]
    pub(crate) namespaces: Vec<String>,
    /// The operator's image
    #[arg(long, default_value = DEFAULT_IMAGE, value_name = "IMAGE")]
    pub(crate) image: String,
    /// Image of the init container that keeps the start order
    #[arg(long, default_value = DEFAULT_INIT_IMAGE, value_name = "IMAGE")]
    pub(crate) init_image: String,
    /// Copies: one leads, the others stand by with warm caches
    #[arg(long, default_value_t = 2, value_name = "COUNT")]
    pub(crate) replicas: u16,
    /// Whether sets are checked before they are stored. Fails closed: without a running operator none can be created or edited
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set, value_name = "BOOL")]
    pub(crate) admission: bool,
}

/// The Secret in which the replicas keep the webhooks' certificate.
const CERTIFICATE: &str = "coppice-operator-webhooks";
/// Name of the webhooks' port.
const WEBHOOKS: &str = "webhooks";

const DEFAULT_IMAGE: &str = concat!(
    "ghcr.io/coppice-dev/coppice-operator:v",
    env!("CARGO_PKG_VERSION")
);

/// The five CustomResourceDefinitions.
pub(crate) fn crds() -> String {
    crd::crds().iter().map(crd::to_yaml).collect()
}

/// All other objects, one document behind the other.
///
/// # Errors
/// An object cannot be written as YAML, which would be a bug.
pub(crate) fn render(args: &ManifestArgs) -> anyhow::Result<String> {
    let mut documents = vec![document(&account(args))?];
    for rights in rights(args) {
        match rights {
            Rights::Cluster(role, binding) => {
                documents.extend([document(&role)?, document(&binding)?])
            }
            Rights::Namespace(role, binding) => {
                documents.extend([document(&role)?, document(&binding)?])
            }
        }
    }
    documents.extend([document(&deployment(args)?)?, document(&service(args)?)?]);
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

fn account(args: &ManifestArgs) -> ServiceAccount {
    ServiceAccount {
        metadata: metadata(NAME, Some(&args.install_namespace)),
        ..ServiceAccount::default()
    }
}

enum Rights {
    Cluster(ClusterRole, ClusterRoleBinding),
    Namespace(Role, RoleBinding),
}

fn rights(args: &ManifestArgs) -> Vec<Rights> {
    let subject = || Subject {
        kind: "ServiceAccount".to_owned(),
        name: NAME.to_owned(),
        namespace: Some(args.install_namespace.clone()),
        api_group: None,
    };
    let reference = |kind: &str, name: &str| RoleRef {
        api_group: Some("rbac.authorization.k8s.io".to_owned()),
        kind: kind.to_owned(),
        name: name.to_owned(),
    };
    let in_cluster = |name: &str, rules| {
        Rights::Cluster(
            ClusterRole {
                metadata: metadata(name, None),
                rules: Some(rules),
                aggregation_rule: None,
            },
            ClusterRoleBinding {
                metadata: metadata(name, None),
                role_ref: reference("ClusterRole", name),
                subjects: Some(vec![subject()]),
            },
        )
    };
    let in_namespace = |name: &str, namespace: &str, rules| {
        Rights::Namespace(
            Role {
                metadata: metadata(name, Some(namespace)),
                rules: Some(rules),
            },
            RoleBinding {
                metadata: metadata(name, Some(namespace)),
                role_ref: reference("Role", name),
                subjects: Some(vec![subject()]),
            },
        )
    };
    let mut rights = Vec::new();
    let webhooks = args.admission.then(|| webhook_rule(&args.namespaces));
    if args.namespaces.is_empty() {
        let all = cluster_rules()
            .into_iter()
            .chain(webhooks)
            .chain(namespaced_rules());
        rights.push(in_cluster(NAME, all.collect()));
    } else {
        // What pods of others take of a node: gang backend `gated` would else plan where there is no room.
        let all = cluster_rules()
            .into_iter()
            .chain([rule("", &["pods"], &["list", "watch"])])
            .chain(webhooks);
        rights.push(in_cluster(NAME, all.collect()));
        rights.extend(
            args.namespaces
                .iter()
                .map(|namespace| in_namespace(NAME, namespace, namespaced_rules())),
        );
    }
    let lease = rule(
        "coordination.k8s.io",
        &["leases"],
        &["get", "create", "update", "patch"],
    );
    let mut own = vec![lease];
    if args.admission {
        // A name cannot narrow down `create`.
        own.push(rule("", &["secrets"], &["create"]));
        own.push(PolicyRule {
            resource_names: Some(vec![CERTIFICATE.to_owned()]),
            ..rule("", &["secrets"], &["get", "update"])
        });
    }
    rights.push(in_namespace(
        "coppice-operator-lease",
        &args.install_namespace,
        own,
    ));
    rights
}

/// The configurations of this operator, and none of others.
fn webhook_rule(namespaces: &[String]) -> PolicyRule {
    let resources = [
        "mutatingwebhookconfigurations",
        "validatingwebhookconfigurations",
    ];
    PolicyRule {
        resource_names: Some(register::names(namespaces).into()),
        ..rule(
            "admissionregistration.k8s.io",
            &resources,
            // The authorizer's goes when it is switched off.
            &["get", "list", "watch", "create", "patch", "delete"],
        )
    }
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

const READ: [&str; 3] = ["get", "list", "watch"];
const WRITE: [&str; 8] = [
    "get",
    "list",
    "watch",
    "create",
    "update",
    "patch",
    "delete",
    "deletecollection",
];

/// Rights on what has no namespace.
fn cluster_rules() -> Vec<PolicyRule> {
    vec![
        rule("", &["nodes"], &READ),
        rule(GROUP, &["clustertopologybindings"], &READ),
        rule("scheduling.volcano.sh", &["queues"], &["get"]),
    ]
}

fn namespaced_rules() -> Vec<PolicyRule> {
    let status = |kinds: &[&str]| {
        kinds
            .iter()
            .map(|kind| format!("{kind}/status"))
            .collect::<Vec<_>>()
    };
    let own = ["podcliquesets", "podcliques", "podcliquescalinggroups"];
    let statuses = status(&own);
    let finalizers: Vec<String> = own
        .iter()
        .map(|kind| format!("{kind}/finalizers"))
        .collect();
    let text = |list: &[String]| {
        list.iter()
            .map(String::as_str)
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let list = |list: &[String], verbs: &[&str]| {
        let list = text(list);
        let list: Vec<&str> = list.iter().map(String::as_str).collect();
        rule(GROUP, &list, verbs)
    };
    vec![
        rule(
            GROUP,
            &["podcliquesets"],
            &["get", "list", "watch", "patch", "update"],
        ),
        rule(GROUP, &["podcliques", "podcliquescalinggroups"], &WRITE),
        list(&statuses, &["get", "patch", "update"]),
        list(&finalizers, &["update"]),
        rule(SCHEDULER_GROUP, &["podgangs"], &WRITE),
        rule(
            SCHEDULER_GROUP,
            &["podgangs/status"],
            &["get", "patch", "update"],
        ),
        rule("", &["pods"], &WRITE),
        rule("", &["pods/binding"], &["create"]),
        rule("", &["services", "serviceaccounts"], &WRITE),
        rule(
            "rbac.authorization.k8s.io",
            &["roles", "rolebindings"],
            &WRITE,
        ),
        rule("autoscaling", &["horizontalpodautoscalers"], &WRITE),
        rule(
            "scheduling.k8s.io",
            &["workloads", "podgroups", "compositepodgroups"],
            &WRITE,
        ),
        // Claims that pods share; kinds that a cluster does not have do no harm here.
        rule("resource.k8s.io", &["resourceclaims"], &WRITE),
        rule("resource.k8s.io", &["resourceclaimtemplates"], &["get"]),
        rule("resource.nvidia.com", &["computedomains"], &WRITE),
        // Gangs as the KAI and Volcano schedulers have them.
        rule("scheduling.run.ai", &["podgroups"], &WRITE),
        rule("scheduling.volcano.sh", &["podgroups"], &WRITE),
        rule("events.k8s.io", &["events"], &["create", "patch"]),
        rule("", &["events"], &["create", "patch"]),
    ]
}

fn deployment(args: &ManifestArgs) -> anyhow::Result<Deployment> {
    let labels = json!({"app.kubernetes.io/name": NAME});
    let namespaces: Vec<String> = args
        .namespaces
        .iter()
        .map(|namespace| format!("--namespace={namespace}"))
        .collect();
    let mut arguments = vec![
        "run".to_owned(),
        format!("--init-image={}", args.init_image),
    ];
    arguments.extend(namespaces);
    let mut ports = vec![json!({"name": "admin", "containerPort": 8080})];
    if args.admission {
        arguments.push(format!("--webhook-service={NAME}"));
        arguments.push(format!("--tls-secret={CERTIFICATE}"));
        ports.push(json!({"name": WEBHOOKS, "containerPort": PORT}));
    }
    let container = json!({
        "name": "operator",
        "image": args.image,
        "args": arguments,
        "ports": ports,
        "livenessProbe": {"httpGet": {"path": "/healthz", "port": "admin"}},
        "readinessProbe": {"httpGet": {"path": "/readyz", "port": "admin"}},
        "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"memory": "512Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true,
            "capabilities": {"drop": ["ALL"]},
        },
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
    serde_json::from_value(object).context("the Deployment does not fit its type")
}

fn service(args: &ManifestArgs) -> anyhow::Result<Service> {
    let mut ports = vec![json!({"name": "admin", "port": 8080, "targetPort": "admin"})];
    if args.admission {
        ports.push(json!({"name": WEBHOOKS, "port": 443, "targetPort": WEBHOOKS}));
    }
    let object = json!({
        "metadata": metadata(NAME, Some(&args.install_namespace)),
        "spec": {
            "selector": {"app.kubernetes.io/name": NAME},
            "ports": ports,
        },
    });
    serde_json::from_value(object).context("the Service does not fit its type")
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::settings::{Arguments, Command};

    fn rendered(arguments: &[&str]) -> Vec<serde_json::Value> {
        let parsed =
            Arguments::parse_from(["coppice-operator", "manifests"].iter().chain(arguments));
        let Command::Manifests(args) = parsed.command else {
            panic!("manifests")
        };
        let text = render(&args).unwrap();
        text.split("---\n")
            .map(|document| serde_saphyr::from_str(document).unwrap())
            .collect()
    }

    fn kinds(documents: &[serde_json::Value]) -> Vec<&str> {
        documents
            .iter()
            .filter_map(|document| document["kind"].as_str())
            .collect()
    }

    #[test]
    fn the_whole_cluster_takes_one_role_and_namespaces_one_each() {
        let everywhere = rendered(&[]);
        let around = [
            "ServiceAccount",
            "ClusterRole",
            "ClusterRoleBinding",
            "Role",
            "RoleBinding",
            "Deployment",
            "Service",
        ];
        assert_eq!(kinds(&everywhere), around);
        let some = rendered(&["--namespace=a,b", "--admission=false"]);
        assert_eq!(
            kinds(&some).iter().filter(|kind| **kind == "Role").count(),
            3
        );
        let cluster = some[1]["rules"].as_array().unwrap();
        assert_eq!(
            cluster.len(),
            4,
            "outside its namespaces it only reads nodes, topologies, queues and pods"
        );
        let writes = |rule: &serde_json::Value| {
            rule["verbs"]
                .as_array()
                .unwrap()
                .iter()
                .any(|verb| verb == "patch")
        };
        assert!(!cluster.iter().any(writes));
        assert_eq!(
            some[9]["spec"]["template"]["spec"]["containers"][0]["args"][2],
            "--namespace=a"
        );
    }

    #[test]
    fn admission_brings_rights_on_two_configurations_and_a_secret_and_a_port_that_meets_the_flags()
    {
        let documents = rendered(&["--namespace=a"]);
        let find = |kind: &str, name: &str| {
            let is = |document: &&serde_json::Value| {
                document["kind"] == kind && document["metadata"]["name"] == name
            };
            documents.iter().find(is).unwrap()
        };
        let cluster = find("ClusterRole", NAME)["rules"].as_array().unwrap();
        assert_eq!(
            cluster.last().unwrap()["resourceNames"],
            json!([
                "podcliqueset-defaulting-webhook-a",
                "podcliqueset-validating-webhook-a",
                "authorizer-webhook-a"
            ])
        );
        let own = &find("Role", "coppice-operator-lease")["rules"];
        assert_eq!(own[2]["resourceNames"], json!([CERTIFICATE]));

        let pod = &find("Deployment", NAME)["spec"]["template"]["spec"]["containers"][0];
        let flags: Vec<String> = serde_json::from_value(pod["args"].clone()).unwrap();
        let parsed =
            Arguments::parse_from(["coppice-operator".to_owned()].into_iter().chain(flags));
        let Command::Run(run) = parsed.command else {
            panic!("run")
        };
        assert_eq!(run.admission.webhook_service.as_deref(), Some(NAME));
        assert_eq!(run.admission.tls.tls_secret.as_deref(), Some(CERTIFICATE));
        assert!(run.admission.reach().is_ok());
        assert_eq!(
            pod["ports"][1]["containerPort"],
            run.admission.webhook_address.port()
        );
        let port = &find("Service", NAME)["spec"]["ports"][1];
        assert_eq!(port["port"], run.admission.webhook_service_port);
        assert_eq!(port["targetPort"], pod["ports"][1]["name"]);
    }

    #[test]
    fn five_definitions_are_printed() {
        assert_eq!(crds().matches("kind: CustomResourceDefinition").count(), 5);
    }
}
