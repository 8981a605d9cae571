//! Client certificates against a pool of authorities.

use std::collections::BTreeMap;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use coppice_runtime::crypto;
use parking_lot::Mutex;
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;

use super::Caller;

/// Authorities that sign client certificates. Two pools are never mixed.
pub(crate) struct CaPool {
    verifier: Arc<dyn ClientCertVerifier>,
    authorities: Vec<CertificateDer<'static>>,
    /// Outcomes by chain, so that a long connection costs no signature check at each request. It goes with the pool when the
    /// authorities change.
    memo: Mutex<HashMap<Vec<u8>, Remembered>>,
}

struct Remembered {
    outcome: Result<Subject, String>,
    until: Instant,
}

/// Whom a certificate names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Subject {
    /// Common name.
    pub common_name: String,
    /// Organisations.
    pub organizations: Vec<String>,
    /// SHA-256 of the certificate, lower-case hexadecimal.
    pub fingerprint: String,
}

/// Why a bundle of authorities cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PoolError {
    /// The text is no PEM, or holds no certificate.
    #[error("no usable certificate in the bundle")]
    Empty,
    /// rustls refuses the authorities.
    #[error("the authorities cannot be used: {0}")]
    Verifier(String),
}

/// An outcome is remembered this long at most; a certificate that expires is refused after that at the latest.
const REMEMBER: Duration = Duration::from_secs(10);
/// Outcomes remembered at a time.
const MEMO_CAPACITY: usize = 1024;

impl std::fmt::Debug for CaPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CaPool")
            .field("authorities", &self.authorities.len())
            .finish_non_exhaustive()
    }
}

impl CaPool {
    /// Reads a PEM bundle.
    ///
    /// # Errors
    /// [`PoolError`] when it holds nothing usable.
    pub(crate) fn from_pem(pem: &str) -> Result<Self, PoolError> {
        let authorities: Vec<CertificateDer<'static>> =
            CertificateDer::pem_slice_iter(pem.as_bytes())
                .collect::<Result<_, _>>()
                .map_err(|_| PoolError::Empty)?;
        let mut roots = RootCertStore::empty();
        let (added, _) = roots.add_parsable_certificates(authorities.iter().cloned());
        if added == 0 {
            return Err(PoolError::Empty);
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
            .build()
            .map_err(|error| PoolError::Verifier(error.to_string()))?;
        Ok(Self {
            verifier,
            authorities,
            memo: Mutex::default(),
        })
    }

    /// Whether an authority is in both pools.
    pub(crate) fn shares_authority(&self, other: &Self) -> bool {
        self.authorities
            .iter()
            .any(|authority| other.authorities.contains(authority))
    }

    /// Whom a chain (leaf first) names, when it leads to this pool, is valid now and is meant for clients.
    ///
    /// # Errors
    /// The reason, for the log.
    pub(crate) fn verify(&self, chain: &[CertificateDer<'static>]) -> Result<Subject, String> {
        let (leaf, intermediates) = chain.split_first().ok_or("no certificate")?;
        let key = memo_key(chain);
        let now = Instant::now();
        if let Some(remembered) = self
            .memo
            .lock()
            .get(&key)
            .filter(|remembered| now < remembered.until)
        {
            return remembered.outcome.clone();
        }
        let outcome = match self
            .verifier
            .verify_client_cert(leaf, intermediates, UnixTime::now())
        {
            Ok(_) => subject(leaf),
            Err(error) => Err(error.to_string()),
        };
        let mut memo = self.memo.lock();
        if memo.len() >= MEMO_CAPACITY {
            memo.clear();
        }
        memo.insert(
            key,
            Remembered {
                outcome: outcome.clone(),
                until: now + REMEMBER,
            },
        );
        outcome
    }
}

/// The whole chain, each certificate behind its length.
fn memo_key(chain: &[CertificateDer<'static>]) -> Vec<u8> {
    let mut key = Vec::with_capacity(chain.iter().map(|der| der.len() + 8).sum());
    for der in chain {
        key.extend_from_slice(&der.len().to_le_bytes());
        key.extend_from_slice(der);
    }
    key
}

fn subject(leaf: &CertificateDer<'_>) -> Result<Subject, String> {
    let (_, certificate) =
        x509_parser::parse_x509_certificate(leaf).map_err(|error| error.to_string())?;
    let text = |attribute: &x509_parser::x509::AttributeTypeAndValue<'_>| {
        attribute.as_str().ok().map(str::to_owned)
    };
    let common_name = certificate
        .subject()
        .iter_common_name()
        .find_map(text)
        .unwrap_or_default();
    if common_name.is_empty() {
        return Err("the certificate has no common name".to_owned());
    }
    Ok(Subject {
        common_name,
        organizations: certificate
            .subject()
            .iter_organization()
            .filter_map(text)
            .collect(),
        fingerprint: crypto::hex(&crypto::sha256(&[leaf])),
    })
}

impl Subject {
    /// The user that the certificate stands for.
    pub(crate) fn caller(self) -> Caller {
        let credential = vec![format!("X509SHA256={}", self.fingerprint)];
        Caller {
            user: self.common_name,
            uid: String::new(),
            groups: self.organizations,
            extra: BTreeMap::from([(
                "authentication.kubernetes.io/credential-id".to_owned(),
                credential,
            )]),
        }
    }
}
