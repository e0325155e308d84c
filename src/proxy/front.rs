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
use std::time::Duration;

/// How long a new connection may say nothing; the same as Pingora's limit on a head.
const FIRST_BYTES: Duration = Duration::from_secs(60);
/// How an HTTP/2 preface begins.
const PREFACE: &[u8; 3] = b"PRI";
/// HTTP/2 upload windows: with the protocol's default of 64 KiB a long prompt waits for a round trip per 64 KiB.
const H2_STREAM_WINDOW: u32 = 4 << 20;
const H2_CONNECTION_WINDOW: u32 = 16 << 20;

/// The application behind the API listeners.
pub struct Front {
    http1: Arc<HttpProxy<Proxy>>,
    http2: Arc<HttpProxy<Proxy>>,
}

impl Front {
    /// Serves `proxy` in both versions.
    pub fn new(proxy: &Proxy, conf: &Arc<ServerConf>) -> Self {
        let mut http2 = http_proxy(conf, proxy.clone());
        let mut options = HttpServerOptions::default();
        options.h2c = true;
        http2.server_options = Some(options);
        let mut h2 = default_h2_options();
        h2.initial_window_size(H2_STREAM_WINDOW).initial_connection_window_size(H2_CONNECTION_WINDOW);
        http2.h2_options = Some(h2);
        Front { http1: Arc::new(http_proxy(conf, proxy.clone())), http2: Arc::new(http2) }
    }
}

#[async_trait]
impl ServerApp for Front {
    async fn process_new(self: &Arc<Self>, mut stream: Stream, shutdown: &ShutdownWatch) -> Option<Stream> {
        let mut first = [0; PREFACE.len()];
        let peeked = tokio::time::timeout(FIRST_BYTES, stream.try_peek(&mut first)).await;
        match peeked.ok()?.ok()? {
            true if first == *PREFACE => self.http2.process_new(stream, shutdown).await,
            _ => self.http1.process_new(stream, shutdown).await,
        }
    }

    async fn cleanup(&self) {
        tokio::join!(ServerApp::cleanup(&*self.http1), ServerApp::cleanup(&*self.http2));
    }
}
