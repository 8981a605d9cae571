//! The cluster's settings for aggregated API servers: ConfigMap `kube-system/extension-apiserver-authentication`, watched.

use std::collections::BTreeMap;
use std::sync::Arc;

use coppice_runtime::health::Condition;
use coppice_runtime::telemetry::chain;
use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use rustls::pki_types::CertificateDer;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::certificate::{CaPool, PoolError};
use super::{Caller, Identity};

/// Namespace and name of the ConfigMap.
pub(crate) const NAMESPACE: &str = "kube-system";
/// See [`NAMESPACE`].
pub(crate) const NAME: &str = "extension-apiserver-authentication";

/// How callers are recognised.
#[derive(Debug)]
pub(crate) struct AuthConfig {
    /// Authorities of ordinary client certificates; `None`: not accepted in this cluster.
    pub client_ca: Option<CaPool>,
    /// The front proxy; `None`: the aggregation layer is not configured.
    pub front_proxy: Option<FrontProxy>,
}

/// Who may speak for others, and by which headers. Names and prefixes are lower case.
#[derive(Debug)]
pub(crate) struct FrontProxy {
    /// Authorities of its certificate.
    pub ca: CaPool,
    /// Common names that are accepted; empty: any.
    pub allowed_names: Vec<String>,
    /// Headers with the user name.
    pub user_headers: Vec<String>,
    /// Headers with the user's id; there is no default.
    pub uid_headers: Vec<String>,
    /// Headers with one group each.
    pub group_headers: Vec<String>,
    /// Beginnings of headers with further attributes.
    pub extra_prefixes: Vec<String>,
}

/// Why a ConfigMap cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    /// A bundle of authorities is broken.
    #[error("{key} of ConfigMap {NAMESPACE}/{NAME}")]
    Bundle {
        /// The key.
        key: &'static str,
        /// What is wrong.
        #[source]
        source: PoolError,
    },
    /// A list is no JSON array of strings.
    #[error("{key} of ConfigMap {NAMESPACE}/{NAME} is no JSON array of strings")]
    List {
        /// The key.
        key: &'static str,
        /// What the parser says.
        #[source]
        source: serde_json::Error,
    },
}

const CLIENT_CA: &str = "client-ca-file";
const PROXY_CA: &str = "requestheader-client-ca-file";

impl AuthConfig {
    /// Reads the ConfigMap's data.
    ///
    /// # Errors
    /// [`ConfigError`] naming the key.
    pub(crate) fn parse(data: &BTreeMap<String, String>) -> Result<Self, ConfigError> {
        let pool = |key: &'static str| -> Result<Option<CaPool>, ConfigError> {
            let text = data.get(key).filter(|text| !text.trim().is_empty());
            text.map(|text| CaPool::from_pem(text))
                .transpose()
                .map_err(|source| ConfigError::Bundle { key, source })
        };
        let list = |key: &'static str| -> Result<Vec<String>, ConfigError> {
            let Some(text) = data.get(key).filter(|text| !text.trim().is_empty()) else {
                return Ok(Vec::new());
            };
            serde_json::from_str(text).map_err(|source| ConfigError::List { key, source })
        };
        let headers = |key| {
            list(key).map(|names| {
                names
                    .into_iter()
                    .map(|name| name.to_ascii_lowercase())
                    .collect::<Vec<_>>()
            })
        };
        let client_ca = pool(CLIENT_CA)?;
        let front_proxy = match pool(PROXY_CA)? {
            None => None,
            Some(ca) => Some(FrontProxy {
                ca,
                allowed_names: list("requestheader-allowed-names")?,
                user_headers: headers("requestheader-username-headers")?,
                uid_headers: headers("requestheader-uid-headers")?,
                group_headers: headers("requestheader-group-headers")?,
                extra_prefixes: headers("requestheader-extra-headers-prefix")?,
            }),
        };
        Ok(Self {
            client_ca,
            front_proxy,
        })
    }

    /// Whether every holder of a client certificate could claim to be anybody.
    fn is_too_trusting(&self) -> bool {
        match (&self.client_ca, &self.front_proxy) {
            (Some(clients), Some(proxy)) => {
                proxy.allowed_names.is_empty() && proxy.ca.shares_authority(clients)
            }
            _ => false,
        }
    }
}

impl FrontProxy {
    /// Whom the headers name, when the certificate is the front proxy's; `None` when it is not or names nobody.
    ///
    /// # Errors
    /// The reason, for the log: signed by the right authority, but with a name that is not allowed.
    pub(super) fn caller(
        &self,
        identity: &Identity,
        chain: &[CertificateDer<'static>],
    ) -> Result<Option<Caller>, String> {
        let Ok(subject) = self.ca.verify(chain) else {
            return Ok(None);
        };
        if !self.allowed_names.is_empty() && !self.allowed_names.contains(&subject.common_name) {
            return Err(format!(
                "common name {:?} is not among requestheader-allowed-names",
                subject.common_name
            ));
        }
        Ok(identity.user.clone().map(|user| Caller {
            user,
            uid: identity.uid.clone().unwrap_or_default(),
            groups: identity.groups.clone(),
            extra: identity.extra.clone(),
        }))
    }
}

/// The settings in force, followed by everybody who holds a clone.
#[derive(Debug, Clone)]
pub(crate) struct ConfigState(watch::Receiver<Option<Arc<AuthConfig>>>);

impl ConfigState {
    /// The settings that were last read without error; `None` before the first.
    pub(crate) fn current(&self) -> Option<Arc<AuthConfig>> {
        self.0.borrow().clone()
    }

    /// Settings that never change.
    #[cfg(test)]
    pub(crate) fn fixed(config: AuthConfig) -> Self {
        Self(watch::channel(Some(Arc::new(config))).1)
    }

    /// Settings that have not been read.
    #[cfg(test)]
    pub(crate) fn unknown() -> Self {
        Self(watch::channel(None).1)
    }
}

/// Follows the ConfigMap until `stop`; `ready` is met once it has been read. An update that cannot be used is logged and the last good
/// settings stay.
pub(crate) fn watch_config(
    client: Client,
    ready: Condition,
    stop: CancellationToken,
) -> ConfigState {
    let (publish, state) = watch::channel(None);
    ready.set_unmet(format!(
        "ConfigMap {NAMESPACE}/{NAME} has not been read yet"
    ));
    tokio::spawn(async move {
        let maps: Api<ConfigMap> = Api::namespaced(client, NAMESPACE);
        let config = watcher::Config::default().fields(&format!("metadata.name={NAME}"));
        let events = watcher(maps, config)
            .default_backoff()
            .take_until(stop.cancelled_owned());
        let mut events = std::pin::pin!(events);
        let mut has_seen_one = false;
        while let Some(event) = events.next().await {
            match event {
                Ok(watcher::Event::Init) => has_seen_one = false,
                Ok(watcher::Event::InitApply(map) | watcher::Event::Apply(map)) => {
                    has_seen_one = true;
                    take_in(&map, &publish, &ready);
                }
                Ok(watcher::Event::InitDone) if !has_seen_one && publish.borrow().is_none() => {
                    let reason = format!(
                        "the aggregation layer is not configured in this cluster: ConfigMap {NAMESPACE}/{NAME} is missing"
                    );
                    warn!("{reason}");
                    ready.set_unmet(reason);
                }
                Ok(watcher::Event::InitDone) => {}
                Ok(watcher::Event::Delete(_)) => warn!(
                    "ConfigMap {NAMESPACE}/{NAME} was deleted; the last settings stay in force"
                ),
                Err(error) => {
                    let error = chain(&error).to_string();
                    warn!(%error, "cannot watch ConfigMap {NAMESPACE}/{NAME}");
                    if publish.borrow().is_none() {
                        ready.set_unmet(format!(
                            "cannot read ConfigMap {NAMESPACE}/{NAME}: {error}"
                        ));
                    }
                }
            }
        }
    });
    ConfigState(state)
}

fn take_in(map: &ConfigMap, publish: &watch::Sender<Option<Arc<AuthConfig>>>, ready: &Condition) {
    let empty = BTreeMap::new();
    match AuthConfig::parse(map.data.as_ref().unwrap_or(&empty)) {
        Ok(config) => {
            if config.is_too_trusting() {
                warn!(
                    "client CA and request-header CA share an authority and requestheader-allowed-names is empty: \
                     any holder of a client certificate can claim any identity; set --requestheader-allowed-names on the API server"
                );
            }
            if config.front_proxy.is_some() {
                ready.set_met();
            } else {
                ready.set_unmet(format!("the aggregation layer is not configured in this cluster: ConfigMap {NAMESPACE}/{NAME} has no {PROXY_CA}"));
            }
            info!(
                client_ca = config.client_ca.is_some(),
                front_proxy = config.front_proxy.is_some(),
                "authentication settings loaded"
            );
            publish.send_replace(Some(Arc::new(config)));
        }
        Err(error) => {
            warn!(error = %chain(&error), "authentication settings refused, the last ones stay in force")
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderMap;
    use coppice_runtime::health::Readiness;

    use super::*;
    use crate::authn::{Authenticator, Tokens};
    use crate::fixtures::{FakeApi, Flaw, TestCa, headers, peer};

    fn map(proxies: &TestCa, allowed_names: &str) -> ConfigMap {
        let data = [
            ("requestheader-client-ca-file", proxies.pem()),
            (
                "requestheader-username-headers",
                "[\"X-Remote-User\"]".to_owned(),
            ),
            ("requestheader-allowed-names", allowed_names.to_owned()),
        ];
        let data = data.map(|(key, value)| (key.to_owned(), value));
        ConfigMap {
            data: Some(data.into()),
            ..ConfigMap::default()
        }
    }

    /// A rotated authority is taken in while the program runs, and certificates of the old one lose their rights, also on connections
    /// that are open: each request is judged by the settings of the moment. What cannot be read changes nothing.
    #[tokio::test]
    async fn new_settings_hold_from_the_next_request_on() {
        coppice_runtime::crypto::install();
        let (publish, state) = watch::channel(None);
        let ready = Readiness::default().require("authentication");
        let tokens = Tokens::new(FakeApi::default().client());
        let authenticator = Authenticator::new(ConfigState(state), tokens, true);
        let (old, new) = (TestCa::new("old"), TestCa::new("new"));
        let connection = |authority: &TestCa, name| peer(&[authority.issue(name, &[], Flaw::None)]);
        let (of_old, of_new) = (connection(&old, "proxy"), connection(&new, "proxy"));
        let renamed = connection(&new, "renamed");
        let users = async || {
            let mut users = Vec::new();
            for connection in [&of_old, &of_new, &renamed] {
                let mut headers: HeaderMap = headers(&[("x-remote-user", "ann")]);
                let caller = authenticator.authenticate(&mut headers, connection).await;
                users.push(caller.is_ok_and(|caller| caller.user == "ann"));
            }
            users
        };
        take_in(&map(&old, "[\"proxy\"]"), &publish, &ready);
        assert_eq!(users().await, [true, false, false]);
        take_in(&map(&new, "proxy"), &publish, &ready);
        assert_eq!(
            users().await,
            [true, false, false],
            "no JSON, so nothing new"
        );
        take_in(&map(&new, "[\"proxy\"]"), &publish, &ready);
        assert_eq!(users().await, [false, true, false]);
        take_in(&map(&new, "[\"renamed\"]"), &publish, &ready);
        assert_eq!(users().await, [false, false, true]);
    }
}
