//! Session hints: a name that a client gives its conversation, or that was derived from its text. Pure.
//!
//! The same name goes to the same replica, its *home*, while that is neither overloaded nor gone. What a hint can be
//! worth is known: at most the time to read, at the home, what the index does not say it holds, and at most the time to
//! read at the cheapest other replica what that does not hold, those included who wait for that at the home. Beyond that
//! load going there is cheaper even if the home holds all of the prompt. This is the *break point*; no hint overrides it,
//! and what the index knows counts fully besides. For a short prompt it would lie below one other request at the home; a
//! name that the client gave is worth that much.
//! And a session may prove to be worth less: where its prompts change near their head from turn to turn, most engines find
//! nothing of the turn before, home or not. What they found lately, of what the index did not know, counts.
//! A home that has *lost* what it held, as its cache was emptied, may cost more, not less: whoever goes elsewhere is read there,
//! where others live who have lost nothing. What it costs those, which is in the price already, counts once more: of turns that
//! come late there are the fewer. Where nobody lives, that is nothing, and whoever would wait at home goes there.
//!
//! Nor does a session leave its home to join somebody who is reading the smaller part of its prompt.
//!
//! A name that nobody knows begins by *rendezvous*: the replica with the largest hash of (name, replica's name), among
//! those that are as good as the best. Several routers agree on it, and a replica that comes or goes moves no names but
//! those that it gets or had. It decides between equals only: load is never overridden by it.

use super::cost::Price;
use super::flight::{Flight, counted};
use super::select::{Candidate, Decision, Params, Ranked, Reason, RouteRequest, select};
use crate::types::{PolicyKind, ReplicaId};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Prices that differ by less than this share of what is to be read are equal: the time that takes is known no better. Two
/// routers that see the same fleet a little differently then begin a session at the same replica. Where little is to be
/// read, little is lost if they do not. Nor do prices differ by less than one step of the batch: a prompt that comes
/// earlier waits for the next one.
const NOISE: f64 = 0.1;

/// What a session that its client names may cost more at its home however short the prompt: one short request before it
/// does not make a home overloaded, as two of a session at once often show.
const PATIENCE_MS: f64 = 500.0;

/// What names a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hint {
    /// The hash of its name and model.
    pub key: u64,
    /// Who named it.
    pub source: Source,
}

/// Who named a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The client.
    Named,
    /// Nobody: it is told by its text, which counts only where the index knows little of the prompt.
    Derived,
}

/// Where a session was last.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Home {
    /// The replica.
    pub replica: ReplicaId,
    /// Of what the session had read at its home and the index knew nothing of, the share that was held there all the
    /// same, lately. 1 until anything tells.
    pub worth: f64,
    /// Whether what it held of the session was lost, and has not been read again since.
    pub lost: bool,
}

/// What became of a hint.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HintUse {
    /// The session's home; `None` when it has none, or its home takes no requests.
    pub home: Option<ReplicaId>,
    /// By how much the home may cost more than the cheapest other replica, in milliseconds; 0 without a home. The cost
    /// policy's measure; the others have their own.
    pub break_ms: f64,
    /// Whether the session stays at its home.
    pub stays: bool,
}

/// The weight of a replica, known by the hash of its name, for a session; the largest wins.
pub fn rendezvous(key: u64, name: u64) -> u64 {
    xxh3_64_with_seed(&name.to_le_bytes(), key)
}

/// Weighs a hint against a decision, which it may change. `home` is where the session was last, `weight`
/// that of a replica for a session; see [`rendezvous`].
pub fn weigh(
    mut decision: Decision,
    (hint, home): (Hint, Option<Home>),
    (request, candidates): (RouteRequest, &[Candidate]),
    params: &Params,
    weight: impl Fn(u64, ReplicaId) -> u64,
) -> Decision {
    let lead = decision.ranked.unordered().iter().map(|r| r.overlap).max().unwrap_or(0);
    let is_known = u64::from(lead) * 2 >= u64::from(request.blocks);
    let follows = decision.flight == Some(Flight::Follower) && (is_known || home.is_none());
    let settled = matches!(decision.reason, Reason::Only | Reason::FailOpen | Reason::RoundRobin);
    if settled || follows || is_known && hint.source == Source::Derived {
        return decision;
    }
    let Some(first) = decision.ranked.first().copied() else { return decision };
    let step_ms = first.price.answer / request.tokens.output.max(1.0);
    let is_near = |r: &&Ranked| is_near((&first, step_ms), r, params.policy);
    let there = home.and_then(|home| Some((*decision.ranked.of(home.replica)?, home)));
    let Some((there, home)) = there else { return begin(decision, hint.key, is_near, weight) };
    let other = decision.ranked.unordered().iter().filter(|r| r.id != there.id);
    let cheaper = |a: &&Ranked, b: &&Ranked| a.price.total().total_cmp(&b.price.total()).then(a.id.cmp(&b.id));
    let Some(other) = other.min_by(cheaper) else { return decision };
    let break_ms = break_ms(&there.price, &other.price, home, hint.source);
    let is_held = first.overlap >= request.blocks.max(1);
    let stays = is_near(&&there)
        || match params.policy {
            PolicyKind::Cost => there.price.total() - other.price.total() < break_ms,
            PolicyKind::Affinity => {
                home.worth > 0.5 && !is_held && wins_with_all(there.id, (request, hint.source), candidates, params)
            }
            PolicyKind::Load | PolicyKind::RoundRobin => false,
        };
    if stays {
        let has_equals = there.id != first.id || decision.ranked.unordered().iter().filter(is_near).nth(1).is_some();
        decision.ranked.put_first(there.id);
        decision.reason = if has_equals { Reason::Hint } else { decision.reason };
        if there.id != first.id && decision.flight == Some(Flight::Follower) {
            decision.flight = Some(Flight::Apart);
        }
    }
    decision.hint = Some(HintUse { home: Some(there.id), break_ms, stays });
    decision
}

/// A session that has no home begins where its name decides, among those that are as good as the best.
fn begin(
    mut decision: Decision,
    key: u64,
    is_near: impl Fn(&&Ranked) -> bool,
    weight: impl Fn(u64, ReplicaId) -> u64,
) -> Decision {
    let near = || decision.ranked.unordered().iter().filter(&is_near);
    let winner = near().max_by_key(|r| (weight(key, r.id), std::cmp::Reverse(r.id))).map(|r| r.id);
    if let Some(winner) = winner.filter(|_| near().nth(1).is_some()) {
        decision.ranked.put_first(winner);
        decision.reason = Reason::Hint;
    }
    decision.hint = Some(HintUse { home: None, break_ms: 0.0, stays: false });
    decision
}

/// By how much a session's home may cost more than another replica.
fn break_ms(there: &Price, other: &Price, home: Home, source: Source) -> f64 {
    let unread_ms = there.prefill.min(other.prefill);
    let worth_ms = home.worth * unread_ms * there.reading() / there.prefill.max(f64::MIN_POSITIVE);
    let disturbs_ms = if home.lost { other.imposed + other.coming } else { 0.0 };
    (worth_ms + disturbs_ms).max(if source == Source::Named { PATIENCE_MS } else { 0.0 })
}

/// Whether a candidate is as good as the first of its ranking, where a step takes so long.
fn is_near((first, step_ms): (&Ranked, f64), r: &Ranked, policy: PolicyKind) -> bool {
    match policy {
        PolicyKind::Cost => {
            let noise = step_ms.max(NOISE * first.price.prefill);
            first.score - r.score <= noise && r.overlap >= first.overlap
        }
        PolicyKind::Affinity => r.score.total_cmp(&first.score).is_eq() && r.overlap == first.overlap,
        PolicyKind::Load | PolicyKind::RoundRobin => r.score.total_cmp(&first.score).is_eq(),
    }
}

/// The least overlap whose credit outweighs a unit of load, as far as credit goes.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "capped, and not negative")]
fn unit_in_blocks(params: &Params) -> u32 {
    let cap = params.affinity.cap_blocks;
    (params.affinity.alpha.min(f64::from(cap)) as u32 + 1).min(cap.max(1))
}

/// Whether `home` would be first if it held all of the prompt; for a session that its client names, of one long enough
/// to be worth a unit of load.
fn wins_with_all(
    home: ReplicaId,
    (request, source): (RouteRequest, Source),
    candidates: &[Candidate],
    params: &Params,
) -> bool {
    let floor = if source == Source::Named { unit_in_blocks(params) } else { 1 };
    let whole = request.blocks.max(floor);
    let mode = params.flight.mode;
    let with_all = |c: &Candidate| match c.id == home {
        true => Candidate { overlap: whole, tail: 0.0, ..*c },
        false => counted(c, mode),
    };
    let supposed: smallvec::SmallVec<[Candidate; 8]> = candidates.iter().map(with_all).collect();
    select(request, &supposed, params).and_then(|d| d.ranked.first().map(|r| r.id)) == Some(home)
}

#[cfg(test)]
mod tests;
