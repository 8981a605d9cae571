//! Following one request from arrival to end, whatever ends it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::time::Instant;

use super::metrics::{Kind, Outcome};
use super::models::Model;
use crate::drive::api::Usage;

/// A request in flight. Dropped before [`Track::end`], it counts as cancelled: the client went away.
#[derive(Debug)]
pub(crate) struct Track {
    model: Arc<Model>,
    kind: Kind,
    arrived: Instant,
    last_token: Option<Instant>,
    made: u32,
    cached: Option<u32>,
    is_over: bool,
}

impl Track {
    /// Counts the arrival.
    pub(crate) fn begin(model: Arc<Model>, kind: Kind, prompt_tokens: u32) -> Self {
        model.metrics.arrived(kind, prompt_tokens);
        Self {
            model,
            kind,
            arrived: Instant::now(),
            last_token: None,
            made: 0,
            cached: None,
            is_over: false,
        }
    }

    /// Tokens have come.
    pub(crate) fn tokens(&mut self, tokens: u32) {
        if tokens == 0 {
            return;
        }
        let now = Instant::now();
        let metrics = &self.model.metrics;
        match self.last_token {
            Some(last) => metrics.tokens(tokens, now - last),
            // Gaps between tokens that came together at first, or all at once, are not known.
            None => {
                metrics.first_token(now - self.arrived);
                metrics
                    .output_tokens
                    .fetch_add(tokens.into(), Ordering::Relaxed);
            }
        }
        self.made += tokens;
        self.last_token = Some(now);
    }

    /// The engine's own counts: tokens that came several to a chunk are made up for.
    pub(crate) fn usage(&mut self, usage: Usage) {
        let missed = usage.completion_tokens.saturating_sub(self.made);
        if missed > 0 {
            self.model
                .metrics
                .output_tokens
                .fetch_add(missed.into(), Ordering::Relaxed);
            self.made += missed;
        }
        self.cached = Some(usage.prompt_tokens_details.cached_tokens);
    }

    /// Counts the end.
    pub(crate) fn end(mut self, outcome: Outcome) {
        self.close(outcome);
    }

    fn close(&mut self, outcome: Outcome) {
        if std::mem::replace(&mut self.is_over, true) {
            return;
        }
        let metrics = &self.model.metrics;
        if self.last_token.is_none() {
            metrics.queued.fetch_sub(1, Ordering::Relaxed);
        }
        if outcome == Outcome::Cancelled {
            metrics.disconnected.fetch_add(1, Ordering::Relaxed);
        }
        metrics.ended(
            self.kind,
            outcome,
            self.arrived.elapsed(),
            self.made,
            self.cached,
        );
    }
}

impl Drop for Track {
    fn drop(&mut self) {
        self.close(Outcome::Cancelled);
    }
}
