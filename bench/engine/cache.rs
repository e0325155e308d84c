//! The prefix cache of a simulated engine: a tree of blocks, bounded, the least recently used *leaf* leaves first.
//!
//! A block is named by its chained hash, so a cached block implies that all blocks before it are cached: eviction takes
//! only leaves, which makes "how much of this prompt is cached" a binary search. Two things keep the work per request
//! small: a pin on the last block of a path protects the whole path, and a block inherits the recency of a
//! child when that child is evicted, so that a use touches one block instead of thousands.
//!
//! **Invariants:** never more blocks than the capacity; a parent is never evicted before its children; a pinned block
//! is never evicted.

mod survival;

use std::collections::{BTreeSet, HashMap};

const NONE: u32 = u32::MAX;

#[derive(Debug)]
struct Node {
    hash: u64,
    parent: u32,
    children: u32,
    /// own pins plus the number of children that are pinned
    pins: u32,
    used: u64,
}

/// See the module header.
#[derive(Debug)]
pub(crate) struct Cache {
    capacity: usize,
    nodes: Vec<Node>,
    free: Vec<u32>,
    by_hash: HashMap<u64, u32>,
    /// leaves without a pin, oldest use first
    idle: BTreeSet<(u64, u32)>,
    pinned: usize,
    tick: u64,
    evicted: u64,
}

impl Cache {
    /// An empty cache of this many blocks.
    pub(crate) fn new(capacity: usize) -> Self {
        let capacity = capacity.min(NONE as usize - 1);
        Self {
            capacity,
            nodes: Vec::new(),
            free: Vec::new(),
            by_hash: HashMap::new(),
            idle: BTreeSet::new(),
            pinned: 0,
            tick: 0,
            evicted: 0,
        }
    }

    /// Blocks cached.
    pub(crate) fn len(&self) -> usize {
        self.by_hash.len()
    }

    /// Blocks that running requests hold.
    pub(crate) fn pinned(&self) -> usize {
        self.pinned
    }

    /// The most blocks it can hold.
    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Blocks evicted so far.
    pub(crate) fn evicted(&self) -> u64 {
        self.evicted
    }

    /// How many leading blocks of this chain are cached.
    pub(crate) fn matched(&self, chain: &[u64]) -> usize {
        chain.partition_point(|hash| self.by_hash.contains_key(hash))
    }

    /// Protects a block and all before it. An unknown block is ignored.
    pub(crate) fn pin(&mut self, hash: u64) {
        let Some(&slot) = self.by_hash.get(&hash) else { return };
        let mut at = slot;
        while at != NONE {
            let node = &mut self.nodes[at as usize];
            node.pins += 1;
            if node.pins > 1 {
                return;
            }
            self.pinned += 1;
            if node.children == 0 {
                self.idle.remove(&(node.used, at));
            }
            at = node.parent;
        }
    }

    /// Takes one pin back and marks the block as used now.
    pub(crate) fn unpin(&mut self, hash: u64) {
        let Some(&slot) = self.by_hash.get(&hash) else { return };
        self.tick += 1;
        self.nodes[slot as usize].used = self.tick;
        let mut at = slot;
        while at != NONE {
            let node = &mut self.nodes[at as usize];
            debug_assert!(node.pins > 0, "unpin without pin");
            node.pins -= 1;
            if node.pins > 0 {
                return;
            }
            self.pinned -= 1;
            if node.children == 0 {
                self.idle.insert((node.used, at));
            }
            at = node.parent;
        }
    }

    /// Adds blocks behind a pinned `tip` (or as a new root) and moves the pin to the last one. Returns the new tip:
    /// shorter than asked when everything else is pinned and no room can be made.
    pub(crate) fn grow(&mut self, tip: Option<u64>, blocks: &[u64]) -> Option<u64> {
        let mut tip = tip;
        for &hash in blocks {
            if self.by_hash.contains_key(&hash) {
                self.pin(hash);
                if let Some(old) = tip {
                    self.unpin(old);
                }
            } else if !self.add(tip, hash) {
                break;
            }
            tip = Some(hash);
        }
        tip
    }

    /// Forgets everything, as a restarted engine does. Nothing may be pinned any more.
    pub(crate) fn clear(&mut self) {
        *self = Self { evicted: self.evicted, ..Self::new(self.capacity) };
    }

    /// Forgets everything that no running request holds.
    pub(crate) fn forget(&mut self) {
        while self.evict() {}
    }

    fn add(&mut self, tip: Option<u64>, hash: u64) -> bool {
        if self.len() >= self.capacity && !self.evict() {
            return false;
        }
        let parent = tip.and_then(|tip| self.by_hash.get(&tip).copied()).unwrap_or(NONE);
        self.tick += 1;
        // the parent's own pin turns into the pin of a pinned child: its count stays
        let node = Node { hash, parent, children: 0, pins: 1, used: self.tick };
        if let Some(up) = self.nodes.get_mut(parent as usize) {
            up.children += 1;
        }
        let slot = if let Some(slot) = self.free.pop() {
            self.nodes[slot as usize] = node;
            slot
        } else {
            self.nodes.push(node);
            u32::try_from(self.nodes.len() - 1).unwrap_or(NONE)
        };
        self.by_hash.insert(hash, slot);
        self.pinned += 1;
        true
    }

    fn evict(&mut self) -> bool {
        let Some((used, slot)) = self.idle.pop_first() else { return false };
        let node = &self.nodes[slot as usize];
        let (hash, parent) = (node.hash, node.parent);
        self.by_hash.remove(&hash);
        self.free.push(slot);
        self.evicted += 1;
        if let Some(up) = self.nodes.get_mut(parent as usize) {
            up.children -= 1;
            up.used = up.used.max(used);
            if up.children == 0 && up.pins == 0 {
                self.idle.insert((up.used, parent));
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hold(cache: &mut Cache, chain: &[u64]) -> Option<u64> {
        let have = cache.matched(chain);
        let tip = have.checked_sub(1).map(|last| chain[last]);
        if let Some(tip) = tip {
            cache.pin(tip);
        }
        cache.grow(tip, &chain[have..])
    }

    fn run(cache: &mut Cache, chain: &[u64]) {
        if let Some(tip) = hold(cache, chain) {
            cache.unpin(tip);
        }
    }

    #[test]
    fn oldest_tail_goes_first_and_the_trunk_stays() {
        let mut cache = Cache::new(4);
        run(&mut cache, &[1, 2, 3]);
        run(&mut cache, &[1, 2, 4]);
        run(&mut cache, &[1, 2, 5]);
        assert_eq!(cache.matched(&[1, 2, 3]), 2, "3 was the oldest leaf");
        assert_eq!(cache.matched(&[1, 2, 4]), 3);
        assert_eq!(cache.matched(&[1, 2, 5]), 3);
    }

    #[test]
    fn pinned_path_survives_pressure() {
        let mut cache = Cache::new(4);
        let tip = hold(&mut cache, &[1, 2, 3]);
        run(&mut cache, &[7, 8, 9]);
        assert_eq!(cache.matched(&[1, 2, 3]), 3);
        assert_eq!(cache.matched(&[7, 8, 9]), 1, "only one block was left for others");
        cache.unpin(tip.unwrap());
        assert_eq!(cache.pinned(), 0);
    }

    #[test]
    fn shared_trunk_counts_once() {
        let mut cache = Cache::new(10);
        let a = hold(&mut cache, &[1, 2, 3]).unwrap();
        let b = hold(&mut cache, &[1, 2, 4]).unwrap();
        assert_eq!(cache.pinned(), 4);
        cache.unpin(a);
        assert_eq!(cache.pinned(), 3);
        cache.unpin(b);
        assert_eq!(cache.pinned(), 0);
    }

    #[test]
    fn same_block_grown_by_two_is_one_block() {
        let mut cache = Cache::new(10);
        let a = cache.grow(None, &[1, 2]).unwrap();
        let b = cache.grow(None, &[1, 2, 3]).unwrap();
        assert_eq!((cache.len(), cache.pinned()), (3, 3));
        cache.unpin(a);
        cache.unpin(b);
        assert_eq!(cache.pinned(), 0);
    }

    /// Prompt `p` of length `n` in a small tree: the block's name holds its whole path.
    fn chain(path: &[u8]) -> Vec<u64> {
        path.iter()
            .scan(1u64, |name, step| {
                *name = *name * 4 + u64::from(*step);
                Some(*name)
            })
            .collect()
    }

    proptest! {
        #[test]
        fn bounded_prefix_closed_and_pins_return_to_zero(
            capacity in 1usize..12,
            ops in prop::collection::vec((prop::collection::vec(0u8..3, 1..6), any::<bool>()), 1..60),
        ) {
            let mut cache = Cache::new(capacity);
            let mut held: Vec<(Vec<u64>, u64)> = Vec::new();
            for (path, release) in ops {
                let chain = chain(&path);
                if let Some(tip) = hold(&mut cache, &chain) {
                    held.push((chain.clone(), tip));
                }
                if release && let Some((_, tip)) = held.pop() {
                    cache.unpin(tip);
                }
                prop_assert!(cache.len() <= capacity);
                prop_assert!(cache.pinned() <= cache.len());
                for node in cache.by_hash.values().map(|&slot| &cache.nodes[slot as usize]) {
                    let parent = node.hash / 4;
                    prop_assert!(parent == 1 || cache.by_hash.contains_key(&parent), "orphan block");
                }
                for (chain, tip) in &held {
                    let depth = chain.iter().position(|hash| hash == tip).map_or(0, |at| at + 1);
                    prop_assert!(cache.matched(chain) >= depth, "a pinned path lost a block");
                }
            }
            for (_, tip) in held {
                cache.unpin(tip);
            }
            prop_assert_eq!(cache.pinned(), 0);
            let leaves = cache.by_hash.values().filter(|&&slot| cache.nodes[slot as usize].children == 0).count();
            prop_assert_eq!(cache.idle.len(), leaves);
        }
    }
}
