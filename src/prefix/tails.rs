//! What an engine holds beyond the last full block of a prompt: its rest, and the text that it generated after it. The
//! next turn of a conversation contains both, but only the engine has read them; how many tokens they are is what the
//! answer reports. Bounded: a table of the last answers, the older half of which goes at once.

use crate::types::ReplicaId;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Answers in one half of the table.
const HALF: usize = 32_768;

/// Tokens after the last block of a prompt, by that block's fingerprint and the replica.
#[derive(Debug, Default)]
pub struct Tails {
    young: Half,
    old: Half,
}

type Half = HashMap<u64, f32, BuildHasherDefault<AsItIs>>;

impl Tails {
    /// The engine holds `tokens` after the block of `print`.
    #[expect(clippy::cast_possible_truncation, reason = "a length in tokens needs no more digits")]
    pub fn set(&mut self, print: u64, replica: ReplicaId, tokens: f64) {
        if self.young.len() >= HALF {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key(print, replica), tokens.max(0.0) as f32);
    }

    /// The tokens that the engine holds after the block of `print`, 0 if that is not known.
    pub fn get(&self, print: u64, replica: ReplicaId) -> f64 {
        let key = key(print, replica);
        self.young.get(&key).or_else(|| self.old.get(&key)).map_or(0.0, |tokens| f64::from(*tokens))
    }

    /// Heap bytes in use, about.
    pub fn bytes(&self) -> usize {
        (self.young.capacity() + self.old.capacity()) * (size_of::<(u64, f32)>() + 1)
    }
}

/// Fingerprints are spread evenly already; replicas are told apart by an odd factor.
fn key(print: u64, replica: ReplicaId) -> u64 {
    print ^ (replica.index() as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Takes a key for its hash.
#[derive(Debug, Default)]
struct AsItIs(u64);

impl Hasher for AsItIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, n: u64) {
        self.0 = n;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ReplicaId = ReplicaId(0);
    const B: ReplicaId = ReplicaId(1);

    #[test]
    fn the_last_answers_are_known_and_no_more_are_kept() {
        let mut tails = Tails::default();
        for print in 0..3 * HALF as u64 {
            tails.set(print.wrapping_mul(0x9e37_79b9), A, 7.0);
        }
        let last = (3 * HALF as u64 - 1).wrapping_mul(0x9e37_79b9);
        assert_eq!((tails.get(last, A), tails.get(last, B), tails.get(0, A)), (7.0, 0.0, 0.0));
        assert!(tails.young.len() + tails.old.len() <= 2 * HALF && tails.bytes() < 4 << 20);
    }
}
