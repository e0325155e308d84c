//! Fingerprints as a journal writes them: hashed with what only the writing process knows, and each chain as what it adds
//! to one that was written before.

use crate::api::sha256::sha256;
use std::collections::HashSet;

/// Blocks in one half of what is known to be written: half a million in all, some ten megabytes. What is forgotten is
/// written again.
const HALF: usize = 1 << 18;

/// Hashes fingerprints, and knows which are in the file.
pub(super) struct Hashes {
    key: [u8; 16],
    young: HashSet<u64>,
    old: HashSet<u64>,
}

impl Hashes {
    pub(super) fn new(key: [u8; 16]) -> Self {
        Hashes { key, young: HashSet::new(), old: HashSet::new() }
    }

    /// The hash of a fingerprint, or of anything else that must not be seen.
    pub(super) fn hash(&self, print: u64) -> u64 {
        let mut text = [0; 24];
        text[..16].copy_from_slice(&self.key);
        text[16..].copy_from_slice(&print.to_le_bytes());
        sha256(&text).first_chunk().map_or(0, |first| u64::from_le_bytes(*first))
    }

    /// How many leading blocks of `chain` a reader of the file knows by the last of them. All are known from now on.
    pub(super) fn known(&mut self, chain: &[u64]) -> usize {
        // what is written of a chain is written with all that goes before it
        let is_known = |print: &u64| self.young.contains(print) || self.old.contains(print);
        let known = chain.iter().rposition(is_known).map_or(0, |at| at + 1);
        for print in &chain[known.saturating_sub(1)..] {
            if self.young.len() >= HALF {
                self.old = std::mem::take(&mut self.young);
            }
            self.young.insert(*print);
        }
        known
    }

    /// Nothing is written yet: the file is another one.
    pub(super) fn forget(&mut self) {
        self.young.clear();
        self.old.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_depends_on_the_key_and_a_chain_is_written_once() {
        let (mut a, b) = (Hashes::new([1; 16]), Hashes::new([2; 16]));
        assert!(a.hash(7) == a.hash(7) && a.hash(7) != b.hash(7) && a.hash(7) != a.hash(8));
        assert_eq!((a.known(&[1, 2, 3]), a.known(&[1, 2, 3]), a.known(&[1, 2, 9, 10])), (0, 3, 2));
        assert_eq!((a.known(&[1, 2, 9]), a.known(&[5])), (3, 0));
        a.forget();
        assert_eq!(a.known(&[1, 2, 3]), 0);
    }

    #[test]
    fn memory_is_bounded_and_what_is_used_stays_known() {
        let mut hashes = Hashes::new([0; 16]);
        for n in 0..3 * HALF as u64 {
            hashes.known(&[u64::MAX, n]);
            assert!(hashes.young.len() + hashes.old.len() <= 2 * HALF);
        }
        assert_eq!((hashes.known(&[u64::MAX]), hashes.known(&[0])), (1, 0));
    }
}
