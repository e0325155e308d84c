//! `request_filter`: ramjet's own endpoints, then the body, then what it says.

use super::body::{Body, BodyFailure, INVALID_CHUNK, ReadLimits, content_length, read, unburden};
use super::context::{Context, PromptFacts};
use super::cors::is_preflight;
use super::course::request_is_whole;
use super::framing::is_plain;
use super::headers::{decline_upgrade, wants_websocket};
use super::models::form_of;
use super::prepare::{prepare, session_key};
use super::usage::Asking;
use super::{Phases, Proxy, Terms, respond};
use crate::api::encoding::{Coding, Unread};
use crate::api::endpoint::{Endpoint, kept};
use crate::api::errors::ErrorKind;
use crate::api::model::Form;
use crate::policy::queue::Shed;
use crate::types::ReplicaId;
use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_ENCODING};
use http::{HeaderName, HeaderValue, Method, Version};
use pingora_error::{Error, ErrorType, Result};
use pingora_http::RequestHeader;
use pingora_proxy::Session;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::sync::Semaphore;

/// How long an idle client connection is kept; Pingora's default is for ever.
pub(super) const CLIENT_IDLE: Duration = Duration::from_secs(75);
const REQUEST_ID_NAME: &str = "x-request-id";
static REQUEST_ID: HeaderName = HeaderName::from_static(REQUEST_ID_NAME);
/// How many bodies are decoded at one time.
static DECODERS: Semaphore = Semaphore::const_new(4);

impl Proxy {
    /// Whether the request was answered here.
    pub(super) async fn on_request(&self, session: &mut Session, ctx: &mut Context) -> Result<bool> {
        let terms = ctx.terms.clone();
        let Terms { settings, rules } = &*terms;
        self.keep_connection(session);
        limit_silence(session, &settings.phases);
        let head = session.req_header();
        ctx.endpoint = Endpoint::of(head.method.as_str(), head.uri.path());
        if let Some(kind) = unfit(head) {
            return refuse(ctx, kind);
        }
        if let Some(cors) = &rules.cors {
            ctx.permission = cors.permission(head);
            if is_preflight(head) {
                respond::preflight(session, ctx).await?;
                return Ok(true);
            }
        }
        if ctx.endpoint == Endpoint::Health {
            respond::health(session, self.router.fleet(), self.draining.load(Relaxed), ctx).await?;
            return Ok(true);
        }
        self.begin_trace(session, ctx);
        let head = session.req_header();
        // whether a page may ask is the engine's to say where it is not ramjet's; browsers send no key with the question
        let is_question = rules.cors.is_none() && is_preflight(head) && session.is_body_empty();
        if let Some(keys) = &rules.keys {
            ctx.key = keys.admit(session.req_header_mut());
            if ctx.key.is_none() && !is_question {
                return refuse(ctx, ErrorKind::Unauthorized);
            }
        }
        ctx.priority = settings.priority.take(session.req_header_mut());
        if self.show_models(session, ctx).await? {
            return Ok(true);
        }
        let may_be_read = session.req_header().method != Method::HEAD;
        if may_be_read && ctx.endpoint.is_read() || self.must_know_model(session.req_header(), rules) {
            self.read_prompt(session, ctx).await?;
        } else if let Some(length) = content_length(session.req_header()) {
            ctx.prompt.body_bytes = length as u64;
            if length > settings.max_body {
                return refuse(ctx, ErrorKind::BodyTooLarge);
            }
        }
        if wants_websocket(session.req_header()) {
            let named = Self::model_of_upgrade(session.req_header_mut(), rules)?;
            ctx.prompt.model = named.filter(|model| self.router.fleet().serves(model));
        }
        if !wants_websocket(session.req_header()) && session.downstream_session.is_body_done() {
            request_is_whole();
        }
        let head = session.req_header();
        if let Some(id) = kept(head.method.as_str(), head.uri.path()) {
            ctx.prompt.pinned = self.holder(id.as_bytes(), ctx);
        }
        name_request(session, ctx).map(|()| false)
    }

    /// A body that streams through has no announced length: it is weighed as it passes.
    pub(super) fn weigh(&self, piece: Option<&Bytes>, ctx: &mut Context) -> Result<()> {
        if let (Body::Untouched, Some(piece)) = (&ctx.body, piece) {
            ctx.streamed = ctx.streamed.saturating_add(piece.len());
            if ctx.streamed > ctx.terms.settings.max_body {
                return refuse(ctx, ErrorKind::BodyTooLarge);
            }
        }
        Ok(())
    }

    /// Whether the connection outlives the request, and what may come on it meanwhile.
    fn keep_connection(&self, session: &mut Session) {
        match session.get_keepalive() {
            // Pingora looks at the first field of this name, and they are one list
            Some(_) if closes(session.req_header()) => session.set_keepalive(None),
            // a process that is going away lets its clients go between two requests, not in one
            Some(_) if self.draining.load(Relaxed) => session.set_keepalive(None),
            Some(_) => session.set_keepalive(Some(CLIENT_IDLE.as_secs())),
            None => {}
        }
        // a next request, or a stray line end, that arrives during an answer waits for its turn
        session.downstream_session.set_pipelining_enabled(true);
    }

    async fn read_prompt(&self, session: &mut Session, ctx: &mut Context) -> Result<()> {
        let settings = &ctx.terms.settings;
        let limits = ReadLimits { bytes: settings.max_body, patience: settings.phases.client_body };
        let room = ctx.room.insert(self.memory.room(settings.body_memory));
        ctx.body = match read(session, limits, room).await {
            Ok(body) => body,
            Err(BodyFailure::Broken(e)) if is_malformed(&e) => return refuse(ctx, ErrorKind::BadRequest),
            Err(BodyFailure::Broken(e)) => return Err(e),
            Err(BodyFailure::NoRoom) => return self.turn_away(ctx, Shed::NoMemory),
            Err(failure) => {
                let kind = match failure {
                    BodyFailure::TooLarge => ErrorKind::BodyTooLarge,
                    _ => ErrorKind::BodyTimeout,
                };
                return refuse(ctx, kind);
            }
        };
        let values = session.req_header().headers.get_all(CONTENT_ENCODING).iter();
        match Coding::of(values.map(HeaderValue::as_bytes)) {
            Ok(Some(coding)) => self.read_encoded(session, coding, ctx).await?,
            Err(_unknown) => ctx.prompt.body_bytes = ctx.body.held().map_or(0, |body| body.len() as u64),
            Ok(None) => {
                let head = session.req_header();
                Self::resolve_alias(head, ctx);
                if let Some(edited) = ctx.body.held().cloned().and_then(|body| self.understand(head, &body, ctx)) {
                    ctx.body = Body::Held(edited);
                }
            }
        }
        if ctx.prompt.streams {
            unburden(session, &ctx.body).await?;
        }
        let named = session_name(session.req_header(), ctx).filter(|_| ctx.endpoint.is_inference());
        ctx.prompt.hint = named.or(ctx.prompt.hint);
        self.find_model(ctx).await
    }

    /// A body that came compressed is read decoded and goes on as it came, with one exception: an alias must be
    /// replaced, or no engine knows the model, so that body goes on as plain JSON, and all rules apply to it.
    async fn read_encoded(&self, session: &mut Session, coding: Coding, ctx: &mut Context) -> Result<()> {
        let Some(body) = ctx.body.held().cloned() else { return Ok(()) };
        ctx.prompt.body_bytes = body.len() as u64;
        // held until the decoded text is gone: what is decoded at one time is bounded
        let Ok(_turn) = DECODERS.acquire().await else { return Ok(()) };
        let limit = ctx.terms.settings.max_body;
        let decoded = tokio::task::spawn_blocking(move || coding.decode(&body, limit)).await;
        let plain = match decoded {
            Ok(Ok(plain)) => Bytes::from(plain),
            Ok(Err(Unread::TooLarge)) => return refuse(ctx, ErrorKind::BodyTooLarge),
            _ => return Ok(()),
        };
        let head = session.req_header();
        match Self::without_alias(head, &plain, ctx) {
            Some(named) => {
                // it is held as it was decoded from now on
                if ctx.room.as_mut().is_some_and(|room| !room.grow(named.len())) {
                    return self.turn_away(ctx, Shed::NoMemory);
                }
                ctx.body = Body::Held(self.understand(head, &named, ctx).unwrap_or(named));
                session.req_header_mut().remove_header(&CONTENT_ENCODING);
            }
            None => {
                drop(self.understand(head, &plain, ctx));
                // nothing is written into what goes on as it came
                ctx.asking = Asking::No;
            }
        }
        Ok(())
    }

    /// Takes from a body what routing goes by; the body to send in its place, where a rule applies.
    fn understand(&self, head: &RequestHeader, bytes: &Bytes, ctx: &mut Context) -> Option<Bytes> {
        let prepared = prepare(ctx.endpoint, bytes, &ctx.terms.settings.shape, ctx.terms.settings.compat);
        ctx.prompt = PromptFacts {
            request: ctx.prompt.request,
            chain: prepared.chain,
            ends: prepared.ends,
            model: prepared.model,
            body_bytes: bytes.len() as u64,
            prompt_bytes: prepared.prompt_bytes,
            hint: prepared.hint,
            anchor: prepared.anchor,
            streams: prepared.streams,
            is_single: prepared.is_single,
            is_stateless: prepared.is_stateless,
            pinned: prepared.names.and_then(|id| self.holder(&id, ctx)),
        };
        if ctx.prompt.model.is_none()
            && let Some(form @ Form::Multipart(_)) = form_of(head)
        {
            ctx.prompt.model = form.model(bytes).map(|named| named.name);
        }
        self.ask_usage(prepared.question, prepared.edited.as_ref().unwrap_or(bytes), ctx).or(prepared.edited)
    }

    /// The replica that gave out an id.
    fn holder(&self, id: &[u8], ctx: &Context) -> Option<ReplicaId> {
        let holder = self.router.fleet().pins().holder(id, ctx.terms.settings.shape.secret)?;
        self.metrics.pinned();
        Some(holder)
    }
}

/// Gives a request the id that ramjet knows it by, unless the client has given it one. Here, as Pingora has room for some
/// fields more in what has come than in what it sends.
fn name_request(session: &mut Session, ctx: &Context) -> Result<()> {
    if session.req_header().headers.get(&REQUEST_ID).is_some_and(|id| !id.is_empty()) {
        return Ok(());
    }
    session.req_header_mut().insert_header(REQUEST_ID_NAME, &ctx.id)
}

/// Why a request is none that any engine should see. With TRACE it would show to the client what it got: the replica's key.
fn unfit(head: &RequestHeader) -> Option<ErrorKind> {
    match head.method {
        _ if !is_plain(&head.headers) => Some(ErrorKind::BadRequest),
        Method::TRACE => Some(ErrorKind::MethodNotAllowed),
        _ => None,
    }
}

/// How long the client may be silent while it sends, and not read while it is sent something.
fn limit_silence(session: &mut Session, phases: &Phases) {
    let is_websocket = wants_websocket(session.req_header());
    if !is_websocket {
        decline_upgrade(session.req_header_mut());
    }
    // a WebSocket ends when its engine has been silent for as long as any engine may; its client may listen only
    let silence = Some(phases.client_body).filter(|_| !is_websocket);
    let is_old = session.req_header().version < Version::HTTP_11;
    let connection = &mut session.downstream_session;
    connection.set_read_timeout(silence);
    connection.set_write_timeout(Some(phases.client_write));
    // informational answers came with HTTP/1.1; a client of HTTP/1.0 would take one for the answer
    connection.set_ignore_info_resp(is_old);
}

/// What the client calls its session in a header: more of a session's name than a key in the body, which may stand
/// for many.
fn session_name(head: &RequestHeader, ctx: &Context) -> Option<u64> {
    let value = |name| head.headers.get(name).filter(|value| !value.is_empty());
    ctx.terms.settings.session_headers.iter().find_map(value).map(|value| session_key(value.as_bytes()))
}

/// Whether what came was no body, as opposed to a client that left.
fn is_malformed(e: &Error) -> bool {
    matches!(e.etype(), ErrorType::Custom(INVALID_CHUNK) | ErrorType::InvalidHTTPHeader)
}

/// Ends the request with an error of ramjet's own.
pub(super) fn refuse<T>(ctx: &mut Context, kind: ErrorKind) -> Result<T> {
    ctx.own_error = Some(kind);
    Error::e_explain(ErrorType::HTTPStatus(kind.status()), kind.code())
}

/// Whether a client wants its connection closed after the answer.
fn closes(request: &RequestHeader) -> bool {
    let fields = request.headers.get_all(CONNECTION).iter();
    fields
        .flat_map(|field| field.as_bytes().split(|b| *b == b','))
        .any(|item| item.trim_ascii().eq_ignore_ascii_case(b"close"))
}
