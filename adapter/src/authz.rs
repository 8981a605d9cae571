//! What the caller may do.
//!
//! [`Allowed`] can only be made here, after the check; handlers take it, so that an unchecked request cannot reach them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use coppice_runtime::telemetry::chain;
use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::Client;
use kube::api::{Api, PostParams};
use tracing::warn;

use crate::authn::Caller;
use crate::cache::{Cache, Keep, NoAnswer};
use crate::route::{Attributes, Route};
use crate::status::Refusal;

/// Something that its caller was found to have the right to.
#[derive(Debug, Clone)]
pub(crate) struct Allowed<T> {
    what: T,
}

impl<T> Allowed<T> {
    /// What is allowed.
    pub(crate) fn get(&self) -> &T {
        &self.what
    }

    /// A part of what is allowed.
    pub(crate) fn map<U>(self, part: impl FnOnce(T) -> U) -> Allowed<U> {
        Allowed {
            what: part(self.what),
        }
    }

    /// Skips the check.
    #[cfg(test)]
    pub(crate) fn for_tests(what: T) -> Self {
        Self { what }
    }
}

/// Members may do everything; this is how the API server's own components call.
const MASTERS: &str = "system:masters";

/// An allow is used for ten more seconds while it is renewed, so that a short outage of the API server does not become one of metrics.
const ALLOW: Keep = Keep {
    fresh: Duration::from_secs(10),
    stretch: Duration::from_secs(10),
};
/// A deny is not stretched.
const DENY: Keep = Keep {
    fresh: Duration::from_secs(10),
    stretch: Duration::ZERO,
};
const UNCACHED: Keep = Keep {
    fresh: Duration::ZERO,
    stretch: Duration::ZERO,
};
/// Verdicts kept at a time.
const CAPACITY: usize = 8192;
/// Larger questions are not kept.
const MAX_CACHED_BYTES: usize = 10_000;
/// Time for one review.
const LIMIT: Duration = Duration::from_secs(4);

/// Checks rights by `SubjectAccessReview`, each question at most once in ten seconds.
#[derive(Debug)]
pub(crate) struct Authorizer {
    reviews: Api<SubjectAccessReview>,
    verdicts: Cache<(Caller, Attributes), Verdict>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Verdict {
    Allow,
    Deny { reason: Arc<str> },
}

impl Authorizer {
    /// Checks with this client.
    pub(crate) fn new(client: Client) -> Self {
        Self {
            reviews: Api::all(client),
            verdicts: Cache::new(CAPACITY),
        }
    }

    /// Lets a request pass, or refuses it.
    ///
    /// # Errors
    /// 403 when the caller has no right to it, 500 when the API server could not be asked: never open.
    pub(crate) async fn authorize(
        &self,
        caller: Caller,
        route: Route,
    ) -> Result<Allowed<Route>, Refusal> {
        if caller.groups.iter().any(|group| group == MASTERS) {
            return Ok(Allowed { what: route });
        }
        match self.review(&caller, &route.attributes).await {
            Ok(Verdict::Allow) => Ok(Allowed { what: route }),
            Ok(Verdict::Deny { reason }) => Err(forbidden(&caller, &route.attributes, &reason)),
            Err(error) => {
                warn!(user = %caller.user, %error, "cannot check the rights of a caller");
                Err(Refusal::internal(
                    "the API server could not be asked about the rights of the caller",
                ))
            }
        }
    }

    async fn review(&self, caller: &Caller, attributes: &Attributes) -> Result<Verdict, NoAnswer> {
        let is_small = size(caller, attributes) <= MAX_CACHED_BYTES;
        let key = (caller.clone(), attributes.clone());
        let (reviews, review) = (self.reviews.clone(), question(caller, attributes));
        let ask = move || async move {
            let params = PostParams::default();
            let request = reviews.create(&params, &review);
            match tokio::time::timeout(LIMIT, request).await {
                Ok(Ok(answer)) => {
                    let (verdict, keep) = verdict(&answer);
                    Ok((verdict, if is_small { keep } else { UNCACHED }))
                }
                Ok(Err(error)) => Err(NoAnswer(Arc::from(chain(&error).to_string()))),
                Err(_) => Err(NoAnswer(Arc::from("the API server did not answer in time"))),
            }
        };
        self.verdicts.get(key, Instant::now(), ask).await
    }
}

fn question(caller: &Caller, attributes: &Attributes) -> SubjectAccessReview {
    let mut spec = SubjectAccessReviewSpec {
        user: Some(caller.user.clone()),
        uid: (!caller.uid.is_empty()).then(|| caller.uid.clone()),
        groups: Some(caller.groups.clone()),
        extra: (!caller.extra.is_empty()).then(|| caller.extra.clone()),
        ..SubjectAccessReviewSpec::default()
    };
    match attributes.clone() {
        Attributes::Path { path, verb } => {
            spec.non_resource_attributes = Some(NonResourceAttributes {
                path: Some(path),
                verb: Some(verb),
            });
        }
        Attributes::Resource {
            api,
            namespace,
            verb,
            resource,
            name,
            subresource,
        } => {
            spec.resource_attributes = Some(ResourceAttributes {
                namespace: (!namespace.is_empty()).then_some(namespace),
                verb: Some(verb.to_owned()),
                group: Some(api.group().to_owned()),
                version: Some(api.version().to_owned()),
                resource: Some(resource),
                name: (!name.is_empty()).then_some(name),
                subresource: (!subresource.is_empty()).then_some(subresource),
                ..ResourceAttributes::default()
            });
        }
    }
    SubjectAccessReview {
        spec,
        ..SubjectAccessReview::default()
    }
}

fn verdict(review: &SubjectAccessReview) -> (Verdict, Keep) {
    match &review.status {
        Some(status) if status.allowed && status.denied != Some(true) => (Verdict::Allow, ALLOW),
        status => {
            let reason = status
                .as_ref()
                .and_then(|status| status.reason.as_deref())
                .unwrap_or_default();
            (
                Verdict::Deny {
                    reason: Arc::from(reason),
                },
                DENY,
            )
        }
    }
}

fn size(caller: &Caller, attributes: &Attributes) -> usize {
    let extra = caller
        .extra
        .iter()
        .map(|(key, values)| key.len() + values.iter().map(String::len).sum::<usize>());
    let asked = match attributes {
        Attributes::Path { path, verb } => path.len() + verb.len(),
        Attributes::Resource {
            api: _,
            namespace,
            verb,
            resource,
            name,
            subresource,
        } => namespace.len() + verb.len() + resource.len() + name.len() + subresource.len(),
    };
    caller.user.len()
        + caller.uid.len()
        + caller.groups.iter().map(String::len).sum::<usize>()
        + extra.sum::<usize>()
        + asked
}

/// The refusal in the words that every Kubernetes server uses.
fn forbidden(caller: &Caller, attributes: &Attributes, reason: &str) -> Refusal {
    let user = &caller.user;
    let because = if reason.is_empty() {
        String::new()
    } else {
        format!(": {reason}")
    };
    match attributes {
        Attributes::Path { path, verb } => Refusal::forbidden(format!(
            "forbidden: User {user:?} cannot {verb} path {path:?}{because}"
        )),
        Attributes::Resource {
            api,
            namespace,
            verb,
            resource,
            name,
            subresource,
        } => {
            let group = api.group();
            let named = if name.is_empty() {
                String::new()
            } else {
                format!(" {name:?}")
            };
            let whole = if subresource.is_empty() {
                resource.clone()
            } else {
                format!("{resource}/{subresource}")
            };
            let scope = if namespace.is_empty() {
                "at the cluster scope".to_owned()
            } else {
                format!("in the namespace {namespace:?}")
            };
            Refusal::forbidden(format!(
                "{resource}.{group}{named} is forbidden: User {user:?} cannot {verb} resource {whole:?} in API group {group:?} {scope}{because}"
            ))
            .about(group, resource.clone())
        }
    }
}

#[cfg(test)]
mod tests;
