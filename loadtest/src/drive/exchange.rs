//! One request and its answer over one connection.

use std::cell::RefCell;
use std::future::poll_fn;
use std::task::ready;
use std::time::{Duration, Instant};

use super::api::{Event, error_message};
use super::connection::Connection;
use super::http::Response;
use super::record::{Failure, FailureKind, Record};
use super::sse::Events;

/// How much of an error's body is kept.
const ERROR_BODY_LIMIT: usize = 4096;

/// Time since the run's start.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clock {
    start: Instant,
}

impl Clock {
    pub(super) fn starting_at(start: Instant) -> Self {
        Self { start }
    }

    pub(super) fn now(self) -> Duration {
        self.start.elapsed()
    }

    pub(super) fn instant(self, at: Duration) -> Instant {
        self.start + at
    }
}

/// How an exchange ended.
#[derive(Debug)]
pub(super) enum Ended {
    /// With a complete answer of whatever kind; the connection may be used again or not.
    Answered { keep: bool },
    /// The peer had closed the idle connection before it could see the request: try another.
    Stale,
    /// Badly; the connection is of no use any more.
    Failed(Failure),
}

/// What an exchange uses of its worker.
#[derive(Debug, Clone, Copy)]
pub(super) struct Around<'a> {
    pub(super) clock: Clock,
    /// Only borrowed while bytes are handled.
    pub(super) scratch: &'a RefCell<Box<[u8]>>,
    pub(super) replica_header: &'a str,
    pub(super) delayed_acks: bool,
}

/// Sends `request` and reads the answer into `record`.
///
/// Every instant is taken right after the read that brought the bytes.
pub(super) async fn exchange(
    connection: &mut Connection,
    request: &[u8],
    record: &mut Record,
    around: Around<'_>,
) -> Ended {
    let Around {
        clock,
        scratch,
        replica_header,
        delayed_acks,
    } = around;
    let sent = *record.sent.get_or_insert_with(|| clock.now());
    if let Err(error) = connection.write_all(request, delayed_acks).await {
        return if connection.used {
            Ended::Stale
        } else {
            Ended::Failed(Failure::new(FailureKind::Send, error))
        };
    }
    let mut reader = AnswerReader::new(replica_header, sent);
    let mut any = false;
    loop {
        // The scratch buffer is shared by all requests of this thread, so its content is used up before this poll returns.
        let step = poll_fn(|context| {
            let mut scratch = scratch.borrow_mut();
            let count = ready!(connection.poll_read(context, &mut scratch));
            let at = clock.now();
            std::task::Poll::Ready(match count {
                Err(error) => Step::Broken(error.to_string()),
                Ok(0) => Step::Closed,
                Ok(count) => match reader.take(&scratch[..count], at, record) {
                    Err(failure) => Step::Failed(failure),
                    Ok(()) => Step::Read,
                },
            })
        })
        .await;
        match step {
            Step::Read => {
                any = true;
                if reader.response.is_done() {
                    let keep = reader.response.head().is_some_and(|head| head.keep_alive);
                    return match reader.verdict() {
                        Ok(()) => Ended::Answered { keep },
                        // The connection is fine when the answer was read to its end.
                        Err(failure) => {
                            record.outcome = Err(failure);
                            Ended::Answered { keep }
                        }
                    };
                }
            }
            Step::Closed | Step::Broken(_) if !any && connection.used => return Ended::Stale,
            Step::Closed if reader.response.closed() || reader.said_done => {
                return reader
                    .verdict()
                    .map_or_else(Ended::Failed, |()| Ended::Answered { keep: false });
            }
            Step::Closed => {
                return Ended::Failed(Failure::new(FailureKind::CutStream, reader.progress()));
            }
            Step::Broken(error) => {
                return Ended::Failed(Failure::new(
                    FailureKind::CutStream,
                    format!("{error}, {}", reader.progress()),
                ));
            }
            Step::Failed(failure) => return Ended::Failed(failure),
        }
    }
}

enum Step {
    Read,
    Closed,
    Broken(String),
    Failed(Failure),
}

/// Turns the bytes of an answer into a record.
struct AnswerReader<'a> {
    response: Response<'a>,
    events: Events,
    sent: Duration,
    error_body: Vec<u8>,
    error_event: Option<String>,
    tokens_so_far: u32,
    chunks: usize,
    said_done: bool,
    said_finished: bool,
}

impl<'a> AnswerReader<'a> {
    fn new(replica_header: &'a str, sent: Duration) -> Self {
        Self {
            response: Response::new(replica_header),
            events: Events::default(),
            sent,
            error_body: Vec::new(),
            error_event: None,
            tokens_so_far: 0,
            chunks: 0,
            said_done: false,
            said_finished: false,
        }
    }

    fn take(&mut self, bytes: &[u8], at: Duration, record: &mut Record) -> Result<(), Failure> {
        // Body bytes are collected in place: whether they are events is known from the head, which precedes them.
        let mut failure = None;
        let Self {
            response,
            events,
            sent,
            error_body,
            error_event,
            tokens_so_far,
            chunks,
            said_done,
            said_finished,
        } = self;
        let after_sent = u32::try_from((at.saturating_sub(*sent)).as_micros()).unwrap_or(u32::MAX);
        let mut on_event = |data: &[u8]| match Event::parse(data) {
            Err(error) => {
                failure.get_or_insert_with(|| {
                    let shown: String = String::from_utf8_lossy(data).chars().take(120).collect();
                    Failure::new(FailureKind::MalformedEvent, format!("{error} in {shown:?}"))
                });
            }
            Ok(Event::Done) => *said_done = true,
            Ok(Event::Error(message)) => *error_event = Some(message),
            Ok(Event::Chunk {
                content,
                finished,
                usage,
            }) => {
                *said_finished |= finished;
                if content {
                    record.chunks.push(after_sent);
                    *chunks += 1;
                }
                if let Some(usage) = usage {
                    // A running count in a chunk with text tells how many tokens it carries.
                    if content && record.chunk_tokens.len() + 1 == *chunks {
                        record
                            .chunk_tokens
                            .push(usage.completion_tokens.saturating_sub(*tokens_so_far));
                    }
                    *tokens_so_far = usage.completion_tokens;
                    record.usage = Some(usage);
                }
            }
        };
        let mut too_long = None;
        response
            .feed(bytes, |head, body| {
                if head.status == 200 && head.event_stream {
                    if let Err(error) = events.feed(body, &mut on_event) {
                        too_long = Some(error);
                    }
                } else if error_body.len() < ERROR_BODY_LIMIT {
                    error_body.extend_from_slice(
                        &body[..body.len().min(ERROR_BODY_LIMIT - error_body.len())],
                    );
                }
            })
            .map_err(|error| Failure::new(FailureKind::MalformedHttp, error))?;
        if record.headers.is_none()
            && let Some(head) = response.head()
        {
            record.headers = Some(at);
            record.status = Some(head.status);
            record.replica.clone_from(&head.replica);
        }
        if let Some(error) = too_long {
            return Err(Failure::new(FailureKind::MalformedEvent, error));
        }
        failure.map_or(Ok(()), Err)
    }

    /// Judges an answer that was read to its end.
    fn verdict(&self) -> Result<(), Failure> {
        let Some(head) = self.response.head() else {
            return Err(Failure::new(
                FailureKind::CutStream,
                "before the head of the answer",
            ));
        };
        if head.status != 200 {
            return Err(Failure::new(
                FailureKind::Status(head.status),
                error_message(&self.error_body),
            ));
        }
        if !head.event_stream {
            return Err(Failure::new(
                FailureKind::NotAStream,
                error_message(&self.error_body),
            ));
        }
        if let Some(message) = &self.error_event {
            return Err(Failure::new(FailureKind::ErrorEvent, message));
        }
        if !self.said_done && !self.said_finished {
            return Err(Failure::new(FailureKind::CutStream, self.progress()));
        }
        if self.chunks == 0 {
            return Err(Failure::new(FailureKind::NoTokens, ""));
        }
        Ok(())
    }

    fn progress(&self) -> String {
        match self.response.head() {
            None => "before the head of the answer".to_owned(),
            Some(_) => format!("after {} chunks", self.chunks),
        }
    }
}
