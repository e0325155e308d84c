//! What another router has learned, taken in as if it had happened here: its claims are claims here, with all that follows
//! from them, so that both believe the same of every cache.
//!
//! What comes late may be void by now: each claim says when it was made, and one for a cache that was emptied since holds
//! nothing there (see [`super::emptied`]), in whatever order the two are told.
//!
//! **Invariant:** who has told of a claim and then falls silent leaves nothing open: what it had claimed counts as held,
//! as most claims are in the end, and as no longer used.

use super::Fleet;
use super::claim::ClaimGuard;
use super::replica::Replica;
use super::sharing::{Claimed, Learned};
use crate::policy::estimate::{MODEL_START, ModelRates, Rates};
use crate::types::ReplicaId;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Claims of one router that may be open at a time: more than it can have requests.
const MOST: usize = 1 << 16;

/// What one other router has told.
#[derive(Debug)]
pub struct Heard {
    fleet: Arc<Fleet>,
    /// Its open claims by its own numbers, which grow.
    claims: BTreeMap<u64, Open>,
}

/// A claim that is not over.
#[derive(Debug)]
struct Open {
    claim: ClaimGuard,
    /// Whose cache it is about: the slot is nobody else's while this is held.
    _at: Option<Arc<Replica>>,
}

/// What is known of speeds and prompts: by replica, and by model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lore {
    /// Rates.
    pub rates: Vec<(ReplicaId, Rates)>,
    /// What the requests of a model look like.
    pub models: Vec<(String, ModelRates)>,
}

impl Heard {
    /// Nothing so far.
    pub fn new(fleet: Arc<Fleet>) -> Self {
        Heard { fleet, claims: BTreeMap::new() }
    }

    /// Takes in one thing. What refers to a claim that nobody told of says nothing.
    pub fn take_in(&mut self, learned: Learned) {
        self.fleet.note_heard();
        match learned {
            Learned::Claimed(claimed) => self.claim(&claimed),
            Learned::Held(number) => {
                if let Some(open) = self.claims.get_mut(&number) {
                    open.claim.confirm();
                }
            }
            Learned::Answered(number, prompt, output) => {
                if let Some(open) = self.claims.get_mut(&number) {
                    open.claim.answered(prompt, output);
                }
            }
            Learned::Served(number, served) => {
                if let Some(open) = self.claims.get(&number) {
                    open.claim.served(served);
                }
            }
            // as it stands: withdrawn if it was not confirmed
            Learned::Left(number) => drop(self.claims.remove(&number)),
            Learned::Home(key, replica, tokens, since) => {
                self.fleet.hints.heard(key, replica, tokens);
                if self.fleet.is_void(replica, since) {
                    self.fleet.hints.lost(key);
                }
            }
            Learned::Pinned(key, replica) => self.fleet.pins.remember(key, replica),
            Learned::Forgot(replica, emptied) => {
                if let Some(emptied) = emptied {
                    self.fleet.empty_as_told(replica, emptied);
                }
            }
        }
    }

    /// The same of what was told one after the other before this router was there: what was told before is void.
    pub fn take_in_past(&mut self, learned: Learned) {
        match learned {
            Learned::Forgot(replica, _) => {
                self.fleet.note_heard();
                self.fleet.empty(replica);
            }
            learned => self.take_in(learned),
        }
    }

    fn claim(&mut self, claimed: &Claimed) {
        while self.claims.len() >= MOST
            && let Some((_, mut oldest)) = self.claims.pop_first()
        {
            oldest.claim.confirm();
        }
        let at = self.fleet.replica(claimed.replica);
        let is_void = self.fleet.is_void(claimed.replica, claimed.at);
        // its answer tells of its session all the same
        let chain = if is_void { &Arc::default() } else { &claimed.chain };
        let claim = ClaimGuard::heard(&self.fleet, chain, claimed.size, claimed.replica);
        self.fleet.has_heard(claimed.replica, claimed.at);
        self.claims.insert(claimed.number, Open { claim, _at: at });
    }

    /// Something is missing, or nothing more will come: what is open counts as held and as over.
    pub fn settle(&mut self) {
        for mut open in std::mem::take(&mut self.claims).into_values() {
            open.claim.confirm();
        }
    }

    /// Claims that are open.
    pub fn open(&self) -> usize {
        self.claims.len()
    }
}

impl Drop for Heard {
    fn drop(&mut self) {
        self.settle();
    }
}

impl Fleet {
    /// What is known here, for others.
    pub fn lore(&self) -> Lore {
        let members = self.members();
        let rates = members.iter().map(|r| (r.id, r.work.lock().rates));
        Lore { rates: rates.filter(|(_, rates)| !rates.is_unknown()).collect(), models: self.models.all() }
    }

    /// Takes from what another router knows that of which nothing is known here.
    pub fn learn_from(&self, lore: Lore) {
        self.note_heard();
        for (id, rates) in lore.rates.into_iter().filter(|(_, rates)| rates.is_sound() && !rates.is_unknown()) {
            if let Some(replica) = self.replica(id) {
                let work = &mut *replica.work.lock();
                if work.rates.is_unknown() {
                    work.rates = rates;
                }
            }
        }
        let is_new =
            |(name, rates): &(String, ModelRates)| rates.is_sound() && self.models.rates(Some(name)) == MODEL_START;
        self.models.restore(lore.models.into_iter().filter(is_new).collect());
    }
}

#[cfg(test)]
mod tests {
    use super::super::elsewhere::{Running, RunningElsewhere};
    use super::super::members::Wanted;
    use super::super::steps::Change;
    use super::super::testing::spec;
    use super::*;
    use crate::policy::backlog::Elsewhere;
    use crate::policy::estimate::START;
    use crate::policy::testing::params;
    use crate::prefix::fingerprint::{Ends, Place};
    use crate::prefix::residency::{Served, Size};
    use crate::types::PolicyKind;
    use std::sync::atomic::AtomicU64;
    use std::sync::mpsc::{Receiver, sync_channel};

    fn fleet() -> Arc<Fleet> {
        let fleet = Fleet::new(["a", "b"].map(spec).into(), params(PolicyKind::Cost), 1 << 20);
        fleet.name_sessions_by(7);
        Arc::new(fleet)
    }

    fn telling() -> (Arc<Fleet>, Receiver<Learned>) {
        let (fleet, (out, told)) = (fleet(), sync_channel(99));
        assert!(fleet.sharing().to(out, Arc::new(AtomicU64::new(0))));
        (fleet, told)
    }

    fn overlaps(fleet: &Fleet, chain: &[u64]) -> Vec<u32> {
        let mut overlaps = vec![0; fleet.replicas().slots()];
        fleet.residency.read().walk(chain, 512.0, None, &mut overlaps);
        overlaps
    }

    fn size(previous: u64, own: u64) -> Size {
        let end = |print| (print > 0).then_some(Place { print, blocks: 4 });
        Size { prompt: 2048.0, block: 512.0, ends: Ends { previous: end(previous), own: end(own) } }
    }

    #[test]
    fn what_one_learns_the_other_believes_to_the_token() {
        let ((here, told), there) = (telling(), fleet());
        let mut heard = Heard::new(there.clone());
        let mut hear = |told: &Receiver<Learned>| told.try_iter().for_each(|learned| heard.take_in(learned));
        let chain: Arc<[u64]> = (1..=4).collect();
        let mut claim = ClaimGuard::new(&here, &chain, size(0, 71), ReplicaId(1));
        hear(&told);
        assert_eq!(overlaps(&there, &chain), [0, 4], "it counts while it is read");
        claim.confirm();
        claim.answered(2000.0, 50.0);
        claim.served(Served { prompt: 2000.0, cached: 0.0, output: 50.0 });
        drop(claim);
        hear(&told);
        let end = Some(Place { print: 71, blocks: 4 });
        assert_eq!(overlaps(&there, &chain), [0, 4]);
        let (mine, theirs) = (here.residency.read(), there.residency.read());
        assert_eq!((mine.turn(end), mine.session(end)), (theirs.turn(end), theirs.session(end)));
        assert!(mine.turn(end).is_some() && mine.session(end).is_some());
        assert_eq!(mine.others(ReplicaId(1), None), theirs.others(ReplicaId(1), None));
    }

    #[test]
    fn who_writes_steps_down_is_told_once_that_others_are_heard_and_before_anything_is() {
        let (there, (out, stages)) = (fleet(), sync_channel(99));
        there.tell(out, Arc::new(AtomicU64::new(0)), 1 << 20);
        let said = || stages.try_iter().flat_map(|stage| stage.changes).filter(|c| *c == Change::Heard).count();
        let mut heard = Heard::new(there.clone());
        assert_eq!(said(), 0);
        let (replica, chain) = (ReplicaId(0), (1..=4).collect());
        let claimed = Claimed { number: 1, at: 0.0, replica, chain, size: size(0, 0) };
        for _ in 0..3 {
            heard.take_in(Learned::Claimed(Box::new(claimed.clone())));
        }
        assert_eq!(said(), 1);
        // of a load, too
        let (other, (out, stages)) = (fleet(), sync_channel(99));
        other.tell(out, Arc::new(AtomicU64::new(0)), 1 << 20);
        let mut elsewhere = RunningElsewhere::new(other.clone());
        elsewhere.replace(Vec::new());
        let said = || stages.try_iter().flat_map(|stage| stage.changes).filter(|c| *c == Change::Heard).count();
        assert_eq!(said(), 0, "nothing runs there");
        elsewhere.replace(vec![Running::at("a".to_owned(), Elsewhere { units: 3, ..Elsewhere::default() })]);
        assert_eq!(said(), 1);
    }

    #[test]
    fn a_failed_claim_is_taken_back_and_silence_leaves_nothing_open() {
        let ((here, told), there) = (telling(), fleet());
        let mut heard = Heard::new(there.clone());
        let chains: [Arc<[u64]>; 2] = [(1..=4).collect(), (11..=14).collect()];
        let failed = ClaimGuard::new(&here, &chains[0], size(0, 0), ReplicaId(0));
        let kept = ClaimGuard::new(&here, &chains[1], size(0, 0), ReplicaId(0));
        drop(failed);
        told.try_iter().for_each(|learned| heard.take_in(learned));
        assert_eq!((overlaps(&there, &chains[0]), overlaps(&there, &chains[1])), (vec![0, 0], vec![4, 0]));
        assert_eq!((heard.open(), there.residency.read().reader(&chains[1], ReplicaId(0)).is_some()), (1, true));
        heard.settle();
        assert_eq!((heard.open(), there.residency.read().reader(&chains[1], ReplicaId(0))), (0, None));
        assert_eq!(overlaps(&there, &chains[1]), [4, 0]);
        drop(kept);
        // the end of what was settled says nothing any more, nor does anything about a claim that was never told of
        told.try_iter().chain([Learned::Held(99), Learned::Left(98)]).for_each(|learned| heard.take_in(learned));
        assert_eq!(overlaps(&there, &chains[1]), [4, 0]);
    }

    #[test]
    fn a_slot_is_nobody_elses_while_a_claim_at_it_is_open() {
        let ((here, told), there) = (telling(), fleet());
        let mut heard = Heard::new(there.clone());
        let chain: Arc<[u64]> = (1..=4).collect();
        let claim = ClaimGuard::new(&here, &chain, size(0, 0), ReplicaId(1));
        told.try_iter().for_each(|learned| heard.take_in(learned));
        let members = |names: &[&str]| names.iter().map(|name| Wanted { spec: spec(name), address: None }).collect();
        there.change(members(&["a"]));
        there.tidy();
        there.change(members(&["a", "c"]));
        let slot = |fleet: &Fleet| fleet.replicas().iter().find(|r| r.name() == "c").map(|r| r.id);
        assert_eq!(slot(&there), Some(ReplicaId(2)));
        drop(claim);
        told.try_iter().for_each(|learned| heard.take_in(learned));
        there.change(members(&["a"]));
        there.tidy();
        there.change(members(&["a", "c"]));
        assert_eq!(slot(&there), Some(ReplicaId(1)), "when it is over, it is free");
    }

    #[test]
    fn homes_and_ids_are_known_by_the_same_hash_and_what_was_heard_is_not_told_on() {
        let ((here, told), (there, echo)) = (telling(), telling());
        let mut heard = Heard::new(there.clone());
        let session = crate::policy::hint::Hint { key: 5, source: crate::policy::hint::Source::Named };
        let chain: Arc<[u64]> = (1..=4).collect();
        let mut claim = ClaimGuard::new(&here, &chain, size(0, 0), ReplicaId(1)).of(1, Some(session));
        claim.confirm();
        here.pin(9, ReplicaId(0));
        told.try_iter().for_each(|learned| heard.take_in(learned));
        assert_eq!(there.last_of(session).map(|last| last.replica), Some(ReplicaId(1)));
        assert_eq!(there.pins().find(9), Some(ReplicaId(0)));
        drop(heard);
        assert_eq!(echo.try_iter().count(), 0);
    }

    #[test]
    fn rates_are_taken_where_nothing_is_known_and_nowhere_else() {
        let (here, there) = (fleet(), fleet());
        let mut fast = START;
        (0..40).for_each(|_| {
            fast.observe_prefill(9000.0, 0.0, 100.0);
            fast.observe_step(2.0, 5.0);
        });
        here.replicas()[0].work.lock().rates = fast;
        here.models.learn(Some("m"), 40_000, 20_000, Some(9));
        let mut slow = START;
        (0..40).for_each(|_| slow.observe_prefill(9000.0, 0.0, 9000.0));
        there.replicas()[1].work.lock().rates = slow;
        there.learn_from(here.lore());
        let rates = |n: usize| there.replicas()[n].work.lock().rates;
        assert_eq!((rates(0), rates(1)), (fast, slow));
        assert_eq!(there.models.rates(Some("m")), here.models.rates(Some("m")));
        there.learn_from(Lore { rates: vec![(ReplicaId(0), slow), (ReplicaId(77), slow)], models: Vec::new() });
        assert_eq!(rates(0), fast);
    }
}
