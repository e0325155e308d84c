//! What is believed to be held, as it is handed to the next process. Pending claims go along as held: most of them are
//! confirmed in the end, and what engines report corrects the others. Of what answers denied the count goes along, and what is
//! gone by it; a single block that was missed before its time is to be missed once more, which costs a wrong prediction.

use super::denials::Denials;
use super::{AtReplica, Residency, stamp};
use crate::pack::record;
use crate::prefix::crowd::CrowdState;
use crate::prefix::index::state::{IndexCopy, IndexState};
use crate::prefix::lru::LruModel;
use crate::prefix::turns::Turn;
use crate::types::ReplicaId;

/// A copy of it, made in one go.
#[derive(Debug)]
pub struct ResidencyCopy {
    next: u64,
    index: IndexCopy,
    turns: Vec<(u64, Turn)>,
    crowd: CrowdState,
    replicas: Vec<ReplicaResidency>,
}

/// What is handed over; replicas are named by their slots.
#[derive(Clone, Debug, Default)]
pub struct ResidencyState {
    next: u64,
    index: IndexState,
    turns: Vec<(u64, Turn)>,
    crowd: CrowdState,
    replicas: Vec<ReplicaResidency>,
}
record!(ResidencyState { next, index, turns, crowd, replicas });

/// What is known of one replica besides the index.
#[derive(Clone, Debug)]
struct ReplicaResidency {
    lru: LruModel,
    caches: bool,
    denials: u32,
    told: bool,
}
record!(ReplicaResidency { lru, caches, denials, told });

impl Residency {
    /// A copy to write down at leisure.
    pub fn copy(&self) -> ResidencyCopy {
        let of = |at: &AtReplica| ReplicaResidency {
            lru: at.lru.clone(),
            caches: at.caches,
            denials: at.denials.row,
            told: at.denials.told,
        };
        ResidencyCopy {
            next: self.next,
            index: self.index.copy(),
            turns: self.turns.all(),
            crowd: self.crowd.state(),
            replicas: self.replicas.iter().map(of).collect(),
        }
    }

    /// Takes in what another process knew, `slot` telling whom a slot of it is now. What is held is left out unless
    /// `prints` mean the same here.
    pub fn restore(&mut self, state: ResidencyState, prints: bool, slot: impl Fn(usize) -> Option<ReplicaId>) {
        // what is not over there ends here without a word
        self.next = self.next.max(state.next) + 1;
        let now = stamp(self.next);
        for (old, known) in state.replicas.into_iter().enumerate() {
            let Some(replica) = slot(old) else { continue };
            let capacity = self.replicas.get(replica.index()).and_then(|at| at.lru.keeps());
            let at = self.at(replica);
            *at = AtReplica {
                lru: known.lru,
                caches: known.caches,
                denials: Denials::known(known.denials, known.told),
                ..AtReplica::default()
            };
            if let Some(tokens) = capacity {
                // what is configured counts, where it is news
                at.lru.set_capacity(tokens);
            }
            at.lru.settle(now);
            if !prints {
                at.lru.empty();
            }
        }
        if prints {
            self.index.restore(&state.index, &slot);
            let turns = state.turns.into_iter();
            let mapped =
                turns.filter_map(|(print, turn)| Some((print, Turn { replica: slot(turn.replica.index())?, ..turn })));
            mapped.for_each(|(print, turn)| self.turns.set(print, turn));
            self.crowd.restore(state.crowd, &slot);
        }
    }
}

impl ResidencyCopy {
    /// What is handed over.
    pub fn state(self) -> ResidencyState {
        ResidencyState {
            next: self.next,
            index: self.index.state(),
            turns: self.turns,
            crowd: self.crowd,
            replicas: self.replicas,
        }
    }
}
