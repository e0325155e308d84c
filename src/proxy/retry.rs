//! What becomes of a request whose attempt failed: the facts for `policy::retry`, and its verdict in Pingora's terms.

use super::Proxy;
use super::body::content_length;
use super::context::Context;
use super::identity::UNIDENTIFIED;
use super::relay::{UNFINISHED, is_final};
use crate::api::endpoint;
use crate::engine::discovery::look_again;
use crate::policy::retry::{Failure, Progress, Verdict, verdict};
use bytes::Bytes;
use http::header::{CONTENT_LENGTH, RETRY_AFTER, TRANSFER_ENCODING};
use pingora_error::{Error, ErrorSource, ErrorType, Result};
use pingora_http::{RequestHeader, ResponseHeader};
use pingora_proxy::Session;
use std::time::Duration;

/// A kept connection that fails sooner than this was closed by the engine before it saw the request; later, the engine
/// was at work on it.
const STALE_WITHIN: Duration = Duration::from_millis(250);

/// What Pingora says, of nobody's fault, where its half that talks to the engine has ended before the other one could hand it
/// the body: the connection was dead when it was taken.
const ENDED_BEFORE: &str = "reserving body pipe";

impl Proxy {
    pub(super) fn on_connect_failed(&self, session: &Session, ctx: &mut Context, mut e: Box<Error>) -> Box<Error> {
        let failure = match e.etype() {
            ErrorType::ConnectTimedout => Failure::ConnectTimeout,
            // Pingora's word for no socket and no port
            ErrorType::InternalError => Failure::NoSocket,
            _ => Failure::Connect,
        };
        if failure == Failure::NoSocket {
            log::error!("no connection to an engine can be made, for want of sockets or ports: {e}");
        } else if let Some(attempt) = &ctx.attempt {
            look_again(attempt.reservation.replica().clone(), failure == Failure::ConnectTimeout);
        }
        let again = self.after(failure, true, session, ctx);
        e.set_retry(again);
        e
    }

    pub(super) fn on_attempt_failed(
        &self,
        session: &Session,
        ctx: &mut Context,
        mut e: Box<Error>,
        reused: bool,
    ) -> Box<Error> {
        // undecided until now: asking such an error whether to retry panics
        e.retry.decide_reuse(reused);
        let again = match failure_of(&e, ctx, reused) {
            Some(failure) => {
                let unsent = is_unsent(&e, session, ctx);
                self.after(failure, unsent, session, ctx)
            }
            None => {
                ctx.attempt = None;
                ctx.asking.goes_on()
            }
        };
        e.set_retry(again);
        e
    }

    /// Turns 502 and 503 from an engine's front into a failed attempt, unless the engine says when to come back or
    /// nobody else is left to ask: then the engine's own answer goes to the client.
    pub(super) fn on_upstream_head(
        &self,
        session: &Session,
        response: &ResponseHeader,
        ctx: &mut Context,
    ) -> Result<()> {
        self.take_back(response.status, ctx)?;
        self.answered(response.status, ctx);
        // asked here, of the engine's own words: to the client Pingora says that what has no framing comes in chunks
        ctx.relay.unframed =
            !response.headers.contains_key(CONTENT_LENGTH) && !response.headers.contains_key(TRANSFER_ENCODING);
        let status = response.status.as_u16();
        if status == 404 && ctx.endpoint.is_inference() {
            self.doubt_models();
        }
        // 503 says busy as often as broken; which, the probes tell
        let is_bad = matches!(status, 500 | 502 | 504);
        if is_bad {
            self.ended(Some(Failure::BadGateway), ctx);
        }
        if !matches!(status, 502 | 503) || response.headers.contains_key(RETRY_AFTER) {
            if is_bad {
                self.metrics.answered_badly(ctx.endpoint);
            }
            return Ok(());
        }
        if self.verdict(Failure::BadGateway, false, session, ctx) == Verdict::GiveUp {
            self.metrics.attempt_failed(ctx.endpoint, Failure::BadGateway);
            return Ok(());
        }
        let mut e = Error::explain(ErrorType::HTTPStatus(status), "the engine's front refused");
        e.as_up();
        e.set_retry(true);
        Err(e)
    }

    /// Books a failed attempt: its guards go, its kind is counted. Whether another one follows. `unsent` if the request
    /// could not be written to its end.
    fn after(&self, failure: Failure, unsent: bool, session: &Session, ctx: &mut Context) -> bool {
        // first: an engine that must say who it is before it is asked again is not asked again
        self.doubt(failure, ctx);
        let verdict = self.verdict(failure, unsent, session, ctx);
        self.metrics.attempt_failed(ctx.endpoint, failure);
        // a bad gateway was reported when its head came, a dead idle connection says nothing of the engine
        if !matches!(failure, Failure::BadGateway | Failure::StaleConnection) {
            self.ended(Some(failure), ctx);
        }
        if matches!(failure, Failure::Lost | Failure::StaleConnection | Failure::Connect) {
            self.cut_off(failure == Failure::Lost, ctx);
        }
        ctx.attempt = None;
        ctx.failure = Some(failure);
        if let Some(route) = &mut ctx.route {
            route.verdict = verdict;
        }
        verdict != Verdict::GiveUp
    }

    pub(super) fn verdict(&self, failure: Failure, unsent: bool, session: &Session, ctx: &Context) -> Verdict {
        let Some(route) = &ctx.route else { return Verdict::GiveUp };
        // what one replica keeps, another one does not know: its word for that would hide the failure. But where nobody
        // listens any more, not to know is the truth
        let failed = route.decision.ranked.at(route.position).map(|r| r.id);
        let may_move = ctx.prompt.pinned.is_none_or(|keeper| Some(keeper) != failed) || failure.is_connect();
        let progress = Progress {
            attempts: route.attempts,
            renewed: route.renewed,
            candidates_left: may_move && route.position + 1 < route.decision.ranked.len(),
            answered: has_answered(session),
            replayable: ctx.body.held().is_some() || !session.as_ref().retry_buffer_truncated(),
            repeatable: is_repeatable(session.req_header(), ctx),
            unsent,
        };
        verdict(failure, progress, ctx.terms.settings.retry)
    }
}

/// Whether a repetition costs work and no more.
pub(super) fn is_repeatable(request: &RequestHeader, ctx: &Context) -> bool {
    ctx.is_repeatable() || request.method.is_idempotent() || endpoint::only_listens_or_speaks(request.uri.path())
}

/// Whether the request could not be written to its end, as far as that is known.
fn is_unsent(e: &Error, session: &Session, ctx: &Context) -> bool {
    let whole = ctx.body.held().map(Bytes::len).or_else(|| content_length(session.req_header()));
    let sent = ctx.body_sent.or_else(|| session.upstream_body_bytes_sent());
    let is_short = |(whole, sent)| sent < whole;
    *e.etype() == ErrorType::WriteError || whole.zip(sent).is_some_and(is_short)
}

/// Whether any byte of an answer went to the client; `100 Continue` is none.
pub(super) fn has_answered(session: &Session) -> bool {
    session.response_written().is_some_and(|r| is_final(r.status))
}

/// What failed, if it was the engine's side.
fn failure_of(e: &Error, ctx: &Context, reused: bool) -> Option<Failure> {
    let ended_before = || e.context.as_ref().is_some_and(|said| said.as_str() == ENDED_BEFORE);
    if *e.esource() != ErrorSource::Upstream && !ended_before() {
        return None;
    }
    let early = ctx.attempt.as_ref().is_some_and(|a| a.began.elapsed() < STALE_WITHIN);
    Some(match e.etype() {
        ErrorType::Custom(UNIDENTIFIED) => Failure::Unidentified,
        ErrorType::HTTPStatus(_) => Failure::BadGateway,
        ErrorType::ReadTimedout | ErrorType::WriteTimedout => Failure::Timeout,
        // booked when the stream stopped
        ErrorType::Custom(UNFINISHED) => return None,
        // it answered, in words that are not HTTP
        ErrorType::InvalidHTTPHeader => Failure::Unreadable,
        _ if reused && early => Failure::StaleConnection,
        _ => Failure::Lost,
    })
}
