//! What became of prompt tokens, as JSON.

use super::json::{Object, document};
use crate::telemetry::linter::{Finding, Report};
use crate::telemetry::prompts::Sums;
use std::collections::BTreeMap;

/// How the estimates are made.
const ESTIMATE: &str = "round_robin_cached_tokens estimates what replicas taking turns would have found of the same \
    prompts: each block with 1 - (1 - 1/n)^c, n being the candidates and c the earlier requests that began with it, nothing \
    ever being evicted; saved_tokens is what came from the cache beyond that, of requests where it was more";

/// The accounts of every model.
pub(super) fn all(models: &BTreeMap<String, Sums>, linter: &Report) -> String {
    document(|o| {
        o.list("models", models, |o, (name, sums)| model(o, name, sums));
        o.text("estimate", ESTIMATE);
        o.object("linter", Some(linter), |o, linter| {
            o.plain("looked_at", linter.looked_at);
            o.plain("passed_over", linter.passed_over);
            o.list("findings", &linter.findings, finding);
        });
    })
}

fn finding(o: &mut Object<'_>, found: &Finding) {
    let or_null = |n: Option<usize>| n.map_or("null".to_owned(), |n| n.to_string());
    o.text("client", found.client.label());
    o.text("endpoint", found.endpoint.label());
    o.text("field", &*found.field);
    o.text("part", found.part.label());
    o.text("change", found.change.label());
    o.plain("offset", or_null(found.offsets.map(|(low, _)| low)));
    o.plain("last_offset", or_null(found.offsets.map(|(_, last)| last)));
    o.plain("length", found.length);
    o.plain("requests", found.requests);
    o.number("tokens", found.tokens.round());
    o.number("last", found.last);
}

fn model(o: &mut Object<'_>, name: &str, sums: &Sums) {
    let of = |account: &str| sums.accounts.get(account).copied().unwrap_or_default();
    o.text("model", name);
    o.number("requests", sums.requests);
    o.number("prompt_tokens", sums.accounts.values().sum::<f64>());
    o.number("cached_tokens", of("cached"));
    o.object("uncached", Some(()), |o, ()| {
        for account in ["new", "routing", "evicted", "volatile"] {
            o.number(account, of(account));
        }
    });
    o.number("round_robin_cached_tokens", sums.rotation);
    o.number("saved_tokens", sums.saved);
}
