//! What a fleet that takes turns would have found of the same prompts: the measure that savings are told against. Pure.
//!
//! Taking turns sends each request to a replica that has nothing to do with its prompt. So of the `c` earlier requests
//! that began with a block, each went to any of the `n` replicas, and the one whose turn it is holds the block with
//!
//! ```text
//! P(block) = 1 − (1 − 1/n)^c        found = Σ P(block) over the blocks of the prompt
//! ```
//!
//! Of what is known, this is a share, and that share of what came from the cache (or, where less came than is known, of what
//! is known) would have come from there by turns: so a fleet of one saves nothing, to the token.
//!
//! This is an estimate, and one that flatters taking turns: its caches are taken to hold everything for ever, though each
//! would have to hold the prefixes of all sessions. Blocks are looked at one by one at the beginning of a prompt and one
//! in `STRIDE` after it, where what is found between two of them is taken to lie halfway. Bounded: what was not seen for
//! a hundred thousand others is forgotten, as if it had never been.

use super::halves::Halves;

/// Blocks at the beginning that are all looked at, and one in so many after them.
const STRIDE: usize = 8;
/// Blocks in one half of the table: two million bytes each.
const HALF: usize = 7 << 14;

/// Blocks of a prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Found {
    /// That a replica whose turn it is would hold.
    pub by_turns: f64,
    /// That any earlier request began with.
    pub known: f64,
}

/// How many requests began with each block.
#[derive(Debug, Default)]
pub struct Rotation(Halves<u16, HALF>);

impl Rotation {
    /// A prompt comes: how many of its leading blocks would be found, one of `replicas` taking its turn? From now on it
    /// counts among the earlier ones.
    pub fn found(&mut self, chain: &[u64], replicas: usize) -> Found {
        let (mut found, mut last, mut behind) = (Found::default(), None, 0);
        let mut is_known = true;
        let looked_at = |at: &usize| *at < STRIDE || (at + 1).is_multiple_of(STRIDE);
        for at in (0..chain.len()).filter(looked_at) {
            let before = self.count(chain[at]);
            // who never came so far never came further
            is_known &= before > 0;
            let share = if is_known { (held(before, replicas), 1.0) } else { (0.0, 0.0) };
            let (width, from) = (index(at + 1 - behind), last.unwrap_or(share));
            let between = |from, to| if width > 1.0 { width * f64::midpoint(from, to) } else { to };
            found.by_turns += between(from.0, share.0);
            found.known += between(from.1, share.1);
            (last, behind) = (Some(share), at + 1);
        }
        // those after the last one that was looked at
        let (rest, last) = (index(chain.len() - behind) / 2.0, last.unwrap_or_default());
        Found { by_turns: found.by_turns + rest * last.0, known: found.known + rest * last.1 }
    }

    /// How often a block came before; now it did once more.
    fn count(&mut self, print: u64) -> u16 {
        let before = self.0.get(print).unwrap_or(0);
        self.0.put(print, before.saturating_add(1));
        before
    }

    /// Bytes of entries that were ever written.
    pub fn written(&self) -> usize {
        self.0.written()
    }

    /// Blocks that are known.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Whether one of `replicas` holds what `requests` read, each at any of them.
fn held(requests: u16, replicas: usize) -> f64 {
    1.0 - (1.0 - 1.0 / index(replicas.max(1))).powi(requests.into())
}

#[expect(clippy::cast_precision_loss, reason = "blocks of a prompt and replicas fit a float")]
fn index(n: usize) -> f64 {
    n as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    /// The prefix of so many blocks of one text.
    fn chain(text: u64, blocks: u64) -> Vec<u64> {
        (0..blocks).map(|n| text << 32 | n).collect()
    }

    #[test]
    fn what_is_found_follows_the_formula() {
        let mut rotation = Rotation::default();
        let mut found = |blocks| rotation.found(&chain(1, blocks), 4).by_turns;
        assert_eq!(found(8), 0.0);
        assert_eq!(found(8), 8.0 * 0.25);
        assert!((found(8) - 8.0 * (1.0 - 0.75 * 0.75)).abs() < 1e-12);
        // one replica finds all that came before
        let mut alone = Rotation::default();
        alone.found(&chain(1, 8), 1);
        assert_eq!(alone.found(&chain(1, 8), 1), Found { by_turns: 8.0, known: 8.0 });
        // others are nobody's
        assert_eq!(alone.found(&chain(2, 8), 1), Found::default());
    }

    #[test]
    fn memory_is_bounded_and_what_is_used_stays() {
        let mut rotation = Rotation::default();
        for n in 0..3 * HALF as u64 {
            // hashed, as fingerprints are
            rotation.found(&[u64::MAX, n.wrapping_mul(0x9e37_79b9_7f4a_7c15)], 2);
            assert!(rotation.len() <= 2 * HALF);
        }
        assert!(rotation.found(&[u64::MAX], 2).by_turns > 0.99);
    }

    /// A fleet that draws a replica for each request and forgets nothing: found blocks on average.
    fn drawn(prompts: &[(u64, u64)], replicas: u64, runs: u64) -> f64 {
        let mut found = 0;
        for run in 0..runs {
            let mut held: Vec<HashMap<u64, u64>> = vec![HashMap::new(); usize::try_from(replicas).unwrap()];
            for (n, (text, blocks)) in (0u64..).zip(prompts) {
                let drawn = xxhash_rust::xxh3::xxh3_64_with_seed(&n.to_le_bytes(), run) % replicas;
                let known = held[usize::try_from(drawn).unwrap()].entry(*text).or_default();
                found += (*known).min(*blocks);
                *known = (*known).max(*blocks);
            }
        }
        found as f64 / runs as f64
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn it_is_what_a_fleet_that_takes_turns_finds(
            prompts in prop::collection::vec((0u64..3, 1u64..120), 8..40), replicas in 1u64..9,
        ) {
            let mut rotation = Rotation::default();
            let n = usize::try_from(replicas).unwrap();
            let estimate: f64 = prompts.iter().map(|(text, blocks)| rotation.found(&chain(*text, *blocks), n).by_turns).sum();
            let real = drawn(&prompts, replicas, 300);
            let all: u64 = prompts.iter().map(|(_, blocks)| blocks).sum();
            prop_assert!((estimate - real).abs() <= 0.06 * all as f64, "{estimate} {real} of {all}");
        }

        #[test]
        fn no_more_is_found_than_there_is(prompts in prop::collection::vec((0u64..4, 0u64..200), 1..30), n in 0usize..600) {
            let mut rotation = Rotation::default();
            for (text, blocks) in prompts {
                let found = rotation.found(&chain(text, blocks), n);
                prop_assert!(found.by_turns >= 0.0 && found.by_turns <= found.known + 1e-9, "{found:?}");
                prop_assert!(found.known <= blocks as f64 + 1e-9, "{found:?} of {blocks}");
            }
        }
    }
}
