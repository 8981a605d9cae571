//! Certificate and key from PEM files that something else renews.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

use super::{Fresh, Loaded, TlsError, not_after};

/// Contents are compared this often. A Secret volume changes by swapping a link to its folder, which content sees and a watch of the
/// file would not.
pub(super) const PAUSE: Duration = Duration::from_secs(5);

/// The files and what they held when they were last tried.
pub(super) struct Files {
    certificate: PathBuf,
    key: PathBuf,
    ca: Option<PathBuf>,
    tried: Option<Contents>,
}

#[derive(PartialEq, Eq, Clone)]
struct Contents {
    certificate: Vec<u8>,
    key: Vec<u8>,
    ca: Option<Vec<u8>>,
}

impl Files {
    pub(super) fn new(certificate: PathBuf, key: PathBuf, ca: Option<PathBuf>) -> Self {
        Self {
            certificate,
            key,
            ca,
            tried: None,
        }
    }

    pub(super) fn load(&mut self) -> Result<Fresh, TlsError> {
        let contents = self.read()?;
        self.tried = Some(contents.clone());
        self.parse(&contents)
    }

    /// The new pair when a file has changed since the last try. A pair that does not fit is tried again only after another change.
    pub(super) fn reload(&mut self) -> Result<Option<Fresh>, TlsError> {
        let contents = self.read()?;
        if self.tried.as_ref() == Some(&contents) {
            return Ok(None);
        }
        self.tried = Some(contents.clone());
        self.parse(&contents).map(Some)
    }

    fn read(&self) -> Result<Contents, TlsError> {
        let beside = self.certificate.with_file_name("ca.crt");
        let ca = match &self.ca {
            Some(path) => Some(read(path)?),
            None if beside.exists() => Some(read(&beside)?),
            None => None,
        };
        Ok(Contents {
            certificate: read(&self.certificate)?,
            key: read(&self.key)?,
            ca,
        })
    }

    fn parse(&self, contents: &Contents) -> Result<Fresh, TlsError> {
        let beside = || self.certificate.with_file_name("ca.crt");
        fresh(&Pair {
            certificate: (&contents.certificate, &self.certificate),
            key: (&contents.key, &self.key),
            ca: contents
                .ca
                .as_deref()
                .map(|ca| (ca, self.ca.clone().unwrap_or_else(beside))),
        })
    }
}

/// PEM texts, each with where it stands.
pub(super) struct Pair<'a> {
    pub(super) certificate: (&'a [u8], &'a Path),
    pub(super) key: (&'a [u8], &'a Path),
    pub(super) ca: Option<(&'a [u8], PathBuf)>,
}

/// Makes a pair usable.
pub(super) fn fresh(pair: &Pair<'_>) -> Result<Fresh, TlsError> {
    let unusable = |path: &Path, expected| TlsError::Pem {
        path: path.to_owned(),
        expected,
    };
    let chain = certificates(pair.certificate.0)
        .ok_or_else(|| unusable(pair.certificate.1, "certificate"))?;
    let key = PrivateKeyDer::from_pem_slice(pair.key.0)
        .map_err(|_| unusable(pair.key.1, "private key"))?;
    let not_after = not_after(&chain[0])?;
    let key = CertifiedKey::from_der(chain, key, &default_provider()).map_err(TlsError::Pair)?;
    let bundle = match &pair.ca {
        None => None,
        Some((ca, path)) => {
            certificates(ca).ok_or_else(|| unusable(path, "certificate"))?;
            Some(Arc::from(
                std::str::from_utf8(ca).map_err(|_| unusable(path, "certificate"))?,
            ))
        }
    };
    Ok(Fresh {
        loaded: Loaded {
            key: Arc::new(key),
            not_after,
        },
        bundle,
    })
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    std::fs::read(path).map_err(|source| TlsError::Read {
        path: path.to_owned(),
        source,
    })
}

/// The certificates of a PEM text; `None` when there is none, or one cannot be decoded.
fn certificates(pem: &[u8]) -> Option<Vec<CertificateDer<'static>>> {
    let chain: Vec<_> = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .ok()?;
    (!chain.is_empty()).then_some(chain)
}
