//! Which replica holds what it gave an id to: a response that it keeps, and in the same way a file or a batch.
//!
//! Such a thing exists on one replica and nowhere else, so a request that names it goes there first, whatever the
//! ranking says, for as long as that replica takes requests. Nothing of this is lasting: what has been forgotten goes
//! where the ranking says, and the engine's own 404 is the answer.
//!
//! A process that follows another one may hash ids by another secret: those of before are looked for by the former one. Other
//! routers of a group that it joins know nothing of them.
//!
//! Bounded: the 57,344 ids used last are always known, twice as many at best, at 16 bytes each.

use crate::policy::select::{Decision, Reason};
use crate::prefix::halves::Halves;
use crate::types::ReplicaId;
use parking_lot::Mutex;
use std::sync::OnceLock;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Secrets of processes before this one that are tried.
const FORMER: usize = 4;
/// Ids that are remembered at least.
const MOST: usize = 7 << 13;

/// The memory of ids.
#[derive(Debug, Default)]
pub struct Pins {
    /// Held for a look-up or an insert. Keys are keyed hashes.
    ids: Mutex<Halves<ReplicaId, MOST>>,
    /// What ids were hashed with in processes before this one.
    former: OnceLock<Vec<u64>>,
}

/// What an id is remembered by: its keyed hash.
pub fn id_key(id: &[u8], secret: u64) -> u64 {
    xxh3_64_with_seed(id, secret)
}

impl Pins {
    /// Remembers where an id was given out.
    pub fn remember(&self, key: u64, replica: ReplicaId) {
        self.ids.lock().put(key, replica);
    }

    /// All that is known, the older ones first.
    pub fn all(&self) -> Vec<(u64, ReplicaId)> {
        self.ids.lock().all()
    }

    /// Bytes of entries that were ever written.
    pub fn written(&self) -> usize {
        self.ids.lock().written()
    }

    /// Where an id was given out.
    pub fn find(&self, key: u64) -> Option<ReplicaId> {
        self.ids.lock().touch(key)
    }

    /// Where an id was given out, by this process or by one before it. Keys are made with `secret` now.
    pub fn holder(&self, id: &[u8], secret: u64) -> Option<ReplicaId> {
        let by = |secret: &u64| self.find(id_key(id, *secret));
        by(&secret).or_else(|| self.former().iter().rev().find_map(by))
    }

    /// What ids were hashed with before, the last one last.
    pub fn former(&self) -> &[u64] {
        self.former.get().map_or(&[], Vec::as_slice)
    }

    /// Ids were hashed with these before. To be said once.
    pub fn was_hashed_with(&self, mut former: Vec<u64>) {
        former.drain(..former.len().saturating_sub(FORMER));
        let is_first = self.former.set(former).is_ok();
        debug_assert!(is_first, "a process follows one other");
    }

    /// A replica is gone, and with it what it kept.
    pub fn forget(&self, replica: ReplicaId) {
        self.ids.lock().retain(|at| *at != replica);
    }
}

/// Puts a replica first in a ranking; the others follow in their order. One that is not ranked takes no requests.
pub fn put_first(decision: &mut Decision, replica: ReplicaId) {
    if let Some(at) = decision.ranked.iter().position(|r| r.id == replica) {
        decision.ranked.put_first(replica);
        // that nobody is healthy is worth more to know
        if decision.reason != Reason::FailOpen {
            decision.reason = Reason::Pinned;
        }
        decision.preferred = decision.preferred.max(1) + usize::from(at >= decision.preferred);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::cost::Price;
    use crate::policy::lane::Gate;
    use crate::policy::select::Ranked;

    #[test]
    fn the_ids_used_last_are_known_and_memory_is_bounded() {
        let pins = Pins::default();
        let key = |n: usize| id_key(&n.to_le_bytes(), 9);
        let at = |n: usize| ReplicaId(u16::try_from(n % 7).unwrap());
        for n in 0..3 * MOST {
            pins.remember(key(n), at(n));
            // one that is asked for again and again
            assert_eq!(pins.find(key(0)), Some(at(0)), "{n}");
        }
        for n in 2 * MOST + 1..3 * MOST {
            assert_eq!(pins.find(key(n)), Some(at(n)));
        }
        assert_eq!(pins.find(key(1)), None);
        assert!(pins.ids.lock().len() <= 2 * MOST);
    }

    #[test]
    fn an_id_given_out_anew_is_where_it_was_given_out_last() {
        let pins = Pins::default();
        pins.remember(1, ReplicaId(0));
        pins.remember(1, ReplicaId(3));
        assert_eq!(pins.find(1), Some(ReplicaId(3)));
    }

    #[test]
    fn an_id_of_before_is_found_under_the_secret_that_it_was_given_out_under() {
        let pins = Pins::default();
        pins.remember(id_key(b"resp_1", 7), ReplicaId(3));
        assert_eq!(pins.holder(b"resp_1", 8), None);
        pins.was_hashed_with((0..6).chain([7]).collect());
        assert_eq!((pins.holder(b"resp_1", 8), pins.holder(b"resp_2", 8)), (Some(ReplicaId(3)), None));
        assert_eq!(pins.former(), [3, 4, 5, 7]);
        pins.remember(id_key(b"resp_1", 8), ReplicaId(1));
        assert_eq!(pins.holder(b"resp_1", 8), Some(ReplicaId(1)), "the last word counts");
    }

    #[test]
    fn the_others_keep_their_order() {
        let ranked = |id| Ranked {
            id: ReplicaId(id),
            overlap: 0,
            held: 0.0,
            credit: 0,
            load: 0,
            score: 0.0,
            price: Price::default(),
            units: 1,
        };
        let ranked = [3, 1, 2].map(ranked).into_iter().collect();
        let mut decision = Decision {
            ranked,
            preferred: 3,
            reason: Reason::Load,
            gate: Gate::Open,
            crowded: false,
            passed: 0,
            flight: None,
            hint: None,
        };
        let order = |d: &Decision| d.ranked.iter().map(|r| r.id.0).collect::<Vec<_>>();
        put_first(&mut decision, ReplicaId(9));
        assert_eq!((order(&decision), decision.reason), (vec![3, 1, 2], Reason::Load));
        put_first(&mut decision, ReplicaId(2));
        assert_eq!((order(&decision), decision.reason), (vec![2, 3, 1], Reason::Pinned));
    }
}
