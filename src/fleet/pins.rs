//! Which replica holds what it gave an id to: a response that it keeps, and in the same way a file or a batch.
//!
//! Such a thing exists on one replica and nowhere else, so a request that names it goes there first, whatever the
//! ranking says, for as long as that replica takes requests. Nothing of this is lasting: what has been forgotten goes
//! where the ranking says, and the engine's own 404 is the answer.
//!
//! Bounded: the 57,344 ids used last are always known, twice as many at best, at 16 bytes each.

use crate::policy::select::{Decision, Reason};
use crate::prefix::halves::Halves;
use crate::types::ReplicaId;
use parking_lot::Mutex;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Ids that are remembered at least.
const MOST: usize = 7 << 13;

/// The memory of ids.
#[derive(Debug, Default)]
pub struct Pins {
    /// Held for a look-up or an insert. Keys are keyed hashes.
    ids: Mutex<Halves<ReplicaId, MOST>>,
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

    /// Where an id was given out.
    pub fn find(&self, key: u64) -> Option<ReplicaId> {
        self.ids.lock().touch(key)
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
