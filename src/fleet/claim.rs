//! A request's claim on the prefix index as a guard: withdrawn on drop unless it was confirmed.

use super::Fleet;
use crate::prefix::fingerprint::Place;
use crate::prefix::residency::{Belief, Claim, Size};
use crate::prefix::turns::Turn;
use crate::types::ReplicaId;
use std::sync::Arc;

/// A pending claim of one attempt.
#[derive(Debug)]
pub struct ClaimGuard {
    fleet: Arc<Fleet>,
    claim: Option<Claim>,
    belief: Belief,
    /// The end of the prompt and the turn that an answer makes of it, until there is one.
    turn: Option<(Place, Turn)>,
}

impl ClaimGuard {
    /// Claims `chain` for `replica`.
    pub fn new(fleet: &Arc<Fleet>, chain: &Arc<[u64]>, size: Size, replica: ReplicaId) -> Self {
        let claimed = (!chain.is_empty()).then(|| fleet.residency.write().claim(chain, size, replica));
        let (claim, belief) = claimed.unzip();
        let turn = size.ends.own.map(|end| (end, Turn { replica, tokens: size.prompt }));
        ClaimGuard { fleet: fleet.clone(), claim, belief: belief.unwrap_or_default(), turn }
    }

    /// What was believed when it was claimed.
    pub fn belief(&self) -> &Belief {
        &self.belief
    }

    /// The engine has generated: the prompt is held.
    pub fn confirm(&mut self) {
        let (claim, turn) = (self.claim.take(), self.turn.take());
        if claim.is_none() && turn.is_none() {
            return;
        }
        let mut residency = self.fleet.residency.write();
        if let Some(claim) = claim {
            residency.confirm(claim);
        }
        if let Some((end, turn)) = turn {
            residency.answered(end, turn);
        }
    }
}

impl Drop for ClaimGuard {
    fn drop(&mut self) {
        if let Some(claim) = self.claim.take() {
            self.fleet.residency.write().withdraw(claim);
        }
    }
}
