//! Connections: opened on demand, kept for the next request.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use nix::errno::Errno;
use tokio::io::{AsyncRead, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use super::record::{Failure, FailureKind};
use super::target::Target;

/// A connection that is not made after this long is given up.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// An open connection.
#[derive(Debug)]
pub(super) struct Connection {
    io: Io,
    /// It has carried a whole exchange: the peer may have closed it since.
    pub(super) used: bool,
}

#[derive(Debug)]
enum Io {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Connection {
    /// Opens a connection; `turn` picks among the target's addresses.
    pub(super) async fn open(target: &Target, turn: usize) -> Result<Self, Failure> {
        tokio::time::timeout(CONNECT_LIMIT, Self::open_now(target, turn))
            .await
            .unwrap_or_else(|_| {
                Err(Failure::new(
                    FailureKind::ConnectTimeout,
                    format!("after {} s", CONNECT_LIMIT.as_secs()),
                ))
            })
    }

    async fn open_now(target: &Target, turn: usize) -> Result<Self, Failure> {
        let address = target.addresses[turn % target.addresses.len()];
        let stream = TcpStream::connect(address)
            .await
            .map_err(|error| connect_failure(&error))?;
        // Requests are written whole: waiting for more to send only delays them. Failing to set it costs nothing else.
        drop(stream.set_nodelay(true));
        let io = match &target.tls {
            None => Io::Plain(stream),
            Some((connector, name)) => {
                let stream = connector
                    .connect(name.clone(), stream)
                    .await
                    .map_err(|error| Failure::new(FailureKind::Tls, error))?;
                Io::Tls(Box::new(stream))
            }
        };
        Ok(Self { io, used: false })
    }

    /// Writes all of `bytes`. With `delayed_acks`, the system may wait before it acknowledges what comes back.
    pub(super) async fn write_all(&mut self, bytes: &[u8], delayed_acks: bool) -> io::Result<()> {
        match &mut self.io {
            Io::Plain(stream) => {
                if delayed_acks {
                    // The system returns to immediate ones by itself, so it is told before every request. Where it does not
                    // know the option, it only costs more processor time.
                    #[cfg(target_os = "linux")]
                    let _unknown = stream.set_quickack(false);
                }
                stream.write_all(bytes).await
            }
            Io::Tls(stream) => {
                stream.write_all(bytes).await?;
                stream.flush().await
            }
        }
    }

    /// Reads what is there into `buffer`; 0 bytes mean that the peer closed.
    pub(super) fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let mut buffer = ReadBuf::new(buffer);
        let polled = match &mut self.io {
            Io::Plain(stream) => Pin::new(stream).poll_read(context, &mut buffer),
            Io::Tls(stream) => Pin::new(stream).poll_read(context, &mut buffer),
        };
        polled.map_ok(|()| buffer.filled().len())
    }
}

fn connect_failure(error: &io::Error) -> Failure {
    let short_of = [
        Errno::EMFILE,
        Errno::ENFILE,
        Errno::EADDRNOTAVAIL,
        Errno::ENOBUFS,
        Errno::ENOMEM,
    ];
    let kind = match error.kind() {
        io::ErrorKind::ConnectionRefused => FailureKind::ConnectRefused,
        io::ErrorKind::TimedOut => FailureKind::ConnectTimeout,
        _ if error
            .raw_os_error()
            .is_some_and(|code| short_of.contains(&Errno::from_raw(code))) =>
        {
            FailureKind::Descriptors
        }
        _ => FailureKind::Connect,
    };
    Failure::new(kind, error)
}
