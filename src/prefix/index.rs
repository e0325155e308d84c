//! The fleet-wide prefix index: fingerprint → the replicas believed to hold that block.
//!
//! One index for all replicas, one walk answers for all of them. A replica that holds block `i` of a chain holds every
//! block before it, so the walk narrows one set from block to block and notes where each replica drops out.
//!
//! **Bounded in bytes, enforced at insert.** The least recently used block goes first. Every use touches a chain from
//! its last block to its first, so a block is never older than what follows it: plain LRU order then *is* leaf-first
//! order, and a trunk outlives its twigs without a tree being kept. (Who used a block when, which tells what an engine may
//! have evicted, is another matter: see [`super::uses`].)

pub mod state;

use super::lru::Stamp;
use super::replica_set::{ReplicaSets, SetId};
use super::uses::{Run, Runs, Use};
use crate::types::ReplicaId;
use hashbrown::HashTable;
use smallvec::{SmallVec, smallvec};

const NONE: u32 = u32::MAX;
/// Table bytes per bucket: the slot number and hashbrown's control byte.
const BUCKET_BYTES: usize = size_of::<u32>() + 1;
/// One part in this many of the budget is kept for replica sets, which are few.
const SETS_PART: usize = 8;
/// What the live sets may weigh, as a part of the budget: their tables may be four times as large as what is live.
const LIVE_SETS_PART: usize = 4 * SETS_PART;

/// Which replicas hold which blocks.
#[derive(Debug)]
pub struct PrefixIndex {
    slots: HashTable<u32>,
    nodes: Vec<Node>,
    free: Vec<u32>,
    newest: u32,
    oldest: u32,
    sets: ReplicaSets,
    max_blocks: usize,
    budget: usize,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    print: u64,
    set: SetId,
    used: Use,
    newer: u32,
    older: u32,
}

impl PrefixIndex {
    /// An index that uses at most `budget` bytes of heap. (While its table doubles, the old half exists too.)
    pub fn new(budget: usize) -> Self {
        PrefixIndex {
            slots: HashTable::new(),
            nodes: Vec::new(),
            free: Vec::new(),
            newest: NONE,
            oldest: NONE,
            sets: ReplicaSets::new(),
            max_blocks: max_blocks(budget - budget / SETS_PART),
            budget,
        }
    }

    /// Lets it use `budget` bytes from now on; not fewer than before, as its table does not shrink: then false.
    pub fn allow(&mut self, budget: usize) -> bool {
        if budget < self.budget {
            return false;
        }
        self.max_blocks = max_blocks(budget - budget / SETS_PART);
        self.budget = budget;
        true
    }

    /// How many leading blocks of `chain` each replica holds; `overlaps` is indexed by replica slot and overwritten.
    /// Returns when those blocks were last used.
    pub fn walk(&self, chain: &[u64], overlaps: &mut [u32]) -> Runs {
        overlaps.fill(0);
        let mut holders: SmallVec<[u64; 16]> = smallvec![u64::MAX; overlaps.len().div_ceil(64)];
        let mut runs = Gatherer::default();
        let mut depth = 0;
        for print in chain {
            let Some(slot) = self.find(*print) else { break };
            let Node { set, used, .. } = self.nodes[slot as usize];
            if runs.set != Some(set) {
                drop_out(&mut holders, self.sets.bits(set), depth, overlaps);
                if holders.iter().all(|w| *w == 0) {
                    break;
                }
            }
            depth += 1;
            runs.push(depth, set, used, &self.sets);
        }
        drop_out(&mut holders, &[], depth, overlaps);
        runs.runs
    }

    /// Notes that `replica` holds every block of `chain` and that the chain was used now, at `stamp`. Returns how many
    /// leading blocks it held before, and when those were last used. Of a chain larger than the index, only the
    /// beginning is noted.
    pub fn hold(&mut self, chain: &[u64], replica: ReplicaId, stamp: Stamp) -> (usize, Runs) {
        let chain = &chain[..chain.len().min(self.max_blocks)];
        let mut slots: SmallVec<[u32; 512]> = chain.iter().map_while(|print| self.find(*print)).collect();
        let known = slots.len();
        let runs = self.runs(&slots);
        let now = (replica, stamp);
        // where room is to be made: first what is there, so that it is not taken; then what is new; then again what is
        // there, so that no block is older than what follows it
        if self.blocks() + chain.len() - known > self.max_blocks {
            self.touch_backwards(&slots, None);
        }
        slots.resize(chain.len(), NONE);
        for (slot, print) in slots[known..].iter_mut().zip(&chain[known..]).rev() {
            *slot = self.find_or_insert(*print, now);
        }
        self.touch_backwards(&slots[..known], Some(now));
        (self.add_holder(&slots, replica), runs)
    }

    fn runs(&self, slots: &[u32]) -> Runs {
        let mut runs = Gatherer::default();
        for (end, slot) in (1..).zip(slots) {
            let Node { set, used, .. } = self.nodes[*slot as usize];
            runs.push(end, set, used, &self.sets);
        }
        runs.runs
    }

    /// Makes these blocks the newest, the first one most; with a use that counts, or without.
    fn touch_backwards(&mut self, slots: &[u32], now: Option<(ReplicaId, Stamp)>) {
        for slot in slots.iter().rev() {
            self.touch(*slot, now);
        }
    }

    /// Adds `replica` to the sets of `slots`; returns up to which depth it was there before.
    fn add_holder(&mut self, slots: &[u32], replica: ReplicaId) -> usize {
        let mut held_to = 0;
        // the last exchange of sets: neighbours usually repeat it
        let mut last = None;
        for (depth, slot) in slots.iter().enumerate() {
            let set = self.nodes[*slot as usize].set;
            if self.sets.contains(set, replica) {
                held_to = depth + 1;
                continue;
            }
            let new = match last {
                Some((from, to)) if from == set => {
                    self.sets.share(to);
                    self.sets.release(set);
                    to
                }
                // too many different sets: rather forget who else holds the block than exceed the memory
                _ if self.sets.live_bytes() > self.budget / LIVE_SETS_PART => self.sets.reset_to(set, replica),
                _ => self.sets.add(set, replica),
            };
            last = Some((set, new));
            self.nodes[*slot as usize].set = new;
        }
        held_to
    }

    /// Takes back that `replica` holds the blocks of `chain` from `from` on.
    pub fn withdraw(&mut self, chain: &[u64], from: usize, replica: ReplicaId) {
        // the last exchange of sets: neighbours usually repeat it
        let mut last = None;
        for print in chain.iter().skip(from) {
            let Some(slot) = self.find(*print) else { continue };
            let set = self.nodes[slot as usize].set;
            let left = match last {
                Some((before, after)) if before == set && after != SetId::EMPTY => {
                    self.sets.share(after);
                    self.sets.release(set);
                    after
                }
                _ => self.sets.remove(set, replica),
            };
            last = Some((set, left));
            self.nodes[slot as usize].set = left;
            if left == SetId::EMPTY {
                self.delete(slot);
            }
        }
    }

    /// Takes back everything about `replica`.
    pub fn forget(&mut self, replica: ReplicaId) {
        self.sets.forget(replica);
    }

    /// Heap bytes in use.
    pub fn bytes(&self) -> usize {
        self.nodes.capacity() * size_of::<Node>()
            + self.free.capacity() * size_of::<u32>()
            + self.slots.allocation_size()
            + self.sets.bytes()
    }

    /// Blocks in the index.
    pub fn blocks(&self) -> usize {
        self.slots.len()
    }

    /// Who holds the block of a fingerprint, as bits by replica slot; nothing if it is not known.
    pub fn holders(&self, print: u64) -> &[u64] {
        self.find(print).map_or(&[], |slot| self.sets.bits(self.nodes[slot as usize].set))
    }

    /// Whether it keeps to its budget, and every node is either a block or free.
    pub fn is_sound(&self) -> bool {
        self.bytes() <= self.budget && self.nodes.len() == self.blocks() + self.free.len()
    }

    fn find(&self, print: u64) -> Option<u32> {
        self.slots.find(print, |slot| self.nodes[*slot as usize].print == print).copied()
    }

    fn find_or_insert(&mut self, print: u64, now: (ReplicaId, Stamp)) -> u32 {
        match self.find(print) {
            Some(slot) => {
                self.touch(slot, Some(now));
                slot
            }
            None => self.insert(print, Use::first(now)),
        }
    }

    fn insert(&mut self, print: u64, used: Use) -> u32 {
        while self.blocks() >= self.max_blocks {
            self.delete(self.oldest);
        }
        let node = Node { print, set: SetId::EMPTY, used, newer: NONE, older: NONE };
        let slot = if let Some(slot) = self.free.pop() {
            self.nodes[slot as usize] = node;
            slot
        } else {
            grow(&mut self.nodes, self.max_blocks);
            self.nodes.push(node);
            u32::try_from(self.nodes.len() - 1).unwrap_or(NONE)
        };
        let nodes = &self.nodes;
        self.slots.insert_unique(print, slot, |slot| nodes[*slot as usize].print);
        self.link_newest(slot);
        slot
    }

    fn delete(&mut self, slot: u32) {
        let Node { print, set, .. } = self.nodes[slot as usize];
        self.sets.release(set);
        self.unlink(slot);
        if let Ok(entry) = self.slots.find_entry(print, |s| *s == slot) {
            entry.remove();
        }
        self.free.push(slot);
    }

    fn touch(&mut self, slot: u32, now: Option<(ReplicaId, Stamp)>) {
        if let Some(now) = now {
            self.nodes[slot as usize].used.again(now);
        }
        if self.newest != slot {
            self.unlink(slot);
            self.link_newest(slot);
        }
    }

    fn link_newest(&mut self, slot: u32) {
        let old = std::mem::replace(&mut self.newest, slot);
        self.nodes[slot as usize].older = old;
        self.nodes[slot as usize].newer = NONE;
        match self.nodes.get_mut(old as usize) {
            Some(node) => node.newer = slot,
            None => self.oldest = slot,
        }
    }

    fn unlink(&mut self, slot: u32) {
        let Node { newer, older, .. } = self.nodes[slot as usize];
        match self.nodes.get_mut(newer as usize) {
            Some(node) => node.older = older,
            None => self.newest = older,
        }
        match self.nodes.get_mut(older as usize) {
            Some(node) => node.newer = newer,
            None => self.oldest = newer,
        }
    }
}

/// Gathers blocks of a chain into runs.
#[derive(Default)]
struct Gatherer {
    runs: Runs,
    set: Option<SetId>,
    members: u32,
}

impl Gatherer {
    #[inline]
    fn push(&mut self, end: u32, set: SetId, used: Use, sets: &ReplicaSets) {
        if self.set != Some(set) {
            self.set = Some(set);
            self.members = sets.bits(set).iter().map(|w| w.count_ones()).sum();
        }
        self.runs.push(Run { end, used, members: self.members });
    }
}

/// Narrows `holders` to `bits`; those that drop out held `depth` blocks.
fn drop_out(holders: &mut [u64], bits: &[u64], depth: u32, overlaps: &mut [u32]) {
    for (n, word) in holders.iter_mut().enumerate() {
        let kept = *word & bits.get(n).copied().unwrap_or(0);
        let mut gone = *word & !kept;
        *word = kept;
        while gone != 0 {
            if let Some(overlap) = overlaps.get_mut(n * 64 + gone.trailing_zeros() as usize) {
                *overlap = depth;
            }
            gone &= gone - 1;
        }
    }
}

/// The most blocks whose nodes, free list and table fit into `budget`. The table has a power of two of buckets, and
/// hashbrown clears out deleted entries in place (rather than doubling) only up to half of its 7/8 load, so the fit
/// is searched bucket count by bucket count.
fn max_blocks(budget: usize) -> usize {
    let per_node = size_of::<Node>() + size_of::<u32>();
    let fit = |buckets: usize| (budget.saturating_sub(buckets * BUCKET_BYTES) / per_node).min(buckets / 16 * 7);
    (4..40).map(|shift| fit(1 << shift)).max().unwrap_or(0).clamp(1, NONE as usize - 1)
}

/// Grows by a quarter rather than by doubling, and never past `max`.
fn grow(nodes: &mut Vec<Node>, max: usize) {
    if nodes.len() == nodes.capacity() {
        let more = (nodes.len() / 4).max(1024).min(max - nodes.len());
        nodes.reserve_exact(more.max(1));
    }
}

#[cfg(test)]
mod tests;
