//! A lane for long prompts: replicas that are kept free for them, so that a short question never waits behind a
//! prompt that takes a minute to read, and a long one never spoils the batch of many short ones.
//!
//! The lane does not rank. It says which candidates go before which, and whatever ranks is asked for each of the two
//! groups: so every policy works within the lane as it does outside, and the replicas that are held back are no peers
//! of the others. Nobody is dropped: the second group follows the first, for failover.
//!
//! `avoid` lets a short request in only where that saves more than it costs:
//! - Under `cost`, when the lane's price is below the best other price although the next long prompts are counted, too: they
//!   wait for what the lane has to read for this one, as if they were there already. A session that is cached in
//!   the lane has next to nothing to read, so that it stays there for as long as the prices say so.
//! - Under the other policies, when every other replica is busier than the lane by as much as the largest request
//!   weighs; or, where overlap counts at all, when leaving would mean to read a quarter of the prompt again.

use super::cost::WAITING;
use super::select::{Candidate, Decision, Params, Ranked, RouteRequest, looks_at_overlap};
use crate::types::{PolicyKind, ReplicaId, ShortPrompts};
use smallvec::SmallVec;

/// The share of a prompt that a lane must hold, beyond what any other replica does, to keep its session: one in this.
const WORTH_KEEPING: u32 = 4;

/// For how many long prompts that may come at any time a lane is kept free.
const NEXT: f64 = 2.0;

/// The rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lane {
    /// Bodies of more bytes are long.
    pub over: u64,
    /// Where the others go.
    pub short: ShortPrompts,
}

/// What the lane had to do with a choice. The names are metric labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Gate {
    /// Nothing: there is no lane, or it is open to all.
    Open,
    /// A long prompt went to the lane.
    Long,
    /// A long prompt found no healthy replica in the lane.
    NoLane,
    /// A short one went elsewhere.
    KeptOut,
    /// A short one went to the lane: that saves more than it costs, or no other replica is healthy.
    LetIn,
}

impl Gate {
    /// Every one, in the order of the metrics' label values.
    pub const ALL: [Gate; 5] = [Gate::Open, Gate::Long, Gate::NoLane, Gate::KeptOut, Gate::LetIn];

    /// The label value.
    pub fn label(self) -> &'static str {
        match self {
            Gate::Open => "open",
            Gate::Long => "long",
            Gate::NoLane => "no_lane",
            Gate::KeptOut => "kept_out",
            Gate::LetIn => "let_in",
        }
    }
}

type Pool = SmallVec<[Candidate; 8]>;

/// A rule and its lane: whether a replica is a member.
pub type Members<'a> = (&'a Lane, &'a dyn Fn(ReplicaId) -> bool);

/// Ranks the candidates with `rank`, those that the lane prefers for this request before the others.
pub fn choose(
    request: RouteRequest,
    candidates: &[Candidate],
    params: &Params,
    lane: Option<Members<'_>>,
    rank: impl Fn(&[Candidate]) -> Option<Decision>,
) -> Option<Decision> {
    let Some((lane, is_member)) = lane.filter(|(_, is_member)| candidates.iter().any(|c| is_member(c.id))) else {
        return rank(candidates);
    };
    let fail_open = !candidates.iter().any(|c| c.healthy);
    let pool = candidates.iter().filter(|c| c.healthy || fail_open).copied();
    let (inside, outside): (Pool, Pool) = pool.partition(|c| is_member(c.id));
    let in_order = |first: &[Candidate], then: &[Candidate], gate: Gate| {
        let mut decision = rank(first)?;
        decision.gate = gate;
        if let Some(others) = rank(then) {
            decision.ranked.append(others.ranked);
        }
        Some(decision)
    };
    match lane.short {
        _ if request.body_bytes > lane.over && inside.is_empty() => in_order(&outside, &[], Gate::NoLane),
        _ if request.body_bytes > lane.over => in_order(&inside, &outside, Gate::Long),
        ShortPrompts::Shared => rank(candidates),
        _ if inside.is_empty() => in_order(&outside, &[], Gate::Open),
        _ if outside.is_empty() => in_order(&inside, &[], Gate::LetIn),
        ShortPrompts::Exclusive => in_order(&outside, &inside, Gate::KeptOut),
        ShortPrompts::Avoid => {
            let (lane, others) = (rank(&inside)?, rank(&outside)?);
            let is_welcome = |c: &Candidate| lane.ranked.of(c.id).is_some_and(|r| pays(r, &others, request, params));
            let (welcome, held_back): (Pool, Pool) = inside.into_iter().partition(is_welcome);
            let mut first = outside;
            first.extend(welcome);
            let mut decision = in_order(&first, &held_back, Gate::KeptOut)?;
            if decision.ranked.first().is_some_and(|r| is_member(r.id)) {
                decision.gate = Gate::LetIn;
            }
            Some(decision)
        }
    }
}

/// Whether a short request may go to this replica of the lane.
fn pays(to: &Ranked, others: &Decision, request: RouteRequest, params: &Params) -> bool {
    if params.policy == PolicyKind::Cost {
        let best = others.ranked.unordered().iter().map(|r| r.price.total()).min_by(f64::total_cmp);
        return best.is_some_and(|best| to.price.total() + NEXT * WAITING * to.price.prefill < best);
    }
    let lead = others.ranked.unordered().iter().map(|r| r.overlap).max().unwrap_or(0);
    let kept = to.overlap.saturating_sub(lead);
    let least = others.ranked.unordered().iter().map(|r| r.load).min().unwrap_or(0);
    let cached = looks_at_overlap(params.policy) && kept > 0 && kept.saturating_mul(WORTH_KEEPING) >= request.blocks;
    cached || least >= to.load.saturating_add(params.load.max_units)
}

#[cfg(test)]
mod tests;
