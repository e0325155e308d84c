//! The life of a claim on the index: pending at dispatch, held from the first generated token, withdrawn on failure.
//!
//! A dispatched request claims its whole chain for its replica at once, so that requests which follow a moment later
//! meet there. If its attempt then fails, only what *this* claim added is taken back, and not what another request in
//! flight on the same replica still vouches for. Chains are hashes of whole prefixes, so how much two requests share
//! is found by bisection, and a claim costs nothing per block.
//!
//! Engines report how much came from their cache. A replica that denies, again and again, all of what it was believed to
//! hold has lost its cache: restarted behind the same address, or flushed.

use super::index::PrefixIndex;
use crate::types::ReplicaId;
use std::sync::Arc;

/// A claim by one attempt of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a claim is to be confirmed or withdrawn"]
pub struct Claim {
    replica: ReplicaId,
    number: u64,
    confirmed: u32,
}

impl Claim {
    /// What tells it from other claims.
    pub fn number(self) -> u64 {
        self.number
    }

    /// Leading blocks that were held before, not counting those that another pending claim alone vouched for.
    pub fn confirmed_before(self) -> u32 {
        self.confirmed
    }
}

/// The index and the pending claims on it.
#[derive(Debug)]
pub struct Residency {
    index: PrefixIndex,
    replicas: Vec<AtReplica>,
    next: u64,
}

/// What is known of one replica besides the index.
#[derive(Debug, Default)]
struct AtReplica {
    pending: Vec<Pending>,
    /// Answers in a row that denied all of a prefix that was believed to be held.
    denials: u32,
    /// Whether that was told, and no answer has spoken of cached tokens since.
    told: bool,
}

/// So many denials in a row mean that a cache was emptied. One or two may be prompts of their own kind, or old ones that
/// were evicted.
const DENIALS: u32 = 3;
/// A prediction of fewer blocks proves nothing: an engine caches in blocks of its own size.
const LEAST_PREDICTED: u32 = 4;

#[derive(Debug)]
struct Pending {
    number: u64,
    chain: Arc<[u64]>,
    /// Blocks before this one were held already, or are vouched for by somebody else.
    added_from: usize,
}

impl Pending {
    /// Whether it vouches for blocks of `chain`. Fingerprints are chained: where one block is the same, all before it are.
    fn reads(&self, chain: &[u64]) -> bool {
        self.chain.get(self.added_from).is_some_and(|print| chain.get(self.added_from) == Some(print))
    }
}

impl Residency {
    /// Nothing is held; the index uses at most `budget` bytes.
    pub fn new(budget: usize) -> Self {
        Residency { index: PrefixIndex::new(budget), replicas: Vec::new(), next: 0 }
    }

    /// How many leading blocks of `chain` each replica holds or is about to hold.
    pub fn walk(&self, chain: &[u64], overlaps: &mut [u32]) {
        self.index.walk(chain, overlaps);
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
    pub fn claim(&mut self, chain: &Arc<[u64]>, replica: ReplicaId) -> Claim {
        let added_from = self.index.hold(chain, replica);
        self.next += 1;
        let number = self.next;
        let pending = &mut self.at(replica).pending;
        let vouched = |other: &Pending| shared(chain, &other.chain) > other.added_from;
        let confirmed = pending.iter().filter(|o| vouched(o)).map(|o| o.added_from).fold(added_from, usize::min);
        pending.push(Pending { number, chain: chain.clone(), added_from });
        Claim { replica, number, confirmed: u32::try_from(confirmed).unwrap_or(u32::MAX) }
    }

    /// The engine has generated: the whole prompt is in its cache.
    pub fn confirm(&mut self, claim: Claim) {
        let Some(held) = self.take(claim) else { return };
        for other in &mut self.at(claim.replica).pending {
            other.added_from = other.added_from.max(shared(&held.chain, &other.chain));
        }
    }

    /// The attempt failed before it generated: what it added is not there.
    pub fn withdraw(&mut self, claim: Claim) {
        let Some(failed) = self.take(claim) else { return };
        let mut from = failed.added_from;
        for other in &mut self.at(claim.replica).pending {
            let common = shared(&failed.chain, &other.chain);
            if common > failed.added_from {
                // the other one takes over what both would have added
                other.added_from = other.added_from.min(failed.added_from);
                from = from.max(common);
            }
        }
        self.index.withdraw(&failed.chain, from, claim.replica);
    }

    /// The replica has lost its cache, and with it what is pending there.
    pub fn forget(&mut self, replica: ReplicaId) {
        self.index.forget(replica);
        *self.at(replica) = AtReplica::default();
    }

    /// The truth about a prompt that was just served: `predicted` leading blocks of `chain` were held when it was claimed
    /// ([`Claim::confirmed_before`]), `cached` tokens came from the cache. When this shows that the cache had been emptied,
    /// everything is forgotten but this prompt and those being read there now. Returns whether that is news: an engine
    /// that never caches is not reported again and again.
    pub fn report(&mut self, chain: &[u64], replica: ReplicaId, predicted: u32, cached: u64) -> bool {
        if predicted < LEAST_PREDICTED {
            return false;
        }
        let at = self.at(replica);
        if cached > 0 {
            (at.denials, at.told) = (0, false);
            return false;
        }
        at.denials += 1;
        if at.denials < DENIALS {
            return false;
        }
        at.denials = 0;
        let is_news = !std::mem::replace(&mut at.told, true);
        self.index.forget(replica);
        self.index.hold(chain, replica);
        if let Some(at) = self.replicas.get_mut(replica.index()) {
            for pending in &mut at.pending {
                pending.added_from = pending.added_from.min(self.index.hold(&pending.chain, replica));
            }
        }
        is_news
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
mod tests {
    use super::*;

    const R: ReplicaId = ReplicaId(0);

    fn chain(prints: &[u64]) -> Arc<[u64]> {
        prints.into()
    }

    fn overlap(r: &Residency, prints: &[u64]) -> u32 {
        let mut out = [0; 2];
        r.walk(prints, &mut out);
        out[0]
    }

    #[test]
    fn a_failed_claim_takes_back_what_it_added_and_no_more() {
        let mut r = Residency::new(1 << 20);
        let first = r.claim(&chain(&[1, 2]), R);
        r.confirm(first);
        let second = r.claim(&chain(&[1, 2, 3, 4]), R);
        assert_eq!(overlap(&r, &[1, 2, 3, 4]), 4);
        r.withdraw(second);
        assert_eq!(overlap(&r, &[1, 2, 3, 4]), 2);
    }

    #[test]
    fn what_another_request_confirmed_stays() {
        let mut r = Residency::new(1 << 20);
        let a = r.claim(&chain(&[1, 2, 3]), R);
        let b = r.claim(&chain(&[1, 2, 9]), R);
        r.confirm(b);
        r.withdraw(a);
        assert_eq!((overlap(&r, &[1, 2, 3]), overlap(&r, &[1, 2, 9])), (2, 3));
    }

    #[test]
    fn what_another_request_still_prefills_stays_until_that_fails_too() {
        let mut r = Residency::new(1 << 20);
        let a = r.claim(&chain(&[1, 2, 3]), R);
        let b = r.claim(&chain(&[1, 2, 9]), R);
        r.withdraw(a);
        assert_eq!((overlap(&r, &[1, 2, 3]), overlap(&r, &[1, 2, 9])), (2, 3));
        r.withdraw(b);
        assert_eq!((overlap(&r, &[1, 2, 9]), r.blocks()), (0, 0));
    }

    #[test]
    fn what_was_pending_when_the_cache_was_lost_changes_nothing_afterwards() {
        let mut r = Residency::new(1 << 20);
        let a = r.claim(&chain(&[1, 2]), R);
        r.forget(R);
        let b = r.claim(&chain(&[1, 2]), R);
        r.withdraw(a);
        assert_eq!(overlap(&r, &[1, 2]), 2);
        r.confirm(b);
        assert_eq!(overlap(&r, &[1, 2]), 2);
    }

    #[test]
    fn an_emptied_cache_is_noticed_by_the_third_denial_in_a_row() {
        let mut r = Residency::new(1 << 20);
        let session = |head: u64| chain(&[head, head + 1, head + 2, head + 3, head + 4]);
        for head in [10, 20, 30] {
            let claim = r.claim(&session(head), R);
            r.confirm(claim);
        }
        let reading = r.claim(&session(40), R);
        assert!(!r.report(&session(10), R, 5, 0));
        assert!(!r.report(&session(10), R, 5, 0));
        assert!(!r.report(&session(10), R, 5, 900), "prompts of their own kind");
        assert!(!r.report(&session(10), R, 3, 0), "too little was predicted");
        assert!(!r.report(&session(10), R, 5, 0));
        assert!(!r.report(&session(30), R, 5, 0));
        assert!(r.report(&session(20), R, 5, 0));
        assert_eq!((overlap(&r, &session(30)), overlap(&r, &session(10))), (0, 0));
        assert_eq!((overlap(&r, &session(20)), overlap(&r, &session(40))), (5, 5));
        for _ in 0..6 {
            assert!(!r.report(&session(20), R, 5, 0), "it was told already");
        }
        r.withdraw(reading);
        assert_eq!(overlap(&r, &session(40)), 0);
    }

    #[test]
    fn a_burst_that_shares_a_new_prefix_denies_nothing() {
        let mut r = Residency::new(1 << 20);
        let held = r.claim(&chain(&[1, 2]), R);
        r.confirm(held);
        let burst: Vec<_> = (0..4).map(|n| r.claim(&chain(&[1, 2, 3, 4, 5, 6, 7, n]), R)).collect();
        assert_eq!(burst.iter().map(|c| c.confirmed_before()).collect::<Vec<_>>(), [2, 2, 2, 2]);
        for claim in burst {
            r.confirm(claim);
        }
        let next = r.claim(&chain(&[1, 2, 3, 4, 5, 6, 7, 2, 9]), R);
        assert_eq!(next.confirmed_before(), 8);
        r.confirm(next);
    }

    #[test]
    fn what_is_being_read_is_told_from_what_was_read() {
        let mut r = Residency::new(1 << 20);
        let held = r.claim(&chain(&[1, 2]), R);
        r.confirm(held);
        let leader = r.claim(&chain(&[1, 2, 3, 4]), R);
        let deeper = r.claim(&chain(&[1, 2, 3, 4, 5]), R);
        let follower = r.claim(&chain(&[1, 2, 3, 9]), R);
        let confirmed = |r: &Residency, prints: &[u64]| {
            let mut out = [overlap(r, prints), 0];
            r.confirmed(prints, &mut out);
            out[0]
        };
        assert_eq!((overlap(&r, &[1, 2, 3, 4, 6]), confirmed(&r, &[1, 2, 3, 4, 6])), (4, 2));
        assert_eq!(confirmed(&r, &[1, 2, 8]), 2);
        assert_eq!(r.reader(&[1, 2, 3, 4, 6], R), Some(leader.number()));
        assert_eq!(r.reader(&[1, 2, 3, 4, 5, 6], R), Some(deeper.number()));
        assert_eq!((r.reader(&[1, 2, 8], R), r.reader(&[1, 2, 3], ReplicaId(1))), (None, None));
        r.withdraw(leader);
        // the follower reads now what the leader would have read
        assert_eq!(r.reader(&[1, 2, 3], R), Some(deeper.number()));
        r.confirm(deeper);
        assert_eq!((confirmed(&r, &[1, 2, 3, 4, 5]), r.reader(&[1, 2, 3, 4, 5], R)), (5, None));
        r.confirm(follower);
    }

    #[test]
    fn a_claim_ends_once() {
        let mut r = Residency::new(1 << 20);
        let a = r.claim(&chain(&[1]), R);
        r.confirm(a);
        r.withdraw(a);
        assert_eq!(overlap(&r, &[1]), 1);
    }
}
