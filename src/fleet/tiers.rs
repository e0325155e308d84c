//! Who is asked where nobody takes requests freely: those on trial beyond their few, before those that are fenced.
//!
//! A replica on trial that has all the requests that a trial allows is kept from more as long as others take them. Where
//! no other does, more than a trial allows is better than an engine that is known to be dead or to generate nothing.

use super::Fleet;
use super::replica::Replica;
use crate::policy::select::Candidate;

impl Replica {
    /// In which place it is asked: 0 if it takes requests, 1 if it has all that a trial allows, 2 if it is fenced.
    pub fn tier(&self) -> u8 {
        if self.takes_requests() { 0 } else { 2 - u8::from(self.is_healthy()) }
    }
}

impl Fleet {
    /// Where no candidate takes requests, those that are healthy do.
    pub(super) fn extend_trials(&self, candidates: &mut [Candidate]) {
        if candidates.iter().any(|c| c.healthy) {
            return;
        }
        let replicas = self.replicas();
        for candidate in candidates {
            candidate.healthy = replicas.at(candidate.id).is_some_and(|r| r.is_healthy());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{self, spec};
    use super::super::{Fleet, Rules};
    use super::*;
    use crate::fleet::fencing::ErrorRule;
    use crate::policy::errors::{Ended, ErrorLimits, TRIALS};
    use crate::policy::health::{FenceReason, Observation, Thresholds};
    use crate::types::ReplicaId;
    use std::sync::atomic::Ordering::Relaxed;

    const LIMITS: ErrorLimits = ErrorLimits { window_ms: 1e9, failures: 1, pause_ms: 0.0, successes: 9 };

    fn fleet() -> Fleet {
        let rules = Rules { errors: Some(ErrorRule { limits: LIMITS, fences: true }), ..Rules::default() };
        testing::fleet(["frozen", "tried", "well"].map(spec)).under(rules)
    }

    /// Who would be asked, of the replicas whose places are given.
    fn asked(fleet: &Fleet, places: &[u16]) -> Vec<bool> {
        let candidate = |id: &u16| Candidate {
            id: ReplicaId(*id),
            healthy: fleet.replica(ReplicaId(*id)).unwrap().takes_requests(),
            overlap: 0,
            confirmed: 0,
            tail: 0.0,
            load: 0,
            prospect: fleet.replica(ReplicaId(*id)).unwrap().prospect(0.0),
        };
        let mut candidates: Vec<_> = places.iter().map(candidate).collect();
        fleet.extend_trials(&mut candidates);
        candidates.iter().map(|c| c.healthy).collect()
    }

    #[test]
    fn who_has_all_that_a_trial_allows_still_goes_before_who_generates_nothing() {
        let fleet = fleet();
        let once = Thresholds { failures: 1, successes: 1 };
        let [frozen, tried] = [0, 1].map(|id| fleet.replica(ReplicaId(id)).unwrap().clone());
        frozen.observe_generation(Observation::Failed(FenceReason::Progress), once, 0.0);
        fleet.ended(tried.id, Ended::Badly(None), 0.0);
        tried.tick(f64::MAX);
        assert_eq!(asked(&fleet, &[0, 1, 2]), [false, true, true]);
        assert_eq!(fleet.replicas().iter().map(|r| r.tier()).collect::<Vec<_>>(), [2, 0, 0]);
        tried.trials.store(TRIALS, Relaxed);
        assert_eq!(fleet.replicas().iter().map(|r| r.tier()).collect::<Vec<_>>(), [2, 1, 0]);
        assert_eq!(asked(&fleet, &[0, 1, 2]), [false, false, true]);
        assert_eq!(asked(&fleet, &[0, 1]), [false, true]);
        // nobody is healthy: whoever ranks takes all, and says so
        assert_eq!(asked(&fleet, &[0]), [false]);
    }
}
