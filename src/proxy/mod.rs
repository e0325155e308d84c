//! The data path: the only place that names pingora-proxy. One file per phase of a request; this one wires them.
//!
//! | phase | file | what happens |
//! |---|---|---|
//! | a new connection | `front.rs`, `heads.rs`, `wire.rs`, `course.rs` | HTTP/1 or HTTP/2; how long a head may take, and what is said of one that cannot be read |
//! | `request_filter` | `request.rs`, `auth.rs`, `cors.rs`, `models.rs`, `body.rs`, `memory.rs`, `prepare.rs` | own endpoints and refusals; the body is read and fingerprinted |
//! | `proxy_upstream_filter` | `exchange.rs`, `line.rs`, `pool.rs`, `answer.rs`, `chunks.rs` | what was read whole goes to its engine, and the answer back; the phases below are gone through there, those of Pingora's that name an upstream are for the rest |
//! | `upstream_peer`, `upstream_request_filter` | `peer.rs`, `queue.rs`, `address.rs`, `rank.rs`, `upgrade.rs` | a replica is chosen and reserved, or waited for; the request is addressed to it |
//! | `connected_to_upstream` | `identity.rs` | a new connection is used only if it leads to the engine it is for |
//! | `fail_to_connect`, `error_while_proxy`, `upstream_response_filter` | `retry.rs` | a failed attempt goes on or ends |
//! | `response_filter`, `response_body_filter` | `relay.rs`, `usage.rs`, `headers.rs`, `redirect.rs` | the answer passes; it is read beside |
//! | how an attempt ended | `signals.rs` | what it says of the replica's health |
//! | `fail_to_proxy` | `respond.rs` | ramjet's own errors |
//! | `logging` | `finish.rs`, `explain.rs`, `trace.rs` | counters, the access line, what came of the decision, and the trace |
//!
//! **Architecture invariant:** everything that is counted is held by a guard in the [`Context`] and given back when
//! that is dropped, whatever the way out. `logging` counts, it releases nothing.

mod address;
mod answer;
mod auth;
mod body;
mod chunks;
mod context;
mod cors;
mod course;
mod exchange;
mod explain;
mod finish;
mod framing;
mod front;
mod headers;
mod heads;
mod identity;
mod line;
mod memory;
mod models;
mod peer;
mod pool;
mod prepare;
mod presence;
mod queue;
mod rank;
mod redirect;
mod relay;
mod request;
mod respond;
mod retry;
mod signals;
mod trace;
mod upgrade;
mod usage;
mod wire;

pub use auth::ClientKeys;
pub use context::Context;
pub use cors::Cors;
pub use front::Front;
pub use peer::keepalive;
pub use prepare::{PromptShape, prepare};
pub use queue::PriorityRules;

use crate::api::compat::Compat;
use crate::api::model::Aliases;
use crate::engine::search::ModelSearch;
use crate::fleet::router::Router;
use crate::policy::retry::Limits as RetryLimits;
use crate::telemetry::decisions::Decisions;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::traces::collector::Tracer;
use crate::telemetry::trunks::Trunks;
use arc_swap::ArcSwap;
use async_trait::async_trait;
use bytes::Bytes;
use http::HeaderName;
use memory::BodyMemory;
use pingora_core::modules::http::HttpModules;
use pingora_core::protocols::Digest;
use pingora_core::upstreams::peer::HttpPeer;
use pingora_error::{Error, Result};
use pingora_http::{RequestHeader, ResponseHeader};
use pingora_proxy::{FailToProxy, ProxyHttp, ProxyWarnLogContext, Session};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

/// How long each phase of a request may take.
#[derive(Clone, Copy, Debug)]
pub struct Phases {
    /// To open a connection to a replica.
    pub connect: Duration,
    /// Silence of an engine, before and during its answer.
    pub silence: Duration,
    /// The same where an answer is not streamed.
    pub first_byte: Duration,
    /// From the beginning of a connection to the end of its first head, and between two heads besides the idle time.
    pub client_header: Duration,
    /// Silence of a client that is sending a body.
    pub client_body: Duration,
    /// A client's not reading of its answer.
    pub client_write: Duration,
    /// How long an idle connection to a replica is kept.
    pub pool_idle: Duration,
    /// Idle time before TCP keepalive probes.
    pub tcp_keepalive: Duration,
}

/// What the proxy needs to be told.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How prompts become fingerprints.
    pub shape: PromptShape,
    /// Headers that name a session, the first one counts.
    pub session_headers: Arc<[HeaderName]>,
    /// The largest body.
    pub max_body: usize,
    /// The most bytes of all bodies together that are held.
    pub body_memory: usize,
    /// How long a request may wait for room.
    pub queue_wait: Duration,
    /// Which requests go first when not all can.
    pub priority: PriorityRules,
    /// What is changed in requests.
    pub compat: Compat,
    /// Whether a reservation shrinks at the first generated token.
    pub phase_aware: bool,
    /// How often and when an attempt is repeated.
    pub retry: RetryLimits,
    /// Time limits.
    pub phases: Phases,
    /// Whether each request leaves an access line.
    pub access_log: bool,
}

/// What is asked of clients, and what they see of models.
#[derive(Default)]
pub struct ClientRules {
    /// The keys of which they need one; `None`: none is needed.
    pub keys: Option<ClientKeys>,
    /// The origins that are answered here; `None`: that is the engines' business.
    pub cors: Option<Cors>,
    /// Other names for models.
    pub aliases: Aliases,
    /// Looks for models that nobody is known to serve.
    pub search: Option<Arc<ModelSearch>>,
    /// Tokens by which the context lengths of models are shown shorter than they are.
    pub context_margin: u64,
}

/// What requests go by. Each keeps those that it began with.
pub struct Terms {
    /// How they are served.
    pub settings: Settings,
    /// What is asked of their clients.
    pub rules: ClientRules,
}

/// The proxy service; copies share everything.
#[derive(Clone)]
pub struct Proxy {
    router: Arc<Router>,
    metrics: Arc<Metrics>,
    decisions: Arc<Decisions>,
    terms: Arc<ArcSwap<Terms>>,
    memory: Arc<BodyMemory>,
    /// Set when the process has begun to go away.
    draining: Arc<AtomicBool>,
    ids: Arc<RequestIds>,
    trunks: Arc<Trunks>,
    tracer: Arc<Tracer>,
    refusals: Arc<usage::Refusals>,
    engines: Arc<exchange::Engines>,
}

/// Request ids: unlike between processes, cheap within one.
struct RequestIds {
    seed: u64,
    next: AtomicU64,
}

impl Proxy {
    /// A proxy that chooses with `router`, under `terms` that may be swapped, and counts and tells what it does; `seed` makes its request ids differ from those of other processes, and
    /// `draining` tells it when its process has begun to go away.
    pub fn new(
        router: Arc<Router>,
        (metrics, decisions): (Arc<Metrics>, Arc<Decisions>),
        terms: Arc<ArcSwap<Terms>>,
        draining: Arc<AtomicBool>,
        seed: u64,
    ) -> Self {
        let ids = Arc::new(RequestIds { seed, next: AtomicU64::new(0) });
        let (memory, trunks, refusals) = Default::default();
        let tracer = Arc::new(Tracer::off(metrics.clone()));
        let engines = Arc::default();
        Proxy { router, metrics, decisions, terms, memory, draining, ids, trunks, tracer, refusals, engines }
    }

    /// The same, which tells `trunks` which beginnings prompts have, and `tracer` what requests did.
    #[must_use]
    pub fn watched(self, trunks: Arc<Trunks>, tracer: Arc<Tracer>) -> Self {
        Proxy { trunks, tracer, ..self }
    }
}

#[async_trait]
impl ProxyHttp for Proxy {
    /// Where it was made: Pingora moves it twice, and keeps room for both moves for as long as the request takes.
    type CTX = Box<Context>;

    fn new_ctx(&self) -> Self::CTX {
        course::request_begins();
        let (members, terms) = (self.router.fleet().members(), self.terms.load_full());
        Box::new(Context::new(self.ids.next(), self.metrics.enter(), members, terms))
    }

    /// None. What Pingora puts here by itself compresses answers, and is switched off, but is made and asked for each request.
    fn init_downstream_modules(&self, _: &mut HttpModules) {}

    async fn request_filter(&self, session: &mut Session, ctx: &mut Self::CTX) -> Result<bool> {
        self.on_request(session, ctx).await
    }

    async fn proxy_upstream_filter(&self, session: &mut Session, ctx: &mut Self::CTX) -> Result<bool> {
        Ok(!self.exchange(session, ctx).await?)
    }

    async fn upstream_peer(&self, session: &mut Session, ctx: &mut Self::CTX) -> Result<Box<HttpPeer>> {
        self.choose_peer(session, ctx).await
    }

    async fn upstream_request_filter(
        &self,
        _session: &mut Session,
        request: &mut RequestHeader,
        ctx: &mut Self::CTX,
    ) -> Result<()> {
        self.address_request(request, ctx)
    }

    async fn request_body_filter(
        &self,
        session: &mut Session,
        piece: &mut Option<Bytes>,
        end_of_stream: bool,
        ctx: &mut Self::CTX,
    ) -> Result<()> {
        // what a client says in another protocol is no body, and has no limit
        if !session.was_upgraded() {
            self.weigh(piece.as_ref(), ctx)?;
        }
        // Pingora writes an empty last piece as the end of a chunked body, and then the end once more: the engine would
        // take the second one for the beginning of another request
        if end_of_stream && piece.as_ref().is_some_and(Bytes::is_empty) {
            *piece = None;
        }
        Ok(())
    }

    async fn connected_to_upstream(
        &self,
        _session: &mut Session,
        reused: bool,
        _peer: &HttpPeer,
        _connection: RawFd,
        _digest: Option<&Digest>,
        ctx: &mut Self::CTX,
    ) -> Result<()> {
        identity::leads_to_its_engine(reused, ctx)
    }

    fn fail_to_connect(&self, session: &mut Session, _: &HttpPeer, ctx: &mut Self::CTX, e: Box<Error>) -> Box<Error> {
        self.on_connect_failed(session, ctx, e)
    }

    fn error_while_proxy(
        &self,
        _peer: &HttpPeer,
        session: &mut Session,
        e: Box<Error>,
        ctx: &mut Self::CTX,
        reused: bool,
    ) -> Box<Error> {
        self.on_attempt_failed(session, ctx, e, reused)
    }

    async fn upstream_response_filter(
        &self,
        session: &mut Session,
        response: &mut ResponseHeader,
        ctx: &mut Self::CTX,
    ) -> Result<()> {
        framing::settle(response)?;
        self.on_upstream_head(session, response, ctx)
    }

    async fn response_filter(
        &self,
        session: &mut Session,
        response: &mut ResponseHeader,
        ctx: &mut Self::CTX,
    ) -> Result<()> {
        relay::on_head(session, response, ctx)
    }

    fn response_body_filter(
        &self,
        _session: &mut Session,
        piece: &mut Option<Bytes>,
        end_of_stream: bool,
        ctx: &mut Self::CTX,
    ) -> Result<Option<Duration>> {
        self.on_piece(piece.as_ref(), end_of_stream, ctx)?;
        self.hide(piece, end_of_stream, ctx);
        Ok(None)
    }

    async fn fail_to_proxy(&self, session: &mut Session, e: &Error, ctx: &mut Self::CTX) -> FailToProxy {
        respond::failure(session, e, ctx).await
    }

    async fn logging(&self, session: &mut Session, e: Option<&Error>, ctx: &mut Self::CTX) {
        let (outcome, word) = self.on_end(session, e, ctx);
        self.end_trace(ctx, &outcome, word);
    }

    /// The access line and the metrics tell what became of a request; a client that leaves is no error of ours.
    fn suppress_error_log(&self, _session: &Session, _ctx: &Self::CTX, _error: &Error) -> bool {
        true
    }

    fn suppress_proxy_warn_log(&self, _: &Session, _: &Self::CTX, _: &Error, _: ProxyWarnLogContext) -> bool {
        true
    }
}
