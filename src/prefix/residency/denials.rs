//! Answers that deny what was believed to be held, and what they say of the cache. Pure.
//!
//! A block that is gone was evicted, as a rule, and all that was last used before it is gone too. But an engine may have
//! emptied its cache while nothing showed it. That is told by blocks that are gone *suddenly*, long before it was their
//! turn: one may be a prompt of its own kind, two have one cause, unless anything was found meanwhile that was last used
//! before the first of them was asked for. Then all that was is gone.

use super::super::lru::{LruModel, Stamp, not_later};

/// So many denials in a row are no prompts of their own kind.
const ROW: u32 = 2;

/// A block that was believed to be there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    /// The claim that asked for it.
    pub claimed: Stamp,
    /// The claim of its last use.
    pub used: Stamp,
    /// Tokens that were touched since.
    pub distance: f64,
}

/// What was denied of one replica.
#[derive(Clone, Debug, Default)]
pub(super) struct Denials {
    /// Answers in a row that denied what was believed to be held.
    pub row: u32,
    /// Whether it was told that the cache is empty, and no answer has spoken of cached tokens since.
    pub told: bool,
    /// The first block that was gone suddenly.
    missed: Option<Block>,
    /// All that was last used at this claim or before was gone at once.
    emptied: Option<Stamp>,
}

impl Denials {
    /// As another process has seen them.
    pub(super) fn known(row: u32, told: bool) -> Self {
        Denials { row, told, ..Denials::default() }
    }

    /// An answer found what was believed, and `cached` if that is anything.
    pub(super) fn agree(&mut self, cached: bool) {
        if cached {
            (self.row, self.told) = (0, false);
        }
    }

    /// A block was there that was believed to be.
    pub(super) fn kept(&mut self, block: Block, lru: &mut LruModel) {
        let speaks_against = |missed: &mut Block| {
            // asked for later, last used before, and not just now: what is in use when a cache is emptied stays
            let (is_later, is_older) =
                (!not_later(block.claimed, missed.claimed), not_later(block.used, missed.claimed));
            is_later && is_older && block.distance > missed.distance / 2.0
        };
        if let Some(missed) = self.missed.take_if(speaks_against) {
            // it went alone: the cache is smaller than was believed
            lru.shrink(missed.distance);
        }
    }

    /// Less was there than was believed: `cached` of `held` blocks. Whether the cache is empty, if that is news.
    pub(super) fn deny(&mut self, miss: Block, (cached, held): (f64, f64), lru: &mut LruModel) -> bool {
        // numbers wrap
        let is_near =
            |emptied: &Stamp| not_later(miss.claimed, *emptied) || miss.claimed.wrapping_sub(*emptied) < Stamp::MAX / 4;
        self.emptied = self.emptied.filter(is_near);
        if self.emptied.is_some_and(|emptied| not_later(miss.used, emptied)) {
            // it was asked for before that was known
            return false;
        }
        self.row += 1;
        let is_sudden = lru.is_sudden(miss.distance) && !self.is_refilled_only(lru);
        if is_sudden && let Some(first) = self.missed.take() {
            self.emptied = Some(first.claimed);
            lru.was_emptied(first.claimed);
            return self.is_news();
        }
        if is_sudden {
            self.missed = Some(miss);
        }
        // a single one may be a prompt of its own kind, unless part of it was there, and what is missing is old or much
        let is_plain = cached > 0.0 && (cached < held / 2.0 || lru.explains(miss.distance));
        if self.row < ROW && !is_plain {
            return false;
        }
        lru.was_evicted(miss.used);
        if !is_sudden {
            lru.shrink(miss.distance);
        }
        cached <= 0.0 && self.is_news()
    }

    /// Whether the cache was found to be empty and is not full again: two such times in a row are rather a cache that is
    /// smaller than was believed.
    fn is_refilled_only(&self, lru: &LruModel) -> bool {
        let keeps = lru.keeps().unwrap_or(f64::INFINITY);
        self.emptied.is_some_and(|emptied| lru.back().distance(emptied, keeps) < keeps)
    }

    fn is_news(&mut self) -> bool {
        !std::mem::replace(&mut self.told, true)
    }
}
