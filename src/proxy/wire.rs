//! A client's connection with somebody listening in: Pingora reads and writes through it as before, and what it does
//! not let us decide is decided here.
//!
//! To read heads ourselves was considered and refused: there would be two parsers of one text, and what the first lets
//! pass the second may understand otherwise.

use async_trait::async_trait;
use bytes::BytesMut;
use pingora_core::protocols::raw_connect::ProxyDigest;
use pingora_core::protocols::tls::SslDigest;
use pingora_core::protocols::{
    ALPN, GetProxyDigest, GetSocketDigest, GetTimingDigest, Peek, Shutdown, SocketDigest, Ssl, Stream, TimingDigest,
    UniqueID, UniqueIDType,
};
use std::fmt::Debug;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

/// Who listens in.
pub(super) trait Listener: Debug + Send + Sync + Unpin + 'static {
    /// The client has sent `bytes`.
    fn came(&mut self, bytes: &[u8]);

    /// Whether the client, that sends nothing at the moment, has had its time; wakes the task when it has.
    fn is_overdue(&mut self, task: &mut Context<'_>) -> bool;

    /// What the client is sent in place of `bytes`, if it is to be something else. Asked of each write once.
    fn in_place_of(&mut self, bytes: &[u8]) -> Option<Vec<u8>>;

    /// Whether what the client sends now is kept back, as it belongs to its next request. Its leaving is not.
    fn keeps_back(&self) -> bool {
        false
    }

    /// The most bytes that one read gives.
    fn most(&self) -> usize {
        usize::MAX
    }
}

/// Nobody.
impl Listener for () {
    fn came(&mut self, _: &[u8]) {}

    fn is_overdue(&mut self, _: &mut Context<'_>) -> bool {
        false
    }

    fn in_place_of(&mut self, _: &[u8]) -> Option<Vec<u8>> {
        None
    }
}

/// What is kept back of a connection at most; beyond, it is not read.
const KEPT: usize = 64 << 10;

/// A connection and who listens.
#[derive(Debug)]
pub(super) struct Watched<L> {
    stream: Stream,
    listener: L,
    /// What is being sent in place of something else, and how far that is.
    other: Option<(Vec<u8>, usize)>,
    /// What has been kept back.
    kept: BytesMut,
}

impl<L: Listener> Watched<L> {
    /// `stream`, to whom `listener` listens from now on.
    pub(super) fn listen(stream: Stream, listener: L) -> Stream {
        Box::new(Watched { stream, listener, other: None, kept: BytesMut::new() })
    }

    /// Keeps back what comes; ready when the client has left.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.kept.len() < KEPT {
            let mut space = [0; 1024];
            let mut piece = ReadBuf::new(&mut space);
            ready!(Pin::new(&mut self.stream).poll_read(cx, &mut piece))?;
            if piece.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            self.kept.extend_from_slice(piece.filled());
        }
        Poll::Pending
    }

    /// Sends what goes in place of something else.
    fn poll_other(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some((bytes, sent)) = &mut self.other {
            if *sent == bytes.len() {
                self.other = None;
                break;
            }
            *sent += match ready!(Pin::new(&mut self.stream).poll_write(cx, &bytes[*sent..]))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                n => n,
            };
        }
        Poll::Ready(Ok(()))
    }
}

impl Watched<()> {
    /// `stream`, from which `early` was read before.
    pub(super) fn begun(stream: Stream, early: BytesMut) -> Stream {
        Box::new(Watched { stream, listener: (), other: None, kept: early })
    }
}

impl<L: Listener> AsyncRead for Watched<L> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.listener.keeps_back() {
            return this.poll_end(cx);
        }
        let before = buf.filled().len();
        if !this.kept.is_empty() {
            let given = this.kept.split_to(this.kept.len().min(buf.remaining()).min(this.listener.most()));
            buf.put_slice(&given);
            this.listener.came(&given);
            return Poll::Ready(Ok(()));
        }
        let most = this.listener.most();
        let read = if most < buf.remaining() {
            Pin::new(&mut (&mut this.stream).take(most as u64)).poll_read(cx, buf)
        } else {
            Pin::new(&mut this.stream).poll_read(cx, buf)
        };
        match read {
            Poll::Ready(done) => {
                this.listener.came(&buf.filled()[before..]);
                Poll::Ready(done)
            }
            Poll::Pending if this.listener.is_overdue(cx) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<L: Listener> AsyncWrite for Watched<L> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.other.is_none() {
            match this.listener.in_place_of(bytes) {
                None => return Pin::new(&mut this.stream).poll_write(cx, bytes),
                Some(other) => this.other = Some((other, 0)),
            }
        }
        this.poll_other(cx).map_ok(|()| bytes.len())
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let first = parts.iter().find(|part| !part.is_empty()).map_or(&[][..], |part| part);
        if this.other.is_none() {
            match this.listener.in_place_of(first) {
                None => return Pin::new(&mut this.stream).poll_write_vectored(cx, parts),
                Some(other) => this.other = Some((other, 0)),
            }
        }
        this.poll_other(cx).map_ok(|()| first.len())
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_other(cx))?;
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

// === what Pingora asks of a connection ===

#[async_trait]
impl<L: Listener> Shutdown for Watched<L> {
    async fn shutdown(&mut self) {
        Shutdown::shutdown(&mut *self.stream).await;
    }
}

#[async_trait]
impl<L: Listener> Peek for Watched<L> {
    async fn try_peek(&mut self, buf: &mut [u8]) -> io::Result<bool> {
        self.stream.try_peek(buf).await
    }
}

impl<L> UniqueID for Watched<L> {
    fn id(&self) -> UniqueIDType {
        self.stream.id()
    }
}

impl<L> Ssl for Watched<L> {
    fn get_ssl_digest(&self) -> Option<Arc<SslDigest>> {
        self.stream.get_ssl_digest()
    }

    fn selected_alpn_proto(&self) -> Option<ALPN> {
        self.stream.selected_alpn_proto()
    }
}

impl<L> GetTimingDigest for Watched<L> {
    fn get_timing_digest(&self) -> Vec<Option<TimingDigest>> {
        self.stream.get_timing_digest()
    }

    fn get_read_pending_time(&self) -> Duration {
        self.stream.get_read_pending_time()
    }

    fn get_write_pending_time(&self) -> Duration {
        self.stream.get_write_pending_time()
    }
}

impl<L> GetProxyDigest for Watched<L> {
    fn get_proxy_digest(&self) -> Option<Arc<ProxyDigest>> {
        self.stream.get_proxy_digest()
    }

    fn set_proxy_digest(&mut self, digest: ProxyDigest) {
        self.stream.set_proxy_digest(digest);
    }
}

impl<L> GetSocketDigest for Watched<L> {
    fn get_socket_digest(&self) -> Option<Arc<SocketDigest>> {
        self.stream.get_socket_digest()
    }

    fn set_socket_digest(&mut self, digest: SocketDigest) {
        self.stream.set_socket_digest(digest);
    }
}
