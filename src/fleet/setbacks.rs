//! Prompts that a replica has failed, so that whoever sends one again, or goes on from it, is not sent there once more; and who
//! is passed over besides: replicas that turn requests away (see `policy::refusals`).
//!
//! What fails at once makes its replica look idle, and a session is at home where its prompt was read: both would bring
//! the next attempt of a client back to a replica that fails everything, until that is fenced. So the next choice passes it
//! over, until a request that began there later has ended well, or a minute is over. But where the engine ended with all
//! that it was doing, what was being generated is excused, as far as that is seen or, of answers that show nothing before they
//! are whole, had its time: it is no reason to crowd the others, unless it ends again.
//!
//! **It protects sessions and not replicas:** nobody else's choice is changed. And a prompt that has failed at a second
//! replica, the first being passed over, is itself the cause as far as anybody knows: nobody is passed over for it any
//! more, so that it does not visit the whole fleet.
//!
//! A prompt is known by the fingerprint of its end. That of the next turn contains it, whatever its session is called, and
//! nobody else's does.

use super::Fleet;
use crate::policy::queue::pass_over;
use crate::policy::select::{Decision, Reason};
use crate::prefix::fingerprint::Ends;
use crate::types::ReplicaId;
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// For how long a setback counts, in milliseconds.
const LASTS_MS: f64 = 60_000.0;
/// Setbacks that are remembered at most.
const MOST: usize = 4096;

/// The prompts that failed lately.
#[derive(Debug, Default)]
pub struct Setbacks {
    /// How many are known: without any, nobody takes the lock.
    count: AtomicUsize,
    /// Held for a look-up; for a pass over all of it when it is full.
    prompts: Mutex<HashMap<u64, Setback>>,
}

/// A prompt that failed.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Setback {
    /// Where; `None` if it failed elsewhere too.
    replica: Option<ReplicaId>,
    /// When it was last, in milliseconds.
    at: f64,
    /// Whether its answer was being generated.
    generated: bool,
}

impl Setbacks {
    /// The prompt that ends at `print` has failed at `replica`, whose answer was being `generated`. `proven`: since when
    /// requests begin well at a replica.
    fn note(&self, print: u64, (replica, generated): (ReplicaId, bool), now: f64, proven: impl Fn(ReplicaId) -> f64) {
        let mut prompts = self.prompts.lock();
        if prompts.len() >= MOST {
            prompts.retain(|_, setback| setback.counts(now));
        }
        if prompts.len() >= MOST {
            // so much fails everywhere that nobody is better than others
            prompts.clear();
        }
        let before = prompts.get(&print).filter(|setback| setback.counts(now));
        let is_its_own_fault = before
            .is_some_and(|before| before.replica.is_none_or(|first| first != replica && proven(first) <= before.at));
        prompts.insert(print, Setback { replica: (!is_its_own_fault).then_some(replica), at: now, generated });
        self.count.store(prompts.len(), Relaxed);
    }

    /// Who is passed over for a prompt that ends there, or goes on from there, unless its setback there is `excused`.
    fn passed_over(&self, prints: &[u64], now: f64, excused: impl Fn(ReplicaId, Setback) -> bool) -> Option<ReplicaId> {
        if self.count.load(Relaxed) == 0 {
            return None;
        }
        let prompts = self.prompts.lock();
        let of = |print: &u64| {
            let setback = prompts.get(print).filter(|setback| setback.counts(now))?;
            setback.replica.filter(|replica| !excused(*replica, *setback))
        };
        prints.iter().find_map(of)
    }
}

impl Setback {
    fn counts(&self, now: f64) -> bool {
        now - self.at < LASTS_MS
    }
}

/// What a choice goes by when it passes replicas over.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Spared {
    /// Who was first before.
    pub picked: Option<ReplicaId>,
    /// Who has failed the prompt, or the turn before it.
    pub failed: Option<ReplicaId>,
    /// Who turns requests away, if the first one does.
    pub refusing: SmallVec<[ReplicaId; 4]>,
}

impl Spared {
    /// Does to `decision` what was done to the one that this was told.
    pub(super) fn pass(&self, decision: &mut Decision) {
        if may_be_spared(decision) {
            self.pass_failed(decision);
            self.pass_refusing(decision);
        }
    }

    fn pass_failed(&self, decision: &mut Decision) {
        if self.failed.is_some() && self.failed == decision.ranked.first().map(|first| first.id) {
            pass_over(decision, 1);
            // for a reason of its own
            (decision.reason, decision.passed) = (Reason::Setback, 0);
        }
    }

    fn pass_refusing(&self, decision: &mut Decision) {
        if !decision.ranked.first().is_some_and(|first| self.refusing.contains(&first.id)) {
            return;
        }
        let may = |id| !self.refusing.contains(&id) && self.failed != Some(id);
        let others = decision.ranked.iter().take(decision.preferred);
        if let Some(place) = others.into_iter().position(|r| may(r.id)) {
            pass_over(decision, place);
        }
    }
}

/// Whether somebody else may be chosen in the place of the first.
fn may_be_spared(decision: &Decision) -> bool {
    decision.preferred >= 2 && decision.reason != Reason::FailOpen
}

impl Fleet {
    /// A prompt that ends there has failed at a replica, by the engine's fault as far as it is known, while its answer was
    /// being `generated` or before.
    pub fn set_back(&self, ends: Ends, replica: ReplicaId, generated: bool) {
        if let Some(end) = ends.own {
            self.setbacks.note(end.print, (replica, generated), self.clock().now(), |id| self.proven(id));
        }
    }

    /// Passes over, in a choice for a prompt that ends there, the replica that has failed it or the turn before it; then
    /// those that turn requests away, where one of the others does not. What it went by.
    pub(super) fn spare(&self, decision: &mut Decision, ends: Ends) -> Spared {
        let Some(first) = decision.ranked.first().map(|first| first.id).filter(|_| may_be_spared(decision)) else {
            return Spared::default();
        };
        let now = self.clock().now();
        let prints = [ends.own, ends.previous].map(|place| place.map_or(0, |place| place.print));
        let failed = self.setbacks.passed_over(&prints, now, |id, setback| self.excuses(id, setback));
        let mut told = Spared { picked: Some(first), failed, refusing: SmallVec::new() };
        told.pass_failed(decision);
        let replicas = self.replicas();
        let refuses = |id: &ReplicaId| replicas.at(*id).is_some_and(|r| r.refusals.lock().are_fresh(now));
        if decision.ranked.first().is_some_and(|first| refuses(&first.id)) {
            told.refusing = decision.ranked.iter().take(decision.preferred).map(|r| r.id).filter(refuses).collect();
            told.pass_refusing(decision);
        }
        told
    }

    /// Whether a setback at a replica tells nothing of what it would do now: it has been well since, or its engine ended
    /// then, with all that it was doing.
    fn excuses(&self, id: ReplicaId, setback: Setback) -> bool {
        let Some(replica) = self.replica(id) else { return false };
        replica.proven() > setback.at || setback.generated && replica.collapse.lock().excuses(setback.at)
    }

    /// When the latest request began that has ended well at a replica.
    fn proven(&self, id: ReplicaId) -> f64 {
        self.replica(id).map_or(f64::NEG_INFINITY, |replica| replica.proven())
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{self, spec};
    use super::*;
    use crate::policy::errors::Ended;
    use crate::policy::select::{RouteRequest, select};
    use crate::policy::testing::{TURN, candidate, params};
    use crate::prefix::fingerprint::Place;
    use crate::types::PolicyKind;

    const NEVER: fn(ReplicaId) -> f64 = |_| f64::NEG_INFINITY;
    const NO: fn(ReplicaId, Setback) -> bool = |_, _| false;
    const A: ReplicaId = ReplicaId(0);
    const B: ReplicaId = ReplicaId(1);

    #[test]
    fn a_replica_that_failed_a_prompt_is_passed_over_until_it_has_proved_itself_or_time_has_passed() {
        let setbacks = Setbacks::default();
        assert_eq!(setbacks.passed_over(&[7], 0.0, NO), None);
        setbacks.note(7, (A, false), 10.0, NEVER);
        assert_eq!(setbacks.passed_over(&[5, 7], 20.0, NO), Some(A));
        assert_eq!(setbacks.passed_over(&[5], 20.0, NO), None);
        // a request that began there before says nothing
        assert_eq!(setbacks.passed_over(&[7], 20.0, |_, s| 9.0 > s.at), Some(A));
        assert_eq!(setbacks.passed_over(&[7], 20.0, |_, s| 11.0 > s.at), None);
        assert_eq!(setbacks.passed_over(&[7], 10.0 + LASTS_MS, NO), None);
    }

    #[test]
    fn a_prompt_that_fails_at_two_replicas_does_not_visit_the_others() {
        let setbacks = Setbacks::default();
        setbacks.note(7, (A, false), 10.0, NEVER);
        setbacks.note(7, (A, false), 11.0, NEVER);
        assert_eq!(setbacks.passed_over(&[7], 12.0, NO), Some(A));
        setbacks.note(7, (B, false), 12.0, NEVER);
        setbacks.note(7, (B, false), 13.0, NEVER);
        assert_eq!(setbacks.passed_over(&[7], 14.0, NO), None);
        // unless the first one was well in between: then it is the second one's turn to be passed over
        setbacks.note(8, (A, false), 10.0, NEVER);
        setbacks.note(8, (B, false), 12.0, |_| 11.0);
        assert_eq!(setbacks.passed_over(&[8], 14.0, NO), Some(B));
    }

    #[test]
    fn memory_is_bounded() {
        let setbacks = Setbacks::default();
        for print in 0..3 * MOST as u64 {
            setbacks.note(print, (A, false), 1.0, NEVER);
            assert_eq!(setbacks.passed_over(&[print], 2.0, NO), Some(A));
            assert!(setbacks.count.load(Relaxed) <= MOST);
        }
        setbacks.note(0, (A, false), 2.0 * LASTS_MS, NEVER);
        assert!(setbacks.count.load(Relaxed) < MOST);
    }

    #[test]
    fn the_next_turn_and_the_same_one_go_elsewhere_and_nobody_else_does() {
        let fleet = testing::fleet(["a", "b"].map(spec));
        let place = |print| Some(Place { print, blocks: 1 });
        let ends = |previous: u64, own: u64| Ends { previous: place(previous), own: place(own) };
        let first = |ends| {
            let fleet_of = [candidate(0, 9, 0, (0.0, 0.0)), candidate(1, 0, 1, (0.0, 0.0))];
            let request = RouteRequest { salt: 0, ..TURN };
            let mut decision = select(request, &fleet_of, &params(PolicyKind::Cost)).unwrap();
            fleet.spare(&mut decision, ends);
            (decision.ranked.first().unwrap().id, decision.reason)
        };
        assert_eq!(first(ends(1, 2)), (A, Reason::Affinity));
        let now = fleet.clock().now();
        fleet.set_back(ends(1, 2), A, true);
        assert_eq!(first(ends(1, 2)), (B, Reason::Setback));
        assert_eq!(first(ends(2, 3)), (B, Reason::Setback));
        assert_eq!(first(ends(1, 4)), (A, Reason::Affinity));
        // that its engine ended with all that it did is no reason
        let there = &fleet.replicas()[0];
        (1..=3).rev().for_each(|left| _ = there.collapse.lock().on_failed(true, now - 9.0, now, left));
        assert_eq!(first(ends(1, 2)), (A, Reason::Affinity));
        (1..=3).rev().for_each(|left| _ = there.collapse.lock().on_failed(true, now - 9.0, now, left));
        assert_eq!(first(ends(1, 2)), (B, Reason::Setback), "it ends again and again");
        fleet.ended(A, Ended::Well, now - 1.0);
        assert_eq!(first(ends(1, 2)).0, B, "it began before");
        fleet.ended(A, Ended::Well, fleet.clock().now() + 1.0);
        assert_eq!(first(ends(1, 2)).0, A);
        // who turns requests away is asked last, unless the others do too
        let all = || first(Ends::default()).0;
        fleet.replicas()[0].answered(false, f64::MAX / 2.0);
        assert_eq!((all(), first(ends(2, 3)).0), (B, B));
        fleet.replicas()[1].answered(false, f64::MAX / 2.0);
        assert_eq!(all(), A);
        fleet.replicas()[1].answered(true, 0.0);
        assert_eq!(all(), B);
        fleet.replicas()[0].answered(true, 0.0);
        assert_eq!(all(), A);
    }
}
