//! The first bytes of a client's connection: HTTP/1 or HTTP/2, and how long a head may take.
//!
//! Pingora can tell the versions apart itself, but waits for the 24 bytes of an HTTP/2 preface to do so, without a time
//! limit: a connection that says nothing would stay for ever, and so would a short request. Three bytes are enough (no
//! method begins with `PRI`), and a connection that does not send them in time is closed.
//!
//! Pingora's limit on a head is one on each read of it, so a client that sends a byte now and then would hold its
//! connection for ever. The first head of a connection is therefore read here, as a whole, and handed to Pingora as bytes
//! that were read before. Of later ones Pingora may hold the beginning already, so they are read by Pingora, and the
//! connection is closed if their request has not begun in time. What is decided while Pingora reads is in `heads.rs`.

use super::body::LINGER;
use super::course::Course;
use super::heads::{HeadClock, Refusals, refusal};
use super::request::CLIENT_IDLE;
use super::wire::Watched;
use super::{Proxy, Terms};
use crate::api::errors::ErrorKind;
use arc_swap::ArcSwap;
use async_trait::async_trait;
use bytes::BytesMut;
use memchr::memchr_iter;
use pingora_core::apps::{HttpServerApp, HttpServerOptions, ReusedHttpStream, ServerApp};
use pingora_core::protocols::http::ServerSession;
use pingora_core::protocols::http::v1::server::HttpSession as SessionV1;
use pingora_core::protocols::http::v2::server::default_h2_options;
use pingora_core::protocols::{ALPN, Stream};
use pingora_core::server::ShutdownWatch;
use pingora_core::server::configuration::ServerConf;
use pingora_proxy::{HttpProxy, http_proxy};
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, timeout, timeout_at};

/// What is reserved for a head, and the longest that Pingora takes.
const HEAD: usize = 4 << 10;
pub(super) const LONGEST: usize = 1 << 20;
/// How an HTTP/2 preface begins, and how long it is.
const PREFACE: &[u8; 3] = b"PRI";
const PREFACE_LENGTH: usize = 24;
/// How long a connection that is to end may still bring a request. Shorter than a process stays that has no other.
const LAST_CALL: Duration = Duration::from_millis(500);
/// How long an HTTP/2 connection without a request is kept.
const H2_IDLE: Duration = Duration::from_secs(75);
/// HTTP/2 upload windows: with the protocol's default of 64 KiB a long prompt waits for a round trip per 64 KiB.
const H2_STREAM_WINDOW: u32 = 4 << 20;
const H2_CONNECTION_WINDOW: u32 = 16 << 20;

/// The application behind the API listeners.
pub struct Front {
    http1: Arc<HttpProxy<Proxy>>,
    http2: Arc<HttpProxy<Proxy>>,
    open_http2: Arc<AtomicUsize>,
    /// What ends idle HTTP/1 connections, where that is later than the end of the listeners. HTTP/2 ends in good order:
    /// its clients are told in advance.
    shutdown: Arc<OnceLock<ShutdownWatch>>,
    terms: Arc<ArcSwap<Terms>>,
}

impl Front {
    /// Serves `proxy` in both versions; `open_http2` counts the open HTTP/2 connections, `shutdown` ends idle HTTP/1 ones.
    pub fn new(
        proxy: &Proxy,
        conf: &Arc<ServerConf>,
        open_http2: Arc<AtomicUsize>,
        shutdown: Arc<OnceLock<ShutdownWatch>>,
    ) -> Self {
        let mut http2 = http_proxy(conf, proxy.clone());
        let mut options = HttpServerOptions::default();
        options.h2c = true;
        options.h2_idle_timeout = Some(H2_IDLE);
        http2.server_options = Some(options);
        let mut h2 = default_h2_options();
        h2.initial_window_size(H2_STREAM_WINDOW).initial_connection_window_size(H2_CONNECTION_WINDOW);
        http2.h2_options = Some(h2);
        let http1 = Arc::new(http_proxy(conf, proxy.clone()));
        Front { http1, http2: Arc::new(http2), open_http2, shutdown, terms: proxy.terms.clone() }
    }

    /// How long a head may take.
    fn patience(&self) -> Duration {
        self.terms.load().settings.phases.client_header
    }

    /// As Pingora does it, but for the time that heads may take.
    async fn serve_http1(&self, mut stream: Stream, deadline: Instant, shutdown: &ShutdownWatch) {
        let mut head = BytesMut::with_capacity(HEAD);
        if timeout_at(deadline, read_head(&mut stream, &mut head)).await.is_err() {
            return refuse(stream, ErrorKind::HeadTimeout, &head).await;
        }
        if head.len() > LONGEST {
            return refuse(stream, ErrorKind::HeadTooLarge, &head).await;
        }
        let course = Arc::new(Course::default());
        let mut first = SessionV1::new(Watched::listen(stream, Refusals::new(course.clone(), &head)));
        first.set_pipelined_prefix(head);
        let first = course.scope(self.http1.process_new_http(ServerSession::H1(first), shutdown));
        let mut next = first.await;
        while let Some((stream, settings)) = next.map(ReusedHttpStream::consume) {
            course.next();
            let stream = if *shutdown.borrow() { last_call(stream).await } else { stream };
            let mut session = ServerSession::new_http1(stream);
            if let Some(settings) = settings {
                settings.apply_to_session(&mut session);
            }
            let mut request = pin!(course.scope(self.http1.process_new_http(session, shutdown)));
            next = match timeout(CLIENT_IDLE + self.patience(), request.as_mut()).await {
                Ok(next) => next,
                Err(_) if course.has_begun() => request.await,
                Err(_) => None,
            };
        }
    }
}

#[async_trait]
impl ServerApp for Front {
    async fn process_new(self: &Arc<Self>, mut stream: Stream, shutdown: &ShutdownWatch) -> Option<Stream> {
        let deadline = Instant::now() + self.patience();
        let peeked = timeout_at(deadline, is_http2(&mut stream)).await;
        if peeked.ok()?? {
            let _open = OpenConnection::new(&self.open_http2);
            let watched = Watched::listen(stream, HeadClock::new(self.patience()));
            return self.http2.process_new(watched, shutdown).await;
        }
        self.serve_http1(stream, deadline, self.shutdown.get().unwrap_or(shutdown)).await;
        None
    }

    /// Ends idle connections: not when the listeners have ended, but when connections are to.
    async fn cleanup(&self) {
        if let Some(mut shutdown) = self.shutdown.get().cloned() {
            drop(shutdown.wait_for(|down| *down).await);
        }
        tokio::join!(ServerApp::cleanup(&*self.http1), ServerApp::cleanup(&*self.http2));
    }
}

/// The connection after an answer that began before connections were to end, and promised that this one stays: its next
/// request may be on the way, and Pingora would close at once.
async fn last_call(mut stream: Stream) -> Stream {
    let mut early = BytesMut::with_capacity(HEAD);
    match timeout(LAST_CALL, stream.read_buf(&mut early)).await {
        Ok(Ok(1..)) => Watched::begun(stream, early),
        _ => stream,
    }
}

/// Whether a connection begins with an HTTP/2 preface; `None` when it ends before that can be told.
async fn is_http2(stream: &mut Stream) -> Option<bool> {
    if stream.get_ssl_digest().is_some() {
        // settled in the handshake
        return Some(stream.selected_alpn_proto() == Some(ALPN::H2));
    }
    let mut first = [0; PREFACE.len()];
    let peeked = stream.try_peek(&mut first).await.ok()?;
    if !peeked || first != *PREFACE {
        return Some(false);
    }
    // Pingora will look at all of it, without a time limit: it must be there
    stream.try_peek(&mut [0; PREFACE_LENGTH]).await.ok()
}

/// Reads until a head is whole, or cannot become one: the connection has ended, or it is longer than Pingora takes.
async fn read_head(stream: &mut Stream, head: &mut BytesMut) {
    let mut searched = 0;
    while !ends(head, &mut searched) && head.len() <= LONGEST {
        if !matches!(stream.read_buf(head).await, Ok(1..)) {
            return;
        }
    }
}

/// Whether a head has its empty line; lines before the first one may be empty (RFC 9112, section 2.2). What was searched
/// is not searched again.
fn ends(head: &[u8], searched: &mut usize) -> bool {
    let start = head.iter().position(|c| !matches!(c, b'\r' | b'\n')).unwrap_or(head.len());
    let from = start.max(searched.saturating_sub(2));
    *searched = head.len();
    memchr_iter(b'\n', &head[from..]).any(|n| matches!(head[from + n + 1..], [b'\n', ..] | [b'\r', b'\n', ..]))
}

/// Ends a connection whose head cannot be served; one that has said nothing is told nothing.
async fn refuse(mut stream: Stream, kind: ErrorKind, head: &[u8]) {
    if !head.is_empty() {
        // it fits the socket's buffer; a client that has left misses nothing
        let _unsent = stream.write_all(&refusal(kind, head)).await;
        let _unsent = stream.flush().await;
    }
    if kind == ErrorKind::HeadTooLarge {
        // a connection that is closed with unread bytes is reset, and the client might not see the answer
        // not part of what each connection takes
        let mut rest = vec![0; HEAD];
        let discard = async { while let Ok(1..) = stream.read(&mut rest).await {} };
        let _given_up = timeout(LINGER, discard).await;
    }
    let _gone_already = stream.shutdown().await;
}

/// Counts an open HTTP/2 connection, whose last bytes may still be on their way when its last request has ended.
struct OpenConnection(Arc<AtomicUsize>);

impl OpenConnection {
    fn new(open: &Arc<AtomicUsize>) -> Self {
        open.fetch_add(1, Relaxed);
        OpenConnection(open.clone())
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_ends_with_its_empty_line_in_whatever_pieces_it_comes() {
        for (text, end) in [
            ("GET / HTTP/1.1\r\nhost: x\r\n\r\n", 27),
            ("GET / HTTP/1.1\nhost: x\n\nbody", 24),
            ("\r\n\r\nGET / HTTP/1.1\r\n\r\n", 22),
            ("GET / HTTP/1.1\r\nhost: x\r\n", usize::MAX),
            ("\r\n\r\n\r\n\n\n", usize::MAX),
            ("GET /\r\r\n", usize::MAX),
        ] {
            for step in 1..text.len() + 1 {
                let mut searched = 0;
                let sizes = (1..=text.len()).filter(|n| n % step == 0 || *n == text.len());
                let found = sizes.into_iter().find(|n| ends(&text.as_bytes()[..*n], &mut searched));
                let want = (1..=text.len()).find(|n| *n >= end && (n % step == 0 || *n == text.len()));
                assert_eq!(found, want, "{text:?} by {step}");
            }
        }
    }
}
