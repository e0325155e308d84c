//! `usage: ask_and_hide`: engines are asked how many tokens a stream took where the client did not ask, and the event that
//! tells is taken out before the client sees it. What else an engine says otherwise when it is asked stays, as `"usage":null`
//! in all other events of some.
//!
//! The question stands in the body as long as nobody refuses it. An engine that does (400 or 422) is asked once more
//! without it, before the client hears of that: if it then answers well, the question was to blame, and its model is not
//! asked for a while. So what is a client's own mistake is refused twice; the second attempt goes in the room of the first
//! one, so that nothing but the engine's own word comes of it. An answer that comes compressed is left alone, so engines are
//! told not to compress where they are asked.

use super::Proxy;
use super::context::Context;
use super::rank::RankField;
use crate::api::encoding::Coding;
use crate::api::usage::{Hider, Question};
use crate::fleet::gate::Permit;
use crate::policy::retry::Verdict;
use crate::telemetry::checks::Asked;
use bytes::Bytes;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, HeaderName, HeaderValue, TRANSFER_ENCODING};
use http::{StatusCode, Version};
use parking_lot::Mutex;
use pingora_error::{Error, ErrorType, Result};
use pingora_http::{RequestHeader, ResponseHeader};
use pingora_proxy::Session;
use std::time::{Duration, Instant};
use xxhash_rust::xxh3::xxh3_64;

/// How long a model is not asked after its engine has refused to be.
const REFUSED_FOR: Duration = Duration::from_secs(3600);
/// Models of which that is remembered.
const MOST: usize = 64;

/// Whether usage is asked for in the client's place.
#[derive(Debug, Default)]
pub(super) enum Asking {
    /// It is not.
    #[default]
    No,
    /// The question stands in the body.
    Asked(Question),
    /// It was refused: the attempt ends, and is made again without it, in the room that it had.
    TakingBack(Option<Permit>),
    /// It was refused, and the attempt goes without it.
    TakenBack(Option<Permit>),
}

/// The models whose engines refuse the question, and since when.
#[derive(Debug, Default)]
pub(super) struct Refusals(Mutex<Vec<(u64, Instant)>>);

impl Refusals {
    fn has(&self, model: u64, now: Instant) -> bool {
        let known = self.0.lock();
        known.iter().any(|(other, since)| *other == model && now.duration_since(*since) < REFUSED_FOR)
    }

    fn add(&self, model: u64, now: Instant) {
        let mut known = self.0.lock();
        known.retain(|(other, since)| *other != model && now.duration_since(*since) < REFUSED_FOR);
        if known.len() >= MOST {
            known.remove(0);
        }
        known.push((model, now));
    }
}

fn model_of(ctx: &Context) -> u64 {
    xxh3_64(ctx.prompt.model.as_deref().unwrap_or_default().as_bytes())
}

impl Asking {
    /// Whether the attempt that has just ended is made again without the question.
    pub(super) fn goes_on(&mut self) -> bool {
        match self {
            Asking::TakingBack(room) => {
                *self = Asking::TakenBack(room.take());
                true
            }
            _ => false,
        }
    }

    /// The room that the attempt without the question has.
    pub(super) fn kept_room(&mut self) -> Option<Permit> {
        match self {
            Asking::TakenBack(room) => room.take(),
            _ => None,
        }
    }
}

impl Proxy {
    /// The body with the question, where it is to be asked.
    pub(super) fn ask_usage(&self, question: Option<Question>, body: &[u8], ctx: &mut Context) -> Option<Bytes> {
        ctx.asking = Asking::No;
        let question = question.filter(|_| !self.refusals.has(model_of(ctx), Instant::now()))?;
        ctx.asking = Asking::Asked(question);
        Some(question.ask(body))
    }

    /// Takes the question back if it may be what the engine refuses: then the same engine is asked without it.
    pub(super) fn take_back(&self, status: StatusCode, ctx: &mut Context) -> Result<()> {
        match &ctx.asking {
            Asking::Asked(question) if matches!(status.as_u16(), 400 | 422) => {
                // a body in which it is not found again is the engine's to judge
                let Some(without) = ctx.body.held().and_then(|body| question.take_back(body)) else { return Ok(()) };
                ctx.body.edit(|_| without);
                // what was written behind it has moved
                ctx.rank_field = RankField::default();
                if let Some(route) = &mut ctx.route {
                    route.verdict = Verdict::Again;
                }
                let room = ctx.attempt.take().and_then(|attempt| attempt.reservation.into_permit());
                ctx.asking = Asking::TakingBack(room);
                let mut e = Error::explain(ErrorType::HTTPStatus(status.as_u16()), "asked again without a question");
                e.as_in();
                Err(e)
            }
            Asking::TakenBack(_) if status.is_success() => {
                self.refusals.add(model_of(ctx), Instant::now());
                self.metrics.usage_asked(Asked::Refused);
                ctx.asking = Asking::No;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// What the client gets of a piece.
    pub(super) fn hide(&self, piece: &mut Option<Bytes>, end: bool, ctx: &mut Context) {
        let Some(hider) = &mut ctx.relay.hider else { return };
        if let Some(bytes) = piece.take() {
            *piece = Some(hider.push(bytes));
        }
        if end {
            let left = hider.finish();
            if !left.is_empty() {
                *piece = Some(Bytes::from([&piece.take().unwrap_or_default()[..], &left].concat()));
            }
            self.metrics.usage_asked(if hider.hidden() > 0 { Asked::Hidden } else { Asked::Unanswered });
            ctx.relay.hider = None;
        }
        // an empty piece could be taken for the end
        *piece = piece.take().filter(|piece| !piece.is_empty());
    }
}

/// An engine that is asked must answer so that the answer can be found.
pub(super) fn coding(request: &RequestHeader, ctx: &Context) -> Option<(HeaderName, Option<HeaderValue>)> {
    let is_asked = matches!(ctx.asking, Asking::Asked(_)) && request.headers.contains_key(ACCEPT_ENCODING);
    is_asked.then(|| (ACCEPT_ENCODING, Some(HeaderValue::from_static("identity"))))
}

/// The head of a stream: whether something will be taken out of what follows. Its length is then not known.
pub(super) fn begin(session: &Session, response: &mut ResponseHeader, ctx: &mut Context) -> Result<()> {
    let is_coded = || {
        let codings = response.headers.get_all(CONTENT_ENCODING).iter().map(HeaderValue::as_bytes);
        // identity is none
        !matches!(Coding::of(codings), Ok(None))
    };
    if !matches!(ctx.asking, Asking::Asked(_)) || !ctx.relay.good || !ctx.relay.stream || is_coded() {
        return Ok(());
    }
    ctx.relay.hider = Some(Hider::default());
    if response.remove_header(&CONTENT_LENGTH).is_some() && session.req_header().version == Version::HTTP_11 {
        response.insert_header(TRANSFER_ENCODING, "chunked")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_remembered_for_a_while_and_few_of_them() {
        let (refusals, now) = (Refusals::default(), Instant::now());
        refusals.add(7, now);
        assert!(refusals.has(7, now) && !refusals.has(8, now));
        assert!(!refusals.has(7, now + REFUSED_FOR));
        for model in 0..1000 {
            refusals.add(model, now);
        }
        assert!(refusals.0.lock().len() == MOST && refusals.has(999, now) && !refusals.has(7, now));
    }
}
