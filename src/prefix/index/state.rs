//! The index as it is handed to the next process: blocks from the least to the most recently used, by replica slot.

use super::{LIVE_SETS_PART, NONE, Node, PrefixIndex};
use crate::pack::record;
use crate::prefix::replica_set::SetId;
use crate::prefix::uses::Use;
use crate::types::ReplicaId;

/// The most blocks that are handed over, those used last: more than the caches of hundreds of replicas hold.
const MOST: usize = 1 << 20;

/// A copy of the index, made in one go.
#[derive(Debug)]
pub struct IndexCopy {
    nodes: Vec<Node>,
    newest: u32,
    sets: Vec<Vec<u64>>,
}

/// What is handed over.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct IndexState {
    /// Sets of replica slots as bits, 64 a word.
    sets: Vec<Vec<u64>>,
    /// Fingerprint, number of its set and last uses, the least recently used block first.
    blocks: Vec<(u64, u32, Use)>,
}
record!(IndexState { sets, blocks });

impl PrefixIndex {
    /// A copy to write down at leisure.
    pub fn copy(&self) -> IndexCopy {
        IndexCopy { nodes: self.nodes.clone(), newest: self.newest, sets: self.sets.all() }
    }

    /// Takes in what another process knew, `slot` telling whom a slot of it is now. Into an empty index.
    pub fn restore(&mut self, state: &IndexState, slot: impl Fn(usize) -> Option<ReplicaId>) {
        let members = |bits: &Vec<u64>| -> Vec<ReplicaId> {
            let all =
                bits.iter().enumerate().flat_map(|(n, word)| (0..64).map(move |bit| (n * 64 + bit, (word >> bit) & 1)));
            all.filter(|(_, bit)| *bit == 1).filter_map(|(old, _)| slot(old)).collect()
        };
        let mut known: Vec<Option<SetId>> = vec![None; state.sets.len()];
        for (print, set, used) in &state.blocks {
            let Some(place) = known.get_mut(*set as usize).filter(|_| self.find(*print).is_none()) else { continue };
            let set = match *place {
                Some(set) => set,
                None => {
                    let all = members(&state.sets[*set as usize]);
                    let some = if self.sets.live_bytes() > self.budget / LIVE_SETS_PART { 1 } else { all.len() };
                    let set = all[..some.min(all.len())].iter().fold(SetId::EMPTY, |set, r| self.sets.add(set, *r));
                    // its one user so far: `known`
                    *place.insert(set)
                }
            };
            if set != SetId::EMPTY {
                let at = self.insert(*print, used.moved(&slot));
                self.sets.share(set);
                self.nodes[at as usize].set = set;
            }
        }
        known.into_iter().flatten().for_each(|set| self.sets.release(set));
    }
}

impl IndexCopy {
    /// What is handed over.
    pub fn state(self) -> IndexState {
        let mut blocks = Vec::new();
        let mut at = self.newest;
        while let Some(node) = self.nodes.get(at as usize).filter(|_| at != NONE && blocks.len() < MOST) {
            blocks.push((node.print, node.set.number(), node.used));
            at = node.older;
        }
        blocks.reverse();
        IndexState { sets: self.sets, blocks }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pack;
    use proptest::prelude::*;

    fn holders(index: &PrefixIndex, chain: &[u64], slots: usize) -> Vec<u32> {
        let mut overlaps = vec![0; slots];
        index.walk(chain, &mut overlaps);
        overlaps
    }

    fn chain(of: u64, length: usize) -> Vec<u64> {
        (0..length as u64).map(|n| if n < of % 7 { n + 1 } else { (of << 32) + n + 1 }).collect()
    }

    proptest! {
        #[test]
        fn the_next_process_believes_the_same_under_other_slots(
            uses in prop::collection::vec((0u64..12, 1usize..30, 0u16..70), 1..80),
        ) {
            let mut old = PrefixIndex::new(1 << 20);
            for (stamp, (of, length, replica)) in (1..).zip(&uses) {
                old.hold(&chain(*of, *length), ReplicaId(*replica), stamp);
            }
            let state = pack::open::<IndexState>(&pack::seal(&old.copy().state())).unwrap();
            let mut new = PrefixIndex::new(1 << 20);
            // replica 3 is gone, the others have moved by one
            let slot = |old: usize| (old != 3).then(|| ReplicaId(u16::try_from(old).unwrap() + 1));
            new.restore(&state, slot);
            for (of, length, _) in &uses {
                let (before, after) = (holders(&old, &chain(*of, *length), 71), holders(&new, &chain(*of, *length), 72));
                for (slot, before) in before.iter().enumerate() {
                    prop_assert_eq!(after[slot + 1], if slot == 3 { 0 } else { *before });
                }
            }
            // the order of use is the same: what was used last stays
            let order = |index: &PrefixIndex| index.copy().state().blocks.into_iter().map(|b| (b.0, b.2)).collect::<Vec<_>>();
            let (kept, before) = (order(&new), order(&old).into_iter().map(|(print, used)| (print, used.moved(slot))));
            prop_assert_eq!(before.filter(|b| kept.contains(b)).collect::<Vec<_>>(), kept);
        }

        #[test]
        fn a_smaller_index_takes_what_was_used_last_and_any_state_is_survived(
            sets in prop::collection::vec(prop::collection::vec(any::<u64>(), 0..3), 0..4),
            blocks in prop::collection::vec((0u64..500, 0u32..6, any::<u32>()), 0..900),
        ) {
            let mut index = PrefixIndex::new(4096);
            let blocks = blocks.into_iter().map(|(print, set, used)| (print, set, Use::first((ReplicaId(9), used)))).collect();
            index.restore(&IndexState { sets, blocks }, |slot| u16::try_from(slot).ok().map(ReplicaId));
            prop_assert!(index.blocks() <= index.max_blocks);
            for n in 0..50 {
                index.hold(&chain(n, 9), ReplicaId(1), 7);
            }
            (0..200).for_each(|n| index.forget(ReplicaId(n)));
        }
    }
}
