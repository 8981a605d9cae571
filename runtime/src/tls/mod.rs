//! Serving certificates: from files that are read again when they change, or self-issued and renewed before they expire, by one process
//! for itself or by several through a Secret.
//!
//! Open connections keep the certificate they began with; new ones get the current one. A pair of files that does not fit together is
//! logged and the old pair stays.

mod client_auth;
mod files;
mod issue;
mod shared;

use std::path::PathBuf;
use std::sync::Arc;

use arc_swap::ArcSwap;
use jiff::Timestamp;
use kube::Client;
use rustls::ServerConfig;
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

pub use client_auth::ClientAuth;
pub use issue::{Authority, Issued};

use crate::telemetry::chain;

/// Lowest protocol version that is accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum MinVersion {
    /// TLS 1.2.
    #[value(name = "1.2")]
    Tls12,
    /// TLS 1.3.
    #[value(name = "1.3")]
    Tls13,
}

/// Flags about the serving certificate.
#[derive(Debug, Clone, clap::Args)]
pub struct TlsArgs {
    /// Certificate chain (PEM) to serve with, leaf first; without it a certificate is self-issued
    #[arg(
        long,
        env = "COPPICE_TLS_CERT_FILE",
        requires = "tls_key_file",
        value_name = "FILE"
    )]
    pub tls_cert_file: Option<PathBuf>,
    /// Private key (PEM) of the certificate
    #[arg(
        long,
        env = "COPPICE_TLS_KEY_FILE",
        requires = "tls_cert_file",
        value_name = "FILE"
    )]
    pub tls_key_file: Option<PathBuf>,
    /// Certificates (PEM) that clients should trust; without it `ca.crt` beside the certificate, where there is one
    #[arg(
        long,
        env = "COPPICE_TLS_CA_FILE",
        requires = "tls_cert_file",
        value_name = "FILE"
    )]
    pub tls_ca_file: Option<PathBuf>,
    /// Secret in which the replicas of this program share a self-issued certificate; without it each process issues its own
    #[arg(
        long,
        env = "COPPICE_TLS_SECRET",
        conflicts_with = "tls_cert_file",
        value_name = "NAME"
    )]
    pub tls_secret: Option<String>,
    /// Lowest TLS version to accept
    #[arg(long, env = "COPPICE_TLS_MIN_VERSION", value_enum, default_value_t = MinVersion::Tls13)]
    pub tls_min_version: MinVersion,
}

impl TlsArgs {
    /// Starts with the certificate that the flags name. `names` are the host names and addresses that a self-issued one is valid for;
    /// a shared one lies in a Secret of `namespace`.
    ///
    /// # Errors
    /// [`TlsError`] when there is no usable certificate to begin with.
    pub async fn start(
        &self,
        names: Vec<String>,
        client: &Client,
        namespace: &str,
        stop: CancellationToken,
    ) -> Result<Tls, TlsError> {
        let keeper = match (&self.tls_cert_file, &self.tls_key_file, &self.tls_secret) {
            (Some(certificate), Some(key), _) => {
                let (certificate, key, ca) =
                    (certificate.clone(), key.clone(), self.tls_ca_file.clone());
                Keeper::open(Source::Files {
                    certificate,
                    key,
                    ca,
                })?
            }
            (_, _, Some(secret)) => Keeper::Shared(Box::new(shared::Shared::new(
                client.clone(),
                namespace,
                secret,
                names,
            ))),
            _ => Keeper::open(Source::SelfIssued { names })?,
        };
        Tls::keep(keeper, stop).await
    }
}

/// Where a serving certificate comes from, without a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// PEM files, watched.
    Files {
        /// Chain, leaf first.
        certificate: PathBuf,
        /// Key of the leaf.
        key: PathBuf,
        /// What clients should trust. `None`: `ca.crt` beside `certificate`, if it exists.
        ca: Option<PathBuf>,
    },
    /// An authority of this process's own, made at the start.
    SelfIssued {
        /// DNS names and IP addresses.
        names: Vec<String>,
    },
}

/// Why there is no serving certificate.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        #[source]
        source: std::io::Error,
    },
    /// A file is no PEM of the kind that is needed.
    #[error("{} holds no usable {expected}", path.display())]
    Pem {
        /// The file.
        path: PathBuf,
        /// What should be in it.
        expected: &'static str,
    },
    /// Key and certificate do not belong together, or rustls does not know the key's kind.
    #[error("key and certificate cannot be used together")]
    Pair(#[source] rustls::Error),
    /// The certificate's fields cannot be read.
    #[error("certificate cannot be parsed: {0}")]
    Parse(String),
    /// Issuing failed.
    #[error("cannot issue a certificate for {names:?}")]
    Issue {
        /// The names asked for.
        names: Vec<String>,
        /// What the issuer says.
        #[source]
        source: rcgen::Error,
    },
    /// The Secret with the shared certificate cannot be read or written.
    #[error("cannot {doing} Secret {namespace}/{name}")]
    Secret {
        /// `read` or `write`.
        doing: &'static str,
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// What the API server says.
        #[source]
        source: Box<kube::Error>,
    },
    /// The protocol versions cannot be set up with the provider.
    #[error("TLS cannot be configured")]
    Configure(#[source] rustls::Error),
}

/// A certificate in use.
#[derive(Debug)]
struct Loaded {
    key: Arc<CertifiedKey>,
    not_after: Timestamp,
}

/// The serving certificate of a program, kept current in the background. Clones share it.
#[derive(Debug, Clone)]
pub struct Tls {
    current: Arc<Current>,
    bundle: watch::Receiver<Option<Arc<str>>>,
}

#[derive(Debug)]
struct Current(ArcSwap<Loaded>);

impl ResolvesServerCert for Current {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0.load().key))
    }
}

impl Tls {
    /// Loads or issues the certificate, and keeps it current until `stop` is cancelled. Needs a tokio runtime.
    ///
    /// # Errors
    /// [`TlsError`] when there is no usable certificate to begin with.
    pub async fn start(source: Source, stop: CancellationToken) -> Result<Self, TlsError> {
        Self::keep(Keeper::open(source)?, stop).await
    }

    async fn keep(mut keeper: Keeper, stop: CancellationToken) -> Result<Self, TlsError> {
        crate::crypto::install();
        let first = keeper.load(Timestamp::now()).await?;
        info!(not_after = %first.loaded.not_after, "serving certificate loaded");
        let (publish, bundle) = watch::channel(first.bundle);
        let current = Arc::new(Current(ArcSwap::from_pointee(first.loaded)));
        let kept = Arc::clone(&current);
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    () = stop.cancelled() => return,
                    () = tokio::time::sleep(keeper.pause()) => {}
                }
                match keeper.refresh(Timestamp::now()).await {
                    Ok(None) => {}
                    Ok(Some(fresh)) => {
                        info!(not_after = %fresh.loaded.not_after, "serving certificate replaced");
                        kept.0.store(Arc::new(fresh.loaded));
                        publish.send_if_modified(|bundle| {
                            let is_new = *bundle != fresh.bundle;
                            *bundle = fresh.bundle;
                            is_new
                        });
                    }
                    Err(error) => {
                        warn!(error = %chain(&error), "new serving certificate refused, the old one stays")
                    }
                }
            }
        });
        Ok(Self { current, bundle })
    }

    /// What clients should trust, as PEM; `None` when the certificate comes from files without a CA file. Follows renewals.
    #[must_use]
    pub fn ca_bundle(&self) -> watch::Receiver<Option<Arc<str>>> {
        self.bundle.clone()
    }

    /// When the certificate in use expires.
    #[must_use]
    pub fn not_after(&self) -> Timestamp {
        self.current.0.load().not_after
    }

    /// A rustls configuration that serves with the current certificate, HTTP/2 and HTTP/1.1.
    ///
    /// Sessions are not resumed: a resumed one would carry a client certificate that was checked long ago.
    ///
    /// # Errors
    /// [`TlsError::Configure`] when the provider lacks the protocol version.
    pub fn server_config(
        &self,
        min_version: MinVersion,
        clients: ClientAuth,
    ) -> Result<Arc<ServerConfig>, TlsError> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let versions: &[&rustls::SupportedProtocolVersion] = match min_version {
            MinVersion::Tls12 => &[&rustls::version::TLS13, &rustls::version::TLS12],
            MinVersion::Tls13 => &[&rustls::version::TLS13],
        };
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(versions)
            .map_err(TlsError::Configure)?;
        let builder = match clients {
            ClientAuth::Off => builder.with_no_client_auth(),
            ClientAuth::Requested => {
                builder.with_client_cert_verifier(Arc::new(client_auth::Deferred::new(&provider)))
            }
            ClientAuth::Verified(verifier) => builder.with_client_cert_verifier(verifier),
        };
        let resolver: Arc<dyn ResolvesServerCert> =
            Arc::clone(&self.current) as Arc<dyn ResolvesServerCert>;
        let mut config = builder.with_cert_resolver(resolver);
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Arc::new(config))
    }
}

/// A certificate and what to trust for it.
struct Fresh {
    loaded: Loaded,
    bundle: Option<Arc<str>>,
}

/// Knows how to get the next certificate.
enum Keeper {
    Files(files::Files),
    Own(Box<issue::Own>),
    Shared(Box<shared::Shared>),
}

impl Keeper {
    fn open(source: Source) -> Result<Self, TlsError> {
        match source {
            Source::Files {
                certificate,
                key,
                ca,
            } => Ok(Self::Files(files::Files::new(certificate, key, ca))),
            Source::SelfIssued { names } => Ok(Self::Own(Box::new(issue::Own::new(
                names,
                Timestamp::now(),
            )?))),
        }
    }

    async fn load(&mut self, now: Timestamp) -> Result<Fresh, TlsError> {
        match self {
            Self::Files(files) => files.load(),
            Self::Own(own) => own.issue(now),
            Self::Shared(shared) => shared.load(now).await,
        }
    }

    /// A new certificate when one is due.
    async fn refresh(&mut self, now: Timestamp) -> Result<Option<Fresh>, TlsError> {
        match self {
            Self::Files(files) => files.reload(),
            Self::Own(own) => own.renew(now),
            Self::Shared(shared) => shared.renew(now).await,
        }
    }

    fn pause(&self) -> std::time::Duration {
        match self {
            Self::Files(_) => files::PAUSE,
            Self::Own(_) | Self::Shared(_) => issue::PAUSE,
        }
    }
}

/// When a certificate expires.
fn not_after(der: &[u8]) -> Result<Timestamp, TlsError> {
    let (_, certificate) = x509_parser::parse_x509_certificate(der)
        .map_err(|error| TlsError::Parse(error.to_string()))?;
    Timestamp::from_second(certificate.validity().not_after.timestamp())
        .map_err(|error| TlsError::Parse(error.to_string()))
}

#[cfg(test)]
mod tests;
