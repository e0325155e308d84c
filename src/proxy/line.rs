//! A connection to an engine, and how it is made: without anything in between where it is in clear text. Pingora's own
//! notes of each read and write what nobody asks for here.

use super::Phases;
use super::peer::{Goal, keepalive};
use nix::errno::Errno;
use pingora_core::connectors::TransportConnector;
use pingora_core::protocols::Stream;
use pingora_core::protocols::l4::ext::set_tcp_keepalive;
use pingora_error::{Error, ErrorType, Result};
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// A connection to an engine.
#[derive(Debug)]
pub(super) enum Line {
    Clear(TcpStream),
    /// TLS, by Pingora.
    Tls(Stream),
}

/// Connects to where an attempt goes.
///
/// # Errors
/// In Pingora's terms: `ConnectTimedout`, `InternalError` where there are no sockets or ports, and others.
pub(super) async fn connect(goal: &Goal, phases: &Phases, tls: &TransportConnector) -> Result<Line> {
    if goal.replica.spec.tls.is_some() {
        return tls.new_stream(&goal.peer(phases)).await.map(Line::Tls);
    }
    let connecting = TcpStream::connect(goal.address);
    let stream = match timeout(phases.connect, connecting).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(e)) => return Err(failed(e, goal.address)),
        Err(_) => return Err(Error::explain(ErrorType::ConnectTimedout, format!("connecting to {}", goal.address))),
    };
    stream.set_nodelay(true).map_err(|e| failed(e, goal.address))?;
    set_tcp_keepalive(&stream, &keepalive(phases.tcp_keepalive))?;
    Ok(Line::Clear(stream))
}

/// Whether a connection failed because no more files may be open, or there is no memory for them.
pub(super) fn wants_files(e: &Error) -> bool {
    let cause = e.cause.as_ref().and_then(|cause| cause.downcast_ref::<io::Error>());
    let errno = cause.and_then(io::Error::raw_os_error).map(Errno::from_raw);
    matches!(errno, Some(Errno::EMFILE | Errno::ENFILE | Errno::ENOBUFS | Errno::ENOMEM))
}

fn failed(e: io::Error, address: SocketAddr) -> Box<Error> {
    let kind = match e.raw_os_error().map(Errno::from_raw) {
        Some(Errno::ECONNREFUSED) => ErrorType::ConnectRefused,
        Some(Errno::ETIMEDOUT) => ErrorType::ConnectTimedout,
        Some(Errno::ENETUNREACH | Errno::EHOSTUNREACH) => ErrorType::ConnectNoRoute,
        Some(
            Errno::EMFILE
            | Errno::ENFILE
            | Errno::ENOBUFS
            | Errno::ENOMEM
            | Errno::EADDRNOTAVAIL
            | Errno::EADDRINUSE
            | Errno::EACCES
            | Errno::EPERM,
        ) => ErrorType::InternalError,
        _ => ErrorType::ConnectError,
    };
    Error::because(kind, format!("connecting to {address}"), e)
}

impl AsyncRead for Line {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Line::Clear(stream) => Pin::new(stream).poll_read(cx, buf),
            Line::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Line {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Line::Clear(stream) => Pin::new(stream).poll_write(cx, bytes),
            Line::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Line::Clear(stream) => Pin::new(stream).poll_write_vectored(cx, pieces),
            Line::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, pieces),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Line::Clear(stream) => stream.is_write_vectored(),
            Line::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Line::Clear(stream) => Pin::new(stream).poll_flush(cx),
            Line::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Line::Clear(stream) => Pin::new(stream).poll_shutdown(cx),
            Line::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn want_of_sockets_or_ports_is_not_the_engines_fault() {
        let address = SocketAddr::from(([127, 0, 0, 1], 1));
        for (errno, kind) in [
            (Errno::EMFILE, ErrorType::InternalError),
            (Errno::EADDRNOTAVAIL, ErrorType::InternalError),
            (Errno::ECONNREFUSED, ErrorType::ConnectRefused),
            (Errno::EHOSTUNREACH, ErrorType::ConnectNoRoute),
            (Errno::ECONNRESET, ErrorType::ConnectError),
        ] {
            let e = failed(io::Error::from_raw_os_error(errno as i32), address);
            assert_eq!((e.etype(), wants_files(&e)), (&kind, errno == Errno::EMFILE), "{errno}");
        }
    }
}
