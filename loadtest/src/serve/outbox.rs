//! What the engine has made for one request and its reader has not seen.

use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use coppice_engine::FinishReason;
use futures::task::AtomicWaker;

const TOKENS: u64 = 0xffff_ffff;
const STOPPED: u64 = 1 << 32;
const FULL_LENGTH: u64 = 1 << 33;
const ABORTED: u64 = 1 << 34;

/// Tokens made and how the request ended, in one word, so that the reader sees the last token together with the end.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    state: AtomicU64,
    reader: AtomicWaker,
}

/// How far a request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Made {
    /// Tokens so far.
    pub(crate) tokens: u32,
    /// How it ended.
    pub(crate) ended: Option<FinishReason>,
}

impl Outbox {
    /// Adds tokens, and the end where it came with them, and wakes the reader.
    pub(crate) fn add(&self, tokens: u32, ended: Option<FinishReason>) {
        let flag = match ended {
            None => 0,
            Some(FinishReason::Stop) => STOPPED,
            Some(FinishReason::Length) => FULL_LENGTH,
            Some(FinishReason::Abort) => ABORTED,
        };
        self.state
            .fetch_add(u64::from(tokens) | flag, Ordering::Release);
        self.reader.wake();
    }

    /// Ready with what is there once it is more than `seen` tokens, or the end.
    pub(crate) fn poll_beyond(&self, seen: u32, context: &Context<'_>) -> Poll<Made> {
        let made = self.made();
        if made.tokens > seen || made.ended.is_some() {
            return Poll::Ready(made);
        }
        self.reader.register(context.waker());
        // Something may have come between the look and the registration.
        let made = self.made();
        if made.tokens > seen || made.ended.is_some() {
            Poll::Ready(made)
        } else {
            Poll::Pending
        }
    }

    fn made(&self) -> Made {
        let state = self.state.load(Ordering::Acquire);
        let ended = if state & STOPPED != 0 {
            Some(FinishReason::Stop)
        } else if state & FULL_LENGTH != 0 {
            Some(FinishReason::Length)
        } else if state & ABORTED != 0 {
            Some(FinishReason::Abort)
        } else {
            None
        };
        Made {
            tokens: u32::try_from(state & TOKENS).unwrap_or(u32::MAX),
            ended,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test]
    async fn the_reader_sees_the_last_token_with_the_end() {
        let outbox = Arc::new(Outbox::default());
        let reader = {
            let outbox = Arc::clone(&outbox);
            tokio::spawn(async move {
                let mut seen = Vec::new();
                loop {
                    let before = seen.last().map_or(0, |made: &Made| made.tokens);
                    let made =
                        std::future::poll_fn(|context| outbox.poll_beyond(before, context)).await;
                    seen.push(made);
                    if made.ended.is_some() {
                        return seen;
                    }
                }
            })
        };
        for _ in 0..9 {
            outbox.add(1, None);
            tokio::task::yield_now().await;
        }
        outbox.add(1, Some(FinishReason::Length));
        let seen = reader.await.unwrap();
        assert_eq!(
            seen.last(),
            Some(&Made {
                tokens: 10,
                ended: Some(FinishReason::Length)
            })
        );
        assert!(seen.iter().rev().skip(1).all(|made| made.ended.is_none()));
    }
}
