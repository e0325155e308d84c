//! The life of a claim on the index: pending at dispatch, held from the first generated token, withdrawn on failure.
//!
//! A dispatched request claims its whole chain for its replica at once, so that requests which follow a moment later
//! meet there. If its attempt then fails, only what *this* claim added is taken back, and not what another request in
//! flight on the same replica still vouches for. Chains are hashes of whole prefixes, so how much two requests share
//! is found by bisection, and a claim costs nothing per block.

use super::index::PrefixIndex;
use crate::types::ReplicaId;
use std::sync::Arc;

/// A claim by one attempt of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a claim is to be confirmed or withdrawn"]
pub struct Claim {
    replica: ReplicaId,
    number: u64,
}

/// The index and the pending claims on it.
#[derive(Debug)]
pub struct Residency {
    index: PrefixIndex,
    pending: Vec<Vec<Pending>>,
    next: u64,
}

#[derive(Debug)]
struct Pending {
    number: u64,
    chain: Arc<[u64]>,
    /// Blocks before this one were held already, or are vouched for by somebody else.
    added_from: usize,
}

impl Residency {
    /// Nothing is held; the index uses at most `budget` bytes.
    pub fn new(budget: usize) -> Self {
        Residency { index: PrefixIndex::new(budget), pending: Vec::new(), next: 0 }
    }

    /// How many leading blocks of `chain` each replica holds or is about to hold.
    pub fn walk(&self, chain: &[u64], overlaps: &mut [u32]) {
        self.index.walk(chain, overlaps);
    }

    /// Claims `chain` for `replica` as pending.
    pub fn claim(&mut self, chain: &Arc<[u64]>, replica: ReplicaId) -> Claim {
        let added_from = self.index.hold(chain, replica);
        if self.pending.len() <= replica.index() {
            self.pending.resize_with(replica.index() + 1, Vec::new);
        }
        self.next += 1;
        self.pending[replica.index()].push(Pending { number: self.next, chain: chain.clone(), added_from });
        Claim { replica, number: self.next }
    }

    /// The engine has generated: the whole prompt is in its cache.
    pub fn confirm(&mut self, claim: Claim) {
        let Some(held) = self.take(claim) else { return };
        for other in &mut self.pending[claim.replica.index()] {
            other.added_from = other.added_from.max(shared(&held.chain, &other.chain));
        }
    }

    /// The attempt failed before it generated: what it added is not there.
    pub fn withdraw(&mut self, claim: Claim) {
        let Some(failed) = self.take(claim) else { return };
        let mut from = failed.added_from;
        for other in &mut self.pending[claim.replica.index()] {
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
        if let Some(pending) = self.pending.get_mut(replica.index()) {
            pending.clear();
        }
    }

    /// Heap bytes of the index.
    pub fn bytes(&self) -> usize {
        self.index.bytes()
    }

    /// Blocks in the index.
    pub fn blocks(&self) -> usize {
        self.index.blocks()
    }

    fn take(&mut self, claim: Claim) -> Option<Pending> {
        let pending = self.pending.get_mut(claim.replica.index())?;
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
    fn a_claim_ends_once() {
        let mut r = Residency::new(1 << 20);
        let a = r.claim(&chain(&[1]), R);
        r.confirm(a);
        r.withdraw(a);
        assert_eq!(overlap(&r, &[1]), 1);
    }
}
