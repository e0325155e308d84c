//! Fences from what real requests show, and their limit: the last healthy replica of a model stays.

use super::Fleet;
use super::clock::{time_bits, time_of};
use super::replica::Replica;
use crate::policy::errors::{Ended, ErrorLimits, Errors};
use crate::policy::health::{FenceReason, Observation, Thresholds};
use crate::types::ReplicaId;
use std::sync::atomic::Ordering::Relaxed;

/// When failed requests fence.
#[derive(Clone, Copy, Debug)]
pub struct ErrorRule {
    /// The limits.
    pub limits: ErrorLimits,
    /// Whether it fences, or only says that it would.
    pub fences: bool,
}

impl Fleet {
    /// A request that began at `began`, milliseconds on the fleet's clock, has ended at a replica.
    pub fn ended(&self, id: ReplicaId, ended: Ended, began: f64) {
        let Some(replica) = self.replica(id) else { return };
        match ended {
            Ended::Well => _ = replica.proven.fetch_max(time_bits(began), Relaxed),
            Ended::Badly(Some(_)) => replica.failing.notify_one(),
            Ended::Badly(None) | Ended::Answered => {}
        }
        let Some(rule) = self.tuning.load().rules.errors else { return };
        let now = self.clock().now();
        // a good end fences nobody
        let _fencing = matches!(ended, Ended::Badly(_)).then(|| self.fencing.lock());
        let may_fence = || {
            if !self.is_replaceable(&replica) {
                return false;
            }
            if !rule.fences {
                log::warn!("replica {}: its requests fail; it is not fenced for that", replica.name());
            }
            rule.fences
        };
        replica.revise(now, |standing| standing.errors.on(ended, began, now, rule.limits, may_fence));
    }

    /// Without a rule for failed requests nobody is fenced or on trial for any: nothing would end that.
    pub(super) fn forgive(&self) {
        if self.tuning.load().rules.errors.is_some() {
            return;
        }
        let now = self.clock().now();
        for replica in self.replicas().iter() {
            replica.revise(now, |standing| standing.errors = Errors::default());
        }
    }

    /// Requests have shown that nothing is generated at a replica; whether it is fenced for that now.
    pub fn fence_frozen(&self, replica: &Replica) -> bool {
        let _fencing = self.fencing.lock();
        if !self.is_replaceable(replica) {
            return false;
        }
        let at_once = Thresholds { failures: 1, successes: 1 };
        let frozen = Observation::Failed(FenceReason::Progress);
        replica.observe_generation(frozen, at_once, self.clock().now()).is_some()
    }

    /// Another router keeps requests away from a replica: it is probed at once, and judged by what is seen of it here.
    pub fn suspect(&self, replica: &Replica) {
        replica.probes.ask_again();
        replica.failing.notify_one();
        self.suspected.notify_one();
    }

    /// Returns when a replica is to be probed before its time, since this was asked last.
    pub async fn suspects(&self) {
        self.suspected.notified().await;
    }

    /// Whether for each model of a replica another healthy one is there. On trial is not healthy enough.
    fn is_replaceable(&self, replica: &Replica) -> bool {
        let replicas = self.replicas();
        let others = || replicas.iter().filter(|r| r.id != replica.id && r.is_healthy() && !r.is_on_trial());
        let (names, fits) = (replica.model_names(), self.fits.load());
        match names.is_empty() {
            true => others().next().is_some(),
            false => names.iter().all(|model| others().any(|r| fits.of_model(Some(model)).has(r.id))),
        }
    }

    /// Whether all other replicas that have work are silent since `since`, and there are some.
    pub fn others_are_silent(&self, replica: &Replica, since: f64) -> bool {
        let replicas = self.replicas();
        let others = || replicas.iter().filter(|r| r.id != replica.id && (r.inflight() > 0 || r.heard() > since));
        others().next().is_some() && others().all(|r| r.heard() <= since)
    }
}

impl Replica {
    /// A readiness probe found nobody there at `at`, or somebody; when the one before had found nobody, minus infinity if
    /// it had not.
    pub fn note_refusal(&self, at: Option<f64>) -> f64 {
        if let Some(at) = at {
            self.probes.found_nobody(at);
        }
        time_of(self.refused.swap(at.map_or(0, time_bits), Relaxed))
    }

    /// Returns when a request has failed there by the engine's fault, since this was asked last.
    pub async fn fails(&self) {
        self.failing.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use super::super::replica::{Fit, ReplicaSpec};
    use super::super::testing::{self, spec};
    use super::super::{Fleet, Rules};
    use super::*;
    use crate::api::catalogue::Catalogue;
    use crate::policy::standing::State;

    const LIMITS: ErrorLimits = ErrorLimits { window_ms: 1e9, failures: 2, pause_ms: 1e9, successes: 1 };

    fn rules() -> Rules {
        Rules { errors: Some(ErrorRule { limits: LIMITS, fences: true }), ..Rules::default() }
    }

    fn fleet(models: &[&str]) -> Fleet {
        let of = |model: &&str| ReplicaSpec { models: vec![(*model).to_owned()], ..spec("") };
        testing::fleet(models.iter().map(of)).under(rules())
    }

    fn fail(fleet: &Fleet, id: u16) {
        (0..9).for_each(|print| fleet.ended(ReplicaId(id), Ended::Badly(Some(print)), 0.0));
    }

    #[test]
    fn the_last_healthy_replica_of_each_model_stays() {
        let fleet = fleet(&["m", "m", "other"]);
        let fenced = |id: usize| fleet.replicas()[id].state() == State::Fenced(FenceReason::Errors);
        (0..3).for_each(|id| fail(&fleet, id));
        assert_eq!([fenced(0), fenced(1), fenced(2)], [true, false, false]);
        assert!(!fleet.fence_frozen(&fleet.replicas()[1]) && !fleet.fence_frozen(&fleet.replicas()[2]));
        assert!(fleet.replicas()[1].is_healthy());
    }

    #[test]
    fn without_the_rule_that_fenced_it_a_replica_is_free() {
        let fleet = testing::fleet(["a", "b"].map(spec)).under(rules());
        fail(&fleet, 0);
        assert_eq!(fleet.replicas()[0].state(), State::Fenced(FenceReason::Errors));
        let handed = fleet.state();
        fleet.tune(fleet.params(), Rules::default());
        assert_eq!(fleet.replicas()[0].state(), State::Healthy);
        // nor does the next process take it over
        let next = Fleet::new(vec![fleet.replicas()[0].spec.clone()], fleet.params(), 1 << 20);
        next.inherit(handed);
        assert_eq!(next.replicas()[0].state(), State::Healthy);
    }

    #[test]
    fn who_would_not_be_asked_for_its_models_replaces_nobody() {
        let fleet = testing::fleet(["a", "b"].map(spec)).under(rules());
        let listed = |engine: &str, model: &str| {
            let text = format!(r#"{{"data":[{{"id":"{model}","owned_by":"{engine}"}}]}}"#);
            Catalogue::read(text.as_bytes()).unwrap()
        };
        fleet.learn_catalogue(ReplicaId(0), listed("vllm", "m1"));
        // one that takes any name is asked only for what nobody lists
        fleet.learn_catalogue(ReplicaId(1), listed("llamacpp", "m2"));
        assert_ne!(fleet.replicas()[1].fit("m1"), Fit::No);
        fail(&fleet, 0);
        assert!(!fleet.fence_frozen(&fleet.replicas()[0]) && fleet.replicas()[0].is_healthy());
        let unready = Observation::Failed(FenceReason::Status);
        fleet.replicas()[0].observe(unready, Thresholds { failures: 1, successes: 1 }, 0.0);
        assert!(fleet.fails_open(), "nobody else is asked for m1");
    }

    #[test]
    fn what_is_drained_counts_for_nobody_and_is_no_fail_open() {
        let fleet = fleet(&["m", "m"]);
        fleet.replicas()[0].drain(true, 0.0);
        fail(&fleet, 1);
        assert!(fleet.replicas()[1].is_healthy() && !fleet.fails_open());
        fleet.replicas()[1].drain(true, 0.0);
        assert!(!fleet.fails_open());
        fleet.replicas()[0].drain(false, 0.0);
        assert!(fleet.replicas()[0].takes_requests());
    }
}
