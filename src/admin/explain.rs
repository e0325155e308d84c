//! Decisions as JSON: what each was made of, and what came of it.

use super::json::{Object, document};
use super::words::why;
use crate::fleet::members::Members;
use crate::policy::select::Ranked;
use crate::telemetry::decisions::{Ended, Record};
use crate::types::{PolicyKind, ReplicaId};
use std::time::SystemTime;

/// One decision, whole.
pub(super) fn one(record: &Record, fleet: &Members) -> String {
    document(|o| whole(o, record, fleet))
}

/// Several, in few words each.
pub(super) fn list(records: &[Record], fleet: &Members) -> String {
    document(|o| o.list("decisions", records, |o, record| brief(o, record, fleet)))
}

/// The name of a replica.
pub(super) fn name(fleet: &Members, id: ReplicaId) -> &str {
    fleet.at(id).map_or("?", |r| r.name())
}

fn brief(o: &mut Object<'_>, record: &Record, fleet: &Members) {
    let placed = &record.placed;
    o.text("id", &*format!("{:016x}", record.id));
    let since = record.at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    o.number("at", since.as_secs_f64());
    o.text("state", if record.ended.is_some() { "ended" } else { "in_flight" });
    o.text("endpoint", placed.endpoint.label());
    o.text("model", placed.model.as_deref());
    o.text("policy", record.rule.policy.name());
    o.text("replica", record.best.first().map(|r| name(fleet, r.id)));
    o.text("reason", record.reason.label());
    o.plain("body_bytes", placed.body_bytes);
    o.plain("blocks", placed.blocks);
    o.plain("overlap_blocks", record.best.first().map_or(0, |r| r.overlap));
    let (cached, ttft) = record.expected();
    o.object("expected", Some(()), |o, ()| {
        o.number("prompt_tokens", placed.tokens.prompt);
        o.number("cached_tokens", cached);
        o.number("ttft_ms", ttft);
    });
    o.object("ended", record.ended.as_ref(), |o, ended| ended_as(o, record, ended, fleet));
}

/// By how much what was reported is more than what was expected where the request went: cached tokens, and milliseconds to
/// the first one.
pub(super) fn off_by(record: &Record, ended: &Ended) -> Option<(Option<f64>, Option<f64>)> {
    let (cached, ttft) = record.expected_of(ended.replica?)?;
    #[expect(clippy::cast_precision_loss, reason = "tokens of a prompt fit a float")]
    let more = ended.usage.cached.map(|tokens| tokens as f64 - cached);
    Some((more, ended.ttft.map(|after| after.as_secs_f64() * 1000.0 - ttft)))
}

fn ended_as(o: &mut Object<'_>, record: &Record, ended: &Ended, fleet: &Members) {
    let count = |n: Option<u64>| n.map_or("null".to_owned(), |n| n.to_string());
    let millis = |d: std::time::Duration| d.as_secs_f64() * 1000.0;
    o.text("word", ended.word);
    o.plain("status", ended.status);
    o.text("replica", ended.replica.map(|id| name(fleet, id)));
    o.plain("attempts", ended.attempts);
    o.plain("prompt_tokens", count(ended.usage.prompt));
    o.plain("cached_tokens", count(ended.usage.cached));
    o.plain("output_tokens", count(ended.usage.completion));
    o.number("ttft_ms", ended.ttft.map(millis));
    o.number("duration_ms", millis(ended.duration));
    o.object("off_by", off_by(record, ended), |o, (cached, ttft)| {
        o.number("cached_tokens", cached);
        o.number("ttft_ms", ttft);
    });
    o.object("uncached", ended.accounts, |o, accounts| {
        accounts.all().iter().for_each(|(account, tokens)| o.plain(account, tokens));
    });
}

fn whole(o: &mut Object<'_>, record: &Record, fleet: &Members) {
    brief(o, record, fleet);
    o.text("why", &*why(record, fleet));
    o.text("runner_up", record.best.get(1).map(|r| name(fleet, r.id)));
    o.plain("passed_over", record.passed);
    o.plain("prompt_bytes", record.placed.prompt_bytes);
    o.number("block_tokens", record.placed.tokens.block);
    o.number("expected_output_tokens", record.placed.tokens.output);
    o.object("rule", (record.rule.policy == PolicyKind::Affinity).then_some(record.rule.affinity), |o, affinity| {
        o.text("basis", affinity.basis.name());
        o.plain("cap_blocks", affinity.cap_blocks);
        o.number("alpha", affinity.alpha);
    });
    o.text("lane", record.gate.label());
    o.text("flight", record.flight.map(|f| f.label()));
    o.object("hint", record.hint, |o, hint| {
        o.text("home", hint.home.map(|id| name(fleet, id)));
        o.number("break_ms", hint.break_ms);
        o.plain("stays", hint.stays);
    });
    o.plain("pinned", record.placed.pinned);
    o.list("candidates", &record.best, |o, r| candidate(o, r, record, fleet));
    o.plain("more_candidates", record.others);
}

fn candidate(o: &mut Object<'_>, r: &Ranked, record: &Record, fleet: &Members) {
    let (policy, alpha) = (record.rule.policy, record.rule.affinity.alpha);
    o.text("replica", name(fleet, r.id));
    o.plain("ordinal", r.id);
    o.plain("overlap_blocks", r.overlap);
    o.number("held_tokens", r.held);
    o.plain("load_units", r.load);
    o.plain("reserves_units", r.units);
    o.number("score", r.score);
    o.object("price_ms", Some(&r.price), |o, price| {
        for (term, value) in price.terms() {
            o.number(term, value);
        }
        o.number("total", price.total());
    });
    o.object("affinity", (policy == PolicyKind::Affinity).then_some(()), |o, ()| {
        o.plain("credit_blocks", r.credit);
        o.number("load_blocks", alpha * f64::from(r.load));
    });
}

#[cfg(test)]
mod tests;
