//! A request's claim on the prefix index as a guard: withdrawn on drop unless it was confirmed. Whoever waits for it is
//! told either way.

use super::Fleet;
use super::landing::Landing;
use super::presumed::is_strange;
use super::sharing::{Claimed, Learned};
use super::steps::{Change, Hold, note};
use crate::policy::hint::{Hint, Source};
use crate::prefix::residency::{Belief, Claim, Served, Size};
use crate::prefix::turns::Turn;
use crate::types::ReplicaId;
use std::sync::Arc;

/// A pending claim of one attempt.
#[derive(Debug)]
pub struct ClaimGuard {
    fleet: Arc<Fleet>,
    replica: ReplicaId,
    /// Until it is confirmed.
    claim: Option<Claim>,
    /// Until the request is over.
    stay: Option<Claim>,
    /// Tokens of its answer, and whether the next turn has it as it was.
    generated: f64,
    is_repeated: bool,
    belief: Belief,
    size: Size,
    /// Whether the turn is still to be noted.
    is_new: bool,
    /// The session that finds its home here.
    session: Option<Hint>,
    /// The session that came home, and the tokens of its prompt before.
    returned: Option<(Hint, f64)>,
    /// Whose it is.
    request: u64,
    /// Whether its session's last turn went by way of another router.
    is_strange: bool,
    /// Batches of events that its engine had sent before.
    batches: u64,
    /// Whether another router has made it, which tells of it.
    is_heard: bool,
}

/// Batches of events that may come before another router's word of what they are about.
const LATE: u64 = 32;
/// The least share of the prompt before that the index must not know, and so many tokens, to tell what a home is worth.
const UNKNOWN: (f64, f64) = (0.25, 1024.0);

impl ClaimGuard {
    /// Claims `chain` for `replica`.
    pub fn new(fleet: &Arc<Fleet>, chain: &Arc<[u64]>, size: Size, replica: ReplicaId) -> Self {
        let mut guard = Self::heard(fleet, chain, size, replica);
        guard.is_heard = false;
        guard.batches = fleet.replica(replica).map_or(0, |replica| replica.batches());
        let at = || fleet.clock.now();
        let claimed = |number| Claimed { number, at: at(), replica, chain: chain.clone(), size };
        guard.share(|number| Learned::Claimed(Box::new(claimed(number))));
        guard
    }

    /// The same for one that another router has made.
    pub(super) fn heard(fleet: &Arc<Fleet>, chain: &Arc<[u64]>, size: Size, replica: ReplicaId) -> Self {
        let mut strange = false;
        let claimed = (!chain.is_empty()).then(|| {
            let mut residency = fleet.residency.write();
            strange = is_strange(&residency, size.ends.previous);
            residency.claim(chain, size, replica)
        });
        let (claim, belief) = claimed.unzip();
        ClaimGuard {
            fleet: fleet.clone(),
            replica,
            stay: claim,
            generated: 0.0,
            is_repeated: true,
            claim,
            belief: belief.unwrap_or_default(),
            size,
            is_new: true,
            session: None,
            returned: None,
            request: 0,
            is_strange: strange,
            batches: fleet.replica(replica).map_or(0, |replica| replica.batches().saturating_sub(LATE)),
            is_heard: true,
        }
    }

    /// The same for this request of this session, which finds its home here once the prompt is read.
    #[must_use]
    pub fn of(mut self, request: u64, session: Option<Hint>) -> Self {
        (self.request, self.session) = (request, session);
        self
    }

    /// Lets others wait for it; `streams` if its first token will be seen.
    #[must_use]
    pub fn announced(self, streams: bool) -> Self {
        if let Some(claim) = self.claim {
            self.fleet.landings.announce(claim.number(), streams);
        }
        self
    }

    /// A step of it, unless it is another router's.
    fn note_step(&self, hold: Hold) {
        if !self.is_heard {
            note(|| Change::Claim(self.request, hold));
        }
    }

    /// Tells other routers, unless one of them has told of it.
    fn share(&self, learned: impl FnOnce(u64) -> Learned) {
        if let Some(stay) = self.stay.filter(|_| !self.is_heard) {
            self.fleet.sharing.tell(|| learned(stay.number()));
        }
    }

    /// What was believed when it was claimed.
    pub fn belief(&self) -> &Belief {
        &self.belief
    }

    /// The engine has generated: the prompt is held.
    pub fn confirm(&mut self) {
        let _step = self.fleet.step();
        self.note_step(Hold::Held);
        if let Some(session) = self.session.take() {
            let hints = &self.fleet.hints;
            let before = hints.remember(session.key, self.replica, self.size.prompt);
            if session.source == Source::Named && !self.is_heard {
                hints.saw(before.is_some(), self.fleet.clock.now());
            }
            let (at, tokens) = (self.replica, self.size.prompt);
            let home = || Learned::Home(hints.hashed(session.key), at, tokens, self.fleet.clock.now());
            self.fleet.sharing.tell(home);
            let before = before.filter(|last| last.replica == self.replica);
            self.returned = before.map(|last| (session, f64::from(last.tokens)));
        }
        if std::mem::take(&mut self.is_new) {
            self.note(self.size.prompt, 0.0);
        }
        if let Some(claim) = self.claim.take() {
            self.fleet.residency.write().confirm(claim);
            self.share(Learned::Held);
            self.fleet.landings.land(claim.number(), Landing::Read);
        }
    }

    /// Its answer told how many tokens came from the cache; see [`Fleet::report`].
    pub fn served(&self, served: Served) {
        let _step = self.fleet.step();
        self.note_step(Hold::Served(served));
        self.share(|number| Learned::Served(number, served));
        self.fleet.report(self.replica, &self.belief, served);
        if self.is_strange && !self.is_heard {
            self.fleet.presuming.learn(&self.size, &self.belief, served);
        }
        if let Some(replica) = self.fleet.replica(self.replica) {
            replica.relate((self.size.ends.previous, self.size.ends.own), (served, self.is_repeated), self.batches);
        }
        let Some((session, before)) = self.returned else { return };
        let (held, _) = self.belief.tokens();
        let unknown = before.min(served.prompt) - held;
        if unknown >= UNKNOWN.1.max(UNKNOWN.0 * before) {
            self.fleet.hints.prove(session.key, (served.cached - held) / unknown);
        }
    }

    /// It was answered; prompt and answer had so many tokens. Once more with fewer tokens of the answer, where the next
    /// turn will not have it as it was.
    pub fn answered(&mut self, prompt: f64, output: f64) {
        let _step = self.fleet.step();
        self.note_step(Hold::Answered(prompt, output));
        self.share(|number| Learned::Answered(number, prompt, output));
        self.generated = self.generated.max(output);
        self.is_repeated = output >= self.generated;
        self.note(prompt, output);
    }

    fn note(&self, prompt: f64, output: f64) {
        let Some(end) = self.size.ends.own else { return };
        let block = self.size.block * prompt / self.size.prompt.max(1.0);
        self.fleet.residency.write().answered(end, Turn { replica: self.replica, tokens: prompt + output, block });
    }
}

impl Drop for ClaimGuard {
    fn drop(&mut self) {
        let _step = self.fleet.step();
        self.note_step(Hold::Left);
        self.share(Learned::Left);
        if let Some(claim) = self.claim.take() {
            self.fleet.residency.write().withdraw(claim);
            self.fleet.landings.land(claim.number(), Landing::Failed);
        } else if let Some(stay) = self.stay {
            self.fleet.residency.write().ended(stay, self.size.ends.own, self.generated);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{fleet, spec};
    use super::*;
    use crate::prefix::fingerprint::{Ends, Place};

    const OWN: Option<Place> = Some(Place { print: 7, blocks: 4 });
    const SERVED: Served = Served { prompt: 2000.0, cached: 0.0, output: 85.0 };

    fn fleet_of_one() -> (Arc<Fleet>, Arc<[u64]>, Size) {
        let ends = Ends { previous: None, own: OWN };
        (Arc::new(fleet([spec("a")])), Arc::new([1, 2, 3, 4]), Size { prompt: 2000.0, block: 500.0, ends })
    }

    /// Its engine stores a prompt of 125 blocks and an answer of 5.
    fn tell(fleet: &Fleet) {
        let blocks: Vec<u64> = (0..130).collect();
        fleet.replicas()[0].hears(|stored| stored.store(&blocks, None, 16));
    }

    #[test]
    fn reasoning_is_no_part_of_what_the_next_turn_finds() {
        for (is_reasoned, (tokens, stored)) in [(false, (2085, 2080)), (true, (2000, 2000))] {
            let (fleet, chain, size) = fleet_of_one();
            let mut claim = ClaimGuard::new(&fleet, &chain, size, ReplicaId(0));
            tell(&fleet);
            claim.confirm();
            claim.answered(2000.0, 85.0);
            if is_reasoned {
                claim.answered(2000.0, 0.0);
            }
            claim.served(SERVED);
            let turn = fleet.residency.read().turn(OWN).unwrap();
            assert!((turn.tokens - f64::from(tokens)).abs() < 1.0, "{turn:?}");
            assert_eq!(fleet.replicas()[0].stores(Some(7)).map(|held| held.tokens), Some(stored));
        }
    }

    #[test]
    fn what_an_engine_told_before_another_router_told_of_the_request_is_that_request() {
        let (fleet, chain, size) = fleet_of_one();
        tell(&fleet);
        let claim = ClaimGuard::heard(&fleet, &chain, size, ReplicaId(0));
        claim.served(SERVED);
        assert_eq!(fleet.replicas()[0].stores(Some(7)).map(|held| held.tokens), Some(2080));
    }
}
