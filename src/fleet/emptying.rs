//! An operator empties a replica: nothing new goes there, and it is seen since when, and since when nothing is left.

use super::clock::{time_bits, time_of};
use super::replica::Replica;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// When it was drained and when its last request went, in milliseconds on the fleet's clock, as bits; 0 for never.
#[derive(Debug, Default)]
pub struct Emptying {
    drained: AtomicU64,
    idle: AtomicU64,
}

impl Emptying {
    /// The last request has gone.
    pub(super) fn is_idle(&self, now: f64) {
        self.idle.fetch_max(time_bits(now), Relaxed);
    }
}

impl Replica {
    /// An operator keeps new requests away, or no longer does.
    pub fn drain(&self, draining: bool, now: f64) {
        let drained = &self.emptying.drained;
        if draining {
            // saying it again begins nothing anew
            let _known = drained.compare_exchange(0, time_bits(now), Relaxed, Relaxed);
        } else {
            drained.store(0, Relaxed);
        }
        self.revise(now, |standing| standing.draining = draining);
    }

    /// Since when an operator keeps new requests away.
    pub fn drained_since(&self) -> Option<f64> {
        Some(self.emptying.drained.load(Relaxed)).filter(|bits| *bits != 0).map(time_of)
    }

    /// Since when a drained replica has nothing left to do.
    pub fn empty_since(&self) -> Option<f64> {
        let drained = self.drained_since().filter(|_| self.inflight() == 0)?;
        Some(drained.max(time_of(self.emptying.idle.load(Relaxed))))
    }
}

#[cfg(test)]
mod tests {
    use super::super::clock::Clock;
    use super::super::reservation::{Reservation, Share};
    use super::super::testing::spec;
    use super::*;
    use crate::types::ReplicaId;
    use std::sync::Arc;

    #[test]
    fn it_is_empty_when_its_last_request_has_gone() {
        let (replica, clock) = (Arc::new(Replica::new(ReplicaId(0), spec("r"))), Clock::default());
        let share = Share { units: 1, prefill_ms: 1.0, decode_ms: 1.0, streams: true, generates: true };
        let held = Reservation::new(replica.clone(), share, clock.clone());
        let began = clock.now();
        replica.drain(true, began);
        assert_eq!((replica.drained_since(), replica.empty_since()), (Some(began), None));
        drop(held);
        let empty = replica.empty_since().unwrap();
        assert!(empty >= began);
        replica.drain(true, empty + 1.0);
        assert_eq!((replica.drained_since(), replica.empty_since()), (Some(began), Some(empty)));
        replica.drain(false, empty + 2.0);
        assert_eq!((replica.drained_since(), replica.empty_since()), (None, None));
    }
}
