//! A table by hashed key whose entries stand side by side. Pure.
//!
//! A hash table strews what is in it over all of its memory: a few hundred entries that come and go soon have touched every
//! page of a large one, and the process is as large as if it were full. Here the entries stand in a list without holes, and
//! the table has only their places in it, at four bytes each. So a process takes the memory of what it knows.
//!
//! All of it is reserved at once, as addresses: it does not move while it grows, and no request waits for a copy.

use hashbrown::HashTable;

/// A table by a key that is a hash already.
#[derive(Debug)]
pub(super) struct Dense<V> {
    places: HashTable<u32>,
    entries: Vec<(u64, V)>,
    /// The most entries that were ever there: that far their memory has been written.
    most: usize,
}

impl<V> Dense<V> {
    /// Room for so many entries, and for so many places: twice as many, where entries are taken out one by one, or the
    /// places that these leave make the table a larger one in the end.
    pub(super) fn with_room(entries: usize, places: usize) -> Self {
        Dense { places: HashTable::with_capacity(places), entries: Vec::with_capacity(entries), most: 0 }
    }

    /// What is there under `key`.
    pub(super) fn get(&self, key: u64) -> Option<&V> {
        self.place(key).map(|at| &self.entries[at].1)
    }

    /// The same, to be changed in place.
    pub(super) fn get_mut(&mut self, key: u64) -> Option<&mut V> {
        self.place(key).map(|at| &mut self.entries[at].1)
    }

    /// Puts it there; returns what was there before.
    pub(super) fn insert(&mut self, key: u64, value: V) -> Option<V> {
        if let Some(known) = self.get_mut(key) {
            return Some(std::mem::replace(known, value));
        }
        let entries = &mut self.entries;
        let at = u32::try_from(entries.len()).unwrap_or(u32::MAX);
        entries.push((key, value));
        self.most = self.most.max(entries.len());
        self.places.insert_unique(key, at, |at| entries[index(*at)].0);
        None
    }

    /// Takes it out; the last entry takes its place.
    pub(super) fn remove(&mut self, key: u64) -> Option<V> {
        let entries = &mut self.entries;
        let found = self.places.find_entry(key, |at| entries[index(*at)].0 == key).ok()?;
        let (at, _) = found.remove();
        let (_, value) = entries.swap_remove(index(at));
        if let Some((moved, _)) = entries.get(index(at)) {
            let last = entries.len();
            if let Some(place) = self.places.find_mut(*moved, |place| index(*place) == last) {
                *place = at;
            }
        }
        Some(value)
    }

    /// Keeps only what is to be kept.
    pub(super) fn retain(&mut self, mut is_kept: impl FnMut(&mut V) -> bool) {
        let mut at = 0;
        while let Some((key, value)) = self.entries.get_mut(at) {
            if is_kept(value) {
                at += 1;
            } else {
                let key = *key;
                self.remove(key);
            }
        }
    }

    /// Takes everything out.
    pub(super) fn clear(&mut self) {
        if self.places.is_empty() {
            // a table with nothing in it is left as it is by its own `clear`: with the places that cannot be used again
            self.places.insert_unique(0, 0, |_| 0);
        }
        self.places.clear();
        self.entries.clear();
    }

    /// All that is there.
    pub(super) fn iter(&self) -> impl Iterator<Item = &(u64, V)> {
        self.entries.iter()
    }

    /// How much is there.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// How much can be there before it has to grow: what was taken out may leave places that cannot be used again.
    pub(super) fn room(&self) -> usize {
        self.places.capacity().min(self.entries.capacity())
    }

    /// Heap bytes that are reserved: always the same, as long as no more is in it than there is room for.
    pub(super) fn bytes(&self) -> usize {
        self.places.allocation_size() + self.entries.capacity() * size_of::<(u64, V)>()
    }

    /// Of these, the bytes of entries that were ever written.
    pub(super) fn written(&self) -> usize {
        self.most * size_of::<(u64, V)>()
    }

    fn place(&self, key: u64) -> Option<usize> {
        self.places.find(key, |at| self.entries[index(*at)].0 == key).map(|at| index(*at))
    }
}

fn index(at: u32) -> usize {
    at as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn key(n: u64) -> u64 {
        n.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    /// The highest place that was ever written: what touches memory.
    fn touched(table: &Dense<u64>) -> usize {
        table.places.iter().map(|at| index(*at) + 1).max().unwrap_or(0)
    }

    #[test]
    fn a_few_entries_that_come_and_go_touch_little_and_nothing_grows() {
        let mut table = Dense::with_room(1000, 2000);
        let reserved = table.bytes();
        for n in 0..100_000u64 {
            table.insert(key(n), n);
            assert_eq!(table.remove(key(n.wrapping_sub(20))), n.checked_sub(20));
            assert!(touched(&table) <= 21);
        }
        assert_eq!((table.bytes(), table.written()), (reserved, 21 * 16));
        // and full
        (0..980).for_each(|n| assert_eq!(table.insert(key(200_000 + n), n), None));
        assert_eq!((table.len(), table.bytes()), (1000, reserved));
    }

    #[test]
    fn what_was_emptied_one_by_one_has_all_of_its_room_again_when_it_is_cleared() {
        let mut table = Dense::with_room(1792, 1792);
        let (room, bytes) = (table.room(), table.bytes());
        for round in 0..20u64 {
            let keys = round * 2000..round * 2000 + 1792;
            keys.clone().for_each(|n| _ = table.insert(key(n), n));
            keys.for_each(|n| _ = table.remove(key(n)));
            table.clear();
            assert_eq!((table.len(), table.room(), table.bytes()), (0, room, bytes), "{round}");
        }
    }

    proptest! {
        #[test]
        fn it_is_a_map_whatever_is_done(does in prop::collection::vec((0u8..9, 0u64..60), 1..400)) {
            let (mut table, mut map) = (Dense::with_room(60, 120), BTreeMap::new());
            for (n, (does, what)) in (0u64..).zip(does) {
                match does {
                    0 => {
                        table.retain(|value| *value % 3 != what % 3);
                        map.retain(|_, value| *value % 3 != what % 3);
                    }
                    1 if what == 0 => {
                        table.clear();
                        map.clear();
                    }
                    1..4 => prop_assert_eq!(table.remove(key(what)), map.remove(&key(what))),
                    4 => prop_assert_eq!(table.get_mut(key(what)).map(|v| { *v += 1; *v }), map.get_mut(&key(what)).map(|v| { *v += 1; *v })),
                    _ => prop_assert_eq!(table.insert(key(what), n), map.insert(key(what), n)),
                }
                prop_assert_eq!(table.iter().copied().collect::<BTreeMap<_, _>>(), map.clone());
                prop_assert_eq!((table.len(), touched(&table)), (map.len(), map.len()));
                prop_assert!(table.room() >= 60);
                (0..60).for_each(|n| assert_eq!(table.get(key(n)), map.get(&key(n))));
            }
        }
    }
}
