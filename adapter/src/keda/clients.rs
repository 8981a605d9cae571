//! Who may call: holders of a certificate that one of the given authorities has signed. The file may change while the program runs.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use parking_lot::RwLock;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

/// The file's content is compared this often.
const PAUSE: Duration = Duration::from_secs(5);

/// A verifier by the authorities in a file, which is followed until `stop`. A file that cannot be used later on is logged, and the last
/// authorities stay.
///
/// # Errors
/// The file cannot be used to begin with.
pub(super) fn follow(
    path: &Path,
    stop: CancellationToken,
) -> anyhow::Result<Arc<dyn ClientCertVerifier>> {
    let (mut content, first) = load(path)?;
    let current = Arc::new(RwLock::new(first));
    let verifier = Arc::new(Current(Arc::clone(&current)));
    let path = path.to_path_buf();
    tokio::spawn(async move {
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(PAUSE) => {}
            }
            renew(&path, &mut content, &current);
        }
    });
    Ok(verifier)
}

type Verifier = Arc<dyn ClientCertVerifier>;

fn renew(path: &PathBuf, content: &mut Vec<u8>, current: &RwLock<Verifier>) {
    let read = match std::fs::read(path) {
        Ok(read) if read == *content => return,
        Ok(read) => read,
        Err(error) => {
            warn!(path = %path.display(), %error, "cannot read KEDA's authorities, the last ones stay");
            return;
        }
    };
    match verifier(&read, path) {
        Ok(fresh) => {
            *current.write() = fresh;
            info!(path = %path.display(), "KEDA's authorities replaced");
        }
        Err(error) => {
            warn!(path = %path.display(), error = format!("{error:#}"), "KEDA's new authorities refused, the last ones stay");
        }
    }
    // A file that is refused is tried again after another change.
    *content = read;
}

fn load(path: &Path) -> anyhow::Result<(Vec<u8>, Verifier)> {
    let content = std::fs::read(path)
        .with_context(|| format!("cannot read --keda-client-ca-file {}", path.display()))?;
    let verifier = verifier(&content, path)?;
    Ok((content, verifier))
}

fn verifier(pem: &[u8], path: &Path) -> anyhow::Result<Verifier> {
    let wrong = || {
        format!(
            "--keda-client-ca-file {} holds no usable certificates",
            path.display()
        )
    };
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        roots
            .add(certificate.with_context(wrong)?)
            .with_context(wrong)?;
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
        .build()
        .with_context(wrong)
}

/// Asks the verifier of the moment.
#[derive(Debug)]
struct Current(Arc<RwLock<Verifier>>);

impl Current {
    fn get(&self) -> Verifier {
        Arc::clone(&self.0.read())
    }
}

impl ClientCertVerifier for Current {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        // A client whose certificate fits no hint would send none, and hints would have to follow the file.
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.get()
            .verify_client_cert(end_entity, intermediates, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.get()
            .verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.get()
            .verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.get().supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{Flaw, TestCa};

    #[tokio::test]
    async fn authorities_follow_the_file_and_a_broken_one_changes_nothing() {
        coppice_runtime::crypto::install();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ca.crt");
        let (old, new) = (TestCa::new("old"), TestCa::new("new"));
        let of_old = old.issue("keda", &[], Flaw::None);
        let of_new = new.issue("keda", &[], Flaw::None);
        assert!(load(&path).is_err(), "there is no file");
        std::fs::write(&path, "no certificates").unwrap();
        assert!(load(&path).is_err(), "there is nothing in it");
        std::fs::write(&path, old.pem()).unwrap();
        let (mut content, first) = load(&path).unwrap();
        let current = Arc::new(RwLock::new(first));
        let verifier = Current(Arc::clone(&current));
        let accepts = |certificate: &CertificateDer<'_>| {
            verifier
                .verify_client_cert(certificate, &[], UnixTime::now())
                .is_ok()
        };
        assert_eq!((accepts(&of_old), accepts(&of_new)), (true, false));
        std::fs::write(&path, "half a cert").unwrap();
        renew(&path, &mut content, &current);
        assert_eq!((accepts(&of_old), accepts(&of_new)), (true, false));
        std::fs::write(&path, new.pem()).unwrap();
        renew(&path, &mut content, &current);
        assert_eq!((accepts(&of_old), accepts(&of_new)), (false, true));
    }
}
