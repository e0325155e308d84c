//! A decision in words, for an engineer at a terminal.

use super::explain::{name, off_by};
use crate::fleet::members::Members;
use crate::policy::flight::Flight;
use crate::policy::lane::Gate;
use crate::policy::select::{Ranked, Reason};
use crate::telemetry::decisions::{Ended, Record};
use crate::types::PolicyKind;
use std::fmt::Write;
use std::time::SystemTime;

/// The page that `ramjet explain` prints, as seen at `now`.
pub(super) fn page(record: &Record, fleet: &Members, now: SystemTime) -> String {
    let placed = &record.placed;
    let ago = now.duration_since(record.at).unwrap_or_default().as_secs_f64();
    let mut out = format!("request {:016x}, {ago:.1} s ago: {}", record.id, placed.endpoint.label());
    // writing to a String cannot fail, here and below
    if let Some(model) = &placed.model {
        let _infallible = write!(out, ", model {model}");
    }
    let _infallible = writeln!(
        out,
        ", {} bytes, {} blocks, about {:.0} prompt tokens",
        placed.body_bytes, placed.blocks, placed.tokens.prompt
    );
    let chosen = record.best.first().map_or("nobody", |r| name(fleet, r.id));
    let _infallible = writeln!(out, "{} chose {chosen}: {}\n", record.rule.policy.name(), why(record, fleet));
    out.push_str(&table(record, fleet));
    let (cached, ttft) = record.expected();
    let _infallible = writeln!(out, "\nexpected: {cached:.0} cached tokens, the first token after {ttft:.0} ms");
    match &record.ended {
        None => out.push_str("came of it: it is being served\n"),
        Some(ended) => out.push_str(&came(record, ended, fleet)),
    }
    out
}

/// One sentence: why the first candidate is first.
pub(super) fn why(record: &Record, fleet: &Members) -> String {
    let mut out = match record.reason {
        _ if record.placed.pinned => "it alone keeps what the request names".to_owned(),
        Reason::Pinned => "it alone keeps what the request names".to_owned(),
        Reason::Setback => "the best one has just failed this prompt, or the turn before it".to_owned(),
        Reason::Only => "it was the only candidate".to_owned(),
        Reason::FailOpen => "nobody is healthy, so that all are tried, and it came first".to_owned(),
        Reason::RoundRobin => "it was its turn".to_owned(),
        Reason::Load => "it has the least to do, as far as that is looked at".to_owned(),
        Reason::Hint => hinted(record),
        Reason::Affinity => "it holds as much of the prompt as any candidate".to_owned(),
        Reason::Spill if record.passed > 0 => passed_over(record, fleet),
        Reason::Spill => spilled(record, fleet),
        Reason::Cold => "nobody holds any of the prompt, and it came first by its load".to_owned(),
    };
    if record.passed > 0 && record.reason != Reason::Spill {
        let _infallible = write!(out, "; {}", passed_over(record, fleet));
    }
    out.push_str(match record.flight {
        Some(Flight::Follower) => "; another request is reading the same beginning there",
        Some(Flight::Leader) => "; its beginning is new, and who shares it will follow",
        Some(Flight::Apart) => "; another replica is reading the same beginning, but waiting there costs more",
        _ => "",
    });
    out.push_str(match record.gate {
        Gate::Open => "",
        Gate::Long => "; a long prompt, for which the lane is kept",
        Gate::NoLane => "; a long prompt, but nobody in the lane is healthy",
        Gate::KeptOut => "; a short prompt, kept out of the lane",
        Gate::LetIn => "; a short prompt, let into the lane",
    });
    out
}

fn hinted(record: &Record) -> String {
    match record.hint {
        Some(hint) if hint.stays && record.rule.policy == PolicyKind::Cost => {
            format!("its session was there before, which is worth up to {:.0} ms", hint.break_ms)
        }
        Some(hint) if hint.stays => "its session was there before".to_owned(),
        _ => "it is among the best, and the new session's name picks it".to_owned(),
    }
}

/// Others come before it.
fn passed_over(record: &Record, fleet: &Members) -> String {
    let best = record.best.get(1).map_or("another one", |r| name(fleet, r.id));
    match record.passed {
        0 | 1 => format!("{best} comes before it, but has no room for it now, or turns requests away"),
        n => format!("{best} and {} more come before it, but have no room for it now, or turn requests away", n - 1),
    }
}

/// Somebody else holds more of the prompt.
fn spilled(record: &Record, fleet: &Members) -> String {
    let deepest = record.best.iter().max_by_key(|r| r.overlap);
    let (Some(first), Some(deepest)) = (record.best.first(), deepest.filter(|d| d.overlap > 0)) else {
        return "others hold more of the prompt, but are far too busy".to_owned();
    };
    if deepest.overlap <= first.overlap {
        return "others hold more of the prompt, but are far too busy".to_owned();
    }
    let there = name(fleet, deepest.id);
    match record.rule.policy {
        PolicyKind::Cost => {
            let more = deepest.price.total() - first.price.total();
            match more > 0.0 {
                true => format!("{there} holds more of the prompt, but going there costs {more:.0} ms more"),
                false => format!("{there} holds more of the prompt, but another group of replicas comes first"),
            }
        }
        _ => format!("{there} holds more of the prompt, but its load outweighs that"),
    }
}

/// The candidates, the chosen one marked, with the terms that the rule looks at.
fn table(record: &Record, fleet: &Members) -> String {
    let (policy, alpha) = (record.rule.policy, record.rule.affinity.alpha);
    let mut head = vec!["held"];
    head.extend(match policy {
        PolicyKind::Cost => &["queue", "prefill", "decode", "imposed", "coming", "evicted", "later", "total"][..],
        PolicyKind::Affinity => &["overlap", "credit", "load", "score"],
        PolicyKind::Load | PolicyKind::RoundRobin => &["load"],
    });
    let width = record.best.iter().map(|r| name(fleet, r.id).chars().count()).max().unwrap_or(0).max(7);
    let mut out = format!("  {:width$}", "replica");
    let line = |out: &mut String, cells: &mut dyn Iterator<Item = String>| {
        cells.for_each(|cell| {
            let _infallible = write!(out, " {cell:>8}");
        });
        out.push('\n');
    };
    line(&mut out, &mut head.iter().map(|h| (*h).to_owned()));
    for (n, r) in record.best.iter().enumerate() {
        let mark = if n == 0 { '>' } else { ' ' };
        let _infallible = write!(out, "{mark} {:width$}", name(fleet, r.id));
        line(&mut out, &mut cells(r, policy).into_iter());
    }
    if record.others > 0 {
        let _infallible = writeln!(out, "  and {} more", record.others);
    }
    let _infallible = match policy {
        PolicyKind::Cost => writeln!(out, "  held in tokens, the others in ms; total is the sum of those in between"),
        PolicyKind::Affinity => writeln!(out, "  held in tokens, overlap in blocks; score = credit - {alpha} x load"),
        PolicyKind::Load | PolicyKind::RoundRobin => writeln!(out, "  held in tokens, load in units"),
    };
    out
}

fn cells(r: &Ranked, policy: PolicyKind) -> Vec<String> {
    let mut out = vec![format!("{:.0}", r.held)];
    match policy {
        PolicyKind::Cost => {
            let terms = r.price.terms().into_iter().map(|(_, ms)| ms);
            out.extend(terms.chain([r.price.total()]).map(|ms| format!("{ms:.0}")));
        }
        PolicyKind::Affinity => {
            out.extend([r.overlap.to_string(), r.credit.to_string(), r.load.to_string(), format!("{:.1}", r.score)]);
        }
        PolicyKind::Load | PolicyKind::RoundRobin => out.push(r.load.to_string()),
    }
    out
}

fn came(record: &Record, ended: &Ended, fleet: &Members) -> String {
    let mut out = format!("came of it: {}, status {}", ended.word, ended.status);
    if let Some(id) = ended.replica {
        let _infallible = write!(out, " at {}", name(fleet, id));
    }
    let plural = if ended.attempts == 1 { "" } else { "s" };
    let _infallible = write!(out, ", {} attempt{plural}", ended.attempts);
    if let Some(ttft) = ended.ttft {
        let _infallible = write!(out, ", the first token after {} ms", ttft.as_millis());
    }
    let _infallible = writeln!(out, ", {} ms in all", ended.duration.as_millis());
    let usage = [("prompt", ended.usage.prompt), ("cached", ended.usage.cached), ("generated", ended.usage.completion)];
    let known: Vec<String> = usage.iter().filter_map(|(what, n)| n.map(|n| format!("{n} {what}"))).collect();
    let tokens = if known.is_empty() { "the engine did not say".to_owned() } else { known.join(", ") };
    let _infallible = writeln!(out, "tokens:     {tokens}");
    let (cached, ttft) = off_by(record, ended).unwrap_or_default();
    let off = [cached.map(|more| format!("{more:+.0} cached tokens")), ttft.map(|more| format!("{more:+.0} ms"))];
    let off: Vec<String> = off.into_iter().flatten().collect();
    if !off.is_empty() {
        let _infallible = writeln!(out, "off by:     {}", off.join(", "));
    }
    if let Some(accounts) = ended.accounts {
        let put: Vec<String> = accounts.all().iter().map(|(account, n)| format!("{n} {account}")).collect();
        let _infallible = writeln!(out, "not cached: {}", put.join(", "));
    }
    out
}
