//! Where a session is presumed to be whose last turn went by way of another router; see `policy::presumption`.

use super::Fleet;
use super::selection::RouteKey;
use crate::policy::hint::{Hint, Home, Source};
use crate::policy::presumption::{Presumption, Strange};
use crate::policy::select::Candidate;
use crate::prefix::fingerprint::Place;
use crate::prefix::residency::{Belief, Residency, Served, Size};
use crate::types::ReplicaId;
use parking_lot::Mutex;

/// Whether to presume anything.
#[derive(Debug, Default)]
pub(super) struct Presuming(Mutex<Presumption>);

/// Whether the last turn of a conversation went by way of another router: this one has seen nothing of it.
pub(super) fn is_strange(residency: &Residency, previous: Option<Place>) -> bool {
    previous.is_some() && residency.turn(previous).is_none()
}

impl Presuming {
    /// The answer to a prompt tells what was found of it.
    pub(super) fn learn(&self, size: &Size, belief: &Belief, served: Served) {
        let Some(previous) = size.ends.previous else { return };
        // now that its tokens are known, those of its blocks are
        let scale = served.prompt / size.prompt.max(1.0);
        let block = size.block * scale;
        let held = belief.tokens().0 * scale;
        let prompt = Strange { before: f64::from(previous.blocks) * block, held, cached: served.cached, block };
        self.0.lock().learn(prompt);
    }
}

impl Fleet {
    /// Where a session is presumed to be among `candidates`, if it is: the winner of its rendezvous, by `weight`. Nowhere,
    /// where long prompts have a lane.
    pub(super) fn presume(
        &self,
        key: &RouteKey<'_>,
        candidates: &[Candidate],
        weight: impl Fn(u64, ReplicaId) -> u64,
    ) -> Option<ReplicaId> {
        let session = key.session.filter(|_| key.previous.is_some() && self.presuming.0.lock().is_worth_it())?;
        // a session that has grown long has left the replicas for short ones
        if self.tuning.load().rules.lane.is_some() || !is_strange(&self.residency.read(), key.previous) {
            return None;
        }
        let all = candidates.iter().filter(|c| c.healthy).map(|c| c.id);
        all.max_by_key(|id| (weight(session.key, *id), std::cmp::Reverse(*id)))
    }
}

/// Supposes that a replica holds all of the turn before.
pub(super) fn suppose(candidates: &mut [Candidate], presumed: ReplicaId, previous: Option<Place>) {
    let Some(before) = previous.map(|place| place.blocks) else { return };
    if let Some(there) = candidates.iter_mut().find(|c| c.id == presumed && c.overlap < before) {
        (there.overlap, there.confirmed, there.tail) = (before, before, 0.0);
    }
}

/// A session that is presumed to be there: its name is as good as one that a client gave, whatever the index knows of what
/// it shares with others.
pub(super) fn home_of(hint: Hint, replica: ReplicaId) -> (Hint, Option<Home>) {
    (Hint { source: Source::Named, ..hint }, Some(Home { replica, worth: 1.0, lost: false }))
}
