//! Where sessions were last: a bounded memory of their names, hashed with a number that only this process knows.
//!
//! A session stays known until at least 28,672 others were used after it.

use crate::pack::record;
use crate::policy::hint::Home;
use crate::policy::returns::Returns;
use crate::prefix::halves::Halves;
use crate::types::ReplicaId;
use parking_lot::Mutex;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Sessions in one half of the table.
const HALF: usize = 7 << 12;

/// The last replica of each session.
#[derive(Debug)]
pub struct Hints {
    /// Set before it is used, by whoever takes over what another process knew.
    secret: AtomicU64,
    /// Held for a look-up and an insertion.
    halves: Mutex<Halves<Last, HALF>>,
    /// Held for a few additions.
    returns: Mutex<Returns>,
}

/// A session's last request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Last {
    /// Where it was.
    pub replica: ReplicaId,
    /// The size of its prompt in tokens, as was estimated.
    pub tokens: f32,
    /// What its home has proved to be worth; see [`Home`].
    pub worth: f32,
}

record!(Last { replica, tokens, worth });

impl Last {
    /// The first turn back finds nothing, which proves nothing.
    fn lose(&mut self) {
        self.tokens = 0.0;
    }
}

impl Default for Hints {
    /// Nothing known.
    fn default() -> Self {
        // from the seed that the standard library draws for its maps
        Hints {
            secret: AtomicU64::new(RandomState::new().hash_one(HALF)),
            halves: Mutex::default(),
            returns: Mutex::default(),
        }
    }
}

impl Hints {
    /// The number that names are hashed with, and all that is known, the older half first.
    pub fn all(&self) -> (u64, Vec<(u64, Last)>) {
        (self.secret.load(Relaxed), self.halves.lock().all())
    }

    /// What sessions do.
    pub fn returns(&self) -> Returns {
        self.returns.lock().clone()
    }

    /// What they did as another process saw it.
    pub fn go_on_from(&self, returns: Returns) {
        *self.returns.lock() = returns;
    }

    /// Takes in what another process knew.
    pub fn restore(&self, secret: u64, known: impl Iterator<Item = (u64, Last)>) {
        self.secret.store(secret, Relaxed);
        let mut halves = self.halves.lock();
        known.for_each(|(key, last)| {
            halves.put(key, last);
        });
    }

    /// Where the session of this key was last.
    pub fn home(&self, key: u64) -> Option<Home> {
        self.last(key).map(|last| Home { replica: last.replica, worth: last.worth.into(), lost: last.tokens <= 0.0 })
    }

    /// The last request of the session of this key.
    pub fn last(&self, key: u64) -> Option<Last> {
        let key = self.hashed(key);
        self.halves.lock().touch(key)
    }

    /// A request of the session, `tokens` long, got its first token at `replica`. Returns the one before, if there was
    /// any.
    pub fn remember(&self, key: u64, replica: ReplicaId, tokens: f64) -> Option<Last> {
        self.heard(self.hashed(key), replica, tokens)
    }

    /// A request was read at `now`, milliseconds on the fleet's clock, which began a named session or goes on with one.
    pub fn saw(&self, goes_on: bool, now: f64) {
        self.returns.lock().saw(now, goes_on);
    }

    /// The turns that a session which begins now is expected to take after its first.
    pub fn turns(&self, now: f64) -> f64 {
        self.returns.lock().expected(now)
    }

    /// The same as another router has told, of the session whose key has this hash.
    pub fn heard(&self, hashed: u64, replica: ReplicaId, tokens: f64) -> Option<Last> {
        let mut halves = self.halves.lock();
        let before = halves.get(hashed);
        // where what it held was lost it has been read again
        let worth = before.filter(|before| before.tokens > 0.0).map_or(1.0, |before| before.worth);
        #[expect(clippy::cast_possible_truncation, reason = "an estimate")]
        let last = Last { replica, tokens: tokens as f32, worth };
        halves.put(hashed, last);
        before
    }

    /// What the home of this session held is lost.
    pub fn lost(&self, hashed: u64) {
        if let Some(last) = self.halves.lock().get_mut(hashed) {
            last.lose();
        }
    }

    /// Of what the index did not know of a prompt that came home, this share was held there.
    pub fn prove(&self, key: u64, share: f64) {
        let key = self.hashed(key);
        if let Some(last) = self.halves.lock().get_mut(key) {
            #[expect(clippy::cast_possible_truncation, reason = "a share")]
            let share = share.clamp(0.0, 1.0) as f32;
            last.worth = f32::midpoint(last.worth, share);
        }
    }

    /// A replica has lost its cache. Its sessions are at home there as before: nobody else has more of them, and the others
    /// have sessions of their own.
    pub fn emptied(&self, replica: ReplicaId) {
        self.halves.lock().retain(|last| {
            if last.replica == replica {
                last.lose();
            }
            true
        });
    }

    /// A replica is nobody's home any more.
    pub fn forget(&self, replica: ReplicaId) {
        self.halves.lock().retain(|last| last.replica != replica);
    }

    /// The hash that a key is known by.
    pub fn hashed(&self, key: u64) -> u64 {
        xxh3_64_with_seed(&key.to_le_bytes(), self.secret.load(Relaxed))
    }

    /// Bytes of entries that were ever written.
    pub fn written(&self) -> usize {
        self.halves.lock().written()
    }

    /// Sessions known.
    pub fn len(&self) -> usize {
        self.halves.lock().len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_used_stays_and_the_rest_makes_room() {
        let hints = Hints::default();
        let home = |key| hints.home(key).map(|home| home.replica);
        hints.remember(u64::MAX, ReplicaId(7), 9.0);
        for key in 0..4 * HALF as u64 {
            hints.remember(key, ReplicaId(1), 9.0);
            if key % 1000 == 0 {
                assert_eq!(home(u64::MAX), Some(ReplicaId(7)), "{key}");
            }
            assert!(hints.len() <= 2 * HALF);
        }
        assert_eq!((home(0), home(4 * HALF as u64 - 1)), (None, Some(ReplicaId(1))));
        hints.remember(5, ReplicaId(2), 9.0);
        hints.remember(5, ReplicaId(3), 9.0);
        assert_eq!(home(5), Some(ReplicaId(3)));
        hints.forget(ReplicaId(3));
        assert_eq!((home(5), home(u64::MAX)), (None, Some(ReplicaId(7))));
    }

    #[test]
    fn what_a_home_is_worth_is_learned_and_goes_along() {
        let hints = Hints::default();
        assert_eq!(hints.remember(1, ReplicaId(0), 9.0), None);
        let worth = || hints.home(1).map(|home| home.worth);
        assert_eq!(worth(), Some(1.0));
        hints.prove(1, 0.0);
        hints.prove(1, -3.0);
        assert_eq!(worth(), Some(0.25));
        assert_eq!(hints.remember(1, ReplicaId(2), 8.0).map(|last| last.replica), Some(ReplicaId(0)));
        assert_eq!(worth(), Some(0.25));
        hints.prove(1, 7.0);
        assert_eq!(worth(), Some(0.625));
        hints.prove(2, 0.0);
        assert!(hints.home(2).is_none());
        // a cache that was emptied says nothing of a session once that has been read again
        hints.emptied(ReplicaId(2));
        let lost = || hints.home(1).is_some_and(|home| home.lost);
        assert_eq!((worth(), lost()), (Some(0.625), true));
        hints.remember(1, ReplicaId(2), 8.0);
        assert_eq!((worth(), lost()), (Some(1.0), false));
    }
}
