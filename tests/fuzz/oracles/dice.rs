//! Choices that an input makes for itself: the same input gives the same ones, so that every failure can be had again.

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// A generator of numbers that look random.
pub(crate) struct Dice {
    seed: u64,
    rolled: u64,
}

impl Dice {
    pub(crate) fn of(data: &[u8]) -> Self {
        Dice { seed: xxh3_64_with_seed(data, 0), rolled: 0 }
    }

    /// A number below `n`.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.rolled += 1;
        let roll = xxh3_64_with_seed(&self.rolled.to_le_bytes(), self.seed);
        usize::try_from(roll % n.max(1) as u64).unwrap()
    }

    /// Cuts `text` into pieces of at most `most` bytes, none of them empty.
    pub(crate) fn cut<'t>(&mut self, mut text: &'t [u8], most: usize) -> Vec<&'t [u8]> {
        let mut pieces = Vec::new();
        while !text.is_empty() {
            let (piece, rest) = text.split_at((1 + self.below(most)).min(text.len()));
            pieces.push(piece);
            text = rest;
        }
        pieces
    }
}
