//! What a traced request tells of itself on its way: see `telemetry::traces`. Without a collector none of it happens, and the
//! trace context passes through as it came.

use super::Proxy;
use super::context::Context;
use crate::policy::retry::Failure;
use crate::policy::select::Decision;
use crate::telemetry::metrics::Outcome;
use crate::telemetry::traces::{PARENT, Parent, STATE, Value};
use http::{HeaderName, HeaderValue};
use pingora_proxy::Session;
use std::time::Instant;

impl Proxy {
    /// The request may be one to be traced.
    pub(super) fn begin_trace(&self, session: &mut Session, ctx: &mut Context) {
        if !self.tracer.is_on() {
            return;
        }
        let headers = &session.req_header().headers;
        ctx.trace = self.tracer.begin(ctx.endpoint.label(), headers, ctx.started);
        // a context that is none does not go on, nor does what came with it
        if ctx.trace.is_some() && Parent::of(headers).is_err() {
            session.req_header_mut().remove_header(STATE);
        }
    }

    /// It has ended, with this outcome and this word.
    pub(super) fn end_trace(&self, ctx: &mut Context, outcome: &Outcome, word: &'static str) {
        let Some(mut trace) = ctx.trace.take() else { return };
        let (now, is_good) = (ctx.started.elapsed(), word == "ok");
        if let Some(attempt) = trace.end_attempt(now, (!is_good).then_some(word)) {
            attempt.first_token = outcome.ttft;
            attempt.count("http.response.status_code", outcome.status);
        }
        let root = &mut trace.root;
        root.to = Some(now);
        // a client that leaves is no failure of ours
        root.failed = (!is_good && word != "client_left").then_some(word);
        root.first_token = outcome.ttft;
        let id = u64::from_str_radix(&ctx.id, 16).unwrap_or(0);
        root.say("ramjet.request_id", Value::Id(id)).say("ramjet.end", Value::Word(word));
        root.count("http.response.status_code", outcome.status).count("ramjet.attempts", ctx.attempts());
        root.count("http.request.body.size", ctx.prompt.body_bytes);
        for (name, tokens) in [
            ("gen_ai.usage.input_tokens", outcome.usage.prompt),
            ("ramjet.cached_tokens", outcome.usage.cached),
            ("gen_ai.usage.output_tokens", outcome.usage.completion),
        ] {
            if let Some(tokens) = tokens {
                root.count(name, tokens);
            }
        }
        self.tracer.end(trace);
    }
}

impl Context {
    /// A choice was made from `began` on.
    pub(super) fn trace_choice(&mut self, began: Instant, decision: &Decision) {
        let Some(trace) = &mut self.trace else { return };
        let blocks = self.prompt.chain.as_ref().map_or(0, |chain| chain.len());
        if let Some(span) = trace.begin("route", false, began.duration_since(self.started)) {
            span.to = Some(self.started.elapsed());
            span.say("ramjet.reason", Value::Word(decision.reason.label()));
            span.count("ramjet.candidates", decision.ranked.len()).count("ramjet.blocks", blocks);
            if let Some(first) = decision.ranked.first() {
                span.count("ramjet.overlap_blocks", first.overlap).count("ramjet.replica", first.id.index());
            }
        }
    }

    /// A wait of this name began then, and goes on until now at least.
    pub(super) fn trace_wait(&mut self, name: &'static str, began: Instant) {
        if let Some(trace) = &mut self.trace {
            trace.waited(name, began.duration_since(self.started), self.started.elapsed());
        }
    }

    /// An attempt begins at a replica of this ordinal; the one before it, if any, has failed.
    pub(super) fn trace_attempt(&mut self, ordinal: usize) {
        let Some(trace) = &mut self.trace else { return };
        let now = self.started.elapsed();
        trace.end_attempt(now, Some(self.failure.map_or("failed", Failure::label)));
        if let Some(span) = trace.begin("attempt", true, now) {
            span.count("ramjet.replica", ordinal);
        }
    }

    /// What the engine is told of the trace, so that its spans are below the attempt.
    pub(super) fn trace_field(&self) -> Option<(HeaderName, Option<HeaderValue>)> {
        let trace = self.trace.as_ref()?;
        let span = trace.attempt().map_or(trace.root.id, |attempt| attempt.id);
        Some((HeaderName::from_static(PARENT), Some(HeaderValue::try_from(trace.header(span)).ok()?)))
    }
}
