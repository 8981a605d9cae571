//! Bearer tokens, reviewed by the API server.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use coppice_runtime::crypto;
use coppice_runtime::telemetry::chain;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use kube::Client;
use kube::api::{Api, PostParams};

use super::Caller;
use crate::cache::{Cache, Keep, NoAnswer};

/// A verdict, good or bad, is kept this long.
const KEEP: Keep = Keep {
    fresh: Duration::from_secs(10),
    stretch: Duration::ZERO,
};
/// Verdicts kept at a time.
const CAPACITY: usize = 4096;
/// Longer tokens are refused unseen.
const MAX_BYTES: usize = 16 * 1024;
/// Time for one review.
const LIMIT: Duration = Duration::from_secs(4);

/// Reviews tokens, each at most once in ten seconds.
pub(crate) struct Tokens {
    reviews: Api<TokenReview>,
    verdicts: Cache<[u8; 32], Option<Arc<Caller>>>,
    /// Tokens are remembered by a hash with this, so that they do not lie in memory.
    salt: [u8; 32],
}

impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokens").finish_non_exhaustive()
    }
}

/// The token of an `Authorization` header, when it is a bearer token.
pub(super) fn bearer(authorization: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(authorization).ok()?.trim();
    let (scheme, token) = text.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty() && token.len() <= MAX_BYTES)
        .then_some(token)
}

impl Tokens {
    /// Reviews tokens with this client.
    pub(crate) fn new(client: Client) -> Self {
        Self {
            reviews: Api::all(client),
            verdicts: Cache::new(CAPACITY),
            salt: crypto::random(),
        }
    }

    /// Whom a token belongs to; `None` when the API server does not accept it.
    ///
    /// # Errors
    /// When the API server could not be asked.
    pub(super) async fn review(&self, token: &str) -> Result<Option<Caller>, NoAnswer> {
        let key = crypto::sha256(&[&self.salt, token.as_bytes()]);
        let (reviews, token) = (self.reviews.clone(), token.to_owned());
        let verdict = self.verdicts.get(key, Instant::now(), move || async move {
            let spec = TokenReviewSpec {
                token,
                audiences: None,
            };
            let review = TokenReview {
                spec,
                ..TokenReview::default()
            };
            let params = PostParams::default();
            let request = reviews.create(&params, &review);
            match tokio::time::timeout(LIMIT, request).await {
                Ok(Ok(answer)) => Ok((verdict(answer).map(Arc::new), KEEP)),
                Ok(Err(error)) => Err(NoAnswer(Arc::from(chain(&error).to_string()))),
                Err(_) => Err(NoAnswer(Arc::from("the API server did not answer in time"))),
            }
        });
        Ok(verdict.await?.map(|caller| (*caller).clone()))
    }
}

fn verdict(review: TokenReview) -> Option<Caller> {
    let status = review.status?;
    if status.authenticated != Some(true) || status.error.is_some_and(|error| !error.is_empty()) {
        return None;
    }
    let user = status.user?;
    let extra: BTreeMap<String, Vec<String>> = user
        .extra
        .unwrap_or_default()
        .into_iter()
        .map(|(key, values)| (key.to_ascii_lowercase(), values))
        .collect();
    Some(Caller {
        user: user.username.filter(|name| !name.is_empty())?,
        uid: user.uid.unwrap_or_default(),
        groups: user.groups.unwrap_or_default(),
        extra,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_bearer_tokens_of_bounded_length_are_tokens() {
        assert_eq!(bearer(b"Bearer abc"), Some("abc"));
        assert_eq!(bearer(b"bearer  abc "), Some("abc"));
        assert_eq!(bearer(b"Basic abc"), None);
        assert_eq!(bearer(b"Bearer "), None);
        assert_eq!(bearer(b"Bearer"), None);
        assert_eq!(
            bearer(format!("Bearer {}", "a".repeat(MAX_BYTES + 1)).as_bytes()),
            None
        );
    }
}
