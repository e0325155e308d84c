//! Which replica: every policy ranks all candidates and says why the first one is first. Failover walks the ranking.

use super::cost::{Price, Prospect, Tokens, price};
use super::flight::{Flight, FlightParams};
use super::hint::HintUse;
use super::lane::Gate;
use super::ranking::{Order, Ranking};
use super::room;
use super::score::{AffinityParams, LoadParams, Peers};
use crate::types::{PolicyKind, ReplicaId};
use smallvec::SmallVec;

/// One replica as a choice sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// Which one.
    pub id: ReplicaId,
    /// Whether nothing keeps it from new requests.
    pub healthy: bool,
    /// Leading blocks of the prompt that it holds, those included that it is reading for others.
    pub overlap: u32,
    /// Those that it has read.
    pub confirmed: u32,
    /// Tokens that it holds after those.
    pub tail: f64,
    /// Units reserved there.
    pub load: u32,
    /// The work and the rates there.
    pub prospect: Prospect,
}

/// What is to be placed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RouteRequest {
    /// Size of the body in bytes.
    pub body_bytes: u64,
    /// Canonical bytes of its prompt; 0 when it was not read.
    pub prompt_bytes: u64,
    /// Full blocks of the prompt; 0 when there is nothing to compare.
    pub blocks: u32,
    /// The same in tokens, as far as they are known.
    pub tokens: Tokens,
    /// Drawn by the caller; equal candidates take turns by it.
    pub salt: u64,
}

/// How to place it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Params {
    /// The rule.
    pub policy: PolicyKind,
    /// The affinity rule's parameters.
    pub affinity: AffinityParams,
    /// How much a request reserves.
    pub load: LoadParams,
    /// What is done about prefixes that are being read.
    pub flight: FlightParams,
}

/// Why the first of a ranking is first. The names are metric labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// It holds as much of the prompt as any candidate, and that is something.
    Affinity,
    /// Another one holds more of the prompt but is too busy.
    Spill,
    /// Nobody holds any of the prompt: the least loaded.
    Cold,
    /// The policy looks at load only, or the request has no prompt to compare.
    Load,
    /// Its session has been there.
    Hint,
    /// The policy takes turns.
    RoundRobin,
    /// There was one candidate.
    Only,
    /// Nobody is healthy; all were candidates.
    FailOpen,
    /// It alone keeps what the request names.
    Pinned,
    /// The best one has just failed this prompt, or the turn before it.
    Setback,
}

/// A replica's place in a ranking and what put it there.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ranked {
    /// Which one.
    pub id: ReplicaId,
    /// Blocks of the prompt that it holds.
    pub overlap: u32,
    /// Tokens of the prompt that it holds, as far as sizes in tokens are known.
    pub held: f64,
    /// `A(r)` in blocks; 0 where the policy does not look at overlap.
    pub credit: u32,
    /// Units reserved there at the time of the choice; more than there are where the replica has come back lately.
    pub load: u32,
    /// Higher is better.
    pub score: f64,
    /// What the score is made of, under the cost policy.
    pub price: Price,
    /// Units that this request reserves there.
    pub units: u32,
}

/// A ranking with its reason.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// Best first, within each group; every candidate of the pool that was chosen from. Failover may bring replicas of
    /// other nodes forward.
    pub ranked: Ranking,
    /// Why the first is first.
    pub reason: Reason,
    /// What single flight had to say.
    pub flight: Option<Flight>,
    /// What the session's hint was worth, if there was one to weigh.
    pub hint: Option<HintUse>,
    /// What the lane for long prompts had to do with it.
    pub gate: Gate,
    /// Whether the caches are too small for the sessions that live there, and guests are to take turns: see [`room`].
    pub crowded: bool,
    /// How many of the first are preferred as a group: failover goes through them before any other.
    pub preferred: usize,
    /// How many of those before the first were passed over: they have no room for it now, or turn requests away.
    pub passed: usize,
}

impl Reason {
    /// Every reason, in the order of the metrics' label values.
    pub const ALL: [Reason; 10] = [
        Reason::Affinity,
        Reason::Spill,
        Reason::Cold,
        Reason::Load,
        Reason::Hint,
        Reason::RoundRobin,
        Reason::Only,
        Reason::FailOpen,
        Reason::Pinned,
        Reason::Setback,
    ];

    /// The label value.
    pub fn label(self) -> &'static str {
        match self {
            Reason::Affinity => "affinity",
            Reason::Spill => "spill",
            Reason::Cold => "cold",
            Reason::Load => "load",
            Reason::Hint => "hint",
            Reason::RoundRobin => "round_robin",
            Reason::Only => "only",
            Reason::FailOpen => "fail_open",
            Reason::Pinned => "pinned",
            Reason::Setback => "setback",
        }
    }
}

/// Ranks the healthy candidates, or all of them when none is healthy; `None` when there are none at all.
pub fn select(request: RouteRequest, candidates: &[Candidate], params: &Params) -> Option<Decision> {
    let fail_open = !candidates.iter().any(|c| c.healthy);
    let pool = || candidates.iter().filter(|c| c.healthy || fail_open);
    let peers = pool().fold(Peers { lead: 0, least: u32::MAX }, |peers, c| Peers {
        lead: peers.lead.max(c.overlap),
        least: peers.least.min(c.overlap),
    });
    let order = Order { by_overlap: looks_at_overlap(params.policy), turn: turn(pool().map(|c| c.id), request.salt)? };
    let lost = room::losses(pool().map(|c| &c.prospect.room));
    let crowded = lost.crowded && params.policy == PolicyKind::Cost;
    let mut list = SmallVec::with_capacity(candidates.len());
    list.extend(pool().zip(lost.each()).map(|(c, lost)| rank(request, c, lost, peers, params)));
    let ranked = Ranking::new(list, order);
    let reason = match params.policy {
        _ if fail_open => Reason::FailOpen,
        _ if ranked.len() == 1 => Reason::Only,
        PolicyKind::RoundRobin => Reason::RoundRobin,
        policy if looks_at_overlap(policy) && request.blocks > 0 => affinity_reason(ranked.first(), peers),
        _ => Reason::Load,
    };
    let (preferred, gate) = (ranked.len(), Gate::Open);
    Some(Decision { preferred, ranked, reason, flight: None, hint: None, gate, crowded, passed: 0 })
}

/// Whose turn it is among equals: one after the other, in the order of their slots.
fn turn(pool: impl Iterator<Item = ReplicaId> + Clone, salt: u64) -> Option<ReplicaId> {
    let (count, last) = pool.clone().fold((0, Some(ReplicaId(0))), |(count, last), id| {
        // none, once one is out of order
        (count + 1, last.filter(|last| *last <= id).map(|_| id))
    });
    let turn = usize::try_from(salt.checked_rem(count)?).unwrap_or(0);
    if last.is_some() {
        return pool.clone().nth(turn);
    }
    let mut ids: SmallVec<[ReplicaId; 64]> = pool.collect();
    ids.sort_unstable();
    ids.get(turn).copied()
}

#[inline]
fn rank(request: RouteRequest, c: &Candidate, lost: f64, peers: Peers, params: &Params) -> Ranked {
    let mut credit = 0;
    let price = price(request.tokens, (c.overlap, c.tail), lost, &c.prospect);
    let score = match params.policy {
        PolicyKind::Cost => -price.total(),
        PolicyKind::Affinity => {
            credit = params.affinity.credit(c.overlap, peers);
            params.affinity.score(credit, c.load)
        }
        PolicyKind::Load => -f64::from(c.load),
        PolicyKind::RoundRobin => 0.0,
    };
    let units = params.load.units(request.body_bytes, request.prompt_bytes, c.overlap);
    let (held, _) = request.tokens.split(c.overlap, c.tail);
    Ranked { id: c.id, overlap: c.overlap, held, credit, load: c.load, score, price, units }
}

pub(super) fn looks_at_overlap(policy: PolicyKind) -> bool {
    matches!(policy, PolicyKind::Cost | PolicyKind::Affinity)
}

fn affinity_reason(first: Option<&Ranked>, peers: Peers) -> Reason {
    match first {
        _ if peers.lead == 0 => Reason::Cold,
        Some(first) if first.overlap == peers.lead => Reason::Affinity,
        _ => Reason::Spill,
    }
}

#[cfg(test)]
mod tests;
