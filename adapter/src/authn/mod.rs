//! Who is calling.
//!
//! The order is that of the Kubernetes API servers: request headers from the front proxy, client certificate, bearer token, anonymous. Each
//! step passes on what it does not recognise; credentials that no step accepts are refused, never treated as anonymous.

mod certificate;
mod config;
mod token;

use std::collections::BTreeMap;

use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, HeaderName};
use coppice_runtime::server::Peer;
use tracing::debug;

pub(crate) use config::{ConfigState, watch_config};
pub(crate) use token::Tokens;

use config::FrontProxy;

use crate::route;
use crate::status::Refusal;

/// Who is calling, as the API server would put it into a review.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Caller {
    /// User name.
    pub user: String,
    /// Unique id; empty where unknown.
    pub uid: String,
    /// Groups, `system:authenticated` or `system:unauthenticated` among them.
    pub groups: Vec<String>,
    /// Further attributes; keys are lower case.
    pub extra: BTreeMap<String, Vec<String>>,
}

const ANONYMOUS: &str = "system:anonymous";
const AUTHENTICATED: &str = "system:authenticated";
const UNAUTHENTICATED: &str = "system:unauthenticated";

impl Caller {
    /// Somebody without credentials.
    pub(crate) fn anonymous() -> Self {
        Self {
            user: ANONYMOUS.to_owned(),
            groups: vec![UNAUTHENTICATED.to_owned()],
            ..Self::default()
        }
    }

    fn authenticated(mut self) -> Self {
        let is_anonymous =
            self.user == ANONYMOUS || self.groups.iter().any(|group| group == UNAUTHENTICATED);
        if !is_anonymous && !self.groups.iter().any(|group| group == AUTHENTICATED) {
            self.groups.push(AUTHENTICATED.to_owned());
        }
        self
    }
}

/// Finds out who is calling.
#[derive(Debug)]
pub(crate) struct Authenticator {
    config: ConfigState,
    tokens: Tokens,
    is_anonymous_served: bool,
}

impl Authenticator {
    /// `config` follows the cluster's ConfigMap; `is_anonymous_served` lets callers without credentials go on to authorization.
    pub(crate) fn new(config: ConfigState, tokens: Tokens, is_anonymous_served: bool) -> Self {
        Self {
            config,
            tokens,
            is_anonymous_served,
        }
    }

    /// The caller of a request. Takes every identity out of the headers, whoever sent it.
    ///
    /// # Errors
    /// 401 when credentials are not accepted; 403 for impersonation, which only the API server itself offers; 500 when a token could
    /// not be reviewed; 503 before the cluster's authentication settings are known.
    pub(crate) async fn authenticate(
        &self,
        headers: &mut HeaderMap,
        peer: &Peer,
    ) -> Result<Caller, Refusal> {
        let config = self.config.current();
        let presented = strip(
            headers,
            config
                .as_ref()
                .and_then(|config| config.front_proxy.as_ref()),
        );
        if presented.is_impersonating {
            return Err(Refusal::forbidden(
                "impersonation is not served here; send the request through the API server",
            ));
        }
        let mut is_refused = false;
        if !peer.certificates.is_empty() {
            let Some(config) = &config else {
                return Err(Refusal::unavailable(
                    "the aggregation layer's settings (ConfigMap kube-system/extension-apiserver-authentication) are not known yet",
                ));
            };
            if let Some(front_proxy) = &config.front_proxy {
                match front_proxy.caller(&presented.identity, &peer.certificates) {
                    Ok(Some(caller)) => return Ok(caller.authenticated()),
                    Ok(None) => {}
                    Err(reason) => {
                        debug!(address = %peer.address, reason, "front proxy certificate not accepted");
                        is_refused = true;
                    }
                }
            }
            if let Some(pool) = &config.client_ca {
                match pool.verify(&peer.certificates) {
                    Ok(subject) => return Ok(subject.caller().authenticated()),
                    Err(reason) => {
                        debug!(address = %peer.address, reason, "client certificate not accepted");
                        is_refused = true;
                    }
                }
            }
        }
        if let Some(authorization) = presented.authorization {
            let Some(token) = token::bearer(&authorization) else {
                return Err(Refusal::unauthorized());
            };
            return match self.tokens.review(token).await {
                Ok(Some(caller)) => Ok(caller.authenticated()),
                Ok(None) => Err(Refusal::unauthorized()),
                Err(error) => {
                    debug!(%error, "token review failed");
                    Err(Refusal::internal(
                        "the API server could not be asked about the bearer token",
                    ))
                }
            };
        }
        if is_refused || !self.is_anonymous_served {
            return Err(Refusal::unauthorized());
        }
        Ok(Caller::anonymous())
    }
}

/// What a request says about its caller.
#[derive(Debug, Default)]
struct Presented {
    authorization: Option<Vec<u8>>,
    is_impersonating: bool,
    identity: Identity,
}

/// What the front proxy's headers say, if they may be believed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Identity {
    user: Option<String>,
    uid: Option<String>,
    groups: Vec<String>,
    extra: BTreeMap<String, Vec<String>>,
}

/// Removes every identity from the headers and returns it.
fn strip(headers: &mut HeaderMap, front_proxy: Option<&FrontProxy>) -> Presented {
    let mut presented = Presented {
        authorization: headers
            .remove(AUTHORIZATION)
            .map(|value| value.as_bytes().to_vec()),
        is_impersonating: headers
            .keys()
            .any(|name| name.as_str().starts_with("impersonate-")),
        identity: Identity::default(),
    };
    let Some(front_proxy) = front_proxy else {
        return presented;
    };
    let identity = &mut presented.identity;
    for name in &front_proxy.user_headers {
        let values = take(headers, name);
        identity.user = identity
            .user
            .take()
            .or_else(|| values.into_iter().find(|value| !value.is_empty()));
    }
    for name in &front_proxy.uid_headers {
        let values = take(headers, name);
        identity.uid = identity.uid.take().or_else(|| values.into_iter().next());
    }
    for name in &front_proxy.group_headers {
        identity.groups.extend(take(headers, name));
    }
    for prefix in &front_proxy.extra_prefixes {
        let names: Vec<HeaderName> = headers
            .keys()
            .filter(|name| name.as_str().starts_with(prefix.as_str()))
            .cloned()
            .collect();
        for name in names {
            // Header names are lower case already; what was no legal name has been escaped.
            let rest = &name.as_str()[prefix.len()..];
            let key =
                route::decode(rest, false).map_or_else(|| rest.to_owned(), |key| key.into_owned());
            identity
                .extra
                .entry(key)
                .or_default()
                .extend(take(headers, name.as_str()));
        }
    }
    presented
}

/// Removes all values of a header and returns those that are text.
fn take(headers: &mut HeaderMap, name: &str) -> Vec<String> {
    let values = headers
        .get_all(name)
        .iter()
        .filter_map(|value| value.to_str().ok().map(str::to_owned))
        .collect();
    headers.remove(name);
    values
}

#[cfg(test)]
mod tests;
