//! What is told of a choice: to the ring of decisions for operators, and in a header to clients that ask for it. A client
//! learns numbers and closed words, never a replica's name.

use super::Proxy;
use super::context::Context;
use crate::api::family::Family;
use crate::fleet::replica::Fit;
use crate::fleet::steps::Ending;
use crate::policy::accounts::{Accounts, Facts, account};
use crate::policy::lane::Gate;
use crate::prefix::rotation::Found;
use crate::telemetry::decisions::{Ended, Record, Rule, Subject, Ticket};
use crate::telemetry::linter::Job;
use crate::telemetry::metrics::Outcome;
use http::HeaderName;
use http::header::USER_AGENT;
use pingora_http::RequestHeader;
use pingora_proxy::Session;
use std::fmt::Write;
use std::time::{Duration, SystemTime};
use xxhash_rust::xxh3::xxh3_64;

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
    /// Blocks that replicas taking turns would have found.
    rotation: Found,
    /// Whether the replica lists the model.
    is_listed: bool,
}

impl Proxy {
    /// Keeps the decision that was just made for this request.
    pub(super) fn keep_decision(&self, head: &RequestHeader, ctx: &mut Context) {
        if ctx.choice.ticket.is_none() {
            self.lint(head, ctx);
        }
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
        let rule = Rule { policy: params.policy, affinity: params.affinity };
        ctx.choice.is_listed = placed.model.is_some();
        if let (None, Some(chain)) = (ctx.choice.ticket, &prompt.chain) {
            ctx.choice.rotation = self.decisions.rotation(chain, route.decision.ranked.len());
        }
        let record = Record::new(prompt.request, SystemTime::now(), placed, rule, &route.decision);
        ctx.choice.ticket = Some(self.decisions.keep(ctx.choice.ticket, record));
        // a prompt without fingerprints is found nowhere, whatever its session
        let session = prompt.session().filter(|_| blocks > 0);
        ctx.choice.before = session.and_then(|s| fleet.last_of(s)).map(|last| last.tokens.into());
    }

    /// Says what came of it, and puts the tokens that had to be read to their accounts.
    pub(super) fn end_decision(&self, head: &RequestHeader, ctx: &Context, outcome: &Outcome, word: &'static str) {
        let accounts = self.account(ctx, outcome);
        if accounts.is_some_and(is_odd) {
            self.decisions.linter.arm(family(head));
        }
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

    /// Has a prompt looked at that nobody holds much of.
    fn lint(&self, head: &RequestHeader, ctx: &Context) {
        let (Some(route), Some(body)) = (&ctx.route, ctx.body.held()) else { return };
        if !ctx.endpoint.is_inference() || ctx.prompt.prompt_bytes == 0 {
            return;
        }
        let model = ctx.prompt.model.as_deref();
        let tokens = self.router.fleet().tokens(ctx.prompt.prompt_bytes, model);
        let found = route.decision.ranked.unordered().iter().map(|r| r.held).fold(0.0, f64::max);
        let Some(client) = self.decisions.linter.suspects(|| family(head), found, tokens.prompt) else { return };
        #[expect(clippy::cast_precision_loss, reason = "a prompt's size fits a float")]
        let density = tokens.prompt / ctx.prompt.prompt_bytes as f64;
        let model = xxh3_64(model.unwrap_or_default().as_bytes());
        let job = Job { client, endpoint: ctx.endpoint, model, body: body.clone(), density };
        self.decisions.linter.look(job, &self.metrics);
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
        let model = ctx.prompt.model.as_deref().filter(|_| ctx.choice.is_listed);
        self.metrics.accounted(model, accounts, self.by_turns((prompt, cached.min(prompt)), ctx));
        if let Some(replica) = here.and_then(|id| fleet.replica(id)) {
            self.metrics.served(replica.name(), prompt, cached.min(prompt));
        }
        Some(accounts)
    }

    /// Of a prompt of so many tokens, of which so many came from the cache, those that replicas taking turns would have found.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "tokens of a prompt fit a float and are not negative"
    )]
    fn by_turns(&self, (prompt, cached): (u64, u64), ctx: &Context) -> u64 {
        let Found { by_turns, known } = ctx.choice.rotation;
        if known <= 0.0 {
            return 0;
        }
        let bytes = known * self.router.fleet().params().load.block_bytes as f64;
        let there = prompt as f64 * bytes / ctx.prompt.prompt_bytes.max(1) as f64;
        let found = by_turns / known * there.max(cached as f64);
        // the last token is always read
        (found.round() as u64).min(prompt.saturating_sub(1))
    }
}

/// What kind of client asks.
fn family(head: &RequestHeader) -> Family {
    Family::of(head.headers.get(USER_AGENT).map_or(b"", |agent| agent.as_bytes()))
}

/// Whether much of a prompt was read again though it was believed to be held, or its session's text changes.
fn is_odd(accounts: Accounts) -> bool {
    (accounts.evicted + accounts.volatile) * 4 > accounts.total()
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
