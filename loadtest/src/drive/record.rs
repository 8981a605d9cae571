//! What is known about one request after it ended.

use std::fmt;
use std::time::Duration;

use super::api::Usage;

/// Why a request brought no complete answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FailureKind {
    /// Nothing listens at the address.
    ConnectRefused,
    /// The connection was not made in time.
    ConnectTimeout,
    /// The connection could not be made for another reason.
    Connect,
    /// The TLS handshake failed.
    Tls,
    /// This machine ran out of descriptors, ports or socket memory.
    Descriptors,
    /// The connection broke while the request was being written.
    Send,
    /// The server answered with a status other than 200.
    Status(u16),
    /// The answer is complete but is no event stream.
    NotAStream,
    /// The stream ended before its end was announced.
    CutStream,
    /// The answer breaks HTTP.
    MalformedHttp,
    /// An event is not what the API says.
    MalformedEvent,
    /// The server reported an error inside the stream.
    ErrorEvent,
    /// The stream ended properly without any generated text.
    NoTokens,
    /// The whole request took longer than it may.
    Timeout,
    /// The run ended first.
    Unfinished,
    /// The run ended before it was sent.
    NotSent,
}

impl FailureKind {
    /// A constant name for counting; a status carries its number.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            Self::Status(status) => format!("Http{status}"),
            Self::ConnectRefused => "ConnectRefused".to_owned(),
            Self::ConnectTimeout => "ConnectTimeout".to_owned(),
            Self::Connect => "Connect".to_owned(),
            Self::Tls => "Tls".to_owned(),
            Self::Descriptors => "Descriptors".to_owned(),
            Self::Send => "Send".to_owned(),
            Self::NotAStream => "NotAStream".to_owned(),
            Self::CutStream => "CutStream".to_owned(),
            Self::MalformedHttp => "MalformedHttp".to_owned(),
            Self::MalformedEvent => "MalformedEvent".to_owned(),
            Self::ErrorEvent => "ErrorEvent".to_owned(),
            Self::NoTokens => "NoTokens".to_owned(),
            Self::Timeout => "Timeout".to_owned(),
            Self::Unfinished => "Unfinished".to_owned(),
            Self::NotSent => "NotSent".to_owned(),
        }
    }

    /// What it means, for people.
    #[must_use]
    pub fn meaning(self) -> &'static str {
        match self {
            Self::ConnectRefused => "nothing listens at the address",
            Self::ConnectTimeout => "no connection within the limit",
            Self::Connect => "the connection could not be made",
            Self::Tls => "the TLS handshake failed",
            Self::Descriptors => "this machine ran out of descriptors, ports or socket memory",
            Self::Send => "the connection broke while sending",
            Self::Status(400..=499) => "the server refused the request",
            Self::Status(500..=599) => "the server failed or is overloaded",
            Self::Status(_) => "an unexpected status",
            Self::NotAStream => "the answer is no event stream",
            Self::CutStream => "the stream ended early",
            Self::MalformedHttp => "the answer breaks HTTP",
            Self::MalformedEvent => "an event of the stream is not what the API says",
            Self::ErrorEvent => "the server reported an error inside the stream",
            Self::NoTokens => "the stream ended without any token",
            Self::Timeout => "it took longer than --timeout",
            Self::Unfinished => "the run ended first",
            Self::NotSent => "the run ended before it was due or sent",
        }
    }
}

/// A failure with what was seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Its kind.
    pub kind: FailureKind,
    /// The message of the server or the operating system; may be empty.
    pub detail: String,
}

impl Failure {
    pub(super) fn new(kind: FailureKind, detail: impl fmt::Display) -> Self {
        Self {
            kind,
            detail: detail.to_string(),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.kind.meaning())?;
        if self.detail.is_empty() {
            Ok(())
        } else {
            write!(formatter, ": {}", self.detail)
        }
    }
}

/// One request, from its planned instant to its end. Instants count from the run's start.
#[derive(Debug, Clone)]
pub struct Record {
    /// Index into the schedule.
    pub request: u32,
    /// When it was due. In a closed loop: when its user was free to send it.
    pub planned: Duration,
    /// When its first byte was handed to the socket.
    pub sent: Option<Duration>,
    /// When the head of the answer was complete.
    pub headers: Option<Duration>,
    /// When it ended, well or not.
    pub ended: Duration,
    /// Arrival of each chunk with generated text, in µs after `sent`.
    pub chunks: Vec<u32>,
    /// Tokens in each of these chunks, where the server counts them along the way; else empty.
    pub chunk_tokens: Vec<u32>,
    /// Tokens as the server counted them.
    pub usage: Option<Usage>,
    /// Status of the answer.
    pub status: Option<u16>,
    /// The replica that served it, where a header says so.
    pub replica: Option<String>,
    /// It had to open a connection.
    pub connected: bool,
    /// Whether it brought a complete answer.
    pub outcome: Result<(), Failure>,
}

impl Record {
    pub(super) fn new(request: u32, planned: Duration) -> Self {
        Self {
            request,
            planned,
            sent: None,
            headers: None,
            ended: planned,
            chunks: Vec::new(),
            chunk_tokens: Vec::new(),
            usage: None,
            status: None,
            replica: None,
            connected: false,
            outcome: Err(Failure::new(FailureKind::NotSent, "")),
        }
    }

    /// First chunk with text, from the run's start.
    #[must_use]
    pub fn first(&self) -> Option<Duration> {
        self.chunk(*self.chunks.first()?)
    }

    /// Last chunk with text, from the run's start.
    #[must_use]
    pub fn last(&self) -> Option<Duration> {
        self.chunk(*self.chunks.last()?)
    }

    fn chunk(&self, after_sent: u32) -> Option<Duration> {
        Some(self.sent? + Duration::from_micros(u64::from(after_sent)))
    }

    /// Generated tokens: the server's count, else one a chunk.
    #[must_use]
    pub fn output_tokens(&self) -> u32 {
        let chunks = u32::try_from(self.chunks.len()).unwrap_or(u32::MAX);
        self.usage
            .map_or(chunks, |usage| usage.completion_tokens.max(1))
    }

    /// (last − first) / (tokens − 1); none for one token.
    #[must_use]
    pub fn time_per_output_token(&self) -> Option<Duration> {
        let gaps = self
            .output_tokens()
            .checked_sub(1)
            .filter(|gaps| *gaps > 0)?;
        Some((self.last()? - self.first()?) / gaps)
    }
}
