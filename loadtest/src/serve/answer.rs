//! Sending an answer as the engine makes it.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::Stream;
use serde_json::Value;

use super::render::{Answer, Usage};
use super::simulation::Ticket;

/// Bytes of a usual chunk, to reserve room once.
const CHUNK_BYTES: usize = 256;

/// A request that has been taken, and how its answer looks.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) ticket: Ticket,
    pub(crate) answer: Answer,
    pub(crate) prompt_tokens: u32,
    pub(crate) cached_tokens: u32,
}

impl Pending {
    /// The answer, token by token.
    pub(crate) fn stream(self, include_usage: bool) -> Response {
        let tokens = Tokens {
            pending: self,
            seen: 0,
            include_usage,
            is_over: false,
        };
        let mut response = Body::from_stream(tokens).into_response();
        let headers = response.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("text/event-stream; charset=utf-8"),
        );
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        response
    }

    /// The answer once it is whole.
    pub(crate) async fn whole(mut self, kv_transfer: Option<Value>) -> Response {
        let mut seen = 0;
        let (made, reason) = loop {
            let made =
                std::future::poll_fn(|context| self.ticket.outbox.poll_beyond(seen, context)).await;
            seen = made.tokens;
            if let Some(reason) = made.ended {
                break (made.tokens, reason);
            }
        };
        self.ticket.ended();
        let text = self.answer.whole(reason, self.usage(made), kv_transfer);
        (
            [(
                header::CONTENT_TYPE,
                HeaderValue::from_static("application/json"),
            )],
            text,
        )
            .into_response()
    }

    fn usage(&self, made: u32) -> Usage {
        Usage {
            prompt: self.prompt_tokens,
            cached: self.cached_tokens,
            made,
        }
    }
}

/// The body of a streamed answer: one event for each token, as many at once as have been made.
struct Tokens {
    pending: Pending,
    seen: u32,
    include_usage: bool,
    is_over: bool,
}

impl Stream for Tokens {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        if this.is_over {
            return Poll::Ready(None);
        }
        let made = ready!(this.pending.ticket.outbox.poll_beyond(this.seen, context));
        let news = (made.tokens - this.seen) as usize;
        let mut text = String::with_capacity((news + 2) * CHUNK_BYTES);
        this.pending
            .answer
            .write_chunks(&mut text, this.seen, made.tokens, made.ended);
        this.seen = made.tokens;
        if made.ended.is_some() {
            this.is_over = true;
            this.pending.ticket.ended();
            if this.include_usage {
                this.pending
                    .answer
                    .write_usage(&mut text, this.pending.usage(made.tokens));
            }
            Answer::write_done(&mut text);
        }
        Poll::Ready(Some(Ok(text.into())))
    }
}
