//! The answer on its way to the client: bytes pass untouched, and are read beside for the first generated token, the
//! end and the usage.

use super::Proxy;
use super::context::Context;
use super::explain;
use super::framing::suit_version;
use super::headers::drop_hop_by_hop;
use super::redirect::hide_address;
use super::usage;
use crate::api::answer::{Made, StreamReader, StreamState, Usage, WholeReader};
use crate::api::decoder::Decoder;
use crate::api::encoding::Coding;
use crate::api::endpoint::Endpoint;
use crate::api::usage::Hider;
use crate::fleet::pins::id_key;
use crate::fleet::reservation::Reported;
use crate::policy::retry::Failure;
use crate::prefix::residency::Served;
use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderValue, StatusCode, Version};
use pingora_error::{Error, ErrorType, Result};
use pingora_http::{RequestHeader, ResponseHeader};
use pingora_proxy::Session;
use std::borrow::Cow;
use std::time::{Duration, Instant};

/// What is known of the answer.
#[derive(Default)]
pub(super) struct Relay {
    reader: Reader,
    /// Reads what comes compressed.
    decoder: Option<Decoder>,
    /// Takes out what the client did not ask for.
    pub(super) hider: Option<Hider>,
    pub(super) usage: Usage,
    /// The engine answered with a success status.
    pub(super) good: bool,
    pub(super) stream: bool,
    /// When the first generated token passed, for streams.
    pub(super) first_token: Option<Instant>,
    /// The stream ended, or reported an error, without being finished.
    pub(super) broken: bool,
    /// Nothing but the end of the engine's connection says where the answer ends, and an engine that dies ends it as well.
    pub(super) unframed: bool,
}

/// What Pingora is told of a stream without framing that stops before its end. To the client it must not end as if it were
/// whole: in chunks, which the engine did not send, the end is a word of ours.
pub(super) const UNFINISHED: &str = "unfinished";

#[derive(Default)]
enum Reader {
    /// Not an inference answer, or one that cannot be read.
    #[default]
    None,
    Stream(Box<StreamReader>),
    Whole(WholeReader),
}

/// `response_filter`: the head of the answer, final or informational.
pub(super) fn on_head(session: &mut Session, response: &mut ResponseHeader, ctx: &mut Context) -> Result<()> {
    if !is_final(response.status) {
        return Ok(());
    }
    ctx.relay.good = response.status.is_success();
    let kind = response.headers.get(CONTENT_TYPE).map_or(&b""[..], |v| v.as_bytes());
    ctx.relay.stream = kind.starts_with(b"text/event-stream");
    usage::begin(session, response, ctx)?;
    if response.status != StatusCode::SWITCHING_PROTOCOLS {
        drop_hop_by_hop(response);
        let version = session.req_header().version;
        suit_version(response, version);
        if version < Version::HTTP_11 && !response.headers.contains_key(CONTENT_LENGTH) {
            session.set_keepalive(None);
        }
    }
    ctx.permission.apply(response)?;
    // the answer begins: the body can no longer be replayed
    ctx.body.release();
    ctx.room = None;
    response.insert_header("x-ramjet-request-id", &ctx.id)?;
    if let Some(attempt) = &ctx.attempt {
        response.insert_header("x-ramjet-upstream", attempt.reservation.replica().id.index())?;
        hide_address(response, &attempt.reservation.replica().spec)?;
    }
    response.remove_header(&explain::TOLD);
    if let Some(told) = explain::header(session, ctx) {
        response.insert_header(explain::TOLD, told)?;
    }
    if ctx.relay.good && (ctx.endpoint.is_inference() || tells_ids(session.req_header(), response, ctx.endpoint)) {
        ctx.relay.read(response, ctx.endpoint, ctx.prompt.is_stateless);
    }
    if let (false, Some(attempt)) = (matches!(ctx.relay.reader, Reader::Stream(_)), &mut ctx.attempt) {
        attempt.reservation.shows_no_token();
    }
    Ok(())
}

/// What a piece says, where the answer is compressed. One that is not what its coding says, or expands beyond reason, is
/// read no further.
fn plain<'a>(piece: &'a [u8], ctx: &mut Context) -> Cow<'a, [u8]> {
    match ctx.relay.decoder.as_mut().map(|decoder| decoder.push(piece)) {
        None => Cow::Borrowed(piece),
        Some(Ok(plain)) => Cow::Owned(plain),
        Some(Err(why)) => {
            log::debug!("request {}: its answer cannot be decoded: {why:?}", ctx.id);
            ctx.relay.decoder = None;
            ctx.relay.reader = Reader::None;
            if let Some(attempt) = &mut ctx.attempt {
                attempt.reservation.shows_no_token();
            }
            Cow::Borrowed(&[])
        }
    }
}

/// Whether an answer describes a file or a batch; the content of a file describes nothing, though it may look alike.
fn tells_ids(request: &RequestHeader, response: &ResponseHeader, endpoint: Endpoint) -> bool {
    let is_json = response.headers.get(CONTENT_TYPE).is_some_and(|v| v.as_bytes().starts_with(b"application/json"));
    let is_content = request.uri.path().trim_end_matches('/').ends_with("/content");
    endpoint.names_kept() && is_json && !is_content
}

/// Whether a head is the answer: not an interim one, but the switch to another protocol is.
pub(super) fn is_final(status: StatusCode) -> bool {
    !status.is_informational() || status == StatusCode::SWITCHING_PROTOCOLS
}

impl Proxy {
    /// What the events of a stream have shown so far. Whether it has stopped before its end.
    fn on_events(&self, state: StreamState, end: bool, ctx: &mut Context) -> bool {
        ctx.relay.usage = state.usage;
        if state.progressed && !state.failed {
            self.heard(ctx);
        }
        if state.generated && ctx.relay.first_token.is_none() {
            ctx.relay.first_token = Some(Instant::now());
            self.prefill_done(ctx);
        }
        if end && !state.generated && state.finished && !state.failed {
            // an empty answer: the prompt was read all the same
            self.prefill_done(ctx);
        }
        let broken = state.failed || (end && !state.finished);
        if broken && !std::mem::replace(&mut ctx.relay.broken, broken) && !state.refused {
            self.metrics.attempt_failed(ctx.endpoint, Failure::BrokenStream);
            self.ended(Some(Failure::BrokenStream), ctx);
            if ctx.relay.unframed && !state.failed && !state.foreign {
                // that is how a lost connection looks there
                self.cut_off(true, ctx);
            }
        }
        end && !state.finished && !state.failed && !state.foreign
    }

    /// `response_body_filter`: one piece of the answer. Fails where the answer must not come to its end.
    pub(super) fn on_piece(&self, piece: Option<&Bytes>, end: bool, ctx: &mut Context) -> Result<()> {
        let mut stopped = false;
        let piece = piece.map_or(&[][..], |p| p);
        let came = !piece.is_empty();
        let piece = &*plain(piece, ctx);
        match &mut ctx.relay.reader {
            Reader::Stream(reader) => {
                let (state, id) = (reader.push(piece), reader.take_id());
                self.remember(id, ctx);
                stopped = self.on_events(state, end, ctx);
            }
            Reader::Whole(reader) => {
                reader.push(piece);
                if end {
                    ctx.relay.usage = reader.usage();
                    let ids = reader.ids();
                    self.remember(ids, ctx);
                }
                if came {
                    self.heard(ctx);
                }
                // an answer that is not streamed begins when all of it was generated
                self.prefill_done(ctx);
            }
            Reader::None if ctx.relay.good => {
                if came && ctx.endpoint.is_inference() {
                    // in a coding that cannot be read: what it is cannot be told
                    self.heard(ctx);
                }
                if end {
                    self.prefill_done(ctx);
                }
            }
            Reader::None => {}
        }
        if end {
            self.learn(ctx);
            if ctx.relay.good && !ctx.relay.broken {
                self.ended(None, ctx);
            }
            // the engine is done, however slowly the client takes the rest
            ctx.attempt = None;
        }
        if stopped && ctx.relay.unframed {
            return Err(Error::new(ErrorType::Custom(UNFINISHED)).into_up());
        }
        Ok(())
    }

    /// An answer has told the ids of what its replica keeps.
    fn remember(&self, ids: impl IntoIterator<Item = Vec<u8>>, ctx: &Context) {
        let Some(attempt) = &ctx.attempt else { return };
        for id in ids {
            let key = id_key(&id, ctx.terms.settings.shape.secret);
            self.router.fleet().pin(key, attempt.reservation.replica().id);
        }
    }

    /// What a good answer tells of its replica and its model.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "tokens of a request fit a float and are not negative"
    )]
    fn learn(&self, ctx: &mut Context) {
        // several answers in one report several times what one takes
        let teaches = ctx.relay.good && !ctx.relay.broken && ctx.prompt.is_single;
        let (Some(attempt), true) = (&mut ctx.attempt, teaches) else { return };
        let Usage { prompt: Some(prompt), cached, completion, reasoning } = ctx.relay.usage else { return };
        let fleet = self.router.fleet();
        let _step = fleet.step();
        let model = ctx.prompt.model.as_deref();
        fleet.learn_model(model, ctx.prompt.prompt_bytes, prompt, completion);
        let [whole, made] = [prompt, completion.unwrap_or_default()].map(|n| n as f64);
        attempt.claim.answered(whole, made);
        if reasoning.is_some_and(|tokens| tokens > 0) {
            // it goes before the answer, and the next turn is without it
            attempt.claim.answered(whole, 0.0);
        }
        // without a word on the cache, what was new can only be told where nothing was known
        let told = cached.or((attempt.claim.belief().known == 0).then_some(0));
        attempt.reservation.learn(Reported { prompt, cached: told, output: completion });
        let Some(cached) = cached else { return };
        if let Some(chosen) = ctx.route.as_ref().and_then(|r| r.decision.ranked.at(r.position)) {
            self.metrics.predicted((chosen.held as u64).min(prompt));
        }
        attempt.claim.served(Served { prompt: whole, cached: cached as f64, output: made });
    }

    /// The engine has read the prompt: it holds it, and what is left to do is decoding.
    fn prefill_done(&self, ctx: &mut Context) {
        if let Some(attempt) = &mut ctx.attempt {
            let _step = self.router.fleet().step();
            // before it is told that the prompt is held: who comes in between would take it for one that is still to be read
            match ctx.relay.first_token {
                Some(_) => attempt.reservation.first_token(),
                None => attempt.reservation.is_done(),
            }
            attempt.claim.confirm();
            if ctx.terms.settings.phase_aware {
                attempt.reservation.shrink();
            }
        }
    }
}

impl Relay {
    /// Decides how a good answer is read; one in a coding that is not known is not.
    fn read(&mut self, response: &ResponseHeader, endpoint: Endpoint, is_stateless: bool) {
        let values = response.headers.get_all(CONTENT_ENCODING).iter().map(HeaderValue::as_bytes);
        let Ok(decoder) = Coding::of(values).and_then(|coding| coding.map(Decoder::new).transpose()) else { return };
        self.decoder = decoder;
        let is_kept = endpoint == Endpoint::Responses && !is_stateless;
        self.reader = match (self.stream, is_kept) {
            _ if endpoint.names_kept() => {
                Reader::Whole(WholeReader::with_ids(&["id", "output_file_id", "error_file_id"]))
            }
            (true, false) => Reader::Stream(Box::default()),
            (true, true) => Reader::Stream(Box::new(StreamReader::with_id())),
            (false, false) => Reader::Whole(WholeReader::default()),
            (false, true) => Reader::Whole(WholeReader::with_ids(&["id"])),
        };
    }

    /// Whether a whole answer says under a success status that it failed, or holds nothing; asked at its end.
    pub(super) fn made_nothing(&self) -> bool {
        matches!(&self.reader, Reader::Whole(reader) if reader.made() == Made::Nothing)
    }

    /// Whether anything was generated; of a whole answer that does not say that it made nothing, whether it could tell.
    pub(super) fn has_generated(&self) -> bool {
        match &self.reader {
            Reader::Stream(_) => self.first_token.is_some(),
            Reader::Whole(_) => true,
            Reader::None => false,
        }
    }

    /// Time from `started` to the first generated token.
    pub(super) fn ttft(&self, started: Instant) -> Option<Duration> {
        self.first_token.map(|at| at.duration_since(started))
    }
}
