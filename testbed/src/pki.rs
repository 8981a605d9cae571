//! Keys and certificates of one control plane. They are made anew at every start and vouch for nothing else.

use std::fs;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

/// A certificate and its key, as files.
#[derive(Debug, Clone)]
pub(crate) struct Files {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

/// All key material that the programs' arguments name.
#[derive(Debug, Clone)]
pub(crate) struct Pki {
    /// Signs the server's and the clients' certificates.
    pub(crate) authority: PathBuf,
    /// Signs what the aggregation layer shows to extension servers.
    pub(crate) front_proxy_authority: PathBuf,
    /// All servers of the control plane (they differ only in ports).
    pub(crate) server: Files,
    /// The aggregation layer's client certificate.
    pub(crate) front_proxy: Files,
    /// Signs and checks service-account tokens.
    pub(crate) service_account_key: PathBuf,
    pub(crate) service_account_public: PathBuf,
    /// Users with a certificate of their own.
    pub(crate) admin: Files,
    pub(crate) controller_manager: Files,
    pub(crate) scheduler: Files,
}

/// Key material could not be made or written.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    /// Making or signing.
    #[error("cannot make a certificate")]
    Make(#[from] rcgen::Error),
    /// Writing.
    #[error("cannot write {}", path.display())]
    Write {
        /// What was to be written.
        path: PathBuf,
        /// Why it was not.
        source: io::Error,
    },
}

/// The name that the aggregation layer's certificate carries and extension servers may insist on.
pub(crate) const FRONT_PROXY_NAME: &str = "front-proxy-client";

impl Pki {
    /// Makes everything in `folder`. Private keys are readable by the owner only.
    pub(crate) fn create(folder: &Path) -> Result<Self, PkiError> {
        fs::create_dir_all(folder).map_err(|source| PkiError::Write {
            path: folder.to_owned(),
            source,
        })?;
        let authority = Authority::create(folder, "ca", "coppice-testbed")?;
        let front_proxy =
            Authority::create(folder, "front-proxy-ca", "coppice-testbed-front-proxy")?;
        let names = [
            "localhost",
            "kubernetes.default.svc",
            "127.0.0.1",
            "10.96.0.1",
        ]
        .map(String::from)
        .to_vec();
        let mut server = CertificateParams::new(names)?;
        server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];

        let service_account = KeyPair::generate()?;
        let service_account_key = folder.join("service-account.key");
        write(
            &service_account_key,
            &service_account.serialize_pem(),
            Access::Owner,
        )?;
        let service_account_public = folder.join("service-account.pub");
        write(
            &service_account_public,
            &service_account.public_key_pem(),
            Access::All,
        )?;

        Ok(Self {
            server: authority.sign(folder, "server", "kube-apiserver", server)?,
            admin: authority.sign_client(
                folder,
                "admin",
                "testbed-admin",
                Some("system:masters"),
            )?,
            controller_manager: authority.sign_client(
                folder,
                "kube-controller-manager",
                "system:kube-controller-manager",
                None,
            )?,
            scheduler: authority.sign_client(
                folder,
                "kube-scheduler",
                "system:kube-scheduler",
                None,
            )?,
            front_proxy: front_proxy.sign_client(folder, "front-proxy", FRONT_PROXY_NAME, None)?,
            authority: authority.certificate,
            front_proxy_authority: front_proxy.certificate,
            service_account_key,
            service_account_public,
        })
    }
}

struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: PathBuf,
}

impl Authority {
    fn create(folder: &Path, file: &str, name: &str) -> Result<Self, PkiError> {
        let mut parameters = CertificateParams::default();
        parameters.distinguished_name.push(DnType::CommonName, name);
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        parameters.key_usages = vec![
            KeyUsagePurpose::KeyCertSign,
            KeyUsagePurpose::DigitalSignature,
        ];
        let key = KeyPair::generate()?;
        let certificate = folder.join(format!("{file}.crt"));
        write(
            &certificate,
            &parameters.self_signed(&key)?.pem(),
            Access::All,
        )?;
        // The key stays in memory: nothing is signed after the start.
        Ok(Self {
            issuer: Issuer::new(parameters, key),
            certificate,
        })
    }

    fn sign_client(
        &self,
        folder: &Path,
        file: &str,
        user: &str,
        group: Option<&str>,
    ) -> Result<Files, PkiError> {
        let mut parameters = CertificateParams::default();
        parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        if let Some(group) = group {
            parameters
                .distinguished_name
                .push(DnType::OrganizationName, group);
        }
        self.sign(folder, file, user, parameters)
    }

    fn sign(
        &self,
        folder: &Path,
        file: &str,
        common_name: &str,
        mut parameters: CertificateParams,
    ) -> Result<Files, PkiError> {
        parameters
            .distinguished_name
            .push(DnType::CommonName, common_name);
        parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate()?;
        let certificate = parameters.signed_by(&key, &self.issuer)?;
        let files = Files {
            certificate: folder.join(format!("{file}.crt")),
            key: folder.join(format!("{file}.key")),
        };
        write(&files.certificate, &certificate.pem(), Access::All)?;
        write(&files.key, &key.serialize_pem(), Access::Owner)?;
        Ok(files)
    }
}

#[derive(Clone, Copy)]
enum Access {
    Owner,
    All,
}

fn write(path: &Path, text: &str, access: Access) -> Result<(), PkiError> {
    let mode = match access {
        Access::Owner => 0o600,
        Access::All => 0o644,
    };
    let written = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(mode)
        .open(path)
        .and_then(|mut file| io::Write::write_all(&mut file, text.as_bytes()));
    written.map_err(|source| PkiError::Write {
        path: path.to_owned(),
        source,
    })
}
