//! What an operator may see of it.

use super::Residency;
use crate::types::ReplicaId;

impl Residency {
    /// Who is believed to hold the prefix that ends with the block of this fingerprint.
    pub fn holders(&self, print: u64) -> Vec<ReplicaId> {
        let bits = self.index.holders(print);
        let is_held = |id: &ReplicaId| bits.get(id.index() / 64).is_some_and(|word| word >> (id.index() % 64) & 1 == 1);
        let slots = u16::try_from(bits.len() * 64).unwrap_or(u16::MAX);
        (0..slots).map(ReplicaId).filter(is_held).collect()
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
        assert!(residency.is_sound());
    }
}
