use std::path::Path;

use jiff::{SignedDuration, Timestamp};
use rcgen::{CertificateParams, Issuer, KeyPair};

use super::*;

/// An authority whose certificates can be written as PEM.
struct TestAuthority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl TestAuthority {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self {
            issuer: Issuer::new(params, key),
            pem,
        }
    }

    /// Writes a certificate for `name` and its key into the folder.
    fn write(&self, folder: &Path, name: &str) {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new([name.to_owned()])
            .unwrap()
            .signed_by(&key, &self.issuer)
            .unwrap();
        std::fs::write(folder.join("tls.crt"), certificate.pem()).unwrap();
        std::fs::write(folder.join("tls.key"), key.serialize_pem()).unwrap();
    }
}

fn files(folder: &Path) -> files::Files {
    files::Files::new(folder.join("tls.crt"), folder.join("tls.key"), None)
}

fn served_name(fresh: &Fresh) -> String {
    let (_, certificate) = x509_parser::parse_x509_certificate(&fresh.loaded.key.cert[0]).unwrap();
    let names = certificate.subject_alternative_name().unwrap().unwrap();
    names
        .value
        .general_names
        .iter()
        .map(ToString::to_string)
        .collect()
}

#[test]
fn a_new_pair_of_files_is_taken_once_and_a_broken_one_is_refused_once() {
    crate::crypto::install();
    let folder = tempfile::tempdir().unwrap();
    let authority = TestAuthority::new();
    authority.write(folder.path(), "one.example");
    let mut files = files(folder.path());
    assert!(served_name(&files.load().unwrap()).contains("one.example"));
    assert!(files.reload().unwrap().is_none(), "nothing changed");

    authority.write(folder.path(), "two.example");
    assert!(served_name(&files.reload().unwrap().expect("changed")).contains("two.example"));

    // The key of another certificate: as in the middle of a replacement by hand.
    std::fs::write(
        folder.path().join("tls.key"),
        KeyPair::generate().unwrap().serialize_pem(),
    )
    .unwrap();
    assert!(matches!(files.reload(), Err(TlsError::Pair(_))));
    assert!(
        files.reload().unwrap().is_none(),
        "the same broken pair is not tried again"
    );

    std::fs::write(folder.path().join("tls.crt"), "no pem").unwrap();
    let error = files.reload().err().expect("no certificate");
    assert!(
        error
            .to_string()
            .ends_with("tls.crt holds no usable certificate"),
        "{error}"
    );
}

#[test]
fn the_ca_beside_the_certificate_is_what_clients_should_trust() {
    crate::crypto::install();
    let folder = tempfile::tempdir().unwrap();
    let authority = TestAuthority::new();
    authority.write(folder.path(), "one.example");
    assert_eq!(files(folder.path()).load().unwrap().bundle, None);
    std::fs::write(folder.path().join("ca.crt"), &authority.pem).unwrap();
    assert_eq!(
        files(folder.path()).load().unwrap().bundle.as_deref(),
        Some(authority.pem.as_str())
    );
}

#[test]
fn a_self_issued_certificate_is_renewed_in_the_last_third_by_the_same_authority() {
    crate::crypto::install();
    let start = Timestamp::now();
    let mut own = issue::Own::new(vec!["localhost".into(), "127.0.0.1".into()], start).unwrap();
    let first = own.issue(start).unwrap();
    let day = |count: i64| start + SignedDuration::from_hours(24 * count);
    assert!(own.renew(day(59)).unwrap().is_none());
    let second = own.renew(day(61)).unwrap().expect("due");
    assert_eq!(first.bundle, second.bundle, "what clients trust stays");
    assert!(second.loaded.not_after > first.loaded.not_after);
    assert_eq!(
        not_after(&second.loaded.key.cert[0]).unwrap().as_second(),
        second.loaded.not_after.as_second()
    );
}
