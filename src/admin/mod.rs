//! The admin listener: a second Pingora service, so that its socket is handed over on an upgrade like the first.
//!
//! What stands here is open to whoever reaches the listener: metrics and liveness. It listens on loopback unless told
//! otherwise.

use crate::fleet::{Fleet, FleetHealth};
use crate::telemetry::metrics::Metrics;
use async_trait::async_trait;
use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use pingora_core::apps::{HttpPersistentSettings, HttpServerApp, ReusedHttpStream};
use pingora_core::protocols::http::ServerSession;
use pingora_core::server::ShutdownWatch;
use pingora_error::Result;
use pingora_http::ResponseHeader;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Seconds that an idle scraper's connection is kept.
const KEEPALIVE: u64 = 75;
const PROMETHEUS_TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The application behind the admin listener.
pub struct Admin {
    fleet: Arc<Fleet>,
    metrics: Arc<Metrics>,
    draining: Arc<AtomicBool>,
}

struct Answer {
    status: u16,
    kind: &'static str,
    body: Vec<u8>,
}

impl Admin {
    /// An admin listener over `fleet` and `metrics`; `draining` is set when the process has begun to go away.
    pub fn new(fleet: Arc<Fleet>, metrics: Arc<Metrics>, draining: Arc<AtomicBool>) -> Self {
        Admin { fleet, metrics, draining }
    }

    fn answer(&self, method: &str, path: &str) -> Answer {
        let plain = |status, text: &str| Answer { status, kind: "text/plain", body: format!("{text}\n").into_bytes() };
        match (method, path) {
            ("GET" | "HEAD", "/metrics") => match self.metrics.render(&self.fleet) {
                Ok(body) => Answer { status: 200, kind: PROMETHEUS_TEXT, body },
                Err(e) => plain(500, &e.to_string()),
            },
            ("GET" | "HEAD", "/livez") => plain(200, "ok"),
            ("GET" | "HEAD", "/readyz") if self.draining.load(Relaxed) => plain(503, "draining"),
            ("GET" | "HEAD", "/readyz") => match self.fleet.health() {
                FleetHealth::Unhealthy => plain(503, "no replica is healthy"),
                _ => plain(200, "ok"),
            },
            (_, "/metrics" | "/livez" | "/readyz") => plain(405, "only GET and HEAD are allowed here"),
            _ => plain(404, "not found; here are /metrics, /livez and /readyz"),
        }
    }

    async fn serve(&self, session: &mut ServerSession) -> Result<()> {
        let head = session.req_header();
        let answer = self.answer(head.method.as_str(), head.uri.path());
        let is_head = head.method == http::Method::HEAD;
        let mut response = ResponseHeader::build(answer.status, Some(2))?;
        response.insert_header(CONTENT_TYPE, answer.kind)?;
        response.insert_header(CONTENT_LENGTH, answer.body.len())?;
        session.write_response_header(Box::new(response)).await?;
        if !is_head {
            session.write_response_body(Bytes::from(answer.body), true).await?;
        }
        Ok(())
    }
}

#[async_trait]
impl HttpServerApp for Admin {
    async fn process_new_http(
        self: &Arc<Self>,
        mut session: ServerSession,
        shutdown: &ShutdownWatch,
    ) -> Option<ReusedHttpStream> {
        if !matches!(session.read_request().await, Ok(true)) {
            return None;
        }
        // a client that asked for an end, or whose version knows no other, gets it
        let keep = session.get_keepalive().is_some() && !*shutdown.borrow();
        session.set_keepalive(keep.then_some(KEEPALIVE));
        self.serve(&mut session).await.ok()?;
        let keep = HttpPersistentSettings::for_session(&session);
        let stream = session.finish().await.ok().flatten()?;
        Some(ReusedHttpStream::from_reusable_stream(stream, keep))
    }
}
