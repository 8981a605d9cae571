//! The adapter in pods: Deployment and disruption budget, as `manifests` prints them.
//!
//! An unavailable metrics API delays namespaces and garbage collection of the whole cluster, so there are at least two replicas,
//! on different nodes, of a high priority.

use anyhow::Context;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use serde_json::json;

use crate::groups::Groups;
use crate::objects::{NAME, metadata};

/// What the pods look like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Workload {
    /// Where they run.
    pub namespace: String,
    /// As whom.
    pub service_account: String,
    /// What they run.
    pub image: String,
    /// How many.
    pub replicas: u16,
    /// Groups that they serve.
    pub groups: Groups,
    /// Port of the HTTPS endpoint.
    pub port: u16,
    /// Port of KEDA's external scaler; `None`: not served.
    pub keda_port: Option<u16>,
    /// The Service in front of them.
    pub service: String,
    /// Its port.
    pub service_port: u16,
    /// Namespace of the scaler's Lease.
    pub lease_namespace: String,
    /// The Secret with the certificate.
    pub tls_secret: String,
    /// Whether somebody else writes that Secret and the APIService; else the adapter does.
    pub is_certificate_given: bool,
}

/// Where a certificate that is given is mounted.
const MOUNT: &str = "/etc/coppice-adapter/tls";

/// The Deployment.
///
/// # Errors
/// It does not fit its type, which would be a bug.
pub(crate) fn deployment(workload: &Workload) -> anyhow::Result<Deployment> {
    let Workload {
        namespace,
        service_account,
        image,
        replicas,
        groups,
        port,
        keda_port,
        service,
        service_port,
        lease_namespace,
        tls_secret,
        ..
    } = workload;
    let mut arguments = vec![
        "serve".to_owned(),
        format!("--bind-address=0.0.0.0:{port}"),
        format!("--apis={}", groups.as_str()),
        format!("--service-name={service}"),
        format!("--service-namespace={namespace}"),
        format!("--service-port={service_port}"),
        format!("--scaler-lease-namespace={lease_namespace}"),
        // The API server notices an address that is gone only after a while.
        "--shutdown-delay=5s".to_owned(),
    ];
    let mut ports = vec![
        json!({"name": "https", "containerPort": port}),
        json!({"name": "admin", "containerPort": 8080}),
    ];
    if let Some(port) = keda_port {
        arguments.push(format!("--keda-bind-address=0.0.0.0:{port}"));
        ports.push(json!({"name": "keda", "containerPort": port}));
    }
    let (mut mounts, mut volumes) = (Vec::new(), Vec::new());
    if workload.is_certificate_given {
        arguments.push(format!("--tls-cert-file={MOUNT}/tls.crt"));
        arguments.push(format!("--tls-key-file={MOUNT}/tls.key"));
        mounts.push(json!({"name": "tls", "mountPath": MOUNT, "readOnly": true}));
        volumes.push(json!({"name": "tls", "secret": {"secretName": tls_secret}}));
    } else {
        arguments.push("--register-apiservice".to_owned());
        arguments.push(format!("--tls-secret={tls_secret}"));
    }
    let labels = json!({"app.kubernetes.io/name": NAME});
    let probe = |path: &str| json!({"httpGet": {"path": path, "port": "https", "scheme": "HTTPS"}});
    let container = json!({
        "name": "adapter",
        "image": image,
        "args": arguments,
        "ports": ports,
        "livenessProbe": probe("/livez"),
        "readinessProbe": probe("/readyz"),
        "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"memory": "1Gi"}},
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": mounts,
    });
    let object = json!({
        "metadata": metadata(Some(namespace), NAME),
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "serviceAccountName": service_account,
                    "priorityClassName": "system-cluster-critical",
                    "securityContext": {"runAsNonRoot": true, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
                    "topologySpreadConstraints": [{
                        "maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway",
                        "labelSelector": {"matchLabels": labels},
                    }],
                    "terminationGracePeriodSeconds": 40,
                    "containers": [container],
                    "volumes": volumes,
                },
            },
        },
    });
    serde_json::from_value(object).context("the Deployment does not fit its type")
}

/// At most one replica at a time is taken down on purpose.
///
/// # Errors
/// It does not fit its type, which would be a bug.
pub(crate) fn disruption_budget(workload: &Workload) -> anyhow::Result<PodDisruptionBudget> {
    let object = json!({
        "metadata": metadata(Some(&workload.namespace), NAME),
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"app.kubernetes.io/name": NAME}}},
    });
    serde_json::from_value(object).context("the PodDisruptionBudget does not fit its type")
}
