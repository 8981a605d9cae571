//! Certificates of an authority of our own.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::sign::CertifiedKey;

use super::{Fresh, Loaded, TlsError};

/// How often it is checked whether a renewal is due.
pub(super) const PAUSE: Duration = Duration::from_secs(60);

/// Common name of the authorities.
pub(super) const AUTHORITY_NAME: &str = "coppice self-issued authority";

/// The authority outlives the process; it is made anew at each start.
const AUTHORITY_LIFE: SignedDuration = SignedDuration::from_hours(24 * 3650);
/// Of a serving certificate; it is renewed after two thirds of it.
pub(super) const LEAF_LIFE: SignedDuration = SignedDuration::from_hours(24 * 90);
/// Begin of validity before now, for clients whose clocks are behind.
const BACKDATE: SignedDuration = SignedDuration::from_hours(1);

/// A certificate authority of our own.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority").finish_non_exhaustive()
    }
}

/// A certificate with its key.
#[derive(Debug)]
pub struct Issued {
    /// The certificate.
    pub certificate: CertificateDer<'static>,
    /// Its private key.
    pub key: PrivateKeyDer<'static>,
    /// The certificate as PEM.
    pub certificate_pem: String,
    /// The private key as PEM.
    pub key_pem: String,
    /// When it expires.
    pub not_after: Timestamp,
}

impl Authority {
    /// A new authority; `name` is its common name.
    ///
    /// # Errors
    /// [`TlsError::Issue`] when the system has no randomness.
    pub fn new(name: &str, now: Timestamp) -> Result<Self, TlsError> {
        let wrong = |source| TlsError::Issue {
            names: vec![name.to_owned()],
            source,
        };
        let mut params = CertificateParams::default();
        params.distinguished_name = common_name(name);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        set_validity(&mut params, now, AUTHORITY_LIFE);
        let key = KeyPair::generate().map_err(wrong)?;
        let pem = params.self_signed(&key).map_err(wrong)?.pem();
        Ok(Self {
            issuer: Issuer::new(params, key),
            pem,
        })
    }

    /// An authority that was kept as PEM.
    ///
    /// # Errors
    /// [`TlsError::Issue`] when certificate or key cannot be read.
    pub(super) fn from_pem(certificate: &str, key: &str) -> Result<Self, TlsError> {
        let wrong = |source| TlsError::Issue {
            names: Vec::new(),
            source,
        };
        let key = KeyPair::from_pem(key).map_err(wrong)?;
        let issuer = Issuer::from_ca_cert_pem(certificate, key).map_err(wrong)?;
        Ok(Self {
            issuer,
            pem: certificate.to_owned(),
        })
    }

    /// The authority's own certificate, as PEM.
    #[must_use]
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// Its private key, as PEM.
    pub(super) fn key_pem(&self) -> String {
        self.issuer.key().serialize_pem()
    }

    /// Issues a serving certificate for DNS names and IP addresses, valid from an hour ago for `life` from now.
    ///
    /// # Errors
    /// [`TlsError::Issue`] when a name cannot be in a certificate.
    pub fn issue(
        &self,
        names: &[String],
        now: Timestamp,
        life: SignedDuration,
    ) -> Result<Issued, TlsError> {
        let wrong = |source| TlsError::Issue {
            names: names.to_vec(),
            source,
        };
        let mut params = CertificateParams::new(names.to_vec()).map_err(wrong)?;
        params.distinguished_name = common_name(names.first().map_or("coppice", String::as_str));
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        let not_after = set_validity(&mut params, now, life);
        let key = KeyPair::generate().map_err(wrong)?;
        let certificate = params.signed_by(&key, &self.issuer).map_err(wrong)?;
        Ok(Issued {
            certificate: certificate.der().clone(),
            key: PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der())),
            certificate_pem: certificate.pem(),
            key_pem: key.serialize_pem(),
            not_after,
        })
    }
}

fn common_name(name: &str) -> rcgen::DistinguishedName {
    let mut distinguished = rcgen::DistinguishedName::new();
    // A common name holds at most 64 characters.
    distinguished.push(
        DnType::CommonName,
        name.chars().take(64).collect::<String>(),
    );
    distinguished
}

/// Sets the validity and returns its end.
fn set_validity(params: &mut CertificateParams, now: Timestamp, life: SignedDuration) -> Timestamp {
    let instant = |at: Timestamp| {
        let seconds = u64::try_from(at.as_second()).unwrap_or(0);
        date_time_ymd(1970, 1, 1) + Duration::from_secs(seconds)
    };
    let not_after = now.saturating_add(life).unwrap_or(Timestamp::MAX);
    params.not_before = instant(
        now.saturating_sub(BACKDATE)
            .unwrap_or(Timestamp::UNIX_EPOCH),
    );
    params.not_after = instant(not_after);
    not_after
}

/// Whether a serving certificate is in the last third of its life.
pub(super) fn is_due(not_after: Timestamp, now: Timestamp) -> bool {
    not_after.duration_since(now) <= LEAF_LIFE / 3
}

/// A serving certificate from an authority of this process.
pub(super) struct Own {
    authority: Authority,
    names: Vec<String>,
    not_after: Timestamp,
}

impl Own {
    pub(super) fn new(names: Vec<String>, now: Timestamp) -> Result<Self, TlsError> {
        let authority = Authority::new(AUTHORITY_NAME, now)?;
        Ok(Self {
            authority,
            names,
            not_after: now,
        })
    }

    pub(super) fn issue(&mut self, now: Timestamp) -> Result<Fresh, TlsError> {
        let Issued {
            certificate,
            key,
            not_after,
            ..
        } = self.authority.issue(&self.names, now, LEAF_LIFE)?;
        let key = CertifiedKey::from_der(vec![certificate], key, &default_provider())
            .map_err(TlsError::Pair)?;
        self.not_after = not_after;
        Ok(Fresh {
            loaded: Loaded {
                key: Arc::new(key),
                not_after,
            },
            bundle: Some(Arc::from(self.authority.pem())),
        })
    }

    /// A new certificate in the last third of the old one's life.
    pub(super) fn renew(&mut self, now: Timestamp) -> Result<Option<Fresh>, TlsError> {
        if !is_due(self.not_after, now) {
            return Ok(None);
        }
        self.issue(now).map(Some)
    }
}
