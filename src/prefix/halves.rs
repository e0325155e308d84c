//! A table of fixed size that forgets what has not been used for long. Pure.
//!
//! Two halves, young and old. What is used is written into the young half; when that is full, it becomes the old one, and
//! what was old is forgotten. So whatever was used stays known until as many others were used after it as a half holds,
//! and nothing is sorted.
//!
//! Both halves are reserved at once and never grow beyond that; of what is reserved, what is known is used (see
//! `super::dense`).

use super::dense::Dense;

/// At most `HALF` entries in each half, by a key that is a hash already. Seven eighths of a power of two waste nothing.
#[derive(Debug)]
pub struct Halves<V, const HALF: usize> {
    young: Dense<V>,
    old: Dense<V>,
}

impl<V, const HALF: usize> Default for Halves<V, HALF> {
    fn default() -> Self {
        let reserved = || Dense::with_room(HALF, HALF);
        Halves { young: reserved(), old: reserved() }
    }
}

impl<V: Copy, const HALF: usize> Halves<V, HALF> {
    /// What is known of `key`; that does not count as a use.
    pub fn get(&self, key: u64) -> Option<V> {
        self.young.get(key).or_else(|| self.old.get(key)).copied()
    }

    /// The same, to be changed in place.
    pub fn get_mut(&mut self, key: u64) -> Option<&mut V> {
        self.young.get_mut(key).or_else(|| self.old.get_mut(key))
    }

    /// What is known of `key`, which is used now.
    pub fn touch(&mut self, key: u64) -> Option<V> {
        if let Some(value) = self.young.get(key) {
            return Some(*value);
        }
        let value = self.old.remove(key)?;
        self.put(key, value);
        Some(value)
    }

    /// `key` is used, and this is known of it from now on. Returns what was before.
    pub fn put(&mut self, key: u64, value: V) -> Option<V> {
        if let Some(known) = self.young.get_mut(key) {
            return Some(std::mem::replace(known, value));
        }
        let before = self.old.remove(key);
        // what was taken out may leave places that cannot be used again: such a half is full before it holds so many
        if self.young.len() >= HALF.min(self.young.room()) {
            std::mem::swap(&mut self.young, &mut self.old);
            self.young.clear();
        }
        self.young.insert(key, value);
        before
    }

    /// Keeps only what is to be kept.
    pub fn retain(&mut self, mut is_kept: impl FnMut(&mut V) -> bool) {
        self.young.retain(|value| is_kept(value));
        self.old.retain(|value| is_kept(value));
    }

    /// All that is known, the old half first.
    pub fn all(&self) -> Vec<(u64, V)> {
        self.old.iter().chain(self.young.iter()).copied().collect()
    }

    /// How much is known.
    pub fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }

    /// Whether nothing is.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of entries that were ever written: what is forgotten leaves its memory to what comes.
    pub fn written(&self) -> usize {
        self.young.written() + self.old.written()
    }

    /// Heap bytes that are reserved: always the same.
    pub fn bytes(&self) -> usize {
        self.young.bytes() + self.old.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HALF: usize = 56;

    fn print(n: u64) -> u64 {
        n.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    #[test]
    fn what_is_used_stays_and_the_rest_makes_room() {
        let mut halves: Halves<u64, HALF> = Halves::default();
        halves.put(u64::MAX, 7);
        for n in 0..10 * HALF as u64 {
            assert_eq!(halves.put(print(n), n), None);
            assert!(halves.len() <= 2 * HALF);
            assert_eq!(halves.touch(u64::MAX), Some(7), "{n}");
            assert_eq!(halves.get(print(n.saturating_sub(HALF as u64 / 2))), Some(n.saturating_sub(HALF as u64 / 2)));
        }
        assert_eq!(halves.get(print(0)), None);
        assert_eq!(halves.put(u64::MAX, 8), Some(7));
        halves.retain(|value| *value == 8);
        assert_eq!(halves.all(), [(u64::MAX, 8)]);
    }

    #[test]
    fn a_half_from_which_everything_was_taken_has_all_of_its_room_again() {
        const HALF: usize = 896;
        let all = HALF as u64;
        let mut halves: Halves<u64, HALF> = Halves::default();
        for round in 0..20u64 {
            let key = |n: u64| print(round << 32 | n);
            (0..=all).for_each(|n| _ = halves.put(key(n), n));
            // one by one they go to the other half; with the last one the two change places
            (0..all).for_each(|n| _ = halves.touch(key(n)));
            // after the one before that, fewer others are used than a half holds
            (0..all - 2).for_each(|n| _ = halves.put(key(1 << 31 | n), n));
            assert_eq!(halves.get(key(all - 2)), Some(all - 2), "{round}");
        }
    }

    proptest! {
        #[test]
        fn it_never_grows_whatever_is_done(does in prop::collection::vec((0u8..8, 0u64..400), 1..3000)) {
            let mut halves: Halves<u64, HALF> = Halves::default();
            let reserved = halves.bytes();
            prop_assert_eq!([&halves.young, &halves.old].map(Dense::room), [HALF; 2]);
            for (does, n) in does {
                let _known = match does {
                    0 => {
                        halves.retain(|value| *value % 3 != n % 3);
                        None
                    }
                    1 | 2 => halves.touch(print(n)),
                    _ => halves.put(print(n), n),
                };
                let entries = [&halves.young, &halves.old].map(|half| half.len() <= HALF && half.room() <= HALF);
                prop_assert_eq!((entries, halves.bytes()), ([true; 2], reserved));
                prop_assert!(halves.get(print(n)).is_none_or(|value| value == n));
            }
        }
    }
}
