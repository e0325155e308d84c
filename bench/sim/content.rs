//! Prompts without text: a growing list of pieces of named content, cut into blocks as an engine cuts tokens.
//!
//! A block's name chains what it covers (which content, from where, how much) to everything before it. So two prompts
//! share names exactly as far as they share content, and the router's larger blocks are every second one of the
//! engine's: both sides see the same overlap, each at its own grain.

use std::sync::Arc;

use ramjet::prefix::fingerprint::{Ends, Place};

use crate::clients::Prompt;
use crate::num::mix;

/// Tokens of an engine block. Engines use 16; at 256 a cached prefix is short by 120 tokens on average and a simulated
/// fleet of 100 caches fits in memory.
pub(crate) const ENGINE_BLOCK: usize = 256;
/// Engine blocks in one of the router's: 2048 bytes at 4 bytes per token.
const PER_ROUTER_BLOCK: usize = 2;
/// Bytes of text per token.
pub(crate) const BYTES_PER_TOKEN: usize = 4;
/// Tokens of a router block.
pub(crate) const ROUTER_BLOCK: usize = ENGINE_BLOCK * PER_ROUTER_BLOCK;

/// A text under construction.
#[derive(Clone, Debug, Default)]
pub(crate) struct Text {
    chain: Vec<u64>,
    state: u64,
    tokens: usize,
    previous: Option<Place>,
}

impl Text {
    /// Appends `tokens` tokens of the content called `name`.
    pub(crate) fn push(&mut self, name: u64, tokens: usize) {
        let mut from = 0;
        while from < tokens {
            let room = ENGINE_BLOCK - self.tokens % ENGINE_BLOCK;
            let take = room.min(tokens - from);
            let piece = mix(name ^ mix((from as u64) << 20 | take as u64));
            self.state = mix(self.state.rotate_left(17) ^ piece);
            self.tokens += take;
            from += take;
            if take == room {
                self.chain.push(self.state);
            }
        }
    }

    /// Where its turns end, as a router computes it.
    pub(crate) fn ends(&self) -> Ends {
        Ends { previous: self.previous, own: Some(self.place()) }
    }

    fn place(&self) -> Place {
        let blocks = u32::try_from(self.tokens / ROUTER_BLOCK).unwrap_or(u32::MAX);
        Place { print: mix(self.state ^ self.tokens as u64), blocks }
    }

    /// Its length.
    pub(crate) fn tokens(&self) -> usize {
        self.tokens
    }

    /// Names of its whole blocks.
    #[cfg(test)]
    pub(crate) fn chain(&self) -> &[u64] {
        &self.chain
    }

    /// Its blocks, when it is complete.
    pub(crate) fn into_chain(self) -> Vec<u64> {
        self.chain
    }

    /// What a router computes from the same text.
    pub(crate) fn fingerprints(&self) -> Arc<[u64]> {
        self.chain.iter().skip(PER_ROUTER_BLOCK - 1).step_by(PER_ROUTER_BLOCK).copied().collect()
    }
}

impl Prompt for Text {
    fn push(&mut self, name: u64, tokens: usize) {
        Self::push(self, name, tokens);
    }

    fn answer(&mut self, name: u64, tokens: usize) {
        self.previous = Some(self.place());
        Self::push(self, name, tokens);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(pieces: &[(u64, usize)]) -> Text {
        let mut text = Text::default();
        pieces.iter().for_each(|&(name, tokens)| text.push(name, tokens));
        text
    }

    fn shared(a: &[u64], b: &[u64]) -> usize {
        a.iter().zip(b).take_while(|(a, b)| a == b).count()
    }

    #[test]
    fn texts_share_blocks_as_far_as_they_share_content() {
        let a = text(&[(1, 1000), (2, 1000)]);
        let b = text(&[(1, 1000), (3, 1000)]);
        assert_eq!(a.chain().len(), 2000 / ENGINE_BLOCK);
        assert_eq!(shared(a.chain(), b.chain()), 1000 / ENGINE_BLOCK);
        assert_eq!(shared(&a.fingerprints(), &b.fingerprints()), 1000 / ROUTER_BLOCK);
        let longer = text(&[(1, 1000), (2, 1000), (4, 5000)]);
        assert_eq!(shared(a.chain(), longer.chain()), a.chain().len());
    }

    #[test]
    fn a_different_start_changes_every_block() {
        let (a, b) = (text(&[(9, 1), (1, 4096)]), text(&[(8, 1), (1, 4096)]));
        assert_eq!(shared(a.chain(), b.chain()), 0);
    }
}
