//! What an operator may see of it.

use super::Residency;
use crate::types::ReplicaId;

impl Residency {
    /// Who is believed to hold the prefix that ends with the block of this fingerprint.
    pub fn holders(&self, print: u64) -> Vec<ReplicaId> {
        let mut held = vec![0; self.index.holders(print).len() * 64];
        self.walk(&[print], 1.0, None, &mut held);
        (0..).map(ReplicaId).zip(held).filter(|(_, blocks)| *blocks > 0).map(|(id, _)| id).collect()
    }

    /// Bytes of entries that were ever written: of ends of turns, and of sessions.
    pub fn written(&self) -> (usize, usize) {
        (self.turns.written(), self.crowd.written())
    }

    /// Whether the index keeps to its budget and its parts agree.
    pub fn is_sound(&self) -> bool {
        self.index.is_sound()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Residency, Size};
    use super::*;
    use crate::prefix::fingerprint::Ends;
    use std::sync::Arc;

    #[test]
    fn holders_of_a_prefix_are_those_who_claimed_it() {
        let mut residency = Residency::new(1 << 20);
        let size = Size { prompt: 2048.0, block: 512.0, ends: Ends::default() };
        for (replica, chain) in [(3, [1, 2, 3]), (70, [1, 2, 9])] {
            let chain: Arc<[u64]> = chain.into();
            let (claim, _) = residency.claim(&chain, size, ReplicaId(replica));
            residency.confirm(claim);
        }
        for (print, holders) in [(2, &[3, 70][..]), (3, &[3]), (9, &[70]), (7, &[])] {
            assert_eq!(residency.holders(print), holders.iter().copied().map(ReplicaId).collect::<Vec<_>>(), "{print}");
        }
        // what it held when so much had been claimed is gone
        residency.void(ReplicaId(3), Some(residency.claims()));
        let (claim, _) = residency.claim(&[4].into(), size, ReplicaId(3));
        residency.confirm(claim);
        assert_eq!((residency.holders(2), residency.holders(4)), (vec![ReplicaId(70)], vec![ReplicaId(3)]));
        assert!(residency.is_sound());
    }
}
