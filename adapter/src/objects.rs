//! The Kubernetes objects that the adapter needs around it: rights, Service, APIService.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Service, ServiceAccount, ServicePort, ServiceSpec};
use k8s_openapi::api::rbac::v1::{
    ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, Subject,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::{
    APIService, APIServiceSpec, ServiceReference,
};

use crate::groups::{Api, Groups};

/// Field manager of what the adapter applies, and name of its rights.
pub(crate) const NAME: &str = "coppice-adapter";

/// Where the API server finds the adapter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ServiceAddress {
    /// Namespace of the Service.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its port.
    pub port: u16,
}

impl ServiceAddress {
    /// Host names that a serving certificate must be valid for; the API server verifies the first.
    pub(crate) fn names(&self) -> Vec<String> {
        let Self {
            namespace, name, ..
        } = self;
        [
            format!("{name}.{namespace}.svc"),
            format!("{name}.{namespace}.svc.cluster.local"),
            format!("{name}.{namespace}"),
            name.clone(),
            "localhost".to_owned(),
            "127.0.0.1".to_owned(),
            "::1".to_owned(),
        ]
        .into()
    }
}

fn labels() -> BTreeMap<String, String> {
    BTreeMap::from([
        ("app.kubernetes.io/name".to_owned(), NAME.to_owned()),
        ("app.kubernetes.io/part-of".to_owned(), "coppice".to_owned()),
    ])
}

/// Name, namespace and the labels of everything that belongs to the adapter.
pub(crate) fn metadata(namespace: Option<&str>, name: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.to_owned()),
        namespace: namespace.map(str::to_owned),
        labels: Some(labels()),
        ..ObjectMeta::default()
    }
}

/// The Service of an adapter that runs outside the cluster, reached at a host name.
pub(crate) fn external_service(address: &ServiceAddress, host: &str) -> Service {
    let spec = ServiceSpec {
        type_: Some("ExternalName".to_owned()),
        external_name: Some(host.to_owned()),
        ..ServiceSpec::default()
    };
    Service {
        metadata: metadata(Some(&address.namespace), &address.name),
        spec: Some(spec),
        ..Service::default()
    }
}

/// The Service of an adapter that runs in pods with the label `app.kubernetes.io/name: coppice-adapter`.
pub(crate) fn pod_service(
    address: &ServiceAddress,
    target_port: u16,
    keda_port: Option<u16>,
) -> Service {
    let port = |name: &str, port: u16, target: u16| ServicePort {
        name: Some(name.to_owned()),
        port: i32::from(port),
        target_port: Some(IntOrString::Int(i32::from(target))),
        ..ServicePort::default()
    };
    let mut ports = vec![port("https", address.port, target_port)];
    ports.extend(keda_port.map(|keda| port("keda", keda, keda)));
    let selector = BTreeMap::from([("app.kubernetes.io/name".to_owned(), NAME.to_owned())]);
    let spec = ServiceSpec {
        selector: Some(selector),
        ports: Some(ports),
        ..ServiceSpec::default()
    };
    Service {
        metadata: metadata(Some(&address.namespace), &address.name),
        spec: Some(spec),
        ..Service::default()
    }
}

/// The APIService that gives a group and version to the adapter. Without a bundle the API server trusts its host's authorities.
pub(crate) fn api_service(
    api: Api,
    address: &ServiceAddress,
    ca_bundle: Option<&str>,
) -> APIService {
    let spec = APIServiceSpec {
        group: Some(api.group().to_owned()),
        version: Some(api.version().to_owned()),
        group_priority_minimum: 100,
        version_priority: api.version_priority(),
        service: Some(ServiceReference {
            namespace: Some(address.namespace.clone()),
            name: Some(address.name.clone()),
            port: Some(i32::from(address.port)),
        }),
        ca_bundle: ca_bundle.map(|pem| ByteString(pem.as_bytes().to_vec())),
        ..APIServiceSpec::default()
    };
    APIService {
        metadata: metadata(None, &api.service_name()),
        spec: Some(spec),
        ..APIService::default()
    }
}

/// What the rights are for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RightsFor {
    /// Namespace of the adapter's service account.
    pub namespace: String,
    /// Its name.
    pub service_account: String,
    /// Namespace of the scaler's Lease.
    pub lease_namespace: String,
    /// Groups that it serves.
    pub groups: Groups,
    /// Whether the adapter registers itself (`serve --register-apiservice`).
    pub registers: bool,
    /// The Service that it keeps for itself when it runs outside the cluster (`serve --external-host`).
    pub external_service: Option<String>,
    /// The Secret in which replicas share a self-issued certificate (`serve --tls-secret`).
    pub tls_secret: Option<String>,
}

/// The adapter's rights, and those of the HPA controller and of viewers to its metrics.
#[derive(Debug, Clone)]
pub(crate) struct Rights {
    /// The account that the adapter runs as.
    pub account: ServiceAccount,
    /// Cluster-wide rules.
    pub cluster_roles: Vec<ClusterRole>,
    /// Who has them.
    pub cluster_bindings: Vec<ClusterRoleBinding>,
    /// Rules in one namespace.
    pub roles: Vec<Role>,
    /// Who has them.
    pub bindings: Vec<RoleBinding>,
}

/// Makes the rights: what the adapter does, and nothing else. A test on a real API server watches it do all of it.
pub(crate) fn rights(who: &RightsFor) -> Rights {
    let adapter = account(&who.namespace, &who.service_account);
    let mut reads = vec![
        rule(&[""], &["pods"], &["list", "watch"], &[]),
        rule(
            &["autoscaling.coppice.dev"],
            &["scalingpolicies"],
            &["list", "watch"],
            &[],
        ),
    ];
    if who.registers {
        let names: Vec<String> = who.groups.apis().map(Api::service_name).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        reads.push(rule(
            &["apiregistration.k8s.io"],
            &["apiservices"],
            &["list", "watch", "patch"],
            &names,
        ));
        reads.push(rule(
            &["apiregistration.k8s.io"],
            &["apiservices"],
            &["create"],
            &[],
        ));
    }
    let lease = rule(
        &["coordination.k8s.io"],
        &["leases"],
        &["list", "watch"],
        &[coppice_scaler_api::LEASE_NAME],
    );
    let mut roles = vec![role(
        &who.lease_namespace,
        "coppice-adapter-lease-reader",
        vec![lease],
    )];
    let mut bindings = vec![
        binding(
            &who.lease_namespace,
            "coppice-adapter-lease-reader",
            "coppice-adapter-lease-reader",
            &adapter,
        ),
        binding(
            "kube-system",
            "coppice-adapter-auth-reader",
            "extension-apiserver-authentication-reader",
            &adapter,
        ),
    ];
    if let Some(service) = &who.external_service {
        // A create is not checked against a name.
        let rules = vec![
            rule(&[""], &["services"], &["patch"], &[service]),
            rule(&[""], &["services"], &["create"], &[]),
        ];
        roles.push(role(&who.namespace, "coppice-adapter-registrar", rules));
        bindings.push(binding(
            &who.namespace,
            "coppice-adapter-registrar",
            "coppice-adapter-registrar",
            &adapter,
        ));
    }
    if let Some(secret) = &who.tls_secret {
        let rules = vec![
            rule(&[""], &["secrets"], &["get", "update"], &[secret]),
            rule(&[""], &["secrets"], &["create"], &[]),
        ];
        roles.push(role(&who.namespace, "coppice-adapter-certificate", rules));
        bindings.push(binding(
            &who.namespace,
            "coppice-adapter-certificate",
            "coppice-adapter-certificate",
            &adapter,
        ));
    }
    let mut viewer = cluster_role(
        "coppice-metrics-viewer",
        vec![rule(&who.groups.names(), &["*"], &["get", "list"], &[])],
    );
    let aggregate = [(
        "rbac.authorization.k8s.io/aggregate-to-view".to_owned(),
        "true".to_owned(),
    )];
    viewer
        .metadata
        .labels
        .get_or_insert_default()
        .extend(aggregate);
    Rights {
        account: ServiceAccount {
            metadata: metadata(Some(&who.namespace), &who.service_account),
            ..ServiceAccount::default()
        },
        cluster_roles: vec![cluster_role(NAME, reads), viewer],
        cluster_bindings: vec![
            cluster_binding(NAME, NAME, &adapter),
            cluster_binding(
                "coppice-adapter-auth-delegator",
                "system:auth-delegator",
                &adapter,
            ),
            // Built in for the HPA controller on current clusters; it also covers those that run it under another account.
            cluster_binding(
                "coppice-metrics-hpa",
                "coppice-metrics-viewer",
                &account("kube-system", "horizontal-pod-autoscaler"),
            ),
        ],
        roles,
        bindings,
    }
}

fn rule(groups: &[&str], resources: &[&str], verbs: &[&str], names: &[&str]) -> PolicyRule {
    let list = |texts: &[&str]| {
        texts
            .iter()
            .map(|text| (*text).to_owned())
            .collect::<Vec<_>>()
    };
    PolicyRule {
        api_groups: Some(list(groups)),
        resources: Some(list(resources)),
        verbs: list(verbs),
        resource_names: (!names.is_empty()).then(|| list(names)),
        ..PolicyRule::default()
    }
}

fn account(namespace: &str, name: &str) -> Subject {
    Subject {
        kind: "ServiceAccount".to_owned(),
        namespace: Some(namespace.to_owned()),
        name: name.to_owned(),
        api_group: None,
    }
}

fn cluster_role(name: &str, rules: Vec<PolicyRule>) -> ClusterRole {
    ClusterRole {
        metadata: metadata(None, name),
        rules: Some(rules),
        ..ClusterRole::default()
    }
}

fn role(namespace: &str, name: &str, rules: Vec<PolicyRule>) -> Role {
    Role {
        metadata: metadata(Some(namespace), name),
        rules: Some(rules),
    }
}

fn role_ref(kind: &str, name: &str) -> RoleRef {
    RoleRef {
        api_group: Some("rbac.authorization.k8s.io".to_owned()),
        kind: kind.to_owned(),
        name: name.to_owned(),
    }
}

fn cluster_binding(name: &str, role: &str, subject: &Subject) -> ClusterRoleBinding {
    ClusterRoleBinding {
        metadata: metadata(None, name),
        role_ref: role_ref("ClusterRole", role),
        subjects: Some(vec![subject.clone()]),
    }
}

fn binding(namespace: &str, name: &str, role: &str, subject: &Subject) -> RoleBinding {
    RoleBinding {
        metadata: metadata(Some(namespace), name),
        role_ref: role_ref("Role", role),
        subjects: Some(vec![subject.clone()]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_certificate_is_valid_for_the_name_that_the_api_server_verifies() {
        let address = ServiceAddress {
            namespace: "system".into(),
            name: "adapter".into(),
            port: 443,
        };
        assert_eq!(address.names()[0], "adapter.system.svc");
    }

    #[test]
    fn the_api_service_names_the_service_and_carries_the_bundle() {
        let address = ServiceAddress {
            namespace: "system".into(),
            name: "adapter".into(),
            port: 6443,
        };
        let object =
            serde_json::to_value(api_service(Api::External, &address, Some("pem"))).unwrap();
        assert_eq!(
            object["metadata"]["name"],
            "v1beta1.external.metrics.k8s.io"
        );
        assert_eq!(
            object["spec"]["service"],
            serde_json::json!({"namespace": "system", "name": "adapter", "port": 6443})
        );
        assert_eq!(object["spec"]["caBundle"], "cGVt");
        assert!(object["spec"].get("insecureSkipTLSVerify").is_none());
    }

    #[test]
    fn rights_to_register_are_given_only_to_who_registers() {
        let who = |registers| RightsFor {
            namespace: "system".into(),
            service_account: NAME.into(),
            lease_namespace: "system".into(),
            groups: Groups::Both,
            registers,
            external_service: None,
            tls_secret: None,
        };
        let writes = |rights: &Rights| {
            let cluster = rights
                .cluster_roles
                .iter()
                .filter_map(|role| role.rules.clone());
            let local = rights.roles.iter().filter_map(|role| role.rules.clone());
            let rules: Vec<PolicyRule> = cluster.chain(local).flatten().collect();
            rules.iter().any(|rule| {
                rule.verbs
                    .iter()
                    .any(|verb| !["get", "list", "watch"].contains(&verb.as_str()))
            })
        };
        assert!(!writes(&rights(&who(false))));
        assert!(writes(&rights(&who(true))));
        let sharing = RightsFor {
            tls_secret: Some("cert".into()),
            ..who(false)
        };
        assert!(writes(&rights(&sharing)));
    }
}
