//! The connection on which a WebSocket is offered to an engine.
//!
//! pingora-proxy 0.9.1 hands the end of a request, also of one without a body, from the half that reads the client to
//! the half that speaks with the engine, and that half takes what comes first, the end or the answer, in no order
//! (`proxy_h1.rs`, `proxy_handle_upstream`). Where the answer is a `101` that came before the end was taken, the end is
//! understood as that of the new protocol ("terminated when either side is done"): the client sees its WebSocket open
//! and close, and what it sends then is lost. An engine needs to be only as fast as ramjet is slow, as on a loaded
//! machine, or to answer before it has read the whole head.
//!
//! So on such a connection the first reads find nothing, as if the answer came later: Pingora meanwhile takes the end.
//! The connection is opened for the one request and not kept, since Pingora cannot tell one with somebody in between
//! from another in its pool.

use async_trait::async_trait;
use pingora_core::connectors::l4::Connect;
use pingora_core::protocols::l4::ext::set_tcp_keepalive;
use pingora_core::protocols::l4::socket::SocketAddr;
use pingora_core::protocols::l4::stream::Stream;
use pingora_core::protocols::l4::virt::{VirtualSockOpt, VirtualSocket, VirtualSocketStream};
use pingora_core::upstreams::peer::PeerOptions;
use pingora_error::{Error, ErrorType, Result};
use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// How many reads find nothing. The end of the request is there at the first turn, but for a task that has used up what
/// the runtime lets it do at once: then at the next one, in which the two halves go in the other order.
const TURNS: u8 = 3;

/// Makes the connection that `options` describe one on which a WebSocket may be offered.
pub(super) fn offer(options: &mut PeerOptions) {
    options.custom_l4 = Some(Arc::new(Connector));
    options.idle_timeout = Some(Duration::ZERO);
}

#[derive(Debug)]
struct Connector;

#[async_trait]
impl Connect for Connector {
    async fn connect(&self, address: &SocketAddr) -> Result<Stream> {
        let Some(address) = address.as_inet() else {
            return Error::e_explain(ErrorType::InternalError, "a replica without an internet address");
        };
        let stream = TcpStream::connect(address).await.map_err(|e| {
            let kind = match e.kind() {
                ErrorKind::ConnectionRefused => ErrorType::ConnectRefused,
                ErrorKind::TimedOut => ErrorType::ConnectTimedout,
                _ => ErrorType::ConnectError,
            };
            Error::because(kind, format!("connecting to {address}"), e)
        })?;
        Ok(VirtualSocketStream::new(Box::new(Late { stream, turns: TURNS })).into())
    }
}

/// A connection whose first reads find nothing.
#[derive(Debug)]
struct Late<S> {
    stream: S,
    turns: u8,
}

impl<S: AsyncRead + Unpin> AsyncRead for Late<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        match this.turns.checked_sub(1) {
            Some(left) => {
                this.turns = left;
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            None => Pin::new(&mut this.stream).poll_read(cx, buf),
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Late<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl VirtualSocket for Late<TcpStream> {
    fn set_socket_option(&self, option: VirtualSockOpt) -> io::Result<()> {
        match option {
            VirtualSockOpt::NoDelay => self.stream.set_nodelay(true),
            VirtualSockOpt::KeepAlive(probes) => set_tcp_keepalive(&self.stream, &probes).map_err(io::Error::other),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncReadExt;

    #[tokio::test]
    async fn what_is_there_already_is_read_after_what_else_there_is_to_do() {
        let (mut late, mut done) = (Late { stream: &b"101"[..], turns: TURNS }, 0);
        let mut read = [0; 3];
        loop {
            tokio::select! {
                biased;
                whole = late.read_exact(&mut read) => break assert!(whole.is_ok() && &read == b"101"),
                () = std::future::ready(()), if done < TURNS => done += 1,
            }
        }
        assert_eq!(done, TURNS);
    }
}
