//! Where sessions were last: a bounded memory of their names, hashed with a number that only this process knows.
//!
//! Two halves, young and old. What is used is written into the young half; when that is full, it becomes the old one and
//! what was old is forgotten. So a session stays known until at least 32,768 others were used after it, and nothing is
//! sorted.

use crate::pack::record;
use crate::types::ReplicaId;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Sessions in one half: 65,536 in all.
const HALF: usize = 1 << 15;

/// The last replica of each session.
#[derive(Debug)]
pub struct Hints {
    secret: u64,
    /// Held for a look-up and an insertion.
    halves: Mutex<Halves>,
}

/// A session's last request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Last {
    /// Where it was.
    pub replica: ReplicaId,
    /// The size of its prompt in tokens, as was estimated.
    pub tokens: f32,
}

record!(Last { replica, tokens });

#[derive(Debug, Default)]
struct Halves {
    young: HashMap<u64, Last>,
    old: HashMap<u64, Last>,
}

impl Default for Hints {
    /// Nothing known.
    fn default() -> Self {
        // from the seed that the standard library draws for its maps
        Hints { secret: RandomState::new().hash_one(HALF), halves: Mutex::default() }
    }
}

impl Hints {
    /// The number that names are hashed with, and all that is known, the older half first.
    pub fn all(&self) -> (u64, Vec<(u64, Last)>) {
        let halves = self.halves.lock();
        (self.secret, halves.old.iter().chain(&halves.young).map(|(key, last)| (*key, *last)).collect())
    }

    /// Takes in what another process knew.
    pub fn restore(&mut self, secret: u64, known: impl Iterator<Item = (u64, Last)>) {
        self.secret = secret;
        let halves = self.halves.get_mut();
        known.for_each(|(key, last)| halves.put(key, last));
    }

    /// Where the session of this key was last.
    pub fn home(&self, key: u64) -> Option<ReplicaId> {
        self.last(key).map(|last| last.replica)
    }

    /// The last request of the session of this key.
    pub fn last(&self, key: u64) -> Option<Last> {
        let key = self.hashed(key);
        let mut halves = self.halves.lock();
        if let Some(last) = halves.young.get(&key) {
            return Some(*last);
        }
        let last = halves.old.remove(&key)?;
        halves.put(key, last);
        Some(last)
    }

    /// A request of the session, `tokens` long, got its first token at `replica`.
    pub fn remember(&self, key: u64, replica: ReplicaId, tokens: f64) {
        #[expect(clippy::cast_possible_truncation, reason = "an estimate")]
        let last = Last { replica, tokens: tokens as f32 };
        let key = self.hashed(key);
        let mut halves = self.halves.lock();
        halves.old.remove(&key);
        halves.put(key, last);
    }

    /// A replica has lost its cache: it is nobody's home any more.
    pub fn forget(&self, replica: ReplicaId) {
        let mut halves = self.halves.lock();
        halves.young.retain(|_, last| last.replica != replica);
        halves.old.retain(|_, last| last.replica != replica);
    }

    fn hashed(&self, key: u64) -> u64 {
        xxh3_64_with_seed(&key.to_le_bytes(), self.secret)
    }

    /// Sessions known.
    pub fn len(&self) -> usize {
        let halves = self.halves.lock();
        halves.young.len() + halves.old.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Halves {
    fn put(&mut self, key: u64, last: Last) {
        if self.young.len() >= HALF && !self.young.contains_key(&key) {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_used_stays_and_the_rest_makes_room() {
        let hints = Hints::default();
        hints.remember(u64::MAX, ReplicaId(7), 9.0);
        for key in 0..4 * HALF as u64 {
            hints.remember(key, ReplicaId(1), 9.0);
            if key % 1000 == 0 {
                assert_eq!(hints.home(u64::MAX), Some(ReplicaId(7)), "{key}");
            }
            assert!(hints.len() <= 2 * HALF);
        }
        assert_eq!((hints.home(0), hints.home(4 * HALF as u64 - 1)), (None, Some(ReplicaId(1))));
        hints.remember(5, ReplicaId(2), 9.0);
        hints.remember(5, ReplicaId(3), 9.0);
        assert_eq!(hints.home(5), Some(ReplicaId(3)));
        hints.forget(ReplicaId(3));
        assert_eq!((hints.home(5), hints.home(u64::MAX)), (None, Some(ReplicaId(7))));
    }
}
