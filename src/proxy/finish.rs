//! `logging`: what is counted and written when a request has ended, well or not.

use super::Proxy;
use super::context::Context;
use super::respond::kind_of;
use crate::api::endpoint::Endpoint;
use crate::api::errors::ErrorKind;
use crate::fleet::replica::Replica;
use crate::telemetry::access::Access;
use crate::telemetry::metrics::Outcome;
use pingora_error::{Error, ErrorSource};
use pingora_proxy::Session;
use std::time::SystemTime;

/// What the counters say of a client that left before an answer began; nginx's word for it.
const CLIENT_LEFT: u16 = 499;

impl Proxy {
    /// Counts a request that has ended; its outcome, and that in one word.
    pub(super) fn on_end(&self, session: &Session, e: Option<&Error>, ctx: &Context) -> (Outcome, &'static str) {
        // one that did something wrong was told, and is there
        let told = e.filter(|e| *e.esource() == ErrorSource::Downstream).map(|e| kind_of(e, ctx));
        let (left, told) = (told == Some(None), ctx.own_error.or(told.flatten()));
        if left {
            self.metrics.client_left();
        }
        let outcome = outcome(session, ctx, left);
        let word = end_word(e, ctx, left, told);
        self.end_decision(session.req_header(), ctx, &outcome, word);
        self.metrics.ended(&outcome);
        if let Some(chain) = ctx.prompt.chain.as_ref().filter(|_| outcome.answered) {
            // without a session, a prompt is one of its own
            let session = ctx.prompt.session().map(|s| s.key).or_else(|| chain.last().copied()).unwrap_or_default();
            let now = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs());
            self.trunks.used(chain, session, now);
        }
        if let Some(key) = &ctx.key {
            self.metrics.key_used(key, &outcome);
        }
        if ctx.terms.settings.access_log && ctx.endpoint != Endpoint::Health {
            self.write_access_line(ctx, &outcome, word);
        }
        if let Some(e) = e {
            log::debug!("request {} failed: {e}", ctx.id);
        }
        (outcome, word)
    }

    fn write_access_line(&self, ctx: &Context, outcome: &Outcome, end: &str) {
        let decision = ctx.route.as_ref().map(|r| &r.decision);
        let tried = ctx.route.as_ref().and_then(|r| r.decision.ranked.at(r.position));
        let replica = tried.and_then(|r| self.router.fleet().replica(r.id));
        let since = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        let access = Access {
            id: &ctx.id,
            at_ms: u64::try_from(since.as_millis()).unwrap_or(u64::MAX),
            outcome,
            body_bytes: ctx.prompt.body_bytes,
            blocks: ctx.prompt.chain.as_ref().map_or(0, |c| c.len()),
            overlap: tried.map_or(0, |r| r.overlap),
            replica: replica.as_deref().map(Replica::name),
            attempts: ctx.attempts(),
            key: ctx.key.as_deref(),
            decision,
            end,
        };
        log::info!(target: "access", "{}", access.line());
    }
}

fn outcome(session: &Session, ctx: &Context, left: bool) -> Outcome {
    let sent = session.response_written().map_or(0, |r| r.status.as_u16());
    Outcome {
        endpoint: ctx.endpoint,
        status: if left && sent < 200 { CLIENT_LEFT } else { sent },
        stream: ctx.relay.stream,
        duration: ctx.started.elapsed(),
        ttft: ctx.relay.ttft(ctx.started),
        usage: ctx.relay.usage,
        answered: ctx.relay.good && !left && !ctx.relay.broken,
    }
}

fn end_word(e: Option<&Error>, ctx: &Context, left: bool, told: Option<ErrorKind>) -> &'static str {
    match (told, ctx.failure) {
        _ if left => "client_left",
        (Some(kind), _) => kind.code(),
        (None, Some(failure)) if e.is_some() => failure.label(),
        _ if ctx.relay.broken => "broken_stream",
        _ if e.is_some() => "internal",
        _ => "ok",
    }
}
