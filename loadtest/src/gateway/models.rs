//! The models served, their engines, and the requests that wait for one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::metrics::ModelMetrics;
use super::pool::{Backend, Place, Pool, Weigh};
use crate::openai::error::ApiError;
use crate::serve::arguments::Role;

/// The models, by name.
pub(crate) type Models = BTreeMap<String, Arc<Model>>;

/// One model.
#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) name: String,
    prefill: Pool,
    decode: Pool,
    aggregated: Pool,
    changed: Notify,
    hold: Hold,
    held: AtomicUsize,
    pub(crate) metrics: ModelMetrics,
}

/// How long and how many requests wait while nothing is ready.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Hold {
    pub(crate) timeout: Duration,
    pub(crate) requests: usize,
}

/// Places for a request.
#[derive(Debug)]
pub(crate) enum Route {
    /// One engine does it all.
    Whole(Place),
    /// This engine does the prompt; one for the answer is chosen when the prompt is done.
    Split(Place),
}

impl Model {
    pub(crate) fn new(name: &str, hold: Hold) -> Self {
        Self {
            name: name.to_owned(),
            prefill: Pool::new(Weigh::PromptTokens),
            decode: Pool::new(Weigh::Requests),
            aggregated: Pool::new(Weigh::Requests),
            changed: Notify::new(),
            hold,
            held: AtomicUsize::new(0),
            metrics: ModelMetrics::new(),
        }
    }

    fn pool(&self, role: Role) -> &Pool {
        match role {
            Role::Prefill => &self.prefill,
            Role::Decode => &self.decode,
            Role::Aggregated => &self.aggregated,
        }
    }

    /// Sets a role's engines, by name.
    pub(crate) fn set(
        &self,
        role: Role,
        engines: &BTreeMap<String, crate::drive::target::BaseUrl>,
    ) {
        self.pool(role).set(engines);
        self.changed.notify_waiters();
    }

    /// Engines of a role.
    pub(crate) fn engines(&self, role: Role) -> usize {
        self.pool(role).len()
    }

    /// Whether a request could be sent off now.
    pub(crate) fn is_ready(&self) -> bool {
        !self.aggregated.is_empty() || (!self.prefill.is_empty() && !self.decode.is_empty())
    }

    /// Requests that wait because nothing is ready.
    pub(crate) fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Chooses where a request begins; waits while nothing is ready.
    ///
    /// Prefill and decode engines come before aggregated ones.
    pub(crate) async fn route(
        &self,
        prompt_tokens: u32,
        avoid: &[Arc<Backend>],
    ) -> Result<Route, ApiError> {
        self.wait_for(|| {
            if !self.decode.is_empty()
                && let Some(place) = self.prefill.take(prompt_tokens, avoid)
            {
                return Some(Route::Split(place));
            }
            self.aggregated.take(prompt_tokens, avoid).map(Route::Whole)
        })
        .await
    }

    /// Chooses who makes the answer to a prompt that has been worked off; waits while nothing is ready.
    pub(crate) async fn route_answer(
        &self,
        prompt_tokens: u32,
        avoid: &[Arc<Backend>],
    ) -> Result<Place, ApiError> {
        self.wait_for(|| self.decode.take(prompt_tokens, avoid))
            .await
    }

    async fn wait_for<T>(&self, mut choose: impl FnMut() -> Option<T>) -> Result<T, ApiError> {
        if let Some(chosen) = choose() {
            return Ok(chosen);
        }
        let _held = Held::enter(self)?;
        let deadline = Instant::now() + self.hold.timeout;
        loop {
            let changed = self.changed.notified();
            if let Some(chosen) = choose() {
                return Ok(chosen);
            }
            if tokio::time::timeout_at(deadline, changed).await.is_err() {
                let waited = self.hold.timeout.as_secs_f64();
                return Err(ApiError::unavailable(
                    format!(
                        "no engine of model {:?} became ready within {waited} s",
                        self.name
                    ),
                    self.retry_after(),
                ));
            }
        }
    }

    /// Seconds after which a refused client may try again.
    fn retry_after(&self) -> u64 {
        self.hold.timeout.as_secs().clamp(1, 30)
    }
}

struct Held<'a>(&'a Model);

impl<'a> Held<'a> {
    fn enter(model: &'a Model) -> Result<Self, ApiError> {
        let held = Self(model);
        if model.held.fetch_add(1, Ordering::Relaxed) >= model.hold.requests {
            let message = format!(
                "no engine of model {:?} is ready and {} requests wait already",
                model.name, model.hold.requests
            );
            return Err(ApiError::unavailable(message, model.retry_after()));
        }
        Ok(held)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.held.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(seconds: u64, requests: usize) -> Arc<Model> {
        Arc::new(Model::new(
            "m",
            Hold {
                timeout: Duration::from_secs(seconds),
                requests,
            },
        ))
    }

    fn engines(names: &[&str]) -> BTreeMap<String, crate::drive::target::BaseUrl> {
        names
            .iter()
            .map(|name| {
                (
                    (*name).to_owned(),
                    format!("http://{name}").parse().unwrap(),
                )
            })
            .collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_waits_until_an_engine_is_ready() {
        let model = model(60, 10);
        let waiting = {
            let model = Arc::clone(&model);
            tokio::spawn(async move { model.route(1, &[]).await.map(|_| Instant::now()) })
        };
        tokio::time::sleep(Duration::from_secs(20)).await;
        assert_eq!(model.held(), 1);
        // A prefill engine alone is of no use.
        model.set(Role::Prefill, &engines(&["p"]));
        tokio::time::sleep(Duration::from_secs(20)).await;
        let before = Instant::now();
        model.set(Role::Decode, &engines(&["d"]));
        assert_eq!(waiting.await.unwrap().unwrap(), before);
        assert_eq!(model.held(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_ends_with_the_timeout_and_a_time_to_try_again() {
        let error = model(10, 10).route(1, &[]).await.unwrap_err();
        assert_eq!(
            (error.status.as_u16(), error.retry_after_seconds),
            (503, Some(10))
        );
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_requests_wait_than_allowed() {
        let model = model(60, 1);
        let waiting = {
            let model = Arc::clone(&model);
            tokio::spawn(async move { model.route(1, &[]).await.is_ok() })
        };
        tokio::time::sleep(Duration::from_secs(1)).await;
        let error = model.route(1, &[]).await.unwrap_err();
        assert!(
            error.message.contains("1 requests wait already"),
            "{}",
            error.message
        );
        assert_eq!(model.held(), 1);
        model.set(Role::Aggregated, &engines(&["a"]));
        assert!(waiting.await.unwrap());
    }

    #[tokio::test]
    async fn split_serving_comes_first() {
        let model = model(1, 1);
        model.set(Role::Aggregated, &engines(&["a"]));
        assert!(matches!(
            model.route(1, &[]).await.unwrap(),
            Route::Whole(_)
        ));
        model.set(Role::Prefill, &engines(&["p"]));
        assert!(matches!(
            model.route(1, &[]).await.unwrap(),
            Route::Whole(_)
        ));
        model.set(Role::Decode, &engines(&["d"]));
        assert!(matches!(
            model.route(1, &[]).await.unwrap(),
            Route::Split(_)
        ));
    }
}
