//! Whether the operator answers admission reviews, and how the API server reaches it.

use std::net::{IpAddr, SocketAddr};

use anyhow::Context as _;
use clap::Args;
use coppice_runtime::tls::TlsArgs;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::api::PostParams;
use kube::{Api, Client};

use super::authorize::Guard;
use super::register::Address;

/// Flags about admission.
#[derive(Debug, Args)]
pub(crate) struct AdmissionArgs {
    /// Serve admission webhooks and register them as this Service's, for an operator in the cluster; the Service, and the Secret of
    /// --tls-secret, lie in the lease's namespace. Needs --tls-secret or --tls-cert-file.
    /// Without it and without --webhook-url-host there is no admission, and the schema alone refuses what it can
    #[arg(
        long,
        env = "COPPICE_WEBHOOK_SERVICE",
        conflicts_with = "webhook_url_host",
        value_name = "NAME"
    )]
    pub(crate) webhook_service: Option<String>,
    /// Serve admission webhooks and register them by URL, with this host and the port of --webhook-address, for an operator outside the cluster
    #[arg(long, env = "COPPICE_WEBHOOK_URL_HOST", value_name = "HOST")]
    pub(crate) webhook_url_host: Option<String>,
    /// Port of the Service
    #[arg(
        long,
        env = "COPPICE_WEBHOOK_SERVICE_PORT",
        default_value_t = 443,
        value_name = "PORT"
    )]
    pub(crate) webhook_service_port: u16,
    /// Address of the webhooks' HTTPS endpoint; port 0 takes a free one and logs it
    #[arg(
        long,
        env = "COPPICE_WEBHOOK_ADDRESS",
        default_value = DEFAULT_ADDRESS,
        value_name = "ADDRESS:PORT"
    )]
    pub(crate) webhook_address: SocketAddr,
    /// Refuse writes to objects that the operator manages by anybody but itself and --authorizer-exempt; the annotation
    /// grove.io/disable-managed-resource-protection of a set lifts that for it. Needs --webhook-service or --webhook-url-host
    #[arg(long, env = "COPPICE_AUTHORIZER", default_value_t = false, action = clap::ArgAction::Set, value_name = "BOOL")]
    pub(crate) authorizer: bool,
    /// Full names of users who may change managed objects beside the operator
    #[arg(long = "authorizer-exempt", env = "COPPICE_AUTHORIZER_EXEMPT", value_delimiter = ',', default_values_t = EXEMPT.map(str::to_owned), value_name = "USER")]
    pub(crate) authorizer_exempt: Vec<String>,
    /// The certificate.
    #[command(flatten)]
    pub(crate) tls: TlsArgs,
}

/// Parts of Kubernetes that write to managed objects: whoever collects garbage removes finalizers, and so on. As upstream's
/// chart.
const EXEMPT: [&str; 5] = [
    "system:serviceaccount:kube-system:generic-garbage-collector",
    "system:serviceaccount:kube-system:horizontal-pod-autoscaler",
    "system:kube-controller-manager",
    "system:serviceaccount:kai-scheduler:pod-grouper",
    "system:serviceaccount:kai-scheduler:binder",
];

/// Upstream's port.
pub(crate) const PORT: u16 = 9443;
const DEFAULT_ADDRESS: &str = "0.0.0.0:9443";

/// How the API server reaches the webhooks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Through a Service in the operator's namespace, at that port.
    Service(String, u16),
    /// At that host, at the port that the endpoint listens on.
    Host(String),
}

impl AdmissionArgs {
    /// Who may change managed objects; nothing where everybody may.
    ///
    /// # Errors
    /// The server cannot say who the operator is, or nobody would ask.
    pub(crate) async fn guard(&self, client: &Client) -> anyhow::Result<Option<Guard>> {
        if !self.authorizer {
            return Ok(None);
        }
        anyhow::ensure!(
            self.reach()?.is_some(),
            "--authorizer=true needs --webhook-service or --webhook-url-host: without webhooks nobody asks"
        );
        let api: Api<SelfSubjectReview> = Api::all(client.clone());
        let review = api
            .create(&PostParams::default(), &SelfSubjectReview::default())
            .await
            .context("cannot ask the API server for the operator's own user name")?;
        let own = review.status.and_then(|status| status.user_info);
        let own = own.and_then(|user| user.username);
        Ok(Some(Guard {
            own: own.context("the API server does not say who the operator is")?,
            exempt: self.authorizer_exempt.iter().cloned().collect(),
        }))
    }

    /// How the webhooks are reached; nothing when admission is off.
    ///
    /// # Errors
    /// The replicas behind a Service would have certificates of different authorities, or the host cannot stand in a URL.
    pub(crate) fn reach(&self) -> anyhow::Result<Option<Reach>> {
        if let Some(service) = &self.webhook_service {
            anyhow::ensure!(
                self.tls.tls_secret.is_some() || self.tls.tls_cert_file.is_some(),
                "--webhook-service {service} needs a certificate that all replicas share: add --tls-secret NAME, in which they keep one \
                 that they issue themselves, or --tls-cert-file"
            );
            return Ok(Some(Reach::Service(
                service.clone(),
                self.webhook_service_port,
            )));
        }
        let Some(host) = &self.webhook_url_host else {
            return Ok(None);
        };
        let is_name = |host: &str| {
            let is_legal = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
            !host.is_empty() && host.bytes().all(is_legal)
        };
        anyhow::ensure!(
            host.parse::<IpAddr>().is_ok() || is_name(host),
            "--webhook-url-host {host:?} must be a host name or an address, without a scheme, a port or a path"
        );
        Ok(Some(Reach::Host(host.clone())))
    }
}

impl Reach {
    /// What the API server is told, for an endpoint that listens on `bound` and belongs to an operator in `namespace`.
    pub(crate) fn address(&self, namespace: &str, bound: SocketAddr) -> Address {
        match self {
            Self::Service(name, port) => Address::Service {
                namespace: namespace.to_owned(),
                name: name.clone(),
                port: *port,
            },
            Self::Host(host) => Address::Url {
                host: host.clone(),
                port: bound.port(),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::settings::{Arguments, Command};

    fn parsed(arguments: &[&str]) -> AdmissionArgs {
        let parsed = Arguments::try_parse_from(["coppice-operator", "run"].iter().chain(arguments));
        let Command::Run(args) = parsed.expect("valid").command else {
            panic!("run")
        };
        args.admission
    }

    #[test]
    fn admission_is_off_until_somebody_says_how_to_reach_it() {
        assert_eq!(parsed(&[]).reach().unwrap(), None);
        let by_host = parsed(&["--webhook-url-host", "localhost"])
            .reach()
            .unwrap();
        assert_eq!(by_host, Some(Reach::Host("localhost".to_owned())));
        let by_service = parsed(&["--webhook-service", "op", "--tls-secret", "s"]);
        assert_eq!(
            by_service.reach().unwrap(),
            Some(Reach::Service("op".to_owned(), 443))
        );
        assert_eq!(by_service.webhook_address.port(), PORT);
    }

    #[test]
    fn settings_that_cannot_work_are_named() {
        let why = |arguments: &[&str]| parsed(arguments).reach().unwrap_err().to_string();
        assert!(why(&["--webhook-service", "op"]).contains("add --tls-secret NAME"));
        for host in ["https://x", "x:443", "x/y", ""] {
            assert!(
                why(&["--webhook-url-host", host]).contains("must be a host name or an address"),
                "{host}"
            );
        }
        for host in ["::1", "10.0.0.1", "operator.example"] {
            assert!(
                parsed(&["--webhook-url-host", host]).reach().is_ok(),
                "{host}"
            );
        }
        let both = [
            "coppice-operator",
            "run",
            "--webhook-url-host",
            "x",
            "--webhook-service",
            "y",
        ];
        assert!(Arguments::try_parse_from(both).is_err());
    }
}
