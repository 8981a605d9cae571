//! Responses of HTTP/1.1, read as their bytes arrive. No sockets here.

/// Longest head that is accepted.
const HEAD_LIMIT: usize = 64 * 1024;

/// A response that breaks the protocol; says what was wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(pub String);

fn malformed(reason: impl Into<String>) -> Malformed {
    Malformed(reason.into())
}

/// What the head of a response says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    /// Status code.
    pub status: u16,
    /// The body is a stream of server-sent events.
    pub event_stream: bool,
    /// The connection may carry another request afterwards.
    pub keep_alive: bool,
    /// Value of the header that names the replica.
    pub replica: Option<String>,
}

/// Reads one response.
#[derive(Debug)]
pub struct Response<'a> {
    state: State,
    head_bytes: Vec<u8>,
    head: Option<Head>,
    replica_header: &'a str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Head,
    Length(u64),
    UntilClose,
    Chunked(Chunk),
    Done,
}

/// Where in the chunked coding we are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Chunk {
    Size {
        value: u64,
        digits: u8,
    },
    /// Up to the line feed that ends the size line.
    Extension {
        value: u64,
    },
    Data {
        left: u64,
    },
    /// The carriage return and line feed after the data.
    DataEnd {
        line_feed: bool,
    },
    /// The trailer; `empty` while its current line has no byte.
    Trailer {
        empty: bool,
    },
}

impl<'a> Response<'a> {
    /// Expects a response to a POST; `replica_header` (lower case) names the header kept in [`Head::replica`].
    #[must_use]
    pub fn new(replica_header: &'a str) -> Self {
        Self {
            state: State::Head,
            head_bytes: Vec::new(),
            head: None,
            replica_header,
        }
    }

    /// The head, once it is complete.
    #[must_use]
    pub fn head(&self) -> Option<&Head> {
        self.head.as_ref()
    }

    /// The whole response was read.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// Takes bytes as they came and hands the body's part of them to `body`, in order, without its framing, with the head.
    ///
    /// # Errors
    /// The response breaks the protocol.
    pub fn feed(
        &mut self,
        mut bytes: &[u8],
        mut body: impl FnMut(&Head, &[u8]),
    ) -> Result<(), Malformed> {
        if self.head.is_none() {
            bytes = self.feed_head(bytes)?;
        }
        let Some(head) = &self.head else {
            return Ok(());
        };
        let mut body = |bytes: &[u8]| body(head, bytes);
        while !bytes.is_empty() {
            match &mut self.state {
                // The head is complete.
                State::Head => return Ok(()),
                State::Length(left) => {
                    let taken = bytes
                        .len()
                        .min(usize::try_from(*left).unwrap_or(usize::MAX));
                    body(&bytes[..taken]);
                    *left -= taken as u64;
                    if *left == 0 {
                        self.state = State::Done;
                    }
                    bytes = &bytes[taken..];
                }
                State::UntilClose => {
                    body(bytes);
                    bytes = &[];
                }
                State::Chunked(chunk) => {
                    let (taken, next) = chunk.step(bytes, &mut body)?;
                    self.state = next.map_or(State::Done, State::Chunked);
                    bytes = &bytes[taken..];
                }
                State::Done => {
                    return Err(malformed(format!(
                        "{} bytes after the end of the response",
                        bytes.len()
                    )));
                }
            }
        }
        Ok(())
    }

    /// The peer closed the connection. True when that is a proper end of this response.
    #[must_use]
    pub fn closed(&self) -> bool {
        matches!(self.state, State::UntilClose | State::Done)
    }

    /// Collects the head; returns the bytes after it.
    fn feed_head<'b>(&mut self, mut bytes: &'b [u8]) -> Result<&'b [u8], Malformed> {
        loop {
            let before = self.head_bytes.len();
            self.head_bytes.extend_from_slice(bytes);
            // The end may straddle the old and the new bytes.
            let from = before.saturating_sub(3);
            let Some(end) = self.head_bytes[from..]
                .windows(4)
                .position(|four| four == b"\r\n\r\n")
                .map(|at| from + at + 4)
            else {
                if self.head_bytes.len() > HEAD_LIMIT {
                    return Err(malformed(format!(
                        "the head is longer than {HEAD_LIMIT} bytes"
                    )));
                }
                return Ok(&[]);
            };
            let (head, state) = parse_head(&self.head_bytes[..end - 4], self.replica_header)?;
            self.head_bytes.clear();
            bytes = &bytes[end - before..];
            // Informational responses come before the real one.
            if !(100..200).contains(&head.status) {
                self.state = state;
                self.head = Some(head);
                return Ok(bytes);
            }
        }
    }
}

impl Chunk {
    /// One step through the coding: bytes used, and the next place (none at the end of the body).
    fn step(
        self,
        bytes: &[u8],
        body: &mut impl FnMut(&[u8]),
    ) -> Result<(usize, Option<Self>), Malformed> {
        let byte = bytes[0];
        Ok(match self {
            Self::Size { value, digits } => match (byte as char).to_digit(16) {
                Some(_) if digits == 15 => {
                    return Err(malformed("a chunk size has more than 15 digits"));
                }
                Some(digit) => (
                    1,
                    Some(Self::Size {
                        value: value * 16 + u64::from(digit),
                        digits: digits + 1,
                    }),
                ),
                None if digits == 0 => {
                    return Err(malformed(format!(
                        "a chunk size begins with byte {byte:#04x}"
                    )));
                }
                None => (0, Some(Self::Extension { value })),
            },
            Self::Extension { value } => match bytes.iter().position(|byte| *byte == b'\n') {
                None => (bytes.len(), Some(self)),
                Some(at) if value == 0 => (at + 1, Some(Self::Trailer { empty: true })),
                Some(at) => (at + 1, Some(Self::Data { left: value })),
            },
            Self::Data { left } => {
                let taken = bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                body(&bytes[..taken]);
                match left - taken as u64 {
                    0 => (taken, Some(Self::DataEnd { line_feed: false })),
                    left => (taken, Some(Self::Data { left })),
                }
            }
            Self::DataEnd { line_feed: false } if byte == b'\r' => {
                (1, Some(Self::DataEnd { line_feed: true }))
            }
            Self::DataEnd { .. } if byte == b'\n' => (
                1,
                Some(Self::Size {
                    value: 0,
                    digits: 0,
                }),
            ),
            Self::DataEnd { .. } => {
                return Err(malformed(format!(
                    "byte {byte:#04x} where a chunk should end"
                )));
            }
            Self::Trailer { empty } => match byte {
                b'\n' if empty => (1, None),
                b'\n' => (1, Some(Self::Trailer { empty: true })),
                b'\r' => (1, Some(self)),
                _ => (1, Some(Self::Trailer { empty: false })),
            },
        })
    }
}

fn parse_head(bytes: &[u8], replica_header: &str) -> Result<(Head, State), Malformed> {
    let text = std::str::from_utf8(bytes).map_err(|_| malformed("the head is not text"))?;
    let mut lines = text.split("\r\n");
    let status_line = lines.next().unwrap_or("");
    let mut parts = status_line.splitn(3, ' ');
    let version = parts.next().unwrap_or("");
    if !version.starts_with("HTTP/1.") {
        return Err(malformed(format!(
            "the response begins with {:?}, not HTTP/1.1",
            status_line.chars().take(40).collect::<String>()
        )));
    }
    let status: u16 = parts
        .next()
        .and_then(|status| status.parse().ok())
        .ok_or_else(|| malformed(format!("the status line {status_line:?} has no status")))?;
    let mut head = Head {
        status,
        event_stream: false,
        keep_alive: version != "HTTP/1.0",
        replica: None,
    };
    let mut length = None;
    let mut chunked = false;
    for line in lines {
        let (name, value) = line
            .split_once(':')
            .ok_or_else(|| malformed(format!("the header line {line:?} has no colon")))?;
        let value = value.trim();
        if name.eq_ignore_ascii_case("content-length") {
            length = Some(
                value
                    .parse::<u64>()
                    .map_err(|_| malformed(format!("content-length is {value:?}")))?,
            );
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            chunked = value.to_ascii_lowercase().ends_with("chunked");
        } else if name.eq_ignore_ascii_case("content-type") {
            head.event_stream = value.to_ascii_lowercase().starts_with("text/event-stream");
        } else if name.eq_ignore_ascii_case("connection") {
            let value = value.to_ascii_lowercase();
            if value.contains("close") {
                head.keep_alive = false;
            } else if value.contains("keep-alive") {
                head.keep_alive = true;
            }
        } else if name.eq_ignore_ascii_case(replica_header) {
            head.replica = Some(value.to_owned());
        }
    }
    let state = match (chunked, length) {
        _ if status == 204 || status == 304 => State::Done,
        (true, _) => State::Chunked(Chunk::Size {
            value: 0,
            digits: 0,
        }),
        (false, Some(0)) => State::Done,
        (false, Some(length)) => State::Length(length),
        (false, None) => {
            head.keep_alive = false;
            State::UntilClose
        }
    };
    Ok((head, state))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds a response cut into pieces of `size` bytes; gives the body and the reader.
    fn read(text: &[u8], size: usize) -> Result<(Vec<u8>, Head, bool), Malformed> {
        let mut response = Response::new("x-replica");
        let mut body = Vec::new();
        for piece in text.chunks(size) {
            response.feed(piece, |_, bytes| body.extend_from_slice(bytes))?;
        }
        let done = response.is_done();
        Ok((body, response.head().unwrap().clone(), done))
    }

    const CHUNKED: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\nX-Replica: pod-7\r\n\r\n5\r\nhello\r\n1a;ext=1\r\nabcdefghijklmnopqrstuvwxyz\r\n0\r\nX-Trailer: 1\r\n\r\n";

    #[test]
    fn a_chunked_body_is_the_same_however_it_is_cut() {
        for size in 1..CHUNKED.len() + 1 {
            let (body, head, done) = read(CHUNKED, size).unwrap();
            assert_eq!(body, b"helloabcdefghijklmnopqrstuvwxyz", "pieces of {size}");
            assert!(done && head.keep_alive && head.event_stream);
            assert_eq!(head.replica.as_deref(), Some("pod-7"));
        }
    }

    #[test]
    fn a_body_of_known_length_ends_there() {
        let (body, head, done) = read(b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 4\r\nconnection: close\r\n\r\nbusy", 3).unwrap();
        assert_eq!(
            (body.as_slice(), head.status, head.keep_alive, done),
            (b"busy".as_slice(), 503, false, true)
        );
    }

    #[test]
    fn a_body_without_length_ends_with_the_connection() {
        let mut response = Response::new("");
        response
            .feed(b"HTTP/1.1 200 OK\r\n\r\nabc", |_, _| {})
            .unwrap();
        assert!(!response.is_done() && response.closed());
        let mut cut = Response::new("");
        cut.feed(
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nab",
            |_, _| {},
        )
        .unwrap();
        assert!(!cut.closed());
    }

    #[test]
    fn informational_responses_are_passed_over() {
        let (body, head, _) = read(
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
            5,
        )
        .unwrap();
        assert_eq!((body.as_slice(), head.status), (b"ok".as_slice(), 200));
    }

    #[test]
    fn breaches_are_named() {
        let error = |text: &[u8]| read(text, 1000).unwrap_err().0;
        assert!(error(b"SSH-2.0-OpenSSH\r\n\r\n").contains("not HTTP/1.1"));
        assert!(error(b"HTTP/1.1 abc\r\n\r\n").contains("has no status"));
        assert!(
            error(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n")
                .contains("chunk size begins with byte 0x78")
        );
        assert!(
            error(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nabc")
                .contains("where a chunk should end")
        );
        assert!(
            error(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nabc")
                .contains("2 bytes after the end")
        );
        assert!(error(b"HTTP/1.1 200 OK\r\nnonsense\r\n\r\n").contains("no colon"));
    }
}
