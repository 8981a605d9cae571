//! The command lines of the control plane's programs. Pure: settings and places in, arguments out.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::json;

use crate::pki::{FRONT_PROXY_NAME, Pki};
use crate::settings::Settings;

/// A program of the control plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Component {
    /// The store.
    Etcd,
    /// The API server.
    ApiServer,
    /// Controllers: garbage collection, node lifecycle, eviction, HorizontalPodAutoscaler, …
    ControllerManager,
    /// The scheduler.
    Scheduler,
}

impl Component {
    /// In the order in which they depend on each other.
    pub const ALL: [Self; 4] = [
        Self::Etcd,
        Self::ApiServer,
        Self::ControllerManager,
        Self::Scheduler,
    ];

    /// The program's own name, also that of its log file.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::ApiServer => "kube-apiserver",
            Self::ControllerManager => "kube-controller-manager",
            Self::Scheduler => "kube-scheduler",
        }
    }
}

impl fmt::Display for Component {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The loopback ports of one instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Ports {
    /// etcd, clients.
    pub etcd: u16,
    /// etcd, peers.
    pub etcd_peer: u16,
    /// kube-apiserver.
    pub api_server: u16,
    /// kube-controller-manager (health and metrics).
    pub controller_manager: u16,
    /// kube-scheduler (health and metrics).
    pub scheduler: u16,
}

/// Files that the arguments name.
#[derive(Debug)]
pub(crate) struct Places {
    pub(crate) pki: Pki,
    pub(crate) etcd_data: PathBuf,
    pub(crate) audit_policy: PathBuf,
    pub(crate) audit_log: PathBuf,
    pub(crate) scheduler_configuration: PathBuf,
    pub(crate) controller_manager_kubeconfig: PathBuf,
    pub(crate) scheduler_kubeconfig: PathBuf,
}

/// Requests per second and burst that our clients of the control plane may send; the default of 20 to 50 would make
/// 1,000 pods a matter of minutes.
const QPS: u32 = 2000;

/// The arguments of one program, its own name first.
pub(crate) fn arguments(
    component: Component,
    settings: &Settings,
    ports: Ports,
    places: &Places,
) -> Vec<String> {
    let mut arguments = vec![component.name().to_owned()];
    arguments.extend(match component {
        Component::Etcd => etcd(ports, places),
        Component::ApiServer => api_server(settings, ports, places),
        Component::ControllerManager => controller_manager(settings, ports, places),
        Component::Scheduler => scheduler(settings, ports, places),
    });
    arguments.extend(
        settings
            .extra_arguments
            .get(&component)
            .into_iter()
            .flatten()
            .cloned(),
    );
    arguments
}

fn etcd(ports: Ports, places: &Places) -> Vec<String> {
    let client = format!("http://127.0.0.1:{}", ports.etcd);
    let peer = format!("http://127.0.0.1:{}", ports.etcd_peer);
    vec![
        "--name=testbed".into(),
        flag("data-dir", places.etcd_data.display()),
        flag("listen-client-urls", &client),
        flag("advertise-client-urls", &client),
        flag("listen-peer-urls", &peer),
        flag("initial-advertise-peer-urls", &peer),
        format!("--initial-cluster=testbed={peer}"),
        // The data live no longer than the processes.
        "--unsafe-no-fsync=true".into(),
        "--quota-backend-bytes=4294967296".into(),
        "--auto-compaction-mode=periodic".into(),
        "--auto-compaction-retention=10m".into(),
        "--log-level=warn".into(),
    ]
}

fn api_server(settings: &Settings, ports: Ports, places: &Places) -> Vec<String> {
    let pki = &places.pki;
    let mut arguments = vec![
        format!("--etcd-servers=http://127.0.0.1:{}", ports.etcd),
        "--bind-address=127.0.0.1".into(),
        "--advertise-address=127.0.0.1".into(),
        flag("secure-port", ports.api_server),
        flag("tls-cert-file", pki.server.certificate.display()),
        flag("tls-private-key-file", pki.server.key.display()),
        flag("client-ca-file", pki.authority.display()),
        "--authorization-mode=RBAC".into(),
        flag(
            "requestheader-client-ca-file",
            pki.front_proxy_authority.display(),
        ),
        flag("requestheader-allowed-names", FRONT_PROXY_NAME),
        "--requestheader-username-headers=X-Remote-User".into(),
        "--requestheader-group-headers=X-Remote-Group".into(),
        "--requestheader-extra-headers-prefix=X-Remote-Extra-".into(),
        flag(
            "proxy-client-cert-file",
            pki.front_proxy.certificate.display(),
        ),
        flag("proxy-client-key-file", pki.front_proxy.key.display()),
        "--service-account-issuer=https://kubernetes.default.svc".into(),
        flag(
            "service-account-key-file",
            pki.service_account_public.display(),
        ),
        flag(
            "service-account-signing-key-file",
            pki.service_account_key.display(),
        ),
        "--service-cluster-ip-range=10.96.0.0/16".into(),
        // Its own endpoints would be a loopback address, which EndpointSlices refuse.
        "--endpoint-reconciler-type=none".into(),
        "--allow-privileged=true".into(),
        "--max-requests-inflight=1600".into(),
        "--max-mutating-requests-inflight=800".into(),
        // Nobody waits for a load balancer to notice.
        "--shutdown-delay-duration=0s".into(),
        flag(
            "default-not-ready-toleration-seconds",
            settings.eviction_delay.as_secs(),
        ),
        flag(
            "default-unreachable-toleration-seconds",
            settings.eviction_delay.as_secs(),
        ),
    ];
    if settings.audit {
        arguments.extend([
            flag("audit-policy-file", places.audit_policy.display()),
            flag("audit-log-path", places.audit_log.display()),
            // Written before the request is answered, so that a count after it is complete.
            "--audit-log-mode=blocking".into(),
            "--audit-log-maxsize=1024".into(),
            "--audit-log-maxbackup=1".into(),
        ]);
    }
    let versions: Vec<_> = settings
        .profile
        .api_versions()
        .iter()
        .map(|version| format!("{version}=true"))
        .collect();
    if !versions.is_empty() {
        arguments.push(flag("runtime-config", versions.join(",")));
    }
    arguments.extend(feature_gates(settings));
    arguments
}

fn controller_manager(settings: &Settings, ports: Ports, places: &Places) -> Vec<String> {
    let mut arguments = health_server(
        ports.controller_manager,
        places,
        &places.controller_manager_kubeconfig,
    );
    arguments.extend([
        flag("kubeconfig", places.controller_manager_kubeconfig.display()),
        "--leader-elect=false".into(),
        // Without it the autoscaler and the garbage collector lack rights.
        "--use-service-account-credentials=true".into(),
        flag("service-account-private-key-file", places.pki.service_account_key.display()),
        flag("root-ca-file", places.pki.authority.display()),
        // Endpoints of pretended pods are loopback addresses, which EndpointSlices refuse; the TTL controller annotates
        // nodes for kubelets that we do not have; there are no pod networks and no volumes to give out.
        "--controllers=*,-endpoints-controller,-endpointslice-controller,-endpointslice-mirroring-controller,\
         -ttl-controller,-node-ipam-controller,-persistentvolume-attach-detach-controller,\
         -persistentvolume-expander-controller,-certificatesigningrequest-signing-controller,\
         -certificatesigningrequest-cleaner-controller"
            .into(),
        flag("kube-api-qps", QPS),
        flag("kube-api-burst", QPS),
        "--concurrent-gc-syncs=50".into(),
        "--concurrent-namespace-syncs=10".into(),
        "--concurrent-deployment-syncs=10".into(),
        "--concurrent-replicaset-syncs=10".into(),
        "--concurrent-horizontal-pod-autoscaler-syncs=10".into(),
        flag("horizontal-pod-autoscaler-sync-period", seconds(settings.hpa_sync)),
        // A dead node is noticed within the grace period and one look, and then its pods are evicted at once, however
        // many nodes died with it; a real cluster throttles this.
        "--node-monitor-period=1s".into(),
        flag("node-monitor-grace-period", seconds(settings.node_grace)),
        flag("node-startup-grace-period", seconds(settings.node_grace * 2)),
        "--node-eviction-rate=1000".into(),
        "--secondary-node-eviction-rate=1000".into(),
        "--large-cluster-size-threshold=0".into(),
    ]);
    arguments.extend(feature_gates(settings));
    arguments
}

fn scheduler(settings: &Settings, ports: Ports, places: &Places) -> Vec<String> {
    let mut arguments = health_server(ports.scheduler, places, &places.scheduler_kubeconfig);
    arguments.push(flag("config", places.scheduler_configuration.display()));
    arguments.extend(feature_gates(settings));
    arguments
}

fn health_server(port: u16, places: &Places, kubeconfig: &Path) -> Vec<String> {
    vec![
        "--bind-address=127.0.0.1".into(),
        flag("secure-port", port),
        flag("tls-cert-file", places.pki.server.certificate.display()),
        flag("tls-private-key-file", places.pki.server.key.display()),
        flag("authentication-kubeconfig", kubeconfig.display()),
        flag("authorization-kubeconfig", kubeconfig.display()),
    ]
}

fn feature_gates(settings: &Settings) -> Option<String> {
    let gates: Vec<_> = settings
        .profile
        .feature_gates()
        .iter()
        .map(|gate| format!("{gate}=true"))
        .collect();
    (!gates.is_empty()).then(|| flag("feature-gates", gates.join(",")))
}

/// The scheduler's configuration file. A gang that was refused is tried again after a second: with the default, up to
/// ten, room that was freed lies idle for that long.
pub(crate) fn scheduler_configuration(kubeconfig: &Path) -> serde_json::Value {
    json!({
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": kubeconfig.display().to_string(), "qps": QPS, "burst": QPS},
        "leaderElection": {"leaderElect": false},
        "podInitialBackoffSeconds": 1,
        "podMaxBackoffSeconds": 1,
    })
}

/// The audit policy: who changed what, once per request; reads and what carries secrets in its body are left out.
pub(crate) fn audit_policy() -> serde_json::Value {
    json!({
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived", "ResponseStarted", "Panic"],
        "rules": [
            {"level": "None", "verbs": ["get", "list", "watch"]},
            // Reviews are questions, not changes.
            {"level": "None", "resources": [
                {"group": "authorization.k8s.io"},
                {"group": "authentication.k8s.io"},
            ]},
            {"level": "Metadata"},
        ],
    })
}

fn flag(name: &str, value: impl fmt::Display) -> String {
    format!("--{name}={value}")
}

fn seconds(duration: Duration) -> String {
    format!("{}ms", duration.as_millis())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Profile;

    fn example(profile: Profile) -> (Settings, Ports, Places) {
        let file = |name: &str| PathBuf::from("/t").join(name);
        let pair = || crate::pki::Files {
            certificate: file("crt"),
            key: file("key"),
        };
        let pki = Pki {
            authority: file("ca.crt"),
            front_proxy_authority: file("fp.crt"),
            server: pair(),
            front_proxy: pair(),
            service_account_key: file("sa.key"),
            service_account_public: file("sa.pub"),
            admin: pair(),
            controller_manager: pair(),
            scheduler: pair(),
        };
        let places = Places {
            pki,
            etcd_data: file("etcd"),
            audit_policy: file("audit.yaml"),
            audit_log: file("audit.log"),
            scheduler_configuration: file("scheduler.yaml"),
            controller_manager_kubeconfig: file("cm"),
            scheduler_kubeconfig: file("s"),
        };
        let ports = Ports {
            etcd: 1,
            etcd_peer: 2,
            api_server: 3,
            controller_manager: 4,
            scheduler: 5,
        };
        (Settings::new(profile), ports, places)
    }

    #[test]
    fn gates_are_the_same_for_all_three_programs() {
        for profile in Profile::ALL {
            let (settings, ports, places) = example(profile);
            let gates = [
                Component::ApiServer,
                Component::ControllerManager,
                Component::Scheduler,
            ]
            .map(|component| {
                arguments(component, &settings, ports, &places)
                    .into_iter()
                    .find(|argument| argument.starts_with("--feature-gates="))
            });
            assert!(
                gates.iter().all(|other| *other == gates[0]),
                "{profile}: {gates:?}"
            );
            assert_eq!(gates[0].is_none(), profile == Profile::Plain);
        }
    }

    #[test]
    fn the_last_word_belongs_to_the_extra_arguments() {
        let (mut settings, ports, places) = example(Profile::Plain);
        settings
            .extra_arguments
            .insert(Component::Etcd, vec!["--log-level=debug".to_owned()]);
        let arguments = arguments(Component::Etcd, &settings, ports, &places);
        assert_eq!(arguments.first().unwrap(), "etcd");
        assert_eq!(arguments.last().unwrap(), "--log-level=debug");
    }
}
