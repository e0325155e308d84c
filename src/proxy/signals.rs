//! What a request says of its replica's health, besides being answered: that something is generated there, that it was
//! completed, or that it failed by the engine's fault.
//!
//! Only what generates speaks for or against what an engine generates. Every answer speaks for its being there, and every
//! failure to reach it against that. What a client did wrong (4xx) and what says busy (429, 503) are no failures, and a
//! client that leaves is neither good nor bad.

use super::Proxy;
use super::context::Context;
use super::relay::is_final;
use crate::policy::errors::Ended;
use crate::policy::retry::Failure;
use http::StatusCode;
use xxhash_rust::xxh3::xxh3_64_with_seed;

impl Proxy {
    /// Something was generated.
    pub(super) fn heard(&self, ctx: &Context) {
        if let Some(attempt) = &ctx.attempt {
            attempt.reservation.replica().hear(self.router.fleet().clock().now());
        }
    }

    /// The head of an answer has come. One for which nothing is generated tells right away what it can tell: that the
    /// engine is there, and that the time until then was no silence.
    pub(super) fn answered(&self, status: StatusCode, ctx: &mut Context) {
        let is_busy = matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
        let works = ctx.endpoint.is_inference() || ctx.endpoint.computes();
        if let Some(attempt) = ctx.attempt.as_ref().filter(|_| works && (is_busy || status.is_success())) {
            attempt.reservation.replica().answered(!is_busy, self.router.fleet().clock().now());
        }
        let generates = ctx.endpoint.is_inference() && status.is_success();
        let Some(attempt) = ctx.attempt.as_mut().filter(|_| !generates && is_final(status)) else { return };
        if status.is_server_error() {
            return;
        }
        attempt.reservation.is_answered();
        let id = attempt.reservation.replica().id;
        self.router.fleet().ended(id, Ended::Answered, attempt.reservation.began());
    }

    /// The current attempt has failed: who it was that answered before may no longer be there.
    pub(super) fn doubt(&self, failure: Failure, ctx: &Context) {
        if let Some(attempt) = ctx.attempt.as_ref().filter(|_| failure.may_be_a_restart()) {
            attempt.reservation.replica().doubt_identity(self.router.fleet().clock().now());
        }
    }

    /// An engine does not know what it was asked for: engines are asked for their models again, beside the request.
    pub(super) fn doubt_models(&self) {
        if let Some(search) = &self.terms.load().rules.search {
            search.begin();
        }
    }

    /// The connection to the engine was lost, and the answer with it if it `breaks`; else nothing had been sent. What has
    /// failed elsewhere before may itself be the cause, and breaks nothing.
    pub(super) fn cut_off(&self, breaks: bool, ctx: &Context) {
        let is_first = ctx.route.as_ref().is_none_or(|route| route.attempts <= 1);
        let breaks = breaks && is_first && ctx.endpoint.is_inference();
        if let Some(attempt) = &ctx.attempt {
            self.router.fleet().cut_off(attempt.reservation.replica().id, breaks, attempt.reservation.began());
        }
    }

    /// The current attempt has ended, with `failure` or well.
    pub(super) fn ended(&self, failure: Option<Failure>, ctx: &Context) {
        let Some(attempt) = ctx.attempt.as_ref().filter(|_| failure.is_none_or(Failure::is_the_replicas)) else {
            return;
        };
        let reached = failure.is_none_or(|f| !f.is_connect());
        if reached && !ctx.endpoint.is_inference() {
            return;
        }
        let (fleet, replica) = (self.router.fleet(), attempt.reservation.replica());
        let ended = match failure {
            None if ctx.relay.made_nothing() => Ended::Answered,
            None => Ended::Well,
            Some(_) if reached => Ended::Badly(Some(print(ctx))),
            Some(_) => Ended::Badly(None),
        };
        if ended == Ended::Well && ctx.relay.usage.completion != Some(0) && ctx.relay.has_generated() {
            replica.complete(fleet.clock().now());
        }
        if let Ended::Badly(Some(_)) = ended {
            let generated = ctx.relay.has_generated() || attempt.reservation.may_generate();
            fleet.set_back(ctx.prompt.ends, replica.id, generated);
        }
        fleet.ended(replica.id, ended, attempt.reservation.began());
    }
}

/// What tells this request from others, as far as an engine reads it: the same for a request that is sent again.
fn print(ctx: &Context) -> u64 {
    let prompt = &ctx.prompt;
    let last = prompt.chain.as_ref().and_then(|chain| chain.last().copied()).unwrap_or_default();
    [last, prompt.anchor.unwrap_or_default(), prompt.body_bytes]
        .iter()
        .fold(0, |seed, part| xxh3_64_with_seed(&part.to_le_bytes(), seed))
}
