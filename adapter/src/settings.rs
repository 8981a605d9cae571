//! Flags of the program, and what they mean together.

use std::net::SocketAddr;
use std::time::Duration;

use coppice_runtime::admin::AdminArgs;
use coppice_runtime::client::KubeArgs;
use coppice_runtime::settings::{duration, positive_duration};
use coppice_runtime::telemetry::LogArgs;
use coppice_runtime::tls::TlsArgs;
use coppice_signals::PodWatch;

use crate::doctor::Question;
use crate::groups::Groups;
use crate::keda::KedaArgs;
use crate::objects::{NAME, RightsFor, ServiceAddress};
use crate::register::Registration;
use crate::workload::Workload;

/// Serves metrics of inference servers to autoscalers
#[derive(Debug, Clone, clap::Parser)]
#[command(name = "coppice-adapter", version)]
pub(crate) struct Arguments {
    /// Logs.
    #[command(flatten)]
    pub log: LogArgs,
    /// The cluster.
    #[command(flatten)]
    pub kube: KubeArgs,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Clone, clap::Subcommand)]
pub(crate) enum Command {
    /// Scrape pods and serve external.metrics.k8s.io, custom.metrics.k8s.io
    Serve(Box<ServeArgs>),
    /// Print the Kubernetes objects that the adapter needs: rights, Service, Deployment, APIService
    Manifests(ManifestsArgs),
    /// Ask the running adapter for a metric, and show how its value came about
    Get(GetArgs),
    /// Check the way from an autoscaler to the adapter, and name what is wrong with it
    Doctor(DoctorArgs),
    /// Show what each pod is doing, from custom.metrics.k8s.io
    Top(TopArgs),
    /// Read an exposition from a file, and show what would be served of it
    Parse(ParseArgs),
    /// Read a rules file, and show how it is understood or what is wrong with it
    Check(CheckArgs),
    /// Make a rules file of a configuration of prometheus-adapter
    Convert(ConvertArgs),
}

/// Flags of `serve`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ServeArgs {
    /// Address of the HTTPS endpoint; port 0 takes a free one and logs it
    #[arg(
        long,
        env = "COPPICE_BIND_ADDRESS",
        default_value = "0.0.0.0:6443",
        value_name = "ADDRESS:PORT"
    )]
    pub bind_address: SocketAddr,
    /// API groups to serve. Each belongs to one server in a cluster: beside KEDA, which owns external.metrics.k8s.io, serve custom alone
    #[arg(long, env = "COPPICE_APIS", value_enum, default_value_t = Groups::External, value_name = "GROUPS")]
    pub apis: Groups,
    /// Address of /metrics, /healthz and /readyz on plain HTTP.
    #[command(flatten)]
    pub admin: AdminArgs,
    /// Certificate.
    #[command(flatten)]
    pub tls: TlsArgs,
    /// Scraping.
    #[command(flatten)]
    pub scrape: ScrapeArgs,
    /// Namespace of the scaler's Lease; without it the namespace of the pod or of the kubeconfig's context
    #[arg(long, env = "COPPICE_SCALER_LEASE_NAMESPACE", value_name = "NAMESPACE")]
    pub scaler_lease_namespace: Option<String>,
    /// Whether callers without credentials go on to authorization; without it they are refused
    #[arg(long, env = "COPPICE_ANONYMOUS", default_value_t = true, action = clap::ArgAction::Set, value_name = "BOOL")]
    pub anonymous: bool,
    /// Requests that are answered at a time; more are refused
    #[arg(long, env = "COPPICE_MAX_REQUESTS", default_value_t = 400, value_parser = clap::value_parser!(u32).range(1..=100_000), value_name = "COUNT")]
    pub max_requests: u32,
    /// How long new connections are accepted after the program was told to end, until the API server has noticed
    #[arg(long, env = "COPPICE_SHUTDOWN_DELAY", default_value = "0s", value_parser = duration, value_name = "DURATION")]
    pub shutdown_delay: Duration,
    /// KEDA.
    #[command(flatten)]
    pub keda: KedaArgs,
    /// The Service.
    #[command(flatten)]
    pub service: ServiceArgs,
    /// Metrics and engines of one's own, as YAML; followed while the program runs. See docs/rules-file.md
    #[arg(long, env = "COPPICE_RULES", value_name = "FILE")]
    pub rules: Option<std::path::PathBuf>,
    /// Keep the APIServices pointing at this process, with its certificate
    #[arg(long, env = "COPPICE_REGISTER_APISERVICE")]
    pub register_apiservice: bool,
    /// Host under which the API server reaches this process when it runs outside the cluster: with --register-apiservice, a Service of
    /// type ExternalName is kept for it
    #[arg(
        long,
        env = "COPPICE_EXTERNAL_HOST",
        requires = "register_apiservice",
        value_name = "HOST"
    )]
    pub external_host: Option<String>,
}

/// Flags about scraping.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ScrapeArgs {
    /// Namespace whose pods are scraped; without it all namespaces
    #[arg(long, env = "COPPICE_NAMESPACE", value_name = "NAMESPACE")]
    pub namespace: Option<String>,
    /// Label selector of the pods that are scraped; without it all pods that say where their metrics are
    #[arg(
        long,
        env = "COPPICE_POD_SELECTOR",
        default_value = "",
        hide_default_value = true,
        value_name = "SELECTOR"
    )]
    pub pod_selector: String,
    /// Time between two scrapes of one endpoint
    #[arg(long, env = "COPPICE_SCRAPE_INTERVAL", default_value = "5s", value_parser = positive_duration, value_name = "DURATION")]
    pub scrape_interval: Duration,
    /// Time for one scrape
    #[arg(long, env = "COPPICE_SCRAPE_TIMEOUT", default_value = "5s", value_parser = positive_duration, value_name = "DURATION")]
    pub scrape_timeout: Duration,
    /// Look-back of rates and quantiles
    #[arg(long, env = "COPPICE_WINDOW", default_value = "60s", value_parser = positive_duration, value_name = "DURATION")]
    pub window: Duration,
    /// Age at which a sample no longer counts; without it three intervals or 30s, whichever is more
    #[arg(long, env = "COPPICE_STALE_AFTER", value_parser = positive_duration, value_name = "DURATION")]
    pub stale_after: Option<Duration>,
    /// Share of the ready endpoints that must have a fresh value, 0 to 1
    #[arg(
        long,
        env = "COPPICE_QUORUM",
        default_value_t = 0.8,
        value_name = "SHARE"
    )]
    pub quorum: f64,
}

/// Flags that name the adapter's Service.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ServiceArgs {
    /// Name of the Service that the APIService names
    #[arg(long, env = "COPPICE_SERVICE_NAME", default_value = NAME, value_name = "NAME")]
    pub service_name: String,
    /// Its namespace; without it the namespace of the pod or of the kubeconfig's context
    #[arg(long, env = "COPPICE_SERVICE_NAMESPACE", value_name = "NAMESPACE")]
    pub service_namespace: Option<String>,
    /// Its port; without it 443, or the port of --bind-address with --external-host
    #[arg(long, env = "COPPICE_SERVICE_PORT", value_name = "PORT")]
    pub service_port: Option<u16>,
}

/// Flags of `manifests`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ManifestsArgs {
    /// Namespace of the adapter
    #[arg(long, default_value = "coppice-system", value_name = "NAMESPACE")]
    pub namespace: String,
    /// Service account of the adapter
    #[arg(long, default_value = NAME, value_name = "NAME")]
    pub service_account: String,
    /// Name of the Service
    #[arg(long, default_value = NAME, value_name = "NAME")]
    pub service: String,
    /// Port of the Service
    #[arg(long, default_value_t = 443, value_name = "PORT")]
    pub port: u16,
    /// Port of the container behind the Service; 10250 passes most firewalls between control plane and nodes
    #[arg(long, default_value_t = 6443, value_name = "PORT")]
    pub target_port: u16,
    /// Port of KEDA's external scaler, of the container and of the Service; without it there is none
    #[arg(long, value_name = "PORT")]
    pub keda_port: Option<u16>,
    /// The adapter's image
    #[arg(long, default_value = DEFAULT_IMAGE, value_name = "IMAGE")]
    pub image: String,
    /// API groups to serve. Each belongs to one server in a cluster: beside KEDA, which owns external.metrics.k8s.io, serve custom alone
    #[arg(long, value_enum, default_value_t = Groups::External, value_name = "GROUPS")]
    pub apis: Groups,
    /// Copies; each answers by itself
    #[arg(long, default_value_t = 2, value_name = "COUNT")]
    pub replicas: u16,
    /// Host of an adapter outside the cluster: no pods, and a Service of type ExternalName
    #[arg(long, value_name = "HOST")]
    pub external_host: Option<String>,
    /// Secret with the certificate; the adapter issues and keeps it, unless --ca-bundle-file says that somebody else does
    #[arg(long, default_value = "coppice-adapter-tls", value_name = "NAME")]
    pub tls_secret: String,
    /// Certificates (PEM) that the API server should trust, where the Secret is somebody else's: prints the APIService with them. Without
    /// it the adapter registers itself
    #[arg(long, value_name = "FILE")]
    pub ca_bundle_file: Option<std::path::PathBuf>,
    /// Namespace of the scaler's Lease; without it the adapter's
    #[arg(long, value_name = "NAMESPACE")]
    pub scaler_lease_namespace: Option<String>,
}

/// Flags of `get`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct GetArgs {
    /// The metric, such as coppice_requests_waiting or vllm:num_requests_waiting
    pub metric: String,
    /// Namespace of the endpoints; without it the one of the kubeconfig's context
    #[arg(long, short, value_name = "NAMESPACE")]
    pub namespace: Option<String>,
    /// Label selector, as in an HPA
    #[arg(
        long,
        short = 'l',
        default_value = "",
        hide_default_value = true,
        value_name = "SELECTOR"
    )]
    pub selector: String,
    /// Print the answer as JSON
    #[arg(long)]
    pub json: bool,
}

/// Flags of `doctor`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct DoctorArgs {
    /// API groups that the adapter is to serve
    #[arg(long, value_enum, default_value_t = Groups::External, value_name = "GROUPS")]
    pub apis: Groups,
    /// The Service.
    #[command(flatten)]
    pub service: ServiceArgs,
    /// Service account of the adapter
    #[arg(long, default_value = NAME, value_name = "NAME")]
    pub service_account: String,
    /// The metric to ask for
    #[arg(long, default_value = "coppice_requests_waiting", value_name = "NAME")]
    pub metric: String,
    /// Namespace to ask for it in; without it the one of the kubeconfig's context
    #[arg(long, short, value_name = "NAMESPACE")]
    pub namespace: Option<String>,
}

/// Flags of `top`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct TopArgs {
    /// Namespace of the pods; without it the one of the kubeconfig's context
    #[arg(long, short, value_name = "NAMESPACE")]
    pub namespace: Option<String>,
    /// Label selector of the pods
    #[arg(
        long,
        short = 'l',
        default_value = "",
        hide_default_value = true,
        value_name = "SELECTOR"
    )]
    pub selector: String,
}

/// Flags of `parse`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ParseArgs {
    /// The file, as a server's /metrics gives it; - reads standard input
    pub file: std::path::PathBuf,
    /// The same server's answer some time later: shows rates and latencies, too
    #[arg(long, requires = "after", value_name = "FILE")]
    pub then: Option<std::path::PathBuf>,
    /// Time between the two
    #[arg(long, requires = "then", value_parser = positive_duration, value_name = "DURATION")]
    pub after: Option<Duration>,
}

/// Flags of `check`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct CheckArgs {
    /// The file
    pub file: std::path::PathBuf,
    /// Look-back of the adapter that is to serve it, which no rule can exceed
    #[arg(long, default_value = "60s", value_parser = positive_duration, value_name = "DURATION")]
    pub window: Duration,
}

/// Flags of `convert`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ConvertArgs {
    /// The content of prometheus-adapter's config.yaml
    pub file: std::path::PathBuf,
    /// Look-back of the adapter that is to serve the rules
    #[arg(long, default_value = "60s", value_parser = positive_duration, value_name = "DURATION")]
    pub window: Duration,
}

impl DoctorArgs {
    /// The metric request to try.
    pub(crate) fn question(&self, default_namespace: &str) -> Question {
        Question {
            metric: self.metric.clone(),
            namespace: self
                .namespace
                .clone()
                .unwrap_or_else(|| default_namespace.to_owned()),
        }
    }
}

impl ScrapeArgs {
    /// Settings of the collector.
    pub(crate) fn settings(&self) -> coppice_signals::Settings {
        coppice_signals::Settings {
            interval: self.scrape_interval,
            deadline: self.scrape_timeout,
            window: self.window,
            stale_after: self.stale_after,
            quorum: self.quorum,
            ..coppice_signals::Settings::default()
        }
    }

    /// Which pods to watch.
    pub(crate) fn pods(&self) -> PodWatch {
        PodWatch {
            namespace: self.namespace.clone(),
            label_selector: self.pod_selector.clone(),
        }
    }
}

impl ServeArgs {
    /// The Service's address, when the endpoint listens on `bound`.
    pub(crate) fn address(&self, default_namespace: &str, bound: SocketAddr) -> ServiceAddress {
        let default_port = if self.external_host.is_some() {
            bound.port()
        } else {
            443
        };
        ServiceAddress {
            namespace: self
                .service
                .service_namespace
                .clone()
                .unwrap_or_else(|| default_namespace.to_owned()),
            name: self.service.service_name.clone(),
            port: self.service.service_port.unwrap_or(default_port),
        }
    }

    /// What to register, if anything.
    pub(crate) fn registration(&self, address: &ServiceAddress) -> Option<Registration> {
        self.register_apiservice.then(|| Registration {
            groups: self.apis,
            address: address.clone(),
            external_host: self.external_host.clone(),
        })
    }
}

impl ManifestsArgs {
    /// The Service's address.
    pub(crate) fn address(&self) -> ServiceAddress {
        ServiceAddress {
            namespace: self.namespace.clone(),
            name: self.service.clone(),
            port: self.port,
        }
    }

    /// What the rights are for.
    pub(crate) fn rights(&self) -> RightsFor {
        let registers = self.ca_bundle_file.is_none();
        RightsFor {
            namespace: self.namespace.clone(),
            service_account: self.service_account.clone(),
            lease_namespace: self.lease_namespace(),
            groups: self.apis,
            registers,
            external_service: (registers && self.external_host.is_some())
                .then(|| self.service.clone()),
            tls_secret: (registers && self.external_host.is_none())
                .then(|| self.tls_secret.clone()),
        }
    }

    /// What the pods look like.
    pub(crate) fn workload(&self) -> Workload {
        Workload {
            namespace: self.namespace.clone(),
            service_account: self.service_account.clone(),
            image: self.image.clone(),
            replicas: self.replicas,
            groups: self.apis,
            port: self.target_port,
            keda_port: self.keda_port,
            service: self.service.clone(),
            service_port: self.port,
            lease_namespace: self.lease_namespace(),
            tls_secret: self.tls_secret.clone(),
            is_certificate_given: self.ca_bundle_file.is_some(),
        }
    }

    fn lease_namespace(&self) -> String {
        self.scaler_lease_namespace
            .clone()
            .unwrap_or_else(|| self.namespace.clone())
    }
}

/// The image released with this version.
const DEFAULT_IMAGE: &str = concat!(
    "ghcr.io/coppice-dev/coppice-adapter:v",
    env!("CARGO_PKG_VERSION")
);

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;

    fn serve(arguments: &[&str]) -> ServeArgs {
        let parsed =
            Arguments::try_parse_from(["coppice-adapter", "serve"].iter().chain(arguments))
                .expect("valid");
        match parsed.command {
            Command::Serve(serve) => *serve,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_flags_are_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn an_adapter_outside_the_cluster_is_reached_at_its_own_port() {
        let bound = "127.0.0.1:7443".parse().unwrap();
        assert_eq!(serve(&[]).address("system", bound).port, 443);
        let outside = serve(&["--register-apiservice", "--external-host", "localhost"]);
        let address = outside.address("system", bound);
        assert_eq!(
            address,
            ServiceAddress {
                namespace: "system".into(),
                name: NAME.into(),
                port: 7443
            }
        );
        assert_eq!(
            outside
                .registration(&address)
                .unwrap()
                .external_host
                .as_deref(),
            Some("localhost")
        );
        assert_eq!(serve(&[]).registration(&address), None);
    }

    #[test]
    fn kedas_port_has_one_kind_of_trust() {
        let parse = |flags: &[&str]| {
            let arguments = ["coppice-adapter", "serve"].iter().chain(flags);
            Arguments::try_parse_from(arguments).is_ok()
        };
        let address = "--keda-bind-address=127.0.0.1:0";
        assert!(parse(&[address]) && parse(&[address, "--keda-plaintext"]));
        assert!(!parse(&["--keda-plaintext"]), "of which port?");
        assert!(
            !parse(&[address, "--keda-plaintext", "--keda-client-ca-file=ca.crt"]),
            "certificates without TLS"
        );
    }

    #[test]
    fn defaults_make_a_collector_that_works() {
        assert_eq!(
            serve(&[]).scrape.settings(),
            coppice_signals::Settings::default()
        );
        assert!(
            Arguments::try_parse_from(["coppice-adapter", "serve", "--external-host", "localhost"])
                .is_err()
        );
    }
}
