//! Kubeconfig files: for the programs of the control plane, for the administrator, and for anyone the tests want to be.

use std::fs;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use kube::Config;
use kube::config::{
    AuthInfo, Cluster, Context, KubeConfigOptions, Kubeconfig, KubeconfigError, NamedAuthInfo,
    NamedCluster, NamedContext,
};

use crate::pki::{Files, Pki};

/// Who a client wants to be. The administrator's certificate vouches for it: the server is asked to treat the requests
/// as this user's (impersonation), so RBAC, priority and fairness, and the audit log see the user, not the administrator.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Identity {
    /// The user's name, for instance `system:serviceaccount:coppice-system:coppice-operator` (a service account's own
    /// groups come with it).
    pub user: String,
    /// Further groups.
    pub groups: Vec<String>,
}

impl Identity {
    /// The service account `name` of `namespace`.
    #[must_use]
    pub fn service_account(namespace: &str, name: &str) -> Self {
        Self {
            user: format!("system:serviceaccount:{namespace}:{name}"),
            groups: vec![
                "system:serviceaccounts".to_owned(),
                format!("system:serviceaccounts:{namespace}"),
            ],
        }
    }
}

/// Connection settings from a kubeconfig file, with its current context.
///
/// # Errors
///
/// The file cannot be read, or what it names.
pub async fn client_config(path: &Path) -> Result<Config, KubeconfigError> {
    Config::from_custom_kubeconfig(Kubeconfig::read_from(path)?, &KubeConfigOptions::default())
        .await
}

/// A kubeconfig for `server` that shows the certificate `client`.
pub(crate) fn build(server: &str, pki: &Pki, client: &Files) -> Kubeconfig {
    let text = |path: &Path| Some(path.display().to_string());
    let user = AuthInfo {
        client_certificate: text(&client.certificate),
        client_key: text(&client.key),
        ..AuthInfo::default()
    };
    let cluster = Cluster {
        server: Some(server.to_owned()),
        certificate_authority: text(&pki.authority),
        ..Cluster::default()
    };
    let name = "coppice-testbed".to_owned();
    Kubeconfig {
        kind: Some("Config".to_owned()),
        api_version: Some("v1".to_owned()),
        clusters: vec![NamedCluster {
            name: name.clone(),
            cluster: Some(cluster),
            ..NamedCluster::default()
        }],
        auth_infos: vec![NamedAuthInfo {
            name: name.clone(),
            auth_info: Some(user),
            ..NamedAuthInfo::default()
        }],
        contexts: vec![NamedContext {
            name: name.clone(),
            context: Some(Context {
                cluster: name.clone(),
                user: Some(name.clone()),
                ..Context::default()
            }),
            ..NamedContext::default()
        }],
        current_context: Some(name),
        ..Kubeconfig::default()
    }
}

/// The same kubeconfig with another identity.
pub(crate) fn with_identity(mut config: Kubeconfig, identity: &Identity) -> Kubeconfig {
    for user in &mut config.auth_infos {
        let user = user.auth_info.get_or_insert_default();
        user.impersonate = Some(identity.user.clone());
        user.impersonate_groups = (!identity.groups.is_empty()).then(|| identity.groups.clone());
    }
    config
}

/// Writes it as JSON, which is YAML too, readable by the owner only.
pub(crate) fn write(path: &Path, config: &Kubeconfig) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let file = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)?;
    serde_json::to_writer_pretty(file, config).map_err(io::Error::from)
}
