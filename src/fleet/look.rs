//! What an operator may see of what is held.

use super::Fleet;
use crate::types::ReplicaId;

impl Fleet {
    /// Who is believed to hold the prefix that ends with the block of this fingerprint.
    pub fn holders(&self, print: u64) -> Vec<ReplicaId> {
        self.residency.read().holders(print)
    }

    /// Bytes of what is remembered of requests, as far as it was ever written: ends of turns, sessions, names of sessions,
    /// and ids that replicas gave out.
    pub fn written(&self) -> [usize; 4] {
        let (turns, sessions) = self.residency.read().written();
        [turns, sessions, self.hints.written(), self.pins.written()]
    }

    /// Whether a request reads the beginning of this chain at a replica.
    #[cfg(test)]
    pub(crate) fn is_reading(&self, chain: &[u64], replica: ReplicaId) -> bool {
        self.residency.read().reader(chain, replica).is_some()
    }

    /// Whether the prefix index keeps to its budget and its parts agree.
    pub fn index_is_sound(&self) -> bool {
        self.residency.read().is_sound()
    }
}
