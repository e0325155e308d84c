//! What is told of a choice: to the ring of decisions for operators, and in a header to clients that ask for it. A client
//! learns numbers and closed words, never a replica's name.

use super::Proxy;
use super::context::Context;
use crate::fleet::replica::Fit;
use crate::fleet::steps::Ending;
use crate::policy::accounts::{Accounts, Facts, account, saved};
use crate::policy::lane::Gate;
use crate::telemetry::decisions::{Ended, Record, Subject, Ticket};
use crate::telemetry::metrics::Outcome;
use http::HeaderName;
use pingora_proxy::Session;
use std::fmt::Write;
use std::time::{Duration, SystemTime};

/// Asks for the answer's header; it goes no further.
pub(super) const ASK: HeaderName = HeaderName::from_static("x-ramjet-explain");
/// The answer's header.
pub(super) const TOLD: HeaderName = HeaderName::from_static("x-ramjet-decision");

/// What is kept of a choice to be compared with how it went.
#[derive(Default)]
pub(super) struct Choice {
    ticket: Option<Ticket>,
    /// Tokens believed to be held where the current attempt goes, and those once held there.
    pub(super) belief: (f64, f64),
    /// Tokens of the session's prompt before.
    before: Option<f64>,
}

impl Proxy {
    /// Keeps the decision that was just made for this request.
    pub(super) fn keep_decision(&self, ctx: &mut Context) {
        let Some(route) = &ctx.route else { return };
        let (fleet, prompt) = (self.router.fleet(), &ctx.prompt);
        let first = route.decision.ranked.first().and_then(|r| fleet.replica(r.id));
        let listed = |model: &&str| first.as_ref().is_some_and(|r| r.fit(model) == Fit::Listed);
        let blocks = prompt.chain.as_ref().map_or(0, |chain| chain.len());
        let sized = if blocks == 0 { prompt.body_bytes } else { prompt.prompt_bytes };
        let placed = Subject {
            endpoint: ctx.endpoint,
            model: prompt.model.as_deref().filter(listed).map(Into::into),
            body_bytes: prompt.body_bytes,
            prompt_bytes: prompt.prompt_bytes,
            blocks,
            tokens: fleet.tokens(sized, prompt.model.as_deref()),
            pinned: prompt.pinned.is_some_and(|id| first.as_ref().is_some_and(|r| r.id == id)),
        };
        let params = fleet.params();
        let rule = (params.policy, params.affinity.alpha);
        let record = Record::new(prompt.request, SystemTime::now(), placed, rule, &route.decision);
        ctx.choice.ticket = Some(self.decisions.keep(ctx.choice.ticket, record));
        // a prompt without fingerprints is found nowhere, whatever its session
        let session = prompt.session().filter(|_| blocks > 0);
        ctx.choice.before = session.and_then(|s| fleet.last_of(s)).map(|last| last.tokens.into());
    }

    /// Says what came of it, and puts the tokens that had to be read to their accounts.
    pub(super) fn end_decision(&self, ctx: &Context, outcome: &Outcome, word: &'static str) {
        let accounts = self.account(ctx, outcome);
        let Some(ticket) = ctx.choice.ticket else { return };
        let tried = ctx.route.as_ref().and_then(|r| r.decision.ranked.at(r.position));
        let ended = Ended {
            replica: tried.map(|r| r.id),
            attempts: ctx.attempts(),
            status: outcome.status,
            word,
            usage: outcome.usage,
            ttft: outcome.ttft,
            duration: outcome.duration,
            accounts,
        };
        self.decisions.end(ticket, ended);
        self.router.fleet().tell_end(ctx.prompt.request, || Ending {
            word: word.into(),
            status: ended.status,
            attempts: ended.attempts,
            usage: [ended.usage.prompt, ended.usage.cached, ended.usage.completion],
            ttft_ms: ended.ttft.map(millis),
            ms: millis(ended.duration),
        });
    }

    fn account(&self, ctx: &Context, outcome: &Outcome) -> Option<Accounts> {
        let (prompt, cached) = outcome.usage.prompt.zip(outcome.usage.cached)?;
        let route = ctx.route.as_ref();
        let here = route.and_then(|r| r.decision.ranked.at(r.position)).map(|c| c.id);
        let others =
            route.iter().flat_map(|r| r.decision.ranked.unordered()).filter(|c| Some(c.id) != here).map(|c| c.held);
        let elsewhere = others.clone().fold(0.0, f64::max);
        let fleet = self.router.fleet();
        let (held, known) = ctx.choice.belief;
        let block = fleet.tokens(0, ctx.prompt.model.as_deref()).block;
        let accounts = account(&Facts { prompt, cached, block, held, known, elsewhere, before: ctx.choice.before });
        self.metrics.accounted(accounts, saved(cached.min(prompt), others));
        if let Some(replica) = here.and_then(|id| fleet.replica(id)) {
            self.metrics.served(replica.name(), prompt, cached.min(prompt));
        }
        Some(accounts)
    }
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// The choice in one line, if the client asks for it and there was one.
pub(super) fn header(session: &Session, ctx: &Context) -> Option<String> {
    let asked = session.req_header().headers.get(&ASK).is_some_and(|value| value == "1");
    let route = ctx.route.as_ref().filter(|_| asked)?;
    let (decision, at) = (&route.decision, route.decision.ranked.at(route.position)?);
    let blocks = ctx.prompt.chain.as_ref().map_or(0, |chain| chain.len());
    let price = &at.price;
    let mut out = format!(
        "{}; overlap={}/{blocks}; cached_tokens={:.0}; ttft_ms={:.0}; price_ms={:.0}; candidates={}",
        decision.reason.label(),
        at.overlap,
        at.held,
        price.queue + price.prefill,
        price.total(),
        decision.ranked.len(),
    );
    // writing to a String cannot fail
    if let Some(flight) = decision.flight {
        let _infallible = write!(out, "; flight={}", flight.label());
    }
    if decision.gate != Gate::Open {
        let _infallible = write!(out, "; lane={}", decision.gate.label());
    }
    if route.attempts > 1 {
        let _infallible = write!(out, "; attempts={}", route.attempts);
    }
    Some(out)
}
