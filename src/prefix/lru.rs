//! A replica's cache as it can be told from outside. Pure.
//!
//! Engines evict the least recently used block, and of one prompt the last block first. So a block is gone once more
//! tokens than the cache holds were touched after its last use: its *distance* in the stack of an LRU cache, which a
//! router can count from what it sent. Both its inputs are corrected by the cached tokens that answers report:
//!
//! * a block that was believed to be there and was not: all that was last used before it is gone too (the *floor*), and the
//!   cache is smaller than was believed, unless that went long before its turn (see `residency`'s denials);
//! * a block that was believed to be gone and was there: the cache is larger.
//!
//! "Used" is told by the numbers of claims, which count over the whole fleet and wrap; a log of what each claim touched
//! turns them into distances. A replica of known capacity starts with it; any other one with no limit.

use crate::pack::record;
use std::collections::VecDeque;

use smallvec::SmallVec;

/// The number of a claim; wraps.
pub type Stamp = u32;

/// A run of blocks of a chain that were last used together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mark<Age> {
    /// Blocks of the chain up to its end.
    pub end: u32,
    /// Its last use.
    pub used: Age,
    /// Whether the use is known to be its replica's own.
    pub own: bool,
}

/// The runs of a chain.
pub type Marks<Age = Stamp> = SmallVec<[Mark<Age>; 4]>;

/// What one replica was seen to touch and to keep.
#[derive(Clone, Debug)]
pub struct LruModel {
    /// Tokens that were last used at a claim, or the end of a request, by its number, oldest first.
    log: VecDeque<(Stamp, f64)>,
    /// Tokens of requests that have not ended, by the number of their claim: engines evict nothing of these.
    open: Vec<(Stamp, f64)>,
    /// What the cache is believed to hold, in tokens.
    keeps: f64,
    capacity: f64,
    /// The most tokens that a block was lately seen to outlive.
    outlived: f64,
    /// Nothing that was last used at this claim or before is there.
    floor: Option<Stamp>,
}

record!(LruModel { log, open, keeps, capacity, outlived, floor });

/// Entries of the log; when it is full, those of its older half are joined two by two.
const LOG: usize = 2048;
/// One observation changes what is believed by this factor at most: it may be of its own kind.
const STEP: f64 = 1.5;
/// How much of a difference one observation makes believed.
const GAIN: f64 = 0.3;
/// How much of what was lately outlived one more answer leaves.
const KEPT: f64 = 0.97;

impl Default for LruModel {
    fn default() -> Self {
        LruModel::new(None)
    }
}

impl LruModel {
    /// Of a replica whose cache holds `capacity` tokens, if that is known.
    pub fn new(capacity: Option<f64>) -> Self {
        let capacity = capacity.unwrap_or(f64::INFINITY);
        LruModel { log: VecDeque::new(), open: Vec::new(), keeps: capacity, capacity, outlived: 0.0, floor: None }
    }

    /// Sets the capacity in tokens.
    pub fn set_capacity(&mut self, tokens: f64) {
        if tokens.to_bits() != self.capacity.to_bits() {
            self.capacity = tokens;
            self.keeps = tokens;
        }
    }

    /// What the cache is believed to hold, in tokens; `None` while nothing tells.
    pub fn keeps(&self) -> Option<f64> {
        self.keeps.is_finite().then_some(self.keeps)
    }

    /// The cache is empty. What was learned of its size stays.
    pub fn empty(&mut self) {
        self.log.clear();
        self.open.clear();
        self.floor = None;
    }

    /// Claim `now` touches a prompt of so many tokens, of which `runs` were touched before, `block` tokens a block.
    pub fn touch(&mut self, now: Stamp, runs: &Marks, most: u32, block: f64, tokens: f64) {
        let mut start = 0;
        for run in runs {
            let end = run.end.min(most);
            self.take(run.used, f64::from(end.saturating_sub(start)) * block);
            start = start.max(end);
        }
        self.log(now, tokens);
    }

    fn log(&mut self, now: Stamp, tokens: f64) {
        if self.log.len() >= LOG {
            self.join_older();
        }
        // numbers wrap: a floor that is very old would come to lie above everything
        self.floor = self.floor.filter(|f| now.wrapping_sub(*f) < Stamp::MAX / 4);
        self.log.push_back((now, tokens));
    }

    /// Claim `now` begins to use so many tokens.
    pub fn begin(&mut self, now: Stamp, tokens: f64) {
        self.open.push((now, tokens));
    }

    /// What claim `begun` used is used no longer; with what was generated for it. Whether it was.
    pub fn end(&mut self, begun: Stamp, now: Stamp, generated: f64) -> bool {
        let Some(at) = self.open.iter().position(|(claim, _)| *claim == begun) else { return false };
        let (_, tokens) = self.open.swap_remove(at);
        self.log(now, tokens + generated);
        true
    }

    /// All claims are over, as event `now`, as far as anybody will hear of them.
    pub fn settle(&mut self, now: Stamp) {
        let open = std::mem::take(&mut self.open);
        open.into_iter().for_each(|(_, tokens)| self.log(now, tokens));
    }

    /// What claim `begun` was to use was never used.
    pub fn withdraw(&mut self, begun: Stamp, tokens: f64) {
        match self.open.iter().position(|(claim, _)| *claim == begun) {
            Some(at) => drop(self.open.swap_remove(at)),
            None => self.take(begun, tokens),
        }
    }

    /// So many tokens that were last used at claim `used`, or the last one before it here, are used again.
    pub fn take(&mut self, used: Stamp, tokens: f64) {
        let later = self.log.partition_point(|(at, _)| not_later(*at, used));
        if let Some((_, left)) = later.checked_sub(1).and_then(|n| self.log.get_mut(n)) {
            *left = (*left - tokens).max(0.0);
        }
    }

    fn join_older(&mut self) {
        let older = self.log.len() / 4;
        for n in 0..older {
            let (_, first) = self.log[2 * n];
            let (at, second) = self.log[2 * n + 1];
            self.log[n] = (at, first + second);
        }
        self.log.drain(older..2 * older);
    }

    /// The last claim touches so many tokens more: those of its answer.
    pub fn touch_more(&mut self, tokens: f64) {
        if let Some((_, last)) = self.log.back_mut() {
            *last += tokens;
        }
    }

    /// Whether anything that was read may be gone.
    pub fn evicts(&self) -> bool {
        self.keeps.is_finite() || self.floor.is_some()
    }

    /// How many of the first `most` blocks of a chain are there, `block` tokens each.
    pub fn held(&self, runs: &Marks, most: u32, block: f64) -> u32 {
        if !self.evicts() {
            return most;
        }
        let (mut held, mut back) = (0, self.back());
        for run in runs {
            if held >= most || self.floor.is_some_and(|f| not_later(run.used, f)) {
                break;
            }
            let gone = (back.distance(run.used, self.keeps + f64::from(run.end - held) * block) - self.keeps) / block;
            if gone > 0.0 {
                #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped before")]
                let there = (f64::from(run.end - held) - gone).max(0.0) as u32;
                return (held + there).min(most);
            }
            held = run.end;
        }
        held.min(most)
    }

    /// A way back through what was touched, from now.
    pub fn back(&self) -> Back<'_> {
        let sum = self.open.iter().map(|(_, tokens)| tokens).sum();
        Back { model: self, left: self.log.len(), sum, last: None }
    }

    /// Whether a block may well have been evicted at this distance, going by what else was there.
    pub fn explains(&self, distance: f64) -> bool {
        distance > self.outlived / 2.0
    }

    /// Whether a block that is gone at this distance from its last use went long before it was its turn.
    pub fn is_sudden(&self, distance: f64) -> bool {
        distance < self.usual() / 2.0
    }

    /// What the cache is believed to hold, in tokens; where nothing tells, what blocks were lately seen to outlive.
    pub fn usual(&self) -> f64 {
        self.keeps().unwrap_or(self.outlived)
    }

    /// A block was evicted that was last used at claim `used`.
    pub fn was_evicted(&mut self, used: Stamp) {
        self.was_emptied(used.wrapping_sub(1));
    }

    /// All that was last used at claim `last` or before it is gone.
    pub fn was_emptied(&mut self, last: Stamp) {
        if self.floor.is_none_or(|f| not_later(f, last)) {
            self.floor = Some(last);
        }
    }

    /// A block was evicted at this distance from its last use.
    pub fn shrink(&mut self, distance: f64) {
        // a block that is gone much sooner than others stayed was not evicted: the cache was emptied
        if distance < self.keeps && self.explains(distance) {
            let touched: f64 = self.log.iter().map(|(_, tokens)| tokens).sum();
            let believed = distance.max(self.keeps.min(touched) / STEP);
            self.keeps = if self.keeps.is_finite() { self.keeps + GAIN * (believed - self.keeps) } else { believed };
        }
    }

    /// A block was kept at this distance from its last use at claim `used`.
    pub fn was_kept(&mut self, used: Stamp, distance: f64) {
        if self.floor.is_some_and(|f| not_later(used, f)) {
            self.floor = Some(used.wrapping_sub(1));
        }
        self.outlived = distance.max(self.outlived * KEPT);
        if distance > self.keeps {
            self.keeps = (self.keeps + GAIN * (distance.min(self.keeps * STEP) - self.keeps)).min(self.capacity);
        }
    }
}

/// A way back through what a replica touched. The runs of a chain were used the longer ago the deeper they are, so that
/// one way does for all of them.
#[derive(Clone, Debug)]
pub struct Back<'a> {
    model: &'a LruModel,
    /// Entries of the log that were not come by yet, and what those touched that were.
    left: usize,
    sum: f64,
    /// How far back it was asked for.
    last: Option<Stamp>,
}

impl Back<'_> {
    /// Tokens touched since claim `used` and at it, counted up to `enough`.
    pub fn distance(&mut self, used: Stamp, enough: f64) -> f64 {
        if self.last.is_some_and(|last| last != used && not_later(last, used)) {
            *self = self.model.back();
        }
        self.last = Some(used);
        let log = &self.model.log;
        let is_there = |left: usize| log.get(left).is_some_and(|(at, _)| not_later(*at, used));
        while self.sum < enough && self.left > 0 && !is_there(self.left) {
            self.left -= 1;
            self.sum += log[self.left].1;
        }
        self.sum
    }
}

/// Whether claim `a` was not later than `b`, as numbers that wrap tell.
pub(super) fn not_later(a: Stamp, b: Stamp) -> bool {
    b.wrapping_sub(a) < Stamp::MAX / 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BLOCK: f64 = 16.0;

    fn run(end: u32, used: Stamp) -> Marks {
        [Mark { end, used, own: true }].into_iter().collect()
    }

    proptest! {
        /// Sessions of their own sizes, in any order, against an LRU cache of whole blocks.
        #[test]
        fn with_a_known_capacity_it_is_the_cache(turns in prop::collection::vec(0usize..6, 1..80), sizes in prop::array::uniform6(1u32..40), first in any::<Stamp>()) {
            let capacity = 60u16;
            let mut model = LruModel::new(Some(f64::from(capacity) * BLOCK));
            let mut last = [None; 6];
            let mut cache: Vec<(usize, u32)> = Vec::new();
            for (n, session) in (0..).zip(turns) {
                let (size, now) = (sizes[session], first.wrapping_add(n));
                let held = cache.iter().filter(|(s, _)| *s == session).count();
                cache.retain(|(s, _)| *s != session);
                cache.extend((0..size).rev().map(|depth| (session, depth)));
                cache.drain(..cache.len().saturating_sub(usize::from(capacity)));
                let runs = last[session].map(|used| run(size, used)).unwrap_or_default();
                let known = if runs.is_empty() { 0 } else { size };
                prop_assert_eq!(model.held(&runs, known, BLOCK) as usize, held);
                model.touch(now, &runs, known, BLOCK, f64::from(size) * BLOCK);
                last[session] = Some(now);
            }
        }
    }

    proptest! {
        /// One way back for many uses, in whatever order, tells what a way for each of them tells.
        #[test]
        fn one_way_back_does_for_all(touched in prop::collection::vec(1u32..100, 0..60), asked in prop::collection::vec((0u32..70, 1u32..4000), 1..20), first in any::<Stamp>(), is_sorted in any::<bool>()) {
            let mut model = LruModel::new(None);
            for (n, tokens) in (0..).zip(touched) {
                model.touch(first.wrapping_add(3 * n), &Marks::new(), 0, BLOCK, f64::from(tokens));
            }
            model.begin(first.wrapping_add(500), 7.0);
            let mut asked = asked;
            if is_sorted {
                asked.sort_unstable_by(|a, b| b.cmp(a));
            }
            let mut back = model.back();
            for (used, enough) in asked {
                let (used, enough) = (first.wrapping_add(3 * used), f64::from(enough));
                let (one, own) = (back.distance(used, enough), model.back().distance(used, enough));
                // beyond what is enough it does not matter how much it is
                prop_assert_eq!(one.min(enough).to_bits(), own.min(enough).to_bits());
            }
        }
    }

    #[test]
    fn many_runs_take_one_way_back() {
        let mut model = LruModel::new(Some(f64::from(u32::MAX)));
        (0..1000).for_each(|now| model.touch(now, &Marks::new(), 0, BLOCK, 16.0));
        let mut back = model.back();
        let ways = (0..1000).rev().map(|used| {
            let before = back.left;
            back.distance(used, f64::MAX);
            before.abs_diff(back.left)
        });
        assert_eq!(ways.sum::<usize>(), 1000);
    }

    #[test]
    fn a_long_log_is_thinned_and_still_tells_old_from_new() {
        let mut model = LruModel::new(None);
        let all = Stamp::try_from(LOG).unwrap();
        for now in 0..3 * all {
            model.touch(now, &Marks::new(), 0, BLOCK, 100.0);
        }
        assert!(model.log.len() <= LOG);
        let at = |used| model.back().distance(used, f64::MAX);
        assert_eq!(at(0), 300.0 * LOG as f64);
        assert!(at(3 * all - 100) < at(all) && at(all) < at(10));
    }

    #[test]
    fn a_capacity_is_learned_from_both_sides_and_an_emptied_cache_does_not_count() {
        let mut model = LruModel::new(None);
        for now in 0..100 {
            model.touch(now, &Marks::new(), 0, BLOCK, 100.0);
        }
        let near = |model: &LruModel, keeps: f64| (model.keeps / keeps - 1.0).abs() < 0.01;
        let evicted = |model: &mut LruModel, used, distance| {
            model.was_evicted(used);
            model.shrink(distance);
        };
        (0..20).for_each(|_| evicted(&mut model, 10, 4000.0));
        assert!(near(&model, 4000.0) && model.floor == Some(9), "{model:?}");
        (0..20).for_each(|_| model.was_kept(5, 5000.0));
        assert!(near(&model, 5000.0) && model.floor == Some(4), "{model:?}");
        let before = model.keeps;
        evicted(&mut model, 50, 300.0);
        assert_eq!((model.keeps.to_bits(), model.floor), (before.to_bits(), Some(49)));
    }
}
