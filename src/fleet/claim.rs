//! A request's claim on the prefix index as a guard: withdrawn on drop unless it was confirmed.

use super::Fleet;
use crate::prefix::residency::Claim;
use crate::types::ReplicaId;
use std::sync::Arc;

/// A pending claim of one attempt.
#[derive(Debug)]
pub struct ClaimGuard {
    fleet: Arc<Fleet>,
    claim: Option<Claim>,
    confirmed_before: u32,
}

impl ClaimGuard {
    /// Claims `chain` for `replica`.
    pub fn new(fleet: &Arc<Fleet>, chain: &Arc<[u64]>, replica: ReplicaId) -> Self {
        let claim = (!chain.is_empty()).then(|| fleet.residency.write().claim(chain, replica));
        ClaimGuard { fleet: fleet.clone(), claim, confirmed_before: claim.map_or(0, Claim::confirmed_before) }
    }

    /// Leading blocks that the replica held before; see [`Claim::confirmed_before`].
    pub fn confirmed_before(&self) -> u32 {
        self.confirmed_before
    }

    /// The engine has generated: the prompt is held.
    pub fn confirm(&mut self) {
        if let Some(claim) = self.claim.take() {
            self.fleet.residency.write().confirm(claim);
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
