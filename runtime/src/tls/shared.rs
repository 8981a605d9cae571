//! A self-issued certificate that the replicas of a program share through a Secret.
//!
//! Whoever finds the Secret missing or its certificate due writes the next one; the write names the version it replaces, so that of
//! several who try only one succeeds and the others take over what it wrote. The authority's key lies in the Secret, too.
//!
//! The authority is replaced a year before it expires; clients trust the old and the new one from then on.

use std::collections::BTreeMap;
use std::path::Path;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, ObjectMeta, PostParams};
use kube::{Client, Error};

use super::files::{Pair, fresh};
use super::issue::{AUTHORITY_NAME, Authority, Issued, LEAF_LIFE, is_due};
use super::{Fresh, TlsError, not_after};

const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";
/// What clients trust: the authority in use first, behind it the one before.
const BUNDLE: &str = "ca.crt";
const AUTHORITY_KEY: &str = "ca.key";
/// Annotation with the names that the certificate is valid for.
const NAMES: &str = "coppice.dev/certificate-names";

/// Life that an authority must have left to sign.
const AUTHORITY_RESERVE: SignedDuration = SignedDuration::from_hours(24 * 365);

/// Tries against others who write at the same time.
const TRIES: usize = 5;

pub(super) struct Shared {
    secrets: Api<Secret>,
    namespace: String,
    name: String,
    names: Vec<String>,
    /// The certificate in use.
    used: Option<Vec<u8>>,
}

/// What a look at the Secret leads to.
#[derive(Debug)]
enum Next {
    /// It is good as it is.
    Keep,
    /// It has to become this.
    Write(Box<Secret>),
}

impl Shared {
    pub(super) fn new(client: Client, namespace: &str, name: &str, names: Vec<String>) -> Self {
        let secrets = Api::namespaced(client, namespace);
        Self {
            secrets,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            names,
            used: None,
        }
    }

    pub(super) async fn load(&mut self, now: Timestamp) -> Result<Fresh, TlsError> {
        let secret = self.settle(now).await?;
        self.used = entry(&secret, CERTIFICATE).map(<[u8]>::to_vec);
        usable(&secret)
    }

    /// The new certificate when somebody has written one, this process included.
    pub(super) async fn renew(&mut self, now: Timestamp) -> Result<Option<Fresh>, TlsError> {
        let secret = self.settle(now).await?;
        let held = entry(&secret, CERTIFICATE).map(<[u8]>::to_vec);
        if held == self.used {
            return Ok(None);
        }
        self.used = held;
        usable(&secret).map(Some)
    }

    /// The Secret, good as it is; written before where it was not.
    async fn settle(&self, now: Timestamp) -> Result<Secret, TlsError> {
        let failed = |doing, source| TlsError::Secret {
            doing,
            namespace: self.namespace.clone(),
            name: self.name.clone(),
            source: Box::new(source),
        };
        let mut tries = 0;
        loop {
            tries += 1;
            let held = self
                .secrets
                .get_opt(&self.name)
                .await
                .map_err(|source| failed("read", source))?;
            let wanted = match (next(&self.name, held.as_ref(), &self.names, now)?, held) {
                (Next::Keep, Some(held)) => return Ok(held),
                (Next::Keep, None) => continue,
                (Next::Write(wanted), _) => wanted,
            };
            let written = if wanted.metadata.resource_version.is_some() {
                self.secrets
                    .replace(&self.name, &PostParams::default(), &wanted)
                    .await
            } else {
                self.secrets.create(&PostParams::default(), &wanted).await
            };
            match written {
                Ok(written) => return Ok(written),
                // Somebody else was first: see what they wrote.
                Err(Error::Api(status)) if status.code == 409 && tries < TRIES => {}
                Err(source) => return Err(failed("write", source)),
            }
        }
    }
}

/// What the Secret must become. Anything in it that cannot be read is made anew.
fn next(
    name: &str,
    held: Option<&Secret>,
    names: &[String],
    now: Timestamp,
) -> Result<Next, TlsError> {
    let joined = names.join(",");
    let authority = held.and_then(|held| authority(held, now));
    if let (Some(held), Some(_)) = (held, &authority) {
        let annotated = held
            .metadata
            .annotations
            .as_ref()
            .and_then(|annotations| annotations.get(NAMES));
        let is_good = usable(held).is_ok_and(|fresh| !is_due(fresh.loaded.not_after, now));
        if is_good && annotated == Some(&joined) {
            return Ok(Next::Keep);
        }
    }
    let (authority, bundle) = match authority {
        Some(authority) => {
            let bundle = held
                .and_then(|held| text(held, BUNDLE))
                .unwrap_or_else(|| authority.pem())
                .to_owned();
            (authority, bundle)
        }
        None => {
            let authority = Authority::new(AUTHORITY_NAME, now)?;
            let before = held
                .and_then(|held| first_certificate(text(held, BUNDLE)?))
                .unwrap_or_default();
            let bundle = format!("{}{before}", authority.pem());
            (authority, bundle)
        }
    };
    let Issued {
        certificate_pem,
        key_pem,
        ..
    } = authority.issue(names, now, LEAF_LIFE)?;
    let data = [
        (CERTIFICATE, certificate_pem),
        (KEY, key_pem),
        (BUNDLE, bundle),
        (AUTHORITY_KEY, authority.key_pem()),
    ];
    let mut secret = held.cloned().unwrap_or_else(|| Secret {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            ..ObjectMeta::default()
        },
        type_: Some("kubernetes.io/tls".to_owned()),
        ..Secret::default()
    });
    secret
        .metadata
        .annotations
        .get_or_insert_default()
        .insert(NAMES.to_owned(), joined);
    let held_data: &mut BTreeMap<String, ByteString> = secret.data.get_or_insert_default();
    held_data.extend(data.map(|(key, value)| (key.to_owned(), ByteString(value.into_bytes()))));
    Ok(Next::Write(Box::new(secret)))
}

/// The authority in the Secret, when it can be read and has enough life left.
fn authority(secret: &Secret, now: Timestamp) -> Option<Authority> {
    let certificate = first_certificate(text(secret, BUNDLE)?)?;
    let der = rustls::pki_types::pem::PemObject::from_pem_slice(certificate.as_bytes()).ok();
    let der: rustls::pki_types::CertificateDer<'static> = der?;
    if not_after(&der).ok()?.duration_since(now) < AUTHORITY_RESERVE {
        return None;
    }
    Authority::from_pem(&certificate, text(secret, AUTHORITY_KEY)?).ok()
}

const END: &str = "-----END CERTIFICATE-----";

/// The first certificate of a PEM bundle, as PEM.
fn first_certificate(bundle: &str) -> Option<String> {
    let end = bundle.find(END)? + END.len();
    Some(format!("{}\n", bundle[..end].trim()))
}

fn usable(secret: &Secret) -> Result<Fresh, TlsError> {
    let place = Path::new(secret.metadata.name.as_deref().unwrap_or_default());
    let part = |key: &'static str| entry(secret, key).unwrap_or_default();
    fresh(&Pair {
        certificate: (part(CERTIFICATE), &place.join(CERTIFICATE)),
        key: (part(KEY), &place.join(KEY)),
        ca: Some((part(BUNDLE), place.join(BUNDLE))),
    })
}

fn entry<'a>(secret: &'a Secret, key: &str) -> Option<&'a [u8]> {
    secret
        .data
        .as_ref()?
        .get(key)
        .map(|value| value.0.as_slice())
}

fn text<'a>(secret: &'a Secret, key: &str) -> Option<&'a str> {
    std::str::from_utf8(entry(secret, key)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn day(start: Timestamp, count: i64) -> Timestamp {
        start + SignedDuration::from_hours(24 * count)
    }

    fn names() -> Vec<String> {
        vec!["adapter.system.svc".to_owned()]
    }

    fn written(held: Option<&Secret>, now: Timestamp) -> Secret {
        match next("cert", held, &names(), now).unwrap() {
            Next::Write(secret) => *secret,
            Next::Keep => panic!("kept"),
        }
    }

    fn is_kept(held: &Secret, now: Timestamp) -> bool {
        matches!(next("cert", Some(held), &names(), now).unwrap(), Next::Keep)
    }

    #[test]
    fn a_secret_is_kept_until_its_certificate_is_due_and_then_signed_by_the_same_authority() {
        crate::crypto::install();
        let start = Timestamp::now();
        let first = written(None, start);
        assert_eq!(first.type_.as_deref(), Some("kubernetes.io/tls"));
        assert!(is_kept(&first, day(start, 59)));
        let second = written(Some(&first), day(start, 61));
        assert_eq!(text(&first, BUNDLE), text(&second, BUNDLE));
        assert_ne!(entry(&first, CERTIFICATE), entry(&second, CERTIFICATE));
        assert!(usable(&second).is_ok());
    }

    #[test]
    fn other_names_need_another_certificate() {
        crate::crypto::install();
        let start = Timestamp::now();
        let first = written(None, start);
        let others = vec!["other.system.svc".to_owned()];
        assert!(matches!(
            next("cert", Some(&first), &others, start).unwrap(),
            Next::Write(_)
        ));
    }

    #[test]
    fn an_old_authority_is_replaced_and_both_are_trusted() {
        crate::crypto::install();
        let start = Timestamp::now();
        let first = written(None, start);
        let late = day(start, 3650 - 364);
        let second = written(Some(&first), late);
        let bundle = text(&second, BUNDLE).unwrap();
        assert_eq!(bundle.matches(END).count(), 2);
        assert!(bundle.ends_with(&first_certificate(text(&first, BUNDLE).unwrap()).unwrap()));
        assert!(is_kept(&second, day(late, 1)));
    }

    #[test]
    fn a_spoilt_secret_is_made_anew_and_what_others_put_there_stays() {
        crate::crypto::install();
        let start = Timestamp::now();
        let mut spoilt = written(None, start);
        let data = spoilt.data.as_mut().unwrap();
        data.insert(AUTHORITY_KEY.to_owned(), ByteString(b"no key".to_vec()));
        data.insert("other".to_owned(), ByteString(b"theirs".to_vec()));
        spoilt.metadata.resource_version = Some("7".to_owned());
        let anew = written(Some(&spoilt), start);
        assert_eq!(anew.metadata.resource_version.as_deref(), Some("7"));
        assert_eq!(entry(&anew, "other"), Some(&b"theirs"[..]));
        assert!(usable(&anew).is_ok());
    }
}
