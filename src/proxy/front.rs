//! The first bytes of a client's connection: HTTP/1 or HTTP/2 in clear text.
//!
//! Pingora can tell them apart itself, but waits for the 24 bytes of an HTTP/2 preface to do so, without a time limit: a
//! connection that says nothing would stay for ever, and so would a short request. Three bytes are enough (no method
//! begins with `PRI`), and a connection that does not send them in time is closed.

use super::Proxy;
use async_trait::async_trait;
use pingora_core::apps::{HttpServerOptions, ServerApp};
use pingora_core::protocols::Stream;
use pingora_core::protocols::http::v2::server::default_h2_options;
use pingora_core::server::ShutdownWatch;
use pingora_core::server::configuration::ServerConf;
use pingora_proxy::{HttpProxy, http_proxy};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// How long a new connection may say nothing; the same as Pingora's limit on a head.
const FIRST_BYTES: Duration = Duration::from_secs(60);
/// How an HTTP/2 preface begins, and how long it is.
const PREFACE: &[u8; 3] = b"PRI";
const PREFACE_LENGTH: usize = 24;
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
}

impl Front {
    /// Serves `proxy` in both versions; `open_http2` counts the open HTTP/2 connections.
    pub fn new(proxy: &Proxy, conf: &Arc<ServerConf>, open_http2: Arc<AtomicUsize>) -> Self {
        let mut http2 = http_proxy(conf, proxy.clone());
        let mut options = HttpServerOptions::default();
        options.h2c = true;
        options.h2_idle_timeout = Some(H2_IDLE);
        http2.server_options = Some(options);
        let mut h2 = default_h2_options();
        h2.initial_window_size(H2_STREAM_WINDOW).initial_connection_window_size(H2_CONNECTION_WINDOW);
        http2.h2_options = Some(h2);
        Front { http1: Arc::new(http_proxy(conf, proxy.clone())), http2: Arc::new(http2), open_http2 }
    }
}

#[async_trait]
impl ServerApp for Front {
    async fn process_new(self: &Arc<Self>, mut stream: Stream, shutdown: &ShutdownWatch) -> Option<Stream> {
        let peeked = tokio::time::timeout(FIRST_BYTES, is_http2(&mut stream)).await;
        if peeked.ok()?? {
            let _open = OpenConnection::new(&self.open_http2);
            self.http2.process_new(stream, shutdown).await
        } else {
            self.http1.process_new(stream, shutdown).await
        }
    }

    async fn cleanup(&self) {
        tokio::join!(ServerApp::cleanup(&*self.http1), ServerApp::cleanup(&*self.http2));
    }
}

/// Whether a connection begins with an HTTP/2 preface; `None` when it ends before that can be told.
async fn is_http2(stream: &mut Stream) -> Option<bool> {
    let mut first = [0; PREFACE.len()];
    let peeked = stream.try_peek(&mut first).await.ok()?;
    if !peeked || first != *PREFACE {
        return Some(false);
    }
    // Pingora will look at all of it, without a time limit: it must be there
    stream.try_peek(&mut [0; PREFACE_LENGTH]).await.ok()
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
