//! The admin listener: a second Pingora service, so that its socket is handed over on an upgrade like the first.
//!
//! Metrics and liveness are open to whoever reaches it. The rest names replicas, or changes something: it is open on
//! loopback, where the listener is bound unless told otherwise, and asks for a token elsewhere.

mod access;
mod drain;
mod events;
mod explain;
mod fleet;
mod json;
mod page;
mod prompts;
mod reload;
mod series;
mod watch;
mod words;

pub use access::Access;
pub use reload::{Reloads, Report};
pub use watch::{Setting, Settings};

use crate::engine::speculation::SpeculationGuard;
use crate::fleet::{Fleet, FleetHealth};
use crate::telemetry::decisions::{Decisions, Record};
use crate::telemetry::metrics::Metrics;
use crate::telemetry::recorder::Seen;
use access::Permit;
use arc_swap::ArcSwap;
use async_trait::async_trait;
use bytes::Bytes;
use drain::Order;
use events::Viewers;
use http::header::{
    ACCEPT, ALLOW, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_SECURITY_POLICY, CONTENT_TYPE, WWW_AUTHENTICATE,
};
use pingora_core::apps::{HttpPersistentSettings, HttpServerApp, ReusedHttpStream};
use pingora_core::protocols::http::ServerSession;
use pingora_core::server::ShutdownWatch;
use pingora_error::Result;
use pingora_http::{RequestHeader, ResponseHeader};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::SystemTime;

/// Seconds that an idle scraper's connection is kept.
const KEEPALIVE: u64 = 75;
/// No page elsewhere may show, read or guess what is answered here, nor be told that it was asked for.
const FOR_BROWSERS: [(&str, &str); 4] = [
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-resource-policy", "same-origin"),
];
/// How long a connection may still begin a request when the listener closes.
const LAST_CALL: std::time::Duration = std::time::Duration::from_secs(1);
const PROMETHEUS_TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";
const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";
/// Decisions that are listed unless somebody asks for another number.
const LISTED: usize = 50;
/// What is here, for who lost the way.
const PLACES: &str = "not found; here are / (dashboard), /metrics, /livez, /readyz, and below /api/ fleet, decisions, explain/ID, prompts, \
     events, series, prefixes and config";

/// The application behind the admin listener.
pub struct Admin {
    fleet: Arc<Fleet>,
    metrics: Arc<Metrics>,
    decisions: Arc<Decisions>,
    draining: Arc<AtomicBool>,
    access: Arc<ArcSwap<Access>>,
    reloads: Option<Box<dyn Reloads>>,
    guard: Option<SpeculationGuard>,
    seen: Seen,
    settings: Option<Settings>,
    viewers: Viewers,
}

struct Answer {
    status: u16,
    kind: &'static str,
    body: Vec<u8>,
}

impl Answer {
    fn plain(status: u16, text: &str) -> Answer {
        Answer { status, kind: TEXT, body: format!("{text}\n").into_bytes() }
    }

    fn json(body: String) -> Answer {
        Answer { status: 200, kind: JSON, body: body.into_bytes() }
    }

    /// An error of the API, in the shape of all of ramjet's errors.
    fn error(status: u16, message: &str) -> Answer {
        let body = json::document(|o| o.object("error", Some(message), |o, message| o.text("message", message)));
        Answer { status, kind: JSON, body: body.into_bytes() }
    }
}

impl Admin {
    /// An admin listener over what the other parameters hold; `draining` is set when the process has begun to go away.
    pub fn new(
        fleet: Arc<Fleet>,
        (metrics, decisions): (Arc<Metrics>, Arc<Decisions>),
        draining: Arc<AtomicBool>,
        access: Arc<ArcSwap<Access>>,
    ) -> Self {
        let (reloads, guard, settings) = (None, None, None);
        let (seen, viewers) = (Seen::default(), Viewers::default());
        Admin { fleet, metrics, decisions, draining, access, reloads, guard, seen, settings, viewers }
    }

    /// The same, which shows what was seen and under which settings.
    #[must_use]
    pub fn showing(self, seen: Seen, settings: Settings) -> Self {
        Admin { seen, settings: Some(settings), ..self }
    }

    /// The same, where operators may end what `guard` began.
    #[must_use]
    pub fn guarded(self, guard: SpeculationGuard) -> Self {
        Admin { guard: Some(guard), ..self }
    }

    /// The same, with a configuration that can be read again.
    #[must_use]
    pub fn reloading(self, reloads: impl Reloads + 'static) -> Self {
        Admin { reloads: Some(Box::new(reloads)), ..self }
    }

    /// `/api/reload`.
    async fn reload(&self, request: &RequestHeader) -> Answer {
        match (self.refusal(request), &self.reloads) {
            (Some(refusal), _) => refusal,
            (None, Some(reloads)) if request.method == http::Method::POST => reloads.reload().await.answer(),
            (None, Some(_)) => Answer::error(405, "only POST is allowed here"),
            (None, None) => Answer::error(404, PLACES),
        }
    }

    /// What changes something.
    fn order(&self, order: &Order, request: &RequestHeader) -> Answer {
        if let Some(refusal) = self.refusal(request) {
            return refusal;
        }
        if request.method != http::Method::POST {
            return Answer::error(405, "only POST is allowed here");
        }
        let within = match order.within(request.uri.query()) {
            Ok(within) => within,
            Err(wrong) => return Answer::error(400, wrong),
        };
        let replica = match order.apply(&self.fleet, self.guard.as_ref(), within) {
            Ok(Some(replica)) => replica,
            Ok(None) => return Answer::error(404, "there is no such replica"),
            Err(e) => return Answer::error(500, &format!("this cannot be written down: {e}")),
        };
        Answer::json(fleet::after_order(&self.fleet, &replica))
    }

    fn answer(&self, head: &RequestHeader) -> Answer {
        if let Some(order) = Order::of(head.uri.path()) {
            return self.order(&order, head);
        }
        let is_read = matches!(head.method, http::Method::GET | http::Method::HEAD);
        match head.uri.path() {
            "/metrics" | "/livez" | "/readyz" if !is_read => Answer::plain(405, "only GET and HEAD are allowed here"),
            "/metrics" => self.show_metrics(),
            "/livez" => Answer::plain(200, "ok"),
            "/readyz" => self.readiness(),
            path => match (self.refusal(head), path.strip_prefix("/api/")) {
                (Some(refusal), _) => refusal,
                (None, Some(rest)) => self.api(head, rest, is_read),
                (None, None) => match page::file(path) {
                    Some(file) if is_read => file,
                    Some(_) => Answer::plain(405, "only GET and HEAD are allowed here"),
                    None => Answer::plain(404, PLACES),
                },
            },
        }
    }

    fn show_metrics(&self) -> Answer {
        self.metrics.remembered(&self.fleet, &self.decisions);
        match self.metrics.render(&self.fleet) {
            Ok(body) => Answer { status: 200, kind: PROMETHEUS_TEXT, body },
            Err(e) => Answer::plain(500, &e.to_string()),
        }
    }

    fn readiness(&self) -> Answer {
        match self.fleet.health() {
            _ if self.draining.load(Relaxed) => Answer::plain(503, "draining"),
            FleetHealth::Unhealthy => Answer::plain(503, "no replica is healthy"),
            _ => Answer::plain(200, "ok"),
        }
    }

    /// The answer to who may not see what is not open to all.
    fn refusal(&self, head: &RequestHeader) -> Option<Answer> {
        match self.access.load().check(head) {
            Permit::Granted => None,
            Permit::Unauthorized => Some(Answer::error(401, "the admin token is missing or wrong")),
            Permit::Forbidden => Some(Answer::error(403, "not from here: set admin.token_env or admin.token_file")),
        }
    }

    /// What stands below `/api/`; replicas are named here.
    fn api(&self, head: &RequestHeader, path: &str, is_read: bool) -> Answer {
        let (place, id) = path.split_once('/').unwrap_or((path, ""));
        match (place, id) {
            ("fleet" | "decisions" | "prompts", "") | ("explain", _) if !is_read => {
                Answer::error(405, "only GET is allowed here")
            }
            ("fleet", "") => Answer::json(fleet::all(&self.fleet, &self.metrics)),
            ("prompts", "") => match self.metrics.prompts(&self.fleet) {
                Ok(models) => Answer::json(prompts::all(&models, &self.decisions.linter.report())),
                Err(e) => Answer::error(500, &e.to_string()),
            },
            ("decisions", "") => {
                let limit = query(head, "limit").map_or(Ok(LISTED), str::parse);
                match limit {
                    Ok(limit) => Answer::json(explain::list(&self.decisions.latest(limit), &self.fleet.replicas())),
                    Err(_) => Answer::error(400, "limit is a whole number"),
                }
            }
            ("explain", id) => match self.find(id) {
                Some(record) if wants_text(head) => {
                    let text = words::page(&record, &self.fleet.replicas(), SystemTime::now());
                    Answer { status: 200, kind: TEXT, body: text.into_bytes() }
                }
                Some(record) => Answer::json(explain::one(&record, &self.fleet.replicas())),
                None => Answer::error(404, "no such request among the last decisions"),
            },
            (place, "") => self.watched(head, place).unwrap_or_else(|| Answer::error(404, PLACES)),
            _ => Answer::error(404, PLACES),
        }
    }

    fn find(&self, id: &str) -> Option<Record> {
        let is_id = id.len() == 16 && id.bytes().all(|b| b.is_ascii_hexdigit());
        self.decisions.find(u64::from_str_radix(id, 16).ok().filter(|_| is_id)?)
    }

    async fn serve(&self, session: &mut ServerSession, closes: &ShutdownWatch) -> Result<()> {
        let head = session.req_header();
        let answer = match head.uri.path() {
            "/api/reload" => self.reload(head).await,
            "/api/events" => match self.refusal(head) {
                Some(refusal) => refusal,
                None => match self.tell(session, closes).await? {
                    Some(answer) => answer,
                    None => return Ok(()),
                },
            },
            _ => self.answer(head),
        };
        let head = session.req_header();
        let is_head = head.method == http::Method::HEAD;
        let allowed = (answer.status == 405).then(|| allowed(head.uri.path()));
        if head.method != http::Method::GET && !is_head {
            // a body may follow, which nobody reads
            session.set_keepalive(None);
        }
        let mut response = ResponseHeader::build(answer.status, Some(8))?;
        response.insert_header(CONTENT_TYPE, answer.kind)?;
        response.insert_header(CONTENT_LENGTH, answer.body.len())?;
        response.insert_header(CACHE_CONTROL, "no-store")?;
        for (name, value) in FOR_BROWSERS {
            response.insert_header(name, value)?;
        }
        response.insert_header(CONTENT_SECURITY_POLICY, page::MAY)?;
        if let Some(methods) = allowed {
            response.insert_header(ALLOW, methods)?;
        }
        if answer.status == 401 {
            response.insert_header(WWW_AUTHENTICATE, "Bearer realm=\"ramjet admin\"")?;
            // a browser asks for a password, which is the token
            response.append_header(WWW_AUTHENTICATE, "Basic realm=\"ramjet admin\", charset=\"UTF-8\"")?;
        }
        session.write_response_header(Box::new(response)).await?;
        if !is_head {
            session.write_response_body(Bytes::from(answer.body), true).await?;
        }
        Ok(())
    }
}

/// The methods that a place takes.
fn allowed(path: &str) -> &'static str {
    match path {
        "/api/reload" => "POST",
        "/api/events" => "GET",
        path if Order::of(path).is_some() => "POST",
        _ => "GET, HEAD",
    }
}

/// The value of a member of the query.
fn query<'a>(head: &'a RequestHeader, name: &str) -> Option<&'a str> {
    let members = head.uri.query()?.split('&');
    members.filter_map(|member| member.split_once('=')).find_map(|(key, value)| (key == name).then_some(value))
}

/// Whether words are asked for instead of JSON.
fn wants_text(head: &RequestHeader) -> bool {
    head.headers.get(ACCEPT).is_some_and(|value| value.as_bytes().starts_with(b"text/plain"))
}

/// Whether a request comes. An idle connection goes soon after the listener: whoever asks next must reach the process
/// that serves then.
async fn next_request(session: &mut ServerSession, mut closes: ShutdownWatch) -> bool {
    let read = session.read_request();
    tokio::pin!(read);
    let closed = async { drop(closes.wait_for(|closes| *closes).await) };
    let read = tokio::select! {
        read = &mut read => Ok(read),
        () = closed => tokio::time::timeout(LAST_CALL, read).await,
    };
    matches!(read, Ok(Ok(true)))
}

#[async_trait]
impl HttpServerApp for Admin {
    async fn process_new_http(
        self: &Arc<Self>,
        mut session: ServerSession,
        shutdown: &ShutdownWatch,
    ) -> Option<ReusedHttpStream> {
        if !next_request(&mut session, shutdown.clone()).await {
            return None;
        }
        // a client that asked for an end, or whose version knows no other, gets it
        let keep = session.get_keepalive().is_some() && !*shutdown.borrow();
        session.set_keepalive(keep.then_some(KEEPALIVE));
        self.serve(&mut session, shutdown).await.ok()?;
        let keep = HttpPersistentSettings::for_session(&session);
        let stream = session.finish().await.ok().flatten()?;
        Some(ReusedHttpStream::from_reusable_stream(stream, keep))
    }
}
