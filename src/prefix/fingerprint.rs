//! Fingerprints: the chained, keyed hash of every full block of a canonical prompt.
//!
//! `print[i] = XXH3-64(block[i], seed = print[i-1])`, with the group secret as `print[-1]`. Two prompts share
//! `print[i]` exactly when they share every byte up to the end of block `i`, so one number stands for a whole prefix.
//! The secret keeps fingerprints of one process group meaningless to others and not steerable from outside.
//!
//! The canonical prompt is never held as a whole: pieces are pushed as they are read, and only an unfinished block is
//! copied.

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// A place in a canonical prompt that need not be the end of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The keyed hash of everything before it.
    pub print: u64,
    /// Full blocks before it.
    pub blocks: u32,
}

/// Where the turns of a conversation end; `None` beyond what is fingerprinted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ends {
    /// The prompt of the turn before this one; `None` in a first turn.
    pub previous: Option<Place>,
    /// This one.
    pub own: Option<Place>,
}

/// The fingerprints of a prompt, first block first, and its canonical length.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fingerprints {
    /// One value per full block.
    pub prints: Vec<u64>,
    /// Canonical bytes pushed, the unfinished block included.
    pub bytes: u64,
    /// The prompt is longer than what is fingerprinted, and perhaps than what was pushed.
    pub is_cut: bool,
    /// Where turns end.
    pub ends: Ends,
}

/// Takes canonical bytes in pieces and hashes them block by block.
#[derive(Debug)]
pub struct Chain {
    last: u64,
    secret: u64,
    block: Vec<u8>,
    block_bytes: usize,
    max_blocks: usize,
    out: Fingerprints,
}

impl Chain {
    /// A chain of `block_bytes` blocks, at most `max_bytes / block_bytes` of them.
    pub fn new(secret: u64, block_bytes: usize, max_bytes: usize) -> Self {
        let block_bytes = block_bytes.max(1);
        Chain {
            last: secret,
            secret,
            block: Vec::with_capacity(block_bytes),
            block_bytes,
            max_blocks: max_bytes / block_bytes,
            out: Fingerprints::default(),
        }
    }

    /// Adds canonical bytes.
    pub fn push(&mut self, mut piece: &[u8]) {
        self.out.bytes += piece.len() as u64;
        if self.is_full() {
            return;
        }
        if !self.block.is_empty() {
            let (head, rest) = piece.split_at(piece.len().min(self.block_bytes - self.block.len()));
            self.block.extend_from_slice(head);
            piece = rest;
            if self.block.len() < self.block_bytes {
                return;
            }
            let block = std::mem::take(&mut self.block);
            self.link(&block);
            self.block = block;
            self.block.clear();
        }
        let mut blocks = piece.chunks_exact(self.block_bytes);
        for block in &mut blocks {
            if self.is_full() {
                return;
            }
            self.link(block);
        }
        self.block.extend_from_slice(blocks.remainder());
    }

    /// What comes next was generated: the prompt that it answered ends here.
    pub fn begin_answer(&mut self) {
        self.out.ends.previous = self.place();
    }

    /// Where the prompt has come to.
    fn place(&self) -> Option<Place> {
        let blocks = u32::try_from(self.out.prints.len()).ok()?;
        (!self.is_full()).then(|| Place { print: xxh3_64_with_seed(&self.block, !self.last), blocks })
    }

    /// Whether nothing more will be hashed.
    pub fn is_full(&self) -> bool {
        self.out.prints.len() >= self.max_blocks
    }

    /// Adds `weight` canonical bytes that stand for `data`: content that an engine reads at a price unrelated to its
    /// size as text.
    pub fn push_digest(&mut self, data: &[u8], weight: usize) {
        let digest = xxh3_64_with_seed(data, self.secret).to_le_bytes();
        let unit = digest.repeat(32);
        let mut left = weight;
        while left > 0 {
            let n = left.min(unit.len());
            self.push(&unit[..n]);
            left -= n;
        }
    }

    /// The fingerprints of the full blocks.
    pub fn finish(mut self) -> Fingerprints {
        self.out.is_cut = self.is_full();
        self.out.ends.own = self.place();
        self.out
    }

    fn link(&mut self, block: &[u8]) {
        self.last = xxh3_64_with_seed(block, self.last);
        self.out.prints.push(self.last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn prints(pieces: &[&[u8]], secret: u64, max: usize) -> Fingerprints {
        let mut chain = Chain::new(secret, 256, max);
        pieces.iter().for_each(|p| chain.push(p));
        chain.finish()
    }

    #[test]
    fn only_full_blocks_count_and_the_limit_holds() {
        let text = vec![7u8; 1000];
        assert_eq!(prints(&[&text], 1, 1 << 20).prints.len(), 3);
        let capped = prints(&[&text], 1, 512);
        assert_eq!((capped.prints.len(), capped.bytes), (2, 1000));
    }

    #[test]
    fn another_secret_gives_other_fingerprints() {
        let text = vec![7u8; 512];
        assert_ne!(prints(&[&text], 1, 4096).prints[0], prints(&[&text], 2, 4096).prints[0]);
    }

    #[test]
    fn equal_blocks_at_different_places_differ() {
        let p = prints(&[&[0u8; 1024]], 9, 4096).prints;
        assert_eq!(p.len(), 4);
        assert!(p.windows(2).all(|w| w[0] != w[1]));
    }

    #[test]
    fn a_digest_weighs_what_it_is_said_to_weigh() {
        let mut chain = Chain::new(1, 256, 1 << 20);
        chain.push_digest(&[1; 100_000], 4096);
        assert_eq!(chain.finish(), {
            let mut again = Chain::new(1, 256, 1 << 20);
            again.push_digest(&[1; 100_000], 4096);
            assert_eq!(again.out.bytes, 4096);
            again.finish()
        });
    }

    proptest! {
        #[test]
        fn the_cut_into_pieces_does_not_matter(text in prop::collection::vec(any::<u8>(), 0..3000), cuts in prop::collection::vec(0usize..3000, 0..10)) {
            let mut cuts: Vec<_> = cuts.into_iter().map(|c| c.min(text.len())).collect();
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            let pieces: Vec<_> = cuts.windows(2).map(|w| &text[w[0]..w[1]]).collect();
            prop_assert_eq!(prints(&pieces, 5, 2048), prints(&[&text], 5, 2048));
        }

        #[test]
        fn a_shared_prefix_shares_exactly_its_full_blocks(a in prop::collection::vec(any::<u8>(), 600..1500), at in 0usize..600) {
            let mut b = a.clone();
            b[at] ^= 1;
            let (a, b) = (prints(&[&a], 5, 1 << 20).prints, prints(&[&b], 5, 1 << 20).prints);
            let same = a.iter().zip(&b).take_while(|(x, y)| x == y).count();
            prop_assert_eq!(same, at / 256);
        }
    }
}
