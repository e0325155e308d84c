//! The share of a replica's load that one request holds, from the choice to the end of its attempt.

use super::replica::Replica;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Units reserved on a replica; given back on drop, whatever the way out: success, failure, a client that left, a
/// panic that unwinds.
#[derive(Debug)]
pub struct Reservation {
    replica: Arc<Replica>,
    units: u32,
}

impl Reservation {
    /// Reserves `units` on `replica`.
    pub fn new(replica: Arc<Replica>, units: u32) -> Self {
        // relaxed: the counters publish nothing but themselves; the booking lock orders choices
        replica.load.fetch_add(units, Relaxed);
        replica.inflight.fetch_add(1, Relaxed);
        Reservation { replica, units }
    }

    /// Where it is.
    pub fn replica(&self) -> &Arc<Replica> {
        &self.replica
    }

    /// The prompt is read: what is left to do is decoding, one unit.
    pub fn shrink(&mut self) {
        let surplus = self.units.saturating_sub(1);
        self.replica.load.fetch_sub(surplus, Relaxed);
        self.units -= surplus;
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.replica.load.fetch_sub(self.units, Relaxed);
        self.replica.inflight.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::super::replica::ReplicaSpec;
    use super::*;
    use crate::types::ReplicaId;
    use http::HeaderValue;
    use proptest::prelude::*;

    fn replica() -> Arc<Replica> {
        let spec = ReplicaSpec {
            name: "r".into(),
            host: "h".into(),
            port: 1,
            prefix: String::new(),
            authority: HeaderValue::from_static("h"),
            models: vec![],
            authorization: None,
        };
        Arc::new(Replica::new(ReplicaId(0), spec))
    }

    #[test]
    fn a_panic_gives_the_units_back() {
        let r = replica();
        let inner = r.clone();
        let panicked = std::thread::spawn(move || {
            let _held = Reservation::new(inner, 5);
            panic!("on purpose");
        });
        assert!(panicked.join().is_err());
        assert_eq!((r.load(), r.inflight()), (0, 0));
    }

    proptest! {
        #[test]
        fn any_interleaving_returns_the_counters_to_zero(ops in prop::collection::vec((0u8..3, 1u32..9), 0..60)) {
            let r = replica();
            let mut held = Vec::new();
            for (op, n) in ops {
                match op {
                    0 => held.push(Reservation::new(r.clone(), n)),
                    1 => if let Some(h) = held.last_mut() { h.shrink() },
                    _ => drop(if held.is_empty() { None } else { Some(held.swap_remove(n as usize % held.len())) }),
                }
                prop_assert_eq!(r.load(), held.iter().map(|h| h.units).sum::<u32>());
                prop_assert_eq!(r.inflight() as usize, held.len());
            }
            held.clear();
            prop_assert_eq!((r.load(), r.inflight()), (0, 0));
        }
    }
}
