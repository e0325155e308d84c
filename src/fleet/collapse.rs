//! A replica that has lost all that it was doing at once has ended, and what it held with it, though no probe may have seen
//! that nobody was there.

use super::Fleet;
use crate::types::ReplicaId;

impl Fleet {
    /// The connection to a replica was lost together with the answer to a request that began at `began`, milliseconds on
    /// the fleet's clock, and is still counted there; or (`breaks` is false) its engine was not reached.
    pub fn cut_off(&self, id: ReplicaId, breaks: bool, began: f64) {
        let _step = self.step();
        let Some(replica) = self.replica(id) else { return };
        let is_all = replica.collapse.lock().on_failed(breaks, began, self.clock().now(), replica.inflight());
        if is_all {
            log::warn!("replica {}: all of its answers broke off at once; its cache counts as empty", replica.name());
            self.broke_off(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{self, spec};
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn an_engine_that_restarts_unseen_has_lost_what_it_held() {
        let fleet = testing::fleet(["a", "b"].map(spec));
        fleet.hints.remember(1, ReplicaId(0), 9.0);
        fleet.hints.remember(2, ReplicaId(1), 9.0);
        let there = &fleet.replicas()[0].inflight;
        there.store(3, Relaxed);
        for left in [2, 1, 0] {
            assert_eq!(fleet.hints.home(1).map(|home| home.lost), Some(false), "{left}");
            fleet.cut_off(ReplicaId(0), true, -1.0);
            there.store(left, Relaxed);
        }
        let lost = |key| fleet.hints.home(key).map(|home| home.lost);
        assert_eq!((lost(1), lost(2)), (Some(true), Some(false)));
    }
}
