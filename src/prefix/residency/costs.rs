//! What it would cost the sessions of a replica to move.

use super::Residency;
use crate::types::ReplicaId;

impl Residency {
    /// For each session that is expected to return to `replica`, the tokens that it alone has there.
    pub fn costs(&self, replica: ReplicaId) -> Vec<f64> {
        self.crowd.tokens_at(replica).collect()
    }
}
