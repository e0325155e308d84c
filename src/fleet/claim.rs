//! A request's claim on the prefix index as a guard: withdrawn on drop unless it was confirmed. Whoever waits for it is
//! told either way.

use super::Fleet;
use super::landing::Landing;
use crate::policy::hint::Hint;
use crate::prefix::fingerprint::Place;
use crate::prefix::residency::{Belief, Claim, Size};
use crate::prefix::turns::Turn;
use crate::types::ReplicaId;
use std::sync::Arc;

/// A pending claim of one attempt.
#[derive(Debug)]
pub struct ClaimGuard {
    fleet: Arc<Fleet>,
    replica: ReplicaId,
    claim: Option<Claim>,
    belief: Belief,
    /// Of the prompt.
    tokens: f64,
    /// The end of the prompt and the turn that an answer makes of it, until there is one.
    turn: Option<(Place, Turn)>,
    /// The session that finds its home here.
    session: Option<Hint>,
}

impl ClaimGuard {
    /// Claims `chain` for `replica`.
    pub fn new(fleet: &Arc<Fleet>, chain: &Arc<[u64]>, size: Size, replica: ReplicaId) -> Self {
        let claimed = (!chain.is_empty()).then(|| fleet.residency.write().claim(chain, size, replica));
        let (claim, belief) = claimed.unzip();
        let turn = size.ends.own.map(|end| (end, Turn { replica, tokens: size.prompt }));
        let (fleet, belief, tokens) = (fleet.clone(), belief.unwrap_or_default(), size.prompt);
        ClaimGuard { fleet, replica, claim, belief, tokens, turn, session: None }
    }

    /// Remembers this replica as the home of `session`, once the prompt is read.
    #[must_use]
    pub fn of_session(mut self, session: Option<Hint>) -> Self {
        self.session = session;
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

    /// What was believed when it was claimed.
    pub fn belief(&self) -> &Belief {
        &self.belief
    }

    /// The engine has generated: the prompt is held.
    pub fn confirm(&mut self) {
        if let Some(session) = self.session.take() {
            self.fleet.hints.remember(session.key, self.replica, self.tokens);
        }
        let (claim, turn) = (self.claim.take(), self.turn.take());
        if claim.is_none() && turn.is_none() {
            return;
        }
        let mut residency = self.fleet.residency.write();
        if let Some((end, turn)) = turn {
            residency.answered(end, turn);
        }
        if let Some(claim) = claim {
            residency.confirm(claim);
            drop(residency);
            self.fleet.landings.land(claim.number(), Landing::Read);
        }
    }
}

impl Drop for ClaimGuard {
    fn drop(&mut self) {
        if let Some(claim) = self.claim.take() {
            self.fleet.residency.write().withdraw(claim);
            self.fleet.landings.land(claim.number(), Landing::Failed);
        }
    }
}
