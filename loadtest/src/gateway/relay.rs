//! Passing a stream on while counting its tokens.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::body::Bytes;
use futures::Stream;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tracing::warn;

use super::forward::cause;
use super::metrics::Outcome;
use super::pool::Place;
use super::track::Track;
use crate::drive::api::Event;
use crate::drive::sse::Events;
use crate::openai::error::ApiError;

/// An engine's stream on its way to the client, unchanged.
///
/// A stream that breaks off ends with an error event, so that a client does not take the rest for the whole.
pub(crate) struct Relay {
    first: Option<Bytes>,
    rest: Incoming,
    place: Place,
    /// `None` once the end is counted.
    track: Option<Track>,
    events: Events,
    seen: Seen,
}

/// What the events so far said.
#[derive(Debug, Default)]
struct Seen {
    tokens: u32,
    is_done: bool,
    is_error: bool,
    usage: Option<crate::drive::api::Usage>,
}

impl Relay {
    pub(crate) fn new(first: Bytes, rest: Incoming, place: Place, track: Track) -> Self {
        Self {
            first: Some(first),
            rest,
            place,
            track: Some(track),
            events: Events::default(),
            seen: Seen::default(),
        }
    }

    fn count(&mut self, part: &[u8]) {
        let seen = &mut self.seen;
        let fed = self.events.feed(part, |data| match Event::parse(data) {
            Ok(Event::Done) => seen.is_done = true,
            Ok(Event::Chunk { content, usage, .. }) => {
                seen.tokens += u32::from(content);
                seen.usage = usage.or(seen.usage);
            }
            Ok(Event::Error(_)) | Err(_) => seen.is_error = true,
        });
        self.seen.is_error |= fed.is_err();
        let tokens = std::mem::take(&mut self.seen.tokens);
        if let Some(track) = &mut self.track {
            track.tokens(tokens);
            if let Some(usage) = self.seen.usage.take() {
                track.usage(usage);
            }
        }
        if self.seen.is_done {
            self.end(if self.seen.is_error {
                Outcome::Internal
            } else {
                Outcome::Success
            });
        }
    }

    fn end(&mut self, outcome: Outcome) {
        if let Some(track) = self.track.take() {
            track.end(outcome);
        }
    }

    /// The stream ended without saying so.
    fn broke_off(&mut self, why: &str) -> Option<Bytes> {
        let track = self.track.take()?;
        track.end(Outcome::Internal);
        let engine = &self.place.backend().name;
        warn!(engine, error = why, "an engine broke off its answer");
        let error = ApiError::bad_gateway(format!("engine {engine} broke off its answer: {why}"));
        Some(format!("data: {}\n\n", error.body()).into())
    }
}

impl Stream for Relay {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        if let Some(first) = this.first.take() {
            this.count(&first);
            return Poll::Ready(Some(Ok(first)));
        }
        loop {
            let frame = std::pin::pin!(this.rest.frame());
            let end = match ready!(frame.poll(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(part) => {
                        this.count(&part);
                        return Poll::Ready(Some(Ok(part)));
                    }
                    // Trailers say nothing that a client of this protocol reads.
                    Err(_) => continue,
                },
                Some(Err(error)) => this.broke_off(&cause(&error)),
                None => this.broke_off("the connection was closed"),
            };
            return Poll::Ready(end.map(Ok));
        }
    }
}
