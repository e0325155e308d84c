//! The admin listener: a second Pingora service, so that its socket is handed over on an upgrade like the first.
//!
//! Metrics and liveness are open to whoever reaches the listener. It listens on loopback unless told otherwise; what
//! changes anything asks who is there (`access.rs`).

mod access;
mod drain;

pub use access::Access;

use crate::fleet::{Fleet, FleetHealth};
use crate::telemetry::metrics::Metrics;
use access::Permit;
use async_trait::async_trait;
use bytes::Bytes;
use drain::Order;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, WWW_AUTHENTICATE};
use pingora_core::apps::{HttpPersistentSettings, HttpServerApp, ReusedHttpStream};
use pingora_core::protocols::http::ServerSession;
use pingora_core::server::ShutdownWatch;
use pingora_error::Result;
use pingora_http::{RequestHeader, ResponseHeader};
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
    access: Access,
}

struct Answer {
    status: u16,
    kind: &'static str,
    body: Vec<u8>,
}

impl Admin {
    /// An admin listener over `fleet` and `metrics`; `draining` is set when the process has begun to go away.
    pub fn new(fleet: Arc<Fleet>, metrics: Arc<Metrics>, draining: Arc<AtomicBool>, access: Access) -> Self {
        Admin { fleet, metrics, draining, access }
    }

    /// What changes something.
    fn order(&self, order: &Order, request: &RequestHeader) -> Answer {
        match self.access.check(request) {
            Permit::Unauthorized => return plain(401, "the admin token is missing or wrong"),
            Permit::Forbidden => return plain(403, "not from here: set admin.token_env or admin.token_file"),
            Permit::Granted => {}
        }
        if request.method != http::Method::POST {
            return plain(405, "only POST is allowed here");
        }
        let Some(replica) = order.apply(&self.fleet) else { return plain(404, "there is no such replica") };
        let (state, inflight) = (replica.state().label(), replica.inflight());
        let body = format!("{{\"replica\":{},\"state\":\"{state}\",\"inflight\":{inflight}}}\n", replica.id);
        Answer { status: 200, kind: "application/json", body: body.into_bytes() }
    }

    fn answer(&self, method: &str, path: &str) -> Answer {
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
            _ => plain(404, "not found; here are /metrics, /livez, /readyz and /api/replicas/NAME/drain"),
        }
    }

    async fn serve(&self, session: &mut ServerSession) -> Result<()> {
        let head = session.req_header();
        let answer = match Order::of(head.uri.path()) {
            Some(order) => self.order(&order, head),
            None => self.answer(head.method.as_str(), head.uri.path()),
        };
        let is_head = head.method == http::Method::HEAD;
        if head.method != http::Method::GET && !is_head {
            // a body may follow, which nobody reads
            session.set_keepalive(None);
        }
        let mut response = ResponseHeader::build(answer.status, Some(2))?;
        response.insert_header(CONTENT_TYPE, answer.kind)?;
        response.insert_header(CONTENT_LENGTH, answer.body.len())?;
        if answer.status == 401 {
            response.insert_header(WWW_AUTHENTICATE, "Bearer realm=\"ramjet admin\"")?;
        }
        session.write_response_header(Box::new(response)).await?;
        if !is_head {
            session.write_response_body(Bytes::from(answer.body), true).await?;
        }
        Ok(())
    }
}

fn plain(status: u16, text: &str) -> Answer {
    Answer { status, kind: "text/plain", body: format!("{text}\n").into_bytes() }
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
