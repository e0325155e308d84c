//! How much memory the bodies of requests may take that are held until they can no longer be sent again, all together.
//!
//! Counted is what has come, not what was announced: who says that much will come must not keep others out. One body is
//! always let in, however large: the limit of a single one is another.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Memory is taken in pieces of so many bytes, so that a body that comes in little ones asks seldom.
const PIECE: usize = 64 << 10;

/// The memory of all bodies.
#[derive(Debug, Default)]
pub(super) struct BodyMemory {
    used: AtomicUsize,
}

/// What one body takes of it. Given back on drop.
#[derive(Debug)]
pub(super) struct Room {
    memory: Arc<BodyMemory>,
    most: usize,
    taken: usize,
}

impl BodyMemory {
    /// Room for a body of which nothing has come yet, where all may take `most` bytes.
    pub(super) fn room(self: &Arc<Self>, most: usize) -> Room {
        Room { memory: self.clone(), most, taken: 0 }
    }
}

impl Room {
    /// Whether there is room for so many bytes in all.
    pub(super) fn grow(&mut self, bytes: usize) -> bool {
        if bytes <= self.taken {
            return true;
        }
        let more = bytes.div_ceil(PIECE).saturating_mul(PIECE) - self.taken;
        // relaxed: the number publishes nothing but itself
        let fits = |used: usize| used.checked_add(more).filter(|after| *after <= self.most || used == self.taken);
        let is_in = self.memory.used.fetch_update(Relaxed, Relaxed, fits).is_ok();
        self.taken += if is_in { more } else { 0 };
        is_in
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.memory.used.fetch_sub(self.taken, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn one_body_is_always_let_in_and_no_second_beyond_the_limit() {
        let memory = Arc::new(BodyMemory::default());
        let room = || memory.room(4 * PIECE);
        let (mut first, mut second) = (room(), room());
        assert!(first.grow(9 * PIECE) && !second.grow(1));
        drop(first);
        assert!(second.grow(1) && second.grow(PIECE) && second.grow(4 * PIECE));
        let mut third = room();
        assert!(!third.grow(1));
        drop(second);
        assert!(third.grow(1));
        drop(third);
        assert_eq!(memory.used.load(Relaxed), 0);
    }

    proptest! {
        #[test]
        fn what_is_taken_is_given_back(sizes in prop::collection::vec((0usize..6, 0usize..9 * PIECE), 0..60)) {
            let memory = Arc::new(BodyMemory::default());
            let room = || memory.room(12 * PIECE);
            let mut rooms: Vec<_> = (0..6).map(|_| room()).collect();
            for (n, size) in sizes {
                match size % 5 {
                    0 => rooms[n] = room(),
                    _ => _ = rooms[n].grow(size),
                }
                let taken: usize = rooms.iter().map(|room| room.taken).sum();
                prop_assert_eq!(memory.used.load(Relaxed), taken);
                prop_assert!(taken <= 12 * PIECE);
            }
        }
    }
}
