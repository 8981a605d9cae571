//! The scrapers: one task an endpoint, each on its own phase of the interval.

use std::collections::hash_map::DefaultHasher;
use std::error::Error;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;
use tokio::time::{Instant, sleep_until, timeout};
use tracing::{debug, info};

use crate::endpoint::Endpoint;
use crate::fetch::{Connection, NotFetched, fetch};
use crate::signals::Inner;
use crate::target::{Ingested, NotIngested};

/// The longest wait between the first and the second scrape: rates need two.
const SECOND_SCRAPE: Duration = Duration::from_secs(1);
/// At the start, scrapes begin no faster than this.
const PER_ENDPOINT: Duration = Duration::from_micros(500);

/// Why a scrape failed.
#[derive(Debug, thiserror::Error)]
enum ScrapeFailed {
    #[error(transparent)]
    Fetch(#[from] NotFetched),
    #[error(transparent)]
    Ingest(#[from] NotIngested),
    #[error("no answer within {0:?}")]
    Deadline(Duration),
}

impl ScrapeFailed {
    const fn category(&self) -> &'static str {
        match self {
            Self::Fetch(failed) => failed.category(),
            Self::Ingest(failed) => failed.category(),
            Self::Deadline(_) => "deadline",
        }
    }
}

/// Scrapes an endpoint until it is stopped.
pub(crate) async fn scrape(inner: Arc<Inner>, endpoint: Arc<Endpoint>) {
    let stop = endpoint.tracked.stop.clone();
    let _ = stop
        .run_until_cancelled(scrape_forever(&inner, &endpoint))
        .await;
}

async fn scrape_forever(inner: &Inner, endpoint: &Endpoint) {
    let interval = inner.settings.interval;
    let phase = phase(endpoint, interval);
    let mut connection = None;
    let mut next = Instant::now() + first_delay(inner);
    let mut scraped = 0_u32;
    loop {
        tokio::select! {
            () = sleep_until(next) => {}
            () = endpoint.tracked.hurry.notified() => {}
        }
        let Ok(permit) = inner.in_flight.acquire().await else {
            return;
        };
        let begun = Instant::now();
        scrape_once(inner, endpoint, &mut connection).await;
        drop(permit);
        scraped = scraped.saturating_add(1);
        next = if scraped == 1 {
            begun + SECOND_SCRAPE.min(interval)
        } else {
            inner.clock.next(interval, phase, interval / 4)
        };
    }
}

/// Spreads endpoints over the interval, the same way after each start.
fn phase(endpoint: &Endpoint, interval: Duration) -> Duration {
    let mut hasher = DefaultHasher::new();
    endpoint.key.hash(&mut hasher);
    let nanos = u64::try_from(interval.as_nanos())
        .unwrap_or(u64::MAX)
        .max(1);
    Duration::from_nanos(hasher.finish() % nanos)
}

/// A new endpoint is scraped at once; thousands of them over an interval.
fn first_delay(inner: &Inner) -> Duration {
    let endpoints = u32::try_from(inner.index.read().len()).unwrap_or(u32::MAX);
    let spread = (PER_ENDPOINT * endpoints).min(inner.settings.interval);
    rand::rng().random_range(Duration::ZERO..=spread)
}

async fn scrape_once(inner: &Inner, endpoint: &Endpoint, connection: &mut Option<Connection>) {
    let begun = Instant::now();
    let mut body = inner.buffers.take();
    let deadline = inner.settings.deadline;
    let limit = inner.settings.limits.body_bytes;
    let fetching = fetch(
        connection,
        &endpoint.key.address,
        &endpoint.key.path,
        limit,
        &mut body,
    );
    let outcome = match timeout(deadline, fetching).await {
        Err(_) => Err(ScrapeFailed::Deadline(deadline)),
        Ok(Err(failed)) => Err(failed.into()),
        Ok(Ok(fetched)) => {
            let at = inner.clock.at(fetched.at);
            inner
                .ingest(&endpoint.tracked, &body, fetched.whole, at)
                .map_err(ScrapeFailed::from)
        }
    };
    inner.metrics.body_bytes.inc_by(body.len() as u64);
    inner.buffers.give_back(body);
    record(inner, endpoint, outcome, begun.elapsed());
}

fn record(
    inner: &Inner,
    endpoint: &Endpoint,
    outcome: Result<Ingested, ScrapeFailed>,
    took: Duration,
) {
    let mut state = endpoint.tracked.state.lock();
    let failures = state.failures;
    match outcome {
        Ok(ingested) => {
            state.failure = None;
            state.failures = 0;
            drop(state);
            let Ingested {
                samples,
                malformed,
                duplicates,
                implausible,
                inconsistent,
                restarted,
            } = ingested;
            inner.metrics.count_scrape("ok", took.as_secs_f64());
            inner.metrics.samples.inc_by(samples);
            inner
                .metrics
                .count_faults([malformed, duplicates, implausible, inconsistent]);
            if restarted {
                inner.metrics.restarts.inc();
            }
            if failures > 0 {
                info!(endpoint = %endpoint.display(), failures, "endpoint answers again");
            }
        }
        Err(failed) => {
            state.failure = Some(failed.to_string());
            state.failures = failures.saturating_add(1);
            drop(state);
            inner
                .metrics
                .count_scrape(failed.category(), took.as_secs_f64());
            match &failed {
                ScrapeFailed::Ingest(NotIngested::Limit { name, .. }) => {
                    inner.metrics.count_limit(name);
                }
                ScrapeFailed::Fetch(NotFetched::TooLarge { .. }) => {
                    inner.metrics.count_limit("limits.body_bytes");
                }
                ScrapeFailed::Fetch(_) | ScrapeFailed::Ingest(_) | ScrapeFailed::Deadline(_) => {}
            }
            let source = source(&failed);
            // Once when it begins; a pod that is not ready yet refuses connections as a matter of course.
            if failures == 0 && endpoint.live {
                info!(endpoint = %endpoint.display(), address = %endpoint.key.address, error = %failed, source, "scrape failed");
            } else {
                debug!(endpoint = %endpoint.display(), error = %failed, source, failures, "scrape failed");
            }
        }
    }
}

/// The innermost cause, for the log.
fn source(failed: &ScrapeFailed) -> String {
    let mut innermost: Option<&dyn Error> = failed.source();
    while let Some(next) = innermost.and_then(Error::source) {
        innermost = Some(next);
    }
    innermost.map_or_else(String::new, ToString::to_string)
}
