//! Where requests go: a server's address, resolved once.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use http::Uri;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto};

use crate::schedule::NotValid;

/// Where distributions keep the system's certificate authorities.
const SYSTEM_BUNDLES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// A server's base address as written: `http://HOST[:PORT][/PATH]` or `https://…`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BaseUrl {
    /// Spoken over TLS.
    pub tls: bool,
    /// Name or address, without brackets.
    pub host: String,
    /// Port.
    pub port: u16,
    /// Path before the API's own, without a slash at its end.
    pub path: String,
}

impl BaseUrl {
    /// `HOST:PORT` as the `Host` header and messages want it.
    #[must_use]
    pub fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

impl FromStr for BaseUrl {
    type Err = NotValid;

    fn from_str(text: &str) -> Result<Self, NotValid> {
        let refuse = |hint: &str| NotValid::new("a server's address", text, hint);
        let uri: Uri = text
            .parse()
            .map_err(|_| refuse("write http://HOST:PORT or https://HOST:PORT"))?;
        let tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(refuse("begin with http:// or https://")),
        };
        if uri.query().is_some() {
            return Err(refuse("leave out what follows the question mark"));
        }
        let host = uri
            .host()
            .filter(|host| !host.is_empty())
            .ok_or_else(|| refuse("name a host"))?;
        Ok(Self {
            tls,
            host: host.trim_matches(['[', ']']).to_owned(),
            port: uri.port_u16().unwrap_or(if tls { 443 } else { 80 }),
            path: uri.path().trim_end_matches('/').to_owned(),
        })
    }
}

/// A server that connections can be opened to.
#[derive(Clone)]
pub struct Target {
    /// As it was written.
    pub url: BaseUrl,
    /// What its name resolved to; at least one. New connections take turns.
    pub addresses: Vec<SocketAddr>,
    /// TLS, where it is spoken.
    pub tls: Option<(TlsConnector, ServerName<'static>)>,
}

impl std::fmt::Debug for Target {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Target")
            .field("url", &self.url)
            .field("addresses", &self.addresses)
            .finish_non_exhaustive()
    }
}

/// A target that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    /// The name does not resolve.
    #[error("resolving {authority}")]
    Resolve {
        /// Host and port.
        authority: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The name resolves to nothing.
    #[error("{authority} resolves to no address")]
    NoAddress {
        /// Host and port.
        authority: String,
    },
    /// The certificate authorities could not be read.
    #[error("reading certificate authorities from {path}: {reason}")]
    Authorities {
        /// File.
        path: String,
        /// Why.
        reason: String,
    },
    /// No file with certificate authorities is known.
    #[error(
        "https needs certificate authorities, and none were found on this system: give a PEM file with --ca-file"
    )]
    NoAuthorities,
    /// TLS cannot be set up.
    #[error("setting up TLS to {authority}: {reason}")]
    Tls {
        /// Host and port.
        authority: String,
        /// Why.
        reason: String,
    },
}

impl Target {
    /// Resolves the name and, for https, loads certificate authorities (`ca_file`, else the system's).
    ///
    /// # Errors
    /// See [`TargetError`].
    pub async fn resolve(url: BaseUrl, ca_file: Option<&Path>) -> Result<Self, TargetError> {
        let authority = url.authority();
        let addresses: Vec<SocketAddr> = tokio::net::lookup_host((url.host.as_str(), url.port))
            .await
            .map_err(|source| TargetError::Resolve {
                authority: authority.clone(),
                source,
            })?
            .collect();
        if addresses.is_empty() {
            return Err(TargetError::NoAddress { authority });
        }
        let tls = if url.tls {
            Some(tls(&url, ca_file)?)
        } else {
            None
        };
        Ok(Self {
            url,
            addresses,
            tls,
        })
    }
}

fn tls(
    url: &BaseUrl,
    ca_file: Option<&Path>,
) -> Result<(TlsConnector, ServerName<'static>), TargetError> {
    let failed = |reason: String| TargetError::Tls {
        authority: url.authority(),
        reason,
    };
    let path = match ca_file {
        Some(path) => path.to_owned(),
        None => std::env::var_os("SSL_CERT_FILE")
            .map(PathBuf::from)
            .or_else(|| {
                SYSTEM_BUNDLES
                    .iter()
                    .map(PathBuf::from)
                    .find(|path| path.exists())
            })
            .ok_or(TargetError::NoAuthorities)?,
    };
    let unreadable = |reason: String| TargetError::Authorities {
        path: path.display().to_string(),
        reason,
    };
    let mut roots = RootCertStore::empty();
    for certificate in
        CertificateDer::pem_file_iter(&path).map_err(|error| unreadable(error.to_string()))?
    {
        let certificate = certificate.map_err(|error| unreadable(error.to_string()))?;
        // A bundle may hold a certificate that this library cannot use; the others still count.
        roots.add_parsable_certificates([certificate]);
    }
    if roots.is_empty() {
        return Err(unreadable("it holds no certificate".to_owned()));
    }
    let config =
        ClientConfig::builder_with_provider(Arc::new(crypto::aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| failed(error.to_string()))?
            .with_root_certificates(roots)
            .with_no_client_auth();
    let name = ServerName::try_from(url.host.clone()).map_err(|error| failed(error.to_string()))?;
    Ok((TlsConnector::from(Arc::new(config)), name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read() {
        let url: BaseUrl = "http://127.0.0.1:8000/serving/".parse().unwrap();
        assert_eq!(
            (url.host.as_str(), url.port, url.path.as_str(), url.tls),
            ("127.0.0.1", 8000, "/serving", false)
        );
        let url: BaseUrl = "https://[::1]".parse().unwrap();
        assert_eq!(
            (url.host.as_str(), url.port, url.authority().as_str()),
            ("::1", 443, "[::1]:443")
        );
    }

    #[test]
    fn what_is_no_address_is_refused_with_advice() {
        for (text, hint) in [
            ("127.0.0.1:8000", "http://"),
            ("ftp://x", "http://"),
            ("http://x/?a=1", "question mark"),
            ("http://", "http://HOST:PORT"),
        ] {
            let error = text.parse::<BaseUrl>().unwrap_err().to_string();
            assert!(error.contains(hint), "{text}: {error}");
        }
    }
}
