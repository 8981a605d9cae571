//! A server whose time to first token and gaps are known: it answers every request after exactly the asked delays.
//!
//! Two threads share its work. One accepts connections and reads requests on an event loop; one sleeps until the next token
//! is due and writes it. Delays are the same for all requests, so what is due next is always at the front of one of two
//! queues, and a token costs one system call. The writer sleeps with the precision of the system's clock, not with that of an
//! event loop.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use super::Truth;

/// The writer wakes at least this often, to see whether it should end.
const WAKE: Duration = Duration::from_millis(20);
/// Tokens due within this of each other are written in one go.
const MERGE: Duration = Duration::from_micros(100);
/// Connections that may wait to be accepted. A connection beyond it would be tried again by the client's system after a whole
/// second, which would be this server's fault.
const BACKLOG: u32 = 4096;
/// Longest request that is accepted.
const REQUEST_LIMIT: usize = 64 * 1024 * 1024;

const HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n";
const ROLE: &str = r#"data: {"id":"chatcmpl-0","object":"chat.completion.chunk","created":1700000000,"model":"known","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}"#;
const TOKEN: &str = r#"data: {"id":"chatcmpl-0","object":"chat.completion.chunk","created":1700000000,"model":"known","choices":[{"index":0,"delta":{"content":" token"},"finish_reason":null}]}"#;
const FINISH: &str = r#"data: {"id":"chatcmpl-0","object":"chat.completion.chunk","created":1700000000,"model":"known","choices":[{"index":0,"delta":{},"finish_reason":"length"}]}"#;

/// The running server; it ends when dropped.
#[derive(Debug)]
pub struct KnownServer {
    address: SocketAddr,
    stop: CancellationToken,
    stopped: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl KnownServer {
    /// Starts it on a free port of the loopback interface.
    ///
    /// # Errors
    /// No port can be bound or no thread made.
    pub fn start(truth: Truth) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .build()?;
        let listener = {
            let _registers_with_it = runtime.enter();
            let socket = tokio::net::TcpSocket::new_v4()?;
            socket.bind((Ipv4Addr::LOCALHOST, 0).into())?;
            socket.listen(BACKLOG)?
        };
        let address = listener.local_addr()?;
        let stop = CancellationToken::new();
        let stopped = Arc::new(AtomicBool::new(false));
        let queue = Arc::new(Queue::default());
        let mut threads = Vec::new();
        let (writer_queue, writer_stopped) = (queue.clone(), stopped.clone());
        threads.push(
            std::thread::Builder::new()
                .name("known-writer".to_owned())
                .spawn(move || write_tokens(&writer_queue, truth, &writer_stopped))?,
        );
        let reader_stop = stop.clone();
        threads.push(
            std::thread::Builder::new()
                .name("known-reader".to_owned())
                .spawn(move || {
                    runtime.block_on(async move {
                        tokio::select! {
                            () = reader_stop.cancelled() => {}
                            () = accept(listener, queue, truth) => {}
                        }
                    });
                })?,
        );
        Ok(Self {
            address,
            stop,
            stopped,
            threads,
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Drop for KnownServer {
    fn drop(&mut self) {
        self.stop.cancel();
        self.stopped.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // A thread that panicked has said so already.
            drop(thread.join());
        }
    }
}

/// An answer under way.
#[derive(Debug)]
struct Answer {
    due: Instant,
    connection: Arc<TcpStream>,
    input_tokens: u32,
    written: u32,
    total: u32,
}

/// First tokens in the order in which they are due.
#[derive(Debug, Default)]
struct Queue {
    first: Mutex<VecDeque<Answer>>,
    arrived: Condvar,
}

async fn accept(listener: tokio::net::TcpListener, queue: Arc<Queue>, truth: Truth) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                drop(stream.set_nodelay(true));
                tokio::spawn(serve(Arc::new(stream), queue.clone(), truth));
            }
            // Out of descriptors: let some connections end.
            Err(_) => tokio::task::yield_now().await,
        }
    }
}

/// Reads requests of one connection; the answers are written by the other thread.
async fn serve(connection: Arc<TcpStream>, queue: Arc<Queue>, truth: Truth) {
    let mut buffer = Vec::with_capacity(4096);
    while let Ok(Some(request)) = read_request(&connection, &mut buffer).await {
        let answer = Answer {
            due: request.arrived + truth.ttft,
            connection: connection.clone(),
            input_tokens: request.input_tokens,
            written: 0,
            total: request.output_tokens.max(1),
        };
        queue.first.lock().push_back(answer);
        queue.arrived.notify_one();
    }
}

struct Request {
    arrived: Instant,
    input_tokens: u32,
    output_tokens: u32,
}

/// Reads one request; none when the client closed the connection.
async fn read_request(connection: &TcpStream, buffer: &mut Vec<u8>) -> io::Result<Option<Request>> {
    buffer.clear();
    loop {
        if read_some(connection, buffer).await? == 0 {
            return Ok(None);
        }
        let arrived = Instant::now();
        let Some(head) = buffer.windows(4).position(|four| four == b"\r\n\r\n") else {
            if buffer.len() > REQUEST_LIMIT {
                return Err(ErrorKind::InvalidData.into());
            }
            continue;
        };
        let text = std::str::from_utf8(&buffer[..head]).map_err(|_| ErrorKind::InvalidData)?;
        let length: usize = number_after(text, "content-length: ").ok_or(ErrorKind::InvalidData)?;
        let input_tokens = number_after(text, crate::openai::PROMPT_TOKENS_HEADER).unwrap_or(0);
        let end = head + 4 + length;
        if end > REQUEST_LIMIT {
            return Err(ErrorKind::InvalidData.into());
        }
        buffer.reserve(end.saturating_sub(buffer.len()).max(1));
        let mut arrived = arrived;
        while buffer.len() < end {
            if read_some(connection, buffer).await? == 0 {
                return Ok(None);
            }
            arrived = Instant::now();
        }
        // `max_tokens` comes after the prompt: look from the end.
        let body = &buffer[head + 4..end];
        let tail = std::str::from_utf8(&body[body.len().saturating_sub(512)..]).unwrap_or("");
        return Ok(Some(Request {
            arrived,
            input_tokens,
            output_tokens: number_after(tail, "\"max_tokens\":").unwrap_or(1),
        }));
    }
}

/// Appends what has arrived; 0 bytes mean that the client closed.
async fn read_some(connection: &TcpStream, buffer: &mut Vec<u8>) -> io::Result<usize> {
    loop {
        connection.readable().await?;
        match connection.try_read_buf(buffer) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            read => return read,
        }
    }
}

/// The number that follows a name, past a colon and spaces.
fn number_after<T: std::str::FromStr>(text: &str, name: &str) -> Option<T> {
    let rest = text[text.find(name)? + name.len()..].trim_start_matches([':', ' ']);
    let end = rest
        .find(|character: char| !character.is_ascii_digit())
        .unwrap_or(rest.len());
    rest[..end].parse().ok()
}

/// Writes each token when it is due.
fn write_tokens(queue: &Queue, truth: Truth, stopped: &AtomicBool) {
    // Where this is refused, tokens come up to 50 µs later.
    let _refused = nix::sys::prctl::set_timerslack(1_000);
    let frames = Frames::new();
    // Later tokens in the order in which they are due: each is put back one gap after its last.
    let mut later: VecDeque<Answer> = VecDeque::new();
    let mut out = Vec::with_capacity(1024);
    while !stopped.load(Ordering::Relaxed) {
        let now = Instant::now();
        loop {
            let first_due = queue.first.lock().front().map(|answer| answer.due);
            let later_due = later.front().map(|answer| answer.due);
            let from_first = match (first_due, later_due) {
                (Some(first), Some(later)) => first <= later,
                (first, _) => first.is_some(),
            };
            let due = if from_first { first_due } else { later_due };
            if due.is_none_or(|due| due > now) {
                break;
            }
            let answer = if from_first {
                queue.first.lock().pop_front()
            } else {
                later.pop_front()
            };
            let Some(mut answer) = answer else { break };
            frames.fill(&mut out, &answer);
            answer.written += 1;
            // A client that does not read or is gone gets nothing more.
            if matches!(answer.connection.try_write(&out), Ok(count) if count == out.len())
                && answer.written < answer.total
            {
                answer.due += truth.itl;
                later.push_back(answer);
            }
        }
        let mut first = queue.first.lock();
        let next = first
            .front()
            .map(|answer| answer.due)
            .into_iter()
            .chain(later.front().map(|answer| answer.due))
            .min();
        match next {
            None => drop(queue.arrived.wait_for(&mut first, WAKE)),
            Some(due) => {
                drop(first);
                std::thread::sleep(
                    due.saturating_duration_since(Instant::now())
                        .clamp(MERGE, WAKE),
                );
            }
        }
    }
}

/// Parts of an answer, framed once.
struct Frames {
    first: Vec<u8>,
    token: Vec<u8>,
    finish: Vec<u8>,
}

impl Frames {
    fn new() -> Self {
        let mut first = HEAD.as_bytes().to_vec();
        frame(&mut first, ROLE);
        let mut token = Vec::new();
        frame(&mut token, TOKEN);
        let mut finish = Vec::new();
        frame(&mut finish, FINISH);
        Self {
            first,
            token,
            finish,
        }
    }

    /// Everything that is written together with the answer's next token.
    fn fill(&self, out: &mut Vec<u8>, answer: &Answer) {
        out.clear();
        if answer.written == 0 {
            out.extend_from_slice(&self.first);
        }
        out.extend_from_slice(&self.token);
        if answer.written + 1 == answer.total {
            out.extend_from_slice(&self.finish);
            let Answer {
                input_tokens,
                total,
                ..
            } = answer;
            frame(
                out,
                &format!(
                    r#"data: {{"id":"chatcmpl-0","object":"chat.completion.chunk","created":1700000000,"model":"known","choices":[],"usage":{{"prompt_tokens":{input_tokens},"completion_tokens":{total},"total_tokens":{}}}}}"#,
                    u64::from(*input_tokens) + u64::from(*total)
                ),
            );
            frame(out, "data: [DONE]");
            out.extend_from_slice(b"0\r\n\r\n");
        }
    }
}

/// Appends one event as one chunk of the chunked coding.
fn frame(out: &mut Vec<u8>, event: &str) {
    out.extend_from_slice(format!("{:x}\r\n{event}\n\n\r\n", event.len() + 2).as_bytes());
}
