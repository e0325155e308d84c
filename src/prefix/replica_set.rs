//! Interned sets of replicas: thousands of blocks share a few distinct sets, so a block stores a number.
//!
//! A set is a bit per replica slot. Besides memory this makes a walk cheap: while consecutive blocks carry the same
//! number, nothing has to be intersected, whatever the size of the fleet.

use crate::types::ReplicaId;
use hashbrown::HashTable;
use xxhash_rust::xxh3::xxh3_64;

/// The number of an interned set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetId(u32);

impl SetId {
    /// The set without members; never counted, never freed.
    pub const EMPTY: SetId = SetId(0);

    /// Its place among [`ReplicaSets::all`].
    pub fn number(self) -> u32 {
        self.0
    }
}

/// All sets in use, counted by their users.
#[derive(Debug)]
pub struct ReplicaSets {
    sets: Vec<Set>,
    free: Vec<u32>,
    by_content: HashTable<u32>,
    words: usize,
}

#[derive(Debug, Default)]
struct Set {
    bits: Box<[u64]>,
    users: u64,
}

impl ReplicaSets {
    /// No sets but the empty one.
    pub fn new() -> Self {
        ReplicaSets { sets: vec![Set::default()], free: Vec::new(), by_content: HashTable::new(), words: 0 }
    }

    /// The members as bits, 64 slots a word; words that are missing are zero.
    pub fn bits(&self, id: SetId) -> &[u64] {
        &self.sets[id.0 as usize].bits
    }

    /// All sets by their numbers; those not in use are empty.
    pub fn all(&self) -> Vec<Vec<u64>> {
        self.sets.iter().map(|set| set.bits.to_vec()).collect()
    }

    /// Whether `replica` is a member.
    pub fn contains(&self, id: SetId, replica: ReplicaId) -> bool {
        let (word, bit) = place(replica);
        self.bits(id).get(word).is_some_and(|w| w & bit != 0)
    }

    /// Moves one user from `id` to the set with `replica` added.
    pub fn add(&mut self, id: SetId, replica: ReplicaId) -> SetId {
        let (word, bit) = place(replica);
        let mut bits = self.bits(id).to_vec();
        if bits.len() <= word {
            bits.resize(word + 1, 0);
        }
        bits[word] |= bit;
        self.exchange(id, bits)
    }

    /// Moves one user from `id` to the set of `replica` alone.
    pub fn reset_to(&mut self, id: SetId, replica: ReplicaId) -> SetId {
        let (word, bit) = place(replica);
        let mut bits = vec![0; word + 1];
        bits[word] = bit;
        self.exchange(id, bits)
    }

    /// Moves one user from `id` to the set with `replica` taken out.
    pub fn remove(&mut self, id: SetId, replica: ReplicaId) -> SetId {
        let (word, bit) = place(replica);
        let mut bits = self.bits(id).to_vec();
        if let Some(w) = bits.get_mut(word) {
            *w &= !bit;
        }
        self.exchange(id, bits)
    }

    /// One more user of `id`.
    pub fn share(&mut self, id: SetId) {
        if id != SetId::EMPTY {
            self.sets[id.0 as usize].users += 1;
        }
    }

    /// One user of `id` less.
    pub fn release(&mut self, id: SetId) {
        if id == SetId::EMPTY {
            return;
        }
        let set = &mut self.sets[id.0 as usize];
        set.users -= 1;
        if set.users > 0 {
            return;
        }
        let bits = std::mem::take(&mut set.bits);
        self.words -= bits.len();
        if let Ok(found) = self.by_content.find_entry(xxh3_bits(&bits), |n| *n == id.0) {
            found.remove();
        }
        self.free.push(id.0);
    }

    /// Takes `replica` out of every set, in time that depends on the number of sets, not of blocks.
    ///
    /// Sets that become equal stay apart until they are released; both are right.
    pub fn forget(&mut self, replica: ReplicaId) {
        let (word, bit) = place(replica);
        for w in self.sets.iter_mut().filter_map(|s| s.bits.get_mut(word)) {
            *w &= !bit;
        }
        self.by_content.clear();
        let sets = &self.sets;
        let hash = |n: &u32| xxh3_bits(&sets[*n as usize].bits);
        for n in (1u32..).zip(&sets[1..]).filter(|(_, s)| s.users > 0).map(|(n, _)| n) {
            self.by_content.insert_unique(hash(&n), n, hash);
        }
    }

    /// About what the sets in use weigh, free room not counted.
    pub fn live_bytes(&self) -> usize {
        (self.sets.len() - self.free.len()) * (size_of::<Set>() + 2 * size_of::<u32>()) + self.words * size_of::<u64>()
    }

    /// Heap bytes in use.
    pub fn bytes(&self) -> usize {
        self.sets.capacity() * size_of::<Set>()
            + self.words * size_of::<u64>()
            + self.free.capacity() * size_of::<u32>()
            + self.by_content.allocation_size()
    }

    fn exchange(&mut self, old: SetId, mut bits: Vec<u64>) -> SetId {
        while bits.last() == Some(&0) {
            bits.pop();
        }
        let new = self.intern(bits);
        self.share(new);
        self.release(old);
        new
    }

    /// The number of a set, made if needed, without a user.
    fn intern(&mut self, bits: Vec<u64>) -> SetId {
        if bits.is_empty() {
            return SetId::EMPTY;
        }
        let hash = xxh3_bits(&bits);
        if let Some(n) = self.by_content.find(hash, |n| *self.sets[*n as usize].bits == *bits) {
            return SetId(*n);
        }
        self.words += bits.len();
        let set = Set { bits: bits.into_boxed_slice(), users: 0 };
        let n = if let Some(n) = self.free.pop() {
            self.sets[n as usize] = set;
            n
        } else {
            self.sets.push(set);
            u32::try_from(self.sets.len() - 1).unwrap_or(u32::MAX)
        };
        let sets = &self.sets;
        self.by_content.insert_unique(hash, n, |n| xxh3_bits(&sets[*n as usize].bits));
        SetId(n)
    }
}

impl Default for ReplicaSets {
    fn default() -> Self {
        Self::new()
    }
}

fn place(replica: ReplicaId) -> (usize, u64) {
    (replica.index() / 64, 1 << (replica.index() % 64))
}

fn xxh3_bits(bits: &[u64]) -> u64 {
    // at most 16 words for 1024 replicas: hashed from the stack
    let mut text = [0u8; 8 * 16];
    let mut seed = 0;
    for words in bits.chunks(16) {
        for (bytes, word) in text.chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        seed ^= xxh3_64(&text[..words.len() * 8]);
    }
    seed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_sets_have_one_number_and_unused_ones_are_freed() {
        let mut sets = ReplicaSets::new();
        let (a, b) = (ReplicaId(3), ReplicaId(200));
        let x = sets.add(SetId::EMPTY, a);
        let y = sets.add(SetId::EMPTY, a);
        assert_eq!(x, y);
        let ab = sets.add(x, b);
        let ba = sets.add(SetId::EMPTY, b);
        let ba = sets.add(ba, a);
        assert_eq!(ab, ba);
        assert!(sets.contains(ab, a) && sets.contains(ab, b) && !sets.contains(y, b));
        assert_eq!(sets.remove(ab, a), sets.remove(ba, a));
        let before = sets.sets.len();
        let z = sets.add(y, ReplicaId(9));
        assert_eq!(sets.sets.len(), before, "a freed number is used again");
        assert_eq!(sets.remove(z, a), sets.add(SetId::EMPTY, ReplicaId(9)));
    }

    #[test]
    fn forgetting_reaches_every_set() {
        let mut sets = ReplicaSets::new();
        let one = sets.add(SetId::EMPTY, ReplicaId(1));
        let alone = sets.add(SetId::EMPTY, ReplicaId(2));
        let both = sets.add(SetId::EMPTY, ReplicaId(1));
        let both = sets.add(both, ReplicaId(2));
        sets.forget(ReplicaId(1));
        assert!(!sets.contains(one, ReplicaId(1)) && !sets.contains(both, ReplicaId(1)));
        assert!(sets.contains(alone, ReplicaId(2)) && sets.contains(both, ReplicaId(2)));
        let again = sets.add(SetId::EMPTY, ReplicaId(1));
        assert!(sets.contains(again, ReplicaId(1)));
        for id in [one, alone, both, again] {
            sets.release(id);
        }
    }
}
