//! Answers that deny what was believed to be held, and what they say of the cache. Pure.
//!
//! A block that is gone was evicted, as a rule, and all that was last used before it is gone too. But an engine may have
//! emptied its cache while nothing showed it. That is told by blocks that are gone *suddenly*, long before it was their
//! turn: one may be a prompt of its own kind, two of their own have one cause, unless anything was found meanwhile that was
//! last used before the first of them was asked for, and about as long before. Then all that was last used before either is
//! gone. The first is forgotten when a part of the cache has been used since: what has one cause comes together.

use super::super::lru::{LruModel, Stamp, not_later};

/// So many denials in a row are no prompts of their own kind.
const ROW: u32 = 2;
/// What has been used of a cache, as a part of it, since something happened that is still news.
const RECENT: f64 = 0.5;

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
    /// The first block that was gone suddenly, and whether its prompt was there in part.
    missed: Option<(Block, bool)>,
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
        if self.missed.is_some() || self.emptied.is_some() {
            self.age(lru);
        }
        let speaks_against = |(missed, _): &mut (Block, bool)| {
            // asked for later, last used before, and not just now: what is in use when a cache is emptied stays
            let (is_later, is_older) =
                (!not_later(block.claimed, missed.claimed), not_later(block.used, missed.claimed));
            is_later && is_older && block.distance > missed.distance / 2.0
        };
        // it went alone: the cache is smaller than was believed, or it was a prompt of its own kind
        if let Some((missed, is_plain)) = self.missed.take_if(speaks_against)
            && is_plain
        {
            lru.shrink(missed.distance);
        }
    }

    /// Less was there than was believed: `cached` of `held` blocks. Whether the cache is empty, if that is news.
    pub(super) fn deny(&mut self, miss: Block, (cached, held): (f64, f64), lru: &mut LruModel) -> bool {
        self.age(lru);
        if self.emptied.is_some_and(|emptied| not_later(miss.used, emptied)) {
            // it was asked for before that was known
            return false;
        }
        self.row += 1;
        // a single one may be a prompt of its own kind, unless part of it was there, and what is missing is old or much
        let is_plain = cached > 0.0 && (cached < held / 2.0 || lru.explains(miss.distance));
        // where it was found to be empty and is not full again, it is rather smaller than was believed
        let is_sudden = lru.is_sudden(miss.distance) && self.emptied.is_none();
        let is_its_own = |first: &Block| miss.used != first.used && miss.used != first.claimed;
        if is_sudden && let Some((first, _)) = self.missed.take_if(|(first, _)| is_its_own(first)) {
            // who asked for it has had it read
            let last =
                if not_later(first.claimed, miss.claimed) { first.claimed } else { miss.claimed }.wrapping_sub(1);
            self.emptied = Some(last);
            lru.was_emptied(last);
            return self.is_news();
        }
        if is_sudden {
            self.missed.get_or_insert((miss, cached > 0.0));
        }
        if self.row < ROW && !is_plain {
            return false;
        }
        lru.was_evicted(miss.used);
        if !is_sudden {
            lru.shrink(miss.distance);
        }
        cached <= 0.0 && self.is_news()
    }

    /// Forgets what was long ago, by what was used since. What claims are older is told well before their numbers wrap.
    fn age(&mut self, lru: &LruModel) {
        let is_recent = |claim: Stamp, part: f64| {
            let most = lru.usual() * part;
            lru.back().distance(claim, most) < most
        };
        self.missed = self.missed.filter(|(missed, _)| is_recent(missed.claimed, RECENT));
        self.emptied = self.emptied.filter(|emptied| is_recent(*emptied, 1.0));
    }

    fn is_news(&mut self) -> bool {
        !std::mem::replace(&mut self.told, true)
    }
}
