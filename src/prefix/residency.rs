//! The life of a claim on the index: pending at dispatch, held from the first generated token, withdrawn on failure.
//!
//! A dispatched request claims its whole chain for its replica at once, so that requests which follow a moment later
//! meet there. If its attempt then fails, only what *this* claim added is taken back, and not what another request in
//! flight on the same replica still vouches for. Chains are hashes of whole prefixes, so how much two requests share
//! is found by bisection, and a claim costs nothing per block.
//!
//! Engines report how much came from their cache. From that a replica's [`LruModel`] learns what it evicts, so that
//! evicted blocks get no credit; and one that denies, again and again, all of what it was believed to hold has lost its
//! cache: restarted behind the same address, or flushed.

mod belief;
mod costs;
mod denials;
mod look;
pub mod state;

pub use belief::Belief;

use super::crowd::{Crowd, Residents, Session};
use super::fingerprint::{Ends, Place};
use super::index::PrefixIndex;
use super::lru::{LruModel, Mark, Marks, Stamp};
use super::turns::{Turn, Turns};
use crate::types::ReplicaId;
use denials::{Block, Denials};
use std::sync::Arc;

/// A claim by one attempt of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a claim is to be confirmed or withdrawn"]
pub struct Claim {
    replica: ReplicaId,
    number: u64,
}

impl Claim {
    /// What tells it from other claims.
    pub fn number(self) -> u64 {
        self.number
    }
}

/// The size of a prompt, and where its turns end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Size {
    /// Its tokens.
    pub prompt: f64,
    /// Tokens of one of its blocks.
    pub block: f64,
    /// Where its turns end.
    pub ends: Ends,
}

/// What an answer reports, in tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Served {
    /// Of the prompt.
    pub prompt: f64,
    /// Of these, those that came from the cache.
    pub cached: f64,
    /// Of the answer.
    pub output: f64,
}

/// The index and the pending claims on it.
#[derive(Debug)]
pub struct Residency {
    index: PrefixIndex,
    turns: Turns,
    crowd: Crowd,
    replicas: Vec<AtReplica>,
    next: u64,
}

/// What is known of one replica besides the index.
#[derive(Debug, Default)]
struct AtReplica {
    pending: Vec<Pending>,
    lru: LruModel,
    /// Whether it ever reported cached tokens.
    caches: bool,
    /// What answers denied of what was believed.
    denials: Denials,
}

/// A prediction of fewer blocks proves nothing: an engine caches in blocks of its own size.
const LEAST_PREDICTED: u32 = 4;
/// Blocks by which a prediction may be off, and the share of it: sizes in tokens are estimates.
const SLACK: (f64, f64) = (2.0, 0.1);

#[derive(Debug)]
struct Pending {
    number: u64,
    chain: Arc<[u64]>,
    /// Blocks before this one were held already, or are vouched for by somebody else.
    added_from: usize,
    /// The fingerprint of that block, so that most comparisons need not look at the chain.
    key: Option<u64>,
    /// Tokens of the prompt.
    tokens: f64,
    /// Where its turns end, and its session before it.
    ends: Ends,
    session: Option<Session>,
}

impl Pending {
    /// Whether it vouches for blocks of `chain`. Fingerprints are chained: where one block is the same, all before it are.
    fn reads(&self, chain: &[u64]) -> bool {
        self.key.is_some() && chain.get(self.added_from).copied() == self.key
    }

    fn set_added_from(&mut self, block: usize) {
        self.added_from = block;
        self.key = self.chain.get(block).copied();
    }
}

impl Residency {
    /// Nothing is held; the index uses at most `budget` bytes.
    pub fn new(budget: usize) -> Self {
        Residency {
            index: PrefixIndex::new(budget),
            turns: Turns::default(),
            crowd: Crowd::default(),
            replicas: Vec::new(),
            next: 0,
        }
    }

    /// How many leading blocks of `chain`, `block` tokens each, each replica holds or is about to hold.
    pub fn walk(&self, chain: &[u64], block: f64, session: Option<Session>, overlaps: &mut [u32]) {
        let runs = self.index.walk(chain, overlaps);
        for (id, (overlap, at)) in (0..).map(ReplicaId).zip(overlaps.iter_mut().zip(&self.replicas)) {
            if *overlap > 0 && at.lru.evicts() {
                *overlap = at.lru.held(&used_by(session, id, block, runs.at(id)), *overlap, block);
            }
        }
    }

    /// Who answered the turn before, whose prompt ended at this place.
    pub fn turn(&self, previous: Option<Place>) -> Option<Turn> {
        self.turns.get(previous?.print)
    }

    /// A prompt that ended at `end` was answered.
    pub fn answered(&mut self, end: Place, turn: Turn) {
        self.turns.set(end.print, turn);
    }

    /// The request of a claim, whose prompt ended at `own`, is over; so many tokens were generated for it.
    pub fn ended(&mut self, claim: Claim, own: Option<Place>, generated: f64) {
        self.next += 1;
        let number = self.next;
        if let Some(end) = own {
            self.crowd.end(end.print, claim.number, number);
        }
        let lru = &mut self.at(claim.replica).lru;
        if !lru.end(stamp(claim.number), stamp(number), generated) {
            lru.touch_more(generated);
        }
    }

    /// The session whose last prompt ended there.
    pub fn session(&self, previous: Option<Place>) -> Option<Session> {
        self.crowd.session(previous)
    }

    /// The sessions that are expected to return to `replica`, besides this one.
    pub fn others(&self, replica: ReplicaId, session: Option<Session>) -> Residents {
        let mut others = self.crowd.residents(replica);
        if let Some(here) = session.filter(|s| s.replica == replica && s.is_expected()) {
            others = Residents { sessions: others.sessions - 1, tokens: others.tokens - here.needs() };
        }
        others
    }

    /// Takes off `overlaps`, as [`Self::walk`] gave them, what is still being read.
    pub fn confirmed(&self, chain: &[u64], overlaps: &mut [u32]) {
        for (at, overlap) in self.replicas.iter().zip(overlaps).filter(|(_, overlap)| **overlap > 0) {
            let read_from = at.pending.iter().filter(|p| p.reads(chain)).map(|p| p.added_from).min();
            *overlap = read_from.map_or(*overlap, |from| u32::try_from(from).unwrap_or(u32::MAX).min(*overlap));
        }
    }

    /// The pending claim by which `replica` reads more of the beginning of `chain` than by any other, the earliest one
    /// of several: see [`Claim::number`].
    pub fn reader(&self, chain: &[u64], replica: ReplicaId) -> Option<u64> {
        let reading = self.replicas.get(replica.index())?.pending.iter().filter(|p| p.reads(chain));
        reading.max_by_key(|p| (shared(&p.chain, chain), std::cmp::Reverse(p.number))).map(|p| p.number)
    }

    /// Claims `chain` for `replica` as pending.
    pub fn claim(&mut self, chain: &Arc<[u64]>, size: Size, replica: ReplicaId) -> (Claim, Belief) {
        self.next += 1;
        let (number, now) = (self.next, stamp(self.next));
        let (added_from, runs) = self.index.hold(chain, replica, now);
        #[expect(clippy::cast_precision_loss, reason = "blocks of a prompt fit a float")]
        let there = added_from as f64 * size.block;
        let came = self.crowd.come(number, size.ends, replica, (size.prompt, there));
        let session = came.and_then(|(before, _)| before);
        let marks = used_by(session, replica, size.block, runs.at(replica));
        let at = self.at(replica);
        let known = at.pending.iter().filter(|o| o.reads(chain)).map(|o| o.added_from).fold(added_from, usize::min);
        let (key, tokens) = (chain.get(added_from).copied(), size.prompt);
        let ends = size.ends;
        at.pending.push(Pending { number, chain: chain.clone(), added_from, key, tokens, ends, session });
        let known = u32::try_from(known).unwrap_or(u32::MAX);
        let held = at.lru.held(&marks, known, size.block);
        let mut back = at.lru.back();
        let used = |m: &Mark<Stamp>| Mark { end: m.end, used: (m.used, back.distance(m.used, f64::MAX)), own: m.own };
        let runs = marks.iter().map(used).collect();
        match came {
            Some((_, now)) => {
                if let Some((before, used)) = session.and_then(|s| Some((s, s.last_use(replica)?))) {
                    at.lru.take(stamp(used), before.tokens);
                }
                at.lru.begin(stamp(number), now.tokens);
            }
            None => {
                let there = u32::try_from(added_from).unwrap_or(u32::MAX);
                at.lru.touch(now, &marks, there, size.block, size.prompt);
            }
        }
        (Claim { replica, number }, Belief { claimed: now, known, held, runs, block: size.block, prompt: size.prompt })
    }

    /// The engine has generated: the whole prompt is in its cache.
    pub fn confirm(&mut self, claim: Claim) {
        let Some(held) = self.take(claim) else { return };
        for other in self.at(claim.replica).pending.iter_mut().filter(|o| o.reads(&held.chain)) {
            other.set_added_from(shared(&held.chain, &other.chain));
        }
    }

    /// The attempt failed before it generated: what it added is not there.
    pub fn withdraw(&mut self, claim: Claim) {
        let Some(failed) = self.take(claim) else { return };
        let mut from = failed.added_from;
        self.crowd.undo(failed.number, failed.ends, failed.session);
        let at = self.at(claim.replica);
        at.lru.withdraw(stamp(failed.number), failed.tokens);
        for other in at.pending.iter_mut().filter(|o| failed.reads(&o.chain)) {
            // the other one takes over what both would have added
            from = from.max(shared(&failed.chain, &other.chain));
            if other.added_from > failed.added_from {
                other.set_added_from(failed.added_from);
            }
        }
        self.index.withdraw(&failed.chain, from, claim.replica);
    }

    /// The replica has lost its cache, and with it what is pending there.
    pub fn forget(&mut self, replica: ReplicaId) {
        self.index.forget(replica);
        self.crowd.forget(replica);
        let at = self.at(replica);
        let mut lru = std::mem::take(&mut at.lru);
        lru.empty();
        *at = AtReplica { lru, ..AtReplica::default() };
    }

    /// So many claims have been made, and other things that are numbered with them.
    pub fn claims(&self) -> u64 {
        self.next
    }

    /// What the replica held when so many claims had been made, all of them if it is not said, is gone; what was claimed since
    /// is not.
    pub fn void(&mut self, replica: ReplicaId, claims: Option<u64>) {
        let last = stamp(claims.unwrap_or(self.next));
        self.at(replica).lru.was_emptied(last);
    }

    /// The slot is nobody's any more: nothing is known of who comes there next.
    pub fn vacate(&mut self, replica: ReplicaId) {
        self.index.forget(replica);
        self.turns.forget(replica);
        self.crowd.forget(replica);
        // nor does a session come back there whose request elsewhere fails
        for pending in self.replicas.iter_mut().flat_map(|at| &mut at.pending) {
            pending.session = pending.session.and_then(|mut session| session.leave(replica).then_some(session));
        }
        *self.at(replica) = AtReplica::default();
    }

    /// The truth about a prompt that was just served: what was believed of it against what its answer tells. Blocks that
    /// were believed to be there and were not, or the other way round, teach what its replica keeps. Returns whether the
    /// replica has lost its cache, if that is news: an engine that never caches is not reported again and again.
    pub fn report(&mut self, replica: ReplicaId, belief: &Belief, served: Served) -> bool {
        // now that its tokens are known, those of its blocks are
        let block = belief.block * served.prompt / belief.prompt.max(1.0);
        let at = self.at(replica);
        at.caches |= served.cached > 0.0;
        // an engine that always says 0 does not tell
        if block <= 0.0 || !at.caches {
            return false;
        }
        let (cached, known) = (served.cached / block, f64::from(belief.known));
        let held = f64::from(belief.held);
        let slack = SLACK.0 + SLACK.1 * held;
        if cached >= held - slack {
            at.denials.agree(cached > 0.0);
            if belief.known >= LEAST_PREDICTED
                && let Some((used, distance)) = belief.kept(cached.min(known) - slack, block).filter(|_| cached > 0.0)
            {
                at.denials.kept(Block { claimed: belief.claimed, used, distance }, &mut at.lru);
                at.lru.was_kept(used, distance);
            }
            return false;
        }
        let Some((used, distance)) = belief.gone(cached + 1.0, block) else { return false };
        at.denials.deny(Block { claimed: belief.claimed, used, distance }, (cached, held), &mut at.lru)
    }

    /// What the cache of `replica` is believed to hold; see [`LruModel::keeps`].
    pub fn keeps(&self, replica: ReplicaId) -> Option<f64> {
        self.replicas.get(replica.index()).and_then(|at| at.lru.keeps())
    }

    /// The session whose turn before ended at `previous`: tokens of its prompt then, and the part of its cache that
    /// `replica` has used since it was last there: 0 where that is not known, 1 where its blocks are driven out.
    pub fn absence(&self, previous: Option<Place>, replica: ReplicaId) -> Option<(f64, f64)> {
        let session = self.session(previous)?;
        let strain = || {
            let lru = &self.replicas.get(replica.index())?.lru;
            let (keeps, used) = (lru.keeps()?, session.last_use(replica)?);
            Some(lru.back().distance(stamp(used), keeps) / keeps)
        };
        Some((session.trunk + session.tokens, strain().unwrap_or(0.0)))
    }

    /// The cache of `replica` holds so many tokens.
    pub fn set_capacity(&mut self, replica: ReplicaId, tokens: f64) {
        self.at(replica).lru.set_capacity(tokens);
    }

    /// Lets the index use `budget` bytes; see [`PrefixIndex::allow`].
    pub fn allow(&mut self, budget: usize) -> bool {
        self.index.allow(budget)
    }

    /// Heap bytes of the index.
    pub fn bytes(&self) -> usize {
        self.index.bytes()
    }

    /// Blocks in the index.
    pub fn blocks(&self) -> usize {
        self.index.blocks()
    }

    fn at(&mut self, replica: ReplicaId) -> &mut AtReplica {
        if self.replicas.len() <= replica.index() {
            self.replicas.resize_with(replica.index() + 1, AtReplica::default);
        }
        &mut self.replicas[replica.index()]
    }

    fn take(&mut self, claim: Claim) -> Option<Pending> {
        let pending = &mut self.replicas.get_mut(claim.replica.index())?.pending;
        let at = pending.iter().position(|p| p.number == claim.number)?;
        Some(pending.swap_remove(at))
    }
}

/// The runs of a chain at a replica where its session was: beyond what it shares with others, they were last used when
/// it was there last, whoever used them elsewhere since.
fn used_by(session: Option<Session>, replica: ReplicaId, block: f64, mut marks: Marks) -> Marks {
    if let Some((session, used)) = session.and_then(|s| Some((s, stamp(s.last_use(replica)?)))) {
        for mark in marks.iter_mut().filter(|m| f64::from(m.end) * block > session.trunk + 1.0) {
            (mark.used, mark.own) = (used, true);
        }
    }
    marks
}

/// Claims are numbered without end; what is kept per block wraps.
#[expect(clippy::cast_possible_truncation, reason = "wraps on purpose")]
fn stamp(number: u64) -> Stamp {
    number as Stamp
}

/// How many leading blocks two chains share.
fn shared(a: &[u64], b: &[u64]) -> usize {
    let n = a.len().min(b.len());
    let (mut low, mut high) = (0, n);
    while low < high {
        let mid = low + (high - low) / 2;
        if a[mid] == b[mid] {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    low
}

#[cfg(test)]
mod tests;
